# SPDX-License-Identifier: Apache-2.0
"""Linear layers of `ladder tune`, one kind for all that have one kernel, and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ladder.cli.output import print_json, print_table
from ladder.cli.tokens import span

if TYPE_CHECKING:
    import torch

    from ladder.checkpoints.packed import PackedLayer
    from ladder.cuda.tune import Request, Tuned
    from ladder.ops.gating import Gating


@dataclass
class Kind:
    """Layers that have one kernel: of one type, shape and order of columns."""

    type: str
    n: int
    k: int
    gather: bool
    activation_type: str = ""  #: of the folder, where this GPU has kernels for it; "" for none
    gating: Gating | None = None  #: rows are those of gate and up, whose product kernels give
    names: list[str] = field(default_factory=list)
    reason: str = ""  #: why there is no kernel
    request: Request | None = None

    def ask(
        self, device: torch.device, dtype: torch.dtype, tokens: tuple[int, ...], dependent: bool
    ) -> None:
        from ladder.cuda import image, kernels
        from ladder.cuda.tune import Request
        from ladder.types import parse

        index, rounded = device.index or 0, self.activation_type
        self.reason = self.reason or kernels.objection(
            self.type, self.n, self.k, self.gather, index, rounded
        )
        if not self.reason:
            number = image.open_weight(
                self.type,
                self.n,
                self.k,
                self.gather,
                dependent_launch=dependent,
                activation_type=rounded,
                gating=self.gating,
            )
            ttype, shape, gated = parse(self.type), (self.n, self.k), self.gating is not None
            self.request = Request(number, ttype, shape, device, dtype, tokens, rounded, gated)

    def rows(self, tuned: Tuned) -> list[dict[str, Any]]:
        """Of each kernel: the least and the most tokens of those that were asked for."""
        from ladder.cuda.kernels import interval

        if self.request is None:
            return []
        by_interval: dict[int, list[int]] = {}
        for m in self.request.m:
            by_interval.setdefault(interval(m, self.activation_type), []).append(m)
        return [
            {
                "m": [min(m), max(m)],
                "kernel": tuned[self.request][m[0]],
                "origin": tuned.origin[self.request][m[0]],
            }
            for m in by_interval.values()
        ]


def kinds_of(layers: Sequence[PackedLayer], device: torch.device) -> list[Kind]:
    """In the order of their first layers."""
    from ladder.cuda.image import order_by_group
    from ladder.errors import Unsupported
    from ladder.ops.activations import gpu_objection

    kinds: dict[tuple[object, ...], Kind] = {}
    for layer in layers:
        gather, reason = False, ""
        if layer.g_idx is not None:
            try:
                gather = order_by_group(layer.g_idx, layer.type) is not None
            except Unsupported as error:
                reason = str(error)
        type, rounded = str(layer.type), layer.activation_type or ""
        # As ladder.nn.offered: x is taken as it comes where there are no kernels.
        if rounded and layer.g_idx is not None:
            rounded = ""
        if rounded and gpu_objection(rounded, type, layer.n, layer.k, device.index or 0):
            rounded = ""
        key = (type, layer.n, layer.k, gather, rounded, reason)
        kind = kinds.setdefault(key, Kind(type, layer.n, layer.k, gather, rounded, reason=reason))
        kind.names.append(layer.name)
    return list(kinds.values())


def gated_kinds_of(
    merged: Sequence[PackedLayer], gating: Gating | None, device: torch.device
) -> list[Kind]:
    """Of those that are gate and up, of which :func:`ladder.optimize` has kernels give the product.

    Args:
        gating: of the model, None where that is not known.
    """
    from ladder.checkpoints.packed import GATE_UP
    from ladder.cuda.image import alternates
    from ladder.nn.gated import device_objection

    if gating is None or device_objection(device):
        return []
    pairs = [each for each in merged if each.name.endswith("+".join(GATE_UP))]
    found = kinds_of([each for each in pairs if alternates(each.n)], device)
    return [replace(kind, gating=gating) for kind in found]


def print_kinds(
    model: Path,
    kept: Path,
    device: torch.device,
    dtype: str,
    mode: str,
    kinds: list[Kind],
    tuned: Tuned,
    experts: list[dict[str, Any]] | None,
) -> None:
    """A table; JSON where ``experts`` is given, what it says of these."""
    if experts is not None:
        shapes = [
            {
                "type": kind.type,
                "n": kind.n,
                "k": kind.k,
                "gather": kind.gather,
                "activation_type": kind.activation_type or None,
                "gating": None if kind.gating is None else str(kind.gating),
                "layers": kind.names,
                "kernels": kind.rows(tuned),
                "reason": kind.reason,
            }
            for kind in kinds
        ]
        print_json(
            {
                "model": str(model),
                "cache": str(kept),
                "device": str(device),
                "dtype": dtype,
                "tune": mode,
                "seconds": round(tuned.seconds, 2),
                "late": tuned.late,
                "shapes": shapes,
                "experts": experts,
            }
        )
        return
    rows: list[tuple[Any, ...]] = []
    for kind in kinds:
        gated = "" if kind.gating is None else f" {kind.gating.activation}"
        rounded = f" by {kind.activation_type}" if kind.activation_type else ""
        left = (kind.type + gated + rounded, kind.n, kind.k, len(kind.names))
        rows += [
            (*left, span(row["m"]), row["kernel"] or "torch", row["origin"])
            for row in kind.rows(tuned)
        ] or [(*left, "all", "torch", kind.reason)]
    print_table(
        f"{model}: {dtype} on {device}, {tuned.seconds:.1f} s, kept in {kept}",
        ("type", "N", "K", "layers", "M", "kernel", "origin"),
        rows,
    )
