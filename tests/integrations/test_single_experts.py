# SPDX-License-Identifier: Apache-2.0
"""Folders whose experts are packed one by one, loaded with transformers: the stacks have the values
of the files, whatever the format, and the folder that ladder repack makes gives the same model."""

import json
import re
import weakref

import pytest
import torch
from checkpoint_oracle import (
    W4AFP8,
    awq,
    compressed,
    compressed_settings,
    fp8,
    fp8_settings,
    gptq,
    modelopt,
    modelopt_settings,
    w4afp8_expert,
)
from hf_mixtures import FIRST, experts_of, fresh
from hf_models import edit_tensors, load, logits
from single_experts import FIRST_ON_DISK, GPTQ, desc_act, packed
from transformers import AutoModel

from ladder.checkpoints import repack
from ladder.checkpoints.packed import packed_layers
from ladder.errors import CheckpointError, Unsupported
from ladder.integrations.transformers import dense, enable
from ladder.integrations.transformers.single_experts import SingleExperts

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"}

STATIC = {"bits": 8, "form": "int-quantized", "group": -1, "activations": "int8 static"}


def nvfp4(n, k, seed):
    """Gate and up of an expert have one global scale, as vLLM wants them."""
    return compressed(n, k, form="nvfp4-pack-quantized", group=16, seed=seed)


def nvfp4_apart(n, k, seed, name):
    """Gate and up of an expert have global scales of their own."""
    truth = nvfp4(n, k, seed)
    if re.search(r"(w3|up_proj)$", name):
        truth.tensors["weight_global_scale"] *= 2
        truth.scales = truth.scales / 2
    return truth


def w4afp8(n, k, seed, name):
    return w4afp8_expert(n, k, seed=seed) if "experts" in name else fp8(n, k, seed=seed)


#: A layer of each format, and its settings.
FORMATS = {
    "w4afp8": (w4afp8, W4AFP8),
    "gptq desc_act": (desc_act, GPTQ | {"desc_act": True, "sym": True}),
    "gptq": (lambda n, k, seed: gptq(n, k, seed=seed), GPTQ | {"sym": True}),
    "gptq asymmetric": (
        lambda n, k, seed: gptq(n, k, bits=3, symmetric=False, lowest=1, seed=seed),
        GPTQ | {"sym": False, "bits": 3},
    ),
    "awq": (lambda n, k, seed: awq(n, k, group=16, seed=seed), AWQ),
    "compressed-tensors": (
        lambda n, k, seed: compressed(n, k, symmetric=False, seed=seed),
        compressed_settings(symmetric=False),
    ),
    "int8": (
        lambda n, k, seed: compressed(n, k, bits=8, form="int-quantized", group=-1, seed=seed),
        compressed_settings(bits=8, form="int-quantized", group=-1),
    ),
    "nvfp4": (nvfp4, compressed_settings(form="nvfp4-pack-quantized", group=16)),
    "nvfp4 apart": (nvfp4_apart, compressed_settings(form="nvfp4-pack-quantized", group=16)),
    "fp8 blocks": (
        lambda n, k, seed: fp8(n, k, kind="small blocks", seed=seed),
        fp8_settings("small blocks"),
    ),
    "modelopt": (lambda n, k, seed: modelopt(n, k, seed=seed), modelopt_settings("NVFP4")),
    "fp8 tensor": (lambda n, k, seed: fp8(n, k, kind="tensor", seed=seed), fp8_settings("tensor")),
}


@pytest.fixture(params=FORMATS)
def foreign(request, unpacked_folder, tmp_path):
    draw, settings = FORMATS[request.param]
    return packed(unpacked_folder, tmp_path, draw, settings)


def test_experts_have_the_values_of_the_files_and_of_the_repacked_folder(foreign, tmp_path):
    with enable():
        model = load(foreign)
    repack(foreign, tmp_path / "repacked")
    repacked = load(tmp_path / "repacked")
    truth = load(tmp_path / "truth")
    assert set(experts_of(model)) == {f"model.layers.{i}.mlp.experts" for i in (0, 1)}
    for name, experts in experts_of(model).items():
        for parameter, values in experts.dequantize().items():
            assert torch.equal(values, getattr(truth.get_submodule(name), parameter)), parameter
        state, other = experts.state_dict(), repacked.get_submodule(name).state_dict()
        assert state.keys() == other.keys()
        assert all(torch.equal(tensor, other[part]) for part, tensor in state.items())
    held = [(e.gate_up.weight_type, e.down.weight_type) for e in experts_of(model).values()]
    for folder in (foreign, tmp_path / "repacked"):  # what `ladder tune` asks for
        _, mixtures = packed_layers(folder)
        assert [(str(e.gate_up.type), str(e.down.type)) for e in mixtures] == [
            (str(gate_up), str(down)) for gate_up, down in held
        ]
    expected = logits(model)
    assert torch.equal(logits(repacked), expected)
    for number, each in enumerate((model, repacked)):
        saved = tmp_path / f"saved {number}"
        each.save_pretrained(saved)
        again = load(saved)
        assert torch.equal(logits(again), expected)
        assert {str(e.gate_up.weight_type) for e in experts_of(again).values()} == {
            str(e.gate_up.weight_type) for e in experts_of(model).values()
        }
    assert torch.equal(logits(dense(model)), logits(truth))


