# SPDX-License-Identifier: Apache-2.0
"""Second scales of superblocks: what a type says, what a weight has, cuts and joins of it."""

import copy
import pickle

import pytest
import torch
from drawn import SIGNED_SUPERBLOCKS, SUPERBLOCKS, exact_weight, formula
from torch import nn

import ladder
from ladder.errors import InvalidArgument
from ladder.types import parse
from ladder.weight import join, parts_of_rows

UINT = "uint4,group=32,scale=uint6"
TYPES = (
    "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", SUPERBLOCKS, SIGNED_SUPERBLOCKS,
    "nf4,group=32,scale=int6,scale2=float16:256",
    "int3,group=16,scale=uint8,scale2=float16:256",
    f"{UINT},zero=integer,scale2=float32:128",
    f"{UINT},zero=quantized,scale2=bfloat16:64",
    "uint1,group=32,scale=uint6,zero=rescale,scale2=bfloat16:64",
    "float6_e3m2,group=16,scale=uint4,scale2=float32:16",
    "float4_e2m1,group=16,scale=int8,scale2=float16:64",
)  # fmt: skip


# --- types ----------------------------------------------------------------------------------------


def test_a_spelling_says_the_columns_of_a_superblock():
    ttype = parse(f"{UINT},zero=rescale,scale2=float16:256")
    assert (ttype.superblock, ttype.scale2, ttype.scale2_of_rows) == (256, "float16", False)
    assert str(ttype) == "q4_k" and ttype.scale2_dtype is torch.float16
    assert ttype.scale2_shape(24, 600) == (24, 6) and ttype.zeros_dtype is torch.uint8
    assert parse(SIGNED_SUPERBLOCKS).scale2_shape(24, 600) == (24, 19)
    assert not ttype.scale2_of_tensor and ttype.with_second_scales_of_rows() is ttype
    assert str(ttype.with_float_scales()) == "uint4,group=32,scale=float32,zero=rescale"
    assert parse("nvfp4").with_float_scales() == parse("nvfp4")
    for other in (pickle.loads(pickle.dumps(ttype)), copy.deepcopy(ttype)):
        assert other is ttype or other == ttype


@pytest.mark.parametrize(("fields", "words"), [
    (f"{UINT},scale2=float16:250", "superblocks of 250 columns, which are no whole groups of 32"),
    (f"{UINT},scale2=float16:0", 'scale2 is "0".*not a positive integer'),
    (f"{UINT},scale2=float16:-256", "float16:COLUMNS"),
    (f"{UINT},scale2=float16:256:1", "float16:COLUMNS"),
    (f"{UINT},scale2=float8_e4m3:256", "scale2 of superblocks is float8_e4m3, not a float of 16"),
    ("uint4,group=32,scale=float16,scale2=float16:256", "up to 8 bits, and its scale is float16"),
    ("uint4,group=32,scale2=float16:256", "of up to 8 bits, and its scale is none"),
    ("uint4,tensor,scale=uint6,scale2=float16:256", "scales that rows share"),
    ("uint4,block=8x32,scale=uint6,scale2=float16:256", "scales that rows share"),
    ("uint4,group=32,scale=int6,scale2=float32:channel", "scale int6 is neither"),
    (f"{UINT},zero=original,scale2=float16:256", "a float zero needs a scale of 16 or 32 bits"),
    ("nf4,group=32,scale=int6,zero=rescale,scale2=float16:256", "needs an integer format"),
    ("q4_k,group=32", "q4_k fixes every field"),
])  # fmt: skip
def test_what_is_no_type_is_refused_by_the_field_at_fault(fields, words):
    with pytest.raises(InvalidArgument, match=words):
        parse(fields)


@pytest.mark.parametrize("type", TYPES)
def test_bits_of_a_weight_are_those_that_are_stored(type):
    weight = exact_weight(type, 24, 768)
    assert weight.type.bits_per_weight(24, 768) == 8 * weight.nbytes / (24 * 768)


# --- weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("type", TYPES)
def test_values_are_the_formula_and_floats_of_both_levels_have_them(type, act_order):
    weight = exact_weight(type, 16, 300, act_order=act_order)  # a shorter last superblock
    values = weight.dequantize()
    assert torch.equal(values.double(), formula(weight))
    floats = weight.with_float_scales()
    floats.check()
    assert floats.type == weight.type.with_float_scales()
    assert torch.equal(floats.dequantize(), values)
    assert torch.equal(weight.float_scales(), floats.scales)


@pytest.mark.parametrize("type", TYPES)
def test_products_of_two_levels_are_rounded_once_each(type):
    """Random numbers, of which float32 rounds every product: another order would be seen."""
    torch.manual_seed(0)
    weight = ladder.quantize(torch.randn(16, 512), type)
    weight.check()
    assert torch.equal(weight.with_float_scales().dequantize(), weight.dequantize())


