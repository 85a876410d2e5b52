# SPDX-License-Identifier: Apache-2.0
"""vLLM's own layers of experts on packed experts: they compute what ladder.Experts does, and what
the dense values give."""

from __future__ import annotations

from types import SimpleNamespace

import foreign
import pytest
import torch
from drawn import KINDS
from mixtures import (
    EXPERTS,
    HIDDEN,
    INTERMEDIATE,
    PREFIX,
    Model,
    Others,
    Stacks,
    expected,
    rank,
    routed,
    serve,
    write,
)

from ladder.errors import CheckpointError, Unsupported
from ladder.nn.gating import Gating

pytestmark = pytest.mark.usefixtures("vllm")

ZEROS = "uint4,group=32,scale=float16,zero=integer"
TWO = ("uint3,group=32,scale=float16", "nvfp4")


def served(stored: Stacks | Others, folder, method: str = "ladder", **options) -> Model:
    tensors = stored.tensors()
    return serve(write(folder, tensors, stored.config()), tensors, method, **options)


def check(stored: Stacks | Others, model: Model, gating: Gating | None = None) -> None:
    x, index, weights = routed()
    wanted = expected(stored, x, index, weights, gating)
    assert (model(x, index, weights) - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.parametrize("type", KINDS)
def test_stacks_of_each_kind_of_metadata_give_what_ladder_experts_gives(type, tmp_path):
    stacks = Stacks(type)
    model = served(stacks, tmp_path)
    check(stacks, model)
    x, index, weights = routed()
    assert torch.equal(model(x, index, weights), stacks.module()(x, index.long(), weights))


@pytest.mark.parametrize("bias", (False, True), ids=("plain", "bias"))
def test_the_two_stacks_may_have_types_of_their_own_and_biases(bias, tmp_path):
    stacks = Stacks(*TWO, bias=bias)
    check(stacks, served(stacks, tmp_path, has_bias=bias))


@pytest.mark.parametrize(
    "options, gating",
    [
        ({"activation": "gelu"}, Gating("gelu")),
        ({"activation": "gelu_tanh"}, Gating("gelu_pytorch_tanh")),
        ({"swiglu_limit": 2.0}, Gating("silu", 2.0)),
        ({"activation": "swigluoai"}, Gating("swigluoai", 7.0)),
    ],
    ids=("gelu", "gelu_tanh", "limit", "swigluoai"),
)
def test_every_function_of_the_gate_that_vllm_asks_for(options, gating, tmp_path):
    stacks = Stacks(ZEROS)
    model = served(stacks, tmp_path, **options)
    check(stacks, model, gating)


def test_an_activation_that_ladder_does_not_have_is_refused_by_name(tmp_path):
    with pytest.raises(Unsupported, match="experts with activation swiglustep"):
        served(Stacks(ZEROS), tmp_path, activation="swiglustep")


@pytest.mark.parametrize("tokens", (0, 1, 33))
def test_any_number_of_tokens_and_experts_of_nobody(tokens, tmp_path):
    stacks = Stacks(ZEROS)
    model = served(stacks, tmp_path)
    x, index, weights = routed(tokens)
    assert model(x, index, weights).shape == (tokens, HIDDEN)
    index[::2, 0] = -1
    whole = stacks.module()(x, torch.where(index < 0, EXPERTS, index).long(), weights)
    assert torch.equal(model(x, index, weights), whole)


def test_a_compiled_call_is_the_same(tmp_path):
    stacks = Stacks(ZEROS)
    model = served(stacks, tmp_path)
    x, index, weights = routed()
    method = model.experts.quant_method
    call = torch.compile(
        lambda *given: method.apply(model.experts, *given), backend="eager", fullgraph=True
    )
    assert torch.equal(call(x, weights, index), model(x, index, weights))


@pytest.mark.parametrize("kind, how", [
    (foreign.gptq, {"bits": 4, "symmetric": True}),
    (foreign.gptq, {"bits": 3, "symmetric": False}),
    (foreign.gptq, {"bits": 2, "symmetric": False}),
    (foreign.gptq, {"bits": 8, "symmetric": True}),
    (foreign.awq, {}),
    (foreign.compressed, {"bits": 4}),
    (foreign.compressed, {"bits": 4, "symmetric": False}),
], ids=str)  # fmt: skip
def test_unmodified_checkpoints_of_other_packages(kind, how, tmp_path):
    stored = Others(kind, exponent=-4, **how)
    check(stored, served(stored, tmp_path))


def test_models_with_a_loader_of_their_own_hand_on_experts_one_by_one(tmp_path):
    """As DeepSeek's in vLLM: names by a mapping, then the loaders of parameters."""
    from vllm.config import get_current_vllm_config
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

    stored = Others(foreign.gptq, bits=4, symmetric=False, exponent=-4)
    get_current_vllm_config().compilation_config.static_forward_context.clear()
    model = Model(write(tmp_path, stored.tensors(), stored.config()))
    parameters = dict(model.named_parameters())
    names = ("gate_proj", "down_proj", "up_proj")
    mapping = RoutedExperts.make_expert_params_mapping(model, *names, EXPERTS)
    for name, tensor in stored.tensors().items():
        to, of, expert, shard = next(entry for entry in mapping if entry[1] in name)
        inside = name.replace(of, to)
        parameter = parameters[inside]
        assert parameter.weight_loader(
            parameter, tensor, inside, shard_id=shard, expert_id=expert, return_success=True
        )
    model.finish()
    check(stored, model)


def test_biases_that_another_package_wrote_for_a_model_without_are_dropped(tmp_path):
    stored = Others(foreign.gptq, bits=4, symmetric=True, exponent=-4)
    zeros = {f"{PREFIX}.0.gate_proj.bias": torch.zeros(INTERMEDIATE)}
    folder = write(tmp_path, stored.tensors() | zeros, stored.config())
    check(stored, serve(folder, stored.tensors() | zeros))


@pytest.mark.parametrize("stored", [
    lambda: Stacks(ZEROS), lambda: Stacks(*TWO, bias=True),
    lambda: Others(foreign.gptq, bits=4, symmetric=False, exponent=-4),
    lambda: Others(foreign.awq, exponent=-4),
    lambda: Others(foreign.compressed, bits=4, exponent=-4),
], ids=("uint4", "two types, bias", "gptq", "awq", "compressed-tensors"))  # fmt: skip
@pytest.mark.parametrize("expert_parallel", (False, True), ids=("tensor", "expert"))
def test_two_ranks_add_up_to_the_whole(stored, expert_parallel, tmp_path):
    stored = stored()
    bias = bool(getattr(stored, "biases", {}))
    x, index, weights = routed()
    total = torch.zeros(x.shape[0], HIDDEN, dtype=torch.float64)
    for number in range(2):
        with rank(number, 2, expert_parallel=expert_parallel):
            model = served(stored, tmp_path, has_bias=bias)
            assert model.experts.local_num_experts == (2 if expert_parallel else 4)
            total += model(x, index, weights)
    wanted = expected(stored, x, index, weights)
    assert (total - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_groups_that_two_ranks_would_share_are_refused_by_name(tmp_path):
    stacks = Stacks(ZEROS, "uint4,group=64,scale=float16")
    with rank(1, 2), pytest.raises(Unsupported, match=r"experts\.down: columns 32 to 64 cut"):
        served(stacks, tmp_path)


# --- what does not fit ----------------------------------------------------------------------------


@pytest.mark.parametrize("part", ("qweight", "scales", "zeros"))
@pytest.mark.parametrize("stack", ("gate_up", "down"))
@pytest.mark.parametrize("from_disk", (False, True), ids=("not given", "not there"))
def test_a_tensor_that_does_not_come_is_named(from_disk, stack, part, tmp_path):
    stacks = Stacks(ZEROS)
    tensors, lost = stacks.tensors(), f"{PREFIX}.{stack}.{part}"
    if not from_disk:
        write(tmp_path, tensors, stacks.config())
    del tensors[lost]
    if from_disk:
        write(tmp_path, tensors, stacks.config())
    with pytest.raises(CheckpointError, match=lost.replace(".", r"\.")):
        serve(tmp_path, tensors)


@pytest.mark.parametrize("last", ("gate_proj.qweight", "down_proj.scales"))
def test_a_tensor_of_one_expert_that_does_not_come_is_named(last, tmp_path):
    stored = Others(foreign.gptq, bits=4, symmetric=True)
    tensors = stored.tensors()
    write(tmp_path, tensors, stored.config())
    del tensors[f"{PREFIX}.2.{last}"]
    with pytest.raises(CheckpointError, match=rf"experts\.2\.{last}"):
        serve(tmp_path, tensors)


@pytest.mark.parametrize("cut", ((slice(3),), (slice(None), slice(8))), ids=("experts", "rows"))
@pytest.mark.parametrize("on_disk", (False, True), ids=("given", "there"))
def test_a_tensor_of_another_shape_is_named_with_its_shape(on_disk, cut, tmp_path):
    stacks = Stacks(ZEROS)
    tensors, name = stacks.tensors(), f"{PREFIX}.down.scales"
    if not on_disk:
        write(tmp_path, tensors, stacks.config())
    tensors[name] = tensors[name][cut].contiguous()
    if on_disk:
        write(tmp_path, tensors, stacks.config())
    with pytest.raises(CheckpointError, match=r"experts\.down\.scales has shape \["):
        serve(tmp_path, tensors)


def test_experts_of_several_types_are_refused_by_name(tmp_path):
    stored = Others(foreign.gptq, bits=4, symmetric=True)
    tensors, settings = stored.tensors(), stored.config()
    other = Others(foreign.gptq, bits=8, symmetric=True).tensors()
    odd = {n: t for n, t in other.items() if n.startswith(f"{PREFIX}.3.up_proj.")}
    dynamic = {r"+:.*experts\.3\.up_proj": {"bits": 8}}
    folder = write(tmp_path, tensors | odd, settings | {"dynamic": dynamic})
    with pytest.raises(Unsupported, match=r"experts\.3\.up_proj is uint8.*gate_proj uint4"):
        serve(folder, tensors | odd)


def test_biases_of_stacks_without_a_place_in_the_model_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"gate_up\.bias is in the files"):
        served(Stacks(ZEROS, bias=True), tmp_path)


# --- loading again --------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [
    lambda seed: Stacks(*TWO, seed=seed),
    lambda seed: Others(foreign.gptq, bits=4, symmetric=False, exponent=-4 - seed),
], ids=("stacks", "gptq"))  # fmt: skip
def test_weights_that_come_again_take_the_place_of_the_first(stored, tmp_path):
    from vllm.config import get_current_vllm_config
    from vllm.model_executor.model_loader import reload

    first, second = stored(0), stored(1)
    get_current_vllm_config().compilation_config.static_forward_context.clear()
    model = Model(write(tmp_path, first.tensors(), first.config()))
    reload.record_metadata_for_reloading(model)
    model.load(first.tensors())
    model.finish()
    check(first, model)
    memory = {name: tensor.data_ptr() for name, tensor in model.experts.named_parameters()}
    reload.initialize_layerwise_reload(model)
    model.load(second.tensors())
    reload.finalize_layerwise_reload(model, None)
    check(second, model)
    assert {name: t.data_ptr() for name, t in model.experts.named_parameters()} == memory


