# SPDX-License-Identifier: Apache-2.0
"""Whether a calibration makes first choices better: their times beside the best of eight.

    ladder calibrate --out calibration.json
    LADDER_CALIBRATION=off python benchmarks/calibrate_check.py times.json
    LADDER_CALIBRATION=calibration.json python benchmarks/calibrate_check.py times.json

Each run times the eight proposals of every problem that the file has not timed yet, adds them to
the file, with the order in which they were proposed, and prints a table of all runs in it: of each
the time of its first proposal over the best time of any.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

import torch
from machine import require_gpu

from ladder import _library
from ladder.cuda import image, kernels
from ladder.cuda.background import Background, Job
from ladder.cuda.request import Mode
from ladder.cuda.timing import calls_of, seconds
from ladder.types import parse

PROPOSALS = 8
UINT4 = "uint4,group=128,scale=float16,zero=midpoint"
#: Type, rounded activations, N, K, tokens.
PROBLEMS = [
    *((UINT4, "", n, k, m)
      for n, k in ((4096, 4096), (8192, 8192), (28672, 4096), (5120, 13824))
      for m in (1, 16, 64, 512)),
    *((UINT4, "", 2048, 2048, m) for m in (1, 16)),
    *(("nf4,group=64,scale=float16", "", 8192, 8192, m) for m in (1, 16, 64)),
    *(("float8_e4m3,channel,scale=float32", "", 8192, 8192, m) for m in (1, 16, 128)),
    *(("uint2,group=128,scale=float16,zero=midpoint", "", 8192, 8192, m) for m in (1, 32)),
    *(("int4,channel,scale=float16", "int8", 8192, 8192, m) for m in (64, 1024)),
    *(("float8_e4m3,channel,scale=float32", "float8_e4m3", 8192, 8192, m) for m in (64, 1024)),
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="calibrate_check.py", description=__doc__)
    parser.add_argument("file", type=Path, help="times of all runs, as JSON")
    path = parser.parse_args().file
    require_gpu()
    kept = json.loads(path.read_text()) if path.exists() else {"runs": {}, "times": {}}
    device, dtype = torch.device("cuda", 0), torch.float16
    mode = Mode(proposals=PROPOSALS, measured=sys.maxsize)  # no plan has been measured so often
    _library.find_compiler()
    jobs: dict[Job, str] = {}
    for type, rounded, n, k, m in PROBLEMS:
        if why := kernels.objection(type, n, k, False, 0, rounded):
            print(f"{type} {rounded} [{n}, {k}]: {why}", file=sys.stderr)
            continue
        number = image.open_weight(type, n, k, activation_type=rounded)
        most = kernels.interval(m, rounded)
        job = Job(number, device, dtype, most, parse(type), (n, k), (m,))
        jobs[job] = f"{type.split(',')[0]}{'/' + rounded if rounded else ''} {n}x{k} m={m}"
    run = os.environ.get("LADDER_CALIBRATION") or "cache"
    proposed: dict[str, list[str]] = {}
    with Background(list(jobs), mode) as background:
        for job, found in background.results():
            name = jobs[job]
            proposed[name] = list(found.schedules)
            times = kept["times"].setdefault(name, {})
            missing = [each for each in found.schedules if each not in times]
            if not missing:
                continue
            calls = calls_of(job.weight, job.ttype, job.shape, device, dtype, job.m)[0]
            for schedule in missing:
                try:
                    torch.ops.ladder.use_schedule(*job.key, schedule, False)
                except RuntimeError:
                    continue
                times[schedule] = seconds(calls)
    kept["runs"][run] = {jobs[job]: proposed.get(jobs[job], []) for job in jobs}
    path.write_text(json.dumps(kept, indent=1))
    report(kept)


def report(kept: dict) -> None:
    runs = list(kept["runs"])
    print("| problem | best us |", " | ".join(f"first of {each}" for each in runs), "|")
    print("|---|---|" + "---|" * len(runs))
    over: dict[str, list[float]] = {each: [] for each in runs}
    for name, times in kept["times"].items():
        if not times:
            continue
        best, cells = min(times.values()), []
        for each in runs:
            # What cannot be run is not a first choice.
            tried = [times[s] for s in kept["runs"][each].get(name, []) if s in times]
            cells.append(f"{tried[0] / best:.3f}" if tried else "")
            if tried:
                over[each].append(tried[0] / best)
        print(f"| {name} | {1e6 * best:.2f} | {' | '.join(cells)} |")
    for each, ratios in over.items():
        mean = math.exp(sum(map(math.log, ratios)) / max(1, len(ratios)))
        print(f"{each}: geometric mean {mean:.4f}, most {max(ratios, default=1):.3f}")


if __name__ == "__main__":
    main()
