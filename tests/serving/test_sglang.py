# SPDX-License-Identifier: Apache-2.0
"""SGLang's own layers on ladder folders, without SGLang's compiled code: exact on integers.
Engines run in tests/engines."""

from __future__ import annotations

import contextlib
import json
import logging
from types import SimpleNamespace

import foreign
import pytest
import torch
from drawn import KINDS, TWO_LEVELS, generator, stored_types
from layers import (
    FUSED,
    SHAPES,
    VOCABULARY,
    Stored,
    activations,
    load,
    make,
    parts_of,
    prefix,
    product,
    run,
    write,
)
from mlx_oracle import MLX
from more_oracles import GEMMA

from ladder.errors import CheckpointError, Unsupported
from ladder.ops.activations import round_activations
from ladder.types import parse

pytestmark = pytest.mark.usefixtures("sglang", "one_rank")

ZEROS = "uint4,group=32,scale=float16,zero=integer"
SGLANG = "sglang.srt.layers"
LAYERS = ("qkv_proj", "gate_up_proj", "o_proj", "down_proj", "router", "lm_head")


@contextlib.contextmanager
def rank(number, size, *, expert_parallel=False):
    """Layers made inside are those of one rank; what ranks send each other is left to the test."""
    from sglang.srt.runtime_context import get_parallel

    shared, apart = ("tp", "ep") if not expert_parallel else ("ep", "tp")
    places = {
        "tp_rank": number, "tp_size": size, "tp_group": None, "attn_tp_rank": number,
        "attn_tp_size": size, f"moe_{shared}_rank": number, f"moe_{shared}_size": size,
        f"moe_{apart}_rank": 0, f"moe_{apart}_size": 1,
    }  # fmt: skip
    with get_parallel().override(**places):
        yield


@pytest.fixture
def one_rank(sglang):
    with rank(0, 1):
        yield


def quantization(folder, fused=None):
    """SGLang's QuantizationConfig of a folder, made as ``get_quant_config`` makes it."""
    from sglang.srt.layers.quantization import get_quantization_config

    stored = json.loads((folder / "config.json").read_text())["quantization_config"]
    stored |= {
        "packed_modules_mapping": {name: [*parts] for name, parts in (fused or {}).items()},
        "hf_config": SimpleNamespace(_name_or_path=str(folder)),
    }
    return get_quantization_config("ladder").from_config(stored)


def serve(name, folder, stored):
    bias = any(module in stored.biases for module in parts_of(name))
    config = quantization(folder, FUSED)
    layer = make(name, config, bias=bias, dtype=torch.float32, layers=SGLANG)
    load(layer, name, stored.tensors(), config)
    layer.quant_method.process_weights_after_loading(layer)
    return layer


def check(stored, name, folder):
    write(folder, stored.tensors(), stored.config())
    layer, x = serve(name, folder, stored), activations(name)
    rows = sum(SHAPES[module][0] for module in parts_of(name))
    assert torch.equal(run(layer, x)[:, :rows], torch.cat(product(stored, name, x), -1))


@pytest.mark.parametrize("type", stored_types())
def test_a_fused_layer_of_each_type_is_exact(type, tmp_path):
    check(Stored.drawn(dict.fromkeys(parts_of("qkv_proj"), type)), "qkv_proj", tmp_path)


@pytest.mark.parametrize("bias", (False, True), ids=("plain", "bias"))
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("type", ("nvfp4", TWO_LEVELS, ZEROS))
def test_each_layer_is_exact(type, name, bias, tmp_path):
    check(Stored.drawn(dict.fromkeys(parts_of(name), type), bias=bias), name, tmp_path)


@pytest.mark.parametrize("name", LAYERS)
def test_each_layer_keeps_the_order_of_its_columns(name, tmp_path):
    check(Stored.drawn(dict.fromkeys(parts_of(name), ZEROS), act_order=True), name, tmp_path)


