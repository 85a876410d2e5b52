# SPDX-License-Identifier: Apache-2.0
"""A ROCm build of torch, as far as a library of its name and a fake driver make one: whose GPUs are
asked, which stream, and one warning where there are no kernels."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
RUNTIME = ROOT / "tests/runtime"

#: libtorch_hip.so, with the function by which extensions ask for the stream.
TORCH = """
int asked = 0;
int aoti_torch_get_current_cuda_stream(int device, void** stream) {
  ++asked;
  *stream = (void*)0;
  return 0;
}
"""

PRELUDE = """
import ctypes, logging, sys
import torch
driver, torch_hip = (ctypes.CDLL(path) if path else None for path in sys.argv[1:3])
torch.version.hip, torch.version.cuda = "6.3", None
if hasattr(driver, "become_mi300x"):
    driver.become_mi300x()
lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append((record.levelname, record.getMessage()))
logging.getLogger("ladder").addHandler(handler)
logging.getLogger("ladder").setLevel(logging.INFO)
import ladder
from ladder.cuda import kernels
ops = torch.ops.ladder
assert ops.gpus_of() == "HIP"
TYPE = "uint4,group=128,scale=float16"
"""


#: A build for CUDA brings a function of that name, too, which asks a driver that may not be there.
only_fakes = pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is CUDA's")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("rocm")

    def build(name, *words, language="c++"):
        path = folder / name / ("libtorch_hip.so" if "torch" in name else "libamdhip64.so.6")
        path.parent.mkdir()
        shared = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-o", str(path)]
        subprocess.run([*shared, "-x", language, *map(str, words)], check=True)
        return str(path)

    fakes = ["-std=c++20", f"-I{RUNTIME}", RUNTIME / "fakes/driver.cpp"]
    driver = [*fakes, RUNTIME / "fakes/hip_driver.cpp", "-pthread"]
    (folder / "torch.c").write_text(TORCH)
    (folder / "without.c").write_text("int nothing = 0;\n")
    return {
        "driver": build("driver", *driver, ROOT / "tests/run/rocm.cpp"),
        "old": build("old", "-DFAKE_HIP_OLD", *driver),
        "torch": build("torch", folder / "torch.c", language="c"),
        "bare torch": build("bare torch", folder / "without.c", language="c"),
    }


def run(script, driver, torch, tmp_path, **environment):
    """Runs `script` behind the prelude where nothing of ROCm but the fakes is found."""
    nowhere = {"PATH": "/nonexistent", "ROCM_PATH": "/nonexistent", "LADDER_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + script, driver, torch],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), **nowhere, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_without_a_compiler_one_warning_says_so_for_all_weights(libraries, tmp_path):
    run(
        """
why = [kernels.objection(TYPE, n, 256, False, 0) for n in (128, 192, 256)]
assert why[0] == why[1] == why[2] and "neither libhiprtc nor a clang" in why[0], why
assert kernels.failure(torch.device("cuda", 0)) == why[0]
warnings = [text for level, text in lines if level == "WARNING"]
assert len(warnings) == 1 and why[0] in warnings[0], warnings
assert "cuda:0 has no kernels, weights go through torch" in warnings[0]
""",
        libraries["driver"],
        libraries["torch"],
        tmp_path,
    )


def test_a_driver_that_is_too_old_is_named_once(libraries, tmp_path):
    run(
        """
for n in (128, 192):
    why = kernels.objection(TYPE, n, 256, False, 0)
    assert "has no hipGetDevicePropertiesR0600: it must be of ROCm 6 or later" in why, why
warnings = [text for level, text in lines if level == "WARNING"]
assert len(warnings) == 1 and "libamdhip64.so.6" in warnings[0], warnings
""",
        libraries["old"],
        libraries["torch"],
        tmp_path,
    )


@only_fakes
def test_the_stream_is_what_torch_exports(libraries, tmp_path):
    run(
        """
weight = ops.open_weight(TYPE, 128, 256, False, False)
asked = ctypes.c_int.in_dll(torch_hip, "asked")
for call in (1, 2):
    ops.load_transforms(weight, 0, torch.float16)
    assert asked.value == call
""",
        libraries["driver"],
        libraries["torch"],
        tmp_path,
    )


@only_fakes
def test_the_stream_is_python_s_where_torch_exports_none(libraries, tmp_path):
    run(
        """
class Stream:
    cuda_stream = 0
asked = []
torch.cuda.current_stream = lambda device: asked.append(device) or Stream
weight = ops.open_weight(TYPE, 128, 256, False, False)
ops.load_transforms(weight, 3, torch.float16)
assert asked == [3], asked
""",
        libraries["driver"],
        libraries["bare torch"],
        tmp_path,
    )


def test_the_devices_of_amd_are_listed(libraries, tmp_path):
    run(
        """
torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 1
torch.cuda.get_device_capability = lambda ordinal: (9, 4)
torch.cuda.get_device_name = lambda ordinal: "AMD Instinct MI300X"
from ladder.cli.devices import find
found = find()
assert found["hip_driver"] and found["torch_hip"] == "6.3", found
(gpu,) = found["gpus"]
assert gpu["row"]["name"] == "mi300x" and gpu["row"]["multiprocessors"] == 304, gpu
assert gpu["row"]["architecture"] == "gfx942:sramecc+:xnack-", gpu
""",
        libraries["driver"],
        libraries["torch"],
        tmp_path,
    )
