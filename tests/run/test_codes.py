# SPDX-License-Identifier: Apache-2.0
"""Activations that are codes already, on the CPU: exact on integers, and what is refused."""

import pytest
import torch
from drawn import exact_weight, formula, generator

import ladder
from ladder import InvalidArgument, Unsupported
from ladder.nn.parallel import Shard, become_parallel
from ladder.ops import codes
from ladder.ops.activations import round_tokens
from ladder.types import parse

UINT4 = "uint4,group=32,scale=float16,zero=midpoint"
FLOAT8 = "float8_e4m3,channel,scale=float32"
#: Without scales: of each width, of every kind of zero point, the widest values last.
WHOLE = (
    "int1", "uint1", "uint2,zero=midpoint", "int2", "ternary", "uint4", "uint4,zero=integer",
    "int4", "uint7,zero=midpoint", "int8", "uint8", "uint8,zero=midpoint", "uint8,zero=integer",
)  # fmt: skip
M, N, K = 5, 24, 96


def codes_of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Whole numbers of the format: all of int8, -16 to 16 of float8_e4m3."""
    low, high = (-128, 128) if dtype == torch.int8 else (-16, 17)
    return torch.randint(low, high, shape, generator=generator(7)).to(dtype)


@pytest.mark.parametrize("out", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dtype,type", [(torch.int8, UINT4), (torch.float8_e4m3fn, FLOAT8),
                                        (torch.int8, FLOAT8)])  # fmt: skip
def test_products_are_those_of_codes_times_scales(dtype, type, out):
    weight = exact_weight(type, N, K)
    x, bias = codes_of(dtype, 2, M, K), torch.randint(-4, 5, (N,), generator=generator(1))
    layer = ladder.Linear.from_weight(weight, bias.float())
    each = torch.exp2(torch.randint(-9, -5, (2, M, 1), generator=generator(2)).float())
    for scale in (None, torch.tensor(2.0**-6), torch.tensor([[2.0**-7]]), each):
        exact = x.double() @ formula(weight).T * (1.0 if scale is None else scale.double()) + bias
        y = layer.forward_codes(x, scale, out_dtype=out)
        assert y.dtype == out and torch.equal(y, exact.to(out))
        y = ladder.ops.linear_codes(
            x, weight.qweight, type, x_scale=scale, scales=weight.scales, bias=bias.to(out),
            out_dtype=out,
        )  # fmt: skip
        assert torch.equal(y, exact.to(out))


@pytest.mark.parametrize("k", [K, 2080])
@pytest.mark.parametrize("type", WHOLE)
def test_whole_numbers_give_their_exact_sums(type, k):
    """Of 2080 columns float32 holds no longer all sums of 8 bits; one weight of the largest."""
    ttype = parse(type)
    rng = generator(k)
    stored = torch.randint(0, 1 << ttype.bits, (N, k), generator=rng)
    if ttype.element.name == "ternary":
        stored = stored.clamp(max=2)
    largest = ttype.element.values.abs().argmax() if ttype.zero == "none" else stored.max()
    stored[0] = largest
    parts = {}
    if ttype.zero == "integer":
        shape = ttype.zeros_shape(N, k)
        parts["zeros"] = torch.randint(0, 1 << ttype.bits, shape, generator=rng).to(torch.uint8)
    weight = ladder.Weight.from_codes(stored.to(torch.uint8), ttype, **parts)
    x = codes_of(torch.int8, M, k)
    x[0] = -128
    layer = ladder.Linear.from_weight(weight)
    y = layer.forward_codes(x, out_dtype=torch.int32)
    wanted = x.double() @ weight.dequantize().double().T
    assert y.dtype == torch.int32 and torch.equal(y.double(), wanted)
    assert codes.largest_sum(ttype, k) >= wanted.abs().max()


def test_the_bound_of_float32_is_tight():
    assert codes.are_exact_in_float32(parse("int4"), 16384)
    assert not codes.are_exact_in_float32(parse("int4"), 16385)
    assert codes.are_exact_in_float32(parse("int2"), 65536)
    assert codes.are_exact_in_float32(parse("int8"), 1024)
    assert not codes.are_exact_in_float32(parse("int8"), 1025)
    assert not codes.are_exact_in_float32(parse(UINT4), 16)


@pytest.mark.parametrize("m", [0, 1, 17])
def test_the_integer_product_of_torch_takes_any_size(m):
    x, w = codes_of(torch.int8, m, 33), codes_of(torch.int8, 7, 33)
    y = codes.int8_product(x, w)
    assert y.dtype == torch.int32 and torch.equal(y.double(), x.double() @ w.double().T)


# --- codes of y ----------------------------------------------------------------------------------

#: Halves are ties and some results are beyond the codes; no powers of two, whose quotients are no
#: products with the inverse; results of which most are subnormal or 0.
OUT_SCALES = (2.0, 0.125, 3.0, 0.7, 256.0)


def nearest(y: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """By comparison with all codes, of ``y`` that float32 holds."""
    inverse = torch.tensor(1.0) / torch.tensor(scale)
    product = (y.float() * inverse).double()
    all_codes = torch.arange(256, dtype=torch.uint8).view(dtype)
    values = all_codes.double()
    values[~values.isfinite()] = 1e300
    if dtype != torch.int8:
        values[0x80] = 1e300  # -0
    distance = (product[..., None] - values).abs()
    # Of two that are as near the even code.
    odd = torch.arange(256) % 2 * 1e-12
    found = values[(distance + odd).argmin(-1)]
    return found.float().to(dtype)


def same_codes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.float(), b.float())


@pytest.mark.parametrize("scale", OUT_SCALES)
@pytest.mark.parametrize("out", codes.CODE_DTYPES)
@pytest.mark.parametrize("dtype,type", [(torch.int8, UINT4), (torch.float8_e4m3fn, FLOAT8)])
def test_codes_of_y_are_the_nearest(dtype, type, out, scale):
    weight = exact_weight(type, N, K)
    x, bias = codes_of(dtype, 2, M, K), torch.randint(-4, 5, (N,), generator=generator(1))
    x_scale = torch.tensor(2.0**-3)
    exact = x.double() @ formula(weight).T * x_scale.double()
    for of_bias in (None, torch.float16, torch.bfloat16, torch.float32):
        given = None if of_bias is None else bias.to(of_bias)
        wanted = nearest(exact if given is None else exact + bias, scale, out)
        layer = ladder.Linear.from_weight(weight, given)
        out_scale = torch.tensor([scale])
        y = layer.forward_codes(x, x_scale, out_dtype=out, out_scale=out_scale)
        assert same_codes(y, wanted)
        y = ladder.ops.linear_codes(
            x, weight.qweight, type, x_scale=x_scale, scales=weight.scales, bias=given,
            out_dtype=out, out_scale=out_scale[0],
        )  # fmt: skip
        assert same_codes(y, wanted)
    if scale == 0.125 and out == torch.int8:
        assert (wanted == 127).any() and (wanted == -128).any()


def test_codes_of_y_are_those_that_the_next_layer_would_make_of_it():
    layer = ladder.Linear.from_weight(exact_weight(UINT4, N, K))
    x = codes_of(torch.int8, M, K)
    y = layer.forward_codes(x, out_dtype=torch.float32)
    for scale in map(torch.tensor, OUT_SCALES):
        for out, activation_type in codes.CODE_DTYPES.items():
            given = layer.forward_codes(x, out_dtype=out, out_scale=scale)
            assert torch.equal(given.float() * scale, round_tokens(y, activation_type, scale))


def test_layers_go_from_codes_to_codes():
    first = ladder.Linear.from_weight(exact_weight(UINT4, 64, K), torch.ones(64))
    second = ladder.Linear.from_weight(exact_weight(UINT4, N, 64))
    x, sx, sy = codes_of(torch.int8, M, K), torch.tensor(2.0**-4), torch.tensor(0.7)
    between = first.forward_codes(x, sx, out_dtype=torch.int8, out_scale=sy)
    y = second.forward_codes(between, sy, out_dtype=torch.float32)
    exact = x.double() @ formula(first.packed_weight).T * sx.double() + 1
    held = nearest(exact, 0.7, torch.int8).double()
    assert torch.equal(y, (held @ formula(second.packed_weight).T).float() * sy)


def test_no_number_is_nan_or_zero():
    layer = ladder.Linear.from_weight(exact_weight(FLOAT8, N, K))
    x = codes_of(torch.float8_e4m3fn, M, K)
    x.view(torch.uint8)[3, 7] = 0x7F
    one = torch.tensor(1.0)
    y = layer.forward_codes(x, out_dtype=torch.float8_e4m3fn, out_scale=one).float()
    assert y[3].isnan().all() and y[[0, 1, 2, 4]].isfinite().all()
    assert (layer.forward_codes(x, out_dtype=torch.int8, out_scale=one)[3] == 0).all()


@pytest.mark.parametrize("out", codes.CODE_DTYPES)
def test_torch_compile_and_meta_layers_give_codes(out):
    layer = ladder.Linear.from_weight(exact_weight(UINT4, N, K), torch.ones(N))
    compiled = torch.compile(layer.forward_codes, fullgraph=True, backend="eager", dynamic=True)
    for m in (2, 3, 40):
        x, scale = codes_of(torch.int8, m, K), torch.tensor(0.7)
        y = compiled(x, out_dtype=out, out_scale=scale)
        assert same_codes(y, layer.forward_codes(x, out_dtype=out, out_scale=scale))
    meta = ladder.Linear(K, N, False, UINT4, device="meta")
    x = torch.empty(2, 3, K, dtype=torch.int8, device="meta")
    y = meta.forward_codes(x, out_dtype=out, out_scale=torch.ones(1, device="meta"))
    assert y.is_meta and y.shape == (2, 3, N) and y.dtype == out


def test_parts_of_a_merged_layer_give_their_own_codes():
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.q = ladder.Linear.from_weight(exact_weight(UINT4, N, K), torch.ones(N))
            self.k = ladder.Linear.from_weight(exact_weight(UINT4, 8, K), torch.ones(8))

        def forward(self, x):
            return self.q(x), self.k(x)

    block, x, scale = Block(), codes_of(torch.int8, M, K), torch.tensor(3.0)

    def given() -> list[torch.Tensor]:
        return [
            layer.forward_codes(x, out_dtype=torch.int8, out_scale=scale)
            for layer in (block.q, block.k)
        ]

    before = given()
    ladder.optimize(block)
    assert all(map(torch.equal, before, given()))


def test_a_scale_of_y_that_does_not_fit_is_refused_with_both_values():
    layer = ladder.Linear.from_weight(exact_weight(UINT4, N, K))
    x, one = codes_of(torch.int8, M, K), torch.ones(1)
    coded = {"out_dtype": torch.int8}
    refused = {
        "out_dtype is int8, and out_scale is missing": coded,
        "out_dtype is float8_e4m3fn, and out_scale is m": {"out_dtype": torch.float8_e4m3fn},
        "out_dtype is float16, and out_scale is given": {"out_scale": one},
        "out_dtype is int32, and out_scale is given": {"out_dtype": torch.int32, "out_scale": one},
        "out_scale is 0.5, not a float32 tensor": coded | {"out_scale": 0.5},
        r"out_scale is \[5, 1\] float32, not one float32": coded | {"out_scale": torch.ones(M, 1)},
        r"out_scale is \[1\] float16, not one float32": coded | {"out_scale": one.half()},
        "out_scale is on meta, and x on cpu": coded | {"out_scale": one.to("meta")},
        "out_scale is 0.0, not positive and finite": coded | {"out_scale": one * 0},
        "out_scale is -1.0, not positive": coded | {"out_scale": -one},
        "out_scale is nan, not positive": coded | {"out_scale": one * torch.nan},
        "out_scale is inf, not positive": coded | {"out_scale": one * torch.inf},
        r"out_scale is .*e-41, .* or its inverse is not": coded | {"out_scale": one * 1e-40},
    }  # fmt: skip
    for message, options in refused.items():
        with pytest.raises(InvalidArgument, match=message):
            layer.forward_codes(x, **options)
        with pytest.raises(InvalidArgument, match=message):
            ladder.ops.linear_codes(x, layer.qweight, UINT4, scales=layer.scales, **options)
    with pytest.raises(Unsupported, match="out_scale asks for a gradient"):
        layer.forward_codes(x, **coded, out_scale=one.clone().requires_grad_())
    with pytest.raises(InvalidArgument, match="bias has dtype float64, not float32"):
        ladder.ops.linear_codes(
            x, layer.qweight, UINT4, scales=layer.scales, bias=torch.zeros(N).double(), **coded,
            out_scale=one,
        )  # fmt: skip


def test_torch_compile_traces_one_graph():
    layer = ladder.Linear.from_weight(exact_weight(UINT4, N, K))
    compiled = torch.compile(layer.forward_codes, fullgraph=True, backend="eager", dynamic=True)
    for m in (2, 3, 40):
        x, scale = codes_of(torch.int8, m, K), torch.full((m, 1), 0.5)
        assert torch.equal(compiled(x, scale), layer.forward_codes(x, scale))


@pytest.mark.parametrize("k", [K, 2080])
def test_torch_compile_traces_sums_of_whole_numbers(k):
    layer = ladder.Linear.from_weight(exact_weight("int8", N, k))
    compiled = torch.compile(layer.forward_codes, fullgraph=True, backend="eager")
    x = codes_of(torch.int8, M, k)
    y = compiled(x, out_dtype=torch.int32)
    assert torch.equal(y, layer.forward_codes(x, out_dtype=torch.int32))


def test_the_product_by_torch_is_an_op_with_a_fake():
    x, values = codes_of(torch.int8, M, K), torch.ones(N, K)
    for dtype in (torch.float16, torch.float32):
        arguments = (x, torch.tensor(0.5), values, torch.ones(N, dtype=dtype), dtype)
        torch.library.opcheck(torch.ops.ladder.multiply_codes.default, arguments)
        y = torch.ops.ladder.multiply_codes(*arguments)
        assert torch.equal(y, (x.double().sum(-1, keepdim=True) * 0.5 + 1).to(dtype).expand(M, N))
    for dtype in codes.CODE_DTYPES:
        arguments = (x, None, values, torch.ones(N).half(), dtype, torch.tensor(2.0))
        torch.library.opcheck(torch.ops.ladder.multiply_codes.default, arguments)
        wanted = nearest(x.double().sum(-1, keepdim=True) + 1, 2.0, dtype)
        assert same_codes(torch.ops.ladder.multiply_codes(*arguments), wanted.expand(M, N))


def test_a_meta_layer_gives_the_shape():
    layer = ladder.Linear(K, N, False, UINT4, device="meta")
    x = torch.empty(2, 3, K, dtype=torch.int8, device="meta")
    y = layer.forward_codes(x, out_dtype=torch.bfloat16)
    assert y.is_meta and y.shape == (2, 3, N) and y.dtype == torch.bfloat16


def test_what_does_not_fit_is_refused_with_both_values():
    layer = ladder.Linear.from_weight(exact_weight(UINT4, N, K))
    x = codes_of(torch.int8, M, K)
    refused = {
        "x has dtype float16, not int8 or float8_e4m3fn": (x.half(), {}),
        "x has 95 columns; the weight has 96": (x[:, 1:], {}),
        "x has no dimension": (x[0, 0], {}),
        "out_dtype is int64, not one of float16": (x, {"out_dtype": torch.int64}),
        r"x_scale is \[4\] float32, not one float32 or \[5, 1\]": (x, {"x_scale": torch.ones(4)}),
        r"x_scale is \[5, 1\] float16, not one": (x, {"x_scale": torch.ones(5, 1).half()}),
        "int32, and uint4,.* has scales or fractions": (x, {"out_dtype": torch.int32}),
    }
    for message, (given, options) in refused.items():
        with pytest.raises(InvalidArgument, match=message):
            layer.forward_codes(given, **options)
    plain = ladder.Linear.from_weight(exact_weight("int4", N, K))
    with pytest.raises(InvalidArgument, match="int32, and x_scale is given"):
        plain.forward_codes(x, torch.ones(1), out_dtype=torch.int32)
    with pytest.raises(InvalidArgument, match="int32, and x has dtype float8_e4m3fn"):
        plain.forward_codes(x.to(torch.float8_e4m3fn), out_dtype=torch.int32)
    with pytest.raises(InvalidArgument, match="bias has dtype float32, not float16"):
        ladder.ops.linear_codes(x, plain.qweight, "int4", bias=torch.zeros(N))
    with pytest.raises(InvalidArgument, match="need not fit int32"):
        codes.require_whole(x, None, None, parse("int8"), 1 << 17)


def test_a_part_of_a_layer_refuses_codes():
    layer = ladder.Linear.from_weight(exact_weight(UINT4, N, K))
    become_parallel(layer, Shard(1, 2, "rows"), None, (2 * N, K))
    with pytest.raises(Unsupported, match="rank 1 of 2: activations that are codes"):
        layer.forward_codes(codes_of(torch.int8, M, K))


def test_gradients_are_refused_by_name_and_none_come():
    layer = ladder.Linear.from_weight(exact_weight(UINT4, N, K), torch.zeros(N))
    x, scale = codes_of(torch.int8, M, K), torch.ones(1, requires_grad=True)
    with pytest.raises(Unsupported, match="x_scale asks for a gradient"):
        layer.forward_codes(x, scale)
    floats = torch.zeros(M, K, requires_grad=True).to(torch.float8_e4m3fn)
    with pytest.raises(Unsupported, match="^x asks for a gradient"):
        layer.forward_codes(floats, scale.detach())
    layer.bias.requires_grad_()
    assert not layer.forward_codes(x).requires_grad
    with torch.no_grad():
        assert torch.equal(layer.forward_codes(x, scale), layer.forward_codes(x))
