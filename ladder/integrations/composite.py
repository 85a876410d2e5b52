# SPDX-License-Identifier: Apache-2.0
"""A part of a composite folder (the vision tower of a CLIP) is packed as the whole folder says.

transformers gives a class of a part its part of config.json (``vision_config``), in which there is
no quantization_config, and would start the packed layers from random weights with a warning. It has
no public place to add one, so ladder wraps ``PreTrainedConfig.get_config_dict``. The names in a
quantization_config are those in the files, which a part reads too, so each part gets it unchanged.
"""

from __future__ import annotations

import copy
import functools
import sys
from typing import Any

from ladder.checkpoints.folder import QUANT_METHOD, parts_of

_KEY = "quantization_config"
_WRAPPED = "_ladder_describes_parts"


def register() -> None:
    """Wrap ``get_config_dict``. Doing it again is harmless."""
    kind: Any = sys.modules["transformers.configuration_utils"].PreTrainedConfig
    theirs = kind.get_config_dict.__func__
    if getattr(theirs, _WRAPPED, False):
        return

    @functools.wraps(theirs)
    def get_config_dict(cls: Any, *args: Any, **kwargs: Any) -> Any:
        config, rest = theirs(cls, *args, **kwargs)
        return _with_described_parts(config, cls.base_config_key), rest

    setattr(get_config_dict, _WRAPPED, True)
    kind.get_config_dict = classmethod(get_config_dict)


def _with_described_parts(config: dict[str, Any], part: str) -> dict[str, Any]:
    """``config`` whose parts have its quantization_config, if that is one that ladder loads.

    Args:
        part: the key of a part that counts as one even without a model_type.
    """
    whole = config.get(_KEY)
    if not isinstance(whole, dict) or not _is_ours(whole.get("quant_method")):
        return config
    config = copy.deepcopy(config)
    asked = config.get(part)
    for each in [*parts_of(config), *([asked] if isinstance(asked, dict) else [])]:
        if each.get(_KEY) is None:
            each[_KEY] = copy.deepcopy(whole)
    return config


def _is_ours(method: Any) -> bool:
    if method == QUANT_METHOD:
        return True
    # Methods of others, while ladder.integrations.transformers.enable has them; no need to import
    # transformers' quantizers to know that none is.
    ours = sys.modules.get("ladder.integrations.transformers.foreign")
    return ours is not None and method in ours.enabled()
