# SPDX-License-Identifier: Apache-2.0
"""compressed-tensors: what a config says of modules, and layers of every kind, to the bit."""

import json
import logging

import numpy as np
import pytest
import torch
from checkpoint_oracle import FLOATS, compressed, compressed_settings, tensors_of, write_folder
from safetensors.torch import load_file

from ladder import types
from ladder.checkpoints import compressed_tensors as ct
from ladder.checkpoints import open_folder, repack
from ladder.checkpoints.compressed_config import Config
from ladder.checkpoints.info import describe
from ladder.checkpoints.layer import stored, type_of, unpack_layer
from ladder.errors import CheckpointError, Unsupported
from ladder.weight import Weight

KINDS = {
    **{f"pack_{bits}": {"bits": bits, "symmetric": False} for bits in range(1, 9)},
    **{f"words_{b}": {"bits": b, "symmetric": False, "whole_words": True} for b in (3, 5, 6, 7)},
    "symmetric": {},
    "channel": {"group": -1, "symmetric": False},
    "act_order": {"order": True, "symmetric": False},
    "int_8": {"bits": 8, "form": "int-quantized", "symmetric": False},
    "int_5": {"bits": 5, "form": "naive-quantized", "symmetric": False},
    **{
        form: {"bits": {4: 8, 2: 4 if m == 1 else 6}[e], "form": form, "group": group}
        for (form, (e, m)) in FLOATS.items()
        for group in [16 if form.startswith("nv") else 32]
    },
}
#: More than 160 columns and rows, below which the words of a row may not tell how it is packed.
N, K = 192, 224


def draw(kind, n=N, k=K):
    options = KINDS[kind]
    settings = {key: value for key, value in options.items() if key != "whole_words"}
    return compressed(n, k, **options), compressed_settings(**settings)


def folder_of(path, kind, **layers):
    truth, settings = draw(kind)
    tensors = tensors_of({"layer": truth}) | {"norm.weight": torch.ones(4)} | layers
    return truth, write_folder(path, settings, [tensors])


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_and_its_repacked_self_mean_what_was_drawn(tmp_path, kind):
    truth, source = folder_of(tmp_path / "src", kind)
    ((name, direct),) = open_folder(source)
    report = repack(source, tmp_path / "dst")
    tensors = load_file(tmp_path / "dst" / "model.safetensors")
    config = json.loads((tmp_path / "dst" / "config.json").read_text())["quantization_config"]
    parts = {key.removeprefix("layer."): t for key, t in tensors.items() if key != "norm.weight"}
    again = Weight(types.parse(config["weight_type"]), (N, K), **parts)
    again.check()
    for weight in (direct, again):
        assert torch.equal(weight.dequantize(), torch.from_numpy(truth.weight.astype(np.float32)))
    assert (name, report.quant_method) == ("layer", "compressed-tensors")
    (row,) = describe(source)["modules"]
    assert (row["n"], row["k"], row["type"]) == (N, K, str(again.type))
    assert row["act_order"] == ("g_idx" in parts) == (kind == "act_order")


@pytest.mark.parametrize("bits", [3, 5])
@pytest.mark.parametrize(("n", "k"), [(48, K), (N, 48)])
def test_of_codes_and_zero_points_one_tells_how_words_of_the_other_are_filled(bits, n, k):
    """48 of either take as many words in both ways."""
    truth, settings = draw(f"words_{bits}", n, k)
    scheme = Config.from_dict(settings).for_module("layer")
    weight = unpack_layer(ct, truth.tensors, scheme, "layer")
    assert torch.equal(weight.dequantize(), torch.from_numpy(truth.weight).float())


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_made_canonical_alone_are_the_weight(kind):
    """On the meta device too, where a tensor has no values to look at and cannot come back from."""
    truth, settings = draw(kind)
    scheme = Config.from_dict(settings).for_module("layer")
    layer = ct.measure(stored(truth.tensors), scheme, "layer", K)
    parts = dict(ct.canonical(part, t, layer) for part, t in truth.tensors.items())
    parts.pop("", None)
    zero = "integer" if "zeros" in parts else layer.fixed_zero
    type = type_of(layer, zero=zero, scale_dtype=parts["scales"].dtype)
    weight = Weight(type, (N, K), **parts)
    weight.check()
    assert torch.equal(weight.dequantize(), torch.from_numpy(truth.weight.astype(np.float32)))
    on_meta = dict(ct.canonical(p, t.to("meta"), layer) for p, t in truth.tensors.items())
    for part, tensor in parts.items():
        found = on_meta[part]
        assert (found.device.type, found.dtype, found.shape) == ("meta", tensor.dtype, tensor.shape)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_unpacked_apart_are_the_rows_unpacked_together(kind):
    truth, settings = draw(kind)
    layer = ct.measure(stored(truth.tensors), Config.from_dict(settings).for_module("x"), "x", K)
    codes = truth.tensors[ct.codes_part(truth.tensors)]
    before = codes.clone().view(torch.uint8)
    apart = [ct.words(codes, layer, slice(n, n + 64)) for n in range(0, N, 64)]
    assert torch.equal(torch.cat(apart), ct.words(codes, layer, slice(None)))
    assert torch.equal(codes.view(torch.uint8), before), "stored codes stay as they were"


