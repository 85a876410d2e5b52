# SPDX-License-Identifier: Apache-2.0
"""What models with adapters of PEFT other than LoRA are asked for, beside packed weights."""

import copy
import itertools
import pickle

import pytest
import torch
from adapted_nets import (
    SUPPORTED,
    Beside,
    Net,
    adapted,
    close,
    config_of,
    dense_net,
    layers,
    mixed,
    moved,
    options_of,
    packed_net,
    x_of,
)

import ladder
from ladder.errors import Unsupported
from ladder.integrations.peft_kinds import READS_ONCE
from ladder.nn.merged import MergedWeight
from ladder.nn.merged_layer import MergedLinear
from ladder.nn.parallel import ParallelLinear

peft = pytest.importorskip("peft")

every_kind = pytest.mark.parametrize("kind", SUPPORTED)


@every_kind
def test_unloading_gives_the_packed_model_back(kind):
    net = moved(adapted(kind, packed_net())).unload()
    assert type(net.first) is ladder.Linear and type(net.second) is ladder.Linear
    assert torch.equal(net(x_of(3)), packed_net()(x_of(3)))


@every_kind
def test_adapters_are_switched_off_exchanged_and_deleted(kind):
    x = x_of(2, 3)
    options = options_of(kind, x)
    results = []
    for net in (packed_net(), dense_net()):
        model = adapted(kind, net)
        # PEFT trains one adapter of AdaLoRA at a time.
        frozen = {"inference_mode": True} if kind == "ADALORA" else {}
        model.add_adapter("other", config_of(kind, **frozen))
        model = moved(model).eval()
        first = model(x, **options)
        with model.disable_adapter():
            bare = model(x, **options)
        model.set_adapter("other", inference_mode=bool(frozen))
        other = model(x, **options)
        model.delete_adapter("default")
        assert torch.equal(model(x, **options), other)
        results.append((first, bare, other))
    assert all(close(*pair) for pair in zip(*results, strict=True))
    first, bare, other = results[0]
    assert torch.equal(bare, packed_net()(x))
    assert not close(first, bare) and not close(other, bare) and not close(first, other)


@every_kind
def test_copies_pickles_and_compiled_code_give_the_same(kind):
    x = x_of(2, 3)
    options = options_of(kind, x)
    model = moved(adapted(kind, packed_net())).eval()
    wanted = model(x, **options)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(x, **options), wanted)
    torch.compiler.reset()
    compiled = torch.compile(model.get_base_model(), backend="aot_eager")
    assert close(compiled(x, **options), wanted)


@every_kind
@pytest.mark.parametrize("autocast", (False, True))
def test_bfloat16_is_that_of_dense_weights(kind, autocast):
    x = x_of(2, 3)
    results = []
    for net in (packed_net(), dense_net()):
        if not autocast:
            net, x = net.to(torch.bfloat16), x.to(torch.bfloat16)
        model = moved(adapted(kind, net)).eval()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            results.append(model(x, **options_of(kind, x)))
    assert results[0].dtype == results[1].dtype
    # x, y and what is between the layers, and within an adapter.
    assert (results[0] - results[1]).norm() <= 8 * 2**-8 * results[1].norm()


