# SPDX-License-Identifier: Apache-2.0
"""Layers merged into one weight hold and save what they did apart; which layers can be merged."""

import copy
import pickle

import pytest
import torch
from drawn import TWO_LEVELS
from merging import SIZES, TYPE, Block, K, drawn, merged, packed, pair, same_state
from torch import nn

import ladder
from ladder.nn.gated import RunsGated
from ladder.nn.joined import objection
from ladder.nn.merged_layer import MergedLinear
from ladder.ops.gating import Gating


@pytest.mark.parametrize(
    "type",
    [
        TYPE,
        "uint3,group=32,scale=float16,zero=quantized",
        "mxfp4",
        "nf4",
        "int4,block=8x32,scale=float16",
        TWO_LEVELS,
    ],
)
def test_the_layers_look_as_they_did(type):
    apart, joined, _ = pair(type=type)
    assert {*joined._modules} == {*apart._modules}
    assert [n for n, _ in joined.named_parameters()] == [n for n, _ in apart.named_parameters()]
    assert same_state(joined, apart)
    assert torch.equal(joined.k.dequantize().weight, apart.k.dequantize().weight)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, copy.copy, lambda layer: pickle.loads(pickle.dumps(layer))]
)
def test_a_copy_of_a_layer_is_a_layer_by_itself(copied):
    apart, joined, products = pair()
    layer, x = copied(joined.k), drawn()
    assert type(layer) is ladder.Linear and same_state(layer, apart.k)
    assert torch.equal(layer(x), apart.k(x)) and not products


def test_a_copy_of_a_model_keeps_nothing_of_the_merged_weight():
    apart, joined, _ = pair()
    again = pickle.loads(pickle.dumps(copy.deepcopy(joined)))
    x = drawn()
    assert torch.equal(again(x), apart(x))
    assert not any(isinstance(module, MergedLinear) for module in again.modules())


