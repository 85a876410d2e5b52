# SPDX-License-Identifier: Apache-2.0
"""Types "q2_k" to "q6_k": scales and minima where llama.cpp's k-quants have them, and files that
have the weights of the folder bit by bit."""

import copy
import json
import pickle

import numpy
import pytest
import torch
from typer.testing import CliRunner

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

from gguf_models import Format, Writer, random_blocks  # noqa: E402
from ladder.checkpoints.gguf.superblocks import levels_on  # noqa: E402
from test_export_gguf import FILE, check_model, exported, values_of  # noqa: E402
from test_gguf import make  # noqa: E402

import ladder  # noqa: E402
from ladder.checkpoints import repack  # noqa: E402
from ladder.checkpoints.convert import convert  # noqa: E402
from ladder.checkpoints.export import export  # noqa: E402
from ladder.checkpoints.gguf.blocks import BLOCKS  # noqa: E402
from ladder.checkpoints.gguf.encode import blocks_of, on_grid_of  # noqa: E402
from ladder.checkpoints.gguf.header import read_file  # noqa: E402
from ladder.checkpoints.gguf.read import unpack  # noqa: E402
from ladder.cli import app  # noqa: E402
from ladder.errors import InvalidArgument, Unsupported  # noqa: E402
from ladder.grids import GRIDS  # noqa: E402
from ladder.types import parse, with_defaults  # noqa: E402


def written(weight):
    """The blocks of a weight, of the k-quant of its type, or None where it is not on the grid."""
    form = on_grid_of(weight.type, weight.shape[1])
    return None if levels_on(weight, form.grid) is None else blocks_of(weight, form)


def error(weight, source):
    return ((weight.dequantize() - source).norm() / source.norm()).item()


# --- types and weights ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", GRIDS)
def test_a_name_is_a_type_and_a_grid_for_quantising_it(name):
    ttype, plain = parse(name), parse(GRIDS[name].spelling)
    assert ttype == plain == with_defaults(name) and str(ttype) == str(plain)
    assert BLOCKS[Format[name.upper()]].text == str(ttype)
    assert (ttype.name, plain.name, plain.grid) == (name, str(plain), None)
    for other in (parse(name.upper()), pickle.loads(pickle.dumps(ttype)), copy.deepcopy(ttype)):
        assert other.grid is ttype.grid and other.grid is not None
    size = gguf.GGML_QUANT_SIZES[Format[name.upper()]]
    assert ttype.grid.bits == 8 * size[1] / size[0]
    with pytest.raises(InvalidArgument, match="group_size is 128, but type"):
        with_defaults(name, group_size=128)


@pytest.mark.parametrize("name", GRIDS)
def test_quantised_weights_are_those_of_llama_cpp_bit_by_bit(name):
    torch.manual_seed(0)
    source = 0.02 * torch.randn(24, 768)
    weight = ladder.quantize(source, name)
    assert weight.type == parse(name) and weight.type.grid is None
    weight.check()
    theirs = gguf.dequantize(written(weight).numpy(), Format[name.upper()])
    assert torch.equal(torch.from_numpy(theirs.copy()), weight.dequantize())


@pytest.mark.parametrize("name", GRIDS)
def test_two_levels_cost_less_than_the_search_for_single_scales(name):
    """That has every float32 to choose from, but looks at one group and one shrunk range."""
    torch.manual_seed(0)
    source = torch.randn(64, 512)
    assert error(ladder.quantize(source, name), source) < error(
        ladder.quantize(source, str(parse(name))), source
    )


