# SPDX-License-Identifier: Apache-2.0
"""quant_method "gemma": layers and embeddings as transformers decodes them, and what is refused."""

import json
import logging

import pytest
import torch
from checkpoint_oracle import tensors_of, write_folder
from more_oracles import GEMMA, gemma
from safetensors.torch import load_file

import ladder
from ladder import types
from ladder.checkpoints import gemma as gemma_format
from ladder.checkpoints import open_folder, repack
from ladder.checkpoints.info import describe
from ladder.checkpoints.layer import stored, unpack_layer
from ladder.checkpoints.tables import KEPT_WITH
from ladder.errors import CheckpointError, Unsupported
from ladder.integrations.serving.stored import Folder
from ladder.ops.activations import round_tokens
from ladder.weight import Weight

N, K, NAME, TABLE = 40, 72, "self_attn.q_proj", "tower.embed_tokens"
STATIC = 2.0**-5


def folder_of(path, layers, more=None, **changes):
    return write_folder(path, GEMMA | changes, [tensors_of(layers) | (more or {})])


def theirs(drawn, k, bits):
    """transformers' layer of these tensors; those that are not there stay as it makes them."""
    from transformers.integrations.gemma_quant import QuantizedLinear

    layer = QuantizedLinear(k, len(drawn.weight), num_bits=bits)
    layer.load_state_dict(drawn.tensors, strict=False)
    return layer


def written(folder):
    return json.loads((folder / "config.json").read_text())["quantization_config"]


# --- layers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_values_are_those_of_transformers_to_the_bit(bits, tmp_path):
    drawn = gemma(N, K, bits)
    source = folder_of(tmp_path / "a", {NAME: drawn}, num_bits=bits)
    wanted = theirs(drawn, K, bits)._dequantize_weights(None)
    assert torch.equal(wanted, torch.from_numpy(drawn.weight))
    ((_, direct),) = open_folder(source)
    repack(source, tmp_path / "b")
    text = str(types.parse(f"int{bits},channel,scale=float32"))
    assert written(tmp_path / "b")["weight_type"] == text
    tensors = load_file(tmp_path / "b" / "model.safetensors")
    assert {*tensors} == {f"{NAME}.qweight", f"{NAME}.scales"}
    parts = {part: tensors[f"{NAME}.{part}"] for part in ("qweight", "scales")}
    for weight in (direct, Weight(types.parse(text), (N, K), **parts)):
        weight.check()
        assert torch.equal(weight.dequantize(), wanted)


