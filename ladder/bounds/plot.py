# SPDX-License-Identifier: Apache-2.0
"""Pictures of curves: logarithmic, labelled with units, legible in black and white."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ladder._version import install_command
from ladder.bounds.sizes import format_bytes
from ladder.errors import InvalidArgument

#: Lines that differ without colour.
_LINES = ("-", "--", "-.", ":", (0, (2, 4)), (0, (5, 1, 1, 1, 1, 1)), (0, (8, 3)))
_COLOURS = ("black", "#1f4e9c", "#b03a2e", "#1e7b4b", "#7d3c98", "#a0522d", "#555555")
_MARKERS = "osD^vP*"


@dataclass
class Trace:
    """One curve of a panel, as (x, y) pairs."""

    label: str
    points: Sequence[tuple[float, float]]
    stepped: bool = True  #: constant up to the next point; else straight lines
    end: bool = False  #: mark the last point
    line: int = 0  #: which of the line styles; 0: by position
    behind: bool = False  #: a broad grey line below the others, which it follows in part


@dataclass
class Panel:
    """One diagram. Axes are logarithmic, and in bytes unless ``y_label`` says otherwise."""

    traces: Sequence[Trace]
    title: str = ""
    minimum: float | None = None  #: algorithmic minimum
    band: Sequence[tuple[float, float]] = ()  #: (buffer, least traffic of any schedule)
    capacities: Sequence[tuple[str, float]] = ()  #: names of memories and their sizes
    measured: Sequence[tuple[str, float, float]] = ()  #: label, buffer, traffic
    x_label: str = "buffer (bytes)"
    y_label: str = "traffic with the backing store (bytes)"
    in_bytes: bool = True  #: of the y axis
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    log_y: bool = True
    legend: bool = True
    notes: Sequence[str] = field(default_factory=tuple)  #: lines below the title


def require_matplotlib():
    """matplotlib's Figure and backends, without touching the caller's pyplot.

    Raises:
        ImportError: it is not installed; the message says how.
    """
    try:
        import matplotlib
    except ImportError:
        raise ImportError(f"plots need matplotlib: {install_command('plots')}") from None
    return matplotlib


def check_path(path: Path) -> Path:
    """``path`` if its ending is a format that can be written and its folder exists.

    Raises:
        InvalidArgument: it is not.
    """
    if path.suffix not in (".svg", ".png", ".pdf"):
        raise InvalidArgument(f"{path} does not end in .svg, .png or .pdf")
    if not path.parent.is_dir():
        raise InvalidArgument(f"{path.parent} is not a folder")
    return path


def draw(panels: Sequence[Panel], path: Path, *, title: str = "", columns: int = 0) -> None:
    """Write ``panels`` on one page to ``path`` (.svg, .png or .pdf). Equal input, equal bytes.

    Raises:
        ImportError: matplotlib is missing.
        InvalidArgument: the path has another ending, or no panel has a point.
    """
    matplotlib = require_matplotlib()
    path = check_path(Path(path))
    if not any(trace.points for panel in panels for trace in panel.traces):
        raise InvalidArgument("nothing to draw: no curve has a point")
    from matplotlib.figure import Figure

    columns = columns or (1 if len(panels) == 1 else 2 if len(panels) <= 4 else 3)
    rows = math.ceil(len(panels) / columns)
    width, height = (7.2, 5.0) if len(panels) == 1 else (4.7 * columns, 3.9 * rows)
    style = {"font.size": 9, "svg.hashsalt": "ladder", "svg.fonttype": "none",
             "axes.spines.top": False, "axes.spines.right": False}  # fmt: skip
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(width, height + (0.5 if title else 0)), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
        for index, panel in enumerate(panels):
            at = axes[index // columns][index % columns]
            _panel(at, panel, small=len(panels) > 1, legend=_legend_of(panels, index))
        for index in range(len(panels), rows * columns):
            axes[index // columns][index % columns].set_visible(False)
        if title:
            figure.suptitle(title)
        dateless = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}
        figure.savefig(path, dpi=150, metadata=dateless[path.suffix])


def _legend_of(panels: Sequence[Panel], index: int) -> bool:
    """Whether a panel's legend says what none before it said."""
    labels = [[trace.label for trace in panel.traces] for panel in panels]
    new = labels[index] not in labels[:index] or bool(panels[index].measured)
    return new and panels[index].legend


def _panel(axes, panel: Panel, *, small: bool, legend: bool) -> None:
    x_low, x_high = panel.x_range or _x_range(panel)
    axes.set_xscale("log", base=2)
    axes.set_xlim(x_low, x_high)
    if panel.log_y:
        axes.set_yscale("log", base=2 if panel.in_bytes else 10)
    for index, trace in enumerate(panel.traces):
        _trace(axes, trace, index, x_high)
    if panel.band:
        _band(axes, panel, x_low, x_high)
    if panel.minimum is not None:
        axes.axhline(panel.minimum, color="#b03a2e", linestyle=(0, (4, 3)), linewidth=1)
        text = "algorithmic minimum"
        if panel.in_bytes:
            text += f", {format_bytes(panel.minimum)}"
        axes.annotate(text, (0.01, panel.minimum), xycoords=("axes fraction", "data"),
                      xytext=(2, -3), textcoords="offset points", va="top", fontsize=7.5,
                      color="#b03a2e")  # fmt: skip
    for index, (label, x, y) in enumerate(panel.measured):
        axes.plot([x], [y], _MARKERS[index % len(_MARKERS)], color="black", markersize=6,
                  markerfacecolor="white", label=label, zorder=5)  # fmt: skip
    _ranges(axes, panel)
    _capacities(axes, panel, x_low, x_high)
    _ticks(axes.xaxis, x_low, x_high, 5 if small else 9)
    if panel.in_bytes and panel.log_y:
        low, high = axes.get_ylim()
        _ticks(axes.yaxis, low, high, 5 if small else 8)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.grid(True, which="major", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    title = "\n".join([panel.title, *panel.notes]).strip()
    if title:
        axes.set_title(title, fontsize=8.5 if small else 10, loc="left", pad=18)
    if legend and axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=True, framealpha=1, edgecolor="0.8", fontsize=7.5,
                    loc="upper right" if panel.in_bytes else "upper left")  # fmt: skip


