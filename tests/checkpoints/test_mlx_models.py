# SPDX-License-Identifier: Apache-2.0
"""Folders of MLX, and the models that transformers makes of their config.json."""

import json
import shutil

import pytest
import torch
from mlx_oracle import FIXTURES, mlx, write_mlx
from safetensors.torch import load_file, save_file

from ladder.checkpoints import FORMATS, open_folder, repack
from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.layer import is_embedding
from ladder.errors import Unsupported


def packed(module, n):
    return {f"{module}.{part}": tensor for part, tensor in mlx(n, 64).tensors.items()}


def change_llama(path, change):
    shutil.copytree(FIXTURES / "llama", path)
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    (path / "model.safetensors.index.json").unlink()
    save_file(tensors, path / "model.safetensors")
    return path


LLAMA = "transformers.LlamaForCausalLM"
NORM, UP = "model.layers.0.input_layernorm.weight", "model.layers.0.mlp.up_proj"


def rename(tensors):
    for part in ("weight", "scales", "biases"):
        attention = "model.layers.0.self_attn"
        tensors[f"{attention}.wq.{part}"] = tensors.pop(f"{attention}.q_proj.{part}")


@pytest.mark.parametrize(("change", "why"), [
    (rename, "model.layers.0.self_attn.wq has no place in LlamaForCausalLM of transformers"),
    (lambda t: t.pop(NORM), f"{NORM} of LlamaForCausalLM is in no file: mlx-lm renames"),
    (lambda t: t.update({NORM: torch.ones(64, 1)}), rf"{NORM} has shape \[64, 1\], and \[64\] in"),
    (lambda t: t.update({f"{UP}.{p}": t[f"{UP}.{p}"][:32].clone() for p in ("weight", "scales",
                                                                           "biases")}),
     rf"{UP}.weight has shape \[32, 64\], and \[64, 64\] in LlamaForCausalLM"),
])  # fmt: skip
def test_tensors_of_another_model_are_refused(change, why, tmp_path, left_nothing):
    source = change_llama(tmp_path / "a", change)
    with pytest.raises(Unsupported, match=why):
        repack(source, left_nothing)


@pytest.mark.parametrize("ignored", [False, True])
def test_tensors_that_a_model_makes_by_itself_may_be_absent(ignored, tmp_path, monkeypatch):
    source = change_llama(tmp_path / "a", lambda t: t.pop(NORM))
    patterns = ["input_layernorm"] if ignored else None
    monkeypatch.setattr(f"{LLAMA}._keys_to_ignore_on_load_missing", patterns)
    if ignored:
        repack(source, tmp_path / "b")
    else:
        with pytest.raises(Unsupported, match=f"{NORM} of LlamaForCausalLM is in no file"):
            repack(source, tmp_path / "b")


@pytest.mark.parametrize("ignored", [False, True])
def test_packed_weights_that_a_model_leaves_out_are_carried(ignored, tmp_path, monkeypatch):
    """As the layers that predict further tokens are."""
    source = change_llama(tmp_path / "a", lambda t: t.update({
        f"mtp.up_proj.{part}": t[f"{UP}.{part}"].clone() for part in ("weight", "scales", "biases")
    }))  # fmt: skip
    settings = json.loads((source / "config.json").read_text())
    for key in ("quantization", "quantization_config"):
        settings[key]["mtp.up_proj"] = settings[key][UP]
    (source / "config.json").write_text(json.dumps(settings))
    patterns = [r"^mtp\."] if ignored else None
    monkeypatch.setattr(f"{LLAMA}._keys_to_ignore_on_load_unexpected", patterns)
    if ignored:
        repack(source, tmp_path / "b")
        assert "mtp.up_proj.qweight" in load_file(tmp_path / "b" / "model.safetensors")
    else:
        with pytest.raises(Unsupported, match=r"mtp.up_proj has no place in LlamaForCausalLM"):
            repack(source, tmp_path / "b")


def test_code_of_a_folder_does_not_run(tmp_path, monkeypatch):
    """transformers asks at the terminal, and here the answer would be yes."""
    source = write_mlx(tmp_path / "a", packed("q_proj", 8))
    config = json.loads((source / "config.json").read_text())
    names = {"AutoConfig": "configuration_toy.ToyConfig", "AutoModelForCausalLM": "toy.Toy"}
    (source / "config.json").write_text(json.dumps(config | {"auto_map": names}))
    ran = tmp_path / "ran"
    (source / "configuration_toy.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    monkeypatch.setattr("builtins.input", lambda text: "y")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "m"))
    repack(source, tmp_path / "b")
    assert not ran.exists()


def test_decoded_routers_are_listed_as_dense(tmp_path):
    repack(FIXTURES / "qwen3_moe", tmp_path / "b")
    made = json.loads((tmp_path / "b" / "config.json").read_text())["quantization_config"]
    stored = StoredConfig.from_dict(made)
    assert stored.type_of("model.layers.0.mlp.gate") is None
    assert stored.type_of("model.layers.0.mlp.experts.0.gate_proj") is not None
    assert not any(is_embedding(name) for name in stored.modules_to_not_convert)


def test_the_gate_of_a_shared_expert_is_no_embedding(tmp_path):
    """T5 calls its embedding shared."""
    tensors = packed("mlp.up_proj", 8) | packed("mlp.shared_expert_gate", 1)
    source = open_folder(write_mlx(tmp_path / "a", tensors))
    assert "mlp.shared_expert_gate" in source.unquantised()
    assert all(is_embedding(name) for name in ("shared", "encoder.shared", "shared_embedding"))


def test_packed_weights_of_no_linear_layer_are_refused(monkeypatch, left_nothing):
    """As a router would be of a name that ladder does not know for one."""
    monkeypatch.setattr(FORMATS["mlx"], "is_decoded", lambda name, parts: is_embedding(name))
    with pytest.raises(Unsupported, match="mlp.gate is quantised, and a Qwen3MoeTopKRouter in"):
        repack(FIXTURES / "qwen3_moe", left_nothing)
