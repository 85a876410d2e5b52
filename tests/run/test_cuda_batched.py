# SPDX-License-Identifier: Apache-2.0
"""ladder.BatchedLinear on a GPU: one launch for all weights, exact on integers."""

import copy

import pytest
import torch
from drawn import TWO_LEVELS, exact_weight, formula, integers
from gpu import HALVES, MARKS
from torch import Tensor

import ladder
from ladder.cuda.request import check_mode
from ladder.cuda.tune_items import ItemsProblem, tune

pytestmark = MARKS

TYPES = (
    "uint4,group=32,scale=float16,zero=midpoint",
    "uint4,group=32,scale=float16,zero=integer",
    "uint1,group=64,scale=float16,zero=midpoint",
    "int8,channel,scale=float16",
    "float6_e3m2,group=32,scale=float16",
    "nf4,group=64,scale=float16",
    "mxfp4",
    "nvfp4",
    TWO_LEVELS,
)
B, N, K = 5, 200, 256


def batch_of(
    type: str, n: int = N, k: int = K, count: int = B, **more
) -> tuple[ladder.BatchedLinear, Tensor]:
    """A module on the GPU, in the form of kernels, and its values [B, N, K]."""
    weights = [exact_weight(type, n, k, seed=seed, **more) for seed in range(count)]
    module = ladder.BatchedLinear(count, k, n, weight_type=type)
    module.set_weights(weights)
    module.bias.data.copy_(integers((count, n), torch.float32, 9))
    module.cuda()
    assert module.prepare()
    return module, torch.stack([formula(weight) for weight in weights]).cuda()


def exact(x: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    return torch.einsum("...bk,bnk->...bn", x.double(), values) + bias.double()


def kernels(module: ladder.BatchedLinear, tokens: int, dtype: torch.dtype) -> int:
    """Most rows of an item; 0 where there are no kernels."""
    of = module._weight_number
    return torch.ops.ladder.item_rows(of, module.batch, tokens, dtype, 0, "batch")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("type", TYPES)
def test_kernels_are_exact_on_integers(type, dtype):
    module, values = batch_of(type)
    for tokens in (1, 3, 8, 9, 40, 100, 300, 1025):
        x = integers((tokens, B, K), dtype, tokens).cuda()
        assert kernels(module, tokens, dtype)
        with torch.no_grad():
            y = module(x)
        wanted = exact(x, values, module.bias)
        assert torch.equal(y, wanted.to(dtype)), tokens


@pytest.mark.parametrize("n, k", [(8, 64), (65, 200), (136, 1032), (512, 128), (128, 512)])
def test_ragged_sizes_are_exact(n, k):
    module, values = batch_of(TYPES[0], n, k, 3)
    for tokens in (1, 17, 70):
        x = integers((tokens, 3, k), torch.float16, tokens).cuda()
        assert torch.equal(module(x), exact(x, values, module.bias).half())


def test_columns_may_be_in_orders_of_their_own():
    module, values = batch_of(TYPES[0], act_order=True)
    for tokens in (1, 40):
        x = integers((tokens, B, K), torch.float16).cuda()
        assert torch.equal(module(x), exact(x, values, module.bias).half())


def test_a_batch_in_front_is_not_copied():
    module, values = batch_of(TYPES[0])
    x = integers((B, 40, K), torch.float16).cuda()
    y = module(x.transpose(0, 1)).transpose(0, 1)
    assert y.is_contiguous()
    wanted = torch.bmm(x.double(), values.mT) + module.bias.double()[:, None]
    assert torch.equal(y, wanted.half())


def test_float32_and_gradients_go_through_dense_weights():
    module, values = batch_of(TYPES[0])
    x = integers((4, B, K), torch.float32).cuda().requires_grad_()
    y = module(x)
    assert torch.equal(y.double(), exact(x, values, module.bias))
    half = x.detach().half().requires_grad_()
    for given in (x, half):
        module(given).sum().backward()
        assert torch.equal(given.grad, values.sum(1).expand(4, -1, -1).to(given.dtype))
    assert torch.equal(module.bias.grad, torch.full_like(module.bias, 8))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("type", TYPES)
def test_a_residual_is_added_where_the_sums_are_made(type, dtype):
    module, values = batch_of(type)
    for tokens in (1, 8, 40, 300):
        x = integers((tokens, B, K), dtype, tokens).cuda()
        residual = integers((tokens, B, N), dtype, 5).cuda()
        with torch.no_grad():
            y = module(x, residual)
        wanted = exact(x, values, module.bias) + residual.double()
        assert torch.equal(y, wanted.to(dtype)), tokens


def test_residuals_have_gradients_and_an_op_that_is_one():
    module, values = batch_of(TYPES[0])
    x = integers((33, B, K), torch.float16).cuda()
    residual = integers((33, B, N), torch.float16, 5).cuda().requires_grad_()
    y = module(x, residual)
    assert torch.equal(y, (exact(x, values, module.bias) + residual.double()).half())
    y.sum().backward()
    assert torch.equal(residual.grad, torch.ones_like(residual))
    stack, parts = module.stack(), x.transpose(0, 1)
    added = residual.detach().transpose(0, 1).requires_grad_()
    arguments = (parts, stack.images, None, stack.number, N, added)
    torch.library.opcheck(torch.ops.ladder.batched.default, arguments)
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x, residual), y)


