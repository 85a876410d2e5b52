# SPDX-License-Identifier: Apache-2.0
"""Processes killed while they write a model folder: what is left, and the next process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ladder.checkpoints import repack, writer
from ladder.checkpoints.writer import new_folder
from ladder.errors import InvalidArgument

ROOT = Path(__file__).parents[2]
GPTQ = ROOT / "examples" / "tiny-llama-gptq"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
#: Repacks argv[1] as argv[2], with force if argv[5] says so, and is killed before its argv[4]-th
#: call of a function.
KILLED = """
import os, pathlib, signal, sys
from ladder.checkpoints import repack
source, out, function, at, force = sys.argv[1:]
where = {"pwrite": os, "fsync": os, "rename": pathlib.Path}[function]
real, calls = getattr(where, function), []
def killed(*arguments, **named):
    calls.append(1)
    if len(calls) == int(at):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **named)
setattr(where, function, killed)
repack(source, out, force=force == "True")
"""


def kill_repack(out, function, at, *, force=False):
    command = [sys.executable, "-c", KILLED, str(GPTQ), str(out), function, str(at), str(force)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == -9, done.stderr


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a repacked folder holds, by file."""
    out = tmp_path_factory.mktemp("whole") / "out"
    repack(GPTQ, out)
    return contents(out)


@pytest.mark.parametrize(("function", "at"), [("pwrite", 1), ("pwrite", 30), ("fsync", 2),
                                              ("rename", 1)])  # fmt: skip
def test_the_next_run_removes_what_a_killed_one_left(whole, tmp_path, caplog, function, at):
    out = tmp_path / "out"
    kill_repack(out, function, at)
    (left,) = names(tmp_path)
    assert left.startswith(".out.partial-")
    repack(GPTQ, out)
    assert names(tmp_path) == ["out"] and contents(out) == whole
    assert f"removed {tmp_path / left}" in caplog.text


def test_a_folder_taken_away_by_a_killed_process_is_back(whole, tmp_path, caplog):
    """--force renames the old folder and then the new one; the kill is between the two."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("only copy")
    kill_repack(out, "rename", 2, force=True)
    assert not out.exists()
    with pytest.raises(InvalidArgument, match="exists; pass force"):
        repack(GPTQ, out)
    assert (out / "mine").read_text() == "only copy" and names(tmp_path) == ["out"]
    assert f"{out} is back" in caplog.text
    repack(GPTQ, out, force=True)
    assert names(tmp_path) == ["out"] and contents(out) == whole


def test_the_folder_of_a_living_process_and_those_of_others_are_left_alone(whole, tmp_path):
    out = tmp_path / "out"
    others = [".out2.partial-12ab", ".out.partial-", ".out.partial-1.txt", ".out.older-1"]
    for other in others:
        (tmp_path / other).mkdir()
    with new_folder(out, force=True) as mine:
        (mine / "a").write_text("")
        repack(GPTQ, out)
        assert names(mine) == ["a"]
        assert contents(out) == whole
    assert names(out) == ["a"]  # the slower one was allowed to replace it
    assert names(tmp_path) == sorted([*others, "out"])


def test_a_leftover_link_is_not_followed(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "a").write_text("")
    (tmp_path / ".out.partial-1").symlink_to(tmp_path / "precious")
    repack(GPTQ, tmp_path / "out")
    assert names(tmp_path / "precious") == ["a"]


def test_two_processes_that_write_one_folder_leave_a_whole_one(whole, tmp_path):
    out = tmp_path / "out"
    code = "import sys; from ladder.checkpoints import repack; repack(*sys.argv[1:])"
    command = [sys.executable, "-c", code, str(GPTQ), str(out)]
    pair = [
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        for _ in range(2)
    ]
    texts = [each.communicate()[1] for each in pair]
    assert sorted(each.returncode for each in pair) == [0, 1], texts
    (refusal,) = [text for each, text in zip(pair, texts, strict=True) if each.returncode]
    assert "exists; pass force" in refusal
    assert names(tmp_path) == ["out"] and contents(out) == whole


def test_a_folder_written_after_the_last_check_is_not_replaced(tmp_path, monkeypatch):
    """The other process takes the name between the check and the rename."""
    out, check = tmp_path / "out", writer.check_destination
    checks = []

    def checked(destination, *, force):
        check(destination, force=force)
        checks.append(destination)
        if len(checks) == 3:
            out.mkdir()
            (out / "theirs").write_text("")

    monkeypatch.setattr(writer, "check_destination", checked)
    with pytest.raises(InvalidArgument, match="exists; pass force"), new_folder(out, force=False):
        pass
    assert len(checks) == 3
    assert names(tmp_path) == ["out"] and names(out) == ["theirs"]


def test_an_empty_folder_is_written_without_force(tmp_path):
    (tmp_path / "out").mkdir()
    with new_folder(tmp_path / "out", force=False) as mine:
        (mine / "a").write_text("")
    assert names(tmp_path) == ["out"] and names(tmp_path / "out") == ["a"]


def test_the_folder_has_the_rights_that_the_umask_leaves(tmp_path):
    before = os.umask(0o027)
    try:
        repack(GPTQ, tmp_path / "out")
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o750
