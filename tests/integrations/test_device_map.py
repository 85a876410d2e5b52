# SPDX-License-Identifier: Apache-2.0
"""Models over the CPU and a disk: what is held where, and that they compute, generate and save the
same."""

import pytest
import torch
from checkpoint_oracle import gptq
from hf_models import foreign_folder, load, logits
from safetensors.torch import load_file

import ladder
from ladder.errors import Unsupported
from ladder.integrations.transformers import LadderConfig, enable

pytestmark = pytest.mark.filterwarnings("ignore:Attempting to save a model with offloaded")
DOWN_PROJ = "model.layers.1.mlp.down_proj"
TYPES = {  # every part that a weight can have
    "q_proj": "uint3,group=32,scale=float16,zero=midpoint",
    "k_proj": "nvfp4",
    "v_proj": "mxfp4",
    "o_proj": "uint4,group=32,scale=float16,zero=integer",
}


@pytest.fixture(scope="module")
def folder(dense_folder, tmp_path_factory):
    """Layers of several types, with biases."""
    modules = {
        f"model.layers.{number}.self_attn.{name}": text
        for number in range(2)
        for name, text in TYPES.items()
    }
    config = LadderConfig("uint4", 32, modules=modules)
    folder = tmp_path_factory.mktemp("packed") / "model"
    load(dense_folder, quantization_config=config).save_pretrained(folder)
    return folder


def all_but(**elsewhere):
    """A device_map of the tiny model: the CPU but for what is named."""
    places = {
        "model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu",
        "lm_head": "cpu", "model.layers.0": "cpu", "model.layers.1.self_attn": "cpu",
        "model.layers.1.input_layernorm": "cpu", "model.layers.1.post_attention_layernorm": "cpu",
        "model.layers.1.mlp.gate_proj": "cpu", "model.layers.1.mlp.up_proj": "cpu",
        DOWN_PROJ: "cpu", "model.layers.1.mlp.act_fn": "cpu",
    }  # fmt: skip
    return places | elsewhere


@pytest.mark.parametrize("offload_buffers", [False, True])
@pytest.mark.parametrize("place", ["model.layers.0", "model.layers.1.self_attn", DOWN_PROJ])
def test_a_map_by_name_puts_packed_layers_on_disk(folder, tmp_path, place, offload_buffers):
    model = load(
        folder, device_map=all_but(**{place: "disk"}), offload_folder=tmp_path / "offload",
        offload_buffers=offload_buffers,
    )  # fmt: skip
    whole = load(folder)
    layers = {
        name: module for name, module in model.named_modules() if isinstance(module, ladder.Linear)
    }
    assert len(layers) == 14
    for name, module in layers.items():
        inside = name == place or name.startswith(f"{place}.")
        held = {part for part, t in module.named_buffers() if t.device.type == "cpu"}
        stored = {part for part, _ in whole.get_submodule(name).named_buffers()}
        assert held == (set() if inside and offload_buffers else stored), name
    expected = logits(whole)
    assert torch.equal(logits(model), expected)
    assert torch.equal(logits(model), expected)  # what came from disk went back
    prompt = torch.arange(50, 60)[None]
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    assert torch.equal(model.generate(prompt, **options), whole.generate(prompt, **options))
    model.save_pretrained(tmp_path / "saved")
    before, after = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "saved"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("offload_buffers", [False, True])
@pytest.mark.parametrize("way", ["cpu_offload", "disk_offload", "dispatch_model"])
def test_layers_that_accelerate_offloads_by_itself_compute_the_same(
    folder, tmp_path, way, offload_buffers
):
    """Of a model that is loaded already. accelerate writes every kind of part to the disk."""
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    model, expected = load(folder), logits(load(folder))
    places = {
        "cpu_offload": (),
        "disk_offload": (tmp_path,),
        "dispatch_model": (all_but(**{"model.layers.0": "disk", DOWN_PROJ: "disk"}), "cpu"),
    }
    options = {"offload_dir": tmp_path} if way == "dispatch_model" else {"execution_device": "cpu"}
    getattr(accelerate, way)(model, *places[way], offload_buffers=offload_buffers, **options)
    for _ in range(2):  # what came back went away again
        assert torch.equal(logits(model), expected)


@pytest.mark.parametrize("offload_buffers", [False, True])
def test_offloaded_layers_are_not_made_dense(folder, tmp_path, offload_buffers):
    """accelerate would look for a dense weight in the next call, where there is none."""
    model = load(
        folder, device_map=all_but(**{DOWN_PROJ: "disk"}), offload_folder=tmp_path / "offload",
        offload_buffers=offload_buffers,
    )  # fmt: skip
    expected = logits(model)
    with pytest.raises(Unsupported, match=f"^{DOWN_PROJ} is offloaded"):
        model.dequantize()
    assert torch.equal(logits(model), expected)  # nothing was replaced
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(logits(load(tmp_path / "saved")), expected)


def bytes_of(model):
    """Of all tensors, the tied embedding once."""
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    return sum(t.numel() * t.itemsize for t in tensors.values())


def on_disk(folder, room, tmp_path, **options):
    """Modules for which there is no room of ``room`` bytes on the CPU."""
    model = load(
        folder, device_map="auto", max_memory={"cpu": room}, offload_folder=tmp_path / "offload",
        offload_buffers=True, **options,
    )  # fmt: skip
    places = getattr(model, "hf_device_map", {})  # none where all is on one device
    return [name for name, place in places.items() if place == "disk"]


@pytest.mark.parametrize("quantised_while_loading", [False, True])
def test_max_memory_counts_packed_bytes(folder, dense_folder, tmp_path, quantised_while_loading):
    """Room for the packed model and half of what packing saves; then for less than it."""
    packed, dense = bytes_of(load(folder)), bytes_of(load(dense_folder))
    room = packed + (dense - packed) // 2
    source, options = folder, {}
    if quantised_while_loading:
        source, options = dense_folder, {"quantization_config": LadderConfig("uint4", 32)}
    assert on_disk(source, room, tmp_path, **options) == []
    assert on_disk(dense_folder, room, tmp_path) != []
    assert on_disk(folder, packed // 2, tmp_path) != []


def test_a_foreign_folder_is_mapped_as_well(dense_folder, tmp_path):
    def draw(n, k, seed):
        return gptq(n, k, seed=seed, bits=4)

    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
    source, _ = foreign_folder(dense_folder, tmp_path / "gptq", draw, settings)
    options = {"device_map": all_but(**{DOWN_PROJ: "disk"}), "offload_folder": tmp_path / "offload"}
    with enable("gptq"):
        assert torch.equal(logits(load(source, **options)), logits(load(source)))
        with pytest.raises(Unsupported, match=f"{DOWN_PROJ}.qweight is offloaded in its"):
            load(source, **options, offload_buffers=True)