@pytest.mark.parametrize("types", ((ZEROS, "nvfp4", "uint2,group=64"), ("mxfp4", "dense", "mxfp4")))
def test_parts_of_a_layer_may_have_types_of_their_own_or_none(types, tmp_path):
    stored = Stored.drawn(dict(zip(parts_of("qkv_proj"), types, strict=True)), bias=True)
    check(stored, "qkv_proj", tmp_path)


@pytest.mark.parametrize("type", KINDS)
def test_rows_of_a_packed_embedding_are_its_values(type, tmp_path):
    stored = Stored.drawn({"embed_tokens": type})
    write(tmp_path, stored.tensors(), stored.config())
    ids = torch.tensor([[0, 5, 5], [VOCABULARY - 1, 17, 255]])
    y = run(serve("embed_tokens", tmp_path, stored), ids)
    assert torch.equal(y, stored.dense("embed_tokens")[ids].float())


@pytest.mark.parametrize("name", ("embed_tokens", "lm_head", "o_proj"))
def test_a_module_that_the_folder_leaves_dense_is_dense(name, tmp_path):
    stored = Stored.drawn({name: "dense", "q_proj": ZEROS})
    write(tmp_path, stored.tensors(), stored.config())
    layer = serve(name, tmp_path, stored)
    assert torch.equal(layer.weight[: SHAPES[name][0]], stored.weights[name])


@pytest.mark.parametrize("name", ("qkv_proj", "gate_up_proj"))
def test_a_model_that_does_not_say_what_it_fuses_is_served(name, tmp_path):
    stored = Stored.drawn(dict.fromkeys(parts_of(name), ZEROS))
    write(tmp_path, stored.tensors(), stored.config())
    config = quantization(tmp_path)
    layer = make(name, config, dtype=torch.float32, layers=SGLANG)
    load(layer, name, stored.tensors(), config)
    layer.quant_method.process_weights_after_loading(layer)
    x = activations(name)
    assert torch.equal(run(layer, x), torch.cat(product(stored, name, x), -1))


@pytest.mark.parametrize("size", (2, 4))
@pytest.mark.parametrize("name", ("qkv_proj", "gate_up_proj", "o_proj", "down_proj", "lm_head"))
@pytest.mark.parametrize("type", (ZEROS, "nvfp4", "uint4,group=32,scale=bfloat16,zero=quantized"))
def test_ranks_together_compute_what_one_computes(type, name, size, tmp_path):
    from test_parallel import share

    stored, x = Stored.drawn(dict.fromkeys(parts_of(name), type)), activations(name)
    parts, found = product(stored, name, x), []
    write(tmp_path, stored.tensors(), stored.config())
    for number in range(size):
        with rank(number, size):
            layer = serve(name, tmp_path, stored)
            own = x.chunk(size, -1)[number] if name in ("o_proj", "down_proj") else x
            found.append(run(layer, own))
    if name in ("o_proj", "down_proj"):
        assert torch.equal(sum(found), parts[0])
    elif name == "lm_head":
        assert torch.equal(torch.cat(found, -1)[:, :VOCABULARY], parts[0])
    else:
        for number, y in enumerate(found):
            assert torch.equal(y, share(name, parts, number, size))


@pytest.mark.parametrize("type, act_order, why", [
    ("uint4,group=256,scale=float16", False, "columns 0 to 128 cut groups of 256 columns"),
    (ZEROS, True, "act-order"),
])  # fmt: skip
def test_columns_that_no_rank_can_have_alone_are_refused_by_name(type, act_order, why, tmp_path):
    stored = Stored.drawn({"o_proj": type}, act_order=act_order)
    write(tmp_path, stored.tensors(), stored.config())
    with rank(0, 2), pytest.raises(NotImplementedError, match=rf"self_attn\.o_proj: {why}"):
        serve("o_proj", tmp_path, stored)


