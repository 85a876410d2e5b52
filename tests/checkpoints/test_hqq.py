# SPDX-License-Identifier: Apache-2.0
"""quant_method "hqq": what is read beside the layers of test_real_packers.py, and what is refused.

``fixtures/make_hqq.py`` made the layers."""

import json
from pathlib import Path

import pytest
import torch
from checkpoint_oracle import write_folder
from safetensors import safe_open

from ladder.checkpoints import open_folder, repack
from ladder.checkpoints.convert import convert
from ladder.checkpoints.hqq_config import Config
from ladder.checkpoints.info import describe
from ladder.errors import CheckpointError, Unsupported
from ladder.integrations.serving.stored import Folder

FILE = Path(__file__).parent / "fixtures" / "hqq.safetensors"
with safe_open(FILE, "pt") as opened:
    SETTINGS = {name: json.loads(said) for name, said in sorted(opened.metadata().items())}
    TENSORS = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
HQQ = SETTINGS["hqq_4bit"]


def parts_of(name):
    stored = {key: t for key, t in TENSORS.items() if key.startswith(f"{name}.")}
    parts = {key.removeprefix(f"{name}."): tensor for key, tensor in stored.items()}
    return {part: t for part, t in parts.items() if part not in ("values", "decoded")}


def folder_of(path, parts, settings=HQQ, module="q_proj"):
    tensors = {f"{module}.{part}": tensor for part, tensor in parts.items()}
    return write_folder(path, settings, [tensors | {"gate.weight": torch.ones(4, 4).half()}])


def words(text):
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


@pytest.mark.parametrize("name", SETTINGS)
def test_values_are_hqqs_but_for_its_two_roundings(name, tmp_path):
    ((_, weight),) = open_folder(folder_of(tmp_path / "a", parts_of(name), SETTINGS[name]))
    values, decoded = weight.dequantize(), TENSORS[f"{name}.decoded"]
    # of code - zero and of the product, each to the dtype of the model, whose smallest numbers have
    # an error of their own
    kind = torch.finfo(decoded.dtype)
    unit, least = kind.eps / 2, kind.smallest_normal * kind.eps / 2
    if decoded.dtype == torch.float32:
        unit = least = 0
    error = (values - decoded.float()).abs()
    assert bool((error <= (2 * unit + unit**2) * values.abs() + least).all())


@pytest.mark.parametrize(("name", "text"), [
    ("hqq_8bit", "uint8,group=32,scale=float16,zero=original"),
    ("hqq_6bit", "uint6,group=32,scale=float32,zero=original"),
    ("hqq_4bit_cut_groups", "uint4,group=32,scale=float16,zero=original"),
    ("hqq_4bit_groups_of_rows", "uint4,scale=float16,zero=original"),
    ("hqq_4bit_one_scale", "uint4,tensor,scale=float16,zero=original"),
    ("hqq_3bit", "uint3,group=32,scale=float16,zero=original"),
    ("hqq_ternary", "uint2,group=32,scale=float16,zero=original"),
    ("hqq_1bit", "uint1,group=8,scale=bfloat16,zero=original"),
])  # fmt: skip
def test_codes_have_their_own_width_and_groups(name, text, tmp_path):
    (row,) = describe(folder_of(tmp_path / "a", parts_of(name), SETTINGS[name]))["modules"]
    assert (row["type"], row["activation_type"]) == (text, None)


def test_zero_points_in_the_middle_are_not_stored(tmp_path):
    parts = parts_of("hqq_4bit")
    parts["zero"] = torch.full_like(parts["zero"], 8)
    ((_, weight),) = open_folder(folder_of(tmp_path / "a", parts))
    assert str(weight.type) == "uint4,group=32,scale=float16,zero=midpoint"


def test_rows_are_unpacked_in_pieces_as_all_at_once(tmp_path):
    for name in ("hqq_4bit", "hqq_4bit_cut_groups", "hqq_3bit", "hqq_4bit_groups_of_rows"):
        source = open_folder(folder_of(tmp_path / name, parts_of(name), SETTINGS[name]))
        ((_, weight),) = source
        layer = source.layer("q_proj")
        pieces = [source.format.words(source._codes("q_proj"), layer, slice(n, n + 3))
                  for n in range(0, layer.n, 3)]  # fmt: skip
        assert torch.equal(torch.cat(pieces), weight.qweight)


