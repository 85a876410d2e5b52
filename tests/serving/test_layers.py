# SPDX-License-Identifier: Apache-2.0
"""vLLM's own layers on a ladder folder: what they compute is the product of the values that
docs/format.md gives the folder's codes. Integers, so there is one right answer."""

from __future__ import annotations

import contextlib

import pytest
import torch
from drawn import KINDS, TWO_LEVELS, generator, stored_types
from layers import (
    FUSED,
    SHAPES,
    VOCABULARY,
    Stored,
    activations,
    make,
    parts_of,
    prefix,
    product,
    quantization,
    run,
    serve,
    write,
)

from ladder.errors import CheckpointError
from ladder.ops.activations import FAST_ACCUM, round_activations
from ladder.testing import assert_linear_close
from ladder.types import register_type

pytestmark = pytest.mark.usefixtures("vllm")

LINEAR = ("qkv_proj", "gate_up_proj", "o_proj", "down_proj", "router")
LAYERS = (*LINEAR, "lm_head")
ZEROS = "uint4,group=32,scale=float16,zero=integer"


def check(stored: Stored, name: str, folder) -> None:
    tensors = stored.tensors()
    bias = any(module in stored.biases for module in parts_of(name))
    layer = serve(name, write(folder, tensors, stored.config()), tensors, bias=bias)
    x = activations(name)
    assert torch.equal(run(layer, x)[:, : _rows(name)], torch.cat(product(stored, name, x), -1))


def _rows(name: str) -> int:
    """Rows of the checkpoint: a head has padding after them."""
    return sum(SHAPES[module][0] for module in parts_of(name))


@pytest.mark.parametrize("type", stored_types())
def test_a_fused_layer_of_each_type_is_exact(type, tmp_path):
    check(Stored.drawn(dict.fromkeys(parts_of("qkv_proj"), type)), "qkv_proj", tmp_path)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("type", KINDS)
def test_each_layer_with_each_kind_of_metadata_is_exact(type, name, tmp_path):
    check(Stored.drawn(dict.fromkeys(parts_of(name), type)), name, tmp_path)


@pytest.mark.parametrize("name", LAYERS)
def test_biases_are_added_once(name, tmp_path):
    check(Stored.drawn(dict.fromkeys(parts_of(name), ZEROS), bias=True), name, tmp_path)


@pytest.mark.parametrize("weights_only", (False, True))
def test_parts_of_a_layer_round_activations_as_the_folder_says_of_each(
    weights_only, tmp_path, monkeypatch
):
    """One run for q and k, which round, and one for v, which does not."""
    from ladder.integrations.vllm import options

    if weights_only:
        monkeypatch.setitem(options._OPTIONS, "weights_only", True)
    stored = Stored.drawn(dict.fromkeys(parts_of("qkv_proj"), ZEROS))
    tensors = stored.tensors()
    config = stored.config() | {
        "activation_type": "int8", "activation_types": {prefix("v_proj"): None}
    }  # fmt: skip
    with fresh_warmer():
        layer = serve("qkv_proj", write(tmp_path, tensors, config), tensors)
    found = [run.activation_type for run in layer.quant_method.runs]
    assert found == ([""] if weights_only else ["int8", ""])
    x = torch.randn(20, SHAPES["q_proj"][1], generator=generator(1))
    ttype = next(iter(stored.weights.values())).type
    rounded = x if weights_only else round_activations(x, ttype)
    parts = [(x if name == "v_proj" else rounded).double() @ stored.dense(name).T
             for name in parts_of("qkv_proj")]  # fmt: skip
    wanted = torch.cat(parts, -1)
    error = (run(layer, x) - wanted).abs().max() / wanted.abs().max()
    assert error < 1e-5, "rounding x to 8 bits moves y by 1e-3 of its largest and more"


@pytest.mark.parametrize("asked", (None, True, False))
@pytest.mark.parametrize("said", ("float8_e4m3", FAST_ACCUM))
def test_an_engine_may_be_asked_for_the_sums_of_a_folder(said, asked, tmp_path, monkeypatch):
    from ladder.integrations.vllm import options

    monkeypatch.setitem(options._OPTIONS, "fast_accum", asked)
    stored = Stored.drawn({"o_proj": ZEROS})
    folder = write(tmp_path, stored.tensors(), stored.config() | {"activation_type": said})
    with fresh_warmer():
        layer = make("o_proj", quantization(folder), dtype=torch.float32)
    wanted = said if asked is None else FAST_ACCUM if asked else "float8_e4m3"
    assert [each.activation_type for each in layer.quant_method.room.modules] == [wanted]


