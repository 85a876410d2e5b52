# SPDX-License-Identifier: Apache-2.0
"""Functions of whole models refuse, on a CPU too, what would fail on a GPU, before they change
anything; and weights and codes that are none."""

import re

import pytest
import torch
from torch import nn

import ladder
from ladder import InvalidArgument


@pytest.fixture
def layer():
    return ladder.Linear.from_linear(nn.Linear(64, 16), "uint4", group_size=32)


def set_int8(model):
    return ladder.set_activation_type(model, "int8")


@pytest.mark.parametrize(
    "of_model", [ladder.warmup, ladder.optimize, ladder.unoptimize, ladder.convert, set_int8]
)
@pytest.mark.parametrize("model", [None, 3, torch.ones(2, 2)])
def test_a_model_that_is_no_module(of_model, model):
    kind = type(model).__name__
    with pytest.raises(InvalidArgument, match=f"^model is of {kind}, not torch.nn.Module$"):
        of_model(model)


@pytest.mark.parametrize("skip", [3, ["lm_head", 3], [None]])
def test_names_to_skip_that_are_no_names(skip, tmp_path):
    wrong = None if skip == [None] else 3
    model = nn.Sequential(nn.Linear(64, 16))
    for call, option in (
        (lambda: ladder.convert(model, skip=skip), "skip"),
        (lambda: ladder.convert(model, skip=skip, convolutions=True), "skip"),
        (lambda: ladder.set_activation_type(model, "int8", skip=skip), "skip"),
        (
            lambda: ladder.LadderConfig(modules_to_not_convert=skip),
            "modules_to_not_convert",
        ),
    ):
        with pytest.raises(InvalidArgument, match=f"^{option} has {wrong}, not the name of a mod"):
            call()
    assert type(model[0]) is nn.Linear


def test_names_to_skip_may_come_from_an_iterator():
    model = nn.Sequential(nn.Linear(64, 16), nn.Conv2d(16, 16, 3))
    report = ladder.convert(model, skip=iter(["0", "1"]), convolutions=True)
    assert set(report.left) == {"0", "1.weight"}


@pytest.mark.parametrize("x", [[1.0, 2.0], None, 3.0, "x"])
def test_activations_that_are_no_tensor(layer, x):
    kind = type(x).__name__
    image = torch.zeros(1, dtype=torch.int32)  # what comes first on a GPU
    with_image = ladder.Linear.from_linear(nn.Linear(64, 16), "uint4", group_size=32)
    with_image._set_image(image, 1)
    modules = [
        layer,
        with_image,
        ladder.GatedMLP(64, 32),
        ladder.BatchedLinear(2, 64, 16),
        ladder.Conv2d.from_float(nn.Conv2d(16, 16, 3)),
    ]
    for module in modules:
        with pytest.raises(InvalidArgument, match=f"^x is of {kind}, not a tensor$"):
            module(x)
    experts = ladder.Experts.from_tensors(torch.randn(2, 64, 64), torch.randn(2, 64, 32))
    with pytest.raises(InvalidArgument, match="^gate_up_bias is of str, not a tensor$"):
        ladder.Experts.from_tensors(torch.randn(2, 64, 64), torch.randn(2, 64, 32), "nf4")
    good = (torch.randn(1, 64), torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 1))
    for place, name in enumerate(("hidden_states", "top_k_index", "top_k_weights")):
        given = [*good[:place], x, *good[place + 1 :]]
        with pytest.raises(InvalidArgument, match=f"^{name} is of {kind}, not a tensor$"):
            experts(*given)


@pytest.mark.parametrize("of_model", [ladder.warmup, ladder.optimize])
@pytest.mark.parametrize("m", [None, 1.5, True, (1, None), 0, "8"])
def test_tokens_that_are_no_positive_integer(of_model, m):
    mlp = ladder.GatedMLP(64, 32)
    (wrong,) = [each for each in (m if isinstance(m, tuple) else (m,)) if each != 1 or each is True]
    with pytest.raises(
        InvalidArgument, match=re.escape(f"m has {wrong!r}, not a positive integer")
    ):
        of_model(nn.Sequential(mlp), m=m)
    assert "_gated" not in mlp.__dict__


@pytest.mark.parametrize("dtype", ["float16", torch.int32, torch.float64])
def test_a_dtype_that_activations_have_not(layer, dtype):
    said = re.escape(f"dtype is {dtype!r}, not one of float32, float16, bfloat16")
    with pytest.raises(InvalidArgument, match=f"^{said}$"):
        ladder.warmup(layer, dtype=dtype)


def test_a_cache_that_can_be_no_folder(layer, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InvalidArgument, match="^cache is 5, not the path of a folder$"):
        ladder.warmup(layer, cache=5)
    for wrong in (file, str(file / "kernels")):
        said = re.escape(f"cache is {str(wrong)!r}, but {file} is a file, not a folder")
        with pytest.raises(InvalidArgument, match=f"^{said}$"):
            ladder.warmup(layer, cache=wrong)


