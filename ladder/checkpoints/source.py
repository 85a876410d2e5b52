# SPDX-License-Identifier: Apache-2.0
"""A model folder of another package, opened for reading layer by layer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ladder.checkpoints import (
    auto_round,
    awq,
    bitnet,
    bitsandbytes,
    compressed_tensors,
    fbgemm_fp8,
    fp8,
    gemma,
    gptq,
    hqq,
    mlx,
    mlx_config,
    modelopt,
    mxfp4,
    quark,
    torchao,
    w4afp8,
)
from ladder.checkpoints.diffusion import is_pipeline
from ladder.checkpoints.hqq_files import written_by_hqq
from ladder.checkpoints.layer import (
    Layer,
    Side,
    Stored,
    assemble,
    columns_said,
    fail,
    is_embedding,
    refuse_bare_codes,
    shape_part,
    spans,
    split,
    stored_as,
    ttype_of,
)
from ladder.checkpoints.shards import ShardSet, open_shards, read_json
from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.nn.select import covers
from ladder.weight import PARTS, Weight, rows_of

#: quant_method -> the module that reads it. To add a checkpoint format, add its row.
FORMATS: dict[str, ModuleType] = {
    "auto-round": auto_round,
    "awq": awq,
    "bitnet": bitnet,
    "bitsandbytes": bitsandbytes,
    "compressed-tensors": compressed_tensors,
    "fbgemm_fp8": fbgemm_fp8,
    "fp8": fp8,
    "gemma": gemma,
    "gptq": gptq,
    "hqq": hqq,
    mlx_config.QUANT_METHOD: mlx,
    "intel/auto-round": auto_round,
    "modelopt": modelopt,
    "quark": quark,
    "torchao": torchao,
    "w4afp8": w4afp8,
}
#: quant_method of folders whose tensors are a ladder folder's by other names
#: (ladder.checkpoints.translated).
TRANSLATED = (mxfp4.QUANT_METHOD,)
#: Every quant_method that ladder reads, its own aside.
METHODS = (*FORMATS, *TRANSLATED)

#: Where settings lie when config.json has no quantization_config, and whose they then are.
FALLBACKS = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}
#: An older key of config.json for quantization_config, and whose it is.
OLD_KEY, _OLD_METHOD = "compression_config", "compressed-tensors"


@dataclass(frozen=True)
class Source:
    """A quantised model folder. Nothing but headers has been read yet.

    ``modules`` maps each quantised module to its parts ("qweight", ...), in order of name.
    """

    folder: Path
    config: dict[str, Any]  #: config.json
    quantization: dict[str, Any]  #: its quantization_config, or that of a fallback file
    method: str  #: a key of FORMATS
    settings: Any  #: Config of the format, for the whole model
    shards: ShardSet
    modules: dict[str, tuple[str, ...]]
    #: Embeddings (of some formats routers, too) that are quantised, of formats whose are decoded:
    #: no linear layers, and so dense in a ladder folder.
    embeddings: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def format(self) -> ModuleType:
        return FORMATS[self.method]

    @cached_property
    def _every(self) -> dict[str, tuple[str, ...]]:
        return self.modules | self.embeddings

    @cached_property
    def others(self) -> list[str]:
        """Names of the tensors that are no part of a quantised module's weight."""
        parts = {f"{module}.{part}" for module, kept in self._every.items() for part in kept}
        return [name for name in self.shards.home if name not in parts]

    def unquantised(self) -> list[str]:
        """Names of the modules that look like Linear and are dense in a ladder folder: their weight
        is kept as it is, or decoded."""
        kept = {
            name.removesuffix(".weight")
            for name in self.others
            if name.endswith(".weight") and len(self.shards.entry(name).shape) == 2
        }
        kept = {name for name in (*kept, *self.embeddings) if not is_embedding(name)}
        listed = self.quantization.get("modules_to_not_convert")
        if isinstance(listed, list):
            kept |= {name for name in listed if isinstance(name, str) and not self._hides(name)}
        if not any(name.split(".")[-1] == "lm_head" for name in (*kept, *self.modules)):
            kept.add("lm_head")  # tied to the embedding, so no tensor names it
        return sorted(kept)

    def with_embeddings(self) -> Source:
        """The same with quantised embeddings apart from linear layers, by their names, of formats
        that do not tell."""
        if hasattr(self.format, "decoded_dtype"):
            return self
        tables = {name: parts for name, parts in self.modules.items() if is_embedding(name)}
        layers = {name: parts for name, parts in self.modules.items() if name not in tables}
        return replace(self, modules=layers, embeddings=tables) if layers else self

    def _hides(self, entry: str) -> bool:
        """True when an entry of modules_to_not_convert would skip a module that is quantised."""
        return any(covers(entry, module) for module in self.modules)

    def layer(self, module: str) -> Layer:
        """Check the headers of one module.

        Raises CheckpointError as ``measure`` of the format, Unsupported for an embedding.
        """
        told = hasattr(self.format, "is_decoded")
        if not told and is_embedding(module) and module not in self.embeddings:
            raise Unsupported(
                f"{module}.{self.codes(module)} is an embedding's: `ladder repack` takes it with "
                "--embeddings (embeddings=True)"
            )
        settings = self.settings.for_module(module)
        if settings is None:
            fail(f"{module}.{self.codes(module)}", " is there, but quantization_config leaves ",
                 module, " unquantised")  # fmt: skip
        parts = _stored(self.shards, module, self._every[module])
        shape, k = shape_part(self.format, parts), None
        if shape is not None:
            k = columns_said(self.format, self._read(module, {shape})[shape])
        return self.format.measure(parts, settings, module, k)

    def codes(self, module: str) -> str:
        """The part of a quantised module that holds its codes."""
        return self._codes_parts[module]

    @cached_property
    def _codes_parts(self) -> dict[str, str]:
        return {
            module: self.format.codes_part(_stored(self.shards, module, parts))
            for module, parts in self._every.items()
        }

    def home(self, module: str) -> int:
        """The shard that holds the codes of a quantised module."""
        return self.shards.home[f"{module}.{self.codes(module)}"]

    def side(self, layer: Layer) -> Side:
        """Read scales, zeros and g_idx of one layer."""
        small = set(self._every[layer.name]) - {self.codes(layer.name)}
        return self.format.side(self._read(layer.name, small), layer)

    def words(self, layer: Layer, codes: int = 4 << 20) -> Iterator[tuple[slice, Tensor]]:
        """Yield the packed codes of one layer, about ``codes`` codes at a time."""
        stored = self._codes(layer.name)
        for rows in spans(layer, codes):
            yield rows, self.format.words(stored, layer, rows)

    def decoded_dtype(self, layer: Layer) -> torch.dtype:
        """The dtype to which an embedding is decoded: its package's, where that is known."""
        known = getattr(self.format, "decoded_dtype", None)
        return torch.float32 if known is None else known(layer)

    def decoded(self, layer: Layer, codes: int = 4 << 20) -> Iterator[tuple[slice, Tensor]]:
        """Yield the values of an embedding, about ``codes`` at a time, in the dtype to which its
        package decodes it, or float32."""
        side, dtype = self.side(layer), self.decoded_dtype(layer)
        ttype = ttype_of(layer, side)
        if ttype.rows > 1:  # pieces would cut blocks
            codes = (layer.n + 32) * layer.k
        for rows, words in self.words(layer, codes):
            count = words.shape[0]
            parts = {
                part: rows_of(part, tensor, ttype, rows.start, count, layer.n)
                for part, tensor in side.tensors().items()
            }
            weight = Weight(ttype, (count, layer.k), words, **parts)
            yield rows, weight.dequantize().to(dtype)

    def __iter__(self) -> Iterator[tuple[str, Weight]]:
        """Yield every quantised module with its canonical weight."""
        for module in self.modules:
            layer = self.layer(module)
            words = self.format.words(self._codes(module), layer, slice(0, layer.n))
            yield module, assemble(layer, self.side(layer), words)

    def _codes(self, module: str) -> Tensor:
        part = self.codes(module)
        return self._read(module, {part})[part]

    def _read(self, module: str, parts: set[str]) -> dict[str, Tensor]:
        names = {f"{module}.{part}": part for part in sorted(parts)}
        return {names[name]: tensor for name, tensor in self.shards.read(list(names)).items()}


