# SPDX-License-Identifier: Apache-2.0
"""ladder.choose_types: types by layer for a budget of bits."""

import copy

import pytest
import torch
import transformers
from choosing import (
    OPTIONS,
    TOKENS,
    TYPES,
    check_unchanged,
    divergence,
    fresh,
    state_of,
    stored_bits,
)

import ladder
from ladder.errors import InvalidArgument


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
