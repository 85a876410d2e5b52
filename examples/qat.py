# SPDX-License-Identifier: Apache-2.0
"""Train a model for weights of two bits: products see rounded weights, gradients reach the others.

The model learns to predict what its unquantised self predicts. So few steps begin best where
calibration has left it, hundreds of them with the unquantised weights.
"""

import copy
from pathlib import Path

import torch
from torch.nn.functional import kl_div
from transformers import AutoModelForCausalLM

import ladder
from ladder.evaluate.perplexity import load_tokens, perplexity
from ladder.integrations.transformers import dense, enable

folder = Path(__file__).parent / "tiny-llama-gptq"
with enable("gptq"):
    teacher = dense(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
tokens = load_tokens(folder / "val_tokens.npy")  # [windows, 512]
measured, pages = tokens[:2], tokens[16::18]

model = copy.deepcopy(teacher)
ladder.convert(model, "uint2", group_size=128, calibration=pages)
print(f"calibrated  {perplexity(model, measured):.2f}")

model = dense(model)
ladder.qat.prepare(model, "uint2", group_size=128)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0)
for step in range(8):  # a real run takes hundreds of steps, of many more pages
    ids = pages[[step]]
    with torch.no_grad():
        wanted = teacher(ids).logits.log_softmax(-1)
    found = model(ids).logits.log_softmax(-1)
    loss = kl_div(found.flatten(0, 1), wanted.flatten(0, 1), reduction="batchmean", log_target=True)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}  {loss.item():.3f} nats a token")

ladder.qat.convert(model)
print(f"trained     {perplexity(model, measured):.2f}")
# It is a ladder model now: model.save_pretrained(...) writes a ladder folder.
