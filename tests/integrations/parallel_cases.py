# SPDX-License-Identifier: Apache-2.0
"""What the processes of test_tensor_parallel.py compute, and one process for comparison."""

import contextlib
from types import SimpleNamespace

import torch

import ladder
from ladder.integrations.transformers import enable
from ladder.nn.parallel import Shard

PROMPT = torch.arange(50, 74)[None]
#: By style of transformers: where the weight is cut, whether x arrives split and y is to be split.
STYLES = {
    "colwise": ("rows", False, True),
    "colwise_gather_output": ("rows", False, False),
    "rowwise": ("columns", True, False),
    "rowwise_split_input": ("columns", False, False),
}
#: N, K, type, group and act-order. Of 10 rows the last of 4 processes has one; of weights with
#: act-order, or with one group of 192, no process can have columns.
WEIGHTS = {
    "even": (256, 256, "uint4", 64, False),
    "uneven": (10, 256, "uint3", 32, False),
    "act-order": (12, 256, "uint4", 64, True),
    "wide groups": (12, 192, "uint4", 192, False),
}


def kind():
    """Where transformers puts a model that it distributes: "cuda" wherever torch can use it."""
    return (
        torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
    )


def layer(weight, device="cpu"):
    """A Linear of small integers times powers of two, and inputs: every sum is exact."""
    n, k, element, group, act_order = WEIGHTS[weight]
    generator = torch.Generator().manual_seed(n * k)

    def integers(low, high, *shape):
        return torch.randint(low, high + 1, shape, generator=generator)

    parts = {"scales": 2.0 ** integers(-1, 1, n, k // group).to(torch.float16)}
    if act_order:
        parts["g_idx"] = integers(0, k // group - 1, k).to(torch.int32)
    codes = integers(0, 2 ** int(element[-1]) - 1, n, k).to(torch.uint8)
    text = f"{element},group={group},scale=float16,zero=midpoint"
    packed = ladder.Weight.from_codes(codes, text, **parts)
    x, grad = integers(-3, 3, 2, 3, k).float(), integers(-3, 3, 2, 3, n).float()
    linear = ladder.Linear.from_weight(packed, integers(-3, 3, n).float())
    return linear.to(device), x.to(device), grad.to(device)


def shard_of(style, rank, size):
    return Shard(rank, size, *STYLES[style])


def share(x, rank, size):
    """The part of the last dimension that torch.chunk gives to ``rank``."""
    return x.chunk(size, -1)[rank].contiguous()


def enabled(job):
    """A context in which transformers loads the folder of ``job`` with ladder."""
    return enable(job["enable"]) if "enable" in job else contextlib.nullcontext()


def observed(model):
    """What a model of one process, or of several together, computes and stores."""
    prompt = PROMPT.to(model.device)
    embedded = model.get_input_embeddings()(prompt).detach().requires_grad_()
    logits = model(inputs_embeds=embedded).logits
    logits.square().sum().backward()
    made = model.generate(prompt, max_new_tokens=6, min_new_tokens=6, do_sample=False)
    packed = {n: m for n, m in model.named_modules() if isinstance(m, ladder.Linear)}
    return SimpleNamespace(
        logits=logits.detach().cpu(),
        gradient=embedded.grad.cpu(),
        tokens=made[0, PROMPT.shape[1] :].cpu(),
        kernels={n: m.image is not None for n, m in packed.items()},
        held={n: m.packed_weight.nbytes for n, m in packed.items()},
        along={n: getattr(getattr(m, "shard", None), "along", None) for n, m in packed.items()},
    )
