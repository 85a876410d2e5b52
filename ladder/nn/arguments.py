# SPDX-License-Identifier: Apache-2.0
"""What callers ask functions of models for, checked on every device alike."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from ladder.cuda.kernels import ACTIVATION_DTYPES
from ladder.errors import InvalidArgument
from ladder.types import dtype_name


def check_integers(**sizes: Any) -> None:
    """Raise InvalidArgument for the first of ``sizes`` that is no integer."""
    for name, size in sizes.items():
        if not hasattr(size, "__index__"):  # numpy's have it, too
            raise InvalidArgument(f"{name} is {size!r}, not an integer")


def named_input(x: Any, input: Any) -> Any:
    """``x`` of a call, which the modules of torch call ``input``. Raises InvalidArgument where both
    names are given."""
    if input is None:
        return x
    if x is not None:
        raise InvalidArgument("x and input are both given, two names of one argument")
    return input


def check_model(model: Any, name: str = "model") -> None:
    """Raise InvalidArgument unless it is a module."""
    if not isinstance(model, nn.Module):
        raise InvalidArgument(f"{name} is of {type(model).__name__}, not torch.nn.Module")


def numbers_of_tokens(m: Any) -> tuple[int, ...]:
    """``m`` as a tuple. Raises InvalidArgument unless it is a positive integer, or some."""
    numbers = tuple(m) if isinstance(m, Iterable) else (m,)
    for tokens in numbers:
        if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
            raise InvalidArgument(f"m has {tokens!r}, not a positive integer")
    return numbers


def check_dtype(dtype: Any) -> None:
    """Raise InvalidArgument unless activations may have it, or it is None."""
    if dtype is not None and dtype not in ACTIVATION_DTYPES:
        known = ", ".join(map(dtype_name, ACTIVATION_DTYPES))
        raise InvalidArgument(f"dtype is {dtype!r}, not one of {known}")


def check_cache(cache: Any) -> None:
    """Raise InvalidArgument unless it is the path of a folder, or of one that can be made."""
    if not isinstance(cache, (str, Path)):
        raise InvalidArgument(f"cache is {cache!r}, not the path of a folder")
    folder = Path(cache).absolute()
    there = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    if not there.is_dir():
        raise InvalidArgument(f"cache is {str(cache)!r}, but {there} is a file, not a folder")
