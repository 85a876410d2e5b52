# SPDX-License-Identifier: Apache-2.0
"""``ladder.quantize(hessian=...)``: codes that make up for each other's rounding."""

import re

import pytest
import torch
from drawn import SIGNED_SUPERBLOCKS, TWO_LEVELS, grouped, whole

import ladder
from ladder.compensation import compensated, corrected
from ladder.errors import InvalidArgument
from ladder.types import parse, type_names

NARROW = [name for name in type_names() if parse(name).bits <= 8]
N, K = 24, 96


def drawn(seed=0, n=N, k=K):
    """A weight, and inputs that go together: sums of a few common ones."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(n, k, generator=generator) * 0.05
    common = torch.randn(400, 8, generator=generator) @ torch.randn(8, k, generator=generator)
    return weight, common + 0.3 * torch.randn(400, k, generator=generator)


def losses(x, weight, packed):
    """Of each row's outputs, in float64: [N]."""
    return (x.double() @ (packed.dequantize() - weight).double().T).square().sum(0)


@pytest.mark.parametrize(
    "name", [*NARROW, TWO_LEVELS, SIGNED_SUPERBLOCKS, "uint3,group=32,scale=float16,zero=original"]
)
def test_outputs_move_less_and_those_of_no_row_more(name):
    weight, x = drawn(k=whole(name, K))
    ttype = grouped(name)
    nearest = ladder.quantize(weight, ttype)
    packed = ladder.quantize(weight, ttype, hessian=x.T @ x)
    packed.check()
    before, after = losses(x, weight, nearest), losses(x, weight, packed)
    assert (after <= before * (1 + 1e-4)).all()
    if name != "int1":  # its values, 0 and -1, make up for nothing that positive weights lose
        assert after.sum() < 0.8 * before.sum()
    for part in ("scales", "zeros", "scale2"):
        one, other = getattr(nearest, part), getattr(packed, part)
        assert one is None and other is None or torch.equal(one, other)


@pytest.mark.parametrize("name", [*NARROW, TWO_LEVELS])
def test_inputs_that_tell_nothing_of_each_other_leave_the_nearest_codes(name):
    weight, _ = drawn(k=whole(name, K))
    hessian = (torch.rand(weight.shape[1]) + 0.1).diag()
    packed = ladder.quantize(weight, grouped(name), hessian=hessian)
    assert packed == ladder.quantize(weight, grouped(name))


def test_types_of_two_values_and_of_the_smallest_and_largest_hessians():
    weight, x = drawn()
    ladder.register_type("signs", bits=1, values=[-1, 1])
    nearest = ladder.quantize(weight, "signs", group_size=32)
    for scale in (1.0, 1e-30, 1e30):
        hessian = (x.T @ x).double() * scale
        packed = ladder.quantize(weight, "signs", group_size=32, hessian=hessian)
        assert losses(x, weight, packed).sum() < 0.5 * losses(x, weight, nearest).sum()


def by_the_book(source, nearest, hessian):
    """GPTQ as its paper derives it: a column after the other, the inverse of what is left made anew
    for each. In float64, of a type of integers with float32 scales."""
    scales = nearest.scales.double().repeat_interleave(nearest.type.columns, 1)
    left, codes = source.double().clone(), torch.zeros(source.shape, dtype=torch.uint8)
    diagonal = hessian.double().diagonal()
    damped = hessian.double() + (0.3 * diagonal + 0.01 * diagonal.mean()).diag()
    columns = hessian.diagonal().argsort(descending=True).tolist()
    while columns:
        inverse = torch.linalg.inv(damped[columns][:, columns])
        column = columns[0]
        code = (left[:, column] / scales[:, column]).round().clamp(-8, 7) + 8
        codes[:, column] = code.to(torch.uint8)
        lost = left[:, column] - (code - 8) * scales[:, column]
        left[:, columns] -= lost[:, None] * inverse[0] / inverse[0, 0]
        columns = columns[1:]
    return codes


def test_codes_are_those_of_the_paper():
    weight, x = drawn()
    hessian = x.T @ x
    nearest = ladder.quantize(weight, "uint4,group=32,scale=float32,zero=midpoint")
    wanted = by_the_book(weight, nearest, hessian)
    found = compensated(weight, nearest, hessian)
    worse = found.weight.codes().ne(wanted).any(1)
    assert (found.weight.codes()[worse] == nearest.codes()[worse]).all()  # were better
    assert worse.sum() < N / 2
    assert found.error == pytest.approx(losses(x, weight, found.weight).sum().item(), rel=1e-3)
    assert found.nearest == pytest.approx(losses(x, weight, nearest).sum().item(), rel=1e-3)
    assert found.size == pytest.approx((x.double() @ weight.double().T).square().sum().item())


