# SPDX-License-Identifier: Apache-2.0
"""The quantization_config of a ladder folder is checked whole before anything is built from it."""

import json

import pytest

from ladder import types
from ladder.checkpoints import StoredConfig
from ladder.errors import CheckpointError

GOOD = {
    "quant_method": "ladder",
    "format_version": 1,
    "weight_type": "uint4,group=128,scale=float16,zero=midpoint",
    "modules": {"model.0.down": "uint8,group=64,scale=float16,zero=integer"},
    "modules_to_not_convert": ["lm_head", "model.vision"],
    "types": {"wobble2": {"bits": 2, "values": [-2.0, -0.5, 0.25, 3.0]}},
    "source": {"quant_method": "gptq", "bits": 4},
}


def test_a_config_survives_json_and_back():
    config = StoredConfig.from_dict(json.loads(json.dumps(GOOD)))
    assert config.to_dict() == GOOD
    assert StoredConfig.from_dict(config.to_dict()) == config


def test_only_the_weight_type_is_needed_besides_method_and_version():
    fields = {key: GOOD[key] for key in ("quant_method", "format_version", "weight_type")}
    assert StoredConfig.from_dict(fields).to_dict() == fields | {
        "modules": {}, "modules_to_not_convert": [],
    }  # fmt: skip


def test_what_most_modules_round_to_is_said_once():
    made = StoredConfig.describing(
        dict.fromkeys("abcd", GOOD["weight_type"]), (),
        activation_types={"a": None, "b": "int8", "c": "int8", "d": "float8_e4m3"},
    )  # fmt: skip
    fields = made.to_dict()
    assert fields["activation_type"] == "int8"
    assert fields["activation_types"] == {"a": None, "d": "float8_e4m3"}
    again = StoredConfig.from_dict(json.loads(json.dumps(fields)))
    assert [again.activation_type_of(m) for m in "abcd"] == [None, "int8", "int8", "float8_e4m3"]
    plain = StoredConfig.describing(dict.fromkeys("ab", GOOD["weight_type"]), ())
    assert {"activation_type", "activation_types"}.isdisjoint(plain.to_dict())


def test_types_of_the_user_are_registered_and_may_be_used():
    weight_type = "wobble2,group=32,scale=float16"
    config = StoredConfig.from_dict(GOOD | {"weight_type": weight_type})
    assert config.weight_type == str(types.parse(weight_type))
    assert types.element("wobble2").values.tolist() == [-2.0, -0.5, 0.25, 3.0]


