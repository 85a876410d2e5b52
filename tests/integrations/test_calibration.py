# SPDX-License-Identifier: Apache-2.0
"""``ladder.convert(calibration=...)``: what layers are given, block by block."""

import copy
import re
from dataclasses import replace

import pytest
import torch
import transformers
from hf_models import TINY
from sums import check_sums
from torch import nn

import ladder
from ladder.compensation import corrected
from ladder.errors import InvalidArgument
from ladder.nn.calibration import blocks, calls
from ladder.nn.select import survey

TOKENS = torch.randint(0, 128, (12, 48), generator=torch.Generator().manual_seed(1))
#: Blocks that differ in their masks, layers that are Conv1D, an encoder beside a decoder.
FAMILIES = ("Llama", "Gemma3", "GPT2", "T5")


def fresh(family="Llama"):
    """A model whose inputs of layers go together, as those of trained models."""
    torch.manual_seed(0)
    name = {"Gemma3": "Gemma3Text"}.get(family, family)
    sizes = TINY | {"num_hidden_layers": 3}
    if family == "GPT2":
        sizes = {"n_embd": 64, "n_layer": 3, "n_head": 2, "vocab_size": 128, "n_positions": 64}
    if family == "T5":
        sizes = {
            "d_model": 64, "d_kv": 32, "d_ff": 96, "num_layers": 2, "num_heads": 2,
            "vocab_size": 128, "decoder_start_token_id": 0,
        }  # fmt: skip
    config = getattr(transformers, f"{name}Config")(**sizes)
    kind = f"{family}ForConditionalGeneration" if family == "T5" else f"{family}ForCausalLM"
    if family == "GPT2":
        kind = "GPT2LMHeadModel"
    model = getattr(transformers, kind)(config).eval()
    embedding = model.get_input_embeddings().weight
    embedding.data = torch.randn(len(embedding), 6) @ torch.randn(6, embedding.shape[1])
    return model


def batches(family="Llama"):
    if family == "T5":
        return [{"input_ids": row[None], "decoder_input_ids": row[None]} for row in TOKENS]
    return TOKENS


def weights_of(model):
    return {n: m.packed_weight for n, m in model.named_modules() if isinstance(m, ladder.Linear)}


@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_of_the_model_move_less(family):
    model = fresh(family)
    every = [batch if family == "T5" else {"input_ids": batch[None]} for batch in batches(family)]
    wanted, errors = [model(**each).logits for each in every], []
    for calibration in (None, batches(family)):
        packed = copy.deepcopy(model)
        report = ladder.convert(packed, "uint3", 32, calibration=calibration)
        found = [packed(**each).logits for each in every]
        errors.append(sum((a - b).square().sum() for a, b in zip(found, wanted, strict=True)))
        assert len(report.errors) == (0 if calibration is None else len(report.packed))
    assert errors[1] < 0.8 * errors[0]
    for name, each in report.errors.items():
        assert 0 < each.error < each.nearest < each.size, name
        assert (each.weights, each.unseen) == (1, 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_that_run_alone_are_those_of_the_whole_model(family, monkeypatch):
    alone, whole = fresh(family), fresh(family)
    counts = []
    record = blocks.record

    def recorded(*given, **options):
        found = record(*given, **options)
        counts.append(found.count)
        return found

    monkeypatch.setattr(blocks, "record", recorded)
    ladder.convert(alone, "uint4", 32, calibration=batches(family))
    # Blocks of T5 have the positions of the first: each is recorded, of both models but the first.
    assert counts == (7 * [1] if family == "T5" else [3])
    monkeypatch.setattr(blocks, "record", lambda *a, **o: replace(record(*a, **o), count=1))
    ladder.convert(whole, "uint4", 32, calibration=batches(family))
    assert weights_of(alone) == weights_of(whole)


def test_inputs_are_what_quantised_layers_before_give_beside_those_of_the_dense_model():
    model, dense = fresh(), fresh()
    layers = survey(model).found
    first, second = "model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"
    seen, order = {}, []
    with calls.at_rest(model):
        for turn in blocks.in_turn(model, layers, calls.calls_of(TOKENS)):
            order.append([part.layer.name.rpartition(".")[2] for part in turn.parts])
            for part, hessians in zip(turn.parts, turn.hessians, strict=True):
                seen[part.layer.name] = hessians.of()
                if part.layer.name == first:
                    part.layer.module.weight.mul_(3)
    assert order == 3 * [
        ["q_proj", "k_proj", "v_proj"], ["o_proj"], ["gate_proj", "up_proj"], ["down_proj"]
    ]  # fmt: skip
    assert torch.equal(*seen[first])  # nothing before it has changed
    inputs = {}
    for which in (model, dense):
        rows = inputs[which] = []
        module = which.get_submodule(second)
        module.register_forward_pre_hook(lambda _, args, rows=rows: rows.append(args[0]))
        with torch.no_grad():
            for row in TOKENS:
                which(row[None])
    x, before = (torch.cat(inputs[which]).flatten(0, 1) for which in (model, dense))
    hessian, cross = seen[second]
    check_sums(hessian, x, x)
    check_sums(cross, before, x)
    for wrong in ((hessian, before, x), (cross, x, x)):  # the checks tell them apart
        with pytest.raises(AssertionError):
            check_sums(*wrong)


def test_blocks_may_write_to_their_inputs():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x):
            x += self.linear(x)
            return x

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(3))

        def forward(self, x):
            x = x * 1.0
            for block in self.blocks:
                x = block(x)
            return x

    torch.manual_seed(0)
    net, x = Net(), torch.randn(50, 16)
    with torch.no_grad():
        turns = list(blocks.in_turn(net, survey(net).found, calls.calls_of([x])))
        for turn, block in zip(turns, net.blocks, strict=True):
            hessian, cross = turn.hessians[0].of()
            check_sums(hessian, x, x)
            assert torch.equal(hessian, cross)
            x = x + block.linear(x)


