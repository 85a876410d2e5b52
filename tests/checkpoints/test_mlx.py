# SPDX-License-Identifier: Apache-2.0
"""Folders of MLX: layers that MLX itself packed, what is recognised, and what is refused.

``fixtures/make_mlx.py`` made the layers and the folders."""

import json

import pytest
import torch
from mlx_oracle import MLX, decode, fixture_layers, mlx, write_mlx
from safetensors.torch import load_file, save_file

from ladder.checkpoints import open_folder, repack
from ladder.checkpoints.convert import convert
from ladder.checkpoints.info import describe
from ladder.checkpoints.mlx_config import MODES, Config, are_settings, settings_of
from ladder.checkpoints.mlx_files import _Shard as SplitShard
from ladder.checkpoints.tables import KEPT_WITH
from ladder.errors import CheckpointError, Unsupported
from ladder.integrations.serving.stored import Folder

LAYERS = fixture_layers()


def parts_of(name):
    return {part: tensor for part, tensor in LAYERS[name][1].items() if part != "values"}


def folder_of(path, parts, settings=MLX, module="q_proj", **more):
    tensors = {f"{module}.{part}": tensor for part, tensor in parts.items()}
    return write_mlx(path, tensors | {"gate.weight": torch.ones(4, 4).half()} | more, settings)


def test_every_mode_and_width_has_a_layer():
    made = {(s["mode"], s["bits"], s["group_size"]) for s, _ in LAYERS.values()}
    assert made == {(name, bits, group) for name, mode in MODES.items() for bits in mode.bits
                    for group in mode.group_sizes}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_values_are_mlxs_bit_by_bit(name, tmp_path):
    settings, tensors = LAYERS[name]
    source = folder_of(tmp_path / "a", parts_of(name), settings)
    ((_, weight),) = open_folder(source)
    assert torch.equal(weight.dequantize(), tensors["values"])
    assert torch.equal(decode(tensors, settings), tensors["values"])  # as the other tests have them
    repack(source, tmp_path / "b")
    made = json.loads((tmp_path / "b" / "config.json").read_text())
    assert made["quantization_config"]["weight_type"] == str(weight.type)
    assert made["quantization_config"]["source"] == {"quant_method": "mlx", **settings}
    assert "quantization" not in made
    repacked = load_file(tmp_path / "b" / "model.safetensors")
    assert torch.equal(repacked["q_proj.qweight"], weight.qweight)


@pytest.mark.parametrize(("name", "text"), [
    ("affine_8bit_32", "uint8,group=32,scale=float16,zero=rescale"),
    ("affine_6bit_128", "uint6,group=128,scale=float32,zero=rescale"),
    ("affine_4bit_64", "uint4,group=64,scale=bfloat16,zero=rescale"),
    ("affine_1bit_32", "uint1,group=32,scale=bfloat16,zero=rescale"),
    ("mxfp4", "mxfp4"),
    ("mxfp8", "mxfp8_e4m3"),
    ("nvfp4", "float4_e2m1,group=16,scale=float8_e4m3"),
])  # fmt: skip
def test_codes_keep_their_width_and_groups(name, text, tmp_path):
    (row,) = describe(folder_of(tmp_path / "a", parts_of(name), LAYERS[name][0]))["modules"]
    assert (row["type"], row["n"], row["k"]) == (text, 4, 128)


def test_a_type_does_not_depend_on_values(tmp_path):
    """Of some experts of a layer MLX's biases are all midpoints, and experts need one type."""
    parts = mlx(8, 64).tensors
    parts["biases"] = parts["scales"] * -8
    ((_, weight),) = open_folder(folder_of(tmp_path / "a", parts))
    assert weight.type.zero == "rescale"
    assert torch.equal(weight.dequantize(), decode(parts, MLX))


def test_rows_are_read_in_pieces_as_all_at_once(tmp_path):
    source = open_folder(folder_of(tmp_path / "a", mlx(70, 64, bits=3).tensors, MLX | {"bits": 3}))
    ((_, weight),) = source
    pieces = [words for _, words in source.words(source.layer("q_proj"), 1)]
    assert len(pieces) == 3 and torch.equal(torch.cat(pieces), weight.qweight)


@pytest.mark.parametrize(
    "module", ["embed_tokens", "mlp.gate", "mlp.router", "mlp.shared_expert_gate"]
)
def test_what_is_no_linear_layer_is_decoded(module, tmp_path):
    packed = {"embed": mlx(8, 64, seed=1), "q_proj": mlx(8, 64)}
    packed[module] = packed.pop("embed")
    tensors = {f"{n}.{p}": t for n, drawn in packed.items() for p, t in drawn.tensors.items()}
    report = repack(write_mlx(tmp_path / "a", tensors), tmp_path / "b")
    decoded = f"decoded, as no linear layer has their weight: {module}"
    assert report.notes == [decoded] + [KEPT_WITH] * (module == "embed_tokens")
    made = load_file(tmp_path / "b" / "model.safetensors")
    assert torch.equal(made[f"{module}.weight"], torch.from_numpy(packed[module].weight).bfloat16())
    assert "q_proj.qweight" in made


