# SPDX-License-Identifier: Apache-2.0
"""Engines of vLLM on this processor give, greedily and in float32, the tokens of transformers with
ladder; and ladder's ops run for every packed layer in every step. `make test-vllm`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import foreign
import models
import pytest
import torch
from setuptools.config.pyprojecttoml import read_configuration

ROOT = Path(__file__).parents[2]
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


O_PROJ = frozenset(name for name in models.LAYERS if name.endswith("o_proj"))
ASKED = {"quantization": "ladder"}
CASES = {
    "uint4": Case(of("uint4", group_size=64, symmetric=False)),
    "uint4, adapter": Case(of("uint4", group_size=64, symmetric=False), adapter=True),
    "nf4": Case(of("nf4")),
    "uint3, head packed": Case(of("uint3", skip=()), more=frozenset({"lm_head"})),
    "float6_e3m2": Case(of("float6_e3m2")),
    "nvfp4": Case(of("nvfp4")),
    "mxfp4, chunks and cached prefixes": Case(
        of("mxfp4"), options={"max_num_batched_tokens": 16, "enable_prefix_caching": True}
    ),
    "act-order": Case(reordered),
    "mixed": Case(mixed, less=O_PROJ),
    "gptq 3 bits desc_act": Case(
        other(foreign.gptq, 3, symmetric=False, order=True), options=ASKED
    ),
    "gptq v2, by environment": Case(
        other(foreign.gptq, 4, symmetric=False, form="gptq_v2"), words="gptq"
    ),
    "awq": Case(other(foreign.awq, 4), options=ASKED),
    "compressed-tensors 3 bits": Case(other(foreign.compressed, 3), options=ASKED),
    "compressed-tensors asymmetric": Case(
        other(foreign.compressed, 4, symmetric=False), options=ASKED
    ),
    "compressed-tensors under ladder's kernel": Case(
        other(foreign.compressed, 4, symmetric=False), words="kernel"
    ),
}
#: vLLM's own GPTQ and AWQ know no float32: ladder's kernel under them, and ladder's own method.
HALF = {"dtype": "bfloat16"}
PAIRS = {
    name: (Case(folders, words="kernel", options=HALF), Case(folders, options=HALF | ASKED))
    for name, folders in (
        ("gptq", other(foreign.gptq, 4, symmetric=True)),
        ("awq", other(foreign.awq, 4)),
    )
}
UNDER_KERNEL = {
    f"{name}, {how}": case
    for name, pair in PAIRS.items()
    for how, case in zip(("kernel", "method"), pair, strict=True)
}
COMPILED = {
    f"{name}, compiled": Case(
        case.folders, options={"enforce_eager": False}, more=case.more, less=case.less
    )
    for name, case in CASES.items()
    if name in ("uint4", "mixed")
}
TWO_RANKS = {
    f"{name}, two ranks": Case(case.folders, options={"tensor_parallel_size": 2})
    for name, case in CASES.items()
    if name in ("nvfp4", "act-order")
}


@pytest.fixture(scope="session")
def forms(tmp_path_factory):
    return Forms(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def engine(forms, tmp_path_factory):
    """Runs engines one after the other in a process: name -> what serve.py says of it."""
    python = os.environ.get("LADDER_VLLM_PYTHON")
    if python is None:
        pytest.skip("no vLLM with engines: run `make test-vllm`")
    installed = tmp_path_factory.mktemp("installed")
    _write_metadata(installed / "ladder_torch-0.0.dist-info")

    def run(cases: dict[str, Case], count: str, **environment: str) -> dict[str, Any]:
        jobs = [
            {"name": name, "folder": str(case.folders(forms)[0]), "tokens": TOKENS,
             "prompts": PROMPTS, "count": count, "words": case.words, "options": case.options,
             "adapter": str(forms.adapter(case) or "")}
            for name, case in cases.items()
        ]  # fmt: skip
        done = subprocess.run(
            [python, str(Path(__file__).with_name("serve.py"))],
            input=json.dumps(jobs), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=os.environ | environment | {
                "PYTHONPATH": f"{installed}:{ROOT}",
                "VLLM_CACHE_ROOT": str(tmp_path_factory.mktemp("cache")),
            },
        )  # fmt: skip
        lines = [line[5:] for line in done.stdout.splitlines() if line.startswith("DONE ")]
        answers = {answer.pop("name"): answer for answer in map(json.loads, lines)}
        for name in cases:
            if "tokens" not in answers.setdefault(name, {"error": "the process ended"}):
                answers[name]["log"] = done.stdout[-8000:]
            elif "total_s" in answers[name]:
                print(f"{name}: {answers[name]['total_s']:.1f} s")
        return answers

    return run


def _write_metadata(folder: Path) -> None:
    """ladder's entry points, as an installed wheel has them."""
    points = read_configuration(ROOT / "pyproject.toml", expand=False)["project"]["entry-points"]
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: ladder-torch\nVersion: 0.0\n")
    lines = [f"[{group}]\n" + "\n".join(f"{name} = {target}" for name, target in names.items())
             for group, names in points.items()]  # fmt: skip
    (folder / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture(scope="session")
def expected(forms):
    """Greedy tokens of transformers with ladder."""
    import peft
    import transformers

    import ladder  # noqa: F401

    known: dict[tuple[Path, bool], list[list[int]]] = {}

    def tokens(case: Case) -> list[list[int]]:
        key = folder, _ = case.folders(forms)[1], case.adapter
        if key not in known:
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            if case.adapter:
                model = peft.PeftModel.from_pretrained(model, forms.adapter(case))
            known[key] = [
                model.generate(
                    torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)),
                    max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False,
                    pad_token_id=0, eos_token_id=None,
                )[0, len(ids) :].tolist()
                for ids in PROMPTS
            ]  # fmt: skip
        return known[key]

    return tokens


