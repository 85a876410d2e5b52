# SPDX-License-Identifier: Apache-2.0
"""ladder.optimize on models of one's own that call functions of torch behind their layers, by the
globals of the forward, with constants."""

import copy
import pickle
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn, relu

import ladder
from ladder.nn import activated
from ladder.nn.activated import ActivatedLinear

other = types.SimpleNamespace(relu=F.relu)


def gelu(x):
    return F.gelu(x) * 2


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 64)


class Relu(Two):
    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x), inplace=True)
        return self.fc3(x)


class Names(Two):
    def forward(self, x):
        y = self.fc1(x)
        y = torch.nn.functional.gelu(y, approximate="tanh")
        z = self.fc2(y)
        z = relu(z)
        return self.fc3(z)


class Others(Two):
    """In a loop, and with dropout behind it."""

    def forward(self, x):
        y = F.dropout(F.silu(self.fc1(x)), 0.1, self.training)
        for _ in range(2):
            y = torch.tanh(self.fc2(y))
        return self.fc3(y)


TAKEN = [Relu, Names, Others]


class ReadsTwice(Two):
    def forward(self, x):
        y = self.fc1(x)
        return self.fc3(F.relu(y) + y)


class OfItsOwn(Two):
    def forward(self, x):
        return self.fc3(gelu(self.fc1(x)))


class Methods(Two):
    """What torch implements by a method of its argument."""

    def forward(self, x):
        return self.fc3(F.sigmoid(self.fc2(F.tanh(self.fc1(x)).relu())))


class OfAnObject(Two):
    def forward(self, x):
        return self.fc3(other.relu(self.fc1(x)))


class Given(Two):
    def forward(self, x, relu=F.silu):
        return self.fc3(relu(self.fc1(x)))


class Assigned(Two):
    def forward(self, x):
        relu = F.silu
        return self.fc3(relu(self.fc1(x)))


class NoConstant(Two):
    def forward(self, x):
        return self.fc3(F.relu(self.fc1(x), self.training))


class Second(Two):
    def forward(self, x):
        return self.fc3(torch.where(x[..., :32] > 0, self.fc1(x), self.fc1(x)))


def enclosed():
    relu = F.silu

    class Enclosed(Two):
        def forward(self, x):
            return self.fc3(relu(self.fc1(x)))

    return Enclosed


LEFT = [ReadsTwice, OfItsOwn, Methods, OfAnObject, Given, Assigned, NoConstant, Second, enclosed()]


@pytest.fixture
def taken(monkeypatch):
    """The results whose function was taken, as they come."""
    found = []

    class Counted(activated.ActivatedFor):
        def __init__(self, y, function):
            super().__init__(y, function)
            found.append(y)

    monkeypatch.setattr(activated, "ActivatedFor", Counted)
    return found


def packed(kind):
    torch.manual_seed(0)
    model = kind()
    ladder.convert(model, "uint4", group_size=32)
    return model.eval()


@pytest.mark.parametrize("kind", TAKEN)
def test_functions_of_torch_are_taken_and_results_stay(kind, taken):
    model, x = packed(kind), torch.randn(3, 64)
    want = model(x)
    done = ladder.optimize(model, example=x)
    assert done.activated == ["fc1", "fc2"] and not done.unactivated
    assert torch.equal(model(x), want) and len(taken) == (3 if kind is Others else 2)
    taken.clear()
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(same(x), want) and not taken
        assert type(same) is kind and type(same.fc1) is ladder.Linear
    ladder.unoptimize(model)
    assert torch.equal(model(x), want) and not taken and type(model) is kind


@pytest.mark.parametrize("kind", TAKEN)
def test_one_graph_has_the_functions(kind, monkeypatch):
    model, x = packed(kind), torch.randn(3, 64)
    want = model(x)
    ladder.optimize(model, example=x)
    calls, by_codes = [], ActivatedLinear._function_by_codes
    monkeypatch.setattr(
        ActivatedLinear, "_function_by_codes",
        lambda self, x, b: by_codes(self, x, b) * 2 / 2,
    )  # fmt: skip

    def backend(module, example):
        calls.extend(node for node in module.graph.nodes if 2 in node.args)
        return module.forward

    torch._dynamo.reset()
    made = torch.compile(model, backend=backend, fullgraph=True)(x)
    assert torch.equal(made, want) and len(calls) == 2 * (3 if kind is Others else 2)


def test_gradients_are_the_same():
    model, x = packed(Relu).train(), torch.randn(3, 64, requires_grad=True)
    model(x).square().sum().backward()
    want, x.grad = x.grad, None
    ladder.optimize(model, example=x.detach())
    model(x).square().sum().backward()
    torch.testing.assert_close(x.grad, want)


@pytest.mark.parametrize("kind", LEFT)
def test_what_proves_nothing_is_left(kind, taken):
    model, x = packed(kind), torch.randn(3, 64)
    want = model(x)
    done = ladder.optimize(model, example=x)
    assert not done.activated and torch.equal(model(x), want) and not taken


def test_a_function_that_is_replaced_gets_the_sums(taken, monkeypatch):
    model, x = packed(Relu), torch.randn(3, 64)
    ladder.optimize(model, example=x)
    seen = []

    def watching(sums, inplace=False):
        seen.append(sums)
        return sums.relu()

    want = model(x)
    taken.clear()
    monkeypatch.setattr(F, "relu", watching)
    assert torch.equal(model(x), want) and len(seen) == 2 and not taken
    assert all(type(each) is torch.Tensor for each in seen)


def test_another_function_raises():
    """It cannot come that far: the names are looked up before."""
    sent = activated.ActivatedFor(torch.randn(3), F.relu)
    assert F.relu(sent) is sent.y
    why = "^gelu gets the sums of a layer whose activation function ladder.optimize has taken"
    with pytest.raises(ladder.Unsupported, match=why):
        F.gelu(sent)
    with pytest.raises(ladder.Unsupported, match="^add gets the sums"):
        torch.add(torch.randn(3), sent)
    with pytest.raises(TypeError):
        sent + 1
    with pytest.raises(AttributeError):
        F.tanh(sent)
