# SPDX-License-Identifier: Apache-2.0
"""quant_method "quark": what layers of FP8, INT8 and MX formats mean, and what is refused."""

import json
import logging

import pytest
import torch
from checkpoint_oracle import tensors_of, write_folder
from more_oracles import quark, quark_settings
from safetensors.torch import load_file

from ladder import types
from ladder.checkpoints import open_folder, repack
from ladder.errors import CheckpointError, Unsupported
from ladder.weight import Weight

N, K = 24, 96
STATIC, TOKEN = {"is_dynamic": False}, {"is_dynamic": True, "qscheme": "per_channel"}
FORMS = {
    "fp8": (("fp8_e4m3",), {}, STATIC, "float8_e4m3,tensor,scale=bfloat16", "float8_e4m3"),
    "ptpc_fp8": (("fp8_e4m3", "per_channel"), {"row": True}, TOKEN,
                 "float8_e4m3,channel,scale=bfloat16", "float8_e4m3"),
    "int8": (("int8",), {}, STATIC, "int8,tensor,scale=bfloat16", "int8"),
    "int8 rows": (("int8", "per_channel"), {"row": True}, None, "int8,scale=bfloat16", None),
    "mxfp4": (("fp4", "per_group"), {}, {"is_dynamic": True}, "mxfp4", None),
    "mxfp6": (("fp6_e3m2", "per_group"), {}, None, "mxfp6_e3m2", None),
}  # fmt: skip


def drawn(form, n=N, k=K):
    kind, options, x, *_ = FORMS[form]
    truth = quark(n, k, kind[0], seed=n, **options)
    if x == STATIC:
        truth.tensors["input_scale"] = torch.tensor(0.25).bfloat16()
        if kind[0] == "int8":
            truth.tensors["input_zero_point"] = torch.tensor(0, dtype=torch.int8)
    return truth


def settings_of(form, **more):
    kind, _, x, *_ = FORMS[form]
    return quark_settings(*kind, x=x, **more)


def folder_of(layers, path, settings):
    return write_folder(path, settings, [tensors_of(layers)])


@pytest.mark.parametrize("form", FORMS)
def test_a_folder_and_its_repacked_self_mean_what_was_drawn(form, tmp_path):
    truth, (_, _, x, text, rounded) = drawn(form), FORMS[form]
    source = folder_of({"q": truth}, tmp_path / "a", settings_of(form))
    direct = dict(open_folder(source))["q"]
    repack(source, tmp_path / "b")
    tensors = load_file(tmp_path / "b" / "model.safetensors")
    made = json.loads((tmp_path / "b" / "config.json").read_text())["quantization_config"]
    assert made["weight_type"] == str(types.parse(text))
    assert made.get("activation_type") == rounded
    parts = {part: tensors[f"q.{part}"] for part in ("qweight", "scales")}
    for weight in (direct, Weight(types.parse(text), (N, K), **parts)):
        weight.check()
        assert torch.equal(weight.dequantize(), torch.from_numpy(truth.weight))
    assert ("q.input_scale" in tensors) == (x == STATIC)


def test_the_first_pattern_that_fits_a_module_counts(tmp_path):
    kinds = {"layers.0.q_proj": "fp8", "layers.0.up_proj": "mxfp4", "layers.1.up_proj": "int8 rows"}
    every = {form: settings_of(form)["global_quant_config"] for form in FORMS}
    settings = settings_of("fp8") | {
        "layer_quant_config": {"*.1.up_proj": every["int8 rows"], "*up_proj": every["mxfp4"]}
    }
    layers = {name: drawn(form) for name, form in kinds.items()}
    found = dict(open_folder(folder_of(layers, tmp_path / "a", settings)))
    for name, form in kinds.items():
        assert str(found[name].type) == str(types.parse(FORMS[form][3]))
    source = folder_of(layers, tmp_path / "b", settings | {"exclude": ["lm_head", "*q_proj"]})
    with pytest.raises(CheckpointError, match="leaves layers.0.q_proj unquantised"):
        dict(open_folder(source))


def test_formats_of_a_cache_are_left_out(tmp_path):
    keys = settings_of("fp8")["global_quant_config"]
    keys = keys | {"output_tensors": keys["weight"]}
    settings = settings_of("fp8", layer_quant_config={"*k_proj": keys})
    source = folder_of({"k_proj": drawn("fp8")}, tmp_path / "a", settings)
    with pytest.raises(Unsupported, match=r"layer_quant_config.\*k_proj.output_tensors are quant"):
        open_folder(source)
    settings["kv_cache_quant_config"] = {"*k_proj": keys}
    ((_, weight),) = open_folder(folder_of({"k_proj": drawn("fp8")}, tmp_path / "b", settings))
    assert str(weight.type) == "float8_e4m3,tensor,scale=bfloat16"


