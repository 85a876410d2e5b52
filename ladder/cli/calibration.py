# SPDX-License-Identifier: Apache-2.0
"""The data and the model of ``ladder convert --calibration``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ladder.cli.model import tokenizer_of, transformers_for

if TYPE_CHECKING:
    from ladder.checkpoints.calibrated import Calibration

#: Windows, and tokens of one unless the model takes fewer.
_WINDOWS, _CHUNK = 128, 2048


def calibration_of(
    folder: Path,
    data: Path,
    windows: int | None,
    chunk: int | None,
    device: str | None,
    offload: Path | None = None,
    train_blocks: int = 0,
) -> Calibration:
    """The model of ``folder``, dense and on ``device``, and windows of the text or token ids
    ``data``.

    On a GPU the model has the dtype of the folder, elsewhere float32; so do packed folders
    everywhere, whose values 16 bits would round.

    Args:
        offload: a folder for weights that the files have in another form. The blocks of the model
            are on disk then.
        train_blocks: as :func:`ladder.convert`.
    Raises:
        InvalidArgument: no such device, or no room there; no window of two tokens in ``data``;
            ``offload`` of a packed folder, or of a model without blocks.
        CheckpointError: the folder cannot be loaded by transformers.
    """
    transformers = transformers_for("convert --calibration")
    import torch

    from ladder.checkpoints.calibrated import Calibration, check_no_pipeline
    from ladder.checkpoints.model import meta_model
    from ladder.cli.offload import check_room, load_offloaded
    from ladder.errors import InvalidArgument
    from ladder.evaluate.measure import device_of
    from ladder.integrations.transformers import dense

    check_no_pipeline(folder)
    if train_blocks < 0:
        raise InvalidArgument(f"--train-blocks is {train_blocks}, not a number of steps")
    device = device_of(device or "auto")
    described: Any = meta_model(folder)
    kind: Any = type(described)
    if not issubclass(kind, transformers.PreTrainedModel):
        raise InvalidArgument(
            f"{folder} has a {kind.__name__}, which text does not calibrate: give ladder.convert "
            "what the model is called with"
        )
    config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True)
    packed = getattr(config, "quantization_config", None) is not None
    if packed and offload is not None:
        raise InvalidArgument(
            f"{folder} is packed, and is made dense as a whole: --offload is for folders that are "
            "not quantised"
        )
    float32 = packed or torch.device(device).type == "cpu"
    own = getattr(config, "dtype", None)
    dtype = torch.float32 if float32 or not isinstance(own, torch.dtype) else own
    ids = windows_of(folder, data, windows, chunk)
    if offload is None:
        check_room(described, dtype.itemsize, device)
        model = dense(kind.from_pretrained(str(folder), dtype=dtype)).to(device)
    else:
        model = load_offloaded(described, folder, dtype, device, offload)
    return Calibration(model, ids, train_blocks)


def windows_of(folder: Path, data: Path, windows: int | None, chunk: int | None) -> Any:
    """Windows of the text or token ids ``data``, [windows, tokens] int64, spread over it.

    Raises:
        InvalidArgument: ``windows`` is not positive; no window of two tokens in ``data``; no
            tokenizer in ``folder`` for a text.
    """
    from transformers import AutoConfig

    from ladder.errors import InvalidArgument
    from ladder.evaluate.perplexity import load_text, load_tokens, spread

    windows = _WINDOWS if windows is None else windows
    if windows < 1:
        raise InvalidArgument(f"--windows is {windows}, not positive")
    config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
    most = getattr(config.get_text_config(), "max_position_embeddings", None) or _CHUNK
    length = min(_CHUNK, most) if chunk is None else chunk
    if data.suffix == ".npy":
        return spread(load_tokens(data, chunk=length), windows)
    return spread(load_text(data, tokenizer_of(folder), chunk=length), windows)
