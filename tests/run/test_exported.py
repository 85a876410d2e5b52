# SPDX-License-Identifier: Apache-2.0
"""Programs that torch makes of models with packed layers: torch.export, strict and not, saved and
loaded, and torch.jit.trace. They compute what the model computes, to the bit, for other batches and
lengths too, and keep the packed weights; what cannot be a program is refused by name."""

import copy
import io

import pytest
import torch
from torch import nn

import ladder


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class Called(MLP):
    def forward(self, x):
        return self.fc2(nn.functional.relu(self.fc1(x)))


class QKV(nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(64, 64, bias) for _ in range(3))

    def forward(self, x):
        return self.q(x).sigmoid() * self.k(x) + self.v(x)


class Gate(nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(64, 96, bias), nn.Linear(64, 96, bias)
        self.down_proj, self.act_fn = nn.Linear(96, 64), nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


def packed(optimized, *modules, **options):
    torch.manual_seed(0)
    model = nn.Sequential(*modules).eval()
    ladder.convert(model, "uint4", group_size=32, **options)
    if optimized:
        done = ladder.optimize(model, example=torch.randn(2, 3, 64))
        assert done.activated and done.gated and len(done.merged) == 2 * len(modules) // 4
    return model


def layers(*biases):
    return [each for bias in biases for each in (MLP(), Called(), QKV(bias), Gate(bias))]


MODELS = {
    "single": lambda: packed(False, *layers(True)),
    "optimized": lambda: packed(True, *layers(True)),
    "optimized, without biases": lambda: packed(True, *layers(False)),
    "int8": lambda: packed(False, *layers(True), activation_type="int8"),
    "GatedMLP": lambda: nn.Sequential(ladder.GatedMLP.from_dense(Gate(), "uint4", 32)).eval(),
}
BATCHES = [(2, 3), (1, 1), (5, 9)]


@pytest.mark.parametrize("graded", [True, False])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("which", MODELS)
def test_an_exported_program_computes_the_same_and_is_as_small(which, strict, graded):
    model = MODELS[which]()
    sizes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with torch.set_grad_enabled(graded):
        program = torch.export.export(
            model, (torch.randn(2, 3, 64),), dynamic_shapes=(sizes,), strict=strict
        )
    held = [*program.state_dict.values(), *program.constants.values()]
    dense = sum(m.in_features * m.out_features for m in model.modules() if hasattr(m, "scales"))
    assert sum(t.nbytes for t in held if isinstance(t, torch.Tensor)) < dense  # a byte a weight
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    for run in (program.module(), torch.export.load(file).module()):
        for batch in BATCHES:
            x = torch.randn(*batch, 64)
            assert torch.equal(run(x), model(x))
    assert {name for name, _ in program.named_parameters()} == {
        name for name, _ in model.named_parameters()
    }


@pytest.mark.parametrize("graded", [True, False])
@pytest.mark.parametrize("which", MODELS)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_a_traced_program_computes_the_same(which, graded):
    model, file = MODELS[which](), io.BytesIO()
    with torch.set_grad_enabled(graded):
        torch.jit.save(torch.jit.trace(model, torch.randn(2, 3, 64)), file)
    file.seek(0)
    run = torch.jit.load(file)
    for batch in BATCHES:
        x = torch.randn(*batch, 64)
        assert torch.equal(run(x), model(x))


def test_functional_calls_and_copies_of_an_optimized_model():
    model, x = MODELS["optimized"](), torch.randn(2, 3, 64)
    want, names = model(x), dict(model.named_parameters())
    assert torch.equal(torch.func.functional_call(model, names, x), want)
    zeros = {name: torch.zeros_like(p) for name, p in names.items()}
    other = copy.deepcopy(model)
    for p in other.parameters():
        p.data.zero_()
    assert torch.equal(torch.func.functional_call(model, zeros, x), other(x))
    assert torch.equal(model(x), want) and not torch.equal(other(x), want)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), want)


@pytest.mark.parametrize("activation_type", [None, "int8"])
@pytest.mark.parametrize("bias", [False, True])
def test_functional_calls_of_an_optimized_model_take_other_weights(activation_type, bias):
    """Merged layers computed with the weights of the model, in silence."""
    model, x = packed(True, *layers(bias), activation_type=activation_type), torch.randn(2, 3, 64)
    other = copy.deepcopy(model)
    for module in other.modules():
        if isinstance(module, ladder.Linear):
            dense = torch.randn(module.out_features, module.in_features) / 16
            module.set_weight(ladder.quantize(dense, module.weight_type))
    before, wanted = model(x), other(x)
    assert not torch.equal(before, wanted)
    assert torch.equal(torch.func.functional_call(model, other.state_dict(), x), wanted)
    assert torch.equal(torch.func.functional_call(model, model.state_dict(), x), before)
    assert torch.equal(model(x), before)


