# SPDX-License-Identifier: Apache-2.0
"""Load a GPTQ folder as it is: no optimum, no gptqmodel. AWQ folders load the same way."""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ladder.integrations.transformers import enable

folder = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "tiny-llama-gptq"

with enable("gptq", "awq"):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(folder)

print(model.model.layers[0].self_attn.q_proj)
prompt = tokenizer("And the king said unto", return_tensors="pt")
made = model.generate(**prompt, max_new_tokens=24, do_sample=False)
print(tokenizer.decode(made[0], skip_special_tokens=True))

# It is a ladder model now: model.save_pretrained(...) writes a ladder folder.
