# SPDX-License-Identifier: Apache-2.0
"""quant_method "fp8": folders of every kind, to the bit, and what is refused."""

import json
import logging

import pytest
import torch
from checkpoint_oracle import (
    FP8,
    fp8,
    fp8_expert_of_4_bits,
    fp8_settings,
    tensors_of,
    write_folder,
)
from safetensors.torch import load_file

from ladder import types
from ladder.checkpoints import fp8 as reader
from ladder.checkpoints import open_folder, repack
from ladder.checkpoints.fp8 import Config
from ladder.checkpoints.info import describe
from ladder.checkpoints.layer import stored, stored_as, type_of, unpack_layer
from ladder.errors import CheckpointError, Unsupported
from ladder.integrations.folders.checkpoint import find_modules
from ladder.integrations.serving.stored import Folder
from ladder.weight import Weight

#: Neither is a multiple of a block, and DeepSeek has such layers (576 rows).
N, K = 192, 208
TYPES = {
    "blocks": "block=128x128,scale=float32",
    "small blocks": "block=48x64,scale=bfloat16",
    "e8m0 blocks": "block=128x128,scale=e8m0",
    "v4 blocks": "block=128x128,scale=e8m0",
    "tensor": "tensor,scale=float32",
    "static": "tensor,scale=float32",
    "scalar": "tensor,scale=float32",
    "channel": "channel,scale=float32",
}


@pytest.fixture(params=FP8)
def kind(request):
    return request.param


def layer_of(truth, kind, k=None):
    return reader.measure(stored(truth.tensors), Config.from_dict(fp8_settings(kind)), "layer", k)


def test_a_folder_and_its_repacked_self_mean_what_was_drawn(kind, tmp_path):
    truth = fp8(N, K, kind=kind)
    others = {"norm.weight": torch.ones(4), "lm_head.weight": torch.ones(4, 4).half()}
    source = write_folder(tmp_path / "a", fp8_settings(kind), [
        tensors_of({"layer": truth}) | others])  # fmt: skip
    ((name, direct),) = open_folder(source)
    repack(source, tmp_path / "b")
    tensors = load_file(tmp_path / "b" / "model.safetensors")
    made = json.loads((tmp_path / "b" / "config.json").read_text())["quantization_config"]
    parts = {key.removeprefix("layer."): t for key, t in tensors.items() if key not in others}
    scale = parts.pop("input_scale", None)
    assert (scale is not None) == (kind in ("static", "scalar"))
    assert scale is None or torch.equal(scale, torch.tensor([0.03]))
    assert parts.keys() == {"qweight", "scales"}
    again = Weight(types.parse(made["weight_type"]), (N, K), **parts)
    for weight in (direct, again):
        weight.check()
        assert str(weight.type) == str(types.parse(f"float8_e4m3,{TYPES[kind]}"))
        assert torch.equal(weight.dequantize(), torch.from_numpy(truth.weight).float())
    assert made["activation_type"] == "float8_e4m3"
    assert made["modules_to_not_convert"] == ["lm_head"]
    assert name == "layer" and set(others) <= tensors.keys()
    found = describe(source)
    assert (found["quant_method"], found["activation_type"]) == ("fp8", "float8_e4m3")


def test_tensors_made_canonical_alone_are_the_weight(kind):
    truth = fp8(N, K, kind=kind)
    layer = layer_of(truth, kind)
    parts = dict(reader.canonical(part, t, layer) for part, t in truth.tensors.items())
    parts.pop("", None)
    scale = parts.pop("input_scale", None)
    assert (scale is not None) == (kind in ("static", "scalar"))
    assert scale is None or (scale.dtype, scale.tolist()) == (torch.float32, [scale.item()])
    ttype = type_of(layer, zero=layer.fixed_zero, scale_dtype=parts["scales"].dtype)
    weight = Weight(ttype, (N, K), **parts)
    weight.check()
    assert torch.equal(weight.dequantize(), torch.from_numpy(truth.weight).float())
    pieces = [reader.words(truth.tensors["weight"], layer, slice(n, n + 64)) for n in (0, 64, 128)]
    assert torch.equal(torch.cat(pieces), parts["qweight"])


def test_blocks_of_which_the_config_does_not_speak_are_the_usual_ones():
    truth, settings = fp8(N, K), fp8_settings()
    del settings["weight_block_size"]
    weight = unpack_layer(reader, truth.tensors, Config.from_dict(settings), "layer")
    assert str(weight.type) == "float8_e4m3,block=128x128,scale=float32"
    assert torch.equal(weight.dequantize(), torch.from_numpy(truth.weight).float())


