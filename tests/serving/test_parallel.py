# SPDX-License-Identifier: Apache-2.0
"""Ranks of tensor parallelism, each loaded through vLLM's weight loaders: together they compute
what one process computes. What ranks send to each other is left to the engines' tests."""

from __future__ import annotations

import pytest
import torch
from drawn import SIGNED_SUPERBLOCKS, SUPERBLOCKS, TWO_LEVELS
from layers import (
    HEAD,
    KV_HEADS,
    SHAPES,
    VOCABULARY,
    Stored,
    activations,
    parts_of,
    product,
    rank,
    run,
    serve,
    write,
)

from ladder.errors import Unsupported

pytestmark = pytest.mark.usefixtures("vllm")

TYPES = (
    "uint4,group=32,scale=float16,zero=midpoint",
    "uint4,group=32,scale=float16,zero=integer",
    "uint4,group=32,scale=bfloat16,zero=quantized",  # zeros of a rank begin inside a word
    "uint3,group=32,scale=float32,zero=rescale",
    "uint5,channel,scale=float16,zero=quantized",
    "int4,tensor,scale=float16",
    "float8_e4m3,block=16x32,scale=float32",
    "nf4,group=64,scale=float16",
    "mxfp4",
    "nvfp4",
    TWO_LEVELS,
    SUPERBLOCKS,
    SIGNED_SUPERBLOCKS,
)
MIXED = ("uint4,group=32,scale=float16,zero=integer", "nvfp4", "uint2,group=64,scale=bfloat16")
ROW_CUT = ("o_proj", "down_proj")
SIZES = pytest.mark.parametrize("size", (2, 4))


def on_ranks(name: str, stored: Stored, size: int, folder, x: torch.Tensor) -> list[torch.Tensor]:
    """[tokens, rows of the rank] of each rank; ``x`` is cut where the layer cuts columns."""
    tensors, found = stored.tensors(), []
    write(folder, tensors, stored.config())
    bias = any(module in stored.biases for module in parts_of(name))
    for number in range(size):
        with rank(number, size, gathered=x):
            layer = serve(name, folder, tensors, bias=bias)
            found.append(run(layer, x.chunk(size, -1)[number] if name in ROW_CUT else x))
    return found


def share(name: str, parts: list[torch.Tensor], number: int, size: int) -> torch.Tensor:
    """Of the whole products of a layer's modules, what rank ``number`` computes."""
    rows = []
    for module, part in zip(parts_of(name), parts, strict=True):
        if module in ("k_proj", "v_proj") and size > KV_HEADS:  # ranks share a head
            head = number * KV_HEADS // size
            rows.append(part[:, head * HEAD : (head + 1) * HEAD])
        else:
            rows.append(part.chunk(size, -1)[number])
    return torch.cat(rows, -1)


@SIZES
@pytest.mark.parametrize("name", ("qkv_proj", "gate_up_proj"))
@pytest.mark.parametrize("type", TYPES)
def test_a_rank_has_its_rows_of_each_part(type, name, size, tmp_path):
    stored, x = Stored.drawn(dict.fromkeys(parts_of(name), type), bias=True), activations(name)
    for number, y in enumerate(on_ranks(name, stored, size, tmp_path, x)):
        assert torch.equal(y, share(name, product(stored, name, x), number, size))


@SIZES
@pytest.mark.parametrize("types", (
    MIXED, ("dense", *MIXED[1:]), (SUPERBLOCKS, SIGNED_SUPERBLOCKS, "nvfp4"),
    (SUPERBLOCKS, SUPERBLOCKS.replace(":64", ":128"), "dense"),
), ids=("packed", "with dense", "second scales", "other superblocks"))  # fmt: skip
def test_a_rank_has_its_rows_of_parts_of_different_types(types, size, tmp_path):
    stored = Stored.drawn(dict(zip(parts_of("qkv_proj"), types, strict=True)), bias=True)
    x = activations("qkv_proj")
    for number, y in enumerate(on_ranks("qkv_proj", stored, size, tmp_path, x)):
        assert torch.equal(y, share("qkv_proj", product(stored, "qkv_proj", x), number, size))


@SIZES
@pytest.mark.parametrize("name", ("qkv_proj", "gate_up_proj"))
def test_a_rank_of_rows_keeps_the_order_of_all_columns(name, size, tmp_path):
    stored = Stored.drawn(dict.fromkeys(parts_of(name), MIXED[0]), act_order=True)
    x = activations(name)
    for number, y in enumerate(on_ranks(name, stored, size, tmp_path, x)):
        assert torch.equal(y, share(name, product(stored, name, x), number, size))


