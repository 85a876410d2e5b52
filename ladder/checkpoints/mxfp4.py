# SPDX-License-Identifier: Apache-2.0
"""quant_method "mxfp4" of transformers: gpt-oss, whose experts are stacks of MXFP4.

    <experts>.gate_up_proj_blocks   uint8 [E, 2I, H/32, 16]: two codes in a byte, the first in its
                                    lower half; rows of gate and up in turn
    <experts>.gate_up_proj_scales   uint8 [E, 2I, H/32]: of float8_e8m0
    <experts>.gate_up_proj_bias     float [E, 2I]
    <experts>.down_proj_*           the same of [E, H, I]

These are the codes, scales and biases of the stacks ``<experts>.gate_up`` and ``<experts>.down`` of
a ladder folder, bit by bit, but for their names and for the rows of gate, which a ladder folder has
in front of those of up. So each tensor becomes one of a ladder folder by itself, wherever it is
read: by ``ladder repack``, by transformers or by an engine.

Source: transformers 5.23, integrations/mxfp4.py; vLLM 0.33, models/gpt_oss.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.layer import Stored, fail
from ladder.errors import CheckpointError, Unsupported
from ladder.nn.dense_experts import STACKS
from ladder.types import parse

QUANT_METHOD, TYPE = "mxfp4", "mxfp4"
_NAME = re.compile(r"(?P<stack>.+\.(?P<which>gate_up|down))_proj_(?P<part>blocks|scales|bias)")
_PARTS = {"blocks": "qweight", "scales": "scales", "bias": "bias"}
#: The tensors of an experts module: names of a ladder folder, by those of such a folder.
STACK_NAMES = {
    f"{stack}_proj_{theirs}": f"{stack}.{ours}"
    for stack in STACKS.values()
    for theirs, ours in _PARTS.items()
}
_BLOCK = 32  #: columns of a scale
_BYTES = 16  #: of the codes of a block
#: Keys of the config of which nothing here depends: what transformers does with a folder.
_READ = {"quant_method", "modules_to_not_convert", "dequantize"}


class Translation:
    """What the tensors of a folder are in a ladder folder.

    Args:
        fields: ``quantization_config`` of config.json.
        headers: dtype and shape of every tensor of the files.
    Raises:
        CheckpointError: a stack that is not whole, or whose tensors do not fit each other; the
            message names the tensor and both values.
        Unsupported: a key of the config that is not known.
    """

    def __init__(self, fields: Mapping[str, Any], headers: Mapping[str, Stored]) -> None:
        if more := sorted(set(fields) - _READ):
            raise Unsupported(
                f"quantization_config.{more[0]} is {fields[more[0]]!r}, and ladder does not know "
                f"what it means for quant_method {QUANT_METHOD}"
            )
        matches = {name: match for name in headers if (match := _NAME.fullmatch(name))}
        packed = {m["stack"] for m in matches.values() if m["part"] == "blocks"}
        for name, match in matches.items():
            if match["part"] == "scales" and match["stack"] not in packed:
                fail(f"{match['stack']}_proj_blocks", " is missing, but there is ", name)
        #: Names of a ladder folder, by those of the files; of tensors that are no part of a stack
        #: nothing.
        self.names = {
            name: f"{match['stack']}.{_PARTS[match['part']]}"
            for name, match in matches.items()
            if match["stack"] in packed
        }
        self.stacks = tuple(sorted(packed))
        for stack in self.stacks:
            _check(stack, headers)
        #: dtype and shape of every tensor, by the names of a ladder folder.
        self.headers = {
            self.names.get(name, name): self._header(name, stored)
            for name, stored in headers.items()
        }

    def _header(self, name: str, stored: Stored) -> Stored:
        if not self.names.get(name, "").endswith(".qweight"):
            return Stored(_scale_dtype(), stored.shape) if self._is_scale(name) else stored
        experts, rows, blocks, _ = stored.shape
        return Stored(torch.int32, (experts, rows, blocks * _BYTES // 4))

    def _is_scale(self, name: str) -> bool:
        return self.names.get(name, "").endswith(".scales")

    def stored_config(self, fields: Mapping[str, Any], dense: tuple[str, ...] = ()) -> StoredConfig:
        """The config of the ladder folder.

        Args:
            fields: as for the class.
            dense: linear layers that are not packed; by default what ``fields`` names.
        """
        named = fields.get("modules_to_not_convert") or ()
        if not isinstance(named, (list, tuple)) or not all(isinstance(n, str) for n in named):
            raise CheckpointError(
                f"quantization_config.modules_to_not_convert is {named!r}, not a list of names"
            )
        return StoredConfig.describing(
            dict.fromkeys(self.stacks, TYPE), dense or named, usual=TYPE, source=dict(fields)
        )


def translate(name: str, tensor: Tensor) -> Tensor:
    """What tensor ``name`` of the files, one of :attr:`Translation.names`, is in a ladder folder.
    Of the name the end will do."""
    rows = tensor
    if "gate_up_proj_" in name:
        rows = torch.cat([tensor[:, 0::2], tensor[:, 1::2]], 1)
    if name.endswith("_blocks"):
        # transformers may hand on bytes that it has widened to the dtype of the codes.
        return rows.to(torch.uint8).flatten(2).contiguous().view(torch.int32)
    if name.endswith("_scales"):
        return rows.to(torch.uint8).contiguous().view(_scale_dtype())
    return rows.contiguous()


def _scale_dtype() -> torch.dtype:
    dtype = parse(TYPE).scale_dtype
    assert dtype is not None
    return dtype


def _check(stack: str, headers: Mapping[str, Stored]) -> None:
    """Raise CheckpointError unless the tensors of ``stack`` fit each other."""
    blocks, scales = f"{stack}_proj_blocks", f"{stack}_proj_scales"
    dtype, shape = headers[blocks]
    if dtype != torch.uint8 or len(shape) != 4 or shape[3] != _BYTES or 0 in shape:
        fail(
            blocks, f" is {dtype} ", list(shape), f", not torch.uint8 [E, N, K/{_BLOCK}, {_BYTES}]"
        )
    if scales not in headers:
        fail(scales, " is missing, but there is ", blocks)
    found = headers[scales]
    if found != Stored(torch.uint8, shape[:3]):
        fail(
            scales, f" is {found.dtype} ", list(found.shape), ", not torch.uint8 ", list(shape[:3])
        )
    if stack.endswith("gate_up") and shape[1] % 2:
        fail(blocks, " has ", shape[1], " rows, not gate and up in turn")
    bias = headers.get(f"{stack}_proj_bias")
    if bias is not None and bias.shape != shape[:2]:
        fail(f"{stack}_proj_bias", " has shape ", list(bias.shape), ", not ", list(shape[:2]))
