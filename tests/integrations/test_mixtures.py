# SPDX-License-Identifier: Apache-2.0
"""Experts that transformers keeps in parameters of three dimensions: recognised by what they
compute, packed at every door, saved and loaded again."""

import importlib
import json
import logging

import pytest
import torch
from hf_models import TINY, edit_config, edit_tensors, load, logits

import ladder
from ladder.checkpoints.convert import convert as convert_folder
from ladder.checkpoints.info import describe, matrices
from ladder.checkpoints.packed import packed_layers
from ladder.integrations.transformers import LadderConfig, dense
from ladder.nn.dense_experts import layout_of, shell_of

#: Models of which the experts have each layout and each function between the products.
MODELS = {
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "Qwen3Moe",
        {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "head_dim": 32},
    ),
    "gpt_oss": ("GptOss", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 32}),
}
FIRST = "model.layers.0.mlp.experts"


def fresh(kind: str):
    """A model with weights that matter: biases and experts are not near zero."""
    name, fields = MODELS[kind]
    transformers = importlib.import_module("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**TINY, **fields)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for parameter_name, parameter in model.named_parameters():
        if "experts" in parameter_name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture(scope="module", params=MODELS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def folder(kind, tmp_path_factory):
    path = tmp_path_factory.mktemp(kind) / "model"
    fresh(kind).save_pretrained(path)
    return path


def experts_of(model) -> dict[str, ladder.Experts]:
    return {n: m for n, m in model.named_modules() if isinstance(m, ladder.Experts)}


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


# --- one module -------------------------------------------------------------------------------

#: Classes with fields of their configs; each names what is unlike the others.
CLASSES = {
    "mixtral.MixtralExperts": {},
    "qwen3_moe.Qwen3MoeExperts": {"hidden_act": "gelu_pytorch_tanh"},
    "qwen2_moe.Qwen2MoeExperts": {"hidden_act": "relu2"},
    "olmoe.OlmoeExperts": {"hidden_act": "gelu"},
    "gpt_oss.GptOssExperts": {"swiglu_limit": 3.0, "swiglu_alpha": 1.5},
}


def module_of(path: str, **fields):
    part, name = path.split(".")
    found = importlib.import_module(f"transformers.models.{part}.modeling_{part}")
    kind = getattr(found, name.replace("Experts", "Config"))
    fields |= {"num_local_experts": 4, "num_experts": 4, "moe_intermediate_size": 48}
    config = kind(**TINY | {"intermediate_size": 48} | fields)
    config._experts_implementation = "eager"
    torch.manual_seed(1)
    module = getattr(found, name)(config)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


def routed(tokens: int, k: int):
    index = torch.stack([torch.randperm(4)[:k] for _ in range(tokens)])
    return torch.randn(tokens, 64), index, torch.rand(tokens, k)


@pytest.mark.parametrize("path", CLASSES)
def test_unrounded_experts_compute_what_the_module_computes(path):
    """float32 weights lose nothing, so what differs is the order of float32 sums."""
    module = module_of(path, **CLASSES[path])
    experts = ladder.Experts.from_dense(module, "float32")
    values = experts.dequantize()
    assert values.keys() == {name for name, _ in module.named_parameters()}
    for name, parameter in module.named_parameters():
        assert torch.equal(values[name], parameter)
    for k in (1, 2):
        x, index, weights = routed(9, k)
        with torch.no_grad():
            wanted, made = module(x, index, weights), experts(x, index, weights)
        # Sums of 64, 48 and k terms: 6 sqrt(64 + 48) 2^-24 = 4e-6 of the largest, and cancellation.
        assert (made - wanted).abs().max() < 2e-5 * wanted.abs().max()


def test_activations_are_found_by_what_they_compute():
    for path, fields in CLASSES.items():
        layout = layout_of(module_of(path, **fields))
        wanted = fields.get("hidden_act", "swigluoai" if "gpt" in path else "silu")
        assert layout.gating.activation == wanted
        assert (layout.transposed, layout.interleaved, layout.bias) == (("gpt" in path,) * 3)
    assert (layout.gating.limit, layout.gating.alpha) == (3.0, 1.5)


def test_what_another_module_computes_stays_dense_with_a_reason():
    class Clamped(type(module_of("mixtral.MixtralExperts"))):
        def _apply_gate(self, gate_up):
            gate, up = gate_up.chunk(2, dim=-1)
            return self.act_fn(gate).clamp(max=3) * up

    class Replaced(type(module_of("mixtral.MixtralExperts"))):
        def forward(self, x, index, weights):
            return super().forward(x, index, weights) + x

    for change, why in {
        lambda m: setattr(m, "__class__", Clamped): "is none that ladder knows",
        lambda m: setattr(m, "__class__", Replaced): "Replaced does not say what it computes",
        lambda m: setattr(m, "has_post_expert_norm", True): "has no gate, or norms after",
        lambda m: m.register_buffer("scale", torch.ones(4)): "has scale as well",
        lambda m: setattr(m, "down_proj", torch.nn.Parameter(torch.zeros(3, 64, 48))):
            "gate_up_proj has 4 experts and down_proj 3",
        lambda m: setattr(m, "down_proj", torch.nn.Parameter(torch.zeros(4, 64, 47))):
            "no two products in a row",
    }.items():  # fmt: skip
        model = torch.nn.Module()
        model.experts, model.body = module_of("mixtral.MixtralExperts"), torch.nn.Linear(32, 8)
        change(model.experts)
        report = ladder.convert(model, "uint4", 32)
        assert report.packed.keys() == {"body"}
        assert report.left["experts.gate_up_proj"].reason.startswith("experts in one parameter of")
        assert why in report.left["experts.gate_up_proj"].reason


def test_biases_stay_the_parameters_that_an_optimizer_holds():
    module = module_of("gpt_oss.GptOssExperts")
    experts = ladder.Experts.from_dense(module, "uint4", 32)
    assert experts.down.bias is module.down_proj_bias
    first = module.gate_up_proj_bias  # gate and up in turn, so it becomes another
    assert torch.equal(experts.gate_up.bias[:, :48], first[:, ::2])
    assert torch.equal(experts.gate_up.bias[:, 48:], first[:, 1::2])


def test_code_may_ask_for_the_shape_of_what_is_packed():
    """As the initialisation of some models does, which must leave packed weights alone."""
    for path in ("mixtral.MixtralExperts", "gpt_oss.GptOssExperts"):
        module = module_of(path)
        experts = ladder.Experts.from_dense(module, "uint4", 32)
        for name in ("gate_up_proj", "down_proj"):
            asked, dense_one = getattr(experts, name), getattr(module, name)
            assert asked.shape == dense_one.shape and asked.dtype == dense_one.dtype
            importlib.import_module("transformers.initialization").normal_(asked)
            with pytest.raises(ladder.Unsupported, match="has a shape, a dtype and a device"):
                asked + 1


def test_a_dense_module_is_made_again_without_what_hooked_into_it():
    module = module_of("gpt_oss.GptOssExperts")
    module.register_forward_hook(lambda *_: None)
    shell = shell_of(module)
    assert all(parameter.is_meta for parameter in shell.parameters()) and not shell._forward_hooks
    experts = ladder.Experts.from_dense(module, "int8", 32).eval()
    again = experts.dense()
    assert type(again) is type(module) and not again.training and again.alpha == module.alpha
    assert next(iter(module.parameters())).device.type == "cpu"
    x, index, weights = routed(5, 2)
    made = experts(x, index, weights)
    assert (again(x, index, weights) - made).abs().max() < 2e-5 * made.abs().max()


# --- models -----------------------------------------------------------------------------------


def test_every_door_packs_the_experts_alike(kind, folder, tmp_path):
    expected, dense_logits, layers = None, logits(load(folder)), None
    for model, report in through_every_door(folder, tmp_path, "int8", 32):
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
], ids=str)  # fmt: skip
def test_a_model_quantised_while_loading_is_saved_and_loads_again_exactly(
    kind, folder, tmp_path, arguments
):
    model = load(folder, quantization_config=LadderConfig(*arguments))
    expected = logits(model)
    in_memory = load(folder)
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


