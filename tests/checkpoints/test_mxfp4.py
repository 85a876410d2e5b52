# SPDX-License-Identifier: Apache-2.0
"""quant_method "mxfp4", gpt-oss: stacks of experts become those of a ladder folder."""

import json

import numpy as np
import pytest
import torch
from checkpoint_oracle import MXFP4, mxfp4_stack, write_folder
from safetensors.torch import load_file

from ladder import types
from ladder.checkpoints import open_folder, repack
from ladder.checkpoints.info import describe
from ladder.checkpoints.packed import packed_layers
from ladder.errors import CheckpointError, Unsupported
from ladder.weight import Weight

E, H, I = 3, 96, 64  # noqa: E741, as in the documents
EXPERTS = "model.layers.0.mlp.experts"
GATE_UP, DOWN = f"{EXPERTS}.gate_up_proj", f"{EXPERTS}.down_proj"
DENSE = {
    "model.layers.0.self_attn.q_proj.weight": torch.ones(4, 4).bfloat16(),
    "model.layers.0.self_attn.sinks": torch.ones(4).bfloat16(),
    "model.embed_tokens.weight": torch.ones(4, 4).bfloat16(),
}


@pytest.fixture
def stacks():
    return {GATE_UP: mxfp4_stack(E, 2 * I, H, seed=1), DOWN: mxfp4_stack(E, H, I, seed=2)}


def folder_of(stacks, path, **config):
    tensors = {f"{name}_{part}": t for name, s in stacks.items() for part, t in s.tensors.items()}
    return write_folder(path, MXFP4 | config, [tensors, DENSE])


def test_the_repacked_folder_means_what_was_drawn(stacks, tmp_path):
    repack(folder_of(stacks, tmp_path / "a"), tmp_path / "b")
    tensors = {}
    for file in (tmp_path / "b").glob("*.safetensors"):
        tensors |= load_file(file)
    for name, rows, k in ((GATE_UP, 2 * I, H), (DOWN, H, I)):
        ours, truth = name.removesuffix("_proj"), stacks[name]
        order = [*range(0, rows, 2), *range(1, rows, 2)] if name == GATE_UP else [*range(rows)]
        for e in range(E):
            parts = {part: tensors[f"{ours}.{part}"][e] for part in ("qweight", "scales")}
            weight = Weight(types.parse("mxfp4"), (rows, k), **parts)
            weight.check()
            wanted = torch.from_numpy(truth.weight[e][order].astype(np.float32))
            assert torch.equal(weight.dequantize(), wanted)
        assert torch.equal(tensors[f"{ours}.bias"], truth.tensors["bias"][:, order])
    assert {n: t for n, t in tensors.items() if n in DENSE}.keys() == DENSE.keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in DENSE.items())
    assert len(tensors) == 6 + len(DENSE)
    made = json.loads((tmp_path / "b" / "config.json").read_text())["quantization_config"]
    assert (made["quant_method"], made["weight_type"], made["modules"]) == ("ladder", "mxfp4", {})
    assert made["modules_to_not_convert"] == ["lm_head", "model.layers.0.self_attn.q_proj"]
    assert made["source"]["quant_method"] == "mxfp4"


def test_the_folder_is_described_as_its_repacked_self_is(stacks, tmp_path):
    source = folder_of(stacks, tmp_path / "a")
    report = repack(source, tmp_path / "b")
    before, after = describe(source), describe(tmp_path / "b")
    assert before.pop("quant_method") == "mxfp4" and after.pop("quant_method") == "ladder"
    assert before == after
    assert report.bytes_before == report.bytes_after == before["bytes"]
    assert {t: row.weights for t, row in report.types.items()} == {"mxfp4": E * 3 * I * H}
    layers, (experts,) = packed_layers(source)
    assert not layers and experts.count == E and (experts.gate_up.n, experts.down.n) == (2 * I, H)


def test_layers_alone_are_refused_by_name(stacks, tmp_path):
    with pytest.raises(Unsupported, match="'mxfp4', whose experts are stacks.*ladder repack"):
        open_folder(folder_of(stacks, tmp_path / "a"))


@pytest.mark.parametrize(
    ("name", "part", "change", "why"),
    [
        (DOWN, "scales", None, "down_proj_scales is missing, but there is"),
        (DOWN, "blocks", None, "down_proj_blocks is missing, but there is"),
        (DOWN, "blocks", lambda t: t.int(), r"is torch.int32 \[3, 96, 2, 16\], not torch.uint8"),
        (DOWN, "blocks", lambda t: t.flatten(2), r"\[3, 96, 32\], not torch.uint8 \[E, N, K/32"),
        (DOWN, "scales", lambda t: t[:, :-1], r"\[3, 95, 2\], not torch.uint8 \[3, 96, 2\]"),
        (DOWN, "scales", lambda t: t.float(), r"is torch.float32 .* not torch.uint8"),
        (DOWN, "bias", lambda t: t[:, 1:], r"bias has shape \[3, 95\], not \[3, 96\]"),
    ],
)
def test_damaged_stacks_are_named(name, part, change, why, stacks, tmp_path):
    tensors = stacks[name].tensors
    found = tensors.pop(part)
    if change is not None:
        tensors[part] = change(found).contiguous()
    with pytest.raises(CheckpointError, match=why) as raised:
        repack(folder_of(stacks, tmp_path / "a"), tmp_path / "b")
    assert f"{name}_{part}" in str(raised.value) and not (tmp_path / "b").exists()


@pytest.mark.parametrize(("part", "value"), [("scales", 255), ("bias", float("inf"))])
def test_numbers_that_are_not_finite_are_named(part, value, stacks, tmp_path):
    stacks[DOWN].tensors[part][1, 5] = value
    with pytest.raises(CheckpointError, match=rf"{DOWN}_{part}\[1, 5.* not finite"):
        repack(folder_of(stacks, tmp_path / "a"), tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_rows_that_are_not_gate_and_up_in_turn_are_refused(stacks, tmp_path):
    tensors = stacks[GATE_UP].tensors
    for part, tensor in tensors.items():
        tensors[part] = tensor[:, 1:].contiguous()
    with pytest.raises(CheckpointError, match="gate_up_proj_blocks has 127 rows"):
        repack(folder_of(stacks, tmp_path / "a"), tmp_path / "b")


def test_a_folder_without_stacks_and_a_key_that_is_not_known_are_refused(stacks, tmp_path):
    with pytest.raises(CheckpointError, match="no tensor is a"):
        repack(folder_of({}, tmp_path / "a"), tmp_path / "b")
    with pytest.raises(Unsupported, match="quantization_config.block_size is 16"):
        repack(folder_of(stacks, tmp_path / "c", block_size=16), tmp_path / "d")
    with pytest.raises(CheckpointError, match="modules_to_not_convert is 3, not a list"):
        repack(folder_of(stacks, tmp_path / "e", modules_to_not_convert=3), tmp_path / "f")
