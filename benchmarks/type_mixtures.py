# SPDX-License-Identifier: Apache-2.0
"""Types by layer for a budget of bits, beside one type for all: a table of
benchmarks/type_quality.py."""

from __future__ import annotations

import copy
import itertools
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

import ladder
from ladder.evaluate.perplexity import perplexity
from ladder.types import TType


def mixtures(
    model: nn.Module,
    tokens: Tensor,
    types: Sequence[TType],
    budgets: Sequence[float],
    chosen_by: Tensor,
    calibration: Tensor | None,
    *,
    measure: str,
    device: str,
) -> list[str]:
    """Markdown: a row for each budget, and each type within them, in order of bits.

    Args:
        types: to choose from.
        budgets: bits a weight.
        chosen_by: windows that types are chosen by.
        calibration: windows that codes are chosen by, and types for such codes, in a second column;
            None: nearest codes only.
        measure: as :func:`ladder.choose_types`.
    """
    base = perplexity(copy.deepcopy(model).to(device), tokens)
    begun = time.perf_counter()
    given = {"measure": measure, "windows": len(chosen_by), "tokens": chosen_by.shape[1]}
    model = model.to(device)
    first = ladder.choose_types(model, types, min(budgets), chosen_by, **given)
    seconds = time.perf_counter() - begun
    choices = [("nearest", first)]
    if calibration is not None:
        every = ladder.choose_types(
            model, types, min(budgets), calibration, calibrated=True, **given
        )
        choices.append(("calibrated", every))
    rows = []
    for text, (bits, cost) in first.everywhere().items():
        if min(budgets) <= bits <= max(budgets):
            row = (bits, 0, f"`{text}` everywhere", "", cost, dict.fromkeys(first, text))
            rows.append((*row, [codes for codes, _ in choices]))
    for budget, (codes, found) in itertools.product(budgets, choices):
        chosen = found.at(budget)
        counts = Counter(ttype.element.name for ttype in chosen.values())
        what = ", ".join(f"{name} {counts[name]}" for name in sorted(counts))
        row = (chosen.bits, 1, f"mixture: {what}", f"{budget:g}", chosen.cost, dict(chosen))
        rows.append((*row, [codes]))
    lines = [
        f"Unquantised: {base:.4f}. Types chosen by {len(chosen_by)} windows of "
        f"{chosen_by.shape[1]} tokens in {seconds:.0f} s, `measure={measure!r}`; cost: KL "
        "divergence, nats a token, summed over layers quantised alone, of a mixture for calibrated "
        "codes times what calibration leaves of it. A mixture says how many layers have which "
        "type.",
        "",
        f"| types | bits allowed | bits a weight | cost | {' | '.join(c for c, _ in choices)} |",
        "|---|---:|---:|---:|" + "---:|" * len(choices),
    ]
    for bits, _, what, budget, cost, named, codes in sorted(rows, key=lambda row: row[:2]):
        cells = [
            _measured(model, tokens, named, calibration if which == "calibrated" else None, base,
                      device) if which in codes else ""
            for which, _ in choices
        ]  # fmt: skip
        lines.append(f"| {what} | {budget} | {bits:.3f} | {cost:.4f} | {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


def _measured(
    model: nn.Module,
    tokens: Tensor,
    types: Mapping[str, TType | str],
    calibration: Tensor | None,
    base: float,
    device: str,
) -> str:
    packed = copy.deepcopy(model).to("cpu" if calibration is None else device)
    ladder.convert(packed, types=types, calibration=calibration)
    found = perplexity(packed.to(device), tokens)
    return f"{found:.2f} ({found / base - 1:+.1%})"
