# SPDX-License-Identifier: Apache-2.0
"""Scales that ladder.qat trains together with their weights."""

import copy
import pickle

import pytest
import torch
from drawn import stored_types
from torch import nn
from torch.nn.functional import mse_loss

import ladder
from ladder.errors import InvalidArgument
from ladder.nn import learned_steps
from ladder.qat.scales import objection
from ladder.types import parse

X = torch.randn(40, 64, generator=torch.Generator().manual_seed(5))
LEARNED = [each for each in stored_types() if not objection(parse(each))]


def dense(dtype=torch.float32) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 8)).to(dtype)


def prepared(type, *args, dtype=torch.float32, **options):
    model = dense(dtype)
    ladder.qat.prepare(model, type, *args, learned_scales=True, **options)
    return model


def seen_weight(layer):
    """The weight that products see, exactly: each output has one number that is not zero."""
    bias, layer.bias = layer.bias, None
    try:
        with torch.no_grad():
            return layer(torch.eye(layer.in_features, dtype=layer.weight.dtype)).T
    finally:
        layer.bias = bias


def moved(model, size=0.3):
    """``model`` as if it had been trained: weights, ranges and centres are others."""
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, each in model.named_parameters():
            if "bias" not in name:
                each *= 1 + size * torch.randn(each.shape, generator=draw)
    return model


@pytest.mark.parametrize("type", LEARNED)
def test_training_begins_with_the_scales_that_quantising_finds(type):
    model, packed = prepared(type), dense()
    ladder.convert(packed, type)
    wanted = packed[0].packed_weight
    assert str(model[0]).endswith("with learned scales)")
    values = seen_weight(model[0])
    ladder.qat.convert(model)
    made = model[0].packed_weight
    assert torch.equal(made.dequantize(), values)
    if wanted.scales.dtype == torch.float32:  # times half the range of codes, and divided by it
        torch.testing.assert_close(made.scales, wanted.scales, rtol=2**-23, atol=0)
        return
    assert torch.equal(made.scales, wanted.scales)
    if wanted.zeros is not None:
        assert torch.equal(made.zeros, wanted.zeros)
    if wanted.type.zero != "rescale":  # whose codes are the nearest before zeros are rounded
        assert torch.equal(values, wanted.dequantize())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("type", LEARNED)
def test_what_is_packed_is_what_products_saw(type, dtype):
    model = moved(prepared(type, dtype=dtype))
    start, values = prepared(type, dtype=dtype), [seen_weight(each) for each in model[::2]]
    ladder.qat.convert(model)
    ladder.qat.convert(start)
    for layer, other, value in zip(model[::2], start[::2], values, strict=True):
        layer.packed_weight.check()
        assert str(layer.weight_type) == str(parse(type))
        assert torch.equal(layer.packed_weight.dequantize(dtype), value)
        assert not torch.equal(layer.packed_weight.scales, other.packed_weight.scales)


def test_gradients_are_those_of_learned_step_sizes():
    """A step of SGD moves a scale as LSQ's, written down with torch's own gradients: that of the
    scale times 1 / sqrt(weights * largest level)."""
    type = "int4,group=32,scale=float32"
    model, lr = prepared(type), 0.1
    layer = model[0]
    parameters = ladder.qat.scale_parameters(model)
    assert list(parameters) == ["0.weight_range", "2.weight_range"]
    weight = layer.weight.detach().clone().requires_grad_()
    step = (layer.weight_range.detach() / 7.5).requires_grad_()
    ratio = (weight.unflatten(1, (2, 32)) / step[..., None]).clamp(-8, 7)
    level = ratio + (ratio.round() - ratio).detach()
    values = (level * step[..., None]).flatten(1)
    y = nn.functional.linear(X, values, layer.bias)
    torch.testing.assert_close(layer(X), y)
    for each in (layer(X), y):
        each.sin().sum().backward()
    torch.testing.assert_close(layer.weight.grad, weight.grad)
    wanted = step - lr * step.grad / (32 * 7.5) ** 0.5
    before = layer.weight_range.detach().clone()
    torch.optim.SGD([layer.weight_range], lr).step()
    assert (layer.weight_range - before).abs().min() > 0
    torch.testing.assert_close(layer.weight_range / 7.5, wanted)


