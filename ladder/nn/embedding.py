# SPDX-License-Identifier: Apache-2.0
"""``ladder.Embedding``: a drop-in for ``torch.nn.Embedding`` whose weight is packed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from torch import Tensor, nn

from ladder import ops
from ladder.errors import InvalidArgument, Unsupported
from ladder.nn.arguments import check_integers
from ladder.nn.metadata import metadata
from ladder.nn.packed import OF_X, PackedModule
from ladder.nn.select_embedding import objection, rows_objection
from ladder.ops.transforms import check_tensor
from ladder.quantization import quantize
from ladder.types import TType, dtype_name, with_defaults
from ladder.weight import PARTS, Weight, parts_of_rows

if TYPE_CHECKING:
    from typing_extensions import Self

#: What accelerate puts on a module, and takes off again.
_OF_ACCELERATE = ("_hf_hook", "_old_forward", "forward")
#: Dictionaries of a module whose entries are looked at one by one.
_HOLDERS = ("_parameters", "_buffers", "_modules")


class Embedding(PackedModule, nn.Embedding):
    """``torch.nn.Embedding`` with the weight [V, K] stored as its tType says: each call decodes the
    rows that it is asked for.

    The parts of the weight are buffers as those of :class:`ladder.Linear`. Rows stay in their
    canonical form on every device: there are no kernels, and nothing to warm up. In the place of a
    subclass of ``nn.Embedding`` whose ``forward`` goes on with what ``super().forward`` gives
    (Gemma's scaled embedding) is an instance of both classes, see :meth:`in_place_of`.

    Args:
        num_embeddings: V.
        embedding_dim: K.
        padding_idx: as ``nn.Embedding``; it decides nothing, because packed rows have no gradients.
        weight_type, group_size, symmetric: as :class:`ladder.Linear`, of a type whose rows have
            scales of their own.
        dtype: of the result, and of ``.weight`` as other code sees it; casting the module changes
            it.
    Raises:
        InvalidArgument: a size that is not positive, a ``padding_idx`` out of range, an unknown
            type, or one with a scale for several rows.
    """

    #: The class in whose place it is.
    _dense_class: type[nn.Embedding] = nn.Embedding
    max_norm: None
    dtype: torch.dtype

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        weight_type: str | TType = "uint4",
        group_size: int | None = None,
        symmetric: bool | None = None,
        *,
        act_order: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = {"num_embeddings": num_embeddings, "embedding_dim": embedding_dim}
        if any(isinstance(size, bool) for size in sizes.values()):
            raise InvalidArgument(
                f"num_embeddings is {num_embeddings} and embedding_dim {embedding_dim}, not both "
                "integers"
            )
        check_integers(**sizes)
        if num_embeddings < 1 or embedding_dim < 1:
            raise InvalidArgument(
                f"num_embeddings is {num_embeddings} and embedding_dim {embedding_dim}, not both "
                "positive"
            )
        if padding_idx is not None:
            check_integers(padding_idx=padding_idx)
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise InvalidArgument(
                    f"padding_idx is {padding_idx}, and there are {num_embeddings} rows"
                )
            padding_idx %= num_embeddings
        ttype = with_defaults(weight_type, group_size=group_size, symmetric=symmetric)
        if why := rows_objection(ttype):
            raise InvalidArgument(why)
        dtype = dtype or torch.get_default_dtype()
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise InvalidArgument(f"dtype is {dtype!r}, not a floating-point one of torch's")
        PackedModule.__init__(self, embedding_dim, num_embeddings, ttype, act_order, device, dtype)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx: Any = padding_idx
        self.max_norm, self.norm_type = None, 2.0
        self.scale_grad_by_freq = self.sparse = False

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises Unsupported: it is ``nn.Embedding``'s, of dense values."""
        raise Unsupported(
            "ladder.Embedding has no from_pretrained: quantise with "
            "ladder.Embedding.from_embedding(nn.Embedding.from_pretrained(values), ...)"
        )

    @classmethod
    def from_weight(
        cls, weight: Weight, padding_idx: int | None = None, *, dtype: torch.dtype | None = None
    ) -> Self:
        """A module that holds ``weight`` [V, K] (not a copy)."""
        act_order = weight.g_idx is not None
        module = cls(
            *weight.shape, padding_idx, weight.type, act_order=act_order, device="meta", dtype=dtype
        )
        module.set_weight(weight)
        return module

    @classmethod
    def from_embedding(
        cls,
        embedding: nn.Module,
        weight_type: str | TType = "uint4",
        group_size: int | None = None,
        symmetric: bool | None = None,
        *,
        method: str = "search",
    ) -> Self:
        """Quantise an ``nn.Embedding``; arguments as :func:`ladder.quantize`.

        Raises:
            InvalidArgument: ``embedding`` is something else, its weight is not finite, or the type
                has a scale for several rows.
            Unsupported: ``embedding`` does more than giving rows; the message says what.
        """
        if isinstance(embedding, PackedModule):
            raise InvalidArgument(
                f"embedding is packed already, as {embedding.weight_type}: quantise "
                "embedding.dequantize()"
            )
        if not isinstance(embedding, nn.Embedding):
            raise InvalidArgument(f"embedding is of {type(embedding).__name__}, not nn.Embedding")
        ttype = with_defaults(weight_type, group_size=group_size, symmetric=symmetric)
        if why := rows_objection(ttype):
            raise InvalidArgument(why)
        if why := objection(embedding, loaded=True):
            raise Unsupported(f"the embedding cannot be packed: {why}")
        return cls.in_place_of(embedding, quantize(embedding.weight, ttype, method=method))

    @classmethod
    def in_place_of(cls, embedding: nn.Embedding, weight: Weight) -> Self:
        """A module that holds ``weight`` (not a copy), else as ``embedding``. Of a subclass of
        ``nn.Embedding`` it is an instance of that, too, with the other attributes, buffers and
        modules that ``embedding`` has (not copies).

        Raises InvalidArgument where ``weight`` has another shape than that of ``embedding``."""
        shape = (embedding.num_embeddings, embedding.embedding_dim)
        if weight.shape != shape:
            raise InvalidArgument(f"weight is {list(weight.shape)}, not {list(shape)}")
        module: Any = object.__new__(packed_class(type(embedding), cls))
        Embedding.__init__(
            module, *shape, embedding.padding_idx, weight.type,
            act_order=weight.g_idx is not None, device="meta", dtype=embedding.weight.dtype,
        )  # fmt: skip
        module.set_weight(weight)
        module.scale_grad_by_freq = embedding.scale_grad_by_freq  # of what dequantize gives
        _carry(embedding, module, ("weight", *_OF_ACCELERATE))
        made: Self = module.train(embedding.training)
        return made

    def dequantize(self, dtype: torch.dtype | None = None) -> nn.Embedding:
        """An ``nn.Embedding`` with the weight's values, in ``self.dtype`` unless given; of the
        class in whose place this module is."""
        dense: nn.Embedding = object.__new__(self._dense_class)
        nn.Embedding.__init__(
            dense, self.num_embeddings, self.embedding_dim, self.padding_idx,
            norm_type=self.norm_type, scale_grad_by_freq=self.scale_grad_by_freq,
            _weight=self.packed_weight.dequantize(dtype or self.dtype),
        )  # fmt: skip
        _carry(self, dense, (*_own_names(), *_OF_ACCELERATE))
        return dense.train(self.training)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """Shape [V, K], dtype and device of the dense weight; no elements, as
        :attr:`ladder.Linear.weight`."""
        return metadata(self.qweight, self.num_embeddings, self.embedding_dim, self.dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Values of the rows ``input``, bit by bit ``packed_weight.dequantize(dtype)[input]``.

        Args:
            input: int32 or int64, any shape, on the device of the weight.
        Returns:
            [*input.shape, K] of :attr:`dtype`, without gradients.
        Raises:
            InvalidArgument: ``input`` is no tensor of these dtypes.
            IndexError: a row that is not there, as from ``nn.Embedding``, on the CPU; other devices
                raise later what they raise for ``nn.Embedding``.
        """
        check_tensor(input, "input")
        if input.dtype not in (torch.int32, torch.int64):
            raise InvalidArgument(f"input has dtype {dtype_name(input.dtype)}, not int32 or int64")
        rows = input.reshape(-1)
        scale2 = self.scale2
        if "scale2" in parts_of_rows(self.weight_type):
            scale2 = _rows(scale2, rows)
        values = ops.dequantize(
            self.qweight.index_select(0, rows),
            self._type_text,
            self.embedding_dim,
            scales=_rows(self.scales, rows),
            zeros=_rows(self.zeros, rows),
            scale2=scale2,
            g_idx=self.g_idx,
        )
        return values.to(self.dtype).view(*input.shape, self.embedding_dim)

    def prepare(self, numbered: Callable[[int], object] | None = None) -> bool:
        """Nothing: there are no kernels that read rows. Returns False."""
        return False

    def reset_parameters(self) -> None:
        """Raises Unsupported: a packed weight is not drawn anew."""
        raise Unsupported(f"the weight is packed, as {self._type_text}, and cannot be drawn anew")

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        if self.padding_idx is not None:
            text += f", padding_idx={self.padding_idx}"
        return f"{text}, weight_type={self._type_text}"

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, *args: Any, **kwargs: Any
    ) -> None:
        for name in OF_X:
            if prefix + name in state_dict:
                raise InvalidArgument(f"{prefix}{name} is of a linear layer: embeddings have no x")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if type(self).__dict__.get("_made_of") is None:
            return super().__reduce_ex__(protocol)
        return _empty, type(self).__dict__["_made_of"], self.__getstate__()


def packed_class(kind: Any, base: type[Embedding] = Embedding) -> type[Embedding]:
    """The class, derived from ``base``, of what is in the place of an embedding of class
    ``kind``."""
    of: Any = base
    made: type[Embedding] = of if kind is nn.Embedding else _made_class(kind, of)
    return made


@functools.cache
def _made_class(kind: Any, base: Any) -> Any:
    fields = {
        "__module__": __name__,
        "__doc__": f"{kind.__name__} whose weight is packed.",
        "_dense_class": kind,
        "_made_of": (kind, base),
    }
    return type(f"Packed{kind.__name__}", (kind, base), fields)


def _empty(kind: Any, base: type[Embedding]) -> Embedding:
    """A module for a copy or a pickle to fill."""
    return object.__new__(packed_class(kind, base))


def _rows(part: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if part is None else part.index_select(0, rows)


@functools.cache
def _own_names() -> frozenset[str]:
    """What a packed embedding has as such."""
    packed = Embedding(1, 32, device="meta")
    packed._restore()
    return frozenset(vars(packed)) | {*PARTS, *OF_X, "image"}


def _carry(source: nn.Module, target: nn.Module, without: Collection[str]) -> None:
    """Give ``target`` the attributes, parameters, buffers and modules that ``source`` has more, but
    those ``without``."""
    for name, value in vars(source).items():
        if name not in without and name not in vars(target):
            target.__dict__[name] = value
    for holder in _HOLDERS:
        own = cast("dict[str, Any]", getattr(target, holder))
        for name, value in getattr(source, holder).items():
            if name not in without and name not in own:
                own[name] = value
    names = source._non_persistent_buffers_set - {*without}
    target._non_persistent_buffers_set |= names
