# SPDX-License-Identifier: Apache-2.0
"""transformers: ladder folders, quantising while loading, folders of others as they are.

``import ladder`` is enough for ladder folders. docs/transformers.md is the guide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ladder.integrations.folders.config import LadderConfig
from ladder.integrations.folders.dense import dense
from ladder.integrations.transformers.foreign import disable, enable, enabled, mappings
from ladder.integrations.transformers.quantizer import LadderHfQuantizer

if TYPE_CHECKING:
    from ladder.integrations.transformers.cache import QuantizedCache

__all__ = [
    "LadderConfig",
    "LadderHfQuantizer",
    "QuantizedCache",
    "dense",
    "disable",
    "enable",
    "enabled",
    "register",
]


def register() -> None:
    """Make quant_method "ladder" known to transformers. Doing it again is harmless."""
    auto = mappings()
    auto.AUTO_QUANTIZATION_CONFIG_MAPPING["ladder"] = LadderConfig
    auto.AUTO_QUANTIZER_MAPPING["ladder"] = LadderHfQuantizer


def __getattr__(name: str) -> Any:
    # When asked for: models load whether or not this transformers has the classes it builds on.
    if name == "QuantizedCache":
        from ladder.integrations.transformers.cache import QuantizedCache

        return QuantizedCache
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


register()
