# SPDX-License-Identifier: Apache-2.0
"""Engines of vLLM on this processor give, greedily and in float32, the tokens of transformers with
ladder; and ladder's ops run for every packed layer in every step. `make test-vllm`."""

from __future__ import annotations

from dataclasses import replace

import foreign
import models
import pytest
from forms import (
    MIXTURES,
    TOKENS,
    Case,
    check_reads,
    checked,
    mixed,
    of,
    of_8_bits,
    other,
    reordered,
)

O_PROJ = frozenset(name for name in models.LAYERS if name.endswith("o_proj"))
ASKED = {"quantization": "ladder"}
APART = {"additional_config": {"ladder": {"fuse_gated_mlp": False}}}
CASES = {
    "uint4": Case(of("uint4", group_size=64, symmetric=False)),
    "uint4, adapter": Case(of("uint4", group_size=64, symmetric=False), adapter=True, apart=True),
    "uint4, product left to vLLM": Case(
        of("uint4", group_size=64, symmetric=False), options=APART, apart=True
    ),
    "nf4": Case(of("nf4")),
    "uint3, head packed": Case(of("uint3", skip=()), more=frozenset({"lm_head"})),
    "float6_e3m2": Case(of("float6_e3m2")),
    "nvfp4": Case(of("nvfp4"), apart=True),  # each module has a second scale of its own
    "mxfp4, chunks and cached prefixes": Case(
        of("mxfp4"), options={"max_num_batched_tokens": 16, "enable_prefix_caching": True}
    ),
    "act-order": Case(reordered, apart=True),
    "mixed": Case(mixed, less=O_PROJ, apart=True),
    "gptq 3 bits desc_act": Case(
        other(foreign.gptq, 3, symmetric=False, order=True), options=ASKED, apart=True
    ),
    "gptq v2, by environment": Case(
        other(foreign.gptq, 4, symmetric=False, form="gptq_v2"), words="gptq"
    ),
    "awq": Case(other(foreign.awq, 4), options=ASKED),
    "compressed-tensors 3 bits": Case(other(foreign.compressed, 3), options=ASKED),
    "compressed-tensors asymmetric": Case(
        other(foreign.compressed, 4, symmetric=False), options=ASKED
    ),
    "W8A8 of int8": Case(of_8_bits(foreign.compressed_8, "int8"), options=ASKED),
    "W8A8 of int8, static": Case(
        of_8_bits(foreign.compressed_8, "int8 static"), words="compressed-tensors"
    ),
    "W8A8 of float8, static": Case(of_8_bits(foreign.compressed_8, "float8 static"), options=ASKED),
    "fp8 in blocks": Case(of_8_bits(foreign.fp8, "blocks"), words="fp8"),
    "fp8, static": Case(of_8_bits(foreign.fp8, "static"), options=ASKED),
    "compressed-tensors under ladder's kernel": Case(
        other(foreign.compressed, 4, symmetric=False), words="kernel", apart=True
    ),
}
#: vLLM's own GPTQ and AWQ know no float32: ladder's kernel under them, and ladder's own method.
HALF = {"dtype": "bfloat16"}
PAIRS = {
    name: (Case(folders, words="kernel", options=HALF), Case(folders, options=HALF | ASKED))
    for name, folders in (
        ("gptq", other(foreign.gptq, 4, symmetric=True)),
        ("awq", other(foreign.awq, 4)),
    )
}
UNDER_KERNEL = {
    f"{name}, {how}": case
    for name, pair in PAIRS.items()
    for how, case in zip(("kernel", "method"), pair, strict=True)
}
COMPILED = {
    f"{name}, compiled": replace(case, options=case.options | {"enforce_eager": False})
    for name, case in CASES.items()  # by one compile cache
    if name in ("uint4", "uint4, product left to vLLM", "mixed")
}
TWO_RANKS = {
    f"{name}, two ranks": Case(case.folders, options={"tensor_parallel_size": 2})
    for name, case in CASES.items()
    if name in ("nvfp4", "act-order")
}
COMPILED_EXPERTS = {
    f"{name}, compiled": replace(case, options=case.options | {"enforce_eager": False})
    for name, case in MIXTURES.items()
    if name in ("qwen3_moe, uint4", "mixtral, awq")
}
EXPERTS_ON_TWO_RANKS = {
    f"{name}, two ranks{' of experts' if by_expert else ''}": replace(
        case,
        options=case.options | {"tensor_parallel_size": 2, "enable_expert_parallel": by_expert},
    )
    for name, case in MIXTURES.items()
    for by_expert in (False, True)
    if name in ("mixtral, nf4", "qwen3_moe, gptq")
}


