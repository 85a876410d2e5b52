# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel and FSDP2 train adapters on packed weights as one process does: two
processes on the CPU, through gloo."""

import os
import subprocess
import sys

import pytest
import torch
from hf_models import ROOT, TINY, load
from torch.distributed import TCPStore

import ladder

peft = pytest.importorskip("peft")
from data_parallel_worker import BATCH, WAYS  # noqa: E402, which imports peft

HERE = ROOT / "tests" / "integrations"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    from transformers import LlamaConfig, LlamaForCausalLM

    root = tmp_path_factory.mktemp("models")
    for name, biased in (("plain", False), ("biased", True)):
        torch.manual_seed(0)
        config = LlamaConfig(**TINY, attention_bias=biased, initializer_range=0.1)
        model = LlamaForCausalLM(config)
        ladder.convert(model, "uint4", group_size=32)
        model.save_pretrained(root / name)
    return root


@pytest.fixture(scope="module")
def out(folders, tmp_path_factory):
    """What the two processes found."""
    out = tmp_path_factory.mktemp("out")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # keeps a port open
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2",
              "TORCHELASTIC_USE_AGENT_STORE": "True", "PYTHONPATH": str(ROOT)}  # fmt: skip
    command = [sys.executable, str(HERE / "data_parallel_worker.py"), str(folders), str(out)]
    processes = [
        subprocess.Popen(command, env=os.environ | common | {"RANK": str(rank)},
                         stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]  # fmt: skip
    try:
        texts = [process.communicate(timeout=300)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), "\n".join(texts)
    return out


@pytest.mark.parametrize("way", WAYS)
def test_two_processes_train_adapters_as_one_does(out, way):
    """Bit by bit: a mean of two gradients is rounded once, whoever computes it."""
    alone = torch.load(out / f"{way}-alone.pt")
    ranks = [torch.load(out / f"{way}-{rank}.pt") for rank in range(2)]
    assert torch.equal(torch.cat([found["losses"] for found in ranks], 1), alone["losses"])
    assert (alone["losses"][1] < alone["losses"][0]).all()
    for found in ranks:
        for ours, theirs in zip(found["gradients"], alone["gradients"], strict=True):
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
        for kind in ("adapters", "codes"):
            ours, theirs = found[kind], alone[kind]
            assert theirs and ours.keys() == theirs.keys()
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert all(gradient.any() for gradient in alone["gradients"][0].values())


def test_adapters_that_fsdp_trained_are_saved_and_load(out, folders):
    alone = torch.load(out / "fsdp-alone.pt")
    model = peft.PeftModel.from_pretrained(load(folders / "biased"), out / "adapters")
    loaded = {name: p for name, p in model.named_parameters() if "lora_" in name}
    assert loaded.keys() == alone["adapters"].keys()
    assert all(torch.equal(loaded[name], p) for name, p in alone["adapters"].items())
    with torch.no_grad():
        assert model(BATCH[:1], labels=BATCH[:1]).loss < alone["losses"][1, 0]
