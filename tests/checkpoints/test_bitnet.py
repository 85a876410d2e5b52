# SPDX-License-Identifier: Apache-2.0
"""quant_method "bitnet": what ternary layers mean, and what is refused."""

import json

import pytest
import torch
from checkpoint_oracle import tensors_of, write_folder
from more_oracles import BITNET, bitnet
from safetensors.torch import load_file

from ladder import types
from ladder.checkpoints import bitnet as bitnet_format
from ladder.checkpoints import open_folder, repack
from ladder.checkpoints.layer import stored
from ladder.errors import CheckpointError, Unsupported
from ladder.weight import Weight

N, K = 72, 44  # planes of 18 rows, words of 16 columns that are not whole
DIVIDES = BITNET | {"linear_class": "bitlinear"}


def folder_of(drawn, path, settings=BITNET):
    return write_folder(path, settings, [tensors_of({"q_proj": drawn})])


@pytest.mark.parametrize("settings", [BITNET, DIVIDES, {"quant_method": "bitnet"}])
def test_a_folder_and_its_repacked_self_mean_what_was_drawn(settings, tmp_path):
    divides = settings is not BITNET
    text = f"ternary,tensor,scale={'float32' if divides else 'bfloat16'}"
    truth = bitnet(N, K, divides=divides)
    direct = dict(open_folder(folder_of(truth, tmp_path / "a", settings)))["q_proj"]
    repack(tmp_path / "a", tmp_path / "b")
    tensors = load_file(tmp_path / "b" / "model.safetensors")
    made = json.loads((tmp_path / "b" / "config.json").read_text())["quantization_config"]
    assert made["weight_type"] == str(types.parse(text)) and made["activation_type"] == "int8"
    parts = {part: tensors[f"q_proj.{part}"] for part in ("qweight", "scales")}
    for weight in (direct, Weight(types.parse(text), (N, K), **parts)):
        weight.check()
        assert torch.equal(weight.dequantize(), torch.from_numpy(truth.weight))


def test_rows_unpacked_apart_are_the_rows_unpacked_together():
    truth = bitnet(N, K)
    layer = bitnet_format.measure(stored(truth.tensors), bitnet_format.Config(), "q_proj")
    weight = truth.tensors["weight"]
    apart = [bitnet_format.words(weight, layer, slice(n, min(n + 32, N))) for n in (0, 32, 64)]
    whole = bitnet_format.canonical("weight", weight, layer)[1]
    assert torch.equal(torch.cat(apart), whole)


@pytest.mark.parametrize(("part", "change", "why"), [
    ("weight", lambda t: t.flatten(), "not two dimensions"),
    ("weight", lambda t: t.bfloat16(), "is bfloat16, not uint8"),
    ("weight", lambda t: t | 3, "has a code of 3 in column 0"),
    ("weight", None, "weight is missing"),
    ("weight_scale", lambda t: t.repeat(2), r"\[2\], not \[1\]"),
    ("weight_scale", lambda t: t.int(), "is int32, not"),
    ("weight_scale", lambda t: t / 0, "must be finite"),
    ("weight_scale", lambda t: t * 0, "is 0.0, and its inverse not finite"),
    ("weight_scale", None, "weight is uint8, and no scale is beside it"),
])  # fmt: skip
def test_damaged_layers_are_named(part, change, why, tmp_path):
    truth = bitnet(N, K)
    tensor = truth.tensors.pop(part)
    if change is not None:
        truth.tensors[part] = change(tensor)
    source = folder_of(truth, tmp_path / "a", DIVIDES)
    with pytest.raises(CheckpointError, match=why) as raised:
        repack(source, tmp_path / "b")
    assert "q_proj." in str(raised.value) and not (tmp_path / "b").exists()


@pytest.mark.parametrize(("changes", "error", "why"), [
    ({"quantization_mode": "online"}, Unsupported, "is 'online': its weights are dense"),
    ({"use_rms_norm": True}, Unsupported, "use_rms_norm is True: each layer normalises"),
    ({"linear_class": "linear"}, CheckpointError, "is 'linear', not bitlinear or auto"),
    ({"quantization_mode": "on"}, CheckpointError, "quantization_mode is 'on', not offline or on"),
])  # fmt: skip
def test_settings_that_ladder_cannot_follow(changes, error, why, tmp_path):
    source = folder_of(bitnet(N, K), tmp_path / "a", BITNET | changes)
    with pytest.raises(error, match=why):
        open_folder(source)
