# SPDX-License-Identifier: Apache-2.0
"""How long a decode step takes in an SGLang engine, by kernel of the linear layers.

    python benchmarks/sglang_decode.py --engines fp16,gptq_marlin,ladder --out DIR

What vllm_decode.py is for vLLM, with its shapes and types. Needs a GPU and SGLang, which finds
ladder's plugin by its entry points. Weights are random (``load_format="dummy"``). Each engine has
a process of its own, CUDA graphs of the batches that are timed, Triton's attention, and a line of
its log that says which kernel runs: without that line its cell is an error. A decode step is the
time of 136 tokens a sequence less that of 8, by 128.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from vllm_decode import run_child, table
from vllm_engines import SHAPES, write_model

#: What the log of an engine must have: without it another kernel ran.
EXPECTED = {"gptq_marlin": "Using gptq_marlin kernel", "ladder": "quant=ladder"}


def seconds(engine: Any, batch: int, tokens: int) -> float:
    prompts = [[random.randrange(10, 30000) for _ in range(16)] for _ in range(batch)]
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    begin = time.perf_counter()
    engine.generate(input_ids=prompts, sampling_params=sampling)
    return time.perf_counter() - begin


def child(options: argparse.Namespace) -> None:
    """One engine; prints a line of JSON for each batch as soon as it is timed."""
    import sglang

    layers = int(options.layers or SHAPES[options.shape]["num_hidden_layers"])
    out: dict[str, Any] = {"engine": options.child, "layers": layers}
    batches = [int(each) for each in options.batches.split(",")]
    folder = Path(tempfile.mkdtemp())
    asked = "marlin" if options.child == "gptq_marlin" else options.child
    write_model(folder, options.shape, layers, asked, options.dtype)
    start = time.time()
    engine = sglang.Engine(
        model_path=str(folder), load_format="dummy", dtype=options.dtype, skip_tokenizer_init=True,
        context_length=4096, max_running_requests=256, random_seed=0, disable_radix_cache=True,
        log_level="info", sampling_backend="pytorch", cuda_graph_bs_decode=batches,
        **{"attention_backend": "triton"} | json.loads(options.sglang),
    )  # fmt: skip
    out["ready_s"] = time.time() - start
    for batch in batches:
        seconds(engine, batch, 8)
        short, long = (min(seconds(engine, batch, n) for _ in range(2)) for n in (8, 136))
        out[f"decode_{batch}_ms"] = (long - short) / 128 * 1e3
        print("RESULT", json.dumps(out), flush=True)
    engine.shutdown()


def measure(options: argparse.Namespace, engine: str) -> dict[str, Any]:
    """Run one engine in a process of its own; what it has measured when its time is over counts."""
    arguments = [sys.executable, __file__, "--child", engine]
    for name in ("shape", "dtype", "layers", "batches", "sglang"):
        arguments += [f"--{name}", getattr(options, name)]
    log = Path(options.out) / f"sglang_{options.shape}_{engine.replace(':', '_')}.log"
    expected = EXPECTED.get(engine.partition(":")[0], "")
    # A killed engine would leave its scheduler behind.
    stop = subprocess.Popen.terminate
    result = {"engine": engine, "layers": options.layers or 0}
    return result | run_child(arguments, log, options.limit, [expected], stop=stop)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", default="fp16,gptq_marlin,ladder")
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--dtype", choices=["float16", "bfloat16"], default="float16")
    parser.add_argument("--layers", default="", help="number of layers; the shape's by default")
    parser.add_argument("--batches", default="1,8,32,128")
    parser.add_argument("--sglang", default="{}", help="JSON: more arguments of sglang.Engine")
    parser.add_argument("--limit", type=float, default=240, help="seconds for one engine")
    parser.add_argument("--out", default=".")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
        return
    Path(options.out).mkdir(parents=True, exist_ok=True)
    results = []
    for engine in options.engines.split(","):
        results.append(measure(options, engine))
        print(results[-1], flush=True)
        path = Path(options.out) / f"sglang_{options.shape}.json"
        path.write_text(json.dumps(results, indent=1))
    print(table(results, SHAPES[options.shape]["num_hidden_layers"]))


if __name__ == "__main__":
    main()
