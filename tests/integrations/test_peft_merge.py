# SPDX-License-Identifier: Apache-2.0
"""Adapters of PEFT merged into packed weights: what PEFT makes of the dense values, rounded once to
the type; and what was there before comes back."""

import copy
import itertools
import pickle
import warnings
from dataclasses import replace

import pytest
import torch
from adapted_nets import (
    MERGED,
    K,
    N,
    Net,
    adapted,
    dense_net,
    layers,
    mixed,
    moved,
    packed_net,
    x_of,
)
from torch import nn

import ladder
from ladder.errors import InvalidArgument, Unsupported
from ladder.nn.merged import MergedWeight
from ladder.nn.requantize import requantized

peft = pytest.importorskip("peft")

pytestmark = pytest.mark.filterwarnings("ignore:adapters")
every_kind = pytest.mark.parametrize("kind", MERGED)


def lora(net, *names, change=moved, **options):
    """LoRA of both layers, an adapter for each of ``names``."""
    torch.manual_seed(5)
    config = peft.LoraConfig(r=4, target_modules=["first", "second"], **options)
    model = peft.get_peft_model(net, config)
    for name in names:
        model.add_adapter(name, config)
    return change(model).eval()


def weights(net):
    return [net.first.packed_weight, net.second.packed_weight]


def bases(model):
    return [layer.get_base_layer() for layer in layers(model)]


def of_kind(kind, net):
    """BEFT adds to biases, and the second layer has none."""
    targets = ["first"] if kind == "BEFT" else ["first", "second"]
    return moved(adapted(kind, net, targets)).eval()


def rounded(dense, like):
    """What merging is to give: the dense layers' weights, quantised."""
    return [
        requantized(layer.weight.detach(), weight)
        for layer, weight in zip(dense, like, strict=True)
    ]


@every_kind
def test_the_merged_weight_is_that_of_peft_rounded_to_its_type(kind):
    model, dense = (of_kind(kind, net) for net in (packed_net(), dense_net()))
    before = weights(packed_net())
    merged, expected = model.merge_and_unload(), dense.merge_and_unload()
    assert type(merged.first) is ladder.Linear
    assert torch.equal(merged.first.bias, expected.first.bias)
    if kind == "BEFT":  # biases alone
        assert weights(merged) == before
        assert not torch.equal(merged.first.bias, packed_net().first.bias)
    else:
        assert weights(merged) == rounded([expected.first, expected.second], before)
        assert weights(merged) != before


@every_kind
def test_unmerging_gives_back_the_packed_weight_bit_for_bit(kind):
    model, x = of_kind(kind, packed_net()), x_of(3)
    before, apart = weights(packed_net()), model(x)
    model.merge_adapter()
    merged = copy.deepcopy(model).unload()
    assert torch.equal(model(x), merged(x))  # the adapter is not added twice
    model.unmerge_adapter()
    assert torch.equal(model(x), apart)
    plain = model.unload()
    assert weights(plain) == before and torch.equal(plain.first.bias, packed_net().first.bias)


