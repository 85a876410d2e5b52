# SPDX-License-Identifier: Apache-2.0
"""ladder.choose_types of layers, outputs and data of all kinds, and what it refuses."""

import copy

import hf_mixtures
import pytest
import torch
import transformers
from choosing import OPTIONS, TOKENS, TYPES, check_unchanged, fresh, state_of
from torch import nn

import ladder
from ladder.errors import InvalidArgument


@pytest.mark.parametrize("kind", hf_mixtures.MODELS)
def test_a_stack_of_experts_is_one_unit(kind):
    model = hf_mixtures.fresh(kind)
    before = state_of(model)
    chosen = ladder.choose_types(model, TYPES, 3.5, TOKENS, group_size=16)
    check_unchanged(model, before)
    names = {unit.name for unit in chosen.units}
    assert {f"{hf_mixtures.FIRST}.gate_up", f"{hf_mixtures.FIRST}.down"} <= names
    report = ladder.convert(model, types=chosen)
    assert report.packed == {name: str(ttype) for name, ttype in chosen.items()}
    assert sum(unit.weights for unit in chosen.units) == report.weights


def test_convolutions_are_units_of_a_model_without_logits():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 16, 3), nn.Flatten(),
        nn.Linear(16 * 36, 10),
    )  # fmt: skip
    images = [torch.randn(4, 16, 8, 8)]
    before = state_of(model)
    chosen = ladder.choose_types(
        model, TYPES, 3.5, images, convolutions=True, group_size=16, measure="each"
    )
    check_unchanged(model, before)
    assert [unit.name for unit in chosen.units] == ["0", "2", "4"]
    assert chosen.measure.startswith("squared difference of outputs")
    unit = chosen.units[1]
    for text, cost in unit.costs.items():
        alone = copy.deepcopy(model)
        ladder.convert(alone, text, convolutions=True, skip=["0", "4"])
        with torch.no_grad():
            y, dense = alone(*images).double(), model(*images).double()
        wanted = ((y - dense).square().sum() / dense.square().sum()).item()
        # The packed convolution and torch's add in another order.
        assert cost == pytest.approx(wanted, rel=1e-3)
    ladder.convert(model, types=chosen, convolutions=True)


class Answers(nn.Module):
    """Gives what ``form`` makes of its two results."""

    def __init__(self, form):
        super().__init__()
        self.first, self.second, self.form = nn.Linear(64, 64), nn.Linear(64, 32), form

    def forward(self, x):
        return self.form(self.first(x).relu(), self.second(x))


def output(**fields):
    return transformers.utils.ModelOutput(**fields)


@pytest.mark.parametrize(
    ("form", "what"),
    [
        (lambda a, b: (a, b), "squared"),
        (lambda a, b: [torch.arange(3), {"b": b}], "squared"),
        (lambda a, b: {"hidden": a, "logits": b}, "KL"),
        (lambda a, b: output(hidden=a, logits=b), "KL"),
        (lambda a, b: output(hidden=a, logits=b[..., :1]), "squared"),
        (lambda a, b: {"logits": b.masked_fill(torch.arange(32) < 5, -torch.inf)}, "KL"),
    ],
    ids=["tuple", "list", "dict", "output", "score", "masked"],
)
def test_what_is_compared_of_outputs(form, what):
    torch.manual_seed(0)
    model = Answers(form)
    x = [torch.randn(20, 64)]
    chosen = ladder.choose_types(model, TYPES, 3.6, x, group_size=32, measure="each")
    assert chosen.measure.startswith(what)
    (unit,) = chosen.units  # both layers have one input: engines would run them as one
    costs = list(unit.costs.values())
    assert sorted(costs, reverse=True) == costs and 0 < costs[-1] < costs[0] < 10


def test_a_unit_that_no_input_reaches_counts_as_the_median_of_others():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            return self.used(x)

    torch.manual_seed(0)
    chosen = ladder.choose_types(Net(), TYPES, 3.5, torch.randn(3, 9, 64), **OPTIONS)
    used, unused = chosen.units
    assert used.measured and not unused.measured
    for text in used.costs:
        assert unused.costs[text] == pytest.approx(used.costs[text], rel=0.3)  # like weights
    assert "no calibration data reached 1 of 2, such as unused" in str(chosen)


# --- what is not to be chosen ---------------------------------------------------------------------


def test_tied_and_skipped_layers_are_not_chosen_for():
    model = fresh(tie_word_embeddings=True)
    for skip in (None, ["layers.0", "lm_head"], ()):
        chosen = ladder.choose_types(model, TYPES, 3.5, TOKENS, skip=skip, **OPTIONS)
        assert "lm_head" not in chosen
        assert any("layers.0" in name for name in chosen) == (skip != ["layers.0", "lm_head"])
        ladder.convert(copy.deepcopy(model), types=chosen, skip=skip)
    untied = ladder.choose_types(fresh(), TYPES, 3.5, TOKENS, skip=(), **OPTIONS)
    assert "lm_head" in untied


def test_types_whose_groups_do_not_divide_are_none_for_the_layer():
    """K of down_proj is 96; groups of at least a whole row are those of a row."""
    types = ["uint2,group=64,scale=float16", "uint4,group=32,scale=float16", "uint6,group=128"]
    chosen = ladder.choose_types(fresh(), types, 3.5, TOKENS)
    for unit in chosen.units:
        found = {ladder.ttype(text).element.name for text in unit.costs}
        assert found == ({"uint4", "uint6"} if "down" in unit.name else {"uint2", "uint4", "uint6"})
    alone = ladder.choose_types(fresh(), types[:1], 3.5, TOKENS)  # where no type divides, all may
    assert any("down" in unit.name for unit in alone.units)