def as_python(parts):
    """The state of a module as hqq itself pickles it."""
    text = {part: bytes(t.tolist()).decode() for part, t in parts.items()
            if part in ("packing", "compute_dtype", "unpack_view_dtype")}  # fmt: skip
    state = {part: t if t.dim() and part != "shape" else t.item() if t.dim() == 0 else t
             for part, t in parts.items()} | text  # fmt: skip
    state |= {part: getattr(torch, state[part].removeprefix("torch."))
              for part in ("compute_dtype", "unpack_view_dtype")}  # fmt: skip
    state["shape"] = torch.Size(parts["shape"].tolist())
    flags = ("quant_scale", "quant_zero", "view_as_float", "offload_meta", "channel_wise",
             "optimize", "round_zero", "stores_quant_config")  # fmt: skip
    state |= {flag: bool(state[flag]) for flag in flags}
    del state["encoded_state_dict"]
    return state


@pytest.mark.parametrize("name", ["hqq_4bit", "hqq_3bit", "hqq_6bit", "hqq_ternary"])
def test_a_pickle_of_hqq_without_settings_is_read(name, tmp_path):
    """AutoHQQHFModel.save_quantized writes qmodel.pt, and config.json of the dense model."""
    source = write_folder(tmp_path / "a", None, [{"x": torch.ones(1)}])
    (source / "model.safetensors").unlink()
    state = as_python(parts_of(name))
    weights = {"q_proj": state, "gate": {"weight": torch.ones(4, 4).half()}}
    torch.save(weights, source / "qmodel.pt")
    repack(source, tmp_path / "b")
    assert not (tmp_path / "b" / "qmodel.pt").exists()
    ((_, weight),) = open_folder(source)
    assert torch.equal(weight.dequantize(), TENSORS[f"{name}.values"])
    made = json.loads((tmp_path / "b" / "config.json").read_text())["quantization_config"]
    assert made["weight_type"] == str(weight.type)
    assert made["source"] == {"quant_method": "hqq"}


def test_the_first_pickles_of_hqq_keep_all_but_the_codes_in_meta(tmp_path):
    source = write_folder(tmp_path / "a", None, [{"x": torch.ones(1)}])
    (source / "model.safetensors").unlink()
    state = as_python(parts_of("hqq_4bit"))
    torch.save({"q_proj": {"W_q": state.pop("W_q"), "meta": state}}, source / "qmodel.pt")
    ((_, weight),) = open_folder(source)
    assert torch.equal(weight.dequantize(), TENSORS["hqq_4bit.values"])


def test_safetensors_of_hqq_without_settings_are_read_and_not_quantised_again(tmp_path):
    source = folder_of(tmp_path / "a", parts_of("hqq_3bit"), None)
    ((_, weight),) = open_folder(source)
    assert torch.equal(weight.dequantize(), TENSORS["hqq_3bit.values"])
    with pytest.raises(CheckpointError, match="is quantised already, by hqq: `ladder repack`"):
        convert(source, tmp_path / "b")


def settings(**changes):
    """The settings of a layer of 4 bits, with other weight_quant_params."""
    usual = HQQ["quant_config"]
    return HQQ | {
        "quant_config": usual | {"weight_quant_params": usual["weight_quant_params"] | changes}
    }


def test_layers_have_the_settings_of_their_tags():
    of = HQQ["quant_config"]
    config = Config.from_dict(HQQ | {"quant_config": {"self_attn.q_proj": of, "mlp.up_proj": None}})
    assert config.for_module("model.layers.3.self_attn.q_proj").bits == 4
    assert config.for_module("model.layers.3.mlp.up_proj") is None
    assert config.for_module("model.layers.3.mlp.down_proj") is None
    assert Config.from_dict(HQQ).for_module("lm_head") is None


