# SPDX-License-Identifier: Apache-2.0
"""A parent of three packed layers, apart and merged (test_merged.py, test_merged_state.py)."""

import copy

import torch
from torch import nn

import ladder
from ladder.nn.merged import MergedWeight

K, SIZES = 64, (32, 16, 24)


TYPE = "uint4,group=32,scale=float16,zero=midpoint"


def packed(n, *, bias=True, type=TYPE, k=K):
    return ladder.Linear.from_linear(nn.Linear(k, n, bias), type)


class Block(nn.Module):
    """q, k and v of one input; ``between`` runs after q."""

    def __init__(self, between=None, *, bias=True, type=TYPE):
        super().__init__()
        self.q, self.k, self.v = (packed(n, bias=bias, type=type) for n in SIZES)
        self.between = between

    def forward(self, x):
        x = x + 0
        q = self.q(x)
        if self.between is not None:
            self.between(self, x)
        return torch.cat((q, self.k(x), self.v(x)), -1)

    def layers(self):
        return [self.q, self.k, self.v]


def merged(block):
    """``block`` with its layers merged, and a list to which each product adds its input."""
    weight, products = MergedWeight(block, block.layers()), []
    forward = weight.linear.forward

    def counted(x):
        products.append(x)
        return forward(x)

    weight.linear.forward = counted
    return block, products


def pair(**options):
    """Two equal blocks, the second one's layers merged, and the products of the second."""
    block = Block(**options)
    return (block, *merged(copy.deepcopy(block)))


def drawn():
    return torch.randn(3, K)


def same_state(got, want):
    got, want = got.state_dict(), want.state_dict()
    assert set(got) == set(want)
    return all(torch.equal(got[name], want[name]) for name in want)