def test_a_scale_of_codes_that_is_no_tensor(layer):
    x = torch.zeros(2, 64, dtype=torch.int8)
    with pytest.raises(InvalidArgument, match="^x_scale is 1.0, not a float32 tensor$"):
        layer.forward_codes(x, 1.0)
    layer.forward_codes(x, torch.tensor(1.0))


@pytest.mark.parametrize("size", [2.5, "64", None])
@pytest.mark.parametrize(
    "name, call",
    [
        ("in_features", lambda size: ladder.Linear(size, 16)),
        ("batch", lambda size: ladder.BatchedLinear(size, 64, 16)),
        ("hidden_size", lambda size: ladder.Experts(2, size, 64)),
        ("in_channels", lambda size: ladder.Conv2d(size, 16, 3)),
        ("groups", lambda size: ladder.Conv2d(16, 16, 3, groups=size)),
    ],
)
def test_a_size_that_is_no_integer(name, call, size):
    with pytest.raises(InvalidArgument, match=f"^{name} is {re.escape(repr(size))}, not an integ"):
        call(size)


@pytest.mark.parametrize("option", ["kernel_size", "stride", "dilation", "padding"])
@pytest.mark.parametrize("size", [(3, 3, 3), (3,), 1.5, None])
def test_sizes_of_windows_that_are_not_two(option, size):
    """Of three the first two were taken."""
    said = re.escape(f"{option} is {size!r}, not an integer or two")
    with pytest.raises(InvalidArgument, match=f"^{said}$"):
        ladder.Conv2d(16, 16, **{"kernel_size": 3} | {option: size})


def test_weights_and_modules_that_are_none():
    with pytest.raises(InvalidArgument, match="^weight is of list, not a tensor$"):
        ladder.BatchedLinear.from_tensor([[[1.0]]])
    with pytest.raises(InvalidArgument, match="^bias is of str, not a tensor$"):
        ladder.BatchedLinear.from_tensor(torch.randn(2, 16, 64), "uint4")
    with pytest.raises(InvalidArgument, match="^module is of int, not torch.nn.Module$"):
        ladder.GatedMLP.from_dense(3)


def test_a_weight_that_is_sparse():
    with pytest.raises(InvalidArgument, match="^weight has layout torch.sparse_coo, not torch.s"):
        ladder.quantize(torch.randn(16, 64).to_sparse())


@pytest.mark.parametrize("symmetric", ["yes", "False", 2, ()])
def test_symmetry_that_is_neither_true_nor_false(symmetric):
    """Anything but True and None was False."""
    said = re.escape(f"symmetric is {symmetric!r}, not True, False or None")
    for call in (ladder.Linear, ladder.GatedMLP):
        with pytest.raises(InvalidArgument, match=f"^{said}$"):
            call(64, 16, symmetric=symmetric)
    with pytest.raises(InvalidArgument, match=f"^{said}$"):
        ladder.quantize(torch.randn(16, 64), symmetric=symmetric)


def test_symmetry_may_be_numpys():
    numpy = pytest.importorskip("numpy")
    for given in (True, False):
        layer = ladder.Linear(64, 16, symmetric=numpy.bool_(given))
        assert layer.weight_type == ladder.Linear(64, 16, symmetric=given).weight_type


def test_a_weight_that_is_no_tensor():
    with pytest.raises(InvalidArgument, match="^weight is of list, not a tensor$"):
        ladder.quantize([[1.0, 2.0]])


def test_weights_are_equal_where_type_shape_and_parts_are(layer):
    weight = layer.packed_weight
    dense = weight.dequantize()
    same = ladder.Weight.from_codes(weight.codes(), weight.type, scales=weight.scales.clone())
    assert weight == same and hash(weight) == hash(same) and weight in [same]
    others = [
        ladder.quantize(-dense, weight.type),
        ladder.quantize(dense, "int4", group_size=32),
        ladder.quantize(dense[:8], weight.type),
        weight.to("meta"),
        ladder.Weight(
            weight.type, weight.shape, weight.qweight, weight.scales,
            g_idx=torch.zeros(64, dtype=torch.int32),
        ),
    ]  # fmt: skip
    for other in (*others, dense, None):
        assert weight != other
    assert len({weight, same, *others}) == 1 + len(others)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64, "float16"])
def test_a_dtype_that_values_of_weights_have_not(layer, dtype):
    """Of integers nothing but the whole part would be left."""
    said = re.escape(f"dtype is {dtype!r}, not a floating-point one of torch's")
    for made in (layer.packed_weight.dequantize, layer.dequantize):
        with pytest.raises(InvalidArgument, match=f"^{said}$"):
            made(dtype)
    with pytest.raises(InvalidArgument, match=f"^{said}$"):
        ladder.Linear(64, 16, dtype=dtype)


@pytest.mark.parametrize("size", [64.0, "64", None])
def test_sizes_that_are_no_integers(size):
    with pytest.raises(InvalidArgument, match=f"^in_features is {size!r}, not an integer$"):
        ladder.Linear(size, 16)
    with pytest.raises(InvalidArgument, match=f"^out_features is {size!r}, not an integer$"):
        ladder.Linear(16, size)
