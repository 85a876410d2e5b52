# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of docs/bounds.md.

PYTHONPATH=. python docs/bounds/figures.py [FOLDER] [--png]
"""

from __future__ import annotations

import sys
from pathlib import Path

from ladder import bounds
from ladder.bounds.plot import Panel, Trace, draw
from ladder.bounds.report import band, einsum_report

PAPER = {"factors": "divisors", "space": "uniform"}
GEMMS = [(2048, 2048, 2048), (4096, 4096, 4096), (4096, 4096, 8192), (4096, 8192, 8192),
         (4096, 4096, 16384), (4096, 16384, 16384), (8192, 8192, 8192)]  # fmt: skip
BLOCK_BUFFERS = (2.0**14, 2.0**30)


def figure_1() -> list[Panel]:
    """One ski slope with its parts named."""
    einsum = bounds.matmul(16384, 1024, 1024)
    curve = bounds.ski_slope(einsum, **PAPER)
    points = curve.points
    return [
        Panel(
            [Trace("ski slope: least traffic of any mapping", points, end=True)],
            "16384 x 1024 x 1024 matmul, 1-byte elements (the paper's Fig. 1)",
            minimum=einsum.algorithmic_minimum,
            band=band(einsum, points[0][0], 4 * points[-1][0]),
            capacities=[("max effectual buffer", points[-1][0]),
                        ("all operands", einsum.algorithmic_minimum)],
        )
    ]  # fmt: skip


def figure_10() -> list[Panel]:
    """Seven matmuls: traffic, and operations per byte."""
    slopes, mesas = [], []
    for index, (m, n, k) in enumerate(GEMMS):
        einsum = bounds.matmul(m, n, k)
        points = bounds.ski_slope(einsum, **PAPER).points
        label = "x".join(f"{size // 1024}k" for size in (m, n, k))
        slopes.append(Trace(label, points, stepped=False, end=True, line=index))
        mesa = [(size, einsum.operations / traffic) for size, traffic in points]
        mesas.append(Trace(label, mesa, stepped=False, end=True, line=index))
    share = {"x_range": (2.0**1, 2.0**28)}
    return [
        Panel(slopes, "10a: traffic", **share),
        Panel(mesas, "10b: operational intensity mesas", y_label="operations per byte",
              in_bytes=False, legend=False, **share),
    ]  # fmt: skip


def figure_18() -> list[Panel]:
    """The two layers of an MLP."""
    mlp = bounds.gpt3_6_7b()[0][4:]
    sound = bounds.envelope([bounds.fused(mlp), bounds.flash(mlp)])
    published = bounds.fused(mlp, accounting="paper")
    return [
        Panel(
            [
                Trace("unfused", bounds.unfused(mlp).points),
                Trace("untiled fusion", bounds.untiled(mlp).points),
                Trace("tiled fusion, as published", published.points),
                Trace("tiled fusion, sound", sound.points, line=4),
            ],
            "32768 x 4096 x 16384, then 32768 x 16384 x 4096, 2-byte elements (Fig. 18)",
            minimum=bounds.chain_minimum(mlp, fused=True),
            capacities=[("50 MiB", 50 * 2.0**20), ("257 MiB", 257 * 2.0**20)],
            x_range=(2.0**16, 2.0**32),
            y_range=(2.0**28, 2.0**38),
        )
    ]


def figure_22() -> list[Panel]:
    """The whole block, and how it is cut."""
    chain, side = bounds.gpt3_6_7b()
    beside = bounds.unfused(side)

    def whole(curve: bounds.Curve) -> list[tuple[float, float]]:
        return bounds.sum([curve, beside]).points

    return [
        Panel(
            [
                Trace("unfused", whole(bounds.unfused(chain))),
                Trace("one chain, as published", whole(bounds.fused(chain, accounting="paper"))),
                Trace("best segments, as published",
                      whole(bounds.segmented(chain, accounting="paper")), line=2),
                Trace("best segments, sound", whole(bounds.segmented(chain)), line=4),
            ],
            "GPT-3 6.7B block, 16 sequences of 2048, 2-byte elements (Fig. 22)",
            minimum=bounds.chain_minimum(chain, fused=True) + bounds.chain_minimum(side[:1]) * 2,
            capacities=[("50 MiB", 50 * 2.0**20)],
            x_range=(2.0**16, 2.0**30),
            y_range=(2.0**30, 2.0**38),
        )
    ]  # fmt: skip


def narrow() -> list[Panel]:
    """What the width of the weights changes, for a decoding step."""
    traces = []
    for name in ("float16", "uint8,group=128,scale=float16", "uint4,group=128,scale=float16",
                 "uint2,group=128,scale=float16"):  # fmt: skip
        einsum = bounds.matmul(16, 14336, 4096, a="float16", w=name, c="float16")
        traces.append(Trace(name.split(",")[0], bounds.ski_slope(einsum).points, end=True))
    return [
        Panel(traces, "16 x 14336 x 4096, float16 activations, weights as named",
              capacities=[("H200 shared", 228 * 2.0**10), ("H200 L2", 60 * 2.0**20)])
    ]  # fmt: skip


def example() -> list[Panel]:
    """The command of the introduction."""
    einsum = bounds.matmul(4096, 4096, 4096, a="float32", w="float32", c="float32")
    measured = ["1.58GiB", "561.51MiB", "411.06MiB", "373.33MiB"]
    report = einsum_report(einsum, "4096 x 4096 x 4096 matmul in float32, and CUTLASS on four GPUs",
                           at=["2MiB", "24MiB", "40MiB", "50MiB"], measured=measured)  # fmt: skip
    panel = report.panels[0]
    panel.x_range = (2.0**14, 2.0**28)
    panel.y_range = (2.0**26, 2.0**35)
    names = ("A2", "A30", "A100", "H100")
    panel.capacities = [
        (name, size) for name, (_, size, _) in zip(names, panel.measured, strict=True)
    ]
    return [panel]


FIGURES = {"figure1": figure_1, "figure10": figure_10, "figure18": figure_18,
           "figure22": figure_22, "widths": narrow, "measured": example}  # fmt: skip


def main(arguments: list[str]) -> None:
    folders = [a for a in arguments if not a.startswith("--")]
    folder = Path(folders[0]) if folders else Path(__file__).parent
    for name, panels in FIGURES.items():
        for ending in (".svg", ".png") if "--png" in arguments else (".svg",):
            draw(panels(), folder / (name + ending))


if __name__ == "__main__":
    main(sys.argv[1:])
