# SPDX-License-Identifier: Apache-2.0
"""Layers under torch.func, forward-mode differentiation and torch.compile give what a dense layer
of the same values gives, whichever way they would go without."""

import functools
import types

import pytest
import torch
from drawn import exact_weight
from torch import Tensor, func
from torch.autograd import forward_ad

import ladder
import ladder.cuda.linear
import ladder.nn.linear

N, K, M = 24, 64, 3


def layers(dtype: torch.dtype = torch.float32) -> tuple[ladder.Linear, torch.nn.Linear]:
    weight = exact_weight("uint4,group=32,scale=float16", N, K)
    layer = ladder.Linear.from_weight(weight, torch.arange(N, dtype=dtype))
    return layer, layer.dequantize()


def drawn(seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """[M, K] of small integers: sums are exact in any order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, (M, K), generator=generator).to(dtype)


def dual(layer, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(layer(forward_ad.make_dual(x, 2 * x)))


def squares(layer):
    return lambda x: layer(x).square().sum()


def of_bias(layer, x):
    def loss(bias):
        return func.functional_call(layer, {"bias": bias}, (x,)).square().sum()

    return func.grad(loss)(torch.ones(N, dtype=x.dtype))


def of_biases(layer, x):
    def call(bias):
        return func.functional_call(layer, {"bias": bias}, (x,))

    return func.vmap(call)(torch.arange(2 * N, dtype=x.dtype).view(2, N))


TRANSFORMS = {
    "jvp": lambda layer, x: func.jvp(layer, (x,), (2 * x,)),
    "jvp without grad": lambda layer, x: torch.no_grad()(func.jvp)(layer, (x,), (2 * x,)),
    "dual numbers": dual,
    "vjp": lambda layer, x: func.vjp(layer, x)[1](torch.ones(M, N, dtype=x.dtype)),
    "grad": lambda layer, x: func.grad(squares(layer))(x),
    "grad of the bias": of_bias,
    "vmap": lambda layer, x: func.vmap(layer)(x),
    "vmap over columns": lambda layer, x: func.vmap(layer, in_dims=2)(torch.stack([x, -x], 2)),
    "vmap of the bias": of_biases,
    "vmap of grad": lambda layer, x: func.vmap(func.grad(squares(layer)))(x),
    "jacrev": lambda layer, x: func.jacrev(layer)(x[0]),
    "jacfwd": lambda layer, x: func.jacfwd(layer)(x[0]),
    "hessian": lambda layer, x: func.hessian(squares(layer))(x[0]),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_transforms_give_what_a_dense_layer_gives(transform, dtype):
    layer, dense = layers(dtype)
    x = drawn(1, dtype)
    found, wanted = TRANSFORMS[transform](layer, x), TRANSFORMS[transform](dense, x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_layers_with_an_image_do_not_take_the_short_way(transform, monkeypatch):
    layer, dense = layers()

    def short(*_):
        raise AssertionError("the kernel, which knows nothing of tangents and batches")

    def values(image, weight, n, k, dtype):
        return dense.weight.detach().to(dtype)

    monkeypatch.setattr(ladder.nn.linear, "_linear_no_grad", short)
    monkeypatch.setattr(ladder.cuda.linear, "linear_no_grad", short)
    monkeypatch.setattr(ladder.cuda.linear, "_ops", types.SimpleNamespace(dequantize_image=values))
    monkeypatch.setattr(ladder.cuda.linear, "activation_type_of", lambda weight: "")
    layer._set_image(torch.zeros(1, dtype=torch.int32), 1)
    x = drawn(2)
    with pytest.raises(AssertionError, match="the kernel"), torch.no_grad():
        layer(x)
    found, wanted = TRANSFORMS[transform](layer, x), TRANSFORMS[transform](dense, x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def ops_of(call, x) -> set[str]:
    """The ops of ladder in the graph that torch.compile makes of `call`."""
    found = set()

    def backend(graph, inputs):
        found.update(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    torch._dynamo.reset()
    torch.compile(call, backend=backend, fullgraph=True)(x)
    return {op for op in found if op.startswith("ladder.")}


def test_compiled_layers_keep_their_op_and_compiled_transforms_do_without():
    layer, _ = layers()
    x = drawn(3)
    assert ops_of(layer, x) == {"ladder.linear"}
    assert ops_of(lambda v: func.vmap(layer)(v), x) == {"ladder.dequantize"}


@pytest.mark.parametrize("transform", ["jvp", "grad", "vmap"])
def test_transforms_within_torch_compile_and_around_it_are_right(transform):
    layer, dense = layers()
    x = drawn(4)
    wanted = TRANSFORMS[transform](dense, x)
    torch._dynamo.reset()
    within = torch.compile(
        lambda v: TRANSFORMS[transform](layer, v), backend="aot_eager", fullgraph=True
    )
    torch.testing.assert_close(within(x), wanted)
    compiled = torch.compile(layer, backend="eager")
    compiled(x)  # a graph that knows of no transform
    torch.testing.assert_close(TRANSFORMS[transform](compiled, x), wanted)


@pytest.mark.parametrize("dtype", ["int32", "float64"])
def test_what_is_no_activation_is_refused_under_transforms_as_without(dtype, monkeypatch):
    layer, dense = layers()
    x, message = drawn(5, getattr(torch, dtype)), f"x has dtype {dtype}, not float32, float16 or"
    for call in (layer, func.vmap(layer)):
        with pytest.raises(ladder.InvalidArgument, match=message):
            call(x)
    values = types.SimpleNamespace(dequantize_image=lambda *_: dense.weight.to(x.dtype))
    monkeypatch.setattr(ladder.cuda.linear, "_ops", values)
    layer._set_image(torch.zeros(1, dtype=torch.int32), 1)
    with pytest.raises(ladder.InvalidArgument, match=message):
        func.vmap(layer)(x)


def test_x_without_a_dimension_is_refused_under_transforms_as_without():
    layer, _ = layers()
    for call, x in ((layer, torch.zeros(())), (func.vmap(layer), torch.zeros(M))):
        with pytest.raises(ladder.InvalidArgument, match="x has no dimension; its last one must"):
            call(x)


def test_autocast_leaves_what_is_no_activation_to_be_refused():
    layer, _ = layers()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(drawn(6)).dtype == torch.bfloat16
        for dtype in ("int32", "float64"):
            with pytest.raises(ladder.InvalidArgument, match=f"x has dtype {dtype}, not float32"):
                layer(drawn(6, getattr(torch, dtype)))


def test_experts_take_every_transform_but_vmap_over_the_index_which_is_refused_by_name():
    """torch said of that one that a tensor has no storage."""
    torch.manual_seed(0)
    experts = ladder.Experts.from_tensors(torch.randn(4, 64, 64), torch.randn(4, 64, 32))
    x, index, weights = torch.randn(6, 64), torch.randint(0, 4, (6, 2)), torch.rand(6, 2)
    expected = experts(x, index, weights)
    # Torch's own ops add up to 64 float32 of up to 1e3 in another order: 16 roundings of 2^-24.
    close = functools.partial(torch.testing.assert_close, atol=1e-3, rtol=1e-5)
    close(func.vmap(lambda v: experts(v, index, weights))(x[None])[0], expected)
    close(func.vmap(lambda v: experts(x, index, v))(weights[None])[0], expected)
    forward = func.jacfwd(lambda v: experts(v, index, weights))(x)
    close(func.jacrev(lambda v: experts(v, index, weights))(x), forward)
    with pytest.raises(ladder.Unsupported, match="^ladder.Experts knows no torch.func.vmap over t"):
        func.vmap(experts)(x[:, None], index[:, None], weights[:, None])
