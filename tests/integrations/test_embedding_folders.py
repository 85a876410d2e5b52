# SPDX-License-Identifier: Apache-2.0
"""Input embeddings that are packed, in memory and in folders."""

import copy
import json

import pytest
import torch
import transformers
from hf_models import TINY, check_same, edit_config, edit_tensors, load, logits, types_in
from safetensors.torch import load_file
from torch import nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    T5Config,
    T5Model,
)

import ladder
from ladder.checkpoints.calibrated import Calibration
from ladder.checkpoints.convert import convert
from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.info import describe, matrices
from ladder.checkpoints.packed import packed_layers
from ladder.errors import CheckpointError, InvalidArgument

EIGHT = "uint8,group=64,scale=float16,zero=midpoint"
BATCHES = torch.randint(0, 128, (4, 24), generator=torch.Generator().manual_seed(1))
_GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 128, "n_positions": 96}
MODELS = {
    "llama, tied": (LlamaForCausalLM, LlamaConfig, TINY | {"tie_word_embeddings": True}),
    "llama": (LlamaForCausalLM, LlamaConfig, TINY | {"tie_word_embeddings": False}),
    # Its embedding multiplies rows by a number, and ties where nobody says.
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig, TINY | {"head_dim": 32}),
    "gpt2": (GPT2LMHeadModel, GPT2Config, _GPT2 | {"bos_token_id": 1, "eos_token_id": 2}),
}
NAMES = dict.fromkeys(MODELS, "model.embed_tokens") | {"gpt2": "transformer.wte"}


def made(kind="llama, tied"):
    torch.manual_seed(0)
    model, config, fields = MODELS[kind]
    return model(config(**fields, initializer_range=0.1)).eval()


def options(kind, head=False):
    return {"group_size": 32, "head": head, "embeddings": True, "types": {NAMES[kind]: EIGHT}}


def of(model, kind="llama, tied"):
    return model.get_submodule(NAMES[kind])


@pytest.fixture
def folder(tmp_path):
    """A packed LLaMA with a packed embedding, whose head stays dense."""
    made().save_pretrained(tmp_path / "dense")
    convert(tmp_path / "dense", tmp_path / "packed", "uint4", **options("llama, tied"))
    return tmp_path / "packed"


@pytest.mark.parametrize("head", [False, True], ids=["dense head", "packed head"])
@pytest.mark.parametrize("kind", MODELS)
def test_an_embedding_in_memory_is_the_rows_of_its_quantised_weight(kind, head, tmp_path):
    model, before = made(kind), made(kind)
    weight, ids = of(before, kind).weight, BATCHES
    report = ladder.convert(model, "uint4", **options(kind, head))
    packed = of(model, kind)
    assert report.packed[NAMES[kind]] == EIGHT == str(packed.weight_type)
    assert report.embeddings == 1 and ", 1 embeddings" in str(report)
    assert f" {len(report.packed) - 1} linear layers" in str(report)
    # The dense model with the same values gives the same rows, whatever its class does with them.
    of(before, kind).weight = nn.Parameter(ladder.quantize(weight, EIGHT).dequantize())
    assert torch.equal(packed(ids), of(before, kind)(ids))
    assert isinstance(packed, (ladder.Embedding, type(of(before, kind))))
    assert not model.config.tie_word_embeddings and not model.all_tied_weights_keys
    assert isinstance(model.lm_head, ladder.Linear) == head
    if not head:
        assert torch.equal(model.lm_head.weight, made(kind).lm_head.weight)
        assert report.left["lm_head"].weights == weight.numel()
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    check_same(again, model)
    assert type(of(again, kind)) is type(packed)
    assert torch.equal(logits(again), logits(model))


