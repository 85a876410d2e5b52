# SPDX-License-Identifier: Apache-2.0
"""Layers merged into one weight compute, hold and save what they did apart."""

import copy
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import ladder
from ladder.nn.joined import objection
from ladder.nn.merged import MergedLinear, MergedWeight

K, SIZES = 64, (32, 16, 24)


TYPE = "uint4,group=32,scale=float16,zero=midpoint"


def packed(n, *, bias=True, type=TYPE, k=K):
    return ladder.Linear.from_linear(nn.Linear(k, n, bias), type)


class Block(nn.Module):
    """q, k and v of one input; ``between`` runs after q."""

    def __init__(self, between=None, *, bias=True, type=TYPE):
        super().__init__()
        self.q, self.k, self.v = (packed(n, bias=bias, type=type) for n in SIZES)
        self.between = between

    def forward(self, x):
        x = x + 0
        q = self.q(x)
        if self.between is not None:
            self.between(self, x)
        return torch.cat((q, self.k(x), self.v(x)), -1)

    def layers(self):
        return [self.q, self.k, self.v]


def merged(block):
    """``block`` with its layers merged, and a list to which each product adds its input."""
    weight, products = MergedWeight(block, block.layers()), []
    forward = weight.linear.forward

    def counted(x):
        products.append(x)
        return forward(x)

    weight.linear.forward = counted
    return block, products


def pair(**options):
    """Two equal blocks, the second one's layers merged, and the products of the second."""
    block = Block(**options)
    return (block, *merged(copy.deepcopy(block)))


def drawn():
    return torch.randn(3, K)


@pytest.mark.parametrize("bias", [False, True])
def test_the_layers_of_a_parent_are_one_product(bias):
    apart, joined, products = pair(bias=bias)
    x = drawn()
    with torch.no_grad():
        assert torch.equal(joined(x), apart(x)) and len(products) == 1
        assert torch.equal(joined(x), apart(x)) and len(products) == 2
    for got, want in zip(joined.layers(), apart.layers(), strict=True):
        assert isinstance(got, ladder.Linear) and got.weight.shape == want.weight.shape
        assert got.device == want.device and str(got) == str(want)


def test_an_input_that_was_written_to_is_multiplied_anew():
    apart, joined, products = pair(between=lambda _, x: x.add_(1))
    x = drawn()
    with torch.no_grad():
        assert torch.equal(joined(x), apart(x)) and len(products) == 2


def test_layers_with_inputs_of_their_own_do_not_share():
    apart, joined, products = pair()
    x, other = drawn(), drawn()
    for block in (apart, joined):
        block.between = lambda block, _: seen.append(block.k(other))
    with torch.no_grad():
        seen = []
        assert torch.equal(joined(x), apart(x))
    assert torch.equal(*seen) and len(products) == 3


def test_each_call_of_a_layer_gives_its_own_tensor():
    apart, joined, products = pair()

    def twice(block, x):
        block.q(x).zero_()
        block.k(x).zero_()

    for block in (apart, joined):
        block.between = twice
    x = drawn()
    with torch.no_grad():
        assert torch.equal(joined(x), apart(x))
    assert len(products) == 3  # all, again for q, again for k; v is of the last


def test_no_result_outlives_the_parent():
    """Not even where the same tensor comes with numbers that torch did not see written."""
    block, products = merged(Block())
    apart = copy.deepcopy(block)
    x = drawn()

    def fail(*_):
        raise KeyError("between")

    block.between = fail
    block.forward, once = lambda x: Block.forward(block, x), block.forward
    with torch.no_grad():
        block.k(x)
        x.data.add_(1)
        assert torch.equal(block.v(x), apart.v(x)) and len(products) == 2
        with pytest.raises(KeyError):
            block(x)
        assert block.q._merged._slot.of_thread.result is None
        block.forward = once


def test_threads_keep_results_apart():
    """The second thread runs the parent while the first is between its layers."""
    apart, joined, _ = pair()
    inputs, found = [drawn(), drawn()], {}
    both = threading.Barrier(2)

    def meet(*_):
        both.wait(timeout=60)
        both.wait(timeout=60)

    joined.between = meet

    def run(index):
        with torch.no_grad():
            found[index] = joined(inputs[index])

    threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    with torch.no_grad():
        assert all(torch.equal(found[i], apart(x)) for i, x in enumerate(inputs))


