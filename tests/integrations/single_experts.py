# SPDX-License-Identifier: Apache-2.0
"""Folders of other packages whose experts are packed one by one, for the tests of this folder."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import checkpoint_oracle as oracle
import torch
from hf_models import edit_config, edit_tensors

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
