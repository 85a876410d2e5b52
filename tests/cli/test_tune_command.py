# SPDX-License-Identifier: Apache-2.0
"""``ladder tune``: what it refuses, and what it asks of a GPU, which the tests stand in for."""

import json
import re
import shlex
import shutil
import sys

import pytest
import torch
from safetensors.torch import save_file
from tuning import SCHEDULE, run

import ladder.cli.tune
from ladder.checkpoints.shards import SafetensorsShard
from ladder.cli import devices
from ladder.ops import activations


@pytest.fixture
def folder(tmp_path, gptq_folder):
    """A model that the test may write into."""
    return shutil.copytree(gptq_folder, tmp_path / "model", ignore=lambda *_: ["val_tokens.npy"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_it_says_so_before_it_reads_a_weight(capsys, folder, monkeypatch):
    monkeypatch.setattr(SafetensorsShard, "entries", None)
    status, out, err = run(capsys, folder)
    assert (status, out) == (1, "")
    assert err == "error: ladder tune needs a CUDA device, and torch finds none on this machine\n"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--m", "1,x"], '--m is "1,x", not numbers of tokens such as 1,8,16 or 1-256'),
        (["--m", "0"], '--m is "0", not numbers'),
        (["--m", ""], '--m is "", not numbers'),
        (["--m", "8-4"], '--m is "8-4", not numbers'),
        (["--m", "1-8-16"], '--m is "1-8-16", not numbers'),
        (["--m", "-8"], '--m is "-8", not numbers'),
        (["--m", str(1 << 31)], "not numbers"),
        (["--tune", "slow"], "tune is 'slow', not one of off, fast, full"),
        (["--budget", "-1"], "--budget is -1.0, not a number of seconds"),
        (["--budget", "nan"], "--budget is nan, not a number of seconds"),
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


ENDS = (1, 2, 8, 9, 16, 17, 32, 33, 48, 49, 64, 65, 96, 97, 128, 129, 192, 193, 256)
ABOVE = (257, 320, 321, 384, 385, 448, 449, 512, 513, 640, 641, 768, 769, 896, 897, 1024, 1025,
         1280, 1281, 1536, 1537, 2048, 2049, 3072, 3073, 4096, 4097, 8192)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("1,8,16", (1, 8, 16)),
        (" 16, 1,16 ", (1, 16)),
        ("1-256", ENDS),
        ("3-5", (3, 5)),
        ("4,7-20,64", (4, 7, 8, 9, 16, 17, 20, 64)),
        ("1-2147483647", (*ENDS, *ABOVE, 8193, 2147483647)),
        ("40-50", (40, 48, 49, 50)),
    ],
)
def test_of_a_range_the_ends_of_each_kernel_are_asked_for(text, tokens):
    assert ladder.cli.tune.tokens_of(text) == tokens


@pytest.mark.parametrize(
    ("name", "found"),
    [("cuda", 1), ("cuda:0", 0), ("h200", 1), ("NVIDIA H200", 1), ("H100", 0), ("h300", None),
     ("cuda:2", None), ("cuda:x", None), ("cpu", None)],
)  # fmt: skip
def test_a_gpu_is_found_by_index_and_by_name(monkeypatch, name, found):
    there = [("NVIDIA H100 80GB HBM3", {"name": "h100"}), ("NVIDIA H200", {"name": "h200"}),
             ("Tesla K80", None)]  # fmt: skip
    gpus = [{"name": name, "row": row} for name, row in there]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(devices, "gpus", lambda: gpus)
    if found is not None:
        assert ladder.cli.tune.gpu_called(name) == torch.device("cuda", found)
        return
    with pytest.raises(ladder.InvalidArgument) as error:
        ladder.cli.tune.gpu_called(name)
    assert str(error.value) == (
        f'--device is "{name}", and this machine has others: cuda:0 is NVIDIA H100 80GB HBM3 '
        "(h100); cuda:1 is NVIDIA H200 (h200); cuda:2 is Tesla K80"
    )


def test_each_type_and_shape_is_asked_for_once(capsys, folder, gpu):
    status, out, err = run(capsys, folder, "--m", "1-64", "--json", "--no-merged")
    assert status == 0, err
    (asked,) = gpu
    assert (asked["mode"], asked["budget_s"]) == ("fast", 20.0)
    shapes = {request.shape for request in asked["requests"]}
    assert len(shapes) == len(asked["requests"])
    for request in asked["requests"]:
        assert request.m == ENDS[:11] and request.dtype is torch.float16
        assert str(request.ttype) == "uint4,group=128,scale=float16,zero=midpoint"
        assert request.device == torch.device("cuda", 0)
    report = json.loads(out)
    assert report["cache"] == str(folder) and report["device"] == "cuda:0" and report["late"] == 1
    assert sum(len(shape["layers"]) for shape in report["shapes"]) == 56
    (refused,) = (shape for shape in report["shapes"] if shape["n"] == 128)
    assert refused["kernels"] == [] and refused["reason"] == "the fake has no kernel for it"
    other = next(shape for shape in report["shapes"] if shape["n"] != 128)
    kept = {"kernel": SCHEDULE, "origin": "measured"}
    assert other["kernels"] == [
        {"m": [1, 1], **kept}, {"m": [2, 8], **kept}, {"m": [9, 16], **kept},
        *({"m": m, "kernel": "", "origin": ""} for m in ([17, 32], [33, 48], [49, 64])),
    ]  # fmt: skip
    status, out, _ = run(capsys, folder, "--m", 8)
    assert status == 0 and SCHEDULE in out and "torch" in out and "1 kernels were not timed" in out


