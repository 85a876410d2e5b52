# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from drawn import KINDS, exact_weight, formula, grouped

import ladder
from ladder.types import parse, type_names


@pytest.fixture
def weight():
    return torch.randn(24, 96, generator=torch.Generator().manual_seed(3)) * 0.05


@pytest.mark.parametrize("name", type_names())
def test_every_type_quantises_and_search_is_not_worse_than_nearest(name, weight):
    errors = {}
    for method in ("nearest", "search"):
        packed = ladder.quantize(weight, grouped(name), method=method)
        packed.check()
        errors[method] = (packed.dequantize().double() - weight.double()).square().sum().item()
    assert errors["search"] <= errors["nearest"] * (1 + 1e-5)
    assert errors["search"] < weight.double().square().sum().item()


@pytest.mark.parametrize("type", [kind for kind in KINDS if kind != "uint4"])
def test_the_parts_mean_what_the_formula_says(type, weight):
    packed = ladder.quantize(weight, type)
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
