# SPDX-License-Identifier: Apache-2.0
"""Tensors that are kept until what they are made of changes."""

import copy
import pickle

import pytest
import torch
from drawn import integers

from ladder.cuda.experts import padded_bias
from ladder.cuda.image import gate_rows
from ladder.nn.kept import Kept
from ladder.nn.stack import PackedStack
from ladder.ops.gating import Gating
from ladder.types import parse

TYPE = "float8_e4m3,channel,scale=float32"


@pytest.fixture
def made():
    """``made(kept, tensors, *more)``, and ``made.count``, how often something was made."""

    def call(kept, tensors, *more):
        def make():
            call.count += 1
            return torch.cat(list(tensors))

        return kept(tensors, make, *more)

    call.count = 0
    return call


def test_it_is_made_anew_when_a_tensor_is_written_or_another(made):
    kept, (a, b) = Kept(), (torch.zeros(2), torch.ones(3))
    first = made(kept, (a, b))
    assert made(kept, (a, b)) is first and made.count == 1
    a.add_(1)
    assert torch.equal(made(kept, (a, b)), torch.ones(5)) and made.count == 2
    a.data = torch.full((2,), 7.0)  # no write that torch counts
    assert made(kept, (a, b))[0] == 7 and made.count == 3
    made(kept, (a, b.clone()))
    assert made.count == 4
    made(kept, (a, b), torch.half)
    made(kept, (a, b), torch.half)
    assert made.count == 5


def test_copies_have_kept_nothing_and_inference_tensors_are_not_kept(made):
    kept, a = Kept(), torch.zeros(2)
    made(kept, (a,))
    for other in (copy.deepcopy(kept), pickle.loads(pickle.dumps(kept))):
        made(other, (a,))
    assert made.count == 3
    with torch.inference_mode():
        a = torch.zeros(2)
    for _ in range(2):
        made(kept, (a,))
    assert made.count == 5


def test_a_stack_has_its_largest_scale_and_its_bias_once(monkeypatch):
    stack = PackedStack(3, 48, 64, parse(TYPE), bias=True, dtype=torch.half)
    stack.activation_type = "float8_e4m3"
    assert stack.static_scale() is None
    stack.input_scale = torch.tensor([[1.0], [4.0], [2.0]])
    largest = stack.static_scale()
    assert largest.tolist() == [4.0] and stack.static_scale() is largest
    state = {**stack.state_dict(), "input_scale": torch.full((3, 1), 8.0)}
    stack.load_state_dict(state)
    assert stack.static_scale().tolist() == [8.0]
    assert copy.deepcopy(stack).static_scale().tolist() == [8.0]

    stack.gating = Gating()
    stack.bias.data.copy_(integers((3, 48), torch.half, 1))
    placed = stack.placed_bias(torch.half)
    assert torch.equal(placed, padded_bias(stack.bias, torch.half, True))
    assert torch.equal(placed, stack.bias[:, gate_rows(48, placed.device)])
    assert not torch.equal(placed, stack.bias) and not placed.requires_grad
    assert stack.placed_bias(torch.half) is placed
    assert stack.placed_bias(torch.bfloat16).dtype == torch.bfloat16
    with torch.no_grad():
        stack.bias.add_(1)
    assert torch.equal(stack.placed_bias(torch.half), placed + 1)
    stack.bias = None
    assert stack.placed_bias(torch.half) is None
