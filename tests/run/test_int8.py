# SPDX-License-Identifier: Apache-2.0
"""x of 8 bits: exact where x and scales are whole numbers, within the bound of its docstring
elsewhere, under every instruction set of this machine."""

import pytest
import torch
from drawn import generator, second_scales, small_codes, stored, stored_types, whole
from torch import Tensor

import ladder
from ladder import Weight, ops
from ladder.ops import activations
from ladder.testing import bound
from ladder.types import element, parse, register_type

register_type("user_thirds", bits=5, values=[i / 3 for i in range(-15, 17)])
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
N, K = 37, 300  # rows below and above tiles; K ends inside a block of 32, of 128 and a word
TYPES = tuple(type for type in stored_types() if not activations.objection("int8", parse(type), K))
EXACT = tuple(type for type in TYPES if activations.int8(parse(type), K).exact)
ZEROS = ("none", "midpoint", "integer", "quantized", "original", "rescale")
#: Groups that are part of a block, whole blocks, and neither; with odd and even orders of columns.
GROUPS = (8, 16, 24, 32, 40, 64, 96, 128, 160, 256)


@pytest.fixture(params=torch.ops.ladder.cpu_isas().split())
def isa(request):
    torch.ops.ladder.use_cpu_isa(request.param)
    yield request.param
    torch.ops.ladder.use_cpu_isa("")


