# SPDX-License-Identifier: Apache-2.0
"""What the source of a forward proves of the result of a child, and what it does not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.utils.deprecation import deprecate_kwarg

from ladder.integrations.serving.gated import FusedActivation, gating_of, product_after
from ladder.nn.sole_reader import sole_reader
from ladder.ops.gating import Gating


def helper(act, x, down):
    return act(x)


def other_helper(act, x, down):
    return act(x)


class OneName(nn.Module):
    def forward(self, x):
        x, _ = self.up(x)
        x = self.act(x)
        x, _ = self.down(x)
        return x


class TwoNames(nn.Module):
    def forward(self, x):
        both, _ = self.up(x)
        hidden = self.act(both)
        if self.gate is not None:
            hidden = hidden * self.gate
        return self.down(hidden)[0] + x


class Nested(nn.Module):
    def forward(self, x):
        return self.down(self.act(self.up(x)[0]))[0]


class Branch(nn.Module):
    def forward(self, x, other=None):
        if other is None:
            y, _ = self.up(x)
            y = self.act(y)
        else:
            y = self.down(other)
        return y


class NestedBesideLoops(nn.Module):
    def forward(self, x):
        for _ in range(2):
            x = self.act(self.up(x)[0])
        while x.sum() > 0:
            x = x - 1
        return x


class ByHelper(nn.Module):
    def forward(self, x):
        x, _ = self.up(x)
        x = helper(self.act, x, self.down)
        return self.down(x)


class Inherits(OneName):
    pass


class OthersOfSameName(OneName):
    def load_weights(self, weights):
        return [self.down, weights]


HELPER = (f"{__name__}.helper",)
GOOD = (OneName, TwoNames, Nested, NestedBesideLoops, Branch, ByHelper, Inherits, OthersOfSameName)


@pytest.mark.parametrize("kind", GOOD)
def test_the_only_reader_is_found(kind):
    found = sole_reader(kind, "up", True, HELPER)
    assert (found.reader, found.why) == ("act", "")


class Alone(nn.Module):
    def forward(self, x):
        both = self.up(x)
        both = self.act(both)
        return self.down(both)


def test_a_result_that_comes_alone_is_not_unpacked():
    assert sole_reader(Alone, "up", False).reader == "act"
    assert "does not take the result of up by itself" in sole_reader(Alone, "up", True).why
    assert "under a name" in sole_reader(OneName, "up", False).why


class Changed(nn.Module):
    def forward(self, x):
        x, _ = self.up(x)
        x[:, :8] *= self.factor
        x = self.act(x)
        return x


class ReadAgain(nn.Module):
    def forward(self, x):
        both, _ = self.up(x)
        y = self.act(both)
        return y + both.sum()


class ReadTwiceAtOnce(nn.Module):
    def forward(self, x):
        both, _ = self.up(x)
        y = self.act(both) + both.mean()
        return y


class Sliced(nn.Module):
    def forward(self, x):
        both, _ = self.up(x)
        y = self.act(both[:, ::2])
        return y


class Returned(nn.Module):
    def forward(self, x):
        return self.up(x)


class CalledTwice(nn.Module):
    def forward(self, x):
        a, _ = self.up(x)
        a = self.act(a)
        b, _ = self.up(a)
        return b


class ActedTwice(nn.Module):
    def forward(self, x):
        a, _ = self.up(x)
        a = self.act(a)
        return self.act(a)


class Loop(nn.Module):
    def forward(self, x):
        for _ in range(2):
            x, _ = self.up(x)
            x = self.act(x)
        return x


class Closure(nn.Module):
    def forward(self, x):
        both, _ = self.up(x)
        y = self.act(both)
        return self.later(lambda: both, y)


class Caught(nn.Module):
    def forward(self, x):
        try:
            x, _ = self.up(x)
            x = self.act(x)
        except RuntimeError:
            pass
        return x


class OneBranch(nn.Module):
    def forward(self, x):
        if self.merged:
            x, _ = self.up(x)
        else:
            x, _ = self.down(x)
        x = self.act(x)
        return x


class OtherFunction(nn.Module):
    def forward(self, x):
        x, _ = self.up(x)
        x = torch.relu(x)
        return x


class UnknownHelper(nn.Module):
    def forward(self, x):
        x, _ = self.up(x)
        x = other_helper(self.act, x, self.down)
        return x


class ShadowedHelper(nn.Module):
    def forward(self, x):
        helper = self.find()
        x, _ = self.up(x)
        x = helper(self.act, x, self.down)
        return x


class MoreArguments(nn.Module):
    def forward(self, x):
        both, _ = self.up(x)
        both = self.act(both, x)
        return both


class AnotherMethod(OneName):
    def probe(self, x):
        return self.up(x)[0].shape


class AnotherMethodByText(OneName):
    def probe(self, x):
        return getattr(self, "act")(x)  # noqa: B009


class ItsBase(AnotherMethod):
    def forward(self, x):
        x, _ = self.up(x)
        x = self.act(x)
        return x


class AnotherSelf(nn.Module):
    def forward(self, x):
        self = x.owner
        x, _ = self.up(x)
        x = self.act(x)
        return x


def decorated(forward):
    return lambda self, x: forward(self, x) * 2


class Decorated(nn.Module):
    @decorated
    def forward(self, x):
        x, _ = self.up(x)
        x = self.act(x)
        return x


class Renamed(nn.Module):
    """As transformers' decoder layers, which checkpointing wraps once more."""

    @deprecate_kwarg("y", "99.0", new_name="x")
    def forward(self, x):
        x, _ = self.up(x)
        x = self.act(x)
        return x


