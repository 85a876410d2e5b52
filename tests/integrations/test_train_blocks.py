# SPDX-License-Identifier: Apache-2.0
"""Blocks whose weights are trained to give what the dense model's give."""

import copy

import numpy as np
import pytest
import torch
from hf_mixtures import MODELS, fresh
from hf_models import check_same, load, plain_model
from torch import nn
from typer.testing import CliRunner

import ladder
from ladder.checkpoints.calibrated import Calibration
from ladder.checkpoints.convert import convert
from ladder.cli import app
from ladder.compensation import levels_of, step_and_shift
from ladder.errors import InvalidArgument
from ladder.integrations.transformers import dense as make_dense
from ladder.nn.calibration.trained_weight import _MARGIN, TrainedWeight

TOKENS = torch.randint(0, 128, (6, 48), generator=torch.Generator().manual_seed(1))
TYPES = [
    "uint2,group=32,scale=float16,zero=midpoint",
    "uint3,channel,scale=float32,zero=integer",
    "uint4,group=16,scale=bfloat16,zero=quantized",
    "uint2,group=32,scale=float16,zero=rescale",
    "uint3,group=32,scale=float16,zero=original",
    "int2,block=16x32,scale=float16",
    "nf4,tensor,scale=float32",
    "mxfp4",
    "nvfp4",
    "float6_e3m2,group=32,scale=float16",
    "ternary,group=32,scale=float16",
    "uint1,group=32,scale=float16,zero=rescale",
    "uint4,group=32,scale=uint4,zero=midpoint,scale2=float32:channel",
    "uint2,group=16,scale=uint4,zero=rescale,scale2=float16:80",
    "nf4,group=16,scale=int6,scale2=bfloat16:80",
]


def weight_and_packed(type, n=48, k=80):
    torch.manual_seed(0)
    source = torch.randn(n, k)
    hessian = torch.randn(400, k) @ (torch.eye(k) + 0.3 * torch.randn(k, k))
    return source, ladder.quantize(source, type, hessian=hessian.T @ hessian)


@pytest.mark.parametrize("type", TYPES)
def test_training_begins_with_the_codes_and_scales_of_the_weight(type):
    source, packed = weight_and_packed(type)
    trained = TrainedWeight(source, packed)
    assert trained.packed() == packed
    levels, code_of = levels_of(packed.type)
    step, shift = step_and_shift(packed, levels, code_of)
    # Level times step plus shift in place of (level - zero) times scale: each rounded a few times.
    off = (trained.values() - packed.dequantize()).abs()
    largest = (levels.abs().max() * step.abs() + shift.abs()) * 2**-23
    assert (off <= 4 * largest).all()
    nearest = ladder.quantize(source, type)
    same = (packed.codes() == nearest.codes()) & (packed.dequantize() == nearest.dequantize())
    moved, gap = (trained.elements - source).abs(), levels.diff().max() * step.abs()
    assert same.any() and (moved <= _MARGIN * gap + 4 * largest)[same].all()


@pytest.mark.parametrize("type", TYPES)
def test_what_was_trained_is_what_products_saw(type):
    """Values of the packed weight are those of the last step, scales of 16 bits included."""
    source, packed = weight_and_packed(type)
    trained = TrainedWeight(source, packed)
    with torch.no_grad():
        trained.elements += 0.3 * trained.size_of_step() * torch.randn(source.shape)
        if trained.gains is not None:
            trained.gains += 0.1 * torch.randn(trained.gains.shape)
    made = trained.packed()
    made.check()
    assert made.type == packed.type and made != packed
    near = (trained.values() - made.dequantize()).abs() < 1e-5
    # But an element that is as near to two codes may have either: one in some 10 000 here.
    assert near.float().mean() > 0.999
    stays = packed.scales is None or packed.scales.dtype == torch.uint8
    assert torch.equal(made.scales, packed.scales) == stays == (trained.gains is None)


def test_gradients_are_those_of_learned_step_sizes():
    """Of an element within the range that of its value, else 0; of a scale by what rounding adds to
    an element that is within, and by the value of others."""
    source = torch.tensor([[0.9, -0.4, 1.7, -2.2, 0.1, 0.2, -0.3, 4.0]])
    packed = ladder.Weight.from_codes(
        torch.tensor([[3, 2, 3, 0, 2, 2, 2, 3]], dtype=torch.uint8),
        "uint2,group=8,scale=float32,zero=midpoint", scales=torch.ones(1, 1),
    )  # fmt: skip
    trained = TrainedWeight(source, packed)
    with torch.no_grad():
        trained.elements.copy_(source)
    grad = torch.arange(1.0, 9.0)[None]
    values = trained.values()
    values.backward(grad)
    assert values.tolist() == [[1, 0, 1, -2, 0, 0, 0, 1]]
    inside = torch.tensor([[1, 1, 0, 0, 1, 1, 1, 0]])
    assert torch.equal(trained.elements.grad, grad * inside)
    of_scale = torch.where(inside == 1, values - source, values)
    torch.testing.assert_close(trained.gains.grad, (grad * of_scale).sum()[None, None])


