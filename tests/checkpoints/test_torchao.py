# SPDX-License-Identifier: Apache-2.0
"""quant_method "torchao": layers that torchao packed mean what it says, and what is refused.

``fixtures/make_torchao.py`` made the layers."""

import json
import logging
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from checkpoint_oracle import write_folder
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import ladder
from ladder.checkpoints import open_folder, repack
from ladder.checkpoints.info import describe
from ladder.errors import CheckpointError, Unsupported
from ladder.integrations.serving.stored import Folder
from ladder.weight import PARTS, Weight

FILE = Path(__file__).parent / "fixtures" / "torchao" / "layers.safetensors"
TORCHAO = {"quant_method": "torchao", "modules_to_not_convert": None}
with safe_open(FILE, "pt") as opened:
    METADATA = opened.metadata()
    TENSORS = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
LAYERS = [name.removesuffix(".weight") for name in json.loads(METADATA["tensor_names"])]
#: The tTypes of some layers, and what x is rounded to.
TYPES = {
    "int8_rows": ("uint8,scale=float32,zero=midpoint", None),
    "int8_zeros": ("uint8,scale=float32,zero=integer", None),
    "int8_tensor": ("uint8,tensor,scale=float32,zero=midpoint", None),
    "int8_dynamic": ("uint8,scale=float32,zero=midpoint", "int8"),
    "int8_static": ("uint8,tensor,scale=float32,zero=midpoint", "int8"),
    "int3_asymmetric": ("uint3,scale=bfloat16,zero=integer", None),
    "int4_symmetric": ("uint4,group=32,scale=bfloat16,zero=midpoint", "int8"),
    "int4_float_zeros": ("int4,group=32,scale=float32,zero=original", None),
    "int4": ("int4,group=32,scale=bfloat16,zero=rescale", None),
    "int4_float8": ("int4,group=32,scale=bfloat16", "float8_e4m3"),
    "tiles": ("int4,group=32,scale=bfloat16,zero=rescale", None),
    "float8_blocks": ("float8_e4m3,block=4x32,scale=float32", None),
    "float8_e5m2": ("float8_e5m2,scale=float32", None),
    "float8_dynamic": ("float8_e4m3,scale=float32", "float8_e4m3"),
    "mxfp8": ("mxfp8_e4m3", "float8_e4m3"),
    "mxfp4_swizzled": ("mxfp4", None),
    "nvfp4": ("nvfp4", None),
    "nvfp4_alone": ("float4_e2m1,group=16,scale=float8_e4m3", None),
}


def parts_of(name):
    stored = {key: t for key, t in TENSORS.items() if key.startswith(f"{name}.")}
    return {key.removeprefix(f"{name}."): t for key, t in stored.items() if ".values" not in key}


def folder_of(path, parts, said, settings=TORCHAO, module="q_proj"):
    """A folder of one layer; ``said`` is the metadata of it, None: there is none."""
    tensors = {f"{module}.{part}": tensor for part, tensor in parts.items()}
    folder = write_folder(path, settings, [tensors | {"gate.weight": torch.ones(4, 4).half()}])
    metadata = {"format": "pt", "gate.weight": '{"_type": "Tensor"}'}
    if said is not None:
        metadata |= {f"{module}.weight": said, "tensor_names": json.dumps([f"{module}.weight"])}
    file = folder / "model.safetensors"
    save_file(load_file(file), file, metadata=metadata)
    return folder


def said_of(name, **changes):
    """The metadata of a layer, with other ``_data``; None takes a field out."""
    fields = json.loads(METADATA[f"{name}.weight"])
    beside = {key: changes.pop(key) for key in ("_type", "_tensor_data_names") if key in changes}
    data = fields["_data"] | changes
    fields["_data"] = {key: value for key, value in data.items() if value is not None}
    return json.dumps(fields | beside)


def check(name, values):
    wanted = TENSORS[f"{name}.values"]
    if name == "nvfp4":
        # torchao rounds scale * per_tensor_scale and its product with the code, ladder the product
        # of code and scale, which is exact, with the other: three roundings, each 2**-24 of it.
        error = (values - wanted).abs()
        assert bool((error <= 3.01 * 2.0**-24 * wanted.abs()).all())
        assert bool((error > 0).any()), "the bound was not needed"
        return
    assert torch.equal(values.to(wanted.dtype), wanted)


