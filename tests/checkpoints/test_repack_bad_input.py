# SPDX-License-Identifier: Apache-2.0
"""Bad checkpoints are refused in one typed sentence and leave nothing behind."""

import json

import pytest
import torch
from checkpoint_oracle import awq, gptq, small, tensors_of, write_folder
from safetensors.torch import load_file, save_file

from ladder.checkpoints import gptq as gptq_format
from ladder.checkpoints import open_folder, repack
from ladder.checkpoints.layer import unpack_layer
from ladder.errors import CheckpointError, InvalidArgument, LadderError, Unsupported

NAN, INF = float("nan"), float("inf")


def scales(value):
    made = gptq(32, 64, symmetric=False).tensors["scales"].clone()
    made[1, 3] = value
    return made


def g_idx(**at):
    made = torch.arange(64, dtype=torch.int32) // 32
    for index, value in at.items():
        made[int(index[1:])] = value
    return made


TENSORS = [
    ({"scales": None}, r"layer.scales is missing; layer has g_idx, qweight, qzeros"),
    ({"qzeros": None}, r"layer.qzeros is missing"),
    ({"qweight": None}, r"layer.qweight is missing, but there is layer.(qzeros|g_idx)|no tensor"),
    ({"scales": scales(NAN)}, r"layer.scales\[1, 3\] is nan"),
    ({"scales": scales(INF)}, r"layer.scales\[1, 3\] is inf"),
    ({"scales": torch.ones(3, 32).half()}, r"layer.scales has 3 groups, but K = 64 .* needs 2"),
    ({"scales": torch.ones(1, 32).half()}, r"layer.scales has 1 groups, but K = 64 .* needs 2"),
    ({"scales": torch.ones(2, 31).half()}, r"layer.scales has shape \[2, 31\], not \[2, 32\]"),
    ({"scales": torch.ones(32).half()}, r"layer.scales has shape \[32\], not two"),
    ({"scales": torch.ones(2, 32, dtype=torch.int32)}, r"layer.scales is int32, not float16 or"),
    ({"scales": torch.ones(2, 32).double()}, r"layer.scales is F64, not float16 or"),
    ({"qzeros": torch.ones(1, 4).int()}, r"layer.qzeros has shape \[1, 4\], not \[2, 4\]"),
    ({"qzeros": torch.ones(2, 3).int()}, r"layer.qzeros has shape \[2, 3\], not \[2, 4\]"),
    ({"qzeros": torch.ones(2, 4).half()}, r"layer.qzeros is float16, not int32"),
    ({"qweight": torch.ones(8, 32).float()}, r"layer.qweight is float32, not int32"),
    ({"qweight": torch.ones(8, 32).long()}, r"layer.qweight is int64, not int32"),
    ({"qweight": torch.ones(256).int()}, r"layer.qweight has shape \[256\], not two"),
    ({"qweight": torch.ones(7, 32).int()}, r"layer.g_idx has shape \[64\], but the 7 rows"),
    ({"g_idx": g_idx(_5=2)}, r"layer.g_idx\[5\] is 2, not one of the 2 groups"),
    ({"g_idx": g_idx(_63=-1)}, r"layer.g_idx\[63\] is -1, not one of the 2 groups"),
    ({"g_idx": g_idx()[:-8]}, r"layer.g_idx has shape \[56\], but the 8 rows .* 64 codes"),
    ({"g_idx": g_idx().long()}, r"layer.g_idx is int64, not int32"),
]


@pytest.mark.parametrize(("changes", "message"), TENSORS, ids=[m for _, m in TENSORS])
def test_a_bad_tensor_is_named_with_both_values(tmp_path, left_nothing, changes, message):
    with pytest.raises(CheckpointError, match=message):
        repack(small(tmp_path / "src", **changes), left_nothing)


SETTINGS = [
    ({"bits": 5}, CheckpointError, "bits is 5, gptq has 2, 3, 4, 8"),
    ({"bits": "4"}, CheckpointError, "bits is '4', not an integer"),
    ({"bits": True}, CheckpointError, "bits is True, not an integer"),
    ({"bits": None}, CheckpointError, "bits is missing"),
    ({"group_size": 0}, CheckpointError, "group_size is 0, not -1 or at least 8"),
    ({"group_size": -2}, CheckpointError, "group_size is -2, not -1 or at least 8"),
    ({"group_size": 16}, CheckpointError, "has 2 groups, but K = 64 in groups of 16 needs 4"),
    (
        {"quant_method": "higgs"},
        CheckpointError,
        "quant_method is 'higgs', ladder reads auto-round, awq",
    ),
    (
        {"quant_method": "modelopt", "quant_algo": "W4A8_MXFP4_FP8"},
        Unsupported,
        "quant_algo is 'W4A8_MXFP4_FP8'; ladder reads FP8, .*NVFP4",
    ),
    ({"quant_method": 7}, CheckpointError, "quant_method is 7"),
    ({"quant_method": None}, CheckpointError, "quant_method is None"),
    ({"checkpoint_format": "gguf"}, CheckpointError, "format is 'gguf', not gptq or gptq_v2"),
    ({"checkpoint_format": "marlin"}, Unsupported, "is 'marlin'.*repack the original"),
    ({"format": "bitblas"}, Unsupported, "is 'bitblas'.*repack the original"),
    ({"pack_dtype": "int64"}, Unsupported, "pack_dtype is 'int64', ladder reads int32"),
    ({"desc_act": "no"}, CheckpointError, "desc_act is 'no', not true or false"),
    ({"dynamic": ["a"]}, CheckpointError, r"dynamic is \['a'\], not an object"),
    ({"dynamic": {"+:(": {}}}, CheckpointError, "not a regular expression"),
    ({"dynamic": {"+:a": 8}}, CheckpointError, "is 8, not an object of overrides"),
    ({"dynamic": {"-:lay": {}}}, CheckpointError, "layer.qweight is there, but .* leaves layer"),
]


