# SPDX-License-Identifier: Apache-2.0
"""Generation with transformers: LLaMA of 8B shape with random weights, built on the GPU.

    python benchmarks/generate.py [--only PART ...] [--formats NAME ...] [--ways WAY ...]
        [--batches B ...] [--json RESULTS.json] [--out RESULTS.md]

The parts are check (greedy tokens of four layers against the dequantised model), decode (ms a step
of each format, way and batch), prefill (512 tokens) and host (what a step costs on the host).
Formats whose package is not installed are named and skipped. Ways: eager is transformers' default,
static its static cache, compile the static cache with torch.compile(mode="reduce-overhead") as
``generate`` compiles by itself, graph a CUDA graph of the eager step, without ``generate``.
``--preset tiny --device cpu`` runs anywhere.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

import torch
from torch import nn

import ladder
from benchmarks import graph
from benchmarks.generation import decoding, models
from benchmarks.generation.models import FORMATS, Absent
from benchmarks.machine import describe, require_gpu

PARTS = ("check", "decode", "prefill", "host")
PACKED = [name for name, each in FORMATS.items() if each.packed_by_ladder]


def check(args: argparse.Namespace) -> list[dict[str, object]]:
    """Raises AssertionError unless each format of ladder, single and merged, each way, makes the
    tokens of the model with the dequantised weights. Where both differ, two logits of that model
    must lie closer together than its logits and ladder's."""
    rows = []
    layers = min(4, models.PRESETS[args.preset]["num_hidden_layers"])
    for name in (name for name in args.formats if name in PACKED):
        model = _built(args, name, layers, optimize=False)
        dense = models.llama(args.preset, layers, args.device, model.dtype)
        for at, layer in model.named_modules():
            if isinstance(layer, ladder.Linear):
                dense.set_submodule(at, layer.dequantize(model.dtype).requires_grad_(False))
        want, _ = decoding.generated(dense, "eager", 1, args.steps)
        for optimize in (False, True):
            if optimize:
                ladder.optimize(model, args.batches, tune=args.tune)
            for way in args.ways:
                got, _ = _decoded(model, way, 1, args.steps)
                equal = _equal_as_far_as_known(model, dense, got, want)
                rows.append({"format": name, "optimize": optimize, "way": way, "tokens": equal})
    return rows


def _equal_as_far_as_known(
    model: nn.Module, dense: nn.Module, got: torch.Tensor, want: torch.Tensor
) -> str:
    differ = (got != want).flatten().nonzero()
    if not len(differ):
        return "equal"
    first = int(differ[0])
    text = torch.cat((decoding.prompt(model, 1, 32), want[:, :first]), 1)
    ours, theirs = (
        each(text, logits_to_keep=1).logits.flatten().float() for each in (model, dense)
    )
    gap = float(theirs[want[0, first]] - theirs[got[0, first]])
    error = float((ours - theirs).abs().max())
    assert gap <= 2 * error, f"token {first} differs: logits {gap} apart, errors up to {error}"
    return f"equal up to a tie at token {first}: logits {gap:.1e} apart, errors up to {error:.1e}"


def measure(args: argparse.Namespace) -> list[dict[str, object]]:
    """Rows of the parts decode, prefill and host."""
    rows: list[dict[str, object]] = []
    for name in args.formats:
        for optimize in (False, True) if name in PACKED else (False,):
            if optimize not in args.optimize and name in PACKED:
                continue
            start, row = time.perf_counter(), {"format": name, "optimize": optimize}
            try:
                model = _built(args, name, args.layers, optimize=optimize)
            except Absent as why:
                rows.append(row | {"part": "absent", "why": str(why).split("\n")[0]})
                continue
            row["bytes"] = _nbytes(model)
            _say(args, f"{name}{' + optimize' * optimize}: built", start)
            for part in (part for part in args.only if part != "check"):
                for result in _MEASURED[part](model, args):
                    rows.append(row | {"part": part} | result)
            del model
            gc.collect()
            torch._dynamo.reset()
    return rows


def _decode(model: nn.Module, args: argparse.Namespace):
    for way in args.ways:
        for batch in args.batches:
            start = time.perf_counter()
            try:
                _, ms = _decoded(model, way, batch, args.steps)
            except RuntimeError as error:  # a peer that no graph can hold, say; main ends with 1
                _say(args, f"  {way}, batch {batch}: {error}", start)
                yield {"way": way, "batch": batch, "error": str(error).split("\n")[0]}
                continue
            _say(args, f"  {way}, batch {batch}: {ms:.3f} ms a step", start)
            yield {"way": way, "batch": batch, "ms": ms, "tokens_per_s": 1e3 * batch / ms}


def _prefill(model: nn.Module, args: argparse.Namespace):
    start, ms = time.perf_counter(), decoding.prefill(model, 512)
    _say(args, f"  prefill 512: {ms:.2f} ms", start)
    yield {"tokens": 512, "ms": ms}


