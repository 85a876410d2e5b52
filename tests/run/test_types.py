# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from drawn import TWO_LEVELS

import ladder
from ladder.types import (
    USER_SOURCE,
    element,
    float_type,
    parse,
    register_type,
    type_names,
    with_defaults,
)

NARROW = [name for name in type_names() if parse(name).element.name == name]


@pytest.mark.parametrize(
    ("name", "dtype", "bits"),
    [("float16", torch.float16, torch.int16), ("bfloat16", torch.bfloat16, torch.int16)],
)
def test_16_bit_floats_are_those_of_the_hardware(name, dtype, bits):
    """Every code decodes, and float32 numbers round, as torch converts them."""
    codes = torch.arange(1 << 16, dtype=torch.int32)
    hardware = codes.to(bits).view(dtype).double()
    assert torch.equal(element(name).values.nan_to_num(nan=12345), hardware.nan_to_num(nan=12345))
    rng = torch.Generator().manual_seed(0)
    exponents = torch.rand(2000, generator=rng) * 50 - 30
    numbers = torch.exp2(exponents) * torch.randn(2000, generator=rng)
    middles = (hardware[100:2000:7].float() + hardware[101:2001:7].float()) / 2
    for number in torch.cat((numbers, middles, torch.tensor([0.0, -0.0, 65520, 1e39]))).tolist():
        number = float(torch.tensor(number, dtype=torch.float32))
        wanted = torch.tensor(number, dtype=torch.float32).to(dtype).view(bits).item() & 0xFFFF
        assert element(name).encode(number, saturate=False) == wanted, number


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("float8_e4m3", torch.float8_e4m3fn),
        ("float8_e5m2", torch.float8_e5m2),
        ("float8_e4m3fnuz", torch.float8_e4m3fnuz),
        ("float8_e5m2fnuz", torch.float8_e5m2fnuz),
        ("e8m0", torch.float8_e8m0fnu),
    ],
)
def test_8_bit_floats_decode_as_those_of_torch(name, dtype):
    theirs = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype).float().double()
    ours = element(name).values
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())


@pytest.mark.parametrize("name", NARROW)
def test_the_table_and_encode_agree_for_every_code(name):
    row = element(name)
    values = row.values
    assert values.shape == (1 << row.bits,) and values.dtype == torch.float64
    for value in values[values.isfinite()].tolist():
        assert values[row.encode(value)] == value


@pytest.mark.parametrize("name", NARROW)
def test_encoding_a_tensor_is_encoding_its_numbers(name):
    row = element(name)
    numbers = torch.linspace(-20, 20, 161).view(7, 23)
    codes = ladder.ops.encode(numbers, name)
    assert codes.shape == numbers.shape and codes.dtype == torch.uint8
    one_by_one = [row.encode(number) for number in numbers.flatten().tolist()]
    assert row.values[codes.long()].flatten().tolist() == row.values[one_by_one].tolist()


def test_every_type_is_listed_once_and_spells_itself():
    assert len(set(type_names())) == len(type_names())
    assert {"uint1", "int1", "nf4", "float6_e3m2", "mxfp4", "nvfp4", "ternary"} <= set(type_names())
    for name in type_names():
        assert str(parse(name)) == name
        assert parse(parse(name)) is parse(name)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("fp8", "float8_e4m3,group=128,scale=float16"),
        ("E4M3", "float8_e4m3,group=128,scale=float16"),
        ("e5m2", "float8_e5m2,group=128,scale=float16"),
        ("fp6", "float6_e3m2,group=128,scale=float16"),
        ("e2m1", "float4_e2m1,group=128,scale=float16"),
        ("INT4", "int4,group=128,scale=float16"),
        ("NF4", "nf4,group=128,scale=float16"),
        ("fp4", "fp4,group=128,scale=float16"),
        ("MXFP4", "mxfp4"),
        ("mxfp8", "mxfp8_e4m3"),
        ("mxfp6", "mxfp6_e3m2"),
        ("NVFP4", "nvfp4"),
        ("BF16", "bfloat16"),
    ],
)
def test_names_that_people_type_mean_what_they_mean(typed, meant):
    assert str(with_defaults(typed)) == meant
    assert str(ladder.Linear(256, 8, weight_type=typed).weight_type) == meant


