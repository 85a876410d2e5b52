# SPDX-License-Identifier: Apache-2.0
"""Keys and values in tTypes: what they cost in predictions, time and memory.

    python benchmarks/kv_cache.py quality MODEL TOKENS [--windows N] [--device D]
    python benchmarks/kv_cache.py speed [--context N] [--ways NAME...] [--device D]

``quality`` gives the model 32 tokens of a window at a time, with a cache of which all but these
and ``residual`` more are quantised, and compares predictions with those of a DynamicCache:
perplexity, and the mean Kullback-Leibler divergence of a next token. ``speed`` times what a decode
step asks of the cache of one layer of the shape of LLaMA 8B (8 heads of keys and values, width 128,
bfloat16) after a context of N random tokens, attention itself left out, each way in a process of
its own, whose memory it says: on a GPU that of tensors there. Both print Markdown.
"""

import argparse
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

import torch
from machine import describe
from torch.nn import functional
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, cache_utils

from ladder.evaluate.perplexity import load_tokens
from ladder.integrations.transformers import QuantizedCache

#: Tokens in a call, and in a block.
BLOCK = 32
#: tTypes of both keys and values.
TYPES = [
    "int8,group=32,scale=float16",
    "float8_e4m3,channel",
    "uint6,group=32,scale=float16,zero=rescale",
    "uint4,group=32,scale=float16,zero=rescale",
    "uint4,group=32,scale=float16,zero=integer",
    "uint4,group=32,scale=float16,zero=midpoint",
    "nf4,group=32,scale=float16",
    "float4_e2m1,group=16,scale=float8_e4m3",
    "mxfp4",
    "uint3,group=32,scale=float16,zero=rescale",
    "uint2,group=32,scale=float16,zero=rescale",
    "uint2,group=16,scale=float16,zero=rescale",
    "uint2,group=32,scale=float16,zero=integer",
]


@torch.no_grad()
def predictions(model: torch.nn.Module, windows: torch.Tensor, cache: object):
    """Logarithms of probabilities [windows, tokens, vocabulary]."""
    parts = windows.split(BLOCK, 1)
    logits = [model(part, past_key_values=cache, use_cache=True).logits for part in parts]
    return functional.log_softmax(torch.cat(logits, 1).float(), -1)


