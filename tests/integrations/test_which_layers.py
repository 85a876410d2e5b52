# SPDX-License-Identifier: Apache-2.0
"""Three doors to a quantised model, ladder.convert, LadderConfig and ``ladder convert``: the same
layers are packed by each, the same are left, and each says which."""

import json
import logging

import pytest
import torch
from hf_models import TINY, TWO_LEVELS, edit_tensors, load, logits
from safetensors.torch import save_file

import ladder
from ladder.checkpoints.convert import convert as convert_folder
from ladder.checkpoints.info import describe
from ladder.checkpoints.packed import merged_layers, packed_layers
from ladder.cli import main
from ladder.integrations.transformers import LadderConfig, dense

LAYER = "transformer.h.0.attn.c_attn"


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """Its layers are Conv1D, whose weight is [K, N]; the output embedding is tied."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    fields = dict(n_embd=64, n_layer=2, n_head=2, vocab_size=128, n_positions=64)
    model = GPT2LMHeadModel(GPT2Config(**fields, bos_token_id=0, eos_token_id=0))
    folder = tmp_path_factory.mktemp("gpt2") / "model"
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory):
    """transformers keeps the experts of a layer in two parameters of three dimensions."""
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("mixtral") / "model"
    MixtralForCausalLM(MixtralConfig(**TINY, num_local_experts=4)).save_pretrained(folder)
    return folder


@pytest.fixture
def other_function(monkeypatch):
    """Experts of Mixtral compute something of which ladder does not know what it is."""
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts

    def gate(self, gate_up):
        gate, up = gate_up.chunk(2, dim=-1)
        return torch.sin(gate) * up

    monkeypatch.setattr(MixtralExperts, "_apply_gate", gate)


def through_every_door(folder, tmp_path, *arguments, **options):
    """The model and the report of each door."""
    model = load(folder)
    yield model, ladder.convert(model, *arguments, **options)
    renamed = {"modules_to_not_convert": options.pop("skip")} if "skip" in options else {}
    config = LadderConfig(*arguments, **renamed, **options)
    model = load(folder, quantization_config=config)
    yield model, model.hf_quantizer.conversion
    skip = renamed.get("modules_to_not_convert")
    weight_type, group = arguments
    report = convert_folder(folder, tmp_path / "out", weight_type, group_size=group, skip=skip)
    yield load(tmp_path / "out"), report.conversion


def packed(model):
    return {name for name, m in model.named_modules() if isinstance(m, ladder.Linear)}


def test_conv1d_is_packed_saved_and_loaded_again_exactly(gpt2, tmp_path):
    expected, wanted = None, logits(load(gpt2))
    for model, report in through_every_door(gpt2, tmp_path, "int8", 32):
        assert len(packed(model)) == 8 and packed(model) == set(report.packed)
        assert model.get_submodule(LAYER).packed_weight.shape == (192, 64)
        made = logits(model)
        expected = made if expected is None else expected
        assert torch.equal(made, expected) and 0 < (made - wanted).abs().max() < 0.01
        assert report.left["lm_head"].reason == "its weight is tied to transformer.wte"
    model.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(load(tmp_path / "again")), expected)


def test_layers_of_two_levels_of_scales_are_packed_saved_described_and_loaded_again(
    dense_folder, tmp_path
):
    expected = None
    for model, report in through_every_door(
        dense_folder, tmp_path, TWO_LEVELS, None, skip=["lm_head"]
    ):
        made = logits(model)
        expected = made if expected is None else expected
        assert torch.equal(made, expected) and packed(model) == set(report.packed)
    name = next(iter(report.packed))
    layer = model.get_submodule(name)
    assert layer.scale2.shape == (layer.out_features,) and layer.scales.dtype == torch.uint8
    model.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(load(tmp_path / "again")), expected)
    for folder in ("out", "again"):
        modules = {each["name"]: each for each in describe(tmp_path / folder)["modules"]}
        assert {each["type"] for each in modules.values()} == {TWO_LEVELS}
        assert modules[name]["bytes"] == layer.packed_weight.nbytes
    layers, _ = packed_layers(tmp_path / "out")
    names = {each.name.rpartition(".")[2] for each in merged_layers(layers)}
    assert names == {"q_proj+k_proj+v_proj", "gate_proj+up_proj"}


def test_second_scales_that_differ_are_those_of_rows_of_merged_layers(dense_folder, tmp_path):
    """`ladder tune` asks for kernels of what engines run."""
    convert_folder(dense_folder, tmp_path / "out", "nvfp4")
    gate, up = (f"model.layers.1.mlp.{name}_proj.scale2" for name in ("gate", "up"))
    edit_tensors(tmp_path / "out", lambda tensors: tensors.update({up: tensors[gate].clone()}))
    layers, _ = packed_layers(tmp_path / "out")
    found = {each.name: str(each.type) for each in merged_layers(layers)}
    of_rows = "float4_e2m1,group=16,scale=float8_e4m3,scale2=float32:channel"
    assert found.pop("model.layers.1.mlp.gate_proj+up_proj") == "nvfp4"
    assert len(found) == 3 and set(found.values()) == {of_rows}


def test_conv1d_becomes_dense_as_it_was(gpt2, tmp_path):
    """A square weight would be taken, transposed, without a word."""
    from transformers.pytorch_utils import Conv1D

    model = load(gpt2)
    ladder.convert(model, "int8", 32)
    weight = model.get_submodule(LAYER).packed_weight.dequantize()
    dense(model)
    assert isinstance(model.get_submodule(LAYER), Conv1D)
    assert torch.equal(model.get_submodule(LAYER).weight, weight.T)
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(load(tmp_path)), logits(model))


def test_names_in_files_may_lack_the_name_of_the_base_model(gpt2, tmp_path):
    """As those of the hub's gpt2."""
    import shutil

    source = shutil.copytree(gpt2, tmp_path / "hub")

    def strip(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)

    edit_tensors(source, strip)
    report = convert_folder(source, tmp_path / "out", "int8", group_size=32, skip=["h.1"])
    assert set(report.conversion.packed) == {
        f"h.0.{name}" for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    }
    model = load(gpt2)
    ladder.convert(model, "int8", 32, skip=["h.1"])
    assert torch.equal(logits(load(tmp_path / "out")), logits(model))


