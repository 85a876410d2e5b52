# SPDX-License-Identifier: Apache-2.0
"""ladder makes any number format fast in PyTorch.

    import ladder
    layer = ladder.Linear.from_linear(linear, weight_type="uint4", group_size=128)

See README.md for the tour, docs/format.md for what is stored.
"""

from ladder import fallback as _fallback  # noqa: F401  (registers kernels of other devices)
from ladder import integrations, ops, testing, types
from ladder._version import __version__
from ladder.convert import convert
from ladder.errors import CheckpointError, InvalidArgument, LadderError, Unsupported
from ladder.linear import Linear
from ladder.quantize import quantize
from ladder.types import TType, float_type, register_type
from ladder.types import parse as ttype
from ladder.warmup import warmup
from ladder.weight import Weight

__all__ = [
    "CheckpointError",
    "InvalidArgument",
    "LadderError",
    "Linear",
    "TType",
    "Unsupported",
    "Weight",
    "__version__",
    "convert",
    "float_type",
    "integrations",
    "ops",
    "quantize",
    "register_type",
    "testing",
    "ttype",
    "types",
    "warmup",
]

integrations.install()
