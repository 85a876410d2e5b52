# SPDX-License-Identifier: Apache-2.0
"""ladder.GatedMLP and MLPs of models on a GPU: one launch gives the product of gate and up."""

import copy

import pytest
import torch
from drawn import exact_weight, formula, integers
from gpu import E4M3, HALVES, MARKS, UINT4, launches
from test_cuda_gated import TYPES, assert_rounded_once, small
from torch import nn

import ladder
from ladder.nn.gated import RunsGated
from ladder.ops.gating import Gating

pytestmark = MARKS
H, WIDE = 256, 104  # rows of gate and up end within a block of 64


def module(type, gating=None, bias=False):
    """An MLP whose sums are exact, and the values of its gate and up."""
    weights = [exact_weight(type, WIDE, H, seed=seed) for seed in (1, 2)]
    down = exact_weight("int8,channel,scale=float16", H, WIDE, seed=3)
    layers = [ladder.Linear.from_weight(weight) for weight in (*weights, down)]
    if bias:
        for seed, layer in enumerate(layers[:2]):
            layer.bias = nn.Parameter(integers((WIDE,), torch.float32, seed) / 4)
    made = ladder.GatedMLP.from_layers(*layers, gating=gating or Gating())
    return made.cuda(), torch.cat([formula(weight) for weight in weights]).cuda()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("bias", [False, True])
def test_the_product_of_gate_and_up_is_rounded_once(type, dtype, bias):
    mlp, values = module(type, bias=bias)
    hidden = []
    mlp.down_proj.register_forward_pre_hook(lambda _, args: hidden.append(args[0]))
    for m in (1, 8, 33, 257):
        x = small((m, H), dtype, m)
        sums = x.double() @ values.T
        if bias:
            sums += torch.cat([mlp.gate_proj.bias, mlp.up_proj.bias]).double()
        with torch.no_grad():
            mlp(x)
        assert_rounded_once(hidden.pop(), sums, mlp.gating)
    assert isinstance(mlp, RunsGated) and mlp._gated.linear.image is not None


@pytest.mark.parametrize("m", [1, 8, 33, 257])
def test_a_residual_is_added_by_the_last_launch(m):
    mlp, _ = module(UINT4)
    x, residual = small((m, H), torch.float16, m), small((m, H), torch.float16, m + 1)
    hidden = []
    hook = mlp.down_proj.register_forward_pre_hook(lambda _, args: hidden.append(args[0]))
    with torch.no_grad():
        y = mlp(x, residual)
        hook.remove()
        assert torch.equal(y, mlp.down_proj(hidden.pop(), residual))
        assert not torch.equal(y, mlp(x))
        ladder.warmup(mlp, m, tune=False)
        mlp(x, residual)
        assert len(launches(lambda: mlp(x, residual))) == 2


def test_two_launches_are_all_of_it():
    mlp, _ = module(UINT4)
    x = small((4, H), torch.float16, 0)
    with torch.no_grad():
        ladder.warmup(mlp, 4, tune=False)
        mlp(x)
        assert len(launches(lambda: mlp(x))) == 2  # gate and up with their product, and down
        mlp._gated.dissolve()
        mlp(x)
        assert len(launches(lambda: mlp(x))) > 3


def test_state_is_to_the_bit_what_the_layers_had():
    mlp, _ = module(UINT4, bias=True)
    state = {name: part.clone() for name, part in mlp.state_dict().items()}
    x = small((2, H), torch.float16, 1)
    with torch.no_grad():
        want = mlp(x)
    assert isinstance(mlp, RunsGated) and mlp.gate_proj.qweight is None
    for each in (mlp, copy.deepcopy(mlp)):
        got = each.state_dict()
        assert set(got) == set(state)
        assert all(torch.equal(part, got[name]) for name, part in state.items())
    mlp.load_state_dict(state)
    assert not isinstance(mlp, RunsGated)
    with torch.no_grad():
        assert torch.equal(mlp(x), want) and isinstance(mlp, RunsGated)
    on_cpu = copy.deepcopy(mlp).cpu()
    assert not isinstance(on_cpu, RunsGated) and on_cpu.gate_proj.qweight is not None


