# SPDX-License-Identifier: Apache-2.0
"""A residual that is added where the sums of a layer are made: on the CPU, and by kernels that
torch plays on the CPU."""

import re

import pytest
import torch
from drawn import KINDS, exact_weight, formula, integers
from torch import nn
from torch.distributed import HashStore
from torch.nn import functional

import ladder
from ladder.cuda import image
from ladder.nn.gated import GatedLinear
from ladder.nn.merged import MergedWeight
from ladder.nn.merged_layer import MergedLinear
from ladder.nn.parallel import ParallelLinear, Shard, cut
from ladder.nn.residual import image_of_plain_call
from ladder.ops import fallback
from ladder.ops.gating import Gating

K, N, M = 64, 40, 3
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
#: Of float32, beside sums in another order: of up to K products, each of at most about 1, which
#: differ by K roundings of 2^-24 at most, 4e-6.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
#: The same of gradients of squares, sums over rows and tokens of values up to about 10.
SUMMED = {"rtol": 1e-4, "atol": 1e-4}


def layer(bias=True, activation=None, **options):
    torch.manual_seed(0)
    made = ladder.Linear.from_linear(nn.Linear(K, N, bias), "uint4", group_size=16, **options)
    made.activation = activation
    return made


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("type", KINDS)
def test_integers_are_exact_for_tokens_of_every_way(type, dtype):
    weight, bias = exact_weight(type, 24, 70), integers((24,), dtype, 5)
    made = ladder.Linear.from_weight(weight, bias)
    for shape in ((), (1,), (3,), (2, 5), (40,)):
        x = integers((*shape, 70), dtype, 1)
        residual = integers((*shape, 24), dtype, 7)
        want = x.double() @ formula(weight).T.double() + bias.double() + residual.double()
        assert torch.equal(made(x, residual), want.to(dtype))


@pytest.mark.parametrize("activation_type", [None, "int8"])
def test_y_is_rounded_once(activation_type):
    """2049 is 2048 in float16, and so is 2048 + 1."""
    weight = ladder.Weight.from_codes(torch.ones(1, 32, dtype=torch.uint8), "uint4")
    made = ladder.Linear.from_weight(weight, activation_type=activation_type)
    x = torch.tensor([[127.0] * 16 + [17.0] + [0.0] * 15]).half()
    residual = torch.ones(1, 1).half()
    assert made(x, residual).item() == 2050
    assert (made(x) + residual).item() == 2048


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_gradients_are_those_of_two_ops(activation):
    made = layer(activation=activation)
    made.bias.requires_grad_()
    x, residual = torch.randn(2, M, K), torch.randn(2, M, N)
    found = []
    for call in (made, lambda x, residual: made(x) + residual):
        leaves = [x.clone().requires_grad_(), residual.clone().requires_grad_(), made.bias]
        y = call(*leaves[:2])
        found.append((y.detach(), *torch.autograd.grad(y.square().sum(), leaves)))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, **CLOSE)
    # Of the residual alone, which needs no weight.
    leaf = residual.clone().requires_grad_()
    (grad,) = torch.autograd.grad(made(x, leaf).sum(), leaf)
    assert torch.equal(grad, torch.ones_like(leaf))


def test_y_has_memory_of_its_own_and_the_residual_stays():
    made, x = layer(), torch.randn(M, K)
    residual = torch.randn(M, N)
    kept = residual.clone()
    y = made(x, residual)
    assert torch.equal(residual, kept)
    y.zero_()
    assert torch.equal(residual, kept)


def test_any_strides_are_read_and_nothing_is_broadcast():
    made, x = layer(), torch.randn(2, M, K)
    residual = torch.randn(N, M, 2).permute(2, 1, 0)
    assert torch.equal(made(x, residual), made(x, residual.contiguous()))
    row = torch.randn(1, 1, N).expand(2, M, N)
    assert torch.equal(made(x, row), made(x, row.contiguous()))
    assert made(x[:0], residual[:0]).shape == (0, M, N)
    for wrong in (residual[..., :1], residual[:1], residual[0], residual.flatten(0, 1)):
        told = re.escape(f"residual has shape {list(wrong.shape)}, and y [2, 3, 40]")
        with pytest.raises(ladder.InvalidArgument, match=f"^{told}$"):
            made(x, wrong)


