# SPDX-License-Identifier: Apache-2.0
"""Small models for the tests of this folder, and ways to damage them."""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

import ladder

ROOT = Path(__file__).parents[2]
GPTQ = ROOT / "examples" / "tiny-llama-gptq"
#: Scales that are integers, and a second one for each row.
TWO_LEVELS = "uint4,group=32,scale=uint4,zero=midpoint,scale2=float32:channel"
#: Scales, and zeros, that are integers of two groups, and numbers that multiply them.
SUPERBLOCKS = "uint4,group=16,scale=uint6,zero=rescale,scale2=float16:32"

TINY = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 128, "max_position_embeddings": 64,
}  # fmt: skip


def model_class():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM


def load(folder, **options):
    """Load in float32 unless told otherwise, and check that nothing was left to chance."""
    options = {"dtype": torch.float32, "output_loading_info": True} | options
    model, info = model_class().from_pretrained(folder, **options)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model


def logits(model, low=50, count=24):
    with torch.no_grad():
        return model(torch.arange(low, low + count)[None]).logits


def packed_of(model):
    """The state of all packed modules, by name."""
    kinds = (ladder.Linear, ladder.Experts, ladder.Conv2d, ladder.Embedding)
    return {
        f"{name}.{part}": tensor
        for name, module in model.named_modules()
        if isinstance(module, kinds)
        for part, tensor in module.state_dict().items()
    }


def check_same(one, other):
    """Packed modules of both are the same, of which there are some."""
    one, other = packed_of(one), packed_of(other)
    assert one.keys() == other.keys() and one
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def types_in(folder):
    """The tType of each packed module of a ladder folder."""
    from ladder.checkpoints.info import describe

    return {row["name"]: row["type"] for row in describe(folder)["modules"]}


def edit_tensors(folder: Path, change, name: str = "model.safetensors") -> None:
    """Apply ``change(tensors)`` to the only safetensors file of ``folder``."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / name)
    change(tensors)
    save_file(tensors, folder / name, metadata={"format": "pt"})


def edit_config(folder: Path, **fields) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def foreign_folder(dense: Path, folder: Path, draw, settings, skip=("lm_head",)):
    """A GPTQ or AWQ folder of the model of ``dense``, and the dense model that it means.

    Args:
        draw: makes a layer, called with N, K and ``seed``.
        settings: its quantization_config.
        skip: ends of names that stay dense.
    """
    shutil.copytree(dense, folder)
    edit_config(folder, quantization_config=settings)
    model = load(dense)
    truths = {}
    for seed, (name, linear) in enumerate(list(model.named_modules())):
        if isinstance(linear, torch.nn.Linear) and not name.endswith(skip):
            truth = draw(linear.out_features, linear.in_features, seed=seed)
            linear.weight.data = torch.from_numpy(truth.weight)
            truths[name] = truth

    def change(tensors):
        for name, truth in truths.items():
            del tensors[f"{name}.weight"]
            tensors |= {f"{name}.{part}": t for part, t in truth.tensors.items()}

    edit_tensors(folder, change)
    return folder, model


def check_equal(model, expected):
    """Every weight to the bit, and so the dense model's logits."""
    from ladder.integrations.transformers import dense

    for name, linear in expected.model.named_modules():
        if isinstance(linear, torch.nn.Linear):
            module = model.model.get_submodule(name)
            if isinstance(module, ladder.Linear):
                assert torch.equal(module.packed_weight.dequantize(), linear.weight), name
    assert torch.equal(logits(dense(model)), logits(expected))


def built(family, **options):
    """A random model with packed layers; biases where the family has them."""
    import transformers

    name = {"Gemma3": "Gemma3Text"}.get(family, family)
    config = getattr(transformers, f"{name}Config")(**TINY, **options)
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            nn.init.normal_(parameter, std=0.1)
    ladder.convert(model, "uint4", group_size=32)
    return model


class Plain(NamedTuple):
    """A family with MLPs without a gate.

    Attributes:
        model: its class.
        config: a small configuration, of the class ``of`` or that of the family.
        layers: how the names end of layers in front of an activation function.
        inputs: names of what the model is called with.
    """

    model: str
    config: dict
    layers: tuple[str, ...]
    inputs: tuple[str, ...] = ("input_ids",)
    of: str = ""


