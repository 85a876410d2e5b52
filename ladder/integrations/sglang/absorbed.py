# SPDX-License-Identifier: Apache-2.0
"""The layer of multi-head latent attention whose weight attention takes into its own products.

SGLang's models read ``kv_b_proj.weight`` at the end of their ``load_weights``, before any layer is
brought into the form of kernels, and take what has a ``qweight`` for one of AWQ. So its values are
decoded when the last of its tensors has come, and the layer is a dense one from then on.
"""

from __future__ import annotations

import threading
from typing import Any

from torch import Tensor, nn

from ladder.errors import Unsupported
from ladder.integrations.serving.layer import Run
from ladder.integrations.serving.loading import load
from ladder.integrations.sglang.method import LinearMethod
from ladder.integrations.sglang.versions import is_dummy

#: The last part of the layer's name.
NAME = "kv_b_proj"


class AbsorbedMethod(LinearMethod):
    """Of a packed ``kv_b_proj``, which is served dense; x is as it comes."""

    prepacks = False

    def _make_room(self, layer: nn.Module) -> None:
        super()._make_room(layer)
        lock = threading.Lock()  # models load tensors in threads

        def load_and_decode(param: Tensor, loaded_weight: Tensor, *rest: Any) -> None:
            load(param, loaded_weight, *rest)
            with lock:
                if hasattr(layer, self.room.names()[0]) and not self.room.missing():
                    self._decode(layer)

        for name in self.room.names():
            getattr(layer, name).weight_loader = load_and_decode

    def _decode(self, layer: nn.Module) -> None:
        if self.room.pre_scale(layer, 0) is not None:
            raise Unsupported(f"{self.prefix} has a pre_scale, which latent attention cannot take")
        weight = self.room.weight(layer, 0)
        values = weight if isinstance(weight, Tensor) else weight.dequantize(self.dtype)
        for name in self.room.names():
            delattr(layer, name)
        self.room.loaded.clear()
        if (before := self._before.pop("weight", None)) is not None:
            values = before.copy_(values)
        layer.register_parameter("weight", nn.Parameter(values, requires_grad=False))
        self.runs = (Run("dense", "", values.shape[0], "", ("weight",)),)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Raises CheckpointError for tensors that were not loaded, by name."""
        if is_dummy() and not self.runs:
            self.room.fill_dummy(layer)
            self._decode(layer)
        if "weight" not in layer._parameters:
            super().process_weights_after_loading(layer)