def test_a_folder_of_deepseek_v4_is_read_with_its_experts_of_4_bits(tmp_path):
    """Scales are called ``scale``; other modules have a tensor of this name, too."""
    expert = "layers.0.ffn.experts.0.w1"
    truths = {"layers.0.attn.wq_a": fp8(N, K, kind="v4 blocks"), expert: fp8_expert_of_4_bits(N, K)}
    others = {"layers.0.attn_hc.scale": torch.ones(3), "layers.0.attn_hc.fn": torch.ones(3, 4)}
    settings = fp8_settings("v4 blocks") | {"scale_fmt": "ue8m0", "expert_dtype": "fp4"}
    source = write_folder(tmp_path / "a", settings, [tensors_of(truths) | others])
    found = dict(open_folder(source))
    assert found.keys() == truths.keys()
    for name, weight in found.items():
        weight.check()
        expected = torch.from_numpy(truths[name].weight).float()
        assert torch.equal(weight.dequantize(), expected), name
    assert found[expert].type == types.parse("mxfp4")
    report = repack(source, tmp_path / "b")
    assert report.modules == 2 and report.tensors_carried == len(others)


@pytest.mark.parametrize(
    ("part", "tensor", "message"),
    [
        ("scale", torch.ones(N, 4).to(torch.float8_e8m0fnu), r"\[192, 4\], not \[192, 7\]"),
        ("scale", torch.ones(N, 7), "is float32, not uint8 or float8_e8m0fnu"),
        ("weight_scale_inv", torch.ones(N, 7), "expert.scale is there, and expert.weight_scale_i"),
    ],
)
def test_a_damaged_expert_of_4_bits_is_named_with_both_values(part, tensor, message):
    tensors = fp8_expert_of_4_bits(N, K).tensors | {part: tensor}
    with pytest.raises(CheckpointError, match=message):
        unpack_layer(reader, tensors, Config.from_dict(fp8_settings()), "expert")


def test_without_headers_the_config_says_what_a_layer_has(kind):
    shapes = reader.shapes(N, K, Config.from_dict(fp8_settings(kind)))
    if kind not in ("scalar", "channel", "v4 blocks"):  # other names or shapes than vLLM's own
        truth = fp8(N, K, kind=kind)
        assert shapes.keys() == truth.tensors.keys()
        assert shapes["weight"][0] == (N, K)
        scale = FP8[kind][2]
        assert shapes[scale][0] == truth.tensors[scale].shape


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("blocks", "is float8, dynamic, per group of 128 columns: ladder rounds each token to "
         "float8_e4m3 with a scale of its own"),
        ("tensor", None),
        ("static", None),
    ],
)  # fmt: skip
def test_activations_rounded_otherwise_are_said_once(kind, said, caplog):
    with caplog.at_level(logging.INFO, "ladder"):
        Config.from_dict(fp8_settings(kind))
    wanted = [f"quantization_config.activation_scheme {said}"] if said else []
    assert [record.getMessage() for record in caplog.records] == wanted


def test_modules_stay_dense_by_name_or_by_its_beginning_or_end():
    dense = ["lm_head", "mlp.gate", "model.visual"]
    for kind in ("blocks", "tensor"):  # two names for the list
        made = Config.from_dict(fp8_settings(kind, dense))
        for name in ("lm_head", "model.layers.0.mlp.gate", "model.visual.blocks.0.attn"):
            assert made.for_module(name) is None
        for name in ("model.layers.0.mlp.gate_proj", "my_lm_head", "a.model.visual.b", "mlp"):
            assert made.for_module(name) is made


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"expert_dtype": "nvfp4"}, Unsupported, "is 'nvfp4', and ladder reads fp8 and fp4 here"),
        ({"fmt": "e5m2"}, Unsupported, "fmt is 'e5m2', and ladder reads e4m3"),
        ({"weight_block_size": [128]}, CheckpointError, r"block_size is \[128\], not \[rows"),
        ({"weight_block_size": [128, 4]}, CheckpointError, r"is \[128, 4\], not"),
        ({"weight_block_size": 128}, CheckpointError, "is 128, not"),
        ({"activation_scheme": "none"}, CheckpointError, "is 'none', not dynamic or static"),
        ({"modules_to_not_convert": "lm_head"}, CheckpointError, "'lm_head', not a list of names"),
    ],
    ids=str,
)
def test_a_config_that_is_not_read_is_named_with_its_value(changes, error, message):
    with pytest.raises(error, match=message):
        Config.from_dict(fp8_settings() | changes)


