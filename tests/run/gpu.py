# SPDX-License-Identifier: Apache-2.0
"""Layers with kernels, for the tests that need a GPU."""

from collections.abc import Iterator

import pytest
import torch
from drawn import exact_weight, formula, integers
from torch import Tensor, nn
from torch.fx import GraphModule

import ladder

MARKS = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.usefixtures("torch_sums_in_float32"),
]
HALVES = (torch.float16, torch.bfloat16)
CAPABILITY = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
#: torch gives AMD's GPUs capabilities, too, (9, 4) for gfx942, which say nothing of CUDA's.
E4M3 = CAPABILITY >= (8, 9) and not torch.version.hip
NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
UINT4 = "uint4,group=128,scale=float16,zero=midpoint"
LOOKED_AT = 48  # of the first schedules of a problem


def launches(call) -> list[str]:
    """Names of the kernels that ``call`` starts."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    on_gpu = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return [event.name for event in on_gpu if "Mem" not in event.name]


def spelled(bits: int, dtype: torch.dtype, group: int = 64, sign: str = "u") -> str:
    zero = ",zero=midpoint" if sign == "u" else ""
    block = f"group={group}" if group else "channel"
    return f"{'uint' if sign == 'u' else 'int'}{bits},{block},scale={NAMES[dtype]}{zero}"


def prepared(weight: ladder.Weight, bias: Tensor | None = None) -> ladder.Linear:
    """A layer with kernels."""
    layer = ladder.Linear.from_weight(weight, bias).cuda()
    assert layer.prepare(), f"{weight.type} {weight.shape} has no image"
    return layer


def on_gpu(type: str, n: int, k: int) -> tuple[ladder.Linear, Tensor]:
    """A layer with kernels, and its values."""
    weight = exact_weight(type, n, k)
    return prepared(weight), formula(weight).cuda()


def schedules(
    layer: ladder.Linear, dtype: torch.dtype, m: int, way: str, most: int = 3
) -> Iterator[str]:
    """The first schedules whose text has ``way`` and that compile without spills, each set when it
    comes: to be taken one by one, as all at once leave the last. There must be one."""
    ops, number, found = torch.ops.ladder, layer._weight_number, 0
    for name in ops.schedules(number, 0, dtype, m, LOOKED_AT).splitlines():
        if way not in name or found == most:
            continue
        try:
            ops.use_schedule(number, 0, dtype, m, name, False)
        except RuntimeError:  # spills, say
            continue
        found += 1
        yield name
    assert found, f"none of the first {LOOKED_AT} schedules has {way!r}"


@torch.no_grad()
def always_gives(model: nn.Module, x: Tensor, wanted: Tensor, times: int) -> bool:
    """Whether calls one behind the other, without a wait between, all give ``wanted``."""
    other = torch.zeros((), dtype=torch.bool, device="cuda")
    for _ in range(times):
        other |= (model(x) != wanted).any()
    return not bool(other)


def compiled_graphs(layer: nn.Module, wanted: Tensor) -> list[GraphModule]:
    """What torch.compile makes of ``layer`` [N, K] for several numbers of tokens, after its results
    were found to be exact."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(layer, fullgraph=True, backend=backend, dynamic=True)
    for m in (2, 7, 16, 30):
        x = integers((m, wanted.shape[1]), torch.float16).cuda()
        with torch.no_grad():
            assert torch.equal(compiled(x), (x.double() @ wanted.T).half())
    return graphs