def test_opcheck():
    module, _ = batch_of(TYPES[0])
    for tokens in (1, 33):
        x = integers((B, tokens, K), torch.float16).cuda().requires_grad_()
        stack = module.stack()
        arguments = (x, stack.images, module.bias.half(), stack.number, N)
        torch.library.opcheck(torch.ops.ladder.batched.default, arguments)


def test_compiled_and_captured_calls_are_exact():
    module, values = batch_of(TYPES[0])
    ladder.warmup(module, m=(1, 40), tune="off")
    for tokens in (1, 40):
        x = integers((tokens, B, K), torch.float16).cuda()
        wanted = exact(x, values, module.bias).half()
        with torch.no_grad():
            module(x)
            assert torch.equal(torch.compile(module, fullgraph=True)(x), wanted)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = module(x)
            x.copy_(integers((tokens, B, K), torch.float16, 5))
            graph.replay()
        assert torch.equal(y, exact(x, values, module.bias).half())


def test_capture_without_kernels_says_what_to_do():
    module, _ = batch_of("uint4,group=64,scale=float16,zero=midpoint", 72, 320)
    x = torch.zeros(9, B, 320, device="cuda", dtype=torch.float16)
    with pytest.raises(RuntimeError, match="a batch of uint4.*before the capture"):
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            module(x)
    torch.cuda.synchronize()


def test_tuned_kernels_are_exact_and_kept():
    module, values = batch_of(TYPES[0], 256, 512)
    shape = (B, 24, 512)
    problem = ItemsProblem(module.stack(), 24, "batch", shape, torch.float16)
    assert tune(problem, check_mode("fast"), float("inf"))
    assert tune(problem, check_mode("fast"), float("inf")) == ""  # it is a plan
    x = integers((24, B, 512), torch.float16).cuda()
    assert torch.equal(module(x), exact(x, values, module.bias).half())


def test_saving_and_moving_give_the_canonical_form():
    module, values = batch_of(TYPES[0])
    x = integers((9, B, K), torch.float16)
    state = module.state_dict()
    assert state["qweight"].shape[:2] == (B, N) and module.qweight is None
    other = ladder.BatchedLinear(B, K, N, weight_type=TYPES[0])
    other.load_state_dict(state)
    wanted = exact(x.cuda(), values, module.bias).half()
    assert torch.equal(other(x).cuda(), wanted)
    assert torch.equal(copy.deepcopy(module)(x.cuda()), wanted)
    assert torch.equal(module.cpu()(x).cuda(), wanted)