def unpacked(truth, settings=None):
    scheme = Config.from_dict(settings or compressed_settings()).for_module("layer")
    return unpack_layer(ct, truth.tensors, scheme, "layer")


def test_a_row_that_ends_within_a_word_takes_k_from_weight_shape():
    """Of one group a row, headers leave K open; bits past K may be anything."""
    truth = compressed(32, 44, group=-1)
    truth.tensors["weight_packed"][:, -1] |= torch.tensor(0x7FFF0000, dtype=torch.int32)
    before = truth.tensors["weight_packed"].clone()
    weight = unpacked(truth, compressed_settings(group=-1))
    assert weight.shape == (32, 44)
    assert np.array_equal(weight.codes().numpy(), truth.codes)
    assert (weight.qweight[:, -1] >> 16 == 0).all()
    assert torch.equal(truth.tensors["weight_packed"], before)


def test_k_of_headers_is_that_of_the_caller_where_it_fits():
    parts, scheme = stored(compressed(32, 44, group=-1).tensors), compressed_settings(group=-1)
    scheme = Config.from_dict(scheme).for_module("layer")
    assert ct.measure(parts, scheme, "layer", 44).k == 44
    assert ct.measure(parts, scheme, "layer").k == 48
    assert ct.measure(parts, scheme, "layer", 99).k == 48


def test_a_g_idx_that_was_never_filled_means_none():
    truth = compressed(32, 64)
    truth.tensors["weight_g_idx"] = torch.full((64,), -1, dtype=torch.int32)
    weight = unpacked(truth)
    assert weight.g_idx is None
    assert torch.equal(weight.dequantize(), torch.from_numpy(truth.weight))


def test_zeros_that_all_are_zero_are_not_stored():
    truth = compressed(32, 64, form="int-quantized", bits=8)
    truth.tensors["weight_zero_point"] = torch.zeros(32, 2, dtype=torch.int8)
    weight = unpacked(truth, compressed_settings(form="int-quantized", bits=8))
    assert weight.zeros is None and weight.type.zero == "midpoint"


def test_scales_of_a_whole_tensor_and_of_blocks():
    truth = compressed(32, 64, form="float-quantized", bits=8, group=-1)
    settings = compressed_settings(form="float-quantized", bits=8, group=-1)
    fields = settings["config_groups"]["group_0"]["weights"]
    values = torch.from_numpy(truth.codes).float()
    for shape in ((), (1,), (1, 1)):
        fields["strategy"] = "tensor"
        truth.tensors["weight_scale"] = torch.tensor(0.5).reshape(shape)
        weight = unpacked(truth, settings)
        assert str(weight.type) == "float8_e4m3,tensor,scale=float32"
        assert torch.equal(weight.dequantize(), values / 2)
    for spelled in ([24, 48], "24x48"):
        fields |= {"strategy": "block", "block_structure": spelled}
        truth.tensors["weight_scale"] = torch.tensor([[1.0, 2.0], [4.0, 8.0]])
        weight = unpacked(truth, settings)
        assert str(weight.type) == "float8_e4m3,block=24x48,scale=float32"
        rows, columns = torch.arange(32) // 24, torch.arange(64) // 48
        scales = truth.tensors["weight_scale"][rows][:, columns]
        assert torch.equal(weight.dequantize(), values * scales)


# --- what a config says of a module ---------------------------------------------------------------


def scheme(bits, *targets, **fields):
    weights = {"num_bits": bits, "group_size": 32} | fields.pop("weights", {})
    return {"targets": list(targets), "weights": weights} | fields


