# SPDX-License-Identifier: Apache-2.0
"""Tiny models of diffusers with random weights, and inputs for them."""

import torch


def flux():
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=4, joint_attention_dim=32, pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8), guidance_embeds=True,
    )  # fmt: skip
    inputs = {
        "hidden_states": torch.randn(1, 16, 16), "encoder_hidden_states": torch.randn(1, 8, 32),
        "pooled_projections": torch.randn(1, 32), "timestep": torch.tensor([0.5]),
        "img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(8, 3),
        "guidance": torch.tensor([3.5]),
    }  # fmt: skip
    return model, inputs


def sd3():
    from diffusers import SD3Transformer2DModel

    model = SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=16,
        num_attention_heads=4, caption_projection_dim=64, joint_attention_dim=32,
        pooled_projection_dim=64, out_channels=4,
    )  # fmt: skip
    inputs = {
        "hidden_states": torch.randn(1, 4, 8, 8), "encoder_hidden_states": torch.randn(1, 8, 32),
        "pooled_projections": torch.randn(1, 64), "timestep": torch.tensor([5]),
    }  # fmt: skip
    return model, inputs


def pixart():
    from diffusers import PixArtTransformer2DModel

    model = PixArtTransformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=16,
        num_attention_heads=4, cross_attention_dim=64, caption_channels=32,
        use_additional_conditions=False,
    )  # fmt: skip
    inputs = {
        "hidden_states": torch.randn(1, 4, 8, 8), "encoder_hidden_states": torch.randn(1, 8, 32),
        "timestep": torch.tensor([5]),
        "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
    }  # fmt: skip
    return model, inputs


def wan():
    """Whose time embedding is kept in float32."""
    from diffusers import WanTransformer3DModel

    model = WanTransformer3DModel(
        patch_size=(1, 2, 2), in_channels=4, out_channels=4, num_layers=2, attention_head_dim=16,
        num_attention_heads=4, text_dim=32, freq_dim=32, ffn_dim=128, rope_max_seq_len=32,
    )  # fmt: skip
    inputs = {
        "hidden_states": torch.randn(1, 4, 2, 8, 8),
        "encoder_hidden_states": torch.randn(1, 8, 32), "timestep": torch.tensor([5]),
    }  # fmt: skip
    return model, inputs


def qwen():
    from diffusers import QwenImageTransformer2DModel

    model = QwenImageTransformer2DModel(
        patch_size=2, in_channels=16, out_channels=4, num_layers=2, attention_head_dim=16,
        num_attention_heads=4, joint_attention_dim=32, axes_dims_rope=(8, 4, 4),
    )  # fmt: skip
    inputs = {
        "hidden_states": torch.randn(1, 16, 16), "encoder_hidden_states": torch.randn(1, 8, 32),
        "encoder_hidden_states_mask": torch.ones(1, 8, dtype=torch.bool),
        "timestep": torch.tensor([0.5]), "img_shapes": [(1, 4, 4)],
    }  # fmt: skip
    return model, inputs


def unet():
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=16, in_channels=4, out_channels=4, layers_per_block=1,
        block_out_channels=(32, 64), norm_num_groups=8, cross_attention_dim=32,
        attention_head_dim=8, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    inputs = {
        "sample": torch.randn(1, 4, 16, 16), "timestep": torch.tensor([5]),
        "encoder_hidden_states": torch.randn(1, 8, 32),
    }  # fmt: skip
    return model, inputs


def vae():
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(16, 32), layers_per_block=1, latent_channels=4, norm_num_groups=8,
        sample_size=16, down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    return model, {"sample": torch.randn(1, 3, 16, 16)}


FAMILIES = {each.__name__: each for each in (flux, sd3, pixart, wan, qwen, unet, vae)}
#: Those in which convolutions are most of the weights.
OF_CONVOLUTIONS = ("unet", "vae")


def fresh(family):
    """The model in eval mode, and inputs; the same at each call."""
    torch.manual_seed(0)
    model, inputs = FAMILIES[family]()
    for name, parameter in model.named_parameters():  # some start as zeros, or no number
        if name.endswith("bias") or not parameter.isfinite().all() or not parameter.any():
            torch.nn.init.normal_(parameter, std=0.05)
    return model.eval(), inputs


@torch.no_grad()
def result(model, inputs, dtype=None):
    """What the model computes of its inputs."""
    dtype = dtype or torch.float32
    cast = {
        name: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for name, x in inputs.items()
    }
    return model(**cast, return_dict=False)[0]


def flux_pipeline(tokenizers=False):
    """FLUX, a VAE, and T5 and CLIP of transformers, which know the letters of the alphabet."""
    from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline
    from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

    transformer, _ = fresh("flux")
    vae = AutoencoderKL(
        block_out_channels=(32,), layers_per_block=1, latent_channels=4, norm_num_groups=8,
        sample_size=32, down_block_types=("DownEncoderBlock2D",), shift_factor=0.0,
        up_block_types=("UpDecoderBlock2D",), scaling_factor=1.0,
    )  # fmt: skip
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 100}
    ends = {"bos_token_id": 0, "eos_token_id": 1}
    clip = CLIPTextConfig(hidden_size=32, intermediate_size=64, projection_dim=32, **sizes, **ends)
    t5 = T5Config(d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, vocab_size=100)
    of_clip, of_t5 = _tokenizers() if tokenizers else (None, None)
    encoders = CLIPTextModel(clip), of_clip, T5EncoderModel(t5), of_t5
    return FluxPipeline(FlowMatchEulerDiscreteScheduler(), vae, *encoders, transformer)


def _tokenizers():
    from transformers import CLIPTokenizer, T5Tokenizer

    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{each}</w>" for each in letters)]
    scored = [(each, 0.0) for each in ("<pad>", "</s>", "<unk>")]
    scored += [(each, -3.0) for each in ("\u2581", *letters)]
    clip = CLIPTokenizer(
        vocab=dict(zip(words, range(100), strict=False)), merges=[], model_max_length=77
    )
    return clip, T5Tokenizer(vocab=scored, extra_ids=0)
