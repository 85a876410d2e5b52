# SPDX-License-Identifier: Apache-2.0
"""Small models of Gemma 3 in quant_method "gemma": transformers by itself, repacked, and as they
are."""

import copy
import json

import pytest
import torch
from hf_models import TINY, edit_config, edit_tensors, load, logits
from more_oracles import GEMMA, gemma
from safetensors.torch import load_file, save_file

import ladder
from ladder.checkpoints import repack
from ladder.errors import CheckpointError
from ladder.integrations.transformers import dense, disable, enable
from ladder.ops.activations import round_activations

UP, DOWN, TABLE = (f"model.{n}" for n in ("layers.0.mlp.up_proj", "layers.0.mlp.down_proj",
                                          "embed_tokens"))  # fmt: skip
PATTERNS = {r"down_proj$": {"num_bits": 2}, "k_proj|lm_head": {"num_bits": 8}}
SKIPPED = r"vision_tower\..*|norm"  # of no module that is packed
#: Rows of down_proj end within a byte.
INNER, STATIC = 91, 2.0**-5


@pytest.fixture(autouse=True)
def not_left_enabled():
    yield
    disable()


@pytest.fixture
def folder(tmp_path):
    """Makes a folder: ``x``, the static scale of all layers but those of q_proj, which have 0;
    ``table``, scales a row of the embedding; ``tied``, whether it is the output layer, too."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    def make(*, x=0.0, table=1, tied=False):
        torch.manual_seed(0)
        config = TINY | {"intermediate_size": INNER, "head_dim": 32, "tie_word_embeddings": tied}
        Gemma3ForCausalLM(Gemma3TextConfig(**config)).save_pretrained(tmp_path / "gemma")

        def change(tensors):
            for seed, name in enumerate(sorted(tensors)):
                module = name.removesuffix(".weight")
                if tensors[name].dim() != 2:
                    continue
                n, k = tensors.pop(name).shape
                bits = 2 if "down_proj" in name else 8 if "k_proj" in name or "head" in name else 4
                scale = {"x": 0.0 if "q_proj" in name else x, "y": 0.0}
                of = {"table": table} if module == TABLE else scale
                drawn = gemma(n, k, bits, seed=seed, **of).tensors
                tensors |= {f"{module}.{part}": tensor for part, tensor in drawn.items()}
            tensors["model.layers.0.self_attn.k_cache_scale"] = torch.ones(())

        edit_tensors(tmp_path / "gemma", change)
        edit_config(
            tmp_path / "gemma",
            quantization_config=GEMMA
            | {"module_quant_configs": PATTERNS, "modules_to_not_convert": [SKIPPED]},
        )
        return tmp_path / "gemma"

    return make


def ours(folder, tmp_path):
    """The model as it is, from its copy, and repacked, whose logits are the same."""
    with enable("gemma"):
        model = load(folder)
    model.save_pretrained(tmp_path / "saved")
    repack(folder, tmp_path / "repacked")
    made = [json.loads((tmp_path / name / "config.json").read_text())["quantization_config"]
            for name in ("saved", "repacked")]  # fmt: skip
    made[1]["modules_to_not_convert"].remove(SKIPPED)  # which a saved model does not know
    assert made[0] == made[1]
    for name in ("saved", "repacked"):
        again = load(tmp_path / name)
        assert torch.equal(logits(again), logits(model))
    return model, again


def test_logits_are_those_of_transformers(folder, tmp_path):
    source = folder()
    theirs = load(source)
    model, repacked = ours(source, tmp_path)
    for name, module in theirs.named_modules():
        if hasattr(module, "_dequantize_weights") and hasattr(module, "weight_scale"):
            packed = repacked.get_submodule(name)
            assert type(packed) is ladder.Linear and packed.activation_type is None
            values = packed.packed_weight.dequantize()
            assert torch.equal(values, module._dequantize_weights(None)), name
    assert torch.equal(repacked.get_submodule(TABLE).weight, theirs.get_submodule(TABLE).weight)
    assert {str(m.weight_type) for m in repacked.modules() if type(m) is ladder.Linear} == {
        f"int{bits},scale=float32" for bits in (2, 4, 8)
    }
    # The same products of the same numbers: the dense model's kernels add them up alike.
    assert torch.equal(logits(dense(copy.deepcopy(model))), logits(theirs))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_embedding_has_the_dtype_of_the_model_and_is_rounded_once(dtype, folder, tmp_path):
    source = folder(x=STATIC)
    wanted = load(source).get_submodule(TABLE).weight.to(dtype)
    with enable("gemma"):
        model = load(source, dtype=dtype)
    repack(source, tmp_path / "repacked")
    again = load(tmp_path / "repacked", dtype=dtype)
    for each in (model, again):
        assert torch.equal(each.get_submodule(TABLE).weight, wanted)
        assert each.get_submodule(UP).packed_weight.scales.dtype == torch.float32
        assert each.get_submodule(UP).input_scale.dtype == torch.float32
    assert torch.equal(logits(model), logits(again))


def test_scales_of_x_are_found_in_any_shard(folder, tmp_path):
    whole = folder(x=STATIC)
    tensors = load_file(whole / "model.safetensors")
    with enable("gemma"):
        wanted = logits(load(whole))
    (whole / "model.safetensors").unlink()
    of_x = {name: tensor for name, tensor in tensors.items() if "activation" in name}
    others = {name: tensor for name, tensor in tensors.items() if name not in of_x}
    files = {f"model-0000{at}-of-00002.safetensors": part for at, part in ((1, others), (2, of_x))}
    for name, part in files.items():
        save_file(part, whole / name, metadata={"format": "pt"})
    index = {name: file for file, part in files.items() for name in part}
    made = json.dumps({"metadata": {}, "weight_map": index})
    (whole / "model.safetensors.index.json").write_text(made)
    with enable("gemma"):
        assert torch.equal(logits(load(whole)), wanted)
    repack(whole, tmp_path / "repacked")
    assert torch.equal(logits(load(tmp_path / "repacked")), wanted)


@pytest.mark.parametrize("tied", [False, True])
def test_an_embedding_with_several_scales_a_row_may_be_the_output_layer(tied, folder, tmp_path):
    """transformers by itself loads neither: it makes room for one scale a row, and ties no packed
    embedding."""
    from transformers.integrations.gemma_quant import QuantizedEmbedding

    source = folder(table=4, tied=tied)
    tensors = load_file(source / "model.safetensors")
    room = QuantizedEmbedding(TINY["vocab_size"], TINY["hidden_size"], torch.float32, num_bits=4)
    wanted = room._dequantize_weights(
        tensors[f"{TABLE}.embedding_quantized"], tensors[f"{TABLE}.embedding_scale"]
    )
    model, _ = ours(source, tmp_path)
    assert torch.equal(model.get_submodule(TABLE).weight, wanted)
    assert type(model.lm_head) is (torch.nn.Linear if tied else ladder.Linear)


def test_a_static_scale_rounds_x_as_transformers_does_within_the_steps_of_both(folder, tmp_path):
    """A CPU rounds x in blocks, by their largest magnitude, where transformers rounds by the scale
    of the layer: each is at most half of its step away from x, where the scale's range holds x."""
    from transformers.integrations.gemma_quant import apply_srq

    source = folder(x=STATIC)
    theirs = load(source)
    model, repacked = ours(source, tmp_path)
    layers = {n: m for n, m in repacked.named_modules() if type(m) is ladder.Linear}
    for name, layer in layers.items():
        rounded = None if "q_proj" in name else "int8"
        assert layer.activation_type == model.get_submodule(name).activation_type == rounded
        assert (layer.input_scale is None) == (rounded is None)
        k = layer.in_features
        x = torch.randn(5, k, generator=torch.Generator().manual_seed(k))
        assert x.abs().max() < 127 * STATIC
        other = theirs.get_submodule(name)
        w = other._dequantize_weights(None)
        if rounded is None:
            apart = x.new_zeros(5, k)
        else:
            assert layer.input_scale.tolist() == [STATIC]
            seen = round_activations(x, layer.weight_type)
            apart = (apply_srq(x, other.input_activation_scale) - x).abs()
            assert (apart <= STATIC / 2).all()
            apart += (seen - x).abs()
        sums = 2**-20 * x.abs() @ w.abs().T  # of float32, of at most 91 products
        limit = apart @ w.abs().T + sums
        with torch.no_grad():
            assert ((layer(x) - other(x)).abs() <= limit).all(), name


