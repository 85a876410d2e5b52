# SPDX-License-Identifier: Apache-2.0
"""``ladder convert --calibration``: folders whose codes are chosen by what layers are given."""

import copy
import json
import math
import re

import hf_mixtures
import numpy as np
import pytest
import torch
from diffusion_models import flux_pipeline
from hf_models import GPTQ, TWO_LEVELS, check_same, load, logits
from typer.testing import CliRunner
from vision_models import fresh as vision_model
from vision_models import scores

import ladder
from ladder.checkpoints import repack
from ladder.checkpoints.calibrated import Calibration
from ladder.checkpoints.convert import convert
from ladder.cli import app
from ladder.errors import InvalidArgument
from ladder.evaluate.perplexity import load_tokens, perplexity, spread
from ladder.integrations.transformers import dense

TOKENS = torch.randint(0, 128, (8, 48), generator=torch.Generator().manual_seed(1))


def test_a_folder_is_the_model_that_is_calibrated_in_memory(dense_folder, tmp_path):
    report = convert(
        dense_folder, tmp_path / "out", "uint3", group_size=32,
        calibration=Calibration(load(dense_folder), TOKENS),
    )  # fmt: skip
    wanted = load(dense_folder)
    in_memory = ladder.convert(wanted, "uint3", 32, calibration=TOKENS)
    found = load(tmp_path / "out")
    check_same(found, wanted)
    assert torch.equal(logits(found), logits(wanted))
    assert report.conversion.errors == in_memory.errors
    assert "calibrated 14 layers" in str(report.conversion)


def test_experts_of_a_folder(mixture, mixture_folder, tmp_path):
    calibration = Calibration(load(mixture_folder), TOKENS)
    convert(mixture_folder, tmp_path / "out", TWO_LEVELS, calibration=calibration)
    wanted = load(mixture_folder)
    ladder.convert(wanted, TWO_LEVELS, calibration=TOKENS)
    check_same(load(tmp_path / "out"), wanted)
    # Once more, from the packed values.
    again = Calibration(dense(load(tmp_path / "out")), TOKENS)
    convert(tmp_path / "out", tmp_path / "again", "uint3", group_size=32, again=True,
            calibration=again)  # fmt: skip
    wanted = dense(load(tmp_path / "out"))
    report = ladder.convert(wanted, "uint3", 32, calibration=TOKENS)
    check_same(load(tmp_path / "again"), wanted)
    assert report.errors[hf_mixtures.FIRST].error < report.errors[hf_mixtures.FIRST].nearest


def test_convolutions_of_a_folder(tmp_path):
    model, images = vision_model("regnet"), [torch.randn(2, 3, 32, 32)]
    model.save_pretrained(tmp_path / "dense")
    options = {"group_size": 32, "convolutions": True}
    convert(tmp_path / "dense", tmp_path / "out", "uint4", **options,
            calibration=Calibration(copy.deepcopy(model), images))  # fmt: skip
    wanted = copy.deepcopy(model)
    ladder.convert(wanted, "uint4", 32, convolutions=True, calibration=images)
    found = type(model).from_pretrained(tmp_path / "out", dtype=torch.float32)
    check_same(found, wanted)
    assert torch.equal(scores(found), scores(wanted))
    again = Calibration(dense(found), images)
    report = convert(tmp_path / "out", tmp_path / "again", "uint3", again=True, **options,
                     calibration=again)  # fmt: skip
    assert any("calibrated" in note for note in report.notes)


