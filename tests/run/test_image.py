# SPDX-License-Identifier: Apache-2.0
"""What an image has behind its codes: scales, zeros and columns in the order of kernels. No GPU."""

import contextlib
import dataclasses

import pytest
import torch
from drawn import KINDS, TWO_LEVELS, exact_weight, generator, unpacked

import ladder
from ladder.cuda import image
from ladder.ops.gating import Gating
from ladder.types import element
from ladder.weight import parts_of_rows

N, K = 70, 200
BLOCKED = (
    *KINDS,
    "uint4,block=16x32,scale=float16,zero=integer",
    "int8,group=32,scale=float8_e5m2",
)


def parts_of(weight: ladder.Weight, order=None) -> dict[str, torch.Tensor]:
    """What pack() writes behind the codes, as float64."""
    number = image.open_weight(str(weight.type), *weight.shape, order is not None)
    found = {}
    for name, part in image.parts(number).parts.items():
        if name in ("scales", "zeros"):
            numbers = image._numbers(weight, name, image._DTYPES[part.scalar])
            packed = image._reordered(numbers, weight)
            assert packed.numel() == part.elements
            if part.scalar in ("e8m0", "e4m3"):
                packed = element(weight.type.scale).values[packed.long()]
            found[name] = packed.double()
    return found


@pytest.mark.parametrize("type", [t for t in BLOCKED if not ladder.ttype(t).superblock])
def test_a_lane_finds_the_scales_and_zeros_of_its_rows_together(type):
    weight = exact_weight(type, N, K)
    ttype, groups = weight.type, weight.type.groups(K)
    wanted = {}
    if weight.scales is not None:
        codes = weight.scales.dtype == torch.uint8
        table = element(ttype.scale).values if codes else None
        wanted["scales"] = table[weight.scales.long()] if codes else weight.scales.double()
    if weight.zeros is not None:
        packed = ttype.zero == "quantized"
        zeros = unpacked(weight.zeros, groups, ttype.bits) if packed else weight.zeros
        wanted["zeros"] = zeros.double()
    found = parts_of(weight)
    assert set(found) == set(wanted)
    for name, stored in wanted.items():
        assert found[name].shape == (groups, 2, 8, 8)
        for row in range(N):
            block, g, j = row // 64, row % 8, row % 64 // 8
            of = stored[row // (ttype.rows or N)]
            assert torch.equal(found[name][:, block, g, j], of), (name, row)


@pytest.mark.parametrize(("of", "count"), [("tensor", 1), ("channel", N)])
def test_an_image_has_second_scales_of_the_tensor_or_of_rows(of, count):
    type = TWO_LEVELS.replace("channel", of)
    part = image.parts(image.open_weight(type, N, K)).parts["scale2"]
    assert (part.elements, part.scalar) == (count, "f32")


@contextlib.contextmanager
def one_word_for_all(row):
    """Packing as a GPU does it, of codes alone the first word of a row."""

    def codes(qweight, image, number):
        image[0] = qweight[row, 0]

    library = torch.library.Library("ladder", "IMPL")
    library.impl("pack_image", codes, "CPU")
    try:
        yield
    finally:
        library._destroy()


@pytest.mark.parametrize("type", ["q4_k", "q6_k", "nf4,group=64,scale=int6,scale2=float32:128"])
def test_an_image_has_integers_and_second_scales_of_superblocks(type):
    n, k = 72, 768
    weight = ladder.quantize(torch.randn(n, k), type)
    number, ttype = image.open_weight(type, n, k), weight.type
    with one_word_for_all(9):
        made = image.pack(weight, number)
    parts, blocks, row = image.parts(number).parts, 2, 66
    place = row // 64 * 64 + row % 8 * 8 + row % 64 // 8
    values = element(ttype.scale).values[weight.scales.long()]
    for group in range(ttype.groups(k)):
        assert parts["scales"].of(made)[group * blocks * 64 + place] == values[row, group]
    kinds, superblocks = ttype.scales_of_superblock, k // ttype.superblock
    seconds = parts["scale2"].of(made).view(kinds, superblocks, blocks * 64)
    wanted = weight.scale2.view(n, superblocks, kinds)
    assert seconds.dtype == wanted.dtype == ttype.scale2_dtype
    assert torch.equal(seconds[:, :, place].T, wanted[row])


@pytest.mark.parametrize("type", [TWO_LEVELS, "nvfp4", "uint4,group=32,scale=float16,zero=integer"])
def test_parts_of_gate_and_up_lie_in_turn_with_their_rows(type):
    """Of codes one word stands for all: a GPU puts them there."""
    n = 144
    weight = exact_weight(type, n, K)
    number = image.open_weight(type, n, K, gating=Gating())
    rows = image.gate_rows(n, weight.qweight.device)
    in_turn = dict(weight.tensors(), qweight=weight.qweight[rows])
    for name in parts_of_rows(weight.type):
        if name in in_turn:
            in_turn[name] = in_turn[name][rows]

    with one_word_for_all(9):
        made = image.pack(weight, number, rows=rows)
        wanted = image.pack(dataclasses.replace(weight, **in_turn), number)
    behind = image.parts(number).code_words
    assert torch.equal(made[behind:], wanted[behind:])
    assert made[0] == weight.qweight[rows[9], 0]
    if (second := image.parts(number).parts.get("scale2")) is not None:
        of_rows = weight.type.scale2_of_rows
        assert torch.equal(second.of(made), weight.scale2[rows] if of_rows else weight.scale2)


def test_columns_are_sorted_by_group_and_stay_in_order_within_one():
    weight = exact_weight("uint4,group=32,scale=float16", N, 192, act_order=True)
    order = image.column_order(weight).long()
    groups = weight.g_idx[order].long()
    assert torch.equal(groups, torch.arange(192) // 32)
    assert all(bool((part.diff() > 0).all()) for part in order.view(-1, 32))


def test_columns_in_order_need_no_order():
    weight = exact_weight("uint4,group=32,scale=float16", N, 192)
    assert image.column_order(weight) is None
    in_order = dataclasses.replace(weight, g_idx=(torch.arange(192) // 32).to(torch.int32))
    assert image.column_order(in_order) is None


def test_groups_of_other_lengths_have_no_image_and_the_reason_is_said():
    weight = exact_weight("uint4,group=32,scale=float16", N, 192)
    uneven = torch.randint(0, 6, (192,), generator=generator()).to(torch.int32)
    with pytest.raises(ladder.Unsupported, match="32 columns to each group"):
        image.column_order(dataclasses.replace(weight, g_idx=uneven))
