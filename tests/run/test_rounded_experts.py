# SPDX-License-Identifier: Apache-2.0
"""What a layer of experts rounds, and when: its launches, with torch's ops in their place."""

import functools
from types import SimpleNamespace

import pytest
import torch
from drawn import generator
from torch import Tensor
from torch.nn import functional as F

import ladder
from ladder import Unsupported
from ladder.cuda import expert_layer, experts, image
from ladder.ops import activations

E, H, WIDTH = 5, 64, 48
#: Numbers of weights as they come; those of rounded activations are 10 more.
GATE_UP, DOWN = 1, 2
ROUNDED = 10


def silu(gate: Tensor) -> Tensor:
    """Rounded once: torch's own of float32 differs in the last bit by where a number lies in a
    tensor, with AVX-512."""
    return F.silu(gate.double()).float()


class Launches(SimpleNamespace):
    """The ops that a layer calls, on the CPU, and their names in the order of the calls. Rows lie
    in the order of their choices, and items are not looked at."""

    def __init__(self, gate_up: Tensor, down: Tensor, ids: Tensor, gated: bool = False) -> None:
        super().__init__(names=[], values={GATE_UP: gate_up, DOWN: down}, ids=ids.reshape(-1))
        self.is_gated = gated

    def weight_for(self, weight: int, activation_type: str) -> int:
        assert activation_type == "float8_e4m3"
        return weight + ROUNDED

    def expert_rows(self, first, second, count, rows, dtype, device) -> int:
        self.names.append(f"rows of {first} and {second}")
        return 8

    def rounded_codes(self, x: Tensor, activation_type: str, x_scale=None) -> list[Tensor]:
        """Codes here are numbers, which a scale for each row brings back."""
        self.names.append("round" if x_scale is None else f"round by {float(x_scale)}")
        assert x.is_contiguous()
        rounded = activations.round_tokens(x, activation_type, x_scale)
        scales = torch.exp2(torch.arange(x.shape[0]) % 5 - 2.0)
        return [rounded / scales[:, None], scales]

    def route(self, x: Tensor, ids: Tensor, count: int, of_item: int) -> list[Tensor]:
        self.names.append("route")
        return [x.repeat_interleave(ids.shape[1], 0), torch.empty(0), self._places(ids)]

    def route_rounded(self, codes, scales, ids, count, of_item) -> list[Tensor]:
        self.names.append("route_rounded")
        rows = [each.repeat_interleave(ids.shape[1], 0) for each in (codes, scales)]
        return [*rows, torch.empty(0), self._places(ids)]

    def _places(self, ids: Tensor) -> Tensor:
        return torch.arange(ids.numel()).view(ids.shape)

    def expert_linear(self, x, images, bias, items, weight, n, of_item) -> Tensor:
        self.names.append(f"product {weight}")
        return self._product(x, weight, bias, n).to(x.dtype)

    def expert_linear_rounded(
        self, codes, scales, images, bias, items, weight, n, of_item, dtype
    ) -> Tensor:
        self.names.append(f"product {weight}")
        return self._product(codes * scales[:, None], weight - ROUNDED, bias, n).to(dtype)

    def _product(self, x: Tensor, weight: int, bias: Tensor, n: int) -> Tensor:
        assert bias is not None
        values = self.values[weight][self.ids]
        y = (
            torch.einsum("rk,rnk->rn", x.double(), values.double())
            + bias[self.ids][:, : values.shape[1]].double()
        )
        if self.is_gated and weight == GATE_UP:  # rows of gate and up in turn, eight and eight
            pairs = y.float().view(y.shape[0], -1, 2, 8)
            y = silu(pairs[:, :, 0].flatten(1)) * pairs[:, :, 1].flatten(1)
        assert y.shape[1] == n
        return y

    def gated(self, x: Tensor, activation: str, limit: float, alpha: float) -> Tensor:
        assert not self.is_gated
        gate, up = x.float().chunk(2, -1)
        return (silu(gate) * up).to(x.dtype)

    def combine(self, rows: Tensor, places: Tensor, weights: Tensor) -> Tensor:
        return (rows[places].float() * weights[..., None]).sum(1).to(rows.dtype)


