# SPDX-License-Identifier: Apache-2.0
"""``repack`` as a whole: shards, files, destinations, reports."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_oracle import awq, gptq, small, tensors_of, write_folder
from safetensors.torch import load_file

from ladder import ops
from ladder.checkpoints import model_files, open_folder, repack
from ladder.checkpoints.header import read_header
from ladder.errors import CheckpointError, InvalidArgument

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}


def files(folder):
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def config_of(folder):
    return json.loads((folder / "config.json").read_text())["quantization_config"]


def codes(folder, module, truth):
    shards = [load_file(p) for p in sorted(folder.glob("*.safetensors"))]
    (qweight,) = [s[f"{module}.qweight"] for s in shards if f"{module}.qweight" in s]
    return ops.unpack(qweight, truth.codes.shape[1], 4).numpy()


def test_shards_follow_the_source_and_the_index_is_right(tmp_path):
    """The second layer's scales lie in another shard than its codes, as a cut by size leaves it."""
    layers = {f"model.{i}.up": gptq(32, 64, symmetric=i != 1, seed=i) for i in range(3)}
    all_tensors = tensors_of(layers) | {"model.norm.weight": torch.arange(5.0)}
    names = sorted(all_tensors)
    cut = names.index("model.1.up.qzeros")
    shards = [{n: all_tensors[n] for n in part} for part in (names[:cut], names[cut:])]
    source = write_folder(tmp_path / "src", GPTQ, shards)
    report = repack(source, tmp_path / "dst")
    shard_names = {f"model-0000{i}-of-00002.safetensors" for i in (1, 2)}
    carried = {"config.json", "tokenizer.json", "extra/notes.txt"}
    assert files(tmp_path / "dst") == shard_names | carried | {"model.safetensors.index.json"}
    index = json.loads((tmp_path / "dst/model.safetensors.index.json").read_text())
    for name, file in index["weight_map"].items():
        assert name in read_header(tmp_path / "dst" / file)
    assert index["metadata"]["total_size"] == report.bytes_after
    assert index["weight_map"]["model.1.up.scales"] == index["weight_map"]["model.1.up.qweight"]
    for name, truth in layers.items():
        assert np.array_equal(codes(tmp_path / "dst", name, truth), truth.codes)
    assert report.shards == 2 and report.modules == 3 and report.files_carried == 2


def test_a_source_shard_of_which_nothing_remains_is_not_written(tmp_path):
    truth = gptq(32, 64)
    side = {"layer.qzeros", "layer.scales", "layer.g_idx"}
    tensors = tensors_of({"layer": truth})
    parts = [{k: t for k, t in tensors.items() if (k in side) == inside} for inside in (0, 1)]
    repack(write_folder(tmp_path / "src", GPTQ, parts), tmp_path / "dst")
    assert (tmp_path / "dst/model.safetensors").is_file()
    assert not (tmp_path / "dst/model.safetensors.index.json").exists()


def test_all_other_tensors_are_carried_over_to_the_byte(tmp_path):
    others = {
        "embed.weight": torch.randn(7, 3).bfloat16(), "a.bias": torch.randn(3, dtype=torch.float64),
        "flag": torch.tensor(True), "empty": torch.zeros(0, 4), "half": torch.randn(5).half(),
        "f8": torch.randn(3, 3).to(torch.float8_e4m3fn), "i": torch.arange(3),
    }  # fmt: skip
    source = write_folder(tmp_path / "src", GPTQ, [tensors_of({"a": gptq(32, 64)}) | others])
    report = repack(source, tmp_path / "dst")
    result = load_file(tmp_path / "dst/model.safetensors")
    for name, tensor in others.items():
        assert result[name].dtype == tensor.dtype
        assert torch.equal(result[name].view(torch.uint8), tensor.view(torch.uint8))
    assert report.tensors_carried == len(others)


def test_every_tensor_begins_at_a_multiple_of_its_element(tmp_path):
    tensors = tensors_of({"a": gptq(31, 44, group=44, symmetric=False)})
    source = write_folder(tmp_path / "src", GPTQ | {"group_size": -1},
                          [tensors | {"odd": torch.ones(3, dtype=torch.uint8)}])  # fmt: skip
    repack(source, tmp_path / "dst")
    for entry in read_header(tmp_path / "dst/model.safetensors").values():
        assert entry.begin % {"I32": 4, "F16": 2, "U8": 1}[entry.dtype] == 0


