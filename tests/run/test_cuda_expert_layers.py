# SPDX-License-Identifier: Apache-2.0
"""ladder.Experts on a GPU: by kernels, with the numbers that the processor gives."""

import copy
import math

import pytest
import torch
from drawn import exact_weight, integers
from gpu import E4M3, HALVES, MARKS
from mixed import TERNARY, E, H, exact_experts, routed
from torch import Tensor

import ladder
from ladder.cuda.experts import padded_bias, rounding, rows_of_item
from ladder.nn.stack import PackedStack

pytestmark = MARKS


def has_images(experts: ladder.Experts) -> bool:
    stacks = (experts.gate_up, experts.down)
    return all(stack.images is not None and stack.qweight is None for stack in stacks)


def call(experts: ladder.Experts, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    with torch.no_grad():
        return experts(x, index, weights)


def mixtral(transformers, hidden=64, intermediate=96):
    """A model of two layers of four experts, packed."""
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=99,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
    )
    model = transformers.MixtralForCausalLM(config).half().cuda().eval()
    ladder.convert(model, "uint4,group=32,scale=float16,zero=midpoint")
    return model


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("k", [1, 2, E])
def test_kernels_give_what_the_processor_gives(k, bias, dtype):
    experts, x = exact_experts(bias), integers((9, H), dtype)
    index, weights = routed(9, k)
    index[4] = E  # nobody's
    wanted = call(experts, x, index, weights)
    made = call(experts.cuda(), x.cuda(), index.cuda(), weights.cuda())
    assert has_images(experts)
    assert torch.equal(made.cpu(), wanted)
    assert torch.equal(call(experts, x[None].cuda(), index.int().cuda(), weights.cuda())[0], made)


def test_columns_in_an_order_of_their_own_are_gathered_by_kernels():
    experts, x = exact_experts(), integers((9, H), torch.float16)
    for seed, stack in enumerate((experts.gate_up, experts.down)):
        stack.set_weights(
            exact_weight(TERNARY, stack.out_features, stack.in_features, act_order=e != 1,
                         seed=10 * seed + e)
            for e in range(E)
        )  # fmt: skip
        stack.scales.fill_(1)
        stack.scales[:, :, 1] = 2
    index, weights = routed(9, 2)
    kept = {name: part.clone() for name, part in experts.state_dict().items()}
    wanted = call(experts, x, index, weights)
    made = call(experts.cuda(), x.cuda(), index.cuda(), weights.cuda())
    assert has_images(experts)
    assert torch.equal(made.cpu(), wanted)
    for name, part in experts.state_dict().items():
        assert torch.equal(part.cpu(), kept[name]), name


