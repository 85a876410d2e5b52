# SPDX-License-Identifier: Apache-2.0
"""One layer of a QuantizedCache: what is packed, when, and what comes back."""

import copy
import math

import pytest
import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

import ladder
from ladder.errors import InvalidArgument, Unsupported
from ladder.integrations.transformers.cache_layers import PackedLayer
from ladder.integrations.transformers.cache_states import states_type

INT8 = "int8,group=32,scale=float16"


def layer(
    keys=INT8, values=INT8, *, keys_per="channel", residual=0, block=32, window=None, **options
):
    types = (
        states_type("keys", keys, keys_per, block, "nearest"),
        states_type("values", values, "token", block, "nearest"),
    )
    return PackedLayer(types, residual=residual, block=block, sliding_window=window, **options)


def states(tokens, *, batch=2, heads=3, widths=(40, 24), dtype=torch.float32, seed=0):
    """Keys and values [batch, heads, tokens, width]; a longer text begins with the shorter ones."""
    random = torch.Generator().manual_seed(seed)
    made = [torch.randn(tokens, batch, heads, width, generator=random) for width in widths]
    return [each.permute(1, 2, 0, 3).to(dtype) for each in made]


def by_channel(block, ttype):
    """What ladder makes of one block [batch, heads, tokens, width], tokens as columns."""
    rows = block.transpose(2, 3).flatten(0, 2).float()
    values = ladder.quantize(rows, ttype, method="nearest").dequantize()
    return values.view(block.transpose(2, 3).shape).transpose(2, 3).to(block.dtype)


def by_token(block, ttype):
    rows = block.flatten(0, 2).float()
    return ladder.quantize(rows, ttype, method="nearest").dequantize().view(block.shape)


def feed(it, keys, values, sizes):
    """In calls of so many tokens; what the last one sees."""
    first = 0
    for size in sizes:
        part = slice(first, first + size)
        seen = it.update(keys[:, :, part], values[:, :, part])
        first += size
    assert first == keys.shape[2]
    return seen


def codes(it):
    return [
        {name: part for run in packed.runs for name, part in run.parts.items()}
        for packed in it.packed
    ]


def same(one, other):
    """The same codes and the same dense tokens, to the bit."""
    for a, b in zip(codes(one), codes(other), strict=True):
        assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    assert all(map(torch.equal, one.recent, other.recent))


# Rows with a last group that is shorter (40 channels), words that codes straddle, every kind of
# zero point, second scales, tables and floats.
TYPES = (
    INT8,
    "uint3,group=32,scale=float16,zero=rescale",
    "uint5,group=16,scale=bfloat16,zero=quantized",
    "uint2,channel,scale=float16,zero=integer",
    "uint4,group=16,scale=uint4,zero=midpoint,scale2=float32:channel",
    "uint4,group=8,scale=uint6,zero=rescale,scale2=float16:8",
    "nf4,group=64,scale=float32",
    "float6_e3m2,group=8,scale=float16",
    "mxfp4",
    "nvfp4",
)


@pytest.mark.parametrize("ttype", TYPES)
@pytest.mark.parametrize("keys_per", ["channel", "token"])
def test_values_are_those_of_ladders_own_quantising_of_the_blocks(ttype, keys_per):
    it = layer(ttype, ttype, keys_per=keys_per, residual=5, block=32)
    keys, values = states(70)
    feed(it, keys, values, [70])
    stored = ladder.ttype(ttype) if "," in ttype else ladder.types.with_defaults(ttype)
    stored = stored.with_second_scales_of_rows()
    want = by_channel if keys_per == "channel" else by_token
    blocks = [want(keys[:, :, start : start + 32], stored) for start in (0, 32)]
    assert torch.equal(it.keys, torch.cat([*blocks, keys[:, :, 64:]], 2))
    assert torch.equal(it.values[:, :, :64], by_token(values[:, :, :64], stored))
    assert torch.equal(it.values[:, :, 64:], values[:, :, 64:])
    assert not torch.equal(it.keys[:, :, :64], keys[:, :, :64])


def test_a_type_of_the_users_own(request):
    name = "kvtable"
    ladder.register_type(name, bits=3, values=[-4.0, -2.0, -1.0, -0.25, 0.25, 1.0, 2.0, 4.0])
    it = layer(f"{name},group=32,scale=float32", None)
    keys, values = states(32)
    feed(it, keys, values, [32])
    assert torch.equal(it.keys, by_channel(keys, ladder.ttype(f"{name},group=32,scale=float32")))
    assert torch.equal(it.values, values)


