# SPDX-License-Identifier: Apache-2.0
"""Models with experts in parameters of three dimensions: packed alike at every door, saved and
loaded again."""

import json
import logging

import pytest
import torch
from hf_mixtures import FIRST, experts_of, fresh
from hf_models import TWO_LEVELS, load, logits

import ladder
from ladder.checkpoints.convert import convert as convert_folder
from ladder.checkpoints.info import describe, matrices
from ladder.checkpoints.packed import packed_layers
from ladder.integrations.transformers import LadderConfig, dense


def through_every_door(folder, tmp_path, *arguments, **options):
    """The model, and what each door says that it packed."""
    model = load(folder)
    yield model, ladder.convert(model, *arguments, **options)
    skip = {"modules_to_not_convert": options["skip"]} if "skip" in options else {}
    model = load(folder, quantization_config=LadderConfig(*arguments, **skip))
    yield model, model.hf_quantizer.conversion
    weight_type, group = arguments
    report = convert_folder(folder, tmp_path / "out", weight_type, group_size=group, **options)
    yield load(tmp_path / "out"), report.conversion


def test_every_door_packs_the_experts_alike(mixture, mixture_folder, tmp_path):
    expected, dense_logits, layers = None, logits(load(mixture_folder)), None
    for model, report in through_every_door(mixture_folder, tmp_path, "int8", 32):
        found = experts_of(model)
        assert set(found) == {f"model.layers.{i}.mlp.experts" for i in (0, 1)}
        assert not report.experts and len(report.packed) == 8 + 4
        e = found[FIRST].num_experts
        assert set(report.stacks.values()) == {e} and len(report.stacks) == 4
        assert f"packed 8 linear layers and {4 * e} matrices of experts, " in str(report)
        made = logits(model)
        expected = made if expected is None else expected
        layers = report.weights if layers is None else layers
        assert torch.equal(made, expected) and report.weights == layers
    # Most logits: rounding may send a token to another expert.
    assert 0 < (expected - dense_logits).abs().median() < 0.05 * dense_logits.abs().median()


@pytest.mark.parametrize("arguments", [
    ("uint4,group=32,scale=float16,zero=midpoint",), ("float6_e3m2", 32), ("mxfp4",), ("nvfp4",),
    ("nf4", 32), ("uint4", 32, False),
    (TWO_LEVELS,), ("uint4,group=8,scale=uint6,zero=rescale,scale2=float16:8",),
], ids=str)  # fmt: skip
def test_a_model_quantised_while_loading_is_saved_and_loads_again_exactly(
    mixture, mixture_folder, tmp_path, arguments
):
    model = load(mixture_folder, quantization_config=LadderConfig(*arguments))
    expected = logits(model)
    in_memory = load(mixture_folder)
    ladder.convert(in_memory, *arguments)
    assert torch.equal(logits(in_memory), expected)
    model.save_pretrained(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert torch.equal(logits(again), expected)
    for name, experts in experts_of(model).items():
        other = again.get_submodule(name)
        assert type(other.down) is type(experts.down)
        assert str(other.down.weight_type) == str(experts.down.weight_type)
        for part, tensor in experts.state_dict().items():
            assert torch.equal(other.state_dict()[part], tensor)
    again.save_pretrained(tmp_path / "twice")
    assert torch.equal(logits(load(tmp_path / "twice")), expected)


def test_a_packed_model_becomes_dense_as_it_was(mixture, mixture_folder, tmp_path):
    model = load(mixture_folder, quantization_config=LadderConfig("int8", 32))
    packed, values = logits(model), experts_of(model)[FIRST].dequantize()
    dense(model)
    module = model.get_submodule(FIRST)
    assert type(module) is type(fresh(mixture).get_submodule(FIRST))
    assert all(torch.equal(p, values[name]) for name, p in module.named_parameters())
    # The same values in another order of float32 sums.
    assert (logits(model) - packed).abs().max() < 1e-4 * packed.abs().max()
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(load(tmp_path)), logits(model))


def test_types_of_single_stacks_are_kept(mixture, mixture_folder, tmp_path):
    nf4, mx = "nf4,group=32,scale=float16", "mxfp4"
    modules = {
        "model.layers.0.mlp.experts": nf4,
        "model.layers.1.mlp.experts.down": mx,
        "model.layers.1.self_attn.q_proj": mx,
    }
    model = load(mixture_folder, quantization_config=LadderConfig("int8", 32, modules=modules))
    model.save_pretrained(tmp_path)
    for each in (model, load(tmp_path)):
        first, second = experts_of(each).values()
        assert str(first.gate_up.weight_type) == str(first.down.weight_type) == nf4
        assert second.gate_up.weight_type.element.name == "int8"
        assert str(second.down.weight_type) == str(ladder.ttype(mx))
        assert torch.equal(logits(each), logits(model))
    kinds = {m["name"].split("layers.")[1]: m["type"] for m in describe(tmp_path)["modules"]}
    block = "block_sparse_moe" if mixture == "mixtral" else "mlp"
    assert kinds[f"0.{block}.experts.gate_up"] == nf4
    assert kinds[f"1.{block}.experts.down"] == str(ladder.ttype(mx))


