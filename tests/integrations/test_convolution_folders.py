# SPDX-License-Identifier: Apache-2.0
"""Model folders with packed convolutions: saved, loaded, quantised while loading, streamed."""

import json
import re
from types import SimpleNamespace

import pytest
import torch
from hf_models import edit_tensors
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner
from vision_models import FAMILIES, clip, fresh, scores, whisper

import ladder
from ladder.checkpoints.convert import convert
from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.info import describe, matrices
from ladder.checkpoints.packed import packed_layers
from ladder.cli import app
from ladder.errors import CheckpointError
from ladder.integrations.folders.checkpoint import read_headers
from ladder.integrations.folders.convolutions import swap_convolutions
from ladder.integrations.serving.stored import Folder
from ladder.integrations.transformers import LadderConfig, dense

TYPE = "uint4,group=32,scale=float16,zero=midpoint"
STEM = "resnet.embedder.embedder.convolution"
EVERY = [*FAMILIES]


def packed_of(model):
    """Packed convolutions by name, and their weights."""
    every = model.named_modules()
    return {n: m.packed_weight for n, m in every if isinstance(m, ladder.Conv2d)}


def loaded(kind, folder, **options):
    """Loaded again, with nothing left to chance."""
    options = {"dtype": torch.float32, "output_loading_info": True} | options
    model, info = kind.from_pretrained(folder, **options)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


def config_of(folder):
    return json.loads((folder / "config.json").read_text())["quantization_config"]


@pytest.fixture
def folder(tmp_path):
    """Of a ResNet."""
    model = fresh("resnet")
    ladder.convert(model, TYPE, convolutions=True)
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("family", EVERY)
def test_a_model_that_was_packed_in_memory_loads_again_bit_for_bit(family, tmp_path):
    model = fresh(family)
    report = ladder.convert(model, TYPE, convolutions=True)
    assert report.convolutions == FAMILIES[family][2] == len(packed_of(model))
    model.save_pretrained(tmp_path)
    again = loaded(type(model), tmp_path)
    assert packed_of(again) == packed_of(model)
    assert all(type(m) is ladder.Conv2d for m in again.modules() if isinstance(m, ladder.Conv2d))
    assert torch.equal(scores(again), scores(model))
    shapes = {name: list(model.get_submodule(name).weight.shape) for name in packed_of(model)}
    assert config_of(tmp_path)["convolutions"] == shapes
    again.save_pretrained(tmp_path / "again")
    assert config_of(tmp_path / "again") == config_of(tmp_path)
    one, other = (load_file(p / "model.safetensors") for p in (tmp_path, tmp_path / "again"))
    assert one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


@pytest.mark.parametrize("family", EVERY)
def test_quantising_while_loading_and_streaming_are_converting_afterwards(family, tmp_path):
    model = fresh(family)
    model.save_pretrained(tmp_path / "dense")
    wanted = fresh(family)
    report = ladder.convert(wanted, TYPE, convolutions=True)
    config = LadderConfig(TYPE, modules_to_not_convert=[], convolutions=True)
    while_loading = loaded(type(model), tmp_path / "dense", quantization_config=config)
    assert packed_of(while_loading) == packed_of(wanted)
    assert torch.equal(scores(while_loading), scores(wanted))
    said = while_loading.hf_quantizer.conversion
    assert (said.packed, said.convolutions) == (report.packed, report.convolutions)
    assert {name: left.reason for name, left in said.left.items()} == {
        name: left.reason for name, left in report.left.items()
    }
    while_loading.save_pretrained(tmp_path / "saved")
    streamed = convert(tmp_path / "dense", tmp_path / "streamed", TYPE, convolutions=True)
    assert streamed.conversion.convolutions == report.convolutions
    for name in ("saved", "streamed"):
        again = loaded(type(model), tmp_path / name)
        assert packed_of(again) == packed_of(wanted)
        assert torch.equal(scores(again), scores(wanted))
    assert config_of(tmp_path / "streamed") == config_of(tmp_path / "saved")