@pytest.mark.parametrize("sizes", [[1] * 100, [33, 1, 66], [7, 93]], ids=["ones", "few", "two"])
@pytest.mark.parametrize("window", [None, 80])
def test_codes_depend_on_the_tokens_not_on_the_calls(sizes, window):
    """Blocks are quantised once and where they lie: whole and in pieces give the same codes."""
    keys, values = states(100)
    whole, pieces = (layer(residual=10, window=window) for _ in range(2))
    feed(whole, keys, values, [100])
    feed(pieces, keys, values, sizes)
    assert whole.packed[0].length == 64 if window is None else whole.packed[0].length > 0
    same(whole, pieces)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_call_sees_its_own_and_the_recent_tokens_as_they_came(dtype):
    keys, values = states(110, dtype=dtype)
    it = layer(residual=20)
    seen = feed(it, keys, values, [90, 20])  # 64 are packed after the first call
    for got, given in zip(seen, (keys, values), strict=True):
        assert got.dtype == dtype and got.shape == given.shape
        assert torch.equal(got[:, :, 64:], given[:, :, 64:])
        assert not torch.equal(got[:, :, :64], given[:, :, :64])
        assert (got[:, :, :64] - given[:, :, :64]).abs().max() < 0.1
    assert it.get_seq_length() == 110 and it.packed[0].length == 64
    assert it.get_mask_sizes(3) == (113, 0)


def test_dense_sides_are_those_of_a_dynamic_layer():
    keys, values = states(100)
    it, dense = layer(None, None, residual=8), DynamicLayer()
    for got, want in zip(
        feed(it, keys, values, [50, 1, 49]), feed(dense, keys, values, [50, 1, 49]), strict=True
    ):
        assert torch.equal(got, want)
    it.crop(-70)
    dense.crop(-70)
    assert torch.equal(it.keys, dense.keys) and torch.equal(it.values, dense.values)
    assert it.nbytes == it.dense_nbytes


def test_bytes_are_those_of_the_codes_scales_and_window():
    """3 bits and scales of 16 for 32 numbers, and 5 tokens of float16."""
    keys, values = states(133, widths=(64, 32), dtype=torch.float16)
    it = layer("uint3,group=32,scale=float16,zero=midpoint", INT8, residual=5)
    feed(it, keys, values, [133])
    rows = 2 * 3 * 128
    packed = rows * 64 * (3 + 16 / 32) / 8 + rows * 32 * (8 + 16 / 32) / 8
    assert it.nbytes == packed + 2 * 3 * 5 * (64 + 32) * 2
    assert it.dense_nbytes == 2 * 3 * 133 * (64 + 32) * 2