@pytest.mark.parametrize("head", [False, True], ids=["dense head", "packed head"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_folder_gets_what_the_model_in_memory_gets(kind, head, tmp_path):
    model = made(kind)
    model.save_pretrained(tmp_path / "dense")
    report = convert(tmp_path / "dense", tmp_path / "packed", "uint4", **options(kind, head))
    said = ladder.convert(model, "uint4", **options(kind, head))
    assert report.conversion.packed[NAMES[kind]] == EIGHT
    assert report.conversion.lines() == said.lines()
    tensors = load_file(tmp_path / "packed" / "model.safetensors")
    parts = ("qweight", "scales", "zeros")
    assert report.tensors_carried == sum(not name.endswith(parts) for name in tensors)
    assert ("lm_head.weight" in tensors) != head
    config = json.loads((tmp_path / "packed" / "config.json").read_text())
    assert config["tie_word_embeddings"] is False
    assert config["quantization_config"]["embeddings"] == [NAMES[kind]]
    again = load(tmp_path / "packed")
    check_same(again, model)
    if not head:
        assert torch.equal(again.lm_head.weight, model.lm_head.weight)
    assert torch.equal(logits(again), logits(model))


def test_a_scaled_embedding_keeps_its_scale_in_a_loaded_model(tmp_path):
    """transformers initialises what no file has, the scale among it, and must leave the rows."""
    model = made("gemma3")
    ladder.convert(model, "uint4", **options("gemma3"))
    model.save_pretrained(tmp_path)
    again = load(tmp_path, dtype=torch.bfloat16)
    packed = of(again, "gemma3")
    assert packed.embed_scale == 8 and packed.dtype == torch.bfloat16
    rows = packed.packed_weight.dequantize(torch.bfloat16)[BATCHES]
    assert torch.equal(packed(BATCHES), rows * 8) and rows.any()


class OwnLlama(LlamaModel):
    """Draws weights as models outside of transformers do, whatever has been loaded."""

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_()


def test_a_model_of_the_users_own_does_not_draw_the_weight(folder):
    model = OwnLlama.from_pretrained(folder, dtype=torch.float32)
    assert torch.equal(model.embed_tokens(BATCHES), of(load(folder))(BATCHES))


def test_what_is_loaded_again_and_made_dense_is_the_same_model(folder, tmp_path):
    model = load(folder)
    rows = of(model)(BATCHES)
    model.save_pretrained(tmp_path / "again")
    assert types_in(tmp_path / "again") == types_in(folder)
    check_same(load(tmp_path / "again"), model)
    model = model.dequantize()
    assert type(of(model)) is nn.Embedding and torch.equal(of(model)(BATCHES), rows)
    model.save_pretrained(tmp_path / "dense")
    again = load(tmp_path / "dense")
    assert torch.equal(logits(again), logits(model))


def test_a_part_of_a_folder_has_the_packed_embedding(folder):
    whole, base = load(folder), LlamaModel.from_pretrained(folder, dtype=torch.float32)
    assert isinstance(base.embed_tokens, ladder.Embedding)
    assert torch.equal(base.embed_tokens(BATCHES), of(whole)(BATCHES))


def test_pickled_files_are_read_by_the_config(folder, tmp_path):
    model = load(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    again = load(folder)
    check_same(again, model)
    assert torch.equal(logits(again), logits(model))


def test_embeddings_have_nearest_codes_beside_calibrated_layers(tmp_path):
    made().save_pretrained(tmp_path / "dense")
    model, weight = made(), of(made()).weight
    report = ladder.convert(model, "uint3", calibration=BATCHES, **options("llama, tied", True))
    assert NAMES["llama, tied"] not in report.errors and "lm_head" in report.errors
    assert of(model).packed_weight == ladder.quantize(weight, EIGHT)
    calibration = Calibration(load(tmp_path / "dense"), BATCHES)
    said = options("llama, tied", True) | {"calibration": calibration}
    convert(tmp_path / "dense", tmp_path / "packed", "uint3", **said)
    check_same(load(tmp_path / "packed"), model)


def test_a_budget_of_bits_leaves_the_embedding_out(tmp_path):
    made().save_pretrained(tmp_path / "dense")
    report = convert(
        tmp_path / "dense", tmp_path / "packed", group_size=32, bits=3.6, embeddings=True,
        types=["uint3", "uint4", "uint6"], calibration=Calibration(made(), BATCHES),
    )  # fmt: skip
    assert "model.embed_tokens" not in report.chosen
    assert report.conversion.packed["model.embed_tokens"].startswith("uint6")
    load(tmp_path / "packed")


def test_the_embedding_of_a_packed_model_is_packed_later(tmp_path):
    made().save_pretrained(tmp_path / "dense")
    convert(tmp_path / "dense", tmp_path / "packed", "uint4", group_size=32)
    model = load(tmp_path / "packed")
    report = ladder.convert(model, "uint8", 64, embeddings=True)
    assert list(report.packed) == ["model.embed_tokens"]
    model.save_pretrained(tmp_path / "with embedding")
    again = load(tmp_path / "with embedding")
    check_same(again, model)
    assert torch.equal(logits(again), logits(model))
    assert list(ladder.convert(again, "uint8", embeddings=True).packed) == []


def test_a_folder_quantised_again_keeps_its_embedding(folder, tmp_path):
    report = convert(folder, tmp_path / "again", "int8", again=True)
    assert "packed as before: model.embed_tokens" in report.notes[0]
    one, other = load(folder), load(tmp_path / "again")
    assert of(other).packed_weight == of(one).packed_weight
    assert str(other.model.layers[0].mlp.up_proj.weight_type).startswith("int8")


def test_info_knows_embeddings_and_nothing_is_multiplied_by_them(folder):
    rows = {row["name"]: row for row in describe(folder)["modules"]}
    row = rows["model.embed_tokens"]
    assert (row["embedding"], row["n"], row["k"], row["type"]) == (True, 128, 64, EIGHT)
    assert row["activation_type"] is None
    assert sum("embedding" in row for row in rows.values()) == 1
    every = {row["name"] for row in matrices(folder)}
    assert every == rows.keys() - {"model.embed_tokens"} | {"lm_head"}
    assert "model.embed_tokens" not in {layer.name for layer in packed_layers(folder)[0]}


def test_activations_do_not_concern_embeddings(tmp_path):
    made().save_pretrained(tmp_path / "dense")
    convert(
        tmp_path / "dense", tmp_path / "packed", "uint4", activation_type="int8",
        **options("llama, tied") | {"types": {"embed_tokens": "nf4,group=32,scale=float16"}},
    )  # fmt: skip
    config = json.loads((tmp_path / "packed" / "config.json").read_text())["quantization_config"]
    assert config["activation_type"] == "int8" and "activation_types" not in config
    model = load(tmp_path / "packed")
    assert model.model.layers[0].mlp.up_proj.activation_type == "int8"
    model.save_pretrained(tmp_path / "again")
    again = json.loads((tmp_path / "again" / "config.json").read_text())["quantization_config"]
    assert again == config


def test_skip_goes_before_embeddings():
    model = made()
    report = ladder.convert(model, "uint4", 32, embeddings=True, skip=("embed_tokens", "lm_head"))
    assert report.left["model.embed_tokens.weight"].reason == "named by skip"
    assert model.lm_head.weight is of(model).weight and model.config.tie_word_embeddings


def test_embeddings_that_share_their_weight_stay_dense():
    model = T5Model(T5Config(d_model=64, d_kv=32, d_ff=96, num_layers=1, vocab_size=128))
    report = ladder.convert(model, "uint4", 32, embeddings=True)
    assert report.embeddings == 0
    assert report.left["shared.weight"].reason.startswith("its weight is tied to")
    assert sum("tied" in left.reason and left.weights > 0 for left in report.left.values()) == 1


_BART = {
    "d_model": 64, "vocab_size": 128, "max_position_embeddings": 64,
    **{f"{side}_layers": 1 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 2 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 96 for side in ("encoder", "decoder")},
}  # fmt: skip


@pytest.mark.parametrize(
    "asked", [{"head": True}, {"embeddings": True}, {"head": True, "embeddings": True}], ids=str
)
@pytest.mark.parametrize(
    ("kind", "config"),
    [(BertForMaskedLM, BertConfig(**TINY)), (BartForConditionalGeneration, BartConfig(**_BART))],
)
def test_other_ties_end_with_that_of_the_head(kind, config, asked, tmp_path):
    """The entry of the configuration is for all: for the bias of BERT's head, which no file has,
    and for BART's embeddings, which share one weight and stay dense."""
    torch.manual_seed(0)
    model = kind(copy.deepcopy(config)).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    model.save_pretrained(tmp_path / "dense")
    ladder.convert(model, "uint4", 32, **asked)
    model.save_pretrained(tmp_path / "memory")
    convert(tmp_path / "dense", tmp_path / "packed", "uint4", group_size=32, **asked)
    for folder in ("memory", "packed"):
        again, info = kind.from_pretrained(
            tmp_path / folder, dtype=torch.float32, output_loading_info=True
        )
        assert not info["missing_keys"] and not info["unexpected_keys"]
        check_same(again, model)
        assert torch.equal(logits(again.eval()), logits(model))


def test_positions_stay_dense():
    report = ladder.convert(model := made("gpt2"), "uint4", 32, embeddings=True)
    reason = report.left["transformer.wpe.weight"].reason
    assert reason == "an embedding, but not the input embedding of its model"
    assert type(model.transformer.wpe) is nn.Embedding


def test_a_type_with_blocks_of_rows_is_refused_before_anything_is_replaced(tmp_path):
    model, block = made(), "float8_e4m3,block=64x64,scale=float32"
    said = r"model.embed_tokens: type .* has a scale for 64 rows, and rows .* \(types\)"
    with pytest.raises(InvalidArgument, match=said):
        ladder.convert(model, block, embeddings=True)
    assert type(model.model.layers[0].mlp.up_proj) is nn.Linear
    model.save_pretrained(tmp_path / "dense")
    with pytest.raises(InvalidArgument, match=said):
        convert(tmp_path / "dense", tmp_path / "packed", block, embeddings=True)
    assert not (tmp_path / "packed").exists()
    assert ladder.convert(model, block, embeddings=True, types={"embed_tokens": EIGHT}).embeddings


def test_a_model_of_diffusers_has_its_labels_packed(tmp_path):
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    sizes = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 1}
    model = diffusers.DiTTransformer2DModel(**sizes, sample_size=8, num_embeds_ada_norm=10)
    report = ladder.convert(model, "uint4", 32, embeddings=True)
    name = "transformer_blocks.0.norm1.emb.class_embedder.embedding_table"
    assert report.embeddings == 1 and name in report.packed
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    check_same(again, model)
    assert isinstance(again.get_submodule(name), ladder.Embedding)


def test_models_without_embeddings_and_arguments_that_do_not_fit(folder, tmp_path):
    with pytest.raises(InvalidArgument, match="the model has no input embedding"):
        ladder.convert(nn.Sequential(nn.Linear(8, 8)), embeddings=True)
    with pytest.raises(InvalidArgument, match="use ladder.Embedding.from_embedding"):
        ladder.convert(nn.Embedding(8, 32), embeddings=True)
    with pytest.raises(InvalidArgument, match="embeddings is for a folder that is not quantised"):
        convert(folder, tmp_path / "out", embeddings=True, again=True)


def test_a_model_without_such_a_method_has_all_its_embeddings_packed():
    model = nn.ModuleDict({"a": nn.Embedding(8, 32), "b": nn.Embedding(4, 32, max_norm=1.0)})
    report = ladder.convert(model, "uint4", 32, embeddings=True)
    assert list(report.packed) == ["a"] and isinstance(model["a"], ladder.Embedding)
    assert report.left["b.weight"].reason == "each call changes its weight (max_norm)"


def stored(folder, **fields):
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    return {"quantization_config": config | fields}


NAME = "model.embed_tokens"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"embeddings": []}, "embeddings does not have model.embed_tokens"),
        ({"embeddings": [NAME, "lm_head"]}, "has lm_head, and lm_head of the model is a Linear"),
        ({"embeddings": NAME}, "embeddings is 'model.embed_tokens', not a list of names"),
        ({"embeddings": {NAME: 1}}, "not a list of names"),
        ({"modules": {NAME: "uint4"}}, "qweight has shape"),
        (
            {"modules": {NAME: "uint8,block=8x64,scale=float16,zero=midpoint"}},
            "has a scale for 8 rows",
        ),
    ],
)
def test_a_config_that_does_not_fit_is_refused(folder, fields, said):
    edit_config(folder, **stored(folder, **fields))
    with pytest.raises(CheckpointError, match=said):
        load(folder)


