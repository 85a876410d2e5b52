# SPDX-License-Identifier: Apache-2.0
"""Engines of SGLang, one after the other, run by the Python of their environment: what serve.py is
for vLLM. SGLang's scheduler is a process of its own, which counts by SGLang's profiler."""

from __future__ import annotations

import gzip
import json
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine_jobs import run_all

os.environ |= {"HF_HUB_OFFLINE": "1"}

if os.environ.get("LADDER_SGLANG_CPU"):
    # On a processor without SGLang's kernels for one, which no wheel has, rotary embeddings ask
    # vLLM for a kernel: SGLang's own function in torch takes its place.
    from sglang.srt.layers.rotary_embedding import base

    base._is_cpu = True

#: Of a trace of the profiler: ladder's ops on a processor, and its kernels on a GPU, in a graph or
#: not: linear ones, and what adds up the products of experts.
COUNTED = {"CPU": r"ladder::", "GPU": r"linear_|combine$"}


def count(engine: Any, activity: str, generate: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
    """What ``generate()`` returns, and how often each op or kernel of ladder ran in the scheduler's
    process."""
    with tempfile.TemporaryDirectory() as folder:
        engine.start_profile(output_dir=folder, activities=[activity])
        outputs = generate()
        engine.stop_profile()
        traces = sorted(Path(folder).rglob("*.trace.json.gz"))
        found: Counter[str] = Counter()
        for trace in traces:
            events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
            names = (e["name"] for e in events if e.get("ph") == "X")
            found.update(name for name in names if re.match(COUNTED[activity], name))
    if not traces:
        raise RuntimeError("SGLang's profiler wrote no trace")
    return outputs, dict(found)


def run(job: dict[str, Any]) -> dict[str, Any]:
    import sglang

    start = time.perf_counter()
    engine = sglang.Engine(
        model_path=job["folder"], skip_tokenizer_init=True, context_length=64,
        max_running_requests=4, max_total_tokens=1024, random_seed=0, log_level="warning",
        sampling_backend="pytorch",
        **job["options"],
    )  # fmt: skip
    try:
        ready = time.perf_counter() - start
        sampling = {"max_new_tokens": job["tokens"], "temperature": 0, "ignore_eos": True}

        def generate() -> Any:
            return engine.generate(
                input_ids=job["prompts"], sampling_params=sampling, return_logprob=True
            )

        counts: dict[str, int] = {}
        if job["count"]:
            outputs, counts = count(engine, job["count"], generate)
        else:
            outputs = generate()
    finally:
        engine.shutdown()
    return {
        "tokens": [list(each["output_ids"]) for each in outputs],
        "logprobs": [
            [chosen[0] for chosen in each["meta_info"]["output_token_logprobs"]] for each in outputs
        ],
        "counts": counts,
        "ready_s": ready,
        "total_s": time.perf_counter() - start,
    }


if __name__ == "__main__":  # each process of an engine imports this file
    run_all(run)