@pytest.mark.parametrize(("bits", "k"), [(4, 71), (4, 1), (2, 69), (2, 70), (2, 71), (2, 3)])
def test_the_last_byte_of_a_row_may_have_codes_past_k(bits, k):
    drawn = gemma(N, k, bits)
    config = gemma_format.Config(bits).for_module(NAME)
    weight = unpack_layer(gemma_format, drawn.tensors, config, NAME, k)
    assert weight.shape == (N, k)
    assert torch.equal(weight.dequantize(), theirs(drawn, k, bits)._dequantize_weights(None))
    past = ladder.ops.unpack(weight.qweight, weight.qweight.shape[1] * 32 // bits, bits)[:, k:]
    assert not past.any()
    rounder = unpack_layer(gemma_format, drawn.tensors, config, NAME)
    assert rounder.shape == (N, -(-k * bits // 8) * 8 // bits)


def test_rows_unpacked_apart_are_the_rows_unpacked_together(tmp_path):
    source = open_folder(folder_of(tmp_path / "a", {NAME: gemma(70, K)}))
    ((_, weight),) = source
    pieces = [words for _, words in source.words(source.layer(NAME), 1)]
    assert len(pieces) == 3 and torch.equal(torch.cat(pieces), weight.qweight)


# --- x and y --------------------------------------------------------------------------------------


def test_each_layer_has_its_own_scale_of_x_or_none(tmp_path, caplog):
    layers = {
        "a": gemma(N, K, x=STATIC, y=0.0),
        "b": gemma(N, K, x=0.0, y=STATIC),
        "c": gemma(N, K),
    }
    source = folder_of(tmp_path / "a", layers)
    rounded = {m["name"]: m["activation_type"] for m in describe(source)["modules"]}
    assert rounded == {"a": "int8", "b": None, "c": None}
    caplog.clear()
    repack(source, tmp_path / "b")
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert said == ["b: output_activation_scale is left out: y is not rounded"]
    made = written(tmp_path / "b")
    assert made.get("activation_type") is None and made["activation_types"] == {"a": "int8"}
    tensors = load_file(tmp_path / "b" / "model.safetensors")
    of_x = {name: tensor.tolist() for name, tensor in tensors.items() if "scale" in name and
            not name.endswith("scales")}  # fmt: skip
    assert of_x == {"a.input_scale": [STATIC]}
    repack(source, tmp_path / "c", weights_only=True)
    assert "activation_types" not in written(tmp_path / "c")


@pytest.mark.parametrize("scale", [STATIC, 0.0317])
def test_a_static_scale_is_that_of_transformers(scale):
    """Rounding by the scale's inverse, as ladder does, moves a tie at most: by one code."""
    from transformers.integrations.gemma_quant import apply_srq

    x = torch.randn(64, K, generator=torch.Generator().manual_seed(0)) * 3
    wanted = apply_srq(x, torch.tensor(scale))
    found = round_tokens(x, "int8", torch.tensor([scale]))
    if scale == STATIC:
        assert torch.equal(found, wanted)
    assert ((found - wanted).abs() <= scale * (1 + 2**-20)).all()
    assert (found != wanted).float().mean() < 1e-3
    assert wanted.max() == 127 * torch.tensor(scale)


# --- embeddings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("blocks", [1, 3, 9])
def test_an_embedding_is_decoded(blocks, bits, tmp_path):
    from transformers.integrations.gemma_quant import QuantizedEmbedding

    layers = {NAME: gemma(N, K), TABLE: gemma(50, K, bits, table=blocks, seed=1)}
    report = repack(
        folder_of(tmp_path / "a", layers, module_quant_configs={"embed": {"num_bits": bits}}),
        tmp_path / "b",
    )
    assert report.notes == [f"decoded, as no linear layer has their weight: {TABLE}", KEPT_WITH]
    made = load_file(tmp_path / "b" / "model.safetensors")[f"{TABLE}.weight"]
    table = QuantizedEmbedding(50, K, torch.float32, num_bits=bits)
    for part, tensor in layers[TABLE].tensors.items():
        setattr(table, part, torch.nn.Parameter(tensor, requires_grad=False))
    assert made.dtype == torch.float32 and torch.equal(made, table.weight)


def test_an_embedding_is_told_by_its_tensors_and_not_by_its_name(tmp_path):
    layers = {"embed_vision.embedding_projection": gemma(N, K), "positions": gemma(8, K, table=1)}
    repack(folder_of(tmp_path / "a", layers), tmp_path / "b")
    assert {*load_file(tmp_path / "b" / "model.safetensors")} == {
        "embed_vision.embedding_projection.qweight", "embed_vision.embedding_projection.scales",
        "positions.weight",
    }  # fmt: skip


# --- settings -------------------------------------------------------------------------------------


def test_the_pattern_that_matches_furthest_left_says_the_bits():
    config = gemma_format.Config.from_dict(GEMMA | {
        "module_quant_configs": {r"layers\.0\.": {"num_bits": 8}, r"mlp\.": {"num_bits": 2},
                                 "k_proj$": {}},
        "modules_to_not_convert": ["lm_head", r"layers\.\d\.gate", "norm"],
    })  # fmt: skip

    def bits(name):
        module = config.for_module(name)
        return module and module.bits

    assert bits("layers.0.mlp.up_proj") == 8 and bits("layers.1.mlp.up_proj") == 2
    assert bits("layers.1.self_attn.q_proj") == bits("layers.1.self_attn.k_proj") == 4
    assert bits("lm_head") is None and bits("layers.1.gate") is None and bits("a.pre_norm") is None
    assert bits("layers.1.gate_proj") == 4
    twice = gemma_format.Config(patterns={"up_proj": 8, "mlp": 2})
    with pytest.raises(Unsupported, match="mlp.up_proj has 8 bits by 'up_proj' .*, and 2 by 'mlp'"):
        twice.for_module("mlp.up_proj")


@pytest.mark.parametrize("name", ["layers.0.mlp.down_proj", "layers.1.self_attn.q_proj", "lm_head"])
def test_bits_and_dense_modules_are_those_of_transformers(name):
    from transformers import GemmaQuantizationConfig
    from transformers.integrations.gemma_quant import replace_with_quant_layers

    fields = GEMMA | {
        "module_quant_configs": {"down_proj|layers.0": {"num_bits": 8}, "self": {"num_bits": 2}},
        "modules_to_not_convert": ["lm_head"],
    }
    model = torch.nn.Module()
    at = model
    for part in name.split(".")[:-1]:
        at.add_module(part, torch.nn.Module())
        at = at.get_submodule(part)
    at.add_module(name.split(".")[-1], torch.nn.Linear(16, 16))
    config = GemmaQuantizationConfig(**fields)
    replace_with_quant_layers(model, config, fields["modules_to_not_convert"])
    ours = gemma_format.Config.from_dict(fields).for_module(name)
    assert getattr(model.get_submodule(name), "num_bits", None) == (ours and ours.bits)


@pytest.mark.parametrize(("changes", "error", "why"), [
    ({"num_bits": 3}, Unsupported, "num_bits is 3, and ladder reads 2, 4 and 8"),
    ({"num_bits": "4"}, CheckpointError, "num_bits is '4', not an integer"),
    ({"num_bits": 8}, CheckpointError, "q_proj.weight is uint8, not int8"),
    ({"group_size": 32}, Unsupported, "group_size is 32, and ladder does not know"),
    ({"quantize_embeddings": 1}, CheckpointError, "quantize_embeddings is 1, not true or false"),
    ({"module_quant_configs": ["a"]}, CheckpointError, r"is \['a'\], not an object"),
    ({"module_quant_configs": {"a": 4}}, CheckpointError, "configs.a is 4, not an object"),
    ({"module_quant_configs": {"a": {"num_bits": 5}}}, Unsupported, "a.num_bits is 5"),
    ({"module_quant_configs": {"a": {"block": 5}}}, Unsupported, "a.block is 5, and ladder does"),
    ({"module_quant_configs": {"(": {}}}, CheckpointError, r"'\(', no regular expression"),
    ({"module_quant_configs": {"q_proj": {"num_bits": 8}, "self": {"num_bits": 4}}}, Unsupported,
     "q_proj has 8 bits by 'q_proj' of module_quant_configs, and 4 by 'self'"),
    ({"modules_to_not_convert": "a"}, CheckpointError, "is 'a', not a list of names"),
    ({"modules_to_not_convert": ["q_proj"]}, CheckpointError, f"leaves {NAME} unquantised"),
])  # fmt: skip
def test_settings_that_ladder_cannot_follow(changes, error, why, tmp_path, left_nothing):
    with pytest.raises(error, match=why):
        repack(folder_of(tmp_path / "a", {NAME: gemma(N, K)}, **changes), left_nothing)


# --- damaged layers -------------------------------------------------------------------------------


@pytest.mark.parametrize(("part", "change", "why"), [
    ("weight", lambda t: t.flatten(), "not two dimensions"),
    ("weight", lambda t: t[:0], "not two dimensions"),
    ("weight", lambda t: t.view(torch.int8), "is int8, not uint8"),
    ("weight", lambda t: t.float(), "is float32, not uint8"),
    ("weight", None, "weight is missing"),
    ("weight_scale", lambda t: t[1:].clone(), r"\[39, 1\], not \[40, 1\]"),
    ("weight_scale", lambda t: t.flatten(), r"\[40\], not \[40, 1\]"),
    ("weight_scale", lambda t: t.repeat(1, 2), r"\[40, 2\], not \[40, 1\]"),
    ("weight_scale", lambda t: t.int(), "is int32, not"),
    ("weight_scale", lambda t: t * torch.nan, r"weight_scale\[0, 0\] is nan"),
    ("weight_scale", None, "weight_scale is missing"),
    ("input_activation_scale", lambda t: -t, "input_activation_scale is -0.03125, not positive"),
    ("input_activation_scale", lambda t: t * torch.nan, "input_activation_scale is nan"),
    ("input_activation_scale", lambda t: t * 0 + 1e-45, "or its inverse is not"),
    ("input_activation_scale", lambda t: t.int(), "input_activation_scale is int32, not"),
    ("input_activation_scale", lambda t: t.repeat(2), r"\[2\], not \[1\]"),
    ("output_activation_scale", lambda t: t / 0, "output_activation_scale is inf"),
    ("output_activation_scale", lambda t: t.repeat(1, 1), r"\[1, 1\], not \[1\]"),
])  # fmt: skip
def test_damaged_layers_are_named(part, change, why, tmp_path, left_nothing):
    drawn = gemma(N, K, x=STATIC, y=STATIC)
    tensor = drawn.tensors.pop(part)
    if change is not None:
        drawn.tensors[part] = change(tensor)
    with pytest.raises(CheckpointError, match=why) as raised:
        repack(folder_of(tmp_path / "a", {NAME: drawn}), left_nothing)
    assert f"{NAME}." in str(raised.value)


@pytest.mark.parametrize(("part", "change", "error", "why"), [
    ("embedding_quantized", None, CheckpointError, "embedding_quantized is missing"),
    ("embedding_scale", None, CheckpointError, "embedding_scale is missing"),
    ("embedding_scale", lambda t: t.repeat(1, 5), CheckpointError, "72 columns are no multiple of"),
    ("embedding_scale", lambda t: t.repeat(1, 12), Unsupported, "a scale for 6 columns"),
    ("embedding_scale", lambda t: t[1:].clone(), CheckpointError, r"\[7, 1\], not \[8, 1\]"),
    ("embedding_scale", lambda t: t / 0, CheckpointError, r"embedding_scale\[0, 0\] is inf"),
    ("weight", lambda t: t, CheckpointError, "weight is there, and .*embedding_quantized too"),
])  # fmt: skip
def test_damaged_embeddings_are_named(part, change, error, why, tmp_path, left_nothing):
    drawn = gemma(8, K, table=1)
    tensor = drawn.tensors.pop(part, torch.ones(1))
    if change is not None:
        drawn.tensors[part] = change(tensor)
    with pytest.raises(error, match=why) as raised:
        repack(folder_of(tmp_path / "a", {NAME: gemma(N, K), TABLE: drawn}), left_nothing)
    assert TABLE in str(raised.value)


def test_an_embedding_that_the_config_leaves_dense_is_refused(tmp_path, left_nothing):
    layers = {NAME: gemma(N, K), TABLE: gemma(8, K, table=1)}
    source = folder_of(tmp_path / "a", layers, quantize_embeddings=False)
    with pytest.raises(CheckpointError, match=f"{TABLE}.* but .*quantize_embeddings is False"):
        repack(source, left_nothing)


def test_rows_that_are_too_short_for_k_are_refused():
    parts = stored(gemma(N, K).tensors)
    config = gemma_format.Config().for_module(NAME)
    with pytest.raises(CheckpointError, match="rows of 36 bytes, and 73 codes of 4 bits are 37"):
        gemma_format.measure(parts, config, NAME, 73)


def test_scales_of_caches_and_audio_are_left_out(tmp_path, caplog):
    caplog.set_level(logging.INFO, "ladder")
    more = {f"self_attn.{n}": torch.ones(()) for n in ("k_cache_scale", "v_cache_scale")}
    more |= {"audio.rqv2_muls": torch.ones(3), "norm.weight": torch.ones(4)}
    repack(folder_of(tmp_path / "a", {NAME: gemma(N, K)}, more), tmp_path / "b")
    assert "audio.rqv2_muls and 2 more: left out, as" in caplog.text
    made = load_file(tmp_path / "b" / "model.safetensors")
    assert {*made} == {f"{NAME}.qweight", f"{NAME}.scales", "norm.weight"}


def test_engines_are_told_to_repack():
    with pytest.raises(Unsupported, match="gemma, .*: run `ladder repack` first"):
        Folder(GEMMA)