def test_mixed_types_are_named_in_the_config(tmp_path):
    layers = {
        "model.0.up": gptq(32, 64),
        "model.1.up": gptq(32, 64),
        "model.0.down": gptq(32, 64, bits=8, group=64),
        "lm_head": gptq(32, 64, symmetric=False),
    }
    dense = {f"model.{n}.weight": torch.randn(4, 4) for n in ("gate", "embed_tokens")}
    settings = GPTQ | {
        "lm_head": True,
        "dynamic": {r"-:.*gate": {}, r"+:.*down": {"bits": 8, "group_size": 64}},
    }
    source = write_folder(tmp_path / "src", settings, [tensors_of(layers) | dense])
    report = repack(source, tmp_path / "dst")
    config = config_of(tmp_path / "dst")
    usual = "uint4,group=32,scale=float16,zero=midpoint"
    assert config["weight_type"] == usual
    assert config["modules"] == {
        "lm_head": "uint4,group=32,scale=float16,zero=integer",
        "model.0.down": "uint8,group=64,scale=float16,zero=midpoint",
    }
    assert config["modules_to_not_convert"] == ["model.gate"]
    assert config["source"] == settings and config["quant_method"] == "ladder"
    assert report.types[usual].modules == 2
    assert report.types[usual].weights == 2 * 32 * 64
    assert sum(row.bytes for row in report.types.values()) + 2 * 64 == report.bytes_after
    json.dumps(report.to_dict())


def test_names_not_to_convert_never_hide_a_module_that_is_quantised(tmp_path):
    settings = GPTQ | {"modules_to_not_convert": ["model.0", "up", "vision", 7]}
    source = write_folder(tmp_path / "src", settings, [tensors_of({"model.0.up": gptq(32, 64)})])
    repack(source, tmp_path / "dst")
    assert config_of(tmp_path / "dst")["modules_to_not_convert"] == ["lm_head", "vision"]


def test_a_destination_that_appeared_meanwhile_is_kept(tmp_path):
    def appear(done, total, name):
        (tmp_path / "dst").mkdir(exist_ok=True)
        (tmp_path / "dst" / "theirs").write_text("kept")

    with pytest.raises(InvalidArgument, match="dst exists; pass force"):
        repack(small(tmp_path / "src"), tmp_path / "dst", progress=appear)
    assert files(tmp_path / "dst") == {"theirs"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dst", "src"]


@pytest.mark.parametrize(
    ("file", "make", "settings"),
    [
        ("quantize_config.json", gptq, {"bits": 4, "group_size": 32, "desc_act": False}),
        ("quant_config.json", awq, {"w_bit": 4, "q_group_size": 32, "version": "GEMM"}),
    ],
)
def test_settings_may_lie_in_a_file_of_their_own(tmp_path, file, make, settings):
    truth = make(32, 64)
    source = write_folder(tmp_path / "src", None, [tensors_of({"layer": truth})])
    (source / file).write_text(json.dumps(settings))
    report = repack(source, tmp_path / "dst")
    assert report.quant_method == make.__name__
    assert config_of(tmp_path / "dst")["source"] == {"quant_method": make.__name__} | settings
    assert not (tmp_path / "dst" / file).exists(), "it describes the old weights"


def test_pickled_weights_are_read_and_replaced(tmp_path):
    truth = gptq(32, 64)
    source = write_folder(tmp_path / "src", GPTQ, [{"x": torch.ones(1)}])
    (source / "model.safetensors").unlink()
    shared = torch.randn(6, 4)
    extra = {"shared.weight": shared, "turned.weight": shared.t()}
    torch.save(tensors_of({"layer": truth}) | extra, source / "pytorch_model.bin")
    repack(source, tmp_path / "dst")
    assert np.array_equal(codes(tmp_path / "dst", "layer", truth), truth.codes)
    assert "pytorch_model.bin" not in files(tmp_path / "dst")
    result = load_file(tmp_path / "dst/model.safetensors")
    assert torch.equal(result["turned.weight"], shared.t())


def test_a_pickle_that_would_run_code_is_refused(tmp_path, left_nothing):
    source = write_folder(tmp_path / "src", GPTQ, [{"x": torch.ones(1)}])
    (source / "model.safetensors").unlink()
    torch.save({"a": _Runs()}, source / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="without running code") as caught:
        repack(source, left_nothing)
    assert "\n" not in str(caught.value)
    assert not (source / "ran").exists()


class _Runs:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_links_are_followed_as_in_the_hub_cache(tmp_path):
    source = small(tmp_path / "blobs")
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for entry in source.iterdir():
        (snapshot / entry.name).symlink_to(entry)
    repack(snapshot, tmp_path / "dst")
    result = {p for p in (tmp_path / "dst").rglob("*") if p.is_symlink()}
    assert not result and "extra/notes.txt" in files(tmp_path / "dst")


def test_an_existing_destination_is_kept_unless_forced(tmp_path):
    source, out = small(tmp_path / "src"), tmp_path / "out"
    (out / "dst").mkdir(parents=True)
    (out / "dst" / "precious").write_text("kept")
    with pytest.raises(InvalidArgument, match="dst exists; pass force"):
        repack(source, out / "dst")
    assert files(out) == {"dst/precious"}
    repack(source, out / "dst", force=True)
    assert "dst/config.json" in files(out) and "dst/precious" not in files(out)
    assert [p.name for p in out.iterdir()] == ["dst"]


def test_a_failed_forced_repack_leaves_the_old_destination(tmp_path):
    out = tmp_path / "out"
    repack(small(tmp_path / "good"), out / "dst")
    before = {name: (out / name).read_bytes() for name in files(out)}

    def stop(done, total, name):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repack(tmp_path / "good", out / "dst", force=True, progress=stop)
    assert {name: (out / name).read_bytes() for name in files(out)} == before


def test_an_empty_destination_and_missing_parents_are_fine(tmp_path):
    source = small(tmp_path / "src")
    (tmp_path / "empty").mkdir()
    repack(source, tmp_path / "empty")
    repack(source, tmp_path / "a" / "b" / "c")
    assert files(tmp_path / "empty") == files(tmp_path / "a/b/c")


def test_parents_made_for_a_failed_repack_are_removed(tmp_path):
    def stop(done, total, name):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repack(small(tmp_path / "src"), tmp_path / "a" / "b", progress=stop)
    assert [p.name for p in tmp_path.iterdir()] == ["src"]


@pytest.mark.parametrize("place", ["src", "src/inner", "."])
def test_source_and_destination_must_not_lie_in_each_other(tmp_path, place):
    source = small(tmp_path / "src")
    before = files(tmp_path)
    with pytest.raises(InvalidArgument, match="must not lie in each other"):
        repack(source, tmp_path / place, force=True)
    assert files(tmp_path) == before


def test_a_destination_that_is_a_file_or_above_us_is_never_replaced(tmp_path, monkeypatch):
    source = small(tmp_path / "src")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidArgument, match="exists and is not a folder"):
        repack(source, tmp_path / "file", force=True)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidArgument, match="link is a link: name the folder that is to be"):
        repack(source, tmp_path / "link", force=True)
    (tmp_path / "here" / "deeper").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here" / "deeper")
    with pytest.raises(InvalidArgument, match="current or home folder"):
        repack(source, tmp_path / "here", force=True)


