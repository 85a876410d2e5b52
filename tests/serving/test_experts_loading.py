# SPDX-License-Identifier: Apache-2.0
"""Packed experts in vLLM's layers: tensors that do not fit or do not come are named, what is not
served is refused by name, weights that come again are written to the memory of the first."""

from __future__ import annotations

from types import SimpleNamespace

import foreign
import pytest
import torch
from mixtures import (
    EXPERTS,
    PREFIX,
    TOP_K,
    Model,
    Others,
    Stacks,
    check,
    rank,
    routed,
    serve,
    served,
    write,
)
from mlps import engine

from ladder.errors import CheckpointError, Unsupported

pytestmark = pytest.mark.usefixtures("vllm")

ZEROS = "uint4,group=32,scale=float16,zero=integer"
TWO = ("uint3,group=32,scale=float16", "nvfp4")


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


def test_numbers_for_columns_are_refused_by_name(tmp_path):
    with pytest.raises(Unsupported, match=r"experts\.0\.gate_proj multiplies columns of x"):
        served(Others(foreign.modelopt, algorithm="W4A16_AWQ"), tmp_path)


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


# --- kernels that are compiled meanwhile ----------------------------------------------------------


@pytest.fixture
def warmer(monkeypatch):
    """Of an engine on a processor that takes it for a GPU with kernels for everything; with the
    arguments of what is compiled for experts."""
    from ladder.cuda import experts, kernels
    from ladder.integrations.vllm.warm import Warmer

    calls = []
    monkeypatch.setattr(kernels, "possible", lambda device: True)
    monkeypatch.setattr(kernels, "objection", lambda *weight: "")
    monkeypatch.setattr(kernels, "load_transforms", lambda *weight: "")
    monkeypatch.setattr(experts, "compile_ahead", lambda *given: calls.append(given))
    with engine() as config:
        config.compilation_config.static_forward_context.clear()
        yield Warmer.of(config, torch.float16), calls


def compiled(warmer) -> list[tuple]:
    made, calls = warmer
    for thread in made.experts._under_way.values():
        thread.join()
    return calls


@pytest.mark.parametrize("stored", [
    lambda: Stacks(ZEROS),
    lambda: Stacks(*TWO),
    lambda: Others(foreign.gptq, bits=4, symmetric=True),
    lambda: Others(foreign.compressed, bits=4, symmetric=False),
], ids=("zeros", "two types", "gptq", "compressed-tensors"))  # fmt: skip
def test_what_is_compiled_while_weights_load_is_what_they_take(
    stored, tmp_path, warmer, monkeypatch
):
    from vllm.config import get_current_vllm_config

    from ladder.integrations.serving import mixture

    stored = stored()
    tensors = stored.tensors()
    folder = write(tmp_path, tensors, stored.config())
    Model(folder, dtype=torch.float16)
    get_current_vllm_config().compilation_config.static_forward_context.clear()
    model = Model(folder, dtype=torch.float16)
    (given,) = compiled(warmer)
    model.load(tensors)
    room, gating = model.experts.quant_method.room, model.experts.quant_method.gating
    weights = [room.rooms[name].take(model.experts) for name in ("gate_up", "down")]
    monkeypatch.setattr(mixture, "_ops", SimpleNamespace(expert_rows=lambda *given: 1))
    assert given[0] == mixture._numbers(weights, torch.float16, gating)
    assert given[1:2] + given[3:] == (EXPERTS, torch.float16, 0)
    rows, most = given[2], model.experts.quant_method.most_tokens
    assert rows[0] == TOP_K and rows[-1] >= TOP_K * most
    assert all(later == 2 * row for row, later in zip(rows[:-1], rows[1:], strict=True))


def test_nothing_is_compiled_for_experts_in_another_order(tmp_path, warmer):
    stored = in_another_order()
    Model(write(tmp_path, stored.tensors(), stored.config()), dtype=torch.float16)
    assert compiled(warmer) == []


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


def test_stacks_with_columns_in_another_order(tmp_path):
    """As transformers saves the experts of a GPTQ folder with desc_act."""
    stacks = Stacks("uint4,group=16,scale=float16,zero=midpoint", act_order=True)
    assert f"{PREFIX}.down.g_idx" in stacks.tensors()
    check(stacks, served(stacks, tmp_path))


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
    ExpertsMethod(SimpleNamespace(), PREFIX, moe)
    setattr(moe, field, value)
    with pytest.raises(Unsupported, match=f"{PREFIX} has packed experts.*{what}"):
        ExpertsMethod(SimpleNamespace(), PREFIX, moe)


def test_experts_take_activations_as_they_come_and_it_is_said_once(tmp_path, caplog):
    from ladder.integrations.serving.layer import say_as_it_comes

    say_as_it_comes.cache_clear()
    stored = Stacks(ZEROS)
    for _ in range(2):
        config = stored.config() | {"activation_type": "int8"}
        check(stored, serve(write(tmp_path, stored.tensors(), config), stored.tensors()))
    said = [r.getMessage() for r in caplog.records if "as they come" in r.getMessage()]
    assert len(said) == 1 and "experts without kernels take no activation_type int8" in said[0]


def test_experts_that_ask_for_several_activation_types_take_none(tmp_path, caplog):
    from ladder.integrations.serving.layer import say_as_it_comes

    say_as_it_comes.cache_clear()
    stored = Stacks(ZEROS)
    config = stored.config() | {"activation_types": {f"{PREFIX}.gate_up": "int8"}}
    model = serve(write(tmp_path, stored.tensors(), config), stored.tensors())
    check(stored, model)
    assert model.experts.quant_method.room.activation_type == ""
    assert "are to have x rounded in several ways" in caplog.text


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
