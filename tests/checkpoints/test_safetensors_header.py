# SPDX-License-Identifier: Apache-2.0
"""No number of a safetensors header is believed before it is compared with the file."""

import contextlib
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ladder.checkpoints.header import MAX_HEADER_BYTES, read_header
from ladder.errors import CheckpointError


def write(path, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(text) if length is None else length
    path.write_bytes((length % (1 << 64)).to_bytes(8, "little") + text + data)
    return path


def tensor(begin, end, shape, dtype="U8"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_what_the_library_writes_is_read_as_it_is(tmp_path):
    tensors = {"a": torch.ones(3, 5), "b": torch.ones(0, 2), "c": torch.tensor(1, dtype=torch.int8)}
    save_file(tensors, tmp_path / "x", metadata={"format": "pt"})
    entries = read_header(tmp_path / "x")
    assert {n: (e.dtype, e.shape, e.nbytes) for n, e in entries.items()} == {
        "a": ("F32", (3, 5), 60), "b": ("F32", (0, 2), 0), "c": ("I8", (), 1),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"a": tensor(0, 4, [4]), "b": tensor(2, 6, [4])}, b"123456", "b begins .* inside a"),
        ({"a": tensor(0, 4, [4]), "b": tensor(5, 6, [1])}, b"123456", "b .*hole after a"),
        ({"a": tensor(1, 4, [3])}, b"1234", "a .*hole after the header"),
        ({"a": tensor(0, 8, [8])}, b"1234", "a ends at byte .* truncated at byte"),
        ({"a": tensor(0, 4, [4])}, b"123456", "tensors end at byte .*, the file at byte"),
        ({"a": tensor(0, 4, [5])}, b"1234", r"a is U8 \[5\], which takes 5.0 bytes.* span 4"),
        ({"a": tensor(0, 4, [1], "F33")}, b"1234", "a.dtype is 'F33', not one of"),
        ({"a": tensor(0, 4, [-4])}, b"1234", r"a.shape is \[-4\]"),
        ({"a": tensor(0, 4, [True, 4])}, b"1234", r"a.shape is \[True, 4\]"),
        ({"a": tensor(0, 4, [4.0])}, b"1234", r"a.shape is \[4.0\]"),
        ({"a": tensor(4, 0, [4])}, b"1234", r"a.data_offsets is \[4, 0\]"),
        ({"a": tensor(-4, 0, [4])}, b"1234", r"a.data_offsets is \[-4, 0\]"),
        ({"a": tensor(0, 0, [0, 2**63])}, b"", None),
        ({"a": tensor(0, 0, [2**40, 2**40])}, b"", "more than 9223372036854775807 elements"),
        ({"a": {"dtype": "U8", "shape": [4]}}, b"1234", "a is not {dtype, shape, data_offsets}"),
        ({"a": 7}, b"", "a is not {dtype, shape, data_offsets}"),
        ({"__metadata__": {"format": 1}}, b"", "__metadata__ is not an object of strings"),
        ([1, 2], b"", "a JSON list, not an object"),
        (b'{"a": 1, "a": 2}', b"", "names 'a' twice"),
        (b"{" * 9, b"", "not JSON"),
        (b"[" * 100_000, b"", "not JSON"),
        (b'{"a\xff": 1}', b"", "not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", b"", "not JSON"),
        (b"", b"", "not JSON"),
    ],
)
def test_a_header_that_lies_is_refused_with_both_values(tmp_path, header, data, message):
    path = write(tmp_path / "x", header, data)
    if message is None:
        assert read_header(path)["a"].nbytes == 0
        return
    with pytest.raises(CheckpointError, match=message):
        read_header(path)


@pytest.mark.parametrize("length", [-1, -8, 2**63, 3, MAX_HEADER_BYTES + 1, 2**40])
def test_a_header_length_beyond_the_file_is_refused(tmp_path, length):
    path = write(tmp_path / "x", {}, length=length)
    with pytest.raises(CheckpointError, match=f"header length {length % 2**64} is beyond the 2"):
        read_header(path)


@pytest.mark.parametrize("size", range(8))
def test_a_file_too_short_for_a_length_is_refused(tmp_path, size):
    (tmp_path / "x").write_bytes(b"\0" * size)
    with pytest.raises(CheckpointError, match=f"has {size} bytes"):
        read_header(tmp_path / "x")


VALID = {"a": tensor(0, 4, [2, 2]), "b": tensor(4, 8, [2], "F16"), "c": tensor(8, 8, [0], "I32")}


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_headers_give_typed_errors_and_nothing_that_the_library_refuses(
    tmp_path_factory, data
):
    """Whatever this reader accepts, the safetensors library accepts with the same shapes."""
    raw = bytearray(json.dumps(VALID).encode())
    raw = bytearray(len(raw).to_bytes(8, "little")) + raw + b"\0" * 8
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["byte", "digit", "cut", "grow"]))
        at = data.draw(st.integers(0, len(raw) - 1))
        if kind == "byte":
            raw[at] = data.draw(st.integers(0, 255))
        elif kind == "digit":
            digits = [i for i, c in enumerate(raw) if chr(c).isdigit()] or [at]
            raw[digits[at % len(digits)]] = ord(data.draw(st.sampled_from("0123456789-")))
        elif kind == "cut":
            del raw[at : at + data.draw(st.integers(1, 9))]
        else:
            raw[at:at] = data.draw(st.binary(min_size=1, max_size=9))
        raw = raw or bytearray(1)
    path = tmp_path_factory.mktemp("fuzz") / "x"
    path.write_bytes(raw)
    try:
        entries = read_header(path)
    except CheckpointError:
        return
    try:
        with safe_open(path, framework="pt") as file:
            assert set(file.keys()) == set(entries)
            for name, entry in entries.items():
                assert tuple(file.get_slice(name).get_shape()) == entry.shape
    except SafetensorError as error:  # a name that it reserves, or a stricter dtype table
        assert "dtype" in str(error) or "metadata" in str(error).lower(), error


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_give_no_other_error(tmp_path_factory, raw):
    path = tmp_path_factory.mktemp("fuzz") / "x"
    path.write_bytes(raw)
    with contextlib.suppress(CheckpointError):
        read_header(path)
