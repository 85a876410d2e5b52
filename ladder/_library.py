# SPDX-License-Identifier: Apache-2.0
"""Loads libladder.so, which registers ``torch.ops.ladder``."""

import functools
import importlib.util
import logging
from pathlib import Path

import torch

from ladder._torch import keep_value_errors

_log = logging.getLogger("ladder")


def load() -> None:
    """Register the ops. Raises ImportError that says how to build when the library is missing."""
    path = Path(__file__).parent / "libladder.so"
    if not path.exists():
        raise ImportError(
            f"{path.name} is not in {path.parent}: run `make build` in a checkout, "
            "or `pip install .` and leave its folder"
        )
    torch.ops.load_library(str(path))
    try:
        torch.ops.ladder.type_info("")
    except ValueError:
        pass
    except RuntimeError:
        keep_value_errors(torch.ops.ladder, "ladder", torch.ops.ladder.take_refusal)
    # The library looks which of torch's own libraries are loaded; torch knows.
    if torch.version.hip or torch.version.cuda:
        torch.ops.ladder.use_gpus_of(target())


def target() -> str:
    """The language of kernels for torch's devices of type "cuda": "HIP" where torch was built for
    ROCm, which calls AMD's GPUs so."""
    return "HIP" if torch.version.hip else "CUDA"


@functools.cache
def find_compiler() -> None:
    """Tells the library where pip put NVRTC, which no loader searches, and torch's wheels for ROCm
    their hiprtc."""
    if torch.version.hip:
        folder = str(Path(torch.__file__).parent / "lib")
        torch.ops.ladder.add_compiler_directory("HIP", folder)
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for folder in ("cu13/lib", "cuda_nvrtc/lib"):
            if (Path(root) / folder).is_dir():
                torch.ops.ladder.add_compiler_directory("CUDA", str(Path(root) / folder))


def log_notices() -> None:
    """Log what the library has to say, each line once in a process. The library calls it too, as
    ``ladder::log_notices``, in the first call that finds a compiler or driver that fails."""
    for line in torch.ops.ladder.take_notices().splitlines():
        _log.warning("%s", line)


def current_stream(device: int) -> int:
    """The stream of a device that torch uses now, as a number: for the library, as
    ``ladder::current_stream``, where torch's own do not export it."""
    return torch.cuda.current_stream(device).cuda_stream


load()
_fragment = torch.library.Library("ladder", "FRAGMENT")
_fragment.define("log_notices() -> ()")
_fragment.impl("log_notices", log_notices, "CompositeExplicitAutograd")
_fragment.define("current_stream(int device) -> int")
_fragment.impl("current_stream", current_stream, "CompositeExplicitAutograd")
