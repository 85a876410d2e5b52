# SPDX-License-Identifier: Apache-2.0
"""``ladder export --format gguf``: files that the ``gguf`` package, transformers' loader and
ladder's own read as the weights of the folder."""

import json
import re

import pytest
import torch
from typer.testing import CliRunner

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

from gguf_models import Format, Writer  # noqa: E402
from test_gguf import ROOT, check_equal, logits, make, of_ladder, of_transformers  # noqa: E402

import ladder  # noqa: E402
from ladder.checkpoints import repack  # noqa: E402
from ladder.checkpoints.convert import convert  # noqa: E402
from ladder.checkpoints.export import export  # noqa: E402
from ladder.checkpoints.gguf.blocks import BLOCKS  # noqa: E402
from ladder.checkpoints.gguf.encode import FORMS, blocks_of, form_of  # noqa: E402
from ladder.checkpoints.gguf.header import GgufFile, read_file  # noqa: E402
from ladder.checkpoints.gguf.read import unpack  # noqa: E402
from ladder.cli import app  # noqa: E402
from ladder.errors import CheckpointError, InvalidArgument, Unsupported  # noqa: E402
from ladder.types import parse  # noqa: E402

MIDDLE, TWO = "scale=float16,zero=midpoint", "zero=midpoint,scale2=float32:channel"
#: Types, and the formats that hold them as they are.
EXACT = {
    f"uint4,group=32,{MIDDLE}": "q4_0",
    f"uint3,group=64,{MIDDLE}": "q4_0",
    "int2,group=128,scale=float16": "q4_0",
    f"uint4,block=16x32,{MIDDLE}": "q4_0",
    f"uint4,tensor,{MIDDLE}": "q4_0",
    "ternary,group=64,scale=float16": "q4_0",
    "uint4,group=128,scale=float16,zero=rescale": "q4_1",
    "uint1,channel,scale=float16,zero=rescale": "q4_1",
    f"uint5,group=32,{MIDDLE}": "q5_0",
    "int5,group=32,scale=bfloat16": "q5_0",
    "uint5,group=32,scale=float16,zero=rescale": "q5_1",
    "int6,group=32,scale=float16": "q8_0",
    f"uint7,group=32,{MIDDLE}": "q8_0",
    "int8,channel,scale=float16": "q8_0",
    f"uint8,group=96,{MIDDLE}": "q8_0",
    "ternary,group=256,scale=float16": "tq2_0",
    "mxfp4": "mxfp4",
    "float4_e2m1,group=16,scale=float8_e4m3": "nvfp4",
}
#: Those of which float16 rounds a scale or a minimum.
ROUNDED = {
    "uint4,group=32,scale=float16,zero=integer": "q4_1",
    "uint4,group=64,scale=float16,zero=quantized": "q4_1",
    "uint4,group=32,scale=float16,zero=original": "q4_1",
    "uint5,group=32,scale=float32,zero=rescale": "q5_1",
    "uint4,group=32,scale=float32,zero=midpoint": "q4_0",
    f"uint2,group=16,scale=uint4,{TWO}": "q2_k",
    f"uint3,group=16,scale=uint5,{TWO}": "q3_k",
    f"uint4,group=32,scale=uint6,{TWO}": "q4_k",
    f"uint3,group=32,scale=uint6,{TWO}": "q4_k",
    f"uint5,group=64,scale=uint6,{TWO}": "q5_k",
    f"uint6,group=16,scale=uint7,{TWO}": "q6_k",
    "int6,group=128,scale=uint4,scale2=float32": "q6_k",
}
FILE = GgufFile("a file", 3, {}, {})


@pytest.mark.parametrize("text, wanted", (EXACT | ROUNDED).items())
def test_blocks_have_the_weights_bit_by_bit(text, wanted):
    torch.manual_seed(0)
    weight = ladder.quantize(torch.randn(48, 768), text).of_single_rows()
    form = form_of(weight.type, 768)
    assert form.name == wanted
    blocks = blocks_of(weight, form)
    assert tuple(blocks.shape) == form.shape(48, 768)
    found = unpack(FILE, "w", BLOCKS[form.number], blocks).dequantize()
    theirs = torch.from_numpy(gguf.dequantize(blocks.numpy(), Format(form.number)).copy())
    assert torch.equal(found, theirs)
    values = weight.dequantize()
    if text in EXACT:
        assert torch.equal(found, values)
    else:
        assert 0 < (found - values).norm() < 2**-10 * values.norm()


