# SPDX-License-Identifier: Apache-2.0
"""Folders that are loaded by another class than the one that wrote them."""

import pytest
import torch
from hf_models import edit_tensors
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    ViTConfig,
    ViTForImageClassification,
)

import ladder
from ladder.errors import CheckpointError

SIZES = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
TEXT = SIZES | {"intermediate_size": 96, "vocab_size": 128}
MODELS = {
    "bert": (BertForMaskedLM, BertConfig(**TEXT)),
    "albert": (AlbertForMaskedLM, AlbertConfig(**TEXT, embedding_size=32)),
    "vit": (ViTForImageClassification, ViTConfig(**SIZES, intermediate_size=96, image_size=32)),
}


@pytest.mark.parametrize(("which", "kind"), [
    ("bert", AutoModel), ("bert", AutoModelForSequenceClassification), ("albert", AutoModel),
    ("albert", AutoModelForSequenceClassification), ("vit", AutoModel),
])  # fmt: skip
def test_layers_that_the_writer_has_not_start_dense_and_are_told(which, kind, tmp_path):
    """The pooler that BERT's class for masked words has not: as of a dense folder."""
    torch.manual_seed(0)
    written, config = MODELS[which]
    model = written(config).eval()
    report = ladder.convert(model, "uint4", 32)
    model.save_pretrained(tmp_path)
    loaded, info = kind.from_pretrained(tmp_path, dtype=torch.float32, output_loading_info=True)
    missing = {name.rpartition(".")[0] for name in info["missing_keys"]}
    assert any("pooler" in name for name in missing)
    for name in missing:
        assert type(loaded.get_submodule(name)) is torch.nn.Linear
    packed = [m for m in loaded.modules() if isinstance(m, ladder.Linear)]
    of_base = [n for n in report.packed if n.startswith(model.base_model_prefix)]
    assert len(packed) == len(of_base) > 0


@pytest.mark.parametrize("kind", [AutoModel, AutoModelForMaskedLM])
def test_a_layer_that_the_writer_has_is_missed_by_every_class(kind, tmp_path):
    written, config = MODELS["bert"]
    model = written(config)
    ladder.convert(model, "uint4", 32)
    model.save_pretrained(tmp_path)
    name = "bert.encoder.layer.0.attention.self.query"
    edit_tensors(tmp_path, lambda t: [t.pop(n) for n in [*t] if n.startswith(name)])
    with pytest.raises(CheckpointError, match="query is missing: no codes of it"):
        kind.from_pretrained(tmp_path)
