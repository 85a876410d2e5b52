# SPDX-License-Identifier: Apache-2.0
"""Gated MLPs whose forward goes by dtypes, as T5's, which gives ``wo`` the product in the dtype of
its weight; and what is left of a gated weight when its layers are gone."""

import copy
import gc
import weakref

import pytest
import torch
from hf_models import load, logits
from torch import nn
from torch.nn import functional

import ladder
from ladder.integrations.transformers import LadderConfig
from ladder.nn.gated_form import Form, form_of
from ladder.ops.gating import Gating

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def t5(dtype, activation="gated-gelu"):
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    fields = dict(d_model=64, d_kv=32, d_ff=96, num_layers=1, num_heads=2, vocab_size=128)
    config = T5Config(**fields, decoder_start_token_id=0, feed_forward_proj=activation)
    model = T5ForConditionalGeneration(config).eval().to(dtype)
    ladder.convert(model, "int8", 32)
    return model


def results(model):
    ids = torch.arange(8)[None]
    with torch.no_grad():
        return model(input_ids=ids, decoder_input_ids=ids).logits


@pytest.mark.parametrize("activation", ["gated-gelu", "gated-silu"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("of_wo", [None, torch.float32])
def test_gated_mlps_of_t5_give_the_same(dtype, of_wo, activation):
    """transformers keeps ``wo`` in float32, whatever the dtype of the model is."""
    model = t5(dtype, activation)
    mlps = {n: m for n, m in model.named_modules() if type(m).__name__ == "T5DenseGatedActDense"}
    for mlp in mlps.values():
        mlp.wo.to(of_wo)
    apart, ids = copy.deepcopy(model), torch.arange(8)[None]
    done = ladder.optimize(model, example={"input_ids": ids, "decoder_input_ids": ids})
    assert done.gated == [*mlps] and len(mlps) == 2 and not done.ungated
    for mlp in mlps.values():
        assert mlp._gated.form.casts and mlp._gated.form.own == "act"
    assert torch.equal(results(model), results(apart))
    torch._dynamo.reset()
    x = torch.randn(3, 64, dtype=dtype)
    for name, mlp in mlps.items():
        with torch.no_grad():
            made = torch.compile(mlp, backend="eager", fullgraph=True)(x)
            assert torch.equal(made, apart.get_submodule(name)(x)), name
            assert made.dtype == (of_wo or dtype)


class Casts(nn.Module):
    """As T5's, with ``before`` in front of its last layer."""

    def __init__(self, before):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 32), nn.Linear(8, 32), nn.Linear(32, 8)
        for name in ("gate", "up", "down"):
            layer = ladder.Linear.from_linear(getattr(self, name), "int8", 8)
            setattr(self, name, layer)
        self.act, self.before = nn.SiLU(), before

    def forward(self, x):
        return self.down(self.before(self, self.act(self.gate(x)) * self.up(x)))


def as_t5(self, y):
    return y.to(self.down.weight.dtype) if y.dtype != self.down.weight.dtype else y


def always(self, y):
    return y.to(self.down.weight.dtype)


def one_dtype_rounds(self, y):
    return y.to(torch.bfloat16) if y.dtype == torch.float16 else y


def one_dtype_is_scaled(self, y):
    return y * 2 if y.dtype == torch.float16 else y


def asks_again(self, y):
    y = as_t5(self, y)
    return y * 2 if y.dtype == self.down.weight.dtype else y


def casts_of_other_dtype_only(self, y):
    return y.to(self.down.weight.dtype) if y.dtype == torch.float16 else y


def test_a_cast_to_the_dtype_of_the_last_layer_is_known():
    form = form_of(Casts(as_t5))
    assert form == Form("gate", "up", "down", Gating("silu"), ("act",), casts=True, own="act")


@pytest.mark.parametrize(
    "before",
    [one_dtype_rounds, one_dtype_is_scaled, asks_again, casts_of_other_dtype_only],
)
def test_what_else_goes_by_dtypes_stays_as_it_is(before):
    assert isinstance(form_of(Casts(before)), str)
    x = torch.randn(2, 8)
    model = nn.Sequential(Casts(before))
    want = {dtype: model(x.to(dtype)) for dtype in FLOATS}
    assert ladder.optimize(model, example=x).gated == []
    assert all(torch.equal(model(x.to(dtype)), y) for dtype, y in want.items())


def test_a_cast_without_a_question_is_the_same_where_it_is_known():
    model, x = nn.Sequential(Casts(always)), torch.randn(2, 8)
    want = {dtype: model(x.to(dtype)) for dtype in FLOATS}
    ladder.optimize(model, example=x)
    assert all(torch.equal(model(x.to(dtype)), y) for dtype, y in want.items())


def test_a_function_that_is_replaced_is_the_one_that_counts():
    model, x = nn.Sequential(Casts(as_t5)), torch.randn(2, 8)
    assert ladder.optimize(model, example=x).gated == ["0"]
    apart = Casts(as_t5)
    apart.load_state_dict(copy.deepcopy(model[0]).state_dict())
    apart.act = model[0].act = nn.Tanh()
    assert torch.equal(model(x), apart(x))
    assert not torch.equal(apart(x), apart.down(functional.silu(apart.gate(x)) * apart.up(x)))


def test_nothing_is_left_of_weights_whose_layers_became_dense(dense_folder):
    model = load(dense_folder, quantization_config=LadderConfig("int8", 32))
    done = ladder.optimize(model)
    held = [
        weakref.ref(module.__dict__[key].linear)
        for module in model.modules()
        for key in ("_gated", "_merged")
        if key in module.__dict__
    ]
    assert done.gated and len(held) > len(done.gated)
    model.dequantize()
    gc.collect()
    assert not any(ref() for ref in held)
    assert not [m for m in model.modules() if isinstance(m, ladder.Linear)]
    assert [type(m).__name__ for m in model.modules() if "_gated" in m.__dict__] == []
    apart = load(dense_folder, quantization_config=LadderConfig("int8", 32))
    apart.dequantize()
    assert torch.equal(logits(model), logits(apart))
