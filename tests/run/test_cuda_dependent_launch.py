# SPDX-License-Identifier: Apache-2.0
"""``dependent_launch``: chains of layers on a GPU. Below compute capability 9.0 the option changes
nothing, which is a test, too."""

import copy
import functools

import pytest
import torch
from drawn import exact_weight, formula, integers
from gpu import HALVES, MARKS, UINT4, always_gives, schedules
from torch import Tensor, nn

import ladder

pytestmark = MARKS
has_it = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
TYPES = (UINT4, "nf4,group=64,scale=float16", "uint2,group=64,scale=float16")
#: What a schedule's text contains, n = k, and how many tokens.
WAYS = (
    *(("ordered", 2048, m) for m in (1, 8, 16)),
    *(("cluster", 4096, m) for m in (1, 16)),
    *(("multicast 1", 4096, m) for m in (1, 16)),
    *(("multicast 2", 4096, m) for m in (1, 16)),
    ("by k-tiles", 4096, 16),
    *(("consumer lag", 8192, m) for m in (1, 16)),
    *(("tiles per CTA", 8192, m) for m in (1, 16)),
)


def chain(count: int = 6, n: int = 1024, dtype: torch.dtype = torch.float16, bias: bool = True):
    """Square layers, y of each x of the next, with weights near 0 so that no y overflows."""
    torch.manual_seed(0)
    layers = []
    for _ in range(count):
        dense = nn.Linear(n, n, bias).to(dtype)
        layers.append(ladder.Linear.from_linear(dense, UINT4, method="nearest"))
    return nn.Sequential(*layers).cuda()


@functools.lru_cache(maxsize=1)
def two_layers(n: int) -> nn.Sequential:
    """A chain that takes seconds to make."""
    return chain(2, n, bias=False)


def use(model: nn.Module, dtype: torch.dtype, m: int, name: str) -> None:
    torch.ops.ladder.use_schedule(model[0]._weight_number, 0, dtype, m, name, False)


def launched_so(model: nn.Module, dtype: torch.dtype, m: int) -> bool:
    return all("dependent launch" in module.compile_for(dtype, m) for module in model)


@torch.no_grad()
def one_by_one(model: nn.Module, x: Tensor) -> Tensor:
    """y of a chain whose layers wait for each other."""
    for module in model:
        x = module(x)
        torch.cuda.synchronize()
    return x


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("type", TYPES)
def test_a_layer_is_exact_on_integers(type, dtype):
    for n, k, order in ((1000, 1032, False), (1024, 1024, False), (1023, 1024, True)):
        weight = exact_weight(type, n, k, act_order=order)
        bias = torch.arange(n, dtype=dtype) % 7
        module, wanted = ladder.Linear.from_weight(weight, bias).cuda(), formula(weight).cuda()
        module.dependent_launch = True
        assert module.prepare()
        for m in (1, 3, 8, 9, 16):  # more go another way
            x = integers((m, k), dtype, m).cuda()
            exact = (x.double() @ wanted.T + bias.cuda().double()).to(dtype)
            name = module.compile_for(dtype, m)
            assert name and ("dependent launch" in name) == has_it
            for _ in range(3):
                assert torch.equal(module(x), exact), name


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("m", (1, 8, 16))
def test_a_chain_gives_the_bits_of_its_layers_one_by_one(m, dtype):
    """A thousand times each; the same schedules but for the launch."""
    model, x = chain(dtype=dtype), torch.randn(m, 1024, device="cuda", dtype=dtype)
    ladder.warmup(model, m=m, dtype=dtype, tune=False, dependent_launch=True)
    assert launched_so(model, dtype, m) == has_it
    wanted = one_by_one(model, x)
    assert always_gives(model, x, wanted, 1000)
    name = model[0].compile_for(dtype, m)
    ladder.warmup(model, m=m, dtype=dtype, tune=False, dependent_launch=False)
    use(model, dtype, m, name.replace(", dependent launch", ""))
    assert not launched_so(model, dtype, m)
    assert always_gives(model, x, wanted, 1)


@pytest.mark.skipif(not has_it, reason="no kernel is launched so below compute capability 9.0")
@pytest.mark.parametrize("way,n,m", WAYS)
def test_a_chain_of_every_way_gives_the_bits_of_its_layers_one_by_one(way, n, m):
    """Those of workspaces and counters too, which neighbours take in turns."""
    two, x = two_layers(n), torch.randn(m, n, device="cuda", dtype=torch.float16)
    model = nn.Sequential(*two, *two)
    ladder.warmup(model, m=m, dtype=torch.float16, tune=False, dependent_launch=True)
    for name in schedules(model[0], torch.float16, m, way, most=2):
        assert always_gives(model, x, one_by_one(model, x), 300), name