def _trace(axes, trace: Trace, index: int, x_high: float) -> None:
    if not trace.points:
        return
    xs = [x for x, _ in trace.points]
    ys = [y for _, y in trace.points]
    if xs[-1] < x_high:
        xs.append(x_high)
        ys.append(ys[-1])
    style = trace.line or index
    look: dict[str, Any] = {
        "linestyle": _LINES[style % len(_LINES)],
        "color": _COLOURS[style % len(_COLOURS)],
        "linewidth": 1.5,
    }
    if trace.behind:
        look = {"linestyle": "-", "color": "0.78", "linewidth": 6, "zorder": 1.5}
    if trace.end:
        look |= {"marker": _MARKERS[style % len(_MARKERS)], "markersize": 5,
                 "markevery": [len(trace.points) - 1]}  # fmt: skip
    drawing = "steps-post" if trace.stepped else "default"
    axes.plot(xs, ys, drawstyle=drawing, label=trace.label, **look)


def _band(axes, panel: Panel, x_low: float, x_high: float) -> None:
    """Between the bound of any schedule and the curve: what cleverer schedules might still save."""
    points = panel.traces[0].points
    xs: list[float] = []
    lows: list[float] = []
    highs: list[float] = []
    corners = [x for x, _ in points]
    for x in sorted({*corners, *(x for x, _ in panel.band)}):
        if not max(x_low, corners[0], panel.band[0][0]) <= x <= min(x_high, panel.band[-1][0]):
            continue
        low, after = _between(panel.band, x), _step(points, x)
        # A corner counts twice, above and below, so that the edge is upright.
        for high in (highs[-1], after) if highs and highs[-1] != after else (after,):
            xs.append(x)
            lows.append(low)
            highs.append(high)
    axes.fill_between(xs, lows, highs, color="0.8", linewidth=0,
                      label="between any schedule's bound and the curve")  # fmt: skip
    axes.plot(xs, lows, color="0.45", linewidth=0.8)


def _step(points: Sequence[tuple[float, float]], x: float) -> float:
    """The staircase through ``points`` at ``x``."""
    return points[max(bisect.bisect_right(points, (x, math.inf)) - 1, 0)][1]


def _between(points: Sequence[tuple[float, float]], x: float) -> float:
    """Straight lines on logarithmic axes through ``points`` at ``x``."""
    at = min(max(bisect.bisect_right(points, (x, math.inf)), 1), len(points) - 1)
    (x0, y0), (x1, y1) = points[at - 1], points[at]
    share = math.log(x / x0) / math.log(x1 / x0)
    return math.exp(math.log(y0) + share * math.log(y1 / y0))


def _capacities(axes, panel: Panel, x_low: float, x_high: float) -> None:
    """Dotted lines with names above the frame; names that would meet move up a line."""
    reached = [-math.inf, -math.inf]
    for name, size in sorted(panel.capacities, key=lambda each: each[1]):
        if not x_low < size < x_high:
            continue
        axes.axvline(size, color="0.35", linestyle=":", linewidth=1.2)
        at = math.log(size / x_low) / math.log(x_high / x_low)
        half = 0.0105 * len(name) * (1.55 if axes.figure.axes[1:] else 1)
        line = 0 if at - half > reached[0] else 1
        reached[line] = at + half
        axes.annotate(name, (size, 1), xycoords=("data", "axes fraction"),
                      xytext=(0, 2 + 8 * line), textcoords="offset points", ha="center",
                      va="bottom", fontsize=7, annotation_clip=False)  # fmt: skip


def _x_range(panel: Panel) -> tuple[float, float]:
    xs = [x for trace in panel.traces for x, _ in trace.points]
    xs += [x for _, x, _ in panel.measured]
    xs += [size for _, size in panel.capacities]
    return min(xs) / 1.5, max(xs) * 4


def _ranges(axes, panel: Panel) -> None:
    if panel.y_range:
        axes.set_ylim(*panel.y_range)
        return
    low, high = axes.get_ylim()
    if panel.log_y:
        # Room for the words below the minimum.
        axes.set_ylim(low / 2 if panel.minimum is not None else low, high)
    else:
        axes.set_ylim(0, high)


def _ticks(axis, low: float, high: float, most: int) -> None:
    """Powers of two far enough apart, as bytes."""
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    step = max(1, math.ceil((last - first) / most))
    step = next(s for s in (1, 2, 5, 10, 20, 40) if s >= step)
    ticks = [2.0**e for e in range(first, last + 1) if e % step == 0]
    axis.set_ticks(ticks, [format_bytes(tick) for tick in ticks])
    axis.set_ticks([], minor=True)
