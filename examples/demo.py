# SPDX-License-Identifier: Apache-2.0
"""What `make demo` runs: a GPTQ checkpoint becomes a ladder folder, loads, and is measured.

python examples/demo.py [--windows 160] [--tokens 64] [--device cpu]
"""

import argparse
import copy
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

import ladder
from ladder.checkpoints import repack
from ladder.evaluate.perplexity import load_tokens, perplexity
from ladder.integrations.transformers import dense

HERE = Path(__file__).parent
PROMPT = "In the beginning"


def linear_bytes(model: torch.nn.Module) -> int:
    layers = model.model.layers  # all Linear modules but the tied output embedding
    kinds = (ladder.Linear, torch.nn.Linear)
    return sum(held_bytes(m) for m in layers.modules() if isinstance(m, kinds))


def held_bytes(model: torch.nn.Module) -> int:
    return sum(t.numel() * t.itemsize for t in (*model.parameters(), *model.buffers()))


def tokens_per_second(models: list, prompt: dict, count: int) -> tuple[list[float], torch.Tensor]:
    """Greedy, one sequence; the models take turns, and the best of three runs counts."""
    options = {"do_sample": False, "min_new_tokens": count, "max_new_tokens": count}
    seconds = [float("inf")] * len(models)
    for _ in range(3):
        for at, model in enumerate(models):
            start = time.perf_counter()
            made = model.generate(**prompt, **options)
            if made.is_cuda:
                torch.cuda.synchronize()
            seconds[at] = min(seconds[at], time.perf_counter() - start)
    return [count / best for best in seconds], made


def linear_ms(model: torch.nn.Module, device: str) -> float:
    """Milliseconds of all linear layers for one token, called one after the other, the best of 30.
    What else a token takes is the host's: Python of ``generate``, small operators, attention."""
    kinds = (ladder.Linear, torch.nn.Linear)
    layers = [m for m in model.model.layers.modules() if isinstance(m, kinds)]
    inputs = [torch.randn(1, 1, m.in_features, device=device, dtype=model.dtype) for m in layers]
    best = float("inf")
    with torch.inference_mode():
        for _ in range(30):
            start = time.perf_counter()
            for layer, x in zip(layers, inputs, strict=True):
                layer(x)
            if x.is_cuda:
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - start)
    return best * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, default=HERE / "tiny-llama-gptq")
    parser.add_argument("--out", type=Path, default=HERE.parent / "build" / "demo" / "model")
    parser.add_argument("--windows", type=int, default=4, help="of 512 tokens; the file has 160")
    parser.add_argument("--tokens", type=int, default=24, help="to generate")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    console = Console()
    logging.disable_progress_bar()

    report = repack(options.source, options.out, force=True)
    console.print(f"repacked {report.modules} layers in {report.seconds:.2f} s to {options.out}")

    # Plain transformers; `import ladder` above is what it takes.
    dtype = torch.float16 if options.device.startswith("cuda") else torch.float32
    model = AutoModelForCausalLM.from_pretrained(options.out, dtype=dtype)
    model = model.to(options.device).eval()
    dequantised = dense(copy.deepcopy(model))

    tokenizer = AutoTokenizer.from_pretrained(options.out)
    prompt = tokenizer(PROMPT, return_tensors="pt").to(options.device)
    ladder.warmup(model)  # kernels for a GPU; nothing to do on a CPU
    speeds, made = tokens_per_second([dequantised, model], prompt, options.tokens)
    in_layers = [linear_ms(m, options.device) for m in (dequantised, model)]
    console.print(f"[bold]{tokenizer.decode(made[0], skip_special_tokens=True)}[/]\n")

    tokens = load_tokens(options.source / "val_tokens.npy", limit=options.windows)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("perplexity", total=2 * len(tokens))
        advance = lambda *_: progress.advance(task)  # noqa: E731
        before = perplexity(dequantised, tokens, progress=advance)
        after = perplexity(model, tokens, progress=advance)

    on_disk = sum(file.stat().st_size for file in options.out.glob("*.safetensors"))
    dense_on_disk = 2 * sum(p.numel() for p in dequantised.parameters())
    rows = [
        (f"perplexity, {len(tokens)} x {tokens.shape[1]} tokens", before, after, "{:.4f}"),
        ("bytes on disk (dense: float16)", dense_on_disk, on_disk, "{:,}"),
        ("bytes in memory, linear layers", linear_bytes(dequantised), linear_bytes(model), "{:,}"),
        ("bytes in memory, whole model", held_bytes(dequantised), held_bytes(model), "{:,}"),
        (f"tokens per second, {options.device}, batch 1", *speeds, "{:.1f}"),
        ("milliseconds a token, all of it", *(1e3 / speed for speed in speeds), "{:.2f}"),
        ("milliseconds a token, linear layers", *in_layers, "{:.2f}"),
    ]
    kind = model.model.layers[0].self_attn.q_proj.weight_type
    table = Table(title=f"{options.source.name}: {kind}, {str(dtype)[6:]} activations")
    table.add_column("")
    for heading in ("dequantised", "ladder", "ladder / dequantised"):
        table.add_column(heading, justify="right")
    for name, dense_value, value, form in rows:
        ratio = f"{value / dense_value:.3f}"
        table.add_row(name, form.format(dense_value), form.format(value), ratio)
    console.print(table)
    if abs(after / before - 1) > 1e-4:
        raise SystemExit(f"perplexity {after} is not that of the dequantised weights, {before}")


if __name__ == "__main__":
    main()
