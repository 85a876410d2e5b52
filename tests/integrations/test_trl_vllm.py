# SPDX-License-Identifier: Apache-2.0
"""Trainers that send parameters to vLLM: packed weights are none, so adapters on them are refused.

TRL need not be installed: modules of its names stand in for it."""

import importlib.util
import sys
import types
from pathlib import Path

import pytest
from adapted_nets import dense_net, packed_net

from ladder.errors import Unsupported
from ladder.integrations import trl

peft = pytest.importorskip("peft")


def adapted(net):
    return peft.get_peft_model(net, peft.LoraConfig(r=2, target_modules=["first"]))


@pytest.fixture(params=trl.SENDERS, ids=lambda sender: sender[1])
def sender(request, monkeypatch):
    """A class that merges adapters and sends parameters, as TRL's do; wrapped as it is imported."""
    module, kind, method = request.param

    def init(self, model, *more):
        self.model = model
        if method == "__init__":
            send(self)

    def send(self, *more):
        self.model.merge_adapter()
        self.sent = [name for name, _ in self.model.named_parameters() if "lora" not in name]

    fields = {"__init__": init} if method == "__init__" else {"__init__": init, method: send}
    imported = types.ModuleType(module)
    setattr(imported, kind, type(kind, (), fields))
    monkeypatch.setitem(sys.modules, module, imported)
    trl.register()
    trl.register()  # again, as after a reload

    def run(model):
        made = getattr(imported, kind)(model)
        if method != "__init__":
            getattr(made, method)()
        return made

    return run


def test_adapters_on_packed_layers_are_refused_before_anything_is_sent(sender):
    model = adapted(packed_net())
    before = model.base_model.model.first.get_base_layer().packed_weight
    with pytest.raises(Unsupported, match="first: TRL merges adapters and sends parameters"):
        sender(model)
    assert model.base_model.model.first.get_base_layer().packed_weight == before


def test_adapters_on_dense_layers_are_sent(sender):
    net = packed_net()
    net.first = dense_net().first
    assert any(name.endswith("first.base_layer.weight") for name in sender(adapted(net)).sent)


@pytest.mark.parametrize(("module", "kind", "method"), trl.SENDERS)
def test_trl_has_what_is_wrapped(module, kind, method):
    """A method that TRL renames would go unwatched."""
    pytest.importorskip("trl", reason="trl is not installed")
    text = Path(importlib.util.find_spec(module).origin).read_text()
    assert f"class {kind}" in text and f"def {method}(" in text