def test_types_that_do_not_take_activations_are_none_for_the_layer():
    types = ["uint4,group=16,scale=float16", "uint4,group=12,scale=float16"]
    with_x = ladder.choose_types(fresh(), types, 6, TOKENS, activation_type="int8", **{})
    assert {str(t) for t in with_x.values()} == {str(ladder.ttype(types[0]))}


def refused(match, model=None, types=TYPES, bits=3.5, calibration=TOKENS, **options):
    model = fresh() if model is None else model
    before = state_of(model)
    with pytest.raises(InvalidArgument, match=match):
        ladder.choose_types(model, types, bits, calibration, **{**OPTIONS, **options})
    check_unchanged(model, before)


def test_what_is_refused_leaves_the_model_as_it_was():
    refused("bits is 2.4, and the smallest types take 2.5 bits a weight", bits=2.4)
    for bits in (0, -1.0, float("nan"), float("inf"), "3", True):
        refused("not a positive number of bits", bits=bits)
    refused("types is empty", types=[])
    refused("types is {'a': 'uint4'}, not types to choose from", types={"a": "uint4"})
    refused("float16 has 16 bits", types=["float16", "uint4"])
    refused("method is", method="best")
    refused('measure is "all", not one of one, each', measure="all")
    refused("windows is 0", windows=0)
    refused("tokens is 2.5, not an integer", tokens=2.5)
    refused("calibration is of Tensor", calibration=torch.tensor(3))
    refused("calibration has no batch", calibration=[])
    refused("names no module", skip=["nothere"])
    refused("cannot be called with batch 0", calibration=[torch.randn(3, 3)])
    refused("the model has no layer to be quantised", nn.Sequential(nn.LayerNorm(4)))


def test_outputs_that_cannot_be_compared_are_refused():
    x = [torch.randn(20, 64)]
    refused("outputs for batch 0 .* not finite", Answers(lambda a, b: (a / 0, b)), calibration=x)
    refused("outputs for batch 0 .* not finite", Answers(lambda a, b: {"logits": b * torch.nan}),
            calibration=x)  # fmt: skip
    refused("no tensor of floats for batch 0", Answers(lambda a, b: None), calibration=x)
    refused("depend on no layer", Answers(lambda a, b: torch.ones(3)), calibration=x)
    refused("cannot be compared", Answers(lambda a, b: a[a[:, 0] > 1e-3]), calibration=[
        torch.randn(4000, 64)
    ])  # fmt: skip


def test_types_with_which_outputs_are_not_finite_are_not_chosen():
    """A stub of a model whose outputs overflow where weights err much."""
    model = Answers(lambda a, b: b)
    torch.manual_seed(0)
    x, wanted = torch.randn(20, 64), None

    def form(a, b):
        nonlocal wanted
        wanted = b if wanted is None else wanted
        return b * (torch.inf if (b - wanted).norm() > 0.25 * wanted.norm() else 1.0)

    model.form = form
    chosen = ladder.choose_types(model, TYPES, 3.5, [x], measure="each", **OPTIONS)
    assert "uint2" not in {ladder.ttype(text).element.name for text in chosen.units[0].costs}
    wanted = None
    with pytest.raises(InvalidArgument, match="no type is left .* outputs are not finite"):
        ladder.choose_types(model, ["uint2"], 3.5, [x], **OPTIONS)


def test_a_model_is_what_it_was_after_an_exception():
    model = fresh().train()
    before = state_of(model)

    def stop(name, done, count):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ladder.choose_types(model, TYPES, 3.5, TOKENS, progress=stop, **OPTIONS)
    check_unchanged(model, before)
    calls = 0

    def count(module, args):
        nonlocal calls
        calls += 1
        if calls == 9:  # while a layer is quantised
            raise RuntimeError("out of memory")

    handle = model.model.norm.register_forward_pre_hook(count)
    with pytest.raises(InvalidArgument, match="out of memory"):
        ladder.choose_types(model, TYPES, 3.5, TOKENS, **OPTIONS)
    handle.remove()
    check_unchanged(model, before)


# --- data -----------------------------------------------------------------------------------------


def test_few_windows_and_few_tokens_are_read():
    seen = []
    model = fresh()
    model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append((args or (kwargs["input_ids"],))[0]), with_kwargs=True
    )
    windows = torch.randint(0, 128, (30, 48))
    for batches in (
        windows,
        list(windows.split(1)),
        (row for row in windows.split(1)),
        [{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in windows.split(1)],
    ):
        seen.clear()
        ladder.choose_types(model, TYPES, 3.5, batches, windows=3, tokens=16, **OPTIONS)
        found = {tuple(each.flatten().tolist()) for each in seen}
        assert found == {tuple(windows[at, :16].tolist()) for at in (0, 14, 29)}
    images = [torch.randn(2, 64, 64)] * 2
    net = nn.Sequential(nn.Linear(64, 64))
    net.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    seen.clear()
    ladder.choose_types(net, TYPES, 3.5, images, tokens=16, **OPTIONS)
    assert {tuple(each.shape) for each in seen} == {(2, 64, 64)}  # no token ids


def test_weights_of_inference_mode_and_halves():
    with torch.inference_mode():
        model = fresh()
    chosen = ladder.choose_types(model, TYPES, 3.5, TOKENS, **OPTIONS)
    with torch.inference_mode():
        assert dict(ladder.choose_types(model, TYPES, 3.5, TOKENS, **OPTIONS)) == dict(chosen)
    half = fresh().to(torch.bfloat16)
    before = state_of(half)
    ladder.choose_types(half, TYPES, 3.5, TOKENS, **OPTIONS)
    check_unchanged(half, before)
