# SPDX-License-Identifier: Apache-2.0
"""A layer of experts on this GPU, beside a loop of single layers and the unquantised layer.

    python benchmarks/experts.py [--out RESULTS.md] [--type TYPE] [--tokens 1 16 ...] [--tune fast]

Columns, in microseconds of a replayed CUDA graph:

    layer     ladder.cuda.expert_layer.forward: route, gate and up with their product, down, the
              sum; with --activation-type rows of more than 64 tokens rounded, here alone; with
              --gate-launch the product of gate and up by a launch of its own
    products  its two products alone
    loop      the same two products as one ladder linear layer for each expert that is hit, on rows
              that lie in order already: nothing is counted of sorting and adding up
    grouped   torch's grouped_mm of bfloat16 weights, the two products alone
    marlin    with --vllm, vLLM's fused Marlin layer of 4 bits in groups of 128, all of the layer
    triton    and its Triton layer of such weights, by vLLM's own configuration
    floor     bytes of the experts that are hit, of activations and outputs at the measured read
              rate, or the products at that of the tensor cores where these take longer

Routers choose at random, anew for each call; the weights of a call are not in L2.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

import torch
from torch import Tensor

from benchmarks import graph
from benchmarks.machine import describe, require_gpu
from ladder.cuda import expert_layer, experts, image, timing
from ladder.cuda.request import MODES
from ladder.cuda.tune_experts import Problem, tune
from ladder.ops.activations import ACTIVATION_TYPES
from ladder.ops.gating import Gating
from ladder.types import parse

READ_BYTES_PER_SECOND = 4.53e12
FLOPS = {torch.float16: 761e12, torch.bfloat16: 787e12}
_ops = torch.ops.ladder


class Shape(NamedTuple):
    """Of a layer."""

    name: str
    experts: int
    of_token: int
    hidden: int
    width: int  #: of gate, and of up


SHAPES = (
    Shape("8 experts, 2 a token, 14336 x 4096", 8, 2, 4096, 14336),
    Shape("128 experts, 8 a token, 768 x 2048", 128, 8, 2048, 768),
)
CALLS = 8  # of a graph, each with a choice of its own


class Layer:
    """Random stacks of one layer."""

    def __init__(
        self, shape: Shape, type: str, seed: int, activation_type: str = "", gated: bool = True
    ):
        self.shape, ttype = shape, parse(type)
        self.activation_type = activation_type
        source = torch.Generator("cuda").manual_seed(seed)
        self.stacks = []
        for n, k in ((2 * shape.width, shape.hidden), (shape.hidden, shape.width)):
            gates = gated and not self.stacks
            number = image.open_weight(type, n, k, gating=Gating() if gates else None)
            images = timing.random_images(shape.experts, number, ttype.bits, source)
            self.stacks.append(experts.Stack(images, number, (n, k), type, gates))

    def call(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return expert_layer.forward(
            x, ids, weights, *self.stacks, "silu", activation_type=self.activation_type
        )


class Rows(NamedTuple):
    """Of a call, routed."""

    rows: Tensor
    hidden: Tensor
    items: Tensor
    of_item: int
    counts: list[int]


def routed(layer: Layer, x: Tensor, ids: Tensor) -> Rows:
    of_item = experts.rows_of_item(*layer.stacks, ids.numel(), x.dtype)
    rows, items, _ = experts.route(x, ids, layer.shape.experts, of_item)
    hidden = torch.randn(rows.shape[0], layer.shape.width, device="cuda").to(x.dtype)
    counts = torch.bincount(ids.flatten(), minlength=layer.shape.experts).tolist()
    return Rows(rows, hidden, items, of_item, counts)


def products(layer: Layer, r: Rows) -> None:
    for x, stack in zip((r.rows, r.hidden), layer.stacks, strict=True):
        experts.expert_linear(x, stack, None, r.items, r.of_item)


def loop(layer: Layer, r: Rows) -> None:
    for x, stack in zip((r.rows, r.hidden), layer.stacks, strict=True):
        first = 0
        for expert, count in enumerate(r.counts):
            if count == 0:
                continue
            rows = x[first : first + count]
            _ops.linear_image_no_grad(rows, stack.images[expert], None, stack.number, stack.columns)
            first += count


def floor(layer: Layer, r: Rows, dtype: torch.dtype) -> float:
    """Microseconds."""
    size = flops = 0
    for stack in layer.stacks:
        n, k = stack.shape
        hit = sum(count > 0 for count in r.counts)
        size += hit * stack.images.shape[1] * 4 + 2 * sum(r.counts) * (stack.columns + k)
        flops += 2 * sum(r.counts) * n * k
    return 1e6 * max(size / READ_BYTES_PER_SECOND, flops / FLOPS[dtype])


def choices(shape: Shape, tokens: int) -> Tensor:
    return torch.rand(tokens, shape.experts, device="cuda").topk(shape.of_token, dim=1).indices


#: A layer: x, experts of each token and their weights to y.
Peer = Callable[[Tensor, Tensor, Tensor], Tensor]


def of_vllm(shape: Shape, dtype: torch.dtype) -> dict[str, Peer]:
    """vLLM's layers on random codes: what they compute is not checked."""
    from vllm.model_executor.layers.fused_moe import fused_experts
    from vllm.model_executor.layers.fused_moe.config import int4_w4a16_moe_quant_config
    from vllm.model_executor.layers.fused_moe.experts.marlin_moe import fused_marlin_moe
    from vllm.scalar_type import scalar_types

    e, h, i = shape.experts, shape.hidden, shape.width
    group = 128

    def codes(*shape: int, dtype: torch.dtype) -> Tensor:
        info = torch.iinfo(dtype)
        return torch.randint(info.min, info.max, shape, dtype=dtype, device="cuda")

    def scales(*shape: int) -> Tensor:
        return (torch.rand(shape, device="cuda") / 64).to(dtype)

    marlin = [codes(e, k // 16, 2 * n, dtype=torch.int32) for n, k in ((2 * i, h), (h, i))]
    their_scales = [scales(e, k // group, n) for n, k in ((2 * i, h), (h, i))]
    plain = [codes(e, n, k // 2, dtype=torch.uint8) for n, k in ((2 * i, h), (h, i))]
    config = int4_w4a16_moe_quant_config(
        *(scales(e, n, k // group) for n, k in ((2 * i, h), (h, i))), block_shape=[0, group]
    )

    def by_marlin(x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        kind = scalar_types.uint4b8.id
        return fused_marlin_moe(x, *marlin, None, None, *their_scales, weights, ids, kind)

    def by_triton(x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return fused_experts(x, *plain, weights, ids, quant_config=config)

    return {"marlin": by_marlin, "triton": by_triton}


def row(
    layers: list[Layer],
    dense: list[Tensor],
    peers: dict[str, Peer],
    tokens: int,
    dtype: torch.dtype,
) -> str:
    shape = layers[0].shape
    x = torch.randn(tokens, shape.hidden, device="cuda").to(dtype)
    weights = torch.rand(tokens, shape.of_token, device="cuda").to(dtype)
    ids = [choices(shape, tokens) for _ in range(CALLS)]
    of = [layers[i % len(layers)] for i in range(CALLS)]
    rows = [routed(layer, x, i) for layer, i in zip(of, ids, strict=True)]

    def over(function) -> float:
        return graph.us([lambda a=a: function(*a) for a in zip(of, rows, strict=True)])

    whole = graph.us([lambda a=a: a[0].call(x, a[1], weights) for a in zip(of, ids, strict=True)])
    ours, looped = over(products), over(loop)
    ends = [torch.tensor(r.counts, device="cuda").cumsum(0, dtype=torch.int32) for r in rows]
    halves = [(r.rows.bfloat16(), r.hidden.bfloat16()) for r in rows]

    def grouped(i: int) -> None:
        for a, w in zip(halves[i], dense, strict=True):
            torch._grouped_mm(a, w.transpose(-2, -1), offs=ends[i])

    theirs = graph.us([lambda i=i: grouped(i) for i in range(CALLS)])
    least = sum(floor(layers[0], r, dtype) for r in rows) / CALLS
    hit = sum(sum(c > 0 for c in r.counts) for r in rows) / CALLS
    beside = []
    for peer in peers.values():
        try:
            w, short = weights.float(), [i.int() for i in ids]
            us = graph.us([lambda i=i, p=peer: p(x, i, w) for i in short])
            beside.append(f" {us:.1f} | {us / whole:.2f} |")
        except Exception as error:  # whatever it is that a peer does not take
            print(f"    {tokens} tokens: {type(error).__name__}: {error}", flush=True)
            beside.append(" | |")
    return (
        f"| {tokens} | {hit:.0f} | {rows[0].of_item} | {whole:.1f} | {ours:.1f} | {looped:.1f} "
        f"| {looped / ours:.2f} | {theirs:.1f} | {theirs / ours:.2f} | {least:.1f} "
        f"| {ours / least:.2f} |"
    ) + "".join(beside)


HEADER = (
    "| tokens | experts hit | rows of an item | layer | products | loop | loop / products "
    "| grouped bf16 | grouped / products | floor | products / floor |"
)


def header(peers: dict[str, Peer]) -> str:
    names = "".join(f" {name} | {name} / layer |" for name in peers)
    return f"{HEADER}{names}\n" + "|---" * (11 + 2 * len(peers)) + "|"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--type", default="uint4,group=128,scale=float16,zero=midpoint")
    parser.add_argument("--activation-type", choices=ACTIVATION_TYPES, default="")
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
    parser.add_argument(
        "--tokens",
        nargs="*",
        type=int,
        default=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096],
    )
    parser.add_argument("--tune", choices=MODES, default="off", help="as ladder.warmup has it")
    parser.add_argument("--vllm", action="store_true", help="beside vLLM's layers")
    parser.add_argument("--gate-launch", action="store_true", help="gate and up are joined apart")
    parser.add_argument("--shapes", nargs="*", type=int, default=range(len(SHAPES)))
    arguments = parser.parse_args()
    require_gpu()
    dtype = getattr(torch, arguments.dtype)
    lines = [
        describe(" ".join(["benchmarks/experts.py", *sys.argv[1:]])),
        "",
        f"{arguments.type}, x {arguments.dtype}"
        + (f" rounded to {arguments.activation_type}" if arguments.activation_type else ""),
    ]
    for shape in (SHAPES[i] for i in arguments.shapes):
        rounded = arguments.activation_type
        gated = not arguments.gate_launch
        layers = [Layer(shape, arguments.type, seed, rounded, gated) for seed in range(2)]
        dense = [
            torch.randn(shape.experts, *stack.shape, dtype=torch.bfloat16, device="cuda")
            for stack in layers[0].stacks
        ]
        peers = of_vllm(shape, dtype) if arguments.vllm else {}
        lines += ["", shape.name, "", header(peers)]
        for tokens in arguments.tokens:
            for each in {"", rounded}:
                problem = Problem(*layers[0].stacks, tokens, shape.of_token, dtype, each)
                tune(problem, MODES[arguments.tune], math.inf)
            lines.append(row(layers, dense, peers, tokens, dtype))
            print(lines[-1], flush=True)
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
