# SPDX-License-Identifier: Apache-2.0
"""``ladder convert --again``: the packed weights of a ladder folder, quantised anew."""

import json
import math
import re

import pytest
import torch
from checkpoint_oracle import gptq, tensors_of, write_folder
from hf_models import SUPERBLOCKS, edit_tensors, load, logits
from safetensors.torch import load_file
from typer.testing import CliRunner
from vision_models import fresh as vision_model

import ladder
from ladder.checkpoints import repack
from ladder.checkpoints.convert import convert
from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.info import describe
from ladder.cli import app
from ladder.errors import CheckpointError, InvalidArgument, Unsupported

INTEGER = "uint4,group=128,scale=uint4,zero=midpoint,scale2=float32:channel"
FIRST = "model.layers.0.mlp"


def config_of(folder):
    return json.loads((folder / "config.json").read_text())["quantization_config"]


def weights_of(folder):
    every = load(folder).named_modules()
    return {name: m.packed_weight for name, m in every if isinstance(m, ladder.Linear)}


@pytest.fixture
def ordered(tmp_path):
    """A repacked GPTQ layer with act-order, and tensors of a ladder folder beside its weight."""
    truth = gptq(32, 96, symmetric=False, order=True)
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}
    source = write_folder(tmp_path / "gptq", settings, [tensors_of({"layer": truth})])
    repack(source, tmp_path / "packed")
    (tmp_path / "packed" / "plans.json").write_text("{}")
    beside = {"layer.pre_scale": torch.rand(96) + 0.5, "layer.bias": torch.randn(32)}
    edit_tensors(
        tmp_path / "packed",
        lambda tensors: tensors.update(beside, **{"layer.input_scale": torch.tensor(0.5)}),
    )
    return truth, beside, tmp_path / "packed"


@pytest.mark.parametrize(
    "wanted", ["nf4,group=64,scale=float16", INTEGER, SUPERBLOCKS, "float8_e4m3,scale=float32"]
)
def test_a_repacked_model_is_what_its_values_quantised_first_are(
    ladder_folder, dequantised_folder, tmp_path, wanted
):
    report = convert(ladder_folder, tmp_path / "again", wanted, again=True)
    convert(dequantised_folder, tmp_path / "first", wanted)
    made, first = weights_of(tmp_path / "again"), weights_of(tmp_path / "first")
    assert made == first and {str(weight.type) for weight in made.values()} == {wanted}
    assert torch.equal(logits(load(tmp_path / "again")), logits(load(tmp_path / "first")))
    assert report.modules == len(made) and report.bytes_before > 0
    before = weights_of(ladder_folder)
    moved = [(before[n].dequantize(), weight.dequantize()) for n, weight in made.items()]
    share = math.sqrt(
        sum((b - a).double().square().sum().item() for b, a in moved)
        / sum(b.double().square().sum().item() for b, _ in moved)
    )
    (note,) = (note for note in report.notes if "quantised anew" in note)
    assert re.search(r"move by (\S+)%", note)[1] == f"{100 * share:.2f}"


def test_act_order_and_scales_of_x_go_and_all_else_stays(ordered, tmp_path):
    truth, beside, folder = ordered
    convert(folder, tmp_path / "out", "int8,group=32,scale=float16", again=True)
    found = load_file(tmp_path / "out" / "model.safetensors")
    wanted = ladder.quantize(torch.from_numpy(truth.weight), "int8,group=32,scale=float16")
    parts = {f"layer.{part}": tensor for part, tensor in wanted.tensors().items()}
    assert found.keys() == parts.keys() | beside.keys()
    for name, tensor in (parts | beside).items():
        assert torch.equal(found[name], tensor), name
    assert not (tmp_path / "out" / "plans.json").exists()
    assert (tmp_path / "out" / "extra" / "notes.txt").read_text() == "carried over"
    (row,) = describe(tmp_path / "out")["modules"]
    assert (row["n"], row["k"], row["type"]) == (32, 96, str(wanted.type))


def test_stacks_of_experts_are_quantised_anew(mixture, mixture_folder, tmp_path):
    convert(mixture_folder, tmp_path / "packed", "int8", group_size=32)
    report = convert(tmp_path / "packed", tmp_path / "again", "nf4", group_size=32, again=True)
    # The dense model of these values, quantised in memory.
    model = load(tmp_path / "packed").dequantize()
    ladder.convert(model, "nf4", group_size=32)
    assert torch.equal(logits(load(tmp_path / "again")), logits(model))
    rows = describe(tmp_path / "again")["modules"]
    assert report.modules == len(rows) and any(row.get("experts") for row in rows)
    assert {row["type"] for row in rows} == {"nf4,group=32,scale=float16"}


