# SPDX-License-Identifier: Apache-2.0
"""Models that types are chosen for, and what must be left of them."""

import torch
import transformers
from hf_models import TINY
from torch import nn

import ladder

TOKENS = torch.randint(0, 128, (5, 40), generator=torch.Generator().manual_seed(1))
TYPES = ("uint2", "uint3", "uint4", "uint6")
OPTIONS = {"group_size": 32}


def fresh(family="Llama", **more):
    """A model whose blocks matter unlike."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**(TINY | {"num_hidden_layers": 3} | more))
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for depth, block in enumerate(model.model.layers):
        for module in block.modules():
            if isinstance(module, nn.Linear):
                module.weight.data *= 3.0 - depth
    return model


def state_of(model):
    """The very parameters, and their bits."""
    parameters = {name: (p, p.detach().clone()) for name, p in model.named_parameters()}
    training = [module.training for module in model.modules()]
    return parameters, training


def check_unchanged(model, before):
    parameters, training = before
    now = dict(model.named_parameters())
    assert now.keys() == parameters.keys()
    for name, (parameter, values) in parameters.items():
        assert now[name] is parameter and torch.equal(parameter, values), name
    assert [module.training for module in model.modules()] == training


def divergence(dense, moved):
    """Mean over positions of KL(dense || moved), in float64."""
    log_p, log_q = (each.double().log_softmax(-1) for each in (dense, moved))
    return (log_p.exp() * (log_p - log_q)).sum(-1).mean().item()


def stored_bits(model):
    layers = [m for m in model.modules() if isinstance(m, ladder.Linear)]
    weights = sum(layer.in_features * layer.out_features for layer in layers)
    return sum(8 * layer.packed_weight.nbytes for layer in layers) / weights