@SIZES
@pytest.mark.parametrize("bias", (False, True), ids=("plain", "bias"))
@pytest.mark.parametrize("name", ROW_CUT)
@pytest.mark.parametrize("type", TYPES)
def test_products_of_ranks_of_columns_add_up(type, name, bias, size, tmp_path):
    stored, x = Stored.drawn({name: type}, bias=bias), activations(name)
    assert torch.equal(sum(on_ranks(name, stored, size, tmp_path, x)), product(stored, name, x)[0])


@SIZES
@pytest.mark.parametrize("type", TYPES)
def test_a_rank_of_a_head_has_its_rows_of_the_padded_vocabulary(type, size, tmp_path):
    stored, x = Stored.drawn({"lm_head": type}), activations("lm_head")
    logits = torch.cat(on_ranks("lm_head", stored, size, tmp_path, x), -1)
    assert torch.equal(logits[:, :VOCABULARY], product(stored, "lm_head", x)[0])
    assert torch.equal(logits[:, VOCABULARY:], torch.zeros_like(logits[:, VOCABULARY:]))


@SIZES
@pytest.mark.parametrize("type", TYPES)
def test_a_rank_of_an_embedding_gives_its_rows_and_no_others(type, size, tmp_path):
    stored = Stored.drawn({"embed_tokens": type})
    ids = torch.arange(VOCABULARY)
    rows = sum(on_ranks("embed_tokens", stored, size, tmp_path, ids))
    assert torch.equal(rows, stored.dense("embed_tokens").float())


@SIZES
@pytest.mark.parametrize("bias", (False, True), ids=("plain", "bias"))
@pytest.mark.parametrize("name", ROW_CUT)
@pytest.mark.parametrize(
    "type, act_order",
    [(MIXED[0], True), ("nvfp4", True), ("uint4,group=256,scale=float16", False),
     ("float8_e4m3,block=16x256,scale=float32", False)],
)  # fmt: skip
def test_columns_that_no_rank_can_have_alone_are_shared_by_rows(
    type, act_order, name, bias, size, tmp_path
):
    stored, x = Stored.drawn({name: type}, bias=bias, act_order=act_order), activations(name)
    assert torch.equal(sum(on_ranks(name, stored, size, tmp_path, x)), product(stored, name, x)[0])


def test_rows_that_cut_a_block_are_refused_by_name(tmp_path):
    type = "float8_e4m3,block=128x32,scale=float32"
    stored = Stored.drawn(dict.fromkeys(parts_of("qkv_proj"), type))
    with pytest.raises(Exception, match=r"self_attn\.q_proj: rows 0 to 64 cut blocks of 128 rows"):
        on_ranks("qkv_proj", stored, 4, tmp_path, activations("qkv_proj"))


def test_a_replicated_layer_is_whole_on_every_rank(tmp_path):
    stored, x = Stored.drawn({"router": MIXED[0]}), activations("router")
    for y in on_ranks("router", stored, 2, tmp_path, x):
        assert torch.equal(y, product(stored, "router", x)[0])
    assert y.shape[-1] == SHAPES["router"][0]


def test_all_ranks_share_by_rows_or_none(tmp_path):
    """Of four ranks with 128 of 512 columns in groups of 384 the last alone has whole groups."""
    stored = Stored.drawn({"down_proj": "uint4,group=384,scale=float16"})
    x = activations("down_proj")
    y = sum(on_ranks("down_proj", stored, 4, tmp_path, x))
    assert torch.equal(y, product(stored, "down_proj", x)[0])


def test_a_layer_that_its_model_cuts_in_a_way_of_its_own_is_refused(tmp_path):
    """Mamba 2's, whose groups are fewer than ranks: rows one behind the other are no rank's."""
    stored = Stored.drawn({"in_proj": TYPES[0]})
    x = activations("in_proj")
    (whole,) = on_ranks("in_proj", stored, 1, tmp_path, x)
    assert torch.equal(whole, product(stored, "in_proj", x)[0])
    with pytest.raises(Unsupported, match=r"in_proj is a ColumnParallelLinear.*parallel_size=1"):
        on_ranks("in_proj", stored, 2, tmp_path, x)
