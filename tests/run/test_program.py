# SPDX-License-Identifier: Apache-2.0
"""Programs written by hand: printed, checked, interpreted, and run where there is a CUDA device."""

import pytest
import torch

from ladder import program as tile
from ladder.errors import InvalidArgument

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def doubled() -> tile.Program:
    p = tile.Builder("doubled", grid=(4, 1), threads=64)
    x, y = p.input("x", "f32", (4, 256)), p.output("y", "f32", (4, 256))
    values = p.load(x, (p.x, 0), tile.spatial(1, 64) * tile.local(1, 4))
    p.store(values + values, y, (p.x, 0))
    return p.build()


def summed(rows: int, columns: int, stages: int, bulk: bool = False) -> tile.Program:
    """y[row] = the sum of a row of x, 128 columns at a time."""
    p = tile.Builder("row_sums", grid=(rows // 32, 1), threads=128)
    x, y = p.input("x", "f32", (rows, columns)), p.output("y", "f32", (rows, 1))
    part = p.shared("part", "f32", (32, 128))
    full = p.signal("full")
    if bulk:
        p.signal_init(full)
    layout = tile.spatial(8, 16) * tile.local(4, 8)
    total = p.fill("f32", layout, 0, "total")
    with p.loop("k", columns // 128) as k:
        if bulk:
            p.expect(full, 0, 32 * 128 * 4)
            p.copy_bulk(part, x, (p.x * 32, k * 128), full)
            p.await_phase(full, 0, k % 2)
        else:
            p.copy_async(part, x, (p.x * 32, k * 128))
            p.commit()
            p.wait()
        total += p.load(part, (0, 0), layout)
    p.store(p.reduce("add", total, 1), y, (p.x * 32, 0))
    return p.build(stages=stages)


@pytest.mark.parametrize("device", DEVICES)
def test_a_program_computes_what_it_says(device):
    x, y = torch.rand(4, 256, device=device), torch.empty(4, 256, device=device)
    doubled()(x, y)
    assert torch.equal(y, 2 * x)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_pipelined_loop_is_exact_on_integers(device, bulk, stages):
    if device == "cuda" and bulk and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("bulk copies are of sm_90 and later")
    program = summed(64, 640, stages, bulk)
    x = torch.randint(-8, 9, (64, 640), device=device).float()
    y = torch.empty(64, 1, device=device)
    program(x, y)
    assert torch.equal(y, x.sum(1, keepdim=True))
    # A pipeline needs one barrier a trip, a single buffer two; bulk copies one for their signal.
    assert program.barriers == (1 + bulk if stages > 1 or bulk else 2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 7, 8])
def test_a_view_sees_words_as_codes_of_any_width(device, bits):
    p = tile.Builder("codes", threads=64)
    words = p.input("words", "u32", (64, bits))
    y = p.output("y", "f32", (64, 32))
    loaded = p.load(words, (0, 0), tile.spatial(64, 1) * tile.local(1, bits))
    codes = p.view(loaded, f"u{bits}", tile.spatial(64, 1) * tile.local(1, 32))
    p.store(p.cast(codes, "f32"), y, (0, 0))
    codes = torch.randint(0, 1 << bits, (64, 32), dtype=torch.uint8)
    result = torch.empty(64, 32, device=device)
    p.build()(torch.ops.ladder.pack(codes, bits).to(device), result)
    assert torch.equal(result.cpu(), codes.float())


@pytest.mark.parametrize("device", DEVICES)
def test_atomics_add_to_what_is_given(device):
    p = tile.Builder("count", grid=(3, 1), threads=32)
    x, y = p.input("x", "f32", (3, 32)), p.output("y", "f32", (1, 32), given=True)
    p.atomic_add(p.load(x, (p.x, 0), tile.spatial(1, 32)), y, (0, 0))
    x, y = torch.randint(0, 9, (3, 32)).float().to(device), torch.ones(1, 32, device=device)
    expected = y + x.sum(0, keepdim=True)
    p.build()(x, y)
    assert torch.equal(y, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_are_as_many_as_the_call_says(device):
    p = tile.Builder("negated", threads=32)
    x, y = p.input("x", "f32", (tile.TOKENS, 32)), p.output("y", "f32", (tile.TOKENS, 32))
    p.store(-p.load(x, (0, 0), tile.local(8, 1) * tile.spatial(1, 32)), y, (0, 0))
    x, y = torch.rand(5, 32, device=device), torch.zeros(8, 32, device=device)
    p.build()(x, y, tokens=5)
    assert torch.equal(y[:5], -x) and not y[5:].any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_matrix_instruction_multiplies_exactly_on_integers(device, dtype):
    """32 rows by two warps, K in four steps; x through shared memory, as load_matrix wants it."""
    k, type = 64, {torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
    p = tile.Builder("product", threads=64)
    w, x = p.input("w", type, (2, 16, k)), p.input("x", type, (8, k))
    y = p.output("y", "f32", (2, 16, 8))
    staged = p.shared("staged", type, (8, k), (k + 8, 1))
    p.copy_async(staged, x, (0, 0))
    p.commit()
    p.wait()
    warps = tile.spatial(2, 1, 1)
    total = p.fill("f32", warps * tile.operand(type, "d"), 0)
    both = p.array(staged, (2, 8, k), (0, k + 8, 1))  # each warp reads all of x
    with p.loop("step", k // 16) as step:
        a = p.load(w, (0, 0, step * 16), warps * tile.operand(type, "a"))
        b = p.load_matrix(both, (0, 0, step * 16), warps * tile.operand(type, "b"))
        p.mma(total, a, b)
    p.store(total, y, (0, 0, 0))
    weight = torch.randint(-8, 8, (32, k), device=device).to(dtype)
    x = torch.randint(-8, 8, (8, k), device=device).to(dtype)
    y = torch.empty(2, 16, 8, device=device)
    p.build()(weight, x, y)
    assert torch.equal(y.view(32, 8), weight.float() @ x.float().t())


def test_a_program_prints_its_instructions_and_its_kernel():
    assert "y[split, 0] = t1\n" in str(doubled())
    assert "#include" not in doubled().cuda_source
    assert "add_f32(t0[0], t0[0])" in doubled().cuda_source


def test_what_the_rules_forbid_is_an_error_that_names_the_instruction():
    p = tile.Builder("early", threads=32)
    x, y = p.input("x", "f32", (32, 32)), p.output("y", "f32", (32, 32))
    part = p.shared("part", "f32", (32, 32))
    layout = tile.spatial(1, 32) * tile.local(32, 1)
    p.copy_async(part, x, (0, 0))
    p.commit()
    p.store(p.load(part, (0, 0), layout), y, (0, 0))
    with pytest.raises(RuntimeError, match="not waited for, in: t0 = load part"):
        p.build()(torch.rand(32, 32), torch.empty(32, 32))


def test_arguments_that_do_not_fit_are_refused():
    program, x, y = doubled(), torch.rand(4, 256), torch.empty(4, 256)
    with pytest.raises(InvalidArgument, match="1 arguments for 2 parameters"):
        program(x)
    with pytest.raises(InvalidArgument, match="y has 512 elements, not 1024"):
        program(x, y[:2])
    with pytest.raises(InvalidArgument, match="x is torch.float16, not torch.float32"):
        program(x.half(), y)
    with pytest.raises(InvalidArgument, match="x is not contiguous"):
        program(torch.rand(256, 4).t(), y)


def test_a_name_or_a_type_that_kernels_cannot_have_is_refused():
    p = tile.Builder("named", threads=32)
    with pytest.raises(InvalidArgument, match="'float' is one that kernels use"):
        p.input("float", "f32", (1,))
    with pytest.raises(InvalidArgument, match="element type f8 is not"):
        p.input("x", "f8", (1,))
    with pytest.raises(InvalidArgument, match="operation power is not one of negate, absolute"):
        p.unary("power", p.fill("f32", tile.spatial(32), 1))
    with pytest.raises(InvalidArgument, match="4 u32 a thread seen as 16 u4"):
        p.view(p.fill("u32", tile.spatial(32) * tile.local(4), 1), "u4",
               tile.spatial(32) * tile.local(16))  # fmt: skip
