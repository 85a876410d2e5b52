# SPDX-License-Identifier: Apache-2.0
"""Folders of ``ladder export`` in vLLM's engines, which know nothing of ladder."""

import json
import os
import subprocess
from pathlib import Path

import models
import pytest
import torch

from ladder.checkpoints.export import export

SCALE = "scale=bfloat16"
#: A type, how x is rounded, the format: those for which vLLM has kernels on a processor.
CASES = {
    "W4": (f"uint4,group=128,{SCALE},zero=midpoint", None, "compressed-tensors"),
    "W4, zeros": (f"uint4,group=128,{SCALE},zero=integer", None, "compressed-tensors"),
    "W8A8": (f"int8,channel,{SCALE}", "int8", "compressed-tensors"),
    "GPTQ": (f"uint4,group=128,{SCALE},zero=midpoint", None, "gptq"),
}
PROMPT = [1, 5, 9, 30, 77, 12, 100, 64]


@pytest.fixture(scope="module")
def dense_folder(tmp_path_factory):
    return models.dense(tmp_path_factory.mktemp("dense") / "model")


@pytest.mark.skipif("LADDER_VLLM_PYTHON" not in os.environ, reason="no vLLM with engines")
@pytest.mark.parametrize("kind", CASES)
def test_next_tokens_are_as_probable_as_in_the_ladder_folder(kind, tmp_path, dense_folder):
    from transformers import AutoModelForCausalLM

    type, activation_type, form = CASES[kind]
    source = models.converted(
        dense_folder, tmp_path / "ladder", type, activation_type=activation_type, skip=("lm_head",)
    )
    export(source, tmp_path / "out", form)
    script = Path(__file__).with_name("serve_plain.py")
    command = [os.environ["LADDER_VLLM_PYTHON"], script, tmp_path / "out", *map(str, PROMPT)]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("LOGPROBS "))
    found = {int(t): p for t, p in json.loads(line.removeprefix("LOGPROBS ")).items()}

    def logprobs(folder):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        with torch.no_grad():
            return torch.log_softmax(model(torch.tensor([PROMPT])).logits[0, -1], -1)

    wanted, dense = logprobs(source), logprobs(dense_folder)
    assert len(found) == len(wanted)
    got = torch.tensor([found[token] for token in range(len(wanted))])
    # The engine computes in bfloat16, the model in float32: in two layers of random weights that
    # moves log-probabilities by some hundredths of their spread. Of W8A8 ladder rounds x in blocks
    # on a processor, vLLM whole tokens. Four bits for the weights move them twenty times as far.
    away, of_weights = (got - wanted).abs().mean(), (dense - wanted).abs().mean()
    assert away < (0.1 if activation_type else 0.04) * wanted.std()
    assert activation_type or away < 0.1 * of_weights