def test_patches_of_clip_are_packed(tmp_path):
    model, inputs = clip()
    ladder.convert(model, TYPE, convolutions=True)
    assert len(packed_of(model)) == 1
    model.save_pretrained(tmp_path)
    again = loaded(type(model), tmp_path)
    with torch.no_grad():
        one, other = model(**inputs), again(**inputs)
    assert torch.equal(one.logits_per_image, other.logits_per_image)
    assert packed_of(again) == packed_of(model)


def test_the_base_model_loads_from_the_same_folder_and_saves_its_own(folder, tmp_path):
    from transformers import ResNetForImageClassification, ResNetModel

    whole = loaded(ResNetForImageClassification, folder)
    base = ResNetModel.from_pretrained(folder).eval()
    assert packed_of(base) == packed_of(whole.resnet)
    whole.resnet.save_pretrained(tmp_path / "base")
    again = loaded(ResNetModel, tmp_path / "base")
    assert packed_of(again) == packed_of(base)
    assert STEM.removeprefix("resnet.") in config_of(tmp_path / "base")["convolutions"]
    rest = ResNetForImageClassification.from_pretrained(tmp_path / "base")  # with a new head
    assert packed_of(rest) == packed_of(whole)


def test_convolutions_of_whisper_stay_dense_with_the_reason(tmp_path):
    model = whisper()
    report = ladder.convert(model, TYPE, convolutions=True)
    why = "Conv1d: of convolutions nn.Conv2d are packed alone"
    assert report.convolutions == 0 and report.left["encoder.conv1.weight"].reason == why
    model.save_pretrained(tmp_path)
    assert "convolutions" not in config_of(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_dtype_chooses_the_activations_and_not_the_stored_parts(folder, dtype):
    from transformers import ResNetForImageClassification

    wide = loaded(ResNetForImageClassification, folder)
    model = loaded(ResNetForImageClassification, folder, dtype=dtype)
    assert packed_of(model) == packed_of(wide) and model.get_submodule(STEM).dtype == dtype
    assert scores(model).dtype == dtype


def test_names_choose_what_stays_dense_and_what_is_packed_all_the_same(tmp_path):
    model = fresh("convnext")
    model.save_pretrained(tmp_path / "dense")
    depthwise = "convnext.encoder.stages.0.layers.0.dwconv"
    config = LadderConfig(
        TYPE, modules={depthwise: "int8,channel,scale=float16"},
        modules_to_not_convert=["embeddings"], convolutions=True,
    )  # fmt: skip
    model = loaded(type(model), tmp_path / "dense", quantization_config=config)
    assert type(model.convnext.embeddings.patch_embeddings) is nn.Conv2d
    assert str(model.get_submodule(depthwise).weight_type).startswith("int8,")
    left = model.hf_quantizer.conversion.left
    assert left["convnext.embeddings.patch_embeddings.weight"].reason == (
        "named by modules_to_not_convert"
    )
    model.save_pretrained(tmp_path / "packed")
    assert config_of(tmp_path / "packed")["modules"][depthwise].startswith("int8,")
    again = loaded(type(model), tmp_path / "packed")
    assert packed_of(again) == packed_of(model) and torch.equal(scores(again), scores(model))
    report = convert(
        tmp_path / "dense", tmp_path / "skipped", TYPE, convolutions=True, skip=["embeddings"]
    )
    assert (
        "convnext.embeddings.patch_embeddings"
        not in config_of(tmp_path / "skipped")["convolutions"]
    )
    assert report.conversion.convolutions == 1
    asked = LadderConfig(TYPE, modules={depthwise: TYPE})
    with pytest.raises(ladder.InvalidArgument, match=f'"{depthwise}", but a parameter of Conv2d'):
        type(model).from_pretrained(tmp_path / "dense", quantization_config=asked)


def test_layers_that_were_exchanged_are_saved_as_what_they_are_now(folder, tmp_path):
    from transformers import ResNetForImageClassification as Kind

    model = loaded(Kind, folder)
    changed = model.get_submodule(STEM).dequantize()
    model.set_submodule(STEM, ladder.Conv2d.from_float(changed, "int8", -1))
    second = next(name for name in packed_of(model) if name != STEM)
    model.set_submodule(second, model.get_submodule(second).dequantize())
    model.save_pretrained(tmp_path / "changed")
    again = loaded(Kind, tmp_path / "changed")
    assert packed_of(again) == packed_of(model) and second not in packed_of(again)
    assert torch.equal(scores(again), scores(model))


def test_dequantised_models_have_the_same_values_and_are_saved_dense(folder, tmp_path):
    from transformers import ResNetForImageClassification as Kind

    model = loaded(Kind, folder)
    weights = packed_of(model)
    same = dense(loaded(Kind, folder))
    model = model.dequantize()
    for each in (model, same):
        assert not packed_of(each)
        stem = each.get_submodule(STEM)
        assert type(stem) is nn.Conv2d
        rows = stem.weight.permute(0, 2, 3, 1).flatten(1)
        assert torch.equal(rows, weights[STEM].dequantize())
    model.save_pretrained(tmp_path / "dense")
    assert f"{STEM}.weight" in load_file(tmp_path / "dense" / "model.safetensors")


def test_a_state_dict_in_memory_loads_too(folder):
    from transformers import ResNetForImageClassification as Kind

    state = load_file(folder / "model.safetensors")
    config = Kind.config_class.from_pretrained(folder)

    def from_memory():
        return Kind.from_pretrained(None, config=config, state_dict=dict(state))

    assert packed_of(from_memory()) == packed_of(loaded(Kind, folder))
    del state[f"{STEM}.scales"]
    with pytest.raises(CheckpointError, match=re.escape(f"{STEM}.scales was not loaded")):
        from_memory()


def edit(folder, change):
    """Apply ``change(quantization_config)``."""
    path = folder / "config.json"
    fields = json.loads(path.read_text())
    change(fields["quantization_config"])
    path.write_text(json.dumps(fields))


def of_another_shape(part, make):
    def change(tensors):
        tensors[f"{STEM}.{part}"] = make(tensors[f"{STEM}.{part}"]).contiguous()

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(f"{STEM}.qweight"), rf"{STEM}\.qweight is missing; {STEM} has scales"),
        (lambda t: t.pop(f"{STEM}.scales"), rf"{STEM}\.scales is missing, but type"),
        (
            lambda t: [t.pop(f"{STEM}.{part}") for part in ("qweight", "scales")],
            rf"{STEM}\.qweight is missing",
        ),
        (
            of_another_shape("qweight", lambda t: t[:8]),
            r"qweight has shape \[8, 19\], not \[16, 19",
        ),
        (of_another_shape("qweight", lambda t: t[:, :9]), r"has shape \[16, 9\], not \[16, 19\]"),
        (of_another_shape("scales", lambda t: t.float()), "scales has dtype torch.float32, not"),
        (of_another_shape("scales", lambda t: t * torch.inf), r"scales\[0, 0\] is -?inf"),
    ],
)
def test_a_damaged_folder_fails_by_name(folder, change, message):
    from transformers import ResNetForImageClassification as Kind

    edit_tensors(folder, change)
    with pytest.raises(CheckpointError, match=message):
        Kind.from_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("convolutions"), "is there, but quantization_config.convolutions does"),
        (
            lambda c: c["convolutions"].update({STEM: [16, 3, 7, 6]}),
            r"filters of \[16, 3, 7, 6\] of .* and the model \[16, 3, 7, 7\]",
        ),
        (
            lambda c: c["convolutions"].update({"classifier.1": [5, 32, 1, 1]}),
            "convolutions has classifier.1, and classifier.1 of the model is a Linear",
        ),
        (lambda c: c["convolutions"].update({STEM: [16, 3]}), "not the four sizes of filters"),
    ],
)
def test_a_config_that_does_not_fit_fails_by_name(folder, change, message):
    from transformers import ResNetForImageClassification as Kind

    edit(folder, change)
    with pytest.raises(CheckpointError, match=message):
        Kind.from_pretrained(folder)


