# SPDX-License-Identifier: Apache-2.0
"""One of two processes that train LoRA adapters on packed weights, by torchrun's variables:
``data_parallel_worker.py FOLDERS OUT``.

Each process trains on its row of the batch, in every way of WAYS, and saves what it found as
OUT/<way>-<rank>.pt. The first one then does as much alone, row after row: OUT/<way>-alone.pt.
"""

import sys
from pathlib import Path

import peft
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM

import ladder

STEPS = 2
BATCH = torch.arange(40, 72).reshape(2, 16)


def sharded(model):
    for layer in model.base_model.model.model.layers:
        fully_shard(layer)
    return fully_shard(model)


def ddp(model):
    return DistributedDataParallel(model, broadcast_buffers=False)


#: By way: what makes a model parallel, the folder, whether it is optimised before that, and whether
#: it recomputes.
WAYS = {
    "ddp": (DistributedDataParallel, "biased", False, False),
    "ddp-optimized-checkpointed": (ddp, "biased", True, True),
    "fsdp": (sharded, "biased", False, False),
    "fsdp-optimized-checkpointed": (sharded, "plain", True, True),
}


def adapted(folders, folder, optimized, checkpointed):
    """Adapters that are the same on every process, and not zero."""
    model = AutoModelForCausalLM.from_pretrained(folders / folder, dtype=torch.float32)
    torch.manual_seed(1)
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if optimized:
        assert ladder.optimize(model).merged
    return model.train()


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def train(model, rows):
    """Losses of each step and row, the mean gradients, and adapters and codes in the end. The
    gradient of each row is computed on its own, so that nothing is added in another order."""
    plain = getattr(model, "module", model)
    trained = {name: p for name, p in plain.named_parameters() if p.requires_grad}
    optimizer = torch.optim.SGD(trained.values(), lr=0.5)
    losses, gradients = [], []
    for _ in range(STEPS):
        for row in rows.split(1):
            loss = model(input_ids=row, labels=row).loss
            (loss / len(rows)).backward()
            losses.append(loss.item())
        gradients.append({name: whole(p.grad) for name, p in trained.items()})
        optimizer.step()
        optimizer.zero_grad()
    return {
        "losses": torch.tensor(losses).reshape(STEPS, len(rows)),
        "gradients": gradients,
        "adapters": {name: whole(p) for name, p in trained.items()},
        "codes": {
            name: module.packed_weight.qweight.clone()
            for name, module in plain.named_modules()
            if isinstance(module, ladder.Linear)
        },
    }


def save_adapters(model, folder):
    """As docs/transformers.md says of FSDP2."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=options)
    if dist.get_rank() == 0:
        model.save_pretrained(folder, state_dict=state)


def main(folders, out):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for way, (spread, *options) in WAYS.items():
        model = spread(adapted(folders, *options))
        torch.save(train(model, BATCH[rank : rank + 1]), out / f"{way}-{rank}.pt")
        if way == "fsdp":
            save_adapters(model, out / "adapters")
    dist.destroy_process_group()
    if rank == 0:
        for way, (_, *options) in WAYS.items():
            torch.save(train(adapted(folders, *options), BATCH), out / f"{way}-alone.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
