# SPDX-License-Identifier: Apache-2.0
"""Benchmarks start as their documents say: by their path, from the root of the checkout, with
nothing installed and no PYTHONPATH."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(p.name for p in ROOT.glob("benchmarks/*.py") if "__main__" in p.read_text())
NO_GPU = "needs a CUDA device, and torch finds none"
#: The smallest run of each script, and what its report then has.
SMALL = {
    "bounds.py": (["--rows", "2"], "| matmul 4096^3, integers | "),
    "cpu_int8.py": (
        [*("--size", "256", "--repeats", "1", "--threads", "1", "--only", "speed"),
         *("--tokens-at-once", "1", "16")],
        "| torch._int_mm | ",
    ),
    "cpu_linear.py": (
        ["--size", "1024", "--repeats", "1", "--threads", "1", "--only", "int4pack"],
        "| bfloat16 | 16 | ",
    ),
    "generate.py": (
        [*("--preset", "tiny", "--device", "cpu", "--only", "check", "decode", "--batches", "1"),
         *("--steps", "4", "--ways", "eager", "--formats", "GPTQModel", "ladder uint3")],
        "| ladder uint3 + optimize | eager | equal |",
    ),
    "hip_predicted.py": (
        [*("--only", "layers", "--models", "LLAMA2-70B", "--types", "W:INT4 A:FP16")],
        "| LLAMA2-70B | W:INT4 A:FP16 | 32 | ",
    ),
    "kv_cache.py": (
        ["speed", "--context", "64", "--steps", "10", "--ways", "ladder nf4"],
        "| ladder nf4 | ",
    ),
    "lora_step.py": (
        [*("--preset", "tiny", "--device", "cpu", "--only", "step", "--tokens", "16"),
         *("--layers", "1", "--repeats", "1")],
        "| packed, optimize | 16 | ",
    ),
    "merge_adapters.py": (
        [*("--types", "mxfp4", "--adapters", "1:1e-3", "--windows", "1", "--calibration", "1")],
        "| mxfp4 | 1, 1e-3 | ",
    ),
    "packing.py": (["--size", "256"], "| nvfp4 | "),
    "perplexity.py": (["--windows", "1"], "| tiny-llama-gptq | repacked | "),
    "quantize.py": (["--n", "64", "--k", "256", "--runs", "1", "--types", "mxfp4"], "| mxfp4 | "),
    "type_quality.py": (
        [*("--windows", "2", "--threads", "1", "--groups", "128"), "--types", "uint4", "mxfp4"],
        # That of the example, 28.49175: rotating it changes no prediction, but the last digits.
        "Unquantised: 28.491",
    ),
}  # fmt: skip
#: Scripts for a GPU, the smallest run of each, and what its report then has.
SMALL_ON_A_GPU = {
    "activations.py": (["--shapes", "256x256", "--types", "mxfp4"], "| mxfp4 | float8_e4m3 | "),
    "convolution.py": (
        ["--shapes", "1", "--images", "1", "--tokens", "2", "--tune", "off"],
        "| ResNet 3x3, 64 | 1 | ",
    ),
    "cuda_runtime.py": (["--only", "Host"], "| the op alone | "),
    "experts.py": (["--shapes", "1", "--tokens", "2", "--tune", "fast"], "| 2 | 1"),
    "generate.py": (
        [*("--preset", "tiny", "--only", "check", "decode", "--batches", "1", "--steps", "8"),
         *("--no-tune", "--ways", "eager", "graph", "--formats", "ladder uint4")],
        "| ladder uint4 + optimize | graph | ",
    ),
    "lora_step.py": (["--only", "layers", "--tokens", "128"], "| forward, packed | 128 | "),
    "round_tokens.py": (["--shapes", "17x512"], "| 17 x 512 | int8 | "),
    "stored_types.py": (["--n", "256", "--k", "256", "--types", "uint4"], "| uint4,group=128"),
}  # fmt: skip


def run(script, *arguments):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, f"benchmarks/{script}", *arguments]
    environment |= {"HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def check_report(script, arguments, expected):
    done = run(script, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    assert expected in done.stdout


def test_every_benchmark_has_a_small_run():
    """But those that need more than ladder: linear.py a tuned run, sweep.py, proposals.py,
    peers.py and calibrate_check.py a GPU for minutes, vllm_decode.py vLLM, sglang_decode.py
    SGLang, hip_report.py an AMD GPU."""
    larger = {"linear.py", "sweep.py", "proposals.py", "calibrate_check.py", "vllm_decode.py"}
    larger |= {"hip_report.py", "peers.py", "sglang_decode.py"}
    assert set(SCRIPTS) == {*SMALL, *SMALL_ON_A_GPU, *larger}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_benchmark_says_how_it_is_used(script):
    """The folder of a script comes first on its path: a sibling named as a module of Python's own
    would take that module's place."""
    done = run(script, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: " + script)


@pytest.mark.parametrize("script", SMALL)
def test_a_benchmark_runs_from_the_checkout(script):
    check_report(script, *SMALL[script])


def test_types_for_a_budget_of_bits_stand_beside_one_type_for_all():
    arguments = ["--mixtures", "3", "--choose", "1", "--types", "uint2", "uint4", "--groups", "128"]
    check_report("type_quality.py", [*arguments, "--windows", "1", "--threads", "1"], "| mixture: ")


def test_trained_weights_stand_beside_rounded_and_calibrated_ones():
    arguments = ["--trained", "1", "--calibration", "1", "--types", "uint2", "--groups", "128"]
    check_report("type_quality.py", [*arguments, "--windows", "1", "--threads", "1"], "| `uint2,")


def test_learned_scales_stand_beside_those_that_are_found_anew():
    arguments = ["--learned-scales", "1", "--batch", "1", "--types", "uint2", "--groups", "128"]
    check_report("type_quality.py", [*arguments, "--windows", "1", "--threads", "1"], "| `uint2,")


def test_trained_blocks_stand_beside_calibrated_ones():
    arguments = ["--train-blocks", "1", "--calibration", "1", "--types", "uint2", "--groups", "128"]
    check_report("type_quality.py", [*arguments, "--windows", "1", "--threads", "1"], "| `uint2,")


def test_peers_are_shown_with_their_means_and_who_is_ahead(tmp_path):
    times = {"ladder": 8.0, "cuBLAS": 4.0, "Marlin": 16.0}
    lines = ["n,k,m,kernel,us", *(f"4096,4096,{m},{name},{us}" for m in (1, 64)
                                  for name, us in times.items())]  # fmt: skip
    (tmp_path / "peers.csv").write_text("\n".join(lines))
    done = run("peers.py", "show", str(tmp_path / "peers.csv"))
    assert done.returncode == 0, done.stderr
    assert "| 4096 x 4096 | 64 | 2.8 | 8.0 | 4.0 | 16.0 | 0.50 | 2.00 |" in done.stdout
    assert "| ladder / best packed peer | 0.50 | 0.50 | 0.500 |" in done.stdout
    assert "- 4096 x 4096 at 1: 2.00 of cuBLAS" in done.stdout


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("script", SMALL_ON_A_GPU)
def test_a_benchmark_of_a_gpu_runs_from_the_checkout(script):
    check_report(script, *SMALL_ON_A_GPU[script])


@pytest.fixture
def proposals():
    spec = importlib.util.spec_from_file_location("proposals", ROOT / "benchmarks/proposals.py")
    module = importlib.util.module_from_spec(spec)
    before = [*sys.path]
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def test_an_item_of_a_schedule_is_taken_out_whole(proposals):
    name = "tokens 8, producers, producers 2, ordered"
    assert proposals.without(name, "producers") == "tokens 8, producers 2, ordered"
    assert proposals.without(name, "order") == proposals.without(name, "") == name
    proposals.refuse_unknown("", [])
    proposals.refuse_unknown("ordered", [name])
    with pytest.raises(SystemExit, match='--without is "order", and proposals have: ordered, prod'):
        proposals.refuse_unknown("order", [name])


def test_the_line_of_a_cell_says_what_is_refused(proposals):
    line = proposals.line_of
    names = ["a, b", "a"]
    assert line(names, {"a, b": 2.0, "a": 1.0}, "b") == "first 2.0, with 2.0, without 1.0; 1.0: a"
    assert line(names, {"a": 1.0}, "b") == "first refused, without 1.0; 1.0: a"
    assert line(names, {}, "b") == "none of 2 schedules has a kernel"


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
@pytest.mark.parametrize(
    "command",
    [
        *(["cuda_runtime.py"], ["stored_types.py"], ["linear.py", "run", "kernels"]),
        *(["generate.py"], ["lora_step.py"], ["experts.py"], ["round_tokens.py"]),
        ["convolution.py"],
        *(["sweep.py", "run", "no.csv"], ["proposals.py", "no.csv"]),
    ],
)
def test_a_benchmark_of_a_gpu_says_that_there_is_none(command):
    done = run(*command)
    assert done.returncode == 1 and NO_GPU in done.stderr


def test_kernels_without_their_compiler_are_refused(tmp_path):
    """Where benchmarks/kernels.cpp is built, ``prepare`` compiles; else it says how to build it."""
    if (ROOT / "build" / "benchmarks" / "ladder-kernels").exists():
        pytest.skip("ladder-kernels is built")
    done = run("linear.py", "prepare", str(tmp_path), "--preset", "small")
    assert done.returncode == 1
    assert "is not there: build with cmake -DLADDER_BENCHMARKS=ON" in done.stderr