@pytest.mark.parametrize("types", ((ZEROS,) * 3, (ZEROS, "nvfp4", "uint2,group=64")))
def test_weights_that_come_again_take_the_place_of_the_first(types, tmp_path):
    named = dict(zip(parts_of("qkv_proj"), types, strict=True))
    first, second = (Stored.drawn(named, bias=True, seed=seed) for seed in (0, 20))
    write(tmp_path, first.tensors(), first.config())
    layer, x = serve("qkv_proj", tmp_path, first), activations("qkv_proj")
    memory = {name: tensor.data_ptr() for name, tensor in layer.state_dict().items()}
    layer.quant_method.restore_weights_before_loading(layer)
    load(layer, "qkv_proj", second.tensors(), None)
    layer.quant_method.process_weights_after_loading(layer)
    assert torch.equal(run(layer, x), torch.cat(product(second, "qkv_proj", x), -1))
    assert {name: t.data_ptr() for name, t in layer.state_dict().items()} == memory


@pytest.mark.parametrize("part", ("qweight", "scales", "zeros"))
def test_a_tensor_that_does_not_come_is_named(part, tmp_path):
    stored = Stored.drawn(dict.fromkeys(parts_of("qkv_proj"), ZEROS))
    write(tmp_path, stored.tensors(), stored.config())
    config = quantization(tmp_path, FUSED)
    layer = make("qkv_proj", config, dtype=torch.float32, layers=SGLANG)
    lost = f"{prefix('k_proj')}.{part}"
    load(layer, "qkv_proj", {n: t for n, t in stored.tensors().items() if n != lost}, config)
    with pytest.raises(ValueError, match=lost.replace(".", r"\.")):
        layer.quant_method.process_weights_after_loading(layer)


@pytest.mark.parametrize("name", ("qkv_proj", "o_proj"))
@pytest.mark.parametrize("kind, how", [
    (foreign.gptq, {"bits": 3, "symmetric": False, "order": True}),
    (foreign.awq, {}),
    (foreign.compressed_8, {"activations": "float8 static"}),
    (foreign.fp8, {"form": "blocks"}),
    (foreign.fp8, {"form": "static"}),
    (foreign.fbgemm, {}),
    (foreign.modelopt, {"algorithm": "NVFP4"}),
    (foreign.modelopt, {"algorithm": "W4A8_AWQ"}),
    (foreign.auto_round, {"packing": "auto_round:auto_gptq"}),
    (foreign.quark, {"dtype": "fp4"}),
], ids=("gptq", "awq", "W8A8 of float8", "fp8 in blocks", "fp8", "FBGEMM", "nvfp4", "W4A8 AWQ",
        "AutoRound", "Quark"))  # fmt: skip
def test_a_folder_of_another_package_is_served_as_it_is(kind, how, name, tmp_path):
    check(kind(parts_of(name), **how), name, tmp_path)


@pytest.mark.parametrize(
    "method", ("gptq", "awq", "fp8", "fbgemm_fp8", "modelopt", "w4afp8", "quark")
)
def test_a_folder_of_another_package_is_taken_only_when_asked(method):
    from sglang.srt.layers.quantization import QUANTIZATION_METHODS

    config, given = QUANTIZATION_METHODS["ladder"], {"quant_method": method}
    assert config.override_quantization_method(given, None) is None
    assert config.override_quantization_method(given, method) is None
    assert config.override_quantization_method(given, "ladder") == "ladder"
    assert config.override_quantization_method({"quant_method": "higgs"}, "ladder") is None
    assert config.override_quantization_method(None, None) is None


@pytest.mark.parametrize(
    ("method", "settings"), [("mlx", MLX), ("gemma", GEMMA)], ids=("mlx", "gemma")
)
def test_a_folder_with_packed_embeddings_is_to_be_repacked(method, settings):
    from sglang.srt.layers.quantization import QUANTIZATION_METHODS

    config = QUANTIZATION_METHODS["ladder"]
    assert config.override_quantization_method(settings, "ladder") == "ladder"
    assert config.override_quantization_method(settings, None) is None
    with pytest.raises(Unsupported, match=f"{method}, .*: run `ladder repack` first"):
        config.from_config(settings)


