# SPDX-License-Identifier: Apache-2.0
"""Generate text at speed: layers merged, kernels warmed up, a static cache."""

import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import ladder
from ladder.integrations.transformers import enable

folder = Path(__file__).parent / "tiny-llama-gptq"
device = "cuda" if torch.cuda.is_available() else "cpu"
with enable("gptq"):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", device_map=device)
tokenizer = AutoTokenizer.from_pretrained(folder)
print(ladder.optimize(model, m=1))

inputs = tokenizer("In the beginning", return_tensors="pt").to(device)
# On a GPU transformers compiles the decode step of a static cache and replays it as a CUDA graph:
# the first call is slow.
for call in ("first", "second"):
    start = time.perf_counter()
    tokens = model.generate(
        **inputs, max_new_tokens=32, do_sample=False, cache_implementation="static"
    )
    print(f"{call} call: {time.perf_counter() - start:.2f} s")
print(tokenizer.decode(tokens[0]))

# Saved folders, and model.state_dict(), have the single layers.
assert "model.layers.0.self_attn.k_proj.qweight" in model.state_dict()
