# SPDX-License-Identifier: Apache-2.0
"""ladder.choose_types: types by layer for a budget of bits."""

import copy

import hf_mixtures
import pytest
import torch
import transformers
from hf_models import TINY
from torch import nn

import ladder
from ladder.errors import InvalidArgument

TOKENS = torch.randint(0, 128, (5, 40), generator=torch.Generator().manual_seed(1))
TYPES = ("uint2", "uint3", "uint4", "uint6")
OPTIONS = {"group_size": 32}


def fresh(family="Llama", **more):
    """A model whose blocks matter unlike."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**(TINY | {"num_hidden_layers": 3} | more))
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for depth, block in enumerate(model.model.layers):
        for module in block.modules():
            if isinstance(module, nn.Linear):
                module.weight.data *= 3.0 - depth
    return model


def state_of(model):
    """The very parameters, and their bits."""
    parameters = {name: (p, p.detach().clone()) for name, p in model.named_parameters()}
    training = [module.training for module in model.modules()]
    return parameters, training


def check_unchanged(model, before):
    parameters, training = before
    now = dict(model.named_parameters())
    assert now.keys() == parameters.keys()
    for name, (parameter, values) in parameters.items():
        assert now[name] is parameter and torch.equal(parameter, values), name
    assert [module.training for module in model.modules()] == training


def divergence(dense, moved):
    """Mean over positions of KL(dense || moved), in float64."""
    log_p, log_q = (each.double().log_softmax(-1) for each in (dense, moved))
    return (log_p.exp() * (log_p - log_q)).sum(-1).mean().item()


def stored_bits(model):
    layers = [m for m in model.modules() if isinstance(m, ladder.Linear)]
    weights = sum(layer.in_features * layer.out_features for layer in layers)
    return sum(8 * layer.packed_weight.nbytes for layer in layers) / weights


# --- units, costs and the choice ------------------------------------------------------------------


def test_layers_that_engines_fuse_are_one_unit():
    chosen = ladder.choose_types(fresh(), TYPES, 3.5, TOKENS, **OPTIONS)
    names = [unit.name for unit in chosen.units]
    assert names == [
        f"model.layers.{depth}.{name}"
        for depth in range(3)
        for name in ("self_attn.{q_proj,k_proj,v_proj}", "self_attn.o_proj",
                     "mlp.{gate_proj,up_proj}", "mlp.down_proj")
    ]  # fmt: skip
    for unit, text in zip(chosen.units, chosen.chosen, strict=True):
        assert {str(chosen[name]) for name in unit.modules} == {text}
    assert sum(len(unit.modules) for unit in chosen.units) == len(chosen) == 21


def test_layers_of_other_modules_with_the_same_input_are_units_of_their_own():
    """Decoder blocks of T5 all read what its encoder gives."""
    torch.manual_seed(0)
    config = transformers.T5Config(
        d_model=64, d_kv=32, d_ff=96, num_layers=2, num_heads=2, vocab_size=128,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    batches = [{"input_ids": row[None], "decoder_input_ids": row[None]} for row in TOKENS]
    chosen = ladder.choose_types(model, TYPES, 3.5, batches, **OPTIONS)
    cross = [unit.name for unit in chosen.units if "EncDecAttention" in unit.name]
    assert cross == [
        f"decoder.block.{depth}.layer.1.EncDecAttention.{name}"
        for depth in range(2)
        for name in ("q", "{k,v}", "o")
    ]


@pytest.mark.parametrize("measure", ["one", "each"])
def test_a_cost_is_how_far_the_unit_alone_moves_predictions(measure):
    model = fresh()
    with torch.no_grad():
        dense = model(TOKENS).logits
    chosen = ladder.choose_types(model, TYPES, 3.5, TOKENS, measure=measure, **OPTIONS)
    assert chosen.measure.startswith("KL divergence")
    for unit in chosen.units[::3]:
        assert len(unit.measured) == (1 if measure == "one" else len(TYPES))
        errors = {}
        for text in unit.costs:
            alone, squares = copy.deepcopy(model), torch.zeros(2, dtype=torch.float64)
            for name in unit.modules:
                weight = alone.get_submodule(name).weight
                values = ladder.quantize(weight.data, text).dequantize()
                squares[0] += (values - weight).double().square().sum().item()
                squares[1] += weight.double().square().sum().item()
                weight.data = values
            errors[text] = (squares[0] / squares[1]).item()
            with torch.no_grad():
                cost = divergence(dense, alone(TOKENS).logits)
            if text in unit.measured:
                # Logits are float32: their differences err by 2^-23 of their size each.
                slack = 16 * 2**-23 * dense.abs().max().item() * cost**0.5
                assert abs(unit.costs[text] - cost) <= slack, (unit.name, text)
        (first, *_) = unit.measured
        if measure == "one":
            for text, cost in unit.costs.items():
                share = cost / unit.costs[first]
                assert share == pytest.approx(errors[text] / errors[first], rel=1e-4)


def test_costs_of_calibrated_codes_are_what_these_leave_of_outputs_errors():
    model = fresh()
    model.model.embed_tokens.weight.data = torch.randn(128, 6) @ torch.randn(6, 64)
    before, seen = state_of(model), []
    nearest = ladder.choose_types(model, TYPES, 3.5, TOKENS, measure="each", **OPTIONS)
    codes = ladder.choose_types(
        model, TYPES, 3.5, TOKENS, measure="each", calibrated=True, **OPTIONS,
        progress=lambda *call: seen.append(call),
    )  # fmt: skip
    check_unchanged(model, before)
    assert [done for _, done, _ in seen] == 2 * [*range(1, 13)]
    inputs = []
    name = "model.layers.1.mlp.down_proj"
    down = model.get_submodule(name)
    handle = down.register_forward_pre_hook(lambda _, args: inputs.append(args[0].flatten(0, 1)))
    with torch.no_grad():
        for row in TOKENS:
            model(row[None])
    handle.remove()
    x, weight = torch.cat(inputs), down.weight.detach()
    one, other = (next(u for u in c.units if u.name == name) for c in (nearest, codes))
    for text in one.costs:
        moved = [
            (x @ (ladder.quantize(weight, text, hessian=h).dequantize() - weight).T).square().sum()
            for h in (None, x.T @ x)
        ]
        share = other.costs[text] / one.costs[text]
        # Errors come of the Hessian, a sum in another order, and not of outputs.
        assert share == pytest.approx((moved[1] / moved[0]).item(), rel=1e-3) and share < 1
    assert codes.measure == f"{nearest.measure}, times what calibration leaves of it"


def test_the_choice_goes_into_convert_and_takes_the_bits_that_are_allowed():
    for bits in (2.5, 3.1, 3.5, 4.2, 6.5):
        model = fresh()
        before = state_of(model)
        chosen = ladder.choose_types(model, TYPES, bits, TOKENS, **OPTIONS)
        check_unchanged(model, before)
        report = ladder.convert(model, types=chosen)
        assert report.packed == {name: str(ttype) for name, ttype in chosen.items()}
        assert chosen.bits == pytest.approx(stored_bits(model), rel=1e-12)
        assert chosen.bits <= bits
        kinds = {ttype.element.name for ttype in chosen.values()}
        assert len(kinds) > 1 or bits in (2.5, 6.5)
        assert kinds == {"uint2"} if bits == 2.5 else kinds != {"uint2"}
    assert kinds == {"uint6"}  # whatever more is allowed


def test_layers_that_matter_more_have_more_bits():
    """Weights of the first block are three times as large as those of the last, and so is what
    rounding them changes."""
    chosen = ladder.choose_types(fresh(), TYPES, 3.5, TOKENS, measure="each", **OPTIONS)
    of_block = [
        sum(ttype.bits for name, ttype in chosen.items() if f"layers.{depth}." in name)
        for depth in range(3)
    ]
    assert of_block[0] > of_block[2]
    bits, cost = chosen.everywhere()["uint3,group=32,scale=float16,zero=midpoint"]
    assert bits == 3.5 and chosen.cost < cost
    again = chosen.at(3.5)
    assert dict(again) == dict(chosen) and again.cost == chosen.cost
    fewer = chosen.at(2.75)
    assert fewer.bits <= 2.75 and fewer.cost > chosen.cost and fewer.units is chosen.units
    with pytest.raises(InvalidArgument, match="bits is 2.25, and the smallest types take 2.5"):
        chosen.at(2.25)


def test_a_budget_of_one_type_is_that_type_or_better():
    for bits, text in ((2.5, "uint2"), (4.5, "uint4")):
        ttype = ladder.types.with_defaults(text, group_size=32)
        chosen = ladder.choose_types(fresh(), [ttype], bits, TOKENS)
        assert set(chosen.values()) == {ttype} and chosen.bits == bits


def test_the_table_has_a_row_for_each_unit():
    chosen = ladder.choose_types(fresh(), TYPES, 3.5, TOKENS, **OPTIONS)
    lines = str(chosen).splitlines()
    assert repr(chosen) == str(chosen) and lines[0].split() == ["modules", "type", "bits", "cost"]
    for line, unit, wanted in zip(lines[1:], chosen.units, chosen.chosen, strict=False):
        name, text, bits, cost = line.split()
        assert (name, text) == (unit.name, wanted)
        assert float(bits) == pytest.approx(unit.sizes[text] / unit.weights, abs=0.005)
        assert float(cost) == pytest.approx(unit.costs[text], rel=0.01)
    assert f"{chosen.bits:.3f} bits a weight, of 3.5 that were allowed" in str(chosen)
    found = chosen.to_dict()
    assert found["types"] == {name: str(ttype) for name, ttype in chosen.items()}
    assert [unit["costs"] for unit in found["units"]] == [dict(u.costs) for u in chosen.units]


# --- other layers and outputs ---------------------------------------------------------------------


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
    with pytest.raises(InvalidArgument, match=r"mlp\.down_proj: no type .*64 do not divide K = 96"):
        ladder.choose_types(fresh(), types[:1], 3.5, TOKENS)


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
