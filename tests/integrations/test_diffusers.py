# SPDX-License-Identifier: Apache-2.0
"""Models of diffusers: quantised while loading, packed in memory, saved and loaded again."""

import json

import pytest
import torch
from diffusion_models import FAMILIES, OF_CONVOLUTIONS, fresh, result
from hf_models import edit_tensors
from safetensors.torch import load_file, save_file
from torch import nn

import ladder
from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.testing import assert_linear_close

pytest.importorskip("diffusers", reason="diffusers is not installed")

TYPE = "uint4,group=16,scale=float16,zero=midpoint"
#: Of FLUX, one layer of a block.
LAYER = "transformer_blocks.0.attn.to_q"
WEIGHTS = "diffusion_pytorch_model.safetensors"


def packed_of(model):
    """Packed modules by name, and their weights."""
    kinds = (ladder.Linear, ladder.Conv2d)
    return {n: m.packed_weight for n, m in model.named_modules() if isinstance(m, kinds)}


def loaded(model, folder, **options):
    """Loaded again, with nothing left to chance. A mapped file need not be aligned, and sums of
    torch's own layers differ with the alignment of their weights."""
    options = {"output_loading_info": True, "disable_mmap": True} | options
    again, info = type(model).from_pretrained(folder, **options)
    assert not any(info.values()), info
    return again


def config_of(folder):
    return json.loads((folder / "config.json").read_text())["quantization_config"]


def converted(family, convolutions=True):
    model, inputs = fresh(family)
    return model, inputs, ladder.convert(model, TYPE, convolutions=convolutions)


@pytest.fixture
def flux(tmp_path):
    """A FLUX that was packed in memory, and its folder."""
    model, _, _ = converted("flux")
    model.save_pretrained(tmp_path / "model")
    return model, tmp_path / "model"


@pytest.mark.parametrize("family", FAMILIES)
def test_quantising_while_loading_is_converting_afterwards(family, tmp_path):
    model, inputs = fresh(family)
    model.save_pretrained(tmp_path / "dense")
    wanted, _, report = converted(family)
    assert (report.convolutions > 0) == (family in (*OF_CONVOLUTIONS, "sd3", "pixart"))
    config = ladder.LadderConfig("uint4", 16, convolutions=True)
    while_loading = loaded(model, tmp_path / "dense", quantization_config=config)
    assert packed_of(while_loading) == packed_of(wanted)
    assert torch.equal(result(while_loading, inputs), result(wanted, inputs))
    said = while_loading.hf_quantizer.conversion
    assert (said.packed, said.left) == (report.packed, report.left)
    while_loading.save_pretrained(tmp_path / "one")
    wanted.save_pretrained(tmp_path / "other")
    assert config_of(tmp_path / "one") == config_of(tmp_path / "other")
    again = loaded(model, tmp_path / "one")
    assert packed_of(again) == packed_of(wanted)
    assert {type(m) for m in again.modules()} == {type(m) for m in wanted.modules()}
    assert torch.equal(result(again, inputs), result(wanted, inputs))
    again.save_pretrained(tmp_path / "again")
    one, other = (load_file(tmp_path / name / WEIGHTS) for name in ("other", "again"))
    assert one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)
    assert config_of(tmp_path / "again") == config_of(tmp_path / "other")


@pytest.mark.parametrize("family", FAMILIES)
def test_each_packed_layer_computes_what_its_dense_one_does(family):
    """Within the bound, at the x that the model gives it."""
    model, inputs, _ = converted(family, convolutions=False)
    seen = {}

    def note(name):
        def hook(module, x, y):
            seen.setdefault(name, (x[0], y))

        return hook

    for name, module in model.named_modules():
        if isinstance(module, ladder.Linear):
            module.register_forward_hook(note(name))
    result(model, inputs)
    assert seen
    ladder.integrations.diffusers.dense(model)
    for name, (x, y) in seen.items():
        layer = model.get_submodule(name)
        assert_linear_close(y, x, layer.weight, layer.bias)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_dtype_chooses_the_activations_and_not_the_stored_parts(dtype, tmp_path):
    model, inputs, _ = converted("wan")
    model.save_pretrained(tmp_path)
    again = loaded(model, tmp_path, dtype=dtype)
    assert packed_of(again) == packed_of(model)
    assert again.blocks[0].attn1.to_q.dtype == again.dtype == dtype
    assert again.condition_embedder.time_embedder.linear_1.weight.dtype == torch.float32
    if dtype == torch.bfloat16:
        assert result(again, inputs, dtype).isfinite().all()
    cast = loaded(model, tmp_path).to(dtype)  # as packed layers take it
    assert packed_of(cast) == packed_of(model)


