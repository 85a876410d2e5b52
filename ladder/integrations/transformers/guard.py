# SPDX-License-Identifier: Apache-2.0
"""Makes a ladder folder fail loudly where ladder has not been imported.

transformers skips a quant_method that it does not know with a warning and loads random weights. But
it refuses a ``transformers_weights`` in config.json that is no file name, and quotes it; so ladder
folders have a sentence there, which the quantizer removes before transformers reads it. So has each
part of a composite config.json, which transformers can load on its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers.configuration_utils import PreTrainedConfig

from ladder.checkpoints.folder import GUARD_KEY, GUARD_TEXT


def lift(config: Any) -> Any:
    """Remove the guard from a model's config, in place."""
    if getattr(config, GUARD_KEY, None) == GUARD_TEXT:
        delattr(config, GUARD_KEY)
    return config


def parts_of(config: Any) -> Iterator[Any]:
    """The configs inside of a config, at any depth."""
    for value in vars(config).values():
        if isinstance(value, PreTrainedConfig):
            yield value
            yield from parts_of(value)


def forget(config: Any) -> None:
    """Remove from the parts of a config, in place, that their weights are ladder's."""
    for part in parts_of(config):
        lift(part)
        vars(part).pop("quantization_config", None)


def set_on_save(config: Any) -> None:
    """Have the next ``config.save_pretrained`` write the guard, and no quantization_config in a
    part, which is given that of the whole when it is read.

    save_pretrained deletes the key just before it writes, so the key is put back in the call that
    writes. The config has a class of its own for that long.
    """
    kind = type(config)
    if getattr(kind, "_ladder_guarded", False):
        return

    def to_json_file(self: Any, *args: Any, **kwargs: Any) -> None:
        self.__class__ = kind
        parts = [part for part in parts_of(self) if part.model_type]
        before = [(part, dict(vars(part))) for part in parts]
        forget(self)
        for each in (self, *parts):
            setattr(each, GUARD_KEY, GUARD_TEXT)
        try:
            self.to_json_file(*args, **kwargs)
        finally:
            delattr(self, GUARD_KEY)
            for part, fields in before:
                vars(part).clear()
                vars(part).update(fields)

    fields = {"to_json_file": to_json_file, "_ladder_guarded": True, "__module__": kind.__module__}
    config.__class__ = type(kind.__name__, (kind,), fields)
