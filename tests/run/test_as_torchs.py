# SPDX-License-Identifier: Apache-2.0
"""Packed layers take what callers of torch's layers give them, or say what they do not take."""

import pytest
import torch
from drawn import exact_weight
from torch import nn
from torch.nn.utils import parametrize, prune

import ladder
from ladder.errors import InvalidArgument, Unsupported
from ladder.nn.parallel import ParallelLinear

N, K = 24, 64
TYPE = "uint4,group=32,scale=float16"


def linear():
    bias = nn.Parameter(torch.arange(N).float())
    layer = ladder.Linear.from_weight(exact_weight(TYPE, N, K), bias)
    return layer, layer.dequantize()


def numbers(*shape):
    """Of small integers: sums are exact in any order."""
    generator = torch.Generator().manual_seed(3)
    return torch.randint(-2, 3, shape, generator=generator).float()


def conv():
    return ladder.Conv2d.from_float(nn.Conv2d(16, 8, 3), "uint4", group_size=16)


# --- the name of the argument --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "x"),
    [(lambda: linear()[0], numbers(2, K)), (conv, numbers(2, 16, 5, 5))],
    ids=["Linear", "Conv2d"],
)
def test_x_may_be_called_as_in_torch(make, x):
    layer = make()
    wanted = layer(x)
    for call in (layer, layer.forward, torch.compile(layer, backend="eager", fullgraph=True)):
        assert torch.equal(call(input=x), wanted)
        assert torch.equal(call(x=x), wanted)
    program = torch.export.export(layer, (), {"input": x})
    assert torch.equal(program.module()(input=x), wanted)
    with pytest.raises(InvalidArgument, match="^x and input are both given"):
        layer(x, input=x)
    with pytest.raises(InvalidArgument, match="^x is of NoneType, not a tensor$"):
        layer()


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(K, K), nn.GELU(), nn.Linear(K, K)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class QKV(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(K, K) for _ in range(4))

    def forward(self, x):
        return self.out(input=self.q(x).sigmoid() * self.k(x) + self.v(x))


def test_layers_of_an_optimized_model_may_be_called_so_too():
    torch.manual_seed(0)
    model, x = nn.Sequential(MLP(), QKV()), torch.randn(2, 3, K)
    ladder.convert(model, "uint4", group_size=32)
    wanted = model(x), model[0].fc1(x), model[1].q(x), nn.functional.gelu(x)
    done = ladder.optimize(model, example=x)
    assert done.activated and len(done.merged) == 1
    found = model(x), model[0].fc1(input=x), model[1].q(input=x), model[0].act(input=x)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)


def test_every_class_of_linear_layers_takes_both_names():
    kinds = [ladder.Linear, *ladder.Linear.__subclasses__()]
    assert ParallelLinear in kinds
    for kind in kinds:
        names = kind.forward.__code__.co_varnames
        assert {"x", "input"} <= set(names) or "args" in names, kind


# --- layouts of x --------------------------------------------------------------------------------


def jagged(x, **options):
    return torch.nested.nested_tensor(
        [x[:3], x[3:4], x[4:]], layout=torch.jagged, requires_grad=True, **options
    )


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("residual", [False, True])
def test_rows_of_several_lengths_are_tokens(compiled, residual):
    layer, dense = linear()
    x = numbers(7, K)
    given, wanted = jagged(x), x.clone().requires_grad_()
    call = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer
    y, rows = call(given), dense(wanted)
    if residual:
        y, rows = call(given, y), rows + rows
    assert y.is_nested and y.shape[:2] == given.shape[:2]
    assert torch.equal(y.values(), rows)
    y.values().square().sum().backward()
    rows.square().sum().backward()
    assert torch.equal(given.grad.values(), wanted.grad)
    assert torch.equal(layer.bias.grad, dense.bias.grad)


def test_rows_of_several_lengths_may_lie_behind_heads():
    layer, dense = linear()
    with torch.no_grad():
        x = jagged(numbers(7, 4 * K)).unflatten(-1, (4, K))
        found = layer(x.transpose(1, 2)).transpose(1, 2)
        assert torch.equal(found.values(), dense(x.values()))
        with pytest.raises(InvalidArgument, match="^the last dimension of x is ragged; the weight"):
            layer(jagged(numbers(7, K)).transpose(1, 2))


def test_a_gated_mlp_takes_rows_of_several_lengths():
    torch.manual_seed(0)
    mlp, x = ladder.GatedMLP(K, 96, weight_type="uint4", group_size=32), torch.randn(7, K)
    for layer in (mlp.gate_proj, mlp.up_proj, mlp.down_proj):
        shape = layer.out_features, layer.in_features
        layer.set_weight(ladder.quantize(torch.randn(shape), layer.weight_type))
    y = mlp(jagged(x))
    assert y.values().any() and torch.equal(y.values(), mlp(x))


@pytest.mark.parametrize("optimized", [False, True])
@pytest.mark.parametrize("activation_type", [None, "int8"])
def test_models_take_rows_of_several_lengths(optimized, activation_type):
    torch.manual_seed(0)
    model, x = nn.Sequential(MLP(), QKV()), torch.randn(7, K)
    ladder.convert(model, "uint4", group_size=32, activation_type=activation_type)
    if optimized:
        ladder.optimize(model, example=x)
    wanted = model(x)
    for graded in (False, True):
        with torch.set_grad_enabled(graded):
            assert torch.equal(model(jagged(x)).values(), wanted)
    given = jagged(x)
    model(given).values().sum().backward()
    rows = x.clone().requires_grad_()
    model(rows).sum().backward()
    torch.testing.assert_close(given.grad.values(), rows.grad)  # one product, or three


