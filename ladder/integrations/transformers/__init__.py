# SPDX-License-Identifier: Apache-2.0
"""transformers: ladder folders, quantising while loading, folders of others as they are.

``import ladder`` is enough for ladder folders. docs/transformers.md is the guide.
"""

from __future__ import annotations

from ladder.integrations.folders.config import LadderConfig
from ladder.integrations.folders.dense import dense
from ladder.integrations.transformers.foreign import disable, enable, enabled, mappings
from ladder.integrations.transformers.quantizer import LadderHfQuantizer

__all__ = [
    "LadderConfig",
    "LadderHfQuantizer",
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


register()
