# SPDX-License-Identifier: Apache-2.0
"""How little data a computation can move between a memory and a buffer of a given size.

The model is that of Orojenesis (Huang et al., ISCA 2024): a *ski slope* gives the least traffic of
any mapping against the size of the buffer. Everything is in bytes, so narrow weights move it::

    from ladder import bounds
    einsum = bounds.matmul(16, 4096, 4096, a="float16", w="uint4,group=128,scale=float16")
    curve = bounds.ski_slope(einsum)
    curve.at(50 * 2**20), bounds.lower_bound(einsum, 50 * 2**20)

Only :func:`lower_bound` holds for every schedule; a curve is the best of the mappings of its space.
docs/bounds.md explains the numbers; docs/bounds/ has the pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from ladder._C import bounds as _native
from ladder.errors import InvalidArgument
from ladder.types import parse

AreaModel: TypeAlias = _native.AreaModel
Bytes: TypeAlias = _native.Bytes
Curve: TypeAlias = _native.Curve
Einsum: TypeAlias = _native.Einsum
Layer: TypeAlias = _native.Layer
Provision: TypeAlias = _native.Provision
Verdict: TypeAlias = _native.Verdict

#: What describes an element: bytes, the name of a format, or both sizes by themselves.
Width = float | str | Bytes


class Mapping(NamedTuple):
    """A point of a curve and how to attain it."""

    buffer_bytes: float
    traffic_bytes: float
    tile: dict[str, int]  #: elements of each rank in the buffer at once
    order: list[str]  #: loops over tiles, outermost first


class Segment(NamedTuple):
    """Consecutive layers of a chain that are fused."""

    layers: list[str]
    traffic_bytes: float


def width(spec: Width, n: int = 4096, k: int = 4096, *, buffer: Width | None = None) -> Bytes:
    """Bytes of one element of an [n, k] matrix.

    Args:
        spec: bytes (2, 0.5), a tType ("float16", "uint4,group=128,scale=float16", "mxfp4"), whose
            scales and zeros are shared out among the elements, or Bytes, returned as they are.
        n, k: the shape, for scales that end with a row.
        buffer: the same for an element in the buffer, such as "float32" for an accumulator; as
            stored if left out.
    Raises:
        ValueError: no such format, or not a positive number of bytes.
    """
    if isinstance(spec, _native.Bytes):
        return spec
    if isinstance(spec, str):
        ttype = parse(spec)
        store, code = ttype.bits_per_weight(n, k) / 8, ttype.bits / 8
    else:
        store = code = float(spec)
    inside = store if buffer is None else width(buffer, n, k).store
    return Bytes(store, inside, code)


def _widths(
    a: Width, w: Width, c: Width, n: int, k: int, accumulator: Width | None
) -> tuple[Bytes, Bytes, Bytes]:
    return width(a), width(w, n, k), width(c, buffer=accumulator)


def matmul(
    m: int, n: int, k: int, *, a: Width = 1, w: Width = 1, c: Width = 1,
    accumulator: Width | None = None,
) -> Einsum:  # fmt: skip
    """``c[m, n] = sum_k a[m, k] w[n, k]``. ``accumulator``: elements of c in the buffer."""
    return _native.matmul(m, n, k, *_widths(a, w, c, n, k, accumulator))


def batched_matmul(
    heads: int, m: int, n: int, k: int, *, a: Width = 1, w: Width = 1, c: Width = 1,
    accumulator: Width | None = None,
) -> Einsum:  # fmt: skip
    """``heads`` independent matmuls."""
    return _native.batched_matmul(heads, m, n, k, *_widths(a, w, c, n, k, accumulator))


def grouped_matmul(
    heads: int, groups: int, m: int, n: int, k: int, *, a: Width = 1, w: Width = 1, c: Width = 1,
    accumulator: Width | None = None,
) -> Einsum:  # fmt: skip
    """Matmuls of which each group of ``heads // groups`` shares one w: grouped-query attention;
    ``groups=1`` is multi-query."""
    return _native.grouped_matmul(heads, groups, m, n, k, *_widths(a, w, c, n, k, accumulator))


def conv2d(
    *, in_channels: int, out_channels: int, height: int, width: int, kernel_height: int = 1,
    kernel_width: int = 1, stride: int = 1, dilation: int = 1, batch: int = 1, a: Width = 1,
    w: Width = 1, c: Width = 1, accumulator: Width | None = None,
) -> Einsum:  # fmt: skip
    """A convolution with an output of ``height`` x ``width``, padding part of the input."""
    sizes = [batch, in_channels, out_channels, height, width, kernel_height, kernel_width, stride]
    reduction = in_channels * kernel_height * kernel_width
    widths = _widths(a, w, c, out_channels, max(reduction, 1), accumulator)
    return _native.conv2d([*sizes, dilation], *widths)


def conv1d(
    *, in_channels: int, out_channels: int, width: int, kernel_width: int = 1, stride: int = 1,
    dilation: int = 1, batch: int = 1, a: Width = 1, w: Width = 1, c: Width = 1,
    accumulator: Width | None = None,
) -> Einsum:  # fmt: skip
    """A convolution along one axis with an output of ``width``."""
    sizes = [batch, in_channels, out_channels, width, kernel_width, stride, dilation]
    reduction = max(in_channels * kernel_width, 1)
    return _native.conv1d(sizes, *_widths(a, w, c, out_channels, reduction, accumulator))


def einsum(text: str, sizes: dict[str, int], bytes: dict[str, Width] | None = None) -> Einsum:
    """Any Einsum of up to 7 ranks, from its definition.

    ``einsum("i[c, 2*p+r] * w[k, c, r] -> o[k, p]", {"c": 64, "p": 16, "r": 3, "k": 64})`` is a
    convolution of stride 2. ``bytes`` gives the width of tensors that are not 1 byte.

    Raises:
        ValueError: the text is not such a definition, or a rank has no size.
    """
    from ladder.bounds.notation import tensors

    widths = bytes or {}
    names = list(sizes)
    rows = []
    for name, axes in tensors(text):
        for axis in axes:
            for rank, _ in axis:
                if rank not in sizes:
                    raise InvalidArgument(f"rank {rank} of tensor {name} has no size")
        numbered = [[(names.index(rank), c) for rank, c in axis] for axis in axes]
        rows.append((name, numbered, width(widths.get(name, 1))))
    return Einsum(list(sizes.items()), rows)


def _choice(enum: Any, what: str, name: str) -> Any:
    choices = enum.__members__
    if name not in choices:
        raise InvalidArgument(f"{what} is {name!r}, not one of {', '.join(choices)}")
    return choices[name]


def ski_slope(einsum: Einsum, *, factors: str = "integers", space: str = "streaming") -> Curve:
    """Least traffic of any mapping, for every buffer.

    Args:
        factors: tile sizes: "divisors" of each rank, as in the paper, or "integers", every number
            of blocks.
        space: what must be in the buffer: "uniform", whole tiles of all tensors, as in the paper;
            "streaming": tensors that nothing reuses pass through.
    """
    return _native.ski_slope(einsum, *_space(factors, space))


def best_mappings(
    einsum: Einsum, *, factors: str = "integers", space: str = "streaming"
) -> list[Mapping]:
    """The points of :func:`ski_slope`, each with tiles and loops that attain it."""
    return [Mapping(*row) for row in _native.best_mappings(einsum, *_space(factors, space))]


def _space(factors: str, space: str) -> tuple[Any, Any]:
    return (
        _choice(_native.Factors, "factors", factors),
        _choice(_native.Space, "space", space),
    )


def lower_bound(einsum: Einsum, capacity_bytes: float, *, buffers: int = 1) -> float:
    """Bytes that any schedule whatever moves into and out of ``buffers`` private buffers of
    ``capacity_bytes`` each, any order, any replacement, recomputation excluded."""
    return _native.lower_bound(einsum, capacity_bytes, buffers)


def sum(curves: Sequence[Curve]) -> Curve:
    """Problems one after the other, each with the whole buffer."""
    return _native.sum(list(curves))


def envelope(curves: Sequence[Curve]) -> Curve:
    """The better of several ways to do the same, at every size."""
    return _native.envelope(list(curves))


def layer(
    name: str, *, m: int, k: int, n: int, heads: int = 1, batch: int = 1, after: str = "nothing",
    activation: Width = 2, weight: Width = 2,
) -> Layer:  # fmt: skip
    """One matmul of a chain: ``output[m, n] = input[m, k] weight[k, n]`` for each of ``heads``.

    Args:
        m: rows of all sequences together.
        batch: distinct weights along m, as the keys of each sequence are.
        after: "softmax" and "layer_norm" limit how the output may be cut: see docs/bounds.md.
    """
    following = _choice(_native.After, "after", after)
    widths = width(activation).store, width(weight, n, k).store
    return Layer(name, m, k, n, heads, batch, following, *widths)


def _accounting(name: str) -> Any:
    return _choice(_native.Accounting, "accounting", name)


def unfused(chain: Sequence[Layer], *, together: bool = False) -> Curve:
    """Layers one after the other; heads one after the other, or ``together``, side by side."""
    return _native.unfused(list(chain), together)


def untiled(chain: Sequence[Layer]) -> Curve:
    """Intermediate tensors whole in the buffer."""
    return _native.untiled(list(chain))


def fused(chain: Sequence[Layer], *, accounting: str = "sound") -> Curve:
    """The whole chain, one tile of rows after another. ``accounting="paper"`` counts buffers as
    published, which leaves out tiles that are needed again."""
    return _native.fused(list(chain), _accounting(accounting))


def flat(pair: Sequence[Layer], *, accounting: str = "sound") -> Curve:
    """Two layers with whole rows of the intermediate (FLAT), all heads at once."""
    return _native.flat(list(pair), _accounting(accounting))


def flash(pair: Sequence[Layer], *, accounting: str = "sound") -> Curve:
    """Two layers, blocks of columns of the intermediate outermost (FlashAttention)."""
    return _native.flash(list(pair), _accounting(accounting))


def segmented(chain: Sequence[Layer], *, accounting: str = "sound") -> Curve:
    """The best cut of the chain into fused segments, for every buffer."""
    return _native.segmented(list(chain), _accounting(accounting))


def best_segments(
    chain: Sequence[Layer], buffer_bytes: float, *, accounting: str = "sound"
) -> list[Segment]:
    """The cut that :func:`segmented` takes at ``buffer_bytes``."""
    names = [each.name for each in chain]
    rows = _native.best_segments(list(chain), buffer_bytes, _accounting(accounting))
    return [Segment(names[first : first + count], traffic) for first, count, traffic in rows]


def chain_minimum(chain: Sequence[Layer], *, fused: bool = False) -> float:
    """Each tensor moved once, in bytes; with ``fused`` the intermediate ones not at all."""
    return (_native.fused_minimum if fused else _native.chain_minimum)(list(chain))


def chain_operations(chain: Sequence[Layer]) -> float:
    """Multiplications and additions of a chain."""
    return _native.chain_operations(list(chain))


def gpt3_6_7b() -> tuple[list[Layer], list[Layer]]:
    """A block of GPT-3 6.7B with 16 sequences of 2048, as in the paper's Figs. 21 to 23: the chain,
    and the k and v projections beside it."""
    return _native.gpt3_6_7b_chain(), _native.gpt3_6_7b_side()


#: Operations of that block as the paper's Fig. 23 counts them.
GPT3_BLOCK_OPERATIONS = _native.GPT3_BLOCK_OPERATIONS


def intensity(curve: Curve, operations: float, buffer_bytes: float) -> float:
    """Operations per byte moved with the best mapping in the buffer: the mesa of the paper."""
    return operations / curve.at(buffer_bytes)


def performance(
    curve: Curve, operations: float, buffer_bytes: float, *, operations_per_second: float,
    bytes_per_second: float,
) -> float:  # fmt: skip
    """min(peak, intensity x bandwidth) in operations per second: the roof over any mapping."""
    rates = operations_per_second, bytes_per_second
    return _native.performance(curve, operations, *rates, buffer_bytes)


def paper_area() -> AreaModel:
    """The chip of the paper's Fig. 23. It counts one operation for a multiplication."""
    return _native.paper_area()


def provisions(
    curve: Curve, operations: float, area: AreaModel, *, samples: int = 100
) -> list[Provision]:
    """Rates of a chip for buffers from the smallest useful one to the whole area."""
    return _native.provisions(curve, operations, area, samples)


def best_provision(provisions: Sequence[Provision]) -> Provision:
    """The one with the highest rate."""
    return _native.best_provision(list(provisions))


def balanced_provision(provisions: Sequence[Provision]) -> Provision:
    """The first at which memory is no slower than arithmetic: the mark of Fig. 23."""
    return _native.balanced_provision(list(provisions))


class Level(NamedTuple):
    """A memory level; its traffic is that with the next level out."""

    name: str
    capacity_bytes: float  #: of one instance
    instances: int  #: private buffers that share the work: SMs; 1 for a shared cache
    bytes_per_second: float  #: into all instances together


#: What is possible for one Einsum on a machine of some levels, computed once:
#: ``Ruler(einsum, levels, operations_per_second).judge([traffic at each level])`` says how much of
#: a candidate's traffic was needed, what binds it, and how fast any could be.
Ruler: TypeAlias = _native.Ruler
