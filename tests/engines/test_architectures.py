# SPDX-License-Identifier: Apache-2.0
"""Engines of vLLM on this processor give, greedily and in float32, for packed weights of other
architectures the tokens that they give for the same values dense. `make test-vllm`."""

from __future__ import annotations

import architectures
import models
import pytest
from forms import TOKENS, Case, checked

#: vLLM's other latent attention for processors, with AMX, knows no float32.
OPTIONS = dict.fromkeys(("deepseek_v3", "minicpm3"), {"attention_backend": "CPU_MLA"})


@pytest.fixture(scope="session")
def answers(engine, tmp_path_factory):
    cases = {}
    for kind in architectures.KINDS:
        at, options = tmp_path_factory.mktemp(kind), OPTIONS.get(kind, {})
        source = architectures.dense(at / "source", kind)
        packed = models.converted(source, at / "packed", "uint4", group_size=64)
        dense = architectures.dequantised(packed, at)
        for name, folder in (("packed", packed), ("dense", dense)):
            cases[f"{kind}, {name}"] = Case(lambda _, f=folder: (f, f), options=options)
    at = tmp_path_factory.mktemp("published")
    theirs, ours = architectures.published(architectures.dense(at / "source", "gpt_oss"), at)
    for words in ("mxfp4", ""):
        folder = theirs if words else architectures.dequantised(ours, at)
        name = f"gpt_oss published, {'packed' if words else 'dense'}"
        cases[name] = Case(lambda _, f=folder: (f, f), words=words)
    return engine(cases, "reads", VLLM_ENABLE_V1_MULTIPROCESSING="0")


@pytest.mark.parametrize("kind", (*architectures.KINDS, "gpt_oss published"))
def test_packed_weights_give_the_tokens_of_their_values(kind, answers):
    packed, dense = (checked(answers[f"{kind}, {name}"]) for name in ("packed", "dense"))
    assert packed["tokens"] == dense["tokens"] and not dense["counts"]
    reads = {name.rpartition(".")[0]: 0 for name in packed["counts"]}
    for name, count in packed["counts"].items():
        reads[name.rpartition(".")[0]] += count
    published = kind not in architectures.KINDS
    assert len(reads) == (2 if published else architectures.KINDS[kind][1])
    # Latent attention has taken the values of kv_b_proj when it was loaded.
    called = {name: n for name, n in reads.items() if not name.endswith(".kv_b_proj")}
    assert all(count >= TOKENS for count in called.values()), reads
