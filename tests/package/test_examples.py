# SPDX-License-Identifier: Apache-2.0
"""Every example runs as its reader would run it."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Arguments that make an example fast, and words that its output must have.
EXAMPLES = {
    "demo.py": (["--windows", "1", "--tokens", "4", "--out"], "bytes in memory, whole model"),
    "calibrate.py": ([], "calibrated 56 layers: rounding moves their outputs by"),
    "dequantize_transpose.py": ([], "equal to the reference"),
    "load_gptq.py": ([], "uint4,group=128,scale=float16,zero=midpoint"),
    "generate.py": ([], "merged 40 layers into 16"),
    "lora.py": ([], "step 7"),
    "own_format.py": ([], "lloyd3,group=64"),
    "qat.py": ([], "trained "),
    "quantize_linear.py": ([], "ternary,group=64"),
}


def test_every_example_is_listed():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == {*EXAMPLES, "serve.py"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs(name, tmp_path):
    arguments, expected = EXAMPLES[name]
    if "--out" in arguments:
        arguments = [*arguments, str(tmp_path / "model")]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "120", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert expected in done.stdout


def test_a_ladder_folder_is_served(tmp_path):
    """A completion, over HTTP. The chat API needs a chat template, which the model has not."""
    for needed in ("fastapi", "uvicorn", "openai", "multipart"):
        pytest.importorskip(needed)
    from ladder.checkpoints import repack

    repack(ROOT / "examples" / "tiny-llama-gptq", tmp_path / "model")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(ROOT / "examples" / "serve.py"), str(tmp_path / "model")]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            [*command, "--port", str(port)], env=environment, stdout=log, stderr=log
        )
    asked = {"model": str(tmp_path / "model"), "prompt": "In the beginning", "max_tokens": 4}
    request = urllib.request.Request(
        f"http://localhost:{port}/v1/completions",
        json.dumps(asked).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                answer = json.load(urllib.request.urlopen(request, timeout=60))
                break
            except urllib.error.URLError:
                said = (tmp_path / "log").read_text()
                assert server.poll() is None and time.monotonic() < deadline, said[-3000:]
                time.sleep(1)
    finally:
        server.terminate()
        server.wait()
    assert answer["choices"][0]["text"] and answer["usage"]["completion_tokens"] == 4
