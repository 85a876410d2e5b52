# SPDX-License-Identifier: Apache-2.0
"""What a state_dict says of packed weights: their type, beside the tensors, and finite numbers."""

import io

import pytest
import safetensors.torch
import torch
from drawn import TWO_LEVELS
from torch import nn

import ladder

N, K = 64, 128
#: Of equal parts, so that only the name of the type tells them apart.
ONE, OTHER = "uint4", "int4"


def linear(type):
    return ladder.Linear(K, N, weight_type=type, group_size=32)


KINDS = {
    "Linear": linear,
    "Conv2d": lambda type: ladder.Conv2d(K, N, 1, weight_type=type, group_size=32),
    "BatchedLinear": lambda type: ladder.BatchedLinear(3, K, N, weight_type=type, group_size=32),
    "Experts": lambda type: ladder.Experts(3, K, N, weight_type=type, group_size=32),
    "GatedMLP": lambda type: ladder.GatedMLP(K, N, weight_type=type, group_size=32),
}


def saved(state):
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


@pytest.mark.parametrize("way", [lambda state: state, saved], ids=["in memory", "in a file"])
@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_another_type_of_equal_shapes_are_refused(kind, assign, way):
    one, other = nn.Sequential(KINDS[kind](ONE)), nn.Sequential(KINDS[kind](OTHER))
    shapes = [(name, part.shape, part.dtype) for name, part in one.state_dict().items()]
    assert shapes == [(name, part.shape, part.dtype) for name, part in other.state_dict().items()]
    before = {name: part.clone() for name, part in other.state_dict().items()}
    with torch.no_grad():
        for part in one.state_dict().values():
            part.fill_(1)
    state = way(one.state_dict())
    with pytest.raises(
        ladder.InvalidArgument,
        match=r'^0\.\S*qweight is of a weight of type "uint4,\S+", not "int4,\S+"$',
    ):
        other.load_state_dict(state, assign=assign)
    assert all(torch.equal(part, before[name]) for name, part in other.state_dict().items())
    again = nn.Sequential(KINDS[kind](ONE))
    again.load_state_dict(state, assign=assign)
    assert all(torch.equal(part, state[name]) for name, part in again.state_dict().items())


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_dict_that_names_no_type_is_taken_at_its_word(kind):
    """As plain dictionaries, files of safetensors, and what ladder saved before it noted types."""
    one, other = KINDS[kind](ONE), KINDS[kind](OTHER)
    plain = {name: part.clone() for name, part in one.state_dict().items()}
    other.load_state_dict(plain)
    other.load_state_dict(safetensors.torch.load(safetensors.torch.save(plain)))
    old = saved(one.state_dict())
    for of_module in old._metadata.values():
        of_module.pop("ladder_weight_type", None)
    other.load_state_dict(old)


def test_the_type_is_no_key_of_the_state_dict():
    assert [*linear(ONE).state_dict()] == ["bias", "qweight", "scales"]
    destination = {}
    linear(ONE).state_dict(destination=destination)
    assert [*destination] == ["bias", "qweight", "scales"]


def test_a_state_dict_of_other_layers_does_not_speak_of_this_one():
    state = nn.ModuleList([linear(ONE), linear(OTHER)]).state_dict()
    del state["0.qweight"], state["0.scales"]
    nn.ModuleList([linear(OTHER), linear(OTHER)]).load_state_dict(state, strict=False)


def test_layers_whose_rows_are_merged_note_their_type():
    model = nn.Sequential(KINDS["GatedMLP"](ONE))
    assert ladder.optimize(model, example=torch.randn(1, K)).gated == ["0"]
    other = nn.Sequential(KINDS["GatedMLP"](OTHER))
    with pytest.raises(ladder.InvalidArgument, match='gate_proj.qweight is of a weight of type "u'):
        other.load_state_dict(model.state_dict())
    nn.Sequential(KINDS["GatedMLP"](ONE)).load_state_dict(model.state_dict())


#: A type for each format of scales and zero points, the part that goes wrong, and what it is then.
NOT_FINITE = [
    ("uint4,group=32,scale=float16,zero=midpoint", "scales", float("inf"), "inf"),
    ("uint4,group=32,scale=bfloat16,zero=midpoint", "scales", float("nan"), "nan"),
    ("uint4,group=32,scale=float32,zero=midpoint", "scales", -float("inf"), "-inf"),
    ("uint4,group=32,scale=float16,zero=original", "zeros", float("nan"), "nan"),
    ("mxfp4", "scales", 0xFF, "nan"),
    ("nvfp4", "scales", 0x7F, "nan"),
    ("nvfp4", "scale2", float("inf"), "inf"),
    (TWO_LEVELS, "scale2", -float("inf"),
     "-inf"),
]  # fmt: skip


@pytest.mark.parametrize("stacked", [False, True])
def test_scales_that_their_format_has_not_are_refused_by_name(stacked):
    type = "uint4,group=32,scale=uint3,zero=midpoint,scale2=float32:channel"
    layer = ladder.Linear(K, N, weight_type=type, bias=False)
    if stacked:
        layer = ladder.BatchedLinear(2, K, N, weight_type=type, bias=False)
    state = {name: part.clone() for name, part in layer.state_dict().items()}
    place = [size - 1 for size in state["scales"].shape]
    state["scales"][tuple(place)] = 8
    with pytest.raises(ladder.InvalidArgument) as refused:
        layer.load_state_dict(state)
    assert str(refused.value) == f"scales{place} is 8, which does not fit uint3"


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize(("type", "part", "number", "told"), NOT_FINITE)
def test_numbers_that_are_not_finite_are_refused_by_name(type, part, number, told, stacked):
    if stacked:
        layer = ladder.BatchedLinear(2, K, N, weight_type=type, bias=False)
    else:
        layer = ladder.Linear(K, N, weight_type=type, bias=False)
    model = nn.ModuleDict({"up": layer})
    state = {name: part.clone() for name, part in model.state_dict().items()}
    tensor = state[f"up.{part}"]
    place = [size - 1 for size in tensor.shape]
    tensor[tuple(place)] = number
    with pytest.raises(ladder.InvalidArgument) as refused:
        model.load_state_dict(state)
    assert str(refused.value) == f"up.{part}{place} is {told}, not finite"
    assert not model.state_dict()[f"up.{part}"].any()