def test_the_table_of_the_docs_is_what_is_written():
    text = (ROOT / "docs" / "transformers.md").read_text()
    table = text[text.index("### Files of llama.cpp") : text.index("- **Groups** are")]
    rows = re.findall(r"^\| `([^`]+,[^`]+)` \| `(\w+)` \| ([\d.]+) \|$", table, re.MULTILINE)
    assert len(rows) == 5
    for own, name, bits in rows:
        form = form_of(parse(own), 256)
        assert (form.name, f"{8 * form.shape(1, 256)[1] / 256:g}") == (name, bits)
    assert {name for name in re.findall(r"`(\w+)`", table)} >= {form.name for form in FORMS}


def test_every_format_is_tried_and_iq4_nl_is_its_table():
    values = BLOCKS[Format.IQ4_NL].ttype.element.values.tolist()
    ladder.register_type("as_iq4_nl", bits=4, values=values)
    weight = ladder.quantize(torch.randn(8, 64), "as_iq4_nl,group=32,scale=float16")
    form = form_of(weight.type, 64)
    assert form.name == "iq4_nl"
    found = unpack(FILE, "w", BLOCKS[form.number], blocks_of(weight, form))
    assert torch.equal(found.dequantize(), weight.dequantize())
    tried = {*EXACT.values(), *ROUNDED.values(), "iq4_nl"}
    assert tried == {form.name for form in FORMS}


@pytest.mark.parametrize(
    "text, k, words",
    [
        ("nf4,group=32,scale=float16", 256, "integers around their middle of up to 8 bits"),
        ("nvfp4", 256, "NVFP4 without a second scale"),
        ("uint8,group=32,scale=float16,zero=rescale", 256, "with zero points of up to 5"),
        (f"uint4,group=48,{MIDDLE}", 192, "q4_0 has a scale for 32 columns, not for 48"),
        (f"uint4,group=32,{MIDDLE}", 272, "q4_0 has blocks of 32, which do not divide K, 272"),
        (f"uint4,group=32,scale=uint6,{TWO}", 384, "q4_k has blocks of 256"),
        ("uint4,group=32,scale=uint6,zero=integer,scale2=float32:channel", 256, "around their"),
        (f"uint4,group=32,scale=uint8,{TWO}", 256, "integers of 4 to 7 bits"),
        ("q4_k", 320, "q4_k has superblocks of 256 columns, which do not divide K, 320"),
        ("uint4,group=32,scale=uint6,zero=rescale,scale2=float16:128", 256, "it has q2_k to q6_k"),
        ("uint4,group=32,scale=uint6,zero=rescale,scale2=bfloat16:256", 256, "it has q2_k to q6_k"),
        ("uint2,group=16,scale=float32,zero=rescale", 256, "q4_1 has a scale for 32 columns"),
    ],
)
def test_what_no_format_holds_is_said(text, k, words):
    with pytest.raises(Unsupported, match=words):
        form_of(parse(text), k)


# --- models ---------------------------------------------------------------------------------------


def exported(model, tmp_path, architecture="llama", quantised=(), **options):
    """A model's folder of ladder, the template of it, and the file that is made of both."""
    dense, out = {}, tmp_path / "out.gguf"
    for name in ("dense", "head", "embeddings", "like"):
        if name in options and name != "embeddings":
            dense[name] = options.pop(name)
    embeddings = options.pop("embeddings", False)
    model.save_pretrained(tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "ladder", head=dense.pop("head", False),
            embeddings=embeddings, **options)  # fmt: skip
    writer = Writer(model, architecture)
    for name in quantised:
        writer.quantize(name, Format.Q8_0)
    like = writer.write(tmp_path / "like.gguf")
    report = export(tmp_path / "ladder", out, "gguf", like=like, dense=dense.pop("dense", ()))
    return out, report


def values_of(folder):
    model = of_ladder(folder)
    model.dequantize()
    return model.state_dict()


def check_model(out, tmp_path, most=0.0):
    """transformers' loader, and ladder's, read the folder's weights of the file."""
    wanted, found = values_of(tmp_path / "ladder"), of_transformers(out).state_dict()
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        error = (found[name].float() - tensor.float()).norm() / tensor.float().norm()
        assert error <= most, (name, error)
    repack(out, tmp_path / "again")
    check_equal(out, tmp_path / "again")
    return of_ladder(tmp_path / "again")


