# SPDX-License-Identifier: Apache-2.0
"""Every refusal names what is wrong and has both values."""

import re

import pytest
import torch
from torch import nn

import ladder
from ladder import InvalidArgument, ops

TYPE = "uint4,group=32,scale=float16,zero=integer"


def refused(message: str):
    """``message`` is a pattern for what the refusal says, more than the name of an argument: a name
    alone is in the message of another mistake too."""
    assert " " in message, f"{message!r} would match any refusal that names it"
    return pytest.raises(InvalidArgument, match=message)


@pytest.fixture
def layer():
    return ladder.Linear.from_linear(nn.Linear(64, 16), TYPE)


def test_errors_are_also_the_built_in_ones():
    assert issubclass(InvalidArgument, ValueError)
    assert issubclass(ladder.Unsupported, NotImplementedError)
    assert issubclass(ladder.CheckpointError, ValueError)


def test_x_with_the_wrong_last_dimension(layer):
    with refused("x has 65 columns; the weight has 64"):
        layer(torch.randn(2, 65))


def test_x_with_the_wrong_last_dimension_that_has_as_many_words():
    layer = ladder.Linear.from_linear(nn.Linear(63, 16), TYPE)
    for call in (layer, layer.packed_weight.linear):
        with refused("x has 64 columns; the weight has 63"):
            call(torch.randn(2, 64))


