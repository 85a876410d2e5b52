# SPDX-License-Identifier: Apache-2.0
"""Models that mlx-lm quantised, repacked and as they are. MLX is not installed."""

import itertools
import json
import math
import shutil

import numpy as np
import pytest
import torch
from hf_mixtures import fresh
from hf_models import check_equal, edit_config, edit_tensors, load, logits
from mlx_oracle import FIXTURES, decode, mlx, write_mlx
from safetensors.torch import load_file

import ladder
from ladder.checkpoints import repack
from ladder.errors import CheckpointError, Unsupported
from ladder.integrations.transformers import disable, enable

LLAMA, MOE = FIXTURES / "llama", FIXTURES / "qwen3_moe"
Q_PROJ = "model.layers.0.self_attn.q_proj"


@pytest.fixture(autouse=True)
def not_left_enabled():
    yield
    disable()


def dense_values(folder):
    """What each tensor of the model is in the files: float32, and what is no linear layer as
    bfloat16 holds it."""
    settings = json.loads((folder / "config.json").read_text())["quantization"]
    tensors = load_file(folder / "model.safetensors")
    values = {}
    for name in tensors:
        module, _, part = name.rpartition(".")
        if part in ("scales", "biases"):
            continue
        if f"{module}.scales" not in tensors or part == "bias":
            values[name] = tensors[name].float()
            continue
        kept = {p: tensors[f"{module}.{p}"] for p in ("weight", "scales", "biases")
                if f"{module}.{p}" in tensors}  # fmt: skip
        usual = {key: settings[key] for key in ("group_size", "bits", "mode")}
        decoded = decode(kept, settings.get(module, usual))
        whole = module.endswith(("embed_tokens", "mlp.gate"))
        values[name] = decoded.bfloat16().float() if whole else decoded
    return values


def dense_model(folder):
    """A model of transformers with these values, which knows nothing of ladder."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    for key in ("quantization", "quantization_config"):
        delattr(config, key)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    values = dense_values(folder)
    for name in [name for name in values if ".switch_mlp." in name]:
        block = name.partition(".switch_mlp.")[0]
        stacks = {p: values.pop(f"{block}.switch_mlp.{p}.weight")
                  for p in ("gate_proj", "up_proj", "down_proj")
                  if f"{block}.switch_mlp.{p}.weight" in values}  # fmt: skip
        if stacks:
            both = torch.cat([stacks["gate_proj"], stacks["up_proj"]], 1)
            values[f"{block}.experts.gate_up_proj"] = both
            values[f"{block}.experts.down_proj"] = stacks["down_proj"]
    missing, unexpected = model.load_state_dict(values, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    return model


@pytest.mark.parametrize("source", [LLAMA, MOE], ids=lambda folder: folder.name)
def test_a_repacked_model_is_the_dense_one_of_its_values(source, tmp_path):
    repack(source, tmp_path / "repacked")
    model = load(tmp_path / "repacked")
    kinds = {type(module) for module in model.modules()}
    assert (ladder.Linear in kinds) and (ladder.Experts in kinds) == (source == MOE)
    check_equal(model, dense_model(source))


@pytest.mark.parametrize("source", [LLAMA, MOE], ids=lambda folder: folder.name)
def test_a_folder_is_loaded_as_it_is_and_saved(source, tmp_path):
    with enable("mlx"):
        model = load(source)
    outputs = logits(model)
    model.save_pretrained(tmp_path / "saved")
    repack(source, tmp_path / "repacked")
    made = [json.loads((tmp_path / name / "config.json").read_text())
            for name in ("saved", "repacked")]  # fmt: skip
    if source == LLAMA:  # a saved model has stacks of experts
        assert made[0]["quantization_config"] == made[1]["quantization_config"]
    for name, config in zip(("saved", "repacked"), made, strict=True):
        assert torch.equal(logits(load(tmp_path / name)), outputs)
        assert "quantization" not in config
    check_equal(model, dense_model(source))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scales_stay_what_they_are_whatever_the_model_computes_in(dtype):
    wanted = dense_values(LLAMA)["model.embed_tokens.weight"]
    with enable("mlx"):
        model = load(LLAMA, dtype=dtype)
    assert torch.equal(model.get_submodule("model.embed_tokens").weight, wanted.to(dtype))
    assert model.get_submodule(Q_PROJ).packed_weight.scales.dtype == torch.bfloat16


def test_a_router_that_is_no_linear_layer_is_decoded_while_it_is_loaded(tmp_path):
    """Experts here are one by one, as transformers' converters take them."""
    folder = shutil.copytree(MOE, tmp_path / "moe")

    def change(tensors):
        for name in [name for name in tensors if ".switch_mlp." in name]:
            block, _, rest = name.partition(".switch_mlp.")
            for expert, tensor in enumerate(tensors.pop(name)):
                tensors[f"{block}.experts.{expert}.{rest}"] = tensor.clone()

    edit_tensors(folder, change)
    (folder / "model.safetensors.index.json").unlink()
    with enable("mlx"):
        model = load(folder)
    check_equal(model, dense_model(MOE))