@pytest.mark.parametrize(("tokens", "removed"), [(101, 0), (20, 0), (101, 3)])
def test_no_view_keeps_the_memory_of_a_prompt(tokens, removed):
    it = layer(residual=5)
    keys, values = (torch.cat([each, each], 3) for each in states(tokens))  # as of a fused product
    it.update(keys[..., : keys.shape[3] // 2], values[..., : values.shape[3] // 2])
    it.crop(-removed)
    held = [*it.recent, *(part for parts in codes(it) for part in parts.values())]
    assert sum(tensor.untyped_storage().nbytes() for tensor in held) == it.nbytes


# --- going back ----------------------------------------------------------------------------------


@pytest.mark.parametrize("keys_per", ["channel", "token"])
@pytest.mark.parametrize("removed", [0, 1, 6, 7, 20, 39, 70, 71, 200])
def test_crop_keeps_what_is_left_as_it_was(keys_per, removed):
    keys, values = states(71)
    it = layer(keys_per=keys_per, residual=6)  # 64 are packed, 7 are dense
    feed(it, keys, values, [71])
    before = it.keys, it.values
    it.crop(-removed)
    left = max(0, 71 - removed)
    assert it.get_seq_length() == left
    assert torch.equal(it.keys, before[0][:, :, :left])
    assert torch.equal(it.values, before[1][:, :, :left])


def test_blocks_that_were_cropped_are_never_quantised_again():
    keys, values = states(140)
    it = layer(residual=0)
    feed(it, keys[:, :, :64], values[:, :, :64], [64])
    it.crop(-20)  # within the second block
    kept = it.keys, it.values
    feed(it, keys[:, :, 64:], values[:, :, 64:], [40, 1, 1, 34])
    assert it.get_seq_length() == 44 + 76 and it.packed[0].length == it.packed[1].length == 108
    assert torch.equal(it.keys[:, :, :44], kept[0]) and torch.equal(it.values[:, :, :44], kept[1])
    ttype = ladder.ttype(INT8)
    assert torch.equal(it.keys[:, :, 44:76], by_channel(keys[:, :, 64:96], ttype))
    it.crop(-70)  # over the end of the cut block
    assert torch.equal(it.keys[:, :, :44], kept[0]) and it.get_seq_length() == 50


def test_crop_takes_only_numbers_of_tokens_to_remove():
    it = layer()
    with pytest.raises(InvalidArgument, match="was given 3, which is more than 0"):
        it.crop(3)
    it.crop(-3)  # nothing there yet
    assert it.get_seq_length() == 0


# --- batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys_per", ["channel", "token"])
def test_sequences_of_a_batch_are_as_if_alone_and_change_places(keys_per):
    keys, values = states(75, batch=3)
    alone = [layer("nvfp4", "nvfp4", keys_per=keys_per) for _ in range(3)]
    for i, it in enumerate(alone):
        feed(it, keys[i : i + 1], values[i : i + 1], [75])
    together = layer("nvfp4", "nvfp4", keys_per=keys_per)
    feed(together, keys, values, [75])
    order = torch.tensor([2, 0, 0, 1])
    together.reorder_cache(order)
    assert torch.equal(together.keys, torch.cat([alone[i].keys for i in order]))
    assert torch.equal(together.values, torch.cat([alone[i].values for i in order]))
    together.batch_select_indices(torch.tensor([True, False, False, True]))
    assert torch.equal(together.keys, torch.cat([alone[2].keys, alone[1].keys]))
    together.batch_repeat_interleave(2)
    twice = [alone[2], alone[2], alone[1], alone[1]]
    assert torch.equal(together.values, torch.cat([it.values for it in twice]))


def test_another_batch_or_width_is_refused_and_changes_nothing():
    it = layer()
    feed(it, *states(64), [64])
    before = copy.deepcopy(it)
    keys, values = states(1)
    with pytest.raises(InvalidArgument, match=r"keys of layer 0 .* \[1, 3, .*; the cache has \[2"):
        it.update(keys[:1], values[:1])
    with pytest.raises(InvalidArgument, match=r"values of layer 0 have .* width \[2, 3, 7\]; the"):
        it.update(keys, values[..., :7])
    same(it, before)


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_numbers_that_no_type_holds_are_named_and_leave_the_layer_as_it_was(number, side):
    it = layer(residual=3, index=7)
    given = states(67)
    feed(it, given[0][:, :, :60], given[1][:, :, :60], [60])
    before = copy.deepcopy(it)
    bad = [each[:, :, 60:].clone() for each in given]
    bad[side][1, 2, 0, 5] = number
    name = ("keys", "values")[side]
    where = rf"{name} of layer 7 at \[1, 2, 28, 5\] of \[batch, heads, tokens, width\] are {number}"
    with pytest.raises(InvalidArgument, match=where):
        it.update(*bad)
    same(it, before)
    assert it.get_seq_length() == 60
    feed(it, given[0][:, :, 60:], given[1][:, :, 60:], [7])
    whole = layer(residual=3)
    feed(whole, *given, [67])
    same(it, whole)


def test_a_first_call_that_fails_leaves_an_empty_layer():
    it = layer()
    keys, values = states(32)
    values[0, 0, 0, 0] = math.nan
    with pytest.raises(InvalidArgument, match="not finite"):
        it.update(keys, values)
    assert it.keys is None and not it.is_initialized and it.get_seq_length() == 0


# --- sliding windows -----------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[1] * 150, [100, 1, 49], [130, 20], [40, 40, 40, 30]])
def test_a_sliding_window_shows_as_many_tokens_as_transformers_own(sizes):
    keys, values = states(150)
    it, theirs = layer(window=70, residual=4), DynamicSlidingWindowLayer(sliding_window=70)
    first = 0
    for size in sizes:
        part = slice(first, first + size)
        assert it.get_mask_sizes(size) == theirs.get_mask_sizes(size)
        got = it.update(keys[:, :, part], values[:, :, part])
        want = theirs.update(keys[:, :, part], values[:, :, part])
        for one, other in zip(got, want, strict=True):
            assert one.shape == other.shape
            assert (one - other).abs().max() < 0.1  # the same tokens: others are 1 and more away
        first += size
        assert it.get_seq_length() == theirs.get_seq_length() == first
    assert it.is_sliding and it.get_max_length() == 70
    assert 69 <= it.held < 69 + 32


def test_a_sliding_window_goes_back_where_the_past_is_kept():
    keys, values = states(150)
    it, theirs = layer(window=70, residual=4), DynamicSlidingWindowLayer(sliding_window=70)
    for each in (it, theirs):
        feed(each, keys[:, :, :100], values[:, :, :100], [100])
        each.activate_past_recording()
        each.update(keys[:, :, 100:140], values[:, :, 100:140])
        each.crop(-38)
    assert it.get_seq_length() == theirs.get_seq_length() == 102
    got, want = (e.update(keys[:, :, 102:103], values[:, :, 102:103]) for e in (it, theirs))
    assert got[0].shape == want[0].shape and (got[0] - want[0]).abs().max() < 0.1
    assert it.get_mask_sizes(1) == theirs.get_mask_sizes(1)


def test_a_sliding_window_that_has_left_tokens_behind_says_so():
    it = layer(window=70, residual=4)
    feed(it, *states(150), [150])
    held = it.held
    with pytest.raises(Unsupported, match=rf"layer 0 holds {held} tokens, .* needs 69 after"):
        it.crop(-60)
    assert it.held == held and it.get_seq_length() == 150


# --- copies and devices --------------------------------------------------------------------------


def test_copies_are_independent_and_a_reset_layer_is_new():
    it = layer(residual=3)
    feed(it, *states(70), [70])
    other = copy.deepcopy(it)
    same(it, other)
    it.reset()
    assert it.get_seq_length() == 0 and it.keys is None and it.nbytes == 0
    feed(it, *states(70), [70])
    same(it, other)
    it.offload()
    it.prefetch()
    same(it, other)


@pytest.mark.parametrize(
    "read",
    [
        lambda it: it.crop(-3),
        lambda it: it.reorder_cache(torch.tensor([1, 0])),
        lambda it: it.keys,
        lambda it: it.values,
    ],
    ids=["crop", "reorder", "keys", "values"],
)
def test_what_was_offloaded_is_waited_for_before_it_is_read(read, monkeypatch):
    waited = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    it = layer()
    feed(it, *states(70), [70])
    read(it)
    assert not waited
    it.device = torch.device("cuda:0")  # as if tokens had come from there
    it.offload()
    read(it)
    assert waited == [it.device]


def test_gradients_reach_dense_tokens_and_stop_at_packed_ones():
    it = layer()
    keys, values = (each.requires_grad_() for each in states(40))
    seen = it.update(keys, values)
    assert torch.equal(torch.autograd.grad(seen[0].sum(), keys)[0], torch.ones_like(keys))
    later = it.update(*states(1))[0]
    grad = torch.autograd.grad(later.sum(), keys)[0]
    assert torch.equal(grad[:, :, 32:], torch.ones_like(grad[:, :, 32:]))
    assert not grad[:, :, :32].any()


def test_it_compiles_without_breaks():
    """Into graphs of which some quantise a block."""
    keys, values = states(70)
    own, compiled = layer(residual=3), layer(residual=3)
    feed(own, keys, values, [40, 20, 10])
    update = torch.compile(compiled.update, fullgraph=True, backend="eager")
    first = 0
    for size in (40, 20, 10):
        part = slice(first, first + size)
        update(keys[:, :, part], values[:, :, part])
        first += size
    same(own, compiled)
    assert compiled.packed[0].length == 64


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("keys", "float16", "token"), InvalidArgument, "16 bits; a cache packs 1 to 8"),
        (("keys", "int4,tensor,scale=float16", "token"), Unsupported, "scales are of several rows"),
        (("values", "int4,block=2x8,scale=float16", "channel"), Unsupported, "of several rows"),
        (("values", "int44", "token"), InvalidArgument, "values: .*int44"),
        (("values", 4, "token"), InvalidArgument, "values: type is 4"),
        (
            ("keys", "int4", "head"),
            InvalidArgument,
            "keys_per is 'head', not one of token, channel",
        ),
    ],
)
def test_types_that_a_cache_cannot_hold_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        states_type(*arguments, 32, "nearest")