@every_kind
def test_layers_that_share_a_weight_are_as_apart(kind):
    """Adapters that add in place do not write to their siblings' part."""
    results = []
    for shares in (False, True):
        net = Beside(packed_net().first, packed_net().first)
        shared = MergedWeight(net, [net.first, net.second]) if shares else None
        model = moved(adapted(kind, net))
        own = layers(model)[1].get_base_layer()
        assert isinstance(own, MergedLinear) == (shared is not None)
        x = x_of(2, 3).requires_grad_()
        torch.manual_seed(3)
        y = model(x, **options_of(kind, x))
        y.square().sum().backward()
        results.append((y, x.grad))
    assert all(close(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("kind", [kind for kind in SUPPORTED if kind not in ("ADALORA", "C3A")])
def test_adapters_that_are_active_together_follow_each_other_as_on_dense_weights(kind):
    """Of the other two PEFT runs one at a time."""
    x = x_of(2, 3)
    results = []
    for net in (packed_net(), dense_net()):
        model = adapted(kind, net)
        model.add_adapter("other", config_of(kind))
        model = moved(model).eval()
        alone = model(x, **options_of(kind, x))
        model.base_model.set_adapter(["default", "other"])
        results.append(model(x, **options_of(kind, x)))
    assert close(*results) and not close(results[1], alone)


@pytest.mark.parametrize("kind", sorted(READS_ONCE))
def test_columns_that_are_scaled_first_count_where_an_adapter_begins_with_the_weight(kind):
    net, unpacked = packed_net(), dense_net()
    scale = torch.linspace(0.5, 2, net.first.in_features)
    net.first.pre_scale = scale
    unpacked.first.weight.data.mul_(scale)
    results = [moved(adapted(kind, each)).eval()(x_of(3)) for each in (net, unpacked)]
    assert close(*results)


MIXED = ("LOHA", "LOKR", "LORA", "OFT", "SHIRA")


@pytest.mark.parametrize(
    ("first", "second"), [pair for pair in itertools.permutations(MIXED, 2) if pair[1] != "SHIRA"]
)  # PEFT puts SHiRA on no other adapter
def test_kinds_are_mixed_in_one_model(first, second):
    results = []
    for net in (packed_net(), dense_net()):
        model = mixed(net, (first, second))
        results.append(model.eval()(x_of(3)))
        if net.first.get_base_layer().__class__ is ladder.Linear:
            assert type(model.unload().first) is ladder.Linear
    assert close(*results)
    assert not close(results[0], packed_net()(x_of(3)))


@pytest.mark.parametrize("kind", ("LOKR", "OFT"))
def test_adapters_come_to_a_model_that_stays_its_own_class(kind):
    """As transformers and diffusers have it."""
    results = []
    for net in (packed_net(), dense_net()):
        torch.manual_seed(5)
        peft.inject_adapter_in_model(config_of(kind, init_weights=False), net, adapter_name="mine")
        results.append(net(x_of(3)))
    assert type(net) is Net
    assert close(*results) and not close(results[0], packed_net()(x_of(3)))


@pytest.mark.parametrize("which", ("boft_only", "all"))
def test_biases_train_beside_adapters(which):
    biases = []
    for net in (packed_net(), dense_net()):
        model = moved(adapted("BOFT", net, bias=which))
        trained = dict(model.named_parameters())
        assert [name for name, p in trained.items() if p.requires_grad and name.endswith("bias")]
        model(x_of(3)).square().sum().backward()
        biases.append(layers(model)[0].get_base_layer().bias.grad)
    assert close(*biases)


def test_releases_with_backends_are_told_whose_the_layer_is():
    status = adapted("VERA", packed_net()).get_layer_status()[0]
    if not hasattr(status, "quantization_backend"):
        pytest.skip("this release of PEFT does not say")
    assert status.quantization_backend == "ladder"


@pytest.mark.parametrize("kind", ("LOKR", "OFT"))
def test_layers_that_end_with_more_than_their_sums_have_no_adapters(kind):
    """And the packed layers are where they were."""
    net = packed_net()
    net.second.activation = "silu"
    with pytest.raises(Unsupported, match="this one ends with its activation, silu"):
        adapted(kind, net, ["second"])
    net.first.__class__ = ParallelLinear
    with pytest.raises(Unsupported, match="adapters need whole layers"):
        adapted(kind, net, ["first"])
    assert type(net.first) is ParallelLinear and type(net.second) is ladder.Linear


@pytest.mark.parametrize("kind", ("LOHA", "VERA"))
def test_packed_modules_to_save_are_refused(kind):
    with pytest.raises(Unsupported, match="modules_to_save: second is packed"):
        adapted(kind, packed_net(), ["first"], modules_to_save=["second"])


def test_adalora_gives_ranks_back_and_its_file_has_those_that_are_left(tmp_path):
    budget = {"tinit": 1, "tfinal": 1, "deltaT": 1, "init_r": 6, "target_r": 2}
    model = moved(adapted("ADALORA", packed_net(), **budget)).train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for step in range(9):
        model(x_of(4)).square().mean().backward()
        optimizer.step()
        model.base_model.update_and_allocate(step)
        optimizer.zero_grad()
    wanted = model.eval()(x_of(3))
    model.save_pretrained(tmp_path)
    for net in (packed_net(), dense_net()):
        again = peft.PeftModel.from_pretrained(net, tmp_path).eval()
        assert close(again(x_of(3)), wanted)
        assert sum(len(layer.lora_A["default"]) for layer in layers(again)) == 2 * 2