@pytest.mark.parametrize("name", ["mxfp4", "mxfp8", "nvfp4"])
def test_embeddings_of_a_mode_without_biases_are_exact_in_bfloat16(name, tmp_path):
    settings, tensors = LAYERS[name]
    embedding = {f"embed_tokens.{part}": each.clone() for part, each in parts_of(name).items()}
    repack(folder_of(tmp_path / "a", parts_of(name), settings, **embedding), tmp_path / "b")
    made = load_file(tmp_path / "b" / "model.safetensors")["embed_tokens.weight"]
    assert made.dtype == torch.bfloat16 and torch.equal(made.float(), tensors["values"])


# --- what config.json says ------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [("quantization",), ("quantization_config",),
                                  ("quantization", "quantization_config")])  # fmt: skip
def test_a_folder_is_known_by_its_settings(keys, tmp_path):
    tensors = {f"q_proj.{part}": t for part, t in mlx(8, 64).tensors.items()}
    said = dict.fromkeys(("quantization", "quantization_config")) | dict.fromkeys(keys, MLX)
    source = write_mlx(tmp_path / "a", tensors, **said)
    assert describe(source)["quant_method"] == "mlx"
    with pytest.raises(CheckpointError, match="is quantised already, quant_method 'mlx'"):
        convert(source, tmp_path / "b")


@pytest.mark.parametrize("fields", [
    None, {}, [], {"bits": 4}, MLX | {"quant_method": "gptq"}, MLX | {"method": "awq"},
    {"bits": 4, "group_size": 128, "desc_act": False}, {"bits": 4, "group_size": 128, "sym": True},
    {"bits": 4, "group_size": 128, "damp_percent": 0.1},
])  # fmt: skip
def test_settings_of_others_are_not_mlxs(fields):
    assert not are_settings(fields)


def test_settings_that_differ_are_both_named(tmp_path, left_nothing):
    source = folder_of(tmp_path / "a", mlx(8, 64).tensors)
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"]["bits"] = 8
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"quantization_config differ: bits is 4 and 8$"):
        repack(source, left_nothing)


@pytest.mark.parametrize(("more", "why"), [
    ({"lm_head": False}, "lm_head is not there and False$"),
    ({"lm_head": {"bits": 8}, "mode": "mxfp4"}, "mode is 'affine' and 'mxfp4'$"),
    (None, "group_size is 32 and not there$"),
])  # fmt: skip
def test_one_key_of_settings_that_differ_is_named(more, why):
    """mlx-lm lists hundreds of modules there."""
    with pytest.raises(CheckpointError, match=why):
        settings_of({"quantization": MLX, "quantization_config": MLX | more if more else {}})


@pytest.mark.parametrize("more", [{"quant_method": ""}, {"quant_method": "mlx"}])
def test_a_method_beside_the_same_settings_makes_no_difference(more):
    assert settings_of({"quantization": MLX, "quantization_config": MLX | more}) == MLX
    assert settings_of({"quantization": MLX | more, "quantization_config": MLX}) == MLX | more


def test_settings_of_another_method_are_not_mlxs_by_either_key():
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    for said in ({"quantization": gptq}, {"quantization_config": gptq, "quantization": MLX}):
        assert settings_of(said) is None


def test_modules_have_settings_of_their_own():
    config = Config.from_dict(MLX | {
        "a": {"bits": 6}, "b": {"mode": "mxfp8"}, "lm_head": False, "c": True,
        "x.mlp.switch_mlp.up_proj": {"bits": 8}, "y.block_sparse_moe.switch_mlp.up_proj": False,
    })  # fmt: skip

    def of(name):
        module = config.for_module(name)
        return module and (module.bits, module.group_size, module.mode)

    assert of("other") == of("c") == of("x.mlp.experts.0.gate_proj") == (4, 32, "affine")
    assert of("a") == (6, 64, "affine")
    assert of("b") == (8, 32, "mxfp8")
    assert of("x.mlp.experts.11.up_proj") == (8, 64, "affine")
    assert of("lm_head") is None and of("y.block_sparse_moe.experts.0.w3") is None


