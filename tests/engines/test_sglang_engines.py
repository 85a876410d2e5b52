# SPDX-License-Identifier: Apache-2.0
"""Engines of SGLang on this processor give, greedily and in float32, the tokens of transformers
with ladder; and ladder's ops run for every packed layer in every step. LADDER_SGLANG_PYTHON is a
Python that has SGLang, LADDER_SGLANG_PATH more folders of packages for it."""

from __future__ import annotations

from dataclasses import replace

import foreign
import models
import pytest
from forms import MIXTURES, TOKENS, Case, checked, mixed, of, other, reordered

O_PROJ = frozenset(name for name in models.LAYERS if name.endswith("o_proj"))
ASKED = {"quantization": "ladder"}
#: What SGLang serves of a LLaMA, without options of a device.
LLAMAS = {
    "uint4": Case(of("uint4", group_size=64, symmetric=False)),
    "nf4, small prefills": Case(of("nf4"), options={"chunked_prefill_size": 16}),
    "uint3, head packed": Case(of("uint3", skip=()), more=frozenset({"lm_head"})),
    "act-order": Case(reordered),
    "mixed": Case(mixed, less=O_PROJ),
    "gptq": Case(other(foreign.gptq, 4, symmetric=True), options=ASKED),
    "gptq 3 bits desc_act": Case(
        other(foreign.gptq, 3, symmetric=False, order=True), options=ASKED
    ),
    "awq": Case(other(foreign.awq, 4), options=ASKED),
}
CPU = {
    "device": "cpu", "dtype": "float32", "attention_backend": "torch_native",
    "disable_cuda_graph": True, "disable_overlap_schedule": True,
}  # fmt: skip
CASES, EXPERTS = (
    {name: replace(case, options=CPU | case.options) for name, case in cases.items()}
    for cases in (LLAMAS, MIXTURES)
)


@pytest.mark.parametrize("name", CASES)
def test_an_engine_gives_the_tokens_of_transformers(name, sglang_engine, expected):
    case = CASES[name]
    answer = checked(sglang_engine({name: case}, "CPU", LADDER_SGLANG_CPU="1")[name])
    assert answer["tokens"] == expected(case)
    assert answer["counts"]["ladder::linear"] >= len(case.packed()) * TOKENS


@pytest.mark.parametrize("name", EXPERTS)
def test_an_engine_of_experts_gives_the_tokens_of_transformers(name, sglang_engine, expected):
    case = EXPERTS[name]
    answer = checked(sglang_engine({name: case}, "CPU", LADDER_SGLANG_CPU="1")[name])
    assert answer["tokens"] == expected(case)
    layers = [layer for layer in case.packed() if ".experts." in layer]
    assert answer["counts"]["ladder::experts_canonical"] >= len(layers) * TOKENS
