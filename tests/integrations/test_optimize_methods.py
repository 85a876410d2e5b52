# SPDX-License-Identifier: Apache-2.0
"""Activation functions that a method beside the forward calls, as DistilBERT's."""

import pytest
import torch
from hf_models import plain_model, run
from torch import nn

import ladder
from ladder.nn.activated import ActivatedLinear

K = 32


class Chunked(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.out = nn.Linear(K, K), nn.Linear(K, K)
        self.act, self.calls = nn.GELU(), []
        ladder.convert(self, "int8", 32)

    def forward(self, x):
        return torch.cat([self.chunk(each) for each in x.split(1)])

    def chunk(self, x):
        y = self.fc(x)
        y = self.act(y)
        return self.out(y)


class ReadsInForwardToo(Chunked):
    def forward(self, x):
        return self.act(super().forward(x))


class ReadsInAnotherMethod(Chunked):
    def sums(self, x):
        return self.fc(x)

    def forward(self, x):
        return super().forward(x) + self.sums(x)


class OverridesTheMethod(Chunked):
    def chunk(self, x):
        return super().chunk(x) + self.fc(x)


class GivesItElsewhere(Chunked):
    def chunk(self, x):
        y = self.fc(x)
        z = self.act(y)
        return self.out(z) + y


def seen(model, x):
    """The result, and whether the layer gave the function of its sums."""
    given = []
    multiplied = model.fc._multiplied
    model.fc._multiplied = lambda *a: given.append(a[2].__name__) or multiplied(*a)
    y = model(x)
    del model.fc._multiplied
    return y, "_function_by_image" in given


@pytest.mark.parametrize(
    "kind", [ReadsInForwardToo, ReadsInAnotherMethod, OverridesTheMethod, GivesItElsewhere]
)
def test_what_is_read_elsewhere_stays_as_it_is(kind):
    model, x = kind(), torch.randn(3, K)
    want = model(x)
    assert not ladder.optimize(model, example=x).activated
    assert torch.equal(model(x), want) and type(model.fc) is ladder.Linear


def test_a_method_that_alone_reads_it_is_enough():
    model, x = Chunked(), torch.randn(3, K)
    want = model(x)
    assert ladder.optimize(model, example=x).activated == ["fc"]
    assert isinstance(model.fc, ActivatedLinear)
    y, taken = seen(model, x)
    assert taken and torch.equal(y, want)
    assert torch.equal(model.chunk(x[:1]), want[:1])  # by itself, from outside
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), want)


@pytest.mark.parametrize("on", ["module", "class"])
def test_a_method_that_is_replaced_gets_the_sums(on, monkeypatch):
    model, x = Chunked(), torch.randn(3, K)
    assert ladder.optimize(model, example=x).activated == ["fc"]
    replaced = lambda self, x: self.fc(x) * 2  # noqa: E731
    if on == "class":
        monkeypatch.setattr(Chunked, "chunk", replaced)
    else:
        model.chunk = replaced.__get__(model)
    y, taken = seen(model, x)
    assert not taken
    assert torch.equal(y, ladder.Linear.forward(model.fc, x) * 2)
    assert not ladder.optimize(model, example=x).activated


@pytest.mark.parametrize("size", [0, 2])
def test_chunks_of_distilbert_give_the_same(size):
    model, inputs = plain_model("DistilBert", chunk_size_feed_forward=size)
    want = run(model, inputs)
    assert len(ladder.optimize(model, example=inputs).activated) == 2
    assert torch.equal(run(model, inputs), want)
