# SPDX-License-Identifier: Apache-2.0
"""ladder.convert: which layers of a model it replaces, and what it says of the others."""

import copy
import logging

import pytest
import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

import ladder
from ladder.nn.select import covers


def layers_called(*names: str) -> nn.Module:
    model = nn.Sequential()
    for name in names:
        model.add_module(name, nn.Linear(32, 8))
    return model


def packed(model: nn.Module) -> set[str]:
    return {
        name
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, ladder.Linear)
    }


def test_convert_replaces_every_linear_but_those_skipped():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.norm, self.out = nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64)

        def forward(self, x):
            return self.out(self.norm(self.q(x)))

    model = nn.Module()
    model.layers = nn.ModuleList(Block() for _ in range(3))
    model.lm_head = nn.Linear(64, 10)
    seen = []
    ladder.convert(
        model,
        "uint4",
        32,
        skip=["lm_head", "layers.1", "layers.2.q"],
        progress=lambda *call: seen.append(call),
    )
    assert packed(model) == {"layers.0.q", "layers.0.out", "layers.2.out"}
    assert seen == [("layers.0.q", 1, 3), ("layers.0.out", 2, 3), ("layers.2.out", 3, 3)]
    assert model.layers[0](torch.randn(2, 64)).shape == (2, 64)


def test_convert_skips_whole_parts_of_names_only():
    model = layers_called("head", "head2")
    ladder.convert(model, "uint4", skip=["head"])
    assert isinstance(model.head2, ladder.Linear) and type(model.head) is nn.Linear


def test_an_entry_covers_whole_parts_of_a_name_that_follow_each_other():
    name = "model.layers.1.self_attn.q_proj"
    for entry in (name, "model", "layers.1", "self_attn", "self_attn.q_proj", "q_proj", "1"):
        assert covers(entry, name), entry
    for entry in ("", "proj", "layers.self_attn", "layers.11", "attn.q_proj", "model.layers.1.s"):
        assert not covers(entry, name), entry


@pytest.mark.parametrize("skip", ["head", iter(["head"])], ids=["name", "iterator"])
def test_convert_takes_one_name_to_skip_and_any_iterable(skip):
    model = layers_called("body", "head")
    ladder.convert(model, "uint4", skip=skip)
    assert isinstance(model.body, ladder.Linear) and type(model.head) is nn.Linear


def test_the_report_says_what_was_packed_and_what_was_left_and_why():
    model = layers_called("body", "lm_head")
    model.table = nn.Embedding(5, 32)
    report = ladder.convert(model, "nf4", 32)
    assert report.packed == {"body": "nf4,group=32,scale=float16"} and report.weights == 256
    assert {name: left.weights for name, left in report.left.items()} == {
        "lm_head": 256, "table.weight": 160,
    }  # fmt: skip
    assert (
        str(report)
        == repr(report)
        == (
            "packed 1 linear layers, 256 weights\n"
            "  nf4,group=32,scale=float16: body\n"
            "left 2 dense, 416 weights\n"
            "  an output embedding, dense unless asked for: lm_head (256 weights)\n"
            "  a parameter of Embedding, no linear layer: table.weight (160 weights)"
        )
    )
    reason = report.to_dict()["left"]["lm_head"]["reason"]
    assert reason == "an output embedding, dense unless asked for"


def test_a_model_of_which_nothing_is_packed_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING, "ladder"):
        report = ladder.convert(nn.Sequential(nn.Conv1d(8, 8, 3)), "uint4")
    assert not report.packed and "no linear layer was packed" in caplog.text
    assert "a parameter of Conv1d, no linear layer: 0.weight" in caplog.text
    assert not report.experts


def test_a_parameter_with_a_leading_one_is_no_expert(caplog):
    """Of image models: [1, tokens, hidden] to be added."""

    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.body = nn.Parameter(torch.zeros(1, 9, 32)), nn.Linear(32, 8)

    report = ladder.convert(Positions(), "uint4")
    assert report.left["table"].reason == "a parameter of Positions, no linear layer"
    assert not report.experts and not caplog.records


