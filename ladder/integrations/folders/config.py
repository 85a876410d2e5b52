# SPDX-License-Identifier: Apache-2.0
"""The quantization_config of a ladder folder, as transformers and diffusers want it."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ladder.checkpoints.folder import QUANT_METHOD, StoredConfig, definitions
from ladder.errors import InvalidArgument
from ladder.nn.layer_types import layer_types
from ladder.nn.select import entries_of
from ladder.quantization import METHODS
from ladder.types import TType


def _base() -> Any:
    """What transformers asks for. diffusers, which runs without transformers, asks for nothing."""
    try:
        from transformers.utils.quantization_config import QuantizationConfigMixin
    except ImportError:
        return object
    return QuantizationConfigMixin


class _Method(str, enum.Enum):
    """diffusers asks quant_method for its ``value``."""

    LADDER = QUANT_METHOD
    __str__ = str.__str__


class LadderConfig(_base()):  # type: ignore[misc]
    """Quantise a model while it is loaded: ``from_pretrained(..., quantization_config=this)``.

    Args:
        weight_type, group_size, symmetric: as :func:`ladder.quantize`.
        modules: tTypes, spelled in full, of single modules by name.
        types: types of modules by names or whole parts of names, as :func:`ladder.convert`;
            ``modules`` comes first.
        modules_to_not_convert: names of modules to leave as they are, as ``skip`` of
            :func:`ladder.convert`; None: as there.
        activation_type: as :attr:`ladder.Linear.activation_type`, of every packed linear layer.
        convolutions: quantise ``nn.Conv2d`` too, those that :func:`ladder.convert` packs; and those
            that ``modules`` names, whatever their size.
        head, embeddings: quantise the output embedding and the input embedding, too, as
            :func:`ladder.convert`; of transformers' models.
        method: how scales are chosen, as :func:`ladder.quantize`.
    Raises:
        InvalidArgument, CheckpointError: a type that means nothing. A name in ``modules``,
            ``types`` or ``modules_to_not_convert`` that names no module raises when the model is
            loaded; so does ``head`` or ``embeddings`` of a model that has none.
    """

    def __init__(
        self,
        weight_type: str | TType = "uint4",
        group_size: int | None = None,
        symmetric: bool | None = None,
        *,
        modules: Mapping[str, str | TType] | None = None,
        types: Mapping[str, str | TType] | None = None,
        modules_to_not_convert: Sequence[str] | None = None,
        method: str = "search",
        activation_type: str | None = None,
        convolutions: bool = False,
        head: bool = False,
        embeddings: bool = False,
    ) -> None:
        if method not in METHODS:
            raise InvalidArgument(f'method is "{method}", not one of {", ".join(METHODS)}')
        self.types = layer_types(weight_type, group_size, symmetric, types)
        usual = str(self.types.usual)
        named = {name: str(text) for name, text in (modules or {}).items()}
        self.quant_method = _Method.LADDER
        self.method = method
        self.convolutions = convolutions
        self.head, self.embeddings = head, embeddings
        #: None until the model is known.
        left = modules_to_not_convert
        left = None if left is None else entries_of("modules_to_not_convert", left)
        self.modules_to_not_convert = left
        self.stored = StoredConfig(
            usual,
            named,
            left or (),
            definitions([usual, *named.values()]),
            activation_type=activation_type,
        )

    @classmethod
    def from_stored(cls, stored: StoredConfig) -> LadderConfig:
        """Wrap what a folder's config.json says."""
        config = cls(stored.weight_type)
        config.stored, config.modules_to_not_convert = stored, stored.modules_to_not_convert
        config.convolutions = bool(stored.convolutions)
        config.embeddings = bool(stored.embeddings)
        return config

    @classmethod
    def from_dict(
        cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any
    ) -> Any:
        """Read ``quantization_config``. Raises CheckpointError as StoredConfig.from_dict."""
        config = cls.from_stored(StoredConfig.from_dict(config_dict))
        return (config, kwargs) if return_unused_kwargs else config

    def to_dict(self) -> dict[str, Any]:
        return self.stored.to_dict()

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        yield from self.to_dict().items()
