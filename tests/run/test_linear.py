# SPDX-License-Identifier: Apache-2.0
"""The linear op and module: exact on integers first, then within the derived bound."""

import copy
import pickle
import subprocess
import sys
import textwrap

import pytest
import torch
from drawn import KINDS, TWO_LEVELS, exact_weight, formula, grouped, integers
from torch import nn

import ladder
from ladder.ops.cpu import cpu_isa, cpu_isas
from ladder.testing import SIGNIFICANT_BITS, assert_linear_close
from ladder.types import parse, register_type, type_names

register_type("user_sevenths", bits=3, values=[-7, -3, -1, 0, 1, 2, 4, 8])
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
N, K = 24, 70  # K ends inside a group and inside a word


@pytest.mark.parametrize("name", type_names())
def test_every_type_is_exact_on_integers(name):
    """A wrong code, scale or zero changes a multiple of 2**-7: nothing here needs a tolerance."""
    weight = exact_weight(grouped(name), N, K)
    wanted = formula(weight)
    for m in (1, 3, 17):
        x = integers((m, K), torch.float32)
        y = weight.linear(x)
        assert y.dtype == x.dtype
        assert torch.equal(y.double(), x.double() @ wanted.T)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("type", KINDS)
def test_every_kind_of_metadata_is_exact_on_integers(type, act_order, dtype):
    weight = exact_weight(type, N, K, act_order=act_order)
    for m in (1, 5, 40):
        x, bias = integers((m, K), dtype), integers((N,), dtype)
        exact = x.double() @ formula(weight).T + bias.double()
        assert torch.equal(weight.linear(x, bias), exact.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name", ["uint4", "int3", "nf4", "float6_e3m2", "float8_e5m2", "mxfp4", "nvfp4"]
)
def test_real_numbers_stay_within_the_bound(name, dtype):
    weight = ladder.quantize(torch.randn(N, 256) * 0.05, grouped(name))
    values, bias = weight.dequantize(), torch.randn(N).to(dtype)
    for m in (1, 4, 33):
        x = torch.randn(m, 256).to(dtype)
        assert_linear_close(weight.linear(x, bias), x, values, bias)


@pytest.mark.parametrize("shape", [(K,), (1, K), (2, 3, K), (2, 1, 3, K), (0, K), (2, 0, K)])
def test_leading_dimensions_are_kept_also_empty_ones(shape):
    weight = exact_weight("uint4,group=32,scale=float16,zero=midpoint", N, K)
    x = integers(shape, torch.float32)
    y = weight.linear(x)
    assert y.shape == (*shape[:-1], N)
    assert torch.equal(y, (x.double() @ formula(weight).T).float())


def test_strides_of_the_input_do_not_matter():
    weight = exact_weight("uint4,group=32,scale=float16,zero=midpoint", N, K)
    x = integers((6, K), torch.float32)
    wanted = weight.linear(x)
    doubled = x.repeat_interleave(2, 0)[::2]
    for view in (x.t().contiguous().t(), torch.cat((x, x), 1)[:, :K], doubled):
        assert torch.equal(weight.linear(view), wanted)
    assert torch.equal(weight.linear(x[:1].expand(4, K)), wanted[:1].expand(4, N))


def layer_of(type="uint4,group=32,scale=float16,zero=integer", bias=True, dtype=torch.float32):
    torch.manual_seed(0)
    return ladder.Linear.from_linear(nn.Linear(K, N, bias=bias, dtype=dtype), type)


# --- autograd, opcheck, torch.compile ------------------------------------------------------------


