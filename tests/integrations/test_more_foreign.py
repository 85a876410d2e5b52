# SPDX-License-Identifier: Apache-2.0
"""Unmodified folders of bitsandbytes, AutoRound, BitNet, Quark and FBGEMM;
test_transformers_enable.py has those of other packages."""

import json
import sys

import pytest
import torch
from checkpoint_oracle import FBGEMM, awq, fp8, gptq
from hf_mixtures import fresh
from hf_models import check_equal, edit_config, edit_tensors, foreign_folder, load, logits
from more_oracles import BITNET, INT8, NF4, bitnet, bnb, llm_int8, quark, quark_settings

import ladder
from ladder.errors import CheckpointError
from ladder.integrations.transformers import disable, enable

Q_PROJ = "model.layers.0.self_attn.q_proj"
AUTO_ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": False}
#: How a layer is drawn, its settings, and its activation_type.
FORMS = {
    "nf4": (bnb, NF4, None),
    "nf4 nested": (lambda n, k, seed: bnb(n, k, nested=True, seed=seed), NF4, None),
    "nf4, unsaid": (bnb, {"quant_method": "bitsandbytes"}, None),
    "fp4 in blocks of 128": (
        lambda n, k, seed: bnb(n, k, kind="fp4", blocksize=128, seed=seed),
        NF4 | {"bnb_4bit_quant_type": "fp4"},
        None,
    ),
    "int8": (llm_int8, INT8, None),
    "auto_gptq": (
        lambda n, k, seed: gptq(n, k, symmetric=False, lowest=1, g_idx=False, seed=seed),
        AUTO_ROUND | {"packing_format": "auto_round:auto_gptq"},
        None,
    ),
    "auto_round": (
        lambda n, k, seed: gptq(n, k, symmetric=False, form="gptq_v2", g_idx=False, seed=seed),
        AUTO_ROUND | {"packing_format": "auto_round", "quant_method": "intel/auto-round"},
        None,
    ),
    "auto_awq": (awq, AUTO_ROUND | {"packing_format": "auto_round:auto_awq"}, None),
    "bitnet": (bitnet, BITNET, "int8"),
    "quark int8": (
        lambda n, k, seed: quark(n, k, "int8", seed=seed),
        quark_settings("int8", x={}),
        "int8",
    ),
    "quark mxfp4": (
        lambda n, k, seed: quark(n, k, "fp4", seed=seed),
        quark_settings("fp4", "per_group"),
        None,
    ),
    "fbgemm_fp8": (lambda n, k, seed: fp8(n, k, kind="channel", seed=seed), FBGEMM, None),
    "bitnet divides": (
        lambda n, k, seed: bitnet(n, k, divides=True, seed=seed),
        {"quant_method": "bitnet"},
        "int8",
    ),
}


@pytest.fixture(autouse=True)
def not_left_enabled():
    yield
    disable()


@pytest.fixture
def without_packages(monkeypatch):
    for package in ("bitsandbytes", "auto_round"):
        monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.parametrize("form", FORMS)
def test_a_folder_is_loaded_saved_and_repacked_alike(
    form, dense_folder, tmp_path, without_packages
):
    draw, settings, rounded = FORMS[form]
    folder, expected = foreign_folder(dense_folder, tmp_path / "foreign", draw, settings)
    with enable(settings["quant_method"]):
        model = load(folder)
    assert type(model.get_submodule(Q_PROJ)) is ladder.Linear
    assert model.get_submodule(Q_PROJ).activation_type == rounded
    outputs = logits(model)
    model.save_pretrained(tmp_path / "saved")
    ladder.checkpoints.repack(folder, tmp_path / "repacked")
    made = [json.loads((tmp_path / name / "config.json").read_text())["quantization_config"]
            for name in ("saved", "repacked")]  # fmt: skip
    assert made[0] == made[1]
    for name in ("saved", "repacked"):
        assert torch.equal(logits(load(tmp_path / name)), outputs)
    check_equal(model, expected)


@pytest.mark.parametrize("part", ["weight.absmax", "weight.quant_map", "weight"])
def test_a_lost_part_is_named(part, dense_folder, tmp_path):
    folder, _ = foreign_folder(dense_folder, tmp_path / "foreign", bnb, NF4)
    edit_tensors(folder, lambda tensors: tensors.pop(f"{Q_PROJ}.{part}"))
    with (
        enable("bitsandbytes"),
        pytest.raises(CheckpointError, match=f"{Q_PROJ}.{part} is missing"),
    ):
        load(folder)


@pytest.mark.parametrize("nested", [False, True])
def test_a_weight_of_another_shape_is_named(nested, dense_folder, tmp_path):
    """The headers tell only how many codes there are; the state says the shape."""

    def turned(n, k, seed):
        return bnb(k, n, seed=seed, nested=nested)

    folder, _ = foreign_folder(dense_folder, tmp_path / "foreign", bnb, NF4)
    down = "model.layers.0.mlp.down_proj"  # [64, 96]

    def change(tensors):
        tensors |= {f"{down}.{part}": tensor for part, tensor in turned(64, 96, 0).tensors.items()}

    edit_tensors(folder, change)
    with (
        enable("bitsandbytes"),
        pytest.raises(CheckpointError, match=r"\[96, 64\], not \[64, 96\]"),
    ):
        load(folder)


def test_experts_in_nf4_are_loaded_one_by_one(tmp_path):
    model = fresh("mixtral").eval()
    model.save_pretrained(tmp_path / "dense", save_original_format=True)
    truths = {}

    def change(tensors):
        for seed, name in enumerate(sorted(tensors)):
            module = name.removesuffix(".weight")
            if ".experts." in name:
                truths[module] = bnb(*tensors.pop(name).shape, nested=seed % 2 == 0, seed=seed)
        for module, truth in truths.items():
            tensors |= {f"{module}.{part}": tensor for part, tensor in truth.tensors.items()}

    edit_tensors(tmp_path / "dense", change)
    edit_config(tmp_path / "dense", quantization_config=NF4)
    assert truths
    with enable("bitsandbytes"):
        packed = load(tmp_path / "dense")
    ladder.checkpoints.repack(tmp_path / "dense", tmp_path / "repacked")
    assert torch.equal(logits(packed), logits(load(tmp_path / "repacked")))
    (experts, *_) = [m for m in packed.modules() if isinstance(m, ladder.Experts)]
    values = experts.dequantize()["down_proj"]
    first = next(name for name in truths if ".0." in name and name.endswith("0.w2"))
    assert torch.equal(values[0], torch.from_numpy(truths[first].weight))
