# SPDX-License-Identifier: Apache-2.0
"""``ladder.Embedding`` gives the rows of its dequantised weight, bit by bit."""

import copy
import io
import pickle

import pytest
import torch
from drawn import exact_weight, stored_types
from torch import nn
from torch.nn.utils import parametrizations

import ladder
from ladder.errors import InvalidArgument, Unsupported

UINT4 = "uint4,group=32,scale=float16,zero=quantized"
IDS = torch.tensor([[0, 6, 3], [3, 3, 5]])
BY_ROWS = [type for type in stored_types() if ladder.ttype(type).rows == 1]


class Scaled(nn.Embedding):
    """As Gemma's: what ``super().forward`` gives, times a buffer that no file has."""

    def __init__(self, n, k, padding_idx=None, scale=8.0):
        super().__init__(n, k, padding_idx)
        self.before = scale
        self.scale = nn.Buffer(torch.tensor(scale), persistent=False)
        self.offset = nn.Parameter(torch.ones(k))

    def forward(self, input):
        return super().forward(input) * self.scale.to(self.weight.dtype) + self.offset


class Sums(nn.Embedding):
    def forward(self, input):
        return super().forward(input) + self.weight.sum()


class ByItself(nn.Embedding):
    def forward(self, input):
        return nn.functional.embedding(input, self.weight)


class WithoutSource(nn.Embedding):
    forward = eval("lambda self, input: nn.Embedding.forward(self, input)")