@pytest.mark.parametrize("name", ("qkv_proj", "o_proj"))
def test_activations_of_int8_are_rounded_as_the_folder_asks(name, tmp_path):
    stored = foreign.compressed_8(parts_of(name), "int8 static")
    write(tmp_path, stored.tensors(), stored.config())
    layer = serve(name, tmp_path, stored)
    (made,) = layer.quant_method.runs
    assert made.activation_type == "int8"
    x = torch.randn(20, SHAPES[parts_of(name)[0]][1], generator=generator(1))
    rounded = round_activations(x, parse(made.type))
    wanted, plain = (torch.cat(product(stored, name, each), -1) for each in (rounded, x))
    assert (run(layer, x) - wanted).abs().max() < 1e-5 * wanted.abs().max()
    assert (plain - wanted).abs().max() > 1e-3 * wanted.abs().max()


def test_registering_again_is_harmless():
    from sglang.srt.layers.quantization import QUANTIZATION_METHODS

    from ladder.integrations.sglang import register
    from ladder.integrations.sglang.versions import choices

    config = QUANTIZATION_METHODS["ladder"]
    register()
    assert QUANTIZATION_METHODS["ladder"] is config
    assert choices().QUANTIZATION_CHOICES.count("ladder") == 1


def test_headers_are_read_where_sglang_does_not_say_where_they_are(tmp_path):
    """As 0.5.16: without them act-order would be left out unseen."""
    from ladder.integrations.sglang.config import read_headers

    stored = Stored.drawn({"o_proj": "uint4,group=32,scale=float16"})
    write(tmp_path, stored.tensors(), stored.config())
    settings = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    made = type(quantization(tmp_path)).from_config(settings)
    assert made.folder.headers is None
    read_headers(made, SimpleNamespace(model_path=str(tmp_path)))
    assert made.folder.headers == quantization(tmp_path).folder.headers != {}


def test_a_mixtral_keeps_the_model_whose_experts_are_stacks():
    """SGLang gives one of another method QuantMixtralForCausalLM, each expert in layers of its
    own."""
    from sglang.srt.model_loader.utils import get_model_architecture
    from sglang.srt.models.mixtral import MixtralForCausalLM

    from ladder.integrations.sglang.versions import keep_mixtral

    def asked(quantization):
        return SimpleNamespace(
            hf_config=SimpleNamespace(architectures=["MixtralForCausalLM"]),
            quantization=quantization, model_impl="auto", is_generation=True,
        )  # fmt: skip

    config = asked("ladder")
    assert keep_mixtral(get_model_architecture, config)[0] is MixtralForCausalLM
    assert config.quantization == "ladder"
    assert keep_mixtral(get_model_architecture, asked("gptq"))[0] is not MixtralForCausalLM


def test_what_goes_wrong_is_logged_and_never_reaches_sglang(caplog, monkeypatch):
    from ladder.integrations.sglang import config, register

    monkeypatch.setattr(config, "register", lambda: {}["renamed"])
    with caplog.at_level(logging.ERROR):
        register()
    assert [r for r in caplog.records if "ladder is off" in r.message and r.exc_info]


@pytest.mark.parametrize("type", KINDS)
def test_latent_attention_finds_the_values_of_a_packed_weight(type, tmp_path):
    """They are there when the last tensor has been loaded; what has a qweight would be AWQ's."""
    stored = Stored.drawn({"kv_b_proj": type})
    write(tmp_path, stored.tensors(), stored.config() | {"activation_type": "int8"})
    config = quantization(tmp_path)
    layer = make("kv_b_proj", config, dtype=torch.float32, layers=SGLANG)
    load(layer, "kv_b_proj", stored.tensors(), config)
    assert dict(layer.named_parameters()).keys() == {"weight"}
    assert torch.equal(layer.weight.double(), stored.dense("kv_b_proj"))
    layer.quant_method.process_weights_after_loading(layer)
    x, first = activations("kv_b_proj"), layer.weight
    assert torch.equal(run(layer, x), product(stored, "kv_b_proj", x)[0])
    layer.quant_method.restore_weights_before_loading(layer)
    other = Stored.drawn({"kv_b_proj": type}, seed=7)
    load(layer, "kv_b_proj", other.tensors(), config)
    assert layer.weight.data_ptr() == first.data_ptr()  # what graphs read
    assert torch.equal(layer.weight.double(), other.dense("kv_b_proj"))


