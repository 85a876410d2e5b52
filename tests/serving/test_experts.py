# SPDX-License-Identifier: Apache-2.0
"""vLLM's own layers of experts on packed experts: they compute what ladder.Experts does."""

from __future__ import annotations

import pytest
import torch
from drawn import KINDS
from mixtures import EXPERTS, HIDDEN, INTERMEDIATE, PREFIX, Stacks, rank, routed, serve, write

from ladder.errors import CheckpointError, Unsupported

pytestmark = pytest.mark.usefixtures("vllm")

ZEROS = "uint4,group=32,scale=float16,zero=integer"


def served(stacks: Stacks, folder, **options):
    tensors = stacks.tensors()
    return serve(write(folder, tensors, stacks.config()), tensors, **options)


@pytest.mark.parametrize("type", KINDS)
def test_stacks_of_each_kind_of_metadata_are_what_ladder_experts_computes(type, tmp_path):
    stacks = Stacks(type)
    x, index, weights = routed()
    y = served(stacks, tmp_path)(x, index, weights)
    assert torch.equal(y, stacks.module()(x, index.long(), weights))
