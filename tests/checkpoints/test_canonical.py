# SPDX-License-Identifier: Apache-2.0
"""``canonical`` of a format turns stored tensors one at a time, each on its own device."""

import pytest
import torch
from checkpoint_oracle import awq, gptq

from ladder.checkpoints import awq as awq_format
from ladder.checkpoints import gptq as gptq_format
from ladder.checkpoints.layer import stored, type_of
from ladder.weight import Weight

V1, V2, PLANAR = gptq_format.Config(4, 32), "gptq_v2", "gptq_p"
LAYERS = {
    "gptq": (gptq_format, V1, gptq(64, 96, symmetric=False, order=True)),
    "gptq_v1_3": (gptq_format, gptq_format.Config(3, 32), gptq(64, 96, bits=3, symmetric=False)),
    "gptq_v2": (gptq_format, gptq_format.Config(8, 32, V2), gptq(64, 96, bits=8, form=V2)),
    "gptq_p": (gptq_format, gptq_format.Config(5, 32, PLANAR), gptq(64, 96, bits=5, form=PLANAR)),
    **{
        version: (
            awq_format,
            awq_format.Config(group_size=64, version=version),
            awq(32, 128, group=64, version=version),
        )
        for version in ("gemm", "gemv", "gemv_fast")
    },
}


def parts_of(name, device="cpu"):
    """The layer, and its parts: canonical name -> tensor."""
    format, config, truth = LAYERS[name]
    layer = format.measure(stored(truth.tensors), config, "layer")
    moved = {part: tensor.to(device) for part, tensor in truth.tensors.items()}
    return layer, dict(format.canonical(part, tensor, layer) for part, tensor in moved.items())


@pytest.mark.parametrize("name", LAYERS)
def test_tensors_made_canonical_alone_are_the_weight(name):
    layer, parts = parts_of(name)
    zero = "rescale" if parts["zeros"].is_floating_point() else "integer"
    type = type_of(layer, zero=zero, scale_dtype=torch.float16)
    weight = Weight(type, (layer.n, layer.k), **parts)
    weight.check()
    assert torch.equal(weight.dequantize(), torch.from_numpy(LAYERS[name][2].weight))


@pytest.mark.parametrize("name", LAYERS)
def test_no_value_is_looked_at_and_no_device_left(name):
    """A tensor of the meta device has no values, and cannot come back from it."""
    _, parts = parts_of(name)
    _, on_meta = parts_of(name, "meta")
    assert on_meta.keys() == parts.keys()
    for part, tensor in on_meta.items():
        assert (tensor.device.type, tensor.dtype) == ("meta", parts[part].dtype)
        assert tensor.shape == parts[part].shape


@pytest.mark.parametrize("name", LAYERS)
def test_stored_tensors_stay_as_they_were(name):
    before = {part: tensor.clone() for part, tensor in LAYERS[name][2].tensors.items()}
    parts_of(name)
    for part, tensor in LAYERS[name][2].tensors.items():
        assert torch.equal(tensor, before[part])


def test_one_row_of_words_is_not_changed_in_place():
    """A single word needs no transposing, so the result could share its memory."""
    truth = gptq(32, 5, group=-1)
    truth.tensors["qweight"] |= torch.tensor(0x7FF00000, dtype=torch.int32)
    before = truth.tensors["qweight"].clone()
    config = gptq_format.Config(4, -1)
    layer = gptq_format.measure(stored(truth.tensors), config, "layer")
    _, codes = gptq_format.canonical("qweight", truth.tensors["qweight"], layer)
    assert (codes >> 20 == 0).all()
    assert torch.equal(truth.tensors["qweight"], before)


def test_a_type_may_have_scales_of_another_dtype():
    layer, _ = parts_of("gptq")
    type = type_of(layer, zero="midpoint", scale_dtype=torch.bfloat16)
    assert str(type) == "uint4,group=32,scale=bfloat16,zero=midpoint"
