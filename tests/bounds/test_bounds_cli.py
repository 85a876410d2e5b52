# SPDX-License-Identifier: Apache-2.0
"""``ladder bounds`` as a person runs it: tables, JSON, pictures, one-line errors."""

import importlib.util
import json
import struct

import pytest
import torch
from safetensors.torch import save_file

import ladder
from ladder import bounds
from ladder.checkpoints.folder import StoredConfig
from ladder.cli import main

needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)

CONFIG = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 4096,
    "dtype": "float16", "quantization_config": {"quant_method": "gptq", "bits": 4,
                                                "group_size": 128},
}  # fmt: skip
MLP = """
m: 32768
layers:
  - {name: fc1, k: 4096, n: 16384}
  - {name: fc2, n: 4096}
"""


def run(capsys, *arguments):
    """(status, stdout, stderr) of ``ladder bounds arguments``."""
    try:
        status = main(["bounds", *map(str, arguments)])
    except SystemExit as stop:
        status = stop.code or 0
    out, err = capsys.readouterr()
    return status, out, err


def run_json(capsys, *arguments):
    status, out, err = run(capsys, *arguments, "--json")
    assert status == 0, err
    return json.loads(out)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


@pytest.fixture
def chain_file(tmp_path):
    path = tmp_path / "mlp.yaml"
    path.write_text(MLP)
    return path


def test_gemm_reports_the_curve_at_a_buffer_and_what_was_measured(capsys):
    summary = run_json(capsys, "gemm", 4096, 4096, 4096, "--a", "float16", "--w", "uint4",
                       "--group", 128, "--at", "50MiB", "--measured", "411MiB")  # fmt: skip
    (entry,) = summary["at"]
    assert entry["buffer_bytes"] == 50 * 2**20 and entry["measured_bytes"] == 411 * 2**20
    assert summary["algorithmic_minimum_bytes"] == 4096 * 4096 * (2 + 0.515625 + 2)
    assert entry["curve_bytes"] == entry["bound_bytes"] == summary["algorithmic_minimum_bytes"]
    assert entry["fraction_of_bound"] == pytest.approx(72.25 / 411)


def test_gemm_in_the_papers_space_prints_the_papers_numbers(capsys):
    options = ["--a", "int8", "--w", "int8", "--group", 0, "--o", "int8", "--factors", "divisors"]
    summary = run_json(capsys, "gemm", 4096, 4096, 4096, *options, "--space", "uniform")
    assert summary["points"][-1] == [16785408, 50331648] and len(summary["points"]) == 25
    status, out, _ = run(capsys, "gemm", 4096, 4096, 4096, *options, "--at", "512KiB")
    assert status == 0 and "512 KiB" in out and "algorithmic minimum 48 MiB" in out


def test_bmm_with_groups_shares_weights(capsys):
    raw = ["--a", "int8", "--w", "int8", "--group", 0, "--o", "int8"]
    shapes = ["bmm", 32, 4096, 4096, 128, *raw]
    minimum = "algorithmic_minimum_bytes"
    assert run_json(capsys, *shapes)[minimum] == 570425344
    assert run_json(capsys, *shapes, "--groups", 8)[minimum] == 557842432


def test_conv_of_one_and_two_dimensions(capsys):
    eight = ["--a", "int8", "--w", "int8", "--o", "int8", "--space", "uniform"]
    plane = run_json(capsys, "conv", "--in", 64, "--out", 64, "--size", 16, "--kernel", 3, *eight)
    assert plane["points"][-1] == [16864, 73984]
    line = run_json(
        capsys, "conv", "--in", 8, "--out", 8, "--size", "x16", "--kernel", "x3", *eight
    )
    assert line["algorithmic_minimum_bytes"] == 8 * 18 + 8 * 8 * 3 + 8 * 16