def test_a_config_that_ties_is_refused(folder):
    edit_config(folder, tie_word_embeddings=True)
    with pytest.raises(CheckpointError, match="ties lm_head to it: tie_word_embeddings is true"):
        load(folder)


def test_a_missing_part_is_named(folder):
    edit_tensors(folder, lambda tensors: tensors.pop(f"{NAME}.scales"))
    with pytest.raises(CheckpointError, match="model.embed_tokens.scales is missing"):
        load(folder)
    edit_tensors(folder, lambda tensors: tensors.pop(f"{NAME}.qweight"))
    with pytest.raises(CheckpointError, match="model.embed_tokens.qweight is missing"):
        load(folder)


def test_a_config_without_embeddings_does_not_speak_of_them():
    assert "embeddings" not in StoredConfig("uint4").to_dict()
    config = StoredConfig("uint4", embeddings=["a.b"], modules_to_not_convert=("a",))
    assert config.type_of("a.b") == "uint4" and config.type_of("a.c") is None
    assert StoredConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize("kind", ["Gemma3n", "Gemma4"])
def test_an_embedding_for_each_layer_is_packed_too(kind, tmp_path):
    """Of Gemma 3n and Gemma 4: a table beside the input embedding, and larger than it."""
    torch.manual_seed(0)
    sizes = {"head_dim": 32, "hidden_size_per_layer_input": 32, "num_kv_shared_layers": 0}
    other = {"Gemma3n": {"laurel_rank": 8, "altup_num_inputs": 2, "vocab_size_per_layer_input": 96}}
    config = getattr(transformers, f"{kind}TextConfig")(**TINY | sizes | other.get(kind, {}))
    config.global_head_dim = 32
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    dense = copy.deepcopy(model.model.embed_tokens_per_layer)
    model.save_pretrained(tmp_path / "dense")
    report = ladder.convert(model, "uint8", group_size=32, head=True, embeddings=True)
    assert report.embeddings == 2
    table = model.model.embed_tokens_per_layer
    assert isinstance(table, (ladder.Embedding, type(dense)))
    dense.weight = nn.Parameter(ladder.quantize(dense.weight, str(table.weight_type)).dequantize())
    ids = BATCHES % table.num_embeddings
    assert torch.equal(table(ids), dense(ids))
    convert(tmp_path / "dense", tmp_path / "b", "uint8", group_size=32, head=True, embeddings=True)
    model.save_pretrained(tmp_path / "a")
    for folder in ("a", "b"):
        again = load(tmp_path / folder)
        check_same(again, model)
        assert torch.equal(logits(again), logits(model))


