# SPDX-License-Identifier: Apache-2.0
"""Engines of vLLM on a GPU, in float16, say of their greedy tokens what transformers with ladder
says in float32; kernels of ladder run for every packed layer. LADDER_VLLM_PYTHON is a Python that
has vLLM for GPUs, LADDER_VLLM_PATH more folders of packages for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import foreign
import models
import pytest
import torch
from forms import (
    MIXTURES,
    TOKENS,
    Case,
    check_reads,
    check_tokens,
    checked,
    mixed,
    of,
    other,
    reordered,
)

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
#: Engines of one process keep their memory till its end.
GPU = {"dtype": "float16", "gpu_memory_utilization": 0.05}
GRAPHS = {
    **GPU, "enforce_eager": False, "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4]},
}  # fmt: skip
ASKED = {"quantization": "ladder"}


APART = {"additional_config": {"ladder": {"fuse_gated_mlp": False}}}


def chained(options: dict[str, Any]) -> dict[str, Any]:
    return options | {"additional_config": {"ladder": {"dependent_launch": True}}}


O_PROJ = frozenset(name for name in models.LAYERS if name.endswith("o_proj"))
EAGER = {
    "uint4": Case(of("uint4", group_size=64, symmetric=False), options=GPU),
    "uint4, adapter": Case(
        of("uint4", group_size=64, symmetric=False), options=GPU, adapter=True, apart=True
    ),
    "nf4": Case(of("nf4"), options=GPU),
    "uint3, head packed": Case(of("uint3", skip=()), options=GPU, more=frozenset({"lm_head"})),
    "float6_e3m2": Case(of("float6_e3m2"), options=GPU),
    "mxfp4, chunks and cached prefixes": Case(
        of("mxfp4"), options=GPU | {"max_num_batched_tokens": 16, "enable_prefix_caching": True}
    ),
    "act-order": Case(reordered, options=GPU, apart=True),
    "mixed": Case(mixed, options=GPU, less=O_PROJ, apart=True),
    "gptq 3 bits desc_act": Case(
        other(foreign.gptq, 3, symmetric=False, order=True), options=GPU | ASKED, apart=True
    ),
    "awq": Case(other(foreign.awq, 4), options=GPU | ASKED),
    "compressed-tensors under ladder's kernel": Case(
        other(foreign.compressed, 4, symmetric=False), options=GPU, words="kernel", apart=True
    ),
}
IN_GRAPHS = {
    "uint4": Case(EAGER["uint4"].folders, options=GRAPHS),
    "uint4, dependent launch": Case(EAGER["uint4"].folders, options=chained(GRAPHS)),
    "uint4, product left to vLLM": Case(
        EAGER["uint4"].folders, options=GRAPHS | APART, apart=True
    ),  # by the compile cache of the others
    "mixed": Case(mixed, options=GRAPHS, less=O_PROJ, apart=True),
}
TWO_RANKS, FOUR_RANKS = (
    {
        f"{name}, {ranks} ranks": Case(
            case.folders, options=GRAPHS | {"tensor_parallel_size": ranks}
        )
        for name, case in EAGER.items()
        if name in ("uint4", "act-order")
    }
    for ranks in (2, 4)  # of four, two have each head of k and v
)
TWO_RANKS["uint4, two stages"] = Case(
    EAGER["uint4"].folders, options=GRAPHS | {"pipeline_parallel_size": 2}
)  # none on the CPU, where vLLM 0.32 stops in code of its own
EXPERTS = {name: replace(case, options=GPU | case.options) for name, case in MIXTURES.items()}
#: Logits of four experts in rows of eight, always: else torch.compile times both and takes either.
PADDED = {
    **GRAPHS,
    "compilation_config": {
        "cudagraph_capture_sizes": [1, 2, 4],
        "inductor_compile_config": {"force_shape_pad": True},
    },
}
EXPERTS_IN_GRAPHS = {
    name: replace(case, options=PADDED | case.options) for name, case in MIXTURES.items()
}
EXPERTS_ON_TWO_RANKS, EXPERTS_ON_FOUR_RANKS = (
    {
        f"{name}, {ranks} ranks{' of experts' if by_expert else ''}": replace(
            case,
            options=GRAPHS
            | case.options
            | {"tensor_parallel_size": ranks, "enable_expert_parallel": by_expert},
        )
        for name, case in MIXTURES.items()
        for by_expert in (False, True)
        if name in ("qwen3_moe, uint4", "qwen3_moe, gptq")
    }
    for ranks in (2, 4)
)


@pytest.fixture(scope="session")
def one_process(engine):
    return engine(EAGER, "reads", VLLM_ENABLE_V1_MULTIPROCESSING="0")


@pytest.mark.parametrize("name", EAGER)
def test_an_engine_agrees_with_transformers(name, one_process, believed):
    answer = checked(one_process[name])
    check_tokens(EAGER[name], answer, believed)
    check_reads(EAGER[name], answer["counts"])
    assert answer["fused"] == EAGER[name].fused()


@pytest.fixture(scope="session")
def in_graphs(engine):
    return engine(IN_GRAPHS, "kernels", VLLM_ENABLE_V1_MULTIPROCESSING="0")


@pytest.mark.parametrize("name", IN_GRAPHS)
def test_an_engine_of_cuda_graphs_agrees_with_transformers(name, in_graphs, believed):
    case, answer = IN_GRAPHS[name], checked(in_graphs[name])
    check_tokens(case, answer, believed)
    assert answer["fused"] == case.fused()
    layers = len(case.packed())
    # Of 47 tokens of prompts more are dequantised; each step after them has a launch a layer.
    assert sum(answer["counts"].values()) >= layers * (TOKENS - 1), answer["counts"]


def need_gpus(count: int) -> None:
    if torch.cuda.device_count() < count:
        pytest.skip(f"needs {count} GPUs")


@pytest.fixture(scope="session")
def two_ranks(engine):
    need_gpus(2)
    return engine(TWO_RANKS, "", VLLM_ENABLE_V1_MULTIPROCESSING="1")


@pytest.mark.parametrize("name", TWO_RANKS)
def test_two_ranks_agree_with_transformers(name, two_ranks, believed):
    check_tokens(TWO_RANKS[name], checked(two_ranks[name]), believed)


@pytest.fixture(scope="session")
def four_ranks(engine):
    need_gpus(4)
    return engine(FOUR_RANKS, "", VLLM_ENABLE_V1_MULTIPROCESSING="1")


@pytest.mark.parametrize("name", FOUR_RANKS)
def test_four_ranks_agree_with_transformers(name, four_ranks, believed):
    check_tokens(FOUR_RANKS[name], checked(four_ranks[name]), believed)


@pytest.fixture(scope="session")
def experts(engine):
    return engine(EXPERTS, "ops", VLLM_ENABLE_V1_MULTIPROCESSING="0")


@pytest.mark.parametrize("name", EXPERTS)
def test_an_engine_of_experts_agrees_with_transformers(name, experts, believed):
    case, answer = EXPERTS[name], checked(experts[name])
    check_tokens(case, answer, believed)
    layers = [layer for layer in case.packed() if ".experts." in layer]
    assert answer["counts"].get("ladder::experts", 0) >= len(layers) * TOKENS, answer["counts"]


@pytest.fixture(scope="session")
def experts_in_graphs(engine):
    return engine(EXPERTS_IN_GRAPHS, "kernels", VLLM_ENABLE_V1_MULTIPROCESSING="0")


@pytest.mark.parametrize("name", EXPERTS_IN_GRAPHS)
def test_an_engine_of_experts_in_graphs_agrees_with_transformers(name, experts_in_graphs, believed):
    case, answer = EXPERTS_IN_GRAPHS[name], checked(experts_in_graphs[name])
    check_tokens(case, answer, believed)
    layers = [layer for layer in case.packed() if ".experts." in layer]
    # Of every step, that of the prompts too: no batch of experts goes another way.
    assert answer["counts"].get("combine", 0) >= len(layers) * TOKENS, answer["counts"]


@pytest.fixture(scope="session")
def experts_on_two_ranks(engine):
    need_gpus(2)
    return engine(EXPERTS_ON_TWO_RANKS, "", VLLM_ENABLE_V1_MULTIPROCESSING="1")


@pytest.mark.parametrize("name", EXPERTS_ON_TWO_RANKS)
def test_experts_on_two_ranks_agree_with_transformers(name, experts_on_two_ranks, believed):
    check_tokens(EXPERTS_ON_TWO_RANKS[name], checked(experts_on_two_ranks[name]), believed)


@pytest.fixture(scope="session")
def experts_on_four_ranks(engine):
    need_gpus(4)
    return engine(EXPERTS_ON_FOUR_RANKS, "", VLLM_ENABLE_V1_MULTIPROCESSING="1")


@pytest.mark.parametrize("name", EXPERTS_ON_FOUR_RANKS)
def test_experts_on_four_ranks_agree_with_transformers(name, experts_on_four_ranks, believed):
    check_tokens(EXPERTS_ON_FOUR_RANKS[name], checked(experts_on_four_ranks[name]), believed)