def test_parts_of_the_rows_have_hessians_of_their_own():
    weight, x = drawn()
    hessians = torch.stack([x.T @ x, torch.rand(K).diag()])
    whole = ladder.quantize(weight, "uint4", group_size=32, hessian=hessians)
    for part, hessian in enumerate(hessians):
        rows = weight.chunk(2)[part]
        alone = ladder.quantize(rows, "uint4", group_size=32, hessian=hessian)
        assert whole.narrow_rows(part * N // 2, N // 2) == alone


@pytest.mark.parametrize("inputs", [1, 3])
def test_few_inputs_do(inputs):
    weight, x = drawn()
    x = x[:inputs]
    packed = ladder.quantize(weight, "uint4", group_size=32, hessian=x.T @ x)
    nearest = ladder.quantize(weight, "uint4", group_size=32)
    assert losses(x, weight, packed).sum() < 0.1 * losses(x, weight, nearest).sum()


def test_an_input_that_is_always_zero_keeps_the_nearest_code():
    weight, x = drawn()
    x[:, 5] = 0
    packed = ladder.quantize(weight, "uint4", group_size=32, hessian=x.T @ x)
    nearest = ladder.quantize(weight, "uint4", group_size=32)
    assert torch.equal(packed.codes()[:, 5], nearest.codes()[:, 5])
    none = ladder.quantize(weight, "uint4", group_size=32, hessian=torch.zeros(K, K))
    assert none == nearest


def test_groups_that_are_zero_and_half_precision():
    weight, x = drawn()
    weight[:, :32] = 0
    packed = ladder.quantize(weight.half(), "uint4", group_size=32, hessian=x.T @ x)
    assert not packed.dequantize()[:, :32].any()
    assert losses(x, weight, packed).isfinite().all()


def negative(h):
    h[3, 3] = -1
    return h


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda h: h[:-1], "hessian has shape [95, 96], not [96, 96]"),
        (lambda h: h.expand(5, K, K), "equal parts of 24 rows"),
        (lambda h: h.expand(2, 2, K, K), "not [96, 96]"),
        (lambda h: h.long(), "hessian is of int64, not a floating-point tensor"),
        (lambda h: "h", "hessian is of str"),
        (lambda h: h / 0, "not finite"),
        (negative, "hessian has -1 on its diagonal, at 3"),
        (lambda h: h.double() * 1e39, "hessian at [0, 0] is 1e+39, not finite in float32"),
        (lambda h: 1e9 - 1e9 * h + h, "hessian is no sum of x.T @ x"),
    ],
)
def test_what_is_no_hessian_is_refused(change, words):
    weight, _ = drawn()
    with pytest.raises(InvalidArgument, match=re.escape(words)):
        ladder.quantize(weight, "uint4", group_size=32, hessian=change(torch.eye(K)))


def test_types_of_16_bits_have_no_codes_to_choose():
    with pytest.raises(InvalidArgument, match="float16.* has 16 bits"):
        ladder.quantize(torch.ones(4, K), "float16", hessian=torch.eye(K))


@pytest.mark.parametrize("parts", [1, 2])
def test_a_weight_is_corrected_for_what_its_inputs_have_become(parts):
    weight, before = drawn()
    x = before + 0.3 * torch.randn(before.shape, generator=torch.Generator().manual_seed(7))
    x[:, 5] = 0
    hessian, cross = (each.expand(parts, K, K) for each in (x.T @ x, before.T @ x))
    found, wanted = corrected(weight, hessian, cross), before.double() @ weight.double().T

    def off(w):
        return x.double() @ w.double().T - wanted

    assert off(found).square().sum() < 0.8 * off(weight).square().sum()
    # Of all weights it is that of the least |off|^2 + ridge |change|^2, whose slope is zero there.
    slope = off(found).T @ x.double() + hessian[0].diagonal() * (found - weight)
    assert slope.abs().max() < 1e-3 * (off(weight).T @ x.double()).abs().max()
    assert torch.allclose(corrected(weight, hessian, hessian), weight, atol=1e-6)
    assert torch.equal(corrected(weight, 0 * hessian, 0 * cross), weight)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", ["uint4", "nvfp4", TWO_LEVELS])
def test_on_a_gpu_codes_serve_as_well(name):
    weight, x = drawn()
    found = []
    for device in ("cpu", "cuda"):
        hessian = (x.T @ x).to(device)
        packed = ladder.quantize(weight.to(device), grouped(name), hessian=hessian)
        assert packed.qweight.device.type == device
        found.append(losses(x, weight, packed.to("cpu")).sum().item())
    assert found[1] == pytest.approx(found[0], rel=0.02)
