# SPDX-License-Identifier: Apache-2.0
"""GPTQ, AWQ and compressed-tensors folders as they are, by ladder's method and, where vLLM reads
them itself, by ladder's kernel under vLLM's own methods."""

from __future__ import annotations

import json

import checkpoint_oracle as oracle
import foreign
import more_oracles
import pytest
import subclass_oracles
import torch
from drawn import generator
from layers import SHAPES, activations, parts_of, product, rank, run, serve, write
from mlx_oracle import MLX

from ladder.checkpoints import METHODS
from ladder.errors import CheckpointError, Unsupported
from ladder.integrations.vllm import WORDS
from ladder.ops.activations import round_activations
from ladder.types import parse

pytestmark = pytest.mark.usefixtures("vllm")

FORMS = {
    **{
        f"gptq{bits} {'symmetric' if symmetric else 'asymmetric'}{' desc_act' * order} {form}": (
            lambda modules, bits=bits, form=form, symmetric=symmetric, order=order: foreign.gptq(
                modules, bits=bits, form=form, symmetric=symmetric, order=order
            )
        )
        for bits in (2, 3, 4, 8)
        for form in ("gptq", "gptq_v2")
        for symmetric in (True, False)
        for order in (False, True)
    },
    "awq": foreign.awq,
    "awq symmetric": lambda modules: foreign.awq(modules, symmetric=True),
    **{
        f"compressed-tensors {bits} {'padded' if pad else 'stream'}": (
            lambda modules, bits=bits, pad=pad: foreign.compressed(
                modules, bits=bits, pad_words=pad
            )
        )
        for bits in range(2, 9)
        for pad in ((True, False) if 32 % bits else (True,))
    },
    "compressed-tensors 4 asymmetric": lambda modules: foreign.compressed(
        modules, bits=4, symmetric=False
    ),
    "compressed-tensors 8 asymmetric": lambda modules: foreign.compressed(
        modules, bits=8, symmetric=False
    ),
    "compressed-tensors 4 channel": lambda modules: foreign.compressed(
        modules, bits=4, channel=True
    ),
    "compressed-tensors 4 actorder": lambda modules: foreign.compressed(
        modules, bits=4, order=True
    ),
    # On a CPU, which has no products of activations of float8, these come as they are.
    **{
        f"compressed-tensors {name}": lambda modules, name=name: foreign.compressed_8(modules, name)
        for name in ("float8", "float8 static", "float8 block")
    },
    **{
        packing: lambda modules, packing=packing: foreign.auto_round(modules, packing)
        for packing in ("auto_round", "auto_round:auto_gptq", "auto_round:auto_awq")
    },
    **{
        f"quark {dtype}": lambda modules, dtype=dtype: foreign.quark(modules, dtype)
        for dtype in ("fp8_e4m3", "fp4")
    },
    "auto_round 7": lambda modules: foreign.auto_round(modules, "auto_round", bits=7),
    **{f"fp8 {kind}": lambda modules, kind=kind: foreign.fp8(modules, kind) for kind in oracle.FP8},
    "fbgemm_fp8": foreign.fbgemm,
    **{
        f"modelopt {kind}": lambda modules, kind=kind: foreign.modelopt(modules, kind)
        for kind in ("FP8", "NVFP4", "NVFP4_AWQ", "W4A8_AWQ", "W4A16_AWQ")
    },
}


def check(stored: foreign.Foreign, name: str, folder, method: str) -> None:
    write(folder, stored.tensors(), stored.config())
    layer = serve(name, folder, stored.tensors(), method=method, bias=bool(stored.biases))
    x = activations(name)
    assert torch.equal(run(layer, x), torch.cat(product(stored, name, x), -1))


@pytest.mark.parametrize("form", FORMS)
def test_a_folder_of_another_package_is_served_as_it_is(form, tmp_path):
    check(FORMS[form](parts_of("qkv_proj")), "qkv_proj", tmp_path, "ladder")