def off(model, dense, tokens):
    """How far hidden states behind the last block are off."""
    seen = []
    for each in (model, dense):
        blocks = each.model.layers
        hook = blocks[-1].register_forward_hook(
            lambda *a: seen.append(a[2][0] if isinstance(a[2], tuple) else a[2])
        )
        with torch.no_grad():
            each(tokens)
        hook.remove()
    return ((seen[0] - seen[1]).square().mean() / seen[1].square().mean()).sqrt().item()


@pytest.mark.parametrize("type", [TYPES[0], TYPES[3], "mxfp4"])
def test_blocks_give_what_is_nearer_to_the_dense_model(type, dense_folder):
    dense = load(dense_folder)
    calibrated, trained = copy.deepcopy(dense), copy.deepcopy(dense)
    free = {name: each.requires_grad for name, each in trained.named_parameters()}
    ladder.convert(calibrated, type, calibration=TOKENS)
    report = ladder.convert(trained, type, calibration=TOKENS, train_blocks=60)
    assert list(report.blocks) == ["model.layers.0", "model.layers.1"]
    assert all(each.trained < each.calibrated for each in report.blocks.values())
    assert "trained 2 blocks, 2 of them to advantage" in str(report)
    now, before = off(trained, dense, TOKENS), off(calibrated, dense, TOKENS)
    assert now < 0.97 * before
    rows = report.blocks["model.layers.1"].trained  # rows of their own size
    assert rows == pytest.approx(now, rel=0.2)
    for name, parameter in trained.named_parameters():
        assert parameter.requires_grad == free[name] and parameter.grad is None
    assert report.to_dict()["blocks"]["model.layers.0"]["trained"] > 0


def test_the_same_data_give_the_same_weights(dense_folder):
    made = [load(dense_folder) for _ in range(2)]
    for model in made:
        ladder.convert(model, "uint2", group_size=32, calibration=TOKENS, train_blocks=5)
    check_same(*made)


@pytest.mark.parametrize("family", ["GPT2", "OPT", "Bert", "ViT", "T5"])
def test_other_blocks(family):
    model, inputs = plain_model(family)
    model = make_dense(model)
    report = ladder.convert(model, TYPES[0], calibration=[inputs], train_blocks=8)
    assert report.blocks and report.packed
    model(**inputs)


@pytest.mark.parametrize("kind", MODELS)
def test_experts(kind):
    model = fresh(kind)
    report = ladder.convert(model, TYPES[0], calibration=TOKENS, train_blocks=30)
    assert report.stacks
    assert all(each.trained < each.calibrated for each in report.blocks.values())


class Convolved(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()) for _ in range(2)
        )

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_convolutions():
    torch.manual_seed(0)
    model = Convolved()
    x = torch.randn(4, 16, 8, 8)
    report = ladder.convert(
        model, TYPES[0], calibration=x, train_blocks=60, convolutions=True
    )  # fmt: skip
    assert report.convolutions == 2 and list(report.blocks) == ["blocks.0", "blocks.1"]
    assert any(each.trained < each.calibrated for each in report.blocks.values())


def test_half_precision(dense_folder):
    """Gradients keep within its range."""
    model = load(dense_folder, dtype=torch.float16)
    report = ladder.convert(model, TYPES[0], calibration=TOKENS, train_blocks=40)
    assert all(each.trained < each.calibrated for each in report.blocks.values())


def test_a_folder_offloaded_and_in_memory(dense_folder, tmp_path):
    pytest.importorskip("accelerate")
    np.save(tmp_path / "ids.npy", TOKENS.numpy().astype(np.uint16))
    for name, more in (("memory", ()), ("disk", ("--offload",))):
        result = CliRunner().invoke(app, [
            "convert", str(dense_folder), str(tmp_path / name), "--type", "uint2", "--group", "32",
            "--calibration", str(tmp_path / "ids.npy"), "--train-blocks", "40", "--device", "cpu",
            "--chunk", "48", *more,
        ])  # fmt: skip
        assert result.exit_code == 0, result.output
        assert "trained 2 blocks" in " ".join(result.output.split())
    check_same(load(tmp_path / "memory"), load(tmp_path / "disk"))
    plain = tmp_path / "plain"
    convert(dense_folder, plain, "uint2", group_size=32,
            calibration=Calibration(load(dense_folder), TOKENS))  # fmt: skip
    with pytest.raises(AssertionError):
        check_same(load(tmp_path / "memory"), load(plain))


def test_a_failure_leaves_the_model_as_calibration_would(dense_folder, monkeypatch):
    model = load(dense_folder)
    block, calls = model.model.layers[0], []
    forward = type(block).forward

    def failing(self, *args, **kwargs):
        calls.append(torch.is_grad_enabled())
        if sum(calls) == 3:
            raise RuntimeError("no")
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(block), "forward", failing)
    with pytest.raises(RuntimeError, match="no"):
        ladder.convert(model, TYPES[0], calibration=TOKENS, train_blocks=5)
    for module in model.modules():
        assert "weight" not in vars(module)
    assert all(each.requires_grad for each in model.parameters())


