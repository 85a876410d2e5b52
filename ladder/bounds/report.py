# SPDX-License-Identifier: Apache-2.0
"""What ``ladder bounds`` prints and draws, as values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ladder import bounds
from ladder.bounds.machines import Machine, machine
from ladder.bounds.models import Matmul, Model, einsum_of, weight_of
from ladder.bounds.plot import Panel, Trace, check_path, draw, require_matplotlib
from ladder.bounds.sizes import format_bytes, format_seconds, parse_bytes
from ladder.errors import InvalidArgument

#: Formats of weights that nothing has quantised.
FLOATS = ("float32", "float16", "bfloat16")


@dataclass
class Report:
    """A table, lines below it, the same as JSON, and the diagrams."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    lines: list[str]
    summary: dict[str, Any]
    panels: list[Panel] = field(default_factory=list)


def write_plots(panels: Sequence[Panel], paths: Sequence[Path] | None, title: str = "") -> None:
    """Draw the panels into each file. Raises before it writes any."""
    for path in paths or ():
        require_matplotlib()
        check_path(path)
    for path in paths or ():
        draw(panels, path, title=title if len(panels) > 1 else "")


def marks(device: Machine | None) -> list[tuple[str, float]]:
    """The memories of a machine, for a picture."""
    if device is None:
        return []
    return [(f"{device.name} shared", device.shared_bytes), (f"{device.name} L2", device.l2_bytes)]


def band(einsum: bounds.Einsum, low: float, high: float) -> list[tuple[float, float]]:
    """The rigorous bound at sizes between two buffers, eight for each doubling."""
    count = max(2, math.ceil(8 * math.log2(high / low)))
    sizes = [low * (high / low) ** (i / count) for i in range(count + 1)]
    return [(size, bounds.lower_bound(einsum, size)) for size in sizes]


def _sizes(at: Sequence[str] | None, device: Machine | None, curve: bounds.Curve) -> list[float]:
    if at:
        return [parse_bytes(text) for text in at]
    if device:
        return [device.shared_bytes, device.l2_bytes]
    last = curve.max_effectual[0]
    powers = range(10, math.ceil(math.log2(max(last, 2048))) + 1, 3)
    return sorted({last, *(2.0**e for e in powers)})


def einsum_report(
    einsum: bounds.Einsum, title: str, *, at: Sequence[str] | None = None,
    measured: Sequence[str] | None = None, device: str | None = None, factors: str = "integers",
    space: str = "streaming",
) -> Report:  # fmt: skip
    """One Einsum at some buffers, with measured traffic beside it."""
    known = machine(device) if device else None
    traffic = [parse_bytes(text) for text in measured or ()]
    curve = bounds.ski_slope(einsum, factors=factors, space=space)
    sizes = _sizes(at, known, curve)
    if len(traffic) > len(sizes) or (traffic and not (at or device)):
        raise InvalidArgument(f"{len(traffic)} measured for {len(at or ())} buffers of --at")
    minimum, operations = einsum.algorithmic_minimum, einsum.operations
    rows, entries, dots = [], [], []
    for index, size in enumerate(sizes):
        best, least = curve.at(size), bounds.lower_bound(einsum, size)
        entry = {"buffer_bytes": size, "curve_bytes": best if math.isfinite(best) else None,
                 "bound_bytes": least, "operations_per_byte": operations / best}  # fmt: skip
        row = [format_bytes(size), format_bytes(best) if math.isfinite(best) else "does not fit",
               format_bytes(least), f"{operations / best:.4g}"]  # fmt: skip
        if index < len(traffic):
            got = traffic[index]
            if got < least * (1 - 1e-9):
                raise InvalidArgument(
                    f"{format_bytes(got)} measured is less than the {format_bytes(least)} that any "
                    f"schedule moves with {format_bytes(size)}"
                )
            entry |= {"measured_bytes": got, "fraction_of_bound": least / got}
            row += [format_bytes(got), f"{got / best:.2f}", f"{got / least:.2f}"]
            dots.append((f"measured, {format_bytes(got)}", size, got))
        elif traffic:
            row += ["", "", ""]
        entries.append(entry)
        rows.append(row)
    columns = ["buffer", "best mapping", "no schedule below", "ops/byte"]
    if traffic:
        columns += ["measured", "x mapping", "x bound"]
    last = curve.max_effectual
    lines = [f"algorithmic minimum {format_bytes(minimum)}, reached by a mapping with "
             f"{format_bytes(last[0])}" if last[1] <= minimum * (1 + 1e-12) else
             f"algorithmic minimum {format_bytes(minimum)}, best mapping {format_bytes(last[1])} "
             f"with {format_bytes(last[0])}"]  # fmt: skip
    if known:
        floor = max(bounds.lower_bound(einsum, known.l2_bytes) / known.bytes_per_second,
                    operations / known.operations_per_second)  # fmt: skip
        lines.append(f"floor on {known.name}: {format_seconds(floor)}")
    summary = {"title": title, "algorithmic_minimum_bytes": minimum, "operations": operations,
               "max_effectual_bytes": last[0], "factors": factors, "space": space,
               "at": entries, "points": curve.points}  # fmt: skip
    panel = _einsum_panel(einsum, curve, title, known, sizes if at else [], dots)
    return Report(title, columns, rows, lines, summary, [panel])


