# SPDX-License-Identifier: Apache-2.0
"""SGLang's own layers of experts on packed experts, filled by the loader of its Qwen3-MoE: they
compute what the dense values give. No engine runs here or elsewhere."""

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
    TOP_K,
    Others,
    Stacks,
    check,
    expected,
    routed,
    write,
)
from test_sglang import one_rank, quantization, rank  # noqa: F401
from torch import nn

from ladder.errors import CheckpointError, Unsupported
from ladder.ops.gating import Gating

pytestmark = pytest.mark.usefixtures("sglang", "one_rank")

ZEROS = "uint4,group=32,scale=float16,zero=integer"
TWO = ("uint3,group=32,scale=float16", "nvfp4")


class Model(nn.Module):
    """A Qwen3-MoE of SGLang as far as its loader is concerned, with one layer of experts."""

    def __init__(self, folder, dtype=torch.float32, **options):
        super().__init__()
        from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

        self.config = SimpleNamespace(num_experts=EXPERTS)
        sizes = dict(num_experts=EXPERTS, hidden_size=HIDDEN, intermediate_size=INTERMEDIATE)
        experts = FusedMoE(
            **sizes, layer_id=0, top_k=TOP_K, params_dtype=dtype, prefix=PREFIX,
            quant_config=quantization(folder), **options,
        )  # fmt: skip
        at: nn.Module = self
        *path, last = PREFIX.split(".")
        for name in path:
            at.add_module(name, nn.Module())
            at = getattr(at, name)
        at.add_module(last, experts)
        self.__dict__["experts"] = experts

    def load(self, tensors):
        from sglang.srt.models.qwen3_moe import Qwen3MoeForCausalLM

        self.routed_experts_weights_of_layer = None
        Qwen3MoeForCausalLM.load_weights(self, iter(tensors.items()))

    def finish(self):
        self.experts.quant_method.process_weights_after_loading(self.experts)

    def forward(self, x, index, weights):
        from sglang.srt.layers.moe.topk import StandardTopKOutput

        return self.experts(x, StandardTopKOutput(weights, index, torch.empty(0)))


def serve(folder, tensors, **options):
    model = Model(folder, **options)
    model.load(tensors)
    model.finish()
    return model


def served(stored, folder, **options):
    tensors = stored.tensors()
    return serve(write(folder, tensors, stored.config()), tensors, **options)


@pytest.mark.parametrize("type", KINDS)
def test_stacks_of_each_kind_of_metadata_give_what_ladder_experts_gives(type, tmp_path):
    stacks = Stacks(type)
    model = served(stacks, tmp_path)
    check(stacks, model)
    x, index, weights = routed()
    assert torch.equal(model(x, index, weights), stacks.module()(x, index.long(), weights))
    names = {name for name, _ in model.experts.named_parameters()}
    assert names and all(name.startswith(("w13_", "w2_")) for name in names)


@pytest.mark.parametrize("bias", (False, True), ids=("plain", "bias"))
def test_the_two_stacks_may_have_types_of_their_own_and_biases(bias, tmp_path):
    stacks = Stacks(*TWO, bias=bias)
    check(stacks, served(stacks, tmp_path, with_bias=bias))


@pytest.mark.parametrize("options, gating", [
    ({"activation": "gelu"}, Gating("gelu")),
    ({"swiglu_limit": 2.0}, Gating("silu", 2.0)),
    ({"gemm1_alpha": 1.702, "gemm1_clamp_limit": 7.0}, Gating("swigluoai", 7.0)),
])  # fmt: skip
def test_every_function_of_the_gate_that_ladder_has(options, gating, tmp_path):
    stacks = Stacks(ZEROS)
    check(stacks, served(stacks, tmp_path, **options), gating)


@pytest.mark.parametrize("options, words", [
    ({"activation": "relu2"}, "activation relu2"),
    ({"gemm1_clamp_limit": 7.0}, "gemm1_clamp_limit 7.0"),
    ({"activation": "gelu", "swiglu_limit": 2.0}, "activation gelu .*swiglu_limit 2.0"),
    ({"is_gated": False}, "gated False"),
    ({"apply_router_weight_on_input": True}, "without router weights on activations"),
    ({"num_fused_shared_experts": 1}, "without shared experts fused"),
    ({"no_combine": True}, "without results that are not added up"),
])  # fmt: skip
def test_what_ladder_has_no_experts_for_is_refused_by_name(options, words, tmp_path):
    with pytest.raises(Unsupported, match=f"experts.* has packed experts.*{words}"):
        served(Stacks(ZEROS), tmp_path, **options)


def test_experts_that_are_somewhere_else_are_refused(tmp_path, monkeypatch):
    from ladder.integrations.sglang import experts

    places = SimpleNamespace(logical_to_all_physical=lambda layer, e: [(e + 1) % EXPERTS])
    monkeypatch.setattr(experts, "get_global_expert_location_metadata", lambda: places)
    with pytest.raises(Unsupported, match="redundant or moved"):
        served(Stacks(ZEROS), tmp_path)
    places.logical_to_all_physical = lambda layer, e: [e]
    check(Stacks(ZEROS), served(Stacks(ZEROS), tmp_path))


@pytest.mark.parametrize("tokens", (0, 1, 33))
def test_any_number_of_tokens_and_experts_of_nobody(tokens, tmp_path):
    stacks = Stacks(ZEROS)
    model = served(stacks, tmp_path)
    x, index, weights = routed(tokens)
    assert model(x, index, weights).shape == (tokens, HIDDEN)
    index[::2, 0] = -1
    whole = stacks.module()(x, torch.where(index < 0, EXPERTS, index).long(), weights)
    assert torch.equal(model(x, index, weights), whole)