@contextlib.contextmanager
def fresh_warmer():
    """Options of the engine are read again, and once more afterwards."""
    from vllm.config import get_current_vllm_config

    config = get_current_vllm_config()
    vars(config).pop("_ladder_warmer", None)
    yield
    vars(config).pop("_ladder_warmer", None)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("type", KINDS)
def test_dummy_parts_of_a_layer_are_one_run(type, name, tmp_path):
    """As of files made for engines, whose parts have one second scale."""
    stored = Stored.drawn(dict.fromkeys(parts_of(name), type))
    folder = write(tmp_path, stored.tensors(), stored.config())
    layer = make(name, quantization(folder), dtype=torch.float32)
    layer.quant_method.dummy = True
    layer.quant_method.process_weights_after_loading(layer)
    assert len(layer.quant_method.runs) == 1
    y = run(layer, activations(name))
    assert y.isfinite().all() and y.count_nonzero() > y.numel() // 2


@pytest.mark.parametrize("type", (ZEROS, "nvfp4", "uint3,group=32,scale=float16,zero=quantized"))
@pytest.mark.parametrize("name", LAYERS)
def test_each_part_of_a_layer_has_an_order_of_columns_of_its_own(name, type, tmp_path):
    check(Stored.drawn(dict.fromkeys(parts_of(name), type), act_order=True), name, tmp_path)


def test_an_order_of_columns_of_one_part_is_not_that_of_its_neighbours(tmp_path):
    stored = Stored.drawn(dict.fromkeys(parts_of("qkv_proj"), ZEROS))
    ordered = Stored.drawn({"k_proj": ZEROS}, act_order=True, seed=7)
    stored.weights |= ordered.weights
    check(stored, "qkv_proj", tmp_path)


@pytest.mark.parametrize("name", ("qkv_proj", "gate_up_proj"))
def test_each_part_of_a_layer_has_a_scale2_of_its_own(name, tmp_path):
    stored = Stored.drawn(dict.fromkeys(parts_of(name), "nvfp4"))
    for at, module in enumerate(parts_of(name)):
        stored.weights[module].scale2.fill_(2.0**at)
    check(stored, name, tmp_path)
    tensors = stored.tensors()
    (one,) = serve(name, write(tmp_path, tensors, stored.config()), tensors).quant_method.runs
    assert one.type.endswith("scale2=float32:channel")


@pytest.mark.parametrize("name", ("qkv_proj", "gate_up_proj"))
def test_second_scales_of_rows_do_not_keep_the_parts_of_a_layer_apart(name, tmp_path):
    stored = Stored.drawn(dict.fromkeys(parts_of(name), TWO_LEVELS))
    for at, module in enumerate(parts_of(name)):
        stored.weights[module].scale2.mul_(2.0**at)
    check(stored, name, tmp_path)
    tensors = stored.tensors()
    layer = serve(name, write(tmp_path, tensors, stored.config()), tensors)
    (one,) = layer.quant_method.runs
    assert one.n == _rows(name)


@pytest.mark.parametrize(
    "types",
    [
        ("uint4,group=32,scale=float16,zero=midpoint", "nvfp4", "uint2,group=64,scale=bfloat16"),
        ("uint3,group=32,scale=float16", "uint3,group=64,scale=float16", "int8,channel"),
        (TWO_LEVELS, "nvfp4", TWO_LEVELS),
        (TWO_LEVELS, "dense", "mxfp4"),
        ("mxfp4", "dense", "mxfp4"),
        ("dense", ZEROS, ZEROS),
        ("int4,tensor,scale=float16", "int4,tensor,scale=float16", "dense"),
        ("dense", "dense", "dense"),
    ],
    ids=lambda types: " ".join(types),
)  # fmt: skip
@pytest.mark.parametrize("bias", (False, True), ids=("plain", "bias"))
def test_parts_of_a_layer_may_have_types_of_their_own_or_none(types, bias, tmp_path):
    stored = Stored.drawn(dict(zip(parts_of("qkv_proj"), types, strict=True)), bias=bias)
    stored.weights["o_proj"] = Stored.drawn({"o_proj": ZEROS}).weights["o_proj"]
    check(stored, "qkv_proj", tmp_path)


@pytest.mark.parametrize(
    "type", ("int4,tensor,scale=float16", "uint4,tensor,scale=float16,zero=integer",
             "float4_e2m1,block=96x64,scale=float16", "mxfp4"),
)  # fmt: skip
def test_blocks_of_rows_do_not_keep_the_parts_of_a_layer_apart(type, tmp_path):
    stored = Stored.drawn(dict.fromkeys(parts_of("qkv_proj"), type))
    for at, module in enumerate(parts_of("qkv_proj")):
        if stored.weights[module].type.rows == 0:
            stored.weights[module].scales.fill_(2.0**at)
    check(stored, "qkv_proj", tmp_path)
    tensors = stored.tensors()
    layer = serve("qkv_proj", write(tmp_path, tensors, stored.config()), tensors)
    (one,) = layer.quant_method.runs
    assert one.n == _rows("qkv_proj")


