# SPDX-License-Identifier: Apache-2.0
"""Keys and values of attention in any tType, for transformers' ``generate`` and models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from ladder.errors import InvalidArgument, Unsupported
from ladder.integrations.transformers.cache_layers import PackedLayer
from ladder.integrations.transformers.cache_states import states_type
from ladder.types import TType


class QuantizedCache(DynamicCache):
    """A cache whose keys and values are packed, but for a window of recent tokens.

    ::

        cache = QuantizedCache(model.config, keys="uint4,group=32,scale=float16,zero=rescale")
        model.generate(**inputs, past_key_values=cache)

    The most recent ``residual`` tokens or more stay as the model gives them. Whenever ``block``
    more have come, the oldest block of these is quantised, once: never again, also when tokens are
    cropped or beams change places. Attention gets all of a layer in the model's dtype, decoded in
    each call, so that one layer at a time is dense. The tokens of a call see those of the same call
    as they came: a prompt in one call gives the logits of a :class:`DynamicCache`.

    Args:
        config: of the model.
        keys, values: tType; a name without fields gets groups of 128 and float16 scales as in
            :func:`ladder.quantize`. None keeps them dense. A second scale is one for each row.
        keys_per, values_per: what ``group=G`` counts. "channel": G tokens of one channel share a
            scale, and ``channel`` is the whole block; for keys, of which a few channels are far
            larger than the others (KIVI, arXiv 2402.02750). "token": G channels of one token, and
            ``channel`` all of its head. The last group may be shorter.
        residual: tokens.
        block: tokens, a multiple of 32.
        dense: indices of layers that are not packed, from -layers on.
        method: "nearest" takes scales from the largest magnitude, "search" tries 24 others, as
            :func:`ladder.quantize`.
        offloading: keep layers on the CPU between their turns, as :class:`DynamicCache` does.
    Raises:
        InvalidArgument: a type of more than 8 bits, or whose superblocks a block is not a multiple
            of, an argument out of range, ``config`` is none.
        Unsupported: a type whose scales are of several rows; layers of a kind that keeps more than
            keys and values, which ``dense`` may name.
    """

    def __init__(
        self,
        config: Any,
        keys: str | TType | None = "uint4,group=32,scale=float16,zero=rescale",
        values: str | TType | None = "uint4,group=32,scale=float16,zero=rescale",
        *,
        keys_per: str = "channel",
        values_per: str = "token",
        residual: int = 128,
        block: int = 128,
        dense: Iterable[int] = (),
        method: str = "nearest",
        offloading: bool = False,
    ) -> None:
        if not hasattr(config, "get_text_config"):
            raise InvalidArgument(f"config is a {type(config).__name__}, not that of a model")
        residual, block = _tokens("residual", residual), _tokens("block", block)
        if block % 32 or not block:
            raise InvalidArgument(f"block is {block}, not a multiple of 32")
        types = (
            states_type("keys", keys, keys_per, block, method),
            states_type("values", values, values_per, block, method),
        )
        layers: list[Any] = DynamicCache(config=config).layers
        left = _places(dense, len(layers))
        for i, layer in enumerate(layers):
            # Linear attention and layers without any have nothing that grows with the text.
            if i in left or not isinstance(layer, CacheLayerMixin):
                continue
            if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
                raise Unsupported(
                    f"layer {i} would be a {type(layer).__name__}, which keeps more than keys and "
                    "values, and is not packed. dense=[...] with all such layers keeps them so"
                )
            window = getattr(layer, "sliding_window", None)
            # A window that tokens leave before a block of them is due has nothing to pack.
            if window is None or window > residual + block:
                layers[i] = PackedLayer(
                    types, residual=residual, block=block, sliding_window=window, index=i
                )
        # Not DynamicCache's, which makes layers of its own.
        Cache.__init__(self, layers=layers, offloading=offloading, offload_only_non_sliding=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is held."""
        return sum(_bytes(layer, dense=False) for layer in self.layers)

    @property
    def dense_nbytes(self) -> int:
        """Bytes of the same tokens if all were in the dtypes that the model gives."""
        return sum(_bytes(layer, dense=True) for layer in self.layers)


def _tokens(name: str, given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise InvalidArgument(f"{name} is {given!r}, not a number of tokens")
    return given


def _places(dense: Iterable[int], layers: int) -> set[int]:
    places = set()
    for i in dense:
        if isinstance(i, bool) or not isinstance(i, int) or not -layers <= i < layers:
            raise InvalidArgument(f"dense names layer {i!r}; the model has {layers} layers")
        places.add(i % layers)
    return places


def _bytes(layer: Any, dense: bool) -> int:
    if isinstance(layer, PackedLayer):
        return layer.dense_nbytes if dense else layer.nbytes
    states = [getattr(layer, name, None) for name in ("keys", "values", "indexer_keys")]
    for name in ("conv_states", "recurrent_states"):
        states += getattr(layer, name, {}).values()
    return sum(each.numel() * each.itemsize for each in states if isinstance(each, Tensor))
