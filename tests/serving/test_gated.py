# SPDX-License-Identifier: Apache-2.0
"""MLPs of vLLM's models whose layer of gate and up gives the product of both: what they compute is
what they computed before, and whatever else would read the sums keeps them."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from drawn import KINDS
from layers import INTERMEDIATE, Stored, load, prefix, quantization, rank, write
from mlps import (
    ZEROS,
    engine,
    fill,
    finish,
    make_mlp,
    name_activations,
    played_kernels,
    serve_mlp,
    stored_mlp,
    sums,
    x_of,
)
from torch import nn

from ladder.integrations.serving.gated import FusedActivation
from ladder.ops.gating import Gating

pytestmark = pytest.mark.usefixtures("vllm")

SILU = {"hidden_act": "silu"}
#: An MLP for each function, with the arguments that its class has besides.
EACH = [
    ("llama.LlamaMLP", SILU, Gating("silu")),
    ("qwen2.Qwen2MLP", SILU, Gating("silu")),
    ("gemma3.Gemma3MLP", {"hidden_activation": "gelu_pytorch_tanh"}, Gating("gelu_pytorch_tanh")),
    ("bert_with_rope.BertWithRopeGatedMLP", {"hidden_act": "gelu", "bias": False}, Gating("gelu")),
]
BIAS = pytest.mark.parametrize("bias", (False, True), ids=("plain", "bias"))

#: Exact sums, then a function in float32 and its product.
FLOAT = 8 * torch.finfo(torch.float32).eps


def gate_up(mlp: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return mlp.gate_up_proj(x)[0]


# --- what is computed -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind, how, gating", EACH, ids=lambda given: str(given))
@pytest.mark.parametrize("type", KINDS)
def test_a_fused_mlp_gives_what_it_gave(kind, how, gating, type, tmp_path):
    """To the bit on a processor, where torch computes both."""
    stored, found = stored_mlp(type), []
    for fuse in (True, False):
        with engine(fuse_gated_mlp=fuse):
            mlp = serve_mlp(tmp_path, stored, kind, **how)
        wide = gate_up(mlp, x_of())
        assert wide.shape[-1] == (INTERMEDIATE if fuse else 2 * INTERMEDIATE)
        assert isinstance(mlp.act_fn, FusedActivation) == fuse
        assert mlp.gate_up_proj.quant_method.runs[0].gating == (gating if fuse else None)
        found.append(mlp(x_of()))
    assert torch.equal(*found)


@BIAS
@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
@pytest.mark.parametrize("act_order", (False, True), ids=("", "act-order"))
def test_an_image_has_rows_and_biases_in_turn(bias, dtype, act_order, tmp_path):
    """By an op that multiplies in float64: rounded once, so there is one right answer."""
    stored = stored_mlp(bias=bias, act_order=act_order)
    if act_order:  # as one calibration gives it
        stored.weights["up_proj"].g_idx.copy_(stored.weights["gate_proj"].g_idx)
    with engine(), played_kernels() as calls:
        mlp = serve_mlp(tmp_path, stored, bias=bias, dtype=dtype, **SILU)
        for tokens in (1, 5):
            x = x_of(tokens, dtype)
            assert torch.equal(gate_up(mlp, x), Gating("silu")(sums(stored, x)).to(dtype))
        assert mlp(x).shape == x.shape
    assert calls[0][1:] == (INTERMEDIATE, False, "", None, "silu", float("inf"), 1.702)
    assert mlp.gate_up_proj.qweight.shape[0] == 1


@pytest.mark.parametrize("size", (2, 4))
@BIAS
def test_each_rank_has_the_product_of_its_rows(size, bias, tmp_path):
    stored, x = stored_mlp(bias=bias), x_of()
    wanted = Gating("silu")(sums(stored, x))
    for played in (False, True):
        found = []
        for number in range(size):
            with engine(), rank(number, size), (
                played_kernels() if played else mock.MagicMock()
            ):  # fmt: skip
                mlp = serve_mlp(tmp_path, stored, bias=bias, **SILU)
                found.append(gate_up(mlp, x))
        assert found[0].shape[-1] == INTERMEDIATE // size
        torch.testing.assert_close(torch.cat(found, -1).double(), wanted, rtol=FLOAT, atol=FLOAT)


@BIAS
@pytest.mark.parametrize("played", (False, True), ids=("codes", "image"))
def test_weights_that_come_again_are_fused_in_the_memory_of_the_first(bias, played, tmp_path):
    from vllm.model_executor.model_loader import reload

    first, second = (stored_mlp(bias=bias, seed=seed) for seed in (0, 20))
    write(tmp_path, first.tensors(), first.config())
    config = quantization(tmp_path)
    with engine(), played_kernels() if played else mock.MagicMock():
        mlp = make_mlp(config, bias=bias, **SILU)
        reload.record_metadata_for_reloading(mlp)
        fill(mlp, first, config)
        finish(mlp)
        x = x_of()
        memory = {name: t.data_ptr() for name, t in mlp.state_dict().items()}
        for stored in (first, second):
            if stored is second:
                reload.initialize_layerwise_reload(mlp)
                fill(mlp, second, config)
                reload.finalize_layerwise_reload(mlp, None)
            wanted = Gating("silu")(sums(stored, x))
            torch.testing.assert_close(gate_up(mlp, x).double(), wanted, rtol=FLOAT, atol=FLOAT)
        assert {name: t.data_ptr() for name, t in mlp.state_dict().items()} == memory
        assert isinstance(mlp.act_fn, FusedActivation)
        assert not isinstance(mlp.act_fn.theirs, FusedActivation)


def test_a_compiled_graph_says_all_of_the_weight(tmp_path):
    """One graph for every number of tokens, whose op has the gating among its arguments: it may be
    run by a process that has not opened the weight."""
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph

    stored = stored_mlp()
    with engine(), played_kernels():
        mlp = serve_mlp(tmp_path, stored, **SILU)
        torch._dynamo.reset()
        compiled = torch.compile(mlp, backend=keep, fullgraph=True, dynamic=False)
        with torch.no_grad():
            for tokens in (2, 3, 40):
                x = x_of(tokens)
                torch._dynamo.mark_dynamic(x, 0)  # as vLLM does
                assert torch.equal(compiled(x), mlp(x))
    (graph,) = graphs
    ops = [node for node in graph.graph.nodes if "linear_prepacked" in str(node.target)]
    assert [node.args[-3:] for node in ops] == [("silu", float("inf"), 1.702)]
    assert not [node for node in graph.graph.nodes if "silu" in str(node.target)]


def test_an_option_of_ladder_changes_the_key_of_vllms_compile_cache():
    from vllm.config import VllmConfig

    off = VllmConfig(additional_config={"ladder": {"fuse_gated_mlp": False}})
    assert off.compute_hash() != VllmConfig().compute_hash()


# --- what is recognised ---------------------------------------------------------------------------


def test_the_log_says_once_how_many_are_fused(tmp_path, monkeypatch):
    from ladder.integrations.vllm import gated

    said = []
    monkeypatch.setattr(gated._log, "info", lambda text, *given: said.append(text % given))
    stored = stored_mlp()
    write(tmp_path, stored.tensors(), stored.config())
    config = quantization(tmp_path)
    with engine():
        model = nn.ModuleList([make_mlp(config, **SILU) for _ in range(3)])
        model[1].act_fn.register_forward_hook(lambda *_: None)
        for mlp in model:
            fill(mlp, stored, config)
        finish(model)
        finish(model)
    assert said == ["ladder: 2 of 3 layers of two parts give act(gate) * up in their launch"]
    assert [isinstance(mlp.act_fn, FusedActivation) for mlp in model] == [True, False, True]
    x = x_of()
    assert torch.equal(model[0](x), model[1](x))


def reason(tmp_path, stored=None, kind="llama.LlamaMLP", change=None, **how) -> str:
    """Why an MLP is not fused: what the log says when it is loaded."""
    from ladder.integrations.vllm import gated

    stored, said = stored or stored_mlp(), []
    write(tmp_path, stored.tensors(), stored.config())
    config = quantization(tmp_path)
    mlp = make_mlp(config, kind, **(how or SILU))
    if change is not None:
        change(mlp)
    fill(mlp, stored, config)
    with mock.patch.object(gated._log, "debug", lambda text, *given: said.append(text % given)):
        finish(mlp)
    assert mlp.gate_up_proj.quant_method.runs[0].gating is None
    y = mlp.gate_up_proj(x_of())
    y = y[0] if isinstance(y, tuple) else y
    if how.get("size") is None:
        assert y.shape[-1] == sum(mlp.gate_up_proj.output_partition_sizes)
    (one,) = said
    start = f"ladder: {prefix('gate_up_proj')} gives gate and up, not their product: "
    assert one.startswith(start)
    return one.removeprefix(start)


def test_the_option_leaves_all_as_they_are(tmp_path):
    with engine(fuse_gated_mlp=False):
        assert reason(tmp_path) == 'additional_config["ladder"]["fuse_gated_mlp"] is false'


def test_adapters_leave_all_as_they_are(tmp_path):
    with engine() as config, mock.patch.object(config, "lora_config", SimpleNamespace()):
        assert "enable_lora" in reason(tmp_path)


def test_parts_of_several_launches_are_left_as_they_are(tmp_path):
    stored = stored_mlp()
    stored.weights |= Stored.drawn({"up_proj": "nvfp4"}).weights
    with engine():
        assert reason(tmp_path, stored) == "it has 2 launches"
    stored = stored_mlp(act_order=True)  # each part in an order of its own
    with engine():
        assert reason(tmp_path, stored) == "it has 2 launches"


def _skip_bias(mlp):
    mlp.gate_up_proj.skip_bias_add = True
    mlp.gate_up_proj.bias = nn.Parameter(torch.zeros(2 * INTERMEDIATE))


def _gather(mlp):
    mlp.gate_up_proj.gather_output, mlp.gate_up_proj.tp_size = True, 2


def _another_class(mlp):
    kind = type(mlp.gate_up_proj)
    forward = {"forward": lambda self, x: kind.forward(self, x)}
    mlp.gate_up_proj.__class__ = type("Of_a_model", (kind,), forward)


def _held_twice(mlp):
    mlp.other = nn.ModuleList([mlp.gate_up_proj])


def _swapped(mlp):
    from vllm.model_executor.layers.activation import MulAndSilu

    mlp.act_fn = MulAndSilu()


def _threshold(mlp):
    from vllm.model_executor.layers.activation import FatreluAndMul

    mlp.act_fn = FatreluAndMul(0.01)


def _gone(mlp):
    del mlp.act_fn


CHANGES = {
    _skip_bias: "its bias is added by another module (skip_bias_add)",
    _gather: "its rows are gathered from all ranks (gather_output)",
    _another_class: "Of_a_model has a forward of its own",
    _held_twice: "2 modules hold it",
    _swapped: "MulAndSilu is no product of gate and up that kernels have",
    _threshold: "FatreluAndMul is no product of gate and up that kernels have",
    _gone: "LlamaMLP has no module act_fn",
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_keeps_the_sums_is_named(change, tmp_path):
    with engine(), mock.patch("vllm.model_executor.layers.linear.tensor_model_parallel_all_gather",
                              lambda y: y):  # fmt: skip
        assert reason(tmp_path, change=change) == CHANGES[change]


def test_a_layer_that_its_module_has_let_go_is_named(tmp_path):
    stored = stored_mlp()
    write(tmp_path, stored.tensors(), stored.config())
    config = quantization(tmp_path)
    with engine():
        mlp = make_mlp(config, **SILU)
        layer, method = mlp.gate_up_proj, mlp.gate_up_proj.quant_method
        mlp._modules["gate_up_proj"] = nn.Identity()
        assert method._product(layer) == "something has replaced it in LlamaMLP"
        del mlp
        assert method._product(layer) == "0 modules hold it"


@pytest.mark.parametrize("sizes", ((64, 128), (60, 60)), ids=str)
def test_rows_that_are_no_pairs_of_eights_are_named(sizes, tmp_path):
    from vllm.model_executor.layers.linear import MergedColumnParallelLinear

    name_activations()
    drawn = {name: n for name, n in zip(("gate_proj", "up_proj"), sizes, strict=True)}
    from drawn import exact_weight

    stored = Stored({name: exact_weight(ZEROS, n, 256) for name, n in drawn.items()})
    write(tmp_path, stored.tensors(), stored.config())
    config = quantization(tmp_path)
    with engine():
        layer = MergedColumnParallelLinear(
            256, list(sizes), bias=False, params_dtype=torch.float32, quant_config=config,
            prefix=prefix("gate_up_proj"),
        )  # fmt: skip
        why = f"its parts have {sizes[0]} and {sizes[1]} rows on this rank, not one multiple of 8"
        assert layer.quant_method._product(layer) == why
        load(layer, "gate_up_proj", stored.tensors(), config)
        layer.quant_method.process_weights_after_loading(layer)
    assert layer(x_of())[0].shape[-1] == sum(sizes)


def test_devices_without_such_kernels_are_named(tmp_path, monkeypatch):
    from ladder.integrations.vllm import gated

    stored = stored_mlp()
    write(tmp_path, stored.tensors(), stored.config())
    with engine():
        mlp = make_mlp(quantization(tmp_path), **SILU)
        monkeypatch.setattr(gated, "kernels", SimpleNamespace(possible=lambda _: True, HALVES=()))
        why = mlp.gate_up_proj.quant_method._product(mlp.gate_up_proj)
        assert why == "kernels have no product of gate and up of torch.float32"
        monkeypatch.setattr(gated, "kernels", SimpleNamespace(possible=lambda _: False))
        monkeypatch.setattr(gated, "device_objection", lambda device: f"slower on {device}")
        why = mlp.gate_up_proj.quant_method._product(mlp.gate_up_proj)
    assert why == "slower on cpu"


def test_what_another_module_asks_for_is_no_pair(tmp_path):
    """A merged layer of q and k has no activation behind it."""
    from vllm.model_executor.layers.linear import MergedColumnParallelLinear

    class Attention(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.qk = MergedColumnParallelLinear(
                256, [512, 512], bias=False, quant_config=config, prefix=prefix("gate_up_proj")
            )

        def forward(self, x):
            qk, _ = self.qk(x)
            q, k = qk.chunk(2, -1)
            return q * k

    stored = stored_mlp()
    write(tmp_path, stored.tensors(), stored.config())
    with engine():
        layer = Attention(quantization(tmp_path)).qk
        assert layer.quant_method._product(layer) == "0 modules hold it"
        held = Attention(quantization(tmp_path))
        why = held.qk.quant_method._product(held.qk)
    assert why == "the forward of Attention does something to the result of qk first"


def test_kernels_are_compiled_ahead_for_what_the_holder_does(tmp_path, monkeypatch):
    """Known when a layer of another module is made."""
    from ladder.integrations.vllm.warm import Warmer

    expected = []
    monkeypatch.setattr(
        Warmer, "_expect", lambda self, room, *rest: expected.append((room.prefix, rest[-1]))
    )
    stored = stored_mlp()
    tensors = stored.tensors()
    for name, tensor in stored.tensors().items():
        tensors[name.replace("layers.0", "layers.1")] = tensor.clone()
    config = stored.config()
    write(tmp_path, tensors, config)
    made = quantization(tmp_path)
    with engine():
        make_mlp(made, **SILU)
        assert [name for name, _ in expected] == [prefix("down_proj")]
        make_mlp(made, prefix="model.layers.1.mlp", **SILU)
    assert expected[1] == (prefix("gate_up_proj"), None), "its MLP is gone: nothing holds it"
    with engine():
        kept = [make_mlp(made, prefix=f"model.layers.{i}.mlp", **SILU) for i in range(2)]
    assert expected[-2:] == [
        (prefix("gate_up_proj"), Gating("silu")), ("model.layers.1.mlp.down_proj", None)
    ] and kept  # fmt: skip


def test_the_hook_is_one_for_a_process_and_keeps_no_module(tmp_path):
    from torch.nn.modules import module

    stored = stored_mlp()
    write(tmp_path, stored.tensors(), stored.config())
    config = quantization(tmp_path)
    with engine():
        make_mlp(config, **SILU)
        hooks = len(module._global_module_registration_hooks)
        mlp = make_mlp(config, **SILU)
        assert len(module._global_module_registration_hooks) == hooks
        ((holder, name),) = mlp.gate_up_proj.quant_method.holders
    assert holder() is mlp and name == "gate_up_proj"


def test_vllms_function_that_quantises_calls_what_stands_for_an_activation():
    """As _APPLIERS says of it: its kernels are those of vLLM's own classes."""
    path = "vllm.model_executor.layers.fusion.fused_act_quant"
    act_quant = pytest.importorskip(path, reason="vLLM has it from 0.32 on")
    from ladder.integrations.vllm.gated import _APPLIERS

    assert f"{path}.maybe_fused_act_quant" in _APPLIERS
    x, keys = torch.zeros(2, 8), {key for _, key in act_quant._FUSED_ACT_QUANT}
    assert keys
    for key in keys:
        with mock.patch.object(act_quant, "get_input_quant_key", lambda linear, key=key: key):
            fused = FusedActivation(nn.Identity(), 8)
            assert act_quant.maybe_fused_act_quant(fused, x, nn.Identity()) is x