def test_a_packed_model_becomes_dense_as_it_was(kind, folder, tmp_path):
    model = load(folder, quantization_config=LadderConfig("int8", 32))
    packed, values = logits(model), experts_of(model)[FIRST].dequantize()
    dense(model)
    module = model.get_submodule(FIRST)
    assert type(module) is type(fresh(kind).get_submodule(FIRST))
    assert all(torch.equal(p, values[name]) for name, p in module.named_parameters())
    # The same values in another order of float32 sums.
    assert (logits(model) - packed).abs().max() < 1e-4 * packed.abs().max()
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(load(tmp_path)), logits(model))


def test_types_of_single_stacks_are_kept(kind, folder, tmp_path):
    nf4, mx = "nf4,group=32,scale=float16", "mxfp4"
    modules = {
        "model.layers.0.mlp.experts": nf4,
        "model.layers.1.mlp.experts.down": mx,
        "model.layers.1.self_attn.q_proj": mx,
    }
    model = load(folder, quantization_config=LadderConfig("int8", 32, modules=modules))
    model.save_pretrained(tmp_path)
    for each in (model, load(tmp_path)):
        first, second = experts_of(each).values()
        assert str(first.gate_up.weight_type) == str(first.down.weight_type) == nf4
        assert second.gate_up.weight_type.element.name == "int8"
        assert str(second.down.weight_type) == str(ladder.ttype(mx))
        assert torch.equal(logits(each), logits(model))
    kinds = {m["name"].split("layers.")[1]: m["type"] for m in describe(tmp_path)["modules"]}
    block = "block_sparse_moe" if kind == "mixtral" else "mlp"
    assert kinds[f"0.{block}.experts.gate_up"] == nf4
    assert kinds[f"1.{block}.experts.down"] == str(ladder.ttype(mx))


