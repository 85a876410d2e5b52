# SPDX-License-Identifier: Apache-2.0
"""``dependent_launch``: what the option keeps everywhere, and its chains of layers on a GPU."""

import copy
import io
import pickle

import pytest
import torch
from drawn import exact_weight, formula, integers
from torch import nn

import ladder
from ladder import image

UINT4 = "uint4,group=128,scale=float16,zero=midpoint"
TYPES = (UINT4, "nf4,group=64,scale=float16", "uint2,group=64,scale=float16")
HALVES = (torch.float16, torch.bfloat16)
LOOKED_AT = 48  # of the first schedules of a problem
#: What a schedule's text contains, n = k, and how many tokens.
WAYS = (
    *(("ordered", 2048, m) for m in (1, 8, 16)),
    *(("cluster", 4096, m) for m in (1, 16)),
    *(("engine for 1", 4096, m) for m in (1, 16)),
    *(("engine for 2", 4096, m) for m in (1, 16)),
    ("x rounds", 4096, 16),
    *(("x slack", 8192, m) for m in (1, 16)),
    *(("sweeps", 8192, m) for m in (1, 16)),
)


def layer(type: str = UINT4, n: int = 64, k: int = 256, **kinds) -> ladder.Linear:
    return ladder.Linear.from_weight(exact_weight(type, n, k, **kinds))


# --- everywhere -----------------------------------------------------------------------------------


def test_a_layer_has_it_only_when_asked_for():
    model = nn.Sequential(layer(), nn.ReLU(), layer())
    assert ladder.warmup(model) == {} and not model[0].dependent_launch
    assert "dependent_launch" not in repr(model)
    ladder.warmup(model, dependent_launch=True)
    assert model[0].dependent_launch and model[2].dependent_launch
    ladder.warmup(model)  # which says nothing of it
    assert model[0].dependent_launch and "dependent_launch=True" in repr(model[0])
    ladder.warmup(model[0], dependent_launch=False)
    assert not model[0].dependent_launch and model[2].dependent_launch


def test_copies_and_pickles_keep_it_and_checkpoints_have_not_heard_of_it():
    module = layer()
    plain = set(module.state_dict())
    module.dependent_launch = True
    assert set(module.state_dict()) == plain
    assert copy.deepcopy(module).dependent_launch
    assert pickle.loads(pickle.dumps(module)).dependent_launch
    other = layer()
    other.load_state_dict(module.state_dict())
    assert not other.dependent_launch
    module.load_state_dict(other.state_dict())
    assert module.to(torch.bfloat16).dependent_launch
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    assert torch.load(file, weights_only=False).dependent_launch


def test_a_module_that_was_pickled_before_there_was_such_an_option_has_it_off():
    module = layer()
    state = module.__getstate__()
    state.pop("_dependent_launch", None)
    older = ladder.Linear.__new__(ladder.Linear)
    older.__setstate__(state)
    assert not older.dependent_launch


def test_results_elsewhere_are_the_same():
    module, x = layer(), integers((3, 256), torch.float32)
    wanted = module(x)
    module.dependent_launch = True
    assert torch.equal(module(x), wanted)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), wanted)


@pytest.mark.parametrize("gather", (False, True))
def test_numbers_stand_apart_and_images_are_the_same(gather):
    without = image.open_weight(UINT4, 64, 256, gather)
    number = image.open_weight(UINT4, 64, 256, gather, dependent_launch=True)
    assert number != without
    assert number == image.open_weight(UINT4, 64, 256, gather, dependent_launch=True)
    assert image.parts(number) == image.parts(without)


@pytest.mark.parametrize("gather", (False, True))
def test_an_image_that_is_there_already_changes_its_number_and_nothing_else(gather):
    module = layer()
    number = image.open_weight(UINT4, 64, 256, gather)
    words = torch.zeros(image.parts(number).words, dtype=torch.int32)
    module._set_image(words, number)
    module.dependent_launch = True
    assert module.image is words
    assert module._weight_number == image.open_weight(UINT4, 64, 256, gather, dependent_launch=True)
    module.dependent_launch = False
    assert module._weight_number == number
    # DataParallel copies the image to a replica just before it is called.
    module.dependent_launch = True
    replica = module._replicate_for_data_parallel()
    assert not replica.dependent_launch and replica._weight_number == number
    assert module.dependent_launch


@pytest.mark.parametrize("dependent_launch", (False, True))
def test_fakes_know_both_numbers(dependent_launch):
    number = image.open_weight(UINT4, 64, 256, dependent_launch=dependent_launch)
    x = torch.empty((2, 3, 256), dtype=torch.float16, device="meta")
    words = torch.empty(image.parts(number).words, dtype=torch.int32, device="meta")
    y = torch.ops.ladder.linear_image(x, words, None, number, 64)
    assert y.shape == (2, 3, 64) and y.dtype == torch.float16


# --- on a GPU -------------------------------------------------------------------------------------

has_it = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


def on_gpu(test):
    """Below compute capability 9.0 the option changes nothing, which is a test, too."""
    skipped = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    return pytest.mark.cuda(skipped(test))


def chain(count: int = 6, n: int = 1024, dtype: torch.dtype = torch.float16, bias: bool = True):
    """Square layers, y of each x of the next, with weights near 0 so that no y overflows."""
    torch.manual_seed(0)
    layers = []
    for _ in range(count):
        dense = nn.Linear(n, n, bias).to(dtype)
        layers.append(ladder.Linear.from_linear(dense, UINT4, method="nearest"))
    return nn.Sequential(*layers).cuda()