@pytest.mark.parametrize("name", GRIDS)
def test_each_part_of_the_search_is_of_use(name):
    """Both levels found one after the other, as a first guess would have it."""
    torch.manual_seed(0)
    source, grid = torch.randn(64, 512), GRIDS[name]
    free = ladder.quantize(source, grid.spelling)
    scales = free.scales.view(-1, 256 // free.type.columns)
    d = (scales.amax(1, keepdim=True) / grid.most).half().float()
    parts = {"scales": (d * (scales / d).round()).view_as(free.scales)}
    if grid.minima:
        zeros = free.zeros.view_as(scales)
        e = (zeros.amax(1, keepdim=True) / grid.minima).half().float()
        parts["zeros"] = (e * (zeros / e).round().clamp(min=0)).view_as(free.zeros)
    guess = ladder.Weight(free.type, free.shape, free.qweight, **parts)
    assert error(ladder.quantize(source, name), source) < 0.97 * error(guess, source)


@pytest.mark.parametrize("name", GRIDS)
def test_any_blocks_of_a_file_come_back(name):
    """Of scales and minima of any sign, and zeros among them."""
    number = Format[name.upper()]
    blocks = torch.from_numpy(random_blocks(number, 8, 768))
    blocks[0] = 0
    weight = unpack(FILE, "w", BLOCKS[number], blocks)
    again = unpack(FILE, "w", BLOCKS[number], written(weight))
    assert torch.equal(again.dequantize(), weight.dequantize())
    off = weight.scales.clone()
    off[1, 0] *= 1.0001
    assert (
        written(ladder.Weight(weight.type, weight.shape, weight.qweight, off, weight.zeros)) is None
    )


@pytest.mark.parametrize("name", GRIDS)
def test_a_hessian_chooses_codes_on_the_grid(name):
    torch.manual_seed(0)
    source, x = torch.randn(16, 256), torch.randn(600, 256) @ torch.randn(256, 256)
    nearest, found = ladder.quantize(source, name), ladder.quantize(source, name, hessian=x.T @ x)
    assert written(found) is not None
    assert torch.equal(found.scales, nearest.scales)
    off = [((w.dequantize() - source) @ x.T).norm() for w in (found, nearest)]
    assert off[0] < 0.9 * off[1]


@pytest.mark.parametrize("name", GRIDS)
def test_weights_that_have_one_value_are_held(name):
    for value in (0.0, 1.0, -1.0):
        weight = ladder.quantize(torch.full((2, 256), value), name)
        assert (weight.dequantize() - value).abs().max() <= 2**-10
        assert written(weight) is not None


@pytest.mark.parametrize("name", GRIDS)
def test_what_no_grid_holds_is_refused_with_both_numbers(name, caplog):
    source = torch.randn(2, 256)
    with pytest.raises(InvalidArgument, match="256 columns, which do not divide K, 320"):
        ladder.quantize(torch.randn(2, 320), name)
    with pytest.raises(InvalidArgument, match=r"magnitudes up to 3.*e\+08, beyond q"):
        ladder.quantize(source.clamp(-2, 2).index_fill(0, torch.tensor(0), 3) * 1e8, name)
    with pytest.raises(InvalidArgument, match=r"too small for q.*all would be zero"):
        ladder.quantize(source * 1e-12, name)
    source[1, 7] = torch.nan
    with pytest.raises(InvalidArgument, match="row 1, column 7 is nan"):
        ladder.quantize(source, name)
    source[1] = 1e-12
    ladder.quantize(source, name)
    assert "1 of 2 superblocks of a weight have magnitudes up to 1e-12" in caplog.text


def test_layers_whose_rows_have_no_superblocks_are_named_before_any_changes():
    model = torch.nn.Sequential(torch.nn.Linear(512, 320), torch.nn.Linear(320, 64))
    with pytest.raises(InvalidArgument, match="1: q4_k has superblocks of 256.*K, 320"):
        ladder.convert(model, "q4_k")
    assert type(model[0]) is torch.nn.Linear
    ladder.convert(model, "q4_k", types={"1": "uint4,group=32,scale=float16,zero=midpoint"})
    assert written(model[0].packed_weight) is not None


def test_trained_weights_are_those_that_are_packed():
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(256, 64)), torch.randn(40, 256)
    ladder.qat.prepare(model, "q2_k")
    model(x).square().mean().backward()
    assert model[0].weight.grad.abs().max() > 0
    wanted = model(x)
    ladder.qat.convert(model)
    assert written(model[0].packed_weight) is not None
    # The same values, in products of two kernels: 256 of them are added in another order.
    assert torch.allclose(model(x), wanted, atol=1e-5)


def test_types_for_a_budget_have_the_bits_of_files():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 256))
    model[1].weight.data *= 0.01
    chosen = ladder.choose_types(model, ["q2_k", "q6_k"], 5.0, [torch.randn(32, 256)])
    assert {each.name for each in chosen.values()} == {"q2_k", "q6_k"}
    assert chosen.bits == (2.625 + 6.5625) / 2
    ladder.convert(model, types=chosen)
    assert all(written(layer.packed_weight) is not None for layer in model)


# --- models ---------------------------------------------------------------------------------------


def formats_of(file):
    return {name: entry.format_name for name, entry in read_file(file).entries.items()}


