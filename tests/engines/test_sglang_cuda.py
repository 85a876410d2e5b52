# SPDX-License-Identifier: Apache-2.0
"""Engines of SGLang on a GPU, in float16, say of their greedy tokens what transformers with ladder
says in float32; kernels of ladder run for every packed layer. LADDER_SGLANG_PYTHON is a Python that
has SGLang for GPUs, LADDER_SGLANG_PATH more folders of packages for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from forms import MIXTURES, TOKENS, check_tokens, checked
from test_sglang_engines import LLAMAS

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
#: FlashInfer's attention, the default, compiles kernels of its own in minutes.
GPU = {"dtype": "float16", "mem_fraction_static": 0.1, "attention_backend": "triton"}
GRAPHS = {
    **GPU,
    "cuda_graph_bs_decode": [1, 2, 4],
    "cuda_graph_bs_prefill": [16, 64],
    "disable_radix_cache": True,
}
EAGER, IN_GRAPHS, EXPERTS_IN_GRAPHS = (
    {name: replace(case, options=options | case.options) for name, case in cases.items()}
    for cases, options in (
        ({"uint4, eager": LLAMAS["uint4"]}, GPU | {"disable_cuda_graph": True}),
        (LLAMAS, GRAPHS),
        (MIXTURES, GRAPHS),
    )
)
MODELS = EAGER | IN_GRAPHS


@pytest.mark.parametrize("name", MODELS)
def test_an_engine_agrees_with_transformers(name, sglang_engine, believed):
    case = MODELS[name]
    answer = checked(sglang_engine({name: case}, "GPU")[name])
    check_tokens(case, answer, believed)
    # Of 47 tokens of prompts more are dequantised; each step after them has a launch a layer.
    assert sum(answer["counts"].values()) >= len(case.packed()) * (TOKENS - 1), answer["counts"]


@pytest.mark.parametrize("name", EXPERTS_IN_GRAPHS)
def test_an_engine_of_experts_in_graphs_agrees_with_transformers(name, sglang_engine, believed):
    case = EXPERTS_IN_GRAPHS[name]
    answer = checked(sglang_engine({name: case}, "GPU")[name])
    check_tokens(case, answer, believed)
    layers = [layer for layer in case.packed() if ".experts." in layer]
    # Of every step, that of the prompts too: no batch of experts goes another way.
    assert answer["counts"].get("combine", 0) >= len(layers) * TOKENS, answer["counts"]
