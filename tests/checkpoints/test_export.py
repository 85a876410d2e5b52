# SPDX-License-Identifier: Apache-2.0
"""``ladder export``: what other packages' documents say that they store, tensor by tensor."""

import json

import pytest
import torch
from checkpoint_oracle import (
    compressed,
    compressed_settings,
    fp8,
    fp8_settings,
    gptq,
    tensors_of,
    write_folder,
)
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import ladder
from ladder.checkpoints import open_folder, repack
from ladder.checkpoints.export import FORMATS, export
from ladder.cli import app
from ladder.errors import CheckpointError, InvalidArgument, Unsupported

#: Formats that have zero points of integers; MLX has tests of its own.
INTEGERS = ("compressed-tensors", "gptq")
N, K, NAME = 64, 128, "model.layers.0.self_attn.q_proj"


def tensors_in(folder):
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    return found


def check_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        one, other = (t.reshape(-1).view(torch.uint8) for t in (found[name], tensor))
        assert torch.equal(one, other), name


def there_and_back(source, tmp_path, form, **options):
    """``source`` repacked and exported, and that repacked: the weights are those of the first."""
    repack(source, tmp_path / "ladder")
    report = export(tmp_path / "ladder", tmp_path / "out", form, **options)
    repack(tmp_path / "out", tmp_path / "again")
    check_same(tensors_in(tmp_path / "again"), tensors_in(tmp_path / "ladder"))
    return report


COMPRESSED = {
    **{f"pack_{b}": {"bits": b} for b in range(1, 9)},
    **{f"zeros_{b}": {"bits": b, "symmetric": False} for b in range(2, 9)},
    "channel": {"bits": 4, "group": -1, "symmetric": False},
    "act_order": {"bits": 4, "order": True},
    "int_8_token": {"bits": 8, "form": "int-quantized", "group": -1, "activations": "int8"},
    "int_8_static": {"bits": 8, "form": "int-quantized", "group": -1, "activations": "int8 static"},
    "mxfp4": {"bits": 4, "form": "mxfp4-pack-quantized"},
    "mxfp6": {"bits": 6, "form": "mxfp6-pack-quantized"},
    "mxfp8": {"bits": 8, "form": "mxfp8-quantized"},
    "nvfp4": {"bits": 4, "form": "nvfp4-pack-quantized", "group": 16},
}  # fmt: skip


@pytest.mark.parametrize("kind", COMPRESSED)
def test_compressed_tensors_has_the_tensors_that_it_had(kind, tmp_path):
    """Those of an oracle that has them from the format's documents. Its second scales are powers of
    two, so that reciprocals are exact."""
    options = COMPRESSED[kind]
    settings, truth = compressed_settings(**options), compressed(N, K, **options)
    tensors = tensors_of({NAME: truth}) | {"model.norm.weight": torch.ones(K)}
    source = write_folder(tmp_path / "source", settings, [tensors])
    there_and_back(source, tmp_path, "compressed-tensors")
    check_same(tensors_in(tmp_path / "out"), tensors)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config.pop("quantization_config").keys() and "ladder" not in str(config)
    made = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    (group,) = made["config_groups"].values()
    for key, value in settings["config_groups"]["group_0"]["weights"].items():
        assert group["weights"][key] == value, key
    given, said = (c["config_groups"]["group_0"]["input_activations"] for c in (settings, made))
    assert said == given or {key: said[key] for key in given} == given
    assert (made["format"], made["quantization_status"]) == (settings["format"], "compressed")


@pytest.mark.parametrize("kind", ["blocks", "tensor", "static", "channel"])
def test_float8_keeps_its_bytes_and_scales(kind, tmp_path):
    """Of FP8 folders, which are other ones: the weights are the same."""
    source = write_folder(
        tmp_path / "source", fp8_settings(kind), [tensors_of({NAME: fp8(256, 256, kind=kind)})]
    )
    there_and_back(source, tmp_path, "compressed-tensors")
    made = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    (group,) = made["config_groups"].values()
    strategy = {"blocks": "block", "channel": "channel"}.get(kind, "tensor")
    assert (made["format"], group["weights"]["strategy"]) == ("float-quantized", strategy)
    assert group["input_activations"]["type"] == "float"
    assert group["input_activations"]["dynamic"] == (kind != "static")