def test_what_is_skipped_stays_as_it_is_packed(ladder_folder, tmp_path):
    report = convert(
        ladder_folder,
        tmp_path / "out",
        INTEGER,
        activation_type="int8",
        skip=[FIRST, "o_proj"],
        again=True,
    )
    before, after = weights_of(ladder_folder), weights_of(tmp_path / "out")
    kept = {n for n in before if n.startswith(FIRST + ".") or n.endswith(".o_proj")}
    assert kept and {n for n, weight in after.items() if weight == before[n]} == kept
    rows = {row["name"]: row["activation_type"] for row in describe(tmp_path / "out")["modules"]}
    assert rows == {n: None if n in kept else "int8" for n in before}
    assert report.modules == len(before) - len(kept)
    assert any(note.startswith("packed as before: ") for note in report.notes)
    assert config_of(tmp_path / "out")["modules_to_not_convert"] == config_of(ladder_folder).get(
        "modules_to_not_convert"
    )


def test_convolutions_stay_unless_they_are_asked_for(tmp_path):
    model = vision_model("resnet")
    ladder.convert(model, "int8", group_size=32, convolutions=True)
    model.save_pretrained(tmp_path / "packed")
    packed = describe(tmp_path / "packed")["modules"]
    filters = [row["name"] for row in packed if "filters" in row]
    linear = [row["name"] for row in packed if "filters" not in row]
    assert filters
    options = {"group_size": 32, "again": True}
    with pytest.raises(CheckpointError, match="no packed layer is left to convert"):
        convert(tmp_path / "packed", tmp_path / "out", "nf4", skip=linear or None, **options)
    assert not (tmp_path / "out").exists()
    convert(tmp_path / "packed", tmp_path / "out", "nf4", convolutions=True, **options)
    again = type(model).from_pretrained(tmp_path / "out", dtype=torch.float32)
    for name in filters:
        values = model.get_submodule(name).packed_weight.dequantize()
        wanted = ladder.quantize(values, "nf4", group_size=32)
        assert again.get_submodule(name).packed_weight == wanted


def test_what_cannot_be_quantised_anew_is_refused_and_writes_nothing(
    ladder_folder, ordered, dense_folder, tmp_path
):
    truth, _, folder = ordered
    out = tmp_path / "out"

    def refused(error, match, source, *arguments, **options):
        with pytest.raises(error, match=match):
            convert(source, out, *arguments, **({"again": True} | options))
        assert not out.exists()

    refused(CheckpointError, "'ladder': --again .* rounds them twice", folder, "nf4", again=False)
    refused(CheckpointError, "is not quantised", dense_folder, "nf4")
    refused(CheckpointError, "'gptq': `ladder repack`", folder.parent / "gptq", "nf4")
    refused(InvalidArgument, "nosuch", folder, "nf4", skip=["nosuch"])
    refused(CheckpointError, "no packed layer is left", folder, "nf4", skip=["layer"])
    refused(Unsupported, "^layer: ", folder, "uint4,group=10,scale=float16", activation_type="int8")
    edit_tensors(folder, lambda tensors: tensors["layer.scales"].fill_(float("nan")))
    refused(CheckpointError, "layer.*finite", folder, "nf4")


@pytest.mark.parametrize("k", [100, 104])
def test_rows_that_do_not_say_how_long_they_are_are_refused(tmp_path, k):
    """13 words of 4 bits are 97 to 104 columns."""
    folder, values = tmp_path / "packed", torch.randn(16, k)
    weight = ladder.quantize(values, "uint4,group=32,scale=float16,zero=midpoint")
    config = StoredConfig.describing({"layer": str(weight.type)}, [])
    parts = {f"layer.{part}": tensor for part, tensor in weight.tensors().items()}
    write_folder(folder, config.to_dict(), [parts])
    convert(folder, tmp_path / "out", "nf4", group_size=32, again=True)  # of as many words
    found = load_file(tmp_path / "out" / "model.safetensors")["layer.qweight"]
    wanted = ladder.quantize(weight.dequantize(), "nf4", group_size=32)
    assert torch.equal(found[:, :12], wanted.qweight[:, :12])
    if k == 104:
        convert(folder, tmp_path / "wider", "int8", group_size=32, again=True)
        return
    with pytest.raises(CheckpointError, match="layer: rows of 13 words .* 97 to 104 columns"):
        convert(folder, tmp_path / "wider", "int8", group_size=32, again=True)
    assert not (tmp_path / "wider").exists()


def test_the_command_quantises_anew(ladder_folder, tmp_path):
    command = ["convert", str(ladder_folder), str(tmp_path / "out"), "--type", "nf4", "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1 and "--again" in str(result.exception)
    result = CliRunner().invoke(app, [*command, "--again"])
    assert result.exit_code == 0, result.output
    assert any("quantised anew" in note for note in json.loads(result.stdout)["notes"])