def test_rounding_of_x_that_ladder_does_otherwise_is_said(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "ladder")
    open_folder(folder_of({"q": drawn("mxfp4")}, tmp_path / "a", settings_of("mxfp4")))
    (record,) = caplog.records
    assert "input_tensors is float4, dynamic, per group of 32 columns" in record.getMessage()


def changed(**changes):
    """Settings whose weight has these."""
    usual = settings_of("fp8")["global_quant_config"]
    return {"global_quant_config": usual | {"weight": usual["weight"] | changes}}


@pytest.mark.parametrize(("changes", "error", "why"), [
    (changed(dtype="int4"), Unsupported, "weight.dtype is 'int4'; ladder reads fp8"),
    (changed(dtype=4), CheckpointError, "dtype is 4, not a word"),
    (changed(qscheme="per_group"), Unsupported, "qscheme of fp8_e4m3 is 'per_group', not"),
    (changed(dtype="fp4", qscheme="per_group", group_size=16), Unsupported,
     "scales of floats for groups of 16, not of e8m0 for 32"),
    (changed(qscheme="per_channel", ch_axis=1), Unsupported, "ch_axis of per_channel is 1, not 0"),
    (changed(is_scale_quant=True), Unsupported, "weight has scales that ladder does not read"),
    ({"global_quant_config": None}, CheckpointError, "leaves q unquantised"),
    ({"global_quant_config": 3}, CheckpointError, "global_quant_config is 3, not an object"),
    ({"exclude": "q"}, CheckpointError, "exclude is 'q', not a list of names"),
    ({"export": {"weight_format": "fake_quantized"}}, Unsupported, "'fake_quantized': its"),
    ({"softmax_quant_spec": {"dtype": "fp8_e4m3"}}, Unsupported, "softmax_quant_spec is there"),
    ({"layer_type_quant_config": {"Linear": {}}}, Unsupported, "layer_type_quant_config is there"),
    ({"algo_config": [{"name": "rotation"}]}, Unsupported, "algo_config has rotation, which may"),
])  # fmt: skip
def test_settings_that_ladder_cannot_follow(changes, error, why, tmp_path):
    source = folder_of({"q": drawn("fp8")}, tmp_path / "a", settings_of("fp8") | changes)
    with pytest.raises(error, match=why):
        dict(open_folder(source))


def test_a_quantised_bias_is_refused(tmp_path):
    usual = settings_of("fp8")["global_quant_config"]
    settings = settings_of("fp8", global_quant_config=usual | {"bias": usual["weight"]})
    with pytest.raises(Unsupported, match="global_quant_config.bias is quantised"):
        open_folder(folder_of({"q": drawn("fp8")}, tmp_path / "a", settings))


@pytest.mark.parametrize(("form", "part", "change", "why"), [
    ("fp8", "weight", lambda t: t.view(torch.int8), "is int8, not float8_e4m3"),
    ("fp8", "weight", lambda t: t.flatten(), "not two dimensions"),
    ("fp8", "weight", None, "weight is missing"),
    ("fp8", "weight_scale", lambda t: t.repeat(N), r"\[24\], not \[1\]"),
    ("fp8", "weight_scale", lambda t: t / 0, "must be finite"),
    ("fp8", "weight_scale", None, "weight is float8_e4m3fn, and no scale is beside it"),
    ("fp8", "input_scale", lambda t: t.repeat(2), r"\[2\], not \[1\]"),
    ("fp8", "input_scale", lambda t: -t, "not positive"),
    ("ptpc_fp8", "weight_scale", lambda t: t[:3].clone(), r"\[3\], not \[24\]"),
    ("mxfp4", "weight_scale", lambda t: t[:, :2].clone(), r"\[24, 2\], not \[24, 3\]"),
    ("mxfp4", "weight_scale", lambda t: t.float(), "is float32, not uint8"),
    ("mxfp4", "weight_scale", lambda t: t | 255, "must be finite"),
    ("mxfp4", "weight", lambda t: t[:, :40].clone(), "rows of 40 bytes, not of whole groups of 32"),
    ("mxfp6", "weight", lambda t: t[:, :25].clone(), "rows of 25 bytes, not of whole groups of 32"),
    ("int8", "weight_zero_point", lambda t: t.float(), "is float32, not int8"),
])  # fmt: skip
def test_damaged_layers_are_named(form, part, change, why, tmp_path):
    truth = drawn(form)
    tensor = truth.tensors.pop(part)
    if change is not None:
        truth.tensors[part] = change(tensor)
    source = folder_of({"q_proj": truth}, tmp_path / "a", settings_of(form))
    with pytest.raises(CheckpointError, match=why) as raised:
        repack(source, tmp_path / "b")
    assert "q_proj." in str(raised.value) and not (tmp_path / "b").exists()


def test_zero_points_are_refused(tmp_path):
    truth = drawn("int8")
    truth.tensors["weight_zero_point"].fill_(1)
    with pytest.raises(Unsupported, match="q.weight_zero_point is not 0"):
        dict(open_folder(folder_of({"q": truth}, tmp_path / "a", settings_of("int8"))))
