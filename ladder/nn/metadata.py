# SPDX-License-Identifier: Apache-2.0
"""The type of ``ladder.Linear.weight``: shape, dtype and device of a dense weight, no elements.

Frameworks ask a linear layer for ``weight.dtype`` or ``weight.shape`` and get the answer. Code that
computes with the weight would get wrong numbers from any stand-in, so it gets an error.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from ladder.errors import Unsupported

#: Methods of Tensor, and functions of torch, that read no element.
_ANSWERS = frozenset({
    "__format__", "__hash__", "__len__", "dim", "element_size", "get_device", "is_complex",
    "is_contiguous", "is_floating_point", "is_inference", "is_signed", "ndimension", "nelement",
    "numel", "size", "storage_offset", "stride", "type",
})  # fmt: skip
#: Those that give tensors of their own, of this one's shape, dtype or device.
_MAKERS = frozenset({
    "empty_like", "full_like", "new_empty", "new_full", "new_ones", "new_tensor", "new_zeros",
    "ones_like", "rand_like", "randn_like", "zeros_like",
})  # fmt: skip
#: Those that give the same metadata again.
_SAME = frozenset({"detach", "detach_", "data"})


class WeightMetadata(Tensor):
    """A tensor without storage. Whatever would read or write an element raises Unsupported."""

    #: Keeps transformers from initialising what some models ask their children for, as GPT-2 does.
    _is_hf_initialized = True

    @staticmethod
    def __new__(cls, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Any:
        return Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self._asked = torch.Size(shape), dtype, device

    # What models ask in every forward pass: a twentieth of the time that __torch_function__ takes.
    shape = property(lambda self: self._asked[0])
    dtype = property(lambda self: self._asked[1])
    device = property(lambda self: self._asked[2])

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        got = name == "__get__"
        if got:  # of a property, which has the name
            name = func.__self__.__name__
        first = args[0] if args else None
        if name in _SAME and isinstance(first, cls):
            return first
        with torch._C.DisableTorchFunctionSubclass():
            if name in _MAKERS and isinstance(first, cls):
                stand_in = torch.empty((), dtype=first.dtype, device=first.device)
                return func(stand_in.expand(first.shape), *args[1:], **kwargs)
            asked = name != "type" or (len(args) == 1 and not kwargs)  # type(dtype) converts
            if (got or name in _ANSWERS) and asked:
                return func(*args, **kwargs)
            if name == "requires_grad_" and False in (*args[1:], *kwargs.values()):
                return first
            if name == "__set__" and func.__self__.__name__ == "requires_grad" and not args[1]:
                return None
        _refuse(name)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's own says no more of it
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        _refuse(str(func))  # from C++, and views such as .T

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        shape, device = list(self.shape), str(self.device)
        return f"{type(self).__name__}({shape}, dtype={self.dtype}, device={device!r})"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        _refuse("pickle or copy")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        _refuse("deepcopy")


def _refuse(what: str) -> NoReturn:
    raise Unsupported(
        f"{what}: the weight is packed by ladder; what stands for it has a shape, a dtype and a "
        "device, but no elements. Call the module, or layer.dequantize() for a dense one"
    )


def metadata(like: Tensor, n: int, k: int, dtype: torch.dtype) -> Tensor:
    """:class:`WeightMetadata` [n, k] on the device of ``like``; to the compiler a tensor like any
    other, whose elements are asked for, and refused, when the compiled code runs."""
    if torch.compiler.is_compiling():
        return torch.ops.ladder.weight_metadata(like, n, k, dtype)
    return WeightMetadata((n, k), dtype, like.device)


torch.library.define(
    "ladder::weight_metadata", "(Tensor like, int n, int k, ScalarType dtype) -> Tensor"
)


@torch.library.impl("ladder::weight_metadata", "CompositeExplicitAutograd")
def _(like: Tensor, n: int, k: int, dtype: torch.dtype) -> Tensor:
    return WeightMetadata((n, k), dtype, like.device)


@torch.library.register_fake("ladder::weight_metadata")
def _(like: Tensor, n: int, k: int, dtype: torch.dtype) -> Tensor:
    return like.new_empty((n, k), dtype=dtype)
