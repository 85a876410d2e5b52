# SPDX-License-Identifier: Apache-2.0
"""What an installed wheel must do; run by .ci/wheel_test outside the checkout."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import torch

import ladder
from ladder import _C
from ladder._version import DISTRIBUTION

package = Path(ladder.__file__).parent
assert "site-packages" in str(package), f"imported the checkout, not the wheel: {package}"
for name in ("libladder.so", "libladder_core.so", "ladder-nvrtc", "py.typed", "_C/bounds.pyi"):
    assert (package / name).exists(), f"{name} is not in the wheel"
assert "transformers" not in sys.modules, "import ladder imported transformers"
assert importlib.metadata.version(DISTRIBUTION) == ladder.__version__
files = [path.name for path in importlib.metadata.files(DISTRIBUTION) or ()]
for name in ("LICENSE", "THIRD_PARTY_NOTICES.md"):
    assert name in files, f"{name} is not in the wheel"
entry_points = importlib.metadata.entry_points(group="console_scripts")
assert any(entry.name == "ladder" for entry in entry_points)
assert _C.element("float6_e3m2").decode(0b011111) == 28.0

# The program that compiles kernels beside the process that wants them: found, allowed to run, and
# started with the libraries beside it. Without arguments it says how it is used.
helper = package / "ladder-nvrtc"
assert os.access(helper, os.X_OK), f"{helper} may not be executed"
started = subprocess.run([helper], capture_output=True, text=True)
assert started.returncode == 2, f"{helper} ended with {started.returncode}: {started.stderr}"
assert started.stderr.startswith("usage: ladder-nvrtc STORE"), started.stderr

linear = torch.nn.Linear(256, 64)
packed = ladder.Linear.from_linear(linear, weight_type="uint4", group_size=128)
x = torch.randn(3, 256)
with torch.no_grad():
    ladder.testing.assert_linear_close(
        packed(x), x, packed.dequantize().weight.detach(), packed.bias
    )
python = ".".join(map(str, sys.version_info[:3]))
print(f"ladder {ladder.__version__} with torch {torch.__version__} in Python {python}: fine")