@pytest.fixture(scope="session")
def one_process(engine):
    return engine(CASES | UNDER_KERNEL, "reads", VLLM_ENABLE_V1_MULTIPROCESSING="0")


@pytest.mark.parametrize("name", CASES)
def test_an_engine_gives_the_tokens_of_transformers(name, one_process, expected):
    answer = checked(one_process[name])
    assert answer["tokens"] == expected(CASES[name])
    check_reads(CASES[name], answer["counts"])
    assert answer["fused"] == CASES[name].fused()


@pytest.mark.parametrize("name", PAIRS)
def test_ladders_kernel_gives_the_tokens_of_its_method(name, one_process):
    answers = [checked(one_process[f"{name}, {how}"]) for how in ("kernel", "method")]
    assert answers[0]["tokens"] == answers[1]["tokens"]
    for case, answer in zip(PAIRS[name], answers, strict=True):
        check_reads(case, answer["counts"])


@pytest.fixture(scope="session")
def compiled(engine):
    return engine(COMPILED, "ops", VLLM_ENABLE_V1_MULTIPROCESSING="0")


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_engine_gives_the_tokens_of_transformers(name, compiled, expected):
    case, answer = COMPILED[name], checked(compiled[name])
    assert answer["tokens"] == expected(case)
    layers = len(case.packed())
    assert sum(answer["counts"].values()) >= layers * TOKENS
    assert answer["fused"] == case.fused()


@pytest.fixture(scope="session")
def two_ranks(engine):
    return engine(TWO_RANKS, "", VLLM_ENABLE_V1_MULTIPROCESSING="1",
                  VLLM_CPU_OMP_THREADS_BIND="0|1")  # fmt: skip


@pytest.mark.parametrize("name", TWO_RANKS)
def test_two_ranks_give_the_tokens_of_transformers(name, two_ranks, expected):
    assert checked(two_ranks[name])["tokens"] == expected(TWO_RANKS[name])


@pytest.fixture(scope="session")
def experts(engine):
    return engine(MIXTURES, "reads", VLLM_ENABLE_V1_MULTIPROCESSING="0")


@pytest.mark.parametrize("name", MIXTURES)
def test_an_engine_of_experts_gives_the_tokens_of_transformers(name, experts, expected):
    answer = checked(experts[name])
    assert answer["tokens"] == expected(MIXTURES[name])
    check_reads(MIXTURES[name], answer["counts"])


@pytest.fixture(scope="session")
def compiled_experts(engine):
    return engine(COMPILED_EXPERTS, "ops", VLLM_ENABLE_V1_MULTIPROCESSING="0")


@pytest.mark.parametrize("name", COMPILED_EXPERTS)
def test_a_compiled_engine_of_experts_gives_the_tokens_of_transformers(
    name, compiled_experts, expected
):
    case, answer = COMPILED_EXPERTS[name], checked(compiled_experts[name])
    assert answer["tokens"] == expected(case)
    layers = [layer for layer in case.packed() if ".experts." in layer]
    assert answer["counts"]["ladder::experts_canonical"] >= len(layers) * TOKENS


@pytest.fixture(scope="session")
def experts_on_two_ranks(engine):
    return engine(EXPERTS_ON_TWO_RANKS, "", VLLM_ENABLE_V1_MULTIPROCESSING="1",
                  VLLM_CPU_OMP_THREADS_BIND="0|1")  # fmt: skip


@pytest.mark.parametrize("name", EXPERTS_ON_TWO_RANKS)
def test_experts_on_two_ranks_give_the_tokens_of_transformers(name, experts_on_two_ranks, expected):
    answer = checked(experts_on_two_ranks[name])
    assert answer["tokens"] == expected(EXPERTS_ON_TWO_RANKS[name])