def test_what_the_model_keeps_in_float32_stays_dense_unless_it_is_named(tmp_path):
    model, _ = fresh("wan")
    name = "condition_embedder.time_embedder.linear_1"
    model.save_pretrained(tmp_path)
    config = ladder.LadderConfig(TYPE, modules={name: TYPE})
    again = loaded(model, tmp_path, quantization_config=config, dtype=torch.bfloat16)
    other = name.replace("_1", "_2")
    assert name in packed_of(again) and other not in packed_of(again)
    assert again.get_submodule(name).dtype == torch.float32
    why = "its model keeps it in float32 (_keep_in_fp32_modules)"
    assert again.hf_quantizer.conversion.left[other].reason == why
    assert converted("wan")[2].left[name].reason == why


def test_names_choose_types_and_what_stays_dense(tmp_path):
    model, inputs = fresh("flux")
    model.save_pretrained(tmp_path / "dense")
    config = ladder.LadderConfig(
        "uint4", 16, modules={LAYER: "nf4,group=32"}, modules_to_not_convert=["proj_out", "ff"]
    )
    again = loaded(model, tmp_path / "dense", quantization_config=config)
    packed = packed_of(again)
    assert str(packed[LAYER].type).startswith("nf4")
    assert not any("proj_out" in name or ".ff." in name for name in packed)
    again.save_pretrained(tmp_path / "packed")
    assert packed_of(loaded(model, tmp_path / "packed")) == packed
    for option in ("modules", "modules_to_not_convert"):
        wrong = ladder.LadderConfig(TYPE, **{option: {"to_z": TYPE}})
        with pytest.raises(InvalidArgument, match=f'{option} has "to_z", which names no module'):
            loaded(model, tmp_path / "dense", quantization_config=wrong)


def test_activations_of_8_bits_are_kept(tmp_path):
    model, _ = fresh("flux")
    model.save_pretrained(tmp_path / "dense")
    config = ladder.LadderConfig(TYPE, activation_type="int8")
    again = loaded(model, tmp_path / "dense", quantization_config=config)
    assert again.get_submodule(LAYER).activation_type == "int8"
    again.save_pretrained(tmp_path / "packed")
    assert config_of(tmp_path / "packed")["activation_type"] == "int8"
    assert loaded(model, tmp_path / "packed").get_submodule(LAYER).activation_type == "int8"


def test_what_is_saved_is_what_the_layers_are_then(flux, tmp_path):
    model, folder = flux
    again = loaded(model, folder)
    layer = again.get_submodule(LAYER).dequantize()
    attention = again.transformer_blocks[0].attn
    attention.to_q = layer
    attention.to_k = ladder.Linear.from_linear(attention.to_k.dequantize(), "int8", -1)
    again.save_pretrained(tmp_path / "mixed")
    third = loaded(model, tmp_path / "mixed")
    assert packed_of(third) == packed_of(again) and LAYER not in packed_of(third)
    assert torch.equal(third.get_submodule(LAYER).weight, layer.weight)


def test_shards_pickles_and_variants(flux, tmp_path):
    model, _ = flux
    ways = {
        "shards": {"max_shard_size": "50KB"},
        "pickles": {"safe_serialization": False},
        "variant": {"variant": "fp16"},
    }
    for name, options in ways.items():
        model.save_pretrained(tmp_path / name, **options)
        same = {key: value for key, value in options.items() if key == "variant"}
        if name == "pickles":
            same["use_safetensors"] = False
        assert packed_of(loaded(model, tmp_path / name, **same)) == packed_of(model)
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2


def without(part):
    return lambda tensors: tensors.pop(f"{LAYER}.{part}")


def cut(part):
    def change(tensors):
        tensors[f"{LAYER}.{part}"] = tensors[f"{LAYER}.{part}"][:-1].clone()

    return change


@pytest.mark.parametrize(
    "change, message",
    [
        (without("qweight"), f"{LAYER}.qweight is missing"),
        (without("scales"), f"{LAYER}.*scales"),
        (without("bias"), f"{LAYER}.bias is missing"),
        (cut("qweight"), rf"{LAYER}.*qweight.*\[63, 8\].*\[64, 8\]"),
        (cut("scales"), rf"{LAYER}.*scales.*\[63, 4\].*\[64, 4\]"),
        (lambda t: [t.pop(k) for k in list(t) if k.startswith(LAYER)], f"{LAYER} is missing"),
    ],
)
def test_missing_and_ill_fitting_tensors_are_refused_by_name(flux, change, message):
    model, folder = flux
    edit_tensors(folder, change, WEIGHTS)
    with pytest.raises(CheckpointError, match=message):
        type(model).from_pretrained(folder)