@pytest.mark.parametrize("shape", [(K,), (5, K), (2, 3, K), (0, K)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_those_of_the_dequantised_linear(shape, dtype):
    layer = layer_of(dtype=dtype)
    x = torch.randn(shape).to(dtype).requires_grad_()
    grad = torch.randn(*shape[:-1], N).to(dtype)
    layer(x).backward(grad)
    assert layer.bias.grad.dtype == dtype and x.grad.dtype == dtype
    # Both are linear in `grad`, so the bound of a linear holds: by the weight, in the dtype of the
    # activations as a dense layer would have it, and by ones.
    weight = layer.packed_weight.dequantize(dtype)
    assert_linear_close(x.grad, grad, weight.T)
    rows = grad.reshape(-1, N)
    assert_linear_close(layer.bias.grad, torch.ones(len(rows)), rows.T)


def test_gradients_match_finite_differences():
    """The layer is linear: a difference quotient over integers has no error at all."""
    weight = exact_weight("uint4,group=32,scale=float16,zero=midpoint", 5, 16)
    x = integers((2, 16), torch.float32).requires_grad_()
    bias = integers((5,), torch.float32).requires_grad_()
    grad = integers((2, 5), torch.float32, seed=4)
    (weight.linear(x, bias) * grad).sum().backward()

    def loss(x, bias):
        return (weight.linear(x, bias) * grad).sum().item()

    base = loss(x.detach(), bias.detach())
    for at in range(16):
        moved = x.detach().clone()
        moved[1, at] += 1
        assert loss(moved, bias.detach()) - base == x.grad[1, at].item()
    for at in range(5):
        moved = bias.detach().clone()
        moved[at] += 1
        assert loss(x.detach(), moved) - base == bias.grad[at].item()


def test_only_what_asks_for_a_gradient_gets_one():
    layer = layer_of()
    layer.bias.requires_grad_(False)
    x = torch.randn(2, K)
    assert not layer(x).requires_grad
    x.requires_grad_()
    layer(x).sum().backward()
    assert layer.bias.grad is None and x.grad is not None


@pytest.mark.parametrize("activation_type", [None, "int8"])
def test_scales_that_ask_for_a_gradient_are_refused(activation_type):
    """They have none: an optimizer would leave them as they are in silence."""
    layer = layer_of()
    layer.activation_type = activation_type
    layer.scales.requires_grad_()
    with pytest.raises(ladder.Unsupported, match="scales requires a gradient, and parts of"):
        layer(torch.randn(2, K))
    with torch.no_grad():
        assert layer(torch.randn(2, K)).shape == (2, N)


@pytest.mark.parametrize(
    "type", ["uint4,group=32,scale=float16,zero=integer", "nvfp4", TWO_LEVELS, "int8"]
)
@pytest.mark.parametrize("m", [0, 1, 5])
def test_opcheck_of_linear(type, m):
    w = exact_weight(type, N, 64, act_order=type.startswith("uint4"))
    x = torch.randn(m, 64, requires_grad=True)
    bias = torch.randn(N, requires_grad=True)
    args = (x, w.qweight, w.scales, w.zeros, w.scale2, w.g_idx, bias, str(w.type))
    torch.library.opcheck(torch.ops.ladder.linear.default, args)


@pytest.mark.parametrize(
    "type", ["uint4,group=32,scale=float16,zero=quantized", "mxfp6_e3m2", "nvfp4", TWO_LEVELS]
)
def test_opcheck_of_the_other_ops(type):
    w = exact_weight(type, N, 64)
    codes = w.codes()
    check = torch.library.opcheck
    check(torch.ops.ladder.pack.default, (codes, w.type.bits))
    check(torch.ops.ladder.unpack.default, (w.qweight, 64, w.type.bits))
    check(
        torch.ops.ladder.dequantize.default,
        (w.qweight, w.scales, w.zeros, w.scale2, w.g_idx, type, 64),
    )
    check(torch.ops.ladder.quantize.default, (torch.randn(N, 64), type, False))
    check(torch.ops.ladder.encode.default, (torch.randn(64), w.type.element.name))


def test_compile_makes_one_graph_for_any_batch():
    model = nn.Sequential(layer_of("uint4,group=32,scale=float16,zero=integer"), nn.ReLU())
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=True)
    for m in (2, 3, 7):
        x = torch.randn(m, K)
        assert torch.equal(compiled(x), model(x))
    assert len(graphs) == 1


def test_compile_traces_the_backward_too():
    layer = layer_of()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x, y = torch.randn(3, K, requires_grad=True), None
    grads = []
    for call in (layer, compiled):
        x.grad = layer.bias.grad = None
        y = call(x)
        y.square().sum().backward()
        grads.append((x.grad.clone(), layer.bias.grad.clone()))
    torch.testing.assert_close(grads[0], grads[1])


# --- the module ----------------------------------------------------------------------------------

TYPES = (
    "uint4,group=32,scale=float16,zero=integer",
    "uint4",
    "nvfp4",
    TWO_LEVELS,
    "float8_e4m3,tensor,scale=float32",
    "user_sevenths,group=32,scale=bfloat16",
)


@pytest.mark.parametrize("type", TYPES)
def test_a_state_dict_makes_the_same_layer(type):
    layer, x = layer_of(type), torch.randn(3, K)
    fresh = ladder.Linear(K, N, weight_type=layer.weight_type)
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(fresh(x), layer(x))


def test_a_state_dict_brings_its_act_order():
    weight = exact_weight("uint4,group=32,scale=float16,zero=midpoint", N, K, act_order=True)
    layer = ladder.Linear.from_weight(weight)
    fresh = ladder.Linear(K, N, bias=False, weight_type=weight.type)
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(fresh.g_idx, weight.g_idx)
    x = integers((2, K), torch.float32)
    assert torch.equal(fresh(x), layer(x))


@pytest.mark.parametrize("strict", [True, False])
def test_a_state_dict_without_act_order_takes_it_away(strict):
    """A g_idx that stayed would be that of another weight."""
    weight = exact_weight("uint4,group=32,scale=float16,zero=midpoint", N, K, act_order=True)
    layer = ladder.Linear.from_weight(weight)
    plain = layer_of(str(weight.type), bias=False)
    layer.load_state_dict(plain.state_dict(), strict=strict)
    assert [*layer.state_dict()] == [*plain.state_dict()]
    x = torch.randn(3, K)
    assert torch.equal(layer(x), plain(x))


def test_a_state_dict_of_another_type_is_refused_where_copying_would_round_it():
    """Scales of float32 would become those of float16."""
    wide = layer_of("uint4,group=32,scale=float32,zero=midpoint")
    narrow = ladder.Linear(K, N, weight_type="uint4", group_size=32)
    with pytest.raises(ladder.InvalidArgument, match="^scales has dtype float32, not float16 as"):
        narrow.load_state_dict(wide.state_dict())
    model = torch.nn.Sequential(narrow)
    state = {f"0.{name}": part for name, part in wide.state_dict().items()}
    with pytest.raises(ladder.InvalidArgument, match=r"^0\.scales has dtype float32"):
        model.load_state_dict(state, strict=False)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize("type", TYPES)
def test_copies_are_the_same_layer_and_independent(type, again):
    layer, x = layer_of(type), torch.randn(3, K)
    twin = again(layer)
    assert twin.weight_type is parse(str(layer.weight_type))
    y = layer(x)
    assert torch.equal(twin(x), y)
    twin.qweight.zero_()
    assert torch.equal(layer(x), y)


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("cast", [torch.float16, torch.bfloat16, torch.float64])
def test_casting_changes_the_bias_and_never_the_stored_weight(type, cast):
    layer = layer_of(type)
    before = {name: part.clone() for name, part in layer.packed_weight.tensors().items()}
    layer.to(cast)
    assert layer.bias.dtype == layer.dtype == layer.weight.dtype == cast
    for name, part in layer.packed_weight.tensors().items():
        assert part.dtype == before[name].dtype and torch.equal(part, before[name])


def test_half_and_float_and_moving_work_on_a_model():
    model = nn.Sequential(layer_of(), nn.LayerNorm(N))
    for dtype, cast in ((torch.float16, model.half), (torch.float32, model.float)):
        cast()
        x = torch.randn(2, K, dtype=dtype)
        assert model(x).dtype == dtype
    model.to("meta")
    assert all(b.is_meta for b in model[0].buffers())
    model.to_empty(device="cpu")
    assert model[0].scales.dtype == torch.float16


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_from_linear_and_dequantize_are_inverse_up_to_the_rounding(bias, dtype):
    linear = nn.Linear(K, N, bias=bias, dtype=dtype).eval()
    layer = ladder.Linear.from_linear(linear, "int8", group_size=32, method="nearest")
    assert not layer.training
    assert not bias or layer.bias.data_ptr() == linear.bias.data_ptr()
    assert (layer.weight.shape, layer.weight.dtype) == ((N, K), dtype)
    dense = layer.dequantize()
    assert dense.weight.dtype == dtype and (dense.bias is not None) == bias
    error = (dense.weight.double() - linear.weight.double()).abs().max()
    # Half a step, which is a float16 of the largest over 127, then a rounding to the dtype.
    relative = (1 + 2**-11) / 254 + 2.0 ** -SIGNIFICANT_BITS[dtype]
    assert error <= relative * linear.weight.double().abs().max()
    x = torch.randn(2, K, dtype=dtype)
    assert_linear_close(layer(x), x, layer.packed_weight.dequantize(), linear.bias)


def test_the_bias_follows_the_dtype_of_the_activations():
    layer = layer_of()
    for dtype in DTYPES:
        assert layer(torch.randn(2, K, dtype=dtype)).dtype == dtype


def test_repr_names_the_type():
    assert "weight_type=uint4,group=32" in repr(layer_of())


def test_a_result_does_not_depend_on_the_instruction_set():
    weight = exact_weight("uint5,group=32,scale=float16", N, K)
    x = integers((3, K), torch.float32)
    wanted = weight.linear(x)
    try:
        for isa in cpu_isas():
            assert ladder.use_cpu_isa(isa) == cpu_isa() == isa
            assert torch.equal(weight.linear(x), wanted), isa
    finally:
        assert ladder.use_cpu_isa() == cpu_isas()[-1]


@pytest.mark.skipif("amx" not in cpu_isas(), reason="this machine has no amx")
def test_where_the_system_refuses_tile_registers_amx_is_missing_and_refused_by_name():
    """Linux refuses them to a process with a signal stack that is too small for them."""
    script = """
        import ctypes

        class Stack(ctypes.Structure):
            _fields_ = [("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]

        memory = ctypes.create_string_buffer(8192)
        stack = Stack(ctypes.addressof(memory), 0, len(memory))
        assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0

        import torch, ladder
        from ladder.ops.cpu import cpu_isa, cpu_isas

        assert "amx" not in cpu_isas() and cpu_isa() == cpu_isas()[-1] == "avx512_bf16"
        weight = ladder.quantize(torch.randn(64, 128), "uint4,group=32,scale=float16,zero=midpoint")
        assert weight.linear(torch.ones(20, 128, dtype=torch.bfloat16)).isfinite().all()
        try:
            ladder.use_cpu_isa("amx")
        except ladder.InvalidArgument as error:
            assert '"amx" is not one of' in str(error), error
        else:
            raise AssertionError("amx was not refused")
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


def test_an_instruction_set_that_the_machine_lacks_is_refused_with_those_that_it_has():
    with pytest.raises(ladder.InvalidArgument, match=f'"sse9" is not one .*{cpu_isas()[-1]}'):
        ladder.use_cpu_isa("sse9")
    assert cpu_isa() == cpu_isas()[-1]