def config(*groups, **fields):
    named = {f"group_{at}": group for at, group in enumerate(groups)}
    return Config.from_dict({"format": "pack-quantized", "config_groups": named} | fields)


def bits_of(made, name):
    found = made.for_module(name)
    return found and found.bits


def test_a_name_goes_before_an_expression_and_that_before_a_class():
    made = config(
        scheme(2, "Linear"), scheme(3, r"re:.*down_proj$"), scheme(4, "a.down_proj"),
        scheme(5, r"re:b\..*"), ignore=["lm_head", r"re:vision\..*"],
    )  # fmt: skip
    found = [bits_of(made, name) for name in ("a.up_proj", "a.down_proj", "c.down_proj", "x.b.up")]
    assert found == [2, 4, 3, 2], "expressions match from the start"
    assert bits_of(made, "b.down_proj") == 3, "among expressions the alphabet decides"
    assert bits_of(made, "lm_head") is bits_of(made, "vision.0.up_proj") is None
    assert bits_of(made, "a.lm_head") == 2, "a name is whole"
    assert bits_of(config(scheme(4, "LlamaAttention", "re:x")), "a.up_proj") is None


def test_an_embedding_is_no_linear(tmp_path, left_nothing):
    made = config(scheme(4, "Linear"), scheme(8, "Embedding"))
    assert bits_of(made, "model.embed_tokens") == 8
    assert bits_of(made, "model.up_proj") == 4
    truth, settings = draw("symmetric")
    tensors = tensors_of({"model.embed_tokens": truth})
    settings["config_groups"]["group_0"]["targets"].append("Embedding")
    source = write_folder(tmp_path / "src", settings, [tensors])
    with pytest.raises(Unsupported, match="embed_tokens.weight_packed is an .*--embeddings"):
        repack(source, left_nothing)


def test_only_an_order_of_groups_has_a_g_idx():
    made = {
        str(order): config(scheme(4, "Linear", weights={"actorder": order})).for_module("layer")
        for order in ("group", "dynamic", "GROUP", True, "weight", "static", False, None)
    }
    with_g_idx = {order for order, found in made.items() if found.act_order}
    assert with_g_idx == {"group", "dynamic", "GROUP", "True"}


def test_a_group_without_weights_leaves_its_modules_dense():
    made = config({"targets": ["re:a"], "weights": None}, scheme(4, "Linear"))
    assert bits_of(made, "a.up_proj") is None
    assert bits_of(made, "b.up_proj") == 4


def test_groups_of_a_mixed_folder_have_formats_of_their_own(tmp_path):
    fp8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
    settings = {
        "quant_method": "compressed-tensors", "format": "mixed-precision",
        "config_groups": {
            "a": {"targets": ["Linear"], "format": "pack-quantized",
                  "weights": {"num_bits": 4, "group_size": 32}},
            "b": {"targets": ["re:.*down"], "format": "float-quantized", "weights": fp8},
        },
    }  # fmt: skip
    up, down = compressed(32, 64), compressed(64, 32, bits=8, form="float-quantized", group=-1)
    tensors = tensors_of({"up": up, "down": down}) | {"gate.weight": torch.ones(4, 4)}
    source = write_folder(tmp_path / "src", settings, [tensors])
    weights = dict(open_folder(source))
    assert str(weights["up"].type) == "uint4,group=32,scale=float16,zero=midpoint"
    assert str(weights["down"].type) == "float8_e4m3,scale=float16"
    repack(source, tmp_path / "dst")
    made = json.loads((tmp_path / "dst/config.json").read_text())["quantization_config"]
    assert made["modules_to_not_convert"] == ["gate", "lm_head"]
    assert {made["weight_type"], *made["modules"].values()} == {
        str(w.type) for w in weights.values()
    }
    del settings["config_groups"]["a"]["format"]
    with pytest.raises(CheckpointError, match=r"config_groups.a.format is missing"):
        Config.from_dict(settings)


@pytest.mark.parametrize("nested", [False, True])
def test_the_older_key_is_read_and_replaced(tmp_path, nested):
    truth, settings = draw("symmetric")
    del settings["quant_method"]
    source = write_folder(tmp_path / "src", None, [tensors_of({"layer": truth})])
    fields = json.loads((source / "config.json").read_text())
    old = {"quantization_config": settings, "sparsity_config": {}} if nested else settings
    (source / "config.json").write_text(json.dumps(fields | {"compression_config": old}))
    assert describe(source)["quant_method"] == "compressed-tensors"
    repack(source, tmp_path / "dst")
    made = json.loads((tmp_path / "dst" / "config.json").read_text())
    assert made["quantization_config"]["quant_method"] == "ladder"
    assert "compression_config" not in made