@pytest.mark.parametrize("type", TYPES)
def test_rows_and_columns_are_cut_and_joined(type):
    weight = exact_weight(type, 16, 512)
    values = weight.dequantize()
    assert "scale2" in parts_of_rows(weight.type)
    rows = [weight.narrow_rows(0, 6), weight.narrow_rows(6, 10)]
    assert join(rows) == weight
    for part, wanted in zip(rows, values.split((6, 10)), strict=True):
        part.check()
        assert torch.equal(part.dequantize(), wanted)
    columns = [weight.narrow_columns(0, 256), weight.narrow_columns(256, 256)]
    for part, wanted in zip(columns, values.split(256, 1), strict=True):
        part.check()
        assert torch.equal(part.dequantize(), wanted)
    assert weight.of_single_rows() == weight


def test_a_cut_through_a_superblock_is_refused():
    weight = exact_weight("q4_k", 8, 600)
    assert weight.narrow_columns(512, 88).scale2.shape == (8, 2)
    for start, count in ((0, 128), (128, 472), (256, 300)):
        with pytest.raises(InvalidArgument, match="cut superblocks of 256 columns"):
            weight.narrow_columns(start, count)


@pytest.mark.parametrize(("part", "change", "words"), [
    ("scale2", lambda p: p[:, :-1], r"scale2 has shape \[8, 3\], not \[8, 4\]"),
    ("scale2", lambda p: p.float(), "scale2 has dtype torch.float32, not torch.float16"),
    ("scale2", lambda p: None, "scale2 is missing"),
    ("scale2", lambda p: p.masked_fill(torch.arange(4) == 2, torch.inf), r"scale2\[0, 2\] is inf"),
    ("scales", lambda p: p + 64, r"scales\[0, 0\] is \d+, which does not fit uint6"),
    ("zeros", lambda p: p + 64, r"zeros\[0, 0\] is \d+, which does not fit uint6"),
    ("zeros", lambda p: p.half(), "zeros has dtype torch.float16, not torch.uint8"),
])  # fmt: skip
def test_parts_that_do_not_fit_are_named(part, change, words):
    parts = exact_weight("q4_k", 8, 512).tensors()
    codes = ladder.ops.unpack(parts.pop("qweight"), 512, 4)
    with pytest.raises(InvalidArgument, match=words):
        ladder.Weight.from_codes(codes, "q4_k", **parts | {part: change(parts[part])})


def test_columns_that_are_no_whole_superblocks_are_not_quantised():
    with pytest.raises(InvalidArgument, match="64 columns, which do not divide K, 96"):
        ladder.quantize(torch.randn(8, 96), SUPERBLOCKS)
    with pytest.raises(RuntimeError, match="superblocks, whose scales ladder.quantize searches"):
        torch.ops.ladder.quantize(torch.randn(8, 128), SUPERBLOCKS, True)


# --- modules --------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", ["q4_k", "nf4,group=32,scale=int6,scale2=float32:64"])
def test_a_layer_keeps_both_levels_through_casts_copies_and_state_dicts(type, tmp_path):
    torch.manual_seed(0)
    dense, x = nn.Linear(512, 24, bias=False), torch.randn(3, 512)
    layer = ladder.Linear.from_linear(dense, type)
    weight, wanted = layer.packed_weight, layer(x)
    torch.save(layer.half().float().state_dict(), tmp_path / "state.pt")
    fresh = ladder.Linear(512, 24, bias=False, weight_type=type)
    fresh.load_state_dict(torch.load(tmp_path / "state.pt"))
    for other in (fresh, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.packed_weight == weight and torch.equal(other(x), wanted)
    state = layer.state_dict()
    state["scale2"] = state["scale2"] * torch.inf
    with pytest.raises(InvalidArgument, match=r"scale2\[0, 0\] is"):
        fresh.load_state_dict(state)


def test_layers_of_the_same_input_become_one():
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(256, n) for n in (32, 16, 16))

        def forward(self, x):
            return self.q_proj(x), self.k_proj(x), self.v_proj(x)

    model, x = Block(), torch.randn(3, 256)
    ladder.convert(model, "q4_k")
    wanted = model(x)
    report = ladder.optimize(model, 3, example=x)
    assert report.merged
    assert all(torch.equal(one, other) for one, other in zip(model(x), wanted, strict=True))


@pytest.mark.parametrize(("element", "zero", "limit"), [
    ("nf4", "none", 1.01), ("int4", "none", 1.01), ("uint4", "integer", 1.01),
    ("uint3", "quantized", 1.01), ("float4_e2m1", "none", 1.01), ("int4,scale=int8", "none", 1.005),
])  # fmt: skip
def test_rounded_scales_cost_little(element, zero, limit):
    """Of elements whose two levels are not searched together."""
    torch.manual_seed(0)
    source = torch.randn(64, 1024)
    name, _, scale = element.partition(",")
    fields = f"{name},group=32,zero={zero}"
    packed = ladder.quantize(source, f"{fields},{scale or 'scale=int6'},scale2=float16:256")
    packed.check()
    plain = ladder.quantize(source, f"{fields},scale=float32")
    one, other = ((each.dequantize() - source).norm() for each in (packed, plain))
    assert one < limit * other
