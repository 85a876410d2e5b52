# SPDX-License-Identifier: Apache-2.0
"""``ladder warmup``: what it refuses, and what it asks of a GPU, which the tests stand in for."""

import json
import shutil
import sys

import pytest
import torch

import ladder.cli.warmup
import ladder.nn.warmup
from ladder.cli import main
from ladder.evaluate import measure

SCHEDULE = "tokens 8, warps 1x8, ordered"


def run(capsys, *arguments):
    try:
        status = main(["warmup", *map(str, arguments)])
    except SystemExit as stop:
        status = stop.code or 0
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture
def folder(tmp_path, gptq_folder):
    """A model that the test may write into."""
    return shutil.copytree(gptq_folder, tmp_path / "model", ignore=lambda *_: ["val_tokens.npy"])


@pytest.fixture
def gpu(monkeypatch):
    """A machine whose GPU is the CPU, with kernels for all layers but ``k_proj``."""
    asked = []

    def warmup(model, m, **options):
        names = [name for name, each in model.named_modules() if isinstance(each, ladder.Linear)]
        asked.append({"m": m, "layers": len(names), **options})
        kernels = {each: SCHEDULE if each <= 16 else "" for each in m}
        return {name: kernels for name in names if not name.endswith("k_proj")}

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(measure, "device_of", lambda name: "cpu")
    monkeypatch.setattr(ladder.nn.warmup, "warmup", warmup)
    return asked


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_it_says_so_before_it_loads_anything(capsys, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    status, out, err = run(capsys, folder)
    assert (status, out) == (1, "")
    assert err == "error: ladder warmup needs a CUDA device, and torch finds none on this machine\n"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--m", "1,x"], '--m is "1,x", not numbers of tokens such as 1,8,16'),
        (["--m", "0"], '--m is "0", not numbers'),
        (["--m", ""], '--m is "", not numbers'),
        (["--dtype", "float32"], "which no kernel reads: float16 or bfloat16"),
        (["--dtype", "int8"], '--dtype is "int8", not one of'),
        (["--cache", "/proc/none/there"], "--cache DIR keeps the kernels elsewhere"),
    ],
)
def test_what_it_cannot_do_is_one_line(capsys, folder, options, why):
    status, out, err = run(capsys, folder, *options)
    assert (status, out) == (1, "") and why in err and err.count("\n") == 1


def test_a_folder_without_a_model_is_refused(capsys, tmp_path):
    status, _, err = run(capsys, tmp_path)
    assert status == 1 and "has no config.json" in err


def test_the_model_is_warmed_up_and_kept_beside_itself(capsys, folder, gpu):
    status, out, err = run(capsys, folder, "--m", "1, 8,64,8", "--json")
    assert status == 0, err
    (asked,) = gpu
    assert asked == {"m": (1, 8, 64), "layers": 56, "dtype": torch.float16, "tune": True,
                     "dependent_launch": None, "cache": folder}  # fmt: skip
    report = json.loads(out)
    assert report["cache"] == str(folder) and len(report["layers"]) == 56
    layer = "model.layers.0.self_attn.{}_proj".format
    assert report["layers"][layer("q")] == {"1": SCHEDULE, "8": SCHEDULE, "64": ""}
    assert report["layers"][layer("k")] == {"1": "", "8": "", "64": ""}
    status, out, _ = run(capsys, folder, "--m", 8)
    assert status == 0 and SCHEDULE in out and "torch" in out and "56 layers, float16" in out


def test_options_reach_the_warm_up(capsys, folder, gpu, tmp_path):
    options = ["--dtype", "bfloat16", "--no-tune", "--dependent-launch", "--cache", tmp_path]
    assert run(capsys, folder, *options)[0] == 0
    (asked,) = gpu
    assert asked["dtype"] is torch.bfloat16 and not asked["tune"] and asked["dependent_launch"]
    assert asked["cache"] == tmp_path


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"text_config": {"dtype": "bfloat16"}}, "bfloat16"),
        ({"dtype": "float32"}, "float16"),
        ({}, "float16"),
    ],
)
def test_the_dtype_is_that_of_the_model_where_kernels_read_it(tmp_path, config, dtype):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert ladder.cli.warmup._dtype_of(tmp_path) == dtype


def test_a_model_that_is_not_packed_is_pointed_to_convert(capsys, tmp_path, gpu):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "dense")
    status, _, err = run(capsys, tmp_path / "dense")
    assert status == 1 and "has no packed layer" in err and "ladder convert" in err and gpu == []
