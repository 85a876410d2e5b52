# SPDX-License-Identifier: Apache-2.0
"""vLLM's Python files without its compiled code, on its CPU platform: `make serving-test`."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from unittest.mock import MagicMock

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "run"), str(TESTS / "checkpoints")]

os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


def absent(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    return spec is None or spec.origin is None


@pytest.fixture(scope="session")
def vllm():
    """vLLM with ladder's plugin, on one process of tensor parallelism, as the engine sets it up."""
    if absent("vllm"):
        assert "LADDER_NEEDS_SERVING" not in os.environ, "vLLM's files are not on the path"
        pytest.skip("no vLLM on the path: run `make serving-test`")
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()
    import vllm as package
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment

    from ladder.integrations.vllm import register

    with tempfile.TemporaryDirectory() as folder, set_current_vllm_config(VllmConfig()):
        where = f"file://{folder}/store"
        init_distributed_environment(
            world_size=1, rank=0, local_rank=0, distributed_init_method=where, backend="gloo"
        )
        ensure_model_parallel_initialized(1, 1)
        register()
        yield package


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands for packages that SGLang imports for its own kernels, and that no layer here calls:
    a gigabyte of them."""

    PACKAGES = ("triton", "torchvision", "IPython", "gguf", "sentencepiece", "orjson")

    def __init__(self) -> None:
        self.packages = [name for name in self.PACKAGES if absent(name)]

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return MagicMock(name=spec.name, __name__=spec.name, __path__=[], __version__="3.0.0")

    def exec_module(self, module):
        pass


@pytest.fixture(scope="session")
def sglang():
    """SGLang with ladder's plugin, in one process."""
    if absent("sglang"):
        pytest.skip("no SGLang on the path: run `make test-vllm`")
    # What asks whether these packages are there must not find what stands for them.
    import functorch.compile  # noqa: F401
    import torch._dynamo
    import torch._inductor.compile_fx  # noqa: F401
    import transformers  # noqa: F401

    sys.meta_path.insert(0, Absent())
    import triton

    if isinstance(triton.runtime, MagicMock):  # SGLang 0.5.16 asks torch for a module of this name
        triton.runtime.driver.active.get_current_target().backend = "cpu"
    import sglang as package
    from sglang.srt import runtime_context
    from sglang.srt.distributed import parallel_state
    from sglang.srt.server_args import ServerArgs

    from ladder.integrations.sglang import register

    runtime_context._CONTEXT.set_server_args(ServerArgs(model_path="none", device="cpu"))
    if parallel_state._TP is None:  # 0.5.16 asks for it where nothing is sent, too
        parallel_state._TP = MagicMock(name="the group of one rank")
    register()
    return package