def test_a_layer_keeps_one_copy_of_its_weights(tmp_path):
    stacks = Stacks(ZEROS)
    model = served(stacks, tmp_path)
    kept = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
            for t in model.experts.parameters()}  # fmt: skip
    bytes_of = [w.nbytes for weights in stacks.weights.values() for w in weights]
    assert sum(kept.values()) == sum(bytes_of)


# --- what is refused, and engines without files ---------------------------------------------------


def in_another_order() -> Others:
    """GPTQ with desc_act; the columns of gate and up are in one order, as their inputs are one."""
    stored = Others(foreign.gptq, bits=4, symmetric=True, order=True, exponent=-4)
    layers = stored.stored.layers
    for e in range(EXPERTS):
        gate, up = (layers[f"{PREFIX}.{e}.{name}"] for name in ("gate_proj", "up_proj"))
        up.group_of = gate.group_of
        up.tensors["g_idx"] = gate.tensors["g_idx"].clone()
    return stored


def test_columns_in_another_order(tmp_path):
    stored = in_another_order()
    check(stored, served(stored, tmp_path))


def test_columns_in_another_order_are_not_cut(tmp_path):
    refused = r"experts\.0\.down_proj may order columns.*enable_expert_parallel"
    with rank(0, 2), pytest.raises(Unsupported, match=refused):
        served(in_another_order(), tmp_path)


