# SPDX-License-Identifier: Apache-2.0
"""What engines serve: one model in many forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import foreign
import models

#: What engines are asked for: greedy tokens behind prompts.
TOKENS = 8
PROMPTS = [[1, 5, 9, 100, 7], [3, 4], list(range(20, 60))]


@dataclass
class Case:
    """One engine. ``theirs`` is the folder that it serves; ``ours`` the ladder folder that has the
    same values, for transformers."""

    folders: Callable[[Forms], tuple[Path, Path]]
    words: str = ""  #: of LADDER_VLLM
    options: dict[str, Any] = field(default_factory=dict)
    more: frozenset[str] = frozenset()  #: packed layers besides those of models.LAYERS
    less: frozenset[str] = frozenset()  #: layers that are not packed
    adapter: bool = False  #: with a LoRA adapter on every layer


class Forms:
    """Folders of one model, each made when it is first asked for."""

    def __init__(self, at: Path) -> None:
        self.at, self.made = at, {}
        self.dense = models.dense(at / "dense")

    def ladder(self, type: str, **options: Any) -> Path:
        key = " ".join([type, *map(str, options)]).replace(",", " ")
        if key not in self.made:
            where = self.at / f"form{len(self.made)}"
            self.made[key] = models.converted(self.dense, where, type, **options)
        return self.made[key]

    def adapter(self, case: Case) -> Path | None:
        """The LoRA adapter of a case that has one."""
        if case.adapter and "adapter" not in self.made:
            self.made["adapter"] = models.adapter(case.folders(self)[1], self.at / "adapter")
        return self.made["adapter"] if case.adapter else None

    def other(
        self, kind: Callable[..., foreign.Foreign], bits: int, **how: Any
    ) -> tuple[Path, Path]:
        key = f"{kind.__name__} {bits} {how}"
        if key not in self.made:
            folder = self.at / f"form{len(self.made)}"
            folder.mkdir()
            how |= {} if kind is foreign.awq else {"bits": bits}
            stored = kind(models.MODULES, exponent=-6, **how)
            self.made[key] = models.from_others(self.dense, folder, stored, bits)
        return self.made[key]


def of(type: str, **options: Any) -> Callable[[Forms], tuple[Path, Path]]:
    return lambda forms: (forms.ladder(type, **options),) * 2


def reordered(forms: Forms) -> tuple[Path, Path]:
    if "reordered" not in forms.made:
        source = forms.ladder("uint4", group_size=64)
        forms.made["reordered"] = models.reordered(source, forms.at / "reordered")
    return (forms.made["reordered"],) * 2


def mixed(forms: Forms) -> tuple[Path, Path]:
    """Parts of a fused layer of three types; gate dense beside up; o_proj dense."""
    if "mixed" not in forms.made:
        sources = {"": forms.ladder("uint4", group_size=64), "k_proj": forms.ladder("nvfp4"),
                   "v_proj": forms.ladder("uint3"), "gate_proj": None, "o_proj": None}  # fmt: skip
        forms.made["mixed"] = models.mixed(sources, forms.dense, forms.at / "mixed")
    return (forms.made["mixed"],) * 2


def other(kind: Callable[..., foreign.Foreign], bits: int, **how: Any):
    return lambda forms: forms.other(kind, bits, **how)


def checked(answer: dict[str, Any]) -> dict[str, Any]:
    assert "error" not in answer, f"{answer['error']}\n{answer.get('log', '')}"
    return answer


def check_reads(case: Case, reads: dict[str, int]) -> None:
    """An op of ladder read the codes of each packed layer, and of no other, in each step."""
    layers = {module.rpartition(".")[0] for module in reads}
    assert layers == (models.LAYERS | case.more) - case.less
    assert all(count >= TOKENS for count in reads.values()), reads