def test_the_base_model_loads_too(unpacked_folder, tmp_path):
    folder = packed(unpacked_folder, tmp_path)
    ids = torch.arange(50, 70)[None]
    with enable("gptq"):
        whole = load(folder)
        base, info = AutoModel.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True
        )
    assert not info["missing_keys"] and len(experts_of(base)) == 2
    with torch.no_grad():
        assert torch.equal(base(ids)[0], whole.model(ids)[0])


@pytest.mark.parametrize("name", ["gptq", "fp8 blocks"])
def test_a_layer_of_dense_experts_stays_dense_beside_packed_ones(unpacked_folder, tmp_path, name):
    """fp8 calls its codes as dense weights are called, which transformers merges."""
    draw, settings = FORMATS[name]
    first = re.compile(r"(.*\.layers\.0\..*(?:self_attn\.\w+_proj|experts\.\d+\.\w+))\.weight")
    folder = packed(unpacked_folder, tmp_path, draw, settings, first)
    with enable():
        model = load(folder)
    assert set(experts_of(model)) == {FIRST}
    assert torch.equal(logits(dense(model)), logits(load(tmp_path / "truth")))
    with enable():
        load(folder).save_pretrained(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert set(experts_of(again)) == {FIRST}
    assert torch.equal(logits(dense(again)), logits(model))


def test_zero_points_that_some_experts_have_at_the_midpoint_are_stored(unpacked_folder, tmp_path):
    def draw(n, k, seed, name):
        return awq(n, k, group=16, symmetric=".0." in name.partition("experts")[2], seed=seed)

    folder = packed(unpacked_folder, tmp_path, draw, AWQ)
    with enable("awq"):
        model = load(folder)
    repack(folder, tmp_path / "repacked")
    for each in (model, load(tmp_path / "repacked")):
        assert experts_of(each)[FIRST].down.weight_type.zero == "integer"
        assert torch.equal(logits(each), logits(model))
    assert torch.equal(logits(dense(model)), logits(load(tmp_path / "truth")))


def test_activations_of_8_bits_are_those_of_the_folder(unpacked_folder, tmp_path):
    options = {"bits": 8, "form": "int-quantized", "group": -1, "activations": "int8"}
    folder = packed(
        unpacked_folder, tmp_path, lambda n, k, seed: compressed(n, k, seed=seed, **options),
        compressed_settings(**options),
    )  # fmt: skip
    with enable():
        model = load(folder)
    repack(folder, tmp_path / "repacked")
    model.save_pretrained(tmp_path / "saved")
    for each in (model, load(tmp_path / "repacked"), load(tmp_path / "saved")):
        assert {e.activation_type for e in experts_of(each).values()} == {"int8"}
        assert torch.equal(logits(each), logits(model))
    plain = load(tmp_path / "repacked")
    plain.save_pretrained(tmp_path / "twice")
    stored = [
        json.loads((tmp_path / name / "config.json").read_text())["quantization_config"]
        for name in ("saved", "twice")
    ]
    for field in ("weight_type", "modules", "activation_type"):
        assert stored[0][field] == stored[1][field], field


W4A8 = {"bits": 4, "activations": "float8"}


@pytest.mark.parametrize("name", ["fp8 blocks", "fp8 tensor", "W4A8"])
def test_mixtures_of_float8_round_where_a_gpu_does(tmp_path, name):
    """As they come on the CPU; "meta" stands for any device. Products of rounded activations want
    more than one k-tile of columns."""
    wide = {"hidden_size": 256, "moe_intermediate_size": 256}
    fresh("qwen3_moe", **wide).save_pretrained(tmp_path / "wide")
    draw, settings = FORMATS.get(name) or (
        lambda n, k, seed: compressed(n, k, seed=seed, **W4A8),
        compressed_settings(**W4A8),
    )
    folder = packed(tmp_path / "wide", tmp_path, draw, settings)
    with enable():
        model = load(folder)
    assert {e.activation_type for e in experts_of(model).values()} == {None}
    repack(folder, tmp_path / "repacked")
    repacked = load(tmp_path / "repacked")
    assert torch.equal(logits(repacked), logits(model))
    for each in (model, repacked):
        found = experts_of(each.to("meta")).values()
        assert {e.activation_type for e in found} == {"float8_e4m3"}


def test_static_scales_of_experts_are_loaded_saved_and_loaded_again(
    unpacked_folder, tmp_path, caplog
):
    """Of each expert the larger of gate and up; by the largest of all tokens are rounded."""

    def draw(n, k, seed):
        truth = compressed(n, k, seed=seed, **STATIC)
        truth.tensors["input_scale"] = torch.full_like(truth.tensors["input_scale"], 0.5 + seed)
        return truth

    caplog.set_level("INFO", "ladder")
    folder = packed(unpacked_folder, tmp_path, draw, compressed_settings(**STATIC))
    with enable():
        model = load(folder)
    repack(folder, tmp_path / "repacked")
    model.save_pretrained(tmp_path / "saved")
    files = {}
    edit_tensors(folder, files.update)
    for each in (model, load(tmp_path / "repacked"), load(tmp_path / "saved")):
        for name, experts in experts_of(each).items():
            layer = name.split(".")[2]
            wanted = {"gate_up": {}, "down": {}}
            for full, scale in files.items():
                found = re.search(rf"layers\.{layer}\..*experts\.(\d+)\.(\w+)\.input_scale$", full)
                if found:
                    of = wanted["down" if found[2] in ("down_proj", "w2") else "gate_up"]
                    of[int(found[1])] = max(of.get(int(found[1]), 0.0), scale.item())
            for stack, scales in wanted.items():
                kept = getattr(experts, stack).input_scale
                assert kept.shape == (experts.num_experts, 1) and kept.dtype == torch.float32
                assert kept[:, 0].tolist() == [scales[e] for e in sorted(scales)]
                assert len(set(scales.values())) > 1
    assert any("static scales of x are from" in r.getMessage() for r in caplog.records)
    assert torch.equal(logits(load(tmp_path / "saved")), logits(model))
    experts = experts_of(model)[FIRST]
    experts.activation_type = None
    assert experts.gate_up.static_scale() is None
    experts.activation_type = "int8"
    assert experts.gate_up.static_scale().tolist() == [experts.gate_up.input_scale.max().item()]


def test_a_damaged_static_scale_of_an_expert_is_named(unpacked_folder, tmp_path):
    folder = packed(
        unpacked_folder, tmp_path, lambda n, k, seed: compressed(n, k, seed=seed, **STATIC),
        compressed_settings(**STATIC),
    )  # fmt: skip
    with enable():
        load(folder).save_pretrained(tmp_path / "saved")

    def zero(tensors):
        name = next(n for n in tensors if n.endswith("experts.down.input_scale"))
        tensors[name][1] = 0

    edit_tensors(tmp_path / "saved", zero)
    why = r"experts.down.input_scale\[1\]: input_scale is 0.0, not positive"
    with pytest.raises(CheckpointError, match=why):
        load(tmp_path / "saved")


def test_biases_of_zeros_are_left_out(unpacked_folder, tmp_path):
    folder = packed(unpacked_folder, tmp_path)
    with enable("gptq"):
        expected = logits(load(folder))
    bias = {}

    def change(tensors):
        for name in [n for n in tensors if "experts." in n and n.endswith(".qweight")]:
            bias[name.replace("qweight", "bias")] = torch.zeros(tensors[name].shape[1])
        tensors |= bias

    edit_tensors(folder, change)
    with enable("gptq"):
        assert torch.equal(logits(load(folder)), expected)
        name = next(iter(bias))
        edit_tensors(folder, lambda tensors: tensors[name].fill_(0.5))
        with pytest.raises(CheckpointError, match=f"{re.escape(name)} is not zero, and the model"):
            load(folder)
        message = r"experts.0.\w+.bias is offloaded, and ladder.Experts takes no bias but"
        with pytest.raises(Unsupported, match=message):
            load(folder, device_map=FIRST_ON_DISK, offload_folder=tmp_path / "disk")


def test_the_layers_of_one_module_are_freed_before_those_of_the_next_are_joined(
    unpacked_folder, tmp_path, monkeypatch
):
    alive, finish = [], SingleExperts.finish

    def watched(self, model, name):
        alive.append([each() for each in seen if each() is not None])
        layers = [self.get_submodule(layer) for layer in self.layers()]
        tensors = [tensor for layer in layers for tensor in layer.buffers()]
        seen.extend(map(weakref.ref, (*layers, *tensors)))
        del layers, tensors
        finish(self, model, name)
        alive.append([each() for each in seen if each() is not None])

    monkeypatch.setattr(SingleExperts, "finish", watched)
    folder = packed(unpacked_folder, tmp_path)
    repack(folder, tmp_path / "repacked")
    for each in (folder, tmp_path / "repacked"):
        seen, alive[:] = [], []
        with enable("gptq"):
            load(each)
        assert seen and alive == 4 * [[]]
