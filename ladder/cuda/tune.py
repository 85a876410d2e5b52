# SPDX-License-Identifier: Apache-2.0
"""Compiles and times the schedules that the compiler proposes, for many weights at once, and keeps
the fastest as plans.

Compiling is the processor's work and timing the GPU's, so both go on at once: threads wait for
helper processes that compile, all shapes together on all processors, and the caller's thread times
what they have finished, one kernel behind the other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

import torch

from ladder.cuda import kernels
from ladder.cuda.background import Background, Job, Proposals, jobs_of
from ladder.cuda.request import MODES, Origin, Request, Tuned, check_mode
from ladder.cuda.timing import calls_of, seconds

__all__ = ["MODES", "Background", "Request", "Tuned", "compile_in_background", "tune_all"]

_ops = torch.ops.ladder
_log = logging.getLogger("ladder")

#: Called with what was done last, how many shapes and intervals are done, and how many there are.
Progress = Callable[[str, int, int], None]


def compile_in_background(requests: Iterable[Request], *, mode: str = "fast") -> Background:
    """Start to compile into the store what :func:`tune_all` is going to need, and return at once.

    That is the kernel of the plan where this process or a store has one, else the candidates of
    ``mode``. Kernels that are being compiled are not compiled by :func:`tune_all` as well: it waits
    for them.

    Args:
        requests: what :func:`tune_all` will be given, or a part of it.
        mode: "off" (the first proposal only), "fast" or "full".
    Returns:
        What is under way: ``wait()`` waits for it, ``stop()`` starts nothing more. Nobody needs to
        keep it. A process that exits starts nothing more either.
    Raises:
        InvalidArgument: another mode, or a number of tokens that is not positive.
    """
    return Background(jobs_of(requests), check_mode(mode))


def tune_all(
    requests: Iterable[Request],
    *,
    mode: str = "fast",
    budget_s: float = 20.0,
    progress: Progress | None = None,
) -> Tuned:
    """Choose, compile and load the kernels of ``requests``.

    What this process or a store has a plan for is not timed. Everything else is, within the budget:
    candidates of all requests are compiled at once, by as many processes as there are processors,
    and timed as they are done. When the budget is spent, what is left takes the scheduler's first
    proposal; it is no plan, so that the next call goes on from there.

    Args:
        requests: those of one weight, device and dtype count once.
        mode: "fast" times the three best proposals of each shape and interval of tokens, "full"
            eight, also where a plan is the fastest of fewer; "off" takes plans and first proposals.
        budget_s: seconds of compiling and timing together. Afterwards nothing is timed, and only
            what is left without a kernel is compiled.
        progress: called after each shape and interval.
    Returns:
        For each request, for each of its ``m``, the schedule of the kernel; "" where the weight is
        dequantised for a dense product. See :class:`Tuned` for where each is from.
    Raises:
        InvalidArgument: another mode, or a number of tokens that is not positive.
    """
    start = time.perf_counter()
    requests, kind = list(requests), check_mode(mode)
    jobs = jobs_of(requests)
    say = _counted(progress, len(jobs))
    origin: dict[Job, Origin] = {}
    if mode != "off":
        deadline = start + budget_s
        with Background(jobs, kind, deadline) as background:
            for job, found in background.results():
                origin[job] = _chosen(job, found, kind.proposals)
                say(job)
    tuned = Tuned()
    late = [job for job in jobs if job not in origin]
    with Background(late, MODES["off"]) as background:
        for job, found in background.results():
            origin[job] = "stored" if found.plan else "proposed"
            tuned.late += mode != "off" and bool(found.schedules)
            say(job)
    for request in requests:
        _load(request, origin, tuned)
    tuned.seconds = time.perf_counter() - start
    if tuned.late:
        _log.warning(
            "%d of %d kernels are the scheduler's first proposal: %g seconds were too few to time "
            "them all; the next tuning goes on there", tuned.late, len(jobs), budget_s,
        )  # fmt: skip
    return tuned


def _counted(progress: Progress | None, total: int) -> Callable[[Job], None]:
    done = 0

    def say(job: Job) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(str(job), done, total)

    if progress is not None and total:
        progress("", 0, total)
    return say


def _chosen(job: Job, found: Proposals, count: int) -> Origin:
    """Time what was proposed, and take the fastest. Returns where the kernel is from."""
    if found.plan:
        return "stored"
    times = _times(job, found.schedules)
    if not times:
        return "proposed"
    best = min(times, key=times.__getitem__)
    _ops.use_schedule(*job.key, best, True, count)
    _log.info("%s: %s, best of %d", job, best, len(times))
    return "measured"


def _times(job: Job, schedules: Sequence[str]) -> dict[str, float]:
    """Seconds of each schedule for the fewest and the most tokens of the interval that were asked
    for, together; those left out that the device refuses."""
    times: dict[str, float] = {}
    if not schedules:
        return times
    tokens = sorted({job.m[0], job.m[-1]})
    with torch.cuda.device(job.device):
        calls = calls_of(
            job.weight, job.ttype, job.shape, job.device, job.dtype, tokens, job.columns
        )
        for name in schedules:
            try:
                _ops.use_schedule(*job.key, name, False)
            except RuntimeError as error:  # spills, say: the next one
                _log.debug("%s: %s", name, error)
                continue
            times[name] = sum(seconds(group) for group in calls)
    return times


def _load(request: Request, origin: dict[Job, Origin], tuned: Tuned) -> None:
    """Load the kernels of a request, also of what is multiplied densely, and note them."""
    schedules: dict[int, str] = {}
    origins: dict[int, Origin] = {}
    known: dict[int, tuple[str, Origin]] = {}
    for tokens in request.m:
        interval = kernels.interval(tokens, request.activation_type)
        # More tokens than an interval has are passes, whose last has a kernel of its own.
        key = tokens if interval < tokens else interval
        if key not in known:
            name = kernels.compile_for(request.weight, request.device, request.dtype, tokens)
            job = Job.of(request, interval)
            known[key] = name, origin.get(job, "") if name else ""
        schedules[tokens], origins[tokens] = known[key]
    tuned[request] = schedules
    tuned.origin[request] = origins
