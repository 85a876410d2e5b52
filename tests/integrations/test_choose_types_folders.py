# SPDX-License-Identifier: Apache-2.0
"""``ladder convert --bits``: folders whose types are chosen by layer."""

import json

import numpy as np
import pytest
import torch
from hf_mixtures import fresh as fresh_mixture
from hf_models import load, logits, types_in
from typer.testing import CliRunner
from vision_models import fresh as vision_model

import ladder
from ladder.checkpoints.calibrated import Calibration
from ladder.checkpoints.convert import convert
from ladder.checkpoints.info import describe
from ladder.cli import app
from ladder.cli.spelling import types_of
from ladder.errors import InvalidArgument
from ladder.integrations.transformers import dense

TOKENS = torch.randint(0, 128, (6, 48), generator=torch.Generator().manual_seed(1))
TYPES = ["uint2", "uint3", "uint4", "uint6"]
OPTIONS = {"group_size": 32}


def average(folder):
    rows = describe(folder)["types"]
    return sum(r["bits_per_weight"] * r["weights"] for r in rows) / sum(r["weights"] for r in rows)


def check_same(one, other):
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    for (name, tensor), (also, wanted) in pairs:
        assert name == also and torch.equal(tensor, wanted), name


@pytest.mark.parametrize("measure", ["one", "each"])
def test_a_folder_has_the_types_that_are_chosen_in_memory_and_calibrated_codes(
    dense_folder, tmp_path, measure
):
    """Batches of an iterator serve both."""
    batches = iter(TOKENS.split(1))
    report = convert(
        dense_folder, tmp_path / "out", types=TYPES, bits=3.5, measure=measure, **OPTIONS,
        calibration=Calibration(load(dense_folder), batches),
    )  # fmt: skip
    wanted = load(dense_folder)
    chosen = ladder.choose_types(
        wanted, TYPES, 3.5, TOKENS, measure=measure, calibrated=True, **OPTIONS
    )
    ladder.convert(wanted, types=chosen, calibration=TOKENS)
    assert types_in(tmp_path / "out") == {name: str(ttype) for name, ttype in chosen.items()}
    assert report.chosen == chosen and len({*chosen.values()}) > 1
    found = load(tmp_path / "out")
    check_same(found, wanted)
    assert torch.equal(logits(found), logits(wanted))
    assert average(tmp_path / "out") == pytest.approx(chosen.bits) and chosen.bits <= 3.5
    assert report.conversion.errors.keys() == report.conversion.packed.keys()


def test_a_packed_folder_is_quantised_again(dense_folder, tmp_path):
    convert(dense_folder, tmp_path / "packed", "int8", **OPTIONS)
    report = convert(
        tmp_path / "packed", tmp_path / "out", types=TYPES, bits=3.5, again=True, skip=["o_proj"],
        **OPTIONS, calibration=Calibration(dense(load(tmp_path / "packed")), TOKENS),
    )  # fmt: skip
    chosen = ladder.choose_types(
        dense(load(tmp_path / "packed")),
        TYPES,
        3.5,
        TOKENS,
        skip=["o_proj", "lm_head"],
        calibrated=True,
        **OPTIONS,
    )
    found = types_in(tmp_path / "out")
    assert {n: t for n, t in found.items() if "o_proj" not in n} == {
        name: str(ttype) for name, ttype in chosen.items()
    }
    assert report.chosen == chosen


def test_chosen_types_go_into_a_config_for_loading(dense_folder):
    chosen = ladder.choose_types(load(dense_folder), TYPES, 3.5, TOKENS, **OPTIONS)
    model = load(dense_folder, quantization_config=ladder.LadderConfig(types=chosen))
    wanted = {name: str(ttype) for name, ttype in chosen.items()}
    assert model.hf_quantizer.conversion.packed == wanted


@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss"])
def test_experts_whose_names_in_the_files_are_others(kind, tmp_path):
    fresh_mixture(kind).save_pretrained(tmp_path / "dense")
    for source, target, again in (("dense", "out", False), ("out", "again", True)):
        model = dense(load(tmp_path / source))
        report = convert(
            tmp_path / source, tmp_path / target, types=TYPES, bits=3.6, again=again, **OPTIONS,
            calibration=Calibration(model, TOKENS),
        )  # fmt: skip
        wanted = dense(load(tmp_path / source))
        chosen = ladder.choose_types(wanted, TYPES, 3.6, TOKENS, calibrated=True, **OPTIONS)
        assert report.chosen == chosen
        ladder.convert(wanted, types=chosen, calibration=TOKENS)
        check_same(load(tmp_path / target), wanted)


