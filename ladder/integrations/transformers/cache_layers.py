# SPDX-License-Identifier: Apache-2.0
"""The layer of a :class:`QuantizedCache`: packed tokens, then a window of dense ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from ladder.errors import InvalidArgument, Unsupported
from ladder.integrations.transformers.cache_states import PackedStates, StatesType
from ladder.quantization import weights_of

NAMES = ("keys", "values")


class PackedLayer(CacheLayerMixin):
    """Keys and values [batch, heads, tokens, width] of one layer, whose oldest are packed.

    At least ``residual`` recent tokens stay as they came; whenever ``block`` more have come, the
    oldest block of them is quantised. Blocks and their codes depend on the tokens only, not on how
    many of them came in a call.

    Args:
        types: of keys and of values.
        residual: the least number of recent tokens that stay dense.
        block: tokens that are quantised together.
        sliding_window: tokens that a query sees, itself included; None for all.
        index: of the layer, for messages.

    Attributes:
        packed: keys and values of the oldest tokens.
        recent: keys and values of those after them, dense; None before the first call.
        cumulative_length: tokens that came, those that a sliding window has left behind included.
    """

    is_compileable = False
    is_croppable = True

    def __init__(
        self,
        types: tuple[StatesType, StatesType],
        *,
        residual: int,
        block: int,
        sliding_window: int | None = None,
        index: int = 0,
    ) -> None:
        # Not CacheLayerMixin's, which would set keys and values: here they are decoded when read.
        self.types, self.residual, self.block, self.index = types, residual, block, index
        self.sliding_window, self.is_sliding = sliding_window, sliding_window is not None
        self.record_past = False
        if sliding_window is not None:
            self._sliding_window_tensor = torch.tensor(sliding_window)  # DynamicCache.__iter__'s
        self.reset()

    def reset(self) -> None:
        """Drop all tokens."""
        self.is_initialized = False
        self.cumulative_length = 0
        self.packed = tuple(PackedStates(type) for type in self.types)
        self.recent: tuple[Tensor, ...] | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.device = key_states.device
        self.recent = tuple(states[:, :, :0].clone() for states in (key_states, value_states))
        self.is_initialized = True

    @property
    def keys(self) -> Tensor | None:
        """All keys held, decoded [batch, heads, tokens, width]; None before the first call."""
        self._wait()
        return None if self.recent is None else self._decoded(0, self.recent[0])

    @property
    def values(self) -> Tensor | None:
        """All values held, likewise."""
        self._wait()
        return None if self.recent is None else self._decoded(1, self.recent[1])

    @property
    def held(self) -> int:
        """Tokens held, packed and dense."""
        return self.packed[0].length + (0 if self.recent is None else self.recent[0].shape[2])

    @property
    def nbytes(self) -> int:
        """Bytes of what is held."""
        recent = sum(states.numel() * states.itemsize for states in self.recent or ())
        return recent + sum(packed.nbytes for packed in self.packed)

    @property
    def dense_nbytes(self) -> int:
        """Bytes of the tokens held if all were dense."""
        each = ((s.shape[0] * s.shape[1] * s.shape[3], s.itemsize) for s in self.recent or ())
        return sum(self.held * numbers * itemsize for numbers, itemsize in each)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add tokens.

        Args:
            key_states, value_states: [batch, heads, tokens, width], the widths of their own.
        Returns:
            The keys and values that these tokens see: packed ones decoded, in the dtype of the
            arguments, then those that are dense, then the arguments as they are.
        Raises:
            InvalidArgument: another batch, number of heads or width than before, or states that
                their type cannot hold (numbers that are not finite). The layer is as it was.
        """
        new = (key_states, value_states)
        self._check(new)
        recent = new if self.recent is None else tuple(map(_joined, self.recent, new))
        seen = [self._decoded(i, states) for i, states in enumerate(recent)]
        if self.sliding_window is not None:
            seen = [s[:, :, -(self.sliding_window - 1 + key_states.shape[2]) :] for s in seen]
        packed, recent = self._packed(recent)
        # The arguments may be views of a product that is several times as large.
        recent = tuple(s.clone() if s is own else s for s, own in zip(recent, new, strict=True))
        if self.recent is None:
            self.lazy_initialization(key_states, value_states)
        self.packed, self.recent = packed, recent
        self.cumulative_length += key_states.shape[2]
        self._leave_behind()
        return seen[0], seen[1]

    def _check(self, new: tuple[Tensor, Tensor]) -> None:
        if self.recent is None or not self.held:
            for name, states, type in zip(NAMES, new, self.types, strict=True):
                if why := type.objection(states.shape[3]):
                    raise InvalidArgument(f"{name} of layer {self.index}: {why}")
            return
        for name, states, held in zip(NAMES, new, self.recent, strict=True):
            given, had = ([*s.shape[:2], s.shape[3]] for s in (states, held))
            if given != had:
                raise InvalidArgument(
                    f"{name} of layer {self.index} have batch, heads and width {given}; the cache "
                    f"has {had}"
                )

    def _decoded(self, i: int, recent: Tensor) -> Tensor:
        """Packed states, decoded, then ``recent``."""
        length = self.packed[i].length
        if not length:
            return recent
        batch, heads, tokens, width = recent.shape
        out = recent.new_empty((batch, heads, length + tokens, width))
        self.packed[i].write(out[:, :, :length])
        out[:, :, length:] = recent
        return out

    def _packed(
        self, recent: tuple[Tensor, ...]
    ) -> tuple[tuple[PackedStates, ...], tuple[Tensor, ...]]:
        """What is packed and what is dense once the blocks that are due have been quantised."""
        tokens = recent[0].shape[2]
        due = max(0, tokens - self.residual) // self.block * self.block
        if not due:
            return self.packed, recent
        packed, unseen = self.packed, 0
        if self.sliding_window is not None and not self.record_past:
            beyond = max(0, tokens - self.sliding_window + 1)
            unseen = min(due, beyond // self.block * self.block)
            if unseen:  # and all that is packed is older
                packed = tuple(PackedStates(type) for type in self.types)
        if unseen < due:
            packed = tuple(
                self._extended(name, before, states[:, :, unseen:due])
                for name, before, states in zip(NAMES, packed, recent, strict=True)
            )
        # Copies: views would keep the memory of what is packed now.
        return packed, tuple(states[:, :, due:].clone() for states in recent)

    def _extended(self, name: str, packed: PackedStates, states: Tensor) -> PackedStates:
        if torch.compiler.is_compiling():
            return packed.extended(states)
        whose = f"{name} of layer {self.index}"
        try:
            with weights_of(whose):
                return packed.extended(states)
        except InvalidArgument:
            bad = (~states.isfinite()).nonzero()
            if not len(bad):
                raise
            where = ", ".join(map(str, bad[0].tolist()))
            raise InvalidArgument(
                f"{whose} at [{where}] of [batch, heads, tokens, width] are "
                f"{states[tuple(bad[0])].item()}, not finite; a packed cache holds numbers only"
            ) from None

    def _leave_behind(self, recorded: bool = False) -> None:
        """Drop units that no query will see any more, unless they are kept for :meth:`crop`."""
        if self.sliding_window is None or (self.record_past and not recorded):
            return
        unseen = max(0, self.held - self.sliding_window + 1)
        if gone := min(packed.whole_units(unseen) for packed in self.packed):
            self.packed = tuple(packed.without_first(gone) for packed in self.packed)

    def get_seq_length(self) -> int:
        """Tokens that came."""
        return self.cumulative_length

    def get_max_length(self) -> int:
        """The sliding window, or -1."""
        return -1 if self.sliding_window is None else self.sliding_window

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many tokens a call of ``query_length`` tokens sees, and the place of the first."""
        past = self._visible(self.cumulative_length)
        return past + query_length, self.cumulative_length - past

    def _visible(self, tokens: int) -> int:
        """How many of so many tokens the one after them sees."""
        return tokens if self.sliding_window is None else min(tokens, self.sliding_window - 1)

    def activate_past_recording(self) -> None:
        """Keep tokens that leave the sliding window until :meth:`crop`, so that it can go back."""
        self.record_past = True

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last ``-tokens_to_remove`` tokens. Those left keep their codes.

        Raises:
            InvalidArgument: a positive number.
            Unsupported: tokens that would be seen then have left the sliding window. The layer is
                as it was.
        """
        if tokens_to_remove > 0:
            raise InvalidArgument(
                f"crop removes the last -n tokens and was given {tokens_to_remove}, which is more "
                "than 0"
            )
        if self.recent is None:
            return
        removed = min(-tokens_to_remove, self.cumulative_length)
        left, seen = self.held - removed, self._visible(self.cumulative_length - removed)
        if left < seen:
            raise Unsupported(
                f"layer {self.index} holds {self.held} tokens, its sliding window of "
                f"{self.sliding_window} needs {seen} after the last {removed} are removed: call "
                "activate_past_recording before the tokens come"
            )
        self._wait()
        dense = min(removed, self.recent[0].shape[2])
        end = self.recent[0].shape[2] - dense
        self.packed = tuple(packed.without_last(removed - dense) for packed in self.packed)
        self.recent = tuple(states[:, :, :end].clone() for states in self.recent)
        self.cumulative_length -= removed
        self._leave_behind(recorded=True)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Take the sequences ``beam_idx`` of the batch."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sequence of the batch."""
        if self.recent is not None:
            batch = torch.arange(self.recent[0].shape[0], device=self.recent[0].device)
            self.batch_select_indices(batch.repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the sequences ``indices`` of the batch: places, or True for those to keep."""
        if self.recent is None:
            return
        self._wait()
        if indices.dtype == torch.bool:
            indices = indices.nonzero().flatten()
        self.packed = tuple(packed.of_batch(indices) for packed in self.packed)
        self.recent = tuple(s.index_select(0, indices.to(s.device)) for s in self.recent)

    def offload(self) -> None:
        """Move what is held to the CPU."""
        self._move("cpu")

    def prefetch(self) -> None:
        """Move it back to the device that it came on."""
        if self.recent is not None:
            self._move(self.device)

    def _wait(self) -> None:
        """Until copies that :meth:`offload` began are there: what reads them on the CPU does not
        wait for the device by itself."""
        if self.recent is not None and self.recent[0].device != self.device:
            torch.accelerator.synchronize(self.device)

    def _move(self, device: torch.device | str) -> None:
        if self.recent is not None:
            self.packed = tuple(packed.to(device) for packed in self.packed)
            self.recent = tuple(s.to(device, non_blocking=True) for s in self.recent)


def _joined(held: Tensor, new: Tensor) -> Tensor:
    # Not of nothing: transformers' early_initialization gives values the width of keys.
    return torch.cat([held, new], dim=2) if held.shape[2] else new
