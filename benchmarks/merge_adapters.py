# SPDX-License-Identifier: Apache-2.0
"""What is left of an adapter when it is merged into packed weights?

    python benchmarks/merge_adapters.py [--types TYPE...] [--adapters STEPS:RATE...]
                                        [--windows N] [--calibration N]

The model of examples/tiny-llama-gptq, as benchmarks/type_quality.py rotates it, is quantised to
each type. LoRA of rank 8 on all linear layers is trained beside it on the documents of this
repository, which are unlike what the model knows, and merged. The number is how far predictions for
documents that nothing was trained on move (KL divergence, nats a token) from those with the adapter
beside the packed weight: without the adapter, with it merged and rounded to the nearest codes,
merged by ``merge_and_unload``, and merged into the dense values and quantised by ``--calibration``
windows.
"""

from __future__ import annotations

import argparse
import copy
import sys
import warnings
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

import peft
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from transformers import AutoTokenizer

import ladder
from benchmarks.machine import describe
from benchmarks.type_quality import EXAMPLE, example

TYPES = (
    "uint4,group=128,scale=float16,zero=midpoint",
    "nf4,group=64,scale=float16",
    "uint3,group=128,scale=float16,zero=integer",
    "uint2,group=64,scale=float16,zero=integer",
)
TOKENS = 256  #: in a window


def windows() -> Tensor:
    """[windows, TOKENS]: the documents, in an order of no meaning."""
    docs = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
    text = " ".join(path.read_text(encoding="utf-8") for path in docs)
    ids = torch.tensor(AutoTokenizer.from_pretrained(EXAMPLE)(text)["input_ids"])
    rows = ids[: len(ids) // TOKENS * TOKENS].view(-1, TOKENS)
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]


def trained(model: nn.Module, data: Tensor, steps: int, rate: float) -> nn.Module:
    torch.manual_seed(1)
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear")
    adapted = peft.get_peft_model(model, config)
    optimizer = torch.optim.AdamW((p for p in adapted.parameters() if p.requires_grad), lr=rate)
    for _ in range(steps):
        batch = data[torch.randint(len(data), (2,))]
        adapted(batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return adapted.eval()


@torch.no_grad()
def predictions(model: nn.Module, data: Tensor) -> Tensor:
    return torch.stack([model(each[None]).logits[0].float().log_softmax(-1) for each in data])


def divergence(exact: Tensor, other: Tensor) -> float:
    return (exact.exp() * (exact - other)).sum(-1).mean().item()


@torch.no_grad()
def summed(adapted: nn.Module, ttype: str | None) -> nn.Module:
    """The adapter in dense layers, or rounded to the nearest codes of ``ttype``."""
    adapted = copy.deepcopy(adapted)
    for name, layer in list(adapted.named_modules()):
        if isinstance(layer, BaseTunerLayer):
            dense = layer.get_base_layer().dequantize(torch.float32)
            dense.weight += layer.get_delta_weight("default")
            made = dense if ttype is None else ladder.Linear.from_linear(dense, ttype)
            adapted.set_submodule(name, made)
    return adapted.base_model.model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--types", nargs="+", default=TYPES)
    parser.add_argument("--adapters", nargs="+", default=("40:3e-4", "100:2e-3"))
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--calibration", type=int, default=32)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "adapters were merged")
    rows, model = windows(), example()
    test, data = rows[: options.windows], rows[options.windows :]
    data, train = data[: options.calibration], data[options.calibration :]
    print(f"# Merging adapters\n\n{describe('python benchmarks/merge_adapters.py')}\n")
    print("| type | steps, rate | none | nearest codes | merged | calibrated |")
    print("|---|---|---:|---:|---:|---:|")
    for ttype in options.types:
        for adapter in options.adapters:
            steps, _, rate = adapter.partition(":")
            packed = copy.deepcopy(model)
            ladder.convert(packed, ttype)
            none = predictions(packed, test)
            adapted = trained(packed, train, int(steps), float(rate))
            exact = predictions(adapted, test)
            calibrated = summed(adapted, None)
            ladder.convert(calibrated, ttype, calibration=data)
            made = [none, predictions(summed(adapted, ttype), test)]
            made.append(predictions(copy.deepcopy(adapted).merge_and_unload(), test))
            made.append(predictions(calibrated, test))
            cells = " | ".join(f"{divergence(exact, each):.4f}" for each in made)
            print(f"| {ttype} | {steps}, {rate} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