@pytest.mark.parametrize(
    "form", ("gptq4 asymmetric gptq", "gptq3 asymmetric gptq_v2", "awq",
             "compressed-tensors 4 asymmetric", "compressed-tensors 3 padded",
             "compressed-tensors float8 static", "fp8 blocks", "fp8 static", "fbgemm_fp8",
             "modelopt FP8", "modelopt NVFP4", "modelopt W4A8_AWQ", "auto_round:auto_gptq"),
)  # fmt: skip
@pytest.mark.parametrize("name", ("gate_up_proj", "down_proj", "router"))
def test_each_layer_of_another_package_is_served(form, name, tmp_path):
    stored = FORMS[form](parts_of(name))
    for at, module in enumerate(parts_of(name)):
        n = stored.layers[module].codes.shape[0]
        stored.biases[module] = (torch.arange(n) % 5 - at).float()
    check(stored, name, tmp_path, "ladder")


@pytest.mark.parametrize("size", (2, 4))
@pytest.mark.parametrize("name", ("qkv_proj", "o_proj"))
@pytest.mark.parametrize(
    "form",
    ("gptq4 asymmetric gptq", "gptq3 asymmetric gptq_v2", "gptq8 symmetric gptq",
     "gptq4 asymmetric desc_act gptq", "awq", "compressed-tensors 4 asymmetric",
     "compressed-tensors 3 padded", "compressed-tensors 4 actorder",
     "compressed-tensors float8 static", "fp8 static", "fbgemm_fp8", "modelopt FP8",
     "modelopt NVFP4", "modelopt W4A8_AWQ", "auto_round:auto_gptq", "auto_round:auto_awq",
     "quark fp8_e4m3", "quark fp4"),
)  # fmt: skip
def test_ranks_of_another_packages_folder_add_up(form, name, size, tmp_path):
    from test_parallel import on_ranks, share

    stored, x = FORMS[form](parts_of(name)), activations(name)
    parts, found = product(stored, name, x), on_ranks(name, stored, size, tmp_path, x)
    if name == "o_proj":
        assert torch.equal(sum(found), parts[0])
    else:
        for number, y in enumerate(found):
            assert torch.equal(y, share(name, parts, number, size))


def test_parts_with_the_same_numbers_for_columns_are_one_launch(tmp_path):
    """ModelOpt gives layers of one input one pre_quant_scale; others are multiplied apart."""
    names = parts_of("qkv_proj")
    apart, alike = (FORMS["modelopt W4A16_AWQ"](names) for _ in range(2))
    first = alike.layers[names[0]]
    for name in names[1:]:
        truth = alike.layers[name]
        own, shared = (t.tensors["pre_quant_scale"].float().numpy() for t in (truth, first))
        truth.scales = truth.scales / own * shared
        truth.tensors["pre_quant_scale"] = first.tensors["pre_quant_scale"].clone()
    for stored, launches in ((alike, 1), (apart, 3)):
        write(tmp_path, stored.tensors(), stored.config())
        layer = serve("qkv_proj", tmp_path, stored.tensors(), method="ladder")
        assert len(layer.quant_method.runs) == launches
        x = activations("qkv_proj")
        assert torch.equal(run(layer, x), torch.cat(product(stored, "qkv_proj", x), -1))


def test_blocks_of_fp8_are_cut_where_ranks_have_whole_ones(tmp_path):
    from test_parallel import on_ranks

    stored, x = FORMS["fp8 blocks"](parts_of("o_proj")), activations("o_proj")
    found = on_ranks("o_proj", stored, 2, tmp_path, x)
    assert torch.equal(sum(found), product(stored, "o_proj", x)[0])
    stored = FORMS["fp8 blocks"](parts_of("qkv_proj"))
    with pytest.raises(Unsupported, match="k_proj: rows 0 to 64 cut blocks of 128 rows"):
        on_ranks("qkv_proj", stored, 2, tmp_path / "b", activations("qkv_proj"))