def require_folder(path: Path, *, or_pipeline: bool = False) -> None:
    """Raise InvalidArgument where there is no model folder at ``path``, with what to do about GGUF
    files, and about a pipeline of diffusers, unless it may be one."""
    if not path.is_dir():
        more = ", but a GGUF file, which `ladder repack` reads" if path.suffix == ".gguf" else ""
        raise InvalidArgument(f"{path} is not a folder{more if path.is_file() else ''}")
    if not or_pipeline and is_pipeline(path):
        raise InvalidArgument(
            f"{path} is a pipeline of diffusers: name the folder of one of its models, as "
            f"{path / 'transformer'}"
        )
    files = sorted(path.glob("*.gguf"))
    if files and not (path / "config.json").is_file():
        raise InvalidArgument(
            f"{path} has no config.json, but GGUF files: name one of them for `ladder repack`, as "
            f"{files[0].name}"
        )


def open_folder(path: str | os.PathLike[str], *, v1_zeros: str = "word") -> Source:
    """Open a model folder of a format of FORMATS; iterate over it for (module, Weight). What x is
    multiplied by or rounded with is no part of a weight: :meth:`Source.side` has it.

    Args:
        path: a folder with config.json and safetensors or pickled weights.
        v1_zeros: "word" or "field": how GPTQ v1 zeros are read, see ``gptq.Config``.
    Raises:
        InvalidArgument: there is no such folder, or it is in ladder's own format already.
        CheckpointError: the folder is damaged, not quantised, or by an unknown quant_method.
        Unsupported: its tensors were already transformed for one kernel (marlin, bitblas), it
            quantises more than weights, or embeddings alone, or it is one of TRANSLATED.
    """
    folder = Path(path)
    require_folder(folder)
    config = read_json(folder / "config.json")
    quantization, method = read_quantization(folder, config)
    if method == "ladder":
        raise InvalidArgument(f"{folder} is a ladder checkpoint already")
    if method in TRANSLATED:
        raise Unsupported(
            f"{folder}: quant_method is {method!r}, whose experts are stacks and no layers by "
            "themselves: `ladder repack` makes a ladder folder of it"
        )
    if method not in FORMATS:
        raise CheckpointError(
            f"{folder}: quant_method is {method!r}, ladder reads {', '.join(METHODS)}"
        )
    extra = {"v1_zeros": v1_zeros} if method == "gptq" else {}
    settings = FORMATS[method].Config.from_dict(quantization, **extra)
    shards = open_shards(folder, getattr(FORMATS[method], "PICKLES", None))
    if hasattr(FORMATS[method], "opened"):
        shards = FORMATS[method].opened(shards)
    if hasattr(settings, "with_metadata"):
        settings = settings.with_metadata(shards.metadata())
    if hasattr(settings, "with_tensors"):
        settings = settings.with_tensors(shards)
    modules = _modules(shards, FORMATS[method])
    if not modules:
        codes = FORMATS[method].PARTS[0]
        raise CheckpointError(f"{folder}: quant_method is {method}, but no tensor is a *.{codes}")
    embeddings = {}
    if hasattr(FORMATS[method], "decoded_dtype"):
        decoded = getattr(FORMATS[method], "is_decoded", lambda name, parts: is_embedding(name))
        embeddings = {
            name: modules.pop(name) for name, parts in [*modules.items()] if decoded(name, parts)
        }
    if not modules:
        raise Unsupported(
            f"{folder}: no module is quantised but embeddings, {', '.join(embeddings)}: "
            "ladder packs linear layers"
        )
    return Source(folder, config, quantization, method, settings, shards, modules, embeddings)