class Blocks(nn.Module):
    """Residual blocks; ``call`` is how the model calls them."""

    def __init__(self, call=lambda block, x: block(x)):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 256)) for _ in range(2)
        )
        self._call = call

    def forward(self, x):
        for block in self.blocks:
            x = x + self._call(block, x)
        return x


class Detached(nn.Sequential):
    def forward(self, x):
        return super().forward(x).detach()


def test_blocks_that_cannot_be_trained_are_named(caplog):
    """Those that run twice a call, and those whose outputs have no gradients."""
    x = torch.randn(4, 8, 256)
    model = Blocks(lambda block, x: block(block(x)))
    report = ladder.convert(model, TYPES[0], calibration=x, train_blocks=2)
    assert not report.blocks
    assert "2 of 2 blocks could not be trained, blocks.0, blocks.1" in caplog.text
    caplog.clear()
    model = Blocks()
    model.blocks[1] = Detached(*model.blocks[1])
    report = ladder.convert(model, TYPES[0], calibration=x, train_blocks=2)
    assert list(report.blocks) == ["blocks.0"]
    assert "1 of 2 blocks could not be trained, blocks.1:" in caplog.text
    caplog.clear()
    ladder.convert(Blocks(), TYPES[0], calibration=x, train_blocks=2)
    assert not caplog.text


def test_steps_have_as_many_rows_as_windows_have_on_average():
    """The first may be short."""
    calls = []
    for lengths in ((1, *[1000] * 5), (*[1000] * 5, 1)):
        model, count = Blocks(), []
        for block in model.blocks:
            block.register_forward_hook(lambda *_, count=count: count.append(1))
        batches = [torch.randn(1, length, 256) for length in lengths]
        ladder.convert(model, TYPES[0], calibration=batches, train_blocks=2)
        calls.append(len(count))
    assert calls[0] == calls[1]


def test_autocast_keeps_no_copies_of_weights_that_change():
    x = torch.randn(64, 4, 256)
    with torch.autocast("cpu", torch.bfloat16):
        model = Blocks()
        model(x)
        report = ladder.convert(model, TYPES[0], calibration=x, train_blocks=40)
        assert torch.is_autocast_cache_enabled()
    assert all(0.02 < each.trained < each.calibrated for each in report.blocks.values())


@pytest.mark.parametrize("name", ["q2_k", "q3_k"])
def test_a_model_of_superblocks_keeps_both_levels_of_scales(name):
    types = {"2": "uint2,group=32,scale=float16,zero=midpoint"}  # K = 64 has no superblocks
    how = {"calibration": torch.randn(64, 4, 256), "types": types}
    calibrated, trained = Blocks(), Blocks()
    ladder.convert(calibrated, name, **how)
    report = ladder.convert(trained, name, **how, train_blocks=60)
    assert all(each.trained < each.calibrated for each in report.blocks.values())
    for model in (calibrated, trained):
        assert str(model.blocks[0][0].weight_type) == name
    # Of the first block: training has changed inputs of the next one.
    before, after = calibrated.blocks[0][0].packed_weight, trained.blocks[0][0].packed_weight
    assert not torch.equal(before.qweight, after.qweight)
    for part in before.tensors().keys() - {"qweight"}:
        assert torch.equal(getattr(before, part), getattr(after, part))


@pytest.mark.parametrize("steps, said", [(-1, "train_blocks is -1"), (1.5, "train_blocks is 1.5"),
                                         (True, "train_blocks is True")])  # fmt: skip
def test_numbers_of_steps_that_are_none(steps, said, dense_folder):
    with pytest.raises(InvalidArgument, match=said):
        ladder.convert(load(dense_folder), TYPES[0], calibration=TOKENS, train_blocks=steps)


def test_what_cannot_be_trained():
    net = nn.Sequential(nn.Linear(32, 32))
    with pytest.raises(InvalidArgument, match="no layer of the model is in a list of modules"):
        ladder.convert(net, TYPES[0], calibration=torch.randn(4, 32), train_blocks=2)
    with pytest.raises(InvalidArgument, match="train_blocks needs calibration"):
        ladder.convert(net, TYPES[0], train_blocks=2)
    with torch.inference_mode():
        model = Convolved()
    with pytest.raises(InvalidArgument, match="inference mode"):
        ladder.convert(model, TYPES[0], calibration=torch.randn(1, 16, 8, 8), train_blocks=2,
                       convolutions=True)  # fmt: skip
    assert type(net[0]) is nn.Linear


def test_the_command_needs_data(tmp_path):
    result = CliRunner().invoke(app, ["convert", "a", "b", "--train-blocks", "5"])
    assert "--train-blocks is for --calibration" in str(result.exception)