# --- layers whose weight something else reads -----------------------------------------------------


def test_attention_of_torch_computes_the_same_though_it_reads_a_weight_itself():
    torch.manual_seed(0)
    model = nn.MultiheadAttention(64, 4, batch_first=True).eval()
    x = torch.randn(2, 5, 64)
    before = model(x, x, x)[0]
    report = ladder.convert(model, "int8", 32)
    assert report.left["out_proj"].reason == "MultiheadAttention reads its weight"
    assert torch.equal(model(x, x, x)[0], before) and before.abs().max() > 0.01


class Reads(nn.Module):
    """What modules do with layers that they hold."""

    def __init__(self):
        super().__init__()
        for name in (
            "called",
            "both",
            "read",
            "read_below",
            "marked",
            "flagged",
            "handed",
            "asked",
        ):
            self.add_module(name, nn.Linear(64, 64))
        nn.init.ones_(self.called.bias)
        nn.init.normal_(self.asked.weight)

    def forward(self, x, slow=False):
        x = self.called(x) + nn.functional.linear(x, self.both.weight) if slow else self.both(x)
        x = x.to(self.asked.weight.dtype) @ self.read.weight.T
        return self.below(x) + torch.func.functional_call(self.handed, {}, (x,))

    def below(self, x):
        if hasattr(self, "_is_quantized"):
            x = self.marked(x)
        else:
            x = x @ self.marked.weight.T
        if hasattr(self, "_is_fast"):  # a mark of their own, which anybody may set
            x = self.flagged(x)
        elif x.is_sparse:
            x = x @ self.flagged.weight.T
        return torch.einsum("...k,nk->...n", x, self.read_below.weight)


def test_layers_whose_weight_is_read_and_that_are_never_called_stay_dense():
    torch.manual_seed(0)
    model = Reads()
    report = ladder.convert(model, "int8", 32)
    assert {name: left.reason for name, left in report.left.items()} == {
        "read": "Reads reads its weight",
        "read_below": "Reads reads its weight",
        "marked": "Reads reads its weight",
    }
    assert packed(model) == {"called", "both", "flagged", "handed", "asked"}
    assert model(torch.randn(2, 64)).shape == (2, 64)


@pytest.mark.parametrize("training", [True, False])
def test_layers_of_torchs_transformer_compute_what_their_dense_twins_do(training):
    """In inference the encoder layer hands its weights to one fused function."""
    torch.manual_seed(0)
    model = nn.Transformer(64, 4, 2, 1, 96, dropout=0.0, batch_first=True).train(training)
    x = torch.randn(2, 5, 64)
    report = ladder.convert(model, "int8", 32)
    reason = report.left["encoder.layers.0.linear1"].reason
    assert reason == "TransformerEncoderLayer reads its weight"
    assert packed(model) == {"decoder.layers.0.linear1", "decoder.layers.0.linear2"}
    dense = copy.deepcopy(model)
    for name in packed(model):
        dense.set_submodule(name, dense.get_submodule(name).dequantize())
    with torch.no_grad():
        torch.testing.assert_close(model(x, x), dense(x, x), atol=1e-5, rtol=0)


def test_a_packed_encoder_layer_goes_the_way_of_modules():
    """torch asks for __torch_function__ before it takes the weights."""
    layer = nn.TransformerEncoderLayer(64, 4, 96, batch_first=True).eval()
    x = torch.randn(2, 5, 64)
    with torch.no_grad():
        before = layer(x)
        for name in ("linear1", "linear2"):
            linear = ladder.Linear.from_linear(getattr(layer, name), "int8", 32)
            setattr(layer, name, linear)
        assert (layer(x) - before).abs().max() < 0.05


class Sub(nn.Linear):
    """Adds nothing."""

    def __init__(self, *args):
        super().__init__(*args)
        self.tag = 1


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def weight_norm(linear):
    with pytest.warns(FutureWarning):
        return nn.utils.weight_norm(linear)