def mlx_mixtral(folder):
    """Mixtral as mlx-lm writes it, with names that transformers changes, and the dense model."""
    model, seeds = fresh("mixtral"), itertools.count()
    tensors, values = {}, {}

    def packed(name, *shape):
        drawn = [mlx(*shape[-2:], seed=next(seeds)) for _ in range(math.prod(shape[:-2]))]
        for part in drawn[0].tensors:
            stacked = torch.stack([each.tensors[part] for each in drawn])
            tensors[f"{name}.{part}"] = stacked if len(shape) > 2 else stacked[0]
        return torch.from_numpy(np.stack([each.weight for each in drawn])).reshape(shape)

    for name, parameter in model.state_dict().items():
        shape, stored = parameter.shape, name.replace(".mlp.", ".block_sparse_moe.")
        stack = stored.replace(".experts.", ".switch_mlp.")
        if name.endswith("gate_up_proj"):
            half = (shape[0], shape[1] // 2, shape[2])
            each = [stack.replace("gate_up", which) for which in ("gate", "up")]
            values[name] = torch.cat([packed(projection, *half) for projection in each], 1)
        elif parameter.dim() > 1:
            made = packed(stack.removesuffix(".weight"), *shape)
            decoded = name.endswith(("embed_tokens.weight", "mlp.gate.weight"))
            values[name] = made.bfloat16().float() if decoded else made
        else:
            values[name] = tensors[stored] = parameter.clone()
    model.load_state_dict(values)
    config = model.config.to_dict() | {"architectures": ["MixtralForCausalLM"]}
    return write_mlx(folder, tensors, **config), model


def test_stacks_and_routers_have_the_names_of_files(tmp_path):
    folder, dense = mlx_mixtral(tmp_path / "a")
    with enable("mlx"):
        check_equal(load(folder), dense)
    repack(folder, tmp_path / "b")
    check_equal(load(tmp_path / "b"), dense)


@pytest.mark.parametrize("experts", [3, 5])
def test_stacks_of_another_number_of_experts_are_refused(experts, tmp_path):
    folder = shutil.copytree(MOE, tmp_path / "moe")
    edit_config(folder, num_experts=experts)
    with (
        enable("mlx"),
        pytest.raises(CheckpointError, match=rf"not \[{experts}, 64\] as the model"),
    ):
        load(folder)


def test_an_embedding_that_the_settings_leave_dense_is_named(tmp_path):
    folder = shutil.copytree(LLAMA, tmp_path / "a")
    settings = json.loads((folder / "config.json").read_text())["quantization"]
    settings["model.embed_tokens"] = False
    edit_config(folder, quantization=settings, quantization_config=settings)
    with enable("mlx"), pytest.raises(CheckpointError, match="leaves model.embed_tokens unquant"):
        load(folder)


def test_layouts_that_are_mlxs_alone_are_refused(tmp_path):
    folder = shutil.copytree(LLAMA, tmp_path / "a")
    edit_tensors(folder, lambda tensors: tensors.update({"conv.weight": torch.ones(4, 3, 1)}))
    with enable("mlx"), pytest.raises(Unsupported, match="conv.weight has shape .*channels last"):
        load(folder)


def test_a_tensor_that_mlx_lm_leaves_out_is_named_and_a_new_head_is_not(tmp_path):
    from transformers import AutoModel, AutoModelForSequenceClassification

    folder, norm = shutil.copytree(LLAMA, tmp_path / "a"), "model.norm.weight"
    with enable("mlx"):
        model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
        assert type(model.score) is torch.nn.Linear
        edit_tensors(folder, lambda tensors: tensors.pop(norm))
        with pytest.raises(Unsupported, match=f"{norm} of LlamaForCausalLM is in no file"):
            load(folder)
        with pytest.raises(Unsupported, match="norm.weight of LlamaModel is in no file"):
            AutoModel.from_pretrained(folder)


def test_a_lost_layer_of_logits_is_named(tmp_path):
    """mlx-lm leaves it out where it takes it for tied, and transformers' default is otherwise."""
    from transformers import AutoModel

    folder = shutil.copytree(LLAMA, tmp_path / "a")
    parts = ("weight", "scales", "biases")
    edit_tensors(folder, lambda tensors: [tensors.pop(f"lm_head.{part}") for part in parts])
    with enable("mlx"):
        with pytest.raises(Unsupported, match="lm_head.weight of LlamaForCausalLM is in no file"):
            load(folder)
        AutoModel.from_pretrained(folder)  # has none
        edit_config(folder, tie_word_embeddings=True)
        tied = load(folder)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight


def test_a_lost_part_is_named(tmp_path):
    folder = shutil.copytree(LLAMA, tmp_path / "a")
    edit_tensors(folder, lambda tensors: tensors.pop(f"{Q_PROJ}.biases"))
    with enable("mlx"), pytest.raises(CheckpointError, match=f"{Q_PROJ}.biases is missing"):
        load(folder)


def test_transformers_is_asked_as_before_when_mlx_is_no_longer_enabled():
    from transformers.quantizers.auto import AutoHfQuantizer

    before = AutoHfQuantizer.supports_quant_method
    with enable(), enable("mlx"):
        assert AutoHfQuantizer.supports_quant_method is not before
        assert not AutoHfQuantizer.supports_quant_method({"quant_method": "none such"})
    disable()
    assert AutoHfQuantizer.supports_quant_method is before
    with pytest.raises(ValueError, match="no `quant_method` attribute"):
        load(LLAMA)


def test_a_folder_of_an_older_mlx_lm_is_repacked_and_transformers_refuses_it(tmp_path):
    """It has `quantization` alone, of which transformers knows nothing."""
    folder = shutil.copytree(LLAMA, tmp_path / "a")
    edit_config(folder, quantization_config=None)
    with enable("mlx"), pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        load(folder)
    repack(folder, tmp_path / "b")
    check_equal(load(tmp_path / "b"), dense_model(LLAMA))


@pytest.mark.parametrize("source", [LLAMA, MOE], ids=lambda folder: folder.name)
def test_an_embedding_may_stay_packed_without_being_rounded(source, tmp_path):
    """Decoded it is bfloat16, as in MLX; packed it has the values of its codes."""
    report = repack(source, tmp_path / "packed", embeddings=True)
    assert any("mlp.gate" in note for note in report.notes) == (source == MOE)
    model = load(tmp_path / "packed")
    table = model.get_input_embeddings()
    settings = json.loads((source / "config.json").read_text())["quantization"]
    tensors = load_file(source / "model.safetensors")
    parts = {p: tensors[f"model.embed_tokens.{p}"] for p in ("weight", "scales", "biases")
             if f"model.embed_tokens.{p}" in tensors}  # fmt: skip
    usual = {key: settings[key] for key in ("group_size", "bits", "mode")}
    exact = decode(parts, settings.get("model.embed_tokens", usual))
    assert torch.equal(table(torch.arange(len(exact))), exact)
    repack(source, tmp_path / "decoded")
    near, others = logits(load(tmp_path / "decoded")), logits(model)
    assert 0 < (near - others).abs().max() < 0.05 * near.abs().max()


def test_a_tied_head_is_packed_from_the_same_codes(tmp_path):
    def change(tensors):
        for part in ("weight", "scales", "biases"):
            tensors.pop(f"lm_head.{part}", None)

    shutil.copytree(LLAMA, tmp_path / "tied")
    (tmp_path / "tied" / "model.safetensors.index.json").unlink()
    edit_tensors(tmp_path / "tied", change)
    edit_config(tmp_path / "tied", tie_word_embeddings=True)
    repack(tmp_path / "tied", tmp_path / "head", head=True)
    repack(tmp_path / "tied", tmp_path / "both", embeddings=True, head=True)
    repack(tmp_path / "tied", tmp_path / "table", embeddings=True)
    head, both, table = (load(tmp_path / name) for name in ("head", "both", "table"))
    codes = both.model.embed_tokens.packed_weight
    assert torch.equal(both.lm_head.packed_weight.qweight, codes.qweight)
    assert torch.equal(head.lm_head.packed_weight.qweight, codes.qweight)
    assert type(head.model.embed_tokens) is torch.nn.Embedding
    assert type(table.lm_head) is torch.nn.Linear
    rounded = codes.dequantize().bfloat16().float()  # as the package decodes it
    assert torch.equal(head.model.embed_tokens.weight.float(), rounded)
    assert torch.equal(table.lm_head.weight.float(), rounded)
