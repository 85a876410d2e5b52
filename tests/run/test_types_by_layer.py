# SPDX-License-Identifier: Apache-2.0
"""``types=`` of ladder.convert: other types of some layers, in memory."""

import copy

import pytest
import torch
from torch import nn

import ladder
from ladder.errors import InvalidArgument, Unsupported
from ladder.nn.layer_types import LayerTypes, completed, layer_types


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.ModuleDict({name: nn.Linear(64, 64) for name in "qkv"})
        self.mlp = nn.ModuleDict({"up": nn.Linear(64, 96), "down": nn.Linear(96, 64)})

    def forward(self, x):
        return self.mlp["down"](self.mlp["up"](sum(each(x) for each in self.attn.values())))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.lm_head = nn.Linear(64, 10)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(x)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net()


def elements_of(report):
    """The element of each packed module."""
    return {name: ladder.ttype(text).element.name for name, text in report.packed.items()}


def test_layers_have_the_types_that_name_them_and_others_the_usual_one(model):
    dense = copy.deepcopy(model)
    types = {"mlp.down": "uint6,group=32", "layers.0": "int8", "layers.2.attn.q": "nf4"}
    report = ladder.convert(model, "uint4", 64, types=types)
    found = elements_of(report)
    assert {n: e for n, e in found.items() if e != "uint4"} == {
        "layers.1.mlp.down": "uint6",
        "layers.2.mlp.down": "uint6",
        "layers.2.attn.q": "nf4",
        **{f"layers.0.attn.{n}": "int8" for n in "qkv"},
        "layers.0.mlp.up": "int8",
        "layers.0.mlp.down": "int8",  # as many parts as "mlp.down", and after it
    }
    for name, text in report.packed.items():
        wanted = ladder.quantize(dense.get_submodule(name).weight, text)
        assert model.get_submodule(name).packed_weight == wanted, name
        group = 32 if ladder.ttype(text).element.name == "uint6" else 64
        assert wanted.type.group_size == group
    rows = [line.split(":")[0].strip() for line in str(report).splitlines()[1:5]]
    assert rows == [*dict.fromkeys(report.packed.values())]


@pytest.mark.parametrize(
    ("entries", "wanted"),
    [
        (("a", "a.b"), "a.b"),
        (("a.b", "a"), "a.b"),
        (("a.b", "b.c"), "b.c"),
        (("b.c", "a.b"), "a.b"),
        (("a.b.c", "b.c", "a"), "a.b.c"),
        (("c", "x"), "c"),
        (("x", "b.d"), None),
    ],
)
def test_the_entry_with_the_most_parts_decides_and_of_equally_many_the_last(entries, wanted):
    named = {entry: ladder.ttype(f"int{bits}") for bits, entry in enumerate(entries, 2)}
    usual = ladder.ttype("uint8")
    assert LayerTypes(usual, named).of("a.b.c") == (named[wanted] if wanted else usual)


def test_types_without_groups_take_those_of_the_usual_type():
    text = "uint6,group=32,scale=float16,zero=midpoint"
    zeros = "uint5,group=64,scale=float16,zero=integer"
    types = {"a": "uint5", "b": text, "c": "int8", "d": "mxfp4", "e": ladder.ttype("nf4")}
    types |= {"f": "uint5,group=16", "g": "uint6,group=16,scale=bfloat16"}
    found = layer_types("uint4", 64, False, types)
    assert {name: str(each) for name, each in found.entries.items()} == {
        "a": zeros,
        "b": text,
        "c": "int8,group=64,scale=float16",
        "d": str(ladder.ttype("mxfp4")),
        "e": "nf4",
        "f": zeros.replace("64", "16"),
        "g": "uint6,group=16,scale=bfloat16",
    }
    assert str(found.usual) == "uint4,group=64,scale=float16,zero=integer"
    assert completed("uint6", -1) == ladder.ttype("uint6,channel,scale=float16,zero=midpoint")
    assert str(completed("uint5")) == "uint5,group=128,scale=float16,zero=midpoint"