@pytest.mark.parametrize("name", LAYERS)
def test_a_folder_and_its_repacked_self_mean_what_torchao_says(name, tmp_path):
    source = folder_of(tmp_path / "a", parts_of(name), METADATA[f"{name}.weight"])
    ((module, weight),) = open_folder(source)
    assert module == "q_proj"
    check(name, weight.dequantize())
    text, rounded = TYPES.get(name, (str(weight.type), None))
    assert weight.type == ladder.ttype(text)
    (row,) = describe(source)["modules"]
    assert (row["n"], row["k"], row["type"]) == (*TENSORS[f"{name}.values"].shape, str(weight.type))
    if name in TYPES:
        assert row["activation_type"] == rounded
    repack(source, tmp_path / "b")
    made = json.loads((tmp_path / "b" / "config.json").read_text())["quantization_config"]
    assert made["weight_type"] == str(weight.type)
    assert made["modules_to_not_convert"] == ["gate", "lm_head"]
    tensors = load_file(tmp_path / "b" / "model.safetensors")
    parts = {part: tensors.get(f"q_proj.{part}") for part in PARTS}
    again = Weight(weight.type, weight.shape, **parts)
    again.check()
    check(name, again.dequantize())
    assert ("q_proj.input_scale" in tensors) == (name == "int8_static")


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("n", [1, 2])
def test_one_scale_of_all_may_have_no_dimension_one_or_two(shape, n, tmp_path):
    parts = {
        "_weight_qdata": torch.arange(64 * n, dtype=torch.int8).reshape(n, 64),
        "_weight_scale": torch.full(shape, 0.5),
    }
    said = said_of("int8_tensor", block_size=[n, 64], dtype="float32")
    ((_, weight),) = open_folder(folder_of(tmp_path / "a", parts, said))
    assert torch.equal(weight.dequantize(), parts["_weight_qdata"] * 0.5)


def test_every_type_of_tensor_that_is_read_has_a_layer():
    from ladder.checkpoints.torchao_described import KINDS

    assert {json.loads(METADATA[f"{name}.weight"])["_type"] for name in LAYERS} == {*KINDS}


def test_columns_of_x_are_multiplied_by_what_calibration_has_found(tmp_path):
    scale = torch.linspace(0.5, 2, 64).bfloat16()
    parts = parts_of("int8_rows") | {"_weight_act_pre_scale": scale[None]}
    source = folder_of(tmp_path / "a", parts, METADATA["int8_rows.weight"])
    repack(source, tmp_path / "b")
    tensors = load_file(tmp_path / "b" / "model.safetensors")
    assert torch.equal(tensors["q_proj.pre_scale"], scale.float())


def test_rows_are_unpacked_in_pieces_as_all_at_once(tmp_path):
    for name in ("tiles", "int4", "int3_symmetric", "mxfp4_swizzled"):
        parts = parts_of(name)
        source = open_folder(folder_of(tmp_path / name, parts, METADATA[f"{name}.weight"]))
        ((_, weight),) = source
        pieces = [words for _, words in source.words(source.layer("q_proj"), codes=1)]
        assert torch.equal(torch.cat(pieces), weight.qweight)


def test_rounding_of_x_that_ladder_does_otherwise_is_said(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "ladder")
    for name, why in (
        ("int4_symmetric", "int8, dynamic, per token, with zero points"),
        ("float8_dynamic_tensor", "float8, dynamic, per tensor"),
    ):
        caplog.clear()
        open_folder(folder_of(tmp_path / name, parts_of(name), METADATA[f"{name}.weight"]))
        (record,) = caplog.records
        assert f"the metadata of q_proj.weight is {why}" in record.getMessage()