def test_the_sum_is_scaled_by_the_models_factor(tmp_path):
    stacks = Stacks(ZEROS)
    x, index, weights = routed()
    plain = served(stacks, tmp_path)(x, index, weights)
    scaled = served(stacks, tmp_path, routed_scaling_factor=4.0)(x, index, weights)
    assert torch.equal(scaled, 4 * plain)


@pytest.mark.parametrize("kind, how", [
    (foreign.gptq, {"bits": 4, "symmetric": True}),
    (foreign.gptq, {"bits": 3, "symmetric": False}),
    (foreign.awq, {}),
    (foreign.compressed, {"bits": 4}),
    (foreign.compressed_8, {"activations": "float8 static"}),
    (foreign.w4afp8, {}),
    (foreign.modelopt, {"algorithm": "NVFP4"}),
    (foreign.modelopt, {"algorithm": "FP8"}),
    *((foreign.fp8, {"form": form}) for form in ("blocks", "static")),
], ids=lambda each: getattr(each, "__name__", str(each)))  # fmt: skip
def test_unmodified_checkpoints_of_other_packages(kind, how, tmp_path):
    stored = Others(kind, exponent=-4, **how)
    check(stored, served(stored, tmp_path))


@pytest.mark.parametrize("stored", [
    lambda: Stacks(ZEROS), lambda: Stacks(*TWO, bias=True),
    lambda: Others(foreign.gptq, bits=4, symmetric=False, exponent=-4),
    lambda: Others(foreign.w4afp8, exponent=-4),
], ids=("uint4", "two types, bias", "gptq", "w4afp8"))  # fmt: skip
@pytest.mark.parametrize("expert_parallel", (False, True), ids=("tensor", "expert"))
def test_two_ranks_add_up_to_the_whole(stored, expert_parallel, tmp_path):
    stored = stored()
    if isinstance(stored, Others) and not expert_parallel and "w4afp8" in str(stored.config()):
        with rank(0, 2), pytest.raises(Unsupported, match="columns 0 to 32 cut"):
            served(stored, tmp_path)
        return
    bias = bool(getattr(stored, "biases", {}))
    x, index, weights = routed()
    total = torch.zeros(x.shape[0], HIDDEN, dtype=torch.float64)
    for number in range(2):
        with rank(number, 2, expert_parallel=expert_parallel):
            model = served(stored, tmp_path, with_bias=bias)
            assert model.experts.num_local_experts == (2 if expert_parallel else 4)
            local = index - 2 * number if expert_parallel else index
            mine = torch.where((local >= 0) & (local < 2), local, -1) if expert_parallel else index
            total += run(model, x, mine, weights)
    wanted = expected(stored, x, index, weights)
    assert (total - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def run(model, x, index, weights):
    """The experts alone, given places on their rank, as SGLang's dispatcher gives them."""
    from sglang.srt.layers.moe.token_dispatcher.standard import StandardDispatchOutput
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    chosen = StandardTopKOutput(weights, index, torch.empty(0))
    return model.experts.run_moe_core(StandardDispatchOutput(x, None, chosen)).hidden_states


def test_groups_that_two_ranks_would_share_are_refused_by_name(tmp_path):
    stacks = Stacks(ZEROS, "uint4,group=64,scale=float16")
    with rank(1, 2), pytest.raises(Unsupported, match=r"experts\.down: columns 32 to 64 cut"):
        served(stacks, tmp_path)


@pytest.mark.parametrize("stack", ("gate_up", "down"))
@pytest.mark.parametrize("part", ("qweight", "scales", "zeros"))
def test_a_tensor_that_does_not_come_is_named(part, stack, tmp_path):
    stacks = Stacks(ZEROS)
    tensors, lost = stacks.tensors(), f"{PREFIX}.{stack}.{part}"
    write(tmp_path, tensors, stacks.config())
    del tensors[lost]
    with pytest.raises(CheckpointError, match=lost.replace(".", r"\.")):
        serve(tmp_path, tensors)


def test_biases_without_a_place_in_the_model_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"gate_up\.bias is in the files, and SGLang's"):
        served(Stacks(ZEROS, bias=True), tmp_path)


@pytest.mark.parametrize("stored", [
    lambda seed: Stacks(*TWO, bias=True, seed=seed),
    lambda seed: Others(foreign.gptq, bits=4, symmetric=False, exponent=-4 - seed),
], ids=("stacks", "gptq"))  # fmt: skip
def test_weights_that_come_again_take_the_place_of_the_first(stored, tmp_path):
    first, second = stored(0), stored(1)
    model = served(first, tmp_path, with_bias=isinstance(first, Stacks))
    memory = {name: tensor.data_ptr() for name, tensor in model.experts.named_parameters()}
    model.experts.quant_method.restore_weights_before_loading(model.experts)
    model.load(second.tensors())
    model.finish()
    check(second, model)
    found = {name: tensor.data_ptr() for name, tensor in model.experts.named_parameters()}
    assert found == memory


def test_experts_that_the_folder_leaves_dense_are_sglangs(tmp_path):
    stacks = Stacks(ZEROS)
    tensors = {f"model.layers.1.mlp.experts.{n.rpartition('experts.')[2]}": t
               for n, t in stacks.tensors().items()}  # fmt: skip
    write(tmp_path, tensors, stacks.config())
    method = Model(tmp_path).experts.quant_method
    assert type(method).__name__ == "UnquantizedFusedMoEMethod"
