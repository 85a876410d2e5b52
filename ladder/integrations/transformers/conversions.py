# SPDX-License-Identifier: Apache-2.0
"""transformers' conversions between the tensors of files and the parameters of experts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ladder.checkpoints.model import placer
from ladder.nn.dense_experts import DOWN, GATE_UP, STACKS

#: By what transformers' converters make each parameter of the weights of its projections.
_OPERATIONS = {GATE_UP: ["MergeModulelist", "Concatenate"], DOWN: ["MergeModulelist"]}


class Roles:
    """What transformers' converters make of the projections of experts."""

    def __init__(self, model: Any) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter

        mapping = get_model_conversion_mapping(model)
        self._converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
        self._place = placer(model)

    def experts_of(self, stored: str) -> str | None:
        """The experts module in whose parameter the weight of the projection ``stored`` goes."""
        module, _, parameter = self._place(f"{stored}.weight")[0].rpartition(".")
        return module if parameter in STACKS else None

    def projections(self, one: str) -> dict[str, list[str]] | None:
        """For each parameter of experts, of which ``one`` is a projection, all its projections in
        the order of their rows; None where rows are not simply one below the other."""
        made: dict[str, list[str]] = {}
        for converter in self._converters:
            parameter = converter.target_patterns[0].rpartition(".")[2]
            operations = [type(operation).__name__ for operation in converter.operations]
            if _OPERATIONS.get(parameter) == operations:
                sources = [source.removesuffix(".weight") for source in converter.source_patterns]
                made[parameter] = [source.rpartition(".")[2] for source in sources]
        fits = made.keys() == STACKS.keys() and any(one in names for names in made.values())
        return {parameter: made[parameter] for parameter in STACKS} if fits else None


def spare(conversions: Sequence[Any], modules: Collection[str]) -> list[Any]:
    """Have transformers' converters pass over tensors of ``modules``, which are named as in files,
    until :func:`restore`. Returns the converters."""
    from transformers.core_model_loading import (
        WeightConverter,
        WeightRenaming,
        rename_source_key,
    )

    renamings = [entry for entry in conversions if isinstance(entry, WeightRenaming)]
    spared = {
        rename_source_key(f"{name}.qweight", renamings, [])[0].rpartition(".")[0]
        for name in modules
    }
    converters = [entry for entry in conversions if isinstance(entry, WeightConverter)]
    for converter in converters:
        kind: Any = type(converter)

        def rename(self: Any, key: str, kind: Any = kind) -> Any:
            if key.rpartition(".")[0] in spared:
                return key, None
            return kind.rename_source_key(self, key)

        fields = {"__slots__": (), "rename_source_key": rename}
        converter.__class__ = type(kind.__name__, (kind,), fields)
    return converters


def restore(converters: Sequence[Any]) -> None:
    """Undo :func:`spare`."""
    for converter in converters:
        converter.__class__ = type(converter).__bases__[0]
