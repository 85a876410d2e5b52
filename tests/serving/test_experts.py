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
    check,
    expected,
    rank,
    routed,
    serve,
    served,
    write,
)

from ladder.errors import Unsupported
from ladder.ops.gating import Gating

pytestmark = pytest.mark.usefixtures("vllm")

ZEROS = "uint4,group=32,scale=float16,zero=integer"
TWO = ("uint3,group=32,scale=float16", "nvfp4")


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
    (foreign.compressed_8, {"activations": "int8"}),
    (foreign.compressed_8, {"activations": "float8 static"}),
    (foreign.w4afp8, {}),
    (foreign.auto_round, {"packing": "auto_round:auto_gptq"}),
    (foreign.quark, {"dtype": "fp4"}),
    (foreign.quark, {"dtype": "fp8_e4m3"}),
    (foreign.modelopt, {"algorithm": "NVFP4"}),
    (foreign.modelopt, {"algorithm": "FP8"}),
    *((foreign.fp8, {"form": form}) for form in ("blocks", "small blocks", "tensor", "static")),
], ids=lambda each: getattr(each, "__name__", str(each)))  # fmt: skip
def test_unmodified_checkpoints_of_other_packages(kind, how, tmp_path):
    stored = Others(kind, exponent=-4, **how)
    check(stored, served(stored, tmp_path))


def test_gate_and_up_may_have_second_scales_of_their_own(tmp_path):
    """Of one expert: all of a layer have one type."""
    stored = Others(foreign.modelopt, algorithm="NVFP4", exponent=-4)
    truth = stored.stored.layers[f"{PREFIX}.1.up_proj"]
    truth.tensors["weight_scale_2"] = truth.tensors["weight_scale_2"] * 4
    truth.scales = truth.scales * 4
    model = served(stored, tmp_path)
    check(stored, model)


def test_logits_in_padded_rows_reach_the_kernels_of_the_router_without_padding(tmp_path):
    """As torch.compile hands them on; those kernels do not ask for strides."""
    router = served(Stacks(ZEROS), tmp_path).get_submodule(PREFIX).router
    x, index, weights = routed()
    seen = []

    def select(hidden_states, router_logits, **more):
        seen.append(router_logits)
        return weights, index

    router._select_experts = select
    logits = torch.rand(len(x), 2 * EXPERTS)[:, :EXPERTS]
    assert router.select_experts(hidden_states=x, router_logits=logits)[1] is index
    assert seen[0].is_contiguous() and torch.equal(seen[0], logits)


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
    lambda: Others(foreign.fp8, form="static", exponent=-4),
], ids=("uint4", "two types, bias", "gptq", "awq", "compressed-tensors", "fp8"))  # fmt: skip
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