def test_weights_may_change_between_calls():
    """By loading, and by hand with a wait for the device; a bias without any."""
    first, second = exact_weight(UINT4, 512, 512, seed=1), exact_weight(UINT4, 512, 512, seed=2)
    bias = torch.zeros(512, dtype=torch.float16)
    module = ladder.Linear.from_weight(first, bias).cuda()
    before = ladder.Linear.from_weight(first).cuda()
    before.dependent_launch = module.dependent_launch = True
    x = integers((1, 512), torch.float16).cuda()
    kinds = []
    for weight in (first, second):
        module.load_state_dict(ladder.Linear.from_weight(weight, bias).state_dict())
        exact = x.double() @ formula(weight).cuda().T
        assert torch.equal(module(x), exact.half())
        kinds.append((module.image.clone(), exact))
    for turn in range(100):
        words, exact = kinds[turn % 2]
        before(x)
        module.image.copy_(words)
        torch.cuda.synchronize()
        before(x)
        y = module(x)
        assert torch.equal(y, (exact + max(turn - 1, 0)).half()), turn
        module.bias.fill_(turn)  # the kernel just before
        y = module(x)
        assert torch.equal(y, (exact + turn).half()), turn


def test_a_chain_trains_its_biases():
    """Each step writes them just before the layers that add them."""
    model, dtype = chain(3, 512), torch.float16
    name, losses = "", []
    for dependent_launch in (True, False):
        trained = copy.deepcopy(model)
        ladder.warmup(trained, m=4, dtype=dtype, tune=False, dependent_launch=dependent_launch)
        name = name or trained[0].compile_for(dtype, 4).replace(", dependent launch", "")
        if not dependent_launch:
            use(trained, dtype, 4, name)
        step = torch.optim.SGD([module.bias for module in trained], lr=1)
        x = torch.randn(4, 512, generator=torch.Generator().manual_seed(3)).cuda().half()
        mine = []
        for _ in range(20):
            step.zero_grad()
            loss = trained(x).float().square().mean()
            loss.backward()
            step.step()
            mine.append(loss.detach())
        losses.append(torch.stack(mine))
    assert torch.equal(*losses)
    assert len(losses[0].unique()) == 20, "steps that change nothing show nothing"


@pytest.mark.parametrize("m", (1, 8, 16))
def test_graphs_hold_chains_and_what_stands_before_a_layer(m):
    """A memset, a copy, a kernel and an event of another stream in front of layers."""
    model, dtype = chain(4), torch.float16
    ladder.warmup(model, m=m, dtype=dtype, tune=False, dependent_launch=True)
    x = torch.randn(m, 1024, device="cuda", dtype=dtype)
    kept, side = torch.empty_like(x), torch.cuda.Stream()

    @torch.no_grad()
    def run() -> torch.Tensor:
        kept.zero_()
        y = model[0](kept)
        kept.copy_(x)
        y = y + model[1](kept)
        y = model[2](y)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            other = model[3](y)
        mine = model[0](y)
        torch.cuda.current_stream().wait_stream(side)
        return model(mine + model[1](other))

    wanted = run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run()
    for _ in range(200):
        graph.replay()
        assert torch.equal(y, wanted)
    for _ in range(200):  # one replay behind the other, without a wait between
        graph.replay()
    assert torch.equal(y, wanted)


def test_a_capture_that_would_compile_says_so():
    model = chain(1, 384)  # of a shape that no other test compiles so
    x = torch.randn(1, 384, device="cuda", dtype=torch.float16)
    ladder.warmup(model, m=1, dtype=torch.float16, tune=False)
    model[0].dependent_launch = True
    graph = torch.cuda.CUDAGraph()
    with (
        torch.no_grad(),
        pytest.raises(RuntimeError, match="ladder.warmup"),
        torch.cuda.graph(graph),
    ):
        model(x)


def test_tuning_keeps_a_plan_of_its_own(tmp_path):
    model, dtype = chain(1), torch.float16
    alone = ladder.warmup(model, m=1, dtype=dtype, cache=tmp_path)["0"][1]
    in_chain = ladder.warmup(model, m=1, dtype=dtype, cache=tmp_path, dependent_launch=True)["0"][1]
    assert "dependent launch" not in alone and ("dependent launch" in in_chain) == has_it
    assert ladder.warmup(model, m=1, dtype=dtype, dependent_launch=False)["0"][1] == alone
