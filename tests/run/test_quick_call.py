# SPDX-License-Identifier: Apache-2.0
"""The short way from ``layer(x)`` to a kernel is taken only where nothing is lost."""

import copy
import pickle
import re
import runpy

import pytest
import torch
from torch import nn

import ladder
import ladder.nn.linear
import ladder.nn.quick_call
from ladder.errors import InvalidArgument

K, N = 128, 64


def layer_of(bias: bool = False) -> ladder.Linear:
    return ladder.Linear(K, N, bias, dtype=torch.float16)


# --- the call ------------------------------------------------------------------------------------


def test_torch_looks_for_no_other_hooks_than_the_short_way_does():
    """A torch with a new kind of hook fails here, before anyone's hook is passed over."""
    looked_for = nn.Module._call_impl.__code__.co_names
    kinds = {name for name in looked_for if re.fullmatch(r"(_global)?_\w+_hooks", name)}
    sides = ("forward", "forward_pre", "backward", "backward_pre")
    assert kinds == {f"{where}_{side}_hooks" for where in ("", "_global") for side in sides}


HOOKS = ("forward_pre_hook", "forward_hook", "full_backward_pre_hook", "full_backward_hook")


@pytest.mark.parametrize("kind", HOOKS)
@pytest.mark.parametrize("everywhere", [False, True])
def test_hooks_run(kind, everywhere):
    layer, seen = layer_of(), []
    x = torch.randn(2, K, dtype=torch.float32, requires_grad=True)
    scope = nn.modules.module if everywhere else layer
    name = f"register_module_{kind}" if everywhere else f"register_{kind}"
    handle = getattr(scope, name)(lambda *_: seen.append(kind))
    try:
        layer(x).sum().backward()
    finally:
        handle.remove()
    assert seen == [kind]
    layer(x).sum().backward()
    assert seen == [kind]


def test_a_compiled_module_is_called_compiled():
    layer, graphs = layer_of(), []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    layer.compile(backend=backend, fullgraph=True)
    x = torch.randn(2, K)
    assert torch.equal(layer(x), layer.forward(x)) and len(graphs) == 1


def test_a_copy_of_a_compiled_module_calls_itself():
    layer = layer_of(bias=True)
    layer.compile(backend="eager")
    nn.init.ones_(layer.bias)
    other = copy.deepcopy(layer)
    nn.init.zeros_(other.bias)
    x = torch.randn(2, K)
    assert torch.equal(other(x), other.forward(x)) and not torch.equal(other(x), layer(x))
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), layer.forward(x))


@pytest.mark.parametrize("where", ["_global_forward_hooks", "_global_backward_pre_hooks"])
def test_a_torch_that_keeps_hooks_elsewhere_is_called_its_own_way(monkeypatch, where):
    assert "__call__" in vars(ladder.nn.quick_call.QuickCall)
    monkeypatch.delattr(nn.modules.module, where)
    again = runpy.run_path(ladder.nn.quick_call.__file__)
    assert again["QuickCall"].__call__ is nn.Module.__call__


def test_who_replaces_the_call_of_modules_sees_it(monkeypatch):
    """torch.fx and torch.export do."""
    layer, seen, call = layer_of(), [], nn.Module.__call__

    def replaced(module, *args, **kwargs):
        seen.append(module)
        return call(module, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "__call__", replaced)
    layer(torch.randn(2, K))
    assert seen == [layer]


def test_a_replaced_forward_is_called():
    """accelerate replaces it."""
    layer = layer_of()
    layer.forward = lambda x, *, twice: twice
    assert layer(torch.randn(2, K), twice=7) == 7


# --- the kernel ----------------------------------------------------------------------------------


@pytest.fixture
def ways(monkeypatch):
    """Which way calls go of a layer that has an image, without a device for it."""
    taken = []
    monkeypatch.setattr(ladder.nn.linear, "_linear_no_grad", lambda *_: taken.append("short"))
    monkeypatch.setattr(ladder.nn.linear, "_linear_with_grad", lambda *_: taken.append("gradient"))
    monkeypatch.setattr(ladder.nn.linear, "_linear", lambda *_: taken.append("op"))
    monkeypatch.setattr(ladder.Linear, "_forward", lambda *_: taken.append("long"))
    return taken


def way(ways: list, layer: ladder.Linear, x: torch.Tensor) -> str:
    layer._set_image(torch.zeros(1, dtype=torch.int32), 1)
    layer(x)
    return ways.pop()


X = torch.randn(2, K).half()


