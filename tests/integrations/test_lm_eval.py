# SPDX-License-Identifier: Apache-2.0
"""lm-eval on ladder folders, as docs/transformers.md has it."""

import json
import os
import subprocess
import sys

import pytest
from hf_models import ROOT

pytest.importorskip("lm_eval", reason="lm-eval is not installed")

ROWS = [
    {"question": "In the beginning there was", "choices": ["light", "dark"], "answer": 0},
    {"question": "The cat sat in the", "choices": ["house", "was"], "answer": 0},
]
TASK = """
task: tiny
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list: [{metric: acc}]
"""
#: The command of the document.
WITH_LADDER = "import ladder; from lm_eval.__main__ import cli_evaluate; cli_evaluate()"


def evaluate(folder, work, code):
    """What lm-eval's command says of a model, and its results."""
    (work / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    (work / "tiny.yaml").write_text(TASK)
    arguments = (
        "--model", "hf", "--model_args", f"pretrained={folder},dtype=float32", "--tasks", "tiny",
        "--include_path", work, "--device", "cpu", "--output_path", work / "out", "--log_samples",
    )  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], cwd=work, capture_output=True,
        text=True, env=environment | {"HF_DATASETS_CACHE": str(work / "cache")},
    )  # fmt: skip
    samples = [*(work / "out").rglob("samples_tiny*.jsonl")]
    lines = samples[0].read_text().splitlines() if samples else []
    return done, [json.loads(line)["filtered_resps"] for line in lines]


def test_a_ladder_folder_is_evaluated_as_its_dequantised_weights(
    ladder_folder, dequantised_folder, tmp_path
):
    found = {}
    for name, folder in (("packed", ladder_folder), ("dense", dequantised_folder)):
        (tmp_path / name).mkdir()
        done, answers = evaluate(folder, tmp_path / name, WITH_LADDER)
        assert done.returncode == 0, done.stderr[-2000:]
        found[name] = [[float(each[0]) for each in answer] for answer in answers]
    assert len(found["packed"]) == len(ROWS)
    # Sums of logarithms of two tokens at most, in another order of float32 additions.
    for packed, truth in zip(*found.values(), strict=True):
        assert packed == pytest.approx(truth, abs=1e-3)


def test_without_ladder_it_is_refused(ladder_folder, tmp_path):
    code = WITH_LADDER.removeprefix("import ladder; ")
    done, answers = evaluate(ladder_folder, tmp_path, code)
    assert done.returncode != 0 and answers == []
    assert "Unknown quantization type, got ladder" in done.stderr
