# SPDX-License-Identifier: Apache-2.0
"""Models that accelerate offloads are calibrated a block at a time, to the same weights."""

import json
import os

import hf_mixtures
import numpy as np
import pytest
import torch
from hf_models import check_same, load
from torch import nn
from typer.testing import CliRunner

from ladder.checkpoints.calibrated import Calibration
from ladder.checkpoints.convert import convert
from ladder.checkpoints.disk_room import DiskRoom, scratch
from ladder.checkpoints.model import meta_model
from ladder.cli import app
from ladder.cli import offload as command
from ladder.cli.offload import device_map_of
from ladder.errors import InvalidArgument
from ladder.nn.calibration import calibrated
from ladder.nn.calibration.offloading import is_offloaded, present
from ladder.nn.layer_types import LayerTypes
from ladder.nn.select import survey
from ladder.types import parse

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
TOKENS = torch.randint(0, 128, (5, 48), generator=torch.Generator().manual_seed(1))


def offloaded(folder, disk):
    places = device_map_of(meta_model(folder), "cpu")
    return load(folder, device_map=places, offload_folder=disk)


def check_alike(folder, tmp_path, *arguments, **options):
    """The folder made of an offloaded model, beside that of the model in memory."""
    model = offloaded(folder, tmp_path / "disk")
    assert is_offloaded(model)
    most = largest_in_memory(model)
    reports = [
        convert(
            folder, tmp_path / name, *arguments, calibration=Calibration(each, TOKENS), **options
        )
        for name, each in (("apart", model), ("whole", load(folder)))
    ]
    check_same(load(tmp_path / "apart"), load(tmp_path / "whole"))
    assert reports[0].conversion.errors == reports[1].conversion.errors
    assert is_offloaded(model)  # what it was
    return max(most), sum(each.numel() for each in model.parameters())


def largest_in_memory(model):
    """After each call of a block, how many numbers its model holds."""
    held = []
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            for block in module:
                block.register_forward_hook(lambda *_: held.append(
                    sum(each.numel() for each in model.parameters() if not each.is_meta)
                ))  # fmt: skip
    return held


def test_folders_are_those_of_the_model_in_memory(dense_folder, tmp_path):
    def check(name, *arguments, **options):
        (tmp_path / name).mkdir()
        return check_alike(dense_folder, tmp_path / name, *arguments, **options)

    held, every = check("layers", "uint3", group_size=32)
    assert held < 0.75 * every  # one of two blocks, and the embeddings
    check("head", "uint4", group_size=32, head=True)
    check("skipped", "uint4", group_size=32, skip=["model.layers.0"])


def test_experts_are_brought_with_their_block(mixture_folder, tmp_path):
    check_alike(mixture_folder, tmp_path, "uint4", group_size=32)
    assert hf_mixtures.FIRST in dict(load(mixture_folder).named_modules())


def test_types_are_not_chosen_for_them(dense_folder, tmp_path):
    calibration = Calibration(offloaded(dense_folder, tmp_path / "disk"), TOKENS)
    with pytest.raises(InvalidArgument, match="it must be in memory"):
        convert(dense_folder, tmp_path / "out", types=["uint2", "uint4"], bits=3.5,
                group_size=32, calibration=calibration)  # fmt: skip


# --- models that have to be in memory -------------------------------------------------------------


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x, more=None):
        return x + self.linear(x).tanh() if more is None else x + self.linear(x).tanh() + more