@pytest.mark.parametrize(("name", "part", "change", "why"), [
    ("int8_rows", "_weight_qdata", None, "_weight_qdata is missing"),
    ("int8_rows", "_weight_qdata", lambda t: t.view(torch.uint8), "is uint8, not int8"),
    ("int8_rows", "_weight_qdata", lambda t: t.flatten(), "not two dimensions"),
    ("int8_rows", "_weight_scale", lambda t: t[:3].clone(), r"\[3, 1\], not \[8, 1\]"),
    ("int8_rows", "_weight_scale", lambda t: t / 0, r"_weight_scale\[0, 0\] is inf"),
    ("int8_rows", "_weight_scale", None, "_weight_scale is missing"),
    ("int8_groups", "_weight_zero_point", lambda t: t.int(), "is int32, not int8"),
    ("int4_symmetric", "_weight_qdata", lambda t: t | 64, r"\[0, 0\] is .*, no int4"),
    ("int4_asymmetric", "_weight_zero_point", lambda t: t * 0 + 9, r"\[0, 0\] is 9, no int4"),
    ("int4_asymmetric", "_weight_zero_point", None, "_weight_zero_point is missing"),
    ("int4", "_weight_qdata", lambda t: t[:, :9].clone(), r"is of .* \[8, 18\], and .* \[8, 64\]"),
    ("int4", "_weight_scale", lambda t: t.t().contiguous(), r"\[8, 2\], not \[2, 8\]"),
    ("int4", "_weight_zero_point", lambda t: t * torch.nan, "_weight_zero_point.* is nan"),
    ("tiles", "_weight_qdata", lambda t: t[:2].clone(), r"\[2, 8, 32, 4\], not \[3, 8, 32, 4\]"),
    ("tiles", "_weight_scale_and_zero", lambda t: t[:9].clone(), r"\[9, 24, 2\], not \[32, 24"),
    ("tiles", "_weight_scale_and_zero", lambda t: t / 0, "scale_and_zero.* is inf"),
    ("float8_rows", "_weight_qdata", lambda t: t.view(torch.int8), "is int8, not float8_e4m3"),
    ("float8_blocks", "_weight_scale", lambda t: t[:1].clone(), r"\[1, 2\], not \[2, 2\]"),
    ("mxfp8", "_weight_qdata", lambda t: t.view(torch.float8_e5m2), "is float8_e5m2, not float8"),
    ("mxfp8", "_weight_scale", lambda t: (t.view(torch.uint8) | 255).view(t.dtype), "is nan"),
    ("mxfp4_swizzled", "_weight_scale", lambda t: t[:32].clone(), r"\[32, 32\], not \[2048\]"),
    ("nvfp4", "_weight_per_tensor_scale", lambda t: t.repeat(2), r"shape \[2\], not \[\]"),
    ("nvfp4", "_weight_per_tensor_scale", lambda t: t / 0, "per_tensor_scale.* is inf"),
])  # fmt: skip
def test_damaged_layers_are_named(name, part, change, why, tmp_path, left_nothing):
    parts = parts_of(name)
    tensor = parts.pop(part)
    if change is not None:
        parts[part] = change(tensor)
    source = folder_of(tmp_path / "a", parts, METADATA[f"{name}.weight"])
    with pytest.raises(CheckpointError, match=why) as raised:
        repack(source, left_nothing)
    assert "q_proj._weight" in str(raised.value)


@pytest.mark.parametrize(("name", "changes", "error", "why"), [
    ("int8_rows", {"_type": "Int4PlainInt32Tensor"}, Unsupported, "torchao's Int4PlainInt32Tensor"),
    ("int8_rows", {"_type": "AffineQuantizedTensor"}, Unsupported, "ladder reads Int4Tensor, "),
    ("int8_rows", {"_type": 3}, CheckpointError, "not an object with a _type"),
    ("int8_rows", {"block_size": [1, 0]}, CheckpointError, r"block_size \[1, 0\], not two sizes"),
    ("int8_rows", {"block_size": None}, CheckpointError, "block_size None, not two sizes"),
    ("int8_rows", {"block_size": [1, 4]}, Unsupported, "q_proj.weight has scales of 4 columns"),
    ("int8_rows", {"block_size": [1, 32]}, CheckpointError, r"\[8, 1\], not \[8, 2\]"),
    ("int8_rows", {"block_size": [1, 8, 64]}, Unsupported, "ladder packs matrices, and no stacks"),
    ("int8_dynamic", {"act_quant_kwargs": 3}, CheckpointError, "act_quant_kwargs 3, not an object"),
    ("int4_symmetric", {"target_dtype": "int9"}, CheckpointError, "target_dtype 'int9', not int1"),
    ("int4_symmetric", {"activation_quantization": "int4"}, Unsupported, "not int8_asym_per_token"),
    ("int8_static", {"_tensor_data_names": 5}, CheckpointError, "_tensor_data_names 5, not a list"),
    ("int4", {"block_size": [2, 32]}, CheckpointError, r"block_size \[2, 32\], not one row"),
    ("tiles", {"block_size": [2, 32]}, CheckpointError, r"block_size \[2, 32\], not one row"),
    ("tiles", {"block_size": []}, CheckpointError, r"block_size \[\], not two sizes"),
    ("int4", {"shape": [8, 32]}, CheckpointError, r"of \[8, 64\], and the metadata says \[8, 32\]"),
    ("tiles", {"shape": [8, 992]}, CheckpointError, r"not \[1, 8, 32, 4\] of .* \[8, 992\]"),
    ("mxfp8", {"elem_dtype": "fp6_e2m3"}, Unsupported, "elem_dtype fp6_e2m3; ladder reads"),
    ("mxfp8", {"block_size": 16}, CheckpointError, "block_size 16, not 32"),
    ("nvfp4", {"is_swizzled_scales": "yes"}, CheckpointError, "'yes', not true or false"),
])  # fmt: skip
def test_metadata_that_ladder_cannot_follow(name, changes, error, why, tmp_path, left_nothing):
    source = folder_of(tmp_path / "a", parts_of(name), said_of(name, **changes))
    with pytest.raises(error, match=why):
        repack(source, left_nothing)


