# SPDX-License-Identifier: Apache-2.0
"""What every door leaves dense where nobody says: the output embedding and what is tied to it.
transformers would leave the module of the last parameter, too, whatever it is."""

import pytest
import torch
import transformers as hf

import ladder
from ladder.checkpoints.convert import convert as convert_folder
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
    "a head in a module called lm_head": (
        lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**TEXT, tie_word_embeddings=False)),
        {"lm_head.decoder"},
    ),
    "a head by another name": (
        lambda: hf.BertForMaskedLM(hf.BertConfig(**TEXT, tie_word_embeddings=False)),
        {"cls.predictions.decoder"},
    ),
}
REASONS = {
    "an output embedding, dense unless asked for", "its weight is tied to model.embed_tokens",
}  # fmt: skip


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
    report = ladder.convert(model, "int8", 32)
    assert packed(model) == linears - left
    assert not left or {report.left[name].reason for name in left} <= REASONS
    convert_folder(tmp_path / "dense", tmp_path / "folder", "int8", group_size=32)
    assert packed(type(model).from_pretrained(tmp_path / "folder")) == packed(loaded)
    loaded.save_pretrained(tmp_path / "packed")
    again = type(model).from_pretrained(tmp_path / "packed")
    assert packed(again) == packed(loaded)
    for key, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[key]), key
    # A folder that is given as tensors has its config alone to go by.
    config = hf.AutoConfig.from_pretrained(tmp_path / "packed")
    given = type(model).from_pretrained(None, config=config, state_dict=loaded.state_dict())
    assert packed(given) == packed(loaded)


def test_the_output_embeddings_of_parts_stay_dense_and_a_name_like_theirs_does_not():
    """A model of one's own around a model of transformers; lm_head is a name where none says."""

    class Around(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.text = hf.BertForMaskedLM(hf.BertConfig(**TEXT, tie_word_embeddings=False))
            self.lm_head = torch.nn.Linear(64, 64)

    model = Around()
    report = ladder.convert(model, "int8", 32)
    assert "text.cls.predictions.decoder" in report.left and "lm_head" in report.packed
    assert "lm_head" in ladder.convert(torch.nn.ModuleDict({
        "body": torch.nn.Linear(64, 64), "lm_head": torch.nn.Linear(64, 64)
    })).left  # fmt: skip
    assert "text.cls.predictions.decoder" in ladder.convert(Around(), "int8", 32, skip=()).packed


def test_a_layer_of_one_row_is_dense_at_every_door_and_loads_where_a_folder_has_it_packed(tmp_path):
    config = hf.LlamaConfig(**TEXT, pad_token_id=0, num_labels=1)
    dense = hf.LlamaForSequenceClassification(config)
    dense.save_pretrained(tmp_path / "dense")
    convert_folder(tmp_path / "dense", tmp_path / "folder", "uint4", group_size=32)
    kind, options = type(dense), {"quantization_config": LadderConfig("uint4", group_size=32)}
    loaded = [kind.from_pretrained(tmp_path / "folder"),
              kind.from_pretrained(tmp_path / "dense", **options)]  # fmt: skip
    assert [type(model.score) for model in loaded] == [torch.nn.Linear] * 2
    model = loaded[0]
    model.score = ladder.Linear.from_linear(dense.score, "uint4", group_size=32)
    model.save_pretrained(tmp_path / "packed")
    again = kind.from_pretrained(tmp_path / "packed")
    assert torch.equal(again.score.dequantize().weight, model.score.dequantize().weight)