HALF = torch.ones(N, K, dtype=torch.float16)
NOT_FINITE = torch.full((2, 2), float("inf"))


@pytest.mark.parametrize(
    ("part", "tensor", "message"),
    [
        ("weight", HALF, "layer.weight is float16, not float8_e4m3fn"),
        ("weight", None, "layer.weight is missing, but there is layer.weight_scale_inv"),
        ("weight_scale_inv", torch.ones(2, 1), r"has shape \[2, 1\], not \[2, 2\]"),
        ("weight_scale_inv", torch.ones(()), r"has shape \[\], not \[2, 2\]"),
        ("weight_scale_inv", torch.ones(2, 2, dtype=torch.int32), "is int32, not float16 or"),
        ("weight_scale_inv", NOT_FINITE, r"weight_scale_inv\[0, 0\] is inf, a scale or zero must"),
        ("weight_scale", torch.ones(2, 2), "layer.weight_scale is there, and layer.weight_scale_i"),
        ("zeros", torch.ones(2, 2), "layer.zeros is there, but fp8 has none"),
    ],
)
def test_a_damaged_layer_is_named_with_both_values(part, tensor, message, tmp_path, left_nothing):
    tensors = tensors_of({"layer": fp8(N, K)}) | {f"layer.{part}": tensor}
    kept = {name: each for name, each in tensors.items() if each is not None}
    source = write_folder(tmp_path / "src", fp8_settings(), [kept])
    with pytest.raises(CheckpointError, match=message):
        repack(source, left_nothing)


def test_a_folder_without_a_scale_is_no_fp8_folder(tmp_path):
    source = write_folder(tmp_path / "src", fp8_settings(), [{"layer.weight": HALF}])
    with pytest.raises(CheckpointError, match="no tensor is a .*weight_scale_inv"):
        open_folder(source)


@pytest.mark.parametrize("part", ["weight_scale_inv", "scales"])
def test_codes_without_their_scale_are_refused(part, tmp_path, left_nothing):
    """Beside a layer that has its scale: codes read as numbers would be another weight."""
    tensors = tensors_of({"a": fp8(N, K), "b": fp8(N, K, seed=1)})
    scale = tensors.pop("b.weight_scale_inv")
    if part == "scales":  # a name that means nothing
        tensors["b.scales"] = scale
    source = write_folder(tmp_path / "src", fp8_settings(), [tensors])
    message = "b.weight is float8_e4m3fn, and no scale is beside it"
    with pytest.raises(CheckpointError, match=message):
        repack(source, left_nothing)
    folder = Folder(fp8_settings(), stored(tensors))
    assert folder.module("a", N, K).type is not None
    with pytest.raises(CheckpointError, match=message):
        folder.module("b", N, K)
    model = torch.nn.ModuleDict({name: torch.nn.Linear(K, N, bias=False) for name in "ab"})
    model.base_model_prefix = ""  # of transformers' models
    with pytest.raises(CheckpointError, match=message):
        find_modules(model, stored(tensors), reader.PARTS, reader.codes_part)


def test_a_dense_module_with_a_tensor_called_scale_is_carried(tmp_path):
    others = {"norm.weight": torch.ones(K).bfloat16(), "norm.scale": torch.ones(1),
              "gate.weight": torch.ones(4, K).half(), "gate.scale": torch.ones(4)}  # fmt: skip
    tensors = tensors_of({"layer": fp8(N, K)}) | others
    source = write_folder(tmp_path / "src", fp8_settings(), [tensors])
    repack(source, tmp_path / "made")
    made = load_file(tmp_path / "made" / "model.safetensors")
    assert made.keys() == {"layer.qweight", "layer.scales", *others}
    assert all(torch.equal(made[name], tensor) for name, tensor in others.items())
    folder = Folder(fp8_settings(), stored(tensors))
    assert folder.is_packed("layer") and not folder.is_packed("gate")
    weight = stored({"weight": torch.ones(4, 4, dtype=torch.float8_e5m2), "scale": torch.ones(1)})
    assert reader.codes_part(weight) == "weight", "to be refused, not carried without its scale"
    weight["weight"] = stored_as("F8_E5M2", (4, 4))
    assert reader.codes_part(weight) == "weight"


def test_a_layer_that_the_config_leaves_dense_is_refused(tmp_path, left_nothing):
    tensors = tensors_of({"model.lm_head": fp8(N, K)})
    source = write_folder(tmp_path / "src", fp8_settings(), [tensors])
    with pytest.raises(CheckpointError, match="model.lm_head.weight is there, but quantization_c"):
        repack(source, left_nothing)
