# SPDX-License-Identifier: Apache-2.0
"""Tensors of compressed-tensors folders become the layers of an engine, as every rank cuts them."""

import numpy as np
import pytest
import torch
from checkpoint_oracle import FLOATS, compressed, compressed_settings
from torch import nn

from ladder.checkpoints.layer import stored
from ladder.integrations.serving.layer import finish, multiply
from ladder.integrations.serving.loading import Room
from ladder.integrations.serving.ranks import Columns, Rows
from ladder.integrations.serving.stored import Folder
from ladder.ops.activations import round_activations

N, K = 192, 256
KINDS = {
    "pack_4": {"bits": 4},
    "pack_3": {"bits": 3, "symmetric": False},
    "words_5": {"bits": 5, "symmetric": False, "whole_words": True},
    "channel": {"bits": 6, "group": -1, "symmetric": False},
    "int_8": {"bits": 8, "form": "int-quantized", "group": -1},
    "static_8": {"bits": 8, "form": "int-quantized", "group": -1, "activations": "int8 static"},
    "nvfp4_4": {"bits": 4, "form": "nvfp4-pack-quantized", "group": 16, "activations": "nvfp4"},
    **{form: {"bits": {4: 8, 2: 4 if m == 1 else 6}[e], "form": form,
              "group": 16 if form.startswith("nv") else 32} for form, (e, m) in FLOATS.items()},
}  # fmt: skip


def values_of(layer, runs, k):
    """[n, k] of what ``runs`` multiply by: the canonical runs of a CPU."""
    eye = torch.eye(k)
    return torch.cat([run(layer, eye, None) for run in runs], -1).T


#: Without headers the config decides; that words are whole only headers tell.
CASES = [(kind, ahead) for kind in KINDS for ahead in (True, False) if ahead or kind != "words_5"]


@pytest.mark.parametrize(("kind", "read_ahead"), CASES)
def test_two_modules_fill_a_fused_layer(kind, read_ahead):
    """A rank of two: the second half of the rows of each, and then the second half of columns."""
    options = KINDS[kind]
    said = {key: value for key, value in options.items() if key != "whole_words"}
    names = ("q_proj", "k_proj")
    truths = {name: compressed(N, K, seed=seed, **options) for seed, name in enumerate(names)}
    headers = {
        f"{name}.{part}": entry
        for name, truth in truths.items()
        for part, entry in stored(truth.tensors).items()
    }
    folder = Folder(compressed_settings(**said), headers if read_ahead else None)
    modules = [folder.module(name, N, K) for name in names]
    whole = [torch.from_numpy(truth.weight.astype(np.float32)) for truth in truths.values()]
    for rows, columns in (
        (Rows(N // 2, N // 2, N // 2, N), Columns(0, K, K)),
        (Rows(N, 0, N, N), Columns(K // 2, K // 2, K)),
    ):
        layer = nn.Module()
        room = Room("qkv_proj", modules, [rows, rows], columns, torch.float32)
        for name in room.names():
            layer.register_parameter(name, room.parameter(name))
        for part, truth in enumerate(truths.values()):
            for name, tensor in truth.tensors.items():
                parameter = getattr(layer, name)
                parameter.weight_loader(parameter, tensor, part)
        runs = finish(room, layer, torch.float32)
        wanted = "int8" if options.get("activations") == "int8 static" else ""
        assert {run.activation_type for run in runs} == {wanted}
        first, last = rows.start, rows.start + rows.count
        cut = slice(columns.start, columns.start + columns.count)
        expected = torch.cat([values[first:last, cut] for values in whole])
        found = values_of(layer, runs, columns.count)
        if wanted:  # rounded in float32: 1 / 127, the scale of a one, and the products by it
            torch.testing.assert_close(found, expected, rtol=3 * 2.0**-24, atol=0)
        else:
            assert torch.equal(found, expected)


@pytest.mark.parametrize("rounds", (True, False))
def test_modules_that_round_otherwise_are_runs_of_their_own(rounds):
    """The second of three modules is weights-only by a group of its own in the config."""
    options = {"bits": 8, "form": "int-quantized", "group": -1}
    settings = compressed_settings(activations="int8", **options)
    plain = compressed_settings(**options)["config_groups"]["group_0"]
    settings["config_groups"]["b"] = plain | {"targets": ["re:k_proj"]}
    names = ("q_proj", "k_proj", "v_proj")
    truths = {name: compressed(N, K, seed=seed, **options) for seed, name in enumerate(names)}
    folder, layer = Folder(settings), nn.Module()
    modules = [folder.module(name, N, K) for name in names]
    whole = [Rows(N, 0, N, N)] * 3
    room = Room("qkv_proj", modules, whole, Columns(0, K, K), torch.float32)
    for name in room.names():
        layer.register_parameter(name, room.parameter(name))
    for part, truth in enumerate(truths.values()):
        for name, tensor in truth.tensors.items():
            parameter = getattr(layer, name)
            parameter.weight_loader(parameter, tensor, part)
    runs = finish(room, layer, torch.float32, rounds=rounds)
    assert [run.activation_type for run in runs] == (["int8", "", "int8"] if rounds else [""])
    x = torch.randn(20, K, generator=torch.Generator().manual_seed(0))
    wanted = [torch.from_numpy(t.weight).double() for t in truths.values()]
    ttype = modules[0].type.with_zero("midpoint")
    seen = round_activations(x, ttype).double() if rounds else x.double()
    y = multiply(runs, layer, x, None).split(N, -1)
    for part, each in zip(y, (seen @ wanted[0].T, x.double() @ wanted[1].T, seen @ wanted[2].T),
                          strict=True):  # fmt: skip
        assert (part - each).abs().max() < 1e-5 * each.abs().max()
