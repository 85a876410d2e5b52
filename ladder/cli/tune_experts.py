# SPDX-License-Identifier: Apache-2.0
"""Layers of experts in ``ladder tune``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ladder.cli.output import print_table
from ladder.cli.tokens import MOST_TOKENS, expert_tokens

if TYPE_CHECKING:
    import torch

    from ladder.checkpoints.packed import PackedExperts, PackedLayer
    from ladder.cuda.tune_experts import ExpertsRequest, Product, TunedExperts
    from ladder.ops.gating import Gating


@dataclass
class ExpertKind:
    """Layers of experts that have the same kernels."""

    experts: int
    gate_up: PackedLayer
    down: PackedLayer
    activation_type: str = ""  #: of the folder, where this GPU has kernels for it; "" for none
    names: list[str] = field(default_factory=list)
    reason: str = ""  #: why there is no kernel, or none is timed
    kernels: str = "torch"  #: what multiplies then, in the table
    request: ExpertsRequest | None = None

    def ask(
        self, device: torch.device, dtype: torch.dtype, ranges: Sequence[tuple[int, int]],
        of_token: int, gating: Gating | None,
    ) -> None:  # fmt: skip
        """Say what is to be tuned, or why nothing can be.

        Args:
            ranges: least and most numbers of tokens.
            of_token: experts of each token, 0 where that is not known.
            gating: of the layer, None where that is not known.
        """
        from ladder.cuda.experts import MOST_EXPERTS
        from ladder.cuda.tune_experts import ExpertsRequest
        from ladder.errors import Unsupported

        if self.experts > MOST_EXPERTS:
            self.reason = f"{self.experts} experts are more than {MOST_EXPERTS}"
        elif not 0 < of_token <= self.experts:
            said = f"num_experts_per_tok {of_token}" if of_token else "no num_experts_per_tok"
            self.reason = f"config.json says {said}, and the layer has {self.experts} experts"
        else:
            try:
                first = _product(self.gate_up, device, gating)
                second = _product(self.down, device, None)
            except Unsupported as error:
                self.reason = str(error)
                return
            tokens = expert_tokens(ranges, of_token)
            if not tokens:
                least = min(least for least, _ in ranges)
                self.reason = (
                    f"--m asks for {least} tokens and more; experts are timed up to {MOST_TOKENS}"
                )
                self.kernels = "not timed"
                return
            if not self._rounds(device):
                self.activation_type = ""
            self.request = ExpertsRequest(
                first, second, self.experts, of_token, device, dtype, tokens, self.activation_type
            )

    def _rounds(self, device: torch.device) -> bool:
        from ladder.ops.activations import gpu_objection

        wanted, index = self.activation_type, device.index or 0
        return bool(wanted) and all(
            each.g_idx is None and not gpu_objection(wanted, str(each.type), each.n, each.k, index)
            for each in (self.gate_up, self.down)
        )

    def described(self, tuned: TunedExperts) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "experts": self.experts,
            "gate_up": _described(self.gate_up),
            "down": _described(self.down),
            "activation_type": self.activation_type or None,
            "layers": self.names,
            "kernels": self.rows(tuned),
            "reason": self.reason,
        }

    def rows(self, tuned: TunedExperts) -> list[dict[str, Any]]:
        """Of each number of tokens: the kernels."""
        if self.request is None:
            return []
        return [
            {
                "m": m,
                "rows_of_item": chosen.of_item,
                "gate_up": chosen.gate_up,
                "down": chosen.down,
                "origin": chosen.origin,
            }
            for m, chosen in tuned[self.request].items()
        ]


def _product(layer: PackedLayer, device: torch.device, gating: Gating | None) -> Product:
    """Raises Unsupported where the device has no kernels for it."""
    from ladder.cuda import image, kernels
    from ladder.cuda.tune_experts import Product
    from ladder.errors import Unsupported

    gather, text = _gather(layer), str(layer.type)
    if why := kernels.objection(text, layer.n, layer.k, gather, device.index or 0):
        raise Unsupported(why)
    gated = gating is not None and image.alternates(layer.n)
    number = image.open_weight(text, layer.n, layer.k, gather, gating=gating if gated else None)
    return Product(number, layer.type, (layer.n, layer.k), gated)


def _gather(layer: PackedLayer) -> bool:
    """Whether the kernel has to gather columns. Raises Unsupported as _product."""
    from ladder.cuda.image import order_by_group

    return layer.g_idx is not None and order_by_group(layer.g_idx, layer.type) is not None


def _described(layer: PackedLayer) -> dict[str, Any]:
    return {"type": str(layer.type), "n": layer.n, "k": layer.k}


def expert_kinds_of(experts: Iterable[PackedExperts]) -> list[ExpertKind]:
    """In the order of their first layers."""
    from ladder.errors import Unsupported

    kinds: dict[tuple[object, ...], ExpertKind] = {}
    for layer in experts:
        products = (layer.gate_up, layer.down)
        orders: tuple[bool | str, ...]
        try:
            orders = tuple(_gather(product) for product in products)
        except Unsupported as error:  # ask() says so of the kind
            orders = (str(error),)
        # As folders are loaded: a layer rounds to what both of its products ask for.
        asked = {p.activation_type or "" for p in products}
        rounded = asked.pop() if len(asked) == 1 else ""
        key = (layer.count, *((p.type, p.n, p.k) for p in products), rounded, *orders)
        kinds.setdefault(key, ExpertKind(layer.count, *products, rounded)).names.append(layer.name)
    return list(kinds.values())


def of_token(config: dict[str, Any]) -> int:
    """How many experts each token has by a model's configuration, 0 where it does not say."""
    from ladder.checkpoints.info import EXPERTS_PER_TOKEN

    config = {**config, **(config.get("text_config") or {})}
    found = [value for key in EXPERTS_PER_TOKEN if type(value := config.get(key)) is int]
    return found[0] if found else 0


def gating_of(config: dict[str, Any]) -> Gating | None:
    """What a model computes between gate and up and down by its configuration, as transformers'
    modules do; None where ladder has no such function."""
    from ladder.ops.gating import ACTIVATIONS, SWIGLU_OAI, Gating

    config = {**config, **(config.get("text_config") or {})}
    limit = config.get("swiglu_limit")
    name = config.get("hidden_activation") or config.get("hidden_act", "silu")  # Gemma's, others'
    if config.get("model_type") == "gpt_oss":
        return Gating(SWIGLU_OAI, 7.0 if limit is None else limit)
    return Gating(name, limit) if name in ACTIVATIONS else None


def print_experts(model: Path, kinds: Iterable[ExpertKind], tuned: TunedExperts) -> None:
    """A table of what was tuned, if anything."""
    rows: list[tuple[Any, ...]] = []
    for kind in kinds:
        left = (kind.experts, _spelled(kind.gate_up), _spelled(kind.down), len(kind.names))
        for row in kind.rows(tuned):
            items = f"items of {row['rows_of_item']} rows" if row["rows_of_item"] else "torch"
            rows.append((*left, row["m"], items, row["origin"]))
        if kind.reason:
            rows.append((*left, "all", kind.kernels, kind.reason))
    if rows:
        columns = ("experts", "gate and up", "down", "layers", "M", "kernels", "origin")
        print_table(f"{model}: experts", columns, rows)


def _spelled(layer: PackedLayer) -> str:
    return f"{layer.type} [{layer.n}, {layer.k}]"
