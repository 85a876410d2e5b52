# SPDX-License-Identifier: Apache-2.0
"""quant_method "bitsandbytes": what layers of 4 and 8 bits mean, and what is refused."""

import json

import pytest
import torch
from checkpoint_oracle import tensors_of, write_folder
from more_oracles import INT8, NF4, bnb, llm_int8, told
from safetensors.torch import load_file

from ladder import types
from ladder.checkpoints import open_folder, repack
from ladder.checkpoints.info import describe
from ladder.errors import CheckpointError, Unsupported
from ladder.integrations.serving.stored import Folder
from ladder.weight import Weight

N, K = 24, 192
STATE, MAP = "weight.quant_state.bitsandbytes__nf4", "weight.quant_map"


def folder_of(drawn, path, settings=NF4):
    dense = {"mlp.gate.weight": torch.ones(4, 4).half()}
    return write_folder(path, settings, [tensors_of({"q_proj": drawn}) | dense])


@pytest.mark.parametrize(
    ("options", "n", "k", "text"),
    [
        ({}, N, K, "nf4,group=64,scale=float32"),
        ({"kind": "fp4"}, N, K, "fp4,group=64,scale=float32"),
        ({"nested": True}, N, K, "nf4,group=64,scale=float32"),
        (
            {"nested": True, "blocksize": 32, "kind": "fp4"},
            96,
            100 * 8,
            "fp4,group=32,scale=float32",
        ),
        ({"blocksize": 128}, N, K, "nf4,group=64,scale=float32"),  # a block and a half in a row
        ({"blocksize": 4096}, N * 8, K, "nf4,group=64,scale=float32"),
        ({"blocksize": 4096}, 100, 64, "nf4,group=64,scale=float32"),  # 64 rows, and 36
        ({"blocksize": 64}, 2, 30, "nf4,tensor,scale=float32"),  # one block, rows of 15 bytes
    ],
)
def test_a_folder_and_its_repacked_self_mean_what_was_drawn(options, n, k, text, tmp_path):
    truth = bnb(n, k, seed=n, **options)
    source = folder_of(truth, tmp_path / "a")
    check(source, truth, text, tmp_path)


def test_rows_of_int8_have_a_scale_each(tmp_path):
    truth = llm_int8(N, K - 2)
    check(folder_of(truth, tmp_path / "a", INT8), truth, "int8,scale=float32", tmp_path)


def check(source, truth, text, tmp_path):
    n, k = truth.weight.shape
    direct = dict(open_folder(source))["q_proj"]
    (row,) = describe(source)["modules"]
    assert (row["n"], row["k"], row["type"]) == (n, k, str(types.parse(text)))
    assert row["activation_type"] is None
    repack(source, tmp_path / "b")
    tensors = load_file(tmp_path / "b" / "model.safetensors")
    made = json.loads((tmp_path / "b" / "config.json").read_text())["quantization_config"]
    assert made["weight_type"] == str(types.parse(text))
    assert made["modules_to_not_convert"] == ["lm_head", "mlp.gate"]
    assert tensors.keys() == {"q_proj.qweight", "q_proj.scales", "mlp.gate.weight"}
    parts = {part: tensors[f"q_proj.{part}"] for part in ("qweight", "scales")}
    for weight in (direct, Weight(types.parse(text), (n, k), **parts)):
        weight.check()
        assert torch.equal(weight.dequantize(), torch.from_numpy(truth.weight))


