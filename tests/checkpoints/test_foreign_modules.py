# SPDX-License-Identifier: Apache-2.0
"""``repack_from_gptq`` and its kin: a live module of another package becomes ours."""

import pytest
import torch
from checkpoint_oracle import awq, gptq
from torch import nn

import ladder
from ladder.errors import CheckpointError, InvalidArgument


def foreign(truth, **attributes):
    module = nn.Module()
    for part, tensor in truth.tensors.items():
        module.register_buffer(part, tensor)
    module.bias = torch.arange(truth.codes.shape[0], dtype=torch.float16)
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


@pytest.mark.parametrize(
    ("method", "truth", "attributes"),
    [
        ("repack_from_gptq", gptq(32, 96, symmetric=False, order=True), {}),
        ("repack_from_gptq", gptq(32, 96, group=64), {"group_size": 64}),
        ("repack_from_gptq", gptq(32, 96, group=-1), {}),
        ("repack_from_gptq", gptq(32, 96, bits=8), {"bits": 8}),
        ("repack_from_gptq_v2", gptq(32, 96, symmetric=False, form="gptq_v2"), {}),
        ("repack_from_awq", awq(32, 96), {"w_bit": 4}),
    ],
)
def test_a_live_module_is_taken_over_with_its_bias(method, truth, attributes):
    layer = ladder.Linear(96, 32, bias=True, weight_type="uint4", group_size=32)
    getattr(layer, method)(foreign(truth, **attributes))
    values = torch.from_numpy(truth.weight)
    assert torch.equal(layer.dequantize().weight.float(), values)
    assert torch.equal(layer.bias.float(), torch.arange(32.0))


def test_a_module_that_holds_no_layer_is_refused():
    layer = ladder.Linear(96, 32, weight_type="uint4", group_size=32)
    with pytest.raises(InvalidArgument, match="Linear has no qweight; it has none"):
        layer.repack_from_gptq(nn.Linear(96, 32))
    module = foreign(gptq(32, 96, group=64))
    with pytest.raises(CheckpointError, match="2 groups, but K = 96 in groups of 96 needs 1"):
        layer.repack_from_gptq(foreign(gptq(32, 96, group=64), group_size=96))
    del module.qzeros
    with pytest.raises(CheckpointError, match="qzeros is missing"):
        layer.repack_from_gptq(module)


def test_groups_that_cannot_be_told_are_asked_for():
    layer = ladder.Linear(80, 32, weight_type="uint4", group_size=32)
    with pytest.raises(InvalidArgument, match="no group_size, and 3 groups do not divide K = 80"):
        layer.repack_from_gptq(foreign(gptq(32, 80, g_idx=False)))
