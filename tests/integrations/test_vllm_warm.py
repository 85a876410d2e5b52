# SPDX-License-Identifier: Apache-2.0
"""Which kernels an engine of vLLM compiles before its first request: no vLLM, no GPU needed."""

import pytest
import torch

from ladder.cuda import kernels
from ladder.integrations.vllm.warm import Warmer


def test_graphs_of_more_tokens_than_kernels_serve_leave_no_prompts():
    warmer = Warmer((1, 8192), torch.float16, most=16384)
    assert warmer._prompts(None) == warmer._prompts("int8") == ()


@pytest.mark.parametrize(
    ("most", "activation_type", "wanted"),
    [
        (2048, None, (192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 2048)),
        (300, None, (192, 256, 300)),
        (128, None, ()),
        (1000, "int8", (192, 256, 384, 512, 768, 1000)),
        (128, "int8", ()),
    ],
)
def test_prompts_longer_than_graphs_have_a_kernel_for_every_interval(most, activation_type, wanted):
    warmer = Warmer((1, 8, 100), torch.float16, most=most)
    assert warmer._prompts(activation_type) == wanted
    for m in range(101, most + 1):
        top = kernels.interval(m, activation_type or "")
        of_graph = top == kernels.interval(100, activation_type or "")
        assert of_graph or not top or min(top, most) in wanted