def test_x_of_a_dtype_that_is_no_activation(layer):
    """By torch's name, but of those that have bits alone; and quantised ones torch refuses."""
    every = {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
    for dtype in every - {*ops.ACTIVATION_DTYPES}:
        name = str(dtype).removeprefix("torch.")
        if name.startswith("q"):
            continue
        if re.match("bits|u?int[1-7]$|float8_e8m0|float4|bcomplex32", name):
            name = "unknown to ladder"
        with refused(f"^x has dtype {name}, not float32, float16 or bfloat16$"):
            layer.packed_weight.linear(torch.empty(2, 64, dtype=dtype))


def test_x_without_a_dimension(layer):
    with refused("x has no dimension"):
        layer(torch.tensor(1.0))


def test_x_on_another_device(layer):
    with refused("^x is on meta, qweight on cpu$"):
        layer(torch.randn(2, 64, device="meta"))


def test_bias_of_the_wrong_length_or_dtype(layer):
    w, x = layer.packed_weight, torch.randn(2, 64)
    with refused("bias has 15 numbers, not 16"):
        w.linear(x, torch.zeros(15))
    with refused("^bias has dtype float16, not float32$"):
        w.linear(x, torch.zeros(16, dtype=torch.float16))
    with refused(r"bias has shape \[15\], not \[16\]"):
        ladder.Linear.from_weight(w, torch.zeros(15))


@pytest.mark.parametrize(("part", "dtype"), [("scales", "float16"), ("zeros", "uint8")])
def test_a_part_that_is_missing_or_misshapen_or_not_wanted(layer, part, dtype):
    w, x = layer.packed_weight, torch.randn(2, 64)
    parts = {"scales": w.scales, "zeros": w.zeros}
    narrow = parts[part][:, :1]
    with refused(f'^{part} is missing, but type "{TYPE}" needs it$'):
        ops.linear(x, w.qweight, TYPE, **{**parts, part: None})
    with refused(rf"^{part} of shape \[16, 1\] is not contiguous$"):
        ops.linear(x, w.qweight, TYPE, **{**parts, part: narrow})
    with refused(rf"^{part} has shape \[16, 1\], not \[16, 2\]"):
        ops.linear(x, w.qweight, TYPE, **{**parts, part: narrow.contiguous()})
    with refused(f"^{part} has dtype float32, not {dtype}$"):
        ops.linear(x, w.qweight, TYPE, **{**parts, part: parts[part].float()})
    with refused(f"weight.{part} is missing, but type"):
        ladder.Weight(w.type, w.shape, w.qweight, **{**parts, part: None}).check()
    with refused(rf"weight.{part} has shape \[16, 1\], not \[16, 2\]"):
        ladder.Weight(w.type, w.shape, w.qweight, **{**parts, part: parts[part][:, :1]}).check()


def test_a_part_that_the_type_does_not_have(layer):
    w = layer.packed_weight
    plain = ladder.ttype("uint4")
    with refused('weight.scales is given, but type "uint4" has none'):
        ladder.Weight(plain, w.shape, w.qweight, scales=w.scales).check()


def test_scales_that_are_not_finite(layer):
    w = layer.packed_weight
    w.scales[3, 1] = float("nan")
    with refused(r"weight.scales\[3, 1\] is nan, not finite"):
        w.check()
    mx = ladder.quantize(torch.randn(4, 64), "mxfp4")
    mx.scales[1, 0] = 255
    with refused(r"scales\[1, 0\] is nan"):
        mx.check()


def test_g_idx_out_of_range_or_of_the_wrong_length(layer):
    w, x = layer.packed_weight, torch.randn(2, 64)
    for group in (-1, 2):
        g_idx = torch.zeros(64, dtype=torch.int32)
        g_idx[5] = group
        with refused(rf"^g_idx\[5\] is {group}, not one of 2 groups$"):
            ops.linear(x, w.qweight, TYPE, scales=w.scales, zeros=w.zeros, g_idx=g_idx)
        with refused("there are 2 groups"):
            ladder.Weight(w.type, w.shape, w.qweight, w.scales, w.zeros, g_idx=g_idx).check()
    with refused("^g_idx has 63 entries, not one for each of 64 columns$"):
        short = torch.zeros(63, dtype=torch.int32)
        ops.linear(x, w.qweight, TYPE, scales=w.scales, zeros=w.zeros, g_idx=short)


def test_codes_that_do_not_fit():
    codes = torch.tensor([[0, 1], [2, 16]], dtype=torch.uint8)
    with refused("code 16 at row 1, column 1 does not fit 4 bits"):
        ops.pack(codes, 4)
    with refused("bits is 9"):
        ops.pack(codes, 9)
    with refused("^codes has dtype int32, not uint8$"):
        ops.pack(codes.int(), 4)
    with refused("qweight has 1 words a row; 9 columns of 4 bits need 2"):
        ops.unpack(torch.zeros(1, 1, dtype=torch.int32), 9, 4)


def test_weights_that_cannot_be_quantised():
    weight = torch.ones(4, 32)
    weight[2, 7] = float("inf")
    with refused("row 2, column 7 is inf"):
        ladder.quantize(weight, "uint4")
    with refused("weight has 1 dimensions, not 2"):
        ladder.quantize(torch.ones(8), "uint4")
    with refused('method is "best", not one of nearest, search'):
        ladder.quantize(torch.ones(4, 32), "uint4", method="best")
    with refused("nothing to quantise"):
        ladder.quantize(torch.ones(0, 32), "uint4")
    with refused("has groups of 4, fewer than 8"):
        ladder.quantize(torch.ones(4, 32), "uint4", group_size=4)
    with refused('unknown type "uint44"; the nearest known names are uint4'):
        ladder.quantize(torch.ones(4, 32), "uint44")
    with refused("weights of 16 bits take none"):
        ladder.quantize(torch.ones(4, 32), "float16,group=32,scale=float32")


def test_weights_beyond_the_reach_of_float16_scales_are_not_cut_off():
    """8 is the largest magnitude of a code of uint4 less its midpoint: 8 * 65504 is the limit."""
    weight = torch.zeros(4, 32)
    weight[2, 7] = -8.0 * 65472  # whose scale float16 holds, one below its largest
    assert ladder.quantize(weight, "uint4").dequantize()[2, 7] == weight[2, 7]
    weight[2, 7] = -8.0 * 66000
    with refused(r"^weight has magnitudes up to 5.28e\+05, for which scales of float16 in type"):
        ladder.quantize(weight, "uint4")
    wide = ladder.quantize(weight, "uint4", scale_dtype=torch.float32, method="nearest")
    assert wide.dequantize()[2, 7] == weight[2, 7]


@pytest.mark.parametrize("span", [(0, 17), (-1, 2), (16, 1), (3, 0), (5, -2)])
def test_rows_and_columns_that_are_not_there_are_no_part_of_a_weight(layer, span):
    start, length = span
    ends = f"{start} to {start + length} are no part of"
    with refused(f"^rows {ends} 16$"):
        layer.packed_weight.narrow_rows(start, length)
    with refused("^columns .* are no part of 64$"):
        layer.packed_weight.narrow_columns(32 * start, 32 * length)  # whole groups


@pytest.mark.parametrize("name", [4, None, torch.int8])
def test_a_type_that_is_no_text(name):
    with refused(f'^type is {name!r}, not a spelling such as "uint4"$'):
        ladder.Linear(64, 16, weight_type=name)


def test_codes_that_are_no_matrix():
    with refused(r"^codes have shape \[64\], not \[N, K\]$"):
        ladder.Weight.from_codes(torch.zeros(64, dtype=torch.uint8), "uint4")


def test_modules_that_do_not_fit(layer):
    with refused("in_features is 0 and out_features 4, not both positive"):
        ladder.Linear(0, 4)
    with refused(r"weight is \[4, 32\] of type .*, not \[16, 64\]"):
        layer.set_weight(ladder.quantize(torch.randn(4, 32), TYPE))


def test_a_model_that_cannot_be_converted_names_the_module():
    model = nn.Sequential(nn.Linear(32, 8), nn.Linear(8, 8))
    with torch.no_grad():
        model[1].weight[1, 2] = float("nan")
    with refused("^1: weight at row 1, column 2 is -?nan"):
        ladder.convert(model, "uint4")
    with refused("model is a linear layer itself: use ladder.Linear.from_linear"):
        ladder.convert(nn.Linear(8, 8), "uint4", skip=())


def test_names_to_skip_that_name_no_module_are_refused_before_anything_is_replaced():
    model = nn.Sequential(nn.Linear(32, 8))
    with refused('^skip has "head", which names no module of the model, such as 0$'):
        ladder.convert(model, "uint4", skip=["0", "head"])
    ladder.convert(model, "uint4", skip=["0", "lm_head"])
    assert type(model[0]) is nn.Linear


@pytest.mark.parametrize("m", ["8", [8, "8"], [2.5]])
def test_tokens_to_warm_up_for_that_are_no_numbers(layer, m):
    with refused("^m has ('8'|2.5), not a positive integer"):
        ladder.warmup(layer, m=m)


def test_weights_that_are_no_floats_are_refused_with_their_dtype():
    with refused("^weight has dtype int32, not a floating-point one"):
        ladder.quantize(torch.ones(4, 32, dtype=torch.int32), "uint4")
    with refused("^weight has dtype bool"):
        ladder.quantize(torch.ones(4, 32, dtype=torch.bool), "float16")


def test_a_bias_that_does_not_fit_is_refused_under_transforms_too(layer):
    w, x = layer.packed_weight, torch.randn(2, 64)

    def call(bias):
        return torch.func.vmap(
            lambda row: ops.linear(
                row, w.qweight, str(w.type), scales=w.scales, zeros=w.zeros, bias=bias
            )
        )(x)

    with refused(r"^bias has shape \[15\], not \[16\]"):
        call(torch.zeros(15))
    with refused("^bias has dtype float16, not float32"):
        call(torch.zeros(16, dtype=torch.float16))
    assert call(torch.zeros(16)).shape == (2, 16)
