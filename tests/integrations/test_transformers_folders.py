# SPDX-License-Identifier: Apache-2.0
"""Ladder folders through plain transformers."""

import json
import shutil

import pytest
import torch
from hf_models import edit_config, edit_tensors, load, logits
from safetensors.torch import load_file

import ladder
from ladder.errors import CheckpointError
from ladder.integrations.transformers import LadderConfig

Q_PROJ = "model.layers.0.self_attn.q_proj"


@pytest.fixture
def folder(ladder_folder, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(ladder_folder, tmp_path / "model")


def test_a_ladder_folder_computes_what_its_dequantised_weights_compute(ladder_folder):
    model = load(ladder_folder)
    layer = model.get_submodule(Q_PROJ)
    assert type(layer) is ladder.Linear
    assert type(model.lm_head) is torch.nn.Linear
    inputs = []
    layer.register_forward_hook(lambda _, args, y: inputs.append((args[0], y)))
    packed = logits(model)
    x, y = inputs[0]
    ladder.testing.assert_linear_close(y, x, layer.packed_weight.dequantize())
    dense = logits(model.dequantize())
    assert not any(isinstance(module, ladder.Linear) for module in model.modules())
    assert torch.allclose(packed, dense, atol=1e-3, rtol=0)  # logits of about 10


def test_a_model_that_was_saved_can_still_be_dequantised_and_saved_dense(ladder_folder, tmp_path):
    """save_pretrained leaves the name of the dtype in the config, where a dtype was."""
    model = load(ladder_folder, dtype=torch.float32)
    model.save_pretrained(tmp_path / "packed")
    dense = logits(model.dequantize())
    assert model.get_submodule(Q_PROJ).weight.dtype == torch.float32
    model.save_pretrained(tmp_path / "dense")
    loaded = load(tmp_path / "dense", dtype=torch.float32)
    assert type(loaded.get_submodule(Q_PROJ)) is torch.nn.Linear
    assert torch.equal(logits(loaded), dense)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtype_chooses_the_activations_and_not_the_stored_parts(ladder_folder, dtype):
    model = load(ladder_folder, dtype=dtype)
    layer = model.get_submodule(Q_PROJ)
    assert model.dtype == layer.weight.dtype == dtype
    assert layer.scales.dtype == torch.float16
    assert logits(model).dtype == dtype


def test_auto_device_map_counts_packed_bytes(ladder_folder):
    """Room for the packed model, but not for the dense one: auto must see that it fits."""
    model = load(ladder_folder, device_map="auto", max_memory={"cpu": 12_000_000})
    assert {p.device.type for p in (*model.parameters(), *model.buffers())} == {"cpu"}
    assert torch.equal(logits(model), logits(load(ladder_folder)))


@pytest.mark.filterwarnings("ignore:Attempting to save a model with offloaded")
@pytest.mark.parametrize("offload_buffers", [False, True])
def test_a_model_half_on_disk_computes_and_saves_the_same(ladder_folder, tmp_path, offload_buffers):
    model = load(
        ladder_folder, device_map="auto", max_memory={"cpu": 6_000_000},
        offload_folder=tmp_path / "offload", offload_buffers=offload_buffers,
    )  # fmt: skip
    assert "disk" in model.hf_device_map.values()
    expected = logits(load(ladder_folder))
    assert torch.equal(logits(model), expected)
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(logits(load(tmp_path / "saved")), expected)


def test_saving_and_loading_again_changes_no_bit(ladder_folder, tmp_path):
    model = load(ladder_folder, dtype="auto")
    model.save_pretrained(tmp_path)
    before, after = (load_file(f / "model.safetensors") for f in (ladder_folder, tmp_path))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(before[name].dtype == after[name].dtype for name in before)
    configs = [json.loads((f / "config.json").read_text()) for f in (ladder_folder, tmp_path)]
    for key in ("quantization_config", "transformers_weights"):
        assert configs[0][key] == configs[1][key]
    assert torch.equal(logits(model), logits(load(tmp_path, dtype="auto")))
    model.save_pretrained(tmp_path / "again")
    text = (tmp_path / "config.json").read_text()
    assert (tmp_path / "again" / "config.json").read_text() == text


def test_a_model_generates_and_its_config_is_still_itself(ladder_folder, tmp_path):
    from transformers import AutoTokenizer, LlamaConfig

    model = load(ladder_folder)
    tokenizer = AutoTokenizer.from_pretrained(ladder_folder)
    prompt = tokenizer("In the beginning", return_tensors="pt")
    made = model.generate(**prompt, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    assert made.shape[1] == prompt["input_ids"].shape[1] + 8
    model.save_pretrained(tmp_path)
    assert type(model.config) is LlamaConfig


def test_a_compiled_model_computes_the_same(ladder_folder):
    model = load(ladder_folder)
    layer = model.model.layers[0].mlp
    x = torch.randn(1, 5, 256)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(x), layer(x))


@pytest.mark.parametrize("part", ["qweight", "scales"])
def test_a_missing_part_is_named(folder, part):
    edit_tensors(folder, lambda tensors: tensors.pop(f"{Q_PROJ}.{part}"))
    with pytest.raises(CheckpointError, match=f"{Q_PROJ}.{part} is missing"):
        load(folder)


def test_a_module_of_which_nothing_is_stored_is_named(folder):
    def change(tensors):
        del tensors[f"{Q_PROJ}.qweight"], tensors[f"{Q_PROJ}.scales"]

    edit_tensors(folder, change)
    with pytest.raises(
        CheckpointError, match=f"{Q_PROJ} is missing: no codes of it, and no {Q_PROJ}.w"
    ):
        load(folder)


@pytest.mark.parametrize(
    ("part", "replace", "message"),
    [
        ("qweight", lambda t: t[:, :-1].contiguous(), r"has shape \[256, 31\], not \[256, 32\]"),
        ("qweight", lambda t: t.long(), "qweight has dtype torch.int64, not torch.int32"),
        ("scales", lambda t: t[:1].contiguous(), r"scales has shape \[1, 2\], not \[256, 2\]"),
        ("scales", lambda t: t.float(), "scales has dtype torch.float32, not torch.float16"),
        ("scales", lambda t: t.fill_(float("nan")), r"scales\[0, 0\] is nan, not finite"),
        ("zeros", lambda t: torch.zeros(256, 2, dtype=torch.uint8), "zeros is given"),
        ("g_idx", lambda t: torch.full((256,), 7, dtype=torch.int32), "there are 2 groups"),
        ("g_idx", lambda t: torch.zeros(3, dtype=torch.int32), r"g_idx is torch.int32 \[3\], not"),
    ],
)
def test_a_part_that_does_not_fit_is_named_with_both_values(folder, part, replace, message):
    def change(tensors):
        tensors[f"{Q_PROJ}.{part}"] = replace(tensors.get(f"{Q_PROJ}.{part}"))

    edit_tensors(folder, change)
    with pytest.raises(CheckpointError, match=message) as error:
        load(folder)
    assert Q_PROJ in str(error.value)


def test_a_packed_module_that_the_config_leaves_alone_is_an_error(folder):
    fields = json.loads((folder / "config.json").read_text())["quantization_config"]
    edit_config(folder, quantization_config=fields | {"modules_to_not_convert": ["q_proj"]})
    with pytest.raises(CheckpointError, match=f"leaves {Q_PROJ} unquantised"):
        load(folder)


def test_a_packed_head_that_the_config_ties_to_the_embedding_is_an_error(dense_folder, tmp_path):
    """transformers asked for a parameter of its own, with an AttributeError."""
    model = load(dense_folder)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    ladder.convert(model, "uint4", 32, skip=())
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert type(again.lm_head) is ladder.Linear and torch.equal(logits(again), logits(model))
    edit_config(tmp_path, tie_word_embeddings=True)
    said = "^lm_head is quantised, but the configuration ties lm_head to model.embed_tokens: tie_"
    with pytest.raises(CheckpointError, match=said):
        load(tmp_path)


def test_the_base_model_loads_from_the_same_folder(ladder_folder):
    """AutoModel has no "model." before its names; transformers strips it, ladder must as well."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(ladder_folder, dtype=torch.float32)
    assert type(model.layers[0].self_attn.q_proj) is ladder.Linear
    x = torch.arange(8)[None]
    with torch.no_grad():
        expected = load(ladder_folder).model(x).last_hidden_state
        assert torch.equal(model(x).last_hidden_state, expected)


def test_a_new_head_starts_dense(ladder_folder):
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(ladder_folder)
    assert type(model.score) is torch.nn.Linear
    assert type(model.model.layers[0].self_attn.q_proj) is ladder.Linear


def test_a_state_dict_in_memory_loads_too(ladder_folder):
    from transformers import LlamaForCausalLM

    def from_memory():
        config = LlamaForCausalLM.config_class.from_pretrained(ladder_folder)
        return LlamaForCausalLM.from_pretrained(
            None, config=config, state_dict=dict(state), dtype=torch.float32
        )

    state = load_file(ladder_folder / "model.safetensors")
    assert torch.equal(logits(from_memory()), logits(load(ladder_folder)))
    del state[f"{Q_PROJ}.scales"]
    with pytest.raises(CheckpointError, match=f"{Q_PROJ}.scales was not loaded"):
        from_memory()


# --- quantising while loading ---------------------------------------------------------------------


@pytest.mark.parametrize("weight_type", ["uint4", "nf4", "float6_e3m2", "mxfp4"])
def test_quantising_while_loading_equals_converting_afterwards(dense_folder, tmp_path, weight_type):
    group = None if weight_type == "mxfp4" else 32
    model = load(dense_folder, quantization_config=LadderConfig(weight_type, group))
    expected = load(dense_folder)
    ladder.convert(expected, weight_type, group, skip=["lm_head"])
    assert type(model.model.layers[1].mlp.down_proj) is ladder.Linear
    assert type(model.lm_head) is torch.nn.Linear
    assert model.get_submodule(Q_PROJ).bias is not None
    assert torch.equal(logits(model), logits(expected))
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(model), logits(load(tmp_path)))


def test_a_format_of_ones_own_is_saved_with_its_meaning(dense_folder, tmp_path):
    ladder.register_type("hf_thirds", bits=2, values=[-1.0, -0.25, 0.25, 1.0])
    ladder.float_type("hf_ieee5", exponent=2, mantissa=2, specials="ieee")
    config = LadderConfig("hf_thirds", 32, modules={Q_PROJ: "hf_ieee5,group=32,scale=float16"})
    model = load(dense_folder, quantization_config=config)
    model.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert stored["types"] == {
        "hf_ieee5": {"exponent_bits": 2, "mantissa_bits": 2, "bias": 1, "specials": "ieee"},
        "hf_thirds": {"bits": 2, "values": [-1.0, -0.25, 0.25, 1.0]},
    }
    again = load(tmp_path)
    assert str(again.get_submodule(Q_PROJ).weight_type).startswith("hf_ieee5")
    assert torch.equal(logits(model), logits(again))


def test_modules_that_are_left_alone_stay_dense(dense_folder, tmp_path):
    config = LadderConfig("uint4", 32, modules_to_not_convert=["lm_head", "0.mlp"])
    model = load(dense_folder, quantization_config=config)
    assert type(model.model.layers[0].mlp.up_proj) is torch.nn.Linear
    assert type(model.model.layers[1].mlp.up_proj) is ladder.Linear
    config = LadderConfig("uint4", 32, modules_to_not_convert=["lm_head", "up_proj"])
    model = load(dense_folder, quantization_config=config)
    assert type(model.model.layers[0].mlp.up_proj) is torch.nn.Linear
    assert type(model.model.layers[0].mlp.down_proj) is ladder.Linear
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(model), logits(load(tmp_path)))