def test_bad_residuals_are_refused_with_both_values():
    made, x, residual = layer(), torch.randn(M, K), torch.randn(M, N)
    for call in (made, torch.compile(made, backend="aot_eager")):
        torch._dynamo.reset()
        with pytest.raises(Exception, match=r"residual has shape \[3, 39\], and y \[3, 40\]"):
            call(x, residual[:, :-1])
        with pytest.raises(Exception, match="residual has dtype float16, and y float32"):
            call(x, residual.half())
    with pytest.raises(ladder.InvalidArgument, match="residual is of int, not a tensor"):
        made(x, 1)
    with pytest.raises(ladder.InvalidArgument, match="residual has dtype float16, and y float32"):
        made(x, residual.half())
    with pytest.raises(ladder.InvalidArgument, match="residual has dtype float16, and y float32"):
        torch.func.jvp(lambda x: made(x, residual.half()), (x,), (x,))


def test_compile_export_and_transforms_give_the_same():
    made, x, residual = layer(), torch.randn(M, K), torch.randn(M, N)
    want = made(x, residual)
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(x, residual), want)
    program = torch.export.export(made, (x, residual))
    assert torch.equal(program.module()(x, residual), want)
    _, got = torch.func.jvp(made, (x, residual), (x, residual))
    assert torch.equal(got, torch.func.jvp(made, (x,), (x,))[1] + residual)
    torch.library.opcheck(
        torch.ops.ladder.linear.default,
        (x, *_parts(made), made.bias.detach(), str(made.weight_type), residual),
        test_utils=("test_schema", "test_faketensor"),
    )


def _parts(made):
    return made.qweight, made.scales, made.zeros, made.scale2, made.g_idx


def test_autocast_wants_the_dtype_of_its_result():
    made, x, residual = layer(), torch.randn(M, K), torch.randn(M, N)
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(ladder.InvalidArgument, match="dtype float32, and y bfloat16"):
            made(x, residual)
        y = made(x, residual.bfloat16())
    assert torch.equal(y, made(x.bfloat16(), residual.bfloat16()))


def test_the_functional_form_and_the_fallback():
    made, x, residual = layer(), torch.randn(M, K), torch.randn(M, N)
    weight, bias = made.packed_weight, made.bias.detach()
    assert torch.equal(weight.linear(x, bias, residual), made(x, residual))
    parts = (*_parts(made), bias, str(made.weight_type))
    got = fallback.linear(x, *parts, residual)
    torch.testing.assert_close(got, made(x, residual), **CLOSE)
    with pytest.raises(ladder.InvalidArgument, match="residual has shape"):
        fallback.linear(x, *parts, residual[:1])


def test_layers_of_other_kinds_add_it_to_their_y_or_refuse_it():
    parent = nn.Module()
    parent.a, parent.b = layer(), layer()
    x, residual = torch.randn(M, K), torch.randn(M, N)
    want = parent.a(x) + residual
    MergedWeight(parent, [parent.a, parent.b])
    assert isinstance(parent.a, MergedLinear) and torch.equal(parent.a(x, residual), want)
    with pytest.raises(ladder.InvalidArgument, match="residual has shape"):
        parent.b(x, residual[:1])
    gated = layer(bias=False)
    gated.__class__ = GatedLinear
    gated.gating = Gating("silu")
    with pytest.raises(ladder.Unsupported, match="no residual to a product of gate and up"):
        gated(x, residual)


def test_a_layer_that_is_cut_over_processes_adds_it_to_the_sum_of_all():
    made, x, residual = layer(), torch.randn(M, K), torch.randn(M, N)
    want = made(x) + residual
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        cut(made, Shard(0, 1, "columns"), torch.distributed.group.WORLD)
        assert isinstance(made, ParallelLinear) and torch.equal(made(x, residual), want)
    finally:
        torch.distributed.destroy_process_group()


