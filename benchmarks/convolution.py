# SPDX-License-Identifier: Apache-2.0
"""Convolutions and batched products on this GPU, beside torch's on dense weights.

    python benchmarks/convolution.py [--out RESULTS.md] [--type TYPE] [--images 1 16] [--tune fast]
                                     [--shapes COUNT] [--tokens 1 16 256]

Columns, in microseconds of a replayed CUDA graph:

    ladder    ladder.Conv2d, or ladder.BatchedLinear, on weights of --type
    torch     torch.conv2d of float16, channels last, with cuDNN's benchmark mode; torch.bmm
    tflops    of ladder's products

x and weights of a call are not in L2 where those of all calls of a graph are larger; most layers
of convolutions are smaller, as they are in a network.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

import torch

import ladder
from benchmarks import graph
from benchmarks.machine import describe, require_gpu
from ladder.cuda.request import MODES

CALLS = 8  # of a graph, each with a weight and an x of its own


class Conv(NamedTuple):
    """A layer: channels, filters, image, kernel, stride, padding."""

    name: str
    c: int
    f: int
    size: int
    kernel: int
    stride: int = 1
    padding: int = 0


CONVS = (
    Conv("ResNet 3x3, 64", 64, 64, 56, 3, 1, 1),
    Conv("ResNet 3x3, 256, stride 2", 256, 256, 28, 3, 2, 1),
    Conv("ResNet 3x3, 512", 512, 512, 7, 3, 1, 1),
    Conv("UNet 3x3, 640", 640, 640, 32, 3, 1, 1),
    Conv("VAE 3x3, 512", 512, 512, 64, 3, 1, 1),
    Conv("patches 14x14, 3", 3, 1024, 224, 14, 14, 0),
    Conv("ResNet 1x1, 256", 256, 64, 56, 1, 1, 0),
)


class Batch(NamedTuple):
    """Products side by side: [n, k] each."""

    name: str
    batch: int
    n: int
    k: int


BATCHES = (
    Batch("absorbed keys, 128 heads", 128, 512, 128),
    Batch("absorbed values, 128 heads", 128, 128, 512),
    Batch("output groups", 8, 1024, 4096),
)


def conv_row(shape: Conv, images: int, type: str, tune: str) -> str:
    dense = torch.nn.Conv2d(
        shape.c, shape.f, shape.kernel, shape.stride, shape.padding, dtype=torch.float16
    )
    packed = ladder.Conv2d.from_float(dense, type, method="nearest")
    # Copies in memory of their own.
    modules = [
        (
            copy.deepcopy(packed).cuda(),
            copy.deepcopy(dense).cuda().to(memory_format=torch.channels_last),
        )
        for _ in range(CALLS)
    ]
    size = (images, shape.c, shape.size, shape.size)
    modules[0][0].warmup(size, tune=tune)
    last = torch.channels_last
    xs = [torch.randn(size, device="cuda").half().to(memory_format=last) for _ in range(CALLS)]
    with torch.no_grad():
        ours = graph.us([lambda m=m, x=x: m[0](x) for m, x in zip(modules, xs, strict=True)])
        theirs = graph.us([lambda m=m, x=x: m[1](x) for m, x in zip(modules, xs, strict=True)])
        y = modules[0][0](xs[0])
    operations = 2 * y.numel() * shape.c * shape.kernel**2
    return line(shape.name, images, ours, theirs, operations)


def batch_row(shape: Batch, tokens: int, type: str, tune: str) -> str:
    weight = torch.randn(shape.batch, shape.n, shape.k).half()
    packed = ladder.BatchedLinear.from_tensor(weight, None, type, method="nearest")
    modules = [copy.deepcopy(packed).cuda() for _ in range(CALLS)]
    dense = [weight.cuda() for _ in range(CALLS)]
    ladder.warmup(modules[0], m=tokens, dtype=torch.float16, tune=tune)
    parts = (shape.batch, tokens, shape.k)
    xs = [torch.randn(parts, device="cuda").half() for _ in range(CALLS)]
    with torch.no_grad():
        ours = graph.us(
            [lambda m=m, x=x: m(x.transpose(0, 1)) for m, x in zip(modules, xs, strict=True)]
        )
        theirs = graph.us(
            [lambda w=w, x=x: torch.bmm(x, w.mT) for w, x in zip(dense, xs, strict=True)]
        )
    return line(shape.name, tokens, ours, theirs, 2 * shape.batch * tokens * shape.n * shape.k)


def line(name: str, count: int, ours: float, theirs: float, operations: int) -> str:
    rate = operations / ours / 1e6
    return f"| {name} | {count} | {ours:.1f} | {theirs:.1f} | {theirs / ours:.2f} | {rate:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--type", default="uint4,group=64,scale=float16,zero=midpoint")
    parser.add_argument("--images", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--shapes", type=int, default=len(CONVS))
    parser.add_argument("--tune", choices=sorted(MODES), default="fast")
    options = parser.parse_args()
    require_gpu()
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    lines = [describe(" ".join(["python", *sys.argv])), f"Weights: {options.type}.", ""]

    def show(text: str) -> None:
        print(text, flush=True)
        lines.append(text)

    show("| layer | images or tokens | ladder us | torch us | torch / ladder | TFLOP/s |")
    show("|---|---|---|---|---|---|")
    for conv in CONVS[: options.shapes]:
        for images in options.images:
            show(conv_row(conv, images, options.type, options.tune))
    for batch in BATCHES[: options.shapes]:
        for tokens in options.tokens:
            show(batch_row(batch, tokens, options.type, options.tune))
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