@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("more", [
    {}, {"order": True}, {"symmetric": False, "lowest": 1}, {"group": -1},
], ids=["", "act order", "zeros", "channel"])  # fmt: skip
def test_gptq_has_the_tensors_that_it_had(more, bits, form, tmp_path):
    truth = gptq(N, K, bits=bits, form=form, **more)
    tensors = tensors_of({NAME: truth}) | {f"{NAME}.bias": torch.ones(N)}
    settings = {
        "quant_method": "gptq", "bits": bits, "group_size": more.get("group", 32), "sym": True,
        "desc_act": "order" in more, "checkpoint_format": form,
    }  # fmt: skip
    source = write_folder(tmp_path / "source", settings, [tensors])
    there_and_back(source, tmp_path, "gptq")
    found = tensors_in(tmp_path / "out")
    assert torch.equal(found[f"{NAME}.g_idx"].long(), torch.from_numpy(truth.group_of).long())
    if form == "gptq_v2":  # its zero points are stored one less, where none is 0
        again = {**found, f"{NAME}.qzeros": tensors[f"{NAME}.qzeros"]}
        assert not torch.equal(found[f"{NAME}.qzeros"], tensors[f"{NAME}.qzeros"])
        check_same(again, tensors | {f"{NAME}.g_idx": found[f"{NAME}.g_idx"]})
    else:
        check_same(found, tensors | {f"{NAME}.g_idx": found[f"{NAME}.g_idx"]})
    made = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert {key: made[key] for key in ("bits", "group_size", "desc_act", "checkpoint_format")} == {
        key: settings[key] for key in ("bits", "group_size", "desc_act")
    } | {"checkpoint_format": "gptq"}
    assert made["sym"] == ("symmetric" not in more)


def test_a_zero_point_of_0_makes_version_2(tmp_path):
    truth = gptq(N, K, form="gptq_v2", symmetric=False)
    assert (truth.zeros == 0).any() and truth.zeros.max() < 16
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32, "format": "gptq_v2"}
    source = write_folder(tmp_path / "source", settings, [tensors_of({NAME: truth})])
    there_and_back(source, tmp_path, "gptq")
    made = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert made["checkpoint_format"] == "gptq_v2"


def ladder_folder(path, weights, config=None, **more):
    """A ladder folder of weights by the names of their modules."""
    types = {name: str(weight.type) for name, weight in weights.items()}
    stored = ladder.checkpoints.StoredConfig.describing(types, ["lm_head"], **more)
    path.mkdir()
    fields = {"model_type": "llama", "dtype": "bfloat16"} | (config or {})
    (path / "config.json").write_text(json.dumps(stored.put_in(fields)))
    tensors = {f"{n}.{p}": t for n, weight in weights.items() for p, t in weight.tensors().items()}
    head = {} if "lm_head" in weights else {"lm_head.weight": torch.ones(4, K)}
    save_file(tensors | head, path / "model.safetensors")
    return path