@pytest.mark.parametrize("zero", ["integer", "quantized", "original", "rescale"])
def test_zero_points_get_gradients_from_weights_beyond_their_range(zero):
    """The values of weights beyond the ends of a group are these ends, centre minus and plus range,
    whatever the meaning of zero points."""
    model = nn.Sequential(nn.Linear(32, 4, bias=False))
    ladder.qat.prepare(model, f"uint3,channel,scale=float16,zero={zero}", learned_scales=True)
    layer = model[0]
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(-0.3, 0.5, 32).expand(4, 32))
        layer.weight[:, 0], layer.weight[:, 1] = -9, 9
        layer.weight_range.fill_(0.4375)  # a step of 1/8
        layer.weight_center.fill_(0.0625)  # -3/8 to 4/8
    assert layer.weight_center.shape == (4, 1)
    weight = torch.arange(32.0) + 1
    values = layer(torch.eye(32)).T
    assert torch.equal(values[:, :2], torch.tensor([[-0.375, 0.5]]).expand(4, 2))
    (values * weight).sum().backward()
    torch.testing.assert_close(layer.weight_center.grad, torch.full((4, 1), 3 / 32**0.5))
    assert not layer.weight.grad[:, :2].any() and torch.equal(layer.weight.grad[0, 2:], weight[2:])
    ladder.qat.convert(model)
    assert torch.equal(model[0].packed_weight.dequantize(), values)


def test_training_scales_finds_better_weights():
    """Than 40 steps with scales that are found anew in each."""
    target, losses = dense()(X).detach(), []
    for learned in (False, True):
        model = dense()
        ladder.qat.prepare(model, "uint2", 32, learned_scales=learned)
        optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0)
        for _ in range(40):
            mse_loss(model(X), target).backward()
            optimizer.step()
            optimizer.zero_grad()
        trained = model(X).detach()
        ladder.qat.convert(model)
        torch.testing.assert_close(model(X), trained, rtol=1e-5, atol=1e-5)
        losses.append(mse_loss(trained, target).item())
    assert losses[1] < 0.8 * losses[0], losses


def test_scales_that_are_not_learned_are_told(caplog):
    model = dense()
    report = ladder.qat.prepare(
        model, "uint4", 32, types={"2": "mxfp4"}, learned_scales=True, head=False
    )
    assert report.not_learned == {"2": "mxfp4 has scales of e8m0, not of 16 or 32 bits"}
    assert "  scales are not learned, mxfp4 has scales of e8m0, not of 16 or 32 bits: 2" in str(
        report
    )
    assert "scales of 1 of 2 weights are not learned" in caplog.text
    assert list(ladder.qat.scale_parameters(model)) == ["0.weight_range"]
    assert ladder.qat.prepare(dense(), "uint4", 32).not_learned == {}
    for type, why in (
        ("q4_k", "q4_k has two levels of scales"),
        ("nvfp4", "nvfp4 has two levels of scales"),
        ("uint4,zero=integer", "uint4,zero=integer has no scales"),
    ):
        assert objection(parse(type)) == why


