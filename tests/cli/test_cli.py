# SPDX-License-Identifier: Apache-2.0
"""The command as a person runs it: exit status, JSON, one-line errors."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import ladder
from ladder.cli import main

ROOT = Path(__file__).parents[2]
GPTQ = ROOT / "examples" / "tiny-llama-gptq"


def run(capsys, *arguments):
    """(status, stdout, stderr) of ``ladder arguments``."""
    try:
        status = main([str(a) for a in arguments])
    except SystemExit as stop:
        status = stop.code or 0
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture(scope="module")
def repacked(gptq_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "model"
    with pytest.raises(SystemExit) as stop:
        main(["repack", str(gptq_folder), str(out)])
    assert not stop.value.code
    return out


def test_repack_writes_a_folder_that_info_describes(capsys, repacked):
    status, out, _ = run(capsys, "info", repacked, "--json")
    summary = json.loads(out)
    assert status == 0 and summary["quant_method"] == "ladder"
    (row,) = summary["types"]
    assert row["type"] == "uint4,group=128,scale=float16,zero=midpoint"
    assert row["modules"] == len(summary["modules"]) == 56
    assert row["bits_per_weight"] == 4 + 16 / 128


def test_info_of_a_gptq_folder_counts_the_same_modules(capsys, gptq_folder):
    _, out, _ = run(capsys, "info", gptq_folder, "--json")
    summary = json.loads(out)
    assert summary["quant_method"] == "gptq" and len(summary["modules"]) == 56


def test_a_folder_of_mlx_is_described_repacked_and_refused_in_a_sentence(capsys, tmp_path):
    folder = ROOT / "tests" / "checkpoints" / "fixtures" / "mlx" / "llama"
    _, out, _ = run(capsys, "info", folder, "--json")
    assert json.loads(out)["quant_method"] == "mlx"
    status, out, _ = run(capsys, "bounds", "model", folder)
    assert status == 0 and "uint6" in out and "mxfp8" in out
    assert run(capsys, "repack", folder, tmp_path / "a")[0] == 0
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": {}}
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text(json.dumps(config))
    status, _, err = run(capsys, "repack", tmp_path / "damaged", tmp_path / "b")
    assert status == 1 and "quantization and quantization_config differ" in err
    assert "Traceback" not in err and not (tmp_path / "b").exists()


def test_info_says_what_activations_are_rounded_to(capsys, tmp_path):
    tensors = {}
    for name in ("up", "gate", "down"):
        tensors[f"{name}.weight"] = torch.zeros(16, 128, dtype=torch.int8)
        tensors[f"{name}.weight_scale"] = torch.ones(16, 1)
    groups = {
        at: {"targets": [target], "weights": {"num_bits": 8, "strategy": "channel"},
             "input_activations": inputs}
        for at, target, inputs in (
            ("a", "Linear", {"strategy": "token", "dynamic": True}), ("b", "re:.*down", None))
    }  # fmt: skip
    fields = {"quant_method": "compressed-tensors", "format": "int-quantized",
              "config_groups": groups}  # fmt: skip
    (tmp_path / "src").mkdir()
    save_file(tensors, tmp_path / "src" / "model.safetensors")
    (tmp_path / "src" / "config.json").write_text(json.dumps({"quantization_config": fields}))
    assert run(capsys, "repack", tmp_path / "src", tmp_path / "a")[0] == 0
    assert run(capsys, "repack", tmp_path / "src", tmp_path / "b", "--weights-only")[0] == 0
    for folder, of_most in (("src", "int8"), ("a", "int8"), ("b", None)):
        summary = json.loads(run(capsys, "info", tmp_path / folder, "--json")[1])
        of = {m["name"]: m["activation_type"] for m in summary["modules"]}
        assert summary["activation_type"] == of_most
        assert of == {"up": of_most, "gate": of_most, "down": None}
        _, out, _ = run(capsys, "info", tmp_path / folder, "--modules")
        assert ("activations int8 of 2 modules" in " ".join(out.split())) == bool(of_most)
        assert out.count("as they come") == (1 if of_most else 3)


def test_info_of_a_dense_folder_lists_what_could_be_packed(capsys, dense_folder):
    _, out, _ = run(capsys, "info", dense_folder, "--json")
    summary = json.loads(out)
    assert summary["quant_method"] == "none"
    (row,) = summary["types"]
    per_layer = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64
    assert row == {"type": "float32", "modules": 7, "weights": per_layer, "bytes": 4 * per_layer,
                   "bits_per_weight": 32}  # fmt: skip
    down = next(m for m in summary["modules"] if m["name"].endswith("down_proj"))
    assert (down["n"], down["k"]) == (64, 96)
    status, out, _ = run(capsys, "info", dense_folder, "--modules")
    assert status == 0 and "model.layers.0.mlp.down_proj" in out and "embed" not in out


def test_info_of_a_conv1d_model_gives_n_and_k_as_a_linear_has_them(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    tensors = {"h.0.attn.c_attn.weight": torch.zeros(8, 24), "wte.weight": torch.zeros(9, 8)}
    save_file(tensors, tmp_path / "model.safetensors")
    (module,) = json.loads(run(capsys, "info", tmp_path, "--json")[1])["modules"]
    assert (module["name"], module["n"], module["k"]) == ("h.0.attn.c_attn", 24, 8)


def test_info_counts_the_weights_of_experts_in_one_tensor(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"num_local_experts": 3}))
    save_file({"mlp.experts.down_proj": torch.zeros(3, 8, 4)}, tmp_path / "model.safetensors")
    (row,) = json.loads(run(capsys, "info", tmp_path, "--json")[1])["types"]
    assert (row["weights"], row["bytes"], row["bits_per_weight"]) == (96, 384, 32)


def test_info_of_a_folder_without_a_linear_says_so(capsys, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    save_file({"norm.weight": torch.zeros(8)}, tmp_path / "model.safetensors")
    status, _, err = run(capsys, "info", tmp_path)
    assert status == 1 and "no tensor is the weight of a Linear module" in err


def test_repack_refuses_to_overwrite_and_says_how(capsys, gptq_folder, repacked):
    before = sorted(p.name for p in repacked.iterdir())
    status, _, err = run(capsys, "repack", gptq_folder, repacked)
    assert status == 1 and err.count("\n") == 1 and "--force" in err
    assert sorted(p.name for p in repacked.iterdir()) == before
    assert run(capsys, "repack", gptq_folder, repacked, "--force")[0] == 0


def test_an_error_is_one_line_and_debug_shows_the_traceback(capsys, tmp_path):
    status, out, err = run(capsys, "info", tmp_path / "nothing")
    assert (status, out) == (1, "") and err.startswith("error: ") and err.count("\n") == 1
    with pytest.raises(ValueError, match="nothing is not a folder"):
        main(["info", str(tmp_path / "nothing"), "--debug"])


def test_what_a_device_cannot_serve_is_an_error_like_any_other(capsys):
    """Not a bug, of which one would want a traceback."""
    asked = ["--m", 64, "--n", 256, "--k", 256, "--weight", "float4_e2m1", "--device", "a100"]
    status, _, err = run(capsys, "explain", *asked, "--activation-type", "float8_e4m3")
    assert status == 1 and err.startswith("error: no tile program") and err.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_ended_leaves_no_half_written_folder(tmp_path, number):
    """It ends itself in the middle of the work, from within the progress that it reports."""
    script = """
