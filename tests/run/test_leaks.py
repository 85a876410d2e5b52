# SPDX-License-Identifier: Apache-2.0
"""What an op takes off torch's stack belongs to it: texts, lists and handles are freed."""

from pathlib import Path

import pytest
import torch

import ladder

CALLS = 5000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.fixture(scope="module")
def weight():
    return ladder.quantize(torch.ones(4, 128), "uint4", group_size=128)


def calls(weight):
    values, type = torch.ones(4, 128), str(weight.type)
    return {
        "text": lambda: torch.ops.ladder.quantize(values, type, False),
        "optional tensors": lambda: weight.dequantize(),
        "list": lambda: torch.ops.ladder.element_table("uint4"),
        "refusal": lambda: pytest.raises(ValueError, ladder.ttype, "uint9"),
    }


@pytest.mark.parametrize("what", ["text", "optional tensors", "list", "refusal"])
def test_calls_keep_no_memory(weight, what):
    """A text of 40 bytes kept by each call would be 400 KiB here."""
    call = calls(weight)[what]
    for _ in range(CALLS):
        call()
    before = resident_bytes()
    for _ in range(2 * CALLS):
        call()
    assert resident_bytes() - before < 256 << 10
