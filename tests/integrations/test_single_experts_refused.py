# SPDX-License-Identifier: Apache-2.0
"""Folders whose experts are packed one by one and make no layer: what is wrong is named."""

import json
import re
import shutil

import pytest
import torch
from checkpoint_oracle import (
    gptq,
    modelopt,
    modelopt_settings,
)
from hf_models import edit_tensors, load, logits
from single_experts import FIRST_ON_DISK, GPTQ, desc_act, packed

import ladder
from ladder.checkpoints import repack
from ladder.errors import CheckpointError, Unsupported
from ladder.integrations.folders.checkpoint import read_headers
from ladder.integrations.transformers import enable
from ladder.integrations.transformers.single_experts import open_experts


def test_weights_on_disk_are_refused_only_where_their_codes_are(unpacked_folder, tmp_path):
    repack(packed(unpacked_folder, tmp_path), tmp_path / "repacked")
    expected = logits(load(tmp_path / "repacked"))
    options = {"device_map": FIRST_ON_DISK, "offload_folder": tmp_path / "disk"}
    assert torch.equal(logits(load(tmp_path / "repacked", **options)), expected)
    with pytest.raises(Unsupported, match=r"experts.0.\w+ is offloaded: experts that are"):
        load(tmp_path / "repacked", offload_buffers=True, **options)


def test_experts_that_would_be_cut_over_processes_are_refused(unpacked_folder, tmp_path):
    headers = read_headers([packed(unpacked_folder, tmp_path) / "model.safetensors"])
    model = load(unpacked_folder)
    parts, codes_part = ladder.checkpoints.gptq.PARTS, ladder.checkpoints.gptq.codes_part
    with pytest.raises(Unsupported, match=r"experts.0.\w+.qweight is of packed experts, which can"):
        open_experts(model, headers, parts, codes_part, cut=True)


def test_numbers_for_columns_of_x_are_refused_of_experts(unpacked_folder, tmp_path):
    def draw(n, k, seed):
        return modelopt(n, k, algorithm="NVFP4_AWQ", seed=seed)

    folder = packed(unpacked_folder, tmp_path, draw, modelopt_settings("NVFP4_AWQ"))
    repack(folder, tmp_path / "repacked")
    with enable("modelopt"), pytest.raises(Unsupported, match=r"experts.0.\w+ multiplies columns"):
        load(folder)
    with pytest.raises(Unsupported, match=r"experts.0.\w+ multiplies columns"):
        load(tmp_path / "repacked")


def projection(folder, expert, parameter):
    """What the files call a projection of the first layer: of "down", or the first of "gate_up"."""
    mixtral = json.loads((folder / "config.json").read_text())["model_type"] == "mixtral"
    block, gate, down = (
        ("block_sparse_moe", "w1", "w2") if mixtral else ("mlp", "gate_proj", "down_proj")
    )
    last = gate if parameter == "gate_up" else down
    return f"model.layers.0.{block}.experts.{expert}.{last}"


@pytest.mark.parametrize("form", ["gptq", "ladder"])
def test_folders_that_lack_a_projection_or_have_one_too_many_are_refused(
    unpacked_folder, tmp_path, form
):
    folder = packed(unpacked_folder, tmp_path)
    if form == "ladder":
        repack(folder, tmp_path / "repacked")
        folder = tmp_path / "repacked"
    missing, there = projection(folder, 2, "down"), projection(folder, 0, "gate_up")
    parts = ("qweight", "scales", "qzeros", "g_idx")

    def refused(change, why, error=CheckpointError):
        copy = shutil.copytree(folder, tmp_path / "damaged", dirs_exist_ok=True)
        edit_tensors(copy, change)
        with enable("gptq"), pytest.raises(error, match=why):
            load(copy)

    def drop(tensors, parts=parts):
        for part in parts:
            tensors.pop(f"{missing}.{part}", None)

    def one_more(tensors):
        for part in parts:
            if f"{there}.{part}" in tensors:
                name = there.replace("experts.0.", "experts.8.")
                tensors[f"{name}.{part}"] = tensors[f"{there}.{part}"].clone()

    def make_dense(tensors):
        drop(tensors)
        tensors[f"{missing}.weight"] = torch.zeros(64, 96)

    refused(
        drop, f"{missing}.qweight is missing, and {there}.qweight is there: the model has . exp"
    )
    refused(lambda t: drop(t, ["qweight"]), f"{missing}.qweight is missing")
    refused(lambda t: drop(t, ["scales"]), f"{missing}.scales is missing")
    refused(one_more, "experts.8.*qweight is there, but the model has . experts")
    refused(make_dense, f"{missing} is dense, and {there} packed", Unsupported)


def test_a_projection_of_another_shape_is_refused_with_both(unpacked_folder, tmp_path):
    folder = packed(unpacked_folder, tmp_path)
    name = projection(folder, 1, "down")
    edit_tensors(
        folder,
        lambda t: t.update({f"{name}.{p}": v for p, v in gptq(32, 64).tensors.items()}),
    )
    with (
        enable("gptq"),
        pytest.raises(
            CheckpointError, match=rf"{name}.qweight holds a weight of \[32, 64\], not \[64, \d\d\]"
        ),
    ):
        load(folder)


def test_experts_of_two_types_are_refused_with_both(unpacked_folder, tmp_path):
    name = re.escape(projection(unpacked_folder, 1, "down"))
    settings = GPTQ | {"dynamic": {f"+:{name}": {"bits": 8}}}

    def draw(n, k, seed, name):
        bits = 8 if name == projection(unpacked_folder, 1, "down") else 4
        return gptq(n, k, bits=bits, seed=seed)

    folder = packed(unpacked_folder, tmp_path, draw, settings)
    why = rf"{name} is uint8,.*, and .*experts.0.\w+ uint4,.*: the experts of a layer need one type"
    with enable("gptq"), pytest.raises(Unsupported, match=why):
        load(folder)
    repack(folder, tmp_path / "repacked")
    with pytest.raises(Unsupported, match=why):
        load(tmp_path / "repacked")


def test_gate_and_up_in_two_orders_are_refused(unpacked_folder, tmp_path):
    """One product reads the columns of its x in one order."""
    folder = packed(
        unpacked_folder, tmp_path, lambda n, k, seed: gptq(n, k, order=True, seed=seed),
        GPTQ | {"desc_act": True},
    )  # fmt: skip
    why = r"experts\.0\.\w+ and .*experts\.0\.\w+ cannot be one product: g_idx differ"
    with enable("gptq"), pytest.raises(Unsupported, match=why):
        load(folder)


def test_stacks_with_a_damaged_order_are_refused(unpacked_folder, tmp_path):
    folder = packed(unpacked_folder, tmp_path, desc_act, GPTQ | {"desc_act": True})
    with enable("gptq"):
        load(folder).save_pretrained(tmp_path / "saved")

    def of_down(tensors):
        return next(name for name in tensors if name.endswith("experts.down.g_idx"))

    def too_large(tensors):
        tensors[of_down(tensors)][1, 3] = 99

    edit_tensors(tmp_path / "saved", too_large)
    with pytest.raises(CheckpointError, match=r"down\[1\].g_idx has values from 0 to 99"):
        load(tmp_path / "saved")

    def too_short(tensors):
        name = of_down(tensors)
        tensors[name] = tensors[name][:, :8].contiguous()

    edit_tensors(tmp_path / "saved", too_short)
    with pytest.raises(CheckpointError, match=r"down.g_idx has shape \[\d, 8\], not"):
        load(tmp_path / "saved")