def test_a_subclass_of_a_convolution_is_refused(folder, monkeypatch):
    from transformers import ResNetForImageClassification as Kind
    from transformers.models.resnet import modeling_resnet

    class Standardised(nn.Conv2d):
        def forward(self, x):
            return super().forward(x - x.mean())

    changed = SimpleNamespace(**{**vars(nn), "Conv2d": Standardised})
    monkeypatch.setattr(modeling_resnet, "nn", changed)
    with pytest.raises(ladder.Unsupported, match="a Standardised, which is more than nn.Conv2d"):
        Kind.from_pretrained(folder)


def test_a_model_that_is_cut_over_processes_is_refused(folder):
    config = StoredConfig.from_dict(config_of(folder))
    headers = read_headers([folder / "model.safetensors"])
    with pytest.raises(ladder.Unsupported, match="is a packed convolution, which cannot be in a"):
        swap_convolutions(fresh("resnet"), headers, config, cut=True)


def test_info_counts_convolutions_and_has_their_sizes(folder):
    rows = {row["name"]: row for row in describe(folder)["modules"]}
    stem = rows[STEM]
    assert (stem["n"], stem["k"], stem["filters"]) == (16, 147, [16, 3, 7, 7])
    weights = sum(row["n"] * row["k"] for row in rows.values())
    assert sum(row["weights"] for row in describe(folder)["types"]) == weights
    assert not any("filters" in row for row in matrices(folder))
    layers, experts = packed_layers(folder)
    assert [layer.name for layer in layers] == ["classifier.1"] and not experts
    said = CliRunner().invoke(app, ["info", str(folder), "--modules"], env={"COLUMNS": "200"})
    assert "6 convolutions" in said.stdout and "(filters of 3x7x7)" in said.stdout


