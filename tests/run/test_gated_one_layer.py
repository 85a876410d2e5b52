# SPDX-License-Identifier: Apache-2.0
"""MLPs whose gate and up are rows of one layer, in both orders: their form, on the CPU, and by
kernels that torch plays on the CPU."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

import ladder
from ladder.cuda import image
from ladder.cuda.epilogue import in_turn
from ladder.nn.gated import GatedWeight, RunsGated, objection
from ladder.nn.gated_form import Form, form_of
from ladder.ops.gating import Gating, recognised

H, WIDE, M = 32, 24, 5
SILU = Gating("silu")


class Chunks(nn.Module):
    """As Phi-3's."""

    up_first = False

    def __init__(self, bias=False, wide=WIDE):
        super().__init__()
        self.both, self.down = nn.Linear(H, 2 * wide, bias), nn.Linear(wide, H, bias)
        self.act = nn.SiLU()

    def forward(self, x):
        gate, up = self.both(x).chunk(2, dim=-1)
        return self.down(up * self.act(gate))


class UpFirst(Chunks):
    up_first = True

    def forward(self, x):
        up, gate = self.both(x).chunk(2, dim=-1)
        return self.down(up * self.act(gate))


class Slices(Chunks):
    """Whose forward knows its size."""

    def forward(self, x):
        both = self.both(x)
        return self.down(functional.silu(both[..., :WIDE]) * both[..., WIDE:])


class Listed(Chunks):
    """As ChatGLM's."""

    def forward(self, x):
        halves = torch.chunk(self.both(x), 2, dim=-1)
        return self.down(functional.silu(halves[0]) * halves[1])


class Drops(Chunks):
    """As ModernBERT's."""

    def __init__(self, bias=False):
        super().__init__(bias)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        gate, up = self.both(x).chunk(2, dim=-1)
        return self.down(self.drop(self.act(gate) * up))


class Alternates(Chunks):
    def forward(self, x):
        both = self.both(x)
        return self.down(self.act(both[..., ::2]) * both[..., 1::2])


class ReadsAgain(Chunks):
    def forward(self, x):
        both = self.both(x)
        gate, up = both.chunk(2, dim=-1)
        return self.down(up * self.act(gate) + both[..., :1])


KINDS = (Chunks, UpFirst, Slices, Listed, Drops)


def packed(kind, bias=True):
    torch.manual_seed(0)
    model = nn.Sequential(kind(bias))
    ladder.convert(model, "int4", group_size=8)
    return model[0].eval()


def fused(module):
    form = form_of(module)
    assert objection(module, form) == ""
    GatedWeight(module, form)
    return module


@pytest.mark.parametrize("kind", KINDS)
def test_the_form_is_seen(kind):
    functions = () if kind in (Slices, Listed) else ("act",)
    dropouts = ("drop",) if kind is Drops else ()
    assert form_of(kind()) == Form("both", "both", "down", SILU, functions, dropouts, kind.up_first)
    assert form_of(kind()).layers == ("both",)


@pytest.mark.parametrize("kind", [Alternates, ReadsAgain])
def test_other_orders_and_readers_have_no_form(kind):
    assert form_of(kind()) == "what lies between its layers is no gating that ladder knows"


def test_a_forward_that_knows_another_size_has_no_form():
    assert "cannot be traced" in form_of(Slices(wide=2 * WIDE))


@pytest.mark.parametrize("columns", [1, 7, 32, 100, 300])
def test_functions_are_recognised_by_any_number_of_columns(columns):
    for gating in (SILU, Gating("gelu", 2.0), Gating("swigluoai", 7.0, 1.5)):
        assert recognised(gating, gating.limit, gating.alpha, columns) == gating
    assert recognised(lambda both: Gating("gelu")(both) * 1.001, columns=columns) is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [False, True])
def test_results_and_gradients_are_the_same(kind, bias):
    module, apart, x = packed(kind, bias), packed(kind, bias), torch.randn(M, H)
    fused(module)
    assert isinstance(module, RunsGated) and torch.equal(module(x), apart(x))
    state, wanted = module.state_dict(), apart.state_dict()
    assert set(state) == set(wanted)
    assert all(torch.equal(part, wanted[name]) for name, part in state.items())
    found = []
    for each in (module.train(), apart.train()):
        torch.manual_seed(1)  # of dropout
        leaf = x.clone().requires_grad_()
        each(leaf).square().sum().backward()
        found.append([leaf.grad, *(each.both.bias.grad for _ in range(bias))])
    torch.testing.assert_close(*found)
    module.eval(), apart.eval()
    assert torch.equal(module.both(x), apart.both(x))  # the sums, which somebody asks for
    assert not isinstance(module, RunsGated) and torch.equal(module(x), apart(x))


@pytest.mark.parametrize("what", ["hook", "dropout"])
def test_what_hooks_see_is_the_same(what):
    module, x, seen = packed(Drops), torch.randn(M, H), []
    want = module(x)
    fused(module)
    name = "both" if what == "hook" else "drop"
    module.get_submodule(name).register_forward_hook(lambda _, args, y: seen.append(y))
    assert torch.equal(module(x), want) and len(seen) == 1
    assert seen[0].shape[-1] == (2 * WIDE if what == "hook" else WIDE)
    assert isinstance(module, RunsGated) == (what == "dropout")


