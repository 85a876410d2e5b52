# SPDX-License-Identifier: Apache-2.0
"""bitblas.Matmul: every pair of dtypes, exact on integers."""

import itertools

import pytest
import torch

import ladder.bitblas as bitblas
from ladder import InvalidArgument, Unsupported
from ladder.testing import assert_linear_close
from ladder.types import parse, type_names

N, K, G = 24, 64, 16
FLOAT_A = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
PACKED = [name for name in type_names() if parse(name).element.name == name] + [
    "fp4_e2m1",
    "e4m3_float8",
]


def operator(**fields):
    return bitblas.Matmul(bitblas.MatmulConfig(**{"N": N, "K": K, **fields}))


def small_codes(name, n=N, k=K):
    """Codes whose values are integers or halves of magnitude at most 8, and those values."""
    values = parse(name).element.values
    good = (values.isfinite() & (values.abs() <= 8) & ((values * 2) % 1 == 0)).nonzero()[:, 0]
    codes = good[torch.randint(len(good), (n, k))] if len(good) else torch.zeros(n, k).long()
    return codes, values[codes]


def activations(m, dtype):
    return torch.randint(-2, 3, (m, K)).to(dtype)


def given(name, codes, values):
    """What a user passes to transform_weight: values of signed integers, else codes."""
    return values.to(torch.int8) if name.startswith("int") else codes.to(torch.uint8)


