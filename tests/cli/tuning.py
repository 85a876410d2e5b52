# SPDX-License-Identifier: Apache-2.0
"""``ladder tune`` on a machine that stands in for one with a GPU (tests/cli/conftest.py)."""

from ladder.cli import main
from ladder.cuda.request import Tuned
from ladder.cuda.tune_experts import Chosen, TunedExperts

SCHEDULE = "tokens 8, warps 1x8, ordered"


def run(capsys, *arguments):
    try:
        status = main(["tune", *map(str, arguments)])
    except SystemExit as stop:
        status = stop.code or 0
    out, err = capsys.readouterr()
    return status, out, err


class Machine(list):
    """What tune_all was asked for; ``experts`` is what tune_layers was. It has kernels for up to 16
    tokens, the last of them late, and for experts all."""

    def __init__(self):
        super().__init__()
        self.kept, self.experts = [], []

    def tune_all(self, requests, *, mode, budget_s, progress):
        kept = self.kept[-1]
        self.append({"requests": requests, "mode": mode, "budget_s": budget_s, "kept": kept})
        tuned = Tuned()
        for request in requests:
            named = {m: SCHEDULE if m <= 16 else "" for m in request.m}
            tuned[request] = named
            tuned.origin[request] = {m: "measured" if name else "" for m, name in named.items()}
        progress("the last", len(requests), len(requests))
        tuned.late = 1
        return tuned

    def tune_layers(self, requests, *, mode, budget_s, progress):
        self.experts.append({"requests": requests, "mode": mode, "budget_s": budget_s})
        tuned = TunedExperts()
        for request in requests:
            chosen = Chosen(16, "measured", SCHEDULE, SCHEDULE)
            tuned[request] = dict.fromkeys(request.m, chosen)
        progress("the last", len(requests), len(requests))
        return tuned