def test_chain_finds_segments(capsys, chain_file):
    summary = run_json(capsys, "chain", chain_file, "--segment", "--at", "257MiB")
    (entry,) = summary["at"]
    assert entry["unfused"] / entry["best segments"] == pytest.approx(3.667, abs=5e-4)
    assert summary["segments"][0]["segments"] == [
        {"layers": ["fc1", "fc2"], "traffic_bytes": 805306368.0}
    ]
    paper = run_json(capsys, "chain", chain_file, "--accounting", "paper", "--at", "50MiB")
    assert paper["at"][0]["unfused"] / paper["at"][0]["fused"] == pytest.approx(1.75, abs=5e-3)


def test_model_lists_every_distinct_matmul(capsys, folder):
    summary = run_json(capsys, "model", folder, "--m", 16, "--device", "h200")
    found = {tuple(row["names"]): row["count"] for row in summary["matmuls"]}
    assert found == {
        ("gate_proj", "up_proj"): 16, ("down_proj",): 8, ("q_proj", "o_proj"): 16,
        ("k_proj", "v_proj"): 16, ("lm_head",): 1, ("q kT",): 8, ("p v",): 8,
    }  # fmt: skip
    assert summary["weight"] == "uint4,group=128,scale=float16,zero=midpoint"
    down = next(row for row in summary["matmuls"] if row["names"] == ["down_proj"])
    weights = 768 * 256 * (0.5 + 2 / 128)
    assert down["bound_bytes"] == weights + 2 * 16 * (768 + 256)
    assert down["floor_seconds"] == down["bound_bytes"] / summary["device"]["bytes_per_second"]
    assert summary["floor_seconds"] == pytest.approx(
        sum(row["count"] * row["floor_seconds"] for row in summary["matmuls"])
    )


def test_model_weights_can_be_given(capsys, folder):
    wide = run_json(capsys, "model", folder, "--w", "float16")
    narrow = run_json(capsys, "model", folder, "--w", "uint2", "--group", 64)
    assert narrow["floor_seconds"] < wide["floor_seconds"]


UINT4, UINT8 = (f"uint{bits},group=32,scale=float16,zero=midpoint" for bits in (4, 8))
MXFP4 = "mxfp4"


def stored_model(folder, types, dense=(), **config):
    """A ladder folder whose modules have the given types; ``dense`` are shapes by tensor."""
    tensors = {name: torch.zeros(shape, dtype=torch.float16) for name, shape in dense}
    for module, (n, k, text) in types.items():
        for part, data in ladder.quantize(torch.randn(n, k), text).tensors().items():
            tensors[f"{module}.{part}"] = data
    stored = StoredConfig(UINT4, modules={name: text for name, (_, _, text) in types.items()})
    (folder / "config.json").write_text(json.dumps(stored.put_in({**CONFIG, **config})))
    save_file(tensors, folder / "model.safetensors")
    return folder


def stored_rows(summary):
    return {(*row["names"], row["weight"]): row["count"] for row in summary["matmuls"]}


def test_a_ladder_folder_has_the_types_of_its_modules(capsys, tmp_path):
    """Of one shape in two types too, and of layers that were not quantised."""
    layer = "model.layers.{}.mlp.{}_proj".format
    types = {layer(0, "down"): (256, 768, UINT8), layer(1, "down"): (256, 768, UINT4),
             layer(0, "up"): (768, 256, MXFP4)}  # fmt: skip
    dense = [(layer(1, "up") + ".weight", (768, 256)), ("model.norm.weight", (256,)),
             ("model.embed_tokens.weight", (4096, 256))]  # fmt: skip
    folder = stored_model(tmp_path, types, dense)
    summary = run_json(capsys, "model", folder, "--m", 1)
    assert stored_rows(summary) == {
        ("down_proj", UINT8): 1, ("down_proj", UINT4): 1, ("up_proj", MXFP4): 1,
        ("up_proj", "float16"): 1, ("lm_head", "float16"): 1,
        ("q kT", "float16"): 8, ("p v", "float16"): 8,
    }  # fmt: skip
    eight = next(row for row in summary["matmuls"] if row["weight"] == UINT8)
    assert eight["bound_bytes"] == 768 * 256 * (1 + 2 / 32) + 2 * (768 + 256)
    assert set(summary["weight"].split(", ")) == {UINT8, UINT4, MXFP4}
    status, out, _ = run(capsys, "model", folder)
    assert status == 0 and UINT8 in out and MXFP4 in out
    given = run_json(capsys, "model", folder, "--w", "uint2", "--group", 64)
    assert given["weight"] == "uint2,group=64,scale=float16,zero=midpoint"