def drawn(type, n=N, k=K, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return ladder.quantize(torch.randn(n, k, generator=generator) * 0.1, type)


@pytest.mark.parametrize("form", INTEGERS)
def test_types_that_differ_are_told_by_names(form, tmp_path):
    types = ["uint4,group=32,scale=float16,zero=midpoint"] * 2
    types += [
        "uint8,channel,scale=bfloat16,zero=integer",
        "uint3,group=64,scale=float16,zero=integer",
    ]
    weights = {f"layers.{i}.up_proj": drawn(type, seed=i) for i, type in enumerate(types)}
    source = ladder_folder(tmp_path / "ladder", weights)
    report = export(source, tmp_path / "out", form)
    assert report.modules == 4 and report.types[types[0]].modules == 2
    found = dict(open_folder(tmp_path / "out"))
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        assert torch.equal(found[name].dequantize(), weight.dequantize())
        assert found[name].type.group_size == weight.type.group_size
    assert open_folder(tmp_path / "out").settings.for_module("lm_head") is None


INT = "int4,group=32,scale=float16"
UINT = "uint4,group=32,scale=float16,zero=midpoint"


def test_codes_with_a_sign_and_blocks_of_rows_are_written_otherwise(tmp_path):
    """The values are the same: of int4 codes plus 8, of blocks the scale of each row."""
    weights = {
        "a.q_proj": drawn(INT),
        "b.q_proj": drawn("uint4,block=32x64,scale=float16,zero=midpoint"),
    }
    source = ladder_folder(tmp_path / "ladder", weights)
    export(source, tmp_path / "out", "compressed-tensors")
    for name, weight in open_folder(tmp_path / "out"):
        assert torch.equal(weight.dequantize(), weights[name].dequantize())


@pytest.mark.parametrize("form", FORMATS)
def test_a_packed_head_that_was_tied_may_be_listed_as_dense(form, tmp_path):
    """``modules_to_not_convert`` has it, and ``modules``, which comes first."""
    weights = {NAME: drawn(UINT), "lm_head": drawn(UINT, n=16, seed=1)}
    source = ladder_folder(tmp_path / "ladder", weights)
    config = json.loads((source / "config.json").read_text())["quantization_config"]
    assert config["modules_to_not_convert"] == ["lm_head"] and "lm_head" in config["modules"]
    export(source, tmp_path / "out", form)
    found = dict(open_folder(tmp_path / "out"))
    assert torch.equal(found["lm_head"].dequantize(), weights["lm_head"].dequantize())


def test_second_scales_are_reciprocals_to_the_last_bit_but_one(tmp_path):
    weight = drawn("nvfp4")
    export(
        ladder_folder(tmp_path / "ladder", {NAME: weight}), tmp_path / "out", "compressed-tensors"
    )
    ((_, found),) = open_folder(tmp_path / "out")
    assert torch.equal(found.qweight, weight.qweight) and torch.equal(found.scales, weight.scales)
    values = weight.dequantize()
    assert ((found.dequantize() - values).abs() <= 2.0**-23 * values.abs()).all()


#: Types with superblocks, and a format that has their codes beside the float32 products of both
#: levels.
SUPERBLOCKS = {
    "uint4,group=32,scale=uint6,zero=rescale,scale2=float16:64": "mlx",
    "uint3,group=16,scale=int6,zero=midpoint,scale2=float16:64": "compressed-tensors",
    "int6,group=16,scale=int8,scale2=float32:128": "compressed-tensors",
    "uint5,group=32,scale=uint4,zero=integer,scale2=bfloat16:64": "compressed-tensors",
    "uint4,group=32,scale=uint4,zero=quantized,scale2=float16:32": "compressed-tensors",
}


@pytest.mark.parametrize(("type", "form"), SUPERBLOCKS.items())
def test_scales_of_superblocks_become_floats_of_the_same_values(type, form, tmp_path):
    weight = drawn(type)
    source = ladder_folder(tmp_path / "ladder", {NAME: weight})
    report = export(source, tmp_path / "out", form)
    assert any("float32 products of both levels" in note for note in report.notes)
    ((_, found),) = open_folder(tmp_path / "out")
    assert not found.type.superblock
    assert torch.equal(found.dequantize(), weight.dequantize())


def test_experts_embeddings_and_what_is_named(tmp_path):
    type = "uint4,group=32,scale=float16,zero=midpoint"
    every = {
        "embed_tokens": drawn("uint8,group=32,scale=float16,zero=midpoint"),
        "layers.0.q_proj": drawn(type, seed=1),
        "layers.0.o_proj": drawn("nf4,group=32,scale=float16"),
    }
    stacks = {
        "gate_up": [drawn(type, 2 * N, seed=i) for i in range(3)],
        "down": [drawn(type, seed=9 + i) for i in range(3)],
    }
    source = ladder_folder(
        tmp_path / "ladder", every, {"num_experts": 3}, embeddings=["embed_tokens"]
    )
    tensors = load_file(source / "model.safetensors")
    for stack, weights in stacks.items():
        for part in ("qweight", "scales"):
            whole = torch.stack([weight.tensors()[part] for weight in weights])
            tensors[f"layers.0.mlp.experts.{stack}.{part}"] = whole
    save_file(tensors, source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"]["modules"] |= dict.fromkeys(
        ("layers.0.mlp.experts.gate_up", "layers.0.mlp.experts.down"), type
    )
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(Unsupported, match=r"layers.0.o_proj: gptq cannot hold .* of nf4"):
        export(source, tmp_path / "refused", "gptq")
    assert not (tmp_path / "refused").exists()
    for form in INTEGERS:
        report = export(source, tmp_path / form, form, dense=["o_proj"])
        assert report.notes[0] == "decoded: embed_tokens, layers.0.o_proj"
        found = dict(open_folder(tmp_path / form))
        assert len(found) == 1 + 3 * 3
        for expert, (both, down) in enumerate(zip(*stacks.values(), strict=True)):
            base, values = f"layers.0.mlp.experts.{expert}", both.dequantize()
            assert torch.equal(found[f"{base}.gate_proj"].dequantize(), values[:N])
            assert torch.equal(found[f"{base}.up_proj"].dequantize(), values[N:])
            assert torch.equal(found[f"{base}.down_proj"].dequantize(), down.dequantize())
        made = tensors_in(tmp_path / form)
        for name in ("embed_tokens", "layers.0.o_proj"):
            assert torch.equal(made[f"{name}.weight"], every[name].dequantize().bfloat16())


@pytest.mark.parametrize(("type", "form", "why"), [
    ("nf4,group=32,scale=float16", "compressed-tensors", "it has integers of 1 to 8 bits"),
    ("uint4,group=32,scale=float16,zero=original", "compressed-tensors", "it has integers"),
    ("uint4,group=32,scale=uint4,zero=midpoint,scale2=float32:channel", "gptq", "one level"),
    ("uint5,group=32,scale=float16,zero=midpoint", "gptq", "2, 3, 4, 8 bits"),
    ("uint4,group=32,scale=float32,zero=midpoint", "gptq", "float16 or bfloat16"),
    ("uint4,group=32,scale=float16,zero=rescale", "gptq", '"rescale" is another kind'),
    ("int4,group=32,scale=float16", "gptq", "unsigned integers"),
    ("uint4,group=32,scale=uint6,zero=midpoint,scale2=float16:64", "gptq",
     "scale2=float16:64: it has one level of scales"),
    ("uint4,group=32,scale=uint6,zero=rescale,scale2=float16:64", "compressed-tensors",
     "scale2=float16:64: it has integers of 1 to 8 bits with integer zero points"),
    ("nf4,group=32,scale=int6,scale2=float16:64", "mlx", "scale2=float16:64: it has integers"),
])  # fmt: skip
def test_what_a_format_does_not_hold_is_refused_by_name(type, form, why, tmp_path):
    source = ladder_folder(tmp_path / "ladder", {NAME: drawn(type)})
    with pytest.raises(Unsupported, match=f"{NAME}: {form} cannot hold a weight of .*{why}"):
        export(source, tmp_path / "out", form)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", INTEGERS)
def test_zero_points_beyond_a_code_are_refused(form, tmp_path):
    """16 of four bits, which ladder has: others keep zero points as codes."""
    weight = drawn("uint4,group=32,scale=float16,zero=integer")
    weight.zeros[0, 0] = 16
    source = ladder_folder(tmp_path / "ladder", {NAME: weight})
    with pytest.raises(Unsupported, match="zero points of 0 to 15, and one is 16"):
        export(source, tmp_path / "out", form)
    assert not (tmp_path / "out").exists()


def test_arguments_and_folders_that_are_not_right(tmp_path):
    source = ladder_folder(tmp_path / "ladder", {NAME: drawn(UINT)})
    with pytest.raises(
        InvalidArgument, match='format is "awq", not one of compressed-tensors, gptq'
    ):
        export(source, tmp_path / "out", "awq")
    with pytest.raises(InvalidArgument, match="k_proj"):
        export(source, tmp_path / "out", "gptq", dense=["k_proj"])
    with pytest.raises(CheckpointError, match="no packed layer is left to export"):
        export(source, tmp_path / "out", "gptq", dense=["q_proj"])
    foreign = write_folder(tmp_path / "foreign", compressed_settings(),
                           [tensors_of({NAME: compressed(N, K)})])  # fmt: skip
    with pytest.raises(CheckpointError, match="is no ladder folder: .ladder convert. or"):
        export(foreign, tmp_path / "out", "gptq")
    gpt2 = ladder_folder(
        tmp_path / "gpt2",
        {NAME: drawn(UINT)},
        {"model_type": "gpt2"},
    )
    with pytest.raises(Unsupported, match="layers are Conv1D"):
        export(gpt2, tmp_path / "out", "gptq")
    scaled = ladder_folder(tmp_path / "scaled", {NAME: drawn(UINT)})
    tensors = load_file(scaled / "model.safetensors") | {f"{NAME}.pre_scale": torch.ones(K)}
    save_file(tensors, scaled / "model.safetensors")
    with pytest.raises(Unsupported, match="pre_scale multiplies columns of x"):
        export(scaled, tmp_path / "out", "gptq")
    odd = ladder_folder(
        tmp_path / "odd", {NAME: drawn("uint4,channel,scale=float16,zero=midpoint", k=44)}
    )
    with pytest.raises(Unsupported, match="a row of up to 48 codes ends within a word"):
        export(odd, tmp_path / "out", "gptq")
    assert not (tmp_path / "out").exists()


def test_shards_and_other_files_follow_the_source(tmp_path):
    layers = [tensors_of({f"layers.{i}.q_proj": gptq(N, K, seed=i)}) for i in range(2)]
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    source = write_folder(tmp_path / "source", settings, layers)
    there_and_back(source, tmp_path, "gptq")
    assert len([*(tmp_path / "out").glob("*.safetensors")]) == 2
    assert (tmp_path / "out" / "extra" / "notes.txt").read_text() == "carried over"
    (tmp_path / "ladder" / "plans.json").write_text("{}")
    export(tmp_path / "ladder", tmp_path / "out", "gptq", force=True)
    assert not (tmp_path / "out" / "plans.json").exists()


def test_the_command(tmp_path):
    other = {"a.up_proj": drawn("nf4,group=32,scale=float16")}
    source = ladder_folder(tmp_path / "ladder", {NAME: drawn(UINT), **other})
    options = ["--format", "gptq", "--dense", "up_proj", "--json"]
    said = CliRunner().invoke(app, ["export", str(source), str(tmp_path / "out"), *options])
    assert said.exit_code == 0, said.output
    assert json.loads(said.output)["modules"] == 1
    refused = CliRunner().invoke(app, ["export", str(source), str(tmp_path / "b")])
    assert refused.exit_code != 0 and isinstance(refused.exception, Unsupported | SystemExit)
