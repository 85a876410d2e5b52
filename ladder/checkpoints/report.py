# SPDX-License-Identifier: Apache-2.0
"""What writing a model folder did."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ladder.nn.mixed_precision.chosen import ChosenTypes
from ladder.nn.report import Conversion
from ladder.types import TType


@dataclass
class TypeRow:
    """What one tType took of a checkpoint."""

    modules: int = 0
    weights: int = 0  #: numbers, N * K summed
    bytes: int = 0  #: codes, scales, zeros and g_idx

    def add(self, n: int, k: int, nbytes: int) -> None:
        """Count a module of weight [n, k]."""
        self.modules, self.weights, self.bytes = (
            self.modules + 1, self.weights + n * k, self.bytes + nbytes
        )  # fmt: skip


@dataclass
class Report:
    """What ``repack`` or ``convert`` did. ``bytes_before`` and ``bytes_after`` count tensors only.

    ``conversion`` says of every module what became of it; None after ``repack``, which changes no
    weight. ``notes`` are sentences about what is not as in ``source``. ``chosen`` are the types
    that were chosen for a budget of bits.
    """

    source: str
    destination: str
    quant_method: str
    modules: int = 0
    tensors_carried: int = 0  #: copied as they are: embeddings, norms, biases
    files_carried: int = 0
    shards: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    seconds: float = 0.0
    types: dict[str, TypeRow] = field(default_factory=dict)
    conversion: Conversion | None = None
    notes: list[str] = field(default_factory=list)
    chosen: ChosenTypes | None = None

    def row_of(self, ttype: TType) -> TypeRow:
        """The row of a type."""
        return self.types.setdefault(str(ttype), TypeRow())

    @property
    def done(self) -> int:
        """Modules in all rows."""
        return sum(row.modules for row in self.types.values())

    def to_dict(self) -> dict[str, Any]:
        chosen = None if self.chosen is None else self.chosen.to_dict()
        return asdict(replace(self, chosen=None)) | {"chosen": chosen}
