# SPDX-License-Identifier: Apache-2.0
"""Several processes compute and save what one does: on the CPU through gloo, or where torch has
CUDA, for which transformers then decides, on as many GPUs through NCCL."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from checkpoint_oracle import awq, gptq
from hf_models import ROOT, SUPERBLOCKS, TINY, TWO_LEVELS, foreign_folder, load
from more_oracles import BITNET, NF4, bitnet, bnb
from parallel_cases import STYLES, WEIGHTS, enabled, kind, layer, observed, share
from safetensors.torch import load_file

from ladder.errors import Unsupported
from ladder.integrations.folders.loading import LoadingLinear
from ladder.integrations.transformers import LadderConfig, enable
from ladder.integrations.transformers.tensor_parallel import Plan, group_of, prepare, read_plan

SIZES = (2, 4)
PRESENT = [size for size in SIZES if kind() == "cpu" or size <= torch.cuda.device_count()]
#: Of each layer, attention and MLP: every part that a weight can have, cut both ways.
TYPES = [
    ("uint4,group=32,scale=float16,zero=midpoint", "uint3,group=32,scale=float16,zero=midpoint"),
    ("nf4,group=64,scale=float16", "mxfp4"),
    ("nvfp4", "uint4,group=32,scale=float16,zero=integer"),
    (TWO_LEVELS, "uint4,group=32,scale=uint6,zero=integer,scale2=float32:channel"),
    ("int8,tensor,scale=float32", "uint3,group=16,scale=float16,zero=quantized"),
    ("float6_e3m2,channel,scale=bfloat16", "uint4,group=32,scale=float16,zero=original"),
    (SUPERBLOCKS, "int4,group=16,scale=int6,scale2=float32:64"),
]
CONFIG = TINY | {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": len(TYPES),
    "num_attention_heads": 4, "num_key_value_heads": 4, "initializer_range": 0.1,
    "attention_bias": True, "mlp_bias": True,
}  # fmt: skip
ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")


def dense_folder(folder, **fields):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**CONFIG | fields)).to(torch.float16)
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Model folders by name, and how to load them."""
    root = tmp_path_factory.mktemp("folders")
    modules = {"lm_head": "uint4,group=32,scale=float16,zero=midpoint"}
    for number, (attention, mlp) in enumerate(TYPES):
        modules |= {f"model.layers.{number}.self_attn.{name}": attention for name in ATTENTION}
        modules |= {f"model.layers.{number}.mlp.{name}": mlp for name in MLP}
    untied = dense_folder(root / "untied", tie_word_embeddings=False)
    config = LadderConfig("uint4", 32, modules=modules, modules_to_not_convert=[])
    load(untied, quantization_config=config).save_pretrained(root / "mixed")
    tied = dense_folder(root / "tied", tie_word_embeddings=True, num_hidden_layers=1)
    load(tied, quantization_config=LadderConfig("uint4", 32)).save_pretrained(root / "packed_tied")
    blocks = LadderConfig("int8,block=96x32,scale=float16")
    load(tied, quantization_config=blocks).save_pretrained(root / "blocks")

    def ordered(n, k, seed):
        return gptq(n, k, seed=seed, bits=4, order=True)

    def asymmetric(n, k, seed):
        return awq(n, k, seed=seed, version="gemm")

    def nested(n, k, seed):
        return bnb(n, k, seed=seed, nested=True, blocksize=32)

    act_order = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}
    foreign_folder(tied, root / "gptq", ordered, act_order)
    settings = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
    foreign_folder(tied, root / "awq", asymmetric, settings)
    foreign_folder(tied, root / "nf4", nested, NF4)
    foreign_folder(tied, root / "bitnet", bitnet, BITNET)
    with enable("gptq"):
        load(root / "gptq").save_pretrained(root / "act_order")
    return {
        "mixed": {"folder": root / "mixed"},
        "tied": {"folder": root / "packed_tied"},
        "act_order": {"folder": root / "act_order"},
        "gptq": {"folder": root / "gptq", "enable": "gptq"},
        "awq": {"folder": root / "awq", "enable": "awq"},
        "nf4": {"folder": root / "nf4", "enable": "bitsandbytes"},
        "bitnet": {"folder": root / "bitnet", "enable": "bitnet"},
    }


@pytest.fixture(scope="module")
def one(folders, tmp_path_factory):
    """What one process finds, and the folders that it saves."""
    root, found = tmp_path_factory.mktemp("one"), {}
    for name, job in folders.items():
        with enabled(job):
            model = load(job["folder"], device_map=kind())
        found[name] = observed(model)
        model.save_pretrained(root / name)
        found[name].saved = root / name
    return found