@pytest.mark.parametrize(
    ("changes", "error", "message"), SETTINGS, ids=[str(s[0]) for s in SETTINGS]
)
def test_a_bad_setting_is_named_with_its_value(tmp_path, left_nothing, changes, error, message):
    with pytest.raises(error, match=message):
        repack(small(tmp_path / "src", settings=changes), left_nothing)


AWQ = [
    ({"bits": 8}, {}, "bits is 8, AWQ has 4"),
    ({"version": "gemm9"}, {}, "version is 'gemm9', not gemm"),
    ({"group_size": 48}, {}, "layer.qweight has K = 64, not a multiple of group_size 48"),
    ({"version": "gemv"}, {}, "layer.scales has shape"),
    ({"version": "gemv_fast"}, {}, "layer.qweight is int32, not int16"),
    ({}, {"qzeros": None}, "layer.qzeros is missing"),
    ({}, {"scales": torch.full((2, 32), NAN).half()}, r"layer.scales\[0, 0\] is nan"),
]


@pytest.mark.parametrize(("settings", "changes", "message"), AWQ, ids=[m for *_, m in AWQ])
def test_bad_awq_is_named_with_both_values(tmp_path, left_nothing, settings, changes, message):
    settings = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"} | settings
    tensors = tensors_of({"layer": awq(32, 64)}) | {f"layer.{p}": t for p, t in changes.items()}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    with pytest.raises(CheckpointError, match=message):
        repack(write_folder(tmp_path / "src", settings, [kept]), left_nothing)


def test_a_float_zero_that_is_not_finite_is_named(tmp_path, left_nothing):
    truth = awq(32, 64, version="gemv_fast")
    truth.tensors["scaled_zeros"][1, 2] = INF
    settings = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv_fast"}
    source = write_folder(tmp_path / "src", settings, [tensors_of({"layer": truth})])
    with pytest.raises(CheckpointError, match=r"layer.scaled_zeros\[1, 2\] is inf"):
        repack(source, left_nothing)


@pytest.mark.parametrize(
    ("make", "method", "part"),
    [(gptq, "gptq", "zeros"), (awq, "awq", "g_idx"), (gptq, "gptq", "scale2")],
)
def test_a_tensor_that_would_gain_a_meaning_is_refused(tmp_path, left_nothing, make, method, part):
    tensors = tensors_of({"layer": make(32, 64)}) | {f"layer.{part}": torch.ones(1)}
    settings = {"quant_method": method, "bits": 4, "group_size": 32}
    with pytest.raises(CheckpointError, match=f"layer.{part} is there, but {method} has none"):
        repack(write_folder(tmp_path / "src", settings, [tensors]), left_nothing)


def test_planes_that_end_within_a_block_are_refused():
    truth = gptq(48, 64, bits=3, form="gptq_v2")
    with pytest.raises(CheckpointError, match="layer.qweight is 48 x 64, but gptq_p cuts blocks"):
        unpack_layer(gptq_format, truth.tensors, gptq_format.Config(3, 32, "gptq_p"), "layer")


@pytest.mark.parametrize("cut", [1, 100, 2000])
def test_a_truncated_file_is_refused_with_both_lengths(tmp_path, left_nothing, cut):
    source = small(tmp_path / "src")
    data = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").write_bytes(data[:-cut])
    with pytest.raises(CheckpointError, match="truncated at byte|header length"):
        repack(source, left_nothing)


def two_shards(tmp_path):
    tensors = tensors_of({"a": gptq(32, 64), "b": gptq(32, 64, seed=1)})
    shards = [{n: t for n, t in tensors.items() if n[0] == c} for c in "ab"]
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    return write_folder(tmp_path / "src", settings, shards)


def edit_index(folder, edit):
    path = folder / "model.safetensors.index.json"
    fields = json.loads(path.read_text())
    edit(fields["weight_map"])
    path.write_text(json.dumps(fields))


