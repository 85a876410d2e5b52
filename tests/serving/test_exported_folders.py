# SPDX-License-Identifier: Apache-2.0
"""What ``ladder export`` writes, as vLLM's own classes read its configuration."""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import ladder
from ladder.checkpoints import StoredConfig
from ladder.checkpoints.export import export

UP, DOWN = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj"
UINT8 = "uint8,channel,scale=bfloat16,zero=midpoint"
#: The type of up_proj, the activation_type of both; what vLLM takes up_proj as.
CASES = {
    "uint4": ("uint4,group=32,scale=bfloat16,zero=midpoint", None, "CompressedTensorsWNA16"),
    "uint4, zeros": ("uint4,group=32,scale=bfloat16,zero=integer", None, "CompressedTensorsWNA16"),
    "int8": ("int8,channel,scale=bfloat16", "int8", "CompressedTensorsW8A8Int8"),
    "mxfp4": ("mxfp4", None, ""),
    "nvfp4": ("nvfp4", None, ""),
}


class ReplicatedLinear(nn.Linear):
    """By its name one of vLLM's."""


@pytest.mark.parametrize("kind", CASES)
def test_layers_have_the_scheme_of_their_own_type(kind, tmp_path):
    """Of two types in a folder; the output layer is dense."""
    from vllm.model_executor.layers.quantization.compressed_tensors import compressed_tensors

    type, activation_type, scheme = CASES[kind]
    types = {UP: type, DOWN: UINT8}
    weights = {name: ladder.quantize(torch.randn(64, 128), each) for name, each in types.items()}
    stored = StoredConfig.describing(
        {name: str(weight.type) for name, weight in weights.items()},
        ["lm_head"],
        activation_types=dict.fromkeys(types, activation_type),
    )
    source = tmp_path / "ladder"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(stored.put_in({"model_type": "llama"})))
    tensors = {f"{n}.{p}": t for n, weight in weights.items() for p, t in weight.tensors().items()}
    save_file(tensors, source / "model.safetensors")
    export(source, tmp_path / "out", "compressed-tensors")
    fields = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    config = compressed_tensors.CompressedTensorsConfig.from_config(fields)
    layer = ReplicatedLinear(128, 64)
    bits = {name: config.get_scheme_dict(layer, name)["weights"].num_bits for name in types}
    assert bits == {UP: ladder.ttype(type).bits, DOWN: 8}
    assert config.get_scheme_dict(layer, "lm_head") is None
    if scheme:  # others ask for the kernels of a GPU
        assert scheme in [each.__name__ for each in _kinds(config.get_scheme(layer, UP))]


def _kinds(scheme):
    return scheme.__class__.__mro__