def test_the_state_of_training_is_saved_and_resumed(tmp_path):
    """Weights, scales, zero points and the optimizer's numbers: the steps go on as if nothing had
    been."""
    type = "uint3,group=32,scale=float16,zero=integer"
    target = dense()(X).detach()

    def steps(model, optimizer, count):
        for _ in range(count):
            mse_loss(model(X), target).backward()
            optimizer.step()
            optimizer.zero_grad()

    model = prepared(type)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    steps(model, optimizer, 3)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "x")
    steps(model, optimizer, 3)
    again = prepared(type)
    stored, optimizer = torch.load(tmp_path / "x"), torch.optim.AdamW(again.parameters(), 3e-3)
    again.load_state_dict(stored["model"])
    optimizer.load_state_dict(stored["optimizer"])
    steps(again, optimizer, 3)
    assert {"0.weight_range", "0.weight_center"} <= stored["model"].keys()
    for one, other in zip(model.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_scales_begin_with_those_of_a_packed_model():
    """Which are not those of a search."""
    packed = dense()
    ladder.convert(packed, "uint2", 32, method="nearest")
    model = dense()
    ladder.qat.prepare(model, "uint2", 32, learned_scales=True, scales_of=packed)
    searched = ladder.quantize(model[0].weight, "uint2", group_size=32)
    ladder.qat.convert(model)
    for one, other in zip(model[::2], packed[::2], strict=True):
        assert torch.equal(one.packed_weight.scales, other.packed_weight.scales)
    assert not torch.equal(model[0].packed_weight.scales, searched.scales)


def test_scales_can_be_trained_alone():
    """Of weights that are frozen later; those that are frozen already have frozen scales."""
    model = dense()
    model[2].weight.requires_grad_(False)
    ladder.qat.prepare(model, "uint2", 16, False, learned_scales=True)
    model[0].weight.requires_grad_(False)
    model(X).square().sum().backward()
    assert model[0].weight_range.grad.any() and model[0].weight_center.grad.any()
    assert not model[2].weight_range.requires_grad
    assert [p.grad is None for p in (model[0].weight, model[2].weight)] == [True, True]


def test_what_is_refused():
    packed = dense()
    ladder.convert(packed, "uint2", 32, skip="2")
    model = dense()
    for options, said in (
        ({"scales_of": packed}, "^scales_of is given, but learned_scales is False"),
        ({"scales_of": packed, "learned_scales": True}, "^2: scales_of has a Linear there, which"),
        ({"scales_of": nn.Sequential(), "learned_scales": True}, "^0: scales_of has no module of"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            ladder.qat.prepare(model, "uint2", 32, **options)
    with pytest.raises(
        InvalidArgument, match=r"^0: scales_of has uint2,group=32.* not uint2,group=16"
    ):
        ladder.qat.prepare(model, "uint2", 16, learned_scales=True, scales_of=packed)
    assert [type(each) for each in model] == [nn.Linear, nn.GELU, nn.Linear]
    assert list(dict(model.named_parameters())) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_what_training_has_lost_is_named():
    model = prepared("uint4", 16, False)
    with torch.no_grad():
        model[2].weight[3, 5] = torch.nan
    for use in (lambda: model(X), lambda: ladder.qat.convert(model)):
        with pytest.raises(InvalidArgument, match="^2: weight at row 3, column 5 is nan, not"):
            use()
    model = prepared("uint4", 16, False)
    with torch.no_grad():
        model[2].weight_range[3, 1] = torch.inf
    with pytest.raises(InvalidArgument, match="^2: range of a scale at block 3, column 1 is inf"):
        ladder.qat.convert(model)


def test_the_way_back_leaves_nothing():
    model = prepared("nf4", 16)
    ladder.qat.restore(model)
    assert type(model[0]) is nn.Linear and not set(vars(model[0])) - set(vars(nn.Linear(1, 1)))
    assert list(dict(model.named_parameters())) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert torch.equal(model(X), dense()(X))
    assert not ladder.qat.scale_parameters(model)


def test_copies_and_pickles_have_scales_of_their_own():
    model = moved(prepared("uint3", 32))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(X), model(X)) and "with learned scales" in repr(other)
        assert other[0].weight_range is not model[0].weight_range
        ladder.qat.convert(other)
        assert torch.equal(other[0].packed_weight.dequantize(), seen_weight(model[0]))


@pytest.mark.parametrize("type", ["uint4,group=16,scale=float16,zero=integer",
                                  "float4_e2m1,group=16,scale=float16"])  # fmt: skip
def test_it_is_compiled_as_one_graph(type):
    model = prepared(type)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    compiled(X).sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(X).sum().backward()
    for one, p in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(one, p.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_products_see_the_packed_weight_in_their_dtype(dtype):
    model = moved(prepared("uint3", 32))
    with torch.autocast("cpu", dtype):
        y = model(X)
    assert y.dtype == dtype
    y.float().square().sum().backward()
    for name, each in model.named_parameters():
        assert each.grad.dtype == torch.float32 and each.grad.any(), name
    ladder.qat.convert(model)
    rounded = nn.Sequential(model[0].dequantize(), nn.GELU(), model[2].dequantize())
    with torch.autocast("cpu", dtype):
        assert torch.equal(rounded(X), y)


def test_recomputed_activations_give_the_same_gradients():
    found = []
    for again in (False, True):
        model = moved(prepared("uint3", 32))
        x = X.clone().requires_grad_()
        run = torch.utils.checkpoint.checkpoint if again else (lambda model, x, **_: model(x))
        run(model, x, use_reentrant=False).square().sum().backward()
        found.append([p.grad for p in model.parameters()])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_large_weights_are_rounded_in_parts(monkeypatch):
    """Rows at a time on a CPU: values and gradients are those of all at once."""
    found = []
    for part in (1 << 16, 100):
        monkeypatch.setattr(learned_steps, "_PART", part)
        model = moved(prepared("uint4,block=8x32,scale=float16,zero=rescale"))
        model(X).square().sum().backward()
        found.append([seen_weight(model[0]), *(p.grad for p in model.parameters())])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_groups_of_zeros_can_become_something():
    """A scale of zero would keep its group at zero whatever its weights become."""
    model = nn.Sequential(nn.Linear(32, 3, bias=False), nn.Linear(3, 8, bias=False))
    nn.init.zeros_(model[1].weight)
    with torch.no_grad():
        model[0].weight[1, :16] = 0
    ladder.qat.prepare(model, "uint4", 16, learned_scales=True)
    assert not seen_weight(model[0])[1, :16].any() and not seen_weight(model[1]).any()
    with torch.no_grad():
        model[0].weight[1, :16] = 0.2
        model[1].weight.fill_(0.2)
    assert seen_weight(model[0])[1, :16].all() and seen_weight(model[1]).all()


def test_replicas_train_alike():
    """One process of DistributedDataParallel, which reads its parameters once."""
    distributed = pytest.importorskip("torch.distributed")
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model, alone = prepared("uint2", 16, False), prepared("uint2", 16, False)
        parallel = nn.parallel.DistributedDataParallel(model)
        for each in (parallel, alone):
            each(X).square().sum().backward()
        for one, other in zip(model.parameters(), alone.parameters(), strict=True):
            assert torch.equal(one.grad, other.grad) and one.grad.any()
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sharded_scales_are_trained_and_not_packed(dtype):
    """One process of FSDP2, whose parameters are DTensors as those of many. It wants one dtype."""
    distributed = pytest.importorskip("torch.distributed")
    from torch.distributed.fsdp import fully_shard

    store, x = distributed.HashStore(), X.to(dtype)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model, alone = (prepared("uint2", 16, dtype=dtype).to(dtype) for _ in range(2))
        fully_shard(model)
        for each in (model, alone):
            each(x).square().sum().backward()
        grad = model[0].weight_range.grad.full_tensor()
        assert torch.equal(grad, alone[0].weight_range.grad)
        with pytest.raises(InvalidArgument, match="^0: its weight is a DTensor: gather the"):
            ladder.qat.convert(model)
    finally:
        distributed.destroy_process_group()


def test_gradients_of_each_row_by_torch_func():
    model = prepared("uint3", 32, False)
    parameters = dict(model.named_parameters())

    def loss(values, x):
        return torch.func.functional_call(model, values, (x,)).square().sum()

    of_rows = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, X[:3, None])
    model(X[:3]).square().sum().backward()
    for name, parameter in parameters.items():
        torch.testing.assert_close(of_rows[name].sum(0), parameter.grad, rtol=1e-4, atol=1e-4)


def test_convolutions_learn_theirs():
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(16, 8, 3, padding=1, stride=2, groups=2))
    image = torch.randn(2, 16, 9, 9, requires_grad=True)
    ladder.qat.prepare(model, "uint4", 24, False, convolutions=True, learned_scales=True)
    moved(model)
    y = model(image)
    y.square().sum().backward()
    assert all(each.grad.any() for each in model.parameters())
    ladder.qat.convert(model)
    torch.testing.assert_close(model(image), y, rtol=1e-4, atol=1e-4)  # sums of 72 products
