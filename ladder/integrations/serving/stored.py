# SPDX-License-Identifier: Apache-2.0
"""What the files of a model hold of each linear module, whatever their format."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ladder.checkpoints.folder import QUANT_METHOD, StoredConfig
from ladder.checkpoints.layer import Layer, Stored, refuse_bare_codes, type_of
from ladder.checkpoints.mlx_config import QUANT_METHOD as MLX
from ladder.checkpoints.mlx_config import are_settings
from ladder.checkpoints.mxfp4 import Translation, translate
from ladder.checkpoints.source import FORMATS, METHODS, TRANSLATED
from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.nn.packed import OF_X
from ladder.ops.activations import with_fast_accum
from ladder.types import TType, parse
from ladder.weight import PARTS, Weight, columns_objection, columns_of, rows_of

#: What a stored tensor becomes: (part of a Weight or "weight" or "", canonical tensor).
Canonical = Callable[[str, Tensor], tuple[str, Tensor]]


@dataclass(frozen=True)
class StoredLinear:
    """One linear module [N, K] as the files hold it."""

    name: str
    type: TType | None  #: None: dense, one tensor "weight"
    #: Its tensors by their names in the files, bias excluded, and the part of a Weight that each
    #: becomes: "weight" for a dense one, "input_scale" of x, "" for what is only checked.
    tensors: Mapping[str, str]
    canonical: Canonical = field(compare=False, repr=False)
    #: Whether columns may be in another order than their groups, known before they are read.
    act_order: bool = False
    symmetric: bool = False  #: whether stored zero points are said to be all the midpoint
    activation_type: str | None = None  #: what the folder would have x rounded to

    def like(self, part: str, n: int, k: int, dense: torch.dtype) -> Tensor:
        """Shape and dtype of ``part`` of [n, k] of it, on the meta device; ``dense`` is the dtype
        of a dense weight."""
        if self.type is None:
            return torch.empty((n, k), dtype=dense, device="meta")
        ttype = self.type
        shapes: dict[str, tuple[tuple[int, ...] | None, torch.dtype | None]] = {
            "qweight": ((n, ttype.words(k)), torch.int32),
            "scales": ((ttype.block_rows(n), ttype.groups(k)), ttype.scale_dtype),
            "zeros": (ttype.zeros_shape(n, k), ttype.zeros_dtype),
            "scale2": (ttype.scale2_shape(n, k), ttype.scale2_dtype),
            "g_idx": ((k,), torch.int32),
            "input_scale": ((1,), torch.float32),
            "pre_scale": ((k,), torch.float32),
        }
        shape, dtype = shapes[part]
        if shape is None or dtype is None:
            raise CheckpointError(f'{self.name}.{part} is stored, but type "{ttype}" has none')
        return torch.empty(shape, dtype=dtype, device="meta")

    def rows_of(self, part: str, tensor: Tensor, start: int, count: int, whole: int) -> Tensor:
        """As :func:`ladder.weight.rows_of`, of a dense weight too."""
        if self.type is None:
            return tensor[start : start + count]
        if part in OF_X:
            return tensor
        return rows_of(part, tensor, self.type, start, count, whole)

    def columns_of(self, part: str, tensor: Tensor, k: int, start: int, count: int) -> Tensor:
        """As :func:`ladder.weight.columns_of`, of a dense weight too."""
        if self.type is None:
            return tensor[:, start : start + count]
        if part == "pre_scale":
            return tensor[start : start + count]
        if part == "input_scale":
            return tensor
        return columns_of(part, tensor, self.type, k, start, count)

    def columns_objection(self, k: int, start: int, count: int) -> str:
        """Why these columns cannot be taken; "" if they can."""
        return "" if self.type is None else columns_objection(self.type, k, start, count)


def _as_it_is(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    return name, tensor


class Folder:
    """The quantised modules of a model, by their names in the files.

    Args:
        config: ``quantization_config`` of config.json.
        headers: dtype and shape of every tensor; None where the files cannot be read ahead. Then
            the config alone decides.
    Raises:
        CheckpointError: a config that makes no sense.
        Unsupported: a quant_method that ladder does not read, or packed convolutions.
    """

    def __init__(
        self, config: Mapping[str, Any], headers: Mapping[str, Stored] | None = None
    ) -> None:
        self.config = dict(config)
        self.method = _method_of(config)
        self.headers = headers
        #: Of a method of TRANSLATED whose headers are known.
        self.translation: Translation | None = None
        self._renames: tuple[Callable[[str], str | None], ...] = ()
        self._stored: StoredConfig | None = None
        self._settings: Any = None
        self._forms: dict[tuple[str, str], tuple[TType, Mapping[str, str]]] = {}
        #: Whether sums of x of float8_e4m3 are fast ones, None as the files say. Those of other
        #: methods say nothing of it: as engines' own kernels have them.
        self.fast_accum: bool | None = None if self.method == QUANT_METHOD else True
        if self.method == QUANT_METHOD:
            self._stored = StoredConfig.from_dict(config)
            _refuse_convolutions(self._stored)
        elif self.method in FORMATS:
            if why := getattr(FORMATS[self.method], "NOT_SERVED", ""):
                raise Unsupported(
                    f"quant_method is {self.method}, whose folders engines cannot load as they "
                    f"are, because {why}: run `ladder repack` first"
                )
            self._settings = FORMATS[self.method].Config.from_dict(dict(config))
        elif self.method in TRANSLATED:
            if headers is not None:
                self._translate(headers)
        else:
            known = ", ".join((QUANT_METHOD, *METHODS))
            raise Unsupported(f'quant_method is "{self.method}"; ladder reads {known}')

    def read_ahead(self, headers: Mapping[str, Stored]) -> Folder:
        """The same folder, whose headers are known."""
        folder = object.__new__(Folder)
        folder.__dict__.update(self.__dict__, headers=headers)
        if self.method in TRANSLATED:
            folder._translate(headers)
        return folder

    def _translate(self, headers: Mapping[str, Stored]) -> None:
        """From here on the folder is a ladder folder, but for the tensors in its files."""
        self.translation = Translation(self.config, headers)
        self.headers = self.translation.headers
        self._stored = self.translation.stored_config(self.config)

    def ours(self, name: str) -> str:
        """What a tensor of the files is called in a ladder folder, where the folder is one by other
        names; else ``name``."""
        return name if self.translation is None else self.translation.names.get(name, name)

    def translated(self, name: str, tensor: Tensor) -> Tensor:
        """What tensor ``name`` of the files is there."""
        if self.translation is None or name not in self.translation.names:
            return tensor
        return translate(name, tensor)

    def renamed(self, rename: Callable[[str], str | None]) -> Folder:
        """The same folder with modules called as the engine calls them; names that ``rename`` maps
        to None are not loaded. The folder can be pickled where ``rename`` can."""
        folder = object.__new__(Folder)
        folder.__dict__.update(self.__dict__)
        folder._renames = (*self._renames, rename)
        if self.headers is not None:
            renamed = ((rename(name), entry) for name, entry in self.headers.items())
            folder.headers = {name: entry for name, entry in renamed if name is not None}
        if self._stored is not None:
            stored = self._stored
            folder._stored = replace(
                stored,
                modules=_keys(stored.modules, rename),
                modules_to_not_convert=tuple(
                    rename(name) or name for name in stored.modules_to_not_convert
                ),
                activation_types=_keys(stored.activation_types, rename),
            )
        return folder

    def called(self, name: str) -> str | None:
        """What the engine calls a tensor of the files; None for what it does not load."""
        for rename in self._renames:
            now = rename(name)
            if now is None:
                return None
            name = now
        return name

    def parts_of(self, module: str) -> dict[str, Stored]:
        """Headers of the tensors of ``module``, by their last name."""
        names = FORMATS[self.method].PARTS if self._stored is None else (*PARTS, *OF_X)
        headers = self.headers or {}
        return {n: headers[f"{module}.{n}"] for n in names if f"{module}.{n}" in headers}

    def is_packed(self, module: str, *, lookup: bool = False) -> bool:
        """Whether the files (or, unread, the config) hold ``module`` packed. ``lookup``: it is an
        embedding, of which configs do not speak.

        Raises Unsupported where the config does not tell, and the files cannot be read ahead."""
        if self.method in TRANSLATED and self.headers is None:
            raise Unsupported(
                f"quant_method is {self.method}, whose config does not say what is packed, and the "
                "headers of the files cannot be read: serve a folder of safetensors"
            )
        if self.headers is not None:
            parts = self.parts_of(module)
            if self._stored is not None:
                return "qweight" in parts
            return FORMATS[self.method].codes_part(parts) is not None
        if lookup:
            return False
        if self._stored is not None:
            return self._stored.type_of(module) is not None
        return not module.endswith("lm_head") and self._settings.for_module(module) is not None

    def has_tensors(self, module: str) -> bool:
        """Whether the files, as far as they can be read ahead, hold a weight of ``module``."""
        return bool(self.parts_of(module)) or f"{module}.weight" in (self.headers or {})

    def rows_in_files(self, module: str) -> int:
        """Of ``module`` of a ladder folder; 0 where the headers do not tell."""
        headers = self.headers or {}
        names = (f"{module}.{part}" for part in ("qweight", "weight") if self._stored is not None)
        return next((headers[name].shape[0] for name in names if name in headers), 0)

    def has_bias(self, module: str) -> bool:
        """Whether the files hold a bias of ``module``."""
        return f"{module}.bias" in (self.headers or {})

    def ties(self, output: str) -> bool:
        """Whether the output layer ``output`` has no tensor of its own, and an embedding, whose it
        then has, is packed."""
        headers = self.headers or {}
        embeddings = [n.rpartition(".")[0] for n in headers if "embed_tokens." in n]
        own = self.is_packed(output) or f"{output}.weight" in headers
        return not own and any(self.is_packed(name, lookup=True) for name in embeddings)

    def packed_below(self, prefix: str) -> list[str]:
        """Packed modules whose names begin with ``prefix`` and a dot."""
        modules = {name.rpartition(".")[0] for name in self.headers or ()}
        below = (module for module in modules if module.startswith(f"{prefix}."))
        return sorted(module for module in below if self.is_packed(module))

    def has_packed_experts(self, prefix: str) -> bool:
        """Whether the experts ``prefix`` are packed, in stacks or one by one."""
        if self.headers is not None:
            return bool(self.packed_below(prefix))
        return self.is_packed(f"{prefix}.gate_up") or self.is_packed(f"{prefix}.0.gate_proj")

    def module(self, name: str, n: int, k: int) -> StoredLinear:
        """Module ``name``, which the model has as [n, k].

        Raises:
            CheckpointError: the files hold another shape, or the config leaves it unquantised.
        """
        if not self.is_packed(name):
            self._check_dense(name)
            return StoredLinear(name, None, {"weight": "weight"}, _as_it_is)
        if self._stored is not None:
            return self._own(name, n, k, self.parts_of(name))
        return self._foreign(name, n, k)

    def stack(self, name: str, experts: int, n: int, k: int) -> StoredLinear:
        """The stack ``name`` of a ladder folder, one expert of it: its tensors have one dimension
        more in front, of ``experts``, which the model has as [n, k] each.

        Raises:
            CheckpointError: the files hold no such stack, or another shape.
        """
        parts = self.parts_of(name)
        if self.headers is not None and "qweight" not in parts:
            raise CheckpointError(f"{name}.qweight is missing")
        for part, entry in parts.items():
            if tuple(entry.shape[:1]) != (experts,):
                raise CheckpointError(
                    f"{name}.{part} has shape {list(entry.shape)}, not {experts} experts in front"
                )
        return self._own(name, n, k, {p: Stored(e.dtype, e.shape[1:]) for p, e in parts.items()})

    def _check_dense(self, name: str) -> None:
        if self.headers is not None and f"{name}.weight" not in self.headers:
            raise CheckpointError(f"{name}.qweight is missing, and there is no {name}.weight")
        if self.headers is not None:
            refuse_bare_codes(name, self.headers[f"{name}.weight"])

    def _own(self, name: str, n: int, k: int, parts: Mapping[str, Stored]) -> StoredLinear:
        assert self._stored is not None
        text = self._stored.type_of(name)
        if text is None:
            raise CheckpointError(
                f"{name}.qweight is there, but quantization_config leaves {name} unquantised"
            )
        ttype = parse(text)
        act_order = "g_idx" in parts
        if parts:
            on_meta = {
                part: torch.empty(entry.shape, dtype=entry.dtype, device="meta")
                for part, entry in parts.items()
                if part in PARTS and isinstance(entry.dtype, torch.dtype)
            }
            try:
                Weight(ttype, (n, k), **on_meta).check(name)
            except (InvalidArgument, TypeError) as error:
                raise CheckpointError(str(error)) from error
        wanted = {
            "qweight": True,
            "scales": ttype.scale_dtype is not None,
            "zeros": ttype.zeros_dtype is not None,
            "scale2": ttype.scale2 is not None,
            "g_idx": act_order,
        }
        tensors = {part: part for part in PARTS if wanted[part]}
        tensors |= {part: part for part in OF_X if part in parts}
        wanted_of_x = self._summed(self._stored.activation_type_of(name))
        return StoredLinear(name, ttype, tensors, _as_it_is, act_order, activation_type=wanted_of_x)

    def _summed(self, activation_type: str | None) -> str | None:
        """The same with sums as :attr:`fast_accum` says."""
        fast = self.fast_accum
        return activation_type if fast is None else with_fast_accum(activation_type, fast)

    def _foreign(self, name: str, n: int, k: int) -> StoredLinear:
        form, settings = FORMATS[self.method], self._settings.for_module(name)
        if settings is None:
            raise CheckpointError(
                f"{name} is packed, but quantization_config leaves {name} unquantised"
            )
        parts = self.parts_of(name)
        if not parts:  # nothing to go by but the config
            shapes = form.shapes(n, k, settings).items()
            parts = {part: Stored(dtype or torch.float16, size) for part, (size, dtype) in shapes}
        layer: Layer = form.measure(parts, settings, name, k)
        if (layer.n, layer.k) != (n, k):
            raise CheckpointError(
                f"{name} holds a weight of {[layer.n, layer.k]}, not {[n, k]} as the model has"
            )
        ttype, tensors = self._form_of(layer, parts)
        return StoredLinear(
            name,
            ttype,
            tensors,
            functools.partial(form.canonical, layer=layer),
            "weight_g_idx" in parts or (bool(self.config.get("desc_act")) and "g_idx" in parts),
            bool(self.config.get("sym")),
            self._summed(layer.activation_type),
        )

    def _form_of(
        self, layer: Layer, parts: Mapping[str, Stored]
    ) -> tuple[TType, Mapping[str, str]]:
        """Type of a layer, and the part of a Weight that each of its tensors becomes. Worked out
        once for layers that are alike: a mixture has ten thousand."""
        key = repr(replace(layer, name="")), repr(sorted(parts.items()))
        if key not in self._forms:
            canonical = FORMATS[self.method].canonical
            made = {part: canonical(part, _on_meta(entry), layer) for part, entry in parts.items()}
            zeros = next((tensor for kind, tensor in made.values() if kind == "zeros"), None)
            scales = next(tensor for kind, tensor in made.values() if kind == "scales")
            zero = layer.fixed_zero
            if zeros is not None:
                zero = "rescale" if zeros.is_floating_point() else "integer"
            kinds = {part: kind for part, (kind, _) in made.items()}
            self._forms[key] = type_of(layer, zero=zero, scale_dtype=scales.dtype), kinds
        return self._forms[key]


def _refuse_convolutions(stored: StoredConfig) -> None:
    """Engines make layers of convolutions that ask no quantisation for a method."""
    names = [*stored.convolutions]
    if names:
        more = f" and {len(names) - 1} more are packed convolutions" if names[1:] else ""
        raise Unsupported(
            f"{names[0]}{more or ' is a packed convolution'}, which engines cannot hold: serve a "
            "folder of the model without them (`ladder convert` without --convolutions), or load "
            "this one with transformers"
        )


def _keys(named: Mapping[str, Any], rename: Callable[[str], str | None]) -> dict[str, Any]:
    return {rename(name) or name: value for name, value in named.items()}


def method_named(config: Mapping[str, Any] | None) -> str:
    """The quant_method of files by their quantization_config, "" where it says none. vLLM reads
    "mxfp4" in two ways, and MLX names none."""
    if are_settings(config):
        return MLX
    method = str((config or {}).get("quant_method") or "").lower()
    return "mxfp4" if method == "gpt_oss_mxfp4" else method


def _method_of(config: Mapping[str, Any]) -> str:
    """quant_method; a config of a file of its own (quantize_config.json, quant_config.json) has
    none, and keys of AWQ tell it from GPTQ."""
    method = method_named(config) or config.get("method")
    if method:
        return str(method).lower()
    awq = any(key in config for key in ("w_bit", "q_group_size", "zero_point"))
    return "awq" if awq else "gptq" if "bits" in config else ""


def _on_meta(entry: Stored) -> Tensor:
    assert isinstance(entry.dtype, torch.dtype)  # measure() has seen to that
    return torch.empty(entry.shape, dtype=entry.dtype, device="meta")