class RenamedAndDecorated(nn.Module):
    @deprecate_kwarg("y", "99.0", new_name="x")
    @decorated
    def forward(self, x):
        x, _ = self.up(x)
        x = self.act(x)
        return x


BAD = {
    Changed: "does something to the result of up first",
    ReadAgain: "reads the result of up again",
    ReadTwiceAtOnce: "reads the result of up 2 times",
    Sliced: "does something to the result of up first",
    Returned: "does not take the result of up by itself",
    CalledTwice: "uses up 2 times",
    ActedTwice: "uses act elsewhere, too",
    Loop: "has a For",
    Closure: "has a Lambda",
    Caught: "has a Try",
    OneBranch: "reads the result of up 0 times",
    OtherFunction: "gives the result of up to another function",
    UnknownHelper: "gives the result of up to another function",
    ShadowedHelper: "gives the result of up to another function",
    MoreArguments: "gives the result of up to another function",
    AnotherMethod: "AnotherMethod.probe uses up, too",
    AnotherMethodByText: "AnotherMethodByText.probe uses act, too",
    ItsBase: "AnotherMethod.probe uses up, too",
    AnotherSelf: "gives self another value",
    Decorated: "is no plain function",
    RenamedAndDecorated: "is no plain function",
}


@pytest.mark.parametrize("kind", BAD)
def test_whatever_else_may_read_it_is_named(kind):
    found = sole_reader(kind, "up", True, HELPER)
    assert not found.reader and BAD[kind] in found.why


def test_a_decorator_that_renames_arguments_hides_nothing():
    assert sole_reader(Renamed, "up", True).reader == "act"


def test_a_forward_without_a_source_proves_nothing():
    made = {}
    text = "def forward(self, x):\n    x, _ = self.up(x)\n    return self.act(x)\n"
    exec(text, made)
    kind = type("Made", (nn.Module,), {"forward": made["forward"]})
    assert "has no source that can be read" in sole_reader(kind, "up", True).why