def checked(answer: dict[str, Any]) -> dict[str, Any]:
    assert "error" not in answer, f"{answer['error']}\n{answer.get('log', '')}"
    return answer


@pytest.fixture(scope="session")
def one_process(engine):
    return engine(CASES | UNDER_KERNEL, "reads", VLLM_ENABLE_V1_MULTIPROCESSING="0")


def check_reads(case: Case, reads: dict[str, int]) -> None:
    """An op of ladder read the codes of each packed layer, and of no other, in each step."""
    layers = {module.rpartition(".")[0] for module in reads}
    assert layers == (models.LAYERS | case.more) - case.less
    assert all(count >= TOKENS for count in reads.values()), reads


@pytest.mark.parametrize("name", CASES)
def test_an_engine_gives_the_tokens_of_transformers(name, one_process, expected):
    answer = checked(one_process[name])
    assert answer["tokens"] == expected(CASES[name])
    check_reads(CASES[name], answer["counts"])


@pytest.mark.parametrize("name", PAIRS)
def test_ladders_kernel_gives_the_tokens_of_its_method(name, one_process):
    answers = [checked(one_process[f"{name}, {how}"]) for how in ("kernel", "method")]
    assert answers[0]["tokens"] == answers[1]["tokens"]
    for case, answer in zip(PAIRS[name], answers, strict=True):
        check_reads(case, answer["counts"])


@pytest.fixture(scope="session")
def compiled(engine):
    return engine(COMPILED, "ops", VLLM_ENABLE_V1_MULTIPROCESSING="0")


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_engine_gives_the_tokens_of_transformers(name, compiled, expected):
    case, answer = COMPILED[name], checked(compiled[name])
    assert answer["tokens"] == expected(case)
    layers = len((models.LAYERS | case.more) - case.less)
    assert sum(answer["counts"].values()) >= layers * TOKENS


@pytest.fixture(scope="session")
def two_ranks(engine):
    return engine(TWO_RANKS, "", VLLM_ENABLE_V1_MULTIPROCESSING="1",
                  VLLM_CPU_OMP_THREADS_BIND="0|1")  # fmt: skip


@pytest.mark.parametrize("name", TWO_RANKS)
def test_two_ranks_give_the_tokens_of_transformers(name, two_ranks, expected):
    assert checked(two_ranks[name])["tokens"] == expected(TWO_RANKS[name])
