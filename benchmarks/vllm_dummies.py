# SPDX-License-Identifier: Apache-2.0
"""Random weights of engines of vLLM whose tokens choose their experts, and how many they choose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def fill_dummies(mixture: bool) -> list[Any]:
    """Have vLLM's dummy weights be random where they are codes, too, and those of a mixture such
    that its experts are chosen by tokens: all dummies are of one size, so that the biases of a
    router outweigh what a token says, and those of experts what its embedding does. Models that
    are loaded come into the list."""
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    models: list[Any] = []
    theirs = DummyModelLoader.load_weights

    # Not initialize_dummy_weights: vLLM 0.26 calls it for the model and then for each module of it,
    # where names are short, and what was filled by its whole name is a dummy once more.
    def load_weights(self: Any, model: Any, *rest: Any, **more: Any) -> None:
        import torch

        theirs(self, model, *rest, **more)
        models.append(model)
        for name, tensor in model.state_dict().items():
            last = name.rpartition(".")[2]
            if mixture and name.endswith("router.bias"):
                tensor.zero_()
            elif mixture and name.endswith(("embed_tokens.weight", "embedding.weight")):
                tensor.normal_()
            if tensor.is_floating_point() or tensor.is_meta:
                continue
            if last.endswith("scale") and tensor.dtype == torch.uint8:  # e8m0
                tensor.random_(112, 120)
            elif last.endswith(("weight", "qweight", "weight_packed")):
                tensor.view(torch.uint8).random_()

    DummyModelLoader.load_weights = load_weights
    return models


def experts_of_32(model: Any, top: int, run: Callable[[], Any]) -> list[float]:
    """Of 32 tokens one behind the other: how many experts they choose, the mean over layers, and
    how many of them choose one expert at most. ``run`` gives the model more tokens than its graphs
    have; from then on it runs uncompiled."""
    chosen: list[Any] = []

    def watch(module: Any, inputs: Any, output: Any) -> None:
        logits = output[0] if isinstance(output, tuple) else output
        chosen.append(logits.float().topk(top).indices.cpu())

    for name, module in model.named_modules():
        if hasattr(module, "do_not_compile"):
            module.do_not_compile = True
        if name.endswith(("mlp.router", "mlp.gate")):
            module.register_forward_hook(watch)
    run()
    loads = [part.flatten().bincount() for layer in chosen for part in layer.split(32)]
    return [sum(int((n > 0).sum()) for n in loads) / len(loads), max(int(n.max()) for n in loads)]