def test_calls_that_ask_for_nothing_go_straight_to_the_kernel(ways):
    assert way(ways, layer_of(), X) == "short"
    with torch.no_grad():
        assert way(ways, layer_of(bias=True), X) == "short"
        assert way(ways, layer_of(), X.clone().requires_grad_()) == "short"


def test_calls_that_ask_for_a_gradient_go_by_its_function(ways):
    assert way(ways, layer_of(bias=True), X) == "gradient"
    assert way(ways, layer_of(), X.clone().requires_grad_()) == "gradient"


def test_calls_that_ask_for_another_dtype_do_not(ways):
    assert way(ways, layer_of(bias=True), X.bfloat16()) == "long"
    with torch.no_grad():
        assert way(ways, layer_of(bias=True), X.bfloat16()) == "long"
        torch.set_autocast_enabled("cuda", True)  # torch.autocast does so only with a GPU
        try:
            assert way(ways, layer_of(), X) == "long"
        finally:
            torch.set_autocast_enabled("cuda", False)


def test_a_bias_of_its_own_kind_does_not(ways):
    layer = layer_of()
    del layer.bias
    layer.bias = X.new_zeros(N)  # a tensor that is no parameter
    assert way(ways, layer, X) == "long"


def test_a_layer_on_a_cpu_goes_straight_to_the_op(ways):
    for layer, x in ((layer_of(), X), (layer_of(bias=True), X), (layer_of(), X[0])):
        layer(x)
        assert ways.pop() == "op"


def rounding(layer):
    layer.activation_type = "int8"


def scaling(layer):
    layer.pre_scale = torch.ones(K)


@pytest.mark.parametrize("change", [rounding, scaling])
def test_a_layer_on_a_cpu_that_does_more_does_not(ways, change):
    layer = layer_of()
    change(layer)
    layer(X)
    assert ways.pop() == "long"


def test_a_layer_on_a_cpu_under_autocast_does_not(ways):
    with torch.autocast("cpu", torch.bfloat16):
        layer_of()(X)
    assert ways.pop() == "long"


@pytest.mark.parametrize("x", [X[:, 1:], X[0, 0], X.bfloat16(), X.to("meta"), nn.Parameter(X)])
def test_an_x_that_a_layer_on_a_cpu_has_to_look_at_does_not(ways, x):
    layer_of(bias=True)(x)
    assert ways.pop() == "long"


@pytest.mark.parametrize("bias", [False, True])
def test_the_straight_way_on_a_cpu_has_the_results_and_gradients_of_the_long_one(bias):
    layer = layer_of(bias)
    layer.set_weight(ladder.quantize(torch.randn(N, K), str(layer.weight_type)))
    results = []
    for call in (layer, layer._forward):
        x = X.clone().requires_grad_()
        y = call(x)
        y.sum().backward()
        results += [(y.detach(), x.grad)]
    (y, grad), (expected, expected_grad) = results
    assert y.abs().max() > 0 and torch.equal(y, expected) and torch.equal(grad, expected_grad)


def test_what_the_op_of_the_cpu_refuses_is_an_argument_of_the_caller():
    layer = layer_of()
    layer.qweight = layer.qweight[:, 1:].contiguous()
    with pytest.raises(InvalidArgument, match="qweight"):
        layer(X)


def test_what_the_kernel_refuses_is_an_argument_of_the_caller(monkeypatch):
    def refuse(*_):
        raise ValueError("x has 3 columns; the weight has 128")

    monkeypatch.setattr(ladder.nn.linear, "_linear_no_grad", refuse)
    layer = layer_of()
    layer._set_image(torch.zeros(1, dtype=torch.int32), 1)
    with pytest.raises(InvalidArgument, match="x has 3 columns; the weight has 128"):
        layer(X[:, :3])


def test_warmup_takes_one_number_of_tokens_or_several():
    assert ladder.warmup(layer_of(), 16) == ladder.warmup(layer_of(), [1, 16]) == {}
    with pytest.raises(InvalidArgument, match="^m has 0, not a positive integer$"):
        ladder.warmup(layer_of(), 0)


def test_another_thread_that_finds_an_image_finds_its_number_too():
    """A call between any two steps of the change: the image comes after its number, and before
    the answer that no call has to wait for it."""
    layer = layer_of()
    layer._set_image(None, 0)
    seen = []

    class Buffers(dict):
        def __setitem__(self, name, value):
            if name == "image":
                seen.append((layer.__dict__["_weight_number"], layer._has_kernels))
            super().__setitem__(name, value)

    layer.__dict__["_buffers"] = Buffers(layer._buffers)
    layer._set_image(torch.zeros(1, dtype=torch.int32), 7)
    assert seen == [(7, None)] and layer._has_kernels