def quality(arguments: argparse.Namespace) -> None:
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    model.to(arguments.device)
    windows = load_tokens(arguments.tokens, limit=arguments.windows).to(arguments.device)
    print("| keys | values | along | method | residual | bits | perplexity | KL divergence |")
    print("|---|---|---|---|---|---|---|---|")
    some = windows.split(8)
    dense = [predictions(model, w, DynamicCache(config=model.config)) for w in some]

    def row(
        keys: str,
        values: str,
        along: tuple[str, str] = ("channel", "token"),
        method: str = "nearest",
        residual: int = 0,
    ) -> None:
        loss = divergence = 0.0
        for ids, want in zip(some, dense, strict=True):
            cache = QuantizedCache(
                model.config,
                keys or None,
                values or None,
                keys_per=along[0],
                values_per=along[1],
                residual=residual,
                block=BLOCK,
                method=method,
            )
            found = predictions(model, ids, cache)
            loss += functional.nll_loss(
                found[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum"
            ).item()
            divergence += (want.exp() * (want - found)).sum().item()
        predicted = windows.numel() - len(windows)
        bits = 32 * cache.nbytes / cache.dense_nbytes  # of float32
        words = (keys or "dense", values or "dense", ", ".join(along), method, str(residual))
        print(
            f"| {' | '.join(words)} | {bits:.2f} | {math.exp(loss / predicted):.3f} | "
            f"{divergence / windows.numel():.5f} |",
            flush=True,
        )

    row("", "")
    for ttype in TYPES:
        row(ttype, ttype)
    four, two = (f"uint{bits},group=32,scale=float16,zero=rescale" for bits in (4, 2))
    row(four, two)
    row(two, four)
    for ttype in (four, two):
        for along in (("token", "token"), ("channel", "channel"), ("token", "channel")):
            row(ttype, ttype, along)
        row(ttype, ttype, method="search")
        row(ttype, "")
        row("", ttype)
    for residual in (32, 64, 128):
        row(two, two, residual=residual)


LLAMA = {
    "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
}  # fmt: skip


def ways() -> dict[str, Callable[[LlamaConfig], cache_utils.Cache]]:
    """Way -> cache of a configuration."""

    def own(name: str, **options: object) -> Callable[[LlamaConfig], cache_utils.Cache]:
        spelled = f"{name},group=32,scale=float16" + (",zero=rescale" if name[0] == "u" else "")
        return lambda config: QuantizedCache(config, spelled, spelled, **options)

    def theirs(backend: str, **options: object) -> Callable[[LlamaConfig], cache_utils.Cache]:
        return lambda config: cache_utils.QuantizedCache(backend, config, **options)

    return {
        "DynamicCache": lambda config: DynamicCache(config=config),
        "ladder int8": own("int8"),
        "ladder uint4": own("uint4"),
        "ladder uint4, keys per token": own("uint4", keys_per="token"),
        "ladder nf4": own("nf4"),
        "ladder uint3": own("uint3"),
        "ladder uint2": own("uint2"),
        "ladder uint2, search": own("uint2", method="search"),
        "quanto 4 bits": theirs("quanto", nbits=4),
        "quanto 2 bits": theirs("quanto", nbits=2),
        "hqq 4 bits": theirs("hqq", nbits=4, axis_key=1, axis_value=1),
        "transformers fp8": theirs("fp8"),
    }


def resident(device: str) -> int:
    """Bytes of this process, or of its tensors on a GPU."""
    if device != "cpu":
        return torch.cuda.memory_allocated()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@torch.no_grad()
def time_way(arguments: argparse.Namespace) -> None:
    """A line of the table for the way ``arguments.only``."""
    way, device = arguments.only, arguments.device
    config = LlamaConfig(**LLAMA)
    random = torch.Generator(device).manual_seed(0)
    layers, heads = config.num_hidden_layers, config.num_key_value_heads

    def states(tokens: int) -> list[torch.Tensor]:
        shape = (1, heads, tokens, config.head_dim)
        numbers = (torch.randn(shape, generator=random, device=device) for _ in range(2))
        return [each.to(torch.bfloat16) for each in numbers]

    def timed(call: Callable[[], object]) -> tuple[object, float]:
        start = time.perf_counter()
        given = call()
        if device != "cpu":
            torch.cuda.synchronize()
        return given, time.perf_counter() - start

    prompt, new = states(arguments.context), [states(1) for _ in range(8)]
    cache = ways()[way](config)
    prefill = min(timed(partial(cache.update, *prompt, i))[1] for i in range(layers))
    del prompt
    before, peak, times = resident(device), 0, []
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    for step in range(arguments.steps):
        spent = 0.0
        for layer in range(layers):
            seen, seconds = timed(partial(cache.update, *new[step % 8], layer))
            peak = max(peak, resident(device) - before)
            spent += seconds
            del seen
        times.append(spent / layers)
    if device != "cpu":
        peak = torch.cuda.max_memory_allocated() - before
    times.sort()
    size = f"{cache.nbytes / layers / 2**20:.1f}" if isinstance(cache, QuantizedCache) else "-"
    median, most = times[len(times) // 2] * 1e3, times[-1] * 1e3
    print(
        f"| {way} | {prefill * 1e3:.1f} | {median:.2f} | {most:.1f} | {size} | "
        f"{before / 2**20:.0f} | {peak / 2**20:.0f} |",
        flush=True,
    )


def speed(arguments: argparse.Namespace) -> None:
    print("| cache | prompt, ms | step, ms | longest | held, MiB | process, MiB | step adds, MiB |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for way in arguments.ways or ways():
        options = ["--context", str(arguments.context), "--steps", str(arguments.steps)]
        options += ["--device", arguments.device]
        command = [sys.executable, __file__, "speed", *options, "--only", way]
        subprocess.run(command, check=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="what", required=True)
    one = commands.add_parser("quality")
    one.add_argument("model", type=Path)
    one.add_argument("tokens", type=Path)
    one.add_argument("--windows", type=int, default=16)
    two = commands.add_parser("speed")
    two.add_argument("--context", type=int, default=4096)
    two.add_argument("--steps", type=int, default=140)
    two.add_argument("--ways", nargs="*")
    two.add_argument("--only", help=argparse.SUPPRESS)
    for each in (one, two):
        each.add_argument("--device", default="cpu", help="cpu, cuda")
    arguments = parser.parse_args()
    if arguments.what == "speed" and arguments.only:
        time_way(arguments)
        return
    print(describe(f"python benchmarks/kv_cache.py {' '.join(sys.argv[1:])}"))
    (quality if arguments.what == "quality" else speed)(arguments)


if __name__ == "__main__":
    main()