def test_a_layer_undoes_what_a_layer_before_it_has_changed():
    """The first layer is quantised to one bit; the second makes up for what it can."""
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Sequential(nn.Linear(8, 64)), nn.Sequential(nn.Linear(64, 32))])
    x = torch.randn(500, 8)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = copy.deepcopy(model)

        def forward(self, x):
            return self.blocks[1](self.blocks[0](x))

    errors = []
    for calibration in (None, [x]):
        net = Net()
        wanted = net(x)
        net.blocks[0][0].weight.data += 0.1 * torch.randn(64, 8)
        kept = net.blocks[0][0]
        net.blocks[0][0] = nn.Linear(8, 64)
        net.blocks[0][0].load_state_dict(model[0][0].state_dict())
        turns = blocks.in_turn(net, survey(net).found, calls.calls_of([x]))
        for turn in turns if calibration else ():
            (part,), (sums,) = turn.parts, turn.hessians
            weight, (hessian, cross) = part.layer.module.weight, sums.of()
            if part.layer.name == "blocks.0.0":
                weight.data.copy_(kept.weight)
            else:
                weight.data.copy_(corrected(weight.detach(), hessian, cross))
        net.blocks[0][0] = kept
        errors.append((net(x) - wanted).square().sum().item())
    assert errors[1] < 0.1 * errors[0]


def test_the_model_is_at_rest_meanwhile_and_as_before_afterwards():
    model = fresh().train()
    model.model.layers[1].eval()
    model.model.layers[0].self_attn.attention_dropout = 0.5
    states = []
    model.model.norm.register_forward_hook(
        lambda *_: states.append((model.training, model.config.use_cache, torch.is_grad_enabled()))
    )
    ladder.convert(model, "uint4", 32, calibration=TOKENS, skip="model.layers.1")
    assert set(states) == {(False, False, False)}
    assert model.training and not model.model.layers[1].training and model.config.use_cache
    assert all(not m._forward_pre_hooks for m in model.modules())


