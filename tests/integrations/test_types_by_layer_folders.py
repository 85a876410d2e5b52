# SPDX-License-Identifier: Apache-2.0
"""Other types of some layers: folders, quantising while loading, the command."""

import copy
import json

import hf_mixtures
import pytest
import torch
from diffusion_models import flux_pipeline
from hf_models import check_equal, check_same, load, logits, packed_of, types_in
from typer.testing import CliRunner
from vision_models import fresh as vision_model
from vision_models import scores

import ladder
from ladder.checkpoints.calibrated import Calibration
from ladder.checkpoints.convert import convert
from ladder.checkpoints.folder import StoredConfig
from ladder.cli import app
from ladder.errors import InvalidArgument, Unsupported
from ladder.integrations.transformers import LadderConfig, dense

TYPES = {"k_proj": "uint6,group=16", "v_proj": "int8", "layers.1.mlp": "nf4"}
TOKENS = torch.randint(0, 128, (6, 48), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("calibrated", [False, True])
def test_a_folder_whose_fused_layers_differ_is_the_model_in_memory(
    dense_folder, tmp_path, calibrated
):
    wanted = load(dense_folder)
    tokens = TOKENS if calibrated else None
    in_memory = ladder.convert(wanted, "uint4", 32, types=TYPES, calibration=tokens)
    report = convert(
        dense_folder, tmp_path / "out", "uint4", group_size=32, types=TYPES,
        calibration=Calibration(load(dense_folder), TOKENS) if calibrated else None,
    )  # fmt: skip
    assert report.conversion.packed == in_memory.packed == types_in(tmp_path / "out")
    kinds = {n.rpartition(".")[2]: t for n, t in types_in(tmp_path / "out").items() if ".0." in n}
    assert len({kinds[name] for name in ("q_proj", "k_proj", "v_proj")}) == 3
    counts = {text: list(in_memory.packed.values()).count(text) for text in report.types}
    assert {text: row.modules for text, row in report.types.items()} == counts
    found = load(tmp_path / "out")
    check_same(found, wanted)
    assert torch.equal(logits(found), logits(wanted))
    found.save_pretrained(tmp_path / "saved")
    assert types_in(tmp_path / "saved") == in_memory.packed
    assert torch.equal(logits(load(tmp_path / "saved")), logits(wanted))


def test_numbers_are_those_of_the_dense_model_with_the_same_values(dense_folder, tmp_path):
    convert(dense_folder, tmp_path / "out", "uint4", group_size=32, types=TYPES)
    expected = load(dense_folder)
    for name, text in types_in(tmp_path / "out").items():
        weight = expected.get_submodule(name).weight
        weight.data = ladder.quantize(weight.data, text).dequantize()
    check_equal(load(tmp_path / "out"), expected)
    model = load(tmp_path / "out")
    before = logits(model)
    done = ladder.optimize(model)  # what engines do: launches of their own where types differ
    attention = "model.layers.0.self_attn"
    left = done.left[", ".join(f"{attention}.{name}_proj" for name in "qkv")]
    assert left.startswith("types differ") and torch.equal(logits(model), before)


def test_layers_are_quantised_to_their_types_while_loading(dense_folder, tmp_path):
    config = LadderConfig("uint4", 32, types=TYPES)
    model = load(dense_folder, quantization_config=config)
    wanted = load(dense_folder)
    report = ladder.convert(wanted, "uint4", 32, types=TYPES)
    check_same(model, wanted)
    assert model.hf_quantizer.conversion.packed == report.packed
    model.save_pretrained(tmp_path / "out")
    assert types_in(tmp_path / "out") == report.packed
    again = load(tmp_path / "out")
    check_same(again, wanted)
    assert torch.equal(logits(again), logits(wanted))
    saved = again.config.quantization_config
    assert LadderConfig.from_dict(saved.to_dict()).stored == saved.stored
    assert copy.deepcopy(config).types == config.types


def test_whole_names_in_modules_come_before_types(dense_folder):
    name = "model.layers.0.self_attn.v_proj"
    modules = {name: "uint3,group=32,scale=float16,zero=midpoint"}
    model = load(
        dense_folder, quantization_config=LadderConfig("uint4", 32, modules=modules, types=TYPES)
    )
    found = model.hf_quantizer.conversion.packed
    assert found[name] == modules[name] and found[name.replace(".0.", ".1.")].startswith("int8")


@pytest.mark.parametrize(
    ("types", "words"),
    [
        ({"nothere": "int8"}, 'types has "nothere", which names no module'),
        ({"lm_head": "int8"}, 'types has "lm_head", but lm_head is not quantised: '),
        ({"embed_tokens": "int8"}, 'types has "embed_tokens", but .*no linear layer'),
        ({"mlp": "int9"}, r'types\["mlp"\]: '),
    ],
)
def test_names_that_are_none_are_refused_and_nothing_is_written(
    dense_folder, tmp_path, types, words
):
    with pytest.raises(InvalidArgument, match=words):
        convert(dense_folder, tmp_path / "out", types=types)
    with pytest.raises(InvalidArgument, match=words):
        load(dense_folder, quantization_config=LadderConfig("uint4", types=types))
    assert not list(tmp_path.iterdir())


def test_types_of_sixteen_bits_are_refused(dense_folder, tmp_path):
    with pytest.raises(InvalidArgument, match=r'types\["mlp"\]: type float16 has 16 bits; convert'):
        convert(dense_folder, tmp_path / "out", types={"mlp": "float16"})


def test_activations_are_asked_of_each_layers_own_type(dense_folder, tmp_path):
    types = {"down_proj": "uint4,group=10,scale=float16"}
    with pytest.raises(Unsupported, match=r"down_proj: "):
        convert(dense_folder, tmp_path / "out", types=types, activation_type="int8")
    with pytest.raises(Unsupported, match=r"down_proj: "):
        load(
            dense_folder,
            quantization_config=LadderConfig("uint4", types=types, activation_type="int8"),
        )
    assert not (tmp_path / "out").exists()
    convert(dense_folder, tmp_path / "ok", "uint4", types=types, skip=["o_proj"], group_size=32)
    with pytest.raises(Unsupported, match=r"down_proj: "):
        convert(tmp_path / "ok", tmp_path / "out", types=types, again=True, activation_type="int8")


# --- experts --------------------------------------------------------------------------------------


def test_stacks_of_experts_have_types_of_their_own(mixture, mixture_folder, tmp_path):
    types = {"layers.1": "int8", "experts.down_proj": "nf4", "0.mlp.experts.gate_up": "uint6"}
    wanted = load(mixture_folder)
    report = ladder.convert(wanted, "uint4", 32, types=types)
    found = {n: ladder.ttype(text).element.name for n, text in report.packed.items()}
    names = ("0.mlp.experts.gate_up", "0.mlp.experts.down", "1.mlp.experts.gate_up",
             "1.mlp.experts.down", "0.self_attn.q_proj")  # fmt: skip
    assert [found[f"model.layers.{name}"] for name in names] == [
        "uint6", "nf4", "int8", "nf4", "uint4",
    ]  # fmt: skip
    loading = load(mixture_folder, quantization_config=LadderConfig("uint4", 32, types=types))
    check_same(loading, wanted)
    folder = convert(mixture_folder, tmp_path / "out", "uint4", group_size=32, types=types)
    assert sum(row.modules for row in folder.types.values()) == folder.modules
    check_same(load(tmp_path / "out"), wanted)


def test_calibrated_experts_have_types_of_their_own(mixture_folder, tmp_path):
    types = {"experts.down": "uint4", "q_proj": "int8"}
    wanted = load(mixture_folder)
    ladder.convert(wanted, "uint3", 32, types=types, calibration=TOKENS)
    calibration = Calibration(load(mixture_folder), TOKENS)
    options = {"group_size": 32, "types": types}
    convert(mixture_folder, tmp_path / "out", "uint3", **options, calibration=calibration)
    check_same(load(tmp_path / "out"), wanted)
    again = Calibration(dense(load(tmp_path / "out")), TOKENS)
    convert(tmp_path / "out", tmp_path / "again", "uint3", again=True, **options,
            calibration=again)  # fmt: skip
    wanted = dense(load(tmp_path / "out"))
    ladder.convert(wanted, "uint3", 32, types=types, calibration=TOKENS)
    check_same(load(tmp_path / "again"), wanted)


# --- packed again, convolutions, pipelines --------------------------------------------------------


def test_a_packed_folder_is_quantised_again_to_types_by_layer(dense_folder, tmp_path):
    convert(dense_folder, tmp_path / "packed", "int8", group_size=32)
    options = {"group_size": 32, "again": True, "skip": ["o_proj"]}
    report = convert(tmp_path / "packed", tmp_path / "out", "uint4", types=TYPES, **options)
    wanted = dense(load(tmp_path / "packed"))
    ladder.convert(wanted, "uint4", 32, types=TYPES)
    found, before = types_in(tmp_path / "out"), types_in(tmp_path / "packed")
    for name, text in found.items():
        own = name.endswith("o_proj")
        assert text == (before[name] if own else str(wanted.get_submodule(name).weight_type)), name
    ours, theirs = packed_of(load(tmp_path / "out")), packed_of(wanted)
    assert all(torch.equal(t, theirs[n]) for n, t in ours.items() if "o_proj" not in n)
    assert sum(row.modules for row in report.types.values()) == report.modules == 12
    with pytest.raises(InvalidArgument, match='"o_proj", but .* it stays as it is packed'):
        convert(tmp_path / "packed", tmp_path / "no", types={"o_proj": "int8"}, **options)
    with pytest.raises(InvalidArgument, match='types has "nothere", which names no module'):
        convert(tmp_path / "packed", tmp_path / "no", types={"nothere": "int8"}, **options)
    assert not (tmp_path / "no").exists()


def test_convolutions_of_a_folder(tmp_path):
    model = vision_model("resnet")
    model.save_pretrained(tmp_path / "dense")
    types, options = {"stages.0": "int8"}, {"group_size": 32, "convolutions": True}
    convert(tmp_path / "dense", tmp_path / "out", "uint4", types=types, **options)
    wanted = copy.deepcopy(model)
    report = ladder.convert(wanted, "uint4", 32, convolutions=True, types=types)
    assert len(set(report.packed.values())) == 2
    found = type(model).from_pretrained(tmp_path / "out", dtype=torch.float32)
    check_same(found, wanted)
    assert torch.equal(scores(found), scores(wanted))
    config = LadderConfig("uint4", 32, convolutions=True, types=types)
    loading = type(model).from_pretrained(
        tmp_path / "dense", dtype=torch.float32, quantization_config=config
    )
    check_same(loading, wanted)


def test_parts_of_a_pipeline_have_types_by_their_names(tmp_path):
    pytest.importorskip("diffusers", reason="diffusers is not installed")
    flux_pipeline().save_pretrained(tmp_path / "dense")
    types = {"transformer.proj_out": "int8", "text_encoder_2.wo": "nf4", "to_q": "uint6"}
    parts = ["transformer", "text_encoder_2"]
    with pytest.raises(InvalidArgument, match='types has "to_q"'):  # T5 has none
        convert(tmp_path / "dense", tmp_path / "out", group_size=16, types=types, parts=parts)
    types["transformer.to_q"] = types.pop("to_q")
    report = convert(tmp_path / "dense", tmp_path / "out", group_size=16, types=types, parts=parts)
    for name, text in report.conversion.packed.items():
        part, _, module = name.partition(".")
        wanted = {("transformer", "proj_out"): "int8", ("text_encoder_2", "wo"): "nf4",
                  ("transformer", "to_q"): "uint6"}  # fmt: skip
        element = wanted.get((part, module.rpartition(".")[2]), "uint4")
        assert ladder.ttype(text).element.name == element, name
    assert types_in(tmp_path / "out" / "transformer")["proj_out"].startswith("int8")


def test_formats_of_a_users_own_are_stored_whichever_layer_has_them(dense_folder, tmp_path):
    ladder.register_type("ofalayer", bits=2, values=[-1, -0.25, 0.25, 1])
    convert(dense_folder, tmp_path / "out", group_size=32, types={"k_proj": "ofalayer"})
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["types"]["ofalayer"]["values"] == [-1, -0.25, 0.25, 1]
    assert (
        StoredConfig.from_dict(config)
        .type_of("model.layers.0.self_attn.k_proj")
        .startswith("ofalayer,group=32")
    )


# --- the command ----------------------------------------------------------------------------------


def test_the_command_has_types_by_layer(dense_folder, tmp_path):
    named = [f"{name}={ttype}" for name, ttype in TYPES.items()]
    options = [word for each in named for word in ("--layer-type", each)]
    command = ["convert", str(dense_folder), str(tmp_path / "out"), "--group", "32", *options]
    result = CliRunner().invoke(app, [*command, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    wanted = load(dense_folder)
    report = ladder.convert(wanted, "uint4", 32, types=TYPES)
    assert json.loads(result.stdout)["conversion"]["packed"] == report.packed
    check_same(load(tmp_path / "out"), wanted)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["mlp"], '--layer-type is "mlp", not NAME=TYPE'),
        (["=int8"], '--layer-type is "=int8", not NAME=TYPE'),
        (["mlp="], '--layer-type is "mlp=", not NAME=TYPE'),
        (["mlp=int8", "mlp=nf4"], "--layer-type mlp is int8 and nf4, two types"),
        (["nothere=int8"], 'types has "nothere", which names no module'),
    ],
)
def test_the_command_says_what_is_wrong(dense_folder, tmp_path, given, words):
    options = [word for each in given for word in ("--layer-type", each)]
    result = CliRunner().invoke(app, ["convert", str(dense_folder), str(tmp_path / "o"), *options])
    assert result.exit_code == 1 and words in str(result.exception)
    assert not (tmp_path / "o").exists()


def test_layers_are_named_as_in_the_files_too(tmp_path):
    """Mixtral's files call a block's mixture otherwise than its model."""
    hf_mixtures.fresh("mixtral").save_pretrained(tmp_path / "dense")
    name = "block_sparse_moe.experts"
    convert(tmp_path / "dense", tmp_path / "out", "uint4", group_size=32, types={name: "int8"})
    found = types_in(tmp_path / "out")
    assert {n for n in found if found[n].startswith("int8")} == {n for n in found if name in n}
