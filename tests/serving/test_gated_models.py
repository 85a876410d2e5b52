# SPDX-License-Identifier: Apache-2.0
"""Which MLPs of vLLM's model files give gate and up to an activation alone: of every class with a
merged layer, as docs/serving.md has them in a table."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from pathlib import Path

import pytest

from ladder.nn.sole_reader import Found, sole_reader

pytestmark = pytest.mark.usefixtures("vllm")

DOCS = Path(__file__).parents[2] / "docs" / "serving.md"
#: MLPs whose forward does something else with gate and up, and words of the reason.
OTHERS = {
    "FalconH1MLP": "does something to the result of gate_up_proj first",
    "Zamba2MLP": "reads the result of gate_up_proj 0 times in the next statement",
    "ModernBertMLP": "does something to the result of Wi first",
    "DoryMLP": "does something to the result of gate_up_proj first",
}
#: Models, by their file and the class that is their MLP.
MODELS = {
    "llama": "LlamaMLP", "mistral": "MistralMLP", "qwen2": "Qwen2MLP", "qwen3": "Qwen3MLP",
    "gemma": "GemmaMLP", "gemma2": "Gemma2MLP", "gemma3": "Gemma3MLP", "glm4": "Glm4MLP",
    "granite": "GraniteMLP", "phi3": "LlamaMLP",
    "commandr": "CohereMLP", "deepseek_v2": "DeepseekV2MLP", "exaone4": "Exaone4GatedMLP",
    "internlm2": "InternLM2MLP", "minicpm": "MiniCPMMLP", "qwen3_moe": "Qwen3MoeMLP",
    "stablelm": "StablelmMLP",
}  # fmt: skip


def _layers(kind: ast.ClassDef) -> dict[str, bool]:
    """The merged layers of two parts that a class makes, and whether each returns a pair."""
    found = {}
    for node in ast.walk(kind):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        target = ast.unparse(node.targets[0])
        if ast.unparse(node.value.func) == "MergedColumnParallelLinear":
            found[target.removeprefix("self.")] = "return_bias=False" not in ast.unparse(node.value)
    return found


@functools.cache
def everything() -> dict[str, Found]:
    """What is found of each class with a merged layer in vLLM's folder of models."""
    import vllm.model_executor.models as models

    from ladder.integrations.vllm.gated import _APPLIERS

    found = {}
    for file in sorted(Path(models.__path__[0]).glob("*.py")):
        text = file.read_text()
        if "MergedColumnParallelLinear(" not in text:
            continue
        try:
            module = importlib.import_module(f"{models.__name__}.{file.stem}")
        except ModuleNotFoundError:  # of images, of audio
            continue
        for kind in ast.parse(text).body:
            if isinstance(kind, ast.ClassDef) and hasattr(module, kind.name):
                for name, pair in _layers(kind).items():
                    found[kind.name] = sole_reader(
                        getattr(module, kind.name), name, pair, _APPLIERS
                    )
    return found


def test_every_mlp_is_recognised_but_those_that_do_something_else():
    mlps = {name: found for name, found in everything().items() if re.search("MLP|FFN|GLU", name)}
    mlps = {name: found for name, found in mlps.items() if "Attention" not in name}
    assert len(mlps) > 45
    left = {name: found.why for name, found in mlps.items() if not found.reader}
    assert left.keys() <= OTHERS.keys(), left
    for name, why in left.items():
        assert OTHERS[name] in why
    assert {"FalconH1MLP", "Zamba2MLP"} <= left.keys()


def test_no_layer_of_attention_is_taken_for_an_mlp():
    others = [name for name in everything() if re.search("Attention|Mixer|Indexer|Conv", name)]
    assert len(others) > 5
    assert not [name for name in others if everything()[name].reader]


@pytest.mark.parametrize("file", MODELS)
def test_the_mlps_of_the_table_are_recognised(file):
    module = importlib.import_module(f"vllm.model_executor.models.{file}")
    text = Path(module.__file__).read_text()
    name = MODELS[file]
    known = getattr(module, name, None)
    if known is None:  # a model without a class of its own
        known = importlib.import_module("vllm.model_executor.models.llama").LlamaMLP
        assert re.search(r"from (vllm\.model_executor\.models)?\.?llama import", text), file
    assert everything()[known.__name__].reader


def test_the_table_has_the_models_that_are_tested():
    text = DOCS.read_text()
    assert all(f"`{kind}`" in text for kind in OTHERS)
    assert all(f"`{file}`" in text for file in MODELS)
