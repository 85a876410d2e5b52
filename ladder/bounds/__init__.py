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
from ladder.bounds.einsums import Bytes as Bytes
from ladder.bounds.einsums import Einsum as Einsum
from ladder.bounds.einsums import Width as Width
from ladder.bounds.einsums import batched_matmul as batched_matmul
from ladder.bounds.einsums import conv1d as conv1d
from ladder.bounds.einsums import conv2d as conv2d
from ladder.bounds.einsums import einsum as einsum
from ladder.bounds.einsums import grouped_matmul as grouped_matmul
from ladder.bounds.einsums import matmul as matmul
from ladder.bounds.einsums import width as width
from ladder.errors import InvalidArgument

AreaModel: TypeAlias = _native.AreaModel
Curve: TypeAlias = _native.Curve
Layer: TypeAlias = _native.Layer
Provision: TypeAlias = _native.Provision
Verdict: TypeAlias = _native.Verdict


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
