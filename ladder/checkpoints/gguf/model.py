# SPDX-License-Identifier: Apache-2.0
"""The transformers model that a GGUF file is of: configuration, tokenizer, names, orders of rows.

Names are those that the package gguf has for the modules of the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ladder._version import install_command
from ladder.checkpoints.gguf.architectures import (
    Process,
    architecture_of,
    make_config,
    make_process,
)
from ladder.checkpoints.gguf.header import GgufFile
from ladder.checkpoints.gguf.parts import described_in_one
from ladder.checkpoints.gguf.rope import FACTOR_TENSORS
from ladder.errors import CheckpointError, LadderError, Unsupported
from ladder.nn.dense_experts import DOWN, DOWN_BIAS, GATE_UP, GATE_UP_BIAS

_F16, _BF16 = 1, 30  # of FLOATS
#: The tensors that hold parts of the parameters of experts, which are the gate's and up's rows in
#: one: what stands behind "blk.N." -> the parameter.
EXPERT_TENSORS = {
    "ffn_gate_exps.weight": GATE_UP,
    "ffn_up_exps.weight": GATE_UP,
    "ffn_gate_up_exps.weight": GATE_UP,
    "ffn_down_exps.weight": DOWN,
    "ffn_gate_exps.bias": GATE_UP_BIAS,
    "ffn_up_exps.bias": GATE_UP_BIAS,
    "ffn_gate_up_exps.bias": GATE_UP_BIAS,
    "ffn_down_exps.bias": DOWN_BIAS,
}
_PARAMETER = re.compile(r"(?:.*\.)?layers\.(\d+)\..*\.(\w+)")


@dataclass(frozen=True)
class GgufModel:
    """A file and the model that it is of."""

    file: GgufFile
    config: Any  #: of transformers
    model: Any  #: on the meta device
    names: dict[str, str]  #: tensor of the file -> parameter of the model
    process: Process
    _orders: dict[tuple[str, tuple[int, ...]], Tensor | None] = field(default_factory=dict)

    def config_entries(self) -> dict[str, Any]:
        """What config.json holds."""
        fields: dict[str, Any] = self.config.to_diff_dict()
        fields.setdefault("architectures", [type(self.model).__name__])
        formats = {entry.format for entry in self.file.entries.values()}
        # That of the activations, of which a file says nothing unless by its tensors: most models
        # come from bfloat16, and some, as Gemma, leave the range of float16.
        fields["dtype"] = "float16" if _F16 in formats and _BF16 not in formats else "bfloat16"
        return fields

    def save_tokenizer(self, folder: Path) -> bool:
        """Write the tokenizer; False where the file has none.

        Raises Unsupported where transformers cannot make one of what the file says.
        """
        if "tokenizer.ggml.model" not in self.file.fields:
            return False
        from transformers import AutoTokenizer

        path = self.file.path
        with _understood(f"{path}: the tokenizer"), described_in_one(self.file) as path:
            tokenizer = AutoTokenizer.from_pretrained(
                str(path.parent), gguf_file=path.name, trust_remote_code=False
            )
            tokenizer.save_pretrained(str(folder))
        return True

    def is_untouched(self, name: str) -> bool:
        """Whether tensor ``name`` of the file is the model's parameter as it is."""
        nothing = torch.zeros(1).expand(self.file.entries[name].shape).numpy()
        return self.process(nothing, name) is nothing

    def dense(self, name: str, tensor: Tensor) -> Tensor:
        """Tensor ``name`` of the file, its numbers, as the model has it."""
        values = tensor.float()
        made = torch.from_numpy(self.process(values.numpy(), name).copy())
        narrow = made.to(tensor.dtype)
        return narrow if torch.equal(narrow.float(), made) else made

    def row_order(self, name: str, *, transposed: bool) -> Tensor | None:
        """[N]: for each row of a layer's weight, which row of matrix ``name`` of the file it is;
        None where rows have their places. ``transposed``: the parameter is [K, N], of a Conv1D.

        Raises Unsupported where columns are moved or values changed, so that blocks would be cut.
        """
        shape = self.file.entries[name].shape
        role = "".join(character for character in name if not character.isdigit())
        if (role, shape) not in self._orders:
            self._orders[role, shape] = self._row_order(name, shape, transposed)
        return self._orders[role, shape]

    def _row_order(self, name: str, shape: tuple[int, ...], transposed: bool) -> Tensor | None:
        n, k = shape
        # What becomes of the numbers of rows and columns tells what becomes of the elements.
        rows = torch.arange(n, dtype=torch.int32)[:, None].expand(n, k).numpy()
        moved = self.process(rows, name)
        if moved is rows and not transposed:
            return None
        columns = torch.arange(k, dtype=torch.int32).expand(n, k).numpy()
        columns_moved = self.process(columns, name)
        if transposed:
            moved, columns_moved = moved.T, columns_moved.T
        in_place = moved.shape == (n, k) and (columns_moved == columns).all()
        if not in_place or (moved != moved[:, :1]).any():
            raise Unsupported(
                f"{name} is {self.file.entries[name].format_name}, and the model has its columns "
                "in another order, which would cut its blocks"
            )
        order = torch.from_numpy(moved[:, 0].copy()).long()
        return None if torch.equal(order, torch.arange(n)) else order


