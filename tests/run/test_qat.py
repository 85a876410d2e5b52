# SPDX-License-Identifier: Apache-2.0
"""ladder.qat: products see rounded weights, gradients reach those that are not, and what is packed
has the values that were trained with."""

import copy
import pickle

import pytest
import torch
from drawn import stored_types, whole
from torch import nn

import ladder
from ladder.errors import InvalidArgument, Unsupported
from ladder.ops.activations import round_activations
from ladder.types import parse

#: Tolerances below are of the same numbers, summed in another order in float32: of gradients and
#: outputs of up to some tens.
X = torch.randn(40, 64, generator=torch.Generator().manual_seed(5))


def dense(dtype=torch.float32, k=64, inner=48) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(k, inner), nn.GELU(), nn.Linear(inner, 8)).to(dtype)


@pytest.mark.parametrize("type", stored_types())
def test_products_see_what_is_packed_later(type):
    """Of every type, with scales of each kind, zero points, second scales and blocks of rows."""
    k, inner = whole(type, 64), whole(type, 48)
    model, packed = (dense(k=k, inner=inner) for _ in range(2))
    if type == "uint4,zero=integer":  # of no scales
        for each in (*model[::2], *packed[::2]):
            nn.init.uniform_(each.weight, -7, 7, generator=torch.Generator().manual_seed(1))
    ladder.qat.prepare(model, type)
    ladder.convert(packed, type)
    wanted = packed[0].packed_weight.dequantize()
    assert torch.equal(model[0](torch.eye(k)), (wanted.T + packed[0].bias))
    ladder.qat.convert(model)
    for one, other in zip((model[0], model[2]), (packed[0], packed[2]), strict=True):
        assert isinstance(one, ladder.Linear) and one.weight_type == other.weight_type
        for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
            assert torch.equal(a, b)


def test_gradients_are_those_of_the_rounded_weights():
    model, packed = dense(), dense()
    ladder.qat.prepare(model, "uint3", 32)
    ladder.convert(packed, "uint3", 32)
    rounded = nn.Sequential(packed[0].dequantize(), nn.GELU(), packed[2].dequantize())
    for each in (model, rounded):
        each(X).square().sum().backward()
    for a, b in zip(model.parameters(), rounded.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-5)
        assert a.grad.abs().max() > 0


def test_parameters_stay_what_they_are():
    model = dense(torch.bfloat16)
    before, values = dict(model.named_parameters()), copy.deepcopy(model.state_dict())
    report = ladder.qat.prepare(model, "nf4", 16, skip="2")
    assert str(report).startswith("prepared 1 linear layers, 3.07 k weights")
    assert report.left["2"].reason == "named by skip"
    assert all(one is before[name] for name, one in model.named_parameters())
    y = model(X.bfloat16())
    assert y.dtype == torch.bfloat16
    assert not torch.equal(y, dense(torch.bfloat16)(X.bfloat16()))
    assert model.state_dict().keys() == values.keys()
    assert all(torch.equal(one, values[name]) for name, one in model.state_dict().items())
    dense(torch.bfloat16).load_state_dict(model.state_dict())
    ladder.qat.restore(model)
    assert type(model[0]) is nn.Linear and not set(vars(model[0])) - set(vars(nn.Linear(1, 1)))
    assert torch.equal(model(X.bfloat16()), dense(torch.bfloat16)(X.bfloat16()))


def test_training_finds_weights_that_are_better_once_rounded():
    model, target = dense(), dense()(X).detach()
    ladder.qat.prepare(model, "uint2", 32)
    nearest = (model(X) - target).square().mean().item()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0)
    for _ in range(40):
        (model(X) - target).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    trained = model(X).detach()
    ladder.qat.convert(model)
    torch.testing.assert_close(model(X), trained, rtol=1e-5, atol=1e-5)
    assert (model(X) - target).square().mean().item() < 0.25 * nearest


def test_layers_have_types_of_their_own():
    model = dense()
    ladder.qat.prepare(model, "uint4", 32, types={"2": "int8"}, method="nearest")
    report = ladder.qat.convert(model)
    assert report.packed == {
        "0": "uint4,group=32,scale=float16,zero=midpoint", "2": "int8,group=32,scale=float16",
    }  # fmt: skip
    wanted = dense()
    ladder.convert(wanted, "uint4", 32, types={"2": "int8"}, method="nearest")
    assert torch.equal(model[0].packed_weight.qweight, wanted[0].packed_weight.qweight)


def test_x_is_rounded_where_the_layer_will_round_it():
    model = dense()[:1]
    ladder.qat.prepare(model, "uint4", 32, activation_type="int8")
    ttype = parse("uint4,group=32,scale=float16,zero=midpoint")
    values = ladder.quantize(model[0].weight, ttype).dequantize()
    x = X.clone().requires_grad_()
    y = model(x)
    torch.testing.assert_close(y, round_activations(X, ttype) @ values.T + model[0].bias)
    assert not torch.allclose(y, X @ values.T + model[0].bias, atol=1e-5)
    y.sum().backward()
    torch.testing.assert_close(x.grad, values.sum(0).expand(40, -1))
    ladder.qat.convert(model)
    assert model[0].activation_type == "int8"
    torch.testing.assert_close(model(X), y, rtol=1e-4, atol=1e-4)


