# SPDX-License-Identifier: Apache-2.0
"""Tables of the items of a layer of experts, as compilers see them: no GPU is needed."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import ladder  # noqa: F401


@pytest.mark.parametrize(
    "tokens, of_item, slots",
    [
        (100, 16, 5 + 12),
        (100, 64, 8),  # 5 + 3, a group of eight
        (100, 96, 8),  # 5 + 2, in groups of four
        (100, 128, 8),  # 5 + 1
        (300, 128, 12),  # 5 + 4
        (300, 256, 8),  # 5 + 2, in groups of two
        (1, 64, 8),  # 2 + 0
    ],
)
def test_tables_have_whole_groups_of_items(tokens, of_item, slots):
    with FakeTensorMode():
        x = torch.empty(tokens, 32, dtype=torch.float16)
        ids = torch.empty(tokens, 2, dtype=torch.int64)
        rows, items, places = torch.ops.ladder.route(x, ids, 5, of_item)
        codes = torch.empty(tokens, 32, dtype=torch.int8)
        scales = torch.empty(tokens)
        rounded = torch.ops.ladder.route_rounded(codes, scales, ids, 5, of_item)
    assert items.shape == rounded[2].shape == (slots, 3)
    assert rows.shape == (2 * tokens, 32) and places.shape == (tokens, 2)
