# SPDX-License-Identifier: Apache-2.0
"""quant_method "auto-round": which packing means what, settings of single modules, refusals."""

import pytest
import torch
from checkpoint_oracle import awq, gptq, tensors_of, write_folder

from ladder.checkpoints import open_folder
from ladder.errors import CheckpointError, Unsupported

N, K = 32, 96
SETTINGS = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": False,
            "data_type": "int", "packing_format": "auto_round:auto_gptq",
            "block_name_to_quantize": "model.layers"}  # fmt: skip


def folder_of(layers, path, **changes):
    return write_folder(path, SETTINGS | changes, [tensors_of(layers)])


def drawn(form="gptq", **options):
    """As AutoRound has it, without g_idx. Zeros of 0 are told apart by make_more.py's files."""
    return gptq(N, K, form=form, symmetric=False, lowest=1, g_idx=False, **options)


def check(source, truths):
    found = dict(open_folder(source))
    assert found.keys() == truths.keys()
    for name, truth in truths.items():
        assert torch.equal(found[name].dequantize(), torch.from_numpy(truth.weight)), name


@pytest.mark.parametrize(("packing", "form"), [
    ("auto_round:auto_gptq", "gptq"), ("auto_round:gptq", "gptq"), ("auto", "gptq"),
    ("auto_round:auto_gptq:exllamav2", "gptq"), (None, "gptq"),
    ("auto_round", "gptq_v2"), ("auto_round:gptqmodel", "gptq_v2"),
    ("auto_round:exllamav2", "gptq_v2"), ("autoround:exllamav2", "gptq_v2"),
    ("auto_round:auto_awq", "awq"), ("auto_round:awq:gemm", "awq"),
])  # fmt: skip
@pytest.mark.parametrize("method", ["auto-round", "intel/auto-round"])
def test_each_packing_is_read_as_it_is_stored(packing, form, method, tmp_path):
    truth = awq(N, K) if form == "awq" else drawn(form)
    source = folder_of({"q": truth}, tmp_path / "a", packing_format=packing, quant_method=method)
    check(source, {"q": truth})


@pytest.mark.parametrize(("backend", "form"), [
    ("auto_round:exllamav2", "gptq_v2"), ("gptq:exllamav2", "gptq"), ("awq:gemm", "awq"),
])  # fmt: skip
def test_old_folders_say_their_packing_in_backend(backend, form, tmp_path):
    truth = awq(N, K) if form == "awq" else drawn(form)
    source = folder_of({"q": truth}, tmp_path / "a", packing_format=None, backend=backend)
    check(source, {"q": truth})


@pytest.mark.parametrize("bits", [2, 3, 5, 6, 7, 8])
def test_widths_that_gptq_itself_does_not_store_as_a_stream_are_read(bits, tmp_path):
    truth = drawn("gptq_v2", bits=bits)
    source = folder_of({"q": truth}, tmp_path / "a", bits=bits, packing_format="auto_round")
    check(source, {"q": truth})


def test_modules_have_settings_of_their_own(tmp_path):
    truths = {
        "layers.0.mlp.gate_proj": drawn(),
        "layers.0.mlp.down_proj": drawn(bits=8),
        "layers.1.mlp.down_proj": drawn(bits=8, group=-1),
        "layers.1.mlp.up_proj": drawn(bits=2),
    }
    extra = {
        "layers.0.mlp.gate": {
            "bits": 16,
            "data_type": "fp",
        },  # a name, and not the beginning of one
        r"layers\.1.*down.*": {"group_size": -1, "bits": 8},
        r".*down_proj.*": {"bits": 8, "sym": None},
        r".*1\.mlp\.down.*": {"bits": 3},  # the first that is found counts
        "layers.1.mlp.up_proj": {"bits": 2},
    }
    check(folder_of(truths, tmp_path / "a", extra_config=extra), truths)
    source = folder_of(
        truths, tmp_path / "b", extra_config=extra | {"layers.1.mlp.up_proj": {"bits": 16}}
    )
    with pytest.raises(CheckpointError, match="leaves layers.1.mlp.up_proj unquantised"):
        dict(open_folder(source))


@pytest.mark.parametrize(("changes", "error", "why"), [
    ({"packing_format": "auto_round:llm_compressor"}, Unsupported, "llm_compressor'; ladder"),
    ({"packing_format": "auto_round:fp8_static"}, Unsupported, "is 'auto_round:fp8_static'"),
    ({"dynamic": {"q": {"bits": 8}}}, Unsupported, "dynamic is GPTQ's"),
    ({"data_type": "mx_fp"}, Unsupported, "config.data_type is 'mx_fp', and ladder reads int"),
    ({"act_bits": 8}, Unsupported, "config.act_bits is 8, which"),
    ({"super_bits": 6}, Unsupported, "config.super_bits is 6, which"),
    ({"rotation_config": {"kind": "hadamard"}}, Unsupported, "rotation_config has activations"),
    ({"bits": 9}, CheckpointError, "bits is 9, not from 2 to 8"),
    ({"bits": "4"}, CheckpointError, "bits is '4', not an integer"),
    ({"group_size": 4}, CheckpointError, "group_size is 4, not -1 or at least 8"),
    ({"sym": "yes"}, CheckpointError, "sym is 'yes', not true or false"),
    ({"extra_config": [1]}, CheckpointError, r"extra_config is \[1\], not an object"),
    ({"extra_config": {"q": 4}}, CheckpointError, r"extra_config\['q'\] is 4, not an object"),
    ({"extra_config": {"q(": {}}}, CheckpointError, "is not a regular expression"),
    ({"extra_config": {"q": {"data_type": "fp"}}}, Unsupported, r"\['q'\].data_type is 'fp'"),
    ({"extra_config": {"q": {"bits": 1}}}, CheckpointError, r"\['q'\].bits is 1, not from 2"),
    ({"bits": 8, "packing_format": "auto_round:auto_awq"}, Unsupported, "q has 8 bits in AWQ's"),
    ({"bits": 8}, CheckpointError, "q.qweight|q.qzeros|q.scales"),
    ({"group_size": 64}, CheckpointError, "has 3 groups, but K = 96 in groups of 64 needs 2"),
])  # fmt: skip
def test_settings_that_ladder_cannot_follow(changes, error, why, tmp_path):
    source = folder_of({"q": drawn()}, tmp_path / "a", **changes)
    with pytest.raises(error, match=why):
        dict(open_folder(source))


def test_a_zero_of_256_is_refused(tmp_path):
    truth = drawn(bits=8)
    truth.tensors["qzeros"].fill_(-1)
    with pytest.raises(CheckpointError, match="q.qzeros has a zero of 256"):
        dict(open_folder(folder_of({"q": truth}, tmp_path / "a", bits=8)))
