# SPDX-License-Identifier: Apache-2.0
"""What repacking may take (memory), and what happens when the machine says no (disk)."""

import errno
import fcntl
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from checkpoint_oracle import small, write_folder

from ladder.checkpoints import DestinationError, repack, writer
from ladder.errors import LadderError

HERE = Path(__file__).parent

MEASURED = """
import sys
from pathlib import Path
from checkpoint_oracle import small
from ladder.checkpoints import repack

def mebibytes(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) / 1024

src, dst = map(Path, sys.argv[1:])
repack(small(dst.parent / "warm"), dst.parent / "warmed")
before = mebibytes("VmRSS")
repack(src, dst)
print(mebibytes("VmHWM") - before)
"""


def run(script: str, *arguments: object) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(HERE.parents[1]), str(HERE), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def integers(*shape):
    return torch.full(shape, 0x12345678, dtype=torch.int32)


def big(folder: Path, method: str, layers: int, n: int, k: int) -> float:
    """Write one shard of ``layers`` layers and a dense tensor; returns its MiB."""
    tensors = {}
    for name in (f"layer{i}" for i in range(layers)):
        qweight = (k // 8, n) if method == "gptq" else (k, n // 8)
        tensors[f"{name}.qweight"] = integers(*qweight)
        tensors[f"{name}.qzeros"] = integers(k // 128, n // 8)
        tensors[f"{name}.scales"] = torch.ones(k // 128, n).half()
    tensors["embed.weight"] = torch.zeros(4 << 20, dtype=torch.float16)
    settings = {"quant_method": method, "bits": 4, "group_size": 128, "version": "gemm"}
    write_folder(folder, settings | ({"format": "gptq"} if method == "gptq" else {}), [tensors])
    return (folder / "model.safetensors").stat().st_size / 2**20


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize(("method", "layers", "factor"), [("awq", 24, 0.75), ("gptq", 1, 1.5)])
def test_peak_memory_stays_under_one_and_a_half_shards(tmp_path, method, layers, factor):
    """One layer as large as the shard is the worst case; the usual many layers need far less."""
    n, k = (2048, 4096) if layers > 1 else (8192, 16384)
    shard = big(tmp_path / "src", method, layers, n, k)
    done = run(MEASURED, tmp_path / "src", tmp_path / "dst")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < factor * shard


LIMITED = """
import resource, sys
from ladder.checkpoints import repack
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
try:
    repack(sys.argv[1], sys.argv[2])
except OSError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("limit", [0, 100, 1000])
def test_a_file_that_cannot_grow_gives_a_typed_error_and_leaves_nothing(
    tmp_path, left_nothing, limit
):
    done = run(LIMITED, small(tmp_path / "src"), left_nothing, limit)
    assert done.stdout.startswith("DestinationError") and "File too large" in done.stdout, done


def disk_is_full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite", "fsync", "mkdir", "rename"])
def test_a_disk_that_fills_up_gives_a_typed_error_and_leaves_nothing(
    tmp_path, left_nothing, monkeypatch, call
):
    source = small(tmp_path / "src")
    monkeypatch.setattr(os, call, disk_is_full)
    with pytest.raises(DestinationError, match="cannot be written: No space left") as no:
        repack(source, left_nothing)
    file = "" if call in ("mkdir", "rename") else "/model.safetensors"
    # Not the folder that has the name until all is written, which is gone.
    assert str(no.value) == f"{left_nothing}{file}: cannot be written: No space left on device"


def test_a_disk_that_fills_up_while_files_are_copied_leaves_nothing(
    tmp_path, left_nothing, monkeypatch
):
    source = small(tmp_path / "src")
    monkeypatch.setattr(shutil, "copy", disk_is_full)
    with pytest.raises(DestinationError, match="cannot be written: No space left") as no:
        repack(source, left_nothing)
    assert str(no.value).startswith(f"{left_nothing}/tokenizer.json: ")


def test_too_little_space_is_found_before_anything_is_written(tmp_path, left_nothing, monkeypatch):
    source = small(tmp_path / "src")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 9, 5))
    with pytest.raises(DestinationError, match=r"needs \d+ bytes, the disk has 5 left"):
        repack(source, left_nothing)


def test_a_file_system_that_cannot_reserve_is_written_all_the_same(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    assert repack(small(tmp_path / "src"), tmp_path / "dst").modules == 1


def test_a_system_that_cannot_reserve_is_written_all_the_same(tmp_path, monkeypatch):
    """macOS."""
    monkeypatch.delattr(os, "posix_fallocate")
    assert repack(small(tmp_path / "src"), tmp_path / "dst").modules == 1


def test_no_write_is_as_large_as_macos_refuses(tmp_path, monkeypatch):
    """A tensor of 3 GiB, none of which is touched."""
    sizes = []

    def write(descriptor, data, at):
        sizes.append(data.nbytes)
        return data.nbytes

    nbytes = 3 << 30
    monkeypatch.setattr(os, "pwrite", write)
    monkeypatch.setattr(writer, "reserve", lambda *_: None)
    with (
        mmap.mmap(-1, nbytes) as nothing,
        memoryview(nothing) as data,
        writer.ShardWriter(tmp_path / "model", {"w": ("U8", (nbytes,))}) as file,
    ):
        file.write("w", data)
    assert sum(sizes[1:]) == nbytes and max(sizes) < 2**31


@pytest.mark.parametrize("supported", [True, False])
def test_macos_is_told_to_empty_the_cache_of_the_drive(tmp_path, monkeypatch, supported):
    told, plain = [], []

    def control(descriptor, command):
        told.append(command)
        if not supported:
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    source = small(tmp_path / "src")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", control)
    monkeypatch.setattr(os, "fsync", plain.append)
    repack(source, tmp_path / "dst")
    # The weights, config.json, and the folder before and after it takes its name.
    assert len(told) >= 4 and set(told) == {51}
    assert len(plain) == (0 if supported else len(told))


READ_ONLY = """
import os, sys
from ladder.checkpoints import repack
repack(sys.argv[1], sys.argv[3])  # so that everything is imported as the first user
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)  # permissions do not bind root
try:
    repack(sys.argv[1], sys.argv[2])
except OSError as error:
    print(type(error).__name__, error)
"""


def test_a_read_only_destination_gives_a_typed_error_and_leaves_nothing():
    with tempfile.TemporaryDirectory() as top:
        top = Path(top)
        out = top / "out"
        out.mkdir()
        source = small(top / "src")
        (source / "model.safetensors").chmod(0o644)
        top.chmod(0o755)
        out.chmod(0o555)
        done = run(READ_ONLY, source, out / "model", top / "first")
        assert "DestinationError" in done.stdout and "Permission denied" in done.stdout, done
        assert list(out.iterdir()) == []
        out.chmod(0o755)


@pytest.mark.parametrize("place", ["file/model", "/proc/model"])
def test_a_destination_where_no_folder_can_be_is_refused(tmp_path, place):
    source = small(tmp_path / "src")
    (tmp_path / "file").write_text("")
    with pytest.raises(DestinationError, match=f"{place}: cannot be written"):
        repack(source, tmp_path / place)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "src"]


def test_destination_errors_are_both_ours_and_the_systems():
    assert issubclass(DestinationError, LadderError) and issubclass(DestinationError, OSError)