import os, signal, sys
signal.signal(int(sys.argv[3]), signal.SIG_DFL)  # nohup, which pytest may run under, ignores SIGHUP
import ladder.checkpoints.writer as writer
from ladder.cli import main
write = writer.ShardWriter.write
def ended(self, *arguments):
    print(*os.listdir(os.path.dirname(os.path.dirname(self.path))), flush=True)
    os.kill(os.getpid(), int(sys.argv[3]))
    write(self, *arguments)
writer.ShardWriter.write = ended
sys.exit(main(["repack", sys.argv[1], sys.argv[2]]))
"""
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-c", script, GPTQ, out, str(int(number))],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 128 + number and done.stdout.startswith(".out.partial-"), done.stderr
    assert [*tmp_path.iterdir()] == []


def test_types_lists_every_type_and_shows_one_in_full(capsys):
    import ladder

    _, out, _ = run(capsys, "types", "--json")
    assert [row["name"] for row in json.loads(out)] == list(ladder.types.type_names())
    _, out, _ = run(capsys, "types", "float4_e2m1", "--json")
    assert json.loads(out)["values"][:8] == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert "float6_e3m2" in run(capsys, "types")[1]


def test_numbers_that_json_has_not_are_words(capsys):
    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    _, out, _ = run(capsys, "types", "float8_e5m2", "--json")
    values = json.loads(out, parse_constant=refuse)["values"]
    assert (values[0x7C], values[0x7F], values[0xFC]) == ("inf", "nan", "-inf")
    assert float(values[0xFC]) == -float("inf")


def test_an_unknown_type_names_the_nearest_ones(capsys):
    status, _, err = run(capsys, "types", "uint44")
    assert status == 1 and "uint4" in err


def test_bench_reports_both_sides(capsys):
    _, out, _ = run(capsys, "bench", "--n", 64, "--k", 256, "--m", 1, "--m", 3, "--json")
    rows = json.loads(out)
    assert [row["m"] for row in rows] == [1, 3]
    assert all(row["ladder_us"] > 0 and row["dense_us"] > 0 for row in rows)


def test_ppl_of_packed_and_of_dequantised_weights_agree(capsys, repacked, gptq_folder):
    """By a ladder folder, by its dense layers, and by the GPTQ folder itself."""
    tokens = gptq_folder / "val_tokens.npy"
    values = []
    for arguments in ([repacked], [repacked, "--dequantize"], [gptq_folder]):
        status, out, err = run(
            capsys, "ppl", arguments[0], tokens, *arguments[1:], "--limit", 1, "--json"
        )
        assert status == 0, err
        values.append(json.loads(out)["perplexity"])
    # Sums in another order: what float32 loses in a whole model, far below a wrong weight.
    assert max(values) / min(values) < 1 + 1e-4


def test_ppl_says_what_is_wrong_with_its_input(capsys, repacked, tmp_path):
    status, _, err = run(capsys, "ppl", tmp_path, tmp_path / "tokens.npy")
    assert status == 1 and "config.json" in err
    status, _, err = run(capsys, "ppl", repacked, tmp_path / "tokens.npy")
    assert status == 1 and "tokens.npy" in err and err.count("\n") == 1


def test_ppl_of_a_text_is_that_of_its_tokens(capsys, repacked, tmp_path):
    """Cut from the start into windows that do not overlap, the rest dropped."""
    transformers = pytest.importorskip("transformers")
    text = tmp_path / "text.txt"
    text.write_text("The tower was built in 1887 and stands on the left bank of the river. " * 4)
    ids = transformers.AutoTokenizer.from_pretrained(str(repacked))(text.read_text())["input_ids"]
    assert len(ids) % 16, "nothing would be dropped"
    whole = len(ids) // 16
    np.save(tmp_path / "tokens.npy", np.array(ids[: 16 * whole]).reshape(whole, 16))
    reports = []
    for given in (["--text", text], [tmp_path / "tokens.npy"]):
        status, out, err = run(capsys, "ppl", repacked, *given, "--chunk", 16, "--json")
        assert status == 0, err
        reports.append(json.loads(out))
    assert reports[0]["windows"] == whole and reports[0]["chunk"] == 16
    assert reports[0]["perplexity"] == reports[1]["perplexity"]


def test_ppl_takes_ids_or_a_text(capsys, repacked, tmp_path):
    text = tmp_path / "text.txt"
    for given, why in ([], "neither is given"), (["ids.npy", "--text", text], "both are given"):
        status, _, err = run(capsys, "ppl", repacked, *given)
        assert status == 1 and why in err and err.count("\n") == 1
    for content, why in (b"\xff\xfe\xff", "no text file in UTF-8"), (b"", "no window of two"):
        text.write_bytes(content)
        status, _, err = run(capsys, "ppl", repacked, "--text", text)
        assert status == 1 and why in err and err.count("\n") == 1
    status, _, err = run(capsys, "ppl", repacked, "--text", tmp_path / "absent.txt")
    assert status == 1 and "absent.txt is no text file" in err


def test_convert_quantises_a_dense_model_that_loads_again(capsys, tmp_path, dense_folder):
    out = tmp_path / "converted"
    status, text, err = run(
        capsys,
        "convert",
        dense_folder,
        out,
        "--type",
        "nf4",
        "--group",
        32,
        "--method",
        "nearest",
        "--json",
    )
    assert status == 0, err
    report = json.loads(text)
    assert list(report["types"]) == ["nf4,group=32,scale=float16"] and report["modules"] == 7
    summary = json.loads(run(capsys, "info", out, "--json")[1])
    assert {m["name"].split(".")[-1] for m in summary["modules"]} == {
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    }
    status, _, err = run(capsys, "convert", out, tmp_path / "again")
    assert status == 1 and "quantised already" in err


def test_convert_leaves_what_it_is_told_to_skip(capsys, tmp_path, dense_folder):
    out = tmp_path / "converted"
    skipped = ["--skip", "model.layers.0.mlp", "--skip", "o_proj"]
    assert run(capsys, "convert", dense_folder, out, "--group", 32, *skipped)[0] == 0
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert "model.layers.0.self_attn.o_proj" in config["modules_to_not_convert"]
    summary = json.loads(run(capsys, "info", out, "--json")[1])
    assert {m["name"].split(".")[-1] for m in summary["modules"]} == {"q_proj", "k_proj", "v_proj"}


def test_convert_takes_formats_of_a_users_own(capsys, tmp_path, dense_folder):
    meanings = {
        "cli_table": {"bits": 2, "values": [-1.5, -0.5, 0.5, 1.5]},
        "cli_float": {"exponent_bits": 2, "mantissa_bits": 3, "bias": 1, "specials": "none"},
    }
    file, out = tmp_path / "formats.json", tmp_path / "converted"
    file.write_text(json.dumps(meanings))
    options = ["--type", "cli_table", "--formats", file, "--group", 32]
    status, _, err = run(capsys, "convert", dense_folder, out, *options)
    assert status == 0, err
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert config["types"] == {"cli_table": meanings["cli_table"]}
    assert ladder.ttype("cli_float").bits == 6


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[", "formats.json: not JSON"),
        ('{"cli_odd": {"bits": 1}}', "formats.json: ['cli_odd'] is {'bits': 1}, not {bits, values"),
        ('{"nf4": {"bits": 1, "values": [0, 1]}}', "formats.json: ['nf4']: type nf4 already means"),
        (None, "formats.json: cannot be read: No such file"),
    ],
)
def test_convert_refuses_formats_that_are_none(capsys, tmp_path, dense_folder, text, why):
    file, out = tmp_path / "formats.json", tmp_path / "out"
    if text is not None:
        file.write_text(text)
    status, _, err = run(capsys, "convert", dense_folder, out, "--formats", file)
    assert status == 1 and why in err and err.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--skip", "attn"], 'skip has "attn", which names no module of the model, such as '),
        (["--type", "float32"], "type float32 has 32 bits; convert writes 1 to 8"),
    ],
)
def test_convert_refuses_what_it_would_not_heed(capsys, tmp_path, dense_folder, options, why):
    status, _, err = run(capsys, "convert", dense_folder, tmp_path / "out", *options)
    assert status == 1 and why in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def dense_folder(tmp_path_factory):
    """A tiny random LLaMA in floating point."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("dense") / "model"
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("device", ["foo", "cuda:1000", "mps:7", "meta"])
def test_a_device_that_is_not_there_is_refused_in_one_line(capsys, device):
    assert main(["bench", "--n", "64", "--k", "64", "--device", device]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f'error: device is "{device}"') and error.count("\n") == 1


def test_help_says_what_an_option_is_when_it_is_left_out(capsys):
    """rich takes brackets for markup."""
    assert "[default: 128]" in run(capsys, "convert", "--help")[1]
    for command in (["explain"], ["bounds", "gemm"]):
        assert "[default: float16]" in run(capsys, *command, "--help")[1]


def test_ppl_without_transformers_says_what_to_install(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    status, _, err = run(capsys, "ppl", tmp_path, tmp_path / "tokens.npy")
    assert status == 1 and err.count("\n") == 1
    assert "pip install 'ladder-torch[transformers]'" in err


def test_ppl_names_the_module_that_is_missing(capsys, tmp_path, monkeypatch):
    """Which may be one that transformers needs."""

    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name == "transformers":
                raise ModuleNotFoundError("No module named 'regex'", name="regex")

    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("sys.meta_path", [Broken(), *sys.meta_path])
    status, _, err = run(capsys, "ppl", tmp_path, tmp_path / "tokens.npy")
    assert status == 1 and err.startswith("error: ladder ppl needs regex: pip install")


def test_version_is_that_of_the_package(capsys):
    assert run(capsys, "--version") == (0, f"ladder {ladder.__version__}\n", "")