def test_a_cache_scheme_is_left_out_and_said(caplog):
    with caplog.at_level(logging.WARNING, "ladder"):
        config(scheme(4, "Linear"), kv_cache_scheme={"num_bits": 8, "type": "float"})
    assert "kv_cache_scheme is not used: the cache keeps the model's dtype" in caplog.text


DYNAMIC = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
REFUSED = [
    ({"output_activations": DYNAMIC}, Unsupported, "output_activations is float8, dynamic, per "
     "token: ladder rounds no outputs"),
    ({"input_activations": 8}, CheckpointError, "input_activations is 8, not an object"),
    ({"input_activations": {"type": "fp"}}, CheckpointError, "type is 'fp', not int or float"),
    ({"input_activations": {"dynamic": "yes"}}, CheckpointError, "dynamic is 'yes', not true, f"),
    ({"format": "marlin-24"}, Unsupported, "format is 'marlin-24': its weights are not comp"),
    ({"format": "dense"}, Unsupported, "format is 'dense': its weights are not compressed"),
    ({"format": "gguf"}, CheckpointError, "format is 'gguf', not pack-quantized or"),
    ({"format": "mxfp4-pack-quantized"}, CheckpointError, "type is 'int', which is not of mxfp4"),
    ({"weights": 4}, CheckpointError, "weights is 4, not an object"),
    ({"weights": {"num_bits": 9, "group_size": 32}}, CheckpointError, "is 9, pack-quantized has 1"),
    ({"weights": {"num_bits": 4, "type": "float"}}, CheckpointError, "type is 'float', which is"),
    ({"weights": {"num_bits": 4, "group_size": 4}}, Unsupported, "group_size is 4, ladder"),
    ({"weights": {"strategy": "token"}}, CheckpointError, "strategy is 'token', not one of"),
    ({"weights": {"strategy": "tensor_group"}}, CheckpointError, "'tensor_group', which is not of"),
    ({"weights": {"dynamic": True}}, CheckpointError, "dynamic is true"),
    ({"weights": {"strategy": "block"}}, CheckpointError, "block_structure is None, not .rows"),
    ({"weights": {"strategy": "block", "block_structure": [128, 4]}}, CheckpointError, "128, 4"),
    ({"weights": {"num_bits": 8, "type": "float", "symmetric": False}, "format": "float-quantized"},
     Unsupported, "symmetric is false: ladder has no zero points of floats"),
    ({"weights": {"num_bits": 4, "type": "float", "group_size": 16},
      "format": "mxfp4-pack-quantized"}, CheckpointError, "group_size is 16 of strategy group, mx"),
    ({"targets": "Linear"}, CheckpointError, "targets is 'Linear', not a list of names"),
    ({"targets": ["re:("]}, CheckpointError, r"targets: 're:\(' is not a regular expression"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "message"), REFUSED, ids=[m for *_, m in REFUSED])
def test_a_scheme_that_is_not_read_is_named_with_its_value(changes, error, message):
    weights = {"num_bits": 4, "group_size": 32}
    with pytest.raises(error, match=message):
        config({"targets": ["Linear"], "weights": weights} | changes)


WHOLE = [
    ({"sparsity_config": {"format": "sparse-24-bitmask"}}, Unsupported, "no sparse weights"),
    ({"format": "marlin-24"}, Unsupported, "format is 'marlin-24': ladder reads no sparse"),
    ({"transform_config": {"config_groups": {"u": {}}}}, Unsupported, "transform_config has u"),
    ({"config_groups": {}}, CheckpointError, "config_groups is {}, not an object of groups"),
    ({"config_groups": {"W4A16": ["Linear"]}}, CheckpointError, "W4A16 is .'Linear'., not an obj"),
    ({"ignore": [3]}, CheckpointError, r"ignore is \[3\], not a list of names"),
]


@pytest.mark.parametrize(("changes", "error", "message"), WHOLE, ids=[m for *_, m in WHOLE])
def test_a_folder_that_is_not_read_is_named_with_its_value(changes, error, message):
    with pytest.raises(error, match=message):
        config(scheme(4, "Linear"), **changes)
    config(scheme(4, "Linear"), sparsity_config={"format": "dense"}, transform_config={})


# --- damaged layers -------------------------------------------------------------------------------