def test_of_stored_experts_as_many_count_as_a_token_uses(capsys, tmp_path):
    """Of unlike ones the smallest, which is the least that any token does with."""
    expert = "model.layers.{}.mlp.experts.{}.w1".format
    types = {expert(at, e): (96, 256, UINT8 if e < 2 else UINT4) for at in (0, 1) for e in range(4)}
    gate = [(f"model.layers.{at}.mlp.gate.weight", (4, 256)) for at in (0, 1)]
    folder = stored_model(tmp_path, types, gate, num_local_experts=4, num_experts_per_tok=3)
    rows = stored_rows(run_json(capsys, "model", folder))
    assert (rows["w1", UINT4], rows["w1", UINT8], rows["gate", "float16"]) == (2 * 2, 2 * 1, 2)


def test_experts_in_one_tensor_are_dense_matmuls(capsys, tmp_path):
    types = {"model.layers.0.self_attn.q_proj": (256, 256, UINT4)}
    dense = [("model.layers.0.mlp.experts.gate_up_proj", (4, 192, 256))]
    folder = stored_model(tmp_path, types, dense, num_local_experts=4, num_experts_per_tok=2)
    rows = stored_rows(run_json(capsys, "model", folder))
    assert rows["gate_up_proj", "float16"] == 2 and rows["q_proj", UINT4] == 1


def test_a_gptq_folder_has_the_types_of_its_tensors(capsys, gptq_folder):
    rows = stored_rows(run_json(capsys, "model", gptq_folder))
    text = "uint4,group=128,scale=float16,zero=midpoint"
    assert rows["gate_proj", "up_proj", text] == 16 and rows["lm_head", "float16"] == 1


def test_a_folder_of_compressed_tensors_has_the_types_of_its_tensors(capsys, tmp_path):
    weights = {"num_bits": 4, "group_size": 32}
    fields = {"quant_method": "compressed-tensors", "format": "pack-quantized",
              "config_groups": {"a": {"targets": ["Linear"], "weights": weights}}}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": fields}))
    name = "model.layers.0.self_attn.q_proj"
    tensors = {f"{name}.weight_packed": torch.zeros(256, 32, dtype=torch.int32),
               f"{name}.weight_scale": torch.ones(256, 8, dtype=torch.float16)}  # fmt: skip
    save_file(tensors, tmp_path / "model.safetensors")
    rows = stored_rows(run_json(capsys, "model", tmp_path))
    assert ("q_proj", "uint4,group=32,scale=float16,zero=midpoint") in rows
    (tmp_path / "model.safetensors").unlink()  # config.json alone
    status, _, err = run(capsys, "model", tmp_path)
    assert status == 1 and "without its tensors: say with --w" in err


def test_a_folder_of_modelopt_has_the_types_of_its_tensors(capsys, tmp_path):
    fields = {"quant_method": "modelopt", "quant_algo": "FP8"}
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": fields}))
    name = "model.layers.0.self_attn.q_proj"
    tensors = {"weight": torch.zeros(256, 256).to(torch.float8_e4m3fn),
               "weight_scale": torch.ones(()), "input_scale": torch.ones(())}  # fmt: skip
    save_file({f"{name}.{part}": t for part, t in tensors.items()}, tmp_path / "model.safetensors")
    rows = stored_rows(run_json(capsys, "model", tmp_path))
    assert ("q_proj", "float8_e4m3,tensor,scale=float32") in rows


