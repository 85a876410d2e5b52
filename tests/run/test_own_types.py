# SPDX-License-Identifier: Apache-2.0
"""Formats that a user registered, in processes that have not, or have another of the same name."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ladder
from ladder.checkpoints.folder import definitions

VALUES = [-4.5, -2.0, -1.0, -0.25, 0.25, 1.0, 2.0, 4.5]
TABLE = f"ladder.register_type('own_table', bits=3, values={VALUES})"
OTHER_TABLE = f"ladder.register_type('own_table', bits=3, values={[*VALUES[:3], *range(5)]})"
FLOAT = "ladder.float_type('own_float', exponent=3, mantissa=1, bias=5)"
OTHER_FLOAT = "ladder.float_type('own_float', exponent=3, mantissa=1, bias=2)"
LINEAR = "ladder.Linear(64, 32, False, {!r}, 32)"
EXPERTS = "ladder.Experts(2, 64, 32, weight_type={!r}, group_size=32)"

LOAD = """
import io, sys, torch, ladder
for name in sys.argv[2:]:
    try:
        exec(sys.argv[1])
        made, x, y = torch.load(name, weights_only=False)
        assert torch.equal(made(x) if callable(made) else made.linear(x), y)
        print("equal")
    except ladder.InvalidArgument as error:
        print(error)
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Files of a layer and of a weight of each format, with x and y."""
    exec(TABLE)
    exec(FLOAT)
    files = {}
    for name in ("own_table", "own_float"):
        weight = ladder.quantize(torch.randn(32, 64), name, group_size=32)
        x = torch.randn(3, 64)
        for kind, made in (("weight", weight), ("layer", ladder.Linear.from_weight(weight))):
            files[name, kind] = tmp_path_factory.mktemp("own") / f"{name}_{kind}.pt"
            torch.save((made, x, weight.linear(x)), files[name, kind])
    return files


def loaded(definition: str, files) -> list[str]:
    root = Path(ladder.__file__).parents[1]
    command = [sys.executable, "-c", LOAD, definition, *map(str, files)]
    ran = subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": root}
    )
    return ran.stdout.splitlines()


def test_pickles_bring_the_meaning_of_their_formats_along(saved):
    assert loaded("", saved.values()) == ["equal"] * 4


@pytest.mark.parametrize(
    ("name", "definition", "difference"),
    [
        ("own_table", OTHER_TABLE, r"type own_table already means .* code 3 is 0.0, not -0.25"),
        ("own_float", OTHER_FLOAT, r"type own_float already means .* bias is 2, not 5"),
    ],
)
def test_pickles_of_another_meaning_of_the_name_are_refused(saved, name, definition, difference):
    files = [path for (of, _), path in saved.items() if of == name]
    errors = loaded(definition, files)
    assert len(errors) == 2 and all(re.search(difference, e) for e in errors)


@pytest.mark.parametrize("make", [LINEAR, EXPERTS])
@pytest.mark.parametrize("stored", [True, False])
def test_a_state_dict_of_another_meaning_of_the_name_is_refused(make, stored):
    ladder.register_type("own_state", bits=1, values=[-3, 3])
    layer = eval(make.format("own_state"))
    state = layer.state_dict()
    if stored:
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        state = torch.load(file)  # weights_only
    layer.load_state_dict(state)
    for metadata in state._metadata.values():
        if "ladder_meanings" in metadata:
            metadata["ladder_meanings"]["own_state"]["values"] = [-3, 4]
    with pytest.raises(ladder.InvalidArgument, match=r"qweight: type own_state .* not 4.0"):
        layer.load_state_dict(state)


def test_a_format_of_scales_is_defined_with_the_type():
    ladder.float_type("own_scale", exponent=4, mantissa=3, bias=5)
    spelling = "uint4,group=32,scale=own_scale"
    fields = {"exponent_bits": 4, "mantissa_bits": 3, "bias": 5, "specials": "none"}
    assert definitions([spelling, "nf4"]) == {"own_scale": fields}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"bits": 1.7}, "bits is 1.7, not an integer"),
        ({"bits": 1 << 40}, "not an integer of 32 bits"),
        ({"values": {0: -1, 1: 1}}, r"values is \{0: -1, 1: 1\}, not a sequence of numbers"),
        ({"values": {-1, 1}}, "not a sequence of numbers"),
        ({"values": "12"}, "values is '12', not a sequence of numbers"),
        ({"values": None}, "values is None, not a sequence of numbers"),
        ({"values": [1j, 0]}, "not a sequence of numbers"),
        ({"values": [0, 10**400]}, "not a sequence of numbers"),
        ({"name": 5}, "name is 5, not a word"),
    ],
)
def test_arguments_of_another_type_are_refused_by_name(wrong, message):
    arguments = {"name": "own_wrong", "bits": 1, "values": [0, 1], **wrong}
    with pytest.raises(ladder.InvalidArgument, match=message):
        ladder.register_type(arguments.pop("name"), **arguments)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"bias": 1.5}, "bias is 1.5, not an integer"),
        ({"exponent": 3.0}, "exponent is 3.0, not an integer"),
        ({"specials": None}, "specials is None, not a word"),
    ],
)
def test_fields_of_floats_of_another_type_are_refused_by_name(wrong, message):
    with pytest.raises(ladder.InvalidArgument, match=message):
        ladder.float_type("own_wrong", **{"exponent": 3, "mantissa": 1, **wrong})


@pytest.mark.parametrize("scales", ["scale=float32", "scale=float16,scale2=float32"])
def test_weights_that_no_scale_of_float32_brings_to_the_values_of_a_table_are_refused(scales):
    ladder.register_type("own_tiny", bits=2, values=[-1e-38, 0, 1e-38, 2e-38])
    message = r"magnitudes up to 4e\+20, too large for .*, whose codes mean up to 2e-38: scales"
    with pytest.raises(ladder.InvalidArgument, match=message):
        ladder.quantize(torch.full((2, 16), 4e20), f"own_tiny,{scales}")
    weight = torch.full((2, 16), 0.5)
    back = ladder.quantize(weight, f"own_tiny,{scales}").dequantize()
    assert (back - weight).abs().max() <= 0.5 * 2**-10


def test_a_table_with_small_values_on_one_side_does_not_give_infinities():
    ladder.register_type("own_lopsided", bits=2, values=[-1e-20, 0, 1, 1e38])
    weight = torch.randn(4, 64) * 1e30
    with pytest.raises(ladder.InvalidArgument, match="too large for .*, whose codes mean up to 1e"):
        ladder.quantize(weight, "own_lopsided,scale=float32")
    assert ladder.quantize(weight.abs(), "own_lopsided,scale=float32").dequantize().isfinite().all()
