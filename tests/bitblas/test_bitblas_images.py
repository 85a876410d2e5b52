# SPDX-License-Identifier: Apache-2.0
"""Images of the tensors that a caller holds: made once, never of what the tensors no longer are.
The device is the test's (weights_on_device.py)."""

import copy
import gc
import pickle

import pytest
import torch
from weights_on_device import G, K, N, operator, parts_of, right

import ladder
import ladder.bitblas as bitblas
import ladder.bitblas.images
import ladder.bitblas.matmul
from ladder.errors import Unsupported


def decoded(matmul, x, parts):
    """By the kernels that take the codes."""
    return matmul.packed_weight(parts["W"], parts["scale"]).linear(x)


CONFIGS = [
    {"A_dtype": A, "out_dtype": A, "W_dtype": W, **zeros}
    for A in ("float16", "bfloat16", "float32")
    for W, zeros in [
        ("int4", {}), ("int2", {"with_scaling": False}), ("nf4", {}), ("int8", {}),
        ("uint4", {"with_zeros": True, "zeros_mode": "original"}),
        ("uint3", {"with_zeros": True, "zeros_mode": "rescale"}),
        ("uint4", {"with_zeros": True, "zeros_mode": "quantized"}),
        ("uint4", {"with_zeros": True, "with_scaling": False}),
        ("uint2", {"group_size": -1}),
    ]
]  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: "-".join(map(str, c.values())))
def test_each_configuration_is_packed_once_and_multiplied_by_kernels(device, config):
    group = config.get("group_size", G)
    matmul = operator(**config)
    dtype = getattr(torch, config["A_dtype"])
    parts = parts_of(matmul, dtype)
    if group == -1:
        parts["scale"] = parts["scale"][:, :1].contiguous()
    for m in (1, 5, 40):
        x = torch.randn(m, K).to(dtype)
        assert torch.equal(matmul(x, **parts), right(matmul, x, parts))
    assert (device.packed, device.multiplied, device.waited) == (1, 3, 1)


CHANGES = {
    "by an operation": lambda t: t.copy_(t.flip(0)),
    "of a part": lambda t: t.view(-1)[:2].copy_(t.view(-1)[:2].flip(0)),
    "of a view": lambda t: t.view(-1).copy_(t.view(-1).roll(1)),
    "of detached": lambda t: t.detach().copy_(t.flip(0)),
    "by assigning data": lambda t: setattr(t, "data", t.flip(0).contiguous()),
}


