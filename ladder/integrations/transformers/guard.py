# SPDX-License-Identifier: Apache-2.0
"""Makes a ladder folder fail loudly where ladder has not been imported.

transformers skips a quant_method that it does not know with a warning and loads random weights. But
it refuses a ``transformers_weights`` in config.json that is no file name, and quotes it; so ladder
folders have a sentence there, which the quantizer removes before transformers reads it.
"""

from __future__ import annotations

from typing import Any

from ladder.checkpoints.folder import GUARD_KEY, GUARD_TEXT


def lift(config: Any) -> Any:
    """Remove the guard from a model's config, in place."""
    if getattr(config, GUARD_KEY, None) == GUARD_TEXT:
        delattr(config, GUARD_KEY)
    return config


def set_on_save(config: Any) -> None:
    """Have the next ``config.save_pretrained`` write the guard.

    save_pretrained deletes the key just before it writes, so the key is put back in the call that
    writes. The config has a class of its own for that long.
    """
    kind = type(config)
    if getattr(kind, "_ladder_guarded", False):
        return

    def to_json_file(self: Any, *args: Any, **kwargs: Any) -> None:
        self.__class__ = kind
        setattr(self, GUARD_KEY, GUARD_TEXT)
        try:
            self.to_json_file(*args, **kwargs)
        finally:
            delattr(self, GUARD_KEY)

    fields = {"to_json_file": to_json_file, "_ladder_guarded": True, "__module__": kind.__module__}
    config.__class__ = type(kind.__name__, (kind,), fields)
