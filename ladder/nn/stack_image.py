# SPDX-License-Identifier: Apache-2.0
"""The two forms of the weights of experts: that of checkpoints, and that which kernels read."""

from __future__ import annotations

import logging
import threading
from typing import Any

import torch
from torch import Tensor

from ladder.cuda import image, kernels
from ladder.cuda.experts import MOST_EXPERTS, Stack, stacked
from ladder.errors import Unsupported
from ladder.nn.quick_call import Unscriptable
from ladder.ops.gating import Gating
from ladder.types import TType
from ladder.weight import Weight

_log = logging.getLogger("ladder")
#: Held while weights change their form.
_changing = threading.Lock()


class StackImage(Unscriptable):
    """Holds ``qweight`` [E, N, words], or in its place ``images`` [E, words of an image]; the other
    parts are there in both forms."""

    experts: int
    out_features: int
    in_features: int
    weight_type: TType
    dtype: torch.dtype
    _type_text: str
    qweight: Tensor
    # On the class, because loaders make instances in other ways.
    _weight_number = 0
    _has_kernels: bool | None = None  # of this device; None: not asked yet
    #: Of weights of gate and up, whose product kernels give: rows of the images lie in turn.
    gating: Gating | None = None

    @property
    def images(self) -> Tensor | None:
        """The codes in the form that kernels read; None while they are canonical."""
        return self._buffers.get("images")

    @property
    def device(self) -> torch.device:
        """Where the codes are, in whatever form."""
        return (self.qweight if self.images is None else self.images).device

    def stack(self) -> Stack:
        """What kernels take; after :meth:`prepare`."""
        assert self.images is not None
        shape = (self.out_features, self.in_features)
        return Stack(self.images, self._weight_number, shape, self._type_text, self.gated)

    @property
    def gated(self) -> bool:
        """Whether images have the rows of gate and up in turn."""
        return self.gating is not None and image.alternates(self.out_features)

    def _rows(self) -> Tensor | None:
        """As :func:`ladder.cuda.image.pack` takes them."""
        return image.gate_rows(self.out_features, self.device) if self.gated else None

    def prepare(self) -> bool:
        """Give the codes the form that kernels of this device read, if it has any for the type: one
        expert after the other, so that memory peaks at both forms of this stack. Returns whether
        they are in that form.

        Raises:
            RuntimeError: a CUDA graph is being captured.
        """
        if self.images is None and self._has_kernels is None:
            with _changing:
                self._prepare()
        return self.images is not None

    def _prepare(self) -> None:
        if self.images is not None or self._has_kernels is not None:
            return  # another thread was faster
        device, (n, k) = self.qweight.device, (self.out_features, self.in_features)
        offloaded = getattr(getattr(self, "_hf_hook", None), "offload", False)
        if not kernels.possible(device) or offloaded or self.experts > MOST_EXPERTS:
            self._has_kernels = False
            return
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "experts cannot be brought into the form of kernels while a CUDA graph is being "
                "captured: call the model, or ladder.warmup(model), before the capture"
            )
        gather = self._gathers()
        why = kernels.objection(self._type_text, n, k, gather, device.index or 0)
        if not why:
            gating = self.gating if self.gated else None
            number = image.open_weight(self._type_text, n, k, gather, gating=gating)
            why = kernels.load_transforms(number, device, self.dtype)
        if why:
            _log.info("experts of %s [%d, %d] go through torch: %s", self._type_text, n, k, why)
            self._has_kernels = False
            return
        with torch.inference_mode(False), torch.no_grad():  # training may follow inference
            weights = [self.weight_of(expert) for expert in range(self.experts)]
            made = stacked(weights, self.gating)
            del weights
        torch.cuda.current_stream(device).synchronize()  # other streams may come next
        self._set_images(made.images, made.number)
        self.register_buffer("qweight", None)

    def _gathers(self) -> bool:
        """Whether columns of some expert are in another order than their groups. Raises Unsupported
        where a group has another length than the type says."""
        orders = self._buffers.get("g_idx")
        if orders is None:
            return False
        return any(image.order_by_group(each, self.weight_type) is not None for each in orders)

    def _set_images(self, images: Tensor | None, number: int) -> None:
        self._buffers.pop("images", None)
        self._weight_number = number
        if images is not None:  # moved and counted with the module, never saved
            self._non_persistent_buffers_set.add("images")
            self._buffers["images"] = images
        self._has_kernels = None if images is None else True

    def weight_of(self, expert: int) -> Weight:
        raise NotImplementedError

    def _codes_of(self, expert: int) -> Tensor:
        """[N, words], canonical."""
        if self.images is None:
            return self.qweight[expert]
        n, k = self.out_features, self.in_features
        number, rows = self._weight_number, self._rows()
        return image.unpack(self.images[expert], number, self.weight_type, n, k, rows)

    def _all_codes(self) -> Tensor:
        if self.images is None:
            return self.qweight
        return torch.stack([self._codes_of(expert) for expert in range(self.experts)])

    def _restore(self) -> None:
        """Back to the canonical form, before something reads or writes the parts."""
        if self.images is not None:
            self.register_buffer("qweight", self._all_codes())
        self._set_images(None, 0)

    def _leave_kernels(self) -> bool:
        """After an error of a kernel: where the device has failed, back to the canonical form, for
        good. Returns whether that is so; otherwise the error is the caller's."""
        if not kernels.failure(self.device):
            return False
        with _changing:
            self._restore()
            self._has_kernels = False
        return True

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.images is not None:
            destination[prefix + "qweight"] = self._all_codes()

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        self._restore()
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if self.images is not None:
            buffers = {**self._buffers, "qweight": self._all_codes()}
            del buffers["images"]
            state |= {"_buffers": buffers, "_weight_number": 0}
        return state | {"_has_kernels": None}


def prepared(*stacks: StackImage) -> bool:
    """Whether all of them have kernels; brings them into that form."""
    try:
        return all([stack.prepare() for stack in stacks])
    except Unsupported as error:
        _log.info("experts go through torch: %s", error)
        for stack in stacks:
            stack._has_kernels = stack.images is not None
        return False
