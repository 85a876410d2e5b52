# SPDX-License-Identifier: Apache-2.0
"""The transformers model that a GGUF file is of: configuration, tokenizer, names, orders of rows.

All of it is what transformers' own loader of GGUF files knows. What that loader passes over
although it changes results is read here (rotary embeddings, some sizes), or refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ladder._version import install_command
from ladder.checkpoints.gguf.header import GgufFile
from ladder.checkpoints.gguf.parts import described_in_one
from ladder.errors import CheckpointError, LadderError, Unsupported

_F16, _BF16 = 1, 30  # of FLOATS
#: By what the frequencies of rotary embeddings are divided: no parameter of a model.
ROPE_FACTORS = "rope_freqs.weight"
#: What Llama 3.1 and later stretch: no file says these two, which are the same for all of them, nor
#: the context that they were trained for.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_CONTEXT = 8192
#: Sizes that the loader leaves at what its configurations have by default: architecture -> field of
#: the file -> attribute.
_EXPERTS = {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
_SIZES = {
    "qwen2moe": _EXPERTS,
    "qwen3": {"attention.key_length": "head_dim"},
    "qwen3moe": {"expert_feed_forward_length": "moe_intermediate_size"},
}


@dataclass(frozen=True)
class GgufModel:
    """A file and the model that it is of."""

    file: GgufFile
    config: Any  #: of transformers
    model: Any  #: on the meta device
    names: dict[str, str]  #: tensor of the file -> parameter of the model
    _processor: Any
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
            tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
            tokenizer.save_pretrained(str(folder))
        return True

    def is_untouched(self, name: str) -> bool:
        """Whether tensor ``name`` of the file is the model's parameter as it is."""
        nothing = torch.zeros(1).expand(self.file.entries[name].shape).numpy()
        return self._process(nothing, name) is nothing

    def dense(self, name: str, tensor: Tensor) -> Tensor:
        """Tensor ``name`` of the file, its numbers, as the model has it."""
        values = tensor.float()
        made = torch.from_numpy(self._process(values.numpy(), name).copy())
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
        moved = self._process(rows, name)
        if moved is rows and not transposed:
            return None
        columns = torch.arange(k, dtype=torch.int32).expand(n, k).numpy()
        columns_moved = self._process(columns, name)
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

    def _process(self, array: Any, name: str) -> Any:
        kept: dict[str, Any] = {"tensors": {}}
        result = self._processor.process(
            weights=array, name=name, tensor_key_mapping=self.names, parsed_parameters=kept
        )
        if kept["tensors"]:  # GPT-2's head, which its processor puts there itself
            (made,) = kept["tensors"].values()
            return made.numpy()
        return result.weights


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
        from transformers import AutoConfig, AutoModelForCausalLM

        with described_in_one(file) as described:
            config = AutoConfig.from_pretrained(str(described.parent), gguf_file=described.name)
        if (embedding := file.entries.get("token_embd.weight")) is not None:
            config.vocab_size = embedding.shape[0]
        for key, attribute in _SIZES.get(file.architecture, {}).items():
            if (size := file.of_model(key)) is not None:
                setattr(config, attribute, size)
        _set_rope(file, config)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        known = loader.TENSOR_PROCESSORS.get(file.architecture, loader.TensorProcessor)
        processor = known(config=config.to_dict())
        names = loader.get_gguf_hf_weights_map(_Stub.of(model, config), processor)
    found = GgufModel(file, config, model, names, processor)
    _check_complete(found)
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
    for name in file.entries.keys() - {ROPE_FACTORS}:
        # What is in a parameter of three dimensions has a name without ".weight".
        target = found.names.get(name) or found.names.get(name.removesuffix(".weight"))
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


def _set_rope(file: GgufFile, config: Any) -> None:
    """Put into ``config`` how the file stretches rotary embeddings."""
    kind = file.of_model("rope.scaling.type")
    told = dict(getattr(config, "rope_parameters", None) or {})
    if told.get("rope_type", "default") != "default":
        return
    if ROPE_FACTORS in file.entries:
        factors = file.rows(ROPE_FACTORS, 0, 1).view(torch.float32)[0]
        if (factors != 1).any():
            config.rope_parameters = told | _llama3_rope(file, told.get("rope_theta"), factors)
        return
    factor = file.of_model("rope.scaling.factor")
    # Models with several kinds of layers have parameters for each: a file does not say whose.
    by_kind = any(isinstance(value, dict) for value in told.values())
    if kind == "linear" and factor and not by_kind:
        config.rope_parameters = told | {"rope_type": "linear", "factor": float(factor)}
    elif kind not in (None, "none") and (factor or kind != "linear"):
        raise Unsupported(
            f"{file.path}: rope.scaling.type is {kind!r}, which transformers does not take from a "
            f"{file.architecture} file"
        )


def _llama3_rope(file: GgufFile, theta: Any, factors: Tensor) -> dict[str, Any]:
    """The rope_parameters of which ``factors`` [head_dim / 2] divide the frequencies."""
    factor = float(factors.max())
    steps = torch.arange(len(factors), dtype=torch.float64) / len(factors)
    wavelengths = 2 * math.pi * float(theta or 10000.0) ** steps
    low, high = _LLAMA3.values()
    smooth = (_LLAMA3_CONTEXT / wavelengths - low) / (high - low)
    expected = 1 / ((1 - smooth.clamp(0, 1)) / factor + smooth.clamp(0, 1))
    # The converter computes in float32: a frequency has a relative error of up to 2^-22, `smooth`
    # of high / (high - low) = 4 / 3 of that, and 1 / (1 / factor + ...) of up to `factor` times.
    if not torch.allclose(factors.double(), expected, rtol=factor * 2.0**-21, atol=0):
        raise Unsupported(
            f"{file.path}: {ROPE_FACTORS} are not Llama 3's factors of rotary embeddings, the only "
            "ones that ladder can put into a configuration"
        )
    return {
        "rope_type": "llama3", "factor": round(factor, 4), **_LLAMA3,
        "original_max_position_embeddings": _LLAMA3_CONTEXT,
    }  # fmt: skip