def test_a_llama_whose_q_and_k_are_in_another_order(tmp_path):
    types = {"v_proj": "int8,group=64,scale=float16", "layers.1.mlp": f"uint5,group=32,{MIDDLE}"}
    out, report = exported(make("Llama"), tmp_path, weight_type="uint4", group_size=32, types=types)
    model = check_model(out, tmp_path)
    assert str(model.model.layers[0].self_attn.q_proj.weight_type).startswith("uint4,group=32")
    assert report.notes == ["formats: q4_0 9, q5_0 3, q8_0 2"]
    assert report.bytes_after < out.stat().st_size < report.bytes_after + 8192
    fields = read_file(out).fields
    assert fields["general.file_type"] == 2 and fields["general.quantization_version"] == 2
    assert {path.name for path in tmp_path.iterdir()} == {
        "model", "ladder", "like.gguf", "out.gguf", "again"
    }  # fmt: skip


def test_a_calibrated_model_in_the_blocks_of_k_quants(tmp_path):
    text = f"uint4,group=32,scale=uint6,{TWO}"
    out, report = exported(make("Llama"), tmp_path, weight_type=text)
    check_model(out, tmp_path, most=2**-10)
    assert report.notes[0] == "formats: q4_k 14"
    assert report.notes[1].startswith("q4_k: scales and minima rounded to float16 change weights")


def test_a_head_and_an_embedding_that_are_packed(tmp_path):
    """The template ties them, and has no tensor for the head."""
    out, _ = exported(
        make("Llama", tie_word_embeddings=True), tmp_path, weight_type="int8", group_size=64,
        head=True, embeddings=True,
    )  # fmt: skip
    formats = {name: each.format_name for name, each in read_file(out).entries.items()}
    assert formats["output.weight"] == formats["token_embd.weight"] == "q8_0"
    assert "output.weight" not in read_file(tmp_path / "like.gguf").entries
    check_model(out, tmp_path)


def test_what_is_dense_comes_from_the_folder_whatever_the_template_has(tmp_path):
    model = make("Llama", tie_word_embeddings=False)
    out, report = exported(
        model, tmp_path, weight_type="uint4", group_size=32, skip=["k_proj"],
        dense=["o_proj"], quantised=("token_embd.weight", "attn_k.weight", "attn_output.weight"),
    )  # fmt: skip
    formats = {name: each.format_name for name, each in read_file(out).entries.items()}
    assert formats["token_embd.weight"] == formats["blk.0.attn_k.weight"] == "f32"
    assert formats["blk.0.attn_output.weight"] == "f32" and formats["blk.0.attn_q.weight"] == "q4_0"
    assert "decoded: model.layers.0.self_attn.o_proj" in report.notes[0]
    check_model(out, tmp_path)


@pytest.mark.parametrize(
    "kind, architecture, sizes",
    [
        ("Mixtral", "llama", {"num_local_experts": 4, "num_experts_per_tok": 2}),
        ("Qwen3Moe", "qwen3moe", {"num_experts": 4, "num_experts_per_tok": 2,
                                  "moe_intermediate_size": 64, "norm_topk_prob": True}),
        ("Qwen2", "qwen2", {}),
        ("Gemma3Text", "gemma3", {"query_pre_attn_scalar": 64}),
    ],
)  # fmt: skip
def test_other_architectures(kind, architecture, sizes, tmp_path):
    if kind == "Gemma3Text":
        torch.manual_seed(0)
        config = transformers.Gemma3TextConfig(
            hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=64, vocab_size=128, max_position_embeddings=64, **sizes,
        )  # fmt: skip
        model = transformers.Gemma3ForCausalLM(config).float().eval()
    else:
        model = make(kind, **sizes)
    for name, each in model.named_parameters():
        if name.endswith(("norm.weight", "bias")):  # of which a fresh model has all alike
            each.data += 0.1 * torch.randn_like(each)
    out, _ = exported(model, tmp_path, architecture, weight_type="uint4", group_size=32)
    repack(out, tmp_path / "again")
    wanted, every = values_of(tmp_path / "ladder"), [values_of(tmp_path / "again")]
    if "Mo" not in kind and "Mix" not in kind:  # whose sizes of experts the loader passes over
        every.append(of_transformers(out).state_dict())
    for found in every:
        assert found.keys() == wanted.keys()
        for name, tensor in wanted.items():
            atol = 2**-20 if "norm" in name else 0.0  # Gemma's, to which 1 is added
            assert torch.allclose(found[name], tensor, rtol=0, atol=atol), name
    # Norms that were rounded, and experts whose products have another order, of logits of size 1.
    assert torch.allclose(
        logits(of_ladder(tmp_path / "again")), logits(of_ladder(tmp_path / "ladder")), atol=1e-4
    )


