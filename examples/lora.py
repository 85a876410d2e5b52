# SPDX-License-Identifier: Apache-2.0
"""Train a LoRA adapter on a quantised model: the packed weights stay as they are.

Needs ``pip install peft``.
"""

from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from ladder.integrations.transformers import enable

torch.manual_seed(0)
folder = Path(__file__).parent / "tiny-llama-gptq"
with enable("gptq"):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(folder)

model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
model.print_trainable_parameters()

text = "the ladder reached to heaven, and every rung of it was a number of four bits"
batch = tokenizer(text, return_tensors="pt")
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=5e-3)
for step in range(8):
    loss = model(**batch, labels=batch["input_ids"]).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}  loss {loss.item():.3f}")

# model.save_pretrained(...) writes the adapter alone, 230 kB.
