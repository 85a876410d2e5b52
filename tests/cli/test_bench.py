# SPDX-License-Identifier: Apache-2.0
"""``ladder bench`` on a GPU, with a torch.cuda, kernels and a clock of the test. No GPU."""

import contextlib
import json
from types import SimpleNamespace

import pytest
import torch

from ladder.cli import main
from ladder.evaluate import measure

SCHEDULE = "tokens 8, warps 1x8, ordered"
SHAPE = ["--n", "64", "--k", "256", "--m", "1", "--m", "17"]


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["bench", *SHAPE, *arguments])
    assert not stop.value.code
    return capsys.readouterr().out


@pytest.fixture
def gpu(monkeypatch):
    """What was asked of it, in order. Kernels serve up to 16 tokens of float16 and bfloat16."""
    asked = SimpleNamespace(warmups=[], timed=[], has_image=True)
    cuda = SimpleNamespace(
        device=lambda device: contextlib.nullcontext(),
        synchronize=lambda: None,
        is_available=lambda: False,
        current_device=lambda: 0,
    )

    def warmup(layer, m, *, dtype, tune):
        asked.warmups.append((tuple(m), dtype, tune))
        halves = dtype is not torch.float32
        found = {tokens: SCHEDULE if tokens <= 16 and halves else "" for tokens in m}
        return {"": found} if asked.has_image else {}

    def seconds(calls):
        assert asked.warmups, "timed before kernels were compiled"
        y = [call() for call in calls]
        asked.timed.append((len(calls), y[0].dtype, y[0].shape[0]))
        return 4e-6 if len(asked.timed) % 2 else 8e-6  # ladder and dense take turns

    monkeypatch.setattr(measure, "is_gpu", lambda device: True)
    monkeypatch.setattr(measure.torch, "cuda", cuda)
    monkeypatch.setattr(measure, "warmup", warmup)
    monkeypatch.setattr(measure, "seconds", seconds)
    monkeypatch.setattr(measure, "_AWAKE_SECONDS", 0.0)
    monkeypatch.setattr(measure.kernels, "objection", lambda *_: "3 columns")
    return asked


def test_kernels_of_float16_are_tuned_and_then_timed_in_graphs(capsys, gpu):
    rows = json.loads(run(capsys, "--json"))
    assert gpu.warmups == [((1, 17), torch.float16, "full")]
    # Three graphs of each side, each of as many weights as a rotation has.
    count = measure._MOST_COPIES
    assert gpu.timed == [(count, torch.float16, m) for m in (1, 17) for _ in range(2 * 3)]
    assert [row["dtype"] for row in rows] == ["float16"] * 2
    assert rows[0]["ladder_us"] == pytest.approx(4) and rows[0]["dense_us"] == pytest.approx(8)
    assert [row["kernel"] for row in rows] == [SCHEDULE, "torch"]
    assert [row["reason"] for row in rows] == ["", "dequantised: more tokens than kernels serve"]


def test_the_dtype_that_was_asked_for_is_timed(capsys, gpu):
    run(capsys, "--json", "--dtype", "bfloat16")
    assert gpu.warmups[0][1] is torch.bfloat16 and gpu.timed[0][1] is torch.bfloat16


def test_the_table_says_which_kernel_ran_and_why_there_is_none(capsys, gpu):
    text = run(capsys)
    assert SCHEDULE in text and "torch (dequantised: more tokens than kernels serve)" in text
    text = run(capsys, "--dtype", "float32")
    assert text.count("torch (dequantised: kernels read float16 and bfloat16)") == 2
    assert gpu.warmups[-1] == ((1, 17), torch.float32, "off")


def test_a_weight_that_each_call_decodes_is_timed_by_the_call(capsys, gpu):
    """Its table comes from the host, which a graph cannot capture."""
    gpu.has_image = False
    rows = json.loads(run(capsys, "--json"))
    assert {row["reason"] for row in rows} == {"decoded by each call: 3 columns"}
    assert gpu.timed == [] and all(row["ladder_us"] > 0 for row in rows)


def test_elsewhere_float32_is_timed_and_there_is_no_kernel_to_name(capsys):
    rows = json.loads(run(capsys, "--json", "--device", "cpu"))
    assert rows[0]["dtype"] == "float32" and "kernel" not in rows[0]
    assert "kernel" not in run(capsys, "--device", "cpu")
