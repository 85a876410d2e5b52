# SPDX-License-Identifier: Apache-2.0
"""The layer of multi-head latent attention (DeepSeek) whose weight attention takes into its own
products: vLLM finds the values by a product with the identity."""

from __future__ import annotations

import pytest
import torch
from drawn import KINDS
from layers import Stored, activations, product, run, serve, write

pytestmark = pytest.mark.usefixtures("vllm")

ZEROS = "uint4,group=32,scale=float16,zero=integer"


def values_of(layer, dtype):
    from vllm.model_executor.layers.quantization.utils.quant_utils import (
        get_and_maybe_dequant_weights,
    )

    return get_and_maybe_dequant_weights(layer, out_dtype=dtype)


@pytest.mark.parametrize("type", KINDS)
def test_attention_finds_the_values_of_a_packed_weight(type, tmp_path):
    stored = Stored.drawn({"kv_b_proj": type})
    tensors = stored.tensors()
    layer = serve("kv_b_proj", write(tmp_path, tensors, stored.config()), tensors)
    assert torch.equal(values_of(layer, torch.float32).double(), stored.dense("kv_b_proj"))
    x = activations("kv_b_proj")
    assert torch.equal(run(layer, x), product(stored, "kv_b_proj", x)[0])


def test_the_identity_is_not_rounded_where_the_folder_rounds_activations(tmp_path):
    stored = Stored.drawn({"kv_b_proj": ZEROS, "o_proj": ZEROS})
    tensors = stored.tensors()
    folder = write(tmp_path, tensors, stored.config() | {"activation_type": "int8"})
    layers = [serve(name, folder, tensors) for name in ("kv_b_proj", "o_proj")]
    found = [run.activation_type for layer in layers for run in layer.quant_method.runs]
    assert found == ["", "int8"]
    assert torch.equal(values_of(layers[0], torch.float32).double(), stored.dense("kv_b_proj"))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_attention_finds_the_dtype_of_activations(dtype, tmp_path):
    """As that of vLLM 0.26 with cached prefixes does."""
    stored = Stored.drawn({"kv_b_proj": ZEROS})
    tensors = stored.tensors()
    folder = write(tmp_path, tensors, stored.config())
    layer = serve("kv_b_proj", folder, tensors, dtype=dtype)
    assert layer.weight.dtype == dtype and "weight" not in dict(layer.named_parameters())
