# SPDX-License-Identifier: Apache-2.0
"""What becomes of the experts of a GGUF file, whose tensors [E, N, K] hold those of a layer."""

from __future__ import annotations

from ladder.checkpoints.gguf.blocks import BLOCKS, FLOATS
from ladder.checkpoints.gguf.header import Entry
from ladder.checkpoints.gguf.model import EXPERT_TENSORS, GgufModel
from ladder.checkpoints.gguf.pieces import Joined, Packed, Piece, Plan, check_format
from ladder.errors import CheckpointError, Unsupported
from ladder.nn.dense_experts import DOWN, DOWN_BIAS, GATE_UP, GATE_UP_BIAS, STACKS
from ladder.nn.mixtures import FoundExperts

#: In the order in which the rows of a stack are.
_ORDER = list(EXPERT_TENSORS)
_DOWN = [["ffn_down_exps"]]
_GATE_UP = [["ffn_gate_exps", "ffn_up_exps"], ["ffn_gate_up_exps"]]
_BIASES = {GATE_UP: GATE_UP_BIAS, DOWN: DOWN_BIAS}


def plan_experts(found: GgufModel, each: FoundExperts, plan: Plan, *, float16: bool) -> list[str]:
    """Add the experts of one layer to ``plan``, whatever order the model keeps them in: a ladder
    folder has the gate's rows first, as the file has. Returns the tensors that they are made of.

    Raises:
        Unsupported: gate and up of two formats, or experts that are not quantised.
        CheckpointError: a tensor has another shape than the model's experts.
    """
    e, h, i = each.layout.shape
    used = []
    for parameter, n, k in ((GATE_UP, 2 * i, h), (DOWN, h, i)):
        sources = _sources(found, each, parameter)
        entries = _checked(found, sources, (e, n // len(sources), k))
        first = entries[0]
        for entry in entries[1:]:
            if entry.format != first.format:
                raise Unsupported(
                    f"{found.file.path}: {first.name} is {first.format_name}, but {entry.name} "
                    f"{entry.format_name}; one stack has one type"
                )
        block = BLOCKS.get(first.format)
        if block is None:
            raise Unsupported(
                f"{found.file.path}: {first.name} is {first.format_name}; ladder reads experts of "
                "which gate, up and down are quantised"
            )
        rows = n // len(sources)
        pieces = [Piece(sources[0], 0, e * n, 0)]  # all experts' rows follow each other
        if len(sources) > 1:
            pieces = [
                Piece(source, x * rows, rows, n * x + rows * at)
                for x in range(e)
                for at, source in enumerate(sources)
            ]
        ttype = block.narrow if float16 else block.ttype
        name = f"{each.name}.{STACKS[parameter]}"
        plan.packed.append(Packed(name, block, ttype, n, k, tuple(pieces), e))
        used += sources
        if each.layout.bias:
            biases = _sources(found, each, _BIASES[parameter])
            floats = _checked(found, biases, (e, n // len(biases)))
            dtypes = {FLOATS.get(entry.format) for entry in floats}
            if len(dtypes) > 1 or None in dtypes:
                told = ", ".join(f"{entry.name} {entry.format_name}" for entry in floats)
                raise Unsupported(f"{found.file.path}: {told} are no biases of one float dtype")
            (dtype,) = dtypes
            assert dtype is not None
            plan.joined.append(Joined(tuple(biases), f"{name}.bias", dtype, (e, n)))
            used += biases
    return used


def _sources(found: GgufModel, each: FoundExperts, parameter: str) -> list[str]:
    """The tensors that make ``parameter``: one, or the gate's and up's."""
    targets = {f"{name}.{parameter}" for name in each.names}
    sources = [source for source, target in found.names.items() if target in targets]
    sources.sort(key=lambda source: _ORDER.index(source.split(".", 2)[2]))
    roles = [source.split(".")[2] for source in sources]
    if roles not in (_DOWN if parameter in (DOWN, DOWN_BIAS) else _GATE_UP):
        have = ", ".join(sources) or "no tensor"
        raise Unsupported(f"{found.file.path}: {each.name} has {have} of which to make {parameter}")
    return sources


def _checked(found: GgufModel, sources: list[str], shape: tuple[int, ...]) -> list[Entry]:
    entries = [found.file.entries[source] for source in sources]
    for entry in entries:
        check_format(found.file, entry)
        if entry.shape != shape:
            raise CheckpointError(
                f"{found.file.path}: {entry.name} has shape {list(entry.shape)}, not {list(shape)}"
            )
    return entries