def open_model(file: GgufFile) -> GgufModel:
    """The model of a file, every tensor and parameter accounted for.

    Raises:
        Unsupported: transformers does not know the architecture, or what it knows is not all;
            transformers or gguf is not installed.
        CheckpointError: a parameter of the model has no tensor, or one of another shape.
    """
    loader = _loader()
    path = file.path
    with _understood(f"{path}: architecture {file.architecture!r}"):
        from transformers import AutoModelForCausalLM

        config = make_config(file)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        theirs = _their_names(file, model, config, loader)
    names = _names(file, model, theirs)
    found = GgufModel(file, config, model, names, make_process(file, config, loader, theirs))
    _check_complete(found)
    return found


def _their_names(file: GgufFile, model: Any, config: Any, loader: Any) -> dict[str, str]:
    """What transformers' loader makes of the names: tensor of the file, in parts without its last
    word -> parameter."""
    if architecture_of(file) is None:
        known = loader.TENSOR_PROCESSORS.get(file.architecture, loader.TensorProcessor)
        processor, kind = known(config=config.to_dict()), None
    else:
        processor, kind = loader.TensorProcessor(), file.architecture
    made: dict[str, str] = loader.get_gguf_hf_weights_map(_Stub.of(model, config), processor, kind)
    return made


def _names(file: GgufFile, model: Any, theirs: dict[str, str]) -> dict[str, str]:
    """Tensor of the file -> parameter of the model, of those that have one."""
    experts: dict[tuple[str, str], str] = {}
    for name in model.state_dict():
        matched = _PARAMETER.fullmatch(name)
        if matched is not None and matched[2] in EXPERT_TENSORS.values():
            experts[matched[1], matched[2]] = name
    found = {}
    for name in file.entries:
        block, _, last = name.removeprefix("blk.").partition(".")
        target = experts.get((block, EXPERT_TENSORS.get(last, "")))
        # What is no parameter of a module of torch's has a name without ".weight".
        target = target or theirs.get(name) or theirs.get(name.removesuffix(".weight"))
        if target is not None:
            found[name] = target
    return found


class _Stub(SimpleNamespace):
    """What the loader asks of a model. Of its modules only those at the top are told, because the
    loader builds its table of names once for each, and a large model has thousands."""

    @classmethod
    def of(cls, model: Any, config: Any, *, deep: bool = True) -> _Stub:
        inner = [(name, cls.of(m, config, deep=False)) for name, m in model.named_children()]
        return cls(
            config=config, state_dict=model.state_dict, named_children=lambda: inner if deep else []
        )


def _loader() -> Any:
    try:
        import gguf  # noqa: F401
        from transformers import modeling_gguf_pytorch_utils as loader
    except ImportError as error:
        raise Unsupported(
            f"GGUF files need transformers and gguf ({error}): {install_command('gguf')}"
        ) from None
    return loader


@contextmanager
def _understood(what: str) -> Iterator[None]:
    """Turn what transformers raises about a file that it does not understand into Unsupported."""
    try:
        yield
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OSError,
            NotImplementedError, ImportError) as error:  # fmt: skip
        if isinstance(error, LadderError):
            raise
        first = (str(error).splitlines() or [""])[0]
        raise Unsupported(
            f"{what} is not one that transformers can load: {type(error).__name__}: {first}"
        ) from error


def _check_complete(found: GgufModel) -> None:
    file, state = found.file, found.model.state_dict()
    made = set()
    for name in file.entries.keys() - FACTOR_TENSORS:
        target = found.names.get(name)
        if target is None:
            raise Unsupported(
                f"{file.path}: {name} is no tensor of {type(found.model).__name__} that "
                "transformers knows in a GGUF file"
            )
        made.add(target)
    tied = dict(getattr(found.model, "all_tied_weights_keys", {}))
    for name in state:
        if name not in made and tied.get(name) not in made:
            raise CheckpointError(f"{file.path}: has no tensor for {name}")