def test_rows_that_a_model_reads_by_itself_are_left_with_the_reason():
    """Gemma 4 with pictures reads that of its padding; its text model, only where no ids are
    given. DeBERTa's head is called with the embedding."""
    text = TINY | {"head_dim": 32, "hidden_size_per_layer_input": 32, "num_kv_shared_layers": 0}
    tokens = {"image_token_id": 120, "video_token_id": 121, "audio_token_id": 122}
    config = transformers.Gemma4Config(text_config=text, **tokens)
    config.text_config.global_head_dim = 32
    config.vision_config = config.audio_config = None
    model = transformers.Gemma4ForConditionalGeneration(config).eval()
    report = ladder.convert(model, "uint8", group_size=32, embeddings=True)
    left = report.left["model.language_model.embed_tokens.weight"]
    assert left.reason == "Gemma4Model reads its weight" and report.embeddings == 1
    model(input_ids=BATCHES[:1, :8])
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 96, "vocab_size": 128}
    for legacy in (False, True):
        config = transformers.DebertaV2Config(**sizes, legacy=legacy)
        model = transformers.DebertaV2ForMaskedLM(config).eval()
        report = ladder.convert(model, "uint8", group_size=32, embeddings=True)
        assert report.embeddings == legacy
        model(input_ids=BATCHES[:1, :8])