CHANGES = {
    "to": lambda block, other: block.to(torch.float16).float(),
    "load": lambda block, other: block.load_state_dict(other.state_dict()),
    "assign": lambda block, other: block.load_state_dict(other.state_dict(), assign=True),
    "set_weight": lambda block, other: block.k.set_weight(other.k.packed_weight),
    "bias": lambda block, other: setattr(block.k, "bias", nn.Parameter(other.k.bias.detach())),
    "unoptimize": lambda block, other: ladder.unoptimize(block),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_a_layer_takes_the_merged_weight_apart(change):
    apart, joined, products = pair()
    other, x = Block(), drawn()
    for block in (apart, joined):
        CHANGES[change](block, other)
    assert torch.equal(joined(x), apart(x)) and not products
    assert same_state(joined, apart)
    assert all(type(layer) is ladder.Linear for layer in joined.layers())
    assert not joined._forward_hooks and not joined._forward_pre_hooks
    parts = [
        part for layer in joined.layers() for part in (layer.qweight, layer.scales, layer.bias)
    ]
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 9


def test_what_changes_nothing_leaves_the_layers_merged():
    _, joined, _ = pair()
    joined.to("cpu").float().eval().requires_grad_(False)
    assert all(isinstance(layer, MergedLinear) for layer in joined.layers())


def test_an_optimizer_that_knows_the_biases_still_changes_them():
    apart, joined, _ = pair()
    x = drawn()
    for block in (apart, joined):
        optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
        before = [layer.bias for layer in block.layers()]
        block(x).sum().backward()
        optimizer.step()
        assert all(a is b.bias for a, b in zip(before, block.layers(), strict=True))
    with torch.no_grad():
        assert torch.equal(joined(x), apart(x))


def test_data_parallel_is_refused_by_name():
    _, joined, _ = pair()
    with pytest.raises(ladder.Unsupported, match="call ladder.unoptimize"):
        joined.q._replicate_for_data_parallel()


OBJECTIONS = {
    "types differ": lambda: (
        packed(16),
        packed(16, type="uint3,group=32,scale=float16,zero=midpoint"),
    ),
    "in_features differ: 64, 96": lambda: (packed(16), packed(16, k=96)),
    "dtypes differ": lambda: (packed(16), packed(16).half()),
    "dtypes of biases differ": lambda: (packed(16), packed(16, bias=False)),
    "meta device": lambda: (packed(16), packed(16).to("meta")),
    "not ladder.Linear": lambda: (packed(16), nn.Linear(K, 16)),
    "blocks of 32 rows would be cut: the layers have 16, 32 rows": lambda: (
        packed(16, type="int4,block=32x32,scale=float16"),
        packed(32, type="int4,block=32x32,scale=float16"),
    ),
}


@pytest.mark.parametrize("reason", OBJECTIONS)
def test_layers_that_cannot_share_a_weight_are_told_why(reason):
    assert reason in objection(OBJECTIONS[reason]())


def test_a_forward_that_was_replaced_stays():
    layers = [packed(16), packed(16)]
    layers[1].forward = layers[1].forward
    assert "replaced the forward" in objection(layers)


def test_one_scale_of_all_rows_is_merged_where_it_is_the_same():
    block = Block(type="int4,tensor,scale=float16")
    assert objection(block.layers()) == "scales differ"
    for layer in block.layers():
        layer.scales.copy_(block.q.scales)
    apart, x = copy.deepcopy(block), drawn()
    assert objection(block.layers()) == ""
    with torch.no_grad():
        assert torch.equal(merged(block)[0](x), apart(x)) and same_state(block, apart)
    ladder.unoptimize(block)
    assert same_state(block, apart)


@pytest.mark.parametrize("type", ["nvfp4", TWO_LEVELS])
def test_layers_whose_second_scales_differ_are_merged_and_get_their_own_back(type):
    """Of whole tensors they become those of rows in the weight; layers keep what they have."""
    block = Block(type=type)
    block.k.scale2.mul_(4)
    apart, x = copy.deepcopy(block), drawn()
    assert objection(block.layers()) == ""
    joined, products = merged(block)
    with torch.no_grad():
        assert torch.equal(joined(x), apart(x)) and len(products) == 1
    whole = block.q._merged.linear
    assert whole.weight_type == ladder.ttype(type).with_second_scales_of_rows()
    assert all(layer.weight_type == ladder.ttype(type) for layer in block.layers())
    assert same_state(joined, apart)
    for one, other in zip(block.layers(), apart.layers(), strict=True):
        assert one.packed_weight == other.packed_weight
    ladder.unoptimize(block)
    assert same_state(block, apart)


def test_second_scales_of_rows_share_the_memory_of_the_whole_until_layers_have_their_own():
    block = Block(type=TWO_LEVELS)
    merged(block)
    whole = block.q._merged.linear.scale2
    memory = {each.scale2.untyped_storage().data_ptr() for each in block.layers()}
    assert memory == {whole.untyped_storage().data_ptr()}
    ladder.unoptimize(block)
    assert all(each.scale2.untyped_storage().nbytes() < whole.nbytes for each in block.layers())


def test_act_order_is_merged_where_it_is_the_same():
    order = (torch.arange(K) % 2).to(torch.int32)
    other = (torch.arange(K) // 32).to(torch.int32)

    def layer(g_idx):
        weight = packed(16).packed_weight
        parts = weight.tensors() | {"g_idx": g_idx}
        return ladder.Linear.from_weight(ladder.Weight(weight.type, weight.shape, **parts))

    assert objection([layer(order), layer(other)]) == "g_idx differ"
    assert (
        objection([layer(order), packed(16, bias=False)])
        == "some layers have g_idx, others have not"
    )
    block = Block(bias=False)
    block.q, block.k, block.v = layer(order), layer(order), layer(order)
    apart = copy.deepcopy(block)
    x = drawn()
    assert objection(block.layers()) == ""
    assert torch.equal(merged(block)[0](x), apart(x)) and same_state(block, apart)


@pytest.fixture
def kernels(monkeypatch):
    """Images on the CPU: an image is the codes, the ops of kernels are played by torch."""
    from ladder.cuda import image, kernels

    weights, numbers = {}, {}

    def open_weight(type, n, k, gather, gating, function, **_):
        assert function == ""
        return numbers.setdefault((type, n, k, str(gating)), len(numbers) + 1)

    def pack(weight, number, order, rows):
        codes = weight.qweight if rows is None else weight.qweight[rows]
        codes = codes.flatten().clone()
        weights[codes.data_ptr()] = weight
        return codes

    def unpack(codes, number, type, n, k, rows):
        found = codes.view(n, -1).clone()
        return found if rows is None else found[rows.argsort()]

    def linear(x, codes, bias, number, n):
        y = weights[codes.data_ptr()].linear(x, bias)
        return y if y.shape[-1] == n else Gating()(y)

    monkeypatch.setattr(kernels, "possible", lambda device: True)
    monkeypatch.setattr(kernels, "objection", lambda *_: "")
    monkeypatch.setattr(kernels, "load_transforms", lambda *_: "")
    monkeypatch.setattr(image, "open_weight", open_weight)
    monkeypatch.setattr(image, "pack", pack)
    monkeypatch.setattr(image, "unpack", unpack)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: torch.cpu.Stream())
    monkeypatch.setattr(torch.cpu.Stream, "synchronize", lambda self: None, raising=False)
    library = torch.library.Library("ladder", "IMPL")
    library.impl("linear_image_no_grad", linear, "CPU")
    yield numbers
    library._destroy()


def test_the_number_of_a_weight_is_known_before_kernels_that_pack_it_are_compiled(
    kernels, monkeypatch
):
    layer, seen = packed(32), []
    monkeypatch.setattr("ladder.cuda.kernels.load_transforms", lambda *_: seen.append("") or "")
    assert layer.prepare(lambda n: seen.append(layer.kernel_request(torch.half, (1, 8), n)))
    assert seen == [layer.kernel_request(torch.half, (1, 8)), ""]
    assert layer.prepare(lambda _: seen.append("again")) and len(seen) == 2


def test_gate_and_up_are_one_image_with_rows_in_turn_and_give_back_their_codes(kernels):
    mlp = ladder.GatedMLP.from_layers(
        *(packed(32, bias=False) for _ in range(2)), packed(K, bias=False, k=32), gating=Gating()
    )
    apart, x = copy.deepcopy(mlp), drawn().half()
    with torch.no_grad():
        want = apart(x)
        assert mlp.fuse() == "" and mlp.fuse() == ""
        assert isinstance(mlp, RunsGated) and mlp.gate_proj.qweight is None
        assert "activation=silu" in str(list(kernels))
        image = mlp._gated.linear.image.view(64, -1)
        assert torch.equal(image[8:16], apart.up_proj.qweight[:8])  # eight and eight
        assert same_state(mlp, apart)
        eps = torch.finfo(torch.half).eps  # both round gate and up, or their product, and y
        torch.testing.assert_close(mlp(x), want, rtol=2 * eps, atol=2 * eps)
        layers = mlp.gate_proj, mlp.up_proj
        (request,) = {layer.kernel_request(torch.half, (1,)) for layer in layers}
        assert request.gated and request.columns == 32 and request.shape == (64, K)
        ladder.unoptimize(mlp)
        assert type(mlp) is ladder.GatedMLP and same_state(mlp, apart)


def test_weights_in_the_form_of_kernels_are_merged_into_one_image(kernels):
    block = Block()
    apart, x = copy.deepcopy(block), drawn()
    with torch.no_grad():
        want = apart(x)
        for layer in block.layers():
            assert layer.prepare() and layer.image is not None and layer.qweight is None
        joined, products = merged(block)
        assert joined.q._merged.linear.qweight is None
        assert torch.equal(joined(x), want) and len(products) == 1
        assert same_state(joined, apart)
        image = joined.q.image
        assert image.numel() == sum(layer.qweight.numel() for layer in apart.layers())
        assert all(layer.image is image and layer.qweight is None for layer in joined.layers())
        assert all(layer.prepare() for layer in joined.layers())
        requests = {layer.kernel_request(torch.float16, (1, 8)) for layer in joined.layers()}
        assert [request.shape for request in requests] == [(sum(SIZES), K)]
        ladder.unoptimize(joined)
        assert torch.equal(joined(x), want) and same_state(joined, apart)