def test_pickles_that_lack_a_tensor_or_have_another_shape_are_refused_by_name(flux, tmp_path):
    model, _ = flux
    model.save_pretrained(tmp_path / "pickles", safe_serialization=False)
    file = tmp_path / "pickles" / "diffusion_pytorch_model.bin"
    whole = torch.load(file)
    for change, message in ((cut("qweight"), r"\[63, 8\], not \[64, 8\]"), (without("scales"), "")):
        tensors = dict(whole)
        change(tensors)
        torch.save(tensors, file)
        with pytest.raises(CheckpointError, match=f"{LAYER}.*{message}"):
            type(model).from_pretrained(tmp_path / "pickles", use_safetensors=False)


def test_scales_that_are_no_numbers_are_refused_by_name(flux):
    model, folder = flux

    def spoil(tensors):
        tensors[f"{LAYER}.scales"][0] = float("nan")

    edit_tensors(folder, spoil, WEIGHTS)
    with pytest.raises(CheckpointError, match=f"{LAYER}.*scales"):
        type(model).from_pretrained(folder)


def test_dequantize_gives_a_dense_model_that_saves_as_one(flux, tmp_path):
    model, folder = flux
    again = loaded(model, folder)
    assert again.dequantize() is again and not packed_of(again)
    values = model.get_submodule(LAYER).dequantize().weight
    assert torch.equal(again.get_submodule(LAYER).weight, values)
    again.save_pretrained(tmp_path / "dense")
    assert "quantization_config" not in json.loads((tmp_path / "dense/config.json").read_text())
    assert not packed_of(loaded(model, tmp_path / "dense"))


def test_device_maps_count_packed_bytes_and_disk_is_refused(flux, tmp_path):
    model, folder = flux
    for device in ("cpu", "auto"):
        assert packed_of(loaded(model, folder, device_map=device)) == packed_of(model)
    fresh("flux")[0].save_pretrained(tmp_path / "dense")
    ways = [(folder, {}), (tmp_path / "dense", {"quantization_config": ladder.LadderConfig(TYPE)})]
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    for source, options in ways:
        options |= {"device_map": "auto", "offload_folder": tmp_path / "disk"}
        fits = loaded(model, source, max_memory={"cpu": int(1.1 * size)}, **options)
        assert packed_of(fits) == packed_of(model)
        with pytest.raises(Unsupported, match='device_map has ".*" on disk'):
            loaded(model, source, max_memory={"cpu": int(0.5 * size)}, **options)


@pytest.mark.parametrize("packed", [False, True])
def test_a_single_file_is_quantised_or_packed_already(packed, tmp_path):
    model, _, _ = converted("qwen", convolutions=False)
    model.save_pretrained(tmp_path / "packed")
    tensors = (model if packed else fresh("qwen")[0]).state_dict()
    save_file(tensors, tmp_path / "qwen.safetensors")
    again = type(model).from_single_file(
        str(tmp_path / "qwen.safetensors"),
        config=str(tmp_path / "packed"),
        subfolder=".",
        quantization_config=ladder.LadderConfig(TYPE),
        local_files_only=True,
    )
    assert packed_of(again) == packed_of(model)
    again.save_pretrained(tmp_path / "saved")
    assert packed_of(loaded(model, tmp_path / "saved")) == packed_of(model)


def test_optimize_merges_q_k_and_v_and_leaves_no_trace_in_files(tmp_path):
    model, inputs, _ = converted("flux")
    weights, before = packed_of(model), result(model, inputs)
    report = ladder.optimize(model, example=inputs)
    merged = [{name.rpartition(".")[2] for name in names} for names in report.merged]
    assert {"to_q", "to_k", "to_v"} in merged
    assert {"add_q_proj", "add_k_proj", "add_v_proj"} in merged
    assert torch.equal(result(model, inputs), before)
    model.save_pretrained(tmp_path)
    assert packed_of(loaded(model, tmp_path)) == weights


def test_torch_compile_takes_the_whole_transformer_as_one_graph():
    model, inputs, _ = converted("flux")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(result(compiled, inputs), result(model, inputs))


def test_fusing_projections_is_refused_and_changes_nothing():
    model, inputs, _ = converted("flux")
    before = result(model, inputs)
    with pytest.raises(Unsupported, match="packed by ladder"):
        model.fuse_qkv_projections()
    assert torch.equal(result(model, inputs), before)
    assert not any(isinstance(m, nn.Linear) for m in model.transformer_blocks.modules())


def test_a_folder_of_another_quantizer_is_not_saved_as_one_of_both(flux, tmp_path):
    model, folder = flux
    again = loaded(model, folder)
    again.hf_quantizer.quantization_config.quant_method = "torchao"
    with pytest.raises(Unsupported, match="quantised by torchao .* has layers packed by ladder"):
        again.save_pretrained(tmp_path / "both")
    assert not (tmp_path / "both").exists()
