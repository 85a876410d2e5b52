# SPDX-License-Identifier: Apache-2.0
"""What diffusers saves of a model with packed layers.

diffusers writes config.json of what the model was when it was loaded, and loads a folder whose
config.json does not speak of packed layers with empty weights and a warning. It has no public place
to change that, so ladder wraps ``ModelMixin.save_pretrained``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ladder.checkpoints.folder import QUANT_METHOD
from ladder.errors import Unsupported
from ladder.integrations.folders.config import LadderConfig
from ladder.integrations.folders.describe import describe_model
from ladder.integrations.folders.saving import wrap_saving

_KEY = "quantization_config"


def put_config(model: Any, config: LadderConfig | None) -> None:
    """Have the config of ``model`` say so of its packed layers; None: nothing."""
    frozen = model._internal_dict
    fields = {key: value for key, value in frozen.items() if key != _KEY}
    if config is not None:
        fields[_KEY] = config
    model._internal_dict = type(frozen)(fields)


def register() -> None:
    """Wrap ``save_pretrained``. Doing it again is harmless."""
    wrap_saving(sys.modules["diffusers.models.modeling_utils"].ModelMixin, _save_packed)


def _save_packed(save_pretrained: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    if getattr(self, "peft_config", None):
        raise Unsupported(
            f"{type(self).__name__} has adapters ({', '.join(self.peft_config)}), whose layers "
            "diffusers would save in the place of its own: save them with save_lora_adapter or "
            "save_lora_weights, and unload them before save_pretrained"
        )
    quantizer = getattr(self, "hf_quantizer", None)
    before = None if quantizer is None else quantizer.quantization_config
    if before is not None and before.quant_method != QUANT_METHOD:
        raise Unsupported(
            f"{type(self).__name__} was quantised by {before.quant_method} when it was loaded, "
            "and has layers packed by ladder: config.json can speak of one of the two"
        )
    config = LadderConfig.from_stored(describe_model(self, before and before.stored))
    put_config(self, config)
    if quantizer is not None:
        quantizer.quantization_config = config
    try:
        return save_pretrained(self, *args, **kwargs)
    finally:
        if quantizer is None:
            put_config(self, None)
