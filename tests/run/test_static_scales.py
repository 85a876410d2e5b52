# SPDX-License-Identifier: Apache-2.0
"""Static scales of x, as far as no GPU is needed: the reference of the rounding, and where a layer
has the scale."""

import copy
import pickle

import pytest
import torch
from drawn import exact_weight, generator

import ladder
from ladder import InvalidArgument
from ladder.cuda import kernels
from ladder.nn.joined import joined, objection
from ladder.nn.merged import MergedWeight
from ladder.ops import activations

UINT4 = "uint4,group=64,scale=float16,zero=midpoint"
TYPES = activations.ACTIVATION_TYPES
HALF = torch.float16


def layer_of(scale=None, n: int = 32, **options):
    layer = ladder.Linear.from_weight(exact_weight(UINT4, n, 256), **options)
    layer.input_scale = scale
    return layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("c", [2.0**-5, 0.0123])
@pytest.mark.parametrize("activation_type,low,high", [("int8", -128, 127),
                                                      ("float8_e4m3", -448, 448)])  # fmt: skip
def test_the_reference_rounds_to_the_nearest_code_and_saturates(
    activation_type, low, high, c, dtype
):
    x = (torch.randn(9, 300, generator=generator(1)) * torch.arange(1, 10)[:, None]).to(dtype)
    x[3, 0], x[4, 1] = 1e4, -1e4
    scale = torch.tensor([c])
    rounded = activations.round_tokens(x, activation_type, scale).double()
    wide = x.double().clamp(low * scale.double(), high * scale.double())
    step = torch.full_like(wide, c / 2)
    if activation_type == "float8_e4m3":
        step = (wide.abs() * 2**-4).clamp(min=c * 2**-10)
    assert ((rounded - wide).abs() <= step * (1 + 2**-14)).all()
    codes = rounded / scale.double()
    assert abs(codes[3, 0] / high - 1) < 2**-22 and abs(codes[4, 1] / low - 1) < 2**-22
    each = torch.full((9, 1), c)
    assert torch.equal(activations.round_tokens(x, activation_type, each).double(), rounded)


@pytest.mark.parametrize("activation_type", TYPES)
def test_ties_go_to_even_codes(activation_type):
    x = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, 17.0, 19.0, 126.5]]) * 0.25
    rounded = activations.round_tokens(x, activation_type, torch.tensor(0.25)) / 0.25
    wanted = {"int8": [0, 2, 2, 0, -2, 17, 19, 126],
              "float8_e4m3": [0.5, 1.5, 2.5, -0.5, -1.5, 16, 20, 128]}  # fmt: skip
    assert rounded[0].tolist() == wanted[activations.format_of_x(activation_type)]


@pytest.mark.parametrize("activation_type", TYPES)
def test_a_token_with_nan_is_nan_and_infinity_saturates(activation_type):
    x = torch.ones(3, 32)
    x[0, 3], x[1, 4] = float("nan"), -float("inf")
    rounded = activations.round_tokens(x, activation_type, torch.tensor([0.5]))
    assert rounded[0].isnan().all() and (rounded[2] == 1).all()
    assert (
        rounded[1, 4]
        == {"int8": -64, "float8_e4m3": -224}[activations.format_of_x(activation_type)]
    )
    assert (rounded[1, :4] == 1).all()


@pytest.mark.parametrize("activation_type", TYPES)
def test_gradients_go_straight_through(activation_type):
    x = torch.randn(3, 16, generator=generator(0)).requires_grad_()
    grad = torch.randn(3, 16, generator=generator(1))
    activations.round_tokens(x, activation_type, torch.tensor([0.1])).backward(grad)
    assert torch.equal(x.grad, grad)


def test_a_layer_keeps_its_scale_in_every_form():
    layer = layer_of(0.25, activation_type="int8")
    assert layer.input_scale.dtype == torch.float32 and layer.input_scale.tolist() == [0.25]
    assert layer.state_dict()["input_scale"] is not None
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), layer.half(),
                 layer.to(torch.bfloat16)):  # fmt: skip
        assert twin.input_scale.dtype == torch.float32 and twin.input_scale.tolist() == [0.25]
    fresh = ladder.Linear(256, 32, False, UINT4)
    fresh.load_state_dict(layer.state_dict())
    assert fresh.input_scale.tolist() == [0.25]
    with pytest.raises(RuntimeError, match="Missing key.*input_scale"):
        fresh.load_state_dict(layer_of().state_dict())
    assert fresh.load_state_dict({}, strict=False) and fresh.input_scale.tolist() == [0.25]
    assert "static" in repr(layer) and "static" not in repr(layer_of(0.25))
    layer.input_scale = 0.5
    assert layer.input_scale.tolist() == [0.5]
    with pytest.raises(InvalidArgument, match="not positive"):
        layer.input_scale = torch.tensor([-1.0])
    layer.input_scale = torch.tensor(0.125, dtype=torch.float64)
    assert layer.input_scale.dtype == torch.float32 and layer.input_scale.tolist() == [0.125]
    layer.input_scale = None
    assert layer.input_scale is None and "input_scale" not in layer.state_dict()
    assert layer.to("meta").input_scale is None
    assert layer_of(0.5).to("meta").input_scale.is_meta


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("inf"), float("nan"), torch.ones(2)])
def test_what_is_no_scale_is_refused_with_its_value(wrong):
    with pytest.raises(InvalidArgument, match=r"input_scale is .*, not (positive|one float)"):
        layer_of(wrong)


