# SPDX-License-Identifier: Apache-2.0
"""A layer means the same after repacking: codes, scales and zeros are equal, not close."""

import json

import numpy as np
import pytest
import torch
from checkpoint_oracle import awq, gptq, stream, tensors_of, words, write_folder
from safetensors.torch import load_file

from ladder import ops, types
from ladder.checkpoints import awq as awq_format
from ladder.checkpoints import gptq as gptq_format
from ladder.checkpoints import open_folder, repack
from ladder.checkpoints.layer import stored, unpack_layer
from ladder.errors import CheckpointError
from ladder.weight import Weight


def check(truth, weight):
    n, k = truth.codes.shape
    bits = weight.type.bits
    assert weight.shape == (n, k)
    assert np.array_equal(ops.unpack(weight.qweight, k, bits).numpy(), truth.codes)
    assert np.array_equal(weight.scales.numpy(), truth.scales)
    if weight.zeros is None:
        assert (truth.zeros == 1 << (bits - 1)).all()
    else:
        assert np.array_equal(weight.zeros.numpy(), truth.zeros)
        assert weight.zeros.dtype == (weight.scales.dtype if truth.rescaled else torch.uint8)
    assert np.array_equal(weight.dequantize(torch.float32).numpy(), truth.weight)


def loaded(folder, name="layer"):
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    kind = types.parse(config["modules"].get(name, config["weight_type"]))
    tensors = load_file(folder / "model.safetensors")
    parts = {p: tensors.get(f"{name}.{p}") for p in ("qweight", "scales", "zeros", "g_idx")}
    k = tensors[f"{name}.x"].shape[0]
    weight = Weight(type=kind, shape=(parts["qweight"].shape[0], k), **parts)
    weight.check(name=name)
    return weight


def round_trip(tmp_path, truth, settings):
    """Through a file and back. The tensor x only carries K."""
    tensors = tensors_of({"layer": truth}) | {"layer.x": torch.zeros(truth.codes.shape[1])}
    source = write_folder(tmp_path / "src", settings, [tensors])
    repack(source, tmp_path / "dst")
    ((_, direct),) = open_folder(source)
    for weight in (loaded(tmp_path / "dst"), direct):
        check(truth, weight)
    return loaded(tmp_path / "dst")


GPTQ = [(form, bits) for form, b in gptq_format._BITS.items() for bits in b]


@pytest.mark.parametrize("symmetric", [True, False], ids=["sym", "asym"])
@pytest.mark.parametrize(("form", "bits"), GPTQ)
def test_a_gptq_layer_keeps_codes_scales_and_zeros(tmp_path, form, bits, symmetric):
    truth = gptq(64, 96, bits=bits, symmetric=symmetric, form=form, seed=bits)
    settings = {"quant_method": "gptq", "bits": bits, "group_size": 32, "checkpoint_format": form}
    weight = round_trip(tmp_path, truth, settings)
    assert str(weight.type).endswith("zero=midpoint" if symmetric else "zero=integer")
    assert weight.g_idx is None