def test_bytes_hold_the_first_column_in_their_upper_half(tmp_path):
    truth = bnb(2, 64, blocksize=64)
    truth.tensors["weight"] = torch.full((64, 1), 0x0F, dtype=torch.uint8)
    truth.tensors["weight.absmax"] = torch.tensor([1.0, 2.0])
    ((_, weight),) = open_folder(folder_of(truth, tmp_path / "a"))
    assert weight.dequantize()[:, :3].tolist() == [[-1, 1, -1], [-2, 2, -2]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_bytes_may_be_stored_as_floats(dtype, tmp_path):
    truth = bnb(N, K)
    truth.tensors["weight"] = truth.tensors["weight"].flatten().view(dtype)[:, None]
    settings = NF4 | {"bnb_4bit_quant_storage": str(dtype).removeprefix("torch.")}
    ((_, weight),) = open_folder(folder_of(truth, tmp_path / "a", settings))
    assert torch.equal(weight.dequantize(), torch.from_numpy(truth.weight))


def state(**changes):
    """A change of the fields of a quant_state; None takes a field out."""

    def change(tensor):
        fields = json.loads(bytes(tensor.tolist())) | changes
        return told({key: value for key, value in fields.items() if value is not None})

    return change


@pytest.mark.parametrize(("part", "change", "why"), [
    (STATE, lambda t: t[:-2].clone(), "does not say the shape"),
    (STATE, lambda t: t.int(), "does not say the shape"),
    (STATE, state(shape=[24]), "does not say the shape"),
    (STATE, state(shape=[24, 96]), r"has shape \[24, 96\], not \[48, 96\]"),
    (STATE, state(shape=[24, 7]), "4608 codes, not some rows of 7"),
    (STATE, state(shape=[24, 1 << 60]), "not some rows of"),
    (STATE, state(blocksize=128), "has blocksize 128, and weight.absmax has 72 numbers"),
    (STATE, state(blocksize=0), "has blocksize 0"),
    (STATE, state(blocksize=64.5), "has blocksize 64.5"),
    (STATE, state(quant_type="fp4"), "has quant_type 'fp4', not 'nf4'"),
    (STATE, state(dtype=None), "has no dtype"),
    (STATE, state(nested_offset=None), "has no nested_offset"),
    (STATE, state(nested_offset="0"), "nested_offset '0', not a finite number"),
    (STATE, state(nested_offset=1e39), r"nested_offset 1e\+39, not a finite number"),
    (STATE, state(nested_blocksize=64), r"nested_blocksize 64, and .* has shape \[1\] for 72"),
    (STATE, state(nested_dtype="float16"), "nested_dtype 'float16', not 'float32'"),
    (STATE, state(rotation=[1]), "has rotation, which ladder does not know"),
    (STATE, None, "bitsandbytes__nf4 is missing"),
    (MAP, lambda t: t.flip(0), r"quant_map\[0\] is 1.0, not -1.0 as nf4"),
    (MAP, lambda t: t[:8].clone(), r"has shape \[8\], not \[16\]"),
    (MAP, None, "quant_map is missing"),
    ("weight.absmax", lambda t: t[:70].clone(), r"shape \[70\], which no size of blocks"),
    ("weight.absmax", lambda t: t.half(), "is float16, not float32 or uint8"),
    ("weight.absmax", lambda t: t.float(), "nested_absmax is there, but weight.absmax is float32"),
    ("weight.absmax", None, "weight.absmax is missing"),
    ("weight.nested_absmax", lambda t: t / 0, "must be finite"),
    ("weight.nested_quant_map", lambda t: t[:255].clone(), r"shape \[255\], not \[256\]"),
    ("weight.nested_quant_map", None, "nested_quant_map is missing"),
    ("weight", lambda t: t.t().contiguous(), r"has shape \[1, 2304\], not one column"),
    ("weight", lambda t: t.view(torch.int8), "is int8, not uint8"),
    ("weight", None, "weight is missing"),
    ("SCB", lambda t: torch.ones(24), "absmax is of 4 bits, and q_proj has parts of 8 bits too"),
])  # fmt: skip
def test_damaged_layers_of_4_bits_are_named(part, change, why, tmp_path):
    refused(bnb(N, K, nested=True), part, change, why, tmp_path)


@pytest.mark.parametrize(("part", "change", "why"), [
    ("weight.absmax", lambda t: t / 0, r"weight.absmax\[0\] is inf"),
    (STATE, state(nested_blocksize=256), "has nested_blocksize, which ladder does not know"),
])  # fmt: skip
def test_damaged_layers_without_nested_scales_are_named(part, change, why, tmp_path):
    refused(bnb(N, K), part, change, why, tmp_path)


@pytest.mark.parametrize(("part", "change", "why"), [
    ("SCB", lambda t: t[:3].clone(), r"has shape \[3\], not \[24\]"),
    ("SCB", lambda t: t.half(), "is float16, not float32"),
    ("SCB", lambda t: t / 0, "must be finite"),
    ("SCB", None, "SCB is missing"),
    ("weight", lambda t: t.view(torch.uint8), "is uint8, not int8"),
    ("weight", lambda t: t.flatten(), "not two dimensions"),
    ("weight_format", lambda t: t.repeat(2), r"has shape \[2\], not \[\]"),
])  # fmt: skip
def test_damaged_layers_of_8_bits_are_named(part, change, why, tmp_path):
    refused(llm_int8(N, K), part, change, why, tmp_path, INT8)


def refused(truth, part, change, why, tmp_path, settings=NF4):
    tensor = truth.tensors.pop(part, None)
    if change is not None:
        truth.tensors[part] = change(tensor)
    source = folder_of(truth, tmp_path / "a", settings)
    with pytest.raises(CheckpointError, match=why) as raised:
        repack(source, tmp_path / "b")
    assert "q_proj." in str(raised.value) and not (tmp_path / "b").exists()


@pytest.mark.parametrize(("draw", "settings", "error", "why"), [
    (lambda: bnb(16, 60, blocksize=64), NF4, Unsupported, "K = 60 and blocks of 64 .* only 4 col"),
    (lambda: bnb(3, 5, blocksize=64), NF4, Unsupported, "K = 5: ladder reads rows of whole bytes"),
    (lambda: bnb(N, K), INT8, CheckpointError, "is of 4 bits, and quantization_config says 8"),
    (lambda: llm_int8(N, K), NF4, CheckpointError, "is of 8 bits, and quantization_config says 4"),
    (lambda: bnb(N, K), NF4 | INT8, CheckpointError, "load_in_4bit is True, and load_in_8bit too"),
    (lambda: bnb(N, K), NF4 | {"load_in_4bit": 1}, CheckpointError, "load_in_4bit is 1, not true"),
    (lambda: bnb(N, K), NF4 | {"bnb_4bit_quant_type": "af4"}, CheckpointError, "is 'af4', not nf4"),
])  # fmt: skip
def test_what_ladder_does_not_read_is_named(draw, settings, error, why, tmp_path):
    source = folder_of(draw(), tmp_path / "a", settings)
    with pytest.raises(error, match=why):
        repack(source, tmp_path / "b")


def test_rows_in_the_order_of_a_kernel_are_refused(tmp_path):
    truth = llm_int8(N, K)
    truth.tensors["weight_format"] = torch.tensor(2, dtype=torch.uint8)
    with pytest.raises(Unsupported, match="weight_format is 2, not 0"):
        dict(open_folder(folder_of(truth, tmp_path / "a", INT8)))


def test_engines_are_told_to_repack():
    with pytest.raises(Unsupported, match="bitsandbytes, .*: run `ladder repack` first"):
        Folder(NF4)
