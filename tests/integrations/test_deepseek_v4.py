# SPDX-License-Identifier: Apache-2.0
"""A folder as DeepSeek-V4 is published: its own names, scales called ``scale`` and stored as e8m0,
experts of 4 bits one by one."""

import re
import shutil

import pytest
import torch
from checkpoint_oracle import fp8, fp8_expert_of_4_bits, fp8_settings, tensors_of
from hf_mixtures import experts_of
from hf_models import edit_config, edit_tensors, load, logits

import ladder
from ladder.checkpoints import repack
from ladder.errors import Unsupported
from ladder.integrations.transformers import dense, enable

transformers = pytest.importorskip("transformers")
if not hasattr(transformers, "DeepseekV4ForCausalLM"):
    pytest.skip("this transformers has no DeepSeek-V4", allow_module_level=True)
TINY = {
    "vocab_size": 128, "hidden_size": 128, "moe_intermediate_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 4, "head_dim": 64, "q_lora_rank": 64, "num_experts_per_tok": 2,
    "n_routed_experts": 4, "o_groups": 2, "o_lora_rank": 32, "index_n_heads": 2,
    "index_head_dim": 32, "index_topk": 8, "max_position_embeddings": 256, "sliding_window": 16,
    "qk_rope_head_dim": 16, "num_nextn_predict_layers": 0,
}  # fmt: skip
#: Of the published layers wo_a is quantised too; transformers has more than nn.Linear for it.
PACKED = re.compile(r"(.*\.(?:wq_a|wq_b|wkv|wo_b|w[123]))\.weight")
WITH_GROUPED = re.compile(r"(.*\.(?:wq_a|wq_b|wkv|wo_[ab]|w[123]))\.weight")


@pytest.fixture(scope="module")
def dense_v4(tmp_path_factory):
    torch.manual_seed(0)
    config = transformers.DeepseekV4Config(**TINY)
    model = transformers.DeepseekV4ForCausalLM(config).eval()
    folder = tmp_path_factory.mktemp("v4") / "dense"
    model.save_pretrained(folder)
    return folder


def published(dense_folder, folder, packed=PACKED):
    """The folder, and beside it, as ``truth``, the dense one that it means."""
    truth = shutil.copytree(dense_folder, folder.parent / "truth")
    shutil.copytree(dense_folder, folder)
    settings = fp8_settings("v4 blocks") | {"scale_fmt": "ue8m0"}
    edit_config(folder, quantization_config=settings, expert_dtype="fp4")
    layers = {}

    def choose(tensors):
        for seed, name in enumerate(sorted(tensors)):
            if (match := packed.fullmatch(name)) and "compressor" not in name:
                draw = fp8_expert_of_4_bits if ".experts." in name else v4_blocks
                layers[match[1]] = draw(*tensors[name].shape, seed=seed)
                tensors[name] = torch.from_numpy(layers[match[1]].weight).float()

    def pack(tensors):
        for name in layers:
            del tensors[f"{name}.weight"]
        tensors |= tensors_of(layers)

    edit_tensors(truth, choose)
    edit_tensors(folder, pack)
    return folder


def v4_blocks(n, k, *, seed):
    return fp8(n, k, kind="v4 blocks", seed=seed)


def test_the_published_form_has_the_values_of_its_files(dense_v4, tmp_path):
    folder = published(dense_v4, tmp_path / "v4")
    with enable("fp8"):
        model = load(folder)
    repack(folder, tmp_path / "repacked")
    expected = logits(model)
    assert torch.equal(logits(load(tmp_path / "repacked")), expected)
    assert {str(e.down.weight_type) for e in experts_of(model).values()} == {
        str(ladder.ttype("mxfp4"))
    }
    linear = model.get_submodule("model.layers.0.self_attn.q_a_proj")
    assert str(linear.weight_type) == "float8_e4m3,block=128x128,scale=e8m0"
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(logits(load(tmp_path / "saved")), expected)
    assert torch.equal(logits(dense(model)), logits(load(tmp_path / "truth")))


def test_a_quantised_layer_that_is_more_than_linear_is_refused(dense_v4, tmp_path):
    folder = published(dense_v4, tmp_path / "v4", WITH_GROUPED)
    why = r"attn.wo_a is quantised, and .*o_a_proj a DeepseekV4GroupedLinear, which is more than"
    with enable("fp8"), pytest.raises(Unsupported, match=why):
        load(folder)
    repack(folder, tmp_path / "repacked")
    with pytest.raises(Unsupported, match=why):
        load(tmp_path / "repacked")
