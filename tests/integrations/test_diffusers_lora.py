# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters that diffusers puts on packed layers."""

import pytest
import torch
from diffusion_models import fresh, result
from safetensors.torch import load_file

import ladder
from ladder.errors import Unsupported

pytest.importorskip("diffusers", reason="diffusers is not installed")
pytest.importorskip("peft", reason="peft is not installed")

TYPE = "uint4,group=16,scale=float16,zero=midpoint"
TARGETS = ["to_q", "to_k", "to_out.0", "proj_out", "x_embedder"]
FILE = "pytorch_lora_weights.safetensors"


def packed(family="flux"):
    model, inputs = fresh(family)
    ladder.convert(model, TYPE, convolutions=True)
    return model, inputs


def pipeline(transformer):
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline

    return FluxPipeline(FlowMatchEulerDiscreteScheduler(), *[None] * 5, transformer)


def adapter(model, name="a", targets=TARGETS):
    from peft import LoraConfig

    config = LoraConfig(r=4, target_modules=targets, init_lora_weights=False)
    model.add_adapter(config, adapter_name=name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Adapters of a dense FLUX."""
    from diffusers import FluxPipeline
    from peft.utils import get_peft_model_state_dict

    model, _ = fresh("flux")
    adapter(model)
    path = tmp_path_factory.mktemp("lora")
    layers = get_peft_model_state_dict(model, adapter_name="a")
    FluxPipeline.save_lora_weights(path, transformer_lora_layers=layers)
    return path


def test_weights_of_a_file_add_to_packed_layers_what_they_add_to_dense_ones(folder):
    (model, inputs), (other, _) = packed(), packed()
    before = result(model, inputs)
    pipe = pipeline(model)
    pipe.load_lora_weights(folder, adapter_name="a")
    ladder.integrations.diffusers.dense(other)
    pipeline(other).load_lora_weights(folder, adapter_name="a")
    one, two = result(model, inputs), result(other, inputs)
    # As far apart as packed layers and dense ones are without adapters.
    assert (one - two).abs().max() < 1e-3 * (one - before).abs().max()
    pipe.set_adapters("a", 0.5)
    assert not torch.equal(result(model, inputs), one)
    pipe.set_adapters("a", 1.0)
    assert torch.equal(result(model, inputs), one)
    pipe.disable_lora()
    assert torch.equal(result(model, inputs), before)
    pipe.enable_lora()
    pipe.unload_lora_weights()
    assert torch.equal(result(model, inputs), before)
    assert type(model.x_embedder) is ladder.Linear


@pytest.mark.filterwarnings("ignore:adapters")
def test_fuse_lora_merges_and_unfuse_lora_gives_the_weights_of_before(folder):
    model, inputs = packed()
    pipe = pipeline(model)
    plain = result(model, inputs)
    pipe.load_lora_weights(folder, adapter_name="a")
    apart = result(model, inputs)
    stored = model.x_embedder.get_base_layer().packed_weight
    pipe.fuse_lora()
    assert model.x_embedder.get_base_layer().packed_weight != stored
    fused = result(model, inputs)
    assert (fused - apart).norm() < (plain - apart).norm()
    pipe.unfuse_lora()
    assert model.x_embedder.get_base_layer().packed_weight == stored
    assert torch.equal(result(model, inputs), apart)


def test_saving_a_model_with_adapters_is_refused_with_their_names(folder, tmp_path):
    model, _ = packed()
    pipe = pipeline(model)
    pipe.load_lora_weights(folder, adapter_name="style")
    with pytest.raises(Unsupported, match=r"FluxTransformer2DModel has adapters \(style\)"):
        model.save_pretrained(tmp_path / "model")
    pipe.unload_lora_weights()
    model.save_pretrained(tmp_path / "model")


def test_files_for_fewer_columns_are_filled_with_zeros_and_for_more_refused(folder):
    weights = load_file(folder / FILE)
    key = "transformer.x_embedder.lora_A.weight"
    wide = torch.randn(4, 32)
    for more in (False, True):
        model, inputs = packed()
        pipe = pipeline(model)
        if more:
            said = "the adapter of x_embedder takes 32 inputs, and x_embedder, which is packed, 16"
            with pytest.raises(Unsupported, match=said):
                pipe.load_lora_weights(dict(weights) | {key: wide})
            continue
        pipe.load_lora_weights(dict(weights) | {key: weights[key][:, :8]}, adapter_name="a")
        a = model.x_embedder.lora_A["a"].weight
        assert torch.equal(a[:, :8], weights[key][:, :8]) and not a[:, 8:].any()
    model, inputs = fresh("flux")
    ladder.convert(model, TYPE, skip=["x_embedder"])
    pipeline(model).load_lora_weights(dict(weights) | {key: wide}, adapter_name="control")
    assert model.x_embedder.in_features == 32
    with torch.no_grad():
        inputs["hidden_states"] = torch.randn(1, 16, 32)
        assert result(model, inputs).isfinite().all()


def test_adapters_are_trained_with_checkpointing_saved_and_loaded(tmp_path):
    model, inputs = packed()
    model.save_pretrained(tmp_path / "model")
    model = type(model).from_pretrained(tmp_path / "model")  # quantised, as diffusers sees it
    adapter(model, "t")
    model.train().enable_gradient_checkpointing()
    model(**inputs, return_dict=False)[0].square().mean().backward()
    trained = {n: p for n, p in model.named_parameters() if "lora" in n}
    assert trained and all(p.grad is not None and p.grad.any() for p in trained.values())
    model.eval()
    model.save_lora_adapter(tmp_path / "lora", adapter_name="t")
    again = type(model).from_pretrained(tmp_path / "model")
    again.load_lora_adapter(tmp_path / "lora", weight_name=FILE, prefix=None, adapter_name="t")
    assert torch.equal(result(again, inputs), result(model, inputs))


def test_adapters_of_packed_convolutions_are_refused_by_name():
    model, _ = packed("unet")
    with pytest.raises(ValueError, match="Target module Conv2d.* is not supported"):
        adapter(model, targets=["conv_in"])
    model, inputs = packed("unet")
    before = result(model, inputs)
    adapter(model, targets=["to_q"])
    assert not torch.equal(result(model, inputs), before)