def test_an_embedding_and_gpt2(tmp_path):
    """A Conv1D has its weight [K, N]."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_embd=64, n_layer=2, n_head=2, vocab_size=128, n_positions=64)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "dense")
    for source, target, again in (("dense", "out", False), ("out", "again", True)):
        calibration = Calibration(dense(load(tmp_path / source)), TOKENS)
        convert(tmp_path / source, tmp_path / target, "nf4", group_size=32, again=again,
                calibration=calibration)  # fmt: skip
        wanted = dense(load(tmp_path / source))
        ladder.convert(wanted, "nf4", 32, calibration=TOKENS)
        check_same(load(tmp_path / target), wanted)


def test_another_model_than_that_of_the_folder_is_refused(dense_folder, tmp_path):
    model = load(dense_folder)
    model.model.layers[1].mlp.up_proj = torch.nn.Linear(64, 80)
    with pytest.raises(InvalidArgument, match=r"up_proj of \[96, 64\]: it has one of \[80, 64\]"):
        convert(dense_folder, tmp_path / "out", "uint4", calibration=Calibration(model, TOKENS))
    with pytest.raises(InvalidArgument, match="it has no such dense layer"):
        convert(
            dense_folder, tmp_path / "out", "uint4", calibration=Calibration(model.model, TOKENS)
        )
    with pytest.raises(InvalidArgument, match="model is of str, not nn.Module"):
        Calibration("model", TOKENS)
    assert not (tmp_path / "out").exists()


def test_pipelines_of_diffusers_are_refused(tmp_path):
    flux_pipeline().save_pretrained(tmp_path / "pipeline")
    with pytest.raises(InvalidArgument, match="which is not calibrated"):
        convert(tmp_path / "pipeline", tmp_path / "out", "uint4",
                calibration=Calibration(torch.nn.Linear(2, 2), TOKENS))  # fmt: skip
    arguments = ["convert", str(tmp_path / "pipeline"), str(tmp_path / "out"), "--calibration", "x"]
    assert "which is not calibrated" in str(CliRunner().invoke(app, arguments).exception)


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def windows(tmp_path_factory):
    """Two files of token ids of the example: to calibrate by, and to measure."""
    folder = tmp_path_factory.mktemp("tokens")
    tokens = np.load(GPTQ / "val_tokens.npy")
    np.save(folder / "calibration.npy", tokens[8:])
    np.save(folder / "measured.npy", tokens[:8])
    return folder


def test_the_command_predicts_text_better_than_nearest_codes(dequantised_folder, windows, tmp_path):
    found, ids = {}, str(windows / "calibration.npy")
    for name, more in (
        ("nearest", []),
        ("calibrated", ["--calibration", ids, "--windows", "8", "--device", "cpu"]),
    ):
        arguments = [
            "convert", str(dequantised_folder), str(tmp_path / name), "--type", "uint2",
            "--group", "64", *more, "--json",
        ]  # fmt: skip
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        errors = json.loads(result.stdout[result.stdout.index("{") :])["conversion"]["errors"]
        assert len(errors) == (56 if more else 0)
        model = load(tmp_path / name)
        found[name] = perplexity(model, load_tokens(windows / "measured.npy"))
        assert (tmp_path / name / "tokenizer.json").exists()
    assert math.log(found["calibrated"]) < math.log(found["nearest"]) - 0.3


def test_a_text_is_read_by_the_tokenizer_of_the_folder(ladder_folder, tmp_path):
    """Of a GPTQ model that was repacked, too, and in float32."""
    text = tmp_path / "text.txt"
    text.write_text("In the beginning God created the heaven and the earth. " * 40)
    arguments = [
        "convert", str(ladder_folder), str(tmp_path / "out"), "--again", "--type", TWO_LEVELS,
        "--calibration", str(text), "--chunk", "64", "--windows", "3", "--device", "cpu",
    ]  # fmt: skip
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "calibrated 56 layers" in result.stdout
    assert "56 matrices had fewer inputs than columns" in result.stdout
    assert isinstance(load(tmp_path / "out").model.layers[0].mlp.up_proj, ladder.Linear)
    arguments[2], arguments[arguments.index(str(text))] = str(tmp_path / "other"), "nothere.txt"
    result = CliRunner().invoke(app, arguments)
    assert "nothere.txt is no text file in UTF-8" in str(result.exception)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--calibration", "some.txt"], "has no tokenizer that transformers reads"),
        (["--calibration", "nothere.npy"], "nothere.npy is no .npy file of token ids"),
        (["--calibration", "x.npy", "--windows", "0"], "--windows is 0, not positive"),
        (["--calibration", str(GPTQ / "val_tokens.npy"), "--chunk", "0"], "chunk is 0"),
        (["--chunk", "64"], "--chunk is for --calibration, which is not given"),
        (["--calibration", "x.npy", "--device", "tpu0"], 'device is "tpu0"'),
    ],
)
def test_the_command_says_what_is_wrong_and_leaves_nothing(
    arguments, words, dense_folder, tmp_path
):
    arguments = ["convert", str(dense_folder), str(tmp_path / "out"), *arguments]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code != 0 and words in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_a_model_that_text_does_not_calibrate(tmp_path, windows):
    from diffusion_models import fresh

    fresh("unet")[0].save_pretrained(tmp_path / "dense")
    arguments = [
        "convert", str(tmp_path / "dense"), str(tmp_path / "out"),
        "--calibration", str(windows / "calibration.npy"),
    ]  # fmt: skip
    result = CliRunner().invoke(app, arguments)
    assert "which text does not calibrate" in str(result.exception)


def test_half_of_a_mixture_is_refused(tmp_path):
    hf_mixtures.fresh("mixtral").save_pretrained(tmp_path / "dense")
    convert(tmp_path / "dense", tmp_path / "out", "uint4", group_size=32)
    calibration = Calibration(dense(load(tmp_path / "out")), TOKENS)
    with pytest.raises(InvalidArgument, match=r"experts: .* skip leaves down alone"):
        convert(tmp_path / "out", tmp_path / "again", "uint3", group_size=32, again=True,
                skip=["gate_up"], calibration=calibration)  # fmt: skip
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("count, wanted", [(1, [0]), (3, [0, 4, 9]), (20, [*range(10)])])
def test_windows_are_spread(count, wanted):
    assert spread(torch.arange(10)[:, None], count).flatten().tolist() == wanted


def test_repacked_weights_that_are_calibrated_stay_near_their_values(tmp_path):
    """What GPTQ has rounded to a grid stays on it where the type has the same grid."""
    repack(GPTQ, tmp_path / "packed")
    model = load(tmp_path / "packed")
    before = {n: m.packed_weight for n, m in model.named_modules() if isinstance(m, ladder.Linear)}
    tokens = load_tokens(GPTQ / "val_tokens.npy", limit=2)
    ttype = str(next(iter(before.values())).type)
    assert re.match("uint4,group=128", ttype)
    convert(tmp_path / "packed", tmp_path / "out", "uint8", group_size=128, again=True,
            calibration=Calibration(dense(model), tokens))  # fmt: skip
    for name, module in load(tmp_path / "out").named_modules():
        if isinstance(module, ladder.Linear):
            values = before[name].dequantize()
            moved = (module.packed_weight.dequantize() - values).norm() / values.norm()
            assert moved < 0.02, name
