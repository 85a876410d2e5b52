# SPDX-License-Identifier: Apache-2.0
"""Saving models with packed layers by a library that knows nothing of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ladder.integrations.folders.describe import has_packed

_WRAPPED = "_ladder_saves_packed_layers"


def wrap_saving(kind: Any, save_packed: Callable[..., Any]) -> None:
    """Have ``save_pretrained`` of class ``kind`` call ``save_packed(save_pretrained, model, ...)``
    for models with packed layers. Doing it again is harmless."""
    save_pretrained = kind.save_pretrained
    if getattr(save_pretrained, _WRAPPED, False):
        return

    @functools.wraps(save_pretrained)
    def save(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not has_packed(self):
            return save_pretrained(self, *args, **kwargs)
        return save_packed(save_pretrained, self, *args, **kwargs)

    setattr(save, _WRAPPED, True)
    kind.save_pretrained = save
