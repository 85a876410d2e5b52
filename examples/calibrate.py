# SPDX-License-Identifier: Apache-2.0
"""Quantise a model to three bits: each weight to its nearest code, and by a few pages of text.

On a GPU, `.to("cuda")` the model. Real models want 128 windows of 2048 tokens.
"""

import copy
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

import ladder
from ladder.evaluate.perplexity import load_tokens, perplexity
from ladder.integrations.transformers import dense, enable

folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "tiny-llama-gptq")
with enable():  # whatever the folder is quantised as already
    model = dense(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
tokens = load_tokens(folder / "val_tokens.npy")  # [windows, 512]
measured, pages = tokens[:4], tokens[8:16]
print(f"{'before':12} {perplexity(model, measured):.2f}")

for name, calibration in (("nearest", None), ("calibrated", pages)):
    packed = copy.deepcopy(model)
    report = ladder.convert(packed, "uint3", group_size=128, calibration=calibration)
    print(f"{name:12} {perplexity(packed, measured):.2f}")
print(report.lines()[-1])

# It is a ladder model now: packed.save_pretrained(...) writes a ladder folder.
