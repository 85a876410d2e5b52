# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / name) for name in ("serving", "checkpoints", "run")]

from forms import PROMPTS, TOKENS, Case, Forms  # noqa: E402  (needs those folders)


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

    # Of an environment whose packages are there and not installed.
    path = [str(installed), str(ROOT), *filter(None, [os.environ.get("LADDER_VLLM_PATH")])]

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
                "PYTHONPATH": ":".join(path),
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
    from setuptools.config.pyprojecttoml import read_configuration

    points = read_configuration(ROOT / "pyproject.toml", expand=False)["project"]["entry-points"]
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: ladder-torch\nVersion: 0.0\n")
    lines = [f"[{group}]\n" + "\n".join(f"{name} = {target}" for name, target in names.items())
             for group, names in points.items()]  # fmt: skip
    (folder / "entry_points.txt").write_text("\n".join(lines))
