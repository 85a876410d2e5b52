# SPDX-License-Identifier: Apache-2.0
"""What LadderConfig leaves dense where nobody says: the output embedding and what is tied to it.
transformers would leave the module of the last parameter, too, whatever it is."""

import pytest
import torch
import transformers as hf

import ladder
from ladder.integrations.transformers import LadderConfig

HIDDEN = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
TEXT = {**HIDDEN, "intermediate_size": 96, "vocab_size": 128, "eos_token_id": 1, "bos_token_id": 0}
IMAGES = {**HIDDEN, "intermediate_size": 96, "image_size": 32, "patch_size": 16}
#: The class, its config, and the output embedding.
MODELS = {
    "CLIP": (
        lambda: hf.CLIPModel(
            hf.CLIPConfig(text_config=TEXT, vision_config=IMAGES, projection_dim=32)
        ),
        set(),
    ),
    "a classifier without a bias": (
        lambda: hf.LlamaForSequenceClassification(hf.LlamaConfig(**TEXT, pad_token_id=0)),
        set(),
    ),
    "ViT without a head": (lambda: hf.ViTModel(hf.ViTConfig(**IMAGES)), set()),
    "a head of its own": (
        lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**TEXT, tie_word_embeddings=False)),
        {"lm_head"},
    ),
    "a head that is tied": (
        lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**TEXT, tie_word_embeddings=True)),
        {"lm_head"},
    ),
    "a head by another name": (
        lambda: hf.BertForMaskedLM(hf.BertConfig(**TEXT, tie_word_embeddings=False)),
        {"cls.predictions.decoder"},
    ),
}


def packed(model):
    return {name for name, module in model.named_modules() if isinstance(module, ladder.Linear)}


@pytest.mark.parametrize("which", MODELS)
def test_the_output_embedding_alone_stays_dense(which, tmp_path):
    make, left = MODELS[which]
    torch.manual_seed(0)
    model = make()
    model.save_pretrained(tmp_path / "dense")
    linears = {name for name, m in model.named_modules() if type(m) is torch.nn.Linear}
    assert left <= linears
    loaded = type(model).from_pretrained(
        tmp_path / "dense", quantization_config=LadderConfig("int8", 32)
    )
    assert packed(loaded) == linears - left and packed(loaded)
    loaded.save_pretrained(tmp_path / "packed")
    again = type(model).from_pretrained(tmp_path / "packed")
    assert packed(again) == packed(loaded)
    for key, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[key]), key
    # A folder that is given as tensors has its config alone to go by.
    config = hf.AutoConfig.from_pretrained(tmp_path / "packed")
    given = type(model).from_pretrained(None, config=config, state_dict=loaded.state_dict())
    assert packed(given) == packed(loaded)
