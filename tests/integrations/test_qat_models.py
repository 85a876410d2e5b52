# SPDX-License-Identifier: Apache-2.0
"""ladder.qat on models of transformers: experts, GPT-2's Conv1D, Trainer, folders, accelerate."""

import copy

import pytest
import torch
from hf_mixtures import FIRST, MODELS, fresh
from hf_models import TINY, check_same, load, logits
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import ladder
from ladder.checkpoints.convert import convert
from ladder.errors import InvalidArgument

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")

IDS = torch.arange(50, 74)[None]
#: Dense products of rounded weights and packed ones sum the same numbers in another order, in
#: float32, through two layers: logits of size 1 differ by up to some 1e-5.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.mark.parametrize("kind", MODELS)
def test_experts_are_trained_as_they_are_packed(kind):
    """Of each layout: gate and up interleaved or not, transposed or not. The rounded weights are
    those of packed experts, made dense again, and so are gradients."""
    model, packed = fresh(kind), fresh(kind)
    options = {"types": {"experts.down": "uint5,group=16"}, "group_size": 32}
    ladder.convert(packed, "uint3", **options)
    report = ladder.qat.prepare(model, "uint3", **options)
    assert report.packed[f"{FIRST}.down"] == "uint5,group=16,scale=float16,zero=midpoint"
    rounded, own = packed.get_submodule(FIRST).dense(), model.get_submodule(FIRST)
    for name in ("gate_up_proj", "down_proj"):
        assert torch.equal(getattr(own, name), getattr(rounded, name)), name
        assert not torch.equal(own._parameters[name], getattr(rounded, name)), name
    for module in (own, rounded):
        index, weights = torch.tensor([[0, 1], [2, 3], [1, 3]]), torch.full((3, 2), 0.5)
        module(torch.randn(3, 64, generator=torch.manual_seed(3)), index, weights).sum().backward()
    for (name, a), (_, b) in zip(own.named_parameters(), rounded.named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)
        assert a.grad.any()
    expected = logits(model)
    assert ladder.qat.convert(model).packed == report.packed
    check_same(model, packed)
    torch.testing.assert_close(logits(model), expected, **CLOSE)


def test_an_expert_that_training_has_lost_is_named():
    model = fresh("mixtral")
    ladder.qat.prepare(model, "uint4", 32)
    with torch.no_grad():
        model.get_submodule(FIRST)._parameters["down_proj"][2, 3, 5] = torch.nan
    said = f"^{FIRST}.down: expert 2: weight at row 3, column 5 is nan"
    with pytest.raises(InvalidArgument, match=said):
        model(IDS)


def gpt2():
    torch.manual_seed(0)
    sizes = {"n_embd": 64, "n_layer": 1, "n_head": 2, "vocab_size": 128, "n_positions": 64}
    return GPT2LMHeadModel(GPT2Config(**sizes)).eval()


def test_conv1d_is_trained():
    model, packed = gpt2(), gpt2()
    ladder.convert(packed, "uint2", 32)
    ladder.qat.prepare(model, "uint2", 32)
    torch.testing.assert_close(logits(model), logits(packed), rtol=1e-5, atol=1e-5)
    model(IDS, labels=IDS).loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in model.transformer.h.parameters())
    ladder.qat.convert(model)
    check_same(model, packed)


def test_trainer_a_checkpoint_and_a_folder(dense_folder, tmp_path):
    """What is saved while training is dense, and quantised later it is what training ends with."""
    model = load(dense_folder)
    report = ladder.qat.prepare(model, "uint2", 32)
    assert len(report.packed) == 7 * TINY["num_hidden_layers"] and "lm_head" in report.left
    before = copy.deepcopy(model.state_dict())
    arguments = TrainingArguments(
        str(tmp_path / "run"), use_cpu=True, report_to=[], per_device_train_batch_size=2,
        max_steps=3, save_steps=3, learning_rate=1e-3, gradient_checkpointing=True,
    )  # fmt: skip
    rows = [{"input_ids": (IDS[0] + i) % 128, "labels": (IDS[0] + i) % 128} for i in range(6)]
    Trainer(model, arguments, train_dataset=rows).train()
    moved = [name for name, one in model.state_dict().items() if not torch.equal(one, before[name])]
    assert any("q_proj.weight" in name for name in moved)
    trained = logits(model.eval())
    checkpoint = tmp_path / "run" / "checkpoint-3"
    assert type(load(checkpoint).model.layers[0].mlp.up_proj) is torch.nn.Linear
    convert(checkpoint, tmp_path / "packed", "uint2", group_size=32)
    again = load(tmp_path / "packed")
    ladder.qat.convert(model)
    check_same(model, again)
    torch.testing.assert_close(logits(again), trained, **CLOSE)
    model.save_pretrained(tmp_path / "saved")
    check_same(load(tmp_path / "saved"), again)


def test_hooks_of_accelerate_move_to_the_rounded_forward(dense_folder):
    model, wanted = load(dense_folder), load(dense_folder)
    seen = []

    class Counts(accelerate.hooks.ModelHook):
        def pre_forward(self, module, *args, **kwargs):
            seen.append(type(module).__name__)
            return args, kwargs

    layer = model.model.layers[0].mlp.up_proj
    accelerate.hooks.add_hook_to_module(layer, Counts())
    ladder.convert(wanted, "uint2", 32)
    ladder.qat.prepare(model, "uint2", 32)
    torch.testing.assert_close(logits(model), logits(wanted), **CLOSE)
    ladder.qat.restore(model)
    assert torch.equal(logits(model), logits(load(dense_folder)))
    ladder.qat.prepare(model, "uint2", 32)
    ladder.qat.convert(model)
    torch.testing.assert_close(logits(model), logits(wanted))
    assert seen == ["TrainedLinear", "Linear", "Linear"]
    assert isinstance(model.model.layers[0].mlp.up_proj, ladder.Linear)