def test_gate_and_up_in_two_orders_are_refused_by_name(tmp_path):
    stored = Others(foreign.gptq, bits=4, symmetric=True, order=True)
    with pytest.raises(Unsupported, match=r"gate_proj and .*up_proj cannot be one .*g_idx differ"):
        served(stored, tmp_path)


@pytest.mark.parametrize("field, value, what", [
    ("is_lora_enabled", True, "LoRA"), ("dp_size", 2, "data or sequence"),
    ("num_experts", 6, "redundant"),
])  # fmt: skip
def test_what_experts_are_served_without_is_refused_by_name(field, value, what):
    from ladder.integrations.vllm.experts import ExpertsMethod

    moe = SimpleNamespace(
        activation="silu", is_lora_enabled=False, dp_size=1, is_sequence_parallel=False,
        num_experts=4, num_logical_experts=4,
    )  # fmt: skip
    ExpertsMethod(None, PREFIX, moe)
    setattr(moe, field, value)
    with pytest.raises(Unsupported, match=f"{PREFIX} has packed experts.*{what}"):
        ExpertsMethod(None, PREFIX, moe)


def test_router_weights_on_activations_are_refused_by_name(tmp_path):
    with pytest.raises(Unsupported, match=f"{PREFIX} multiplies activations by the router's"):
        served(Stacks(ZEROS), tmp_path, apply_router_weight_on_input=True)


@pytest.mark.parametrize("stored", [
    lambda: Stacks(*TWO, bias=True), lambda: Stacks("mxfp4"),
    lambda: Others(foreign.gptq, bits=3, symmetric=False, order=True),
    lambda: Others(foreign.compressed, bits=4, symmetric=False),
], ids=("two types", "mxfp4", "gptq", "compressed-tensors"))  # fmt: skip
def test_dummy_weights_are_finite(stored, tmp_path):
    from vllm.config import get_current_vllm_config

    stored = stored()
    config = get_current_vllm_config()
    config.compilation_config.static_forward_context.clear()
    folder = write(tmp_path, stored.tensors(), stored.config())
    model = Model(folder, has_bias=bool(getattr(stored, "biases", {})))
    model.experts.quant_method.dummy = True
    model.finish()
    assert model(*routed()).isfinite().all()