_GPT = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 128, "n_positions": 64}
_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_IMAGE = {"image_size": 32, "patch_size": 16}
_PIXELS = ("pixel_values",)
_BOTH = ("input_ids", "decoder_input_ids")
_BART = {
    "d_model": 64, "vocab_size": 128, "max_position_embeddings": 64,
    **{f"{side}_layers": 1 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 2 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 96 for side in ("encoder", "decoder")},
}  # fmt: skip
PLAIN = {
    "OPT": Plain(
        "OPTForCausalLM", TINY | _TOKENS | {"ffn_dim": 96, "word_embed_proj_dim": 64}, ("fc1",)
    ),
    "Bloom": Plain(
        "BloomForCausalLM", {"hidden_size": 64, "n_layer": 2, "n_head": 2, "vocab_size": 128},
        ("dense_h_to_4h",),
    ),
    "GPT2": Plain("GPT2LMHeadModel", _GPT | _TOKENS, ("c_fc",)),
    "GPTBigCode": Plain("GPTBigCodeForCausalLM", _GPT | _TOKENS, ("c_fc",)),
    "GPTJ": Plain("GPTJForCausalLM", _GPT | _TOKENS | {"rotary_dim": 8}, ("fc_in",)),
    "GPTNeoX": Plain("GPTNeoXForCausalLM", TINY | _TOKENS, ("dense_h_to_4h",)),
    "Falcon": Plain("FalconForCausalLM", TINY | _TOKENS, ("dense_h_to_4h",)),
    "Phi": Plain("PhiForCausalLM", TINY | _TOKENS, ("fc1",)),
    "Starcoder2": Plain("Starcoder2ForCausalLM", TINY | _TOKENS, ("c_fc",)),
    "Nemotron": Plain("NemotronForCausalLM", TINY | _TOKENS, ("up_proj",)),
    "Bert": Plain("BertModel", TINY, ("intermediate.dense", "pooler.dense")),
    "DistilBert": Plain(
        "DistilBertModel", {"dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 2}, ("lin1",)
    ),
    "ViT": Plain("ViTModel", TINY | _IMAGE, ("fc1", "pooler.dense"), _PIXELS),
    "CLIP": Plain("CLIPVisionModel", TINY | _IMAGE, ("fc1",), _PIXELS, "CLIPVision"),
    "Siglip": Plain("SiglipVisionModel", TINY | _IMAGE, ("fc1",), _PIXELS, "SiglipVision"),
    "Dinov2": Plain("Dinov2Model", TINY | _IMAGE, ("fc1",), _PIXELS),
    "Bart": Plain("BartModel", _BART | _TOKENS, ("fc1",), _BOTH),
    "Whisper": Plain(
        "WhisperModel",
        _BART | _TOKENS | {"max_source_positions": 16, "decoder_start_token_id": 1},
        ("fc1",), ("input_features", "decoder_input_ids"),
    ),
    "T5": Plain(
        "T5Model",
        {"d_model": 64, "d_kv": 32, "d_ff": 96, "num_layers": 2, "num_heads": 2, "vocab_size": 128},
        ("wi",), _BOTH,
    ),
}  # fmt: skip


def plain_model(family, seed=0, **options):
    """A random model of :data:`PLAIN` with packed layers, and what it is called with."""
    import transformers

    plain = PLAIN[family]
    config = getattr(transformers, f"{plain.of or family}Config")(**plain.config, **options)
    torch.manual_seed(seed)
    model = getattr(transformers, plain.model)(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            nn.init.normal_(parameter, std=0.1)
    ladder.convert(model, "uint4", group_size=32)
    made = {
        "input_ids": torch.arange(50, 60)[None],
        "decoder_input_ids": torch.arange(70, 75)[None],
        "pixel_values": torch.randn(1, 3, 32, 32),
        "input_features": torch.randn(1, 80, 32),
    }
    return model, {name: made[name] for name in plain.inputs}


def run(model, inputs):
    """The first result of ``model``, its logits or hidden states."""
    with torch.no_grad():
        return model(**inputs)[0]
