# SPDX-License-Identifier: Apache-2.0
"""ladder.convert: which layers of a model it replaces."""

import pytest
import torch
from torch import nn

import ladder


def layers_called(*names: str) -> nn.Module:
    model = nn.Sequential()
    for name in names:
        model.add_module(name, nn.Linear(32, 8))
    return model


def test_convert_replaces_every_linear_but_those_skipped():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.norm, self.out = nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64)

        def forward(self, x):
            return self.out(self.norm(self.q(x)))

    model = nn.Module()
    model.layers = nn.ModuleList(Block() for _ in range(3))
    model.lm_head = nn.Linear(64, 10)
    seen = []
    ladder.convert(
        model,
        "uint4",
        32,
        skip=["lm_head", "layers.1", "layers.2.q"],
        progress=lambda *call: seen.append(call),
    )
    packed = {name for name, m in model.named_modules() if isinstance(m, ladder.Linear)}
    assert packed == {"layers.0.q", "layers.0.out", "layers.2.out"}
    assert seen == [("layers.0.q", 1, 3), ("layers.0.out", 2, 3), ("layers.2.out", 3, 3)]
    assert model.layers[0](torch.randn(2, 64)).shape == (2, 64)


def test_convert_skips_whole_parts_of_names_only():
    model = layers_called("head", "head2")
    ladder.convert(model, "uint4", skip=["head"])
    assert isinstance(model.head2, ladder.Linear) and type(model.head) is nn.Linear


@pytest.mark.parametrize("skip", ["head", iter(["head"])], ids=["name", "iterator"])
def test_convert_takes_one_name_to_skip_and_any_iterable(skip):
    model = layers_called("body", "head")
    ladder.convert(model, "uint4", skip=skip)
    assert isinstance(model.body, ladder.Linear) and type(model.head) is nn.Linear
