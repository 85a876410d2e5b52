# SPDX-License-Identifier: Apache-2.0
"""What a ``state_dict`` says of a packed weight, and what is refused of it.

Types of equal shapes and dtypes, uint4 and int4 say, cannot be told apart by the parts. The type is
in the metadata that torch keeps beside the tensors (``state_dict._metadata``, where it has versions
of modules): ``torch.save`` keeps it, ``load_state_dict`` hands it to each module, and no key is
added, of which loaders of safetensors, transformers and vLLM would ask whose parameter it is. A
``state_dict`` without it, from safetensors or a plain dictionary, is taken at its word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ladder.errors import InvalidArgument
from ladder.types import TType, define, dtype_name
from ladder.weight import PARTS, check_finite

_KEY = "ladder_weight_type"
#: Of the formats in it that a user registered: a name alone says little of them.
_MEANINGS = "ladder_meanings"


def note_type(destination: Any, prefix: str, type: TType | None) -> None:
    """Put the type into the metadata of a ``state_dict`` that is being made."""
    metadata = getattr(destination, "_metadata", None)
    # None: a dictionary of the caller's; a layer of another package whose files are being read.
    if metadata is not None and type is not None:
        noted = metadata.setdefault(prefix[:-1], {})
        noted[_KEY] = str(type)
        if meanings := type.meanings:
            noted[_MEANINGS] = meanings


def check_state(
    state_dict: Mapping[str, Any],
    prefix: str,
    metadata: Mapping[str, Any],
    own: Mapping[str, Tensor | None],
    type: TType,
) -> None:
    """Raise InvalidArgument, before anything is copied, where a ``state_dict`` has a dense weight,
    parts of a weight of another ``type``, or numbers that are not finite.

    Args:
        metadata: of the module, as ``_load_from_state_dict`` has it.
        own: the parts of the module.
    """
    given = {part: state_dict[prefix + part] for part in PARTS if prefix + part in state_dict}
    if prefix + "weight" in state_dict and "qweight" not in given and "weight" not in own:
        # strict=False would leave the weight as it is, and load the bias.
        raise InvalidArgument(
            f'{prefix}weight is of a dense layer, and this one is packed as "{type}": load it into '
            "the dense model, and convert that"
        )
    for part, tensor in given.items():
        kept = own.get(part)
        if kept is not None and tensor.dtype != kept.dtype:
            raise InvalidArgument(
                f"{prefix}{part} has dtype {dtype_name(tensor.dtype)}, not "
                f'{dtype_name(kept.dtype)} as type "{type}" needs'
            )
    stored = metadata.get(_KEY)
    if given and stored is not None and stored != str(type):
        raise InvalidArgument(
            f'{prefix}{next(iter(given))} is of a weight of type "{stored}", not "{type}"'
        )
    for name, meaning in metadata.get(_MEANINGS, {}).items() if given else ():
        try:
            define(name, meaning)
        except InvalidArgument as error:
            raise InvalidArgument(f"{prefix}{next(iter(given))}: {error}") from None
    for part in ("scales", "zeros", "scale2"):
        tensor = given.get(part)
        # Tensors of tracing, and parts of those that other processes hold, have no numbers here.
        if tensor is not None and tensor.__class__ in (Tensor, nn.Parameter):
            check_finite(f"{prefix}{part}", tensor, type)
