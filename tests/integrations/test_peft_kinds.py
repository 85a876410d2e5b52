# SPDX-License-Identifier: Apache-2.0
"""Each kind of adapters of PEFT beside packed weights is PEFT's own beside the values of these
weights, or is refused by name."""

import pytest
import torch
from adapted_nets import (
    REFUSED,
    SUPPORTED,
    adapted,
    close,
    config_of,
    dense_net,
    layers,
    moved,
    options_of,
    packed_net,
    x_of,
)
from torch import nn

import ladder
from ladder.errors import Unsupported
from ladder.integrations import peft_kinds

peft = pytest.importorskip("peft")

#: They turn x or y, by numbers that are no integers.
TURNS = ("BOFT", "HRA", "OFT", "ROAD")


def test_the_tables_name_every_kind():
    """A kind that PEFT adds is refused until it is here."""
    assert set(SUPPORTED) == peft_kinds.SUPPORTED
    assert {*REFUSED, "FROD"} == peft_kinds.NEEDS_WEIGHT


@pytest.mark.parametrize("kind", SUPPORTED)
def test_results_and_gradients_are_those_of_dense_weights(kind):
    results, gradients, names = [], [], []
    for net in (packed_net(), dense_net()):
        codes = getattr(net.first, "qweight", None)
        before = None if codes is None else codes.clone()
        model = moved(adapted(kind, net)).train()
        torch.manual_seed(3)  # of those that drop
        x = x_of(2, 5).requires_grad_()
        results.append(model(x, **options_of(kind, x)))
        results[-1].square().sum().backward()
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        gradients.append([x.grad, *(p.grad for p in trained.values())])
        names.append(list(trained))
        assert before is None or torch.equal(layers(model)[0].get_base_layer().qweight, before)
    assert type(layers(model)[0]).__module__.startswith("peft.")
    assert names[0] == names[1] and names[0]
    assert close(*results)
    # A turn of all outputs alike leaves sums of squares as they were: ROAD's last angle has a
    # gradient of roundings.
    largest = max(g.norm() for g in gradients[1])
    for one, other in zip(*gradients, strict=True):
        assert close(one, other) or (one - other).norm() <= 1e-6 * largest
    assert not close(results[0], packed_net()(x_of(2, 5)))


@pytest.mark.parametrize("kind", [k for k in SUPPORTED if k not in (*TURNS, "POLY")])
def test_results_and_gradients_are_exact_where_the_layer_gets_integers(kind):
    """Then the layer's own sums are integers below 2^24, and the adapter's those of PEFT. POLY has
    an argument, which ``nn.Sequential`` does not take."""
    source = torch.Generator().manual_seed(2)
    x = torch.randint(-2, 3, (2, 5, 96), generator=source).float()
    weights = torch.randint(-2, 3, (2, 5, 32), generator=source).float()
    results = []
    for unpack in (False, True):
        layer = packed_net().first
        layer.scales.fill_(1)
        nn.init.zeros_(layer.bias)
        if unpack:
            layer = layer.dequantize()
        options = {"IA3": {"feedforward_modules": ["0"]}, "LOHA": {"alpha": 8}}.get(kind, {})
        model = moved(adapted(kind, nn.Sequential(layer), ["0"], **options), integers=True)
        seen = x.clone().requires_grad_()
        y = model(seen)
        (y * weights).sum().backward()
        results.append([y, seen.grad, *(p.grad for p in model.parameters() if p.requires_grad)])
    assert results[0][0].abs().max() > 1
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("low_memory", (False, True))
@pytest.mark.parametrize("kind", SUPPORTED)
def test_adapters_are_saved_and_loaded_beside_packed_and_dense_weights(kind, low_memory, tmp_path):
    model = moved(adapted(kind, packed_net())).eval()
    model.save_pretrained(tmp_path)
    again, dense = (
        peft.PeftModel.from_pretrained(net, tmp_path, low_cpu_mem_usage=low_memory).eval()
        for net in (packed_net(), dense_net())
    )
    x = x_of(2, 3)
    options = options_of(kind, x)
    wanted = model(x, **options)
    # Not to the bit: tensors of files may begin where libraries add up in another order.
    assert close(again(x, **options), wanted) and close(dense(x, **options), wanted)
    assert not close(wanted, packed_net()(x))


@pytest.mark.parametrize("kind", REFUSED)
def test_kinds_that_need_the_weight_are_refused_before_a_layer_is_replaced(kind):
    net = packed_net()
    with pytest.raises(Unsupported, match=f"{kind}: the adapter computes with the weight itself"):
        peft.get_peft_model(net, config_of(kind))
    assert type(net.first) is ladder.Linear and type(net.second) is ladder.Linear


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_kinds_come_to_the_dense_layers_of_the_model(kind):
    net = packed_net()
    net.second = net.second.dequantize()
    adapted(kind, net, ["second"])
    assert type(net.first) is ladder.Linear
    assert type(net.second).__module__.startswith("peft.")


def test_frod_is_refused_by_peft_and_by_name_beside_dense_layers():
    if not hasattr(peft, "FrodConfig"):
        pytest.skip("this release of PEFT has no FrodConfig")
    config = peft.FrodConfig(target_modules=["first", "second"])
    with pytest.raises(ValueError, match="No layer types compatible with FRoD were found"):
        peft.get_peft_model(packed_net(), config)
    net = packed_net()
    net.second = net.second.dequantize()
    with pytest.raises(Unsupported, match="FROD: the adapter computes with the weight itself"):
        peft.get_peft_model(net, config)
    assert type(net.first) is ladder.Linear


@pytest.mark.parametrize("kind", ("ADAMSS", "ONE_THAT_PEFT_MAY_ADD"))
def test_kinds_that_were_not_tried_are_refused(kind):
    with pytest.raises(Unsupported, match=f"{kind}: the adapter is not tested"):
        peft_kinds.check_kind(kind, None, has_backends=True)


def test_miss_is_refused_where_it_multiplies_the_weight():
    with pytest.raises(Unsupported, match="init_weights is 'bat', with which MiSS multiplies"):
        adapted("MISS", packed_net(), init_weights="bat")


@pytest.mark.parametrize("kind", sorted(peft_kinds.NEEDS_BACKEND))
def test_releases_of_peft_whose_layers_read_the_weight_are_named(kind):
    with pytest.raises(Unsupported, match=f"{kind} on packed weights needs PEFT 0.20 or newer"):
        peft_kinds.check_kind(kind, None, has_backends=False)