def pruned(linear):
    from torch.nn.utils import prune

    return prune.l1_unstructured(linear, "weight", amount=0.5)


def patched(linear):
    linear.forward = lambda x: x
    return linear


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Scaled(32, 8), "Scaled is more than nn.Linear"),
        (lambda: NonDynamicallyQuantizableLinear(32, 8), "Linear is more than nn.Linear"),
        (lambda: nn.LazyLinear(8), "LazyLinear has not run yet"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(32, 8)), "is parametrized"),
        (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(32, 8)), "is parametrized"),
        (lambda: weight_norm(nn.Linear(32, 8)), "computed from weight_g, weight_v"),
        (lambda: nn.utils.spectral_norm(nn.Linear(32, 8)), "computed from weight_orig"),
        (lambda: pruned(nn.Linear(32, 8)), "computed from weight_orig, weight_mask"),
        (lambda: patched(nn.Linear(32, 8)), "its forward has been replaced"),
        (lambda: nn.Linear(32, 8, device="meta"), "on the meta device"),
        (lambda: nn.Linear(32, 8, dtype=torch.complex64), "not a floating-point matrix"),
    ],
)
def test_a_layer_that_is_more_than_its_weight_is_left(make, why):
    model = nn.Sequential(make(), nn.Linear(8, 8))
    left = model[0]
    report = ladder.convert(model, "uint4")
    assert model[0] is left and why in report.left["0"].reason and packed(model) == {"1"}


def test_a_subclass_that_adds_nothing_and_a_lazy_layer_that_has_run_are_packed():
    model = nn.Sequential(Sub(32, 8), nn.LazyLinear(8))
    model(torch.randn(1, 32))
    ladder.convert(model, "uint4")
    assert packed(model) == {"0", "1"}


def test_a_state_dict_hook_would_miss_the_weight():
    model = layers_called("a", "b")
    model.a.register_state_dict_post_hook(lambda *_: None)
    assert "hooks on its state_dict" in ladder.convert(model, "uint4").left["a"].reason


@pytest.mark.parametrize("tie", ["parameter", "data"])
def test_tied_weights_stay_tied(tie):
    model = nn.Module()
    model.table, model.head, model.body = nn.Embedding(8, 32), nn.Linear(32, 8), nn.Linear(32, 8)
    weight = model.table.weight
    model.head.weight = weight if tie == "parameter" else nn.Parameter(weight.data)
    report = ladder.convert(model, "uint4", skip=())
    assert report.left["head"].reason == "its weight is tied to table"
    assert report.left["head"].weights == 0  # counted with the table
    assert model.head.weight.data_ptr() == model.table.weight.data_ptr()
    assert packed(model) == {"body"}


def test_a_layer_with_two_names_is_packed_once_and_keeps_both():
    model = nn.Module()
    model.a = nn.Linear(32, 8)
    model.b = model.a
    block = nn.Sequential(nn.Linear(32, 32))
    model.blocks = nn.ModuleList([block, block])
    report = ladder.convert(model, "uint4")
    assert model.a is model.b and model.blocks[0][0] is model.blocks[1][0]
    assert list(report.packed) == ["a", "blocks.0.0"]
    assert packed(model) == {"a", "b", "blocks.0.0", "blocks.1.0"}
    again = nn.Sequential(nn.Linear(32, 8))
    again.twin = again[0]
    assert ladder.convert(again, "uint4", skip=["twin"]).left["0"].reason == "named by skip"


# --- what a layer brings along --------------------------------------------------------------------


def test_hooks_survive_and_their_handles_still_remove_them():
    model = layers_called("a")
    calls = []
    handles = [
        model.a.register_forward_pre_hook(lambda *_: calls.append("before")),
        model.a.register_forward_hook(lambda *_, **__: calls.append("after"), with_kwargs=True),
        model.a.register_full_backward_hook(lambda *_: calls.append("backward")),
    ]
    ladder.convert(model, "uint4")
    x = torch.randn(2, 32, requires_grad=True)
    model(x).sum().backward()
    assert calls == ["before", "after", "backward"]
    for handle in handles:
        handle.remove()
    model(x)
    assert len(calls) == 3


