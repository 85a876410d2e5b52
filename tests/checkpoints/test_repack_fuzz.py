# SPDX-License-Identifier: Apache-2.0
"""Damaged checkpoints: any outcome but a typed error or a whole result is a bug."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from checkpoint_oracle import (
    FBGEMM,
    awq,
    compressed,
    compressed_settings,
    fp8,
    fp8_settings,
    gptq,
    tensors_of,
    write_folder,
)  # fmt: skip
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_oracle import mlx, write_mlx
from more_oracles import (
    BITNET,
    GEMMA,
    INT8,
    NF4,
    bitnet,
    bnb,
    gemma,
    llm_int8,
    quark,
    quark_settings,
    told,
)
from safetensors.torch import load_file, save_file
from subclass_oracles import HQQ, TORCHAO, hqq, torchao, torchao_said

from ladder.checkpoints import repack
from ladder.checkpoints.header import read_header
from ladder.errors import LadderError

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": {"-:norm": {}}}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
COMPRESSED = compressed_settings(symmetric=False, order=True)
AUTO_ROUND = GPTQ | {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}
QUARK = quark_settings("fp4", "per_group", x={"is_dynamic": True})
KINDS = ["gptq", "awq", "compressed", "fp8", "fbgemm", "auto-round", "bitnet", "nf4", "int8",
         "quark", "hqq", "torchao", "mlx", "gemma"]  # fmt: skip


@pytest.fixture(scope="module")
def folders():
    with tempfile.TemporaryDirectory() as top:
        layers = {"a": gptq(32, 64, order=True, symmetric=False), "b": gptq(32, 64)}
        tensors = tensors_of(layers) | {"norm.weight": torch.ones(4)}
        halves = [{n: t for n, t in tensors.items() if (n[0] == "b") == b} for b in (0, 1)]
        write_folder(Path(top, "gptq"), GPTQ, halves)
        write_folder(Path(top, "awq"), AWQ, [tensors_of({"a": awq(32, 64)})])
        packed = tensors_of({"a": compressed(32, 64, symmetric=False, order=True)})
        write_folder(Path(top, "compressed"), COMPRESSED, [packed])
        write_folder(Path(top, "fp8"), fp8_settings(), [tensors_of({"a": fp8(32, 64)})])
        packed = tensors_of({"a": fp8(32, 64, kind="channel")})
        write_folder(Path(top, "fbgemm"), FBGEMM, [packed])
        packed = tensors_of({"a": gptq(32, 64, g_idx=False)})
        write_folder(Path(top, "auto-round"), AUTO_ROUND, [packed])
        write_folder(Path(top, "bitnet"), BITNET, [tensors_of({"a": bitnet(32, 64)})])
        write_folder(Path(top, "nf4"), NF4, [tensors_of({"a": bnb(8, 64, nested=True)})])
        write_folder(Path(top, "int8"), INT8, [tensors_of({"a": llm_int8(8, 64)})])
        write_folder(Path(top, "quark"), QUARK, [tensors_of({"a": quark(8, 64, "fp4")})])
        layers = {"a": gemma(8, 64, x=0.5, y=0.5), "embed": gemma(8, 64, table=2)}
        write_folder(Path(top, "gemma"), GEMMA, [tensors_of(layers)])
        write_folder(Path(top, "hqq"), HQQ, [tensors_of({"a": hqq(8, 64)})])
        write_folder(Path(top, "torchao"), TORCHAO, [tensors_of({"a": torchao(8, 64)})])
        say(Path(top, "torchao"), torchao_said())
        stack = torch.stack([mlx(8, 64, seed=seed).tensors["weight"] for seed in (0, 1)])
        tensors = tensors_of({"a": mlx(8, 64)}) | {"mlp.switch_mlp.up_proj.weight": stack}
        tensors |= {f"mlp.switch_mlp.up_proj.{p}": mlx(16, 64).tensors[p].view(2, 8, 2)
                    for p in ("scales", "biases")}  # fmt: skip
        write_mlx(Path(top, "mlx"), tensors, quantization=None)
        yield top


def say(folder: Path, said: str) -> None:
    """Write metadata of torchao into a folder of one layer."""
    file = folder / "model.safetensors"
    save_file(load_file(file), file, metadata={"a.weight": said, "format": "pt"})


def repack_damaged(source: Path) -> None:
    """Repack, and check that there is a whole result or none at all."""
    parent = source.parent / "out"
    parent.mkdir()
    try:
        repack(source, parent / "model")
    except LadderError as error:
        assert str(error)
        assert list(parent.iterdir()) == []
        return
    assert [p.name for p in parent.iterdir()] == ["model"]
    for shard in (parent / "model").glob("*.safetensors"):
        read_header(shard)
    json.loads((parent / "model" / "config.json").read_text())


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_damaged_bytes_give_a_typed_error_or_a_whole_result(folders, data):
    with tempfile.TemporaryDirectory() as top:
        source = Path(top, "src")
        kind = data.draw(st.sampled_from(KINDS))
        shutil.copytree(Path(folders, kind), source)
        names = sorted(p.name for p in source.iterdir() if p.is_file())
        path = source / data.draw(st.sampled_from(names))
        raw = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            # mostly in the header, where a byte means most
            at = data.draw(st.integers(0, min(len(raw) - 1, 900)) | st.integers(0, len(raw) - 1))
            raw[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
            raw = raw or bytearray(b"0")
        path.write_bytes(raw)
        repack_damaged(source)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 40) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)
words = st.sampled_from(["gptq", "gptq_v2", "gptq_p", "awq", "gemm", "gemv", "gemv_fast",
                         "affine", "mxfp4", "nvfp4"])  # fmt: skip
keys = [
    "quant_method", "bits", "group_size", "format", "checkpoint_format", "version", "dynamic",
    "sym", "desc_act", "backend", "zero_point", "modules_to_not_convert", "pack_dtype",
    "weight_block_size", "activation_scheme", "ignored_layers", "fmt", "packing_format",
    "extra_config", "data_type", "act_bits", "linear_class", "quantization_mode", "use_rms_norm",
    "load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "global_quant_config", "export",
    "layer_quant_config", "kv_cache_quant_config", "exclude", "algo_config", "quant_type",
    "quant_config", "skip_modules", "mode", "a", "mlp.switch_mlp.up_proj", "num_bits",
    "module_quant_configs", "quantize_embeddings",
]  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from([kind for kind in KINDS if kind != "compressed"]),
    st.dictionaries(st.sampled_from(keys), values | words),
)
def test_any_settings_give_a_typed_error_or_a_whole_result(folders, kind, changes):
    with tempfile.TemporaryDirectory() as top:
        source = Path(top, "src")
        shutil.copytree(Path(folders, kind), source)
        config = json.loads((source / "config.json").read_text())
        config["quantization_config"] |= changes
        (source / "config.json").write_text(json.dumps(config))
        repack_damaged(source)


formats = st.sampled_from(["pack-quantized", "int-quantized", "mxfp4-pack-quantized", "dense"])
strategies = st.sampled_from(
    ["tensor", "channel", "group", "tensor_group", "block", "int", "float"]
)
group_keys = ["targets", "weights", "format", "input_activations"]
weight_keys = ["num_bits", "type", "strategy", "group_size", "block_structure", "symmetric",
               "actorder", "dynamic"]  # fmt: skip
schemes = st.dictionaries(st.sampled_from(weight_keys), values | strategies)


@settings(max_examples=120, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["config_groups", "ignore", "format"]), values | formats),
    st.dictionaries(st.sampled_from(group_keys), values | formats | schemes),
    schemes,
)
def test_any_scheme_gives_a_typed_error_or_a_whole_result(folders, whole, group, weights):
    with tempfile.TemporaryDirectory() as top:
        source = Path(top, "src")
        shutil.copytree(Path(folders, "compressed"), source)
        config = json.loads((source / "config.json").read_text())
        found = config["quantization_config"]["config_groups"]["group_0"]
        found["weights"] |= weights
        found |= group
        config["quantization_config"] |= whole
        (source / "config.json").write_text(json.dumps(config))
        repack_damaged(source)


@settings(max_examples=60, deadline=None)
@given(st.data(), schemes)
def test_any_shapes_of_compressed_tensors_give_a_typed_error_or_a_whole_result(data, weights):
    tensors = {}
    for part in ("packed", "scale", "zero_point", "g_idx", "shape", "global_scale"):
        if data.draw(st.integers(0, 5)):
            shape = data.draw(st.lists(st.sampled_from([0, 1, 2, 4, 8, 32, 64]), max_size=3))
            dtypes = [torch.int32, torch.float16, torch.int8, torch.uint8, torch.float8_e4m3fn]
            name = "a.weight" if part == "packed" and shape == [32, 64] else f"a.weight_{part}"
            tensors[name] = torch.zeros(shape, dtype=data.draw(st.sampled_from(dtypes)))
    config = compressed_settings(form=data.draw(formats))
    config["config_groups"]["group_0"]["weights"] |= weights
    with tempfile.TemporaryDirectory() as top:
        repack_damaged(write_folder(Path(top, "src"), config, [tensors]))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_shapes_of_fp8_give_a_typed_error_or_a_whole_result(data):
    tensors = {}
    for part in ("weight", "weight_scale_inv", "weight_scale", "input_scale"):
        if data.draw(st.integers(0, 3)):
            shape = data.draw(st.lists(st.sampled_from([0, 1, 2, 4, 8, 32, 64]), max_size=3))
            dtypes = [torch.float8_e4m3fn, torch.float32, torch.float8_e8m0fnu, torch.int8]
            at = data.draw(st.sampled_from([part != "weight"] * 4 + [0, 1, 2, 3]))
            tensors[f"a.{part}"] = torch.ones(shape).to(dtypes[at])
    config = fp8_settings(data.draw(st.sampled_from(["blocks", "static"])))
    block = data.draw(st.none() | st.lists(st.sampled_from([1, 8, 32, 128]), max_size=3))
    with tempfile.TemporaryDirectory() as top:
        config |= {"weight_block_size": block}
        repack_damaged(write_folder(Path(top, "src"), config, [tensors]))


quark_keys = ["dtype", "qscheme", "group_size", "scale_format", "is_dynamic", "symmetric",
              "is_scale_quant", "weight", "input_tensors", "output_tensors", "bias"]  # fmt: skip
quark_words = st.sampled_from(["fp8_e4m3", "int8", "fp4", "per_tensor", "per_group", "e8m0"])


@settings(max_examples=120, deadline=None)
@given(*[st.dictionaries(st.sampled_from(quark_keys), values | quark_words) for _ in range(3)])
def test_any_spec_of_quark_gives_a_typed_error_or_a_whole_result(folders, module, weights, inputs):
    with tempfile.TemporaryDirectory() as top:
        source = Path(top, "src")
        shutil.copytree(Path(folders, "quark"), source)
        config = json.loads((source / "config.json").read_text())
        usual = config["quantization_config"]["global_quant_config"]
        usual["weight"] |= weights
        usual["input_tensors"] |= inputs
        usual |= module
        (source / "config.json").write_text(json.dumps(config))
        repack_damaged(source)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_any_parts_of_bitsandbytes_give_a_typed_error_or_a_whole_result(data):
    """Parts left out, of other shapes and dtypes, and states with other fields."""
    nested = data.draw(st.booleans())
    tensors = bnb(8, 64, nested=nested, blocksize=32).tensors
    dtypes = [torch.uint8, torch.float32, torch.float16, torch.int8, torch.int64]
    for part in data.draw(st.lists(st.sampled_from(sorted(tensors)), max_size=2, unique=True)):
        shape = data.draw(st.lists(st.sampled_from([0, 1, 2, 8, 16, 64, 256]), max_size=3))
        tensors[part] = torch.ones(shape, dtype=data.draw(st.sampled_from(dtypes)))
    for part in data.draw(st.lists(st.sampled_from(sorted(tensors)), max_size=2, unique=True)):
        del tensors[part]
    fields = {"quant_type": "nf4", "blocksize": 32, "dtype": "float16", "shape": [8, 64]}
    fields |= (
        {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.5} if nested else {}
    )
    sizes = st.integers(1, 1 << 70)
    fields |= data.draw(
        st.dictionaries(st.sampled_from(sorted(fields)), values | sizes, max_size=2)
    )
    if data.draw(st.integers(0, 3)):
        tensors["weight.quant_state.bitsandbytes__nf4"] = told(fields)
    with tempfile.TemporaryDirectory() as top:
        stored = {f"a.{part}": tensor for part, tensor in tensors.items()}
        repack_damaged(write_folder(Path(top, "src"), NF4, [stored]))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_shapes_and_dtypes_give_a_typed_error_or_a_whole_result(data):
    dtypes = [torch.int32, torch.float16, torch.int16, torch.uint8, torch.int64]
    tensors = {}
    for part in ("qweight", "qzeros", "scales", "g_idx", "scaled_zeros"):
        if data.draw(st.integers(0, 5)):
            shape = data.draw(st.lists(st.sampled_from([0, 1, 2, 4, 8, 16, 32, 64]), max_size=3))
            dtype = data.draw(st.sampled_from(dtypes[:2] if part != "scales" else dtypes[1::-1]))
            dtype = data.draw(st.sampled_from([dtype] * 4 + dtypes))
            tensors[f"a.{part}"] = torch.zeros(shape, dtype=dtype)
    version = data.draw(st.sampled_from(["gemm", "gemv", "gemv_fast"]))
    chosen = data.draw(st.sampled_from([GPTQ, AWQ | {"version": version}]))
    group = data.draw(st.sampled_from([-1, 8, 32, 64]))
    with tempfile.TemporaryDirectory() as top:
        repack_damaged(write_folder(Path(top, "src"), chosen | {"group_size": group}, [tensors]))


torchao_keys = ["target_dtype", "block_size", "dtype", "activation_quantization", "shape",
                "elem_dtype", "act_quant_kwargs", "is_swizzled_scales", "orig_dtype"]  # fmt: skip
torchao_kinds = ["Int8Tensor", "IntxUnpackedToInt8Tensor", "Float8Tensor", "Int4Tensor", "MXTensor",
                 "NVFP4Tensor", "Int4TilePackedTo4dTensor", "Tensor", "AffineTensor"]  # fmt: skip
torchao_words = st.sampled_from(["int4", "int1", "float8_e4m3fn", "float4_e2m1fn_x2", "bfloat16"])
torchao_values = values | torchao_words | st.lists(st.integers(-1, 64), max_size=3)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(torchao_kinds),
    st.dictionaries(st.sampled_from(torchao_keys), torchao_values),
    st.dictionaries(st.text(max_size=8), values) | st.just({"fqn_to_config": {"a": None}}),
)
def test_any_metadata_of_torchao_gives_a_typed_error_or_a_whole_result(folders, kind, data, config):
    with tempfile.TemporaryDirectory() as top:
        source = Path(top, "src")
        shutil.copytree(Path(folders, "torchao"), source)
        say(source, torchao_said(kind, **data))
        fields = json.loads((source / "config.json").read_text())
        quant_type = {"default": {"_type": "FqnToConfig", "_data": config}}
        fields["quantization_config"]["quant_type"] = quant_type
        (source / "config.json").write_text(json.dumps(fields))
        repack_damaged(source)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_parts_of_hqq_give_a_typed_error_or_a_whole_result(data):
    """Parts left out, and of other shapes, dtypes and values."""
    tensors = hqq(8, 64).tensors
    dtypes = [torch.uint8, torch.float32, torch.float16, torch.int32, torch.int64]
    for part in data.draw(st.lists(st.sampled_from(sorted(tensors)), max_size=3, unique=True)):
        shape = data.draw(st.lists(st.sampled_from([0, 1, 2, 8, 16, 32, 64]), max_size=3))
        value = data.draw(st.integers(0, 200))
        dtype = data.draw(st.sampled_from(dtypes))
        tensors[part] = torch.full(shape, value, dtype=dtype)
    for part in data.draw(st.lists(st.sampled_from(sorted(tensors)), max_size=2, unique=True)):
        del tensors[part]
    settings = data.draw(st.sampled_from([HQQ, {"quant_method": "hqq"}]))
    with tempfile.TemporaryDirectory() as top:
        packed = {f"a.{part}": tensor for part, tensor in tensors.items()}
        repack_damaged(write_folder(Path(top, "src"), settings, [packed]))