def test_a_width_that_means_two_formats_is_refused():
    """bitsandbytes' table is fp4 here, OCP's format e2m1."""
    assert element("fp4").encoding == "table" and element("e2m1").encoding == "floating"
    with pytest.raises(ladder.InvalidArgument, match='unknown type "float4"'):
        parse("float4")


def test_built_in_names_are_found_in_capitals():
    names = [n for n in type_names() if parse(n).element.source != USER_SOURCE]
    assert len(names) > 50
    for name in names:
        assert parse(name.upper()) == parse(name)


def test_a_users_type_differs_from_built_in_ones_by_more_than_case():
    with pytest.raises(ladder.InvalidArgument, match="NF4 already means something else"):
        register_type("NF4", bits=1, values=[0, 1])
    register_type("PyCase", bits=1, values=[0, 1])
    with pytest.raises(ladder.InvalidArgument, match="unknown type"):
        parse("pycase")


def test_exact_conversions_are_derived_from_the_values():
    assert element("float8_e5m2").converts_exactly("float16")
    assert not element("uint8").converts_exactly("float8_e4m3")
    assert element("int4").exact_targets[0] == "int4"
    assert element("e4m3_float8").name == "float8_e4m3"


def test_a_registered_type_works_wherever_a_built_in_one_does():
    values = [-2.5, -1, -0.25, 0, 0.25, 1, 2, 7]
    register_type("py_eighths", bits=3, values=values)
    assert "py_eighths" in type_names()
    assert element("py_eighths").values.tolist() == values
    weight = torch.tensor(values * 4).repeat(2, 1)
    packed = ladder.quantize(weight, "py_eighths,group=32,scale=float16", method="nearest")
    assert torch.equal(packed.dequantize(), weight)
    assert register_type("py_eighths", bits=3, values=values).name == "py_eighths"
    with pytest.raises(ladder.InvalidArgument, match="already means something else"):
        register_type("py_eighths", bits=3, values=values[::-1])


def test_a_float_type_is_named_after_its_widths():
    row = float_type(exponent=3, mantissa=3, specials="none")
    assert (row.name, row.bits, row.bias) == ("float7_e3m3", 7, 3)
    biased = float_type("py_e3m1_b7", exponent=3, mantissa=1, bias=7, specials="ieee")
    assert biased.values[0b01110] == math.inf and biased.encode(math.inf, saturate=False) == 14
    with pytest.raises(ladder.InvalidArgument, match='specials is "all"'):
        float_type("py_bad", exponent=3, mantissa=1, specials="all")


def test_defaults_complete_an_element_name_and_leave_a_spelling_alone():
    assert (
        str(with_defaults("uint4", group_size=128)) == "uint4,group=128,scale=float16,zero=midpoint"
    )
    assert str(with_defaults("uint4", symmetric=False)) == (
        "uint4,group=128,scale=float16,zero=integer"
    )
    assert str(with_defaults("int8", group_size=-1)) == "int8,scale=float16"
    assert str(with_defaults("int8")) == "int8,group=128,scale=float16"
    assert str(with_defaults("int8,scale=float32")) == "int8,scale=float32"
    assert str(with_defaults("float16")) == "float16"
    assert str(with_defaults("int8,channel")) == "int8"  # no group of 128: the block is said
    assert str(with_defaults("nf4", group_size=64, scale_dtype=torch.bfloat16)) == (
        "nf4,group=64,scale=bfloat16"
    )
    assert str(with_defaults("mxfp4")) == "mxfp4"
    assert str(with_defaults("int8,channel,scale=float32", group_size=-1)) == "int8,scale=float32"
    with pytest.raises(ladder.InvalidArgument, match="group_size is 64, .* groups of 32"):
        with_defaults("mxfp4", group_size=64)
    with pytest.raises(ladder.InvalidArgument, match="symmetric is False, .* has zero midpoint"):
        with_defaults("uint4,scale=float16,zero=midpoint", symmetric=False)
    with pytest.raises(ladder.InvalidArgument, match="nf4 is not an unsigned integer"):
        with_defaults("nf4", symmetric=False)