FIRST, SECOND = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2))


def test_a_missing_shard_is_named(tmp_path, left_nothing):
    source = two_shards(tmp_path)
    (source / SECOND).unlink()
    with pytest.raises(CheckpointError, match=f"names {SECOND}, which is missing"):
        repack(source, left_nothing)
    (source / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match="one of 2 shards, found 1"):
        repack(source, left_nothing)


def test_one_file_of_all_weights_beside_shards_is_refused(tmp_path, left_nothing):
    """transformers would load the file, vLLM the shards."""
    source = two_shards(tmp_path)
    save_file({"a": torch.zeros(1)}, source / "model.safetensors")
    with pytest.raises(
        CheckpointError,
        match=f"has model.safetensors beside model.safetensors.index.json, which names {FIRST}: ",
    ):
        repack(source, left_nothing)


def test_an_index_of_shards_that_are_gone_beside_one_file_is_not_asked(tmp_path):
    """As transformers leaves it; a copy of the folder has none."""
    source = two_shards(tmp_path)
    both = load_file(source / FIRST) | load_file(source / SECOND)
    for name in (FIRST, SECOND):
        (source / name).unlink()
    save_file(both, source / "model.safetensors")
    assert [name for name, _ in open_folder(source)] == ["a", "b"]
    repack(source, tmp_path / "dst")
    assert not [*(tmp_path / "dst").glob("*.index.json")]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda m: m.pop("a.qweight"), f"a.qweight is in {FIRST}, its index says no shard"),
        (lambda m: m.update({"a.qweight": SECOND}), f"a.qweight is in {FIRST}, .* says {SECOND}"),
        (lambda m: m.update({"a.x": FIRST}), f"a.x is in {FIRST} by the index, but that shard"),
        (lambda m: m.update({"a.x": "../y"}), r"puts a.x in '../y', not a file name"),
        (lambda m: m.update({"a.x": 3}), r"puts a.x in 3, not a file name"),
        (lambda m: m.clear(), "weight_map is not an object that names tensors"),
    ],
)
def test_an_index_that_disagrees_with_its_shards_is_refused(tmp_path, left_nothing, edit, message):
    source = two_shards(tmp_path)
    edit_index(source, edit)
    with pytest.raises(CheckpointError, match=message):
        repack(source, left_nothing)


def test_a_tensor_in_two_shards_is_refused(tmp_path, left_nothing):
    source = two_shards(tmp_path)
    both = load_file(source / FIRST) | load_file(source / SECOND)
    save_file(both, source / SECOND)
    with pytest.raises(CheckpointError, match=f"is in {SECOND}, its index says {FIRST}|in both"):
        repack(source, left_nothing)


def test_two_shards_without_index_are_read_together(tmp_path):
    source = two_shards(tmp_path)
    (source / "model.safetensors.index.json").unlink()
    assert [name for name, _ in open_folder(source)] == ["a", "b"]


def test_folders_that_are_no_checkpoint_are_refused(tmp_path, left_nothing):
    with pytest.raises(InvalidArgument, match="nowhere is not a folder"):
        repack(tmp_path / "nowhere", left_nothing)
    source = tmp_path / "src"
    source.mkdir()
    with pytest.raises(CheckpointError, match="config.json: cannot be read"):
        repack(source, left_nothing)
    for text, message in [("{", "not JSON"), ("[]", "a JSON list"), ("{}", "no quantization_con"),
                          ('{"quantization_config": 3}', "is 3, not an object"),
                          ('{"quantization_config": {"quant_method": "gptq", "bits": 4}}',
                           "neither .*safetensors nor")]:  # fmt: skip
        (source / "config.json").write_text(text)
        with pytest.raises(CheckpointError, match=message):
            repack(source, left_nothing)
    save_file({"x": torch.ones(1)}, source / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"no tensor is a \*.qweight"):
        repack(source, left_nothing)


def test_a_link_that_leads_nowhere_and_a_pipe_are_refused(tmp_path, left_nothing):
    import os

    source = small(tmp_path / "src")
    (source / "link").symlink_to("nowhere")
    with pytest.raises(CheckpointError, match="link: cannot be read"):
        repack(source, left_nothing)
    (source / "link").unlink()
    os.mkfifo(source / "pipe")
    with pytest.raises(CheckpointError, match="pipe: is not a regular file"):
        repack(source, left_nothing)


def test_the_rule_for_v1_zeros_is_one_of_two(tmp_path, left_nothing):
    with pytest.raises(InvalidArgument, match="v1_zeros is 'both', not 'word' or 'field'"):
        repack(small(tmp_path / "src"), left_nothing, v1_zeros="both")


def test_every_error_is_one_line(tmp_path, left_nothing):
    for number, (changes, _) in enumerate(TENSORS):
        with pytest.raises(LadderError) as caught:
            repack(small(tmp_path / f"src{number}", **changes), left_nothing)
        assert "\n" not in str(caught.value)