@pytest.mark.parametrize(("said", "why"), [
    (None, "q_proj._weight_qdata is there, and the metadata .* does not say what q_proj.weight is"),
    ('{"_type": "Tensor"}', "does not say what q_proj.weight is"),
    ("[1]", "the metadata of q_proj.weight is .* not an object"),
    ('{"_type": ', "the metadata of q_proj.weight is"),
])  # fmt: skip
def test_files_that_do_not_say_what_their_tensors_are(said, why, tmp_path, left_nothing):
    source = folder_of(tmp_path / "a", parts_of("int8_rows"), said)
    with pytest.raises(CheckpointError, match=why):
        repack(source, left_nothing)


@pytest.mark.parametrize("same", [True, False])
def test_files_may_say_the_same_of_one_tensor_and_nothing_else(same, tmp_path):
    """transformers writes the metadata of all tensors into each file."""
    parts, said = parts_of("int8_groups"), METADATA["int8_groups.weight"]
    other = said if same else said_of("int8_groups", block_size=[1, 64])
    shards = [{"q_proj._weight_qdata": parts.pop("_weight_qdata")},
              {f"q_proj.{part}": tensor for part, tensor in parts.items()}]  # fmt: skip
    folder = write_folder(tmp_path / "a", TORCHAO, shards)
    for file, text in zip(sorted(folder.glob("*.safetensors")), (said, other), strict=True):
        save_file(load_file(file), file, metadata={"q_proj.weight": text})
    if same:
        ((_, weight),) = open_folder(folder)
        check("int8_groups", weight.dequantize())
        return
    with pytest.raises(CheckpointError, match="its metadata says of q_proj.weight .* and another"):
        open_folder(folder)


def quant_type(kind, **data):
    return TORCHAO | {"quant_type": {"default": {"_type": kind, "_version": 2, "_data": data}}}


def named(**configs):
    return quant_type("FqnToConfig", fqn_to_config=configs)


ROWS = {"_type": "Int8WeightOnlyConfig", "_version": 2, "_data": {}}
FEW = ROWS | {"_type": "IntxWeightOnlyConfig"}


@pytest.mark.parametrize(("name", "settings", "why"), [
    ("int8_rows", quant_type("Int4WeightOnlyConfig"), "Int8Tensor, and .* says Int4WeightOnlyConf"),
    ("int4", quant_type("Int4WeightOnlyConfig", group_size=64), r"\[1, 32\], and .* group_size 64"),
    ("int8_rows", named(q_proj=None, _default=ROWS), "quantization_config leaves it dense"),
    ("int8_rows", named(q_proj=FEW), "is Int8Tensor, and .* says IntxWeightOnlyConfig"),
    ("int8_rows", named(**{"re:q_.*": FEW}), "is Int8Tensor, and .* says IntxWeightOnlyConfig"),
    ("int8_rows", named(**{"re:q_(": FEW}), "no expression"),
    ("int8_rows", named(q_proj=3), "has {'q_proj': 3}, not an object of objects"),
    ("int8_rows", quant_type("FqnToConfig", fqn_to_config=[3]), r"has \[3\], not an object of"),
    ("int8_rows", TORCHAO | {"quant_type": 3}, "quant_type is 3, not an object"),
    ("int8_rows", TORCHAO | {"quant_type": {"default": 3}}, "default is 3, not an object"),
])  # fmt: skip
def test_a_config_that_contradicts_the_files_is_refused(
    name, settings, why, tmp_path, left_nothing
):
    source = folder_of(tmp_path / "a", parts_of(name), METADATA[f"{name}.weight"], settings)
    with pytest.raises(CheckpointError, match=why):
        repack(source, left_nothing)