@pytest.mark.parametrize("kind", KINDS)
def test_optimize_finds_it_and_unoptimize_undoes_it(kind):
    module = packed(kind)
    model, x = nn.Sequential(module), torch.randn(M, H)
    want = model(x)
    done = ladder.optimize(model, example=x)
    assert (done.gated, done.ungated, done.merged) == (["0"], {}, [])
    assert torch.equal(model(x), want) and torch.equal(copy.deepcopy(model)(x), want)
    assert type(copy.deepcopy(module)) is kind
    ladder.unoptimize(model)
    assert type(module) is kind and type(module.both) is ladder.Linear


def test_the_objection_names_the_rows_of_each():
    model = nn.Sequential(Chunks(wide=20))
    ladder.convert(model, "uint4,channel,scale=float16,zero=midpoint")
    done = ladder.optimize(model, example=torch.randn(M, H))
    assert done.ungated == {"0": "20 rows of each are no multiple of 8"}


@pytest.mark.parametrize("kind", [Chunks, UpFirst])
def test_a_gated_mlp_is_made_of_one(kind):
    dense = kind(bias=True)
    made = ladder.GatedMLP.from_dense(dense, "int8", 8)
    x = torch.randn(M, H)
    gate, up = (layer.dequantize() for layer in (made.gate_proj, made.up_proj))
    halves = (up, gate) if kind.up_first else (gate, up)
    both = torch.cat([half.weight for half in halves])
    assert (both - dense.both.weight).abs().max() <= dense.both.weight.abs().max() / 127
    assert torch.equal(torch.cat([half.bias for half in halves]), dense.both.bias)
    assert torch.equal(made(x), made.down_proj(SILU.product(made.gate_proj(x), made.up_proj(x))))


# --- by an image ----------------------------------------------------------------------------------


@pytest.fixture(params=[Chunks, UpFirst])
def played(request):
    """A module whose weight of both has an image, the same without, and the calls of kernels."""
    module, apart = fused(packed(request.param)), packed(request.param)
    rows = image.gate_rows(2 * WIDE, torch.device("cpu"), request.param.up_first)
    values, calls = apart.both.dequantize().weight.detach()[rows], []
    linear: ladder.Linear = module._gated.linear
    number = image.open_weight(str(linear.weight_type), 2 * WIDE, H, gating=SILU)

    def kernel(x, image, bias, weight, n, *step):
        assert (weight, n) == (number, WIDE)
        calls.append(x.dtype)
        sums = functional.linear(x.double(), values.double(), bias.double())
        return SILU.of_sums(sums).to(x.dtype)

    def then(x, x_scale, *rest):
        return kernel(x, *rest)

    library = torch.library.Library("ladder", "IMPL")
    for name in ("linear_image", "linear_image_no_grad"):
        library.impl(name, kernel, "CPU")
    library.impl("linear_then", then, "CPU")
    library.impl("dequantize_image", lambda image, weight, n, k, dtype: values.to(dtype), "CPU")
    linear._set_image(torch.zeros(1, dtype=torch.int32), number)
    yield module, apart, calls
    library._destroy()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_and_biases_of_an_image_are_in_turn_in_either_order(played, dtype):
    module, apart, calls = played
    x = torch.randn(M, H).to(dtype)
    eps = torch.finfo(dtype).eps
    with torch.no_grad():
        sums = apart.both.dequantize().double()(x.double())
        gate, up = sums.chunk(2, -1)[:: -1 if module._gated.form.up_first else 1]
        want = apart.down.dequantize().double()(functional.silu(gate) * up)
        # The product is rounded by half an eps of itself, then y; down's sums are float32's.
        values = apart.down.dequantize().weight.double().abs()
        slack = eps * ((functional.silu(gate) * up).abs() @ values.T + want.abs()) + eps / 1024
        assert bool(((module(x).double() - want).abs() <= slack).all())
    assert calls == [dtype]


def test_gradients_and_float32_by_an_image(played):
    module, apart, calls = played
    x = torch.randn(M, H)
    torch.testing.assert_close(module(x), apart(x))
    assert not calls  # no kernel multiplies float32
    found = []
    for each in (module, apart):
        leaf = x.half().requires_grad_()
        each(leaf).float().square().sum().backward()
        found.append((leaf.grad, each.both.bias.grad))
    for got, want in zip(*found, strict=True):  # both round to float16, at other places
        slack = float(want.abs().max()) * 16 * torch.finfo(torch.half).eps
        torch.testing.assert_close(got, want, rtol=0, atol=slack)
    assert calls == [torch.half]


def test_the_order_of_rows_and_biases_is_one():
    bias = torch.arange(2.0 * WIDE)
    for up_first in (False, True):
        rows = image.gate_rows(2 * WIDE, bias.device, up_first)
        assert torch.equal(in_turn(bias, up_first), bias[rows])
    swap = partial(torch.roll, shifts=WIDE)
    assert torch.equal(in_turn(swap(bias), True), in_turn(bias))