def test_a_folder_is_known_by_another_spelling_of_its_name(tmp_path, monkeypatch):
    """On macOS "SRC" is "src", and the system resolves neither. Here a link that is not resolved
    stands for the other spelling."""
    source, other = small(tmp_path / "src"), tmp_path / "other"
    other.symlink_to(tmp_path)
    before = files(tmp_path / "src")
    monkeypatch.setattr(Path, "resolve", Path.absolute)
    for place in (other / "src", other / "src" / "inner", other):
        with pytest.raises(InvalidArgument, match="must not lie in each other"):
            model_files.check_apart(source, place)
    (tmp_path / "here" / "deeper").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here" / "deeper")
    with pytest.raises(InvalidArgument, match="current or home folder"):
        repack(source, other / "here", force=True)
    assert files(tmp_path / "src") == before


def test_a_ladder_folder_is_not_repacked_again(tmp_path):
    repack(small(tmp_path / "src"), tmp_path / "dst")
    with pytest.raises(InvalidArgument, match="is a ladder checkpoint already"):
        repack(tmp_path / "dst", tmp_path / "again")


def test_progress_counts_every_byte_once(tmp_path):
    calls = []
    report = repack(small(tmp_path / "src"), tmp_path / "dst", progress=lambda *c: calls.append(c))
    done = [call[1] for call in calls]
    assert done == sorted(done) and done[-1] == report.bytes_after
    assert {call[2] for call in calls} == {report.bytes_after}
    assert {call[0] for call in calls} == {
        "layer.qweight", "layer.scales", "layer.zeros", "norm.weight",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind", "zero"), [("gptq", "gptq", "midpoint"), ("awq", "awq", "integer")]
)
def test_a_real_checkpoint_is_repacked_whole(tmp_path, real_checkpoint, name, kind, zero):
    source = real_checkpoint(f"tiny-llama-{name}-w4-g128", f"examples/tiny-llama-{name}")
    report = repack(source, tmp_path / "dst")
    assert report.modules == 56 and report.quant_method == kind
    assert list(report.types) == [f"uint4,group=128,scale=float16,zero={zero}"]
    assert files(tmp_path / "dst") >= {"config.json", "model.safetensors", "tokenizer.json"}
    tensors = load_file(source / "model.safetensors")
    for module, weight in open_folder(source):
        qweight, k = tensors[f"{module}.qweight"].numpy().view(np.uint32), weight.shape[1]
        if kind == "gptq":
            row = np.arange(k)
            theirs = (qweight[row // 8] >> (4 * (row % 8))[:, None].astype(np.uint32) & 15).T
        else:
            column = np.arange(weight.shape[0])
            nibble = np.array([0, 4, 1, 5, 2, 6, 3, 7])[column % 8]
            theirs = (qweight[:, column // 8] >> (4 * nibble).astype(np.uint32) & 15).T
        assert np.array_equal(ops.unpack(weight.qweight, k, 4).numpy(), theirs)