def test_gradients_are_those_of_the_layers_apart():
    apart, joined, products = pair()
    x = drawn()
    found = []
    for block in (apart, joined):
        leaf = x.clone().requires_grad_()
        y = block(leaf)
        wanted = [leaf, *(layer.bias for layer in block.layers())]
        found.append(torch.autograd.grad(y.pow(2).sum(), wanted))
    for got, want in zip(*reversed(found), strict=True):
        torch.testing.assert_close(got, want)
    joined.requires_grad_(False)
    leaf = x.clone().requires_grad_()
    (got,) = torch.autograd.grad(checkpoint(joined, leaf, use_reentrant=False).pow(2).sum(), leaf)
    torch.testing.assert_close(got, found[0][0])
    assert len(products) == 2  # forward and once more for the gradient; none with biases that learn


def test_a_part_may_be_written_to_where_there_are_gradients():
    apart, joined, _ = pair()
    x, found = drawn(), []
    for block in (apart, joined):
        leaf = x.clone().requires_grad_()
        block.between = lambda block, x: block.q(x).mul_(2)
        found.append(torch.autograd.grad(block(leaf).pow(2).sum(), leaf)[0])
    torch.testing.assert_close(found[1], found[0])


TRANSFORMS = {
    "vmap": torch.func.vmap,
    "grad": lambda block: torch.func.grad(lambda x: block(x).pow(2).sum()),
    "grad of each": lambda block: torch.func.vmap(
        torch.func.grad(lambda x: block(x[None]).pow(2).sum())
    ),
    "jvp": lambda block: lambda x: torch.func.jvp(block, (x,), (x + 1,))[1],
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_of_functions_go_through_merged_layers(transform):
    apart, joined, products = pair()
    x = drawn()
    got, want = (TRANSFORMS[transform](block)(x) for block in (joined, apart))
    torch.testing.assert_close(got, want)
    assert len(products) <= 1


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_parent_has_one_product(strict):
    apart, joined, _ = pair()
    del joined.q._merged.linear.__dict__["forward"]
    x = drawn()
    program = torch.export.export(nn.Sequential(joined), (x,), strict=strict)
    assert torch.equal(program.module()(x), apart(x))
    targets = [str(node.target) for node in program.graph.nodes]
    assert targets.count("ladder.linear.default") == 1


def test_a_layer_that_is_called_without_gradients_does_not_take_them_from_others():
    joined, _ = merged(Block(bias=False))
    seen = []

    def ask(block, x):
        with torch.no_grad():
            seen.append(block.k(x).requires_grad)
        seen.append(block.v(x).requires_grad)

    joined.between = ask
    joined(drawn().requires_grad_())
    assert seen == [False, True]


def test_autocast_in_between_is_obeyed():
    joined, _ = merged(Block())
    seen = []

    def ask(block, x):
        with torch.autocast("cpu", torch.bfloat16):
            seen.append(block.k(x).dtype)
        seen.append(block.v(x).dtype)

    joined.between = ask
    with torch.no_grad():
        joined(drawn())
    assert seen == [torch.bfloat16, torch.float32]


def same_state(got, want):
    got, want = got.state_dict(), want.state_dict()
    assert set(got) == set(want)
    return all(torch.equal(got[name], want[name]) for name in want)


@pytest.mark.parametrize(
    "type",
    [
        TYPE,
        "uint3,group=32,scale=float16,zero=quantized",
        "mxfp4",
        "nf4",
        "int4,block=8x32,scale=float16",
    ],
)
def test_the_layers_look_as_they_did(type):
    apart, joined, _ = pair(type=type)
    assert {*joined._modules} == {*apart._modules}
    assert [n for n, _ in joined.named_parameters()] == [n for n, _ in apart.named_parameters()]
    assert same_state(joined, apart)
    assert torch.equal(joined.k.dequantize().weight, apart.k.dequantize().weight)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, copy.copy, lambda layer: pickle.loads(pickle.dumps(layer))]
)
def test_a_copy_of_a_layer_is_a_layer_by_itself(copied):
    apart, joined, products = pair()
    layer, x = copied(joined.k), drawn()
    assert type(layer) is ladder.Linear and same_state(layer, apart.k)
    assert torch.equal(layer(x), apart.k(x)) and not products