def test_ways_to_give_batches():
    dense = fresh()
    found = []
    for calibration in (
        TOKENS,
        list(TOKENS.split(1)),
        ({"input_ids": row[None]} for row in TOKENS),
        [(row[None],) for row in TOKENS],
    ):
        model = copy.deepcopy(dense)
        ladder.convert(model, "nf4", 32, calibration=calibration)
        found.append(weights_of(model))
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize(
    "calibration, words",
    [
        ([], "calibration has no batch"),
        ("a text", "calibration is of str, not batches"),
        (7, "calibration is of int"),
        (torch.tensor(7), "calibration is of Tensor"),
        (TOKENS[:0], "calibration has no batch"),
        ({"input_ids": TOKENS}, "calibration is of dict"),
        ([TOKENS, "a text"], "batch 1 of calibration is of str"),
        (TOKENS + 1000, "the model cannot be called with batch 0 of calibration: IndexError"),
        ([{"ids": TOKENS}], "the model cannot be called with batch 0 of calibration"),
    ],
)
def test_what_the_model_cannot_be_called_with_is_refused_and_nothing_changes(calibration, words):
    model = fresh()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InvalidArgument, match=re.escape(words)):
        ladder.convert(model, "uint4", 32, calibration=calibration)
    after = model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert all(not m._forward_pre_hooks and not m._forward_hooks for m in model.modules())


def test_weights_that_are_not_finite_are_named_as_without_calibration():
    model = fresh()
    model.model.layers[1].mlp.up_proj.weight.data[3, 7] = float("inf")
    said = []
    for calibration in (None, TOKENS):
        with pytest.raises(InvalidArgument, match="at row 3, column 7 is inf") as error:
            ladder.convert(copy.deepcopy(model), "uint4", 32, calibration=calibration)
        said.append(str(error.value))
    assert said[0] == said[1]


@pytest.mark.parametrize(
    "options, words",
    [
        ({"activation_type": "bogus"}, "bogus"),
        (
            {"activation_type": "int8", "weight_type": "float8_e4m3"},
            "int8 does not take float8_e4m3",
        ),
        ({"weight_type": "float16"}, "type float16 has 16 bits; calibration chooses"),
    ],
)
def test_what_can_be_known_before_is_refused_before_anything_changes(options, words):
    model = fresh()
    before = copy.deepcopy(model.state_dict())
    options = {"weight_type": "uint4"} | options
    with pytest.raises((InvalidArgument, ladder.Unsupported), match=words):
        ladder.convert(model, calibration=TOKENS, **options)
    after = model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_autocast_inference_mode_and_half_precision():
    dense = fresh()
    wanted = copy.deepcopy(dense)
    ladder.convert(wanted, "uint4", 32, calibration=TOKENS)
    with torch.inference_mode():
        model = copy.deepcopy(dense)  # its weights are such tensors
        ladder.convert(model, "uint4", 32, calibration=TOKENS)
    assert weights_of(model) == weights_of(wanted)
    for dtype in (torch.bfloat16, torch.float16):
        model = copy.deepcopy(dense)
        with torch.autocast("cpu", dtype):
            report = ladder.convert(model, "uint4", 32, calibration=TOKENS)
        assert all(each.error < each.nearest for each in report.errors.values())
        model = copy.deepcopy(dense).to(dtype)
        report = ladder.convert(model, "uint4", 32, calibration=TOKENS)
        assert all(each.error < each.nearest for each in report.errors.values())


def test_batches_are_not_written_to():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(32, 32)

        def forward(self, x):
            x += 1
            return self.linear(x)

    x = torch.randn(10, 32)
    kept = x.clone()
    ladder.convert(Writes(), "uint4", 32, calibration=[x])
    assert torch.equal(x, kept)


def test_inputs_that_are_not_finite_are_named():
    model = fresh()
    model.model.layers[1].mlp.up_proj.weight.data[3] = 1e30
    with pytest.raises(InvalidArgument, match=r"layers\.1\.mlp\.down_proj: calibration data gives"):
        ladder.convert(model, "uint4,group=32,scale=float32", calibration=TOKENS)
    assert all(not m._forward_pre_hooks and not m._forward_hooks for m in model.modules())


def test_a_model_that_is_not_loaded_is_told_as_such_before_anything_changes():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64, device="meta"))
    before = model[0].weight.detach().clone()
    with pytest.raises(InvalidArgument, match=r"^1\.weight is on the meta device"):
        ladder.convert(model, "uint4", 32, calibration=[torch.ones(2, 64)], skip=["1"])
    assert torch.equal(model[0].weight, before)
