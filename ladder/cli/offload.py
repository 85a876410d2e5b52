# SPDX-License-Identifier: Apache-2.0
"""Loading a model whose blocks stay on disk until it is their turn."""

from __future__ import annotations

import errno
import importlib.util
from pathlib import Path
from typing import Any

from ladder._version import install_command
from ladder.errors import InvalidArgument

_FULL = f"(os error {errno.ENOSPC})"


def device_map_of(model: Any, device: str) -> dict[str, str]:
    """Where modules of ``model``, on the meta device, are to be: the members of its outermost lists
    of modules with parameters on disk, all else on ``device``.

    Raises:
        InvalidArgument: the model has no such list.
    """
    from torch import nn

    places: dict[str, str] = {}

    def place(name: str, module: nn.Module) -> None:
        prefix = f"{name}." if name else ""
        if isinstance(module, nn.ModuleList) and any(True for _ in module.parameters()):
            places.update({f"{prefix}{child}": "disk" for child, _ in module.named_children()})
        elif not any(isinstance(each, nn.ModuleList) for each in module.modules()):
            places[name] = device
        else:
            places.update({f"{prefix}{own}": device for own, _ in _own(module)})
            for child, each in module.named_children():
                place(f"{prefix}{child}", each)

    place("", model)
    if "disk" not in places.values():
        raise InvalidArgument(
            f"--offload keeps blocks on disk, and {type(model).__name__} is not made of blocks"
        )
    return places


def load_offloaded(described: Any, folder: Path, dtype: Any, device: str, room: Path) -> Any:
    """The model of ``folder``, ``described`` on the meta device: its blocks on disk, all else on
    ``device``. What the files have in another form is written to the folder ``room``.

    Raises:
        InvalidArgument: the model has no blocks.
        DestinationError: there is no room for it.
        ImportError: accelerate is not installed.
    """
    from safetensors import SafetensorError

    from ladder.checkpoints.writer import DestinationError

    if importlib.util.find_spec("accelerate") is None:
        raise ImportError(f"--offload needs accelerate: {install_command('transformers')}")
    try:
        return type(described).from_pretrained(
            str(folder),
            dtype=dtype,
            device_map=device_map_of(described, device),
            offload_folder=str(room),
        )
    except (OSError, SafetensorError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC or _FULL in str(error):
            raise DestinationError(
                f"{room.parent}: has no room for the tensors that transformers makes of several: "
                "No space left on device"
            ) from error
        raise


def _own(module: Any) -> list[tuple[str, Any]]:
    """Parameters and buffers that are in no child."""
    return [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]


def check_room(model: Any, itemsize: int, device: str) -> None:
    """Raise InvalidArgument where the weights of ``model``, in ``itemsize`` bytes each, are more
    than ``device`` has room for."""
    needed = itemsize * sum(parameter.numel() for parameter in model.parameters())
    room = _free_bytes(device)
    if room is not None and needed > room:
        raise InvalidArgument(
            f"the model takes {needed / 1e9:.1f} GB and {device} has {room / 1e9:.1f} GB free: "
            "--offload keeps its blocks on disk and brings one at a time"
        )


def _free_bytes(device: str) -> int | None:
    """Memory that can be had, of a CPU with what may be swapped; None where nobody says."""
    import torch

    kind = torch.device(device).type
    if kind == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    about = Path("/proc/meminfo")
    if kind != "cpu" or not about.exists():
        return None
    lines = (line.split() for line in about.read_text().splitlines())
    sizes = {words[0].rstrip(":"): int(words[1]) for words in lines}
    return 1024 * (sizes.get("MemAvailable", 0) + sizes.get("SwapFree", 0))