def test_a_forward_that_only_claims_to_be_in_a_file_proves_nothing():
    """As vLLM makes them of transformers' models: with the file and the line of another."""
    text = "\n" * (OneName.forward.__code__.co_firstlineno - 1)
    text += "def forward(self, x):\n    x, _ = self.up(x)\n    return x + self.act(x)\n"
    made = {}
    exec(compile(text, OneName.forward.__code__.co_filename, "exec"), made)
    kind = type("Made", (nn.Module,), {"forward": made["forward"]})
    assert "is not what its source says" in sole_reader(kind, "up", True).why


# --- the activation -------------------------------------------------------------------------------


class Silu(nn.Module):
    def forward(self, x):
        gate, up = x.chunk(2, -1)
        return gate * torch.sigmoid(gate) * up


class UpFirst(nn.Module):
    def forward(self, x):
        up, gate = x.chunk(2, -1)
        return nn.functional.silu(gate) * up


class Threshold(nn.Module):
    def __init__(self, threshold):
        super().__init__()
        self.threshold = threshold

    def forward(self, x):
        gate, up = x.chunk(2, -1)
        return nn.functional.threshold(gate, self.threshold, 0.0) * up


class Interleaved(nn.Module):
    def forward(self, x):
        return nn.functional.silu(x[..., ::2]) * x[..., 1::2]


class Clamped(nn.Module):
    swiglu_limit, alpha = 7.0, 1.702

    def forward(self, x):
        gate, up = x.chunk(2, -1)
        gate, up = gate.clamp(max=self.swiglu_limit), up.clamp(-7.0, 7.0)
        return gate * torch.sigmoid(gate * self.alpha) * (up + 1)


class Learned(Silu):
    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.ones(1))


class Native(nn.Module):
    """As vLLM's, whose forward is chosen for the device."""

    def forward_native(self, x):
        return Silu()(x)

    def forward(self, x):
        raise NotImplementedError


@pytest.mark.parametrize("kind", (Silu, Native))
def test_a_product_is_known_by_its_numbers(kind):
    assert gating_of(kind()) == Gating("silu")


def test_a_limit_and_an_alpha_are_those_of_the_module():
    assert gating_of(Clamped()) == Gating("swigluoai", 7.0, 1.702)
    assert gating_of(Threshold(0.0)) == Gating("relu")


@pytest.mark.parametrize(
    "activation, why",
    [
        (UpFirst(), "UpFirst is no product"),
        (Interleaved(), "Interleaved is no product"),
        (Threshold(0.01), "Threshold is no product"),
        (Threshold(1e-5), "Threshold is no product"),
        (Learned(), "Learned has numbers of its own"),
        (nn.Identity(), "Identity is no product"),
        (nn.GLU(dim=7), "GLU cannot be tried: IndexError"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_other_activations_are_named(activation, why):
    assert why in gating_of(activation)


def mlp(act: nn.Module, kind: type[nn.Module] = OneName) -> nn.Module:
    module = kind()
    module.up, module.act, module.down = nn.Linear(4, 8), act, nn.Linear(4, 4)
    return module


def test_a_module_is_looked_at_as_it_is():
    found = product_after(mlp(Silu()), "up", True)
    assert (found.activation, found.gating) == ("act", Gating("silu"))
    for name in ("up", "act"):
        module = mlp(Silu())
        module.get_submodule(name).register_forward_hook(lambda *_: None)
        assert "a hook watches up or act" in product_after(module, "up", True)
    module = mlp(Silu())
    module.forward = lambda x: x
    assert "something has replaced the forward" in product_after(module, "up", True)
    module = mlp(Silu())
    del module.act
    assert product_after(module, "up", True) == "OneName has no module act"


def test_what_stands_for_an_activation_takes_both_widths_and_no_other():
    fused, x = FusedActivation(Silu(), 8), torch.randn(3, 8)
    assert fused(x) is x
    both = torch.randn(3, 16)
    assert torch.equal(fused(both), Silu()(both))
    for columns in (4, 7, 32):
        with pytest.raises(ValueError, match=f"x has {columns} columns, neither 8"):
            fused(torch.zeros(3, columns))
