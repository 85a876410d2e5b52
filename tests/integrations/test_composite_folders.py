# SPDX-License-Identifier: Apache-2.0
"""Parts of a packed composite folder (a vision tower) load as parts of the whole."""

import json
import subprocess
import sys

import pytest
import torch

import ladder
from ladder.checkpoints.convert import convert
from ladder.errors import CheckpointError

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
         "num_attention_heads": 2}  # fmt: skip
VISION = {**SIZES, "image_size": 16, "patch_size": 8}
TOKENS = {"vocab_size": 64, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
TEXT = {**SIZES, **TOKENS, "max_position_embeddings": 16}
LLM = {**SIZES, "vocab_size": 64, "num_key_value_heads": 2, "head_dim": 16}
ROPE = {"rope_type": "default", "mrope_section": [2, 3, 3]}
#: By family: the class of the whole, its configuration, and the classes of its parts with the name
#: of the part in the whole; "" where the part has the names of the whole.
FAMILIES = {
    "clip": ("CLIPModel", {
        "text_config": {**TEXT, "projection_dim": 16}, "projection_dim": 16,
        "vision_config": {**VISION, "projection_dim": 16},
    }, {"CLIPVisionModel": "vision_model", "CLIPTextModel": "text_model",
        "CLIPVisionModelWithProjection": "", "CLIPTextModelWithProjection": ""}),
    "siglip": ("SiglipModel", {
        "text_config": {**TEXT, "projection_size": 32}, "vision_config": VISION,
    }, {"SiglipVisionModel": "vision_model", "SiglipTextModel": "text_model"}),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration", {
        "text_config": {**LLM, "rope_parameters": ROPE},
        "vision_config": {"hidden_size": 32, "intermediate_size": 48, "depth": 1, "num_heads": 2,
                          "patch_size": 4, "out_hidden_size": 32, "fullatt_block_indexes": [0]},
    }, {"Qwen2_5_VLTextModel": "model.language_model"}),
}  # fmt: skip
PARTS = [(family, part) for family, (_, _, parts) in FAMILIES.items() for part in parts]


def kind(name):
    import transformers

    return getattr(transformers, name)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """By family: a dense folder, and the packed ones of `ladder convert` and of save_pretrained."""
    made = {}
    for family, (name, fields, _) in FAMILIES.items():
        torch.manual_seed(0)
        model = kind(name)(kind(name).config_class(**fields))
        base = tmp_path_factory.mktemp(family)
        model.save_pretrained(base / "dense")
        convert(base / "dense", base / "converted", "uint4", group_size=16)
        ladder.convert(model, "uint4", group_size=16)
        model.save_pretrained(base / "saved")
        made[family] = base
    return made


def same_as_whole(part, whole, prefix):
    """Every tensor of ``part`` is that of ``whole`` bit for bit, and linear layers are packed."""
    ours, theirs = part.state_dict(), whole.state_dict()
    start = f"{prefix}." if prefix else ""
    assert all(torch.equal(tensor, theirs[start + name]) for name, tensor in ours.items())
    assert any(isinstance(module, ladder.Linear) for module in part.modules())
    plain = [n for n, m in part.named_modules() if type(m) is torch.nn.Linear]
    assert not [n for n in plain if isinstance(whole.get_submodule(start + n), ladder.Linear)]


@pytest.mark.parametrize("source", ["converted", "saved"])
@pytest.mark.parametrize(("family", "part"), PARTS)
def test_a_part_of_a_packed_folder_is_that_of_the_whole(folders, tmp_path, family, part, source):
    name, _, parts = FAMILIES[family]
    whole = kind(name).from_pretrained(folders[family] / source)
    loaded = kind(part).from_pretrained(folders[family] / source)
    same_as_whole(loaded, whole, parts[part])
    loaded.save_pretrained(tmp_path / "part")  # a folder of its own
    same_as_whole(kind(part).from_pretrained(tmp_path / "part"), whole, parts[part])


@pytest.mark.parametrize("of", ["file", "model"])
def test_a_part_loads_with_a_config_of_the_whole(folders, of):
    folder = folders["clip"] / "saved"
    whole = kind("CLIPModel").from_pretrained(folder)
    config = whole.config if of == "model" else kind("CLIPConfig").from_pretrained(folder)
    part = kind("CLIPVisionModel").from_pretrained(folder, config=config.vision_config)
    same_as_whole(part, whole, "vision_model")


def test_a_folder_without_guards_in_its_parts_loads_part_by_part(folders, tmp_path):
    """Older releases wrote such folders."""
    before = folders["clip"] / "converted"
    config = json.loads((before / "config.json").read_text())
    for part in ("text_config", "vision_config"):
        del config[part]["transformers_weights"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(before / "model.safetensors")
    whole = kind("CLIPModel").from_pretrained(before)
    same_as_whole(kind("CLIPVisionModel").from_pretrained(tmp_path), whole, "vision_model")


def test_a_part_of_which_the_files_have_other_names_is_refused(tmp_path):
    """transformers itself finds no tensor of it there, and would go on with random numbers."""
    torch.manual_seed(0)
    name = "Gemma3ForConditionalGeneration"
    config = kind("Gemma3Config")(text_config=LLM, vision_config=VISION, mm_tokens_per_image=4)
    model = kind(name)(config)
    ladder.convert(model, "uint4", group_size=16)
    model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"layers\.0\.mlp\.down_proj is missing"):
        kind("Gemma3TextModel").from_pretrained(tmp_path)


@pytest.mark.parametrize("source", ["converted", "saved"])
def test_without_ladder_a_part_is_refused_as_the_whole_is(folders, source):
    code = (
        "import sys, transformers; assert 'ladder' not in sys.modules\n"
        f"transformers.CLIPVisionModel.from_pretrained({str(folders['clip'] / source)!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "these weights are quantised by ladder" in done.stderr


def test_the_quantization_config_is_written_once(folders, tmp_path):
    model = kind("CLIPModel").from_pretrained(folders["clip"] / "saved")
    model.save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text()
    assert text.count("quantization_config") == 1
    assert text.count("these weights are quantised by ladder") == 3  # the whole, and each part
    assert model.config.vision_config.quantization_config["quant_method"] == "ladder"


def test_parts_of_a_model_made_dense_say_nothing_of_ladder(folders, tmp_path):
    model = kind("CLIPModel").from_pretrained(folders["clip"] / "saved")
    expected = model.vision_model.encoder.layers[0].mlp.fc1.packed_weight.dequantize()
    model.dequantize()
    model.save_pretrained(tmp_path)
    assert "ladder" not in (tmp_path / "config.json").read_text()
    part = kind("CLIPVisionModel").from_pretrained(tmp_path)
    assert torch.equal(part.encoder.layers[0].mlp.fc1.weight, expected)


def test_parts_of_folders_of_others_are_described_while_enabled(tmp_path):
    from ladder.integrations.transformers import enable

    stored = {"quant_method": "gptq", "bits": 4, "group_size": 16}
    config = {"model_type": "clip", "vision_config": VISION, "quantization_config": stored}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with enable("gptq"):
        assert kind("CLIPVisionConfig").from_pretrained(tmp_path).quantization_config == stored
    part = kind("CLIPVisionConfig").from_pretrained(tmp_path)
    assert getattr(part, "quantization_config", None) is None
