# SPDX-License-Identifier: Apache-2.0
"""Layers merged into one weight compute what they did apart, in one product."""

import copy
import threading

import pytest
import torch
from merging import Block, drawn, merged, pair
from torch import nn
from torch.utils.checkpoint import checkpoint

import ladder


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
