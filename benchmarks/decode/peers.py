# SPDX-License-Identifier: Apache-2.0
"""Other kernels for linear layers, asked through their own public calls.

A peer that is not installed, or refuses the problem, is absent with a reason. One that is there is
first checked, exactly: on tokens with one element, which pick columns of the weight and so find
every code and scale that lies in a wrong place, and on tokens with 16 elements of 1 or -1 spread
over K, with scales that are the same along K. All values and all sums of these are integers below
2**8 times a power of two, which floats of 16 bits hold, so the order of summation does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks import graph
from benchmarks.decode.bench import DTYPES, LAUNCHES

#: Codes 0 to 15 that mean -8 to 7, in groups of 128 columns.
BITS, GROUP, ZERO = 4, 128, 8

#: ``call(x, *tensors)`` is what is timed.
Layer = tuple[Callable[..., Tensor], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Peer:
    name: str
    what: str  #: of the weight
    activation: str  #: "f16" or "bf16"
    #: Of codes [N, K] uint8 and scales [N, K / 128] in the dtype of the activations.
    layer: Callable[[Tensor, Tensor], Layer]
    grouped: bool = True  #: False: one scale a row, the first
    tunes: bool = False  #: takes seconds for each problem and number of tokens


def _dense(codes: Tensor, scales: Tensor) -> Layer:
    groups = (codes.to(scales.dtype) - ZERO).view(len(codes), -1, GROUP)
    weight = (groups * scales[:, :, None]).view(codes.shape)
    return torch.nn.functional.linear, (weight,)


def _tinygemm(codes: Tensor, scales: Tensor) -> Layer:
    """Two codes a byte; beside each scale, what is added to the value."""
    pairs = codes[:, ::2] << 4 | codes[:, 1::2]
    weight = torch.ops.aten._convert_weight_to_int4pack(pairs, 8)
    both = torch.stack((scales, torch.zeros_like(scales)), -1).transpose(0, 1).contiguous()

    def call(x: Tensor, weight: Tensor, both: Tensor) -> Tensor:
        return torch.ops.aten._weight_int4pack_mm(x, weight, GROUP, both)

    return call, (weight, both)


def _int8(codes: Tensor, scales: Tensor) -> Layer:
    weight = codes.to(torch.int8) - ZERO
    return torch.ops.aten._weight_int8pack_mm, (weight, scales[:, 0].contiguous())


def _float8(codes: Tensor, scales: Tensor) -> Layer:
    """Activations of 8 bits, too, cut without looking for a scale of theirs."""
    weight = (codes.to(torch.float16) - ZERO).to(torch.float8_e4m3fn)

    def call(x: Tensor, weight: Tensor, scales: Tensor, one: Tensor) -> Tensor:
        narrow = x.to(torch.float8_e4m3fn)
        return torch._scaled_mm(narrow, weight.t(), one[: len(x)], scales, out_dtype=torch.bfloat16)

    one = torch.ones((16, 1), device=codes.device)
    return call, (weight, scales[None, :, 0].float().contiguous(), one)


def _gemlite(codes: Tensor, scales: Tensor) -> Layer:
    from gemlite import forward_functional
    from gemlite.helper import A16Wn

    packer = A16Wn(device=codes.device, dtype=scales.dtype)
    zeros = torch.full_like(scales, ZERO)
    packed = packer.from_weights(codes, scales, zeros, W_nbits=BITS, group_size=GROUP)
    meta = packed.get_meta_args()

    def call(x: Tensor, *tensors: Tensor) -> Tensor:
        return forward_functional(x, None, list(tensors), meta)

    return call, tuple(packed.get_tensor_args())


PEERS = (
    Peer("cuBLAS fp16", "float16", "f16", _dense),
    Peer("GemLite", "uint4, groups of 128", "f16", _gemlite, tunes=True),
    Peer("cuBLAS bf16", "bfloat16", "bf16", _dense),
    Peer("tinygemm", "uint4, groups of 128", "bf16", _tinygemm),
    Peer("torch int8", "int8, a scale a row", "bf16", _int8, grouped=False),
    Peer(
        "torch fp8",
        "float8_e4m3fn as the activations, a scale a row",
        "bf16",
        _float8,
        grouped=False,
    ),
)


def _codes(n: int, k: int) -> Tensor:
    return torch.randint(0, 2**BITS, (n, k), dtype=torch.uint8, device="cuda")


def check(peer: Peer, n: int, k: int, tokens: int) -> None:
    """Raises AssertionError where a result is not exact."""
    dtype = DTYPES[peer.activation]
    codes = _codes(n, k)
    powers = 2.0 ** -torch.randint(0, 3, (n, k // GROUP), device="cuda").to(dtype)
    same = powers[:, :1].expand(n, k // GROUP).contiguous()
    columns = torch.randint(0, k, (tokens, 1), device="cuda")
    spread = torch.randint(0, k // 16, (tokens, 16), device="cuda")
    spread += torch.arange(0, k, k // 16, device="cuda")
    for where, scales in ((columns, powers if peer.grouped else same), (spread, same)):
        x = torch.zeros((tokens, k), device="cuda")
        x.scatter_(1, where, torch.randint(0, 2, where.shape, device="cuda") * 2.0 - 1)
        call, tensors = peer.layer(codes, scales)
        value = (codes.float() - ZERO).view(n, -1, GROUP) * scales.float()[:, :, None]
        exact = x.double() @ value.view(n, k).double().t()
        got = call(x.to(dtype), *tensors)
        if not torch.equal(got.double(), exact):
            wrong = (got.double() != exact).sum().item()
            raise AssertionError(f"{wrong} of {exact.numel()} results are wrong")


def layers(peer: Peer, n: int, k: int) -> list[Callable[[Tensor], Tensor]]:
    """Layers of random weights, in memory of their own, which together exceed twice the L2."""
    dtype = DTYPES[peer.activation]
    scales = (torch.rand((n, k // GROUP), device="cuda") * 0.01 + 0.002).to(dtype)
    call, tensors = peer.layer(_codes(n, k), scales)
    nbytes = sum(t.numel() * t.element_size() for t in tensors)
    copies = min(LAUNCHES, max(4, -(-graph.ROTATION_BYTES // nbytes)))
    weights = [tensors] + [tuple(t.clone() for t in tensors) for _ in range(copies - 1)]
    return [lambda x, weight=weight: call(x, *weight) for weight in weights]


def calls_of(
    peer: Peer, layers: Sequence[Callable[[Tensor], Tensor]], k: int, tokens: int
) -> list[Callable[[], Tensor]]:
    """Calls of these layers on random x, for :mod:`benchmarks.graph`."""
    x = torch.randn((tokens, k), device="cuda").to(DTYPES[peer.activation])
    # Of many tokens few calls take as long, and read more than an L2 holds.
    return [partial(layer, x) for layer in layers[: max(4, LAUNCHES * 256 // tokens)]]


def us(peer: Peer, n: int, k: int, tokens: int) -> float:
    """Microseconds a call on random data, by :func:`graph.us`, each call with other memory."""
    return graph.us(calls_of(peer, layers(peer, n, k), k, tokens))


def measure(
    peer: Peer, n: int, k: int, tokens: int, may_tune: bool = True
) -> tuple[float | None, str]:
    """Microseconds, or None and why there are none."""
    if peer.tunes and not may_tune:
        return None, "no time is left for its tuning"
    try:
        check(peer, n, k, tokens)
        return us(peer, n, k, tokens), ""
    except (ImportError, RuntimeError, NotImplementedError, AssertionError, ValueError) as error:
        return None, (str(error).splitlines() or [type(error).__name__])[0]