def test_gpt_oss_clamps_and_adds_biases():
    experts = exact_experts(True, activation="swigluoai", limit=7.0)
    x = torch.randn(20, H) * 3
    index, weights = routed(20, 2)
    wanted = call(experts, x, index, weights)
    for dtype, error in ((torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
        made = call(experts.cuda(), x.cuda().to(dtype), index.cuda(), weights.cuda()).float().cpu()
        assert (made - wanted).norm() <= error * wanted.norm(), dtype
        assert has_images(experts)


def test_gradients_are_those_of_the_processor():
    experts, x = exact_experts(True), integers((9, H), torch.float32)
    index, weights = routed(9, 2)

    def gradients(device: str, dtype: torch.dtype) -> list[Tensor]:
        experts.to(device).zero_grad()
        inputs = [
            x.to(device, dtype).detach().requires_grad_(),
            weights.to(device).detach().requires_grad_(),
        ]
        experts(inputs[0], index.to(device), inputs[1]).sum().backward()
        biases = [experts.gate_up.bias.grad, experts.down.bias.grad]
        return [g.float().cpu().clone() for g in (*(i.grad for i in inputs), *biases)]

    wanted = gradients("cpu", torch.float32)
    experts.cuda()
    call(experts, x.cuda().half(), index.cuda(), weights.cuda())
    assert has_images(experts)
    for made, right in zip(gradients("cuda", torch.float16), wanted, strict=True):
        assert (made - right).norm() <= 1e-2 * right.norm()


def test_the_canonical_form_comes_back():
    experts = exact_experts(True, "uint4,group=32,scale=float16,zero=integer")
    before = {name: part.clone() for name, part in experts.state_dict().items()}
    index, weights = routed(4, 2)
    given = (integers((4, H), torch.bfloat16).cuda(), index.cuda(), weights.cuda())
    y = call(experts.cuda(), *given)
    assert has_images(experts)
    assert experts.gate_up.nbytes == exact_experts(False, experts.gate_up._type_text).gate_up.nbytes
    after = experts.state_dict()
    assert after.keys() == before.keys()
    for name, part in before.items():
        assert torch.equal(after[name].cpu(), part), name
    other = copy.deepcopy(experts)
    assert torch.equal(call(other, *given), y)
    experts.load_state_dict(before)
    assert experts.gate_up.images is None
    assert torch.equal(call(experts, *given), y)
    assert torch.equal(experts.cpu().gate_up.qweight, before["gate_up.qweight"])


def test_a_graph_of_the_module_serves_any_choice():
    experts = exact_experts().cuda()
    x = integers((9, H), torch.bfloat16).cuda()
    index, weights = (part.cuda() for part in routed(9, 2))
    with torch.no_grad():
        experts(x, index, weights)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = experts(x, index, weights)
        for seed in range(3):
            index.copy_(routed(9, 2, seed=seed)[0])
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(y, experts(x, index, weights)), seed


def test_compiled_code_calls_the_same_kernels():
    experts = exact_experts(True).cuda()
    x = integers((9, H), torch.float16).cuda()
    index, weights = (part.cuda() for part in routed(9, 2))
    wanted = call(experts, x, index, weights)
    compiled = torch.compile(experts, backend="aot_eager", fullgraph=True)
    assert torch.equal(call(compiled, x, index, weights), wanted)
    other, weights = (part.cuda() for part in routed(9, 2, seed=8))
    assert torch.equal(call(compiled, x, other, weights), call(experts, x, other, weights))


def test_the_op_is_as_torch_wants_ops():
    experts = exact_experts(True).cuda()
    x = integers((9, H), torch.float16).cuda()
    index, weights = (part.cuda() for part in routed(9, 2))
    call(experts, x, index, weights)
    up, down = experts.gate_up, experts.down
    biases = [padded_bias(each.bias.detach(), x.dtype, each.gated) for each in (up, down)]
    torch.library.opcheck(
        torch.ops.ladder.experts.default,
        (
            *(x, index, weights, up.images, biases[0], down.images, biases[1]),
            [up._weight_number, up.stack().columns, up.gated],
            [down._weight_number, down.out_features, down.gated],
            *("relu", math.inf, 1.702, ""),
        ),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_rounding_is_decided_by_the_tokens_of_a_call():
    """Kernels, and the loop where float32 or gradients are asked for, round alike: within what one
    more rounding to the dtype can change."""
    experts = ladder.Experts.from_tensors(
        torch.randn(E, 512, 256) / 16, torch.randn(E, 256, 256) / 16,
        weight_type="int4", group_size=64, activation="relu",
    ).cuda()  # fmt: skip
    plain = copy.deepcopy(experts)
    x = torch.randn(80, 256, device="cuda").half()
    index, weights = (part.cuda() for part in routed(80, 2))
    for activation_type in ("int8", "float8_e4m3") if E4M3 else ("int8",):
        experts.activation_type = activation_type
        few = x[:64], index[:64], weights[:64]
        assert torch.equal(call(experts, *few), call(plain, *few))
        made = call(experts, x, index, weights)
        assert has_images(experts) and not torch.equal(made, call(plain, x, index, weights))
        loop = call(experts, x.float(), index, weights)
        assert (made.float() - loop).norm() <= 2e-2 * loop.norm()
        far = (call(plain, x.float(), index, weights) - loop).norm()
        assert far > 4e-3 * loop.norm(), "the loop rounds, too"
        taught = x.float().requires_grad_()
        experts(taught, index, weights).sum().backward()
        assert taught.grad.isfinite().all() and taught.grad.any()
        compiled = torch.compile(experts, backend="aot_eager", fullgraph=True)
        assert torch.equal(call(compiled, x, index, weights), made)


def test_rows_are_rounded_by_static_scales():
    """By the largest of a layer, as the loop over experts rounds; tokens of other magnitudes would
    have other scales of their own."""
    experts = ladder.Experts.from_tensors(
        torch.randn(E, 512, 256) / 16, torch.randn(E, 256, 256) / 16,
        weight_type="int4", group_size=64,
    ).cuda()  # fmt: skip
    x = (torch.randn(80, 256) * torch.logspace(-1, 0, 80)[:, None]).cuda().half()
    index, weights = (part.cuda() for part in routed(80, 2))
    for activation_type, largest in (("int8", 127), ("float8_e4m3", 448)):
        if activation_type == "float8_e4m3" and not E4M3:
            continue
        experts.activation_type = activation_type
        experts.gate_up.input_scale = experts.down.input_scale = None
        own = call(experts, x, index, weights)
        for stack, most in ((experts.gate_up, 3.0), (experts.down, 2.0)):
            stack.input_scale = (torch.linspace(0.5, 1, E) * most / largest)[:, None].cuda()
        made = call(experts, x, index, weights)
        assert has_images(experts) and not torch.equal(made, own)
        loop = call(experts, x.float(), index, weights)
        assert (made.float() - loop).norm() <= 2e-2 * loop.norm()
        assert (made.float() - loop).norm() < (own.float() - loop).norm()


def test_warming_up_times_kernels_of_rounded_rows(tmp_path):
    transformers = pytest.importorskip("transformers")
    model = mixtral(transformers, 512, 512)  # a kernel of bytes has k-tiles of 128 columns, and two
    ladder.set_activation_type(model, "int8")
    ladder.warmup(model, m=(6, 80), cache=tmp_path)
    packed = next(m for m in model.modules() if isinstance(m, ladder.Experts))
    plain = packed.gate_up.stack(), packed.down.stack()
    for tokens, stacks in ((6, plain), (80, [rounding(each, "int8") for each in plain])):
        rows = 2 * tokens
        of_item = rows_of_item(*stacks, rows, torch.float16)
        key = (stacks[0].number, 4, rows, of_item, torch.float16, 0)
        assert torch.ops.ladder.has_expert_plan(*key, 1), tokens


def test_warming_up_times_kernels_and_keeps_plans(tmp_path):
    """A second process would time nothing: the store has plans."""
    transformers = pytest.importorskip("transformers")
    model = mixtral(transformers)
    ladder.warmup(model, m=(1, 6), cache=tmp_path)
    plans = (tmp_path / "plans.json").read_text()
    assert "of experts: y[" in plans
    packed = next(m for m in model.modules() if isinstance(m, ladder.Experts))
    stack = packed.gate_up.stack()
    for rows in (2, 12):
        of_item = rows_of_item(stack, packed.down.stack(), rows, torch.float16)
        key = (stack.number, 4, rows, of_item, torch.float16, 0)
        assert torch.ops.ladder.has_expert_plan(*key, 1)
        assert not torch.ops.ladder.has_expert_plan(*key, 9)


def test_an_unprepared_module_says_what_to_do_in_a_capture():
    experts = exact_experts().cuda()
    x = integers((9, H), torch.float16).cuda()
    index, weights = (part.cuda() for part in routed(9, 2))
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(RuntimeError, match="before the capture"),
        torch.no_grad(),
        torch.cuda.graph(graph),
    ):
        experts(x, index, weights)
    torch.cuda.synchronize()
    assert call(experts, x, index, weights).shape == x.shape


def test_types_without_kernels_go_through_torch():
    type = "float16"  # wider than kernels read
    experts = ladder.Experts(E, H, 36, False, type).cuda()
    assert isinstance(experts.gate_up, PackedStack)
    index, weights = routed(4, 2)
    y = call(experts, integers((4, H), torch.float16).cuda(), index.cuda(), weights.cuda())
    assert experts.gate_up.images is None and not y.any()


def test_a_model_of_transformers_runs_by_kernels():
    model = mixtral(pytest.importorskip("transformers"))
    tokens = torch.randint(99, (2, 11), device="cuda")
    with torch.no_grad():
        made = model(tokens).logits
        packed = [m for m in model.modules() if isinstance(m, ladder.Experts)]
        assert len(packed) == 2 and all(map(has_images, packed))
        wanted = model.cpu().float()(tokens.cpu()).logits
    assert (made.cpu().float() - wanted).norm() <= 1e-2 * wanted.norm()