def is_quantized(folder: Path, config: dict[str, Any]) -> bool:
    """Whether a folder, of which ``config`` is config.json, says that it is quantised."""
    if config.get("quantization_config") is not None or config.get(OLD_KEY) is not None:
        return True
    if mlx_config.settings_of(config) is not None:
        return True
    return any((folder / name).is_file() for name in FALLBACKS) or written_by_hqq(folder)


def read_quantization(folder: Path, config: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return a folder's quantization_config and its quant_method.

    Raises CheckpointError when there is none or it is not an object.
    """
    if (own := mlx_config.settings_of(config)) is not None:
        return dict(own), mlx_config.QUANT_METHOD
    fields, method = config.get("quantization_config"), None
    if fields is None and config.get(OLD_KEY) is not None:
        fields, method = config[OLD_KEY], _OLD_METHOD
    for name, default in FALLBACKS.items():
        if fields is None and (folder / name).is_file():
            fields, method = read_json(folder / name), default
    if fields is None and written_by_hqq(folder):
        fields, method = {}, "hqq"
    if fields is None:
        raise CheckpointError(
            f"{folder}: config.json has no quantization_config, and there is no "
            + " or ".join(FALLBACKS)
            + ": `ladder convert` quantises such a folder"
        )
    if not isinstance(fields, dict):
        raise CheckpointError(f"{folder}: quantization_config is {fields!r}, not an object")
    method = fields.get("quant_method") or fields.get("method") or method
    if not isinstance(method, str):
        raise CheckpointError(f"{folder}: quantization_config.quant_method is {method!r}")
    return fields, method.lower()


def _stored(shards: ShardSet, module: str, parts: Iterable[str]) -> dict[str, Stored]:
    """What the headers say of parts of a module."""
    entries = {part: shards.entry(f"{module}.{part}") for part in parts}
    return {part: stored_as(entry.dtype, entry.shape) for part, entry in entries.items()}


def _modules(shards: ShardSet, form: ModuleType) -> dict[str, tuple[str, ...]]:
    stored: dict[str, set[str]] = {}
    for name in shards.home:
        module, part = split(name, form.PARTS)
        stored.setdefault(module, set()).add(part)
    modules = {}
    for module, parts in sorted(stored.items()):
        found = tuple(part for part in form.PARTS if part in parts)
        codes = form.codes_part(_stored(shards, module, found))
        if codes is None:
            if "weight" in parts:
                refuse_bare_codes(module, _stored(shards, module, ["weight"])["weight"])
            continue
        if codes not in parts:
            raise CheckpointError(f"{module}.{codes} is missing, but there is {module}.{found[0]}")
        for part in sorted(parts.intersection(PARTS) - set(form.PARTS)):
            # It would come to mean something in the result.
            format = form.__name__.split(".")[-1]
            raise CheckpointError(f"{module}.{part} is there, but {format} has none")
        modules[module] = found
    return modules