def test_unknown_experts_stay_dense_with_a_warning_that_counts_them(
    mixtral, other_function, tmp_path, caplog
):
    expected = None
    with caplog.at_level(logging.WARNING, "ladder"):
        for model, report in through_every_door(mixtral, tmp_path, "int8", 32):
            assert packed(model) == set(report.packed) and len(report.packed) == 8
            assert set(report.experts) == {
                f"model.layers.{i}.mlp.experts.{name}"
                for i in (0, 1) for name in ("gate_up_proj", "down_proj")
            }  # fmt: skip
            # Of each of 2 layers, 4 experts with [192, 64] and [64, 96].
            assert sum(left.matrices for left in report.experts.values()) == 16
            assert sum(left.weights for left in report.experts.values()) == 147456
            assert "16 matrices of experts stay dense, 147 k weights or 7" in caplog.text
            assert "the function between its products is none that ladder knows" in caplog.text
            assert "a parameter of MixtralTopKRouter, no linear layer" in str(report)
            caplog.clear()
            made = logits(model)
            expected = made if expected is None else expected
            assert torch.equal(made, expected)


def test_names_of_files_alone_may_be_skipped(mixtral, tmp_path):
    """transformers calls the block mlp, the files call it block_sparse_moe."""
    report = convert_folder(mixtral, tmp_path / "out", skip=["block_sparse_moe"]).conversion
    assert len(report.packed) == 9 and "lm_head" in report.packed


def test_naming_the_experts_to_be_left_is_no_error(mixtral, tmp_path):
    skip = ["experts", "lm_head", "self_attn.o_proj"]
    for model, report in through_every_door(mixtral, tmp_path, "int8", 32, skip=skip):
        assert len(packed(model)) == 6
        experts = {left.reason for name, left in report.left.items() if "experts" in name}
        assert experts <= {"named by skip", "named by modules_to_not_convert"} and experts


def test_what_a_model_reads_and_never_calls_is_left_by_every_door(tmp_path):
    """Mamba multiplies by ``dt_proj.weight`` itself: it was packed, and no forward ran."""
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    config = MambaConfig(hidden_size=64, num_hidden_layers=2, vocab_size=128, state_size=8)
    MambaForCausalLM(config).save_pretrained(tmp_path / "mamba")
    expected = None
    for model, report in through_every_door(tmp_path / "mamba", tmp_path, "int8", 32):
        left = {name for name, each in report.left.items() if "MambaMixer reads" in each.reason}
        assert left == {f"backbone.layers.{i}.mixer.dt_proj" for i in (0, 1)}
        assert len(packed(model)) == 6
        made = logits(model)
        expected = made if expected is None else expected
        assert torch.equal(made, expected)