def test_convolutions_of_a_folder(tmp_path):
    model, images = vision_model("regnet"), [torch.randn(2, 3, 32, 32)]
    model.save_pretrained(tmp_path / "dense")
    options = {"group_size": -1, "convolutions": True}
    report = convert(
        tmp_path / "dense", tmp_path / "out", types=["uint3", "uint6"], bits=5.5, **options,
        calibration=Calibration(model, images),
    )  # fmt: skip
    assert report.conversion.convolutions and len({*report.chosen.values()}) == 2
    assert types_in(tmp_path / "out") == {n: str(t) for n, t in report.chosen.items()}


def test_what_is_refused_writes_nothing(dense_folder, tmp_path):
    calibration = Calibration(load(dense_folder), TOKENS)
    given = {"types": TYPES, "bits": 3.5, "calibration": calibration, **OPTIONS}

    def refused(match, **changes):
        with pytest.raises(InvalidArgument, match=match):
            convert(dense_folder, tmp_path / "out", **{**given, **changes})
        assert not list(tmp_path.iterdir())

    refused("bits is 3.5, and calibration is not given: types are chosen by data", calibration=None)
    refused("bits is 3.5, and there are no types to choose from", types=None)
    refused("bits is 1.5, and the smallest types take 2.5 bits a weight", bits=1.5)
    refused("types is .*, not types by the names of modules", bits=None)
    refused("types is {.*}, not types to choose from", types={"mlp": "int8"})
    refused('measure is "both"', measure="both")
    refused("q_proj.*: no type is left", types=["float8_e5m2"], bits=9.0, activation_type="int8")


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def command(dense_folder, tmp_path):
    np.save(tmp_path / "ids.npy", TOKENS.numpy())
    return ["convert", str(dense_folder), str(tmp_path / "out"), "--device", "cpu"]


def test_the_command_chooses_types_and_calibrates_codes(command, dense_folder, tmp_path):
    options = ["--bits", "3.5", "--types", "uint2,group=32", "--types", "uint3,group=32,uint6"]
    options += ["--group", "32", "--calibration", str(tmp_path / "ids.npy")]
    result = CliRunner().invoke(app, [*command, *options, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout[result.stdout.index("{") :])
    wanted = load(dense_folder)
    chosen = ladder.choose_types(
        wanted, ["uint2", "uint3", "uint6"], 3.5, TOKENS, calibrated=True, **OPTIONS
    )
    assert found["chosen"] == json.loads(json.dumps(chosen.to_dict()))
    assert found["conversion"]["packed"] == types_in(tmp_path / "out") == found["chosen"]["types"]
    ladder.convert(wanted, types=chosen, calibration=TOKENS)
    check_same(load(tmp_path / "out"), wanted)
    result = CliRunner().invoke(app, [*command, *options, "--force"], catch_exceptions=False)
    assert result.exit_code == 0 and "of 3.5 that were allowed" in result.stdout
    assert "model.layers.0.self_attn.{q_proj,k_proj,v_proj}" in result.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--bits", "3"], "--bits is 3, and --calibration is not given"),
        (["--bits", "3", "--calibration", "x.npy"], "--bits is 3, and --types is not given"),
        (["--types", "uint2"], "--types is for --bits, which is not given"),
        (["--measure", "each"], "--measure is for --bits, which is not given"),
        (["--bits", "3", "--calibration", "x.npy", "--types", "nosuch"], "nosuch"),
        (
            ["--bits", "3", "--calibration", "x.npy", "--types", "uint2", "--measure", "all"],
            'measure is "all", not one of one, each',
        ),
        (["--bits", "-3", "--calibration", "x.npy", "--types", "uint2"], "not a positive number"),
        (
            ["--bits", "3", "--calibration", "x.npy", "--types", "uint2", "--type", "uint2"],
            "--type is given, and --bits 3 chooses the types",
        ),
        (
            ["--bits", "3", "--calibration", "x.npy", "--types", "uint2", "--layer-type", "a=int8"],
            "--layer-type is given, and --bits 3 chooses the types",
        ),
    ],
)
def test_the_command_says_what_is_wrong(command, options, words, tmp_path):
    if "--calibration" not in options:
        command = command[:3]  # --device is for --calibration
    result = CliRunner().invoke(app, [*command, *options])
    assert result.exit_code == 1 and words in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_types_are_told_apart_in_a_list():
    given = ["uint2, uint3", "uint4,group=32,scale=float16,nf4,channel,scale=float16", "mxfp4"]
    assert types_of(given) == [
        "uint2", "uint3", "uint4,group=32,scale=float16", "nf4,channel,scale=float16", "mxfp4",
    ]  # fmt: skip
