# SPDX-License-Identifier: Apache-2.0
"""Layers that are given another name than their tensors have, models that do not say what they
fuse, and stacks of experts whose names a model's own loader does not know."""

from __future__ import annotations

import importlib
import pickle

import mixtures
import pytest
import torch
from checkpoint_oracle import mxfp4_of
from layers import (
    FUSED,
    SHAPES,
    VLLM,
    Stored,
    activations,
    load,
    make,
    parts_of,
    prefix,
    product,
    quantization,
    run,
    write,
)
from torch import nn

from ladder.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("vllm")

ZEROS = "uint4,group=32,scale=float16,zero=integer"


def placed(layer: nn.Module, name: str) -> nn.Module:
    """A model that has ``layer`` in the place ``name``."""
    model = at = nn.Module()
    *path, last = name.split(".")
    for each in path:
        at.add_module(each, nn.Module())
        at = getattr(at, each)
    at.add_module(last, layer)
    return model


@pytest.mark.parametrize("given", ("", "model.7.mixer.o_proj"))
@pytest.mark.parametrize("kind", ("ReplicatedLinear", "ColumnParallelLinear", "RowParallelLinear"))
def test_a_layer_is_packed_by_its_place_in_the_model(kind, given, tmp_path):
    from ladder.integrations.vllm.before_loading import pack_late

    stored = Stored.drawn({"o_proj": ZEROS}, bias=True)
    tensors = stored.tensors()
    config = quantization(write(tmp_path, tensors, stored.config()))
    n, k = SHAPES["o_proj"]
    layer = getattr(importlib.import_module(f"{VLLM}.linear"), kind)(
        k, n, bias=True, params_dtype=torch.float32, quant_config=config, prefix=given
    )
    assert hasattr(layer, "weight")
    pack_late(placed(layer, prefix("o_proj")))
    assert not hasattr(layer, "weight")
    load(layer, "o_proj", tensors, config)
    layer.quant_method.process_weights_after_loading(layer)
    x = activations("o_proj")
    assert torch.equal(run(layer, x), product(stored, "o_proj", x)[0])


def test_a_layer_that_is_dense_in_the_files_stays_so(tmp_path):
    from ladder.integrations.vllm.before_loading import pack_late

    stored = Stored.drawn({"o_proj": "dense", "down_proj": ZEROS})
    config = quantization(write(tmp_path, stored.tensors(), stored.config()))
    layer = make("o_proj", config, dtype=torch.float32)
    method = layer.quant_method
    pack_late(placed(layer, prefix("o_proj")))
    assert layer.quant_method is method and layer.weight.shape == SHAPES["o_proj"]


@pytest.mark.parametrize("says", ({}, {name: [name] for name in FUSED}))
@pytest.mark.parametrize("name", FUSED)
def test_models_need_not_say_what_they_fuse(name, says, tmp_path):
    stored = Stored.drawn(dict.fromkeys(parts_of(name), ZEROS))
    tensors = stored.tensors()
    config = quantization(write(tmp_path, tensors, stored.config()))
    config.packed_modules_mapping = says
    layer = make(name, config, dtype=torch.float32)
    load(layer, name, tensors, config)
    layer.quant_method.process_weights_after_loading(layer)
    x = activations(name)
    assert torch.equal(run(layer, x), torch.cat(product(stored, name, x), -1))


def test_a_config_goes_to_other_processes(tmp_path):
    """vLLM pickles it for those that run the model."""
    from vllm.model_executor.models.utils import WeightsMapper

    stored = Stored.drawn({"o_proj": ZEROS})
    config = quantization(write(tmp_path, stored.tensors(), stored.config()))
    for _ in range(2):
        there = pickle.loads(pickle.dumps(config))
        name = next(name for name in there.folder.headers if "o_proj" in name)
        assert there.folder.called(prefix("o_proj")) == name.rpartition(".")[0]
        config.apply_vllm_mapper(WeightsMapper(orig_to_new_prefix={"model.": "language.model."}))


@pytest.fixture
def model(tmp_path):
    from vllm.config import get_current_vllm_config

    get_current_vllm_config().compilation_config.static_forward_context.clear()
    stacks = mixtures.Stacks(ZEROS)
    folder = mixtures.write(tmp_path, stacks.tensors(), stacks.config())
    made = mixtures.Model(folder)
    made.__dict__["stacks"] = stacks
    return made


def test_stacks_do_not_reach_the_loader_of_the_model(model):
    from ladder.integrations.vllm.before_loading import without_stacks

    tensors = model.stacks.tensors()
    others = {"model.norm.weight": torch.ones(3), "other.gate_up.qweight": torch.ones(1)}
    left = dict(without_stacks(model, (tensors | others).items()))
    assert left.keys() == others.keys()
    model.finish()
    x, index, weights = mixtures.routed()
    wanted = model.stacks.module()(x, index, weights)
    assert torch.equal(model(x, index, weights), wanted)


def test_stacks_are_found_by_the_names_that_the_engine_gives_them(model):
    from ladder.integrations.vllm.before_loading import without_stacks

    method = model.experts.quant_method
    method.folder = method.folder.renamed(lambda name: name.removeprefix("language."))
    tensors = {f"language.{name}": tensor for name, tensor in model.stacks.tensors().items()}
    assert not dict(without_stacks(model, tensors.items()))
    model.finish()


def test_a_stack_that_does_not_fit_is_refused(model):
    from ladder.integrations.vllm.before_loading import without_stacks

    tensors = {name: tensor[:-1] for name, tensor in model.stacks.tensors().items()}
    with pytest.raises(CheckpointError, match="experts in front"):
        list(without_stacks(model, tensors.items()))


@pytest.mark.parametrize("method", ("mxfp4", "gpt_oss_mxfp4"))
@pytest.mark.parametrize("mapped", (False, True))
def test_the_published_stacks_of_gpt_oss_are_served(mapped, method, tmp_path):
    """vLLM's own mapper has other names for these tensors, which ladder's do not become, and vLLM
    another name for the method."""
    from vllm.config import get_current_vllm_config
    from vllm.model_executor.models.gpt_oss import GptOssForCausalLM

    from ladder.integrations.vllm.before_loading import without_stacks

    get_current_vllm_config().compilation_config.static_forward_context.clear()
    stacks = mixtures.Stacks("mxfp4", bias=True)
    tensors = mxfp4_of(stacks.tensors()) | {"model.norm.weight": torch.ones(3)}
    folder = mixtures.write(tmp_path, tensors, {"quant_method": method})
    mapper = GptOssForCausalLM.hf_to_vllm_mapper if mapped else None
    model = mixtures.Model(folder, has_bias=True, mapper=mapper)
    assert dict(without_stacks(model, tensors.items())).keys() == {"model.norm.weight"}
    model.finish()
    x, index, weights = mixtures.routed()
    assert torch.equal(model(x, index, weights), stacks.module()(x, index, weights))


def test_the_loader_of_vllm_prepares_models():
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    from ladder.integrations.vllm import before_loading

    before_loading.install()
    before_loading.install()
    assert DefaultModelLoader.get_all_weights.prepares_for_ladder
    assert not hasattr(DefaultModelLoader.get_all_weights.__wrapped__, "prepares_for_ladder")
