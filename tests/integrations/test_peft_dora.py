# SPDX-License-Identifier: Apache-2.0
"""DoRA beside packed weights is PEFT's own beside the values of these weights."""

import copy

import pytest
import torch
from adapted_nets import Beside, close, dense_net, layers, packed_net, x_of

from ladder.nn.merged import MergedWeight
from ladder.nn.merged_layer import MergedLinear

peft = pytest.importorskip("peft")

PARTS = ("lora_A", "lora_B", "lora_magnitude_vector")


def adapted(net, **options):
    config = {"r": 4, "lora_alpha": 6, "use_dora": True, "target_modules": ["first", "second"]}
    return peft.get_peft_model(net, peft.LoraConfig(**config | options))


def draw(model, seed=1):
    """Random adapters, whose magnitudes are not the norms."""
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in layers(model):
            for part in PARTS:
                weight = getattr(layer, part)["default"].weight
                weight.copy_(torch.rand(weight.shape, generator=source) + 0.1)
    return model


def test_it_begins_as_the_model_without_with_the_norms_of_rows():
    model = adapted(packed_net())
    assert torch.equal(model(x_of(3)), packed_net()(x_of(3)))
    norms = dense_net().first.weight.norm(dim=1)
    assert close(layers(model)[0].lora_magnitude_vector["default"].weight, norms)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert len(trained) == 6 and sum("magnitude" in name for name in trained) == 2


@pytest.mark.parametrize("dropout", (0.0, 0.5))
def test_results_and_gradients_are_those_of_dense_weights(dropout):
    results, gradients = [], []
    for net in (packed_net(), dense_net()):
        model = draw(adapted(net, lora_dropout=dropout)).train()
        torch.manual_seed(3)
        x = x_of(2, 5).requires_grad_()
        results.append(model(x))
        results[-1].square().sum().backward()
        parts = [
            getattr(layer, part)["default"].weight for layer in layers(model) for part in PARTS
        ]
        gradients.append([x.grad, *(part.grad for part in parts)])
    assert type(layers(model)[0]).__module__.startswith("peft.")
    assert close(*results) and all(close(*pair) for pair in zip(*gradients, strict=True))
    assert not close(results[0], packed_net()(x_of(2, 5)))


@pytest.mark.parametrize("low_memory", (False, True))
def test_adapters_are_saved_and_loaded_beside_packed_and_dense_weights(tmp_path, low_memory):
    model = draw(adapted(packed_net()))
    model.save_pretrained(tmp_path)
    again, dense = (
        peft.PeftModel.from_pretrained(net, tmp_path, low_cpu_mem_usage=low_memory)
        for net in (packed_net(), dense_net())
    )
    # Not to the bit: tensors of files may begin where libraries add up in another order.
    assert close(again(x_of(3)), model(x_of(3)))
    assert close(dense(x_of(3)), model(x_of(3)))
    with again.disable_adapter():
        assert torch.equal(again(x_of(3)), packed_net()(x_of(3)))


def test_norms_follow_weights_that_change_and_copies():
    """Twice the weight and twice B A have twice the norm, so that y but for the bias stays."""
    model = draw(adapted(packed_net()))
    layer = layers(model)[0]
    before, twin = layer(x_of(3)), copy.deepcopy(layer)
    assert torch.equal(twin(x_of(3)), before)
    with torch.no_grad():
        twin.base_layer.scales.mul_(2)
        twin.lora_B["default"].weight.mul_(2)
    assert close(twin(x_of(3)), before)
    assert torch.equal(layer(x_of(3)), before)


def test_columns_that_are_scaled_first_count():
    net, dense = packed_net(), dense_net()
    scale = torch.linspace(0.5, 2, net.first.in_features)
    net.first.pre_scale = scale
    dense.first.weight.data.mul_(scale)
    assert close(draw(adapted(net))(x_of(3)), draw(adapted(dense))(x_of(3)))


def test_layers_that_share_a_weight_are_as_apart():
    """Of which each has its own rows."""
    results = []
    for shares in (False, True):
        net = Beside(packed_net().first, packed_net().first)
        shared = MergedWeight(net, [net.first, net.second]) if shares else None
        model = draw(adapted(net))
        assert isinstance(layers(model)[1].base_layer, MergedLinear) == (shared is not None)
        results.append(model(x_of(3)))
    assert torch.equal(*results)


def test_compiled_code_and_half_activations():
    model = draw(adapted(packed_net()))
    wanted = model(x_of(3))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert close(compiled(x_of(3)), wanted)
    half = adapted(packed_net().to(torch.bfloat16))
    draw(half)
    y = half(x_of(3).to(torch.bfloat16))
    assert y.dtype == torch.bfloat16
    # x, y and what is between the layers, the layer's own result and its sum with the adapter's.
    assert (y - wanted).norm() <= 4 * 2**-8 * wanted.norm()
