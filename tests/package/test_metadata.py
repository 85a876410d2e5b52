# SPDX-License-Identifier: Apache-2.0
"""What is built, named and distributed: pyproject.toml, the sdist's files, licences, hints."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ladder import _version
from ladder.checkpoints.folder import GUARD_TEXT

ROOT = Path(__file__).parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text()


def listed(key: str) -> list[str]:
    """The strings of a list in pyproject.toml. (tomllib is of Python 3.11.)"""
    (body,) = re.findall(rf"^{key} = \[(.*?)\]$", PYPROJECT, re.M | re.S)
    return re.findall(r'"([^"]+)"', body)


def tracked(pattern: str = "") -> list[Path]:
    """Files of the repository; of a folder without git, all but what is built or installed."""
    git = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    names = git.stdout.split("\0") if git.returncode == 0 else []
    paths = [ROOT / name for name in names if name] or [
        path for path in ROOT.rglob("*") if not {".venv", "build", ".git"} & set(path.parts)
    ]
    return [path for path in paths if path.is_file() and path.match(pattern or "*")]


def test_the_name_is_that_of_pyproject():
    assert re.search(r'^name = "(.*?)"', PYPROJECT, re.M)[1] == _version.DISTRIBUTION
    assert _version.DISTRIBUTION != "ladder", "that is another project on PyPI"


@pytest.mark.parametrize("extra", ["transformers", "plots"])
def test_hints_name_the_distribution_and_extras_that_exist(extra):
    assert _version.install_command(extra) == f"pip install 'ladder-torch[{extra}]'"
    assert listed(extra)


def test_the_guard_of_a_folder_names_the_distribution():
    assert f"`pip install {_version.DISTRIBUTION}`" in GUARD_TEXT


def test_nothing_that_is_written_advises_to_install_another_project():
    """`pip install ladder` is advice only where it is advised against, in bold."""
    stranger = re.compile(r"(?<!\*\*`)pip install (?:-\S+ )*['\"`]?ladder(?![-\w/])")
    here = Path(__file__).name
    suffixes = {".py", ".md", ".cpp", ".h", ".toml", ".yml", ".txt"}
    texts = {p: p.read_text() for p in tracked() if p.suffix in suffixes and p.name != here}
    assert len(texts) > 100
    assert [str(path) for path, text in texts.items() if stranger.search(text)] == []
    assert stranger.search("pip install 'ladder[plots]'") and stranger.search("pip install ladder")


def test_a_build_requires_no_torch():
    assert re.search(r"^requires = \[(.*?)\]", PYPROJECT, re.M)[1] == '"setuptools>=77"'
    assert "torch>=2.11" in listed("dependencies")


def test_what_is_fetched_has_a_digest():
    files = [ROOT / "csrc/CMakeLists.txt", ROOT / "tests/CMakeLists.txt"]
    texts = "".join(path.read_text() for path in files)
    assert texts.count("FetchContent_Declare(") == 3
    assert len(re.findall(r"URL_HASH SHA256=[0-9a-f]{64}\b", texts)) == 3


def test_the_licence_files_are_there_and_name_what_is_compiled_in():
    for name in listed("license-files"):
        assert (ROOT / name).is_file()
    notices = (ROOT / "THIRD_PARTY_NOTICES.md").read_text()
    for project in ("xxHash", "JSON for Modern C\\+\\+", "libstdc\\+\\+"):
        assert re.search(project, notices), project


def test_the_example_model_states_its_licence():
    assert "Apache-2.0" in (ROOT / "examples/tiny-llama-gptq/README.md").read_text()


def test_the_sdist_has_every_source_file(tmp_path):
    pytest.importorskip("setuptools")
    code = (
        "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("ladder_torch-*.tar.gz")
    listing = subprocess.run(["tar", "tzf", archive], capture_output=True, text=True).stdout
    names = {line.partition("/")[2] for line in listing.splitlines()}
    sources = [p.relative_to(ROOT) for p in tracked() if p.is_relative_to(ROOT / "csrc")]
    sources += [p.relative_to(ROOT) for p in tracked() if p.is_relative_to(ROOT / "ladder")]
    sources += [Path("CMakeLists.txt"), Path("LICENSE"), Path("THIRD_PARTY_NOTICES.md")]
    assert len(sources) > 200
    assert [str(path) for path in sources if str(path) not in names] == []
    assert [name for name in names if name.endswith((".so", "ladder-nvrtc"))] == []