@pytest.mark.parametrize(
    ("types", "words"),
    [
        ({"nothere": "int8"}, 'types has "nothere", which names no module of the model, such as'),
        ({"own": "int8"}, 'types has "own", which names no module'),
        (
            {"lm_head": "int8"},
            'types has "lm_head", but lm_head is not quantised: an output embedding',
        ),
        ({"layers.1": "int8"}, "but layers.1.attn.q is not quantised: named by skip"),
        ({"layers.0": "int88"}, r'types\["layers.0"\]: .*int88'),
        ({"layers.0": 8}, r'types\["layers.0"\]: type is 8, not a spelling'),
        ({3: "int8"}, "types has 3, not the name of a module"),
        ("uint4", "types is 'uint4', not types by the names of modules"),
    ],
)
@pytest.mark.parametrize("calibration", [None, torch.randn(2, 5, 64)])
def test_what_is_wrong_is_said_before_anything_changes(model, types, words, calibration):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(InvalidArgument, match=words):
        ladder.convert(
            model, skip=["lm_head", "layers.1"] if "layers.1" in types else None, types=types,
            calibration=calibration,
        )  # fmt: skip
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_sixteen_bits_are_taken_where_the_usual_type_may_have_them(model):
    types = {"layers.0": "float16"}
    with pytest.raises(InvalidArgument, match=r'types\["layers.0"\]: type float16 has 16 bits'):
        ladder.convert(model, types=types, calibration=torch.randn(2, 5, 64))
    report = ladder.convert(model, types=types)
    assert report.packed["layers.0.mlp.up"] == "float16"


def test_activations_are_asked_of_each_layers_own_type(model):
    """Groups of 10 columns have no kernels for x of int8; the usual type's have."""
    wrong, before = {"layers.2.mlp.down": "uint4,group=10,scale=float16"}, [*model.modules()]
    for calibration in (None, torch.randn(2, 5, 64)):
        with pytest.raises(Unsupported, match=r"layers\.2\.mlp\.down: "):
            ladder.convert(model, "uint4", 32, types=wrong, activation_type="int8",
                           calibration=calibration)  # fmt: skip
    assert [*model.modules()] == before
    right = {"mlp.down": "uint6"}
    skip = ["attn", "up", "lm_head"]
    usual = "uint4,group=10,scale=float16"
    ladder.convert(model, usual, types=right, skip=skip, activation_type="int8")


def test_a_layer_with_two_names_has_the_type_of_either():
    model = nn.Module()
    model.a = nn.Linear(32, 8)
    model.b = model.a
    report = ladder.convert(model, "uint4", 32, types={"b": "int8"})
    assert elements_of(report) == {"a": "int8"}


def test_calibrated_layers_of_one_input_have_types_of_their_own(model):
    x = torch.randn(40, 64) @ torch.randn(64, 64)
    wanted = model(x)
    types, moved = {"attn.q": "uint2", "attn.v": "int8"}, []
    for calibration in (None, [x]):
        packed = copy.deepcopy(model)
        report = ladder.convert(packed, "uint4", 32, types=types, calibration=calibration)
        moved.append((packed(x) - wanted).square().sum())
        assert [elements_of(report)[f"layers.1.attn.{n}"] for n in "qkv"] == [
            "uint2", "uint4", "int8",
        ]  # fmt: skip
    assert moved[1] < moved[0]
    errors = [report.errors[f"layers.0.attn.{n}"] for n in "qkv"]
    shares = [each.error / each.size for each in errors]
    assert shares[0] > shares[1] > shares[2]


def test_convolutions_have_types_of_their_own():
    model = nn.Sequential(nn.Conv2d(16, 32, 3), nn.Conv2d(32, 16, 3), nn.Conv2d(16, 16, 1))
    report = ladder.convert(model, "uint4", 32, convolutions=True, types={"1": "int8"})
    assert elements_of(report) == {"0": "uint4", "1": "int8", "2": "uint4"}
    # Three weights a filter: rows end with whole words of 32 bits, as large as float16.
    small = nn.Sequential(nn.Conv2d(3, 16, 1), nn.Conv2d(16, 16, 3)).half()
    with pytest.raises(InvalidArgument, match='types has "0", but 0.weight is not .*3 weights a f'):
        ladder.convert(small, "uint2", 32, convolutions=True, types={"0": "uint8"})
