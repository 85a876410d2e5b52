# SPDX-License-Identifier: Apache-2.0
"""Small random models of transformers that have convolutions, and what they are called with."""

import torch

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
         "num_attention_heads": 2}  # fmt: skip
#: By family: the class, its configuration and how many convolutions ladder.convert packs of it.
FAMILIES = {
    "resnet": ("ResNetForImageClassification", {
        "embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic",
    }, 6),
    "regnet": ("RegNetForImageClassification", {  # groups of 8 channels
        "embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "groups_width": 8,
    }, 13),
    "convnext": ("ConvNextForImageClassification", {
        "hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2,
    }, 2),
    "mobilenet_v2": ("MobileNetV2ForImageClassification", {"depth_multiplier": 0.35}, 35),
    "vit": ("ViTForImageClassification", {**SIZES, "image_size": 32, "patch_size": 8}, 1),
}  # fmt: skip


def fresh(family: str):
    """A random model in inference, whose norms have statistics of their own."""
    import transformers

    name, fields, _ = FAMILIES[family]
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    model = kind(kind.config_class(**fields, num_labels=5)).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
    return model


def scores(model) -> torch.Tensor:
    """[2, 5] of two random images."""
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(pixels.to(model.dtype)).logits


def clip():
    """A random CLIP, whose patches are a convolution, and what it is called with."""
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(0)
    text = {**SIZES, "vocab_size": 64, "max_position_embeddings": 16, "eos_token_id": 2}
    vision = {**SIZES, "image_size": 16, "patch_size": 8}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16))
    inputs = {"input_ids": torch.arange(8)[None], "pixel_values": torch.randn(1, 3, 16, 16)}
    return model.eval(), inputs


def whisper():
    """A random Whisper, whose convolutions have one dimension."""
    from transformers import WhisperConfig, WhisperModel

    torch.manual_seed(0)
    layers = {
        f"{part}_{what}": size
        for part in ("encoder", "decoder")
        for what, size in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 48))
    }
    sizes = {"d_model": 32, "num_mel_bins": 8, "vocab_size": 64, "max_source_positions": 8}
    tokens = {name: 1 for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    return WhisperModel(WhisperConfig(**layers, **sizes, **tokens, decoder_start_token_id=1)).eval()