def test_merged_layers_are_asked_for_too(capsys, folder, gpu):
    assert run(capsys, folder)[0] == 0
    merged = {request.shape for request in gpu[0]["requests"]}
    assert run(capsys, folder, "--no-merged")[0] == 0
    apart = {request.shape for request in gpu[1]["requests"]}
    config = json.loads((folder / "config.json").read_text())
    width, heads = config["hidden_size"], config["num_attention_heads"]
    groups = config["num_key_value_heads"]
    rows = width + 2 * width // heads * groups
    assert merged - apart == {(rows, width), (2 * config["intermediate_size"], width)}


def test_gate_and_up_are_asked_for_with_the_function_between_them(capsys, folder, gpu):
    config = json.loads((folder / "config.json").read_text())
    shape = (2 * config["intermediate_size"], config["hidden_size"])
    status, out, _ = run(capsys, folder, "--json")
    assert status == 0
    (gated,) = (request for request in gpu[0]["requests"] if request.gated)
    assert gated.shape == shape and gated.columns == config["intermediate_size"]
    (plain,) = (r for r in gpu[0]["requests"] if r.shape == shape and not r.gated)
    assert plain.weight != gated.weight and plain.m == gated.m
    found = {shape["gating"] for shape in json.loads(out)["shapes"]}
    assert found == {None, f"activation={config['hidden_act']}"}
    for field, value in (("hidden_act", "xielu"), ("hidden_activation", "gelu_pytorch_tanh")):
        (folder / "config.json").write_text(json.dumps({**config, field: value}))
        status, out, _ = run(capsys, folder, "--json")
        found = {shape["gating"] for shape in json.loads(out)["shapes"]} - {None}
        assert found == ({f"activation={value}"} if field == "hidden_activation" else set())


def test_no_codes_are_read(capsys, folder, gpu, monkeypatch):
    read = []
    inner = SafetensorsShard.read
    monkeypatch.setattr(
        SafetensorsShard, "read", lambda self, names: read.extend(names) or inner(self, names)
    )
    assert run(capsys, folder)[0] == 0
    assert read and not [name for name in read if name.endswith(".qweight")]


def act_order_folder(folder, uneven):
    """Two layers of 64 x 128 in groups of 32 whose columns are in no order."""
    columns = torch.arange(128, dtype=torch.int32) // 32
    orders = {"sorted": columns, "mixed": columns.flip(0)}
    if uneven:
        orders["uneven"] = torch.zeros(128, dtype=torch.int32)
    tensors = {}
    for name, g_idx in orders.items():
        tensors[f"{name}.qweight"] = torch.zeros(64, 16, dtype=torch.int32)
        tensors[f"{name}.scales"] = torch.ones(64, 4, dtype=torch.float16)
        tensors[f"{name}.g_idx"] = g_idx.contiguous()
    save_file(tensors, folder / "model.safetensors")
    fields = {"quant_method": "ladder", "format_version": 1,
              "weight_type": "uint4,group=32,scale=float16"}  # fmt: skip
    (folder / "config.json").write_text(json.dumps({"quantization_config": fields}))


def test_columns_that_are_in_order_have_the_kernel_without_gathering(capsys, tmp_path, gpu):
    act_order_folder(tmp_path, uneven=True)
    status, out, err = run(capsys, tmp_path, "--json")
    assert status == 0, err
    found = {shape["layers"][0]: shape for shape in json.loads(out)["shapes"]}
    assert not found["sorted"]["gather"] and found["mixed"]["gather"]
    assert "does not give 32 columns to each group" in found["uneven"]["reason"]
    assert len(gpu[0]["requests"]) == 2


