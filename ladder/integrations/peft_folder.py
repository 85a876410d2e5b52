# SPDX-License-Identifier: Apache-2.0
"""``ladder merge``: a folder of a model and one of an adapter become one ladder folder.

The model is loaded dense, whatever its folder has, so that PEFT merges every kind of adapters that
it knows; the sums are quantised as :func:`ladder.convert` does, by data where there are some.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import peft
import torch
from safetensors import SafetensorError
from torch import nn

from ladder.checkpoints.model import meta_model
from ladder.checkpoints.model_files import check_apart
from ladder.checkpoints.shards import open_shards
from ladder.checkpoints.writer import carried_files, carry, check_destination, new_folder
from ladder.errors import CheckpointError, InvalidArgument
from ladder.integrations.folders.dense import dense
from ladder.integrations.peft_told import telling
from ladder.integrations.peft_values import take
from ladder.nn.conv import Conv2d
from ladder.nn.convert import convert
from ladder.nn.dense_experts import has_stacks
from ladder.nn.embedding import Embedding
from ladder.nn.offered import TakesActivations, offer_activation_types, wish_of
from ladder.nn.packed import PackedModule
from ladder.nn.report import Conversion, Progress
from ladder.nn.select import is_linear
from ladder.nn.stack import PackedStack
from ladder.types import TType

#: Kernels of the weights as they were (``ladder tune``).
_PLANS = "plans.json"


@dataclass
class _Packed:
    """How the modules of a packed folder are packed, by their names in the model.

    Attributes:
        activations: what the folder asks for, which the device may not take.
    """

    types: dict[str, TType] = field(default_factory=dict)
    activations: dict[str, str | None] = field(default_factory=dict)
    convolutions: bool = False
    embeddings: bool = False

    @classmethod
    def of(cls, model: nn.Module) -> _Packed:
        found = cls()
        for name, module in model.named_modules():
            if isinstance(module, (PackedModule, PackedStack)):
                found.types[name] = module.weight_type
                found.convolutions |= isinstance(module, Conv2d)
                found.embeddings |= isinstance(module, Embedding)
            if isinstance(module, TakesActivations):
                found.activations[name] = wish_of(module)
        return found

    def left(self, model: nn.Module) -> tuple[str, ...]:
        """Modules of ``model``, which is dense by now, that the folder has dense."""
        kinds = (nn.Conv2d, nn.Embedding)
        return tuple(
            name
            for name, module in model.named_modules()
            if (is_linear(module) or isinstance(module, kinds) or has_stacks(module))
            and not any(f"{each}.".startswith(f"{name}.") for each in self.types)
        )


def merge(
    base: str | os.PathLike[str],
    adapter: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    weight_type: str | TType | None = None,
    *,
    group_size: int | None = None,
    symmetric: bool | None = None,
    skip: Iterable[str] | None = None,
    head: bool = False,
    embeddings: bool = False,
    calibration: object = None,
    device: str = "cpu",
    force: bool = False,
    progress: Progress | None = None,
) -> Conversion:
    """Write the ladder folder ``destination`` of the model of ``base``, with the adapter merged.

    Of a ladder folder what is dense stays dense, and what is packed has the type that it has:
    where the adapter changes a weight, codes and scales are found anew, and all else is as it was.
    With ``weight_type`` or ``calibration`` all that is packed is quantised anew, in the order of
    its columns, and without static scales of x and ``pre_scale``. Other files of ``base`` are
    carried over.

    Args:
        base: a folder of a language model of transformers, dense or a ladder folder.
        adapter: a folder that ``save_pretrained`` of a ``PeftModel`` wrote.
        weight_type, group_size, symmetric: as :func:`ladder.quantize`.
        skip, head, embeddings: as :func:`ladder.convert`, where ``base`` is dense.
        calibration: what the model is called with, as :func:`ladder.convert` takes it: codes of the
            sums are chosen by what layers are given. None: the nearest codes.
        device: where the model is merged, runs and is quantised.
        force: replace an existing ``destination``.
    Raises:
        InvalidArgument: ``destination`` exists, an option does not fit ``base``, or the adapter is
            of a kind that is not merged, or gives a weight that is not finite.
        CheckpointError: a folder is damaged, or the adapter is not of this model.
    """
    source, out = Path(base), Path(os.path.abspath(destination))
    check_apart(source, out)
    check_destination(out, force=force)
    _check_adapter(Path(adapter))
    check_apart(Path(adapter), out)
    weights = open_shards(source).files
    described: Any = meta_model(source)
    model: Any = type(described).from_pretrained(str(source), dtype=torch.float32).to(device)
    own = described.config.dtype or torch.float32
    packed = _Packed.of(model)
    if packed.types and (skip is not None or head or embeddings):
        raise InvalidArgument(f"{base} is packed, and its modules are packed again: no others are")
    ties = getattr(model.config, "tie_word_embeddings", None)
    model = merged_into(dense(model, torch.float32), adapter)
    tied_as_before = ties == getattr(model.config, "tie_word_embeddings", None)
    report: Conversion
    if packed.types and weight_type is None and calibration is None and tied_as_before:
        merged = model
        model = type(described).from_pretrained(str(source), dtype="auto").to(device)
        with telling(packed.types):
            report = take(model, merged)
    elif packed.types:
        again = packed.types if weight_type is None else {}
        usual = next(iter(packed.types.values())) if weight_type is None else weight_type
        report = convert(
            model, usual, group_size, symmetric, types=again, skip=packed.left(model),
            convolutions=packed.convolutions, embeddings=packed.embeddings,
            calibration=calibration, progress=progress,
        )  # fmt: skip
        offer_activation_types(model, packed.activations.get)
    else:
        report = convert(
            model, weight_type or "uint4", group_size, symmetric, skip=skip, head=head,
            embeddings=embeddings, calibration=calibration, progress=progress,
        )  # fmt: skip
    _cast(model, own)
    with new_folder(out, force=force) as folder:
        carry(source, folder, carried_files(source, weights | {"config.json", _PLANS}))
        model.save_pretrained(folder)
    return report


def _check_adapter(folder: Path) -> None:
    """Raise CheckpointError, before a model is loaded, for a folder without an adapter."""
    config, weights = folder / peft.utils.CONFIG_NAME, peft.utils.SAFETENSORS_WEIGHTS_NAME
    if not config.is_file():
        raise CheckpointError(f"{folder} has no {config.name}: no folder of an adapter")
    # PEFT would look for them on the Hub.
    if not any((folder / name).is_file() for name in (weights, peft.utils.WEIGHTS_NAME)):
        raise CheckpointError(f"{folder} has no {weights}, the tensors of the adapter")
    try:
        peft.PeftConfig.from_pretrained(str(folder))
    except (KeyError, TypeError, ValueError) as error:
        version = peft.__version__
        raise CheckpointError(f"PEFT {version} does not understand {config}: {error!r}") from error


def merged_into(model: nn.Module, adapter: str | os.PathLike[str]) -> nn.Module:
    """``model``, which is dense, with an adapter in its weights. Errors as :func:`merge`."""
    try:
        adapted: Any = peft.PeftModel.from_pretrained(model, str(adapter))
        if not hasattr(adapted.base_model, "merge_and_unload"):
            kind = next(iter(adapted.peft_config.values())).peft_type.value
            raise InvalidArgument(f"{adapter} is of kind {kind}, which is not merged into weights")
        # Again, for what from_pretrained does not say: which names it has found no tensors for, and
        # the other way round. It goes on with random numbers there.
        result = adapted.load_adapter(str(adapter), adapted.active_adapter)
    except InvalidArgument:
        raise
    except SafetensorError as error:
        raise CheckpointError(f"the tensors of {adapter} are damaged: {error}") from error
    except (RuntimeError, ValueError) as error:  # shapes; modules that are not there
        said = " ".join(str(error).split())
        raise CheckpointError(f"{adapter} does not fit the model: {said}") from error
    # PEFT also saves parts of embeddings beside adapters, those of packed ones too.
    unknown = [name for name in result.unexpected_keys if adapted.base_model.prefix in name]
    for names, what in (
        (_not_found(adapted, result.missing_keys), "are not among its tensors"),
        (unknown, "of its tensors are not in the model"),
    ):
        if names:
            raise CheckpointError(
                f"{adapter} does not fit the model: {len(names)} {what}, such as {names[0]}"
            )
    try:
        merged: nn.Module = adapted.merge_and_unload(safe_merge=True)
    except NotImplementedError as error:
        kind = adapted.active_peft_config.peft_type.value
        raise InvalidArgument(f"{adapter} is of kind {kind}, which PEFT does not merge") from error
    except ValueError as error:  # numbers that are not finite; a bias that the model has not
        raise InvalidArgument(f"{adapter}: {error}") from error
    return merged


def _not_found(adapted: nn.Module, names: list[str]) -> list[str]:
    """Those of ``names`` whose parameter has no other name with which it was found."""
    parameters = dict(adapted.named_parameters(remove_duplicate=False))
    found = {id(each) for name, each in parameters.items() if name not in names}
    return [name for name in names if id(parameters.get(name)) not in found]


def _cast(model: Any, dtype: torch.dtype) -> None:
    """What stays dense gets its dtype again, but for what transformers keeps in float32."""
    kept = {
        *(getattr(model, "_keep_in_fp32_modules", None) or ()),
        *(getattr(model, "_keep_in_fp32_modules_strict", None) or ()),
    }
    floats = {
        name: parameter.data
        for name, parameter in model.named_parameters()
        if any(part in name for part in kept)
    }
    model.to(dtype)
    for name, parameter in model.named_parameters():
        if name in floats:
            parameter.data = floats[name]
    model.config.dtype = dtype
