# SPDX-License-Identifier: Apache-2.0
"""Do packed weights predict text exactly as well as their dequantised selves?

    python benchmarks/perplexity.py MODEL... [--tokens FILE] [--windows N] [--device D] [--dtype T]
                                    [--piece P]

Each quantised folder is measured three ways: as it is through ``enable``, repacked as a ladder
folder, and with dense layers that hold the dequantised weights. ``--piece`` gives the model that
many tokens of a window at a time, and its cache, as generation does: up to 16 go through the
kernels of few tokens on a GPU. Prints a Markdown table.
"""

import argparse
import platform
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.utils import logging

import ladder
from ladder.checkpoints import FORMATS, repack
from ladder.checkpoints.shards import read_json
from ladder.evaluate.perplexity import load_tokens, perplexity
from ladder.integrations.transformers import dense, enable

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "tiny-llama-gptq"


def load(folder: Path, device: str, dtype: torch.dtype) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device)


class InPieces(torch.nn.Module):
    """A model that is called with a few tokens of a window at a time."""

    def __init__(self, model: torch.nn.Module, piece: int) -> None:
        super().__init__()
        self.model, self.piece = model, piece

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits, cache = [], None
        for part in ids.split(self.piece, dim=1):
            out = self.model(part, past_key_values=cache, use_cache=True)
            logits.append(out.logits)
            cache = out.past_key_values
        return torch.cat(logits, 1)


def measure(
    folder: Path, tokens: torch.Tensor, device: str, dtype: torch.dtype, piece: int | None
) -> dict[str, tuple[float, float]]:
    """Way of loading -> (perplexity, seconds)."""
    found = {}

    def run(way: str, model: torch.nn.Module) -> None:
        start = time.perf_counter()
        value = perplexity(InPieces(model, piece) if piece else model, tokens)
        found[way] = value, time.perf_counter() - start
        print(f"{folder.name}, {way}: {value:.6f}", file=sys.stderr, flush=True)

    quantization = read_json(folder / "config.json").get("quantization_config") or {}
    method = quantization.get("quant_method")
    if method not in FORMATS:
        run("as it is", load(folder, device, dtype))
        return found
    with enable(method):
        run("enable()", load(folder, device, dtype))
    with tempfile.TemporaryDirectory() as temporary:
        repack(folder, Path(temporary) / "model")
        model = load(Path(temporary) / "model", device, dtype)
    run("repacked", model)
    run("dequantised", dense(model))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, nargs="*", default=[EXAMPLE])
    parser.add_argument("--tokens", type=Path, default=EXAMPLE / "val_tokens.npy")
    parser.add_argument("--windows", type=int, help="the first N only")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", help="of activations: float32, float16, ...")
    parser.add_argument("--piece", type=int, help="tokens of a window in one call; all of them")
    options = parser.parse_args()
    logging.disable_progress_bar()
    tokens = load_tokens(options.tokens, limit=options.windows)

    name = platform.processor() or platform.machine()
    if options.device != "cpu":
        name = torch.cuda.get_device_name(options.device)
    print(
        f"{name}, torch {torch.__version__}, transformers {transformers.__version__}, ladder "
        f"{ladder.__version__}; {len(tokens)} windows of {tokens.shape[1]} tokens, "
        f"{options.dtype}, {options.piece or 'all'} in a call\n"
    )
    print("| model | way | perplexity | from dequantised | seconds |")
    print("|---|---|---:|---:|---:|")
    for folder in options.models:
        dtype = getattr(torch, options.dtype)
        found = measure(folder, tokens, options.device, dtype, options.piece)
        base = found.get("dequantised", next(iter(found.values())))[0]
        for way, (value, seconds) in found.items():
            change = abs(value / base - 1)
            print(f"| {folder.name} | {way} | {value:.4f} | {change:.1e} | {seconds:.1f} |")


if __name__ == "__main__":
    main()