# --- what is refused ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    exported(make("Llama"), folder, weight_type="uint4", group_size=32)
    return folder


def test_a_template_of_another_model_is_refused_and_nothing_is_left(packed, tmp_path):
    for sizes, words in (
        ({"num_hidden_layers": 3}, "which the folder has not: it is a file of another model"),
        ({"num_hidden_layers": 1}, "has no tensor for model.layers.1"),
        ({"intermediate_size": 768}, "it is a file of another model"),
        ({"vocab_size": 160}, "it is a file of another model"),
    ):
        like = Writer(make("Llama", **sizes)).write(tmp_path / "like.gguf")
        with pytest.raises(CheckpointError, match=words):
            export(packed / "ladder", tmp_path / "out.gguf", "gguf", like=like)
        assert {path.name for path in tmp_path.iterdir()} == {"like.gguf"}


def test_a_template_that_computes_something_else_is_refused(packed, tmp_path):
    """Of equal shapes."""
    theta = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    for sizes, words in (
        ({"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32},
         "has num_attention_heads 8, but the folder 4"),
        (theta, "has rope_theta 500000.0, but the folder 10000.0"),
        ({"rms_norm_eps": 1e-2}, "has rms_norm_eps 0.00.*, but the folder 1e-06"),
    ):  # fmt: skip
        like = Writer(make("Llama", **sizes)).write(tmp_path / "like.gguf")
        with pytest.raises(CheckpointError, match=words):
            export(packed / "ladder", tmp_path / "new" / "out.gguf", "gguf", like=like)
        assert {path.name for path in tmp_path.iterdir()} == {"like.gguf"}


def test_no_number_of_the_folder_is_left_out(packed, tmp_path):
    """A template of another kind has no place for biases; one that ties its head none for it."""
    for kind, sizes, words in (
        ("Qwen2", {}, "has model_type llama, but the folder qwen2"),
        (
            "Llama",
            {"attention_bias": True},
            "has no tensor for model.*k_proj.bias",
        ),
    ):
        make(kind, **sizes).save_pretrained(tmp_path / kind)
        convert(tmp_path / kind, tmp_path / f"{kind}-ladder", "uint4", group_size=32)
        with pytest.raises(CheckpointError, match=words):
            export(tmp_path / f"{kind}-ladder", tmp_path / "x.gguf", "gguf",
                   like=packed / "like.gguf")  # fmt: skip
    out, _ = exported(
        make("Llama", tie_word_embeddings=True), tmp_path, weight_type="int8", group_size=64,
        embeddings=True,
    )  # fmt: skip
    formats = {name: each.format_name for name, each in read_file(out).entries.items()}
    assert (formats["token_embd.weight"], formats["output.weight"]) == ("q8_0", "f32")
    check_model(out, tmp_path)


def test_a_dense_head_of_its_own_is_added_where_the_template_ties_it(tmp_path):
    """LLaMA's configuration does not say that it is not tied, which is its default."""
    make("Llama", tie_word_embeddings=False).save_pretrained(tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "ladder", "uint4", group_size=32)
    like = Writer(make("Llama", tie_word_embeddings=True)).write(tmp_path / "like.gguf")
    export(tmp_path / "ladder", tmp_path / "out.gguf", "gguf", like=like)
    assert read_file(tmp_path / "out.gguf").entries["output.weight"].format_name == "f32"
    check_model(tmp_path / "out.gguf", tmp_path)


def test_the_language_model_of_one_that_sees(tmp_path):
    """Gemma 3 of the hub: a GGUF file has the language model, another the tower."""
    from transformers import Gemma3Config, Gemma3ForCausalLM, Gemma3ForConditionalGeneration

    text = dict(
        hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, vocab_size=128, max_position_embeddings=64,
        query_pre_attn_scalar=64,
    )  # fmt: skip
    vision = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=1, image_size=28,
                  num_attention_heads=2, patch_size=14)  # fmt: skip
    torch.manual_seed(0)
    model = Gemma3ForConditionalGeneration(
        Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    ).float()
    model.save_pretrained(tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "ladder", "uint4", group_size=32)
    alone = Gemma3ForCausalLM(model.config.text_config).float()
    like = Writer(alone, "gemma3").write(tmp_path / "like.gguf")
    report = export(tmp_path / "ladder", tmp_path / "out.gguf", "gguf", like=like)
    assert any("left out, which a file of the language model has not" in n for n in report.notes)
    repack(tmp_path / "out.gguf", tmp_path / "again")
    found, wanted = values_of(tmp_path / "again"), ladder_values(tmp_path / "ladder")
    for name, tensor in found.items():
        other = wanted[name.replace("model.", "model.language_model.", 1)]
        assert torch.allclose(tensor, other, rtol=0, atol=2**-20), (
            name
        )  # norms, to which 1 is added


