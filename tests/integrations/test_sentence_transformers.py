# SPDX-License-Identifier: Apache-2.0
"""sentence-transformers with packed encoders: the results are those of the dequantised weights, and
what is saved is loaded again."""

import copy

import numpy
import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    BertTokenizerFast,
)

import ladder
from ladder.integrations.transformers import LadderConfig, dense

st = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{c}" for c in LETTERS)]
TEXTS = ["the cat sat on the mat", "a dog ran", "today is cold and there is rain"]
PAIRS = [(TEXTS[0], text) for text in TEXTS[1:]]
#: What sentence-transformers makes of a folder: the class, the model in it, what is asked of it.
KINDS = {
    "sentences": ("SentenceTransformer", BertModel, lambda model: model.encode(TEXTS)),
    "pairs": ("CrossEncoder", BertForSequenceClassification, lambda model: model.predict(PAIRS)),
    "sparse": (
        "SparseEncoder", BertForMaskedLM, lambda model: model.encode(TEXTS).to_dense().numpy()
    ),
}  # fmt: skip


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def folder(kind, tmp_path):
    """A random encoder that knows the letters of the alphabet."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": len(WORDS)}
    labels = {"num_labels": 1} if kind == "pairs" else {}
    config = BertConfig(**sizes, num_hidden_layers=2, num_attention_heads=2, **labels)
    model = KINDS[kind][1](config)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    BertTokenizerFast(vocab=str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def packed(model):
    return sum(isinstance(module, ladder.Linear) for module in model.modules())


@pytest.mark.parametrize("way", ["LadderConfig", "convert"])
def test_packed_encoders_give_what_their_weights_mean_and_are_saved(kind, folder, tmp_path, way):
    name, _, ask = KINDS[kind]
    load = getattr(st, name)
    if way == "LadderConfig":
        options = {"quantization_config": LadderConfig("uint4", 32)}
        model = load(str(folder), device="cpu", model_kwargs=options)
    else:
        model = load(str(folder), device="cpu")
        ladder.convert(model, "uint4", group_size=32)
    assert packed(model) >= 12
    given = ask(model)
    truth = ask(dense(copy.deepcopy(model)))
    # Sums of 128 products at most, whose order differs; two layers of them.
    assert numpy.abs(given - truth).max() <= 1e-5 * max(1, numpy.abs(truth).max())
    model.save_pretrained(str(tmp_path / "saved"))
    again = load(str(tmp_path / "saved"), device="cpu")
    assert packed(again) == packed(model)
    assert numpy.array_equal(ask(again), given)


@pytest.mark.parametrize("kind", ["sentences"], indirect=True)
def test_an_optimized_encoder_gives_the_same(kind, folder):
    options = {"quantization_config": LadderConfig("uint4", 32)}
    model = st.SentenceTransformer(str(folder), device="cpu", model_kwargs=options)
    given = model.encode(TEXTS)
    assert ladder.optimize(model[0].auto_model, m=(1, 8)).merged
    assert numpy.array_equal(model.encode(TEXTS), given)