@pytest.mark.parametrize(
    "scheme", ("int8", "int8 static", "int8 asymmetric", "bitnet", "bitnet divides")
)
@pytest.mark.parametrize("name", ("qkv_proj", "o_proj"))
def test_activations_of_int8_are_rounded_as_the_folder_asks(name, scheme, tmp_path):
    if scheme.startswith("bitnet"):
        stored = foreign.bitnet(parts_of(name), divides=scheme != "bitnet")
    else:
        stored = foreign.compressed_8(parts_of(name), scheme)
    write(tmp_path, stored.tensors(), stored.config())
    layer = serve(name, tmp_path, stored.tensors())
    (made,) = layer.quant_method.runs
    assert made.activation_type == "int8"
    x = torch.randn(20, SHAPES[parts_of(name)[0]][1], generator=generator(1))
    rounded = round_activations(x, parse(made.type))
    wanted = torch.cat(product(stored, name, rounded), -1)
    assert (run(layer, x) - wanted).abs().max() < 1e-5 * wanted.abs().max()
    assert not made.static  # a CPU has scales of its own
    plain = torch.cat(product(stored, name, x), -1)
    assert (plain - wanted).abs().max() > 1e-3 * wanted.abs().max()


@pytest.mark.parametrize("part", ("qweight", "qzeros", "scales", "g_idx"))
def test_a_tensor_of_another_package_that_does_not_come_is_named(part, tmp_path):
    stored = FORMS["gptq4 asymmetric desc_act gptq"](parts_of("qkv_proj"))
    tensors = stored.tensors()
    write(tmp_path, tensors, stored.config())
    lost = f"model.layers.0.self_attn.k_proj.{part}"
    del tensors[lost]
    with pytest.raises(Exception, match=lost.replace(".", r"\.")):
        serve("qkv_proj", tmp_path, tensors)


# --- who is asked ---------------------------------------------------------------------------------

OTHERS = METHODS


def taken(method: str, user: str | None) -> bool:
    from vllm.model_executor.layers.quantization import get_quantization_config

    config = get_quantization_config("ladder")
    given = {"quant_method": method, "bits": 4}
    answers = {config.override_quantization_method(given, user),
               config.override_quantization_method(given, user, hf_config=None)}  # fmt: skip
    assert len(answers) == 1 and answers <= {None, "ladder"}
    return answers == {"ladder"}


def test_every_format_is_a_word_of_the_variable():
    assert {*METHODS} < {*WORDS}


@pytest.mark.parametrize("method", OTHERS)
def test_a_folder_of_another_package_is_taken_only_when_asked(method, monkeypatch):
    monkeypatch.delenv("LADDER_VLLM", raising=False)
    assert not taken(method, None)
    assert not taken(method, method)
    assert taken(method, "ladder")
    monkeypatch.setenv("LADDER_VLLM", method)
    assert [other for other in OTHERS if taken(other, None)] == [method]
    monkeypatch.setenv("LADDER_VLLM", "kernel")
    assert not taken(method, None)


@pytest.mark.parametrize("method", ("higgs", "ladder"))
def test_no_other_folder_is_ever_taken(method, monkeypatch):
    monkeypatch.setenv("LADDER_VLLM", "gptq,awq,compressed-tensors,fp8,kernel")
    assert not taken(method, None)
    assert not taken(method, "ladder")


@pytest.mark.parametrize("method", ("bitsandbytes", "gemma", "hqq", "mlx", "torchao"))
def test_a_folder_whose_names_no_parameter_can_have_is_to_be_repacked(method):
    from vllm.model_executor.layers.quantization import get_quantization_config

    assert taken(method, "ladder")
    with pytest.raises(Unsupported, match=f"{method}, .*: run `ladder repack` first"):
        get_quantization_config("ladder").from_config({"quant_method": method})


def test_a_folder_of_mlx_is_known_though_it_names_no_method(monkeypatch):
    from vllm.model_executor.layers.quantization import get_quantization_config

    config = get_quantization_config("ladder")
    assert config.override_quantization_method(MLX, "ladder") == "ladder"
    assert config.override_quantization_method(MLX, None) is None
    monkeypatch.setenv("LADDER_VLLM", "mlx")
    assert config.override_quantization_method(MLX, None) == "ladder"
    with pytest.raises(Unsupported, match="mlx, .*: run `ladder repack` first"):
        config.from_config(MLX)


MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 300, "dtype": "float16", "rms_norm_eps": 1e-6,
    "max_position_embeddings": 64, "hidden_act": "silu",
}  # fmt: skip


@pytest.mark.parametrize("method, user, chosen", [
    ("ladder", None, "ladder"),
    ("ladder", "ladder", "ladder"),
    ("gptq", "ladder", "ladder"),
    ("awq", "ladder", "ladder"),
    ("compressed-tensors", "ladder", "ladder"),
    ("compressed-tensors", None, "compressed-tensors"),
    ("fp8", "ladder", "ladder"),
    ("fp8", None, "fp8"),
    ("auto-round", "ladder", "ladder"),
    ("bitnet", "ladder", "ladder"),
    ("bitsandbytes", "ladder", "ladder"),
    ("hqq", "ladder", "ladder"),
    ("mlx", "ladder", "ladder"),
    ("torchao", "ladder", "ladder"),
])  # fmt: skip
def test_vllm_chooses_the_method_by_the_folder_and_the_user(method, user, chosen, tmp_path):
    from vllm.config import ModelConfig

    stored = {
        "ladder": {"quant_method": "ladder", "format_version": 1, "weight_type": "mxfp4"},
        "gptq": foreign.gptq(("q_proj",), bits=4, symmetric=True).config(),
        "awq": foreign.awq(("q_proj",)).config(),
        "compressed-tensors": foreign.compressed(("q_proj",), bits=4).config(),
        "fp8": oracle.fp8_settings(),
        "auto-round": foreign.auto_round(("q_proj",), "auto_round:auto_gptq").config(),
        "bitnet": foreign.bitnet(("q_proj",)).config(),
        "bitsandbytes": more_oracles.NF4,
        "hqq": subclass_oracles.HQQ,
        "mlx": MLX,
        "torchao": subclass_oracles.TORCHAO,
    }[method]
    fields = MODEL | {"quantization_config": stored}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    config = ModelConfig(model=str(tmp_path), skip_tokenizer_init=True, quantization=user)
    assert config.quantization == chosen


# --- ladder's kernel under vLLM's own methods -----------------------------------------------------

KERNEL = ("gptq4 symmetric gptq", "awq", "compressed-tensors 2 padded",
          "compressed-tensors 3 stream", "compressed-tensors 5 stream",
          "compressed-tensors 6 stream", "compressed-tensors 7 stream",
          "compressed-tensors 4 padded", "compressed-tensors 8 padded",
          "compressed-tensors 4 asymmetric", "compressed-tensors 8 asymmetric",
          "compressed-tensors 4 channel")  # fmt: skip


@pytest.mark.parametrize("form", KERNEL)
@pytest.mark.parametrize("name", ("qkv_proj", "o_proj"))
def test_ladders_kernel_serves_vllms_own_methods(form, name, tmp_path, monkeypatch):
    monkeypatch.setenv("LADDER_VLLM", "kernel")
    stored = FORMS[form](parts_of(name))
    check(stored, name, tmp_path, stored.settings["quant_method"])


@pytest.mark.parametrize("words", ("", "gptq,awq,compressed-tensors"))
def test_ladders_kernel_is_not_chosen_unasked(words, tmp_path, monkeypatch):
    from vllm.model_executor.kernels import linear
    from vllm.scalar_type import scalar_types

    fields = dict(
        full_weight_shape=(256, 256), partition_weight_shape=(256, 256), act_type=torch.float16,
        weight_type=scalar_types.uint4b8, group_size=32, zero_points=False, has_g_idx=False,
    )  # fmt: skip
    known = linear.MPLinearLayerConfig.__dataclass_fields__  # 0.32 has no has_g_idx
    config = linear.MPLinearLayerConfig(**{k: v for k, v in fields.items() if k in known})

    def chosen() -> str | None:
        try:
            return linear.choose_mp_linear_kernel(config).__name__
        except ValueError:  # vLLM has no kernel of its own here
            return None

    monkeypatch.setenv("LADDER_VLLM", words)
    assert chosen() != "LadderMPLinearKernel"
    monkeypatch.setenv("LADDER_VLLM", "kernel")
    assert chosen() == "LadderMPLinearKernel"