def ladder_values(folder):
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    model.dequantize()
    return model.state_dict()


def test_dense_experts_are_refused_as_such(tmp_path):
    model = make("Mixtral", num_local_experts=4, num_experts_per_tok=2)
    with pytest.raises(Unsupported, match="which the folder has not as packed experts"):
        exported(model, tmp_path, weight_type="uint4", group_size=32, skip=["experts"])


def test_fields_of_the_template_that_are_of_its_weights_are_left_out(packed, tmp_path):
    writer = Writer(make("Llama"))
    writer.fields = {"quantize.imatrix.file": "x", "general.author": "somebody", "general.x": 3}
    like = writer.write(tmp_path / "like.gguf")
    export(packed / "ladder", tmp_path / "out.gguf", "gguf", like=like)
    fields = read_file(tmp_path / "out.gguf").fields
    assert (fields["general.author"], fields["general.x"]) == ("somebody", 3)
    assert not any(name.startswith("quantize.") for name in fields)


def test_arguments_that_do_not_fit_are_named(packed, tmp_path):
    folder, like, out = packed / "ladder", packed / "like.gguf", tmp_path / "out.gguf"
    with pytest.raises(InvalidArgument, match="like .--like. names a GGUF file"):
        export(folder, out, "gguf")
    with pytest.raises(InvalidArgument, match='which "gguf" needs and no other has'):
        export(folder, tmp_path / "out", "mlx", like=like)
    with pytest.raises(InvalidArgument, match="is a folder: name the file"):
        export(folder, tmp_path, "gguf", like=like)
    with pytest.raises(InvalidArgument, match="not a file"):
        export(folder, out, "gguf", like=tmp_path / "nothere.gguf")
    with pytest.raises(InvalidArgument, match="is the file that is read"):
        export(folder, like, "gguf", like=like, force=True)
    with pytest.raises(InvalidArgument, match="must not lie in"):
        export(folder, folder / "model.safetensors", "gguf", like=like, force=True)
    (tmp_path / "link.gguf").symlink_to(out)
    with pytest.raises(InvalidArgument, match="is a link"):
        export(folder, tmp_path / "link.gguf", "gguf", like=like, force=True)
    out.write_text("old")
    with pytest.raises(InvalidArgument, match="exists; pass force"):
        export(folder, out, "gguf", like=like)
    assert out.read_text() == "old"
    export(folder, out, "gguf", like=like, force=True)
    assert out.read_bytes() == (packed / "out.gguf").read_bytes()


def test_types_and_scales_that_float16_does_not_hold_are_refused(tmp_path):
    model = make("Llama")
    with pytest.raises(Unsupported, match=r"gguf cannot hold a weight of nf4.*dense \(--dense\)"):
        exported(model, tmp_path, weight_type="nf4", group_size=32)
    model.model.layers[0].mlp.up_proj.weight.data *= 1e8
    (tmp_path / "b").mkdir()
    with pytest.raises(Unsupported, match="up_proj: has values up to .* beyond float16"):
        exported(model, tmp_path / "b", weight_type="uint4,group=32,scale=float32,zero=midpoint")
    assert not (tmp_path / "b" / "out.gguf").exists()


def test_the_command_and_activations(packed, tmp_path):
    convert(packed / "model", tmp_path / "ladder", "int8", group_size=64, activation_type="int8")
    arguments = ["export", tmp_path / "ladder", tmp_path / "x" / "out.gguf", "--format", "gguf",
                 "--like", packed / "like.gguf", "--json"]  # fmt: skip
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout[result.stdout.index("{") :])
    assert report["modules"] == 14 and "activation_type" in " ".join(report["notes"])
    assert {path.name for path in (tmp_path / "x").iterdir()} == {"out.gguf"}