@pytest.mark.parametrize("name", ["Jamba", "FalconMamba"])
def test_what_a_model_calls_only_where_it_is_marked_as_quantised_is_left(name, tmp_path):
    """Both read ``dt_proj.weight``, unless transformers has marked the config as that of a
    quantised model: a model that was converted in memory raised in each call."""
    import transformers

    torch.manual_seed(0)
    fields = dict(hidden_size=64, num_hidden_layers=2, vocab_size=128, pad_token_id=0)
    if name == "Jamba":
        fields |= dict(
            intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, num_experts=2,
            attn_layer_period=2, attn_layer_offset=1, mamba_d_state=8, mamba_dt_rank=8,
        )  # fmt: skip
    else:
        fields |= dict(state_size=8, time_step_rank=8)
    config = getattr(transformers, f"{name}Config")(**fields)
    getattr(transformers, f"{name}ForCausalLM")(config).save_pretrained(tmp_path / "dense")
    expected = None
    for model, report in through_every_door(tmp_path / "dense", tmp_path, "int8", 32):
        left = {layer for layer, each in report.left.items() if "Mixer reads" in each.reason}
        assert left and all(layer.endswith(".dt_proj") for layer in left)
        assert any(layer.endswith(".in_proj") for layer in packed(model))
        made = logits(model)
        expected = made if expected is None else expected
        torch.testing.assert_close(made, expected)  # of two branches, whose sums differ
        model.train()
        assert model(torch.ones(1, 5, dtype=torch.int64)).logits.requires_grad


