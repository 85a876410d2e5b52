# SPDX-License-Identifier: Apache-2.0
"""The ways that GPU tests name are among the schedules at which they look. There, one that the
scheduler no longer proposes would cost minutes."""

import functools

import pytest
import torch
from gpu import LOOKED_AT, NAMES, UINT4
from test_cuda_calls import STREAMS
from test_cuda_dependent_launch import WAYS as CHAINS
from test_cuda_schedules import WAYS

from ladder._C import explain
from ladder.cuda import kernels

#: The device on which they run.
DEVICE = "h200"


@functools.cache
def first_schedules(m: int, n: int, k: int, type: str, activation: str) -> tuple[str, ...]:
    text = dict(explain(m, n, k, type, activation, DEVICE, LOOKED_AT))["candidates"]
    return tuple(text.partition("\ndropped:")[0].splitlines()[1:])


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize(
    "way,type,n,k,m", [*WAYS, *STREAMS, *((w, UINT4, n, n, m) for w, n, m in CHAINS)]
)
def test_a_way_is_among_the_first_schedules(way, type, n, k, m, dtype: torch.dtype):
    found = first_schedules(kernels.interval(m), n, k, type, NAMES[dtype])
    assert len(found) == LOOKED_AT
    assert any(way in schedule for schedule in found)
