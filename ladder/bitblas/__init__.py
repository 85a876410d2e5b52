# SPDX-License-Identifier: Apache-2.0
"""BitBLAS' public API on ladder's kernels: change ``import bitblas`` to
``import ladder.bitblas as bitblas``. docs/bitblas.md lists what differs.
"""

from typing import Any, NoReturn

from ladder.bitblas import cache, quantization
from ladder.bitblas.attention import FlashAtten, FlashAttenConfig
from ladder.bitblas.cache import global_operator_cache
from ladder.bitblas.config import (
    MatmulConfig,
    MatmulConfigWithSplitK,
    OperatorConfig,
    OptimizeStrategy,
    TransformKind,
)
from ladder.bitblas.linear import Linear
from ladder.bitblas.matmul import Matmul, MatmulWithSplitK
from ladder.bitblas.operator import Operator
from ladder.bitblas.utils import (
    apply_transform_on_input,
    auto_detect_nvidia_target,
    set_debug_level,
    set_log_level,
)
from ladder.errors import Unsupported


def _unsupported(name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise Unsupported(
            f"bitblas.{name} schedules a TVM function, and ladder has no TVM: describe the weight "
            "as a ladder type (ladder.register_type, ladder.float_type) and use Matmul or Linear"
        )

    refuse.__name__ = name
    refuse.__doc__ = "Raises ladder.Unsupported: it schedules TVM functions."
    return refuse


fast_tune = _unsupported("fast_tune")
fast_tune_with_dynamic_range = _unsupported("fast_tune_with_dynamic_range")
ApplyDefaultSchedule = _unsupported("ApplyDefaultSchedule")
ApplyFastTuning = _unsupported("ApplyFastTuning")


def __getattr__(name: str) -> Any:
    if name in ("tvm", "tilelang"):
        _unsupported(name)()
    raise AttributeError(f"module ladder.bitblas has no attribute {name}")


__all__ = [
    "ApplyDefaultSchedule",
    "ApplyFastTuning",
    "FlashAtten",
    "FlashAttenConfig",
    "Linear",
    "Matmul",
    "MatmulConfig",
    "MatmulConfigWithSplitK",
    "MatmulWithSplitK",
    "Operator",
    "OperatorConfig",
    "OptimizeStrategy",
    "TransformKind",
    "apply_transform_on_input",
    "auto_detect_nvidia_target",
    "cache",
    "fast_tune",
    "fast_tune_with_dynamic_range",
    "global_operator_cache",
    "quantization",
    "set_debug_level",
    "set_log_level",
]