def test_where_there_are_kernels_images_are_all_that_is_kept(tmp_path, monkeypatch):
    """The calls, and what they are given; kernels themselves need a GPU."""
    from ladder.cuda import expert_layer, experts, image, kernels
    from ladder.integrations.serving import mixture
    from ladder.integrations.vllm.warm_experts import ExpertsWarmer
    from ladder.ops import activations

    numbers, calls, warmed, gates = {}, [], [], []

    def stacked(weights, gating):
        first = weights[0]
        images = torch.zeros(len(weights), 64, dtype=torch.int32)
        gated = gating is not None
        return experts.Stack(images, numbers[first.shape], first.shape, str(first.type), gated)

    def open_weight(type, n, k, gather, *, gating):
        gates.append(gating)
        return numbers.setdefault((n, k), 5 + len(numbers))

    def expert_rows(*asked):
        calls.append(asked)
        return 8

    refused, no_experts, asked_of_experts = [], [], []

    def rounding_objection(*asked):
        asked_of_experts.append(asked)
        return "".join(no_experts)

    monkeypatch.setattr(activations, "device_objection", lambda wanted, device: "")
    monkeypatch.setattr(activations, "gpu_objection", lambda *of: "".join(refused))
    monkeypatch.setattr(experts, "rounding_objection", rounding_objection)

    def forward(x, index, weights, *rest, **more):
        calls.append((index, weights, *rest, more))
        return x

    monkeypatch.setattr(kernels, "possible", lambda device: True)
    monkeypatch.setattr(kernels, "objection", lambda *of: "")
    monkeypatch.setattr(kernels, "load_transforms", lambda *of: "")
    monkeypatch.setattr(image, "open_weight", open_weight)
    monkeypatch.setattr(experts, "stacked", stacked)
    monkeypatch.setattr(expert_layer, "forward", forward)
    monkeypatch.setattr(mixture, "_ops", SimpleNamespace(expert_rows=expert_rows))
    monkeypatch.setattr(ExpertsWarmer, "expect", lambda *given: None)
    monkeypatch.setattr(ExpertsWarmer, "finish", lambda *given: warmed.append(given[3:]))
    stacks = Stacks(*TWO, bias=True)
    model = served(stacks, tmp_path, has_bias=True, dtype=torch.float16, swiglu_limit=3.0)
    assert calls.pop() == (5, 6, EXPERTS, EXPERTS, torch.float16, 0)
    assert warmed == [(2, model.experts.quant_method.most_tokens)]
    kept = {name: tuple(p.shape) for name, p in model.experts.named_parameters()}
    assert kept == {
        "w13_qweight": (EXPERTS, 64), "w13_bias": (EXPERTS, 2 * INTERMEDIATE),
        "w2_qweight": (EXPERTS, 64), "w2_bias": (EXPERTS, HIDDEN),
    }  # fmt: skip
    x, index, weights = routed(dtype=torch.float16)
    model(x, index, weights)
    (given, of, first, second, activation, more) = calls.pop()
    assert given is index and of is weights
    assert (first.number, second.number) == (5, 6)
    assert first.images.data_ptr() == model.experts.w13_qweight.data_ptr()
    assert (activation, more["limit"]) == ("silu", 3.0)
    assert more["down_bias"].data_ptr() == model.experts.w2_bias.data_ptr()
    # As kernels read them: once for all calls, and after another load.
    order = image.gate_rows(2 * INTERMEDIATE, torch.device("cpu"))
    for name, places in (("gate_up", order), ("down", slice(None))):
        assert torch.equal(more[f"{name}_bias"], stacks.biases[name].half()[:, places])
    assert more["activation_type"] == ""
    config = stacks.config() | {"activation_type": "int8"}
    for why, of_experts, rounded in (
        ("", "", "int8"), ("no products of bytes here", "", ""), ("", "no items of bytes here", ""),
    ):  # fmt: skip
        refused[:], no_experts[:] = [why], [of_experts]
        folder = write(tmp_path, stacks.tensors(), config)
        given = {"has_bias": True, "dtype": torch.float16, "swiglu_limit": 3.0}
        model = serve(folder, stacks.tensors(), **given)
        model(x, index, weights)
        assert calls.pop()[-1]["activation_type"] == rounded
        assert model.experts.quant_method.mixture.activation_type == rounded
    static = {"gate_up": torch.arange(1.0, EXPERTS + 1)[:, None], "down": torch.ones(EXPERTS, 1)}
    tensors = stacks.tensors() | {f"{PREFIX}.{n}.input_scale": s for n, s in static.items()}
    largest = [float(EXPERTS)], [1.0]
    for why, found in (("", largest), ("no products of bytes here", (None, None))):
        refused[:], no_experts[:] = [why], []
        model = serve(write(tmp_path, tensors, config), tensors, **given)
        model(x, index, weights)
        given_scales = [calls[-1][-1][name] for name in ("gate_up_scale", "down_scale")]
        assert [s if s is None else s.tolist() for s in given_scales] == list(found)
    k = HIDDEN, INTERMEDIATE
    device = torch.device("cpu")
    assert asked_of_experts[-1] == (
        "int8", [(5, k[0]), (6, k[1])], EXPERTS, torch.float16, device,
    )  # fmt: skip
