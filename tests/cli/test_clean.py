# SPDX-License-Identifier: Apache-2.0
"""``ladder clean``: what it removes, says and leaves. The store's own tests are in tests/core."""

import json
import os
import time

import pytest

from ladder.cli import main


def run(capsys, *arguments):
    """(status, stdout, stderr) of ``ladder clean arguments``."""
    try:
        status = main(["clean", *arguments])
    except SystemExit as stop:
        status = stop.code or 0
    return status, *capsys.readouterr()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with kernels last used 1 and 10 days ago, of 100 and 200 bytes, plans and a key."""
    folder = tmp_path / "cache"
    for days, size in ((1, 100), (10, 200)):
        entry = folder / "kernels" / f"{days:032x}"
        entry.mkdir(parents=True, mode=0o700)
        (entry / "kernel.cubin").write_bytes(bytes(size))
        then = time.time() - days * 86400 - 60
        os.utime(entry, (then, then))
    (folder / "plans.json").write_text("{}")
    (folder / "key").write_text("0" * 64)
    for path in (folder, folder / "kernels"):
        path.chmod(0o700)
    monkeypatch.setenv("LADDER_CACHE", str(folder))
    return folder


def kernels(cache):
    return sorted(int(path.name, 16) for path in (cache / "kernels").iterdir())


def test_without_options_nothing_goes_below_the_limit(capsys, cache):
    status, out, _ = run(capsys)
    assert status == 0
    assert out == f"{cache}: removed 0 kernels, 0 bytes; 2 kernels, 300 bytes are left\n"
    assert kernels(cache) == [1, 10]


def test_what_was_not_used_for_some_days_goes(capsys, cache):
    _, out, _ = run(capsys, "--older-than", "7", "--json")
    assert json.loads(out) == {
        "folder": str(cache),
        "kept_kernels": 1,
        "kept_bytes": 100,
        "removed_kernels": 1,
        "removed_bytes": 200,
    }
    assert kernels(cache) == [1]
    assert (cache / "plans.json").exists()


def test_all_leaves_the_key(capsys, cache):
    _, out, _ = run(capsys, "--all")
    assert out == f"{cache}: removed 2 kernels, 302 bytes; 0 kernels, 0 bytes are left\n"
    assert kernels(cache) == []
    assert {path.name for path in cache.iterdir()} == {"kernels", "key", "plans.lock"}


@pytest.mark.parametrize("days", ["-1", "nan", "inf", "many"])
def test_days_that_are_no_number_of_days_are_refused(capsys, cache, days):
    status, _, err = run(capsys, "--older-than", days)
    assert status != 0 and err
    assert kernels(cache) == [1, 10]


def test_a_cache_that_is_not_there_is_not_made(capsys, cache, monkeypatch):
    monkeypatch.setenv("LADDER_CACHE", str(cache / "nowhere"))
    assert run(capsys, "--all")[0] == 0
    assert not (cache / "nowhere").exists()
