# SPDX-License-Identifier: Apache-2.0
import pytest
import torch


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
