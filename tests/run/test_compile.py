# SPDX-License-Identifier: Apache-2.0
"""What torch.compile makes of layers with images: one graph, which CUDA graphs can hold without a
copy of a weight, of ops that cost no autograd where nothing asks for it.

No GPU: the device is the test's, and what inductor would be given is looked at.
"""

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext
from torch._inductor.utils import get_first_incompatible_cudagraph_node

import ladder
from ladder.cuda import image as images

N = 64
NO_GRAD, WITH_GRAD = "ladder.linear_image_no_grad.default", "ladder.linear_image.default"


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def image_of(layer):
    """What the layer's prepare() would make of it on a GPU: its image, and the number of that."""
    number = images.open_weight(str(layer.weight_type), N, N)
    return torch.zeros(images.parts(number).words, dtype=torch.int32), number


def give_image(layer):
    if layer.image is None:
        layer._set_image(*image_of(layer))
        layer.register_buffer("qweight", None)
    return True


def chain(bias=False, count=3):
    layers = [ladder.Linear(N, N, bias, "uint4", 32, dtype=torch.float16) for _ in range(count)]
    return nn.Sequential(*layers)


class Seen:
    """A compiler for torch.compile. It keeps the graphs, and which of their inputs keep their
    place, which CUDA graphs read where they are instead of copying them."""

    def __init__(self):
        self.graphs, self.static = [], []

    def compile(self, graph, inputs):
        self.graphs.append(graph)
        context = TracingContext.get()
        self.static.append(
            [tuple(inputs[i].shape) for i in context.fw_metadata.static_input_indices]
        )
        nodes = graph.graph.find_nodes(op="output")[0].args[0]
        shapes = [node.meta["val"] for node in nodes]
        return make_boxed_func(lambda *_: [torch.zeros_like(s, device="cpu") for s in shapes])


def compiled(model, x, grad=False):
    seen = Seen()
    backend = aot_autograd(
        fw_compiler=seen.compile, inference_compiler=seen.compile, bw_compiler=seen.compile
    )
    with torch.set_grad_enabled(grad):
        torch.compile(model, backend=backend, fullgraph=True)(x)
    return seen


def targets(graph):
    return [str(node.target) for node in graph.graph.nodes if "ladder" in str(node.target)]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("prepared", [True, False])
def test_a_chain_is_one_graph_that_cuda_graphs_hold_without_copying_weights(
    monkeypatch, bias, prepared
):
    """Also where the weight is brought into its image while torch traces the layer."""
    monkeypatch.setattr(ladder.Linear, "prepare", give_image)
    model = chain(bias)
    if prepared:
        for layer in model:
            give_image(layer)
    seen = compiled(model, torch.randn(2, N).half())
    (graph,), (static,) = seen.graphs, seen.static
    assert targets(graph) == [NO_GRAD] * 3
    words = image_of(model[0])[0].shape
    assert static.count(words) == 3 and static.count((N,)) == 3 * bias
    assert (2, N) not in static
    assert get_first_incompatible_cudagraph_node(graph) is None


def test_ops_write_into_none_of_their_arguments():
    """What inductor would copy, or keep out of CUDA graphs."""
    for name in ("linear_image", "linear_image_no_grad", "dequantize_image"):
        op = getattr(torch.ops.ladder, name).default
        assert not op._schema.is_mutable and torch.Tag.cudagraph_unsafe not in op.tags
        assert [str(result.type) for result in op._schema.returns] == ["Tensor"]


@pytest.mark.parametrize("of", ["x", "bias"])
def test_a_graph_with_gradients_has_the_op_that_has_them(of):
    model = chain(bias=True, count=1)
    give_image(model[0])
    model[0].bias.requires_grad_(of == "bias")
    x = torch.randn(2, N).half().requires_grad_(of == "x")
    seen = compiled(model, x, grad=True)
    assert targets(seen.graphs[0]) == [WITH_GRAD]


def test_a_graph_of_frozen_layers_has_no_autograd_though_it_is_enabled():
    model = chain(bias=True)
    for layer in model:
        give_image(layer)
        layer.bias.requires_grad_(False)
    seen = compiled(model, torch.randn(2, N).half(), grad=True)
    assert targets(seen.graphs[0]) == [NO_GRAD] * 3


def test_a_canonical_chain_is_one_graph():
    model, x = chain(), torch.randn(2, N).half()
    explained = torch._dynamo.explain(model)(x)
    assert explained.graph_count == 1 and explained.graph_break_count == 0