def test_experts_that_are_named_stay_dense(mixture, mixture_folder, tmp_path):
    skip = ["lm_head", "layers.1.mlp"]
    for model, report in through_every_door(mixture_folder, tmp_path, "int8", 32, skip=skip):
        assert set(experts_of(model)) == {FIRST}
        left = report.left["model.layers.1.mlp.experts.down_proj"]
        assert left.reason.startswith("named by ") and left.matrices == 8 or mixture != "qwen3_moe"
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    dense_ones = [name for name in config["modules_to_not_convert"] if name.endswith("experts")]
    assert len(dense_ones) == 1 and "layers.1." in dense_ones[0]


def test_info_counts_the_experts_of_a_packed_folder(mixture, mixture_folder, tmp_path):
    model = load(
        mixture_folder, quantization_config=LadderConfig("uint4", 32, modules_to_not_convert=[])
    )
    model.save_pretrained(tmp_path)
    e, i = experts_of(model)[FIRST].num_experts, experts_of(model)[FIRST].intermediate_size
    summary = describe(tmp_path)
    rows = {m["name"].split(".")[-1]: m for m in summary["modules"] if "experts" in m}
    assert (rows["gate_up"]["experts"], rows["gate_up"]["n"], rows["gate_up"]["k"]) == (
        e,
        2 * i,
        64,
    )
    assert (rows["down"]["experts"], rows["down"]["n"], rows["down"]["k"]) == (e, 64, i)
    assert rows["down"]["bytes"] == experts_of(model)[FIRST].down.nbytes
    (row,) = summary["types"]
    assert row["weights"] == model.hf_quantizer.conversion.weights
    # Parts of stacks are no matrices of their own, and no linear layers with kernels.
    assert all("." + part not in m["name"] for m in matrices(tmp_path) for part in ("scales",))
    layers, (first, *_) = packed_layers(tmp_path)
    assert all("experts" not in layer.name for layer in layers)
    assert (first.count, first.gate_up.n, first.down.n) == (e, 2 * i, 64)


def test_a_layer_that_is_cut_off_between_shards_is_converted_whole(
    mixture, mixture_folder, tmp_path
):
    """Files of a few KB: the tensors of one expert's stack lie in several."""
    load(mixture_folder).save_pretrained(tmp_path / "many", max_shard_size="30KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 5
    convert_folder(tmp_path / "many", tmp_path / "out", "int8", group_size=32)
    model = load(mixture_folder)
    ladder.convert(model, "int8", 32)
    assert torch.equal(logits(load(tmp_path / "out")), logits(model))


def test_weights_that_lie_on_disk_are_fetched_for_the_product(mixture, mixture_folder, tmp_path):
    model = load(mixture_folder, quantization_config=LadderConfig("int8", 32))
    model.save_pretrained(tmp_path / "saved")
    device_map = {"model.embed_tokens": "cpu", "model.layers.0": "disk", "model.layers.1": "cpu",
                  "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}  # fmt: skip
    offloaded = load(
        tmp_path / "saved", device_map=device_map, offload_folder=tmp_path / "disk",
        offload_buffers=True,
    )  # fmt: skip
    assert experts_of(offloaded)[FIRST].device.type == "meta"
    assert torch.equal(logits(offloaded), logits(model))


def test_activations_of_8_bits_are_set_for_experts_too(mixture_folder, tmp_path):
    config = LadderConfig("int8", 32, activation_type="int8")
    model = load(mixture_folder, quantization_config=config)
    assert {e.activation_type for e in experts_of(model).values()} == {"int8"}
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert torch.equal(logits(again), logits(model))
    assert FIRST in ladder.set_activation_type(again, None)
    assert not torch.equal(logits(again), logits(model))


def test_nothing_is_said_of_experts_where_all_are_packed(mixture_folder, caplog):
    with caplog.at_level(logging.WARNING, "ladder"):
        ladder.convert(load(mixture_folder), "int8", 32)
    assert not [record for record in caplog.records if "experts" in record.message]


def test_a_packed_model_is_optimized_compiled_and_trained_with_adapters(mixture_folder):
    """What looks for linear layers leaves experts alone."""
    peft = pytest.importorskip("peft")
    model = load(mixture_folder, quantization_config=LadderConfig("int8", 32))
    expected = logits(model)
    ladder.optimize(model)
    made = logits(model)
    assert (made - expected).abs().max() < 1e-4 * expected.abs().max()  # merged: another order
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager")(torch.arange(50, 74)[None]).logits
    assert (compiled - expected).abs().max() < 1e-4 * expected.abs().max()
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"]))
    ids = torch.arange(50, 60)[None]
    adapted(input_ids=ids, labels=ids).loss.backward()
    gradients = [p.grad for n, p in adapted.named_parameters() if "lora_B" in n]
    assert len(gradients) == 2 and all(g.abs().max() > 0 for g in gradients)
