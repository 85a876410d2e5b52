# SPDX-License-Identifier: Apache-2.0
"""Every experts module of the installed transformers: what ladder recognises computes the same."""

import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch

import ladder
from ladder.nn.dense_experts import Layout, has_stacks, layout_of

transformers = pytest.importorskip("transformers")
#: What configurations call the sizes of experts, and what they are here.
SMALL = {
    **dict.fromkeys(("hidden_size",), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size", "expert_ffn_hidden_size"), 48),
}


def modules():
    """Names of the modules of transformers that have experts of this kind."""
    root = Path(transformers.__file__).parent / "models"
    for path in sorted(root.glob("*/modeling_*.py")):
        if "\n@use_experts_implementation" in path.read_text():
            yield f"transformers.models.{path.parent.name}.{path.stem}"


def classes(found):
    for name, kind in vars(found).items():
        own = inspect.isclass(kind) and kind.__module__ == found.__name__
        if own and issubclass(kind, torch.nn.Module) and re.search("Experts$", name):
            yield kind


def made(kind):
    """An instance with small random weights, of the first configuration that it takes."""
    package = importlib.import_module(kind.__module__.rpartition(".")[0])
    named = inspect.signature(kind.__init__).parameters["config"].annotation
    named = named if isinstance(named, str) else getattr(named, "__name__", "")
    names = [name for name in dir(package) if name.endswith("Config")]
    for name in sorted(names, key=lambda name: (name != named, "Text" not in name)):
        try:
            config = getattr(package, name)()
            for field, size in SMALL.items():
                if type(getattr(config, field, None)) is int:  # elsewhere a list for all layers
                    setattr(config, field, size)
            config._experts_implementation = "eager"
            with torch.device("meta"):
                module = kind(config)
        except (AttributeError, TypeError, ValueError):
            continue  # another part's configuration
        if sum(p.numel() for p in module.parameters()) > 10**6:
            continue
        module = module.to_empty(device="cpu").eval()
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        return module
    return None


def test_every_mixture_that_is_recognised_computes_as_its_module_does():
    torch.manual_seed(0)
    compared, others = [], {}
    for name in modules():
        for kind in classes(importlib.import_module(name)):
            module = made(kind)
            if module is None or not has_stacks(module):
                continue
            layout = layout_of(module)
            if not isinstance(layout, Layout):
                others[kind.__name__] = layout
                continue
            experts = ladder.Experts.from_dense(module, "float32")
            e, h, _ = layout.shape
            x, weights = torch.randn(9, h), torch.rand(9, 2)
            index = torch.stack([torch.randperm(e)[:2] for _ in range(9)])
            with torch.no_grad():
                wanted, y = module(x, index, weights), experts(x, index, weights)
            # Unrounded weights: only the order of float32 sums differs, 64 and 48 terms.
            assert (y - wanted).abs().max() < 1e-5 * wanted.abs().max(), kind
            compared.append(kind.__name__)
    assert len(compared) >= 30, compared
    assert {"MixtralExperts", "Qwen3MoeExperts", "GptOssExperts", "OlmoeExperts"} <= {*compared}
    assert len(others) < 5, others
