# SPDX-License-Identifier: Apache-2.0
"""What the documents say is true: paths, links and commands exist. test_docs_code.py runs code."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (".", "docs", "docs/dev", "benchmarks/results")
DOCUMENTS = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.md"))
#: A path in backticks: it has a slash and begins with one of our folders.
PATH = re.compile(r"`((?:csrc|ladder|tests|benchmarks|examples|docs|\.ci)/[\w./*-]*)`")
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_path_named_in_the_docs_exists(document):
    text = document.read_text()
    missing = [path for path in PATH.findall(text) if not list(ROOT.glob(path.rstrip("/")))]
    missing += [link for link in LINK.findall(text) if not (document.parent / link).exists()]
    assert missing == []


def anchors(text):
    """What a link may name after "#": the headings, as web pages of the forge spell them."""
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    plain = [re.sub(r"[^\w -]", "", heading.lower()) for heading in headings]
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_section_that_is_linked_exists(document):
    text = document.read_text()
    missing = []
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", text):
        linked = (document.parent / target).read_text() if target else text
        if anchor not in anchors(linked):
            missing.append(f"{target}#{anchor}")
    assert missing == []


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("**/*.md")), ids=lambda p: p.name)
def test_every_document_is_in_the_index(path):
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link).resolve() for link in LINK.findall(index.read_text())}
    assert path == index or path in linked


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


def test_every_numbered_claim_of_the_readme_has_its_command():
    text, table = (ROOT / "README.md").read_text().split("## Where each claim comes from")
    claimed = set(re.findall(r" \[(\d)\]", text))
    rows = re.findall(r"^\| \[(\d)\] [^|]+\| ([^|]*`python [^|]+`[^|]*) \| \[", table, re.M)
    assert claimed and claimed == {number for number, _ in rows}
    for _, commands in rows:
        for script in re.findall(r"`python (\S+\.py)", commands):
            assert (ROOT / script).exists()