def test_act_order_goes_through_the_gather():
    g_idx = (torch.arange(H) // 128)[torch.randperm(H)].to(torch.int32)
    mlp, _ = module(UINT4)
    mlp = mlp.cpu()
    for layer in (mlp.gate_proj, mlp.up_proj):
        layer.register_buffer("g_idx", g_idx.clone())
    x = small((5, H), torch.float16, 2)
    want = copy.deepcopy(mlp)(x.cpu().float())
    mlp = mlp.cuda()
    with torch.no_grad():
        got = mlp(x)
    assert isinstance(mlp, RunsGated)
    # Four steps of float16: x is exact; sums, their product and y are rounded.
    torch.testing.assert_close(got.cpu().float(), want, rtol=4e-3, atol=4e-3 * want.abs().max())


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_are_those_of_dense_layers(compiled):
    mlp, _ = module(UINT4, bias=True)
    dense = copy.deepcopy(mlp).cpu().double()
    for name in ("gate_proj", "up_proj", "down_proj"):
        setattr(dense, name, getattr(dense, name).dequantize(torch.float64))
    ladder.warmup(mlp, 24, tune=False)
    torch._dynamo.reset()
    run = torch.compile(mlp, fullgraph=True) if compiled else mlp
    x = small((24, H), torch.bfloat16, 3)
    leaf, of_dense = x.clone().requires_grad_(), x.cpu().double().requires_grad_()
    run(leaf).sum().backward()
    dense(of_dense).sum().backward()
    assert isinstance(mlp, RunsGated)
    pairs = [(leaf, of_dense), (mlp.gate_proj.bias, dense.gate_proj.bias),
             (mlp.up_proj.bias, dense.up_proj.bias)]  # fmt: skip
    for got, want in pairs:
        scale = want.grad.abs().max()  # eight roundings to bfloat16, of values and gradients too
        assert (got.grad.double().cpu() - want.grad).abs().max() <= 0.03 * scale


@pytest.mark.parametrize("activation_type", ("int8", "float8_e4m3") if E4M3 else ("int8",))
def test_rounded_activations_are_near_those_that_are_not(activation_type):
    mlp, _ = module(UINT4)
    x = small((80, H), torch.float16, 4)
    with torch.no_grad():
        want = mlp(x)
        for layer in (mlp.gate_proj, mlp.up_proj):  # down has 104 columns, no multiple of 16
            layer.activation_type = activation_type
        assert not mlp.fuse()
        got = mlp(x)
    assert isinstance(mlp, RunsGated)
    # Codes of e4m3 are 2**-3 of a number apart at most, so that rounding costs 2**-4 / sqrt(3) in
    # the root mean square; those of int8 less.
    assert (got - want).float().norm() <= 0.05 * want.float().norm()


def test_it_is_captured_and_compiled():
    mlp, _ = module(UINT4, bias=True)
    x = small((8, H), torch.float16, 5)
    with torch.no_grad():
        graph = torch.cuda.CUDAGraph()
        with pytest.raises(RuntimeError, match="call ladder.warmup"), torch.cuda.graph(graph):
            mlp(x)
        ladder.warmup(mlp, 8, tune=False)
        want = mlp(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = mlp(x)
        graph.replay()
        assert torch.equal(y, want)
        torch._dynamo.reset()
        compiled = torch.compile(mlp, mode="reduce-overhead", fullgraph=True)
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            assert torch.equal(compiled(x), want)


def test_float32_and_autocast_are_served():
    mlp, _ = module(UINT4)
    x = small((3, H), torch.float32, 6)
    with torch.no_grad():
        want = copy.deepcopy(mlp).cpu()(x.cpu())
        scale = want.abs().max()
        assert (mlp(x).cpu() - want).abs().max() <= 1e-4 * scale
        with torch.autocast("cuda", torch.bfloat16):
            y = mlp(x)
        assert y.dtype == torch.bfloat16 and (y.float().cpu() - want).abs().max() <= 0.02 * scale


@pytest.mark.parametrize("family", ["Llama", "Qwen3", "Gemma2"])
def test_a_model_generates_as_without(family):
    """Logits differ by roundings of gate and up, to bfloat16 apart and not at all together."""
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{family}Config")(
        hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, vocab_size=256, max_position_embeddings=64,
        pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval().half()
    ladder.convert(model, "uint4", group_size=32)
    model = model.cuda()
    apart = copy.deepcopy(model)
    done = ladder.optimize(model, (1, 8), tune=False)
    assert len(done.gated) == 2 and not done.ungated
    prompt = torch.arange(50, 60, device="cuda")[None]
    with torch.no_grad():
        got, want = model(prompt).logits.float(), apart(prompt).logits.float()
    assert (got - want).abs().max() <= 16 * 2**-11 * want.abs().max()
    options = {"max_new_tokens": 12, "do_sample": False, "output_logits": True}
    got, want = (
        each.generate(prompt, return_dict_in_generate=True, **options) for each in (model, apart)
    )
    same = (got.sequences == want.sequences)[0, prompt.shape[1] :].tolist()
    if not all(same):  # only where two tokens are as good as each other
        best, second = want.logits[same.index(False)][0].float().topk(2).values
        assert best - second <= 16 * 2**-11 * best.abs()


def test_kernels_are_tuned_as_gated_ones(tmp_path):
    mlp, _ = module(UINT4)
    done = ladder.warmup(mlp, (1, 8), tune="fast", cache=tmp_path)
    assert done["gate_proj"] == done["up_proj"] and all(done["gate_proj"].values())
    (request,) = {r for r in done.tuned if r.gated}
    assert request.shape == (2 * WIDE, H) and request.columns == WIDE
    assert set(done.tuned.origin[request].values()) == {"measured"}
