# SPDX-License-Identifier: Apache-2.0
"""Engines of vLLM, one after the other in this process, run by the Python of their environment.

Reads a list of jobs from the standard input and writes a line of JSON for each that is done:
tokens of each prompt, greedy, and what ladder's ops were called for.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import Any

from engine_jobs import run_all

os.environ |= {
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


def model_of(llm: Any) -> Any:
    """That of an engine in this process."""
    return llm.llm_engine.model_executor.driver_worker.worker.model_runner.model


def count_fused(llm: Any) -> int:
    """MLPs whose layer of gate and up gives the product of both."""
    from ladder.integrations.serving.gated import FusedActivation

    return sum(isinstance(module, FusedActivation) for module in model_of(llm).modules())


def count_reads(llm: Any, generate: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
    """What ``generate()`` returns, and how often ops of ladder read each tensor of codes that the
    model has. For an engine in this process that is not compiled."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    tensors = {
        tensor.data_ptr(): name.replace(".base_layer.", ".")  # under an adapter
        for name, tensor in model_of(llm).named_parameters()
        if re.match("(w13_|w2_)?qweight", name.rpartition(".")[2])
    }
    reads = dict.fromkeys(tensors.values(), 0)

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            if op.namespace == "ladder":
                flat = tree_leaves(args)
                for name in {tensors.get(getattr(each, "data_ptr", int)()) for each in flat}:
                    if name is not None:
                        reads[name] += 1
            return op(*args, **(kwargs or {}))

    with Count():
        return generate(), reads


def count_ops(generate: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
    """What ``generate()`` returns, and how often each op of ladder ran, compiled or not."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        outputs = generate()
    events = profiler.key_averages()
    return outputs, {e.key: e.count for e in events if e.key.startswith("ladder::")}


def count_kernels(generate: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
    """What ``generate()`` returns, and how often each kernel of ladder's layers ran, in a graph or
    not: linear ones, and what adds up the products of experts."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        outputs = generate()
    events = profiler.key_averages()
    return outputs, {e.key: e.count for e in events if re.match("linear_|combine$", e.key)}


def run(job: dict[str, Any]) -> dict[str, Any]:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    os.environ["LADDER_VLLM"] = job["words"]
    start = time.perf_counter()
    options = {"dtype": "float32", "enforce_eager": True, "max_num_batched_tokens": 64}
    if job["adapter"]:
        options |= {"enable_lora": True, "max_lora_rank": 8}
    llm = LLM(
        model=job["folder"], skip_tokenizer_init=True, max_model_len=64, max_num_seqs=4, seed=0,
        **options | job["options"],
    )  # fmt: skip
    ready = time.perf_counter() - start
    sampling = SamplingParams(
        max_tokens=job["tokens"], temperature=0, ignore_eos=True, detokenize=False, logprobs=0
    )  # no others' than the token's

    def generate() -> Any:
        prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
        adapter = LoRARequest("adapter", 1, job["adapter"]) if job["adapter"] else None
        return llm.generate(prompts, sampling, use_tqdm=False, lora_request=adapter)

    counts: dict[str, int] = {}
    if job["count"] == "reads":
        outputs, counts = count_reads(llm, generate)
    elif job["count"] == "ops":
        outputs, counts = count_ops(generate)
    elif job["count"] == "kernels":
        outputs, counts = count_kernels(generate)
    else:
        outputs = generate()
    return {
        "tokens": [list(each.outputs[0].token_ids) for each in outputs],
        "logprobs": [
            [step[token].logprob for token, step in zip(o.token_ids, o.logprobs, strict=True)]
            for o in (each.outputs[0] for each in outputs)
        ],
        "counts": counts,
        "fused": count_fused(llm) if job["count"] else None,
        "ready_s": ready,
        "total_s": time.perf_counter() - start,
    }


if __name__ == "__main__":
    run_all(run)