def test_layers_are_tuned_for_the_activations_that_they_take(capsys, tmp_path, gpu, monkeypatch):
    """q and k round, v does not; o would, but this GPU has no kernels for it."""
    asked = {"v_proj": None, "o_proj": "float8_e4m3"}
    rows = {"q_proj": 64, "k_proj": 64, "v_proj": 64, "o_proj": 192}
    tensors = {}
    for name, n in rows.items():
        tensors[f"{name}.qweight"] = torch.zeros(n, 16, dtype=torch.int32)
        tensors[f"{name}.scales"] = torch.ones(n, 4, dtype=torch.float16)
    save_file(tensors, tmp_path / "model.safetensors")
    fields = {"quant_method": "ladder", "format_version": 1, "activation_type": "int8",
              "activation_types": asked, "weight_type": "uint4,group=32,scale=float16"}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": fields}))
    monkeypatch.setattr(activations, "gpu_objection", lambda name, *_: (name != "int8") * "none")
    status, out, err = run(capsys, tmp_path, "--m", "1-8192", "--json")
    assert status == 0, err
    shapes = json.loads(out)["shapes"]
    found = {tuple(shape["layers"]): shape["activation_type"] for shape in shapes}
    assert found == {("k_proj", "q_proj"): "int8", ("v_proj",): None, ("o_proj",): None}
    for request in gpu[0]["requests"]:
        assert (6144 in request.m) == (request.activation_type == "int8"), "more intervals"
    del fields["activation_types"]["v_proj"]
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": fields}))
    _, out, _ = run(capsys, tmp_path, "--json")
    found = {tuple(shape["layers"]): shape["n"] for shape in json.loads(out)["shapes"]}
    assert found[("q_proj+k_proj+v_proj",)] == 192


@pytest.mark.parametrize("kernels", [True, False])
def test_files_that_say_nothing_of_sums_are_tuned_as_engines_have_them_too(
    capsys, tmp_path, gpu, monkeypatch, kernels
):
    """Prompts of an FP8 folder had plans for transformers, and none for vLLM."""
    rows, tensors = {"q_proj": 256, "k_proj": 384, "v_proj": 384}, {}
    rows |= {f"mlp.experts.{e}.{each}_proj": 256 for e in (0, 1) for each in ("gate", "up", "down")}
    for name, n in rows.items():
        tensors[f"{name}.weight"] = torch.zeros(n, 256).to(torch.float8_e4m3fn)
        tensors[f"{name}.weight_scale_inv"] = torch.ones(n // 128, 2)
    save_file(tensors, tmp_path / "model.safetensors")
    fields = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
              "weight_block_size": [128, 128]}  # fmt: skip
    config = {"quantization_config": fields, "num_experts_per_tok": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(activations, "gpu_objection", lambda *_: "" if kernels else "none")
    asked, of_experts = {}, {}
    for m in ("1-48", "1-64", "1-256"):
        status, out, err = run(capsys, tmp_path, "--m", m, "--json", "--no-merged")
        assert status == 0, err
        asked[m] = [(r.activation_type, max(r.m), min(r.m)) for r in gpu[-1]["requests"]]
        of_experts[m] = [(r.activation_type, r.m[-2:]) for r in gpu.experts[-1]["requests"]]
    promoted = "float8_e4m3" if kernels else ""
    assert asked["1-48"] == 2 * [(promoted, 48, 1)]
    for most in (64, 256):
        fast = 2 * [(activations.FAST_ACCUM, most, 49)]
        assert asked[f"1-{most}"] == 2 * [(promoted, most, 1)] + (fast if kernels else [])
    assert of_experts["1-64"] == [(promoted, (32, 64))]
    fast = [(activations.FAST_ACCUM, (128, 256))]
    assert of_experts["1-256"] == [(promoted, (128, 256))] + (fast if kernels else [])
    _, out, _ = run(capsys, tmp_path, "--m", "1-256")
    assert ("fast_accum" in "".join(out.split())) is kernels


def test_options_reach_the_tuning(capsys, folder, gpu, tmp_path):
    options = ["--dtype", "bfloat16", "--tune", "off", "--budget", "3", "--dependent-launch",
               "--cache", tmp_path]  # fmt: skip
    assert run(capsys, folder, *options)[0] == 0
    assert run(capsys, folder)[0] == 0
    first, second = gpu
    assert first["requests"][0].dtype is torch.bfloat16
    assert (first["mode"], first["budget_s"], first["kept"]) == ("off", 3.0, tmp_path)
    assert second["kept"] == folder
    apart = {r.weight for r in first["requests"]}, {r.weight for r in second["requests"]}
    assert not apart[0] & apart[1]  # dependent launches are weights of their own


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
def test_the_dtype_is_that_of_the_model_where_kernels_read_it(config, dtype):
    assert ladder.cli.tune._dtype_of(config) == dtype


def test_a_model_that_is_not_packed_is_pointed_to_convert(capsys, tmp_path, gpu):
    (tmp_path / "config.json").write_text("{}")
    save_file({"model.layers.0.mlp.up_proj.weight": torch.zeros(64, 64)},
              tmp_path / "model.safetensors")  # fmt: skip
    status, _, err = run(capsys, tmp_path)
    assert status == 1 and "has no packed layer" in err and "ladder convert" in err and gpu == []


def test_it_needs_no_transformers(capsys, folder, gpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert run(capsys, folder)[0] == 0


def test_the_examples_of_its_help_run(capsys, folder, gpu, tmp_path):
    status, out, _ = run(capsys, "--help")
    examples = re.findall(r"ladder tune (models/.*?)\s*│?$", out, re.MULTILINE)
    assert status == 0 and len(examples) == 3
    for example in examples:
        words = shlex.split(example)
        words[0] = str(folder)
        words = [str(tmp_path / word) if word == "plans" else word for word in words]
        status, _, err = run(capsys, *words)
        assert status == 0, (example, err)
