# SPDX-License-Identifier: Apache-2.0
"""``ladder convert`` of folders of diffusers: models, and pipelines by their parts."""

import json
import shutil
import sys

import pytest
import torch
from diffusion_models import FAMILIES, flux_pipeline, fresh, result
from hf_models import edit_config, edit_tensors
from more_oracles import NF4, bnb
from safetensors.torch import load_file, save_file

import ladder
from ladder.checkpoints import repack
from ladder.checkpoints.convert import convert
from ladder.checkpoints.diffusion import entries_of_part
from ladder.checkpoints.info import describe
from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.integrations.diffusers import dense

pytest.importorskip("diffusers", reason="diffusers is not installed")

TYPE = "uint4,group=16,scale=float16,zero=midpoint"
WEIGHTS = "diffusion_pytorch_model.safetensors"


def packed_of(model):
    """Names of packed modules."""
    kinds = (ladder.Linear, ladder.Conv2d)
    return {name for name, module in model.named_modules() if isinstance(module, kinds)}


def packed_in(pipe):
    """Names of packed modules, their part in front."""
    models = {part: m for part, m in pipe.components.items() if isinstance(m, torch.nn.Module)}
    return {f"{part}.{name}" for part, model in models.items() for name in packed_of(model)}


def loaded(model, folder):
    """Loaded again, with nothing left to chance."""
    again, info = type(model).from_pretrained(folder, output_loading_info=True, disable_mmap=True)
    assert not any(info.values()), info
    return again


def loaded_pipeline(folder):
    from diffusers import DiffusionPipeline

    return DiffusionPipeline.from_pretrained(folder, tokenizer=None, tokenizer_2=None)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    """The folder of a FLUX pipeline: transformer, VAE, and T5 and CLIP of transformers."""
    path = tmp_path_factory.mktemp("pipeline") / "dense"
    flux_pipeline().save_pretrained(path)
    return path