@pytest.fixture(scope="module")
def runs(folders, tmp_path_factory):
    """By number of processes, what each finds, and the folders that they save together: two load
    all models, four the one that has every type."""
    mixed = folders["mixed"]["folder"]
    plan = {"model.layers.*.mlp.up_proj": "packed_colwise"}
    refused = {
        "blocks": {"folder": mixed.parent / "blocks"},
        "style": {"folder": mixed, "distributed": {"tp_plan": plan}},
        "quantising": {
            "folder": mixed.parent / "untied",
            "quantization_config": LadderConfig("uint4", 32),
        },
    }
    arguments, found = [], {}
    for size in PRESENT:
        folder = tmp_path_factory.mktemp(f"of_{size}")
        jobs = folders | {"compile": True} if size == 2 else {"mixed": folders["mixed"]}
        if kind() == "cuda":  # where float32 has no kernels
            jobs = jobs | {"half": folders["mixed"] | {"dtype": torch.float16}}
        (folder / "jobs.pkl").write_bytes(pickle.dumps(jobs | refused))
        arguments += [folder, str(size)]
        found[size] = SimpleNamespace(size=size, folder=folder)
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(ROOT), *sys.path])
    done = subprocess.run(
        [sys.executable, here / "parallel_worker.py", *arguments], check=False,
        capture_output=True, text=True, timeout=300,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for size, run in found.items():
        files = [run.folder / f"rank{rank}.pt" for rank in range(size)]
        run.ranks = [torch.load(file, weights_only=False) for file in files]
    return found


@pytest.fixture(params=SIZES)
def several(request, runs):
    return present(runs, request.param)


def present(runs, size):
    """What ``size`` processes found."""
    if size not in runs:
        pytest.skip(f"needs {size} GPUs; there are {torch.cuda.device_count()}")
    return runs[size]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_a_cut_layer_computes_exactly_what_the_whole_one_does(several, weight, style):
    """Integers: a wrong row, group or collective changes the result, and so the gradient."""
    linear, x, grad = layer(weight)
    x.requires_grad_()
    y = linear(x)
    y.backward(grad)
    wanted, x_split, y_split = STYLES[style]
    kept = weight in ("even", "uneven") or wanted == "rows"
    for rank, found in enumerate(several.ranks):
        along, own, own_grad = found["layers"][weight, style]
        assert along == (wanted if kept else "rows")
        assert torch.equal(own, share(y, rank, several.size) if y_split else y)
        assert torch.equal(own_grad, share(x.grad, rank, several.size) if x_split else x.grad)


def test_compiled_layers_compute_the_same(runs):
    assert all(found["compiled"] for found in present(runs, 2).ranks)


MODELS = ("mixed", "tied", "act_order", "gptq", "awq", "nf4")
of_models = pytest.mark.parametrize(
    ("size", "model"), [*((2, model) for model in MODELS), (4, "mixed")]
)


@of_models
def test_several_processes_compute_what_one_computes(runs, one, size, model):
    expected = one[model]
    largest = expected.gradient.abs().max()  # which is what roundings are small beside
    for ranks in present(runs, size).ranks:
        found = ranks[model]
        torch.testing.assert_close(found.logits, expected.logits)
        torch.testing.assert_close(found.gradient / largest, expected.gradient / largest)
        assert torch.equal(found.tokens, expected.tokens)


# Each process rounds its own columns of x to int8, so that bitnet does not compute the same.
@pytest.mark.parametrize(
    ("size", "model"), [*((2, model) for model in (*MODELS, "bitnet")), (4, "mixed")]
)
def test_several_processes_save_the_whole_folder_bit_by_bit(runs, one, size, model):
    both = one[model].saved, present(runs, size).folder / model
    expected, found = (load_file(folder / "model.safetensors") for folder in both)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert tensor.dtype == found[name].dtype and torch.equal(tensor, found[name]), name
    texts = [(folder / "config.json").read_text() for folder in both]
    assert texts[0] == texts[1]


def test_each_process_holds_its_share_only(several, one):
    """But for what is there once for each row or each weight: scales, and words of zero points that
    are not full. No layer has more than 128 rows of columns that are cut."""
    for name, whole in one["mixed"].held.items():
        for found in several.ranks:
            held, share = found["mixed"].held[name], whole / several.size
            assert share <= held <= share + 4 * 128, name


@pytest.mark.parametrize(
    ("style", "type", "in_part"),
    [
        ("colwise", "uint4,group=32,scale=float16,zero=quantized", {"qweight", "scales", "zeros"}),
        ("colwise", "nvfp4", {"qweight", "scales"}),
        ("colwise", TWO_LEVELS, {"qweight", "scales"}),
        ("rowwise", TWO_LEVELS, {"qweight", "scales"}),
        ("colwise", SUPERBLOCKS, {"qweight", "scales", "zeros", "scale2"}),
        ("rowwise", SUPERBLOCKS, {"qweight", "scales", "zeros", "scale2"}),
        ("rowwise", "q4_k", set()),
        ("rowwise", "uint4,group=32,scale=float16,zero=integer", {"qweight", "scales", "zeros"}),
        ("rowwise", "uint3,group=16,scale=float16,zero=quantized", {"qweight", "scales"}),
        ("rowwise", "int8,channel,scale=float16", {"qweight"}),
        ("rowwise", "uint4,group=256,scale=float16,zero=midpoint", set()),
    ],
)
def test_parts_that_are_cut_evenly_are_read_in_part(style, type, in_part):
    """transformers reads a process's own part of parameters, and buffers whole."""
    module = LoadingLinear(256, 128, False, type, device="meta")
    prepare(module, "layers.7.mlp", Plan(1, 2, {"layers.*.mlp": style}))
    assert {n for n, p in module._parameters.items() if p is not None} == in_part


def test_all_layers_with_act_order_are_cut_along_rows(runs):
    for found in present(runs, 2).ranks:
        assert set(found["act_order"].along.values()) == {"rows"}


def test_a_row_parallel_layer_that_has_no_columns_to_cut_is_cut_along_rows(several):
    for found in several.ranks:
        along = found["mixed"].along
        assert along["model.layers.0.self_attn.o_proj"] == "columns"
        # 32 columns of 4 processes are half a group of 64.
        assert along["model.layers.1.self_attn.o_proj"] == ("columns", "rows")[several.size == 4]


def test_what_cannot_be_cut_is_refused_by_name(several):
    for found in several.ranks:
        errors = found["errors"]
        assert errors.keys() == {"blocks", "style", "quantising"}
        assert "_proj of " in errors["blocks"]
        assert f"cannot be cut over tp_size {several.size} processes: rows 0 to" in errors["blocks"]
        assert "cut blocks of 96 rows" in errors["blocks"]
        assert errors["blocks"].endswith("It can be over 1")
        assert 'up_proj has the style "packed_colwise" in tp_plan' in errors["style"]
        assert "cannot be quantised while it is loaded" in errors["quantising"]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"tp_size": 1, "ep_size": 4}, "ep_size is 4: expert parallelism"),
        ({"tp_size": 2, "enable_expert_parallel": True}, "ep_size is 2: expert parallelism"),
        ({"tp_size": 2, "fsdp_size": 4}, "tp_size is 2 and fsdp_size 4"),
        ({"tp_size": 2, "pp_size": 2}, "tp_size is 2 and pp_size 2"),
    ],
)
def test_other_ways_to_use_several_processes_are_refused_before_reading(sizes, message):
    model = SimpleNamespace(config=SimpleNamespace(distributed_config=SimpleNamespace(**sizes)))
    with pytest.raises(Unsupported, match=message):
        read_plan(model, pre_quantized=True)