def packed(type=UINT4, n=7, k=64, **options):
    return ladder.Embedding.from_weight(exact_weight(type, n, k), **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("type", BY_ROWS)
def test_rows_are_those_of_the_dequantised_weight(type, dtype):
    # 70 columns: the last group and the last word have fewer than the others.
    weight = exact_weight(type, 7, 70 if ladder.ttype(type).zero != "quantized" else 64)
    module = ladder.Embedding.from_weight(weight, dtype=dtype)
    rows = module(IDS)
    assert rows.dtype == dtype and rows.shape == (2, 3, weight.shape[1])
    assert torch.equal(rows, weight.dequantize(dtype)[IDS])
    assert torch.equal(rows[0, 0], module(torch.tensor(0)))
    assert not torch.equal(rows[0, 0], rows[0, 1])


@pytest.mark.parametrize("type", [t for t in stored_types() if ladder.ttype(t).rows != 1])
def test_types_with_a_scale_for_several_rows_are_refused_by_name(type):
    with pytest.raises(InvalidArgument, match="rows of an embedding are read one by one") as error:
        packed(type)
    assert f"type {type} has a scale for" in str(error.value)
    with pytest.raises(InvalidArgument, match="rows of an embedding are read one by one"):
        ladder.Embedding.from_embedding(nn.Embedding(7, 64), type)


def test_weights_with_an_order_of_columns_have_it():
    weight = exact_weight("uint4,group=32,scale=float16,zero=integer", 7, 128, act_order=True)
    rows = ladder.Embedding.from_weight(weight)(IDS)
    assert torch.equal(rows, weight.dequantize()[IDS])
    in_order = ladder.Weight(weight.type, weight.shape, **weight.tensors() | {"g_idx": None})
    assert not torch.equal(rows, in_order.dequantize()[IDS])


@pytest.mark.parametrize("ids", [IDS.int(), IDS.mT, IDS[:, ::2], IDS[:0], IDS[0, 0], IDS.flatten()])
def test_ids_of_any_shape_and_both_dtypes(ids):
    module = packed()
    expected = module.packed_weight.dequantize()[ids.long()]
    for run in (module, torch.compile(module, fullgraph=True, backend="aot_eager")):
        assert torch.equal(run(ids), expected)
    with torch.no_grad():
        assert torch.equal(module(input=ids), expected)


@pytest.mark.parametrize("module", [packed(), packed("nf4"), packed("mxfp4", 7, 32)], ids=str)
def test_compiled_calls_are_the_same(module):
    compiled = torch.compile(module, fullgraph=True, dynamic=True)
    for ids in (IDS, IDS[:, :2], torch.arange(7)):
        assert torch.equal(compiled(ids), module(ids))


def test_a_compiled_subclass_is_the_same():
    module = ladder.Embedding.from_embedding(Scaled(7, 64), "uint4", 32)
    assert torch.equal(torch.compile(module, fullgraph=True)(IDS), module(IDS))


def test_exported_embeddings_are_the_same():
    module = packed()
    program = torch.export.export(module, (IDS,), strict=False)
    assert torch.equal(program.module()(IDS), module(IDS))


@pytest.mark.parametrize("id", [7, -1, 1 << 40])
def test_a_row_that_is_not_there_raises_as_torchs_does(id):
    for module in (nn.Embedding(7, 64), packed()):
        with pytest.raises(IndexError):
            module(torch.tensor([0, id]))


@pytest.mark.parametrize("ids", [torch.rand(3), torch.zeros(2, dtype=torch.int16), [1, 2], None])
def test_what_is_no_id_is_refused(ids):
    with pytest.raises(InvalidArgument, match="input (has dtype|is of)"):
        packed()(ids)


@pytest.mark.parametrize("kind", [nn.Embedding, Scaled])
def test_a_quantised_embedding_is_in_the_place_of_the_dense_one(kind):
    dense = kind(7, 64, padding_idx=2).eval()
    module = ladder.Embedding.from_embedding(dense, "uint4", 32, method="nearest")
    weight = ladder.quantize(dense.weight, "uint4", group_size=32, method="nearest")
    assert module.packed_weight == weight and isinstance(module, (nn.Embedding, kind))
    assert (module.num_embeddings, module.embedding_dim, module.padding_idx) == (7, 64, 2)
    assert not module.training and not module.requires_grad_(False).state_dict().get("weight")
    dense.weight = nn.Parameter(weight.dequantize())
    assert torch.equal(module(IDS), dense(IDS))
    again = module.dequantize()
    assert type(again) is kind and vars(again).keys() == vars(dense).keys()
    assert torch.equal(again.weight, dense.weight) and again.padding_idx == 2
    assert again.state_dict().keys() == dense.state_dict().keys()
    assert torch.equal(again(IDS), dense(IDS)) and not again.training
    assert module.dequantize(torch.float16).weight.dtype == torch.float16


@pytest.mark.parametrize("kind", [nn.Embedding, Scaled])
def test_copies_and_pickles_are_the_same_module(kind):
    module = ladder.Embedding.from_embedding(kind(7, 64, 2), "uint4", 32)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    copies = [
        copy.deepcopy(module), copy.copy(module), pickle.loads(pickle.dumps(module)),
        torch.load(file, weights_only=False),
    ]  # fmt: skip
    for each in copies:
        assert type(each) is type(module) and repr(each) == repr(module)
        assert torch.equal(each(IDS), module(IDS))
    copies[0].qweight.zero_()
    assert not torch.equal(copies[0](IDS), module(IDS))


def test_a_cast_changes_the_dtype_of_rows_and_no_part():
    module = ladder.Embedding.from_embedding(Scaled(7, 64), "uint4", 32)
    values, scales = module.packed_weight.dequantize(torch.bfloat16), module.scales.clone()
    module.bfloat16()
    assert module.dtype == module.weight.dtype == module.offset.dtype == torch.bfloat16
    assert module.scales.dtype == torch.float16 and torch.equal(module.scales, scales)
    assert torch.equal(module(IDS), values[IDS] * 8 + 1)


def test_a_module_on_the_meta_device_gives_shapes():
    module = packed().to("meta")
    assert module(IDS.to("meta")).shape == (2, 3, 64) and module.weight.is_meta
    assert module.to_empty(device="cpu")(IDS).shape == (2, 3, 64)


def test_states_are_loaded_and_those_that_do_not_fit_refused():
    module, other = packed(), ladder.Embedding(7, 64, weight_type=UINT4)
    assert not torch.equal(other(IDS), module(IDS))
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(IDS), module(IDS))
    with pytest.raises(InvalidArgument, match="weight is of a dense layer"):
        other.load_state_dict(nn.Embedding(7, 64).state_dict())
    with pytest.raises(InvalidArgument, match="is of a weight of type"):
        other.load_state_dict(
            packed(UINT4.replace("uint4", "int4").replace("quantized", "none")).state_dict(),
            strict=False,
        )
    with pytest.raises(InvalidArgument, match="pre_scale is of a linear layer"):
        other.load_state_dict(module.state_dict() | {"pre_scale": torch.ones(64)})
    assert torch.equal(other(IDS), module(IDS))