@pytest.fixture
def left_nothing(tmp_path):
    """A destination, checked afterwards to be absent together with every temporary folder."""
    parent = tmp_path / "whole"
    parent.mkdir()
    yield parent / "model"
    assert list(parent.iterdir()) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_a_converted_folder_is_that_of_the_model_packed_in_memory(family, tmp_path):
    model, inputs = fresh(family)
    model.save_pretrained(tmp_path / "dense")
    report = convert(tmp_path / "dense", tmp_path / "folder", TYPE, convolutions=True)
    wanted = ladder.convert(model, TYPE, convolutions=True)
    model.save_pretrained(tmp_path / "memory")
    assert report.conversion.packed == wanted.packed
    assert report.conversion.left.keys() == wanted.left.keys()
    ours, theirs = (load_file(tmp_path / name / WEIGHTS) for name in ("folder", "memory"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    made, saved = (
        json.loads((tmp_path / name / "config.json").read_text())["quantization_config"]
        for name in ("folder", "memory")
    )
    assert made == saved
    again = loaded(model, tmp_path / "folder")
    assert packed_of(again) == packed_of(model) == {*wanted.packed}
    assert torch.equal(result(again, inputs), result(model, inputs))


def test_shards_follow_those_of_the_source(tmp_path):
    model, inputs = fresh("flux")
    model.save_pretrained(tmp_path / "dense", max_shard_size="100KB")
    shards = len(list((tmp_path / "dense").glob("*.safetensors")))
    report = convert(tmp_path / "dense", tmp_path / "packed", TYPE)
    index = "diffusion_pytorch_model.safetensors.index.json"
    assert report.shards == shards > 1 and (tmp_path / "packed" / index).is_file()
    ladder.convert(model, TYPE)
    assert torch.equal(result(loaded(model, tmp_path / "packed"), inputs), result(model, inputs))
    assert describe(tmp_path / "packed")["quant_method"] == "ladder"


def test_pickled_weights_become_safetensors(tmp_path):
    model, inputs = fresh("flux")
    model.save_pretrained(tmp_path / "dense", safe_serialization=False)
    convert(tmp_path / "dense", tmp_path / "packed", TYPE)
    assert not list((tmp_path / "packed").glob("*.bin"))
    ladder.convert(model, TYPE)
    assert torch.equal(result(loaded(model, tmp_path / "packed"), inputs), result(model, inputs))


def test_a_pipeline_has_its_transformer_packed_and_all_else_copied(pipeline, tmp_path):
    report = convert(pipeline, tmp_path / "packed", TYPE)
    pipe = loaded_pipeline(tmp_path / "packed")
    assert {name.partition(".")[0] for name in packed_in(pipe)} == {"transformer"}
    assert report.modules == len(packed_in(pipe)) == len(report.conversion.packed)
    assert {f"transformer.{n}" for n in packed_of(pipe.transformer)} == {*report.conversion.packed}
    for path in pipeline.rglob("*"):
        copy = tmp_path / "packed" / path.relative_to(pipeline)
        if path.is_file() and "transformer" not in path.parts:
            assert copy.read_bytes() == path.read_bytes()
    assert report.destination == str(tmp_path / "packed")


def test_parts_of_a_pipeline_are_named(pipeline, tmp_path):
    parts = ["transformer", "text_encoder_2"]
    convert(pipeline, tmp_path / "packed", TYPE, parts=parts, skip=["transformer.proj_out"])
    packed = packed_in(loaded_pipeline(tmp_path / "packed"))
    assert {name.partition(".")[0] for name in packed} == {*parts}
    assert "transformer.proj_out" not in packed


@pytest.mark.parametrize(("skip", "concerns"), [
    (None, None), ((), ()), (("b.c",), None), (("c", "b.d"), ("c",)), (("a.c",), ("c",)),
])  # fmt: skip
def test_a_part_that_no_entry_concerns_leaves_its_default(skip, concerns):
    assert entries_of_part(skip, "a", ["a", "b"]) == concerns


@pytest.mark.parametrize(("options", "error", "why"), [
    ({"parts": ["unet"]}, InvalidArgument, '"unet" is no model of .* has .*transformer'),
    ({"parts": []}, InvalidArgument, "parts names no model of .* has .*transformer"),
    ({"parts": "unet"}, InvalidArgument, '"unet" is no model of .* has .*transformer'),
    ({"parts": ["tokenizer"]}, InvalidArgument, '"tokenizer" is no model of the pipeline'),
    ({"skip": ["nothing"]}, InvalidArgument, "nothing"),
    ({"skip": ["text_encoder.nothing"]}, InvalidArgument, "text_encoder.nothing"),
])  # fmt: skip
def test_names_that_no_pipeline_has_are_refused(options, error, why, pipeline, tmp_path):
    with pytest.raises(error, match=why):
        convert(pipeline, tmp_path / "out" / "packed", TYPE, **options)
    assert not (tmp_path / "out").exists()


def test_a_pipeline_without_a_denoiser_wants_names(pipeline, tmp_path):
    index = json.loads((pipeline / "model_index.json").read_text())
    (tmp_path / "pipe" / "vae").mkdir(parents=True)
    fields = {key: each for key, each in index.items() if key in ("_class_name", "vae")}
    (tmp_path / "pipe" / "model_index.json").write_text(json.dumps(fields))
    (tmp_path / "pipe" / "vae" / "config.json").write_text("{}")
    with pytest.raises(InvalidArgument, match=r"without transformer or .* \(--part\), of vae"):
        convert(tmp_path / "pipe", tmp_path / "out", TYPE)


def test_parts_of_what_is_no_pipeline_are_refused(tmp_path):
    fresh("vae")[0].save_pretrained(tmp_path / "vae")
    with pytest.raises(InvalidArgument, match="parts are models of a pipeline .* no model_index"):
        convert(tmp_path / "vae", tmp_path / "out", TYPE, parts=["vae"])


def test_a_damaged_part_leaves_nothing_behind(pipeline, tmp_path, left_nothing):
    shutil.copytree(pipeline, tmp_path / "damaged")
    file = tmp_path / "damaged" / "transformer" / WEIGHTS
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="truncated"):
        convert(tmp_path / "damaged", left_nothing, TYPE)


@pytest.mark.parametrize("size", ["1GB", "100KB"])
@pytest.mark.parametrize("safe", [True, False])
def test_variants_of_other_dtypes_are_left(safe, size, tmp_path):
    model, _ = fresh("flux")
    model.save_pretrained(tmp_path / "dense", safe_serialization=safe)
    model.half().save_pretrained(
        tmp_path / "dense", variant="fp16", max_shard_size=size, safe_serialization=safe
    )
    convert(tmp_path / "dense", tmp_path / "packed", TYPE)
    assert {file.name for file in (tmp_path / "packed").iterdir()} == {"config.json", WEIGHTS}
    wanted, _ = fresh("flux")
    ladder.convert(wanted, TYPE)
    ours, theirs = loaded(model, tmp_path / "packed").state_dict(), wanted.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_file_of_all_weights_beside_shards_is_left(tmp_path):
    """diffusers reads the index; the file would replace what one shard is packed to."""
    model, inputs = fresh("flux")
    model.save_pretrained(tmp_path / "dense")
    tensors = load_file(tmp_path / "dense" / WEIGHTS)
    (shard, name) = "diffusion_pytorch_model-00001-of-00001.safetensors", f"{WEIGHTS}.index.json"
    save_file(tensors, tmp_path / "dense" / shard)
    fields = {"metadata": {}, "weight_map": dict.fromkeys(tensors, shard)}
    (tmp_path / "dense" / name).write_text(json.dumps(fields))
    convert(tmp_path / "dense", tmp_path / "packed", TYPE)
    ladder.convert(model, TYPE)
    assert {file.name for file in (tmp_path / "packed").iterdir()} == {"config.json", WEIGHTS}
    assert torch.equal(result(loaded(model, tmp_path / "packed"), inputs), result(model, inputs))


def test_a_folder_of_bitsandbytes_is_repacked(tmp_path):
    model, inputs = fresh("flux")
    model.save_pretrained(tmp_path / "nf4")
    edit_config(tmp_path / "nf4", quantization_config=NF4)
    names = sorted(n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear))

    def change(tensors):
        for seed, name in enumerate(names):
            truth = bnb(*tensors.pop(f"{name}.weight").shape, seed=seed)
            model.get_submodule(name).weight.data = torch.from_numpy(truth.weight)
            tensors |= {f"{name}.{part}": tensor for part, tensor in truth.tensors.items()}

    edit_tensors(tmp_path / "nf4", change, WEIGHTS)
    repack(tmp_path / "nf4", tmp_path / "packed")
    again = loaded(model, tmp_path / "packed")
    assert packed_of(again) == {*names}
    assert torch.equal(result(dense(again), inputs), result(model, inputs))


