# SPDX-License-Identifier: Apache-2.0
"""How fast are products with activations of 8 bits on the CPU, beside ggml and torch, and what do
they cost in perplexity?

    python benchmarks/cpu_int8.py [--threads 2] [--repeats 15] [--isa avx2] [--ggml FOLDER]
        [--only speed perplexity] [--tokens-at-once 1 16 64 512] [--windows 8]

Every figure is measured in turns with its peers and is the least of all turns. Weights of one
token are rotated through enough copies that they come from memory. ggml rounds x to 8 bits in
blocks of 32 for q4_0 and q8_0, of 256 for q4_k. torch's integers are those of ``torch._int_mm``,
whose x and weight are int8 already and have no scales. ``--isa avx2`` limits ladder and torch
alike; ggml is as its folder was built.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

import torch
from cpu_linear import LIMITS, in_turns
from ggml_peer import Ggml
from machine import busy, describe

import ladder
from ladder import ops
from ladder.evaluate.perplexity import load_tokens, perplexity

#: ladder's types, and the peer of as many bits.
TYPES = {
    "uint4,group=32,scale=float16,zero=midpoint": "q4_0",
    "uint4,group=128,scale=float16,zero=midpoint": "q4_k",
    "int8,group=32,scale=float16": "q8_0",
    "int8,channel,scale=float16": "q8_0",
    "mxfp4": "q4_0",
    "uint2,group=32,scale=float16,zero=midpoint": "",
    "nf4,group=32,scale=float16": "q4_0",
}
QUALITY = (("uint4", 32), ("uint4", 128), ("int8", -1), ("uint2", 32), ("mxfp4", None),
           ("nf4", 32))  # fmt: skip


def rotated(make: Callable[[], object], m: int) -> itertools.cycle:
    """What ``make`` returns in turns: with one token 12 copies, 100 MB and more of 4096 x 4096."""
    return itertools.cycle([make() for _ in range(12 if m == 1 else 1)])


def ladder_product(type: str, weight: torch.Tensor, x: torch.Tensor) -> Callable[[], object]:
    packed = ladder.quantize(weight, type, method="nearest")
    copies = rotated(
        lambda: {name: part.clone() for name, part in packed.tensors().items()}, len(x)
    )
    return lambda: ops.linear(x, type=packed.type, activation_type="int8", **next(copies))


def torch_products(weight: torch.Tensor, x: torch.Tensor) -> dict[str, Callable[[], object]]:
    n, k = weight.shape
    wide = rotated(weight.bfloat16().clone, len(x))
    bytes_ = torch.randint(-127, 128, (n, k), dtype=torch.int8)
    integers = rotated(bytes_.clone, len(x))
    half, eight = x.bfloat16(), torch.randint(-127, 128, (len(x), k), dtype=torch.int8)
    return {
        "torch bfloat16": lambda: torch.nn.functional.linear(half, next(wide)),
        "torch._int_mm": lambda: torch._int_mm(eight, next(integers).T),
    }


def speed(args: argparse.Namespace) -> None:
    weight = torch.randn(args.size, args.size) * 0.05
    ggml = Ggml(args.ggml) if args.ggml else None
    if ggml is not None:
        print(f"\nggml was built for {ggml.isas()}.")
    for m in args.tokens_at_once:
        x = torch.randn(m, args.size)
        calls: dict[str, Callable[[], object]] = {
            type: ladder_product(type, weight, x) for type in TYPES
        }
        for name in ("q4_0", "q4_k", "q8_0") if ggml is not None else ():
            copies = 12 if m == 1 else 1
            calls[name] = ggml.product(name, weight, x, torch.get_num_threads(), copies)
        calls |= torch_products(weight, x)
        turns = args.repeats * 4 if m == 1 else max(1, args.repeats * 16 // max(m, 16))
        times = dict(zip(calls, in_turns(list(calls.values()), turns), strict=True))
        print(f"\n## {m} token{'s' * (m > 1)}, {args.size} x {args.size}\n")
        print("| product | ms | ggml's time of equal bits / this | _int_mm's | bfloat16's |")
        print("|---|---:|---:|---:|---:|")
        for name, (_, least) in times.items():
            peer = times.get(TYPES.get(name, ""))
            cells = [
                "" if other is None else f"{other.least / least:.2f}"
                for other in (peer, times["torch._int_mm"], times["torch bfloat16"])
            ]
            label = f"ggml {name}" if name.startswith("q") else name
            print(f"| {label} | {least * 1e3:.3f} | {' | '.join(cells)} |", flush=True)


def quality(args: argparse.Namespace) -> None:
    from type_quality import EXAMPLE, example

    model, tokens = example(), load_tokens(EXAMPLE / "val_tokens.npy")
    tokens = tokens[: args.windows]
    print(f"\n## Perplexity of examples/tiny-llama-gptq, {len(tokens)} windows\n")
    base = perplexity(model, tokens)
    print(f"Unquantised: {base:.4f}.\n")
    print("| weights | float32 x | x of 8 bits | above |\n|---|---:|---:|---:|")
    for name, group in QUALITY:
        packed = copy.deepcopy(model)
        ladder.convert(packed, name, group)
        wide = perplexity(packed, tokens)
        ladder.set_activation_type(packed, "int8")
        rounded = perplexity(packed, tokens)
        label = name if group is None else f"{name}, {f'group {group}' if group > 0 else 'channel'}"
        above = f"{rounded / wide - 1:+.3%}"
        print(f"| {label} | {wide:.4f} | {rounded:.4f} | {above} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--isa", default="", help="an instruction set of ladder.use_cpu_isa")
    parser.add_argument("--ggml", type=Path, help="folder with ggml's shared libraries")
    parser.add_argument("--only", nargs="+", default=["speed", "perplexity"])
    parser.add_argument("--tokens-at-once", type=int, nargs="+", default=[1, 16, 64, 512])
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--windows", type=int, default=8)
    args = parser.parse_args()
    limits = LIMITS.get(args.isa, {})
    if any(os.environ.get(name) != value for name, value in limits.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | limits)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    ladder.use_cpu_isa(args.isa)
    words = [word for word in sys.argv[1:] if "/" not in word]
    print("# Activations of 8 bits on the CPU\n")
    print(describe(f"python benchmarks/cpu_int8.py {' '.join(words)}"), end="")
    if (taken := busy()) > 0.1:
        print(f"- others take {taken:.0%} of the processors: figures are not of a quiet machine")
    if "speed" in args.only:
        speed(args)
    if "perplexity" in args.only:
        quality(args)


if __name__ == "__main__":
    main()
