# SPDX-License-Identifier: Apache-2.0
"""diffusers: ladder folders, and quantising while loading.

``import ladder`` is enough for ladder folders. docs/diffusers.md is the guide.
"""

from __future__ import annotations

import importlib

from ladder.integrations.diffusers.quantizer import LadderDiffusersQuantizer
from ladder.integrations.folders.config import LadderConfig
from ladder.integrations.folders.dense import dense

__all__ = ["LadderConfig", "LadderDiffusersQuantizer", "dense", "register"]


def register() -> None:
    """Make quant_method "ladder" known to diffusers. Doing it again is harmless."""
    auto = importlib.import_module("diffusers.quantizers.auto")
    auto.AUTO_QUANTIZATION_CONFIG_MAPPING["ladder"] = LadderConfig
    auto.AUTO_QUANTIZER_MAPPING["ladder"] = LadderDiffusersQuantizer


register()