def test_bits_per_weight_of_python_and_the_stored_bytes_agree():
    for text in (
        "uint4,group=32,scale=float16,zero=integer",
        TWO_LEVELS,
        "mxfp4",
        "nvfp4",
        "int4,tensor,scale=float32",
        "uint8,block=8x32,scale=float32,zero=original",
        "int8,channel,scale=uint8,scale2=float32",
    ):
        ttype, n, k = parse(text), 64, 256
        packed = ladder.quantize(torch.randn(n, k), ttype, method="nearest")
        stored = packed.nbytes - (4 if ttype.scale2 and not ttype.scale2_of_rows else 0)
        assert stored * 8 / (n * k) == pytest.approx(ttype.bits_per_weight(n, k))


def test_a_second_scale_is_one_for_the_tensor_or_one_for_each_row():
    of_tensor = parse("uint4,group=32,scale=uint4,scale2=float32:tensor")
    assert of_tensor == parse("uint4,group=32,scale=uint4,scale2=float32")
    assert str(of_tensor) == "uint4,group=32,scale=uint4,scale2=float32"
    of_rows = parse("uint4,group=32,scale=uint4,scale2=float32:channel")
    assert str(of_rows) == "uint4,group=32,scale=uint4,scale2=float32:channel"
    assert (of_tensor.scale2_of_rows, of_rows.scale2_of_rows) == (False, True)
    shapes = [each.scale2_shape(24, 64) for each in (parse("uint4"), of_tensor, of_rows)]
    assert shapes == [None, (1,), (24,)]
    with pytest.raises(ladder.InvalidArgument, match="group"):
        parse("uint4,group=32,scale=uint4,scale2=float32:group")


@pytest.mark.parametrize("bits", range(1, 9))
def test_scales_are_integers_where_there_is_a_second_one(bits):
    text = f"uint4,group=32,scale=uint{bits}"
    ttype = parse(f"{text},zero=integer,scale2=float32:channel")
    assert ttype.has_integer_scales and ttype.scale_dtype == torch.uint8
    assert not parse("mxfp4").has_integer_scales and not parse("uint4").has_integer_scales
    with pytest.raises(ladder.InvalidArgument, match="scale2"):
        parse(text)
    for refused in (f"{text},scale2=float32,zero=original", f"{text},scale2=float32,zero=rescale",
                    f"uint4,group=32,scale=int{max(bits, 2)},scale2=float32"):  # fmt: skip
        with pytest.raises(ladder.InvalidArgument):
            parse(refused)


def test_rows_that_share_scales_have_no_second_scales_of_their_own():
    for block in ("tensor", "block=8x32"):
        with pytest.raises(ladder.InvalidArgument, match="scale2 of each row"):
            parse(f"uint4,{block},scale=float16,scale2=float32:channel")


def test_with_zero_changes_the_kind_of_zero_points_whatever_the_spelling_leaves_out():
    stored = parse("uint4,scale=float16").with_zero("integer")
    assert str(stored) == "uint4,scale=float16,zero=integer"
    assert parse("uint4,tensor,scale=float16,zero=midpoint").with_zero("none").zero == "none"
    for text in ("nf4,scale=float16", "float6_e3m2,block=8x8,scale=float32", "mxfp4"):
        assert parse(text).with_zero("none") == parse(text)
        with pytest.raises(ladder.InvalidArgument, match="zero original needs an integer format"):
            parse(text).with_zero("original")
    with pytest.raises(ladder.InvalidArgument, match='zero is "other"'):
        parse("uint4").with_zero("other")


def test_single_rows_keep_every_other_field():
    register_type("tensor_mine", bits=2, values=[-1, 0, 1, 2])
    fields = "scale=float16,zero=integer,scale2=float32"
    single = {
        "tensor_mine,tensor,scale=float16": "tensor_mine,scale=float16",
        f"uint4,block=8x32,{fields}": f"uint4,group=32,{fields}",
        "float4_e2m1,block=4x32,scale=e8m0": "mxfp4",
        "mxfp4": "mxfp4",
    }
    for text, expected in single.items():
        assert str(parse(text).of_single_rows()) == expected
    stored = parse(TWO_LEVELS).with_stored_zeros()
    assert str(stored) == TWO_LEVELS.replace("midpoint", "integer")
