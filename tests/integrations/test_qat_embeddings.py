# SPDX-License-Identifier: Apache-2.0
"""Input embeddings that are trained for a tType."""

import copy
import pickle

import pytest
import torch
from hf_models import check_same, load, logits
from test_embedding_folders import EIGHT, MODELS, made, of, options
from torch import nn

import ladder
from ladder.errors import InvalidArgument

IDS = torch.arange(50, 74)[None]
ROWS = torch.tensor([[3, 1, 3], [127, 0, 64]])


@pytest.mark.parametrize("head", [False, True], ids=["dense head", "packed head"])
@pytest.mark.parametrize("kind", MODELS)
def test_rows_are_those_that_are_packed(kind, head):
    model, packed = made(kind), made(kind)
    said = ladder.convert(packed, "uint4", **options(kind, head))
    report = ladder.qat.prepare(model, "uint4", **options(kind, head))
    assert report.packed == said.packed and report.embeddings == 1
    own = of(model, kind)
    assert isinstance(own, type(of(made(kind), kind)))
    assert torch.equal(own(ROWS), of(packed, kind)(ROWS))
    assert torch.equal(own.weight, of(made(kind), kind).weight)
    model(IDS, labels=IDS).loss.backward()
    assert own.weight.grad.any()
    ladder.qat.convert(model)
    check_same(model, packed)
    assert model.config.tie_word_embeddings is False and not model.all_tied_weights_keys
    assert torch.equal(logits(model), logits(packed))


def test_a_tied_dense_head_is_the_same_parameter_until_it_is_packed(tmp_path):
    model = made()
    ladder.qat.prepare(model, "uint4", **options("llama, tied"))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    model.save_pretrained(tmp_path / "dense")
    dense = load(tmp_path / "dense")
    assert dense.lm_head.weight is dense.model.embed_tokens.weight
    model(IDS, labels=IDS).loss.backward()
    with torch.no_grad():
        model.lm_head.weight -= model.lm_head.weight.grad
    trained = model.lm_head.weight.detach().clone()
    ladder.qat.convert(model)
    assert torch.equal(model.lm_head.weight, trained)
    weight = ladder.quantize(trained, EIGHT)
    assert torch.equal(model.model.embed_tokens.packed_weight.qweight, weight.qweight)
    model.save_pretrained(tmp_path / "packed")
    again = load(tmp_path / "packed")
    check_same(again, model)
    assert torch.equal(again.lm_head.weight, trained)


@pytest.mark.parametrize("type", [EIGHT, "nf4,group=32,scale=bfloat16", "nvfp4",
                                  "uint4,group=32,scale=uint6,zero=rescale,scale2=float16:64",
                                  "uint4,group=32,scale=uint4,zero=midpoint,"
                                  "scale2=float32:channel"])  # fmt: skip
def test_gradients_are_those_of_the_rounded_rows(type):
    """Of nvfp4 the second scale is of the whole table, which a row does not know."""
    torch.manual_seed(0)
    table = nn.Embedding(32, 64, padding_idx=3)
    packed = ladder.Embedding.from_embedding(table, type)
    dense = packed.dequantize()
    model = nn.Sequential(table)
    ladder.qat.prepare(model, type, embeddings=True)
    ids, seen = torch.tensor([[3, 1, 3], [31, 0, 1]]), []
    for each in (model[0], dense):
        rows = each(ids)
        (rows * torch.arange(64)).sum().backward()
        seen += [rows, each.weight.grad]
    assert torch.equal(seen[0], seen[2]) and torch.equal(seen[0], packed(ids))
    assert torch.equal(seen[1], seen[3]) and not seen[1][3].any() and seen[1][1].any()
    ladder.qat.convert(model)
    assert torch.equal(model[0].packed_weight.qweight, packed.packed_weight.qweight)


def test_copies_no_rows_and_the_way_back():
    model = nn.Sequential(nn.Embedding(32, 64))
    ladder.qat.prepare(model, "uint3", 32, embeddings=True)
    assert "trained for uint3" in repr(model)
    for each in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(each(torch.arange(32)), model(torch.arange(32)))
        assert each[0].weight is not model[0].weight
    assert model(torch.zeros(0, 2, dtype=torch.long)).shape == (0, 2, 64)
    with pytest.raises(InvalidArgument, match='layer "0" is prepared for training'):
        ladder.convert(model, "uint3", embeddings=True)
    ladder.qat.restore(model)
    assert type(model[0]) is nn.Embedding


def test_rows_that_training_has_lost_are_told():
    model = nn.Sequential(nn.Embedding(32, 64))
    ladder.qat.prepare(model, "uint3", 32, embeddings=True)
    with torch.no_grad():
        model[0].weight[5, 7] = torch.nan
    for do in (lambda: model(torch.tensor([4, 5])), lambda: ladder.qat.convert(model)):
        with pytest.raises(InvalidArgument, match="^0: weight at row 5, column 7 is nan"):
            do()


def test_a_compiled_model_trains_alike():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(32, 64), nn.Linear(64, 8))
    ladder.qat.prepare(model, "uint4", 32, embeddings=True)
    ids = torch.tensor([[3, 1, 3], [31, 0, 1]])
    model(ids).square().sum().backward()
    wanted = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    torch.compile(model, backend="aot_eager")(ids).square().sum().backward()
    for parameter, grad in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, grad)