def call(tokens: int, activation_type: str, scales=(None, None), gated: bool = False):
    """What a layer says, and the launches; x and what the layer has. ``gated``: its first product
    is that of gate and up."""
    rng = generator(tokens)
    gate_up = torch.randn(E, 2 * WIDTH, H, generator=rng)
    down = torch.randn(E, H, WIDTH, generator=rng)
    biases = torch.randn(E, 2 * WIDTH, generator=rng), torch.randn(E, H, generator=rng)
    ids = torch.randint(E, (tokens, 2), generator=rng)
    x, weights = torch.randn(tokens, H, generator=rng), torch.rand(tokens, 2, generator=rng)
    rows = image.gate_rows(2 * WIDTH, x.device)
    launches = Launches(gate_up[:, rows] if gated else gate_up, down, ids, gated)
    columns = WIDTH if gated else 2 * WIDTH
    first, second = (experts.padded_bias(bias) for bias in biases)
    if gated:
        first = experts.padded_bias(biases[0], gated=True)
    with pytest.MonkeyPatch.context() as patch:
        for module in (experts, expert_layer):
            patch.setattr(module, "_ops", launches)
        experts.number_for.cache_clear()
        y = expert_layer._layer(
            x, ids, weights, gate_up, first, down, second, [GATE_UP, columns, gated],
            [DOWN, H, False], "silu", float("inf"), 1.702, activation_type, *scales,
        )  # fmt: skip
        experts.number_for.cache_clear()
    return y, launches.names, (x, ids, weights, gate_up, down, biases)


def reference(parts, activation_type: str, scales=(None, None)) -> tuple[Tensor, Tensor]:
    """Of each choice by itself, in double, and the sum of the magnitudes of its terms."""
    x, ids, weights, gate_up, down, biases = parts

    def rounded(t: Tensor, scale: Tensor | None) -> Tensor:
        return activations.round_tokens(t, activation_type, scale) if activation_type else t

    wanted = torch.zeros(x.shape[0], H, dtype=torch.float64)
    magnitude = torch.zeros_like(wanted)
    for t, chosen in enumerate(ids.tolist()):
        for j, e in enumerate(chosen):
            y = (
                rounded(x[t : t + 1], scales[0]).double() @ gate_up[e].double().T
                + biases[0][e].double()
            )
            gate, up = y.float().chunk(2, -1)
            y = (
                rounded(silu(gate) * up, scales[1]).double() @ down[e].double().T
                + biases[1][e].double()
            )
            term = weights[t, j].double() * y[0].float().double()
            wanted[t] += term
            magnitude[t] += term.abs()
    return wanted, magnitude


def check(y: Tensor, parts, activation_type: str, scales=(None, None)) -> Tensor:
    """Within the roundings to float32: of a product, of a term, of the sum of two. Returns what is
    right."""
    wanted, magnitude = reference(parts, activation_type, scales)
    assert ((y.double() - wanted).abs() <= 3 * 2**-24 * (1 + 2**-20) * magnitude).all()
    return wanted


@pytest.mark.parametrize("gated", (False, True))
def test_tokens_are_rounded_once_and_what_is_between_the_products_for_each_expert(gated):
    y, names, parts = call(65, "float8_e4m3", gated=gated)
    assert names == [
        "rows of 11 and 12", "round", "route_rounded", "product 11", "round", "product 12",
    ]  # fmt: skip
    check(y, parts, "float8_e4m3")
    plain, _ = reference(parts, "")
    assert (y.double() - plain).abs().max() > 1e-2 * plain.abs().max(), "x is rounded"


@pytest.mark.parametrize("gated", (False, True))
@pytest.mark.parametrize("tokens,activation_type", [(64, "float8_e4m3"), (65, "")])
def test_few_tokens_and_those_of_no_activation_type_go_as_they_come(tokens, activation_type, gated):
    y, names, parts = call(tokens, activation_type, gated=gated)
    assert names == ["rows of 1 and 2", "route", "product 1", "product 2"]
    check(y, parts, "")


