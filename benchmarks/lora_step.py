# SPDX-License-Identifier: Apache-2.0
"""LoRA training on packed weights: what a step costs beside dense weights.

    python benchmarks/lora_step.py [--only layers|step] [--json RESULTS.json] [--out RESULTS.md]

The part layers takes the seven linear layers of one decoder layer of 8B shape, M tokens, in
bfloat16: the product forward and that for the gradient of the activations, of dense and of packed
weights, and decoding the weights alone. Two variants decode a slab at a time, which stays in L2
and needs no dense copy of the whole: slabs of rows add up in the dtype of the gradient, slabs of
columns write apart. Their weights are cut beforehand, as a kernel for part of a weight would do.
Microseconds of the GPU, all seven layers.

The part step is a training step of a model with adapters of rank 16 on all layers, with gradient
checkpointing: milliseconds and peak memory.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

import torch
from torch import Tensor, nn

import ladder
from benchmarks import graph
from benchmarks.generation.models import llama
from benchmarks.machine import describe, require_gpu

TYPE = "uint4,group=128,scale=float16,zero=midpoint"
#: N x K of q, k, v, o, gate, up and down.
LAYERS = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096)]
LAYERS += [(14336, 4096), (14336, 4096), (4096, 14336)]
DTYPE = torch.bfloat16


class Weight:
    """A packed weight as kernels have it, and its values."""

    def __init__(self, packed: ladder.Weight) -> None:
        self.packed = packed
        self.values = packed.dequantize(DTYPE)
        self.n, self.k = packed.shape
        layer = ladder.Linear.from_weight(packed)
        layer.dtype = DTYPE
        assert layer.prepare(), "no kernels for this weight on this device"
        self.image, self.number = layer.image, layer._weight_number

    def decoded(self) -> Tensor:
        return torch.ops.ladder.dequantize_image(self.image, self.number, self.n, self.k, DTYPE)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.ladder.linear_image_no_grad(x, self.image, None, self.number, self.n)


def whole(weight: Weight) -> Callable[[Tensor], Tensor]:
    return lambda grad: grad @ weight.decoded()


def by_rows(weight: Weight, slab_bytes: int) -> Callable[[Tensor], Tensor]:
    rows = max(64, slab_bytes // (2 * weight.k) // 64 * 64)
    starts = range(0, weight.n, rows)
    cut = weight.packed.narrow_rows
    slabs = [Weight(cut(start, min(rows, weight.n - start))) for start in starts]

    def product(grad: Tensor) -> Tensor:
        grads = grad.split(rows, 1)
        total = grads[0] @ slabs[0].decoded()
        for part, slab in zip(grads[1:], slabs[1:], strict=True):
            total.addmm_(part, slab.decoded())
        return total

    return product


def by_columns(weight: Weight, slab_bytes: int) -> Callable[[Tensor], Tensor]:
    columns = max(128, slab_bytes // (2 * weight.n) // 128 * 128)
    starts = range(0, weight.k, columns)
    cut = weight.packed.narrow_columns
    slabs = [Weight(cut(start, min(columns, weight.k - start))) for start in starts]

    def product(grad: Tensor) -> Tensor:
        total = grad.new_empty((len(grad), weight.k))
        for part, slab in zip(total.split(columns, 1), slabs, strict=True):
            torch.mm(grad, slab.decoded(), out=part)
        return total

    return product


def layers(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    require_gpu()
    drawn = (torch.randn(n, k, device="cuda", dtype=DTYPE) / 64 for n, k in LAYERS)
    weights = [Weight(ladder.quantize(values, TYPE, method="nearest")) for values in drawn]
    yield {"way": "decode alone", "us": graph.us([weight.decoded for weight in weights]) * 7}
    slabs = {f"{mib} MiB": mib << 20 for mib in args.slabs}
    backwards: dict[str, list[Callable[[Tensor], Tensor]]] = {
        "dense": [partial(torch.matmul, other=weight.values) for weight in weights],
        "packed, whole copy": [whole(weight) for weight in weights],
    }
    for name, size in slabs.items():
        backwards[f"packed, rows of {name}"] = [by_rows(weight, size) for weight in weights]
        backwards[f"packed, columns of {name}"] = [by_columns(weight, size) for weight in weights]
    for m in args.tokens:
        xs = [torch.randn(m, weight.k, device="cuda", dtype=DTYPE) for weight in weights]
        grads = [torch.randn(m, weight.n, device="cuda", dtype=DTYPE) for weight in weights]
        forwards = {
            "dense": [partial(nn.functional.linear, weight=weight.values) for weight in weights],
            "packed": [weight.forward for weight in weights],
        }
        for direction, ways, inputs in (("forward", forwards, xs), ("backward", backwards, grads)):
            for name, products in ways.items():
                calls = [partial(f, given) for f, given in zip(products, inputs, strict=True)]
                row = {"way": f"{direction}, {name}", "m": m, "us": graph.us(calls) * len(calls)}
                yield row | {
                    "peak_mb": _peak(calls),
                    "outside_of_bound": _outside(direction, calls, inputs, weights),
                }


def _outside(
    direction: str,
    calls: list[Callable[[], Tensor]],
    inputs: list[Tensor],
    weights: list[Weight],
) -> int:
    """How many of the results are further from the exact ones than ladder.testing.bound: those of
    cuBLAS may be, which adds up in 16 bits where torch lets it."""
    outside = 0
    for call, given, weight in zip(calls, inputs, weights, strict=True):
        values = weight.values if direction == "forward" else weight.values.T
        try:
            ladder.testing.assert_linear_close(call(), given, values)
        except AssertionError:
            outside += 1
    return outside


def _peak(calls: list[Callable[[], object]]) -> float:
    """MB that the calls need beyond what there is."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for call in calls:
        call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def step(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    for way in ("dense", "packed", "packed, optimize"):
        for m in args.tokens:
            yield {"way": way, "m": m} | _step(args, way, m)


def _step(args: argparse.Namespace, way: str, tokens: int) -> dict[str, object]:
    import peft

    gc.collect()  # the model before
    dtype = torch.float32 if args.device == "cpu" else DTYPE
    model = llama(args.preset, args.layers, args.device, dtype)
    if way != "dense":
        ladder.convert(model, TYPE, method="nearest")
        if way == "packed":
            ladder.warmup(model, 1, tune=False)
        else:
            ladder.optimize(model, 1, tune=False)
    config = peft.LoraConfig(r=16, target_modules="all-linear")
    model = peft.get_peft_model(model, config, autocast_adapter_dtype=False)
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    text = torch.randint(0, model.config.vocab_size, (1, tokens), device=args.device)
    gpu, times, losses = args.device != "cpu", [], []
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(args.repeats + 1):
        start = time.perf_counter()
        loss = model(text, labels=text).loss
        loss.backward()
        losses.append(loss.item())  # waits
        for parameter in model.parameters():
            parameter.grad = None
        if gpu:
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    peak = torch.cuda.max_memory_allocated() / 1e9 if gpu else 0.0
    assert all(map(math.isfinite, losses)), losses
    return {"ms": statistics.median(times[1:]), "peak_gb": peak, "loss": losses[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=["layers", "step"], default=["layers", "step"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[512, 2048])
    parser.add_argument("--slabs", nargs="+", type=int, default=[16, 32], help="MiB")
    parser.add_argument("--repeats", type=int, default=5, help="of a training step")
    parser.add_argument("--preset", default="8b", choices=["8b", "tiny"])
    parser.add_argument("--layers", type=int, default=4, help="of the model of the part step")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.device != "cpu":
        require_gpu()
    found: dict[str, list[dict[str, object]]] = {}
    lines = [describe("python benchmarks/lora_step.py")]
    for part in args.only:
        start = time.perf_counter()
        if part == "layers":
            with torch.no_grad():
                found[part] = list(layers(args))
        else:
            found[part] = list(step(args))
        lines += ["", *_table(found[part])]
        print(f"{part}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
        if args.json:
            args.json.write_text(json.dumps(found, indent=1))
    text = "\n".join(lines) + "\n"
    print(text)
    if args.out:
        args.out.write_text("# LoRA training on packed weights\n\n" + text)


def _table(rows: list[dict[str, object]]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row))

    def cell(value: object) -> str:
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    return lines + ["| " + " | ".join(cell(row.get(n, "")) for n in names) + " |" for row in rows]


if __name__ == "__main__":
    main()
