# SPDX-License-Identifier: Apache-2.0
"""What an installed wheel must do; run by .ci/wheel_test outside the checkout."""

import importlib.metadata
import sys
from pathlib import Path

import torch

import ladder
from ladder import _C

package = Path(ladder.__file__).parent
assert "site-packages" in str(package), f"imported the checkout, not the wheel: {package}"
for name in ("libladder.so", "libladder_core.so", "py.typed", "_C/bounds.pyi"):
    assert (package / name).exists(), f"{name} is not in the wheel"
assert "transformers" not in sys.modules, "import ladder imported transformers"
assert importlib.metadata.version("ladder") == ladder.__version__
entry_points = importlib.metadata.entry_points(group="console_scripts")
assert any(entry.name == "ladder" for entry in entry_points)
assert _C.element("float6_e3m2").decode(0b011111) == 28.0

linear = torch.nn.Linear(256, 64)
packed = ladder.Linear.from_linear(linear, weight_type="uint4", group_size=128)
x = torch.randn(3, 256)
with torch.no_grad():
    ladder.testing.assert_linear_close(
        packed(x), x, packed.dequantize().weight.detach(), packed.bias
    )
print(f"ladder {ladder.__version__} with torch {torch.__version__}: fine")
