# SPDX-License-Identifier: Apache-2.0
"""ladder makes any number format fast in PyTorch.

    import ladder
    layer = ladder.Linear.from_linear(linear, weight_type="uint4", group_size=128)

See README.md for the tour, docs/format.md for what is stored.
"""

from __future__ import annotations

import importlib
from typing import Any

from ladder import integrations, ops, testing, types
from ladder._version import __version__
from ladder.errors import CheckpointError, InvalidArgument, LadderError, Unsupported
from ladder.nn.batched import BatchedLinear
from ladder.nn.conv import Conv2d
from ladder.nn.convert import convert, set_activation_type
from ladder.nn.embedding import Embedding
from ladder.nn.experts import Experts
from ladder.nn.gated_mlp import GatedMLP
from ladder.nn.linear import Linear
from ladder.nn.mixed_precision import choose_types
from ladder.nn.mixed_precision.chosen import ChosenTypes
from ladder.nn.optimize import optimize, unoptimize
from ladder.nn.warmup import warmup
from ladder.ops import fallback as _fallback  # noqa: F401  (registers kernels of other devices)
from ladder.ops import flops as _flops  # noqa: F401  (registers counts of operations)
from ladder.ops.cpu import use_cpu_isa
from ladder.quantization import quantize
from ladder.types import TType, float_type, register_type
from ladder.types import parse as ttype
from ladder.weight import Weight

__all__ = [
    "BatchedLinear",
    "CheckpointError",
    "ChosenTypes",
    "Conv2d",
    "Embedding",
    "Experts",
    "GatedMLP",
    "InvalidArgument",
    "LadderError",
    "Linear",
    "TType",
    "Unsupported",
    "Weight",
    "__version__",
    "choose_types",
    "convert",
    "float_type",
    "integrations",
    "ops",
    "optimize",
    "quantize",
    "register_type",
    "set_activation_type",
    "testing",
    "ttype",
    "types",
    "unoptimize",
    "use_cpu_isa",
    "warmup",
]

#: Imported when first asked for: they need time, or libraries that ladder itself does not.
_LAZY = {
    "LadderConfig": ("ladder.integrations.folders.config", "LadderConfig"),
    **{name: (f"ladder.{name}", None) for name in
       ("bitblas", "bounds", "checkpoints", "evaluate", "program", "qat")},
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    found = importlib.import_module(module)
    return found if attribute is None else getattr(found, attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


integrations.install()