def test_the_loop_over_experts_rounds_by_the_tokens_of_the_call(monkeypatch):
    """On a GPU, without kernels: not by the rows that an expert has."""
    layer = ladder.Experts(3, 64, 32, weight_type="int4,group=32,scale=float16")
    layer.activation_type = None
    rows = []

    def product(of: int, x: Tensor, counts: list[int]) -> Tensor:
        rows.append(x)
        return x[:, :1].expand(-1, of)

    for stack in (layer.gate_up, layer.down):
        monkeypatch.setattr(stack, "forward", functools.partial(product, stack.out_features))
    monkeypatch.setattr(type(layer), "activation_type", "float8_e4m3")
    index, weights = torch.zeros(80, 1, dtype=torch.int64), torch.ones(80, 1)

    class OnGpu(Tensor):
        is_cuda = True

    for tokens in (64, 65):
        rows.clear()
        x = torch.randn(tokens, 64).half()
        on_gpu = x.as_subclass(OnGpu)
        layer._forward_canonical(on_gpu, index[:tokens], weights[:tokens])
        wanted = x if tokens == 64 else activations.round_tokens(x, "float8_e4m3").half()
        assert torch.equal(rows[0].as_subclass(Tensor), wanted)


def test_rows_of_static_scales_are_rounded_by_these_at_each_product():
    scales = torch.tensor([0.25]), torch.tensor([0.5])
    y, names, parts = call(65, "float8_e4m3", scales)
    assert [name for name in names if name.startswith("round")] == ["round by 0.25", "round by 0.5"]
    check(y, parts, "float8_e4m3", scales)
    own, _ = reference(parts, "float8_e4m3")
    assert (y.double() - own).abs().max() > 1e-3 * own.abs().max(), "not by scales of tokens"
    _, names, _ = call(64, "float8_e4m3", scales)
    assert not any(name.startswith("round") for name in names)


def test_a_compiler_that_failed_at_the_rounding_kernel_leaves_the_layer_to_torch():
    failed = Launches(torch.zeros(E, 2 * WIDTH, H), torch.zeros(E, H, WIDTH), torch.zeros(1))
    failed.rounded_codes = lambda x, activation_type, x_scale: []
    x, ids = torch.zeros(65, H), torch.zeros(65, 2, dtype=torch.int64)
    with pytest.MonkeyPatch.context() as patch:
        for module in (experts, expert_layer):
            patch.setattr(module, "_ops", failed)
        experts.number_for.cache_clear()
        with pytest.raises(Unsupported, match=f"no kernel rounds .* of {H} columns to float8_e4m3"):
            expert_layer._layer(
                x, ids, ids.float(), x, None, x, None, [GATE_UP, 2 * WIDTH, False],
                [DOWN, H, False], "silu", float("inf"), 1.702, "float8_e4m3",
            )  # fmt: skip
        experts.number_for.cache_clear()


@pytest.mark.parametrize(
    ("rows", "rounds", "why"),
    [
        (8, True, ""),
        (0, True, "no kernel multiplies torch.float16 rounded to float8_e4m3"),
        (8, False, f"no kernel rounds torch.float16 of {WIDTH} columns to float8_e4m3"),
    ],
)
def test_experts_are_asked_for_their_own_kernels_of_rounded_rows(rows, rounds, why):
    """Those of linear layers may exist where these do not."""
    asked = []

    class Ops(SimpleNamespace):
        weight_for = staticmethod(lambda number, activation_type: number + ROUNDED)

        @staticmethod
        def expert_rows(*given):
            asked.append(given)
            return rows

        @staticmethod
        def rounded_codes(x, activation_type, x_scale):
            made = rounds or x.shape[1] != WIDTH
            return [x, x[:, 0]] if made else []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experts, "_ops", Ops())
        experts.number_for.cache_clear()
        found = experts.rounding_objection(
            "float8_e4m3", [(GATE_UP, H), (DOWN, WIDTH)], E, torch.float16, torch.device("cpu")
        )
        experts.number_for.cache_clear()
    assert found.startswith(why) and bool(found) == bool(why)
    assert asked == [(GATE_UP + ROUNDED, DOWN + ROUNDED, E, E, torch.float16, 0)]