def test_a_copy_of_a_model_keeps_nothing_of_the_merged_weight():
    apart, joined, _ = pair()
    again = pickle.loads(pickle.dumps(copy.deepcopy(joined)))
    x = drawn()
    assert torch.equal(again(x), apart(x))
    assert not any(isinstance(module, MergedLinear) for module in again.modules())


CHANGES = {
    "to": lambda block, other: block.to(torch.float16).float(),
    "load": lambda block, other: block.load_state_dict(other.state_dict()),
    "assign": lambda block, other: block.load_state_dict(other.state_dict(), assign=True),
    "set_weight": lambda block, other: block.k.set_weight(other.k.packed_weight),
    "bias": lambda block, other: setattr(block.k, "bias", nn.Parameter(other.k.bias.detach())),
    "unoptimize": lambda block, other: ladder.unoptimize(block),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_a_layer_takes_the_merged_weight_apart(change):
    apart, joined, products = pair()
    other, x = Block(), drawn()
    for block in (apart, joined):
        CHANGES[change](block, other)
    assert torch.equal(joined(x), apart(x)) and not products
    assert same_state(joined, apart)
    assert all(type(layer) is ladder.Linear for layer in joined.layers())
    assert not joined._forward_hooks and not joined._forward_pre_hooks
    parts = [
        part for layer in joined.layers() for part in (layer.qweight, layer.scales, layer.bias)
    ]
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 9


def test_what_changes_nothing_leaves_the_layers_merged():
    _, joined, _ = pair()
    joined.to("cpu").float().eval().requires_grad_(False)
    assert all(isinstance(layer, MergedLinear) for layer in joined.layers())


def test_an_optimizer_that_knows_the_biases_still_changes_them():
    apart, joined, _ = pair()
    x = drawn()
    for block in (apart, joined):
        optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
        before = [layer.bias for layer in block.layers()]
        block(x).sum().backward()
        optimizer.step()
        assert all(a is b.bias for a, b in zip(before, block.layers(), strict=True))
    with torch.no_grad():
        assert torch.equal(joined(x), apart(x))


def test_data_parallel_is_refused_by_name():
    _, joined, _ = pair()
    with pytest.raises(ladder.Unsupported, match="call ladder.unoptimize"):
        joined.q._replicate_for_data_parallel()


OBJECTIONS = {
    "types differ": lambda: (
        packed(16),
        packed(16, type="uint3,group=32,scale=float16,zero=midpoint"),
    ),
    "in_features differ: 64, 96": lambda: (packed(16), packed(16, k=96)),
    "dtypes differ": lambda: (packed(16), packed(16).half()),
    "dtypes of biases differ": lambda: (packed(16), packed(16, bias=False)),
    "meta device": lambda: (packed(16), packed(16).to("meta")),
    "not ladder.Linear": lambda: (packed(16), nn.Linear(K, 16)),
    "scale2 differ": lambda: (packed(16, type="nvfp4"), packed(16, type="nvfp4")),
    "blocks of 32 rows would be cut: the layers have 16, 32 rows": lambda: (
        packed(16, type="int4,block=32x32,scale=float16"),
        packed(32, type="int4,block=32x32,scale=float16"),
    ),
}


@pytest.mark.parametrize("reason", OBJECTIONS)
def test_layers_that_cannot_share_a_weight_are_told_why(reason):
    assert reason in objection(OBJECTIONS[reason]())


def test_a_forward_that_was_replaced_stays():
    layers = [packed(16), packed(16)]
    layers[1].forward = layers[1].forward
    assert "replaced the forward" in objection(layers)


def test_one_scale_of_all_rows_is_merged_where_it_is_the_same():
    block = Block(type="int4,tensor,scale=float16")
    assert objection(block.layers()) == "scales differ"
    for layer in block.layers():
        layer.scales.copy_(block.q.scales)
    apart, x = copy.deepcopy(block), drawn()
    assert objection(block.layers()) == ""
    with torch.no_grad():
        assert torch.equal(merged(block)[0](x), apart(x)) and same_state(block, apart)
    ladder.unoptimize(block)
    assert same_state(block, apart)


def test_act_order_is_merged_where_it_is_the_same():
    order = (torch.arange(K) % 2).to(torch.int32)
    other = (torch.arange(K) // 32).to(torch.int32)

    def layer(g_idx):
        weight = packed(16).packed_weight
        parts = weight.tensors() | {"g_idx": g_idx}
        return ladder.Linear.from_weight(ladder.Weight(weight.type, weight.shape, **parts))

    assert objection([layer(order), layer(other)]) == "g_idx differ"
    assert (
        objection([layer(order), packed(16, bias=False)])
        == "some layers have g_idx, others have not"
    )
    block = Block(bias=False)
    block.q, block.k, block.v = layer(order), layer(order), layer(order)
    apart = copy.deepcopy(block)
    x = drawn()
    assert objection(block.layers()) == ""
    assert torch.equal(merged(block)[0](x), apart(x)) and same_state(block, apart)


def test_torch_compile_traces_one_product():
    model, joined, _ = pair()
    graphs = []

    def backend(module, example):
        graphs.append([str(node.target) for node in module.graph.nodes])
        return module.forward

    del joined.q._merged.linear.__dict__["forward"]
    x = drawn()
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(nn.Sequential(joined), backend=backend, fullgraph=True)
        for each in (x, x + 1):
            assert torch.equal(compiled(each), model(each))
    assert [graph.count("ladder.linear") for graph in graphs] == [1]
    found = []
    for each in (compiled, model):
        leaf = x.clone().requires_grad_()
        found.append(torch.autograd.grad(each(leaf).pow(2).sum(), leaf)[0])
    torch.testing.assert_close(*found)


@pytest.fixture
def kernels(monkeypatch):
    """Images on the CPU: an image is the codes, the ops of kernels are played by torch."""
    from ladder.cuda import image, kernels

    weights, numbers = {}, {}

    def open_weight(type, n, k, gather, dependent_launch=False):
        return numbers.setdefault((type, n, k), len(numbers) + 1)

    def pack(weight, number, order):
        codes = weight.qweight.flatten().clone()
        weights[codes.data_ptr()] = weight
        return codes

    def linear(x, codes, bias, number, n):
        return weights[codes.data_ptr()].linear(x, bias)

    monkeypatch.setattr(kernels, "possible", lambda device: True)
    monkeypatch.setattr(kernels, "objection", lambda *_: "")
    monkeypatch.setattr(kernels, "load_transforms", lambda *_: "")
    monkeypatch.setattr(image, "open_weight", open_weight)
    monkeypatch.setattr(image, "pack", pack)
    monkeypatch.setattr(
        image, "unpack", lambda codes, number, type, n, k: codes.view(n, -1).clone()
    )
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: torch.cpu.Stream())
    monkeypatch.setattr(torch.cpu.Stream, "synchronize", lambda self: None, raising=False)
    library = torch.library.Library("ladder", "IMPL")
    library.impl("linear_image_no_grad", linear, "CPU")
    yield numbers
    library._destroy()


def test_weights_in_the_form_of_kernels_are_merged_into_one_image(kernels):
    block = Block()
    apart, x = copy.deepcopy(block), drawn()
    with torch.no_grad():
        want = apart(x)
        for layer in block.layers():
            assert layer.prepare() and layer.image is not None and layer.qweight is None
        joined, products = merged(block)
        assert joined.q._merged.linear.qweight is None
        assert torch.equal(joined(x), want) and len(products) == 1
        assert same_state(joined, apart)
        image = joined.q.image
        assert image.numel() == sum(layer.qweight.numel() for layer in apart.layers())
        assert all(layer.image is image and layer.qweight is None for layer in joined.layers())
        assert all(layer.prepare() for layer in joined.layers())
        requests = {layer.kernel_request(torch.float16, (1, 8)) for layer in joined.layers()}
        assert [request.shape for request in requests] == [(sum(SIZES), K)]
        ladder.unoptimize(joined)
        assert torch.equal(joined(x), want) and same_state(joined, apart)
