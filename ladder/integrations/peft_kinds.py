# SPDX-License-Identifier: Apache-2.0
"""PEFT: which kinds of adapters beside LoRA run on packed linear layers, and what the others are
told. A kind is the name of its ``peft.PeftType``."""

from __future__ import annotations

from typing import Any

from ladder.errors import Unsupported

#: Their layers see what goes into the packed layer and what comes out of it, not its weight.
SUPPORTED = frozenset({
    "ADALORA", "BEFT", "BOFT", "C3A", "DEFT", "DELORA", "FOURIERFT", "GRALORA", "HRA", "IA3",
    "LILY", "LOHA", "LOKR", "MISS", "OFT", "POLY", "PSOFT", "PVERA", "RANDLORA", "ROAD", "SHIRA",
    "TINYLORA", "UNILORA", "VBLORA", "VERA", "WAVEFT",
})  # fmt: skip
#: They begin with norms or singular vectors of the weight, whose values they do not keep.
READS_ONCE = frozenset({"DEFT", "DELORA", "PSOFT", "TINYLORA"})
#: Their layers read the weight in releases of PEFT that have no quantisation backends.
NEEDS_BACKEND = frozenset({"BOFT", "SHIRA"})
#: They compute with the weight in each call.
NEEDS_WEIGHT = frozenset({"FROD", "GLORA", "HIRA", "OSF", "PEANUT", "SUPERTUNING"})
#: Come to packed layers in another way, or to none.
APART = frozenset({"LN_TUNING", "LORA", "TRAINABLE_TOKENS", "XLORA"})


def check_kind(kind: str, config: Any, has_backends: bool) -> None:
    """Raises Unsupported for an adapter that does not run on packed layers.

    Args:
        has_backends: PEFT has quantisation backends (0.20 and newer).
    """
    if kind == "MISS" and getattr(config, "init_weights", None) == "bat":
        raise Unsupported(
            "init_weights is 'bat', with which MiSS multiplies the weight itself in each call; "
            "packed weights take the others, such as True and 'mini'"
        )
    if kind in NEEDS_BACKEND and not has_backends:
        raise Unsupported(f"{kind} on packed weights needs PEFT 0.20 or newer")
    if kind not in SUPPORTED:
        why = "computes with the weight itself" if kind in NEEDS_WEIGHT else "is not tested"
        raise Unsupported(
            f"{kind}: the adapter {why}, and packed weights have no elements to give; load, call "
            "model.dequantize(), and adapt that, or take LoRA or another kind that "
            "docs/transformers.md lists"
        )
