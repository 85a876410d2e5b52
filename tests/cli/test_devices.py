# SPDX-License-Identifier: Apache-2.0
"""``ladder devices``: what is known, and what is found on a machine with and without a GPU."""

import json
import platform

import pytest
import torch

import ladder
from ladder._C import devices as native
from ladder.bounds.machines import machines
from ladder.cli import devices, main


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["devices", *arguments])
    assert not stop.value.code
    return capsys.readouterr().out


def test_every_row_is_listed_and_says_whether_kernels_are_compiled_for_it(capsys):
    found = json.loads(run(capsys, "--json"))
    rows = {row["name"]: row for row in found["known"]}
    assert list(rows) == sorted(rows) and set(machines()) <= set(rows)
    assert rows["h200"]["no_kernels"] == "" and rows["h200"]["architecture"] == "sm_90a"
    assert rows["h200"]["memory_bytes"] == 141e9 and rows["h200"]["multiprocessors"] == 132
    assert rows["v100"]["no_kernels"] == "" and rows["t4"]["no_kernels"] == ""
    assert rows["x86_avx2"]["no_kernels"]
    text = run(capsys)
    assert all(name in text for name in rows)


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("model name\t: EPYC\nmodel name\t: EPYC\n", "EPYC"),
        ("CPU part\t: 0xd85\nCPU part\t: 0xd87\nCPU part\t: 0xd85\n", ", part 0xd85 and 0xd87"),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", ", implementer 0x41, part 0xd4f"),
        ("", ""),
    ],
)
def test_a_processor_is_named_or_its_numbers_are_told(cpuinfo, name, tmp_path):
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    expected = name if name == "EPYC" else platform.machine() + name
    assert devices._cpu_name(tmp_path / "cpuinfo") == expected


def test_a_processor_of_apple_is_named_by_its_system(tmp_path, monkeypatch):
    sysctl = tmp_path / "sysctl"
    sysctl.write_text('#!/bin/sh\n[ "$1 $2" = "-n machdep.cpu.brand_string" ] && echo "Apple M1"\n')
    sysctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert devices._cpu_name() == "Apple M1"


def test_what_the_machine_has_is_said(capsys):
    found = json.loads(run(capsys, "--json"))
    assert found["cpu"] == torch.ops.ladder.cpu_isas().split() and found["cpu"][0] == "generic"
    (driver,) = (each[1] for each in native.targets() if each[0] == "CUDA")
    assert found["torch"] == torch.__version__ and found["driver"] == driver
    if found["nvrtc"] is None:
        assert found["nvrtc_architectures"] == []
    else:
        assert found["nvrtc"].startswith("nvrtc ") and 90 in found["nvrtc_architectures"]
        assert f"{found['nvrtc']} for sm_" in run(capsys)
    assert len(found["gpus"]) == (torch.cuda.device_count() if torch.cuda.is_available() else 0)


def test_the_instruction_set_in_use_is_said_with_those_that_could_be(capsys):
    found = json.loads(run(capsys, "--json"))
    assert found["cpu_name"] and found["cpu_in_use"] == found["cpu"][-1]
    assert not {*found["cpu"]} & {*found["cpu_missing"]}
    built = torch.ops.ladder.built_cpu_isas().split()
    assert {*found["cpu"], *found["cpu_missing"]} == {*built}
    try:
        assert ladder.use_cpu_isa("generic") == "generic"
        assert json.loads(run(capsys, "--json"))["cpu_in_use"] == "generic"
        assert "generic in use" in run(capsys)
    finally:
        assert ladder.use_cpu_isa() == found["cpu_in_use"]


NUMBERS = [("read_bytes_per_second", "B/s", 0.0, 4.53e12), ("latency_seconds", "s", 0.0, 0.0)]
NOT_CALIBRATED = ("NVIDIA H200, sm_90a", "", "", [], NUMBERS)


@pytest.fixture
def two_gpus(monkeypatch):
    """One that has a row, and one that is older than every row."""

    def found(ordinal):
        if ordinal == 1:
            raise NotImplementedError("no row for a GTX 1080 of compute capability 6.1")
        return next(row for row in native.rows() if row[0] == "h200")

    for name, answer in {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "get_device_capability": lambda ordinal: ((9, 0), (6, 1))[ordinal],
        "get_device_name": lambda ordinal: ("NVIDIA H200", "GTX 1080")[ordinal],
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(native, "found", found)
    monkeypatch.setattr(native, "calibration", lambda ordinal: NOT_CALIBRATED)


def test_each_gpu_has_the_row_that_stands_for_it_or_the_reason_why_none_does(capsys, two_gpus):
    first, second = json.loads(run(capsys, "--json"))["gpus"]
    assert (first["capability"], first["row"]["name"], first["kernels"]) == (
        "9.0",
        "h200",
        "as h200",
    )
    assert second["row"] is None and second["kernels"].startswith("none: no row for a GTX 1080")
    text = run(capsys)
    assert "NVIDIA H200: as h200" in text and "GTX 1080: none: no row" in text


def test_a_gpu_is_calibrated_or_not_and_says_why(capsys, two_gpus, monkeypatch):
    first, second = json.loads(run(capsys, "--json"))["gpus"]
    assert second["calibration"] is None and not first["calibration"]["file"]
    assert first["calibration"]["numbers"][1] == {
        "what": "latency_seconds",
        "unit": "s",
        "measured": None,
        "row": None,
    }
    assert "as h200, not calibrated: ladder calibrate measures it" in run(capsys)
    refused = (NOT_CALIBRATED[0], "", "of.json: clock is 1 Hz", [], NUMBERS)
    monkeypatch.setattr(native, "calibration", lambda ordinal: refused)
    assert "not calibrated: of.json: clock is 1 Hz" in run(capsys)


def test_the_numbers_of_a_calibration_stand_beside_those_of_the_row(capsys, two_gpus, monkeypatch):
    numbers = [("read_bytes_per_second", "B/s", 4.4e12, 4.53e12), ("clock", "Hz", 1.8e9, 0.0)]
    made = (NOT_CALIBRATED[0], "of.json", "", [("power.limit", "700 W")], numbers)
    monkeypatch.setattr(native, "calibration", lambda ordinal: made)
    found = json.loads(run(capsys, "--json"))["gpus"][0]["calibration"]
    assert found["about"] == {"power.limit": "700 W"}
    assert (found["numbers"][0]["measured"], found["numbers"][0]["row"]) == (4.4e12, 4.53e12)
    text = run(capsys)
    assert "as h200, calibrated (of.json)" in text
    line = next(line for line in text.splitlines() if "read_bytes_per_second" in line)
    assert line.index("4.4e+12") < line.index("4.53e+12") < line.index("B/s")
