# SPDX-License-Identifier: Apache-2.0
"""``ladder devices``."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

from ladder.cli.calibrate import number, print_numbers
from ladder.cli.output import Json, print_json, print_table


def devices(as_json: Json = False) -> None:
    """Say what ladder finds on this machine, and which devices it knows.

    A kernel for a device that is known can be made anywhere: ladder explain --device NAME.

    Examples:

        ladder devices

        ladder devices --json
    """
    found = find()
    if as_json:
        print_json(found)
        return
    gpus = [f"{gpu['name']}: {gpu['kernels']}{_calibrated(gpu)}" for gpu in found["gpus"]]
    rocm = f", ROCm {found['torch_hip']}" if found["torch_hip"] else ""
    lines = {
        "CPU": found["cpu_name"],
        "CPU kernels": _cpu_kernels(found),
        "CUDA driver": "found" if found["driver"] else "none",
        "torch": f"{found['torch']}, CUDA {found['torch_cuda'] or 'none'}{rocm}",
        "NVRTC": _compiler(found) or "none: pip install nvidia-cuda-nvrtc",
        "HIP driver": "found" if found["hip_driver"] else "none",
        "HIP compiler": _hip_compiler(found) or "none: hiprtc of ROCm, or clang-19 and lld-19",
        **{f"cuda:{index}": text for index, text in enumerate(gpus)},
    }
    print_table("This machine", ("what", "found"), list(lines.items()))
    for gpu in found["gpus"]:
        if gpu["calibration"] and gpu["calibration"]["file"]:
            print_numbers(gpu["calibration"]["machine"], gpu["calibration"]["numbers"])
    print_table("Known devices", _COLUMNS, [_cells(row) for row in found["known"]])


_COLUMNS = (
    "device",
    "architecture",
    "SMs",
    "memory GB",
    "GB/s",
    "L2 MiB",
    "16-bit TFLOP/s",
    "kernels",
)


#: Of a row of ladder._C.devices.
_FIELDS = (
    "name", "architecture", "family", "multiprocessors", "memory_bytes", "bytes_per_second",
    "l2_bytes", "f16_flops", "no_kernels",
)  # fmt: skip


def _cpu_kernels(found: dict[str, Any]) -> str:
    others = [name for name in reversed(found["cpu"]) if name != found["cpu_in_use"]]
    also = f"; it also runs {', '.join(others)}" if others else ""
    missing = f"; not {', '.join(found['cpu_missing'])}" if found["cpu_missing"] else ""
    return f"{found['cpu_in_use']} in use{also}{missing}"


def _cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The model name of the processor. Where the system has none, as on 64-bit ARM: its
    architecture, and the numbers of its maker and of its kinds of cores."""
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []

    def values(key: str) -> list[str]:
        found = (line.partition(":")[2].strip() for line in lines if line.startswith(key))
        return list(dict.fromkeys(found))

    if names := values("model name"):
        return names[0]
    numbers = {word: values(f"CPU {word}") for word in ("implementer", "part")}
    told = (f"{word} {' and '.join(found)}" for word, found in numbers.items() if found)
    return ", ".join([platform.machine(), *told])


def _compiler(found: dict[str, Any]) -> str:
    names = ", ".join(f"sm_{each}" for each in found["nvrtc_architectures"])
    return f"{found['nvrtc']} for {names}" if names else found["nvrtc"] or ""


def _hip_compiler(found: dict[str, Any]) -> str:
    names = ", ".join(found["hip_architectures"]) or "no architecture that ladder knows"
    return f"{found['hip_compiler']} for {names}" if found["hip_compiler"] else ""


def _calibrated(gpu: dict[str, Any]) -> str:
    """What a line of the table says of the calibration of a GPU."""
    calibration = gpu["calibration"]
    if calibration is None:
        return ""
    if calibration["file"]:
        return f", calibrated ({calibration['file']})"
    why = calibration["why"] or "ladder calibrate measures it"
    return f", not calibrated: {why}"


def _cells(row: dict[str, Any]) -> tuple[Any, ...]:
    why = row["no_kernels"].partition(" yet: ")[2] or row["no_kernels"]
    compiled = f"none: {why}" if why else "compiled"
    return (
        row["name"],
        row["architecture"],
        row["multiprocessors"],
        round(row["memory_bytes"] / 1e9),
        round(row["bytes_per_second"] / 1e9),
        round(row["l2_bytes"] / 2**20),
        round(row["f16_flops"] / 1e12),
        "ladder's own, not compiled" if row["family"] == "x86" else compiled,
    )


def find() -> dict[str, Any]:
    """What ``--json`` prints.

    cpu_name, the processor; cpu, the instruction sets that it has and kernels use, the widest last;
    cpu_in_use; cpu_missing, those with kernels that it lacks. driver, torch, torch_cuda, torch_hip,
    nvrtc and nvrtc_architectures (90 for sm_90), hip_driver, hip_compiler and hip_architectures,
    gpus (name, capability, row, kernels, calibration) and known, the rows of csrc/device/."""
    import torch

    from ladder import _library
    from ladder._C import devices as native
    from ladder.ops.cpu import cpu_isa, cpu_isas

    _library.find_compiler()
    built = torch.ops.ladder.built_cpu_isas().split()
    languages = targets()
    return {
        "cpu_name": _cpu_name(),
        "cpu": cpu_isas(),
        "cpu_in_use": cpu_isa(),
        "cpu_missing": [name for name in built if name not in cpu_isas()],
        "driver": languages["CUDA"]["driver"],
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "torch_hip": torch.version.hip,
        "nvrtc": languages["CUDA"]["compiler"],
        "nvrtc_architectures": [
            int(each.removeprefix("sm_")) for each in languages["CUDA"]["architectures"]
        ],
        "hip_driver": languages["HIP"]["driver"],
        "hip_compiler": languages["HIP"]["compiler"],
        "hip_architectures": languages["HIP"]["architectures"],
        "gpus": gpus(),
        "known": [dict(zip(_FIELDS, row, strict=True)) for row in native.rows()],
    }


def targets() -> dict[str, dict[str, Any]]:
    """By the name of each language of kernels: driver (whether this machine has that of its
    devices), compiler (None: there is none) and architectures that it compiles for."""
    from ladder._C import devices as native

    return {
        name: {"driver": driver, "compiler": compiler or None, "architectures": architectures}
        for name, driver, compiler, architectures in native.targets()
    }


def gpus() -> list[dict[str, Any]]:
    """name, capability, row (of :data:`_FIELDS`; None where ladder has none), kernels and
    calibration (machine, file, why, about and numbers; None where there is no row) of each CUDA
    device, in order of their index."""
    import torch

    from ladder._C import devices as native

    found = []
    for ordinal in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        major, minor = torch.cuda.get_device_capability(ordinal)
        gpu: dict[str, Any] = {
            "name": torch.cuda.get_device_name(ordinal),
            "capability": f"{major}.{minor}",
        }
        try:
            row = dict(zip(_FIELDS, native.found(ordinal), strict=True))
        except (NotImplementedError, RuntimeError) as error:
            found.append({**gpu, "row": None, "kernels": f"none: {error}", "calibration": None})
            continue
        kernels = f"none: {row['no_kernels']}" if row["no_kernels"] else f"as {row['name']}"
        machine, file, why, about, numbers = native.calibration(ordinal)
        calibration = {
            "machine": machine,
            "file": file,
            "why": why,
            "about": dict(about),
            "numbers": [number(*each) for each in numbers],
        }
        found.append({**gpu, "row": row, "kernels": kernels, "calibration": calibration})
    return found
