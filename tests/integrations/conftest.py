# SPDX-License-Identifier: Apache-2.0
import sys

import pytest
import torch
from hf_mixtures import MODELS, fresh
from hf_models import GPTQ, ROOT, TINY, load

sys.path.append(str(ROOT / "tests" / "checkpoints"))


@pytest.fixture(scope="session")
def ladder_folder(tmp_path_factory):
    """The GPTQ checkpoint of the demo, repacked."""
    from ladder.checkpoints import repack

    folder = tmp_path_factory.mktemp("repacked") / "model"
    repack(GPTQ, folder)
    return folder


@pytest.fixture(scope="session")
def dequantised_folder(ladder_folder, tmp_path_factory):
    """The same model, dense in float32, with its tokenizer."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("dequantised") / "model"
    load(ladder_folder).dequantize().save_pretrained(folder)
    AutoTokenizer.from_pretrained(ladder_folder).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def dense_folder(tmp_path_factory):
    """A random two-layer LLaMA in float16 with biases in its attention."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(**TINY, attention_bias=True, tie_word_embeddings=True)
    model = LlamaForCausalLM(config).to(torch.float16)
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    folder = tmp_path_factory.mktemp("dense") / "model"
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session", params=MODELS)
def mixture(request):
    return request.param


@pytest.fixture(scope="session")
def mixture_folder(mixture, tmp_path_factory):
    path = tmp_path_factory.mktemp(mixture) / "model"
    fresh(mixture).save_pretrained(path)
    return path


@pytest.fixture(scope="module", params=["mixtral", "qwen3_moe"])
def unpacked_folder(request, tmp_path_factory):
    """transformers writes its experts one by one."""
    folder = tmp_path_factory.mktemp(request.param) / "model"
    fresh(request.param).save_pretrained(folder)
    return folder