def use(model: nn.Module, dtype: torch.dtype, m: int, name: str) -> None:
    torch.ops.ladder.use_schedule(model[0]._weight_number, 0, dtype, m, name, False)


def launched_so(model: nn.Module, dtype: torch.dtype, m: int) -> bool:
    return all("dependent launch" in module.compile_for(dtype, m) for module in model)


@on_gpu
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


@on_gpu
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("m", (1, 8, 16))
def test_a_chain_gives_the_bits_of_its_layers_one_by_one(m, dtype):
    """A thousand times each; the same schedules but for the launch."""
    model, x = chain(dtype=dtype), torch.randn(m, 1024, device="cuda", dtype=dtype)
    ladder.warmup(model, m=m, dtype=dtype, tune=False, dependent_launch=True)
    assert launched_so(model, dtype, m) == has_it
    wanted = x
    with torch.no_grad():
        for module in model:
            wanted = module(wanted)
            torch.cuda.synchronize()
        other = torch.zeros((), dtype=torch.bool, device="cuda")
        for _ in range(1000):
            other |= (model(x) != wanted).any()
        assert not bool(other)
        name = model[0].compile_for(dtype, m)
        ladder.warmup(model, m=m, dtype=dtype, tune=False, dependent_launch=False)
        use(model, dtype, m, name.replace(", dependent launch", ""))
        assert not launched_so(model, dtype, m)
        assert torch.equal(model(x), wanted)


@on_gpu
@pytest.mark.parametrize("way,n,m", WAYS)
def test_a_chain_of_every_way_gives_the_bits_of_its_layers_one_by_one(way, n, m):
    """Those of workspaces and counters too, which neighbours take in turns."""
    ops, dtype = torch.ops.ladder, torch.float16
    two, x = chain(2, n, bias=False), torch.randn(m, n, device="cuda", dtype=dtype)
    model = nn.Sequential(*two, *two)
    ladder.warmup(model, m=m, dtype=dtype, tune=False, dependent_launch=True)
    number = model[0]._weight_number
    tried = 0
    for name in ops.schedules(number, 0, dtype, m, LOOKED_AT).splitlines():
        if way not in name or tried == 2:
            continue
        try:
            use(model, dtype, m, name)
        except RuntimeError:  # spills, say
            continue
        tried += 1
        wanted = x
        with torch.no_grad():
            for module in model:
                wanted = module(wanted)
                torch.cuda.synchronize()
            other = torch.zeros((), dtype=torch.bool, device="cuda")
            for _ in range(300):
                other |= (model(x) != wanted).any()
        assert not bool(other), name
    assert tried or not has_it, f"none of the first {LOOKED_AT} schedules has {way!r}"


@on_gpu
def test_weights_may_change_between_calls():
    """By loading, and by hand with a wait for the device; a bias without any."""
    first, second = exact_weight(UINT4, 512, 512, seed=1), exact_weight(UINT4, 512, 512, seed=2)
    bias = torch.zeros(512, dtype=torch.float16)
    module = ladder.Linear.from_weight(first, bias).cuda()
    before = ladder.Linear.from_weight(first).cuda()
    before.dependent_launch = module.dependent_launch = True
    x = integers((1, 512), torch.float16).cuda()
    values = {id(weight): formula(weight).cuda() for weight in (first, second)}
    images = {}
    for weight in (first, second):
        state = ladder.Linear.from_weight(weight, bias).state_dict()
        module.load_state_dict(state)
        assert torch.equal(module(x), (x.double() @ values[id(weight)].T).half())
        images[id(weight)] = module.image.clone()
    added = 0
    for turn in range(100):
        weight = (first, second)[turn % 2]
        before(x)
        module.image.copy_(images[id(weight)])
        torch.cuda.synchronize()
        before(x)
        exact = x.double() @ values[id(weight)].T
        assert torch.equal(module(x), (exact + added).half()), turn
        added = turn
        with torch.no_grad():
            module.bias.fill_(added)  # the kernel just before
        assert torch.equal(module(x), (exact + added).half()), turn


@on_gpu
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
        step = torch.optim.SGD([module.bias for module in trained], lr=0.01)
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


@on_gpu
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


@on_gpu
def test_a_capture_that_would_compile_says_so():
    model = chain(1, 384)  # of a shape that no other test compiles so
    x = torch.randn(1, 384, device="cuda", dtype=torch.float16)
    ladder.warmup(model, m=1, dtype=torch.float16, tune=False)
    model[0].dependent_launch = True
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), pytest.raises(RuntimeError, match="ladder.warmup"):  # noqa: SIM117
        with torch.cuda.graph(graph):
            model(x)


@on_gpu
def test_tuning_keeps_a_plan_of_its_own(tmp_path):
    model, dtype = chain(1), torch.float16
    alone = ladder.warmup(model, m=1, dtype=dtype, cache=tmp_path)["0"][1]
    in_chain = ladder.warmup(model, m=1, dtype=dtype, cache=tmp_path, dependent_launch=True)["0"][1]
    assert "dependent launch" not in alone and ("dependent launch" in in_chain) == has_it
    assert ladder.warmup(model, m=1, dtype=dtype, dependent_launch=False)["0"][1] == alone
