# SPDX-License-Identifier: Apache-2.0
"""Has transformers ask ladder for folders of MLX, whose quantization_config names no method.

transformers refuses such a config before it looks for a quantizer, where it asks whether the method
is supported. While MLX is enabled, that question adds the name to the model's config.
"""

from __future__ import annotations

from typing import Any

from ladder.checkpoints.mlx_config import QUANT_METHOD, are_settings


def enable(auto: Any) -> None:
    """Ask for folders of MLX. ``auto`` is ``transformers.quantizers.auto``."""
    kind = auto.AutoHfQuantizer
    if hasattr(kind.supports_quant_method, "ladder_replaces"):
        return
    asked = kind.supports_quant_method

    def supports_quant_method(fields: dict[str, Any]) -> Any:
        if are_settings(fields):
            fields["quant_method"] = QUANT_METHOD
        return asked(fields)

    supports_quant_method.ladder_replaces = asked
    kind.supports_quant_method = staticmethod(supports_quant_method)


def disable(auto: Any) -> None:
    """Undo :func:`enable`."""
    kind = auto.AutoHfQuantizer
    asked = getattr(kind.supports_quant_method, "ladder_replaces", None)
    if asked is not None:
        kind.supports_quant_method = staticmethod(asked)