@pytest.mark.parametrize("part", ["W", "scale", "zeros", "g_idx"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_any_part_is_seen(device, part, change):
    matmul = operator(with_zeros=True)
    parts = parts_of(matmul)
    parts["g_idx"] = torch.cat((torch.arange(K // 2) % 2, torch.arange(K // 2) // (K // 4))).int()
    x = torch.randn(1, K).half()
    before = matmul(x, **parts)
    CHANGES[change](parts[part])
    after = matmul(x, **parts)
    assert torch.equal(after, right(matmul, x, parts)) and not torch.equal(after, before)
    assert device.packed == 2
    assert torch.equal(matmul(x, **parts), after) and device.packed == 2


def test_memory_of_which_an_image_was_made_is_not_given_to_others(device):
    """Assigned to ``.data`` of the same tensor, it would look unchanged."""
    matmul, x = operator(), torch.randn(1, K).half()
    parts = parts_of(matmul)
    addresses = {part.data_ptr() for part in parts.values()}
    matmul(x, **parts)
    parts["W"].data = parts["W"].flip(0).contiguous()
    (kept,) = matmul._images._kept.values()
    assert {storage.data_ptr() for storage in kept.storages} == addresses


def test_a_changed_weight_is_packed_where_it_was(device):
    """A captured graph reads it there."""
    matmul = operator()
    parts, x = parts_of(matmul), torch.randn(1, K).half()
    matmul(x, **parts)
    (kept,) = matmul._images._kept.values()
    parts["scale"].mul_(2)
    wanted = right(matmul, x, parts)
    assert torch.equal(matmul(x, **parts), wanted)
    assert torch.equal(torch.nn.functional.linear(x, kept.image.words.half()), wanted)


def test_several_weights_of_one_operator_have_an_image_each(device):
    matmul, x = operator(), torch.randn(2, K).half()
    weights = [parts_of(matmul) for _ in range(3)]
    weights.append({**weights[0], "scale": weights[1]["scale"]})
    for _ in range(2):
        for parts in weights:
            assert torch.equal(matmul(x, **parts), right(matmul, x, parts))
    assert device.packed == len(matmul._images) == 4


@pytest.mark.parametrize("part", ["W", "scale"])
def test_an_image_goes_with_its_tensors(device, part):
    matmul, x = operator(), torch.randn(2, K).half()
    for turn in range(5):  # addresses and ids come back
        parts = parts_of(matmul)
        assert torch.equal(matmul(x, **parts), right(matmul, x, parts))
        assert len(matmul._images) == 1 and device.packed == turn + 1
        del parts[part]
        gc.collect()
        assert len(matmul._images) == 0


def test_an_image_goes_when_the_operator_is_cleaned_up(device):
    """For changes that torch does not count."""
    matmul, x = operator(), torch.randn(1, K).half()
    parts = parts_of(matmul)
    matmul(x, **parts)
    parts["scale"].data.mul_(2)
    matmul.cleanup()
    assert torch.equal(matmul(x, **parts), right(matmul, x, parts))


def test_tensors_without_a_count_of_changes_are_decoded_by_each_call(device):
    matmul, x = operator(), torch.randn(1, K).half()
    with torch.inference_mode():
        parts = parts_of(matmul)
        for _ in range(2):
            assert torch.equal(matmul(x, **parts), decoded(matmul, x, parts))
            parts["W"].copy_(parts["W"].flip(0))
    assert device.packed == 0 == len(matmul._images)


def test_a_weight_without_kernels_is_decoded_and_asked_about_once(device, monkeypatch):
    matmul, x, asked = operator(), torch.randn(1, K).half(), []
    monkeypatch.setattr(
        ladder.bitblas.images.kernels, "objection", lambda *a: asked.append(a) or "3 columns"
    )
    parts = parts_of(matmul)
    for _ in range(3):
        assert torch.equal(matmul(x, **parts), decoded(matmul, x, parts))
    assert len(asked) == 1 and device.packed == device.multiplied == 0


def test_a_weight_whose_codes_could_not_be_got_back_is_decoded(device):
    device.unloadable = "no room for the kernel"
    matmul, x = operator(), torch.randn(1, K).half()
    parts = parts_of(matmul)
    assert torch.equal(matmul(x, **parts), decoded(matmul, x, parts)) and device.packed == 0


def test_a_device_that_fails_is_left_for_good_and_other_errors_are_the_callers(device, monkeypatch):
    matmul, x = operator(), torch.randn(1, K).half()
    parts, called = parts_of(matmul), []

    def fail(*_):
        called.append(1)
        raise RuntimeError("the driver refuses")

    monkeypatch.setattr(ladder.bitblas.matmul, "linear_image", fail)
    with pytest.raises(RuntimeError, match="the driver refuses"):
        matmul(x, **parts)
    device.failure = "NVRTC is too old"
    for _ in range(3):
        assert torch.equal(matmul(x, **parts), decoded(matmul, x, parts))
    assert len(called) == 2 and len(matmul._images) == 0


def test_an_order_of_columns_that_has_no_image_is_decoded(device, monkeypatch):
    def refuse(weight):
        raise Unsupported("g_idx does not give 32 columns to each group")

    monkeypatch.setattr(ladder.bitblas.images.images, "column_order", refuse)
    matmul, x = operator(), torch.randn(1, K).half()
    parts = parts_of(matmul)
    assert torch.equal(matmul(x, **parts), decoded(matmul, x, parts)) and device.multiplied == 0


def test_a_capture_takes_the_image_and_makes_none(device):
    matmul, x = operator(), torch.randn(1, K).half()
    parts, others = parts_of(matmul), parts_of(matmul)
    matmul(x, **parts)
    device.capturing = True
    assert torch.equal(matmul(x, **parts), right(matmul, x, parts))
    with pytest.raises(RuntimeError, match="call the operator once before"):
        matmul(x, **others)
    device.capturing = False
    assert torch.equal(matmul(x, **others), right(matmul, x, others))


def test_what_does_not_fit_is_refused_and_leaves_no_image(device):
    matmul, x = operator(), torch.randn(1, K).half()
    parts = parts_of(matmul)
    with pytest.raises(ladder.InvalidArgument, match=r"scales has shape \[16, 1\], not \[16, 2\]"):
        matmul(x, parts["W"], scale=parts["scale"][:, :1])
    with pytest.raises(ladder.InvalidArgument, match="scale is missing"):
        matmul(x, parts["W"])
    assert len(matmul._images) == 0


@pytest.mark.parametrize("mode", ["original", "quantized"])
@pytest.mark.parametrize("inference", [False, True])
def test_a_linear_is_packed_once_and_again_after_loading(device, mode, inference):
    layer = bitblas.Linear(
        K, N, bias=True, W_dtype="uint4", group_size=G, with_scaling=True, with_zeros=True,
        zeros_mode=mode,
    )  # fmt: skip

    def load():
        codes = torch.randint(0, 16, (N, K), dtype=torch.uint8)
        given = parts_of(layer.bitblas_matmul)
        layer.load_and_transform_weight(codes, given["scale"], given["zeros"], torch.rand(N))

    layer.bitblas_matmul.cleanup()  # operators of one configuration are one
    for turn in range(3):
        load()
        for _ in range(2):
            x = torch.randn(1, K).half()
            with torch.inference_mode(inference):
                y = layer(x)
            wanted = layer.packed_weight.dequantize(torch.float16)
            assert torch.equal(y, torch.nn.functional.linear(x, wanted, layer.bias))
        assert device.packed == turn + 1


def test_loading_into_the_buffers_of_a_linear_is_seen(device):
    layers = [bitblas.Linear(K, N, W_dtype="int4", group_size=G, with_scaling=True)] * 2
    layers[1] = copy.deepcopy(layers[0])
    x = torch.randn(1, K).half()
    for layer in layers:
        layer.load_and_transform_weight(torch.randint(-8, 8, (N, K)), torch.rand(N, K // G))
        layer(x)
    layers[0].load_state_dict(layers[1].state_dict())
    assert torch.equal(layers[0](x), layers[1](x))


def test_copies_and_pickles_make_their_own(device):
    matmul, x = operator(), torch.randn(1, K).half()
    parts = parts_of(matmul)
    y = matmul(x, **parts)
    for other in (copy.deepcopy(matmul), pickle.loads(pickle.dumps(matmul))):
        assert len(other._images) == 0 and torch.equal(other(x, **parts), y)


def test_gradients_reach_the_activations_and_transforms_take_torch(device):
    matmul = operator(A_dtype="float32", out_dtype="float32")
    parts = parts_of(matmul)
    x = torch.randn(3, K)
    jacobian = torch.func.jacrev(lambda row: matmul(row, **parts))(x[0])
    weight = matmul.packed_weight(parts["W"], parts["scale"]).dequantize()
    assert torch.allclose(jacobian, weight) and device.packed == 0