def test_a_folder_becomes_a_file_without_a_change(tmp_path):
    """Calibrated, by the command, of several formats; a second time from the folder."""
    model = make("Llama", num_hidden_layers=1)
    model.save_pretrained(tmp_path / "model")
    like = Writer(model).write(tmp_path / "like.gguf")
    numpy.save(tmp_path / "ids.npy", numpy.random.default_rng(0).integers(0, 128, (2, 32)))
    command = ["convert", tmp_path / "model", tmp_path / "ladder", "--type", "q2_k", "--head",
               "--calibration", tmp_path / "ids.npy"]  # fmt: skip
    types = {"v_proj": "Q6_K", "down_proj": "q3_k", "up_proj": "q5_k", "lm_head": "q4_k"}
    for name, each in types.items():
        command += ["--layer-type", f"{name}={each}"]
    result = CliRunner().invoke(app, [*map(str, command)])
    assert result.exit_code == 0, result.output
    fields = json.loads((tmp_path / "ladder" / "config.json").read_text())["quantization_config"]
    assert fields["weight_type"] == GRIDS["q2_k"].spelling
    report = export(tmp_path / "ladder", tmp_path / "out.gguf", "gguf", like=like)
    assert len(report.notes) == 1  # nothing is rounded
    found = formats_of(tmp_path / "out.gguf")
    wanted = {"blk.0.attn_v": "q6_k", "blk.0.ffn_down": "q3_k", "blk.0.ffn_up": "q5_k",
              "blk.0.attn_q": "q2_k", "output": "q4_k"}  # fmt: skip
    assert {name: found[f"{name}.weight"] for name in wanted} == wanted
    check_model(tmp_path / "out.gguf", tmp_path)


def test_files_of_k_quants_go_through_a_folder_unchanged(tmp_path):
    model = make("Llama")
    writer = Writer(model)
    kinds = {"attn_q": 10, "attn_k": 11, "attn_v": 12, "attn_output": 13, "ffn_up": 14,
             "ffn_gate": 10, "ffn_down": 12}  # fmt: skip
    for name, number in kinds.items():
        writer.quantize(f"{name}.weight", Format(number))
    file = writer.write(tmp_path / "theirs.gguf")
    repack(file, tmp_path / "ladder")
    report = export(tmp_path / "ladder", tmp_path / "out.gguf", "gguf", like=file)
    assert len(report.notes) == 1 and formats_of(tmp_path / "out.gguf") == formats_of(file)
    check_model(tmp_path / "out.gguf", tmp_path)


def test_experts_are_on_the_grid_all_of_them(tmp_path):
    model = make("Mixtral", num_local_experts=2, num_experts_per_tok=2)
    out, report = exported(model, tmp_path, weight_type="q4_k", types={"experts.down": "q3_k"})
    assert formats_of(out)["blk.0.ffn_down_exps.weight"] == "q3_k" and len(report.notes) == 1
    repack(out, tmp_path / "again")
    wanted, found = values_of(tmp_path / "ladder"), values_of(tmp_path / "again")
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


def test_scales_that_are_on_no_grid(tmp_path):
    """A type of 4 bits becomes q4_1, whose scales are float16; one of 2 bits has no format."""
    out, report = exported(make("Llama"), tmp_path, weight_type=GRIDS["q4_k"].spelling)
    assert report.notes[0] == "formats: q4_1 14"
    (tmp_path / "b").mkdir()
    with pytest.raises(Unsupported, match=r"no multiples of a float16 .* convert --type q2_k"):
        exported(make("Llama"), tmp_path / "b", weight_type=GRIDS["q2_k"].spelling)
    assert not (tmp_path / "b" / "out.gguf").exists()


def test_quantised_while_loaded_and_quantised_again(tmp_path):
    from ladder.integrations.transformers import LadderConfig

    model = make("Llama")
    model.save_pretrained(tmp_path / "model")
    config = LadderConfig("q4_k", types={"v_proj": "q6_k"})
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", quantization_config=config, dtype=torch.float32
    )
    loaded.save_pretrained(tmp_path / "saved")
    convert(tmp_path / "saved", tmp_path / "ladder", "q3_k", again=True, skip=["v_proj"])
    like = Writer(model).write(tmp_path / "like.gguf")
    for folder, usual in (("saved", "q4_k"), ("ladder", "q3_k")):
        out = tmp_path / f"{folder}.gguf"
        assert len(export(tmp_path / folder, out, "gguf", like=like).notes) == 1
        found = formats_of(out)
        assert (found["blk.1.ffn_up.weight"], found["blk.1.attn_v.weight"]) == (usual, "q6_k")
    text = (tmp_path / "saved" / "config.json").read_text()
    assert "q4_k" not in text and GRIDS["q6_k"].spelling in text