@pytest.mark.parametrize("part", ["weight", "weight_scale"])
def test_a_lost_part_is_named(part, folder):
    source = folder()
    edit_tensors(source, lambda tensors: tensors.pop(f"{UP}.{part}"))
    with enable("gemma"), pytest.raises(CheckpointError, match=f"{UP}.{part} is missing"):
        load(source)


def test_a_weight_of_another_width_is_named(folder, tmp_path):
    source = folder()
    shorter = gemma(64, 88, 2).tensors["weight"]
    edit_tensors(source, lambda tensors: tensors.update({f"{DOWN}.weight": shorter}))
    why = f"{DOWN}.weight has rows of 22 bytes, and 91 codes of 2 bits are 23"
    with enable("gemma"), pytest.raises(CheckpointError, match=why):
        load(source)
    with pytest.raises(CheckpointError, match=why):
        repack(source, tmp_path / "repacked")
    assert not (tmp_path / "repacked").exists()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
@pytest.mark.parametrize("table", [1, 2])
def test_an_embedding_may_stay_packed(table, tied, dtype, folder, tmp_path):
    """With one scale a row, and with two; the output layer, too, where it is the same weight."""
    source = folder(table=table, tied=tied)
    repack(source, tmp_path / "decoded")
    report = repack(source, tmp_path / "packed", embeddings=True, head=True)
    assert not any(note.startswith("decoded") for note in report.notes)
    decoded, packed = (load(tmp_path / name, dtype=dtype) for name in ("decoded", "packed"))
    rows = packed.get_submodule(TABLE)
    assert isinstance(rows, (ladder.Embedding, type(decoded.get_submodule(TABLE))))
    ids = torch.arange(rows.num_embeddings)
    assert torch.equal(rows(ids), decoded.get_submodule(TABLE)(ids))
    assert type(packed.lm_head) is ladder.Linear and not packed.config.tie_word_embeddings
    assert packed.lm_head.activation_type is None
    of_head = "float32" if table == 1 else "group=32,scale=float32"
    if tied:
        assert of_head in str(packed.lm_head.weight_type)
        assert packed.lm_head.weight_type == rows.weight_type
    assert torch.equal(logits(packed.dequantize()), logits(decoded.dequantize()))
