# SPDX-License-Identifier: Apache-2.0
"""Types "q2_k" to "q6_k": the scales and minima of llama.cpp's k-quants, both levels of them, and
files that have the weights of the folder bit by bit."""

import copy
import json
import pickle
import re

import numpy
import pytest
import torch
from typer.testing import CliRunner

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

from gguf_models import Format, Writer, random_blocks  # noqa: E402
from test_export_gguf import FILE, check_model, exported, values_of  # noqa: E402
from test_gguf import ROOT, make  # noqa: E402

import ladder  # noqa: E402
from ladder.checkpoints import repack  # noqa: E402
from ladder.checkpoints.convert import convert  # noqa: E402
from ladder.checkpoints.export import export  # noqa: E402
from ladder.checkpoints.gguf.blocks import BLOCKS  # noqa: E402
from ladder.checkpoints.gguf.encode import blocks_of, form_of  # noqa: E402
from ladder.checkpoints.gguf.header import read_file  # noqa: E402
from ladder.checkpoints.gguf.read import unpack  # noqa: E402
from ladder.cli import app  # noqa: E402
from ladder.errors import InvalidArgument  # noqa: E402
from ladder.types import parse, with_defaults  # noqa: E402

#: Bits of a weight: of a byte for each integer of a group, in files of llama.cpp fewer.
BITS = {"q2_k": 3.125, "q3_k": 3.5625, "q4_k": 4.625, "q5_k": 5.625, "q6_k": 6.5625}


def written(weight):
    """The blocks of a weight, of the k-quant that is its type."""
    form = form_of(weight.type, weight.shape[1])
    assert form.name == str(weight.type)
    return blocks_of(weight, form)


def error(weight, source):
    return ((weight.dequantize() - source).norm() / source.norm()).item()


# --- types and weights ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", BITS)
def test_a_name_is_a_type_of_blocks(name):
    ttype = parse(name)
    assert ttype == parse(name.upper()) == with_defaults(name) == BLOCKS[Format[name.upper()]].ttype
    fields = [f"zero={ttype.zero}", f"group={ttype.columns}", "scale2=float16:256"]
    assert str(parse(",".join([ttype.element.name, f"scale={ttype.scale}", *fields]))) == name
    for other in (pickle.loads(pickle.dumps(ttype)), copy.deepcopy(ttype)):
        assert other == ttype and str(other) == name
    assert ttype.bits_per_weight(64, 512) == BITS[name]
    assert ladder.quantize(torch.randn(64, 512), name).nbytes == BITS[name] * 64 * 512 / 8
    with pytest.raises(InvalidArgument, match="group_size is 128, but type"):
        with_defaults(name, group_size=128)


@pytest.mark.parametrize("name", BITS)
def test_quantised_weights_are_those_of_llama_cpp_bit_by_bit(name):
    torch.manual_seed(0)
    source = 0.02 * torch.randn(24, 768)
    weight = ladder.quantize(source, name)
    weight.check()
    theirs = gguf.dequantize(written(weight).numpy(), Format[name.upper()])
    assert torch.equal(torch.from_numpy(theirs.copy()), weight.dequantize())


def test_the_table_of_the_docs_has_the_types_and_their_bits():
    text = (ROOT / "docs" / "format.md").read_text()
    rows = re.findall(r"^\| `(q._k)` \| `(.*)` \| ([\d.]+) \| ([\d.]+) \|$", text, re.MULTILINE)
    assert {name: float(bits) for name, _, bits, _ in rows} == BITS
    for name, spelling, _, in_files in rows:
        assert parse(spelling) == parse(name)
        elements, nbytes = gguf.GGML_QUANT_SIZES[Format[name.upper()]]
        assert float(in_files) == 8 * nbytes / elements


def with_single_scales(source, ttype):
    """Every float32 to choose from, but of one group and one shrunk range."""
    plain = f"{ttype.element.name},group={ttype.columns},scale=float32,zero={ttype.zero}"
    return ladder.quantize(source, plain)


@pytest.mark.parametrize("name", BITS)
def test_two_levels_cost_less_than_the_search_for_single_scales(name):
    torch.manual_seed(0)
    source = torch.randn(64, 512)
    single = with_single_scales(source, parse(name))
    assert error(ladder.quantize(source, name), source) < error(single, source)


