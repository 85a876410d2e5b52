# SPDX-License-Identifier: Apache-2.0
"""How long a decode step and a prefill take in a vLLM engine, by kernel of the linear layers.

    python benchmarks/vllm_decode.py --engines fp16,machete,marlin,humming,ladder --out DIR
    python benchmarks/vllm_decode.py --engines ladder:uint3,ladder:mxfp4 --batches 1,8 --prefill ""
    python benchmarks/vllm_decode.py --shape 70b --layers 4,8 --engines fp16,marlin,ladder
    python benchmarks/vllm_decode.py --shape 70b --ranks 4 --engines marlin,ladder
    python benchmarks/vllm_decode.py --shape 30b-a3b --layers 12,24 --engines marlin,ladder
    python benchmarks/vllm_decode.py --shape gpt-oss-20b --dtype bfloat16 \
        --engines ladder:mxfp4,mxfp4,mxfp4:marlin
    python benchmarks/vllm_decode.py --engines ladder --ladder '{"fuse_gated_mlp": false}'
    python benchmarks/vllm_decode.py --dtype bfloat16 --engines \
        fp8,ladder:float8_e4m3+channel@float8_e4m3,w4afp8,ladder:int4@float8_e4m3

Needs a GPU and vLLM. Weights are random, on the device (``load_format="dummy"``), so nothing is
downloaded; vLLM's dummies leave codes as the memory was, which are random here. Each engine has a
process of its own, full CUDA graphs, and a line of its log that says which kernel runs: without
that line its cell is an error. A decode step is the time of 136 tokens
a sequence less that of 8, by 128. ``ladder`` stands for ``ladder:uint4``; what follows the colon
is a type, with groups of 128 where it has none of its own and ``+`` for its commas
(``ladder:int8+channel``), behind ``@`` what x is rounded to (``@float8_e4m3+fast_accum``), and
behind ``^`` the type of the output embedding (``ladder:uint4^uint6``), which is dense otherwise.
``fp8``, ``int8`` (a scale for each row and token) and ``w4afp8`` are vLLM's own kernels of x of 8
bits, ``mxfp4`` and ``nvfp4`` its own of such weights, all of compressed-tensors files. Of gpt-oss
``mxfp4`` is the method of the published files, by what vLLM chooses for experts or, behind the
colon, by the ``--moe-backend`` named.

With ``--ranks`` the layers are cut over so many GPUs, and packing is not timed, which processes of
vLLM's own do.

Sequences of random weights that take the likeliest token come to say the same few, and the routers
of vLLM's dummies choose the same experts for every token. So tokens of mixtures are drawn
(``--temperature`` 1, else 0; ``last_tokens_32`` in the JSON says how many different ones 32
sequences ended with), and embeddings and biases of routers are such that tokens differ.
``experts_of_32`` says how many experts of a layer 32 tokens choose, on average, and how many of
the 32 choose one expert at most, by routers that are watched once all is timed.

With two numbers of layers the rest of the model is the difference: the table then has the time of
all layers of the shape, extrapolated, and says so.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from vllm_dummies import experts_of_32, fill_dummies
from vllm_engines import SHAPES, environment, expected, is_gpt_oss, is_mixture, write_model


def child(options: argparse.Namespace) -> None:
    """One engine; prints a line of JSON for each measurement as soon as there is one."""
    engine, out = options.child, {"engine": options.child, "layers": options.layers}
    folder = Path(tempfile.mkdtemp())
    write_model(folder, options.shape, int(options.layers), engine, options.dtype)
    start = time.time()
    packing = _time_packing() if engine.startswith("ladder") else lambda: 0.0
    from vllm import LLM, SamplingParams

    models = fill_dummies(is_mixture(options.shape))
    extra = {}
    if is_gpt_oss(options.shape) and engine.startswith("mxfp4:"):
        extra["moe_backend"] = engine.partition(":")[2]
    if engine.startswith("ladder"):
        extra["additional_config"] = {"ladder": json.loads(options.ladder)}
    llm = LLM(
        model=str(folder), load_format="dummy", dtype=options.dtype, skip_tokenizer_init=True,
        max_model_len=4096, max_num_seqs=256, gpu_memory_utilization=0.9, seed=0,
        enable_prefix_caching=False, tensor_parallel_size=options.ranks,
        compilation_config={
            "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64, 128],
            "inductor_compile_config": json.loads(options.inductor),
        },
        **extra,
    )  # fmt: skip
    out["ready_s"] = time.time() - start
    if options.ranks == 1:
        out["packing_and_plans_s"] = packing()

    drawn = float(is_mixture(options.shape))
    temperature = drawn if options.temperature is None else options.temperature

    def seconds(batch: int, prompt: int, tokens: int) -> float:
        prompts = [
            {"prompt_token_ids": [random.randrange(10, 30000) for _ in range(prompt)]}
            for _ in range(batch)
        ]
        sampling = SamplingParams(
            max_tokens=tokens, temperature=temperature, ignore_eos=True, detokenize=False
        )
        begin = time.perf_counter()
        answers = llm.generate(prompts, sampling, use_tqdm=False)
        out[f"last_tokens_{batch}"] = len({answer.outputs[0].token_ids[-1] for answer in answers})
        return time.perf_counter() - begin

    for batch in _numbers(options.batches):
        seconds(batch, 16, 8)
        short, long = (min(seconds(batch, 16, n) for _ in range(2)) for n in (8, 136))
        out[f"decode_{batch}_ms"] = (long - short) / 128 * 1e3
        print("RESULT", json.dumps(out), flush=True)
    for length in _numbers(options.prefill):
        seconds(1, length, 1)
        out[f"prefill_{length}_ms"] = min(seconds(1, length, 1) for _ in range(3)) * 1e3
        print("RESULT", json.dumps(out), flush=True)
    if options.profile:
        for batch in _numbers(options.profile):
            out[f"profile_{batch}"] = profile(lambda b=batch: seconds(b, 16, 40))
            print("RESULT", json.dumps(out), flush=True)
    for length in _numbers(options.profile_prefill):
        out[f"profile_prefill_{length}"] = profile(lambda n=length: seconds(1, n, 1), host=True)
        print("RESULT", json.dumps(out), flush=True)
    if is_mixture(options.shape) and options.ranks == 1:
        top = SHAPES[options.shape]["num_experts_per_tok"]
        out["experts_of_32"] = experts_of_32(models[0], top, lambda: seconds(1, 256, 1))
        print("RESULT", json.dumps(out), flush=True)


def _time_packing() -> Any:
    """A function that gives the seconds spent in ladder while the engine loads."""
    from ladder.integrations.vllm.experts import ExpertsMethod
    from ladder.integrations.vllm.method import LinearMethod

    spent = [0.0]

    def time_it(kind: Any) -> None:
        process = kind.process_weights_after_loading

        def timed(self: Any, layer: Any) -> None:
            begin = time.perf_counter()
            process(self, layer)
            spent[0] += time.perf_counter() - begin

        kind.process_weights_after_loading = timed

    time_it(LinearMethod)
    time_it(ExpertsMethod)
    return lambda: spent[0]


def profile(run: Any, host: bool = False) -> dict[str, list[float]]:
    """Kernels of ``run`` by name: launches, and microseconds of all of them. With ``host`` ops and
    calls of the driver too, and the microseconds that a processor spends in each, itself."""
    import torch

    activities = [torch.profiler.ProfilerActivity.CUDA]
    if host:
        activities.append(torch.profiler.ProfilerActivity.CPU)
    run()
    with torch.profiler.profile(activities=activities) as profiler:
        run()
    spent: dict[str, list[float]] = {}
    for event in profiler.key_averages():
        known = spent.setdefault(event.key[:120], [0, 0.0, 0.0])  # names are cut: can be equal
        known[0] += event.count
        known[1] += event.self_device_time_total
        known[2] += event.self_cpu_time_total if host else 0.0
    order = sorted(spent.items(), key=lambda each: -max(each[1][1:]))
    return dict(order[: 50 if host else 25])


def measure(options: argparse.Namespace, engine: str, layers: int, deadline: float) -> dict:
    """Run one engine in a process of its own; what it has measured when its time is over counts."""
    arguments = [sys.executable, __file__, "--child", engine, "--layers", str(layers)]
    for name in (
        "shape", "dtype", "batches", "prefill", "profile", "profile_prefill", "ladder", "inductor",
        "ranks",
    ):  # fmt: skip
        arguments += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    if options.temperature is not None:
        arguments += ["--temperature", str(options.temperature)]
    name = re.sub(r"\W", "_", engine)
    log = Path(options.out) / f"{options.shape}_{name}_{layers}.log"
    result = {"engine": engine, "layers": layers}
    return result | run_child(
        arguments, log, max(1.0, min(options.limit, deadline - time.time())),
        expected(engine, options.shape, json.loads(options.ladder)), environment(engine),
    )  # fmt: skip


def run_child(
    arguments: list[str],
    log: Path,
    seconds: float,
    lines: Iterable[str],
    environment: dict[str, str] | None = None,
    stop: Callable[[subprocess.Popen[bytes]], None] = subprocess.Popen.kill,
) -> dict[str, Any]:
    """What a child's last line of RESULT says, and as "error" why it is no result: it ended so, or
    its log lacks one of ``lines``, regular expressions. ``stop`` ends it when its time is over."""
    with log.open("w") as file:
        process = subprocess.Popen(
            arguments, stdout=file, stderr=subprocess.STDOUT, env=environment
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            stop(process)
            process.wait()
    text = log.read_text()
    found = re.findall(r"^RESULT (.*)$", text, re.MULTILINE)
    result = json.loads(found[-1]) if found else {}
    if process.returncode:
        result["error"] = f"ended with {process.returncode}: {_last_error(text)}"
    for line in lines:
        if "error" not in result and not re.search(line, text):
            result["error"] = f'its log has no "{line}"'
    return result


def _last_error(text: str) -> str:
    lines = [line for line in text.splitlines() if re.search(r"Error|error:", line)]
    return (lines or text.splitlines() or [""])[-1][-200:]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def table(results: list[dict[str, Any]], full: int) -> str:
    """Milliseconds, a row for each engine."""
    columns = list(dict.fromkeys(key for r in results for key in r if key.endswith("_ms")))
    lines = [
        "| engine | layers | " + " | ".join(c[:-3].replace("_", " ") for c in columns)
        + " | ready s | packing, plans s |",
        "|---" * (len(columns) + 4) + "|",
    ]  # fmt: skip
    for r in results:
        cells = [f"{r[c]:.2f}" if c in r else "" for c in columns]
        tail = [f"{r[c]:.1f}" if c in r else "" for c in ("ready_s", "packing_and_plans_s")]
        row = [r["engine"], str(r["layers"]), *cells, *tail]
        lines.append("| " + " | ".join(row) + " |" + (f" {r['error']}" if "error" in r else ""))
    for engine in dict.fromkeys(r["engine"] for r in results):
        two = sorted((r for r in results if r["engine"] == engine), key=lambda r: int(r["layers"]))
        if len(two) < 2:
            continue
        few, more = two[0], two[-1]
        step = int(more["layers"]) - int(few["layers"])
        cells = []
        for c in columns:
            both = c in few and c in more
            per = (more[c] - few[c]) / step if both else 0.0
            cells.append(f"{more[c] + per * (full - int(more['layers'])):.2f}" if both else "")
        lines.append(f"| {engine} | {full}, extrapolated | " + " | ".join(cells) + " | | |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", default="fp16,machete,marlin,ladder")
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--dtype", choices=["float16", "bfloat16"], default="float16")
    parser.add_argument("--layers", default="", help="numbers of layers; the shape's by default")
    parser.add_argument("--ranks", type=int, default=1, help="GPUs of tensor parallelism")
    parser.add_argument("--batches", default="1,8,16,32,64,128")
    parser.add_argument("--prefill", default="512,2048")
    parser.add_argument("--profile", default="", help="batches whose kernels are listed")
    parser.add_argument("--profile-prefill", default="", help="lengths of prompts, likewise")
    parser.add_argument("--ladder", default="{}", help="JSON: options of ladder, docs/serving.md")
    parser.add_argument("--inductor", default="{}", help="JSON: of torch's compiler, for all")
    parser.add_argument("--temperature", type=float, help="of tokens: 1 for mixtures, else 0")
    parser.add_argument("--limit", type=float, default=240, help="seconds for one engine")
    parser.add_argument("--budget", type=float, default=3600, help="seconds for all")
    parser.add_argument("--out", default=".")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
        return
    Path(options.out).mkdir(parents=True, exist_ok=True)
    deadline = time.time() + options.budget
    full = SHAPES[options.shape]["num_hidden_layers"]
    results = []
    for engine in options.engines.split(","):
        for layers in _numbers(options.layers) or [full]:
            results.append(measure(options, engine, layers, deadline))
            print(results[-1], flush=True)
            path = Path(options.out) / f"vllm_{options.shape}.json"
            path.write_text(json.dumps(results, indent=1))
    print(table(results, full))


if __name__ == "__main__":
    main()
