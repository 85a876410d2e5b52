# SPDX-License-Identifier: Apache-2.0
"""What engines serve: one model in many forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import foreign
import models
import torch

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
    layers: frozenset[str] = frozenset(models.LAYERS)  #: packed layers of the model
    adapter: bool = False  #: with a LoRA adapter on every layer
    apart: bool = False  #: the product of gate and up is left to vLLM

    def packed(self) -> frozenset[str]:
        """Names of vLLM's layers that hold packed weights."""
        return (self.layers | self.more) - self.less

    def fused(self) -> int:
        """MLPs whose layer of gate and up gives the product of both."""
        return 0 if self.apart else sum(name.endswith(".gate_up_proj") for name in self.packed())


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

    def mixture(self, kind: str, type: str, **options: Any) -> tuple[Path, Path]:
        """The ladder folder of a mixture of experts."""
        key = f"{kind} {type} {options}"
        if key not in self.made:
            where = self.at / f"form{len(self.made)}"
            self.made[key] = models.converted(self.dense_mixture(kind), where, type, **options)
        return (self.made[key],) * 2

    def dense_mixture(self, kind: str) -> Path:
        if kind not in self.made:
            self.made[kind] = models.mixture(self.at / kind, kind)
        return self.made[kind]

    def other_mixture(
        self, model: str, kind: Callable[..., foreign.Foreign], **how: Any
    ) -> tuple[Path, Path]:
        """A mixture whose experts, and nothing else, are packed by another package."""
        key = f"{model} {kind.__name__} {how}"
        if key not in self.made:
            folder = self.at / f"form{len(self.made)}"
            folder.mkdir()
            dense = self.dense_mixture(model)
            self.made[key] = models.mixture_from_others(dense, folder, kind, **how)
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


def of_8_bits(kind: Callable[..., foreign.Foreign], form: str):
    """Weights of 8 bits of another package, whose config speaks of activations as well."""

    def folders(forms: Forms) -> tuple[Path, Path]:
        key = f"{kind.__name__} {form}"
        if key not in forms.made:
            folder = forms.at / f"form{len(forms.made)}"
            folder.mkdir()
            stored = kind(models.MODULES, form, exponent=-6)
            forms.made[key] = models.repacked_from_others(forms.dense, folder, stored)
        return forms.made[key]

    return folders


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


def mixture(kind: str, type: str, **options: Any) -> Case:
    """Of a mixture of experts with packed weights."""
    return Case(
        lambda forms: forms.mixture(kind, type, **options), layers=models.mixture_layers(kind)
    )


def other_mixture(kind: str, form: Callable[..., foreign.Foreign], **how: Any) -> Case:
    """Of a mixture whose experts another package packed, served as it is."""
    experts = frozenset(n for n in models.mixture_layers(kind) if ".experts." in n)
    return Case(
        lambda forms: forms.other_mixture(kind, form, **how),
        options={"quantization": "ladder"},
        layers=experts,
    )


#: Mixtures of experts.
MIXTURES = {
    "qwen3_moe, uint4": mixture("qwen3_moe", "uint4", group_size=64, symmetric=False),
    "mixtral, nf4": mixture("mixtral", "nf4", group_size=64),
    "qwen3_moe, uint3": mixture("qwen3_moe", "uint3", group_size=64),
    "qwen3_moe, gptq": other_mixture("qwen3_moe", foreign.gptq, bits=4, symmetric=True),
    "mixtral, awq": other_mixture("mixtral", foreign.awq),
    "qwen3_moe, compressed-tensors": other_mixture("qwen3_moe", foreign.compressed, bits=4),
}


def checked(answer: dict[str, Any]) -> dict[str, Any]:
    assert "error" not in answer, f"{answer['error']}\n{answer.get('log', '')}"
    return answer


def check_reads(case: Case, reads: dict[str, int]) -> None:
    """An op of ladder read the codes of each packed layer, and of no other, in each step."""
    layers = {module.rpartition(".")[0] for module in reads}
    assert layers == case.packed()
    assert all(count >= TOKENS for count in reads.values()), reads


#: Logarithms of probabilities: two layers whose activations are rounded to float16. A column of
#: zeros in any one weight changes some of them by 0.27 or more.
NEAR = 0.05


def check_tokens(case: Case, answer: dict[str, Any], believed: Any) -> None:
    assert [len(each) for each in answer["tokens"]] == [TOKENS] * len(PROMPTS)
    of_tokens, likeliest = believed(case, answer["tokens"])
    for found, exact, most in zip(answer["logprobs"], of_tokens, likeliest, strict=True):
        assert (torch.tensor(found) - exact).abs().max() <= NEAR
        assert (most - exact).max() <= 2 * NEAR  # greedy
