# SPDX-License-Identifier: Apache-2.0
"""Folders of other packages whose experts are packed one by one, for the tests of this folder."""

from __future__ import annotations

import inspect
import re
import shutil
from pathlib import Path

import checkpoint_oracle as oracle
import torch
from hf_models import edit_config, edit_tensors

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
FIRST_ON_DISK = {"model.embed_tokens": "cpu", "model.layers.0": "disk", "model.layers.1": "cpu",
                 "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}  # fmt: skip

#: Names in the files of the weights that are packed: all of attention and of the experts.
PACKED = re.compile(r"(.*\.(?:self_attn\.\w+_proj|experts\.\d+\.\w+))\.weight")


def foreign_mixture(dense: Path, folder: Path, draw, settings, packed=PACKED) -> Path:
    """A folder of another package with the model of ``dense``, and beside it, as ``truth``, the
    dense folder that it means.

    Args:
        draw: makes a layer, called with N, K, ``seed`` and ``name``.
        settings: its quantization_config.
        packed: names of the weights, the module as a group.
    """
    truth = shutil.copytree(dense, folder.parent / "truth")
    shutil.copytree(dense, folder)
    edit_config(folder, quantization_config=settings)
    layers = {}

    def choose(tensors):
        for seed, name in enumerate(sorted(tensors)):
            if match := packed.fullmatch(name):
                drawn = draw(*tensors[name].shape, seed=seed, name=match[1])
                layers[match[1]] = drawn
                tensors[name] = torch.from_numpy(drawn.weight)

    def pack(tensors):
        for name in layers:
            del tensors[f"{name}.weight"]
        tensors |= oracle.tensors_of(layers)

    edit_tensors(truth, choose)
    edit_tensors(folder, pack)
    return folder


def desc_act(n, k, seed, name):
    """Gate and up of an expert have one input, so one order; no two experts have the same."""
    expert = re.search(r"layers\.(\d+).*experts\.(\d+)", name)
    order = True if expert is None else 1000 + 10 * int(expert[1]) + int(expert[2])
    return oracle.gptq(n, k, order=order, seed=seed)


def packed(unpacked_folder, tmp_path, draw=oracle.gptq, settings=None, packed=PACKED):
    """A folder, GPTQ unless told otherwise, whose layers ``draw`` makes, called with ``name`` too
    where it takes that."""

    def one(n, k, seed, name):
        named = {"name": name} if "name" in inspect.signature(draw).parameters else {}
        return draw(n, k, seed=seed, **named)

    return foreign_mixture(unpacked_folder, tmp_path / "foreign", one, settings or GPTQ, packed)
