# SPDX-License-Identifier: Apache-2.0
"""Pickled weights of torchao (``pytorch_model.bin``): tensor subclasses, taken apart as torchao
itself takes them apart for files of safetensors.

torch.load(weights_only=True) makes objects of no class but those it is told of. The classes are
torchao's, so that such files can be read where torchao is installed only.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from torch import Tensor

from ladder.checkpoints.shards import Pickles
from ladder.checkpoints.torchao_described import KINDS
from ladder.errors import Unsupported

_SAFETENSORS = "torchao.prototype.safetensors"


def _classes(path: Path) -> list[Any]:
    """The classes that files may name. Raises Unsupported where torchao is not installed."""
    try:
        utils = importlib.import_module(f"{_SAFETENSORS}.safetensors_utils")
    except ImportError as error:
        raise Unsupported(
            f"{path} holds pickled objects of torchao, which cannot be imported ({error}): "
            "`pip install torchao`, or save the model with a transformers that writes safetensors"
        ) from None
    allowed: dict[str, Any] = utils.ALLOWED_CLASSES
    return [*allowed.values()]


def _flatten(loaded: Any, path: Path) -> tuple[Any, dict[str, str]]:
    """The tensors and metadata of safetensors files of the same weights.

    Raises Unsupported for a class of tensors that ladder does not read.
    """
    if not isinstance(loaded, dict):
        return loaded, {}
    plain, packed = {}, {}
    for name, tensor in loaded.items():
        kind = type(tensor).__name__
        if not hasattr(tensor, "tensor_data_names"):
            plain[name] = tensor
        elif kind in KINDS and isinstance(tensor, Tensor):
            packed[name] = tensor
        else:
            raise Unsupported(
                f"{path}: {name} is torchao's {kind}; ladder reads {', '.join(KINDS)}"
            )
    support = importlib.import_module(f"{_SAFETENSORS}.safetensors_support")
    tensors, metadata = support.flatten_tensor_state_dict(packed)
    return plain | tensors, metadata


PICKLES = Pickles(_flatten, _classes)