@pytest.mark.parametrize("part", ["gate_proj", "up_proj", "q", "v", "scales", "qweight"])
def test_functional_calls_of_an_optimized_model_take_some_of_its_parts(part):
    """Of gate and up one alone had the other leave their weight within the call, which put the
    missing codes back into it; other scales alone were ignored."""
    single = packed(False, *layers(True))
    model, x, given = copy.deepcopy(single), torch.randn(2, 3, 64), {}
    assert ladder.optimize(model, example=x).gated
    for name, tensor in single.state_dict().items():
        if part in name.split("."):
            given[name] = tensor * 2 if tensor.is_floating_point() else tensor.roll(1, 0)
    assert given
    before, wanted = model(x), torch.func.functional_call(single, given, x)
    assert not torch.equal(before, wanted)
    assert torch.equal(torch.func.functional_call(model, given, x), wanted)
    assert torch.equal(model(x), before) and torch.equal(single(x), before)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda state, x: torch.func.functional_call(model, state, x), backend="eager"
    )
    assert torch.equal(compiled(given, x), wanted)
    assert torch.equal(compiled({}, x), before) and torch.equal(model(x), before)


def test_an_ensemble_of_packed_models_is_one_call_of_an_optimized_one():
    models = [packed(False, *layers(True)) for _ in range(3)]
    model, x = copy.deepcopy(models[0]), torch.randn(2, 3, 64)
    assert ladder.optimize(model, example=x).gated
    state = torch.func.stack_module_state(models)
    y = torch.func.vmap(lambda *of: torch.func.functional_call(model, of, x))(*state)
    single = torch.func.vmap(lambda *of: torch.func.functional_call(models[0], of, x))(*state)
    assert torch.equal(y, single) and not torch.equal(y[0], y[1])


def test_codes_of_x_are_multiplied_by_parts_that_are_given():
    single = packed(False, QKV(True))[0]
    model = copy.deepcopy(single)
    assert ladder.optimize(model, example=torch.randn(2, 3, 64)).merged
    codes = torch.randint(-127, 128, (4, 64), dtype=torch.int8)

    class Calls(nn.Module):
        def __init__(self, qkv):
            super().__init__()
            self.qkv = qkv

        def forward(self, x):
            return self.qkv.q.forward_codes(x, torch.ones(4, 1))

    given = {k: v.roll(1, 0) for k, v in Calls(single).state_dict().items() if "qweight" in k}
    y = [torch.func.functional_call(Calls(each), given, codes) for each in (model, single)]
    assert torch.equal(*y) and not torch.equal(y[0], Calls(single)(codes))


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(64, 4)
        self.experts = ladder.Experts.from_tensors(torch.randn(4, 64, 64), torch.randn(4, 64, 32))

    def forward(self, x):
        scores, index = self.router(x).softmax(-1).topk(2)
        return self.experts(x, index, scores)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_experts_are_refused_by_name():
    model, x = Mixture(), torch.randn(3, 64)
    why = "how many tokens each expert of ladder.Experts gets is known only when it runs"
    with pytest.raises(ladder.Unsupported, match=why):
        torch.export.export(model, (x,), strict=False)
    with pytest.raises(ladder.Unsupported, match=why):
        torch.jit.trace(model, (x,))
    with pytest.raises(torch._dynamo.exc.Unsupported, match=why):
        torch.compile(model, backend="eager", fullgraph=True)(x)
    assert torch.equal(torch.compile(model, backend="eager")(x), model(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("model", "name", "instead"),
    [
        (lambda: MODELS["single"](), "Linear", "torch.export.export and torch.jit.trace can"),
        (Mixture, "Experts", r"script the dense module, Experts.dense\(\)"),
        (lambda: nn.Sequential(ladder.BatchedLinear.from_tensor(torch.randn(2, 64, 64))),
         "BatchedLinear", "torch.export.export and torch.jit.trace can"),
    ],
)  # fmt: skip
def test_scripts_are_refused_by_name(model, name, instead):
    """And with what to do instead, which is to be true of each."""
    refused = f"^torch.jit.script cannot compile ladder.{name}: {instead}"
    with pytest.raises(ladder.Unsupported, match=refused):
        torch.jit.script(model())


@pytest.mark.parametrize("model", ["single", "gated", "convolution"])
def test_symbolic_traces_take_packed_layers_as_leaves_or_are_refused_by_name(model):
    layers = {
        "single": (ladder.Linear.from_linear(torch.nn.Linear(64, 64)), torch.randn(3, 64)),
        "gated": (ladder.GatedMLP(64, 96), torch.randn(3, 64)),
        "convolution": (
            ladder.Conv2d.from_float(torch.nn.Conv2d(64, 8, 3)),
            torch.randn(1, 64, 5, 5),
        ),
    }
    layer, x = layers[model]
    whole = nn.Sequential(layer, nn.ReLU())
    with pytest.raises(
        ladder.Unsupported, match="^torch.fx.symbolic_trace cannot look into ladder"
    ):
        torch.fx.symbolic_trace(whole)

    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return type(m).__module__.startswith("ladder.") or super().is_leaf_module(
                m, module_qualified_name
            )

    traced = torch.fx.GraphModule(whole, Tracer().trace(whole))
    assert torch.equal(traced(x), whole(x))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_batched_layers_are_exported_and_traced():
    model, x = ladder.BatchedLinear.from_tensor(torch.randn(2, 64, 64)), torch.randn(3, 2, 64)
    assert torch.equal(torch.export.export(model, (x,)).module()(x), model(x))
    assert torch.equal(torch.jit.trace(model, (x,))(x), model(x))