ASYMMETRIC = compressed(32, 64, symmetric=False, order=True)


def changed(part, change):
    tensor = ASYMMETRIC.tensors[part].clone()
    result = change(tensor)
    return {part: tensor if result is None else result}


def put(at, value):
    def change(tensor):
        tensor[at] = value

    return change


DAMAGED = [
    ({"weight_packed": None}, r"layer.weight_packed is missing"),
    ({"weight_scale": None}, r"layer.weight_scale is missing; layer has weight_g_idx, weight_p"),
    ({"weight_zero_point": None}, r"layer.weight_zero_point is missing"),
    ({"weight_g_idx": None}, r"layer.weight_g_idx is missing"),
    (
        changed("weight_packed", lambda t: t[:, :-1].contiguous()),
        r"has 7 words a row, but 64 codes of 4 bits need 8",
    ),
    (changed("weight_packed", lambda t: t.float()), r"layer.weight_packed is float32, not int32"),
    (changed("weight_packed", lambda t: t[0].clone()), r"has shape \[8\], not two dimensions"),
    (changed("weight_scale", lambda t: t[:, :1].clone()), r"weight_scale has shape \[32, 1\], not"),
    (changed("weight_scale", put((3, 1), float("nan"))), r"layer.weight_scale\[3, 1\] is nan"),
    (changed("weight_scale", lambda t: t.double()), r"layer.weight_scale is F64, not float16 or"),
    (changed("weight_zero_point", lambda t: t[:-1].clone()), r"shape \[3, 2\], not \[4, 2\]"),
    (changed("weight_g_idx", put(5, 2)), r"layer.weight_g_idx\[5\] is 2, not one of the 2 groups"),
    (changed("weight_g_idx", lambda t: t.long()), r"layer.weight_g_idx is int64, not int32"),
    (changed("weight_shape", put(0, 31)), r"weight_shape is \[31, 64\], but .* is of \[32, 64\]"),
    (changed("weight_shape", lambda t: t[:1].clone()), r"weight_shape has shape \[1\], not \[2\]"),
    ({"weight": torch.ones(32, 64).half()}, r"layer.weight is there, but pack-quantized stores"),
    ({"qweight": torch.ones(32, 8).int()}, r"layer.qweight is there, but compressed_tensors has"),
]


@pytest.mark.parametrize(("changes", "message"), DAMAGED, ids=[m for _, m in DAMAGED])
def test_a_bad_tensor_is_named_with_both_values(tmp_path, left_nothing, changes, message):
    parts = ASYMMETRIC.tensors | changes
    tensors = {f"layer.{part}": tensor for part, tensor in parts.items() if tensor is not None}
    settings = compressed_settings(symmetric=False, order=True)
    with pytest.raises(CheckpointError, match=message):
        repack(write_folder(tmp_path / "src", settings, [tensors]), left_nothing)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("nvfp4-pack-quantized", {"weight_global_scale": torch.zeros(1)}, "global_scale.0. is inf"),
        ("nvfp4-pack-quantized", {"weight_global_scale": None}, "weight_global_scale is missing"),
        ("nvfp4-pack-quantized", {"weight_scale": torch.ones(N, K // 16)}, "float32, not float8"),
        ("mxfp4-pack-quantized", {"weight_scale": torch.full((N, K // 32), 255).byte()}, "is nan"),
        ("float-quantized", {"weight_zero_point": torch.ones(N, K // 32).char()}, "is not zero"),
        ("float-quantized", {"weight": torch.ones(N, K).char()}, "weight is int8, not float8"),
        ("int_8", {"weight": torch.ones(N, K)}, "weight is float32, not int8"),
    ],
)
def test_a_bad_tensor_of_other_formats_is_named(tmp_path, left_nothing, kind, changes, message):
    truth, settings = draw(kind)
    parts = truth.tensors | changes
    tensors = {f"layer.{part}": tensor for part, tensor in parts.items() if tensor is not None}
    with pytest.raises(CheckpointError, match=message):
        repack(write_folder(tmp_path / "src", settings, [tensors]), left_nothing)


def test_a_module_that_is_stored_packed_but_ignored_is_named(tmp_path, left_nothing):
    truth, settings = draw("symmetric")
    settings["ignore"] = ["re:lay"]
    source = write_folder(tmp_path / "src", settings, [tensors_of({"layer": truth})])
    with pytest.raises(CheckpointError, match="layer.weight_packed is there, but .* unquantised"):
        repack(source, left_nothing)
