# SPDX-License-Identifier: Apache-2.0
"""quant_method "w4afp8": experts of 4 bits beside layers of FP8, and what is refused."""

import json
import logging

import pytest
import torch
from checkpoint_oracle import W4AFP8, fp8, tensors_of, w4afp8_expert, write_folder
from safetensors.torch import load_file

from ladder import types
from ladder.checkpoints import open_folder, repack
from ladder.errors import CheckpointError
from ladder.weight import Weight

N, K = 192, 320  # the last group has 64 columns
EXPERT, LINEAR = "mlp.experts.0.gate_proj", "self_attn.q_proj"
TYPES = {
    EXPERT: "int4,group=128,scale=float32",
    LINEAR: "float8_e4m3,block=128x128,scale=float32",
}


@pytest.fixture
def drawn():
    return {EXPERT: w4afp8_expert(N, K, seed=3), LINEAR: fp8(N, K)}


def folder_of(drawn, path, **changes):
    dense = {"mlp.gate.weight": torch.ones(4, 4).half()}
    return write_folder(path, W4AFP8 | changes, [tensors_of(drawn) | dense])


def test_a_folder_and_its_repacked_self_mean_what_was_drawn(drawn, tmp_path):
    source = folder_of(drawn, tmp_path / "a")
    direct = dict(open_folder(source))
    repack(source, tmp_path / "b")
    tensors = load_file(tmp_path / "b" / "model.safetensors")
    made = json.loads((tmp_path / "b" / "config.json").read_text())["quantization_config"]
    for module, truth in drawn.items():
        text = made["modules"].get(module, made["weight_type"])
        assert text == str(types.parse(TYPES[module]))
        parts = {p: tensors[f"{module}.{p}"] for p in ("qweight", "scales")}
        for weight in (direct[module], Weight(types.parse(text), (N, K), **parts)):
            weight.check()
            assert torch.equal(weight.dequantize(), torch.from_numpy(truth.weight).float())
    # x of experts is rounded by a scale of the files, that of other layers by each token's own.
    assert made["activation_type"] == "float8_e4m3" and "activation_types" not in made
    assert tensors[f"{EXPERT}.input_scale"].tolist() == [3.25]
    assert tensors[f"{EXPERT}.input_scale"].dtype == torch.float32
    assert f"{LINEAR}.input_scale" not in tensors
    assert made["modules_to_not_convert"] == ["lm_head", "mlp.gate"]


def test_bytes_hold_the_first_column_in_their_lower_half_and_a_sign(tmp_path):
    truth = w4afp8_expert(16, 128)
    truth.tensors["weight"] = torch.full((16, 64), 0x7F, dtype=torch.int8)
    truth.tensors["weight_scale_inv"] = torch.full((16, 1), 0.5)
    ((_, weight),) = open_folder(folder_of({EXPERT: truth}, tmp_path / "a"))
    assert weight.dequantize()[0, :4].tolist() == [-0.5, 3.5, -0.5, 3.5]


def test_ignored_layers_stay_dense(drawn, tmp_path):
    del drawn[LINEAR]
    source = folder_of(drawn, tmp_path / "a", ignored_layers=["lm_head", EXPERT])
    with pytest.raises(CheckpointError, match=f"leaves {EXPERT} unquantised"):
        dict(open_folder(source))


@pytest.mark.parametrize(
    ("part", "change", "why"),
    [
        ("weight_scale_inv", lambda t: t[:, :2].clone(), r"\[192, 2\], not \[192, 3\]"),
        ("weight_scale_inv", lambda t: t.to(torch.int32), "is int32, not"),
        ("weight_scale_inv", lambda t: t.fill_(float("nan")), "must be finite"),
        ("input_scale", lambda t: t.repeat(2), r"\[2\], not \[1\]"),
        ("input_scale", lambda t: t.fill_(0), "not positive"),
        ("weight_scale_inv", None, "weight_scale_inv is missing"),
    ],
)
def test_damaged_experts_are_named(part, change, why, drawn, tmp_path):
    tensors = drawn[EXPERT].tensors
    if change is None:
        tensors["weight_scale"] = tensors.pop(part)
    else:
        tensors[part] = change(tensors[part])
    source = folder_of(drawn, tmp_path / "a")
    with pytest.raises(CheckpointError, match=why) as raised:
        repack(source, tmp_path / "b")
    assert EXPERT in str(raised.value) and not (tmp_path / "b").exists()


def test_experts_without_a_static_scale_are_said(drawn, tmp_path, caplog):
    caplog.set_level(logging.WARNING, "ladder")
    del drawn[EXPERT].tensors["input_scale"]
    repack(folder_of(drawn, tmp_path / "a"), tmp_path / "b")
    assert any(
        r.getMessage().startswith(f"{EXPERT}: input_scale is missing") for r in caplog.records
    )