@pytest.mark.parametrize("A", FLOAT_A)
@pytest.mark.parametrize("W", PACKED)
def test_every_stored_weight_times_every_float_activation(W, A):
    matmul = operator(M=[1, 16], A_dtype=A, W_dtype=W, out_dtype=A)
    if matmul.config.is_dense:
        pytest.skip("not packed")
    codes, values = small_codes(W)
    packed = matmul.transform_weight(given(W, codes, values))
    assert list(packed.shape) == matmul.retrieve_weight_shape() == [N, K * matmul.bit // 8]
    assert packed.dtype == torch.int8
    for m in (1, 5):
        x = activations(m, FLOAT_A[A])
        y = matmul(x, packed)
        assert y.dtype == FLOAT_A[A]
        exact = x.double() @ values.T
        if torch.equal(values * 2, (values * 2).round()):
            assert torch.equal(y, exact.to(y.dtype))
        else:
            assert_linear_close(y, x, values)


@pytest.mark.parametrize("mode", ["original", "rescale", "quantized"])
@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("A", ["float16", "bfloat16"])
def test_scales_and_zeros_of_every_mode_are_exact(bits, mode, A):
    matmul = operator(
        M=None,
        A_dtype=A,
        W_dtype=f"uint{bits}",
        out_dtype="float32",
        group_size=G,
        with_scaling=True,
        with_zeros=True,
        zeros_mode=mode,
    )
    dtype, top = FLOAT_A[A], 1 << bits
    codes = torch.randint(0, top, (N, K))
    scale = torch.exp2(torch.randint(-1, 2, (N, K // G)).float()).to(dtype)
    zeros = torch.randint(0, min(top, 16), (N, K // G))
    spread = lambda t: t.double().repeat_interleave(G, 1)  # noqa: E731
    if mode == "rescale":
        values = codes * spread(scale) - spread(zeros)
    else:
        values = (codes - spread(zeros)) * spread(scale)
    passed = zeros.to(dtype)
    if mode == "quantized":  # packed along N by hand
        stream = [sum(int(z) << (bits * n) for n, z in enumerate(column)) for column in zeros.T]
        width = -(-N * bits // 8)
        rows = [list(word.to_bytes(width, "little")) for word in stream]
        passed = torch.tensor(rows, dtype=torch.uint8).view(torch.int8)
    x = activations(3, dtype)
    y = matmul(x, matmul.transform_weight(codes.to(torch.uint8)), scale=scale, zeros=passed)
    assert y.dtype == torch.float32
    assert torch.equal(y.double(), x.double() @ values.T)


@pytest.mark.parametrize(
    "W", ["int2", "int4", "int7", "int8", "nf4", "fp4_e2m1", "e4m3_float8", "ternary"]
)
def test_scales_without_zeros(W):
    matmul = operator(M=4, W_dtype=W, with_scaling=True, group_size=G, out_dtype="float32")
    codes, values = small_codes(W)
    scale = torch.rand(N, K // G).half() + 0.5
    x = torch.randn(4, K).half()
    y = matmul(x, matmul.transform_weight(given(W, codes, values)), scale=scale)
    weight = values.float() * scale.float().repeat_interleave(G, 1)
    assert_linear_close(y, x, weight)


INT_W = [
    "int8",
    "uint8",
    "int4",
    "uint4",
    "int2",
    "uint2",
    "int1",
    "uint1",
    "int3",
    "uint5",
    "ternary",
]


@pytest.mark.parametrize(("A", "W"), itertools.product(["int8", "uint8", "int4"], INT_W))
@pytest.mark.parametrize("k", [64, 4096])
def test_integer_activations_give_the_exact_integer(A, W, k):
    """The full range of both, so that sums exceed what float32 holds."""
    matmul = operator(K=k, M=[1, 16], A_dtype=A, W_dtype=W, accum_dtype="int32", out_dtype="int32")
    low, high = {"int8": (-128, 128), "uint8": (0, 256), "int4": (-8, 8)}[A]
    x = torch.randint(low, high, (3, k)).to(torch.uint8 if A == "uint8" else torch.int8)
    if W == A and W in ("int8", "uint8"):
        weight = torch.randint(low, high, (N, k)).to(x.dtype)
        values = weight.long()
    else:
        table = parse(W).element.values
        codes = torch.randint(len(table), (N, k))
        values = table[codes].long()
        weight = values.to(torch.int8) if W.startswith("int") else codes.to(torch.uint8)
    y = matmul(x, matmul.transform_weight(weight))
    assert y.dtype == torch.int32
    assert torch.equal(y.long(), x.long() @ values.T)


@pytest.mark.parametrize("out", ["int32", "float32", "float16", "int8"])
@pytest.mark.parametrize("W", ["int2", "int4", "int8"])
@pytest.mark.parametrize("M", [2, [1, 16]], ids=["fixed", "range"])
def test_integer_results_are_cast_to_the_output(M, W, out):
    """Sums of int8 weights are up to 32768: more than float16 holds exactly, less than it holds."""
    matmul = operator(M=M, A_dtype="int8", W_dtype=W, accum_dtype="int32", out_dtype=out)
    half = 1 << int(W[3:]) - 1
    w = torch.randint(-half, half, (N, K)).to(torch.int8)
    for m in [2] if M == 2 else [1, 5, 16, 40]:
        x = torch.randint(-4, 5, (m, K)).to(torch.int8)
        y = matmul(x, matmul.transform_weight(w))
        exact = x.int() @ w.int().T
        assert torch.equal(y, exact.to(y.dtype)) and str(y.dtype) == f"torch.{out}"


def test_int4_by_int4_takes_what_users_compressed_themselves():
    matmul = operator(M=3, A_dtype="int4", W_dtype="int4", accum_dtype="int32", out_dtype="int32")
    a, w = torch.randint(-8, 8, (3, K)).to(torch.int8), torch.randint(-8, 8, (N, K)).to(torch.int8)

    def compress(t):
        return (t[:, ::2] & 15) + ((t[:, 1::2] & 15) << 4)

    wanted = a.int() @ w.int().T
    assert torch.equal(matmul(compress(a), matmul.transform_weight(compress(w))), wanted)
    assert torch.equal(matmul(a, matmul.transform_weight(w)), wanted)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_dense_weights_in_every_layout(dtype, layout):
    matmul = operator(M=5, A_dtype=dtype, W_dtype=dtype, out_dtype=dtype, layout=layout)
    kind = getattr(torch, dtype)
    a, w = activations(5, kind), torch.randint(-3, 4, (N, K)).to(kind)
    y = matmul(
        a.T if layout[0] == "t" else a, matmul.transform_weight(w.T if layout[1] == "n" else w)
    )
    assert torch.equal(y, (a.double() @ w.double().T).to(kind))


@pytest.mark.parametrize("A", ["e4m3_float8", "e5m2_float8"])
@pytest.mark.parametrize("W", ["e4m3_float8", "e5m2_float8"])
def test_8_bit_floats_times_8_bit_floats(A, W):
    kinds = {"e4m3_float8": torch.float8_e4m3fn, "e5m2_float8": torch.float8_e5m2}
    matmul = operator(M=3, A_dtype=A, W_dtype=W, accum_dtype="float32", out_dtype="float32")
    a, w = torch.randn(3, K).to(kinds[A]), torch.randn(N, K).to(kinds[W])
    y = matmul(a, matmul.transform_weight(w))
    assert_linear_close(y, a.float(), w.float())
    assert torch.equal(y, matmul(a, matmul.transform_weight(w.view(torch.int8))))


def test_block_types_of_ladder_take_their_own_scales():
    matmul = operator(M=2, W_dtype="mxfp4", with_scaling=True, out_dtype="float32")
    codes = torch.randint(0, 16, (N, K), dtype=torch.uint8)
    scale = torch.full((N, K // 32), 128, dtype=torch.uint8)
    x = activations(2, torch.float16)
    values = parse("float4_e2m1").element.values[codes.long()] * 2
    assert torch.equal(
        matmul(x, matmul.transform_weight(codes), scale=scale).double(), x.double() @ values.T
    )
    with pytest.raises(Unsupported, match="second scale"):
        operator(W_dtype="nvfp4", with_scaling=True)


@pytest.mark.parametrize("bits", [1, 2, 3, 5, 6, 7])
def test_widths_that_do_not_fill_a_word_are_padded(bits):
    matmul = operator(K=37, M=2, W_dtype=f"uint{bits}")
    codes = torch.randint(0, 1 << bits, (N, 37), dtype=torch.uint8)
    packed = matmul.transform_weight(codes)
    assert list(packed.shape) == matmul.retrieve_weight_shape() == [N, -(-37 * bits // 32) * 4]
    x = torch.randint(-2, 3, (2, 37)).half()
    assert torch.equal(matmul(x, packed), (x.double() @ codes.double().T).half())


def test_bias_leading_dimensions_and_output():
    matmul = operator(M=None, W_dtype="int4", with_bias=True)
    w, x = torch.randint(-8, 8, (N, K), dtype=torch.int8), torch.randint(-2, 3, (2, 3, K)).half()
    bias, packed = torch.randint(-9, 9, (N,)).half(), matmul.transform_weight(w)
    wanted = (x.double() @ w.double().T + bias).half()
    assert torch.equal(matmul(x, packed, bias=bias), wanted)
    output = torch.empty(2, 3, N, dtype=torch.float16)
    assert matmul(x, packed, bias=bias, output=output) is output
    assert torch.equal(output, wanted)
    assert matmul(x[:0], packed, bias=bias).shape == (0, 3, N)


def test_the_stored_codes_are_those_that_bitblas_users_make_themselves():
    """weight_transform takes codes with 2**(bits - 1) added, general_compress the same."""
    for bits in (2, 4):
        matmul = operator(M=1, W_dtype=f"int{bits}")
        w = torch.randint(-(1 << bits - 1), 1 << bits - 1, (N, K), dtype=torch.int8)
        stored = w + (1 << bits - 1)
        packed = matmul.transform_weight(w)
        assert torch.equal(matmul.weight_transform(stored), packed)
        compressed = bitblas.quantization.general_compress(stored.numpy(), bits)
        assert torch.equal(torch.from_numpy(compressed), packed)


def test_arguments_that_do_not_fit_are_refused_with_both_values():
    matmul = operator(M=2, W_dtype="uint4", group_size=G, with_scaling=True)
    w = matmul.transform_weight(torch.ones(N, K, dtype=torch.uint8))
    x, scale = torch.ones(2, K).half(), torch.ones(N, K // G).half()
    for call, message in (
        (lambda: matmul(torch.ones(3, K).half(), w, scale), "A has 3 rows; M is fixed at 2"),
        (lambda: matmul(torch.ones(2, 65).half(), w, scale), "K is 64"),
        (lambda: matmul(x.float(), w, scale), "A has dtype torch.float32, not torch.float16"),
        (lambda: matmul(x, w), "scale is missing, but with_scaling is True"),
        (lambda: matmul(x, w, scale, scale), "zeros is given, but with_zeros is False"),
        (lambda: matmul(x, w, scale[:, :1]), r"scales has shape \[24, 1\], not \[24, 4\]"),
        (lambda: matmul(x, w[:, :8], scale), r"W is \[24, 8\] bytes, not \[24, 32\]"),
        (lambda: matmul(x, w, scale, bias=torch.ones(N)), "bias is given, but with_bias is False"),
        (
            lambda: matmul.transform_weight(torch.full((N, K), 16)),
            "codes from 16 to 16, not 0 to 15",
        ),
        (lambda: matmul.transform_weight(torch.full((N, K), 0.5)), "ladder.quantize makes them"),
        (lambda: matmul.transform_weight(torch.ones(N, 3)), r"weight has shape \[24, 3\]"),
        (lambda: matmul(x, w, scale, output=torch.ones(1)), "output has shape"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            call()


def test_latency_is_measured_and_the_source_names_the_weight():
    for fields in (
        {
            "W_dtype": "uint4",
            "with_scaling": True,
            "with_zeros": True,
            "zeros_mode": "quantized",
            "with_bias": True,
        },
        {},
        {"layout": "tn", "M": 3},
    ):
        matmul = operator(**fields)
        assert 0 < matmul.profile_latency() < 1e4
        assert matmul.profile_latency({"m": 4}) > 0
        assert f"W[{N}, {K}]" in matmul.get_source()
    matmul.hardware_aware_finetune(topk=20)
    matmul.cleanup()
    assert (
        bitblas.MatmulWithSplitK(bitblas.MatmulConfigWithSplitK(N=N, K=K, k_split=4)).k_split == 4
    )
