# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / name) for name in ("serving", "checkpoints", "run")]

from forms import PROMPTS, TOKENS, Case, Forms  # noqa: E402  (needs those folders)


@pytest.fixture(scope="session")
def forms(tmp_path_factory):
    return Forms(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """A folder on whose path ladder's plugins are found, as where its wheel is installed."""
    folder = tmp_path_factory.mktemp("installed")
    _write_metadata(folder / "ladder_torch-0.0.dist-info")
    return folder


class Engines:
    """Runs the engines of a package in processes of their own.

    Args:
        package: VLLM or SGLANG: LADDER_VLLM_PYTHON is a Python that has vLLM, LADDER_VLLM_PATH
            more folders of packages for it, which are there and not installed.
        script: what runs engines there.
        apart: each engine in a process of its own.
    """

    def __init__(
        self, package: str, script: str, forms: Forms, installed: Path, *, apart: bool = False
    ) -> None:
        self.python = os.environ.get(f"LADDER_{package}_PYTHON")
        if self.python is None:
            pytest.skip(f"no {package} with engines: LADDER_{package}_PYTHON is not set")
        self.script, self.forms, self.apart = script, forms, apart
        more = os.environ.get(f"LADDER_{package}_PATH")
        self.path = [str(installed), str(ROOT), *filter(None, [more])]

    def __call__(
        self, cases: dict[str, Case], count: str, **environment: str
    ) -> dict[str, dict[str, Any]]:
        """What the script says of each of ``cases``, by its name."""
        jobs = [
            {"name": name, "folder": str(case.folders(self.forms)[0]), "tokens": TOKENS,
             "prompts": PROMPTS, "count": count, "words": case.words, "options": case.options,
             "adapter": str(self.forms.adapter(case) or "")}
            for name, case in cases.items()
        ]  # fmt: skip
        groups = [[job] for job in jobs] if self.apart else [jobs]
        return {k: v for group in groups for k, v in self._run(group, environment).items()}

    def _run(
        self, jobs: list[dict[str, Any]], environment: dict[str, str]
    ) -> dict[str, dict[str, Any]]:
        done = subprocess.run(
            [self.python, str(Path(__file__).with_name(self.script))],
            input=json.dumps(jobs), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=os.environ | environment | {"PYTHONPATH": ":".join(self.path)},
        )  # fmt: skip
        lines = [line[5:] for line in done.stdout.splitlines() if line.startswith("DONE ")]
        answers = {answer.pop("name"): answer for answer in map(json.loads, lines)}
        for name in (job["name"] for job in jobs):
            if "tokens" not in answers.setdefault(name, {"error": "the process ended"}):
                answers[name]["log"] = done.stdout[-8000:]
            elif "total_s" in answers[name]:
                print(f"{name}: {answers[name]['total_s']:.1f} s")
        return answers


@pytest.fixture(scope="session")
def engine(forms, installed, tmp_path_factory):
    """vLLM's engines, one after the other in a process: name -> what serve.py says of it."""
    engines = Engines("VLLM", "serve.py", forms, installed)

    def run(cases: dict[str, Case], count: str, **environment: str) -> dict[str, Any]:
        cache = str(tmp_path_factory.mktemp("cache"))
        return engines(cases, count, **environment, VLLM_CACHE_ROOT=cache)

    return run


@pytest.fixture(scope="session")
def sglang_engine(forms, installed) -> Callable[..., dict[str, Any]]:
    """SGLang's engines. One that fails ends the process that started it: each has its own."""
    return Engines("SGLANG", "serve_sglang.py", forms, installed, apart=True)


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


@pytest.fixture(scope="session")
def believed(forms):
    """Of tokens behind the prompts: their logarithms of probabilities, and those of the likeliest
    tokens at the same places, by transformers with ladder."""
    import peft
    import transformers

    import ladder  # noqa: F401

    def ask(case: Case, tokens: list[list[int]]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        folder = case.folders(forms)[1]
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        if case.adapter:
            model = peft.PeftModel.from_pretrained(model, forms.adapter(case))
        of_tokens, likeliest = [], []
        for prompt, behind in zip(PROMPTS, tokens, strict=True):
            with torch.no_grad():
                logits = model(torch.tensor([prompt + behind])).logits[0]
            all_of = logits[len(prompt) - 1 : -1].log_softmax(-1)
            of_tokens.append(all_of.gather(1, torch.tensor(behind)[:, None])[:, 0])
            likeliest.append(all_of.amax(1))
        return of_tokens, likeliest

    return ask


def _write_metadata(folder: Path) -> None:
    """ladder's entry points, as an installed wheel has them."""
    from setuptools.config.pyprojecttoml import read_configuration

    points = read_configuration(ROOT / "pyproject.toml", expand=False)["project"]["entry-points"]
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: ladder-torch\nVersion: 0.0\n")
    lines = [f"[{group}]\n" + "\n".join(f"{name} = {target}" for name, target in names.items())
             for group, names in points.items()]  # fmt: skip
    (folder / "entry_points.txt").write_text("\n".join(lines))