def _host(model: nn.Module, args: argparse.Namespace):
    """Ways of one model, a step of one sequence each."""
    for way in ("eager", "torch.compile", "reduce-overhead", "graph"):
        start = time.perf_counter()
        step = decoding.Step(model, 1, 512)
        if way in ("torch.compile", "reduce-overhead"):
            step.compile(mode=None if way == "torch.compile" else way)
        for _ in range(3):
            step()
        us = graph.host_us(step.captured() if way == "graph" else step, bursts=8, calls=16)
        _say(args, f"  host, {way}: {us:.0f} us a step", start)
        yield {"way": way, "host_us": us}


_MEASURED = {"decode": _decode, "prefill": _prefill, "host": _host}


def _decoded(model: nn.Module, way: str, batch: int, steps: int) -> tuple[torch.Tensor, float]:
    if way == "graph":
        return decoding.graphed(model, batch, steps)
    return decoding.generated(model, way, batch, steps)


def _built(args: argparse.Namespace, name: str, layers: int | None, *, optimize: bool) -> nn.Module:
    return models.built(
        FORMATS[name],
        args.preset,
        layers,
        args.device,
        args.batches,
        optimize=optimize,
        tune=args.tune,
    )


def _nbytes(model: nn.Module) -> int:
    """Of all that the model holds; a weight of merged layers is no buffer of the model."""
    if model.device.type == "cuda":
        gc.collect()
        return torch.cuda.memory_allocated()
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    for module in model.modules():
        if isinstance(module, ladder.Linear) and module.image is not None:
            tensors[id(module.image)] = module.image
    return sum(t.numel() * t.itemsize for t in tensors.values())


def _say(args: argparse.Namespace, text: str, start: float) -> None:
    print(f"{text} ({time.perf_counter() - start:.1f} s)", file=sys.stderr, flush=True)


def tables(rows: list[dict[str, object]], batches: list[int]) -> list[str]:
    """Markdown."""
    lines: list[str] = []

    def of(part: str) -> list[dict[str, object]]:
        return [row for row in rows if row.get("part") == part]

    def title(row: dict[str, object]) -> str:
        return f"{row['format']}{' + optimize' if row['optimize'] else ''}"

    if decode := of("decode"):
        lines += [
            "",
            "| format | GB | way | " + " | ".join(f"ms, batch {b}" for b in batches) + " |",
        ]
        lines += ["|---" * (3 + len(batches)) + "|"]
        for key in dict.fromkeys((title(row), row["bytes"], row["way"]) for row in decode):
            cells = [r for r in decode if (title(r), r["bytes"], r["way"]) == key]
            numbers = " | ".join(f"{r['ms']:.2f}" if "ms" in r else "failed" for r in cells)
            lines.append(f"| {key[0]} | {key[1] / 1e9:.2f} | {key[2]} | {numbers} |")
    if prefill := of("prefill"):
        lines += ["", "| format | prefill of 512, ms |", "|---|---|"]
        lines += [f"| {title(row)} | {row['ms']:.2f} |" for row in prefill]
    if host := of("host"):
        lines += ["", "| format | way | host us a step |", "|---|---|---|"]
        lines += [f"| {title(row)} | {row['way']} | {row['host_us']:.0f} |" for row in host]
    if checked := [row for row in rows if "part" not in row]:
        lines += ["", "| format | way | tokens beside the dequantised model's |", "|---|---|---|"]
        lines += [f"| {title(row)} | {row['way']} | {row['tokens']} |" for row in checked]
    lines += [f"\n{title(row)} is absent: {row['why']}" for row in of("absent")]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--formats", nargs="+", choices=list(FORMATS), default=list(FORMATS))
    parser.add_argument("--ways", nargs="+", choices=[*decoding.WAYS, "graph"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--steps", type=int, default=48, help="new tokens of a run")
    parser.add_argument(
        "--optimize", choices=["both", "no", "yes"], default="both", help="of ladder's formats"
    )
    parser.add_argument("--no-tune", dest="tune", action="store_false")
    parser.add_argument("--preset", choices=list(models.PRESETS), default="8b")
    parser.add_argument("--layers", type=int, help="instead of all")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.optimize = {"both": (False, True), "no": (False,), "yes": (True,)}[args.optimize]
    if args.device != "cpu":
        require_gpu()
    on_cpu = ["eager", "static"]
    args.ways = args.ways or (on_cpu if args.device == "cpu" else ["eager", "compile", "graph"])
    if args.device == "cpu":
        args.only = [part for part in args.only if part != "host"]
    with torch.no_grad():
        rows = check(args) if "check" in args.only else []
        if args.json:  # should the rest fail
            args.json.write_text(json.dumps(rows, indent=1))
        rows += measure(args)
    lines = [describe("python benchmarks/generate.py"), *tables(rows, args.batches)]
    text = "\n".join(lines) + "\n"
    print(text)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    if args.out:
        args.out.write_text("# Generation with transformers\n\n" + text)
    if any(row["format"] in PACKED for row in rows if "error" in row):
        raise SystemExit("some ways failed with formats of ladder")


if __name__ == "__main__":
    main()