def test_x_is_not_rounded_to_what_its_device_does_not_multiply():
    """A CPU has no products of float8_e4m3: it must not take int8 in their place."""
    model = dense()
    ladder.qat.prepare(model, "uint4", 32, activation_type="float8_e4m3")
    with pytest.raises(Unsupported, match="^0: activation_type float8_e4m3 has kernels for .*cuda"):
        model(X)


def test_copies_pickles_hooks_and_second_names():
    model = dense()
    model.again, calls = model[0], []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    ladder.qat.prepare(model, "uint3", 32)
    y = model[0](X)
    for other in (copy.deepcopy(model[0]), pickle.loads(pickle.dumps(without_hooks(model[0])))):
        assert torch.equal(other(X), y) and "trained for uint3" in repr(other)
    ladder.qat.convert(model)
    assert model.again is model[0] and isinstance(model[0], ladder.Linear)
    before = len(calls)
    model[0](X)
    assert len(calls) == before + 1


def without_hooks(module):
    """Which no pickle holds."""
    other = copy.copy(module)
    other._forward_hooks = type(module._forward_hooks)()
    return other


def test_it_is_compiled_as_one_graph():
    model = dense()
    ladder.qat.prepare(model, "float4_e2m1", 16)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    compiled(X).sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(X).sum().backward()
    for one, p in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(one, p.grad)


def test_convolutions_are_trained_too():
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(16, 8, 3, padding=1, stride=2, groups=2))
    image = torch.randn(2, 16, 9, 9, requires_grad=True)
    wanted = copy.deepcopy(model)
    ladder.convert(wanted, "uint4", 24, convolutions=True)
    ladder.qat.prepare(model, "uint4", 24, convolutions=True)
    y = model(image)
    torch.testing.assert_close(y, wanted(image))
    y.square().sum().backward()
    assert model[0].weight.grad.shape == (8, 8, 3, 3) and model[0].weight.grad.abs().min() > 0
    report = ladder.qat.convert(model)
    assert report.convolutions == 1
    assert torch.equal(model[0].packed_weight.qweight, wanted[0].packed_weight.qweight)


def test_what_is_refused():
    model = dense()
    with pytest.raises(InvalidArgument, match="no layer of the model is prepared: use"):
        ladder.qat.convert(model)
    with pytest.raises(InvalidArgument, match="no layer of the model is prepared"):
        ladder.qat.restore(model)
    with pytest.raises(InvalidArgument, match='method is "best", not one of nearest, search'):
        ladder.qat.prepare(model, "uint4", method="best")
    with pytest.raises(InvalidArgument, match="type bfloat16 has 16 bits; training takes 1 to 8"):
        ladder.qat.prepare(model, "bfloat16")
    with pytest.raises(Unsupported, match="0: activation_type float8_e4m3"):
        ladder.qat.prepare(model, "nf4", 8, activation_type="float8_e4m3")
    with pytest.raises(InvalidArgument, match="^model is of str, not torch.nn.Module"):
        ladder.qat.prepare("model")
    with torch.no_grad():
        model[2].weight[3, 5] = torch.inf
    with pytest.raises(InvalidArgument, match="2: weight at row 3, column 5 is inf"):
        ladder.qat.prepare(model, "uint4", 16)
    assert [type(each) for each in model] == [nn.Linear, nn.GELU, nn.Linear]


def test_a_weight_that_training_has_lost_is_named():
    model = dense()
    ladder.qat.prepare(model, "uint4", 16)
    with torch.no_grad():
        model[2].weight[3, 5] = torch.nan
    for use in (lambda: model(X), lambda: ladder.qat.convert(model)):
        with pytest.raises(InvalidArgument, match="2: weight at row 3, column 5 is nan"):
            use()
    assert isinstance(model[0], ladder.Linear) and "trained for" in repr(model[2])


def test_prepared_layers_are_not_quantised_twice():
    model = dense()
    ladder.qat.prepare(model, "uint4", 16, skip="0")
    for again in (ladder.convert, ladder.qat.prepare):
        with pytest.raises(InvalidArgument, match='layer "2" is prepared for training: ladder.qat'):
            again(model)
    with pytest.raises(InvalidArgument, match='layer "2" is prepared'):
        ladder.choose_types(model, ["uint4"], 5, [X])


def test_sharded_weights_are_trained_and_not_packed():
    """One process of FSDP2, whose parameters are DTensors as those of many."""
    distributed = pytest.importorskip("torch.distributed")
    from torch.distributed.fsdp import fully_shard

    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model, alone = dense(), dense()
        for each in (model, alone):
            ladder.qat.prepare(each, "uint2", 16)
        fully_shard(model)
        for each in (model, alone):
            each(X).square().sum().backward()
        assert torch.equal(model[0].weight.grad.full_tensor(), alone[0].weight.grad)
        for use in (ladder.qat.convert, ladder.qat.restore):
            with pytest.raises(InvalidArgument, match="^0: its weight is a DTensor: gather the"):
                use(model)
        assert torch.equal(model(X), alone(X))
    finally:
        distributed.destroy_process_group()


def test_gradients_of_each_row_by_torch_func():
    model = dense()
    ladder.qat.prepare(model, "uint3", 32)
    parameters = dict(model.named_parameters())

    def loss(values, x):
        return torch.func.functional_call(model, values, (x,)).square().sum()

    of_rows = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, X[:3, None])
    model(X[:3]).square().sum().backward()
    for name, parameter in parameters.items():
        torch.testing.assert_close(of_rows[name].sum(0), parameter.grad, rtol=1e-4, atol=1e-4)