class Net(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.last, self.way = nn.Linear(16, 16), way

    def forward(self, x):
        if self.way == "not made of blocks":
            return self.last(x)
        given = [x]
        for block in self.blocks:
            more = given[1] if self.way == "do not run alone" and len(given) > 1 else None
            given.append(block(given[-1], more))
        if self.way == "more than once":
            given.append(self.blocks[0](given[-1]))
        middle = given[1] if self.way == "what each of these gives" else 0
        return self.last(given[-1] + middle)


def calibrate(model, done=None, *, offloaded=True):
    found = survey(model, ()).found
    if offloaded:
        accelerate.cpu_offload(model, torch.device("cpu"))
    types = LayerTypes(parse("uint4,group=16,scale=float16,zero=midpoint"))
    note = None if done is None else lambda *each: done.append(each)
    return calibrated(model, found, types, torch.randn(4, 8, 16), progress=note)


def test_blocks_that_give_other_tensors_are_told_apart():
    class Two(Block):
        def forward(self, x, more=None):
            return super().forward(x), x.sum()

    class Pairs(Net):
        def forward(self, x):
            for block in self.blocks:
                x, _ = block(x)
            return self.last(x)

    model = Pairs("")
    model.blocks = nn.ModuleList(Two() for _ in range(3))
    with pytest.raises(InvalidArgument, match="blocks give more tensors than what the next one"):
        calibrate(model)


@pytest.mark.parametrize(
    "way",
    ["do not run alone", "more than once", "what each of these gives", "it has no blocks", ""],
)
def test_those_that_do_not_run_block_by_block_are_refused_before_any_work(way):
    torch.manual_seed(0)
    model = Net(way)
    if way == "it has no blocks":
        model.blocks = None
        model.way = "not made of blocks"
    whole = {name: each.clone() for name, each in model.state_dict().items()}
    done = []
    if way:
        with pytest.raises(InvalidArgument, match=way):
            calibrate(model, done)
        assert not done
    else:
        assert len(calibrate(model, done).weights) == 4 == len(done)
    for name, module in model.named_modules():  # and the model's values are what they were
        with present(module):
            for own, parameter in module.named_parameters(recurse=False):
                assert torch.equal(parameter, whole[f"{name}.{own}"])


def test_a_parameter_that_nothing_brings_is_named():
    model = Net("")
    model.last.weight = nn.Parameter(torch.empty(16, 16, device="meta"))
    with pytest.raises(InvalidArgument, match=r"last\.weight is on the meta device"):
        calibrate(model, offloaded=False)


# --- room on the disk -----------------------------------------------------------------------------


def test_weights_on_the_disk_are_equal_and_leave_nothing(tmp_path):
    import ladder

    room = DiskRoom(tmp_path / "not" / "there")
    weights = [
        ladder.quantize(torch.randn(48, 96), text)
        for text in ("uint3,group=32,scale=float16,zero=midpoint", "nf4", "nvfp4")
    ]
    assert [room.keep(each) for each in weights] == weights
    assert not list(tmp_path.iterdir())


def test_a_folder_for_a_while_leaves_nothing_of_its_own_or_of_a_killed_process(tmp_path):
    left = tmp_path / "new" / ".out.partial-0123abcd"
    left.mkdir(parents=True)
    with scratch(tmp_path / "new" / "out") as folder:
        (folder / "file").write_text("x")
        assert folder.parent == tmp_path / "new" and not left.exists()
    with scratch(tmp_path / "other" / "new" / "out"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert not list((tmp_path / "new").iterdir())


def test_a_disk_that_has_no_room_for_merged_experts_is_said(mixture_folder, tmp_path, monkeypatch):
    from safetensors import SafetensorError

    from ladder.checkpoints.writer import DestinationError

    def full(*_, **__):
        raise SafetensorError("Error while serializing: I/O error: No space left (os error 28)")

    described = meta_model(mixture_folder)
    monkeypatch.setattr(type(described), "from_pretrained", full)
    with pytest.raises(DestinationError, match="has no room for the tensors that"):
        command.load_offloaded(described, mixture_folder, torch.float32, "cpu", tmp_path / "room")


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="no posix_fallocate")
def test_a_full_disk_is_said(tmp_path, monkeypatch):
    import errno

    import ladder
    from ladder.checkpoints.writer import DestinationError

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DestinationError, match="out: cannot be written: No space left"):
        DiskRoom(tmp_path / "out").keep(ladder.quantize(torch.randn(8, 32), "int8"))


# --- the command ----------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(app, ["convert", *map(str, arguments)])


def test_the_command_keeps_blocks_on_disk(dense_folder, tmp_path):
    np.save(tmp_path / "ids.npy", TOKENS.numpy())
    common = ["--calibration", tmp_path / "ids.npy", "--chunk", 48, "--device", "cpu"]
    common += ["--type", "uint3", "--group", 32, "--json"]
    errors = []
    for name, more in (("whole", ()), ("apart", ("--offload",))):
        result = run(dense_folder, tmp_path / "out" / name, *common, *more)
        assert result.exit_code == 0, result.output
        errors.append(json.loads(result.stdout[result.stdout.index("{") :])["conversion"]["errors"])
    assert errors[0] == errors[1]
    check_same(load(tmp_path / "out" / "apart"), load(tmp_path / "out" / "whole"))
    assert {each.name for each in (tmp_path / "out").iterdir()} == {"whole", "apart"}
    assert {each.name for each in tmp_path.iterdir()} == {"ids.npy", "out"}


def test_the_command_says_what_offload_is_not_for(dense_folder, ladder_folder, tmp_path):
    np.save(tmp_path / "ids.npy", TOKENS.numpy())
    data = ["--calibration", tmp_path / "ids.npy", "--chunk", 48, "--device", "cpu", "--offload"]
    out = tmp_path / "out"
    for folder, arguments, words in (
        (dense_folder, ["--offload"], "--offload is for --calibration"),
        (dense_folder, [*data, "--bits", 3, "--types", "uint2,uint4"], "--offload would read"),
        (ladder_folder, [*data, "--again"], "--offload is for folders that are not quantised"),
    ):
        result = run(folder, out, *arguments)
        assert result.exit_code != 0 and words in str(result.exception)
        assert {each.name for each in tmp_path.iterdir()} == {"ids.npy"}


def test_a_model_larger_than_memory_is_told_of_offload(dense_folder, tmp_path, monkeypatch):
    np.save(tmp_path / "ids.npy", TOKENS.numpy())
    monkeypatch.setattr(command, "_free_bytes", lambda device: 1000)
    data = ["--calibration", tmp_path / "ids.npy", "--chunk", 48, "--device", "cpu"]
    result = run(dense_folder, tmp_path / "out", *data)
    assert "0.0 GB free: --offload keeps its blocks on disk" in str(result.exception)
    monkeypatch.undo()
    assert command._free_bytes("cpu") is None or command._free_bytes("cpu") > 1 << 20