def test_experts_that_are_named_stay_dense(kind, folder, tmp_path):
    skip = ["lm_head", "layers.1.mlp"]
    for model, report in through_every_door(folder, tmp_path, "int8", 32, skip=skip):
        assert set(experts_of(model)) == {FIRST}
        left = report.left["model.layers.1.mlp.experts.down_proj"]
        assert left.reason.startswith("named by ") and left.matrices == 8 or kind != "qwen3_moe"
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    dense_ones = [name for name in config["modules_to_not_convert"] if name.endswith("experts")]
    assert len(dense_ones) == 1 and "layers.1." in dense_ones[0]


def test_info_counts_the_experts_of_a_packed_folder(kind, folder, tmp_path):
    model = load(folder, quantization_config=LadderConfig("uint4", 32, modules_to_not_convert=[]))
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
    assert all("experts" not in layer.name for layer in packed_layers(tmp_path))


def test_a_layer_that_is_cut_off_between_shards_is_converted_whole(kind, folder, tmp_path):
    """Files of a few KB: the tensors of one expert's stack lie in several."""
    load(folder).save_pretrained(tmp_path / "many", max_shard_size="30KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 5
    convert_folder(tmp_path / "many", tmp_path / "out", "int8", group_size=32)
    model = load(folder)
    ladder.convert(model, "int8", 32)
    assert torch.equal(logits(load(tmp_path / "out")), logits(model))


def test_weights_that_lie_on_disk_are_fetched_for_the_product(kind, folder, tmp_path):
    model = load(folder, quantization_config=LadderConfig("int8", 32))
    model.save_pretrained(tmp_path / "saved")
    device_map = {"model.embed_tokens": "cpu", "model.layers.0": "disk", "model.layers.1": "cpu",
                  "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}  # fmt: skip
    offloaded = load(
        tmp_path / "saved", device_map=device_map, offload_folder=tmp_path / "disk",
        offload_buffers=True,
    )  # fmt: skip
    assert experts_of(offloaded)[FIRST].device.type == "meta"
    assert torch.equal(logits(offloaded), logits(model))


def test_activations_of_8_bits_are_set_for_experts_too(folder, tmp_path):
    config = LadderConfig("int8", 32, activation_type="int8")
    model = load(folder, quantization_config=config)
    assert {e.activation_type for e in experts_of(model).values()} == {"int8"}
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert torch.equal(logits(again), logits(model))
    assert FIRST in ladder.set_activation_type(again, None)
    assert not torch.equal(logits(again), logits(model))


# --- errors -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def packed_folder(tmp_path_factory):
    """gpt-oss, whose experts have biases too."""
    root = tmp_path_factory.mktemp("packed")
    fresh("gpt_oss").save_pretrained(root / "dense")
    config = LadderConfig("uint4", 32)
    load(root / "dense", quantization_config=config).save_pretrained(root / "packed")
    return root / "packed"


@pytest.fixture
def damaged(packed_folder, tmp_path):
    import shutil

    return shutil.copytree(packed_folder, tmp_path / "model")


@pytest.mark.parametrize("change, why", [
    (lambda t: t.pop(f"{FIRST}.down.qweight"), f"{FIRST}.down"),
    (lambda t: t.pop(f"{FIRST}.gate_up.scales"), f"{FIRST}.gate_up.scales is missing"),
    (lambda t: t.pop(f"{FIRST}.down.bias"), f"{FIRST}.down.bias is missing"),
    (lambda t: t.update({f"{FIRST}.down.qweight": t[f"{FIRST}.down.qweight"][:3]}),
     r"down.qweight has shape \[3, 64, 12\], not \[4, 64, 12\]"),
    (lambda t: t.update({f"{FIRST}.down.scales": t[f"{FIRST}.down.scales"].float()}),
     "down.scales has dtype torch.float32, not torch.float16"),
    (lambda t: t[f"{FIRST}.down.scales"][2, 1].fill_(torch.inf),
     rf"{FIRST}.down\[2\].scales\[1, 0\] is inf, not finite"),
], ids=range(6))  # fmt: skip
def test_a_damaged_folder_is_refused_by_the_name_of_the_tensor(damaged, change, why):
    edit_tensors(damaged, change)
    with pytest.raises(ladder.CheckpointError, match=why):
        load(damaged)


def test_experts_that_would_be_cut_over_processes_are_refused_before_loading(packed_folder):
    """tests/integrations/test_tensor_parallel.py has the processes; here is what each would say."""
    from ladder.checkpoints.folder import StoredConfig
    from ladder.integrations.transformers.checkpoint import read_headers
    from ladder.integrations.transformers.experts import swap_experts

    fields = json.loads((packed_folder / "config.json").read_text())["quantization_config"]
    headers = read_headers([packed_folder / "model.safetensors"])
    with pytest.raises(ladder.Unsupported, match=f"{FIRST} holds packed experts, which cannot be"):
        swap_experts(fresh("gpt_oss"), headers, StoredConfig.from_dict(fields), cut=True)


def test_packed_experts_in_a_model_of_another_kind_are_refused(packed_folder):
    from ladder.checkpoints.folder import StoredConfig
    from ladder.integrations.transformers.checkpoint import read_headers
    from ladder.integrations.transformers.experts import swap_experts

    fields = json.loads((packed_folder / "config.json").read_text())["quantization_config"]
    headers = read_headers([packed_folder / "model.safetensors"])
    model = fresh("gpt_oss")
    model.model.layers[0].mlp.experts = torch.nn.Identity()
    with pytest.raises(ladder.Unsupported, match="is a Identity in this model"):
        swap_experts(model, headers, StoredConfig.from_dict(fields), cut=False)


def test_a_state_dict_in_memory_loads_too(packed_folder):
    from safetensors.torch import load_file
    from transformers import GptOssForCausalLM

    config = GptOssForCausalLM.config_class.from_pretrained(packed_folder)
    state = load_file(packed_folder / "model.safetensors")
    model = GptOssForCausalLM.from_pretrained(
        None, config=config, state_dict=dict(state), dtype=torch.float32
    )
    assert torch.equal(logits(model), logits(load(packed_folder)))
    del state[f"{FIRST}.down.scales"]
    with pytest.raises(ladder.CheckpointError, match=f"{FIRST}.down.scales was not loaded"):
        GptOssForCausalLM.from_pretrained(None, config=config, state_dict=state)


def test_experts_that_the_config_leaves_unquantised_are_refused(damaged):
    fields = json.loads((damaged / "config.json").read_text())["quantization_config"]
    edit_config(damaged, quantization_config=fields | {"modules_to_not_convert": ["experts"]})
    with pytest.raises(ladder.CheckpointError, match="experts.*leaves it unquantised"):
        load(damaged)


def test_a_type_for_experts_that_are_not_there_is_an_error(folder):
    for name in ("model.layers.7.mlp.experts", f"{FIRST}.up", f"{FIRST}.gate_up_proj"):
        config = LadderConfig("uint4", 32, modules={name: "nf4,group=32,scale=float16"})
        with pytest.raises(ladder.InvalidArgument, match=f'^modules has "{name}", which names no'):
            load(folder, quantization_config=config)


def test_files_that_lack_a_parameter_of_experts_are_refused(folder, kind, tmp_path):
    import shutil

    source = shutil.copytree(folder, tmp_path / "model")

    def drop(tensors):
        for name in list(tensors):
            if "layers.1" in name and ("w2" in name or "experts" in name and "down_proj" in name):
                del tensors[name]

    edit_tensors(source, drop)
    with pytest.raises(ladder.CheckpointError, match="layers.1.mlp.experts.down_proj.* is missing"):
        convert_folder(source, tmp_path / "out", "int8", group_size=32)
    with pytest.raises(ladder.CheckpointError, match="layers.1.mlp.experts.down_proj.* is missing"):
        load(source, quantization_config=LadderConfig("int8", 32))


def test_nothing_is_said_of_experts_where_all_are_packed(folder, caplog):
    with caplog.at_level(logging.WARNING, "ladder"):
        ladder.convert(load(folder), "int8", 32)
    assert not [record for record in caplog.records if "experts" in record.message]