def test_of_models_in_parts_the_part_has_the_word(tmp_path):
    """An encoder and a decoder: what ties the head is in the decoder's configuration."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 96, "vocab_size": 128}
    encoder = transformers.BertConfig(**sizes)
    decoder = transformers.BertConfig(**sizes, is_decoder=True, add_cross_attention=True)
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    kind = transformers.EncoderDecoderModel
    model = kind(config).eval()
    model.save_pretrained(tmp_path / "dense")
    options = {"group_size": 32, "head": True, "embeddings": True}
    report = convert(tmp_path / "dense", tmp_path / "b", "uint8", **options).conversion
    assert report.lines() == ladder.convert(model, "uint8", **options).lines()
    model.save_pretrained(tmp_path / "a")
    for folder in ("a", "b"):
        check_same(kind.from_pretrained(tmp_path / folder), model)


@pytest.mark.parametrize("in_memory", [True, False], ids=["in memory", "folder"])
def test_tables_that_are_copied_are_in_the_report(in_memory, tmp_path):
    """BART has one table in three places, which its configuration ties by one word."""
    sizes = {"d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 128}
    sizes |= {"encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "max_position_embeddings": 64}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    model = BartForConditionalGeneration(BartConfig(**sizes, **heads))
    model.save_pretrained(tmp_path / "dense")
    report = ladder.convert(model, "uint8", group_size=32, head=True)
    if not in_memory:
        made = convert(tmp_path / "dense", tmp_path / "b", "uint8", group_size=32, head=True)
        report = made.conversion
    why = "a copy, because the output embedding is no longer tied to model.shared"
    copies = {name for name, each in report.left.items() if each.reason == why}
    assert copies == {f"model.{part}.embed_tokens.weight" for part in ("encoder", "decoder")}
    dense = sum(p.numel() for p in model.parameters() if p.dim() > 1)
    assert sum(each.weights for each in report.left.values()) == dense