@pytest.mark.parametrize("options", [{}, {"use_dora": True}, {"use_rslora": True}])
def test_lora_that_changes_nothing_leaves_the_weight_as_it_is(options):
    """DoRA's magnitudes are norms that other sums gave."""
    model = lora(packed_net(), change=lambda model: model, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert weights(model.merge_and_unload()) == weights(packed_net())


@pytest.mark.parametrize("options", [{"use_dora": True}, {"use_rslora": True}])
def test_forms_of_lora_are_those_of_peft(options):
    model, dense = (lora(net, **options).merge_and_unload() for net in (packed_net(), dense_net()))
    triples = zip(
        (model.first, model.second),
        (dense.first, dense.second),
        weights(packed_net()),
        strict=True,
    )
    for layer, expected, before in triples:
        (exact,) = rounded([expected], [before])
        # DoRA's norms of the dense layers are other sums: a few codes may be the next.
        moved_by = (layer.packed_weight.codes() != exact.codes()).float().mean()
        assert moved_by < 0.01 if "use_dora" in options else moved_by == 0


def test_adapters_that_come_one_after_the_other_are_rounded_once():
    both, one_by_one = (lora(packed_net(), "other") for _ in range(2))
    both.merge_adapter(["default", "other"])
    one_by_one.merge_adapter(["default"])
    first = [base.packed_weight for base in bases(one_by_one)]
    with pytest.warns(UserWarning, match="Already following adapters were merged default"):
        one_by_one.merge_adapter(["other"])
    for one, two, alone in zip(bases(one_by_one), bases(both), first, strict=True):
        assert one.packed_weight == two.packed_weight != alone
    one_by_one.unmerge_adapter()
    assert [base.packed_weight for base in bases(one_by_one)] == weights(packed_net())


@pytest.mark.parametrize("pair", itertools.permutations(("LOHA", "LORA", "OFT"), 2))
def test_kinds_on_one_layer_are_rounded_once_and_leave_in_any_order(pair):
    nets = [mixed(net, pair) for net in (packed_net(), dense_net())]
    outer = nets[0].base_model.model.first
    before = outer.get_base_layer().packed_weight
    outer.merge()
    alone = outer.get_base_layer().packed_weight
    outer.base_layer.merge()
    outer.unmerge()
    inner = outer.get_base_layer().packed_weight
    outer.base_layer.unmerge()
    assert outer.get_base_layer().packed_weight == before
    assert before != alone != inner != before
    merged, dense = (net.merge_and_unload() for net in nets)
    like = weights(packed_net())
    assert weights(merged) == rounded([dense.first, dense.second], like)


@pytest.mark.parametrize("safe", (False, True))
@pytest.mark.parametrize("unload", (False, True))
def test_an_adapter_that_is_not_finite_is_named_and_changes_nothing(safe, unload):
    model, x = lora(packed_net()), x_of(2)
    with torch.no_grad():
        layers(model)[1].lora_B["default"].weight[3, 1] = torch.nan
    before = [base.packed_weight for base in bases(model)]
    merge = model.merge_and_unload if unload else model.merge_adapter
    with pytest.raises(InvalidArgument, match=r"second: weight at \[3, 0\] would be nan"):
        merge(safe_merge=safe)
    assert [base.packed_weight for base in bases(model)] == before
    assert not any(layer.merged for layer in layers(model))
    model.unmerge_adapter()
    with pytest.raises(ValueError, match="is nan, not a finite|NaNs detected"):
        layers(model)[1].merge(safe_merge=safe)
    assert bases(model)[1].packed_weight == before[1] and not layers(model)[1].merged
    with model.disable_adapter():
        assert torch.equal(model(x), packed_net()(x))


def test_a_weight_that_its_type_cannot_hold_leaves_every_layer_as_it_was():
    model = lora(packed_net())
    with torch.no_grad():
        layers(model)[1].lora_B["default"].weight.mul_(1e9)  # beyond scales of float16
    before = [base.packed_weight for base in bases(model)]
    with pytest.raises(InvalidArgument, match="scale"):
        model.merge_adapter()
    assert [base.packed_weight for base in bases(model)] == before
    assert not any(layer.merged for layer in layers(model))


def test_the_columns_of_act_order_keep_their_groups():
    net = packed_net()
    weight = net.first.packed_weight
    order = torch.randperm(K, generator=torch.Generator().manual_seed(4))
    codes = torch.empty_like(weight.codes())
    codes[:, order] = weight.codes()
    g_idx = torch.empty(K, dtype=torch.int32)
    g_idx[order] = (torch.arange(K) // 32).int()
    scattered = replace(weight, qweight=ladder.ops.pack(codes, 4), g_idx=g_idx)
    net.first = ladder.Linear.from_weight(scattered, net.first.bias)
    model = lora(net)
    delta = layers(model)[0].get_delta_weight("default").detach()
    exact = requantized((scattered.dequantize() + delta)[:, order], weight)
    merged = model.merge_and_unload().first.packed_weight
    assert torch.equal(merged.g_idx, g_idx)
    assert torch.equal(merged.dequantize()[:, order], exact.dequantize())


def test_groups_that_the_type_does_not_have_are_refused_with_both_sizes():
    net = packed_net()
    weight = net.first.packed_weight
    g_idx = torch.zeros(K, dtype=torch.int32)
    net.first = ladder.Linear.from_weight(replace(weight, g_idx=g_idx), net.first.bias)
    model = lora(net)
    message = f"gives {K} columns to group 0, and groups of .* have 32"
    with pytest.raises(Unsupported, match=message):
        model.merge_adapter()
    assert bases(model)[0].packed_weight == replace(weight, g_idx=g_idx)


def test_columns_that_are_scaled_first_are_scaled_in_the_sum():
    net, unpacked = packed_net(), dense_net()
    scale = torch.linspace(0.5, 2, K)
    net.first.pre_scale = scale
    unpacked.first.weight.data.mul_(scale)
    model, dense = (lora(each).merge_and_unload() for each in (net, unpacked))
    assert torch.equal(model.first.pre_scale, scale)
    exact = requantized(dense.first.weight.detach() / scale, packed_net().first.packed_weight)
    assert model.first.packed_weight == exact
    net = packed_net()
    net.first.pre_scale = torch.arange(K).float()
    with pytest.raises(Unsupported, match="pre_scale is 0 at 0"):
        lora(net).merge_and_unload()


def test_biases_are_merged_into_the_parameters_that_they_are():
    net = packed_net()
    bias, value = net.first.bias, net.first.bias.detach().clone()
    torch.manual_seed(5)
    config = peft.LoraConfig(r=4, target_modules=["first"], lora_bias=True)
    model = moved(peft.get_peft_model(net, config))
    layer = layers(model)[0]
    sums = value + layer.lora_B["default"].bias * layer.scaling["default"]
    model.merge_adapter()
    assert net.first.base_layer.bias is bias and torch.equal(bias, sums)
    model.unmerge_adapter()
    assert torch.equal(bias, value)
    config = peft.LoraConfig(r=4, target_modules=["second"], lora_bias=True)
    with pytest.raises(RuntimeError, match="the base layer has no bias"):
        peft.get_peft_model(packed_net(), config).merge_adapter()


def test_layers_that_share_a_weight_get_their_own():
    torch.manual_seed(1)
    first, second = (
        ladder.Linear.from_linear(nn.Linear(K, N), "uint4", group_size=32) for _ in range(2)
    )

    class Twins(Net):
        def forward(self, x):
            return self.first(x) + self.second(x)

    results = []
    for shares in (False, True):
        net = Twins(copy.deepcopy(first), copy.deepcopy(second))
        if shares:
            MergedWeight(net, [net.first, net.second])
        model = lora(net)
        before = [base.packed_weight for base in bases(model)]
        model.merge_adapter()
        results.append(model(x_of(2)))
        merged = [base.packed_weight for base in bases(model)]
        model.unmerge_adapter()
        assert [base.packed_weight for base in bases(model)] == before != merged
        results.append(merged)
    assert torch.equal(results[0], results[2]) and results[1] == results[3]


def test_rows_of_a_packed_embedding_are_merged():
    torch.manual_seed(2)
    table = nn.Embedding(40, 32)
    packed = ladder.Embedding.from_embedding(table, "uint4", group_size=32)
    last = nn.Linear(32, 8)  # PEFT asks a parameter for its device
    nets = [nn.Sequential(packed, last), nn.Sequential(packed.dequantize(), last)]
    before, ids = packed.packed_weight, torch.arange(40)
    results = []
    for net in nets:
        torch.manual_seed(5)
        model = moved(peft.get_peft_model(net, peft.LoraConfig(r=4, target_modules=["0"])))
        apart = model(ids)
        model.merge_adapter()
        if net is nets[0]:
            assert packed.packed_weight != before
            model.unmerge_adapter()
            assert packed.packed_weight == before and torch.equal(model(ids), apart)
        results.append(model.merge_and_unload()[0])
    assert results[0] is packed
    assert packed.packed_weight == requantized(results[1].weight.detach(), before)


def test_one_warning_says_how_much_rounding_moves():
    model = lora(packed_net())
    deltas = [layer.get_delta_weight("default").detach() for layer in layers(model)]
    values = [base.packed_weight.dequantize() for base in bases(model)]
    with pytest.warns(UserWarning, match="merged into 2 packed layers, rounded to 2 types") as told:
        model.merge_adapter()
    assert len(told) == 1 and told[0].filename == __file__
    off = sum(
        (base.packed_weight.dequantize() - value - delta).square().sum()
        for base, value, delta in zip(bases(model), values, deltas, strict=True)
    )
    share = (off / sum(delta.square().sum() for delta in deltas)).sqrt()
    assert f"by {share:.2g} of what" in str(told[0].message)


def test_copies_and_pickles_of_merged_models_unmerge_by_themselves():
    model = lora(packed_net())
    model.merge_adapter()
    merged = [base.packed_weight for base in bases(model)]
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert [base.packed_weight for base in bases(twin)] == merged
        twin.unmerge_adapter()
        assert [base.packed_weight for base in bases(twin)] == weights(packed_net())
    assert [base.packed_weight for base in bases(model)] == merged


def test_a_model_that_is_unloaded_keeps_nothing_of_before():
    model = lora(packed_net())
    model.merge_adapter()
    merged = [base.packed_weight for base in bases(model)]
    net = model.unload()
    assert weights(net) == merged
    plain = set(vars(packed_net().first))
    assert set(vars(net.first)) == plain


@pytest.mark.parametrize("kind", ("LORA", "LOHA"))
def test_layers_that_are_made_dense_below_their_adapters_merge_as_peft_does(kind):
    net, x = packed_net(), x_of(3)
    model = lora(net) if kind == "LORA" else of_kind(kind, net)
    dense = dense_net()
    for layer, base in zip(layers(model), (dense.first, dense.second), strict=True):
        layer.base_layer = base
    apart = model(x)
    model.merge_adapter()
    assert all(layer.merged for layer in layers(model))
    torch.testing.assert_close(bases(model)[1](torch.tanh(bases(model)[0](x))), apart)
    model.unmerge_adapter()
    torch.testing.assert_close(model(x), apart)


def test_switching_an_adapter_off_unmerges_it_as_on_dense_layers():
    model, x = lora(packed_net()), x_of(2)
    model.merge_adapter()
    with model.disable_adapter():
        assert torch.equal(model(x), packed_net()(x))
    assert not any(layer.merged for layer in layers(model))


@pytest.mark.parametrize("kind", ("LILY", "POLY"))
def test_kinds_that_peft_does_not_merge_are_refused_and_change_nothing(kind):
    model = moved(adapted(kind, packed_net()))
    with pytest.raises(NotImplementedError, match=f"(?i){kind}"):
        model.merge_and_unload()
    assert type(model.unload().first) is ladder.Linear


def test_every_type_is_merged_into_by_its_name():
    """One layer each: the type stays what it is, and values are the nearest."""
    failed = []
    for name in ladder.types.type_names():
        try:
            layer = ladder.Linear.from_linear(nn.Linear(64, 64), name)
        except ValueError:
            continue
        model = moved(
            peft.get_peft_model(nn.Sequential(layer), peft.LoraConfig(r=2, target_modules=["0"]))
        )
        before = layer.packed_weight
        exact = before.dequantize() + model.base_model.model[0].get_delta_weight("default").detach()
        model.merge_adapter()
        if layer.packed_weight != requantized(exact, before):
            failed.append(name)
        model.unmerge_adapter()
        if layer.packed_weight != before:
            failed.append(name)
    assert failed == []