@pytest.mark.parametrize(("name", "part", "change", "why"), [
    ("hqq_4bit", "W_q", None, "W_q is missing"),
    ("hqq_4bit", "W_q", lambda t: t.int(), "torch.int32, which no packing gives"),
    ("hqq_4bit", "W_q", lambda t: t[:9].clone(), r"\[9, 32\] of torch.uint8, which no packing"),
    ("hqq_4bit", "W_q", lambda t: t[0].clone(), "not two dimensions"),
    ("hqq_4bit", "W_q", lambda t: t.view(torch.int16), "torch.int16, not uint8, int32 or a float"),
    ("hqq_4bit", "W_q", lambda t: t.repeat(2, 1), r"as codes of 8 bits of 32 groups; .* says 4"),
    ("hqq_4bit", "scale", None, "scale is missing"),
    ("hqq_4bit", "scale", lambda t: t / 0, r"scale\[0, 0\] is inf"),
    ("hqq_4bit", "scale", lambda t: t.flatten(), r"shape \[32\], not \[groups, 1\]"),
    ("hqq_4bit", "zero", lambda t: t * torch.nan, r"zero\[0, 0\] is nan"),
    ("hqq_4bit", "zero", lambda t: t[:5].clone(), r"\[5, 1\], not \[32, 1\]"),
    ("hqq_4bit", "zero", lambda t: t.float(), "is float32, not float16"),
    ("hqq_4bit", "shape", lambda t: t[:1].clone(), r"shape does not say \[N, K\]"),
    ("hqq_4bit", "shape", None, r"shape does not say \[N, K\]"),
    ("hqq_4bit", "shape", lambda t: t * 0, r"shape does not say \[N, K\]"),
    ("hqq_4bit", "shape", lambda t: t - 1, "1024 codes, not some rows of 63"),
    ("hqq_4bit", "shape", lambda t: t // 2, r"shape is \[8, 32\], and W_q is of \[32, 32\]"),
    ("hqq_4bit", "nbits", lambda t: t - 1, "nbits is 3, and W_q is of 4 bits"),
    ("hqq_4bit", "nbits", lambda t: t * torch.nan, "nbits is nan, and W_q is of 4 bits"),
    ("hqq_4bit", "nbits", lambda t: t / 0, "nbits is inf, and W_q is of 4 bits"),
    ("hqq_4bit", "axis", lambda t: t * 0, "axis is 0, not 1"),
    ("hqq_4bit", "group_size", lambda t: t * 2, "group_size is 64, not 32"),
    ("hqq_4bit", "packing", lambda t: words("2bit_u8"), "packing is '2bit_u8', and W_q is of '4"),
    ("hqq_4bit", "quant_scale", lambda t: t + 1, "quant_scale is 1, not 0"),
    ("hqq_6bit", "W_q", lambda t: t | 64, "has the code .* in row 0, beyond 6 bits"),
])  # fmt: skip
def test_damaged_layers_are_named(name, part, change, why, tmp_path, left_nothing):
    parts = parts_of(name)
    tensor = parts.pop(part)
    if change is not None:
        parts[part] = change(tensor)
    source = folder_of(tmp_path / "a", parts, SETTINGS[name])
    with pytest.raises(CheckpointError, match=why) as raised:
        repack(source, left_nothing)
    assert "q_proj." in str(raised.value)


@pytest.mark.parametrize(("changes", "error", "why"), [
    (settings(nbits=3), CheckpointError, "as codes of 4 bits .* says 3 bits"),
    (settings(nbits=7), CheckpointError, "nbits is 7, not one of 8, 6"),
    (settings(nbits="4"), CheckpointError, "nbits is '4', not one of"),
    (HQQ | {"quant_config": 4}, CheckpointError, "quant_config is 4, not an object"),
    (HQQ | {"skip_modules": "lm_head"}, CheckpointError, "skip_modules is 'lm_head', not a list"),
    (HQQ | {"skip_modules": ["q_proj"]}, CheckpointError, "leaves q_proj unquantised"),
])  # fmt: skip
def test_settings_that_ladder_cannot_follow(changes, error, why, tmp_path, left_nothing):
    source = folder_of(tmp_path / "a", parts_of("hqq_4bit"), changes)
    with pytest.raises(error, match=why):
        repack(source, left_nothing)


def test_groups_along_the_other_axis_are_refused(tmp_path, left_nothing):
    parts = parts_of("hqq_4bit")  # [8, 64] bytes of groups of 16 rows
    parts |= {"W_q": torch.zeros(8, 64, dtype=torch.uint8), "axis": torch.tensor(0).int()}
    parts |= {part: torch.ones(1, 64).half() for part in ("scale", "zero")}
    with pytest.raises(Unsupported, match="groups along axis 0, .*: quantise with axis=1"):
        repack(folder_of(tmp_path / "a", parts), left_nothing)


@pytest.mark.parametrize("part", ["scale_q", "zero_q", "zero_scale"])
def test_scales_that_are_quantised_or_offloaded_are_refused(part, tmp_path, left_nothing):
    parts = parts_of("hqq_4bit") | {part: torch.ones(2, 32).half()}
    with pytest.raises(Unsupported, match=f"q_proj.{part} is there: ladder reads scales"):
        repack(folder_of(tmp_path / "a", parts), left_nothing)


def test_groups_of_too_few_columns_are_refused(tmp_path, left_nothing):
    parts = parts_of("hqq_4bit") | {"shape": torch.tensor([32, 32])}
    parts |= {"W_q": torch.zeros(64, 8, dtype=torch.uint8)[:, :4].contiguous()}
    parts |= {part: torch.ones(128, 1).half() for part in ("scale", "zero")}
    with pytest.raises(Unsupported, match="share only 4 columns"):
        repack(folder_of(tmp_path / "a", parts), left_nothing)


def test_engines_are_told_to_repack():
    with pytest.raises(Unsupported, match="hqq, .*: run `ladder repack` first"):
        Folder(HQQ)
