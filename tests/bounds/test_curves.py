# SPDX-License-Identifier: Apache-2.0
"""Ski slopes and bounds against definitions written out here in Python."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladder import InvalidArgument, bounds

PAPER = {"factors": "divisors", "space": "uniform"}
sizes = st.integers(1, 64)
few = settings(max_examples=60, deadline=None)


def divisors(n):
    return [d for d in range(1, n + 1) if n % d == 0]


def brute_force(m, n, k, factors=divisors):
    """Pareto points of every tile and every order of loops, from the definition of reuse."""
    tensors = {("m", "k"): False, ("n", "k"): False, ("m", "n"): True}
    ranks = {"m": m, "n": n, "k": k}
    points = []
    for tile in itertools.product(*(factors(size) for size in ranks.values())):
        tile = dict(zip(ranks, tile, strict=True))
        blocks = {rank: -(-size // tile[rank]) for rank, size in ranks.items()}
        space = sum(math.prod(tile[rank] for rank in own) for own in tensors)
        for order in itertools.permutations(ranks):
            loops = [rank for rank in order if blocks[rank] > 1]
            traffic = 0
            for own, output in tensors.items():
                inner = max((i for i, rank in enumerate(loops) if rank in own), default=-1)
                again = math.prod(blocks[rank] for rank in loops[: inner + 1] if rank not in own)
                words = math.prod(ranks[rank] for rank in own)
                traffic += words * (2 * again - 1 if output else again)
            points.append((space, traffic))
    front = []
    for space, traffic in sorted(points):
        if not front or traffic < front[-1][1]:
            front.append((space, traffic))
    return front


@few
@given(sizes, sizes, sizes)
def test_closed_form_equals_brute_force_with_divisors(m, n, k):
    assert bounds.ski_slope(bounds.matmul(m, n, k), **PAPER).points == brute_force(m, n, k)


@settings(max_examples=15, deadline=None)
@given(*[st.integers(1, 18)] * 3)
def test_closed_form_equals_brute_force_with_every_integer(m, n, k):
    curve = bounds.ski_slope(bounds.matmul(m, n, k), factors="integers", space="uniform")
    assert curve.points == brute_force(m, n, k, lambda size: range(1, size + 1))


@few
@given(sizes, sizes, sizes, st.sampled_from(["divisors", "integers"]),
       st.sampled_from(["uniform", "streaming"]))  # fmt: skip
def test_curves_fall_and_stay_above_the_bound(m, n, k, factors, space):
    einsum = bounds.matmul(m, n, k, a=2, w=0.5, c=2, accumulator=4)
    points = bounds.ski_slope(einsum, factors=factors, space=space).points
    assert points == sorted(points) and points[-1][1] == einsum.algorithmic_minimum
    for (_, before), (_, after) in itertools.pairwise(points):
        assert after < before
    for size, traffic in points:
        assert traffic >= bounds.lower_bound(einsum, size) * (1 - 1e-12)


@few
@given(sizes, sizes, sizes)
def test_integers_are_never_worse_than_divisors(m, n, k):
    einsum = bounds.matmul(m, n, k)
    integers = bounds.ski_slope(einsum, factors="integers", space="uniform")
    for size, traffic in bounds.ski_slope(einsum, **PAPER).points:
        assert integers.at(size) <= traffic


@few
@given(st.permutations(["m", "n", "k"]), sizes, sizes, sizes)
def test_the_order_in_which_ranks_are_named_changes_nothing(order, m, n, k):
    given_sizes = {"m": m, "n": n, "k": k}
    einsum = bounds.einsum("a[m,k] * w[n,k] -> c[m,n]", {r: given_sizes[r] for r in order})
    assert bounds.ski_slope(einsum) == bounds.ski_slope(bounds.matmul(m, n, k))


@settings(max_examples=25, deadline=None)
@given(*[st.integers(1, 9)] * 4, st.integers(1, 3), st.integers(1, 2))
def test_convolutions_never_go_below_the_bound(c, k, q, s, stride, dilation):
    text = f"i[c, {stride}*q + {dilation}*s] * w[k, c, s] -> o[k, q]"
    written = bounds.einsum(text, {"k": k, "c": c, "q": q, "s": s})
    built = bounds.conv1d(in_channels=c, out_channels=k, width=q, kernel_width=s, stride=stride,
                          dilation=dilation)  # fmt: skip
    for factors in ("divisors", "integers"):
        curve = bounds.ski_slope(written, factors=factors)
        assert curve == bounds.ski_slope(built, factors=factors)
        for size, traffic in curve.points:
            assert traffic >= bounds.lower_bound(built, size) * (1 - 1e-12)


def test_the_width_of_a_tensor_that_is_not_there_is_refused():
    with pytest.raises(InvalidArgument, match="bytes has x, which is none of a, w, c"):
        bounds.einsum("a[m,k] * w[n,k] -> c[m,n]", dict.fromkeys("mnk", 2), {"x": "uint4"})


def test_every_point_comes_with_the_tiles_that_attain_it():
    einsum = bounds.matmul(4096, 4096, 4096)
    mappings = bounds.best_mappings(einsum, **PAPER)
    assert [(m.buffer_bytes, m.traffic_bytes) for m in mappings] == bounds.ski_slope(
        einsum, **PAPER
    ).points
    assert mappings[0].tile == {"M": 1, "N": 1, "K": 1}
    assert sorted(mappings[-1].order) == ["K", "M", "N"]


def test_widths_of_formats_count_their_scales():
    four = bounds.width("uint4,group=128,scale=float16", 4096, 4096)
    assert (four.store, four.code) == (0.5 + 2 / 128, 0.5)
    assert bounds.width("float16", buffer="float32").buffer == 4
    assert bounds.width(0.5).store == 0.5
    narrow = bounds.matmul(16, 4096, 4096, a="float16", w="mxfp4", c="float16")
    assert narrow.algorithmic_minimum == 2 * 2 * 16 * 4096 + 4096 * 4096 * 4.25 / 8


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a[m,k] * w[n,k]", "'->'"),
        ("a[m,k] w[n,k] -> c[m,n]", "is not a tensor"),
        ("a[m,k+] * w[n,k] -> c[m,n]", "is not a rank"),
        ("a[m,k] * w[n,z] -> c[m,n]", "rank z of tensor w has no size"),
        ("a[m,k] * a[n,k] -> c[m,n]", "tensor a is in .* more than once"),
        ("a[m,k] * w[k,k] -> a[m,n]", "tensor a is in .* more than once"),
        ("a[m,k] * w[m,k] -> c[m,n]", "rank n of the output c is in no input"),
        ("a[m] * w[n] -> c[m,n]", "no tensor uses rank k"),
        ("a[m,k] * w[n,k] -> c[2*m,n]", "plain rank"),
    ],
)
def test_wrong_definitions_are_refused_with_the_part_that_is_wrong(text, why):
    with pytest.raises(ValueError, match=why.replace("[", r"\[")):
        bounds.einsum(text, {"m": 2, "n": 2, "k": 2})


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: bounds.matmul(0, 1, 1), "rank M is 0, less than 1"),
        (lambda: bounds.matmul(1, -4, 1), "rank N is -4"),
        (lambda: bounds.matmul(2**31, 2**31, 2**31), "does not fit 63 bits"),
        (lambda: bounds.matmul(4, 4, 4, a=0), "has 0 bytes"),
        (lambda: bounds.ski_slope(bounds.matmul(4, 4, 4), factors="primes"), "'primes', not one"),
        (lambda: bounds.lower_bound(bounds.matmul(4, 4, 4), 0), "a buffer of 0 bytes"),
        (lambda: bounds.einsum("a[b,c,d,e] * w[f,g,h,i] -> o[b]", dict.fromkeys("bcdefghi", 2)),
         "8 ranks; at most 7"),
        (lambda: bounds.layer("x", m=1, k=1, n=1, after="tea"), "'tea', not one of nothing"),
        (lambda: bounds.flash([]), "without layers"),
    ],
)  # fmt: skip
def test_bad_numbers_are_refused_with_their_values(call, why):
    with pytest.raises(ValueError, match=why):
        call()


def test_a_candidate_is_judged_at_every_level():
    einsum = bounds.matmul(1, 4096, 4096, a=2, w=0.5, c=2)
    least = einsum.algorithmic_minimum
    ruler = bounds.Ruler(einsum, [bounds.Level("L2", 50e6, 1, 4e12)], 1e15)
    verdict = ruler.judge([1.25 * least])
    assert verdict.levels[0].fraction_of_bound == 0.8 and verdict.binding == "L2"
    assert verdict.prunes(0.9 * verdict.seconds) and not verdict.prunes(1.1 * verdict.seconds)
    assert ruler.finished(1.01 * ruler.floor_seconds) and not ruler.finished(1.0)
    assert "80.0 % of it needed" in str(verdict)
    with pytest.raises(ValueError, match="less than the"):
        ruler.judge([0.5 * least])


def test_a_roof_is_flat_at_the_peak():
    einsum = bounds.matmul(4096, 4096, 4096)
    curve = bounds.ski_slope(einsum, **PAPER)
    rates = {"operations_per_second": 1e12, "bytes_per_second": 1e9}
    assert bounds.intensity(curve, einsum.operations, 1e9) == pytest.approx(2730.33, abs=0.005)
    assert bounds.performance(curve, einsum.operations, 1e9, **rates) == 1e12
    assert bounds.performance(curve, einsum.operations, 100, **rates) < 1e12


def test_block_of_gpt3_halves_and_more_as_published():
    chain, side = bounds.gpt3_6_7b()
    apart = bounds.sum([bounds.unfused(chain), bounds.unfused(side)])
    best = bounds.sum([bounds.segmented(chain, accounting="paper"), bounds.unfused(side)])
    assert apart.at(50 * 2**20) / best.at(50 * 2**20) == pytest.approx(2.531, abs=5e-4)
    parts = bounds.best_segments(chain, 50 * 2**20, accounting="paper")
    assert [part.layers for part in parts] == [["q"], ["qk", "qkv"], ["o"], ["fc1", "fc2"]]