def test_hooks_of_accelerate_survive():
    hooks = pytest.importorskip("accelerate.hooks")
    model = layers_called("a")

    class Doubling(hooks.ModelHook):
        def post_forward(self, module, output):
            return 2 * output

    hooks.add_hook_to_module(model.a, Doubling())
    x = torch.randn(2, 32)
    before = model(x)
    report = ladder.convert(model, "int8")
    assert list(report.packed) == ["a"] and isinstance(model.a, ladder.Linear)
    assert torch.equal(model(x), 2 * model.a.packed_weight.linear(x, model.a.bias))
    assert (model(x) - before).abs().max() < 0.1
    hooks.remove_hook_from_module(model.a)
    assert torch.equal(model(x), model.a.packed_weight.linear(x, model.a.bias))


def test_weights_that_accelerate_has_offloaded_are_left():
    accelerate = pytest.importorskip("accelerate")
    model = accelerate.cpu_offload(layers_called("a", "b"), execution_device=torch.device("cpu"))
    report = ladder.convert(model, "uint4")
    assert not packed(model)
    assert report.left["a"].reason == "its weight is on the meta device: offloaded, or not loaded"


def test_the_bias_stays_the_parameter_that_an_optimizer_holds():
    model = layers_called("a", "b").eval()
    model.b.bias.requires_grad_(False)
    biases = model.a.bias, model.b.bias
    ladder.convert(model, "uint4", symmetric=False)
    assert (model.a.bias, model.b.bias) == biases
    assert model.a.bias is biases[0] and model.b.bias is biases[1]
    assert not model.b.bias.requires_grad and not model.a.training
    assert "zero=integer" in str(model.a.weight_type)


def test_adapters_of_peft_stay_trainable():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(
        layers_called("a"), peft.LoraConfig(r=4, target_modules=["a"], init_lora_weights=False)
    )
    x = torch.randn(2, 32)
    before = model(x)
    report = ladder.convert(model, "int8")
    reasons = {left.reason for name, left in report.left.items() if "lora_" in name}
    assert reasons == {"it is an adapter, which is trained"}
    assert len(packed(model)) == 1
    assert (model(x) - before).abs().max() < 0.05


# --- groups ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [32, 100, 128, 200, 384])
def test_every_door_makes_groups_of_128_where_none_is_named(k):
    """K below a group, and K that ends within one."""
    spelled = "uint4,group=128,scale=float16,zero=midpoint"
    linear = nn.Linear(k, 8)
    model = nn.Sequential(linear)
    assert list(ladder.convert(model, "uint4").packed.values()) == [spelled]
    assert str(ladder.Linear(k, 8).weight_type) == spelled
    assert str(ladder.Linear.from_linear(linear).weight_type) == spelled
    assert str(ladder.quantize(linear.weight).type) == spelled
    x = torch.randn(3, k)
    weight = model[0].packed_weight
    assert weight.scales.shape == (8, -(-k // 128))
    ladder.testing.assert_linear_close(model(x), x, weight.dequantize(), linear.bias)
    assert (weight.dequantize() - linear.weight).abs().max() < 0.2 * k**-0.5
    channel = ladder.Linear.from_linear(linear, "uint4", -1)
    assert channel.packed_weight.scales.shape == (8, 1)
    assert str(channel.weight_type) == "uint4,scale=float16,zero=midpoint"


def test_layers_of_one_row_stay_dense():
    model = nn.ModuleDict({"up": nn.Linear(32, 8), "gate": nn.Linear(32, 1, bias=False)})
    report = ladder.convert(model, "uint4", 32)
    assert packed(model) == {"up"}
    left = report.left["gate"]
    assert (left.reason, left.weights) == ("it has a single row, of which nothing is saved", 32)