@pytest.mark.parametrize("group", [-1, 8, 64, 96, 128], ids=lambda g: f"g{g}")
@pytest.mark.parametrize("order", [False, True], ids=["plain", "desc_act"])
def test_any_group_size_with_and_without_act_order(tmp_path, group, order):
    """96 columns: groups of 64 leave a shorter last one, and a group of 128 is cut to 96."""
    truth = gptq(32, 96, group=min(group, 96), symmetric=False, order=order)
    settings = {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": order}
    weight = round_trip(tmp_path, truth, settings)
    trivial = np.array_equal(truth.group_of, np.arange(96) // min(group % 129, 96))
    assert (weight.g_idx is None) == trivial


def test_the_older_names_of_settings_are_read(tmp_path):
    truth = gptq(32, 64, form="gptq_v2", symmetric=False)
    settings = {"method": "gptq", "w_bit": 4, "q_group_size": 32, "format": "gptq_v2"}
    round_trip(tmp_path, truth, settings)


def test_static_groups_leave_g_idx_out_when_it_is_trivial(tmp_path):
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}
    truth = gptq(32, 64)
    assert round_trip(tmp_path, truth, settings | {"static_groups": True}).g_idx is None


def test_a_g_idx_that_was_never_filled_means_none():
    truth = gptq(32, 64)
    tensors = truth.tensors | {"g_idx": torch.zeros(64, dtype=torch.int32)}
    weight = unpack_layer(gptq_format, tensors, gptq_format.Config(4, 32), "layer")
    assert weight.g_idx is None
    check(truth, weight)


def test_a_layer_without_g_idx_takes_k_from_its_codes():
    truth = gptq(32, 64, g_idx=False)
    check(truth, unpack_layer(gptq_format, truth.tensors, gptq_format.Config(4, 32), "layer"))


def test_a_layer_without_g_idx_takes_k_from_its_caller_where_words_leave_it_open():
    truth = gptq(32, 44, group=44, g_idx=False)
    parts, config = stored(truth.tensors), gptq_format.Config(4, 44)
    assert gptq_format.measure(parts, config, "layer", 44).k == 44
    for k in (None, 99):
        with pytest.raises(CheckpointError, match="1 groups, but K = 48 in groups of 44 needs 2"):
            gptq_format.measure(parts, config, "layer", k)


def test_bits_past_k_are_cleared():
    """K = 44 leaves 16 spare bits in a row; a file may hold anything there."""
    truth = gptq(32, 44, group=44)
    truth.tensors["qweight"][-1] |= torch.tensor(0x7FFF0000, dtype=torch.int32)
    weight = unpack_layer(gptq_format, truth.tensors, gptq_format.Config(4, 44), "layer")
    check(truth, weight)
    assert (weight.qweight[:, -1] >> 16 == 0).all()


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_v1_zeros_of_zero_are_read_back_by_the_word_rule(bits):
    """Zero - 1 borrows from the next field; adding ones to whole words gives the borrow back."""
    truth = gptq(32, 32, bits=bits, symmetric=False, lowest=2)
    truth.zeros[::3] = 0
    ones = sum(1 << at for at in range(0, 32, bits))
    packed = [[(w - ones) % (1 << 32) for w in stream(z, bits)] for z in truth.zeros.T]
    truth.tensors["qzeros"] = words(packed)
    word, field = (gptq_format.Config(bits, 32, v1_zeros=rule) for rule in ("word", "field"))
    check(truth, unpack_layer(gptq_format, truth.tensors, word, "layer"))
    other = unpack_layer(gptq_format, truth.tensors, field, "layer")
    wrong = np.nonzero((other.zeros.numpy() != truth.zeros).any(axis=1))[0]
    assert wrong.tolist() == [n for n in range(1, 32, 3) if n % (32 // bits)]


def test_both_rules_for_v1_zeros_agree_when_no_zero_is_zero():
    truth = gptq(32, 64, symmetric=False, lowest=1)
    for rule in ("word", "field"):
        config = gptq_format.Config(4, 32, v1_zeros=rule)
        check(truth, unpack_layer(gptq_format, truth.tensors, config, "layer"))


@pytest.mark.parametrize("zero_point", [True, False])
@pytest.mark.parametrize("group", [-1, 32, 64, 128], ids=lambda g: f"g{g}")
@pytest.mark.parametrize("version", ["GEMM", "gemv", "gemv_fast", "llm-awq"])
def test_an_awq_layer_keeps_codes_scales_and_zeros(tmp_path, version, group, zero_point):
    truth = awq(32, 256, group=group, version=version.lower(), symmetric=not zero_point)
    settings = {"quant_method": "awq", "bits": 4, "group_size": group, "version": version}
    round_trip(tmp_path, truth, settings | {"zero_point": zero_point})


def test_the_fast_awq_layout_may_call_its_zeros_qzeros():
    truth = awq(32, 128, version="gemv_fast")
    truth.tensors["qzeros"] = truth.tensors.pop("scaled_zeros")
    config = awq_format.Config(group_size=32, version="gemv_fast")
    check(truth, unpack_layer(awq_format, truth.tensors, config, "layer"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_scales_keep_their_dtype(dtype):
    truth = gptq(32, 64)
    tensors = truth.tensors | {"scales": truth.tensors["scales"].to(dtype)}
    weight = unpack_layer(gptq_format, tensors, gptq_format.Config(4, 32), "layer")
    assert weight.scales.dtype == dtype
    assert str(dtype).removeprefix("torch.") in str(weight.type)


def test_a_gemm_layer_of_any_k_is_transposed_and_left_as_it_was():
    """K = 84 ends in half a square of eight rows."""
    truth = awq(32, 84, group=-1)
    before = truth.tensors["qweight"].clone()
    config = awq_format.Config(group_size=-1)
    weight = unpack_layer(awq_format, truth.tensors, config, "layer")
    check(truth, weight)
    assert (weight.qweight[:, -1] >> 16 == 0).all(), "bits past K are zero"
    assert torch.equal(truth.tensors["qweight"], before)


@pytest.mark.parametrize("rows", [32, 64, 96])
@pytest.mark.parametrize("form", ["gptq", "gptq_p"])
def test_rows_unpacked_apart_are_the_rows_unpacked_together(form, rows):
    truth = gptq(100, 64, bits=3, form="gptq_v2" if form == "gptq" else form)
    config = gptq_format.Config(3, 32, format="gptq_v2" if form == "gptq" else form)
    if form == "gptq_p":  # planar zeros come in blocks of 32
        truth = gptq(128, 64, bits=3, form=form)
    layer = gptq_format.measure(stored(truth.tensors), config, "layer")
    qweight = truth.tensors["qweight"]
    parts = [
        gptq_format.words(qweight, layer, slice(n, min(n + rows, layer.n)))
        for n in range(0, layer.n, rows)
    ]
    assert torch.equal(torch.cat(parts), gptq_format.words(qweight, layer, slice(None)))


@pytest.mark.parametrize("version", ["gemm", "gemv", "gemv_fast"])
def test_awq_rows_unpacked_apart_are_the_rows_unpacked_together(version):
    truth = awq(72, 128, version=version)
    config = awq_format.Config(group_size=32, version=version)
    layer = awq_format.measure(stored(truth.tensors), config, "layer")
    qweight = truth.tensors["qweight"]
    parts = [awq_format.words(qweight, layer, slice(n, min(n + 32, 72))) for n in (0, 32, 64)]
    assert torch.equal(torch.cat(parts), awq_format.words(qweight, layer, slice(None)))


@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_the_shapes_promised_to_a_loader_are_those_of_the_file(dtype):
    for truth, module, config in [
        (gptq(32, 96, bits=3), gptq_format, gptq_format.Config(3, 32)),
        (gptq(32, 96, group=-1), gptq_format, gptq_format.Config(4, -1)),
        *[
            (awq(32, 256, version=v), awq_format, awq_format.Config(32, v))
            for v in ("gemm", "gemv", "gemv_fast")
        ],
    ]:
        n, k = truth.codes.shape
        for part, (shape, dtype) in module.shapes(n, k, config).items():
            assert tuple(truth.tensors[part].shape) == shape
            assert dtype in (None, truth.tensors[part].dtype)


def test_dynamic_overrides_follow_the_first_pattern_that_matches():
    config = gptq_format.Config.from_dict({
        "bits": 4, "group_size": 32,
        "dynamic": {r"-:.*\.gate$": {}, r"+:model\.0\..*": {"bits": 8}, r"model\..*": {"bits": 2}},
    })  # fmt: skip
    assert config.for_module("model.0.gate") is None
    assert config.for_module("model.0.up").bits == 8
    assert config.for_module("model.1.up").bits == 2
    assert config.for_module("a.model.1.up").bits == 4, "patterns match from the start"
    with pytest.raises(CheckpointError, match="bits is 5, gptq has 2, 3, 4, 8"):
        gptq_format.Config(4, 32, dynamic={"a": {"bits": 5}}).for_module("a")