def test_the_command_packs_convolutions_where_one_asks(tmp_path):
    fresh("resnet").save_pretrained(tmp_path / "dense")
    for options, count in (((), 0), (("--convolutions",), 6)):
        out = str(tmp_path / f"out{count}")
        arguments = ["convert", str(tmp_path / "dense"), out, "--type", TYPE, "--json", *options]
        said = CliRunner().invoke(app, arguments)
        assert said.exit_code == 0, said.output
        assert json.loads(said.stdout)["conversion"]["convolutions"] == count


def test_engines_refuse_such_a_folder_by_name(folder):
    with pytest.raises(ladder.Unsupported, match=f"{STEM} and 5 more are packed convolutions"):
        Folder(config_of(folder))


def test_a_model_half_on_disk_computes_and_saves_the_same(folder, tmp_path):
    from transformers import ResNetForImageClassification as Kind

    whole = loaded(Kind, folder)
    placed = {"resnet.embedder": "disk", "resnet.encoder": "cpu", "resnet.pooler": "cpu",
              "classifier": "cpu"}  # fmt: skip
    for offload_buffers in (False, True):
        model = loaded(
            Kind, folder, device_map=placed, offload_folder=tmp_path / "disk",
            offload_buffers=offload_buffers,
        )  # fmt: skip
        assert torch.equal(scores(model), scores(whole))


def test_hooks_move_along():
    model = fresh("resnet")
    seen = []
    stem = model.get_submodule(STEM)
    handle = stem.register_forward_hook(lambda *_: seen.append(1))
    ladder.convert(model, TYPE, convolutions=True)
    scores(model)
    handle.remove()
    scores(model)
    assert seen == [1]
