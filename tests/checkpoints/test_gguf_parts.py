# SPDX-License-Identifier: Apache-2.0
"""A model in several GGUF files, which the ``gguf`` package splits, is the model of one file."""

import pytest
import torch

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

from gguf_models import Format, Writer  # noqa: E402

from ladder.checkpoints import repack  # noqa: E402
from ladder.checkpoints.gguf.parts import read_model  # noqa: E402
from ladder.errors import CheckpointError  # noqa: E402

SIZES = dict(
    hidden_size=256, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=64, vocab_size=64, max_position_embeddings=64,
    tie_word_embeddings=False,
)  # fmt: skip


def make_writer():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES)
    writer = Writer(transformers.AutoModelForCausalLM.from_config(config))
    for name in ("attn_q.weight", "attn_k.weight", "ffn_down.weight", "output.weight"):
        writer.quantize(name, Format.Q4_0)
    return writer


@pytest.fixture
def parts(tmp_path):
    """The model in parts of eight tensors."""
    make_writer().write(tmp_path / "m.gguf", split_max_tensors=8)
    return sorted(tmp_path.glob("m-*.gguf"))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("first_without_tensors", [False, True])
def test_parts_make_the_folder_of_one_file_whichever_is_named(first_without_tensors, tmp_path):
    split = dict(split_max_tensors=8, small_first_shard=first_without_tensors)
    make_writer().write(tmp_path / "m.gguf", **split)
    parts = sorted(tmp_path.glob("m-*.gguf"))
    assert len(parts) == 3 + first_without_tensors
    repack(make_writer().write(tmp_path / "one.gguf"), tmp_path / "wanted")
    wanted = contents(tmp_path / "wanted")
    for number, part in enumerate(parts):
        report = repack(part, tmp_path / f"out{number}")
        assert contents(tmp_path / f"out{number}") == wanted
        assert report.bytes_before == sum(e.nbytes for e in read_model(part).entries.values())
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out0")
    assert not config.tie_word_embeddings  # which the head in another part says


def refused(path, destination, *words):
    with pytest.raises(CheckpointError) as raised:
        repack(path, destination)
    for word in words:
        assert word in str(raised.value)


def test_a_missing_part_is_named(parts, left_nothing):
    parts[1].unlink()
    refused(parts[2], left_nothing, "one of 3 parts", "m-00002-of-00003.gguf is missing")


def test_a_part_with_another_name_is_told_what_it_is(parts, left_nothing):
    other = parts[1].rename(parts[1].with_name("other.gguf"))
    refused(other, left_nothing, "part 2 of 3", "...-00002-of-00003.gguf")
    other.rename(parts[1])
    parts[2].write_bytes(parts[1].read_bytes())
    refused(parts[0], left_nothing, "m-00003-of-00003.gguf: says that it is part 2 of 3")


def test_parts_of_two_models_are_refused(parts, left_nothing, tmp_path):
    (tmp_path / "more").mkdir()
    writer = make_writer()
    writer.tensors = dict(reversed(writer.tensors.items()))
    writer.write(tmp_path / "more" / "m.gguf", split_max_tensors=8)
    parts[2].write_bytes((tmp_path / "more" / parts[2].name).read_bytes())
    refused(parts[0], left_nothing, "m-00003-of-00003.gguf: has ", "m-00001-of-00003.gguf does")


def test_a_part_that_lacks_a_tensor_is_noticed_by_their_number(parts, left_nothing, tmp_path):
    (tmp_path / "more").mkdir()
    writer = make_writer()
    writer.tensors.popitem()
    writer.write(tmp_path / "more" / "m.gguf", split_max_tensors=8)
    parts[2].write_bytes((tmp_path / "more" / parts[2].name).read_bytes())
    refused(parts[0], left_nothing, "3 parts have 21 tensors, and they have 20")
