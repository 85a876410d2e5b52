# SPDX-License-Identifier: Apache-2.0
"""``FlashAtten``: attention through torch's own fused kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ladder.bitblas.config import TORCH_DTYPES, OperatorConfig
from ladder.bitblas.operator import Operator
from ladder.errors import InvalidArgument


@dataclass(frozen=True)
class FlashAttenConfig(OperatorConfig):
    """Shapes and dtypes of ``softmax(Q K^T / sqrt(dim)) V``.

    Q, K, V and the result are [batch, seq_len, heads, dim]; with layout "ntn" K is
    [batch, dim, heads, seq_len]. ``kv_heads`` may divide ``heads`` (grouped queries). A size that
    is None may be any.
    """

    batch: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    seq_len: int | None = None
    dim: int | None = None
    Q_dtype: str = "float16"
    K_dtype: str = "float16"
    V_dtype: str = "float16"
    Accu_dtype: str = "float32"
    Out_dtype: str = "float16"
    layout: str = "nnn"
    is_causal: bool = False

    def __post_init__(self) -> None:
        if self.layout not in ("nnn", "ntn"):
            raise InvalidArgument(f'layout is "{self.layout}", not nnn or ntn')
        for name in ("Q_dtype", "K_dtype", "V_dtype", "Out_dtype"):
            if getattr(self, name) not in TORCH_DTYPES:
                raise InvalidArgument(f'{name} is "{getattr(self, name)}", not a torch dtype')


class FlashAtten(Operator):
    """Attention over whole sequences, as :class:`FlashAttenConfig` says."""

    def __init__(
        self,
        config: FlashAttenConfig,
        name: str = "flashatten",
        target: str | None = None,
        enable_tuning: bool = False,
        from_database: bool = False,
        backend: str = "tl",
    ) -> None:
        super().__init__(name, config, target)

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, output: Tensor | None = None) -> Tensor:
        """[batch, seq_len, heads, dim] in ``Out_dtype``; written to ``output`` when given."""
        config = self.config
        for name, tensor in (("Q", Q), ("K", K), ("V", V)):
            wanted = TORCH_DTYPES[getattr(config, f"{name}_dtype")]
            if tensor.dim() != 4 or tensor.dtype != wanted:
                raise InvalidArgument(
                    f"{name} has {tensor.dim()} dimensions and dtype {tensor.dtype}, not 4 and "
                    f"{wanted}"
                )
        if config.layout == "ntn":
            K = K.transpose(1, 3)
        kv_heads = config.kv_heads or config.heads
        for name, tensor, heads in (("Q", Q, config.heads), ("K", K, kv_heads), ("V", V, kv_heads)):
            sizes = (config.batch, config.seq_len, heads, config.dim)
            if any(w is not None and w != s for w, s in zip(sizes, tensor.shape, strict=True)):
                raise InvalidArgument(f"{name} has shape {list(tensor.shape)}, not {list(sizes)}")
        kind = Q.dtype if Q.is_floating_point() else torch.float32
        q, k, v = (t.transpose(1, 2).to(kind) for t in (Q, K, V))
        result = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=config.is_causal, enable_gqa=q.shape[1] != k.shape[1]
        )
        result = result.transpose(1, 2).to(TORCH_DTYPES[config.Out_dtype])
        return result if output is None else output.copy_(result)

    def get_source(self, target: str | None = None, kenrel_only: bool = False) -> str:
        return f"// torch.nn.functional.scaled_dot_product_attention on {target or self.target}\n"