def test_layers_have_scales_of_their_own_whatever_they_were_given():
    scale = torch.tensor([0.5])
    first, second = layer_of(scale), layer_of(scale)
    state = first.state_dict() | {"input_scale": torch.tensor([0.25])}
    first.load_state_dict(state)
    assert (float(first.input_scale), float(second.input_scale), float(scale)) == (0.25, 0.5, 0.5)
    merged = joined([second, layer_of(0.5)])
    second.input_scale.fill_(2.0)
    assert float(merged.input_scale) == 0.5
    calibrated = layer_of(None)
    with torch.inference_mode():
        calibrated.input_scale = scale * 2
    calibrated.load_state_dict(state)
    assert float(calibrated.input_scale) == 0.25


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), 1e-39])
def test_a_state_dict_with_no_scale_is_refused_and_loses_nothing(wrong):
    layer = layer_of(0.5)
    state = layer.state_dict() | {"input_scale": torch.tensor([wrong])}
    with pytest.raises(InvalidArgument, match="input_scale is .*, not positive and finite"):
        layer.load_state_dict(state)
    assert float(layer.input_scale) == 0.5


@pytest.mark.parametrize("activation_type", [None, "int8"])
def test_a_cpu_has_scales_of_its_own(activation_type):
    """One for each block of columns, which are nearer than any static one."""
    x = torch.randn(20, 256, generator=generator(0))
    plain = layer_of(activation_type=activation_type)
    assert torch.equal(layer_of(1e-3, activation_type=activation_type)(x), plain(x))


def test_traced_and_exported_layers_have_it_too():
    layer, x = layer_of(0.25, activation_type="int8"), torch.randn(20, 256, generator=generator(0))
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), layer(x))
    assert torch.equal(torch.export.export(layer, (x,)).module()(x), layer(x))


def test_what_a_warmed_up_layer_asks_to_be_compiled(monkeypatch):
    """Nothing for up to 48 tokens, without a scale, or of float32."""
    asked = []
    monkeypatch.setattr(kernels, "compile_scaled", lambda *given: asked.append(given[1:]))
    for scale, m, dtype in ((0.5, (1, 48), HALF), (None, (1, 80), HALF), (0.5, (80,), torch.float),
                            (0.5, (1, 300, 80), HALF)):  # fmt: skip
        layer = layer_of(scale, activation_type="int8")
        layer._weight_number = 7  # as of an image
        layer.compile_static(dtype, m)
    assert asked == [(torch.device("cpu"), HALF, 300)]
    parent = torch.nn.Module()
    parent.q, parent.k = (layer_of(0.25, n, activation_type="int8") for n in (32, 64))
    merged = MergedWeight(parent, [parent.q, parent.k])
    merged.linear._weight_number = 8
    parent.k.compile_static(HALF, (49,))
    assert asked[1:] == [(torch.device("cpu"), HALF, 49)]


def test_layers_of_one_scale_are_merged_and_others_are_not():
    layers = [layer_of(scale, n, activation_type="int8")
              for scale, n in ((0.25, 32), (0.25, 64), (0.5, 32), (None, 32))]  # fmt: skip
    assert objection(layers[:2]) == "" and joined(layers[:2]).input_scale.tolist() == [0.25]
    assert objection(layers[1:3]) == "static scales differ: 0.25, 0.5"
    assert objection(layers[2:]) == "static scales differ: 0.5, None"
    assert joined([layer_of(), layer_of()]).input_scale is None


def test_a_merged_layer_that_gets_another_scale_has_its_own_weight_again():
    parent = torch.nn.Module()
    parent.q, parent.k = (layer_of(0.25, n, activation_type="int8") for n in (32, 64))
    merged = MergedWeight(parent, [parent.q, parent.k])
    assert merged.linear.input_scale.tolist() == [0.25]
    parent.q.input_scale = 0.5
    assert type(parent.q) is type(parent.k) is ladder.Linear
    assert parent.q.input_scale.tolist() == [0.5] and parent.k.input_scale.tolist() == [0.25]


def test_the_op_of_the_library_takes_the_scale():
    x, scale = torch.randn(20, 256, generator=generator(0)).half(), torch.tensor([0.02])
    rounded = torch.ops.ladder.round_tokens(x, "int8", scale)
    assert torch.equal(rounded, activations.round_tokens(x, "int8", scale).half())
    assert not torch.equal(rounded, torch.ops.ladder.round_tokens(x, "int8"))
