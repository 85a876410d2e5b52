# SPDX-License-Identifier: Apache-2.0
"""Pipelines of diffusers whose parts are packed, each by the library that it is of."""

import json

import pytest
import torch
from diffusion_models import flux_pipeline
from torch import nn

import ladder
from ladder.errors import Unsupported

pytest.importorskip("diffusers", reason="diffusers is not installed")

TYPE = "uint4,group=16,scale=float16,zero=midpoint"
NO_TOKENIZERS = {"tokenizer": None, "tokenizer_2": None}


def packed_of(pipe):
    """Packed modules by component and name, and their weights."""
    kinds = (ladder.Linear, ladder.Conv2d)
    return {
        f"{part}.{name}": module.packed_weight
        for part, model in pipe.components.items()
        if isinstance(model, nn.Module)
        for name, module in model.named_modules()
        if isinstance(module, kinds)
    }


def parts_of(pipe):
    return {name.partition(".")[0] for name in packed_of(pipe)}


def image(pipe):
    """Two steps from the same noise and prompt."""
    noise, dtype = torch.Generator().manual_seed(0), pipe.transformer.dtype
    prompt = torch.randn(1, 8, 32, generator=noise).to(dtype)
    pooled = torch.randn(1, 32, generator=noise).to(dtype)
    pipe.set_progress_bar_config(disable=True)
    return pipe(
        prompt_embeds=prompt, pooled_prompt_embeds=pooled, height=16, width=16, output_type="pt",
        num_inference_steps=2, generator=noise,
    ).images  # fmt: skip


def loaded(folder, **options):
    from diffusers import DiffusionPipeline

    return DiffusionPipeline.from_pretrained(folder, **NO_TOKENIZERS, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A FLUX pipeline, dense: transformer, VAE, and T5 and CLIP of transformers."""
    pipe = flux_pipeline()
    path = tmp_path_factory.mktemp("pipeline") / "dense"
    pipe.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def packed_folder(folder):
    """The same, saved by a pipeline that was quantised while loading, and its image."""
    from diffusers import PipelineQuantizationConfig

    types = {
        "transformer": ladder.LadderConfig(TYPE),
        "text_encoder_2": ladder.LadderConfig("nf4", 32),
        "vae": ladder.LadderConfig("uint8", 32, convolutions=True),
    }
    pipe = loaded(folder, quantization_config=PipelineQuantizationConfig(quant_mapping=types))
    assert parts_of(pipe) == types.keys()
    path = folder.with_name("packed")
    pipe.save_pretrained(path)
    return path, image(pipe), packed_of(pipe)


def test_a_pipeline_with_packed_parts_of_both_libraries_is_saved_and_loaded(packed_folder):
    path, before, packed = packed_folder
    again = loaded(path)
    assert packed_of(again) == packed
    assert torch.equal(image(again), before)
    assert type(again.text_encoder_2.hf_quantizer).__name__ == "LadderHfQuantizer"
    assert type(again.transformer.hf_quantizer).__name__ == "LadderDiffusersQuantizer"


def test_one_backend_for_the_components_that_are_named(folder):
    from diffusers import PipelineQuantizationConfig

    named = ["transformer", "text_encoder_2", "text_encoder"]
    config = PipelineQuantizationConfig(
        quant_backend="ladder",
        quant_kwargs={"weight_type": "uint4", "group_size": 16},
        components_to_quantize=named,
    )
    pipe = loaded(folder, quantization_config=config)
    assert parts_of(pipe) == {*named}
    assert image(pipe).isfinite().all()


def test_parts_that_were_packed_in_memory_are_saved_with_the_pipeline(folder, tmp_path):
    pipe = loaded(folder)
    ladder.convert(pipe.transformer, TYPE)
    pipe.save_pretrained(tmp_path)
    said = json.loads((tmp_path / "transformer" / "config.json").read_text())
    assert said["quantization_config"]["weight_type"] == TYPE
    again = loaded(tmp_path)
    assert packed_of(again) == packed_of(pipe)
    assert torch.equal(image(again), image(pipe))


def test_pipelines_move_and_offload_as_dense_ones(packed_folder):
    path, before, packed = packed_folder
    pipe = loaded(path, device_map="balanced")
    assert torch.equal(image(pipe), before)
    pipe = loaded(path).to("cpu")
    pipe.enable_model_cpu_offload(device="cpu")
    assert torch.equal(image(pipe), before)
    pipe.remove_all_hooks()
    cpu = torch.device("cpu")
    pipe.transformer.enable_group_offload(cpu, cpu, offload_type="leaf_level")
    assert torch.equal(image(pipe), before)
    assert packed_of(pipe) == packed


@pytest.mark.parametrize("cast", [False, True])
def test_dtypes_of_pipelines(packed_folder, cast):
    path, _, packed = packed_folder
    pipe = loaded(path).to(torch.bfloat16) if cast else loaded(path, dtype=torch.bfloat16)
    assert packed_of(pipe) == packed and pipe.transformer.dtype == torch.bfloat16
    assert image(pipe).isfinite().all()


def test_dequantize_is_refused_where_layers_are_offloaded(packed_folder):
    from accelerate import cpu_offload

    transformer = loaded(packed_folder[0]).transformer
    cpu_offload(transformer, torch.device("cpu"), offload_buffers=True)
    with pytest.raises(Unsupported, match="is offloaded"):
        transformer.dequantize()
    assert transformer.config.quantization_config is not None