def test_a_tensor_of_latent_attention_that_is_missing_is_named(tmp_path):
    stored = Stored.drawn({"kv_b_proj": ZEROS})
    tensors = stored.tensors()
    write(tmp_path, tensors, stored.config())
    config = quantization(tmp_path)
    layer = make("kv_b_proj", config, dtype=torch.float32, layers=SGLANG)
    name = f"{prefix('kv_b_proj')}.scales"
    load(layer, "kv_b_proj", {n: t for n, t in tensors.items() if n != name}, config)
    with pytest.raises(CheckpointError, match=rf"{name} was not loaded"):
        layer.quant_method.process_weights_after_loading(layer)


def joined(stored, parts):
    """The tensors of ``parts``, row below row, by their last names."""
    tensors = [
        {name.rpartition(".")[2]: t for name, t in stored.tensors().items() if prefix(part) in name}
        for part in parts
    ]
    return {name: torch.cat([each[name] for each in tensors]) for name in tensors[0]}


@pytest.mark.parametrize("type", (ZEROS, "mxfp4", "uint3,channel,scale=float16", TWO_LEVELS))
def test_modules_that_a_loader_joins_are_one_layer(type, tmp_path):
    """As DeepSeek's does with q_a and kv_a."""
    from sglang.srt.layers.linear import ReplicatedLinear

    parts = FUSED["gate_up_proj"]
    stored = Stored.drawn(dict.fromkeys(parts, type))
    write(tmp_path, stored.tensors(), stored.config())
    config = quantization(tmp_path, {"joined_proj": parts})
    (n, k), name = SHAPES["up_proj"], prefix("up_proj").replace("up_proj", "joined_proj")
    layer = ReplicatedLinear(
        k, 2 * n, bias=False, params_dtype=torch.float32, quant_config=config, prefix=name
    )
    for part, tensor in joined(stored, parts).items():
        parameter = getattr(layer, part)
        parameter.weight_loader(parameter, tensor)
    layer.quant_method.process_weights_after_loading(layer)
    x = activations("up_proj")
    assert torch.equal(run(layer, x), torch.cat(product(stored, "gate_up_proj", x), -1))


def test_second_scales_that_a_loader_joins_are_refused(tmp_path):
    """One of them would be lost."""
    from sglang.srt.layers.linear import ReplicatedLinear

    parts = FUSED["gate_up_proj"]
    stored = Stored.drawn(dict.fromkeys(parts, "nvfp4"))
    write(tmp_path, stored.tensors(), stored.config())
    config = quantization(tmp_path, {"joined_proj": parts})
    (n, k), name = SHAPES["up_proj"], prefix("up_proj").replace("up_proj", "joined_proj")
    layer = ReplicatedLinear(
        k, 2 * n, bias=False, params_dtype=torch.float32, quant_config=config, prefix=name
    )
    with pytest.raises(CheckpointError, match=r"scale2 has shape \[2\], not \[1\]"):
        layer.scale2.weight_loader(layer.scale2, joined(stored, parts)["scale2"])


def test_a_layer_that_its_model_cuts_in_a_way_of_its_own_is_refused(tmp_path):
    """Mamba 2's, whose groups are fewer than ranks."""
    stored = Stored.drawn({"in_proj": ZEROS})
    check(stored, "in_proj", tmp_path)
    with rank(0, 2), pytest.raises(Unsupported, match=r"in_proj is a ColumnParallelLinear.*--tp 1"):
        serve("in_proj", tmp_path, stored)