def test_an_awq_folder_has_the_types_of_its_tensors(capsys, tmp_path):
    awq = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True,
           "version": "gemm"}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": awq}))
    name = "model.layers.0.self_attn.q_proj"
    tensors = {"qweight": torch.zeros(256, 32, dtype=torch.int32),
               "qzeros": torch.full((8, 32), 0x77777777, dtype=torch.int32),
               "scales": torch.ones(8, 256, dtype=torch.float16)}  # fmt: skip
    save_file({f"{name}.{part}": t for part, t in tensors.items()}, tmp_path / "model.safetensors")
    (text,) = [w for n, w in stored_rows(run_json(capsys, "model", tmp_path)) if n == "q_proj"]
    assert text.startswith("uint4,group=32,scale=float16,zero=")
    (tmp_path / "model.safetensors").unlink()  # config.json alone
    rows = stored_rows(run_json(capsys, "model", tmp_path))
    assert rows["q_proj", "o_proj", "uint4,group=32,scale=float16,zero=quantized"] == 16


def test_weights_of_a_method_that_ladder_does_not_read_are_asked_for(capsys, tmp_path):
    """Not taken for float16."""
    other = {"quant_method": "higgs", "load_in_4bit": True}
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": other}))
    status, _, err = run(capsys, "model", tmp_path)
    assert status == 1 and "--w" in err and err.count("\n") == 1
    assert 'quant_method "higgs"' in err
    assert run(capsys, "model", tmp_path, "--w", "float8_e4m3")[0] == 0


def test_model_without_gates_and_with_experts(capsys, tmp_path):
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps(config))
    names = [row["names"] for row in run_json(capsys, "model", tmp_path)["matmuls"]]
    assert ["up_proj"] in names and ["q_proj", "k_proj", "v_proj", "o_proj"] in names
    experts = {**CONFIG, "num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
    (tmp_path / "config.json").write_text(json.dumps(experts))
    rows = run_json(capsys, "model", tmp_path)["matmuls"]
    assert {tuple(r["names"]): r["count"] for r in rows}["gate_proj", "up_proj"] == 2 * 2 * 8


@needs_matplotlib
def test_pictures_are_written_and_equal_each_time(capsys, tmp_path, folder, chain_file):
    for command in (
        ["gemm", 64, 64, 64, "--at", "1KiB", "--measured", "200KiB", "--device", "a100"],
        ["conv", "--in", 4, "--out", 4, "--size", 8, "--kernel", 3],
        ["chain", chain_file, "--segment"],
        ["model", folder],
    ):
        one, two, png = tmp_path / "1.svg", tmp_path / "2.svg", tmp_path / "3.png"
        status, _, err = run(capsys, *command, "--plot", one, "--plot", two, "--plot", png)
        assert status == 0, err
        assert one.read_bytes() == two.read_bytes()
        assert b"algorithmic minimum" in one.read_bytes() and b"(bytes)" in one.read_bytes()
        width, height = struct.unpack(">II", png.read_bytes()[16:24])
        assert width >= 1000 and height >= 700


def test_without_matplotlib_the_error_says_how_to_get_it(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    status, _, err = run(capsys, "gemm", 4, 4, 4, "--plot", tmp_path / "x.svg")
    assert status == 1 and "pip install 'ladder-torch[plots]'" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["gemm", 0, 4, 4], "rank M is 0"),
        (["gemm", 4, 4, 4, "--w", "uint99"], "uint99"),
        (["gemm", 4, 4, 4, "--at", "many"], "'many' is not a size"),
        (["gemm", 4, 4, 4, "--at", "1e400MiB"], "'1e400MiB' is not a size"),
        (["gemm", 4, 64, 64, "--w", "mxfp4", "--group", 64], '--group is 64, but weight "mxfp4"'),
        (["gemm", 4, 64, 64, "--scale", "bfloat16"], "--scale is bfloat16, but --group is 0"),
        (["bmm", 0, 4, 4, 4], "is 0, less than 1"),
        (["gemm", 4, 4, 4, "--device", "abacus"], "no machine 'abacus'; known are a100"),
        (["gemm", 64, 64, 64, "--at", "1KiB", "--measured", "1KiB"], "any schedule moves"),
        (["gemm", 4, 4, 4, "--at", "1KiB", "--measured", "1MiB", "--measured", "1MiB"],
         "2 measured for 1 buffers"),
        (["gemm", 4, 4, 4, "--plot", "x.gif"], "does not end in .svg"),
        (["gemm", 4, 4, 4, "--plot", "/nowhere/x.svg"], "is not a folder"),
        (["bmm", 32, 4, 4, 4, "--groups", 5], "32 heads do not divide into 5 groups"),
        (["conv", "--in", 4, "--out", 4, "--size", "4by4"], "'4by4' is not a size"),
        (["conv", "--in", 4, "--out", 4, "--size", "x4", "--kernel", "3x3"],
         "differ in dimensions"),
        (["chain", "absent.yaml"], "absent.yaml"),
        (["model", "absent"], "absent"),
    ],
)  # fmt: skip
def test_errors_are_one_line_with_the_value(capsys, arguments, why):
    status, out, err = run(capsys, *arguments)
    assert status == 1 and out == "" and err.count("\n") == 1 and why in err


