# SPDX-License-Identifier: Apache-2.0
"""quant_method "fbgemm_fp8": a scale for each row, and what is refused."""

import json
import logging

import pytest
import torch
from checkpoint_oracle import FBGEMM, fp8, tensors_of, write_folder
from safetensors.torch import load_file

from ladder import types
from ladder.checkpoints import open_folder, repack
from ladder.errors import CheckpointError, Unsupported
from ladder.weight import Weight

N, K, NAME = 48, 80, "self_attn.q_proj"


@pytest.fixture
def drawn():
    return {NAME: fp8(N, K, kind="channel")}


def folder_of(drawn, path, more=None, **changes):
    return write_folder(path, FBGEMM | changes, [tensors_of(drawn) | (more or {})])


@pytest.mark.parametrize("limit", [None, (), (1,)])
def test_a_folder_and_its_repacked_self_mean_what_was_drawn(limit, drawn, tmp_path, caplog):
    caplog.set_level(logging.INFO, "ladder")
    if limit is not None:
        drawn[NAME].tensors["input_scale_ub"] = torch.full(limit, 1200.0)
    source = folder_of(drawn, tmp_path / "a")
    (direct,) = dict(open_folder(source)).values()
    assert any(r.getMessage().startswith("activation_scale_ub is 1200") for r in caplog.records)
    repack(source, tmp_path / "b")
    tensors = load_file(tmp_path / "b" / "model.safetensors")
    made = json.loads((tmp_path / "b" / "config.json").read_text())["quantization_config"]
    assert made["weight_type"] == str(types.parse("float8_e4m3,channel,scale=float32"))
    assert made["activation_type"] == "float8_e4m3"
    assert made["modules_to_not_convert"] == ["lm_head"]
    assert {*tensors} == {f"{NAME}.qweight", f"{NAME}.scales"}
    parts = {part: tensors[f"{NAME}.{part}"] for part in ("qweight", "scales")}
    for weight in (direct, Weight(types.parse(made["weight_type"]), (N, K), **parts)):
        weight.check()
        assert torch.equal(weight.dequantize(), torch.from_numpy(drawn[NAME].weight).float())


@pytest.mark.parametrize(
    ("part", "change", "why"),
    [
        ("weight_scale", lambda t: t[:1].clone(), r"\[1, 1\], not \[48, 1\]"),
        ("weight_scale", lambda t: t.reshape(1, -1), r"\[1, 48\], not"),
        ("weight_scale", lambda t: t.fill_(float("inf")), "must be finite"),
        ("weight", lambda t: t.float(), "is float32, not"),
        ("weight_scale", None, "weight_scale is missing"),
    ],
)
def test_damaged_layers_are_named(part, change, why, drawn, tmp_path):
    tensors = drawn[NAME].tensors
    tensors["input_scale_ub"] = torch.tensor([1200.0])
    if change is None:
        del tensors[part]
    else:
        tensors[part] = change(tensors[part])
    with pytest.raises(CheckpointError, match=why) as raised:
        repack(folder_of(drawn, tmp_path / "a"), tmp_path / "b")
    assert NAME in str(raised.value) and not (tmp_path / "b").exists()


def test_a_layer_that_the_config_leaves_dense_is_refused(drawn, tmp_path):
    source = folder_of(drawn, tmp_path / "a", modules_to_not_convert=["self_attn"])
    with pytest.raises(CheckpointError, match=f"leaves {NAME} unquantised"):
        dict(open_folder(source))


@pytest.mark.parametrize("limit", [0, "1200", True])
def test_a_limit_that_is_none_is_refused(limit, drawn, tmp_path):
    source = folder_of(drawn, tmp_path / "a", activation_scale_ub=limit)
    with pytest.raises(CheckpointError, match="activation_scale_ub is"):
        open_folder(source)


def test_stacks_of_experts_are_refused(drawn, tmp_path):
    stack = {"feed_forward.experts.gate_up_proj_scale": torch.ones(2, 1, 8)}
    with pytest.raises(Unsupported, match="gate_up_proj_scale is there, of a stack of experts"):
        repack(folder_of(drawn, tmp_path / "a", stack), tmp_path / "b")
