# SPDX-License-Identifier: Apache-2.0
"""``ladder calibrate``: what it writes and prints of what was measured."""

import json

import pytest

from ladder._C import devices as native
from ladder.cli import main
from ladder.cuda import calibrate as module


@pytest.fixture
def written(monkeypatch):
    """Calls of write_calibration, of a GPU of which one number was measured."""
    made = module.Measured(
        numbers={"clock": 1.9e9},
        about={"power.limit": "700 W"},
        unsteady={"clock": 0.25},
        skipped={"cluster_seconds": "no clusters"},
    )
    monkeypatch.setattr(module, "calibrate", lambda device, progress: made)
    numbers = [("clock", "Hz", 0.0, 1.98e9), ("latency_seconds", "s", 0.0, 0.0)]
    found = ("NVIDIA H200, sm_90a, driver 13.0", "", "", [], numbers)
    monkeypatch.setattr(native, "calibration", lambda ordinal: found)
    calls = []
    monkeypatch.setattr(native, "write_calibration", lambda *arguments: calls.append(arguments))
    return calls


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["calibrate", *arguments])
    assert not stop.value.code
    return capsys.readouterr().out


def test_what_was_measured_is_written_for_the_device_and_the_file_that_were_named(capsys, written):
    text = run(capsys, "--device", "1", "--out", "of.json")
    assert written == [(1, "of.json", [("clock", 1.9e9)], [("power.limit", "700 W")])]
    line = next(line for line in text.splitlines() if " clock " in line)
    assert line.index("1.9e+09") < line.index("1.98e+09") < line.index("Hz")
    assert "NVIDIA H200, sm_90a, driver 13.0" in text and "written to of.json" in text
    assert "clock differs by 25% from repeat to repeat" in text
    assert "cluster_seconds was left out: no clusters" in text


def test_without_a_file_it_is_the_users_cache(capsys, written, monkeypatch, tmp_path):
    monkeypatch.setenv("LADDER_CACHE", str(tmp_path))
    found = json.loads(run(capsys, "--json"))
    assert written[0][:2] == (0, "")
    assert found["file"] == str(tmp_path / "calibrations.json")
    assert found["numbers"][0] == {"what": "clock", "unit": "Hz", "measured": 1.9e9, "row": 1.98e9}
    assert found["unsteady"] == {"clock": 0.25}


def test_without_a_gpu_it_ends_with_the_reason(capsys, monkeypatch):
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: False)
    assert main(["calibrate"]) == 1
    assert "torch finds no CUDA device" in capsys.readouterr().err