def test_the_command_line_prints_what_it_left(mixtral, other_function, tmp_path, capsys):
    with pytest.raises(SystemExit, match="^0$"):
        main(["convert", str(mixtral), str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert "packed 8 linear layers" in printed
    assert "experts in one parameter of three dimensions, which ladder does not pack yet" in printed
    with pytest.raises(SystemExit, match="^0$"):
        main(["convert", str(mixtral), str(tmp_path / "again"), "--json"])
    left = json.loads(capsys.readouterr().out)["conversion"]["left"]
    assert left["model.layers.0.mlp.experts.down_proj"]["matrices"] == 4


@pytest.mark.parametrize("skip", ["attention", "q_pro", "layers.0.q_proj", "proj"])
def test_a_name_that_names_nothing_is_an_error_at_every_door(dense_folder, tmp_path, skip):
    why = f'has "{skip}", which names no module of the model, such as '
    with pytest.raises(ladder.InvalidArgument, match=f"^skip {why}"):
        ladder.convert(load(dense_folder), "uint4", skip=["lm_head", skip])
    config = LadderConfig("uint4", modules_to_not_convert=["lm_head", skip])
    with pytest.raises(ladder.InvalidArgument, match=f"^modules_to_not_convert {why}"):
        load(dense_folder, quantization_config=config)
    with pytest.raises(ladder.InvalidArgument, match=f"^skip {why}"):
        convert_folder(dense_folder, tmp_path / "out", skip=["lm_head", skip])
    assert not (tmp_path / "out").exists()


def test_a_type_for_a_module_that_is_not_there_is_an_error(dense_folder):
    config = LadderConfig("uint4", modules={"model.layers.0.q_proj": "nf4,group=32,scale=float16"})
    with pytest.raises(ladder.InvalidArgument, match='^modules has "model.layers.0.q_proj", which'):
        load(dense_folder, quantization_config=config)


def test_a_type_for_a_module_comes_before_what_is_left_but_unties_nothing(dense_folder):
    up, text = "model.layers.0.mlp.up_proj", "nf4,group=32,scale=float16"
    config = LadderConfig("uint4", modules={up: text}, modules_to_not_convert=["mlp"])
    model = load(dense_folder, quantization_config=config)
    assert model.hf_quantizer.conversion.packed[up] == text
    assert type(model.get_submodule("model.layers.0.mlp.gate_proj")) is torch.nn.Linear
    why = '^modules has "lm_head", but its weight is tied to model.embed_tokens$'
    with pytest.raises(ladder.InvalidArgument, match=why):
        load(dense_folder, quantization_config=LadderConfig("uint4", modules={"lm_head": text}))


def test_a_layer_with_two_names_becomes_dense_under_both():
    model = torch.nn.Module()
    model.a = model.b = torch.nn.Linear(32, 8)
    calls = []
    model.a.register_forward_hook(lambda *_: calls.append("hook"))
    ladder.convert(model, "int8")
    dense(model)
    model.b(torch.randn(1, 32))
    assert model.a is model.b and type(model.a) is torch.nn.Linear and calls == ["hook"]


@pytest.mark.parametrize("skip", ["mlp", "layers.1", "self_attn.q_proj", "1.mlp.up_proj"])
def test_a_name_means_the_same_at_every_door(dense_folder, tmp_path, skip):
    found = [
        packed(model)
        for model, _ in through_every_door(dense_folder, tmp_path, "int8", 32, skip=[skip])
    ]
    assert found[0] == found[1] == found[2] and 0 < len(found[0]) < 14


def test_every_door_makes_groups_of_128_where_none_is_named(dense_folder, tmp_path):
    for _, report in through_every_door(dense_folder, tmp_path, "NF4", None):
        assert set(report.packed.values()) == {"nf4,group=128,scale=float16"}


def test_a_tied_head_is_left_whether_it_is_named_or_not(dense_folder, tmp_path):
    for model, report in through_every_door(dense_folder, tmp_path, "int8", 32, skip=["q_proj"]):
        assert report.left["lm_head"].reason == "its weight is tied to model.embed_tokens"
        assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_dense_layer_whose_name_speaks_of_a_packed_one_saves_and_loads():
    """ "head" left dense, "block.head" packed: the stored config must tell them apart."""
    from ladder.checkpoints import StoredConfig

    text = "uint4,group=32,scale=float16,zero=midpoint"
    stored = StoredConfig.describing({"block.head": text, "body": text}, ["head"])
    assert stored.type_of("head") is None
    assert stored.type_of("block.head") == stored.type_of("body") == text
    assert StoredConfig.from_dict(json.loads(json.dumps(stored.to_dict()))) == stored


def test_a_model_may_ask_a_packed_layer_for_its_dtype():
    """As T5 does in each forward pass."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    fields = dict(d_model=64, d_kv=32, d_ff=96, num_layers=1, num_heads=2, vocab_size=128)
    model = T5ForConditionalGeneration(T5Config(**fields, decoder_start_token_id=0)).eval()
    ids = torch.arange(8)[None]
    with torch.no_grad():
        before = model(input_ids=ids, decoder_input_ids=ids).logits
        report = ladder.convert(model, "int8", 32)
        after = model(input_ids=ids, decoder_input_ids=ids).logits
    assert any(name.endswith("wo") for name in report.packed)
    assert 0 < (after - before).abs().max() < 0.05


def other_kinds():
    """Models that are no causal language models: encoders with decoders, and of images."""
    import transformers as hf

    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    layers = {"encoder_layers": 1, "decoder_layers": 1}
    sizes = {"encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "vocab_size": 128}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    t5 = hf.T5Config(d_model=64, d_ff=96, num_layers=1, num_heads=2, d_kv=32, vocab_size=128)
    whisper = hf.WhisperConfig(d_model=64, **layers, **heads, **sizes, **ids)
    of_images = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
    vit = hf.ViTConfig(**of_images, num_attention_heads=2, image_size=32)
    yield "t5", hf.T5ForConditionalGeneration, t5
    yield "whisper", hf.WhisperForConditionalGeneration, whisper
    yield "vit", hf.ViTForImageClassification, vit


def test_the_command_packs_models_of_every_class_as_in_memory(tmp_path):
    """Of Whisper it saw the decoder alone, and left the encoder dense without a word."""
    for name, kind, config in other_kinds():
        torch.manual_seed(0)
        model = kind(config)
        model.save_pretrained(tmp_path / name)
        report = convert_folder(tmp_path / name, tmp_path / f"{name}-out", "int8", group_size=32)
        expected = ladder.convert(model, "int8", 32)
        assert len(report.conversion.packed) == len(expected.packed) > 0, name
        again = kind.from_pretrained(tmp_path / f"{name}-out")
        assert packed(again) == packed(model), name
        for key, tensor in model.state_dict().items():
            assert torch.equal(tensor, again.state_dict()[key]), key


def test_a_model_that_transformers_does_not_know_is_refused_in_a_short_line(tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    (source / "config.json").write_text(json.dumps({"model_type": "vit"}))
    save_file({"a.weight": torch.zeros(8, 8)}, source / "model.safetensors")
    with pytest.raises(ladder.CheckpointError, match="config.json: Unrecognized config") as error:
        convert_folder(source, tmp_path / "out", "int8")
    assert len(str(error.value)) < 300 and "\n" not in str(error.value)
