# SPDX-License-Identifier: Apache-2.0
import logging
import math
import re

import pytest
import torch
from drawn import KINDS, TWO_LEVELS, exact_weight, formula, grouped, whole

import ladder
from ladder.types import parse, type_names
from ladder.weight import join, join_objection


@pytest.fixture
def weight():
    return torch.randn(24, 96, generator=torch.Generator().manual_seed(3)) * 0.05


def wide(weight, type):
    """``weight``, as often as makes whole superblocks of ``type``."""
    k = whole(grouped(type), weight.shape[1])
    return weight.repeat(1, -(-k // weight.shape[1]))[:, :k]


@pytest.mark.parametrize("name", type_names())
def test_every_type_quantises_and_search_is_not_worse_than_nearest(name, weight):
    errors, weight = {}, wide(weight, name)
    for method in ("nearest", "search"):
        packed = ladder.quantize(weight, grouped(name), method=method)
        packed.check()
        errors[method] = (packed.dequantize().double() - weight.double()).square().sum().item()
    assert errors["search"] <= errors["nearest"] * (1 + 1e-5)
    assert errors["search"] < weight.double().square().sum().item()


@pytest.mark.parametrize("type", [kind for kind in KINDS if kind != "uint4"])
def test_the_parts_mean_what_the_formula_says(type, weight):
    packed = ladder.quantize(wide(weight, type), type)
    values = packed.dequantize().double()
    # Three roundings to float32, relative to a product and a zero of about its size.
    assert torch.allclose(values, formula(packed), rtol=2**-21, atol=2**-24)


@pytest.mark.parametrize("type", KINDS)
@pytest.mark.parametrize("act_order", [False, True])
def test_exact_weights_dequantise_exactly(type, act_order):
    packed = exact_weight(type, 16, 70, act_order=act_order)
    assert torch.equal(packed.dequantize().double(), formula(packed))


def test_quantising_representable_weights_again_changes_nothing(weight):
    for type in (
        "int4,group=32,scale=float32",
        "mxfp8_e4m3",
        "uint4,group=32,scale=float16,zero=integer",
    ):
        once = ladder.quantize(weight, type, method="nearest").dequantize()
        twice = ladder.quantize(once, type, method="nearest").dequantize()
        # The codes stay; a float16 scale is rounded again, by 2^-10 of itself at most twice.
        torch.testing.assert_close(once, twice, rtol=2 * 2**-10, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_float_dtype_and_stride_is_accepted(dtype, weight):
    cast = weight.to(dtype)
    wanted = ladder.quantize(cast.float(), "uint4", group_size=32)
    for view in (cast, cast.t().contiguous().t(), torch.cat((cast, cast), 1)[:, :96]):
        packed = ladder.quantize(view, "uint4", group_size=32)
        assert torch.equal(packed.qweight, wanted.qweight)
        assert torch.equal(packed.scales, wanted.scales)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("k", [7, 8])
def test_wide_types_are_casts(name, k):
    values = torch.randn(3, k)
    packed = ladder.quantize(values, name)
    assert torch.equal(packed.dequantize(), values.to(getattr(torch, name)).float())


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("number", [math.nan, -math.inf])
def test_wide_types_refuse_what_is_not_finite(name, number):
    values = torch.ones(3, 8)
    values[1, 5] = number
    with pytest.raises(ladder.InvalidArgument, match=f"row 1, column 5 is {number}, not finite$"):
        ladder.quantize(values, name)


def test_wide_types_refuse_weights_beyond_them_and_those_of_which_nothing_is_left():
    values = torch.ones(3, 8)
    values[1, 5] = 65520  # the least number that float16 rounds to infinity
    assert ladder.quantize(values, "bfloat16").dequantize()[1, 5] == 65536
    with pytest.raises(ladder.InvalidArgument, match="column 5 is 6.55e.04, beyond float16, which"):
        ladder.quantize(values, "float16")
    with pytest.raises(ladder.InvalidArgument, match="up to 1e-08, all of which are zero in float"):
        ladder.quantize(torch.full((3, 8), 1e-8), "float16")


@pytest.mark.parametrize("zero", ["none", "integer", "original", "rescale"])
@pytest.mark.parametrize("scale", ["bfloat16", "float32", "float32,scale2=float32"])
def test_weights_at_the_ends_of_float32_are_right_or_refused(scale, zero, weight):
    """They were NaN, or zeros, in silence."""
    element = "uint5" if zero == "integer" else "int5"
    kind = f"{element},group=32,scale={scale},zero={zero}"

    def error(size):
        of_size = weight / weight.abs().max() * size
        return (ladder.quantize(of_size, kind).dequantize() - of_size).abs().max() / size

    assert error(2.0**100) < 1 / 16 and error(2.0**-90) < 1 / 16
    with pytest.raises(ladder.InvalidArgument, match="up to 1.4e-45, too small for type"):
        error(2.0**-149)
    if zero == "none":
        assert error(2.0**127) < 1 / 16
    else:
        with pytest.raises(ladder.InvalidArgument, match=r"up to 1.7e\+38, too large for type"):
            error(2.0**127)


@pytest.mark.parametrize("type", ["int8,tensor", "int4,channel", "uint4,group=32,zero=integer"])
def test_types_without_scales_round_weights_within_their_values_and_refuse_others(type):
    """A scale was forgotten, as a rule: weights below a half were zero and large ones cut off."""
    fits = torch.arange(64.0).view(2, 32) % 8
    assert torch.equal(ladder.quantize(fits + 0.25, type).dequantize(), fits)
    for weight, why in ((fits / 100, "too small: all would be zero"), (fits * 40, "beyond its")):
        with pytest.raises(ladder.InvalidArgument, match=why + ".*name scales"):
            ladder.quantize(weight, type)


@pytest.mark.parametrize("zero", ["integer", "quantized"])
def test_types_without_scales_choose_zero_points(zero):
    """The least weight of a block is its least value; 0 is always among them."""
    weight = torch.arange(128.0).view(2, 64) % 16
    moved = weight - torch.tensor([[0.0], [7.0]])
    moved[0, 32:] += 100
    moved[1, 32:] -= 8
    packed = ladder.quantize(moved, f"uint7,group=32,zero={zero}")
    assert torch.equal(packed.dequantize(), moved)
    narrow = ladder.quantize(moved[1:] + 0.25, f"uint4,group=32,zero={zero}")
    assert torch.equal(narrow.dequantize(), moved[1:])
    why = "row 0, column 32 is 100, beyond its values .* of which 15 is the nearest"
    with pytest.raises(ladder.InvalidArgument, match=why):
        ladder.quantize(moved[:1], f"uint4,group=32,zero={zero}")
    tied = torch.tensor([[-1.5, 0.0, 14.0, 3.0], [-2.5, 0.0, 13.0, 3.0]]).repeat(1, 2)
    held = ladder.quantize(tied, f"uint4,group=8,zero={zero}").dequantize()
    assert (held - tied).abs().max() == 0.5 and torch.equal(held[:, 1:4], tied[:, 1:4])


@pytest.mark.parametrize(
    "type",
    [
        "uint4,group=32,scale=float16,zero=quantized",
        "uint8,group=16,scale=float16",
        "mxfp4",
        "uint3,group=32,scale=float16,zero=integer",
    ],
)
def test_slicing_a_packed_weight_slices_its_values(type):
    packed = ladder.quantize(torch.randn(12, 128), type)
    values = packed.dequantize()
    assert torch.equal(packed.narrow_rows(4, 5).dequantize(), values[4:9])
    for part in (packed.narrow_columns(0, 64), packed.narrow_columns(64, 64)):
        part.check()
    assert torch.equal(packed.narrow_columns(64, 64).dequantize(), values[:, 64:])
    assert torch.equal(packed.narrow_columns(32, 96).dequantize(), values[:, 32:])


@pytest.mark.parametrize("type", KINDS)
def test_a_weight_of_single_rows_has_the_same_values(type, weight):
    packed = ladder.quantize(wide(weight, type), type)
    single = packed.of_single_rows()
    single.check()
    assert single.type.rows == 1 and torch.equal(single.dequantize(), packed.dequantize())


def test_slices_that_cut_a_block_are_refused():
    packed = ladder.quantize(torch.randn(12, 128), "uint3,block=4x32,scale=float16,zero=integer")
    with pytest.raises(ladder.InvalidArgument, match="rows 2 to 6 cut blocks of 4 rows"):
        packed.narrow_rows(2, 4)
    with pytest.raises(ladder.InvalidArgument, match="columns 16 to 48 cut groups of 32 columns"):
        packed.narrow_columns(16, 32)
    ordered = exact_weight("uint4,group=32,scale=float16,zero=midpoint", 4, 64, act_order=True)
    with pytest.raises(ladder.InvalidArgument, match="g_idx"):
        ordered.narrow_columns(0, 32)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("k", [1, 31, 33, 64])
def test_packing_is_undone_by_unpacking(bits, k):
    codes = torch.randint(0, 1 << bits, (5, k), dtype=torch.uint8)
    packed = ladder.ops.pack(codes, bits)
    assert packed.shape == (5, parse(f"uint{bits}").words(k))
    assert torch.equal(ladder.ops.unpack(packed, k, bits), codes)


#: Types with scales of float16, whose least number is 2^-24, and every kind of zero point.
OF_FLOAT16 = [kind for kind in KINDS if parse(kind).scale == "float16"]


@pytest.mark.parametrize("type", OF_FLOAT16)
@pytest.mark.parametrize("method", ["nearest", "search"])
def test_weights_of_which_nothing_would_be_left_are_refused(type, method, weight):
    """The largest of them lies a thousand times below half of the least scale."""
    tiny = weight * (2**-25 / weight.abs().max() / 1000)
    with pytest.raises(
        ladder.InvalidArgument, match=r"^weight has magnitudes up to 2.98e-11, "
    ) as no:
        ladder.quantize(tiny, type, method=method)
    assert "5.96e-08 or more, are too large: they become zero" in str(no.value)
    wide = ladder.quantize(tiny, type.replace("float16", "float32"), method=method)
    assert wide.dequantize().any()


@pytest.mark.parametrize("type", [type for type in OF_FLOAT16 if parse(type).rows])
def test_small_blocks_of_a_weight_become_zero_with_a_warning(type, weight, caplog):
    weight = weight.clone()
    weight[:8] = 1e-12  # whole blocks of rows, where there are such
    weight[0, 0] = 0
    with caplog.at_level(logging.WARNING, logger="ladder"):
        packed = ladder.quantize(weight, type)
    assert not packed.dequantize()[:8].any() and packed.dequantize()[8:].any()
    (record,) = caplog.records
    assert record.message.startswith(
        f"{8 * 96 - 1} of {24 * 96} numbers of a weight [24, 96] have magnitudes up to 1e-12, "
    )


@pytest.mark.parametrize("name", type_names())
def test_zeros_are_no_small_weights(name, weight, caplog):
    weight = wide(weight, name).clone()
    weight[:8] = 0
    with caplog.at_level(logging.WARNING, logger="ladder"):
        ladder.quantize(weight, grouped(name))
        ladder.quantize(torch.zeros(4, whole(grouped(name), 64)), grouped(name))
    assert not caplog.records


def test_the_module_of_small_blocks_is_named(caplog):
    model = torch.nn.ModuleDict({"fc": torch.nn.Linear(64, 32)})
    model["fc"].weight.data[:2] = 1e-12
    with caplog.at_level(logging.WARNING, logger="ladder"):
        ladder.convert(model, "uint4")
        stacks = (torch.full((2, 64, 64), 1e-12), torch.randn(2, 64, 32))
        stacks[0][:, 1:] = 1
        ladder.Experts.from_tensors(*stacks, weight_type="uint4")
    fc, *experts = (record.message.partition(" numbers of")[0] for record in caplog.records)
    assert fc == "fc: 128 of 2048"
    assert experts == [f"gate_up_proj[{expert}]: 64 of 4096" for expert in (0, 1)]


def test_the_module_of_a_weight_that_is_too_small_is_named():
    model = torch.nn.Sequential(torch.nn.Linear(64, 32))
    model[0].weight.data.fill_(1e-12)
    with pytest.raises(ladder.InvalidArgument, match="^0: weight has magnitudes up to 1e-12, for"):
        ladder.convert(model)


def test_blocks_whose_sign_a_format_lacks_are_said_to_be_so(caplog):
    """Not that scales of float16 are too large for them, which others would not mend."""
    ladder.register_type("one_signed", bits=2, values=[1, 2, 3, 4])
    weight = torch.tensor([[2.0, 4.0], [-2.0, -4.0]])
    why = 'no scale of type "one_signed,.*" is better than zero: its values go from 1 to 4'
    packed = ladder.quantize(weight, "one_signed", group_size=-1)
    assert torch.equal(packed.dequantize(), torch.tensor([[2.0, 4.0], [0.0, 0.0]]))
    assert re.search(r"2 of 4 numbers .* up to 4, for which " + why, caplog.text)
    with pytest.raises(ladder.InvalidArgument, match=why):
        ladder.quantize(weight[1:], "one_signed", group_size=-1)


def test_a_float64_beyond_float32_is_named_as_it_is():
    weight = torch.ones(2, 32, dtype=torch.float64)
    weight[1, 5] = -1e300
    with pytest.raises(
        ladder.InvalidArgument, match=r"row 1, column 5 is -1e\+300, beyond float32"
    ):
        ladder.quantize(weight, "uint4", group_size=32)


@pytest.mark.parametrize("scale", ["float8_e4m3", "float8_e5m2"])
def test_weights_beyond_scales_of_8_bits_are_refused_and_a_second_scale_serves_them(scale, weight):
    """Of int4 in groups of 32: scales were cut off, or nothing was left, in silence."""
    most = weight.abs().max()
    for size, why in ((1e-8, "too large: they become zero"), (1e8, "do not suffice")):
        type = f"int4,group=32,scale={scale}"
        with pytest.raises(ladder.InvalidArgument, match=why) as no:
            ladder.quantize(weight * (size / most), type)
        assert f"magnitudes up to {size:.3g}, for which scales of {scale} in" in str(no.value)
        assert str(no.value).endswith("scales of bfloat16 or float32 do, or a second scale")
        values = ladder.quantize(weight * (size / most), type + ",scale2=float32").dequantize()
        assert (values * (most / size) - weight).abs().max() <= most / 4


def _error(packed, weight):
    return ((packed.dequantize() - weight).square().sum() / weight.square().sum()).sqrt().item()


@pytest.mark.parametrize("method", ["nearest", "search"])
@pytest.mark.parametrize("bits", [4, 6, 8])
def test_integer_scales_cost_little_precision(bits, method):
    weight = torch.randn(64, 4096, generator=torch.Generator().manual_seed(0))
    limit = {4: 1.02, 6: 1.002, 8: 1.0002}[bits]
    for zero in ("midpoint", "integer"):
        plain = f"uint4,group=128,scale=float16,zero={zero}"
        type = f"uint4,group=128,scale=uint{bits},zero={zero},scale2=float32:channel"
        packed, of_floats = (ladder.quantize(weight, t, method=method) for t in (type, plain))
        packed.check()
        assert _error(packed, weight) < limit * _error(of_floats, weight)


def test_rows_of_any_size_have_second_scales_of_their_own(weight):
    sizes = torch.exp2(torch.arange(-60.0, 60.0, 120 / len(weight)).round())[:, None]
    packed, apart = (ladder.quantize(each, TWO_LEVELS) for each in (weight, weight * sizes))
    assert tuple(packed.scale2.shape) == (len(weight),)
    assert torch.equal(apart.qweight, packed.qweight) and torch.equal(apart.scales, packed.scales)
    assert torch.equal(apart.scale2, packed.scale2 * sizes[:, 0])
    of_tensor = ladder.quantize(weight * sizes, TWO_LEVELS.replace(":channel", ""))
    assert not of_tensor.dequantize()[0].any()


def test_blocks_too_small_for_an_integer_scale_become_zero_with_a_warning(weight, caplog):
    weight = weight.clone()
    weight[3, :32] *= 1e-6
    with caplog.at_level(logging.WARNING, logger="ladder"):
        packed = ladder.quantize(weight, TWO_LEVELS)
    assert not packed.dequantize()[3, :32].any()
    (said,) = (record.getMessage() for record in caplog.records)
    least = packed.scale2[3].item()
    assert said.startswith(f"32 of {weight.numel()} numbers of a weight")
    assert f'scales of uint4 in type "{packed.type}", {least:.3g} or more, are too large' in said


@pytest.mark.parametrize("type", [TWO_LEVELS, "int4,channel,scale=float16,scale2=float32:channel"])
def test_weights_of_unlike_second_scales_are_joined(type):
    dense = [torch.randn(n, 256) * 2.0**n for n in (8, 3, 5)]
    weights = [ladder.quantize(each, type) for each in dense]
    rows, tensors = [each.shape[0] for each in weights], [each.tensors() for each in weights]
    assert join_objection(weights[0].type, rows, tensors) == ""
    whole = join(weights)
    whole.check()
    assert torch.equal(whole.scale2, torch.cat([each.scale2 for each in weights]))
    wanted = torch.cat([each.dequantize() for each in weights])
    assert torch.equal(whole.dequantize(), wanted)
    assert whole.narrow_rows(8, 3) == weights[1] and whole.narrow_rows(11, 5) == weights[2]
    left, right = whole.narrow_columns(0, 128), whole.narrow_columns(128, 128)
    assert torch.equal(torch.cat((left.dequantize(), right.dequantize()), 1), wanted)


def test_blocks_of_one_sign_that_a_type_of_the_other_leaves_nothing_of_are_told(weight, caplog):
    type = "uint3,group=32,scale=uint4,scale2=float32:channel"
    with pytest.raises(ladder.InvalidArgument, match="no scale of type .* is better than zero"):
        ladder.quantize(-weight.abs(), type)
    weight = weight.abs()
    weight[3, :32] *= -1
    with caplog.at_level(logging.WARNING, logger="ladder"):
        packed = ladder.quantize(weight, type)
    assert not packed.dequantize()[3, :32].any()
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith(f"32 of {weight.numel()} numbers") and "is better than zero" in said


def test_codes_that_no_scale_has_are_refused_with_their_place():
    packed = ladder.quantize(torch.randn(4, 64), TWO_LEVELS)
    packed.scales[2, 1] = 16
    with pytest.raises(ladder.InvalidArgument, match=r"scales\[2, 1\] is 16, .* not fit uint4"):
        packed.check()
    packed.scales[2, 1] = 15
    parts = packed.tensors() | {"scale2": torch.ones(1)}
    with pytest.raises(ladder.InvalidArgument, match=r"scale2 has shape \[1\], not \[4\]"):
        ladder.Weight(packed.type, packed.shape, **parts).check()


@pytest.mark.parametrize("zero", ["none", "midpoint", "integer"])
def test_the_largest_scale_of_8_bits_may_be_taken(zero):
    """What e4m3 rounds to 448 is no reason to refuse: neither 440 nor 460."""
    codes = torch.tensor([[-7.0, 7.0] * 16])
    element = "int4" if zero == "none" else "uint4"
    for scale in (440, 448, 460):
        spread = 15 / 14 if zero == "integer" else 1
        packed = ladder.quantize(
            codes * scale * spread, f"{element},channel,scale=float8_e4m3,zero={zero}"
        )
        assert (packed.dequantize() / (codes * scale * spread) - 1).abs().max() < 0.1
    with pytest.raises(ladder.InvalidArgument, match="scales of float8_e4m3 .* do not suffice"):
        ladder.quantize(codes * 600, f"{element},channel,scale=float8_e4m3,zero={zero}")


def test_small_blocks_under_scales_of_8_bits_become_zero_with_a_warning(weight, caplog):
    weight = weight / weight.abs().max()
    weight[:8] = 1e-6
    with caplog.at_level(logging.WARNING, logger="ladder"):
        packed = ladder.quantize(weight, "int4,channel,scale=float8_e4m3")
    assert not packed.dequantize()[:8].any() and packed.dequantize()[8:].any()
    assert re.search(r"768 of 2304 .* up to 1e-06, for which scales of float8_e4m3", caplog.text)