@pytest.mark.parametrize("settings", [
    quant_type("Int8WeightOnlyConfig", group_size=None),
    quant_type("SomeConfigOfTomorrow"),
    named(_default=ROWS), named(**{"re:.*proj": ROWS, "_default": FEW}),
    named(**{"q_proj.weight": ROWS, "q_proj": FEW}), TORCHAO | {"quant_type": "int8_weight_only"},
])  # fmt: skip
def test_a_config_that_agrees_is_read(settings, tmp_path):
    said = METADATA["int8_rows.weight"]
    (found,) = open_folder(folder_of(tmp_path / "a", parts_of("int8_rows"), said, settings))
    check("int8_rows", found[1].dequantize())


def test_a_tensor_of_no_linear_layer_is_refused(tmp_path, left_nothing):
    folder = folder_of(tmp_path / "a", parts_of("int8_rows"), METADATA["int8_rows.weight"])
    file = folder / "model.safetensors"
    metadata = {
        "q_proj.weight": METADATA["int8_rows.weight"],
        "experts.gate_up_proj": METADATA["float8_rows.weight"],
    }
    save_file(load_file(file), file, metadata=metadata)
    with pytest.raises(Unsupported, match=r"experts.gate_up_proj is torchao's Float8Tensor"):
        repack(folder, left_nothing)


def test_a_folder_of_quantised_embeddings_alone_is_refused(tmp_path, left_nothing):
    parts, said = parts_of("int8_rows"), METADATA["int8_rows.weight"]
    folder = folder_of(tmp_path / "a", parts, said, module="embed_tokens")
    for command in (describe, lambda path: repack(path, left_nothing)):
        with pytest.raises(Unsupported, match="quantised but embeddings, embed_tokens: ladder pac"):
            command(folder)


def test_pickles_are_refused_where_torchao_is_not_installed(tmp_path, left_nothing, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao", None)
    folder = folder_of(tmp_path / "a", parts_of("int8_rows"), METADATA["int8_rows.weight"])
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(Unsupported, match="pytorch_model.bin holds pickled objects of torchao"):
        repack(folder, left_nothing)


class Int8Tensor(torch.Tensor):
    """Stands for torchao's class, whose parts are attributes."""

    tensor_data_names = ("qdata",)


class Sparse(Int8Tensor):
    pass


@pytest.fixture
def like_torchao(monkeypatch):
    """What ladder asks torchao for: its classes, and to take tensors apart."""
    package = "torchao.prototype.safetensors"
    support = ModuleType(f"{package}.safetensors_support")
    utils = ModuleType(f"{package}.safetensors_utils")
    utils.ALLOWED_CLASSES = {"Int8Tensor": Int8Tensor, "Sparse": Sparse}

    def flatten(packed):
        parts = parts_of("int8_rows")
        tensors = {
            f"{name.removesuffix('.weight')}.{part}": tensor
            for name in packed
            for part, tensor in parts.items()
        }
        return tensors, dict.fromkeys(packed, METADATA["int8_rows.weight"])

    support.flatten_tensor_state_dict = flatten
    for module in (support, utils):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("torchao", "torchao.prototype", package):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))


def pickled(path, kind):
    folder = folder_of(path, {}, None)
    packed = torch.zeros(8, 64).as_subclass(kind)
    torch.save({"q_proj.weight": packed, "n.weight": torch.ones(3)}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


def test_pickles_are_taken_apart_by_torchao(tmp_path, like_torchao):
    source = pickled(tmp_path / "a", Int8Tensor)
    ((name, weight),) = open_folder(source)
    assert name == "q_proj"
    check("int8_rows", weight.dequantize())
    repack(source, tmp_path / "b")
    tensors = load_file(tmp_path / "b" / "model.safetensors")
    assert tensors.keys() == {"q_proj.qweight", "q_proj.scales", "n.weight"}


def test_pickles_of_other_classes_are_refused(tmp_path, like_torchao, left_nothing):
    with pytest.raises(Unsupported, match="q_proj.weight is torchao's Sparse; ladder reads Int4T"):
        repack(pickled(tmp_path / "a", Sparse), left_nothing)


def test_pickles_that_name_what_torchao_does_not_allow_are_refused(
    tmp_path, like_torchao, left_nothing, monkeypatch
):
    utils = sys.modules["torchao.prototype.safetensors.safetensors_utils"]
    monkeypatch.setattr(utils, "ALLOWED_CLASSES", {})
    with pytest.raises(CheckpointError, match="without running code from it"):
        repack(pickled(tmp_path / "a", Int8Tensor), left_nothing)


def test_engines_are_told_to_repack():
    with pytest.raises(Unsupported, match="torchao, .*: run `ladder repack` first"):
        Folder(TORCHAO)
