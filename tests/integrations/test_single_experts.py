# SPDX-License-Identifier: Apache-2.0
"""Folders whose experts are packed one by one, loaded with transformers: the stacks have the values
of the files, whatever the format, and the folder that ladder repack makes gives the same model."""

import inspect
import json
import re
import shutil
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
    w4afp8_expert,
)
from hf_mixtures import FIRST, experts_of, fresh
from hf_models import edit_tensors, load, logits
from single_experts import PACKED, foreign_mixture
from transformers import AutoModel

import ladder
from ladder.checkpoints import repack
from ladder.errors import CheckpointError, Unsupported
from ladder.integrations.transformers import dense, enable
from ladder.integrations.transformers.checkpoint import read_headers
from ladder.integrations.transformers.single_experts import SingleExperts, open_experts

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"}

STATIC = {"bits": 8, "form": "int-quantized", "group": -1, "activations": "int8 static"}
FIRST_ON_DISK = {"model.embed_tokens": "cpu", "model.layers.0": "disk", "model.layers.1": "cpu",
                 "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}  # fmt: skip


def nvfp4(n, k, seed):
    """Gate and up of an expert have one global scale, as vLLM wants them."""
    return compressed(n, k, form="nvfp4-pack-quantized", group=16, seed=seed)


def desc_act(n, k, seed, name):
    """Gate and up of an expert have one input, so one order; no two experts have the same."""
    expert = re.search(r"layers\.(\d+).*experts\.(\d+)", name)
    order = True if expert is None else 1000 + 10 * int(expert[1]) + int(expert[2])
    return gptq(n, k, order=order, seed=seed)


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
    "fp8 blocks": (
        lambda n, k, seed: fp8(n, k, kind="small blocks", seed=seed),
        fp8_settings("small blocks"),
    ),
    "fp8 tensor": (lambda n, k, seed: fp8(n, k, kind="tensor", seed=seed), fp8_settings("tensor")),
}


@pytest.fixture(scope="module", params=["mixtral", "qwen3_moe"])
def unpacked_folder(request, tmp_path_factory):
    """transformers writes its experts one by one."""
    folder = tmp_path_factory.mktemp(request.param) / "model"
    fresh(request.param).save_pretrained(folder)
    return folder


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


def packed(unpacked_folder, tmp_path, draw=gptq, settings=None, packed=PACKED):
    """A folder, GPTQ unless told otherwise, whose layers ``draw`` makes, called with ``name`` too
    where it takes that."""

    def one(n, k, seed, name):
        named = {"name": name} if "name" in inspect.signature(draw).parameters else {}
        return draw(n, k, seed=seed, **named)

    return foreign_mixture(unpacked_folder, tmp_path / "foreign", one, settings or GPTQ, packed)


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


def test_weights_on_disk_are_refused_only_where_their_codes_are(unpacked_folder, tmp_path):
    repack(packed(unpacked_folder, tmp_path), tmp_path / "repacked")
    expected = logits(load(tmp_path / "repacked"))
    options = {"device_map": FIRST_ON_DISK, "offload_folder": tmp_path / "disk"}
    assert torch.equal(logits(load(tmp_path / "repacked", **options)), expected)
    with pytest.raises(Unsupported, match=r"experts.0.\w+ is offloaded: experts that are"):
        load(tmp_path / "repacked", offload_buffers=True, **options)


def test_experts_that_would_be_cut_over_processes_are_refused(unpacked_folder, tmp_path):
    headers = read_headers([packed(unpacked_folder, tmp_path) / "model.safetensors"])
    model = load(unpacked_folder)
    parts, codes_part = ladder.checkpoints.gptq.PARTS, ladder.checkpoints.gptq.codes_part
    with pytest.raises(Unsupported, match=r"experts.0.\w+.qweight is of packed experts, which can"):
        open_experts(model, headers, parts, codes_part, cut=True)


def projection(folder, expert, parameter):
    """What the files call a projection of the first layer: of "down", or the first of "gate_up"."""
    mixtral = json.loads((folder / "config.json").read_text())["model_type"] == "mixtral"
    block, gate, down = (
        ("block_sparse_moe", "w1", "w2") if mixtral else ("mlp", "gate_proj", "down_proj")
    )
    last = gate if parameter == "gate_up" else down
    return f"model.layers.0.{block}.experts.{expert}.{last}"