def test_a_model_distributed_otherwise_than_planned_is_refused():
    """As by a transformers that asks the quantizer for nothing before it distributes."""
    mesh = SimpleNamespace(size=lambda: 2, get_local_rank=lambda: 1)
    model = SimpleNamespace(_tp_size=2, _device_mesh=mesh)
    with pytest.raises(Unsupported, match="to rank 1 of 2, but packed weights"):
        group_of(model, None)
    with pytest.raises(Unsupported, match="were cut for rank 0 of 2"):
        group_of(model, Plan(0, 2, {}))


@pytest.mark.cuda
@pytest.mark.skipif(kind() != "cuda", reason="needs a GPU")
@pytest.mark.parametrize("size", SIZES)
def test_gpus_compute_through_kernels_what_one_gpu_computes(runs, folders, size):
    """In float16: no further from float32 than twice what one GPU is, as sums over columns are
    rounded for each GPU. Cutting rows takes no kernel from a layer."""
    ranks = present(runs, size).ranks
    folder = folders["mixed"]["folder"]
    expected = observed(load(folder, device_map=kind(), dtype=torch.float16))
    exact = observed(load(folder, device_map=kind())).logits
    assert any(expected.kernels.values())
    for rank in ranks:
        found = rank["half"]
        rows = [name for name, along in found.along.items() if along == "rows"]
        assert all(found.kernels[name] == expected.kernels[name] for name in rows)
        rounding = (expected.logits - exact).abs().max()
        assert (found.logits - exact).abs().max() <= 2 * rounding