@pytest.mark.parametrize("name", ("qkv_proj", "o_proj"))
def test_ladders_kernel_serves_ranks(name, tmp_path, monkeypatch):
    from test_parallel import share

    monkeypatch.setenv("LADDER_VLLM", "kernel")
    stored, x = FORMS["compressed-tensors 4 asymmetric"](parts_of(name)), activations(name)
    tensors, parts, found = stored.tensors(), product(stored, name, x), []
    write(tmp_path, tensors, stored.config())
    for number in range(2):
        with rank(number, 2):
            layer = serve(name, tmp_path, tensors, method="compressed-tensors")
            found.append(run(layer, x.chunk(2, -1)[number] if name == "o_proj" else x))
    if name == "o_proj":
        assert torch.equal(sum(found), parts[0])
    else:
        for number, y in enumerate(found):
            assert torch.equal(y, share(name, parts, number, 2))


@pytest.mark.parametrize("form", ("compressed-tensors", "fp8"))
def test_parts_of_other_static_scales_are_products_of_their_own(form, tmp_path, monkeypatch):
    """What a GPU would be given: an image and a scale for each run."""
    from ladder.integrations.serving import layer as serving

    modules = parts_of("qkv_proj")
    stored = (foreign.compressed_8(modules, "int8 static") if form == "compressed-tensors"
              else foreign.fp8(modules, "static"))  # fmt: skip
    last = stored.layers[list(stored.layers)[-1]]
    last.tensors["input_scale"] = last.tensors["input_scale"] * 2
    write(tmp_path, stored.tensors(), stored.config())
    seen, finish = [], serving.finish_weight

    def finished(weight, *given, **options):
        seen.append((weight.shape[0], options["input_scale"]))
        return finish(weight, *given, **options)

    monkeypatch.setattr(serving, "finish_weight", finished)
    layer = serve("qkv_proj", tmp_path, stored.tensors())
    rows = [truth.codes.shape[0] for truth in stored.layers.values()]
    assert [n for n, _ in seen] == [sum(rows[:2]), rows[2]]
    assert [scale for _, scale in seen] == pytest.approx([0.03, 0.06], rel=1e-7)
    assert len(layer.quant_method.runs) == 2
    x = activations("qkv_proj")
    if form == "fp8":  # x as it comes, on a CPU
        assert torch.equal(run(layer, x), torch.cat(product(stored, "qkv_proj", x), -1))


def test_a_run_of_a_static_scale_gives_it_to_the_op(monkeypatch):
    from ladder.integrations.serving import layer as serving

    calls = []
    monkeypatch.setattr(serving, "linear_prepacked", lambda *given: calls.append(given))
    layer = torch.nn.Module()
    image, scale = torch.zeros(4, dtype=torch.int32), torch.tensor([0.5])
    layer.register_buffer("qweight_1", image)
    layer.register_buffer("input_scale_1", scale)
    x = torch.zeros(2, 8)
    for static in (False, True):
        made = serving.Run("prepacked", "int8", 8, "_1", ("qweight",), False, "int8", static)
        made(layer, x, None)
    assert calls[0] == (x, image, None, "int8", 8, False, "int8", None)
    assert calls[1][:-1] == calls[0][:-1] and calls[1][-1] is scale


def test_a_static_scale_that_is_none_is_named(tmp_path):
    stored = foreign.compressed_8(parts_of("o_proj"), "int8 static")
    (truth,) = stored.layers.values()
    truth.tensors["input_scale"] = torch.tensor([0.0])
    write(tmp_path, stored.tensors(), stored.config())
    with pytest.raises(CheckpointError, match="o_proj.input_scale is 0.0, not positive"):
        serve("o_proj", tmp_path, stored.tensors())