def test_a_type_of_the_users_own_comes_from_the_folder(tmp_path):
    register_type("of_a_folder", bits=3, values=[-4, -2, -1, 0, 1, 3, 5, 8])
    stored = Stored.drawn(dict.fromkeys(parts_of("qkv_proj"), "of_a_folder,group=32,scale=float16"))
    assert "of_a_folder" in stored.config()["types"]
    check(stored, "qkv_proj", tmp_path)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
@pytest.mark.parametrize("type", (ZEROS, "nf4,group=64,scale=float16", "nvfp4"))
def test_activations_of_16_bits_stay_within_the_bound(dtype, type, tmp_path):
    stored = Stored.drawn(dict.fromkeys(parts_of("gate_up_proj"), type))
    folder = write(tmp_path, stored.tensors(), stored.config())
    layer = serve("gate_up_proj", folder, stored.tensors(), dtype=dtype)
    torch.manual_seed(0)
    x = torch.randn(5, SHAPES["gate_proj"][1]).to(dtype)
    y = run(layer, x)
    assert y.dtype == dtype
    weight = torch.cat([stored.dense(module) for module in parts_of("gate_up_proj")])
    assert_linear_close(y, x, weight)


@pytest.mark.parametrize("named", (False, True))
@pytest.mark.parametrize("type", KINDS)
def test_rows_of_a_packed_embedding_are_its_values(type, named, tmp_path):
    """Whether config.json names it, as that of `ladder convert --embeddings` does, or not."""
    stored = Stored.drawn({"embed_tokens": type})
    config = stored.config() | ({"embeddings": [prefix("embed_tokens")]} if named else {})
    folder = write(tmp_path, stored.tensors(), config)
    layer = serve("embed_tokens", folder, stored.tensors())
    ids = torch.tensor([[0, 5, 5], [VOCABULARY - 1, 17, 255]])
    assert torch.equal(run(layer, ids), stored.dense("embed_tokens")[ids].float())


@pytest.mark.parametrize("name", ("embed_tokens", "lm_head", "o_proj"))
def test_a_module_that_the_folder_leaves_dense_is_dense(name, tmp_path):
    stored = Stored.drawn({name: "dense", "q_proj": ZEROS})
    folder = write(tmp_path, stored.tensors(), stored.config())
    layer = serve(name, folder, stored.tensors())
    assert torch.equal(layer.weight[: SHAPES[name][0]], stored.weights[name])


@pytest.mark.parametrize("tokens", (1, 17, 65))
def test_any_number_of_tokens_gives_the_same_rows(tokens, tmp_path):
    stored = Stored.drawn({"o_proj": ZEROS})
    layer = serve("o_proj", write(tmp_path, stored.tensors(), stored.config()), stored.tensors())
    x = activations("o_proj", tokens)
    assert torch.equal(run(layer, x), product(stored, "o_proj", x)[0])


def test_a_tied_output_layer_multiplies_by_the_packed_embedding(tmp_path):
    stored = Stored.drawn({"embed_tokens": ZEROS})
    folder = write(tmp_path, stored.tensors(), stored.config())
    config = quantization(folder)
    embedding = serve("embed_tokens", folder, stored.tensors())
    head = make("lm_head", config, dtype=torch.float32)
    assert not list(head.parameters())
    with pytest.raises(CheckpointError, match="was not tied"):
        run(head, activations("lm_head"))
    tied = head.quant_method.tie_weights(head, embedding)
    x = activations("lm_head")
    logits = tied.quant_method.apply(tied, x)
    assert torch.equal(logits[:, :VOCABULARY], product(stored, "embed_tokens", x)[0])


def test_experts_that_the_folder_leaves_dense_are_vllms_own(tmp_path, monkeypatch):
    stored = Stored.drawn({"o_proj": ZEROS})
    tensors = stored.tensors()
    tensors["model.layers.0.mlp.experts.3.w1.weight"] = torch.zeros(8, 8)
    config = quantization(write(tmp_path, tensors, stored.config()))
    from vllm.model_executor.layers import fused_moe

    monkeypatch.setattr(fused_moe, "UnquantizedFusedMoEMethod", lambda moe: ("dense", moe))
    experts = torch.nn.Module()
    assert config.get_quant_method(experts, "model.layers.0.mlp.experts") is None
    experts.moe_config = "how"
    found = config.get_quant_method(experts, "model.layers.0.mlp.experts")
    assert found == ("dense", "how")