def _einsum_panel(
    einsum: bounds.Einsum,
    curve: bounds.Curve,
    title: str,
    device: Any,
    sizes: Sequence[float],
    dots: Sequence[Any],
) -> Panel:
    points = curve.points
    capacities = marks(device) + [(format_bytes(size), size) for size in sizes]
    last = points[-1][0]
    high = 4 * max([last, *(size for _, size in capacities)])
    return Panel(
        [Trace("least traffic of any mapping", points, end=True)],
        title,
        minimum=einsum.algorithmic_minimum,
        band=band(einsum, points[0][0], high),
        capacities=[*capacities, ("max effectual", last)],
        measured=dots,
    )


def chain_report(
    chain: list[bounds.Layer], *, segment: bool = False, accounting: str = "sound",
    at: Sequence[str] | None = None, device: str | None = None,
) -> Report:  # fmt: skip
    """A chain unfused, with whole intermediates, fused, and, if ``segment``, best cut."""
    known = machine(device) if device else None
    curves = {"unfused": bounds.unfused(chain)}
    if len(chain) > 1:
        curves["whole intermediates"] = bounds.untiled(chain)
        curves["fused"] = bounds.fused(chain, accounting=accounting)
    if len(chain) == 2:
        curves["fused, flash order"] = bounds.flash(chain, accounting=accounting)
    if segment:
        curves["best segments"] = bounds.segmented(chain, accounting=accounting)
    best = bounds.envelope(list(curves.values()))
    sizes = _sizes(at, known, best)
    rows = []
    for size in sizes:
        values = [curve.at(size) for curve in curves.values()]
        cells = [format_bytes(v) if math.isfinite(v) else "does not fit" for v in values]
        gain = values[0] / min(values) if math.isfinite(min(values)) else math.nan
        rows.append([format_bytes(size), *cells, f"{gain:.2f}"])
    minimum = bounds.chain_minimum(chain, fused=True)
    apart = bounds.chain_minimum(chain)
    lines = [f"least possible {format_bytes(minimum)} fused, {format_bytes(apart)} unfused"]
    cuts = []
    for size in sizes if segment else ():
        try:
            parts = bounds.best_segments(chain, size, accounting=accounting)
        except ValueError:  # nothing fits: the table says so
            continue
        text = " | ".join(" + ".join(part.layers) for part in parts)
        lines.append(f"{format_bytes(size)}: {text}")
        cuts.append({"buffer_bytes": size, "segments": [part._asdict() for part in parts]})
    summary = {
        "accounting": accounting, "fused_minimum_bytes": minimum, "unfused_minimum_bytes": apart,
        "at": [{"buffer_bytes": size, **{name: _finite(curve.at(size))
                                         for name, curve in curves.items()}} for size in sizes],
        "segments": cuts, "curves": {name: curve.points for name, curve in curves.items()},
    }  # fmt: skip
    panel = Panel(
        [
            Trace(name, curve.points, behind=name == "best segments")
            for name, curve in curves.items()
        ],
        f"chain of {len(chain)} layers, {accounting} accounting",
        minimum=minimum,
        capacities=marks(known) + [(format_bytes(size), size) for size in sizes if at],
    )
    columns = ["buffer", *curves, "gain"]
    return Report("chain", columns, rows, lines, summary, [panel])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def model_report(model: Model, *, m: int, context: int, device: str) -> Report:
    """Every distinct matmul of a model for ``m`` tokens on a device, attention over ``context``
    keys. Raises InvalidArgument: m or context is not positive; no such device or format."""
    for name, value in (("m", m), ("context", context)):
        if value < 1:
            raise InvalidArgument(f"{name} is {value}, not positive")
    known = machine(device)
    rows, entries, panels = [], [], []
    total, memory_total = 0.0, 0.0
    for matmul, einsum in _einsums(model, m, context):
        least = bounds.lower_bound(einsum, known.l2_bytes)
        moving = least / known.bytes_per_second
        floor = max(moving, einsum.operations / known.operations_per_second)
        total += floor * matmul.uses
        memory_total += least * matmul.uses
        curve = bounds.ski_slope(einsum)
        names = ", ".join(matmul.names)
        stored = weight_of(matmul, weight=model.weight, activation=model.activation)
        sizes = dict(einsum.ranks)
        shape = f"N={sizes['N']} K={sizes['K']}"
        if matmul.heads:
            shape = f"{matmul.heads} heads, {shape}"
        binding = "DRAM" if floor == moving else "arithmetic"
        shared = curve.at(known.shared_bytes)
        rows.append([names, matmul.uses, shape, stored, format_bytes(least), format_bytes(shared),
                     f"{einsum.operations / least:.4g}", format_seconds(floor),
                     binding])  # fmt: skip
        entries.append({
            "names": matmul.names, "count": matmul.uses, "m": m, "n": sizes["N"],
            "k": sizes["K"], "weight": stored, "heads": matmul.heads, "groups": matmul.groups,
            "algorithmic_minimum_bytes": einsum.algorithmic_minimum, "bound_bytes": least,
            "l2_curve_bytes": curve.at(known.l2_bytes), "shared_curve_bytes": shared,
            "max_effectual_bytes": curve.max_effectual[0], "floor_seconds": floor,
            "binding": binding,
        })  # fmt: skip
        panel = _einsum_panel(einsum, curve, f"{names}: {shape}", known, [], [])
        panel.capacities = [("shared", known.shared_bytes), ("L2", known.l2_bytes)]
        panel.traces[0].label = "best mapping"
        panel.notes = [f"{matmul.uses} in the model, floor {format_seconds(floor)} ({binding})"]
        panel.y_label = "traffic (bytes)"
        panels.append(panel)
    weight = ", ".join(_formats(model))
    title = f"{model.name}, M={m}, context {context}, {weight} weights, {known.name}"
    lines = [
        f"floor of all matmuls: {format_seconds(total)}, {format_bytes(memory_total)} from DRAM"
    ]
    columns = ["matmul", "count", "shape", "format", "least DRAM", "through one SM's shared",
               "ops/byte", "floor", "bound by"]  # fmt: skip
    summary = {"model": model.name, "m": m, "context": context, "weight": weight,
               "device": known._asdict(), "floor_seconds": total, "bound_bytes": memory_total,
               "matmuls": entries}  # fmt: skip
    return Report(title, columns, rows, lines, summary, panels)


def _formats(model: Model) -> list[str]:
    """Of the projections, most weights first; those that are not quantised only where all are."""
    found = list(dict.fromkeys(each.weight for each in model.matmuls if each.weight))
    packed = [text for text in found if text not in FLOATS]
    return packed or found or [model.weight]


def _einsums(model: Model, m: int, context: int) -> Iterator[tuple[Matmul, bounds.Einsum]]:
    for matmul in model.matmuls:
        yield (
            matmul,
            einsum_of(matmul, m, context, weight=model.weight, activation=model.activation),
        )
