# SPDX-License-Identifier: Apache-2.0
"""Threads that have kernels compiled by helper processes, shape by shape."""

from __future__ import annotations

import atexit
import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch

from ladder import _library
from ladder.cuda import kernels
from ladder.cuda.request import Mode, Request
from ladder.errors import InvalidArgument
from ladder.types import TType

_ops = torch.ops.ladder
_log = logging.getLogger("ladder")


@dataclass(frozen=True)
class Job:
    """One kernel to choose: of a weight, for the numbers of tokens up to ``most``, of which ``m``
    are asked for."""

    weight: int
    device: torch.device
    dtype: torch.dtype
    most: int
    ttype: TType = field(compare=False)
    shape: tuple[int, int] = field(compare=False)
    columns: int = field(compare=False)  #: of products
    m: tuple[int, ...] = field(compare=False)

    @classmethod
    def of(cls, request: Request, most: int, m: tuple[int, ...] = ()) -> Job:
        return cls(
            request.weight,
            request.device,
            request.dtype,
            most,
            request.ttype,
            request.shape,
            request.columns,
            m,
        )

    @property
    def key(self) -> tuple[int, int, torch.dtype, int]:
        """As the ops take it: weight, device, dtype, tokens."""
        return self.weight, self.device.index or 0, self.dtype, self.most

    def __str__(self) -> str:
        return f"{self.ttype.element.name} [{self.shape[0]}, {self.shape[1]}] up to {self.most}"


@dataclass(frozen=True)
class Proposals:
    """What a job can take: the plan that somebody measured, or else schedules, best guess first."""

    plan: str
    schedules: tuple[str, ...]


def jobs_of(requests: Iterable[Request]) -> list[Job]:
    """Distinct jobs, those for the fewest tokens first: what every later token of a reply needs.

    Raises:
        InvalidArgument: a number of tokens is not a positive integer.
    """
    tokens: dict[Job, set[int]] = {}
    for request in requests:
        for m in request.m:
            if type(m) is not int or m < 1:
                raise InvalidArgument(f"m has {m!r}, not a positive integer")
            if request.dtype not in kernels.HALVES:
                continue  # it is multiplied densely
            most = kernels.interval(m, request.activation_type)
            tokens.setdefault(Job.of(request, most), set()).add(m)
    jobs = (replace(job, m=tuple(sorted(m))) for job, m in tokens.items())
    return sorted(jobs, key=lambda job: job.most)


class Background:
    """Jobs under way. A context manager, which stops at its end.

    Args:
        deadline: of time.perf_counter(), after which nothing is begun; None: there is none.
    """

    def __init__(self, jobs: list[Job], mode: Mode, deadline: float | None = None) -> None:
        self._all = len(jobs)
        # All begin at once where there are as many processors, those that take longest first.
        self._jobs = iter(jobs if len(jobs) > _processors() else jobs[::-1])
        self._mode, self._deadline = mode, deadline
        self._taking, self._stopped = threading.Lock(), threading.Event()
        self._done: queue.SimpleQueue[tuple[Job, Proposals]] = queue.SimpleQueue()
        _library.find_compiler()
        # Daemons, since the interpreter waits for others before atexit has a chance to stop them.
        self._threads = [
            threading.Thread(target=self._work, name="ladder-compile", daemon=True)
            for _ in range(min(len(jobs), _processors()))
        ]
        self._working = len(self._threads)
        atexit.register(self._exit)
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            self._done.put((job, _proposals(job, self._mode, self._left())))
        with self._taking:
            self._working -= 1
            if not self._working:
                atexit.unregister(self._exit)

    def _next(self) -> Job | None:
        with self._taking:
            over = self._stopped.is_set() or not self._left()
            return None if over else next(self._jobs, None)

    def _left(self) -> float:
        """Seconds to the deadline, 0 after it; infinite where there is none."""
        if self._deadline is None:
            return math.inf
        return max(0.0, self._deadline - time.perf_counter())

    def results(self) -> Iterator[tuple[Job, Proposals]]:
        """Jobs as they are done, until all are or until the deadline."""
        for _ in range(self._all):
            left = self._left()
            if not left:
                return
            try:
                yield self._done.get(timeout=None if left == math.inf else left)
            except queue.Empty:
                return

    def stop(self) -> None:
        """Begin no further job."""
        self._stopped.set()

    def wait(self) -> None:
        """Return when nothing is under way any more."""
        for thread in self._threads:
            thread.join()
        _library.log_notices()

    def _exit(self) -> None:
        self.stop()
        _ops.stop_compiling_ahead()
        self.wait()

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        self.wait()


def _processors() -> int:
    """How many this process may use; macOS says only how many there are."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def in_background(compile: Callable[[], None]) -> threading.Thread:
    """Call ``compile``, which has kernels compiled into the store, in a thread of its own. Where
    compiler or device refuse, whoever loads the kernels is told why. A process that exits starts no
    further kernel."""
    _library.find_compiler()

    def work() -> None:
        try:
            compile()
        except (RuntimeError, ValueError, NotImplementedError) as error:
            _log.debug("%s", error)
        atexit.unregister(stop)

    def stop() -> None:
        _ops.stop_compiling_ahead()
        thread.join()

    thread = threading.Thread(target=work, name="ladder-compile", daemon=True)
    atexit.register(stop)
    thread.start()
    return thread


def _proposals(job: Job, mode: Mode, seconds: float) -> Proposals:
    """Find and compile them, beginning no kernel after ``seconds``. Empty where compiler or device
    refuse: whoever loads the kernel is told why."""
    try:
        if plan := _ops.plan(*job.key, mode.measured):
            return Proposals(plan, ())
        lines = _ops.schedules(*job.key, mode.proposals, seconds)
        return Proposals("", tuple(lines.splitlines()))
    except (RuntimeError, ValueError, NotImplementedError) as error:
        _log.debug("%s: %s", job, error)
        return Proposals("", ())
