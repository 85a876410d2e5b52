# SPDX-License-Identifier: Apache-2.0
"""Models of transformers, for the commands that run them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ladder._version import install_command
from ladder.errors import InvalidArgument


def check_model(folder: Path, dtype: str | None) -> None:
    """Raise InvalidArgument unless ``folder`` has a config.json and ``dtype`` is one of activations
    or not given."""
    from ladder.types import float_dtype

    if dtype is not None:
        float_dtype(dtype, "--dtype")
    if not (folder / "config.json").exists():
        raise InvalidArgument(f"{folder} has no config.json, so it is no folder of a model")


def transformers_for(command: str) -> Any:
    """The package. Raises ImportError that says what ``command`` needs and how to install it."""
    try:
        import transformers
        from transformers import AutoModelForCausalLM  # noqa: F401  (it is what loads the rest)
    except ModuleNotFoundError as missing:
        hint = f"ladder {command} needs {missing.name}: {install_command('transformers')}"
        raise ImportError(hint) from None
    return transformers


def tokenizer_of(folder: Path) -> Any:
    """Raises InvalidArgument where the folder has none that transformers reads."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder))
    except (OSError, ValueError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidArgument(
            f"{folder} has no tokenizer that transformers reads, so give token ids: {said}"
        ) from None


def load_model(command: str, folder: Path, dtype: str, device: str) -> Any:
    """The language model of any folder that :func:`ladder.checkpoints.info.describe` knows, on
    ``device``, packed where the folder is."""
    import torch

    auto = transformers_for(command).AutoModelForCausalLM
    from ladder.integrations.transformers import enable

    with enable():
        return auto.from_pretrained(str(folder), dtype=getattr(torch, dtype)).to(device)