def test_a_pipeline_is_no_model_for_other_commands(pipeline, tmp_path):
    for command in (describe, lambda path: repack(path, tmp_path / "out")):
        with pytest.raises(InvalidArgument, match="is a pipeline of diffusers: name the folder"):
            command(pipeline)


def test_a_folder_that_is_packed_already_is_refused(tmp_path):
    model, _ = fresh("flux")
    ladder.convert(model, TYPE)
    model.save_pretrained(tmp_path / "packed")
    with pytest.raises(CheckpointError, match="is quantised already, quant_method 'ladder'"):
        convert(tmp_path / "packed", tmp_path / "out", TYPE)


def test_packed_weights_are_quantised_anew(pipeline, tmp_path):
    convert(pipeline, tmp_path / "packed", "int8", group_size=16)
    report = convert(tmp_path / "packed", tmp_path / "again", TYPE, again=True)
    before, after = (loaded_pipeline(tmp_path / folder) for folder in ("packed", "again"))
    assert packed_in(after) == packed_in(before) and report.modules == len(packed_in(after))
    for name in packed_of(after.transformer):
        values = before.transformer.get_submodule(name).packed_weight.dequantize()
        made = after.transformer.get_submodule(name).packed_weight
        assert made == ladder.quantize(values, TYPE)
    assert any("quantised anew" in note for note in report.notes)
    with pytest.raises(CheckpointError, match="text_encoder_2 is not quantised"):
        convert(tmp_path / "packed", tmp_path / "out", TYPE, again=True, parts=["text_encoder_2"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change", [
    {"_class_name": "ModelMixin"}, {"num_attention_heads": -3}, {"num_attention_heads": "two"},
])  # fmt: skip
def test_a_config_of_which_diffusers_makes_no_model_is_damaged(change, tmp_path):
    fresh("flux")[0].save_pretrained(tmp_path / "flux")
    file = tmp_path / "flux" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(CheckpointError, match="flux/config.json: "):
        convert(tmp_path / "flux", tmp_path / "out", TYPE)


@pytest.mark.parametrize("name", ["NoSuchModel", "FluxPipeline", "__doc__"])
def test_a_class_that_diffusers_does_not_have_is_named(name, tmp_path):
    fresh("vae")[0].save_pretrained(tmp_path / "vae")
    file = tmp_path / "vae" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"_class_name": name}))
    with pytest.raises(CheckpointError, match=f"diffusers .* has no model '{name}'"):
        convert(tmp_path / "vae", tmp_path / "out", TYPE)


def test_without_diffusers_the_command_says_what_to_install(tmp_path, monkeypatch):
    fresh("vae")[0].save_pretrained(tmp_path / "vae")
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(Unsupported, match="is of diffusers' AutoencoderKL, and .* pip install"):
        convert(tmp_path / "vae", tmp_path / "out", TYPE)
