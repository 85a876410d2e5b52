# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from tuning import Machine

import ladder.cuda.tune
import ladder.cuda.tune_experts
from ladder.cli import devices
from ladder.cuda import kernels


@pytest.fixture
def gpu(monkeypatch):
    """A machine whose GPU has kernels for all but N = 128. Gives what it was asked for."""
    machine = Machine()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    row = {"name": "h200"}
    monkeypatch.setattr(devices, "gpus", lambda: [{"name": "NVIDIA H200", "row": row}])
    monkeypatch.setattr(ladder.cuda.tune, "tune_all", machine.tune_all)
    monkeypatch.setattr(ladder.cuda.tune_experts, "tune_layers", machine.tune_layers)
    monkeypatch.setattr(kernels, "use_store", machine.kept.append)
    refused = "the fake has no kernel for it"
    monkeypatch.setattr(kernels, "objection", lambda type, n, *_: refused if n == 128 else "")
    return machine
