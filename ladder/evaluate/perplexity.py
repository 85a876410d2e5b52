# SPDX-License-Identifier: Apache-2.0
"""How well a language model predicts text, to compare a model with its quantised self."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ladder.errors import InvalidArgument
from ladder.nn.report import Progress


def load_tokens(
    path: str | os.PathLike[str], *, chunk: int = 512, limit: int | None = None
) -> Tensor:
    """Token ids of a ``.npy`` file, in windows.

    Args:
        path: integers [windows, length], or [tokens]. Rows longer than ``chunk`` are cut into
            windows of ``chunk``; what is left over at the end of a row is dropped.
        chunk: tokens in one window, at least 2.
        limit: windows to keep, from the first.
    Returns:
        [windows, at most chunk] int64.
    Raises:
        InvalidArgument: no such file, not ids, or not one whole window of two tokens.
    """
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InvalidArgument(f"{path} is no .npy file of token ids: {error}") from None
    if not isinstance(array, np.ndarray) or array.ndim not in (1, 2):
        raise InvalidArgument(f"{path} does not hold one array of one or two dimensions")
    return _windows(_ids(array), str(path), chunk, limit)


def load_text(
    path: str | os.PathLike[str],
    tokenizer: Callable[[str], Any],
    *,
    chunk: int = 512,
    limit: int | None = None,
) -> Tensor:
    """Token ids of a text file, in windows: the whole text is one row of ids, special tokens as the
    tokenizer adds them, cut as :func:`load_tokens` cuts one.

    Args:
        path: UTF-8.
        tokenizer: of transformers; called with the text, gives ``input_ids``.
    Returns:
        [windows, at most chunk] int64.
    Raises:
        InvalidArgument: no such file, not UTF-8, or not one whole window of two tokens.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} is no text file in UTF-8: {error}") from None
    return _windows(torch.tensor(tokenizer(text)["input_ids"]).long(), str(path), chunk, limit)


def spread(windows: Tensor, count: int) -> Tensor:
    """At most ``count`` of ``windows`` [W, length], as far apart as they lie: the first, the last
    and such between them."""
    if count >= len(windows):
        return windows
    return windows[torch.linspace(0, len(windows) - 1, count).round().long()]


def _windows(ids: Tensor, path: str, chunk: int, limit: int | None) -> Tensor:
    if chunk < 2 or (limit is not None and limit < 1):
        raise InvalidArgument(f"chunk is {chunk} and limit {limit}, not at least 2 and 1")
    rows = ids if ids.dim() == 2 else ids[None]
    length = min(rows.shape[1], chunk)
    if length < 2 or rows.shape[0] == 0:
        raise InvalidArgument(f"{path} has ids of shape {list(ids.shape)}, no window of two tokens")
    whole = rows.shape[1] // length * length
    return rows[:, :whole].reshape(-1, length)[:limit]


@torch.no_grad()
def perplexity(
    model: nn.Module,
    tokens: Any,
    chunk: int = 512,
    *,
    progress: Progress | None = None,
) -> float:
    """``exp`` of the mean loss of predicting each token of a window, but its first.

    Args:
        model: called with ids [1, window]; returns an object with ``logits``, or a tuple or tensor
            of them, [1, window, vocabulary].
        tokens: integer ids, a tensor or a NumPy array: [windows, length], or [tokens], which are
            cut into windows of ``chunk``; a shorter rest counts if it has two tokens.
        chunk: tokens in one window of a single row.
        progress: called with ("", windows done, windows in all).
    Raises:
        InvalidArgument: no window of two tokens, ids that are not integers, or ``chunk`` below 2.
    Error:
        Losses are computed in float32 and added in float64.
    """
    if chunk < 2:
        raise InvalidArgument(f"chunk is {chunk}, not at least 2")
    ids = _ids(tokens)
    windows = [w for w in (ids if ids.dim() == 2 else ids.split(chunk)) if w.numel() > 1]
    if not windows:
        raise InvalidArgument(f"tokens has shape {list(ids.shape)}, no window of two tokens")
    device = next((t.device for t in (*model.parameters(), *model.buffers())), ids.device)
    training = model.training
    model.eval()
    loss, count = 0.0, 0
    try:
        for done, window in enumerate(windows, start=1):
            logits = _logits(model(window[None].to(device)))[0, :-1].to(torch.float32)
            target = window[1:].to(logits.device)
            losses = nn.functional.cross_entropy(logits, target, reduction="none")
            loss += losses.to(torch.float64).sum().item()
            count += target.numel()
            if progress is not None:
                progress("", done, len(windows))
    finally:
        model.train(training)
    return math.exp(loss / count)


def _ids(tokens: Any) -> Tensor:
    """[windows, length] or [tokens] int64."""
    if not isinstance(tokens, Tensor):
        import numpy as np

        array = np.asarray(tokens)
        if not np.issubdtype(array.dtype, np.integer):
            raise InvalidArgument(f"tokens have dtype {array.dtype}, not an integer one")
        tokens = torch.from_numpy(array.astype(np.int64))
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise InvalidArgument(f"tokens have dtype {tokens.dtype}, not an integer one")
    if tokens.dim() not in (1, 2):
        raise InvalidArgument(f"tokens have {tokens.dim()} dimensions, not 1 or 2")
    return tokens.to(torch.int64)


def _logits(output: Any) -> Tensor:
    output = getattr(output, "logits", output)
    return output[0] if isinstance(output, tuple) else output
