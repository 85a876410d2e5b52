# SPDX-License-Identifier: Apache-2.0
"""Orders of codes and scales of torchao (ladder.checkpoints.torchao) that are those of a kernel."""

from __future__ import annotations

import torch
from torch import Tensor

#: Rows of a tile, and columns of the tiles that lie in one piece of memory.
TILE_ROWS, TILE_COLUMNS = 8, 128


def tiles_to_rows(tiles: Tensor, k: int) -> Tensor:
    """Codes of 4 bits in the order of tinygemm -> uint8 [8 T, k], one code in a byte.

    They are int32 [T, ceil(K / 128), 32, 4]. Of 128 columns lane l of 32 has codes of row l / 4,
    and word w of its four has those of columns 32 w + 2 (l mod 4) + 8 j + i, of j from 0 to 3 and i
    from 0 to 1: field 4 i + j, from the lowest bits up.

    Source: fragments of B of mma.m16n8k16 (PTX), and what ``_convert_weight_to_int4pack`` of torch
    2.11 made of known codes on an H200 (tests/checkpoints/fixtures/make_torchao.py).
    """
    rows, wide = tiles.shape[:2]
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=tiles.device)
    fields = (tiles.unsqueeze(-1) >> shifts & 15).to(torch.uint8)
    # [T, C, row 8, quarter 4, word 4, i 2, j 4] -> [T, row, C, word, j, quarter, i]
    fields = fields.reshape(rows, wide, TILE_ROWS, 4, 4, 2, 4).permute(0, 2, 1, 4, 6, 3, 5)
    return fields.reshape(rows * TILE_ROWS, wide * TILE_COLUMNS)[:, :k]


def unswizzled(scales: Tensor, rows: int, columns: int) -> Tensor:
    """Scales of one byte in the order of cuBLAS's block scaling -> [rows, columns].

    They lie in tiles of 128 rows and 4 columns, padded: byte (r mod 32, r div 32, c) of [32, 4, 4].

    Source: cuBLAS, "1D block scaling factors layout".
    """
    high, wide = -(-rows // 128), -(-columns // 4)
    tiles = scales.reshape(high, wide, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(high * 128, wide * 4)[:rows, :columns].contiguous()


def swizzled_bytes(rows: int, columns: int) -> int:
    """Bytes of scales that :func:`unswizzled` reads."""
    return -(-rows // 128) * -(-columns // 4) * 512