@pytest.mark.parametrize("name", BITS)
def test_each_part_of_the_search_is_of_use(name):
    """Both levels found one after the other, as a first guess would have it."""
    torch.manual_seed(0)
    source, ttype = torch.randn(64, 512), parse(name)
    free = with_single_scales(source, ttype)
    scales = free.scales.view(-1, 256 // ttype.columns)
    d = (scales.amax(1, keepdim=True) / ttype.grid.most).half().float()
    parts = {"scales": (d * (scales / d).round()).view_as(free.scales)}
    if ttype.grid.minima:
        zeros = free.zeros.view_as(scales)
        e = (zeros.amax(1, keepdim=True) / ttype.grid.minima).half().float()
        parts["zeros"] = (e * (zeros / e).round().clamp(min=0)).view_as(free.zeros)
    guess = ladder.Weight(free.type, free.shape, free.qweight, **parts)
    assert error(ladder.quantize(source, name), source) < 0.97 * error(guess, source)


@pytest.mark.parametrize("name", BITS)
def test_any_blocks_of_a_file_come_back(name):
    """Of scales and minima of any sign, and zeros among them."""
    number = Format[name.upper()]
    blocks = torch.from_numpy(random_blocks(number, 8, 768))
    blocks[0] = 0
    weight = unpack(FILE, "w", BLOCKS[number], blocks)
    again = unpack(FILE, "w", BLOCKS[number], written(weight))
    assert torch.equal(again.dequantize(), weight.dequantize())
    assert torch.equal(written(weight), blocks)


@pytest.mark.parametrize("name", BITS)
def test_a_hessian_chooses_codes_for_the_scales_as_they_are(name):
    torch.manual_seed(0)
    source, x = torch.randn(16, 256), torch.randn(600, 256) @ torch.randn(256, 256)
    nearest, found = ladder.quantize(source, name), ladder.quantize(source, name, hessian=x.T @ x)
    for part in ("scales", "scale2", "zeros")[: 3 if found.zeros is not None else 2]:
        assert torch.equal(getattr(found, part), getattr(nearest, part))
    off = [((w.dequantize() - source) @ x.T).norm() for w in (found, nearest)]
    assert off[0] < 0.9 * off[1]


@pytest.mark.parametrize("name", BITS)
def test_weights_that_have_one_value_are_held(name):
    for value in (0.0, 1.0, -1.0):
        weight = ladder.quantize(torch.full((2, 256), value), name)
        assert (weight.dequantize() - value).abs().max() <= 2**-10


@pytest.mark.parametrize("name", BITS)
def test_what_no_superblock_holds_is_refused_with_both_numbers(name, caplog):
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
    assert str(model[0].packed_weight.type) == "q4_k"


def test_trained_weights_are_those_that_are_packed():
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(256, 64)), torch.randn(40, 256)
    ladder.qat.prepare(model, "q2_k")
    model(x).square().mean().backward()
    assert model[0].weight.grad.abs().max() > 0
    wanted = model(x)
    ladder.qat.convert(model)
    assert str(model[0].packed_weight.type) == "q2_k"
    # The same values, in products of two kernels: 256 of them are added in another order.
    assert torch.allclose(model(x), wanted, atol=1e-5)


def test_types_for_a_budget_have_the_bits_that_are_stored():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 256))
    model[1].weight.data *= 0.01
    chosen = ladder.choose_types(model, ["q2_k", "q6_k"], 5.0, [torch.randn(32, 256)])
    assert {str(each) for each in chosen.values()} == {"q2_k", "q6_k"}
    assert chosen.bits == (BITS["q2_k"] + BITS["q6_k"]) / 2
    ladder.convert(model, types=chosen)
    assert sum(layer.packed_weight.nbytes for layer in model) == chosen.bits * 2 * 256**2 / 8


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
    assert fields["weight_type"] == "q2_k"
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


def test_experts_are_written_all_of_them(tmp_path):
    model = make("Mixtral", num_local_experts=2, num_experts_per_tok=2)
    out, report = exported(model, tmp_path, weight_type="q4_k", types={"experts.down": "q3_k"})
    assert formats_of(out)["blk.0.ffn_down_exps.weight"] == "q3_k" and len(report.notes) == 1
    repack(out, tmp_path / "again")
    wanted, found = values_of(tmp_path / "ladder"), values_of(tmp_path / "again")
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


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
    assert '"q4_k"' in text and '"q6_k"' in text