@pytest.mark.parametrize(("settings", "error", "why"), [
    (MLX | {"bits": 7}, CheckpointError, "bits is 7, and mode affine has 1, 2, 3, 4, 5, 6, 8"),
    (MLX | {"bits": "4"}, CheckpointError, "bits is '4', not an integer"),
    (MLX | {"group_size": 16}, CheckpointError, "is 16, and mode affine has 32, 64, 128"),
    (MLX | {"mode": "nvfp4"}, CheckpointError, "group_size is 32, and mode nvfp4 has 16"),
    (MLX | {"mode": "mxint8"}, Unsupported, "mode is 'mxint8', ladder reads affine, mxfp4"),
    (MLX | {"mode": 3}, CheckpointError, "mode is 3, not a word"),
    (MLX | {"q_proj": {"bits": 7}}, CheckpointError, "q_proj.bits is 7"),
    (MLX | {"q_proj": {"bits": 4, "quantize_input": True}}, Unsupported, "quantize_input is True"),
    (MLX | {"q_proj": 4}, CheckpointError, "q_proj is 4, not the settings of a module"),
    (MLX | {"q_proj": False}, CheckpointError, "leaves q_proj unquantised"),
    (MLX | {"bits": 8}, CheckpointError, "q_proj.weight has rows of 8 words, and 2 groups of 32 "
                                         "codes of 8 bits are 16"),
    (MLX | {"bits": 3}, CheckpointError, "codes of 3 bits are 6"),
    (MLX | {"bits": 2, "group_size": 64}, None, ""),
])  # fmt: skip
def test_settings_that_ladder_cannot_follow(settings, error, why, tmp_path, left_nothing):
    source = folder_of(tmp_path / "a", mlx(8, 64).tensors, settings)
    if error is None:  # as many bits: [8, 128] of two bits
        assert open_folder(source).layer("q_proj").k == 128
        return
    with pytest.raises(error, match=why):
        repack(source, left_nothing)


# --- damaged layers -------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "part", "change", "why"), [
    ("affine_4bit_32", "weight", None, "weight is missing"),
    ("affine_4bit_32", "scales", None, "scales is missing"),
    ("affine_4bit_32", "biases", None, "biases is missing"),
    ("affine_4bit_32", "weight", lambda t: t.view(torch.int32), "is int32, not uint32"),
    ("affine_4bit_32", "weight", lambda t: t[:, :9].clone(), "rows of 9 words, and 4 groups of 32 "
                                                            "codes of 4 bits are 16"),
    ("affine_3bit_32", "weight", lambda t: t[:, :11].clone(), "of 3 bits are 12"),
    ("affine_4bit_32", "weight", lambda t: t[:0].clone(), "not two dimensions above zero"),
    ("affine_4bit_32", "weight", lambda t: t[0].clone(), "not two dimensions above zero"),
    ("affine_4bit_32", "scales", lambda t: t[:3].clone(), r"\[3, 4\], not \[4, 4\]"),
    ("affine_4bit_32", "scales", lambda t: t[:, :3].clone(), "3 groups of 32 codes"),
    ("affine_4bit_32", "scales", lambda t: t.int(), "is int32, not float16 or bfloat16"),
    ("affine_4bit_32", "scales", lambda t: t / 0, r"scales\[0, 0\] is -?inf"),
    ("affine_4bit_32", "biases", lambda t: t * torch.nan, r"biases\[0, 0\] is nan"),
    ("affine_4bit_32", "biases", lambda t: t.half(), "is float16, not bfloat16"),
    ("affine_4bit_32", "biases", lambda t: t.flatten(), r"shape \[16\], not \[4, 4\]"),
    ("mxfp4", "scales", None, "scales is missing"),
    ("mxfp4", "scales", lambda t: t.half(), "is float16, not uint8"),
    ("mxfp4", "scales", lambda t: t * 0 + 255, r"scales\[0, 0\] is nan"),
    ("nvfp4", "scales", lambda t: t * 0 + 127, r"scales\[0, 0\] is nan"),
    ("nvfp4", "scales", lambda t: t[:, ::2].clone(), "4 groups of 16 codes of 4 bits are 8"),
])  # fmt: skip
def test_damaged_layers_are_named(name, part, change, why, tmp_path, left_nothing):
    parts = parts_of(name)
    tensor = parts.pop(part)
    if change is not None:
        parts[part] = change(tensor)
    with pytest.raises(CheckpointError, match=why) as raised:
        repack(folder_of(tmp_path / "a", parts, LAYERS[name][0]), left_nothing)
    assert "q_proj." in str(raised.value)


def test_biases_of_a_mode_that_has_none_are_named(tmp_path, left_nothing):
    parts = parts_of("mxfp4") | {"biases": torch.zeros(4, 4)}
    with pytest.raises(CheckpointError, match="q_proj.biases is there, and mode mxfp4 has none"):
        repack(folder_of(tmp_path / "a", parts, LAYERS["mxfp4"][0]), left_nothing)


def test_a_folder_of_dense_tensors_alone_is_named(tmp_path, left_nothing):
    source = write_mlx(tmp_path / "a", {"q_proj.weight": torch.ones(4, 4)})
    with pytest.raises(CheckpointError, match=r"no tensor is a \*.scales"):
        repack(source, left_nothing)