def test_other_layers_refuse_rows_of_several_lengths_by_name():
    x, one = jagged(numbers(7, K)), torch.ones(7, 1)
    experts = ladder.Experts.from_tensors(torch.randn(2, K, K), torch.randn(2, K, 32))
    for call, name in (
        (lambda: experts(x, one.long(), one), "hidden_states"),
        (lambda: conv()(x), "x"),
        (lambda: ladder.BatchedLinear(2, K, N)(x), "x"),
    ):
        with pytest.raises(InvalidArgument, match=f"^{name} is a nested tensor, which this module"):
            call()


OTHERS = {
    "sparse_coo": lambda x: x.to_sparse(),
    "sparse_csr": lambda x: x.to_sparse_csr(),
    "mkldnn": lambda x: x.to_mkldnn(),
}


@pytest.mark.parametrize("layout", OTHERS)
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_other_layouts_are_refused_by_name(layout):
    layer, x = linear()[0], numbers(4, K)
    with pytest.raises(InvalidArgument, match=f"^x has layout torch._?{layout}, not torch.strided"):
        layer(OTHERS[layout](x))
    with pytest.raises(InvalidArgument, match=f"^residual has layout torch._?{layout}, not"):
        layer(x, OTHERS[layout](numbers(4, N)))
    assert torch.equal(layer(OTHERS[layout](x).to_dense()), layer(x))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_that_are_not_jagged_are_refused_by_name():
    x = torch.nested.nested_tensor([torch.ones(2, K), torch.ones(1, K)])
    with pytest.raises(InvalidArgument, match="^x is a nested tensor of layout torch.strided: "):
        linear()[0](x)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float8_e4m3fn, torch.float64])
def test_convolutions_refuse_dtypes_as_linear_layers_do(dtype):
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(InvalidArgument, match=f"^x has dtype {name}, not float32, float16 or "):
        conv()(torch.ones(1, 16, 5, 5).to(dtype))


# --- gradients, weights --------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(K,), (3, K), (2, 3, K)])
def test_gradients_may_be_asked_for_in_batches(shape):
    layer, dense = linear()
    found, wanted = (
        torch.autograd.functional.jacobian(each, numbers(*shape), vectorize=True)
        for each in (layer, dense)
    )
    assert torch.equal(found, wanted)
    grads = []
    for each in (layer, dense):
        y = each(numbers(*shape))
        outer = torch.stack([torch.ones_like(y), 2 * torch.ones_like(y)])
        grads += torch.autograd.grad(y, each.bias, outer, is_grads_batched=True)
    assert torch.equal(*grads)


class Twice(nn.Module):
    def forward(self, bias):
        return 2 * bias


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: prune.l1_unstructured(layer, "bias", 0.5),
        lambda layer: parametrize.register_parametrization(layer, "bias", Twice()),
    ],
    ids=["pruned", "parametrised"],
)
def test_a_bias_may_be_pruned_and_parametrised(change):
    """It is no parameter of that name then."""
    results, before = [], linear()[1](numbers(3, K))
    for layer in linear():
        change(layer)
        y = layer(numbers(3, K))
        y.sum().backward()
        results.append((y, *(parameter.grad for parameter in layer.parameters())))
    assert not torch.equal(results[0][0], before)
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][-1])  # the dense layer's weight has one, too


@pytest.mark.parametrize("make", [lambda: linear()[0], conv], ids=["Linear", "Conv2d"])
@pytest.mark.parametrize("kind", [nn.Parameter, torch.Tensor])
def test_a_weight_cannot_be_assigned(make, kind):
    layer = make()
    weight = kind(torch.zeros(layer.weight.shape))
    with pytest.raises(Unsupported, match=r"^weight is packed, as uint4,.*: set_weight takes a la"):
        layer.weight = weight
    assert layer.packed_weight.dequantize().any()


@pytest.mark.parametrize("strict", [False, True])
def test_a_state_dict_of_dense_layers_is_refused_whole(strict):
    """With strict=False it brought its biases, and left the weights as they were."""
    model = nn.Sequential(linear()[0])
    state = nn.Sequential(nn.Linear(K, N)).state_dict()
    before = {name: part.clone() for name, part in model.state_dict().items()}
    with pytest.raises(
        InvalidArgument, match=r"^0\.weight is of a dense layer, and this one is pa"
    ):
        model.load_state_dict(state, strict=strict)
    assert all(torch.equal(part, before[name]) for name, part in model.state_dict().items())


MADE_IN_INFERENCE = {
    "convert": lambda model: ladder.convert(model, "uint4", 32, convolutions=True),
    "from_linear": lambda model: model.append(ladder.Linear.from_linear(model.pop(-1), "nf4", 32)),
    "experts": lambda model: model.append(
        ladder.Experts.from_tensors(torch.randn(2, 64, 32), torch.randn(2, 32, 32))
    ),
}


@pytest.mark.parametrize("how", MADE_IN_INFERENCE)
def test_layers_that_were_quantised_in_inference_mode_can_be_trained_with(how):
    """As layers that are dense can, when such a mode has ended."""
    model = nn.Sequential(nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(16, 32))
    with torch.inference_mode():
        MADE_IN_INFERENCE[how](model)
    x = torch.randn(2, 16, 3, 3, requires_grad=True)
    y = model[:3](x)
    if how == "experts":
        y = model[3](y, torch.tensor([[0], [1]]), torch.ones(2, 1))
    y.square().sum().backward()
    assert x.grad.any() and model[0].bias.grad.any() and model[2].bias.grad.any()