def test_an_adapter_adds_it_last():
    peft = pytest.importorskip("peft")
    model = nn.Sequential()
    model.fc = layer()
    model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["fc"]))
    wrapped = model.base_model.model.fc
    nn.init.normal_(wrapped.lora_B["default"].weight)
    x, residual = torch.randn(M, K), torch.randn(M, N)
    assert torch.equal(wrapped(x, residual), wrapped(x) + residual)
    assert torch.equal(wrapped(x, residual=residual), wrapped(x) + residual)


# --- kernels, played ------------------------------------------------------------------------------


@pytest.fixture(params=[None, "gelu"])
def played(request):
    """A layer with an image, whose kernels are torch, and the same without."""
    made, plain = (layer(activation=request.param) for _ in range(2))
    values, calls = layer().dequantize().weight.detach(), []
    library = torch.library.Library("ladder", "IMPL")
    number = image.open_weight(str(made.weight_type), N, K, function=request.param or "")

    def linear(x, residual, image, bias, weight, n, x_scale=None):
        assert (weight, n) == (number, N)
        calls.append(x.dtype)
        y = functional.linear(x, values.to(x.dtype), bias).double()
        return ((y if request.param is None else functional.gelu(y)) + residual).to(x.dtype)

    def dequantize(image, weight, n, k, dtype):
        assert (n, k) == (N, K)
        return values.to(dtype)

    library.impl("linear_residual", linear, "CPU")
    library.impl("linear_residual_with_grad", lambda *a: linear(*a[:-1]), "CPU")
    library.impl("dequantize_image", dequantize, "CPU")
    made._set_image(torch.zeros(1, dtype=torch.int32), number)
    yield made, plain, calls
    library._destroy()


@pytest.mark.parametrize("compiled", [False, True])
def test_one_call_of_a_kernel_gives_it_and_its_gradients(played, compiled):
    made, plain, calls = played
    torch._dynamo.reset()
    run = torch.compile(made, backend="aot_eager", fullgraph=True) if compiled else made
    x, residual = torch.randn(M, K), torch.randn(M, N)
    with torch.no_grad():
        want = plain(x, residual)
        torch.testing.assert_close(run(x, residual), want, **CLOSE)
        assert calls == [torch.float32]
    grads = []
    for call, bias in ((run, made.bias), (plain, plain.bias)):
        leaves = x.clone().requires_grad_(), residual.clone().requires_grad_()
        bias.grad = None
        call(*leaves).square().sum().backward()
        grads.append((leaves[0].grad, leaves[1].grad, bias.grad))
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want, **SUMMED)
    assert len(calls) == 2


def test_what_a_plain_call_leaves_out_is_done_where_there_is_something_to_do(played):
    """Each of these takes the other way, which converts, scales or differentiates."""
    made, plain, calls = played
    x, residual = torch.randn(M, K), torch.randn(M, N)
    made.bias.data, plain.bias.data = made.bias.data.half(), plain.bias.data.half()
    with torch.no_grad():
        assert image_of_plain_call(made, x, residual) is None
        torch.testing.assert_close(made(x, residual), plain(x, residual), **CLOSE)
        made.bias.data, plain.bias.data = made.bias.data.float(), plain.bias.data.float()
        assert image_of_plain_call(made, x, residual) is made.image
        made.pre_scale = plain.pre_scale = torch.rand(K)
        assert image_of_plain_call(made, x, residual) is None
        torch.testing.assert_close(made(x, residual), plain(x, residual), **CLOSE)
        made.pre_scale = plain.pre_scale = None
    assert image_of_plain_call(made, x, residual) is None  # the bias wants a gradient
    with pytest.raises(ladder.InvalidArgument, match="x has 63 columns"):
        made(x[:, :-1], residual)
    assert len(calls) == 2


def test_an_op_without_gradients_is_in_code_that_asks_for_none(played):
    made, _, _ = played
    torch._dynamo.reset()
    seen = []

    def backend(graph, inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes if "ladder" in str(node.target))
        return graph.forward

    compiled = torch.compile(made, backend=backend, fullgraph=True)
    with torch.no_grad():
        compiled(torch.randn(M, K), torch.randn(M, N))
    assert seen == ["ladder.linear_residual"]