def eighths(m: int, k: int, dtype: torch.dtype, seed: int = 1) -> Tensor:
    """[m, k] whose blocks of 32 and 128 have scales of 2, 1 and 1/2: 127 times that is in each, and
    all others are multiples of it, short enough for bfloat16."""
    rng = generator(seed)
    x = torch.randint(-127, 128, (m, k), generator=rng)
    places = torch.randint(32, (m, -(-k // 32)), generator=rng)
    for block in range(places.shape[1]):
        at = (block * 32 + places[:, block]).clamp(max=k - 1)
        x[torch.arange(m), at] = 127
    scales = torch.exp2(torch.randint(-1, 2, (m, -(-k // 128)), generator=rng).float())
    return (x * scales.repeat_interleave(128, 1)[:, :k]).to(dtype)


def weight_of(type: str, n: int, k: int, seed: int = 0) -> Weight:
    """Any codes of :func:`drawn.small_codes`, scales of 1/2, 1 and 2, zeros of any size."""
    rng, ttype = generator(seed), parse(type)
    blocks = (ttype.block_rows(n), ttype.groups(k))
    parts: dict[str, Tensor] = {}
    if ttype.scale is not None:
        parts["scales"] = stored(torch.randint(0, 3, blocks, generator=rng) - 1, ttype)
    top = (1 << ttype.bits) + (ttype.zero == "integer")
    zeros = torch.randint(0, min(top, 256), blocks, generator=rng)
    if ttype.zero == "quantized":
        parts["zeros"] = ops.pack(zeros.to(torch.uint8), ttype.bits)
    elif ttype.zeros_dtype is not None:
        parts["zeros"] = zeros.to(ttype.zeros_dtype)
    if ttype.scale2 is not None:
        parts["scale2"] = second_scales(ttype, n, k)
    codes = small_codes(type, n, k, rng)
    if ttype.zero != "none":
        codes = torch.randint(0, 1 << ttype.bits, (n, k), generator=rng).to(torch.uint8)
    return Weight.from_codes(codes, ttype, **parts)


def int8(weight: Weight, x: Tensor, bias: Tensor | None = None) -> Tensor:
    return ops.linear(
        x,
        weight.qweight,
        weight.type,
        scales=weight.scales,
        zeros=weight.zeros,
        scale2=weight.scale2,
        bias=bias,
        activation_type="int8",
    )


def assert_exact(type: str, x: Tensor, n: int = N) -> None:
    weight = weight_of(type, n, x.shape[-1])
    bias = torch.arange(n).sub(n // 2).to(x.dtype)
    y64 = x.double() @ weight.dequantize(torch.float64).T + bias.double()
    assert torch.equal(int8(weight, x, bias), y64.to(x.dtype))


@pytest.mark.parametrize("type", EXACT)
def test_every_type_of_whole_numbers_is_exact_on_integers(isa, type):
    """A wrong code, scale, zero or saturated sum changes a whole number."""
    for m in (1, 3, 6, 13):
        assert_exact(type, eighths(m, K, torch.float32))


@pytest.mark.parametrize("zero", ZEROS)
@pytest.mark.parametrize("bits", range(1, 9))
def test_every_kind_of_zeros_is_exact_on_integers(isa, bits, zero):
    for group in (8, 32, 128):
        for m in (1, 7):
            x = eighths(m, K, torch.float32)
            assert_exact(f"uint{bits},group={group},scale=float32,zero={zero}", x)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("name", ["uint4", "int3", "uint8"])
def test_groups_need_not_be_whole_blocks(isa, name, group):
    zero = ",zero=integer" if name.startswith("u") else ""
    for k in (8, 33, 128, 511):
        for m in (1, 9):
            type = f"{name},group={group},scale=float16{zero}"
            assert_exact(type, eighths(m, k, torch.float32), n=5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [*range(1, 15), 40])
def test_any_number_of_tokens_and_rows(isa, dtype, m):
    for n in (1, 15, 16, 33):
        for type in ("uint4,group=32,scale=float16,zero=midpoint", "int8,channel,scale=float32"):
            assert_exact(type, eighths(m, 96, dtype), n)


@pytest.mark.parametrize("name", ["uint8", "int8", "uint7", "uint6", "uint4", "float6_e2m3"])
def test_the_largest_codes_and_x_do_not_saturate(isa, name):
    """All of one sign, and of signs in turn: pairs of products are as large as they get."""
    values = parse(name).element.values
    codes = torch.stack([values.argmax().expand(256), values.argmin().expand(256)])
    weight = Weight.from_codes(codes.to(torch.uint8), f"{name},group=32,scale=float32",
                               scales=torch.ones(2, 8))  # fmt: skip
    turns = torch.tensor([1.0, -1.0]).repeat(128)
    for x in (torch.full((256,), 127.0), torch.full((256,), -127.0), 127 * turns):
        for m in (1, 12):
            y64 = x.double().expand(m, 256) @ weight.dequantize(torch.float64).T
            assert torch.equal(int8(weight, x.expand(m, 256)).double(), y64)


def scales_of(weight: Weight) -> Tensor:
    """[N, K] float64: what a code's value is multiplied by, scale2 included; all positive."""
    ttype, (n, k) = weight.type, weight.shape
    scales = torch.ones(ttype.block_rows(n), ttype.groups(k), dtype=torch.float64)
    if weight.scales is not None and weight.scales.dtype == torch.uint8:
        scales = element(ttype.scale).values[weight.scales.long()]
    elif weight.scales is not None:
        scales = weight.scales.double()
    if ttype.superblock:
        scales = weight.float_scales().double()
    rows, columns = torch.arange(n) // (ttype.rows or n), torch.arange(k) // (ttype.columns or k)
    spread = scales.abs()[rows][:, columns]
    if weight.scale2 is None or ttype.superblock:
        return spread
    return spread * weight.scale2.double()[:, None]


def limit(weight: Weight, x: Tensor, dtype: torch.dtype) -> Tensor:
    """The bound that :func:`ladder.ops.linear` states."""
    ttype, k = weight.type, weight.shape[1]
    how = activations.int8(ttype, k)
    wide, w = x.double(), weight.dequantize(torch.float64)
    blocks = torch.nn.functional.pad(wide, (0, -k % how.block)).unflatten(-1, (-1, how.block))
    half = blocks.abs().amax(-1) / 254 * (1 + 2.0**-22)
    half = half.repeat_interleave(how.block, -1)[..., :k]
    x8 = activations.round_activations(x, ttype).double()
    codes = weight.codes().long()
    values = torch.tensor(how.values, dtype=torch.float64)
    moved = (values - ttype.element.values).abs()[codes]
    scales = scales_of(weight)
    w8 = w.abs() + moved * scales
    if ttype.zero in ("original", "rescale"):  # subtracted after rounding
        w8 = w8 + 2 * ttype.element.values[codes].abs() * scales
    return half @ w.abs().T + x8.abs() @ (moved * scales).T + bound(x8, w8, dtype)


@pytest.mark.parametrize("type", TYPES)
def test_real_numbers_stay_within_the_bound(isa, type):
    rng, k = generator(5), whole(type, K)
    drawn = torch.randn(24, k, generator=rng) * 0.05
    if type == "uint4,zero=integer":  # without scales its steps are 1
        drawn *= 30
    weight = ladder.quantize(drawn, type, method="nearest")
    for m, dtype in ((1, torch.float32), (1, torch.bfloat16), (9, torch.float16)):
        x = (torch.randn(m, k, generator=rng) * 3).to(dtype)
        y64 = x.double() @ weight.dequantize(torch.float64).T
        assert ((int8(weight, x).double() - y64).abs() <= limit(weight, x, dtype)).all()


def test_x_is_rounded_to_the_same_bits_everywhere(isa):
    """By the reference in torch; then the product is one of exact numbers, but for float32 sums."""
    weight = ladder.quantize(torch.randn(8, K, generator=generator(2)), "uint4", group_size=32)
    for m in (1, 9):
        x = torch.randn(m, K, generator=generator(3)) * torch.logspace(-30, 3, K)
        x8 = activations.round_activations(x, weight.type)
        w = weight.dequantize(torch.float64)
        error = (int8(weight, x).double() - x8.double() @ w.T).abs()
        assert (error <= bound(x8, w, x.dtype)).all()


@pytest.mark.parametrize("zero", ["original", "rescale"])
@pytest.mark.parametrize(("group", "k"), [(48, 128), (80, 288), (96, 160), (48, 2048)])
def test_float_zeros_of_groups_that_divide_no_block_stay_with_their_rows(zero, group, k):
    """Scales are spread over steps of columns, whose number is no multiple of a vector's lanes."""
    groups = -(-k // group)
    torch.manual_seed(0)
    weight = ladder.Weight.from_codes(
        torch.randint(0, 32, (33, k), dtype=torch.uint8),
        f"int5,group={group},scale=float32,zero={zero}",
        scales=2.0 ** torch.randint(-2, 2, (33, groups)),
        zeros=torch.randint(-8, 8, (33, groups)).float(),
    )
    layer = ladder.Linear.from_weight(weight, activation_type="int8")
    for m in (1, 7, 33):
        x = torch.randint(-127, 128, (m, k)).float()
        x[:, ::32] = 127
        wanted = x.double() @ weight.dequantize().double().T
        assert torch.equal(layer(x).double(), wanted)