# --- experts, and other layouts -------------------------------------------------------------------


def stacked(experts, n, k, **how):
    each = [mlx(n, k, seed=seed, **how).tensors for seed in range(experts)]
    return each, {part: torch.stack([t[part] for t in each]) for part in each[0]}


@pytest.mark.parametrize(("block", "names"), [
    ("model.layers.0.mlp", {name: name for name in ("gate_proj", "up_proj", "down_proj")}),
    ("model.layers.1.block_sparse_moe", {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}),
])  # fmt: skip
def test_stacks_become_experts_one_by_one(block, names, tmp_path):
    tensors, wanted = {f"{block}.gate.weight": torch.ones(3, 64)}, {}
    for number, (theirs, ours) in enumerate(names.items()):
        each, stack = stacked(3, 8 + 8 * number, 64)
        tensors |= {f"{block}.switch_mlp.{theirs}.{part}": t for part, t in stack.items()}
        wanted |= {f"{block}.experts.{e}.{ours}": decode(p, MLX) for e, p in enumerate(each)}
    source = write_mlx(tmp_path / "a", tensors)
    found = {name: weight.dequantize() for name, weight in open_folder(source)}
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], values) for name, values in wanted.items())
    report = repack(source, tmp_path / "b")
    assert (report.modules, report.tensors_carried) == (9, 1)


def test_dense_stacks_are_carried_one_by_one(tmp_path):
    stack = torch.randn(2, 8, 64)
    tensors = {f"mlp.gate_proj.{part}": t for part, t in mlx(8, 64).tensors.items()}
    source = write_mlx(tmp_path / "a", tensors | {"x.mlp.switch_mlp.up_proj.weight": stack})
    repack(source, tmp_path / "b")
    made = load_file(tmp_path / "b" / "model.safetensors")
    assert all(torch.equal(made[f"x.mlp.experts.{e}.up_proj.weight"], stack[e]) for e in (0, 1))


@pytest.mark.parametrize("first", ["entries", "split"])
def test_the_tensors_of_a_file_do_not_depend_on_what_is_asked_first(first, tmp_path):
    save_file({"mlp.switch_mlp.up_proj.weight": torch.ones(2, 8, 64)}, tmp_path / "a")
    shard = SplitShard(tmp_path / "a")
    getattr(shard, first)
    names = [f"mlp.experts.{expert}.up_proj.weight" for expert in (0, 1)]
    assert [*shard.entries] == [*shard.split] == names


def test_stacks_of_several_numbers_of_experts_are_named(tmp_path, left_nothing):
    _, stack = stacked(3, 8, 64)
    stack["scales"] = stack["scales"][:2].clone()
    source = folder_of(tmp_path / "a", stack, module="mlp.switch_mlp.up_proj")
    with pytest.raises(CheckpointError, match="is of 2 experts, and .* of 3|is of 3 .* of 2"):
        repack(source, left_nothing)


def test_an_expert_beside_its_stack_is_named(tmp_path, left_nothing):
    _, stack = stacked(3, 8, 64)
    more = {"mlp.experts.1.up_proj.scales": torch.ones(8, 2)}
    source = folder_of(tmp_path / "a", stack, module="mlp.switch_mlp.up_proj", **more)
    with pytest.raises(CheckpointError, match="scales is there beside mlp.switch_mlp.up_proj"):
        repack(source, left_nothing)


@pytest.mark.parametrize(("name", "tensor", "why"), [
    ("linear_attn.conv1d.weight", torch.ones(8, 4, 1), "a convolution, channels last, or a stack"),
    ("self_attn.embed_q.weight", stacked(2, 8, 64)[1]["weight"], "a stack as MLX has it"),
    ("mlp.experts.up_proj.weight", stacked(2, 8, 64)[1]["weight"], "a stack as MLX has it"),
    ("mlp.switch_mlp.fc1.weight", stacked(2, 8, 64)[1]["weight"], "a stack as MLX has it"),
    ("mlp.switch_mlp.up_proj.global_scale", torch.ones(2), "is there: ladder reads scales of MLX"),
])  # fmt: skip
def test_layouts_that_are_mlxs_alone_are_refused(name, tensor, why, tmp_path, left_nothing):
    source = folder_of(tmp_path / "a", mlx(8, 64).tensors, **{name: tensor})
    with pytest.raises(Unsupported, match=why) as raised:
        repack(source, left_nothing)
    assert str(raised.value).startswith(f"{name} ")


def test_engines_are_told_to_repack():
    named = (MLX | {"quant_method": method} for method in ("mlx", ""))
    for settings in (MLX, {"group_size": 64, "bits": 4}, *named):
        with pytest.raises(Unsupported, match="mlx, .*: run `ladder repack` first"):
            Folder(settings)