@pytest.mark.parametrize("form", ["gptq", "ladder"])
def test_folders_that_lack_a_projection_or_have_one_too_many_are_refused(
    unpacked_folder, tmp_path, form
):
    folder = packed(unpacked_folder, tmp_path)
    if form == "ladder":
        repack(folder, tmp_path / "repacked")
        folder = tmp_path / "repacked"
    missing, there = projection(folder, 2, "down"), projection(folder, 0, "gate_up")
    parts = ("qweight", "scales", "qzeros", "g_idx")

    def refused(change, why, error=CheckpointError):
        copy = shutil.copytree(folder, tmp_path / "damaged", dirs_exist_ok=True)
        edit_tensors(copy, change)
        with enable("gptq"), pytest.raises(error, match=why):
            load(copy)

    def drop(tensors, parts=parts):
        for part in parts:
            tensors.pop(f"{missing}.{part}", None)

    def one_more(tensors):
        for part in parts:
            if f"{there}.{part}" in tensors:
                name = there.replace("experts.0.", "experts.8.")
                tensors[f"{name}.{part}"] = tensors[f"{there}.{part}"].clone()

    def make_dense(tensors):
        drop(tensors)
        tensors[f"{missing}.weight"] = torch.zeros(64, 96)

    refused(
        drop, f"{missing}.qweight is missing, and {there}.qweight is there: the model has . exp"
    )
    refused(lambda t: drop(t, ["qweight"]), f"{missing}.qweight is missing")
    refused(lambda t: drop(t, ["scales"]), f"{missing}.scales is missing")
    refused(one_more, "experts.8.*qweight is there, but the model has . experts")
    refused(make_dense, f"{missing} is dense, and {there} packed", Unsupported)


def test_a_projection_of_another_shape_is_refused_with_both(unpacked_folder, tmp_path):
    folder = packed(unpacked_folder, tmp_path)
    name = projection(folder, 1, "down")
    edit_tensors(
        folder,
        lambda t: t.update({f"{name}.{p}": v for p, v in gptq(32, 64).tensors.items()}),
    )
    with (
        enable("gptq"),
        pytest.raises(
            CheckpointError, match=rf"{name}.qweight holds a weight of \[32, 64\], not \[64, \d\d\]"
        ),
    ):
        load(folder)


def test_experts_of_two_types_are_refused_with_both(unpacked_folder, tmp_path):
    name = re.escape(projection(unpacked_folder, 1, "down"))
    settings = GPTQ | {"dynamic": {f"+:{name}": {"bits": 8}}}

    def draw(n, k, seed, name):
        bits = 8 if name == projection(unpacked_folder, 1, "down") else 4
        return gptq(n, k, bits=bits, seed=seed)

    folder = packed(unpacked_folder, tmp_path, draw, settings)
    why = rf"{name} is uint8,.*, and .*experts.0.\w+ uint4,.*: the experts of a layer need one type"
    with enable("gptq"), pytest.raises(Unsupported, match=why):
        load(folder)
    repack(folder, tmp_path / "repacked")
    with pytest.raises(Unsupported, match=why):
        load(tmp_path / "repacked")


def test_gate_and_up_in_two_orders_are_refused(unpacked_folder, tmp_path):
    """One product reads the columns of its x in one order."""
    folder = packed(
        unpacked_folder, tmp_path, lambda n, k, seed: gptq(n, k, order=True, seed=seed),
        GPTQ | {"desc_act": True},
    )  # fmt: skip
    why = r"experts\.0\.\w+ and .*experts\.0\.\w+ cannot be one product: g_idx differ"
    with enable("gptq"), pytest.raises(Unsupported, match=why):
        load(folder)


def test_stacks_with_a_damaged_order_are_refused(unpacked_folder, tmp_path):
    folder = packed(unpacked_folder, tmp_path, desc_act, GPTQ | {"desc_act": True})
    with enable("gptq"):
        load(folder).save_pretrained(tmp_path / "saved")

    def of_down(tensors):
        return next(name for name in tensors if name.endswith("experts.down.g_idx"))

    def too_large(tensors):
        tensors[of_down(tensors)][1, 3] = 99

    edit_tensors(tmp_path / "saved", too_large)
    with pytest.raises(CheckpointError, match=r"down\[1\].g_idx has values from 0 to 99"):
        load(tmp_path / "saved")

    def too_short(tensors):
        name = of_down(tensors)
        tensors[name] = tensors[name][:, :8].contiguous()

    edit_tensors(tmp_path / "saved", too_short)
    with pytest.raises(CheckpointError, match=r"down.g_idx has shape \[\d, 8\], not"):
        load(tmp_path / "saved")


def test_gate_and_up_with_two_global_scales_are_refused(unpacked_folder, tmp_path):
    def draw(n, k, seed, name):
        truth = compressed(n, k, form="nvfp4-pack-quantized", group=16, seed=seed)
        if re.search(r"(w3|up_proj)$", name):
            truth.tensors["weight_global_scale"] *= 2
        return truth

    settings = compressed_settings(form="nvfp4-pack-quantized", group=16)
    folder = packed(unpacked_folder, tmp_path, draw, settings)
    with enable(), pytest.raises(Unsupported, match="cannot be one product: scale2 differ"):
        load(folder)
