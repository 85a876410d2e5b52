# SPDX-License-Identifier: Apache-2.0
"""Learned scales of models of transformers: experts, Conv1D, embeddings, Trainer, folders."""

import copy

import pytest
import torch
from hf_mixtures import FIRST, MODELS, fresh
from hf_models import check_same, load, logits
from safetensors.torch import load_file
from test_embedding_folders import made, of, options
from test_qat_models import CLOSE, IDS, gpt2
from transformers import Trainer, TrainingArguments

import ladder
from ladder.checkpoints.convert import convert
from ladder.errors import CheckpointError, InvalidArgument

TYPE = "uint3,group=32,scale=float16,zero=integer"


def moved(model):
    """``model`` as if scales and zero points had been trained."""
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for each in ladder.qat.scale_parameters(model).values():
            each *= 1 + 0.2 * torch.randn(each.shape, generator=draw)
    return model


@pytest.mark.parametrize("kind", MODELS)
def test_experts_have_scales_of_their_own(kind):
    """Of each layout, one of two types with learned scales, and both."""
    for types in ({}, {"experts.down": "mxfp4"}):
        model = fresh(kind)
        report = ladder.qat.prepare(model, TYPE, types=types, learned_scales=True)
        assert all(name.endswith("experts.down") for name in report.not_learned)
        assert (f"{FIRST}.down" in report.not_learned) == bool(types)
        moved(model)
        own = model.get_submodule(FIRST)
        count = own._parameters["gate_up_proj"].shape[0]
        learned = ladder.qat.scale_parameters(model)
        assert learned[f"{FIRST}.gate_up_proj_range"].shape[0] == count
        assert (f"{FIRST}.down_proj_center" in learned) == (not types)
        seen = {name: getattr(own, name).detach() for name in ("gate_up_proj", "down_proj")}
        model(IDS, labels=IDS).loss.backward()
        for name, each in model.named_parameters():
            assert each.grad is not None and each.grad.isfinite().all(), name
        assert own._parameters["down_proj"].grad.any() and own.gate_up_proj_range.grad.any()
        expected = logits(model)
        ladder.qat.convert(model)
        rounded = model.get_submodule(FIRST).dense()
        for name, values in seen.items():
            assert torch.equal(getattr(rounded, name), values), name
        torch.testing.assert_close(logits(model), expected, **CLOSE)


def test_experts_begin_with_those_of_a_packed_model():
    packed, model = fresh("mixtral"), fresh("mixtral")
    ladder.convert(packed, TYPE, method="nearest")
    ladder.qat.prepare(model, TYPE, learned_scales=True, scales_of=packed)
    ladder.qat.convert(model)
    for name, each in packed.named_buffers():
        if name.endswith("scales"):
            assert torch.equal(model.get_buffer(name), each), name


def test_an_expert_that_training_has_lost_is_named():
    model = fresh("mixtral")
    ladder.qat.prepare(model, TYPE, learned_scales=True)
    with torch.no_grad():
        model.get_submodule(FIRST)._parameters["down_proj"][2, 3, 5] = torch.nan
    said = f"^{FIRST}.down: expert 2: weight at row 3, column 5 is nan"
    for use in (lambda: model(IDS), lambda: ladder.qat.convert(model)):
        with pytest.raises(InvalidArgument, match=said):
            use()


def test_conv1d_learns_its_scales():
    model = gpt2()
    ladder.qat.prepare(model, "uint2", 32, False, learned_scales=True)
    moved(model)
    expected = logits(model)
    model(IDS, labels=IDS).loss.backward()
    assert all(each.grad.any() for each in ladder.qat.scale_parameters(model).values())
    ladder.qat.convert(model)
    torch.testing.assert_close(logits(model), expected, **CLOSE)


@pytest.mark.parametrize("head", [False, True], ids=["dense head", "packed head"])
@pytest.mark.parametrize("kind", ["llama, tied", "gemma3"])
def test_embeddings_and_heads_learn_theirs(kind, head):
    model = made(kind)
    ladder.qat.prepare(model, "uint4", learned_scales=True, **options(kind, head))
    moved(model)
    own = of(model, kind)
    rows = own(torch.arange(128))
    model(IDS, labels=IDS).loss.backward()
    learned = ladder.qat.scale_parameters(model)
    assert any("lm_head" in name for name in learned) == head
    used = own.weight_range.grad.abs().sum(1) > 0
    assert used.any() and not used[:50].any()  # of tokens that are in no batch
    expected = logits(model)
    ladder.qat.convert(model)
    assert torch.equal(of(model, kind)(torch.arange(128)), rows)
    torch.testing.assert_close(logits(model), expected, **CLOSE)


def trainer(model, folder, steps):
    arguments = TrainingArguments(
        str(folder), use_cpu=True, report_to=[], per_device_train_batch_size=2, seed=3,
        max_steps=steps, save_steps=2, learning_rate=1e-2, lr_scheduler_type="constant",
        gradient_checkpointing=True, bf16=True,
    )  # fmt: skip
    rows = [{"input_ids": (IDS[0] + i) % 128, "labels": (IDS[0] + i) % 128} for i in range(6)]
    return Trainer(model, arguments, train_dataset=rows)


def test_trainer_saves_scales_and_resumes_with_them(dense_folder, tmp_path):
    """With autocast to bfloat16 and gradient checkpointing."""
    whole, parts = load(dense_folder), load(dense_folder)
    for each in (whole, parts):
        ladder.qat.prepare(each, TYPE, learned_scales=True)
    before = copy.deepcopy(whole.state_dict())
    trainer(whole, tmp_path / "whole", 4).train()
    trainer(parts, tmp_path / "parts", 2).train()
    folder = tmp_path / "parts" / "checkpoint-2"
    stored = load_file(folder / "model.safetensors")
    assert any(name.endswith("weight_range") for name in stored)
    with pytest.raises(CheckpointError, match="learned scales of ladder.qat, model.layers.0"):
        convert(folder, tmp_path / "packed", TYPE)  # which would find others
    assert not (tmp_path / "packed").exists()
    by_hand = load(dense_folder)
    ladder.qat.prepare(by_hand, TYPE, learned_scales=True)
    assert by_hand.load_state_dict(stored, strict=False).missing_keys == ["lm_head.weight"]  # tied
    for name, one in parts.state_dict().items():
        assert torch.equal(one, by_hand.state_dict()[name]), name
    again = load(dense_folder)
    ladder.qat.prepare(again, TYPE, learned_scales=True)
    trainer(again, tmp_path / "parts", 4).train(resume_from_checkpoint=str(folder))
    for name, one in whole.state_dict().items():
        assert torch.equal(one, again.state_dict()[name]), name
        if name.endswith(("_range", "_center")):
            assert not torch.equal(one, before[name]), name
    layer = again.eval().model.layers[0].mlp.up_proj
    seen = layer(torch.eye(layer.in_features)).T
    ladder.qat.convert(again)
    assert torch.equal(again.model.layers[0].mlp.up_proj.packed_weight.dequantize(), seen)
    again.save_pretrained(tmp_path / "saved")
    check_same(load(tmp_path / "saved"), again)
