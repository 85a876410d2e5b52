# SPDX-License-Identifier: Apache-2.0
"""What the CUDA runtime costs and gives, end to end through ``ladder.Linear``, on this GPU.

    python benchmarks/cuda_runtime.py [--out RESULTS.md]

Times of layers are a replayed CUDA graph over layers whose weights together exceed twice the L2,
median of nine replays after 30 ms of warming up; host times are without waiting for the GPU; first
calls are in processes of their own, after torch has made its context.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

import torch
from torch.nn import functional as F

import ladder
from benchmarks import graph
from benchmarks.graph import host_us
from benchmarks.machine import describe, require_gpu
from ladder.cuda import image
from ladder.cuda.linear import linear_no_grad

TYPE = "uint4,group=128,scale=float16,zero=midpoint"


def random_layer(n: int, k: int, type: str = TYPE) -> ladder.Linear:
    layer = ladder.Linear(k, n, bias=False, weight_type=type, device="cuda")
    layer.qweight.random_(-(2**31), 2**31 - 1)
    layer.scales.uniform_(0.001, 0.01)
    return layer


def layers_table(shapes, tokens) -> list[str]:
    rows = ["| N x K | M | ladder us | F.linear fp16 us | times faster |", "|---|---|---|---|---|"]
    for n, k in shapes:
        layers = [random_layer(n, k) for _ in range(max(4, graph.ROTATION_BYTES // (n * k // 2)))]
        dense = [torch.randn(n, k, device="cuda").half() for _ in range(max(4, len(layers) // 4))]
        ladder.warmup(torch.nn.ModuleList(layers), m=tokens, dtype=torch.float16)
        for m in tokens:
            x = torch.randn(m, k, device="cuda").half()
            ours = graph.us([partial(layer, x) for layer in layers])
            theirs = graph.us([partial(F.linear, x, w) for w in dense])
            rows.append(f"| {n} x {k} | {m} | {ours:.2f} | {theirs:.2f} | {theirs / ours:.2f} |")
    return rows


def host_table() -> list[str]:
    layer, large = random_layer(128, 256), random_layer(4096, 4096)
    x, w = torch.randn(1, 256, device="cuda").half(), torch.randn(128, 256, device="cuda").half()
    layer(x)
    op, args = linear_no_grad, (x, layer.image, None, layer._weight_number, 128)
    rows = ["| call, M=1 | host us |", "|---|---|"]
    with torch.inference_mode():
        rows.append(f"| the op alone | {host_us(lambda: op(*args)):.1f} |")
        rows.append(f"| ladder.Linear, inference_mode | {host_us(lambda: layer(x)):.1f} |")
        rows.append(f"| F.linear | {host_us(lambda: F.linear(x, w)):.1f} |")
    with torch.no_grad():
        rows.append(f"| ladder.Linear, no_grad | {host_us(lambda: layer(x)):.1f} |")
    rows.append(f"| ladder.Linear, grad mode, no gradients | {host_us(lambda: layer(x)):.1f} |")
    x = torch.randn(1, 4096, device="cuda").half()
    large(x)
    with torch.no_grad():
        rows.append(f"| ladder.Linear, no_grad, 4096 x 4096 | {host_us(lambda: large(x)):.1f} |")
    return rows


@torch.inference_mode(False)
def gradient_table() -> list[str]:
    """Host time where torch records what is called."""
    layer = ladder.Linear(256, 128, weight_type=TYPE, device="cuda", dtype=torch.float16)
    layer.scales.fill_(0.01)
    dense = torch.nn.Linear(256, 128, device="cuda", dtype=torch.float16)
    x = torch.randn(1, 256, device="cuda").half()
    wanting = x.clone().requires_grad_()
    rows = ["| call, M=1, grad mode | host us |", "|---|---|"]
    with torch.no_grad():
        rows.append(f"| ladder.Linear, no_grad | {host_us(lambda: layer(x)):.1f} |")
    rows.append(f"| ladder.Linear, trainable bias | {host_us(lambda: layer(x)):.1f} |")
    rows.append(f"| ladder.Linear, activations too | {host_us(lambda: layer(wanting)):.1f} |")
    rows.append(f"| nn.Linear | {host_us(lambda: dense(x)):.1f} |")
    return rows


@torch.inference_mode(False)
@torch.no_grad()
def compile_table() -> list[str]:
    """Eager calls, torch.compile and a captured graph, whose results are equal."""
    rows = ["| layers | way | host us a call | us a call |", "|---|---|---|---|"]
    x = torch.randn(1, 4096, device="cuda").half()
    for count in (1, 16):
        # Of this size a layer keeps the size of its activations.
        weights = (torch.randn(4096, 4096, device="cuda") / 64 for _ in range(count))
        packed = (ladder.quantize(weight, TYPE, method="nearest") for weight in weights)
        model = torch.nn.Sequential(*map(ladder.Linear.from_weight, packed))
        ladder.warmup(model, m=1, dtype=torch.float16)
        wanted = model(x).clone()
        torch._dynamo.reset()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            y = model(x)

        def replay(_, graph=captured, y=y):
            graph.replay()
            return y

        ways = {
            "eager": model,
            "torch.compile": torch.compile(model, fullgraph=True),
            "torch.compile, reduce-overhead": torch.compile(
                model, fullgraph=True, mode="reduce-overhead"
            ),
            "captured graph": replay,
        }
        for way, call in ways.items():
            assert bool(wanted.isfinite().all()) and bool(wanted.count_nonzero() > 4000)
            for _ in range(4):
                assert torch.equal(call(x), wanted), f"{way} of {count} layers gives another result"
            # Few calls, so that the queue of the GPU does not fill and hold the host up.
            host, whole = host_us(lambda: call(x), calls=20), wall_us(lambda: call(x))
            rows.append(f"| {count} | {way} | {host:.1f} | {whole:.1f} |")
    return rows


def wall_us(call, calls: int = 200) -> float:
    """The median of nine bursts, waiting for the GPU at the end of each."""
    times = []
    for _ in range(9):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(times)


def rate(call, moved: int) -> float:
    """TB/s of a call that moves this many bytes."""
    call()
    return moved / graph.us([call] * 4) / 1e6


def pack_table() -> list[str]:
    source = torch.zeros(1 << 28, dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    # A kernel that reads and writes; a copy of one dtype would go to the copy engine.
    copy = rate(partial(torch.neg, source, out=target), 8 * source.numel())
    rows = [
        f"Copy rate of this device: {copy:.2f} TB/s, read and written.",
        "",
        "| bits, 28672 x 8192 | pack TB/s | of the copy rate | unpack TB/s | of the copy rate "
        "| dequantise f16 TB/s |",
        "|---|---|---|---|---|---|",
    ]
    n, k = 28672, 8192
    for bits in range(1, 9):
        layer = random_layer(n, k, TYPE.replace("uint4", f"uint{bits}"))
        weight, number = layer.packed_weight, image.open_weight(str(layer.weight_type), n, k)
        packed, words = image.pack(weight, number), weight.qweight
        ops, codes = torch.ops.ladder, 4 * words.numel()
        pack = rate(partial(ops.pack_image, words, packed, number), 2 * codes)
        unpack = rate(partial(ops.unpack_image, packed, number, n, words.shape[1]), 2 * codes)
        to_dense = partial(ops.dequantize_image, packed, number, n, k, torch.float16)
        dense = rate(to_dense, codes + 2 * n * k)
        rows.append(
            f"| {bits} | {pack:.2f} | {pack / copy:.0%} "
            f"| {unpack:.2f} | {unpack / copy:.0%} | {dense:.2f} |"
        )
    return rows


FIRST_CALL = """
import json, time, torch, ladder
torch.cuda.init(); x = torch.randn(1, 4096, device="cuda").half()
torch.cuda.synchronize()
layer = ladder.Linear(4096, 4096, bias=False, weight_type="{type}", device="cuda")
start = time.perf_counter(); layer.prepare(); torch.cuda.synchronize()
packed = time.perf_counter()
if {tune}: ladder.warmup(layer, m=(1,), tune="full")
layer(x); torch.cuda.synchronize()
print(json.dumps([packed - start, time.perf_counter() - packed]))
"""


def first_call_table() -> list[str]:
    rows = ["| store | find NVRTC and pack, ms | then the first call, ms |", "|---|---|---|"]

    def row(state: str, cache: Path, tune: bool) -> None:
        code = FIRST_CALL.replace("{type}", TYPE).replace("{tune}", str(tune))
        output = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "LADDER_CACHE": str(cache)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        cells = [f"{1e3 * t:.1f}" for t in json.loads(output)]
        rows.append(f"| {state} | " + " | ".join(cells) + " |")

    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        row("empty, no tuning", cache, False)
        shutil.rmtree(cache)
        row("empty, warmup that times 8 candidates", cache, True)
        shutil.rmtree(cache / "kernels")
        row("plan", cache, False)
        row("plan and kernel", cache, False)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", help="the section that begins so")
    args = parser.parse_args()
    require_gpu()
    torch.manual_seed(0)
    sections = {
        "First calls, 4096 x 4096": first_call_table,
        "Host time": host_table,
        "Gradients": gradient_table,
        "torch.compile, layers of 4096 x 4096": compile_table,
        "Layers": lambda: layers_table([(4096, 4096), (8192, 8192)], (1, 2, 4, 8, 16)),
        "Into and out of the image": pack_table,
    }
    command = "python benchmarks/cuda_runtime.py --out benchmarks/results/cuda_runtime.md"
    lines = ["# The CUDA runtime", "", describe(command), f"Type {TYPE} unless bits are named."]
    lines += ["", *__doc__.strip().split("\n\n")[-1].split("\n")]
    for title, table in sections.items():
        if args.only and not title.startswith(args.only):
            continue
        with torch.inference_mode():
            part = ["", f"## {title}", "", *table()]
        print("\n".join(part), flush=True)
        lines += part
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
