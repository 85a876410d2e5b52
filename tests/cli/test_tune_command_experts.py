# SPDX-License-Identifier: Apache-2.0
"""What ``ladder tune`` asks for the experts of a folder, in stacks and packed one by one."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from tuning import SCHEDULE, run

from ladder.checkpoints.packed import packed_layers
from ladder.cli.tokens import expert_tokens
from ladder.cli.tune_experts import expert_kinds_of
from ladder.ops import activations

E, H, I = 4, 64, 96  # noqa: E741
TYPE = "uint4,group=32,scale=float16,zero=midpoint"
LAYERS = [f"model.layers.{i}.mlp.experts" for i in (0, 1)]


def parts(n, k, *front, zeros=False):
    """Tensors of a weight of TYPE."""
    made = {
        "qweight": torch.zeros(*front, n, k // 8, dtype=torch.int32),
        "scales": torch.ones(*front, n, k // 32, dtype=torch.float16),
    }
    if zeros:
        made["zeros"] = torch.zeros(*front, n, k // 32, dtype=torch.uint8)
    return made


def stacks(i=I):
    return {
        f"{layer}.{name}.{part}": tensor
        for layer in LAYERS
        for name, n, k in (("gate_up", 2 * i, H), ("down", H, i))
        for part, tensor in parts(n, k, E).items()
    }


def single(names=("gate_proj", "up_proj", "down_proj"), zeros=()):
    """``zeros``: experts whose zero points are stored."""
    gate, up, down = names
    return {
        f"{layer}.{e}.{name}.{part}": tensor
        for layer in LAYERS
        for e in range(E)
        for name, n, k in ((gate, I, H), (up, I, H), (down, H, I))
        for part, tensor in parts(n, k, zeros=e in zeros).items()
    }


def write(folder, tensors, modules=(), **config):
    """A ladder folder with a linear layer as well."""
    attention = "model.layers.0.self_attn.q_proj"
    tensors = tensors | {f"{attention}.{part}": t for part, t in parts(H, H).items()}
    save_file(tensors, folder / "model.safetensors")
    fields = {"quant_method": "ladder", "format_version": 1, "weight_type": TYPE,
              "modules": dict(modules)}  # fmt: skip
    config = {"num_experts_per_tok": 2, "dtype": "bfloat16", "quantization_config": fields} | config
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    "tensors", [stacks(), single(), single(("w1", "w3", "w2"))], ids=["stacks", "single", "mixtral"]
)
def test_layers_of_experts_are_asked_for_once_with_the_budget_that_is_left(
    capsys, tmp_path, gpu, tensors
):
    folder = write(tmp_path, tensors)
    status, out, err = run(capsys, folder, "--m", "1-16,20", "--budget", 7, "--json")
    assert status == 0, err
    (linear,), (asked,) = gpu, gpu.experts
    assert [request.shape for request in linear["requests"]] == [(H, H)]
    assert asked["mode"] == "fast" and 6 < asked["budget_s"] <= 7
    (request,) = asked["requests"]
    assert (request.experts, request.of_token, request.dtype) == (E, 2, torch.bfloat16)
    assert request.device == torch.device("cuda", 0)
    assert (request.gate_up.shape, request.down.shape) == ((2 * I, H), (H, I))
    assert {str(p.ttype) for p in (request.gate_up, request.down)} == {TYPE}
    assert request.m == (1, 2, 4, 8, 16, 20)
    (described,) = json.loads(out)["experts"]
    assert described["experts"] == E and described["layers"] == LAYERS
    assert described["gate_up"] == {"type": TYPE, "n": 2 * I, "k": H}
    assert described["down"] == {"type": TYPE, "n": H, "k": I}
    assert described["kernels"][1] == {
        "m": 2, "rows_of_item": 16, "gate_up": SCHEDULE, "down": SCHEDULE, "origin": "measured",
    }  # fmt: skip
    status, out, _ = run(capsys, folder, "--m", "8")
    assert status == 0 and "items of 16 rows" in out and "measured" in out


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"num_experts_per_tok": None}, "config.json says no num_experts_per_tok, and the layer"),
        ({"num_experts_per_tok": 8}, "says num_experts_per_tok 8, and the layer has 4 experts"),
        ({"text_config": {"num_experts_per_tok": 5}}, "says num_experts_per_tok 5, and"),
    ],
    ids=["none", "too many", "text"],
)
def test_experts_that_cannot_be_tuned_say_why(capsys, tmp_path, gpu, config, why):
    status, out, err = run(capsys, write(tmp_path, stacks(), **config), "--json")
    assert status == 0, err
    (described,) = json.loads(out)["experts"]
    assert why in described["reason"] and described["kernels"] == []
    assert gpu.experts[0]["requests"] == []
    status, out, _ = run(capsys, tmp_path)
    assert status == 0 and "torch" in out


@pytest.mark.parametrize(("down", "asked"), [("int8", "int8"), ("float8_e4m3", ""), (None, "")])
def test_experts_are_tuned_for_the_activations_that_both_products_take(
    capsys, tmp_path, gpu, monkeypatch, down, asked
):
    folder = write(tmp_path, stacks())
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= {
        "activation_type": "int8",
        "activation_types": {f"{layer}.down": down for layer in LAYERS},
    }
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(activations, "gpu_objection", lambda *_: "")
    status, out, err = run(capsys, folder, "--m", "20", "--json")
    assert status == 0, err
    (request,) = gpu.experts[0]["requests"]
    (described,) = json.loads(out)["experts"]
    assert request.activation_type == asked
    assert described["activation_type"] == (asked or None)
    monkeypatch.setattr(activations, "gpu_objection", lambda *_: "this GPU has none")
    run(capsys, folder, "--m", "20", "--json")
    assert gpu.experts[1]["requests"][0].activation_type == ""


@pytest.mark.parametrize("name", ["moe_k", "moe_topk", "num_experts_per_token"])
def test_the_experts_of_a_token_have_other_names_too(capsys, tmp_path, gpu, name):
    folder = write(tmp_path, stacks(), **{"num_experts_per_tok": None, name: 3})
    status, _, err = run(capsys, folder)
    assert status == 0, err
    assert [request.of_token for request in gpu.experts[0]["requests"]] == [3]


def test_more_tokens_than_experts_are_timed_for_are_said_so(capsys, tmp_path, gpu):
    folder = write(tmp_path, stacks())
    status, out, err = run(capsys, folder, "--m", "9000-10000", "--json")
    assert status == 0, err
    (described,) = json.loads(out)["experts"]
    why = "--m asks for 9000 tokens and more; experts are timed up to 8192"
    assert described["reason"] == why and described["kernels"] == []
    assert gpu.experts[0]["requests"] == []
    status, out, _ = run(capsys, folder, "--m", "9000-10000")
    assert status == 0 and "not timed" in out


def ordered(order, experts=range(E)):
    """``single`` with ``order``, a list of groups made of one's columns, in some experts."""
    tensors = single()
    for name in [n.removesuffix(".qweight") for n in tensors if n.endswith(".qweight")]:
        if int(name.split(".")[-2]) in experts:
            columns = tensors[f"{name}.qweight"].shape[1] * 8
            tensors[f"{name}.g_idx"] = order(torch.arange(columns, dtype=torch.int32) // 32)
    return tensors


def test_an_order_that_changes_nothing_does_not_stand_for_one_that_does(tmp_path):
    tensors = ordered(torch.clone, [0]) | ordered(lambda groups: groups.flip(0), [2])
    _, (first, _) = packed_layers(write(tmp_path, tensors))
    assert first.gate_up.g_idx.tolist() == [1] * 32 + [0] * 32
    assert first.down.g_idx.tolist() == [2] * 32 + [1] * 32 + [0] * 32
    _, (first, _) = packed_layers(write(tmp_path, ordered(torch.clone)))
    assert first.gate_up.g_idx is None and first.down.g_idx is None


def test_of_a_stack_the_first_order_that_changes_something_is_told(tmp_path):
    tensors = stacks()
    in_order = torch.arange(H, dtype=torch.int32) // 32
    for layer in LAYERS:
        tensors[f"{layer}.gate_up.g_idx"] = torch.stack([in_order, in_order.flip(0)] * 2)
        tensors[f"{layer}.down.g_idx"] = (torch.arange(I, dtype=torch.int32) // 32).repeat(E, 1)
    _, (first, _) = packed_layers(write(tmp_path, tensors))
    assert first.gate_up.g_idx.tolist() == [1] * 32 + [0] * 32
    assert (first.gate_up.n, first.gate_up.k) == (2 * I, H)
    assert first.down.g_idx is None


def test_layers_whose_columns_are_in_other_orders_have_the_same_kernels(tmp_path):
    def drawn(groups):
        return groups[torch.randperm(len(groups), generator=source)]

    source = torch.Generator().manual_seed(0)
    _, experts = packed_layers(write(tmp_path, ordered(drawn)))
    assert not torch.equal(*(layer.gate_up.g_idx for layer in experts))
    (kind,) = expert_kinds_of(experts)
    assert kind.names == LAYERS
    unordered = [replace(each, gate_up=replace(each.gate_up, g_idx=None)) for each in experts]
    assert len(expert_kinds_of([*experts, *unordered])) == 2


@pytest.mark.parametrize(("missing", "there"), [("down", "gate_up"), ("gate_up", "down")])
def test_a_stack_without_its_other_is_named(capsys, tmp_path, gpu, missing, there):
    kept = {n: t for n, t in stacks().items() if not n.startswith(f"{LAYERS[1]}.{missing}.")}
    status, _, err = run(capsys, write(tmp_path, kept))
    why = f"{LAYERS[1]}.{there}.qweight is there, but {LAYERS[1]}.{missing}.qweight is not"
    assert status == 1 and why in err


def test_a_product_without_kernels_is_named(capsys, tmp_path, gpu):
    """The fake has none for N = 128."""
    status, out, _ = run(capsys, write(tmp_path, stacks(i=64)), "--json")
    (described,) = json.loads(out)["experts"]
    assert status == 0 and described["reason"] == "the fake has no kernel for it"


def test_zero_points_that_only_some_experts_store_count_for_all(tmp_path):
    integer = TYPE.replace("midpoint", "integer")
    tensors = single(zeros=(1,))
    modules = {n.removesuffix(".zeros"): integer for n in tensors if n.endswith(".zeros")}
    layers, (first, second) = packed_layers(write(tmp_path, tensors, modules))
    assert [layer.name for layer in layers] == ["model.layers.0.self_attn.q_proj"]
    assert str(first.gate_up.type) == str(second.down.type) == integer


def test_experts_that_are_not_alike_stay_linear_layers(tmp_path):
    tensors, modules = single(), {}
    for part in parts(H, I):
        tensors.pop(f"{LAYERS[0]}.2.down_proj.{part}")
    name = f"{LAYERS[1]}.1.up_proj"
    tensors[f"{name}.qweight"] = torch.zeros(I, H // 4, dtype=torch.int32)
    modules[name] = TYPE.replace("uint4", "uint8")
    layers, experts = packed_layers(write(tmp_path, tensors, modules))
    assert experts == [] and len(layers) == 2 * 3 * E


@pytest.mark.parametrize(
    ("ranges", "of_token", "tokens"),
    [
        ([(1, 16)], 2, (1, 2, 4, 8, 16)),
        ([(1, 16)], 3, (1, 2, 5, 10, 16)),
        ([(5, 5), (3, 3)], 8, (3, 5)),
        ([(1, 8192)], 8, tuple(1 << i for i in range(14))),
        ([(8000, 1 << 30), (9000, 9000)], 1, (8192,)),
    ],
)
def test_of_a_range_the_most_tokens_of_each_kernel_are_asked_for(ranges, of_token, tokens):
    assert expert_tokens(ranges, of_token) == tokens