def test_there_is_nothing_to_prepare():
    model = nn.Sequential(packed(), ladder.Linear(64, 32, weight_type="uint4"))
    assert not model[0].prepare()
    before = model(IDS)
    ladder.warmup(model)
    ladder.optimize(model)
    assert torch.equal(model(IDS), before) and model[0].image is None


def test_the_weight_is_metadata():
    module = packed()
    assert module.weight.shape == (7, 64) and module.weight.device == module.qweight.device
    with pytest.raises(Unsupported):
        module.weight.sum()
    with pytest.raises(Unsupported, match="cannot be assigned"):
        module.weight = nn.Parameter(torch.zeros(7, 64))
    with pytest.raises(Unsupported, match="cannot be drawn anew"):
        module.reset_parameters()


def _parametrized(dense):
    return parametrizations.weight_norm(dense)


def _hooked(dense):
    dense.register_state_dict_pre_hook(lambda *_: None)
    return dense


def _replaced(dense):
    dense.forward = lambda input: input
    return dense


@pytest.mark.parametrize(
    ("dense", "why"),
    [
        (nn.Embedding(7, 64, max_norm=1.0), "each call changes its weight"),
        (nn.Embedding(7, 64, sparse=True), "sparse gradients"),
        (nn.Embedding(7, 64, device="meta"), "on the meta device"),
        (_parametrized(nn.Embedding(7, 64)), "parametrized"),
        (_hooked(nn.Embedding(7, 64)), "hooks on its state_dict"),
        (_replaced(nn.Embedding(7, 64)), "its forward has been replaced"),
        (Sums(7, 64), "Sums does more with its weight"),
        (ByItself(7, 64), "ByItself does more with its weight"),
        (WithoutSource(7, 64), "WithoutSource does more with its weight"),
    ],
)
def test_what_does_more_than_giving_rows_stays_dense(dense, why):
    with pytest.raises(Unsupported, match=why):
        ladder.Embedding.from_embedding(dense)
    model = nn.ModuleDict({"of": dense, "other": nn.Embedding(7, 64)})
    report = ladder.convert(model, "uint4", 32, embeddings=True)
    assert list(report.packed) == ["other"] and why in report.left["of.weight"].reason
    assert model["of"] is dense


def test_attributes_that_would_be_hidden_are_named():
    dense = Scaled(7, 64)
    dense.dtype, dense.scales = torch.float32, 3
    with pytest.raises(Unsupported, match="it has dtype, scales, as packed embeddings have"):
        ladder.Embedding.from_embedding(dense)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ladder.Embedding(0, 64), "num_embeddings is 0 and embedding_dim 64"),
        (lambda: ladder.Embedding(7, 64, 7), "padding_idx is 7, and there are 7 rows"),
        (lambda: ladder.Embedding(7, 64, -8), "padding_idx is -8, and there are 7 rows"),
        (lambda: ladder.Embedding(7, 64.0), "embedding_dim is 64.0, not an integer"),
        (lambda: ladder.Embedding(7, 64, dtype=torch.int32), "not a floating-point one"),
        (lambda: ladder.Embedding.from_embedding(nn.Linear(8, 8)), "embedding is of Linear"),
        (lambda: ladder.Embedding.from_embedding(packed()), "embedding is packed already"),
        (
            lambda: ladder.Embedding.in_place_of(nn.Embedding(8, 64), exact_weight(UINT4, 7, 64)),
            r"weight is \[7, 64\], not \[8, 64\]",
        ),
    ],
)
def test_arguments_that_make_no_embedding(make, said):
    with pytest.raises(InvalidArgument, match=said):
        make()


def test_a_negative_padding_is_counted_from_the_end():
    assert ladder.Embedding(7, 64, -1).padding_idx == nn.Embedding(7, 64, -1).padding_idx == 6


def test_what_nn_embedding_has_and_packed_rows_have_not():
    with pytest.raises(InvalidArgument, match="is True and embedding_dim 32, not both integers"):
        ladder.Embedding(True, 32)
    with pytest.raises(Unsupported, match="no from_pretrained: quantise with .*from_embedding"):
        ladder.Embedding.from_pretrained(torch.ones(4, 32))
    table = nn.Embedding(8, 32, scale_grad_by_freq=True)
    packed = ladder.Embedding.from_embedding(table, "uint8", 32)
    assert packed.dequantize().scale_grad_by_freq
