# SPDX-License-Identifier: Apache-2.0
import sys

import pytest
import torch


@pytest.fixture(autouse=True)
def nothing_is_compiled_yet():
    """Of one forward torch compiles eight forms in a process, whichever tests they are of, and
    refuses a further one where a graph is to be whole."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


@pytest.fixture
def torch_sums_in_float32():
    """Above the widest kernel the product is torch's, which may add halves in halves."""
    settings, kept = torch.backends.cuda.matmul, {}
    for name in ("fp16", "bf16"):
        flag = f"allow_{name}_reduced_precision_reduction"
        kept[flag] = getattr(settings, flag)
        setattr(settings, flag, False)
    yield
    for flag, value in kept.items():
        setattr(settings, flag, value)
