# SPDX-License-Identifier: Apache-2.0
"""What the documents say is true: paths exist, commands exist, Python code runs."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/**/*.md")])
#: A path in backticks: it has a slash and begins with one of our folders.
PATH = re.compile(r"`((?:csrc|ladder|tests|benchmarks|examples|docs|\.ci)/[\w./*-]*)`")
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
PYTHON = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_path_named_in_the_docs_exists(document):
    text = document.read_text()
    missing = [path for path in PATH.findall(text) if not list(ROOT.glob(path.rstrip("/")))]
    missing += [link for link in LINK.findall(text) if not (document.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize(
    "document", ["README.md", "docs/format.md", "docs/programs.md", "docs/new-type.md"]
)
def test_the_python_code_of_the_document_runs(document, tmp_path, monkeypatch):
    """In order and in one namespace, as a reader would paste it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    blocks = PYTHON.findall((ROOT / document).read_text())
    assert blocks, f"{document} has no Python code"
    namespace = {"__name__": "document"}
    for block in blocks:
        exec(compile(block, document, "exec"), namespace)


def test_every_make_target_of_the_readme_exists():
    targets = set(re.findall(r"`make ([\w-]+)`", (ROOT / "README.md").read_text()))
    assert {"demo", "test"} <= targets
    for target in targets:
        dry = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
        assert dry.returncode == 0, dry.stderr


def test_every_ladder_command_of_the_readme_exists():
    from typer.main import get_command

    from ladder.cli import app

    commands = get_command(app).commands
    named = set(re.findall(r"^(?:\$ )?ladder (\w+)", (ROOT / "README.md").read_text(), re.M))
    assert named and named <= set(commands)
