# SPDX-License-Identifier: Apache-2.0
"""docs/format.md is right: its example is packed by hand here, and its tables are the code's."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_oracle import stream

import ladder
from ladder.checkpoints import StoredConfig
from ladder.weight import PARTS

DOCUMENT = (Path(__file__).parents[2] / "docs" / "format.md").read_text()


@pytest.fixture(scope="module")
def example():
    namespace = {}
    for block in re.findall(r"^```python\n(.*?)^```", DOCUMENT, re.M | re.S):
        exec(block, namespace)
    return namespace


def test_the_bytes_of_the_worked_example_are_those_of_a_plain_bit_stream(example):
    written = re.search(r"^```\n((?:[0-9a-f]{2}\s+){15}[0-9a-f]{2})\n```", DOCUMENT, re.M)[1]
    rows = [stream(row, 3) for row in example["codes"].tolist()]
    assert bytes.fromhex(written) == np.array(rows, dtype="<u4").tobytes()
    binary = re.search(r"((?:[01]{3} ){11}[01]{3}) in binary", DOCUMENT)[1].replace(" ", "")
    assert int(binary, 2) == rows[0][0] | rows[0][1] << 32
    assert f"0x{int(binary, 2):X}" in DOCUMENT


def test_every_key_of_the_config_is_documented():
    section = DOCUMENT[DOCUMENT.index("## 8.") : DOCUMENT.index("## 9.")]
    named = set(re.findall(r"^\| `(\w+)` \|", section, re.M))
    assert named == {f.name for f in dataclasses.fields(StoredConfig)} | {"quant_method"}
    assert all(f"`.{part}`" in section for part in PARTS if part != "qweight")


KINDS = re.findall(r"^\| `(\w+)` \| .* \| .*s.* \|$", DOCUMENT, re.M)


@pytest.mark.parametrize(
    "kind", ["none", "midpoint", "integer", "quantized", "original", "rescale"]
)
def test_every_kind_of_zero_is_stored_and_means_what_the_table_says(kind):
    assert kind in KINDS
    n, k, bits, group = 5, 40, 4, 16
    zero = "" if kind == "none" else f",zero={kind}"
    rng = np.random.default_rng(7)
    codes = rng.integers(0, 16, (n, k))
    scales = (rng.integers(1, 64, (n, 3)) / 64).astype(np.float16)
    z = rng.integers(0, 16, (n, 3))
    if kind == "midpoint":
        z[:] = 8
    stored = {
        "integer": torch.from_numpy(z.astype(np.uint8)),
        "quantized": torch.tensor([stream(row, bits) for row in z], dtype=torch.int32),
        "original": torch.from_numpy(z.astype(np.float16)),
        "rescale": torch.from_numpy(z.astype(np.float16)),
    }.get(kind)
    weight = ladder.Weight.from_codes(
        torch.from_numpy(codes.astype(np.uint8)), f"uint4,group={group},scale=float16{zero}",
        scales=torch.from_numpy(scales), zeros=stored,
    )  # fmt: skip
    s, z = (np.repeat(part.astype(np.float32), group, axis=1)[:, :k] for part in (scales, z))
    expected = {"none": codes * s, "rescale": codes * s - z}.get(kind, (codes - z) * s)
    assert np.array_equal(weight.dequantize().numpy(), expected.astype(np.float32))


@pytest.mark.parametrize("of", ["tensor", "channel"])
def test_integer_scales_and_a_second_one_mean_what_the_document_says(of):
    n, k, group = 5, 40, 16
    rng = np.random.default_rng(7)
    codes, s = rng.integers(0, 16, (n, k)), rng.integers(0, 16, (n, 3)).astype(np.uint8)
    second = rng.standard_normal(n if of == "channel" else 1).astype(np.float32)
    weight = ladder.Weight.from_codes(
        torch.from_numpy(codes.astype(np.uint8)),
        f"uint4,group={group},scale=uint4,zero=midpoint,scale2=float32:{of}",
        scales=torch.from_numpy(s), scale2=torch.from_numpy(second),
    )  # fmt: skip
    whole = np.repeat(s.astype(np.float32), group, axis=1)[:, :k] * (codes - 8)
    expected = whole.astype(np.float32) * second[:, None]
    assert np.array_equal(weight.dequantize().numpy(), expected)
    right = weight.narrow_rows(1, 3)
    assert torch.equal(right.scale2, weight.scale2[1:4] if of == "channel" else weight.scale2)


def test_columns_cut_at_groups_and_words_are_a_plain_slice():
    codes = torch.randint(0, 8, (3, 96), dtype=torch.uint8)
    weight = ladder.Weight.from_codes(
        codes, "uint3,group=32,scale=float16", scales=torch.rand(3, 3).half()
    )
    middle = weight.narrow_columns(32, 32)
    assert torch.equal(middle.qweight, weight.qweight[:, 3:6])
    assert torch.equal(middle.scales, weight.scales[:, 1:2])
    assert torch.equal(middle.dequantize(), weight.dequantize()[:, 32:64])
