# SPDX-License-Identifier: Apache-2.0
"""Shapes and dtypes of the parts of torchao's tensors: a part of ladder.checkpoints.torchao, which
has the format."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ladder.checkpoints.layer import BYTES, SCALE_NAMES, Layer, Stored, expect, fail, require
from ladder.checkpoints.torchao_described import (
    CODES,
    FLOAT8,
    INT4,
    INT8,
    INTX,
    MX,
    NVFP4,
    TILES,
    Module,
)
from ladder.checkpoints.torchao_orders import TILE_COLUMNS, TILE_ROWS, swizzled_bytes
from ladder.errors import Unsupported

SCALE, ZERO, BOTH = "_weight_scale", "_weight_zero_point", "_weight_scale_and_zero"
WHOLE, PRE = "_weight_per_tensor_scale", "_weight_act_pre_scale"

_LEAST_GROUP = 8  #: fewest columns of one scale
_FLOAT8 = {torch.float8_e4m3fn: "float8_e4m3", torch.float8_e5m2: "float8_e5m2"}


def measure(parts: Mapping[str, Stored], config: Module, name: str, k: int | None = None) -> Layer:
    """Check shapes and dtypes of the parts of layer ``name`` against each other and ``config``.

    Raises:
        CheckpointError: a part is missing, or has another dtype or shape than the rest asks for.
            The message names the tensor and both values.
        Unsupported: blocks of fewer than 8 columns, and float zero points of one bit.
    """
    scale = BOTH if config.kind == TILES else SCALE
    require(parts, name, (CODES, scale, *((ZERO,) if config.kind in (INT4, INTX) else ())))
    n, k = _shape(parts, config, name)
    rows, columns = config.block or (n, k)
    rows, columns = min(rows, n), min(columns, k)
    blocks = -(-n // rows), -(-k // columns)
    if columns < min(_LEAST_GROUP, k):
        raise Unsupported(
            f"{name}.weight has scales of {columns} columns: ladder has {_LEAST_GROUP} or more"
        )
    spelled = f"block={rows}x{columns}" if rows > 1 else f"group={columns}"
    if columns == k and rows in (1, n):
        spelled = "tensor" if rows == n else "channel"
    element, coded = _element(parts, config, name), None
    if config.kind in (MX, NVFP4):
        coded = "e8m0" if config.kind == MX else "float8_e4m3"
    _check_side(parts, config, name, (n, k), blocks, coded)
    if PRE in parts:
        expect(parts, name, PRE, SCALE_NAMES, (1, k) if len(parts[PRE].shape) == 2 else (k,))
    float_zero = "original" if config.kind == INTX else "rescale"
    return Layer(name, n, k, config.bits, columns, blocks[1], spelled, config, element, coded,
                 WHOLE in parts, float_zero)  # fmt: skip


def _shape(parts: Mapping[str, Stored], config: Module, name: str) -> tuple[int, int]:
    """[N, K] by the codes and the metadata, which must agree."""
    found = parts[CODES].shape
    if config.kind == TILES:
        assert config.shape is not None
        n, k = config.shape
        wide = _padded_columns(k) // TILE_COLUMNS
        possible = [(m // TILE_ROWS, wide, 32, 4) for m in _padded_rows(n)]
        if found not in possible:
            fail(f"{name}.{CODES}", " has shape ", list(found), ", not ", list(possible[0]),
                 " of a weight of ", [n, k])  # fmt: skip
        expect(parts, name, CODES, torch.int32, found)
        return n, k
    if len(found) == 3:
        raise Unsupported(
            f"{name}.{CODES} has shape {list(found)}: ladder packs no stacks of torchao"
        )
    if len(found) != 2 or 0 in found:
        fail(f"{name}.{CODES}", " has shape ", list(found), ", not two dimensions above zero")
    n, k = found[0], found[1] * (2 if config.bits == 4 and config.kind != INTX else 1)
    if config.shape is not None and config.shape != (n, k):
        fail(f"{name}.{CODES}", " is of a weight of ", [n, k], ", and the metadata says ",
             list(config.shape))  # fmt: skip
    return n, k


def _padded_rows(n: int) -> tuple[int, int]:
    """Rows of which tiles may be: for N of 8, and for N of 16 (ntile_size)."""
    return -(-n // TILE_ROWS) * TILE_ROWS, -(-n // 16) * 16


def _padded_columns(k: int) -> int:
    """Columns of which tiles are."""
    return -(-k // 1024) * 1024


def _element(parts: Mapping[str, Stored], config: Module, name: str) -> str | None:
    """The format of the codes, None of unsigned ones; and that they have its dtype."""
    dtype, shape = parts[CODES]
    if config.kind in (INT8, INTX):
        expect(parts, name, CODES, torch.int8, shape)
        zero = parts[ZERO].dtype if ZERO in parts else torch.int8
        if zero == torch.int8:
            return None
        if config.bits == 1:
            raise Unsupported(f"{name}.{ZERO} is {zero}, of codes of one bit: ladder reads int8")
        return f"int{config.bits}"
    if config.kind == FLOAT8:
        expect(parts, name, CODES, tuple(_FLOAT8), shape)
        assert isinstance(dtype, torch.dtype)
        return _FLOAT8[dtype]
    if config.kind == INT4:
        expect(parts, name, CODES, (torch.int8, torch.uint8), shape)
    if config.kind in (INT4, TILES):
        return "int4"
    wanted = {kind: dtype for dtype, kind in _FLOAT8.items()}.get(str(config.element), torch.uint8)
    expect(parts, name, CODES, wanted, shape)
    return config.element


def _check_side(parts: Mapping[str, Stored], config: Module, name: str, shape: tuple[int, int],
                blocks: tuple[int, int], coded: str | None) -> None:  # fmt: skip
    n, k = shape
    groups = blocks[1]
    wanted: tuple[int, ...]
    if config.kind == TILES:
        # Of padded rows and columns there are scales, too, which are left out.
        assert config.block is not None
        padded = -(-_padded_columns(k) // config.block[1])
        found, possible = parts[BOTH].shape, [(padded, m, 2) for m in _padded_rows(n)]
        wanted = found if found in possible else possible[0]
        expect(parts, name, BOTH, torch.bfloat16, wanted)
        return
    if config.kind == INT4:
        expect(parts, name, SCALE, SCALE_NAMES, (groups, n))
        expect(parts, name, ZERO, SCALE_NAMES, (groups, n))
        return
    found = parts[SCALE].shape
    if coded is not None:
        size = swizzled_bytes(n, groups)
        fits = config.swizzled and torch.Size(found).numel() == size
        wanted = found if fits else (size,) if config.swizzled else (n, groups)
        expect(parts, name, SCALE, BYTES[coded], wanted)
        if WHOLE in parts:
            expect(parts, name, WHOLE, torch.float32, ())
        return
    flat = ((), (1,)) if blocks == (1, 1) else ((n,),) if blocks == (n, 1) else ()
    wanted = found if found in flat else blocks
    expect(parts, name, SCALE, SCALE_NAMES, wanted)
    if ZERO in parts:
        floats = tuple(SCALE_NAMES) if config.kind == INTX else ()
        expect(parts, name, ZERO, (torch.int8, *floats), wanted)


__all__ = ["BOTH", "PRE", "SCALE", "WHOLE", "ZERO", "measure"]
