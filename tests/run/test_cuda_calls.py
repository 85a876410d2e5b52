# SPDX-License-Identifier: Apache-2.0
"""Kernels in graphs, streams, threads and compiled code, and before them: tuning and warming up."""

import copy
from concurrent import futures

import pytest
import torch
from drawn import exact_weight, integers
from gpu import MARKS, UINT4, compiled_graphs, on_gpu, schedules, spelled
from torch import Tensor, nn

import ladder

pytestmark = MARKS
#: As WAYS of test_cuda_schedules.py, of reductions whose parts meet in global memory.
STREAMS = tuple(("ordered", UINT4, 256, 8192, m) for m in (1, 8, 16))


def test_a_graph_replays_what_was_captured():
    layer, wanted = on_gpu(spelled(4, torch.float16), 512, 1024)
    ladder.warmup(layer, m=(4,), dtype=torch.float16)
    x = integers((4, 1024), torch.float16).cuda()
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        y = layer(x)
    for seed in range(3):
        x.copy_(integers((4, 1024), torch.float16, seed))
        graph.replay()
        assert torch.equal(y, (x.double() @ wanted.T).half())


def test_a_capture_that_would_compile_says_to_warm_up():
    weight = exact_weight(spelled(4, torch.float16), 320, 192)
    cold, x = ladder.Linear.from_weight(weight).cuda(), torch.ones(1, 192, device="cuda").half()
    packed = copy.deepcopy(cold)
    packed.prepare()
    for layer in (cold, packed):
        graph = torch.cuda.CUDAGraph()
        with pytest.raises(RuntimeError, match="ladder.warmup"), torch.cuda.graph(graph):
            layer(x)
        torch.cuda.synchronize()
    assert torch.equal(cold(x).cpu(), weight.linear(x.cpu()))


@pytest.mark.parametrize("way,type,n,k,m", STREAMS)
def test_streams_do_not_disturb_each_other(way, type, n, k, m):
    """The counters and workspace of a reduction through memory are those of one launch. Every call
    has an x of its own, so that a sum of another launch's parts is another number."""
    layer, wanted = on_gpu(type, n, k)
    lowest = m // 2 + 1  # all of one interval, which has one kernel
    streams = [torch.cuda.Stream() for _ in range(4)]
    tokens = [max(lowest, m - turn) for turn in range(len(streams))]
    xs = [integers((t, k), torch.float16, i).cuda() for i, t in enumerate(tokens)]
    exact = [(x.double() @ wanted.T).half() for x in xs]
    for name in schedules(layer, torch.float16, m, way):
        for x in xs:
            layer(x)
        torch.cuda.synchronize()
        results: list[list[Tensor]] = [[] for _ in xs]
        for _ in range(50):
            for stream, x, out in zip(streams, xs, results, strict=True):
                with torch.cuda.stream(stream):
                    out.append(layer(x))
        torch.cuda.synchronize()
        for right, out in zip(exact, results, strict=True):
            assert all(torch.equal(y, right) for y in out), name


@pytest.mark.parametrize("called", (False, True))
def test_a_thread_without_a_context_can_call(called):
    """Such as autograd's, also as the first of all: it compiles."""
    layer, wanted = on_gpu(spelled(4, torch.float16), 136 + called, 256)  # shapes of its own
    for m in (2, 40):  # the second multiplies what a transform made
        x = integers((m, 256), torch.float16).cuda()
        if called:
            layer(x)
        with futures.ThreadPoolExecutor(1) as thread:  # a new one
            assert torch.equal(thread.submit(layer, x).result(), (x.double() @ wanted.T).half())


def test_compile_makes_one_graph_for_any_number_of_tokens():
    layer, wanted = on_gpu(spelled(4, torch.float16), 128, 256)
    assert len(compiled_graphs(layer, wanted)) == 1


def test_tuning_keeps_what_it_measured(tmp_path):
    layer, wanted = on_gpu(spelled(4, torch.float16), 512, 576)
    kernels = ladder.warmup(layer, m=(5, 8), cache=tmp_path)[""]  # of one interval
    assert kernels[5] == kernels[8] != ""
    plans = (tmp_path / "plans.json").read_text()
    assert kernels[8] in plans and len(list((tmp_path / "kernels").glob("*/kernel.cubin"))) > 1
    assert ladder.warmup(layer, m=(5, 8))[""] == kernels
    assert (tmp_path / "plans.json").read_text() == plans
    x = integers((8, 576), torch.float16).cuda()
    assert torch.equal(layer(x), (x.double() @ wanted.T).half())


@pytest.mark.parametrize("m", (24, 33, 64, 100, 257, 1537))
def test_what_is_warmed_up_is_captured(m):
    layer, wanted = on_gpu(spelled(4, torch.float16), 256 + m, 576)  # a shape of its own
    ladder.warmup(layer, m=(m,), dtype=torch.float16, tune="off")
    x = integers((m, 576), torch.float16).cuda()
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        y = layer(x)
    graph.replay()
    assert torch.equal(y, (x.double() @ wanted.T).half())


@pytest.mark.parametrize("act_order", (False, True))
def test_a_weight_that_is_named_by_its_type_is_the_same(act_order):
    type = spelled(4, torch.float16)
    layer = ladder.Linear.from_weight(exact_weight(type, 320, 512, act_order=act_order)).cuda()
    named = torch.ops.ladder.linear_prepacked
    for bias in (None, integers((320,), torch.float16).cuda()):
        layer.bias = None if bias is None else nn.Parameter(bias)
        for m in (1, 16, 40, 100, 257, 1537):
            x = integers((m, 512), torch.float16).cuda()
            with torch.no_grad():
                y = layer(x)  # the first call makes the image
            assert torch.equal(named(x, layer.image, bias, type, 320), y)
    x = x[:1]
    with pytest.raises(ValueError, match="words, which no weight of uint4.* has"):
        named(x, layer.image[1:].clone(), None, type, 320)
    with pytest.raises(ValueError, match="words, which no weight of uint4.* has"):
        named(x, layer.image, None, type, 384)


def test_warmup_names_every_kernel():
    model = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 64)).half()
    ladder.convert(model, "uint4", 64)
    model.cuda()
    kernels = ladder.warmup(model, m=(1, 16, 100))
    assert set(kernels) == {"0", "2"}
    assert all(row[1] and row[16] and row[100] for row in kernels.values())
    assert ladder.warmup(nn.Linear(2, 2)) == {}
