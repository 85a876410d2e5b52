# SPDX-License-Identifier: Apache-2.0
"""ladder.Linear that ends with an activation function: on the CPU, and by kernels that torch plays
on the CPU."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional

import ladder
from ladder.cuda import image
from ladder.nn.merged import MergedWeight
from ladder.nn.merged_layer import MergedLinear
from ladder.nn.parallel import ParallelLinear
from ladder.ops.gating import ACTIVATIONS

K, N, M = 64, 40, 3
HALF = torch.finfo(torch.half).eps
NAMES = tuple(name for name in ACTIVATIONS if name != "linear")


def layer(activation=None, bias=True, **options):
    torch.manual_seed(0)
    made = ladder.Linear.from_linear(nn.Linear(K, N, bias), "uint4", group_size=16, **options)
    made.activation = activation
    return made


@pytest.mark.parametrize("name", NAMES)
def test_y_is_the_function_of_the_sums(name):
    plain, made = layer(), layer(name)
    x = torch.randn(2, M, K, requires_grad=True)
    want = ACTIVATIONS[name](plain(x))
    assert torch.equal(made(x), want) and not torch.equal(want, plain(x))
    grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (made(x), want)]
    assert torch.equal(*grads)
    assert f"activation={name}" in repr(made) and made.activation == name
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.randn(M, K).to(dtype)
        assert torch.equal(made(x), ACTIVATIONS[name](plain(x)))


def test_it_is_given_at_the_start_and_kept_by_copies_and_no_state_dict():
    made = ladder.Linear(K, N, activation="gelu_pytorch_tanh")
    assert made.activation == "gelu_pytorch_tanh"
    assert set(made.state_dict()) == set(ladder.Linear(K, N).state_dict())
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert other.activation == "gelu_pytorch_tanh"
    made.activation = None
    assert made.activation is None and "activation" not in repr(made)


def test_rounded_activations_compile_and_transforms():
    made, plain = (layer(name, activation_type="int8") for name in ("relu", None))
    x = torch.randn(M, K)
    want = functional.relu(plain(x))
    assert torch.equal(made(x), want)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(made, backend="aot_eager", fullgraph=True)(x), want)
    made, plain = layer("relu"), layer()
    _, got = torch.func.jvp(made, (x,), (x,))
    _, want = torch.func.jvp(lambda x: functional.relu(plain(x)), (x,), (x,))
    assert torch.equal(got, want)


def test_what_has_no_place_for_it_refuses_it_by_name():
    made = layer("silu")
    with pytest.raises(ladder.Unsupported, match="ends with its activation, silu, which nn.Linear"):
        made.dequantize()
    with pytest.raises(ladder.Unsupported, match="ends with its activation, silu"):
        made.forward_codes(torch.zeros(1, K, dtype=torch.int8))
    for name in ("swish", "linear", "swigluoai"):
        with pytest.raises(ladder.InvalidArgument, match=f'activation is "{name}", not one of'):
            layer(name)
    made.activation = None
    made.__class__ = ParallelLinear
    with pytest.raises(ladder.Unsupported, match="cut over processes"):
        made.activation = "relu"
    assert made.activation is None


def test_adapters_are_refused_with_the_way_out():
    peft = pytest.importorskip("peft")
    model = nn.Sequential()
    model.fc = layer("relu")
    with pytest.raises(ladder.Unsupported, match="adapters add to the sums of a layer"):
        peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["fc"]))


def test_layers_of_one_function_are_merged_and_others_are_not():
    from ladder.nn.joined import objection

    parent = nn.Module()
    parent.a, parent.b = layer("relu"), layer("relu")
    parent.b.activation = "silu"
    assert objection([parent.a, parent.b]) == "activations differ: relu, silu"
    parent.b.activation = "relu"
    x = torch.randn(M, K)
    want = parent.a(x)
    MergedWeight(parent, [parent.a, parent.b])
    assert torch.equal(parent.a(x), want) and isinstance(parent.a, MergedLinear)
    parent.a.activation = None
    assert type(parent.b) is ladder.Linear and torch.equal(parent.b(x), want)
    assert torch.equal(functional.relu(parent.a(x)), want)


@pytest.fixture
def played():
    """A layer with an image, whose kernels are torch, and the same without."""
    made, plain = layer("gelu"), layer()
    values, calls = plain.dequantize().weight.detach(), []
    library = torch.library.Library("ladder", "IMPL")
    number = image.open_weight(str(made.weight_type), N, K, function="gelu")

    def linear(x, image, bias, weight, n):
        assert (weight, n) == (number, N)
        calls.append(x.dtype)
        return functional.gelu(functional.linear(x, values.to(x.dtype), bias).double()).to(x.dtype)

    def then(x, x_scale, image, bias, weight, n, step, function, limit, alpha):
        assert (step, function) == ("activation", "gelu")
        return linear(x, image, bias, weight, n)

    def dequantize(image, weight, n, k, dtype):
        assert (n, k) == (N, K)
        return values.to(dtype)

    for name in ("linear_image", "linear_image_no_grad"):
        library.impl(name, linear, "CPU")
    library.impl("linear_then", then, "CPU")
    library.impl("dequantize_image", dequantize, "CPU")
    made._set_image(torch.zeros(1, dtype=torch.int32), number)
    yield made, plain, calls
    library._destroy()


@pytest.mark.parametrize("compiled", [False, True])
def test_one_call_of_a_kernel_gives_it_and_its_gradients(played, compiled):
    made, plain, calls = played
    torch._dynamo.reset()
    run = torch.compile(made, backend="aot_eager", fullgraph=True) if compiled else made
    with torch.no_grad():
        x = torch.randn(M, K).half()
        want = functional.gelu(plain(x.float()))
        # Values, sums and y are rounded to float16.
        torch.testing.assert_close(run(x).float(), want, rtol=2 * HALF, atol=2 * HALF)
        assert calls == [torch.half]
    grads = []
    for call, bias in ((run, made.bias), (lambda x: functional.gelu(plain(x)), plain.bias)):
        leaf = x.detach().clone().requires_grad_()
        call(leaf).float().square().sum().backward()
        grads.append((leaf.grad.float(), bias.grad))
    for got, want in zip(*grads, strict=True):
        # And the gradients on their way, whose sums are of 40 numbers or of 3.
        torch.testing.assert_close(got, want, rtol=0, atol=float(want.abs().max()) * 16 * HALF)
    assert len(calls) == 2


def test_weights_with_another_function_have_another_number():
    numbers = {image.open_weight("uint4,channel,scale=float16", 64, 64, function=name)
               for name in ("", "relu", "silu")}  # fmt: skip
    assert len(numbers) == 3
    with pytest.raises(ValueError, match="none that kernels have"):
        image.open_weight("uint4,channel,scale=float16", 64, 64, function="swish")
    with pytest.raises(ValueError, match="takes a gate and up"):
        image.open_weight("uint4,channel,scale=float16", 64, 64, function="swigluoai")


def test_a_module_in_place_of_a_name_is_refused_and_not_left_aside():
    """nn.Module would register it as a child, and y would be without the function."""
    with pytest.raises(ladder.InvalidArgument, match=r'^activation is "SiLU\(\)", not one of '):
        ladder.Linear(K, N, activation=nn.SiLU())
    made = layer("relu")
    with pytest.raises(ladder.InvalidArgument, match=r'^activation is "GELU'):
        made.activation = nn.GELU()
    assert made.activation == "relu" and not [*made.children()]
    with pytest.raises(ladder.InvalidArgument, match='^activation_type is "Identity'):
        made.activation_type = nn.Identity()
