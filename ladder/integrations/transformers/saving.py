# SPDX-License-Identifier: Apache-2.0
"""Saving models that were packed in memory.

transformers asks a model's quantizer when it saves, and writes plain folders of models without one,
whose packed layers would be read as random numbers. transformers has no public place for that, so
ladder wraps ``PreTrainedModel.save_pretrained``, which gives such a model a quantizer for the call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ladder.checkpoints.shards import remove_older_weights, times_of_weights
from ladder.integrations.folders.describe import describe_model
from ladder.integrations.folders.saving import wrap_saving


def register() -> None:
    """Wrap ``save_pretrained``. Doing it again is harmless."""
    wrap_saving(sys.modules["transformers.modeling_utils"].PreTrainedModel, _save_packed)


def _save_packed(save_pretrained: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    folder = Path(*args[:1] or (kwargs["save_directory"],))
    before = times_of_weights(folder)
    saved = _with_quantizer(save_pretrained, self, *args, **kwargs)
    remove_older_weights(folder, before)
    return saved


def _with_quantizer(
    save_pretrained: Callable[..., Any], self: Any, *args: Any, **kwargs: Any
) -> Any:
    adapters = getattr(self, "_hf_peft_config_loaded", False)  # which alone are saved
    if adapters or getattr(self, "hf_quantizer", None) is not None:
        return save_pretrained(self, *args, **kwargs)
    from ladder.integrations.folders.config import LadderConfig
    from ladder.integrations.transformers.quantizer import LadderHfQuantizer

    before = vars(self.config).get("quantization_config")
    config = LadderConfig.from_stored(describe_model(self))
    self.hf_quantizer, self.config.quantization_config = LadderHfQuantizer(config), config
    try:
        return save_pretrained(self, *args, **kwargs)
    finally:
        del self.hf_quantizer
        if before is None:
            del self.config.quantization_config
        else:
            self.config.quantization_config = before