def test_a_group_of_minus_one_is_one_scale_a_row(capsys, folder):
    minimum = "algorithmic_minimum_bytes"
    channel = ["--w", "uint4", "--group", -1]
    found = run_json(capsys, "gemm", 16, 64, 256, *channel)[minimum]
    assert found == 2 * 16 * 256 + 64 * 256 / 2 + 64 * 2 + 2 * 16 * 64
    same = run_json(capsys, "gemm", 16, 64, 256, "--w", "uint4,channel,scale=float16")
    assert same[minimum] == found
    summary = run_json(capsys, "model", folder, *channel)
    assert summary["weight"] == "uint4,channel,scale=float16,zero=midpoint"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--group", 64], "--group is 64, but without --w weights are as the folder has them"),
        (["--scale", "bfloat16"], "--scale is bfloat16, but without --w"),
        (["--context", 0], "context is 0, not positive"),
        (["--m", 0], "m is 0, not positive"),
    ],
)
def test_options_of_a_model_that_would_do_nothing_are_refused(capsys, folder, options, why):
    status, out, err = run(capsys, "model", folder, *options)
    assert status == 1 and out == "" and err.count("\n") == 1 and why in err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("layers: 3", "no list called layers"),
        ("[1", "is not YAML"),
        ("m: 4\nlayers: [{k: 4}]", "layer 0 of .* has no n"),
        ("layers: [{k: 4, n: 4}]", "has no m"),
        ("m: 4\nlayers: [{k: 4, n: 4.5}]", "n of layer 0 .* is 4.5"),
        ("m: 4\nlayers: [{k: 4, n: 4, colour: red}]", "has 'colour'; known are"),
        ("m: 4\nlayers: [{k: 4, n: 8}, {k: 9, n: 4}]", "layer1 reads 9 columns"),
    ],
)
def test_chains_that_are_not_chains_are_refused(tmp_path, text, why):
    from ladder.bounds.chains import read_chain

    path = tmp_path / "chain.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=why):
        bounds.unfused(read_chain(path))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"hidden_size": None}, "has no hidden_size"),
        ({"vocab_size": "many"}, "vocab_size of .* is 'many'"),
        ({"num_hidden_layers": -1}, "is -1, not a positive integer"),
    ],
)
def test_configurations_that_lack_a_size_are_refused(tmp_path, change, why):
    from ladder.bounds.models import read_model

    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **change}))
    with pytest.raises(ValueError, match=why):
        read_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        read_model(tmp_path)


def test_latent_attention_is_said_to_be_unsupported(tmp_path):
    from ladder.bounds.models import read_model

    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "kv_lora_rank": 512}))
    with pytest.raises(NotImplementedError, match="kv_lora_rank"):
        read_model(tmp_path)