def test_spellings_are_made_canonical():
    config = StoredConfig.from_dict(GOOD | {"weight_type": "uint4,zero=midpoint,scale=float16"})
    assert config.weight_type == str(types.parse("uint4,scale=float16,zero=midpoint"))


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("model.0.up", GOOD["weight_type"]),
        ("model.0.down", GOOD["modules"]["model.0.down"]),
        ("lm_head", None),
        ("inner.lm_head", None),
        ("my_lm_head", GOOD["weight_type"]),
        ("lm_head2", GOOD["weight_type"]),
        ("model.vision.3.up", None),
        ("model.visionary", GOOD["weight_type"]),
    ],
)
def test_a_module_is_skipped_by_name_by_parent_or_by_last_part(module, expected):
    assert StoredConfig.from_dict(GOOD).type_of(module) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quant_method": "gptq"}, "quant_method is 'gptq', not 'ladder'"),
        ({"format_version": 2}, "format_version is 2, this ladder reads 1"),
        ({"format_version": True}, "format_version is True"),
        ({"format_version": None}, "format_version is None"),
        ({"weight_type": None}, "weight_type is None, not a tType"),
        ({"weight_type": "uint9"}, "weight_type is 'uint9'"),
        ({"weight_type": "uint4,group=1"}, "weight_type is 'uint4,group=1'"),
        ({"modules": ["a"]}, r"modules is \['a'\], not an object"),
        ({"modules": {"a": 4}}, r"modules\['a'\] is 4, not a tType"),
        ({"modules_to_not_convert": "lm_head"}, "'lm_head', not a list of names"),
        ({"modules_to_not_convert": [1]}, r"is \[1\], not a list of names"),
        ({"activation_type": "int4"}, "activation_type is 'int4', none that this ladder knows"),
        ({"activation_types": ["a"]}, r"activation_types is \['a'\], not an object"),
        ({"activation_types": {"a": 8}}, r"activation_types\['a'\] is 8, none that this ladder"),
        ({"convolutions": ["a"]}, r"convolutions is \['a'\], not an object"),
        ({"convolutions": {"a": [8, 3, 7]}}, r"convolutions\['a'\] is \[8, 3, 7\], not the four"),
        ({"convolutions": {"a": [8, 3, 7, 0]}}, "not the four sizes of filters"),
        ({"convolutions": {"a": 4}}, r"convolutions\['a'\] is 4, not the four sizes"),
        ({"source": "gptq"}, "source is 'gptq', not an object"),
        ({"types": [1]}, r"types is \[1\], not an object"),
        ({"types": {"t": {"bits": 2}}}, r"types\['t'\] is .*, not {bits, values}"),
        ({"types": {"t": {"bits": "2", "values": [1]}}}, "not an integer and a list of numbers"),
        ({"types": {"t": {"bits": 2, "values": [1, 2, 3]}}}, r"types\['t'\]"),
        ({"types": {"t": {"bits": 1, "values": [1, 1]}}}, r"types\['t'\]"),
        ({"types": {"t": {"bits": 1, "values": [1, float("nan")]}}}, r"types\['t'\]"),
        ({"types": {"t": {"bits": 1, "values": [1, 10**400]}}}, r"types\['t'\]"),
        ({"types": {"uint2": {"bits": 2, "values": [9, 8, 7, 6]}}}, r"types\['uint2'\]"),
        ({"types": {"not a name": {"bits": 1, "values": [1, 2]}}}, r"types\['not a name'\]"),
    ],
    ids=str,
)
def test_a_bad_field_is_named_with_its_value(changes, message):
    with pytest.raises(CheckpointError, match=message):
        StoredConfig.from_dict(GOOD | changes)


def test_keys_that_nobody_reads_are_told(caplog):
    """Those of another method, say, which would not do what they say."""
    with caplog.at_level("WARNING", logger="ladder"):
        StoredConfig.from_dict(GOOD)
        assert not caplog.records
        StoredConfig.from_dict(GOOD | {"group_size": 64, "bits": 4})
    (told,) = caplog.messages
    assert told.startswith("quantization_config has bits, group_size, which ladder does not read")


def test_a_missing_weight_type_is_named():
    with pytest.raises(CheckpointError, match="weight_type is missing"):
        StoredConfig.from_dict({"quant_method": "ladder", "format_version": 1})
    with pytest.raises(CheckpointError, match="format_version is missing: .* is a LadderConfig"):
        StoredConfig.from_dict({"quant_method": "ladder", "weight_type": "uint4"})


def test_convolutions_have_their_shapes_and_no_activation_type():
    shapes = {"stem": (8, 3, 7, 7), "lm_head.conv": (4, 2, 1, 1)}
    types_of = dict.fromkeys(("a", *shapes), GOOD["weight_type"]) | {"stem": "mxfp4"}
    made = StoredConfig.describing(
        types_of, ["lm_head"], activation_type="int8", convolutions=shapes
    )
    fields = json.loads(json.dumps(made.to_dict()))
    assert fields["convolutions"] == {name: list(shape) for name, shape in shapes.items()}
    assert fields["modules"] == {"stem": str(types.parse("mxfp4"))}
    again = StoredConfig.from_dict(fields)
    assert again == made and again.convolutions == shapes
    assert again.type_of("lm_head.conv") == GOOD["weight_type"]
    assert [again.activation_type_of(m) for m in ("a", *shapes)] == ["int8", None, None]
    assert "convolutions" not in StoredConfig.from_dict(GOOD).to_dict()
