# SPDX-License-Identifier: Apache-2.0
"""``ladder merge``: a folder of a model and one of an adapter become one ladder folder."""

import json
import shutil

import pytest
import torch
from hf_mixtures import FIRST, experts_of, fresh
from hf_models import TINY, load, logits, types_in
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

import ladder
from ladder.cli import main
from ladder.errors import CheckpointError, InvalidArgument
from ladder.integrations.transformers import dense
from ladder.nn.requantize import requantized

peft = pytest.importorskip("peft")

from ladder.integrations.peft_folder import merge  # noqa: E402  (it needs peft)

GROUP = "uint4,group=32,scale=float16,zero=midpoint"


def adapter_of(model, folder, **options):
    torch.manual_seed(3)
    config = peft.LoraConfig(r=4, init_lora_weights=False, **options)
    adapted = peft.get_peft_model(model, config)
    adapted.save_pretrained(folder)
    return adapted


def tensors(folder):
    return load_file(folder / "model.safetensors")


def test_a_dense_folder_becomes_what_convert_makes_of_the_merged_model(dense_folder, tmp_path):
    adapter_of(load(dense_folder), tmp_path / "adapter", target_modules="all-linear")
    given = tensors(dense_folder)
    report = merge(dense_folder, tmp_path / "adapter", tmp_path / "out", "nf4", group_size=32)
    model = load(dense_folder, dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(model, tmp_path / "adapter").merge_and_unload()
    expected = ladder.convert(model, "nf4", 32)
    assert report.packed == expected.packed and len(report.packed) == 14
    model.half().save_pretrained(tmp_path / "expected")
    made, wanted = tensors(tmp_path / "out"), tensors(tmp_path / "expected")
    assert made.keys() == wanted.keys()
    assert all(torch.equal(made[name], part) for name, part in wanted.items())
    assert all(map(torch.equal, tensors(dense_folder).values(), given.values()))
    assert load(tmp_path / "out", dtype="auto").config.dtype == torch.float16


@pytest.fixture(scope="module")
def packed_folder(dense_folder, tmp_path_factory):
    """Layers of three types, one dense, and a packed input embedding."""
    folder = tmp_path_factory.mktemp("packed") / "model"
    model = load(dense_folder, dtype=torch.float16)
    ladder.convert(
        model, GROUP, types={"layers.1.mlp": "nf4,group=32", "embed_tokens": "uint8,group=32"},
        skip=("layers.0.mlp.up_proj",), head=True, embeddings=True,
    )  # fmt: skip
    model.save_pretrained(folder)
    (folder / "notes.txt").write_text("mine")
    return folder


def test_a_packed_folder_keeps_its_types_and_what_it_has_dense(packed_folder, tmp_path):
    model = load(packed_folder)
    names = ["q_proj", "up_proj", "embed_tokens"]
    adapter_of(model, tmp_path / "adapter", target_modules=names)
    merge(packed_folder, tmp_path / "adapter", tmp_path / "out")
    assert types_in(tmp_path / "out") == types_in(packed_folder)
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    before, made = tensors(packed_folder), tensors(tmp_path / "out")
    assert before.keys() == made.keys()
    assert all(made[name].dtype == part.dtype for name, part in before.items())
    up = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(made.pop(up), before[up])  # dense, and merged
    rest = [name for name in made if "qweight" not in name and "scales" not in name]
    assert rest and all(torch.equal(made[name], before[name]) for name in rest)


def test_the_merged_folder_predicts_what_the_adapter_beside_the_weights_does(
    ladder_folder, tmp_path
):
    adapted = adapter_of(load(ladder_folder), tmp_path / "adapter", target_modules="all-linear")
    exact = logits(adapted)
    ids = torch.randint(0, 4096, (4, 48), generator=torch.Generator().manual_seed(1))
    off = []
    for name, calibration in (("nearest", None), ("by_data", ids)):
        merge(ladder_folder, tmp_path / "adapter", tmp_path / name, calibration=calibration)
        off.append((logits(load(tmp_path / name)) - exact).norm())
    with_out = (logits(load(ladder_folder)) - exact).norm()
    assert off[1] < off[0] < 0.7 * with_out


def test_another_type_is_taken_for_all_that_is_packed(packed_folder, tmp_path):
    adapter_of(load(packed_folder), tmp_path / "adapter", target_modules=["q_proj"])
    report = merge(packed_folder, tmp_path / "adapter", tmp_path / "out", "int8", group_size=32)
    assert set(report.packed.values()) == {"int8,group=32,scale=float16"}
    assert report.packed.keys() == types_in(packed_folder).keys()


def test_adapters_of_experts_are_merged(tmp_path):
    """PEFT reaches them by ``target_parameters`` in the dense model, in the packed one not."""
    base = fresh("mixtral")
    ladder.convert(base, GROUP)
    base.save_pretrained(tmp_path / "packed")
    names = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    options = {"target_modules": [], "target_parameters": names}
    adapted = adapter_of(dense(load(tmp_path / "packed")), tmp_path / "adapter", **options)
    merged = adapted.merge_and_unload().get_submodule(FIRST)
    report = merge(tmp_path / "packed", tmp_path / "adapter", tmp_path / "out")
    assert len(report.packed) == len(report.stacks) == 4
    made, before = (experts_of(model)[FIRST] for model in (load(tmp_path / "out"), base))
    for expert, rows in enumerate(merged.down_proj):
        own = before.down.weight_of(expert)
        assert made.down.weight_of(expert) == requantized(rows.detach(), own) != own


def test_activations_are_rounded_as_before(dense_folder, tmp_path):
    model = load(dense_folder)
    ladder.convert(model, "int8", 32, activation_type="int8")
    model.save_pretrained(tmp_path / "packed")
    adapter_of(model, tmp_path / "adapter", target_modules=["q_proj"])
    merge(tmp_path / "packed", tmp_path / "adapter", tmp_path / "out")
    layers = [m for m in load(tmp_path / "out").modules() if isinstance(m, ladder.Linear)]
    assert layers and all(layer.activation_type == "int8" for layer in layers)


@pytest.mark.parametrize("options", [{}, {"weight_type": "int4", "group_size": 32}, "calibration"])
def test_activations_that_this_device_does_not_round_are_asked_for_again(
    options, dense_folder, tmp_path
):
    model = load(dense_folder)
    ladder.convert(model, GROUP)
    for layer in (m for m in model.modules() if isinstance(m, ladder.Linear)):
        assert "none for cpu" in layer.offer_activation_type("float8_e4m3")
    model.save_pretrained(tmp_path / "packed")
    adapter_of(model, tmp_path / "adapter", target_modules=["q_proj"])
    if options == "calibration":
        options = {"calibration": torch.arange(60)[None]}
    merge(tmp_path / "packed", tmp_path / "adapter", tmp_path / "out", **options)
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["activation_type"] == "float8_e4m3"


def test_what_cannot_be_merged_is_named_and_leaves_nothing(dense_folder, packed_folder, tmp_path):
    prompt, other, good = (tmp_path / name for name in ("prompt", "other", "good"))
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    peft.get_peft_model(load(dense_folder), config).save_pretrained(prompt)
    smaller = LlamaForCausalLM(LlamaConfig(**TINY | {"hidden_size": 32}))
    adapter_of(smaller, other, target_modules=["q_proj"])
    adapter_of(load(dense_folder), good, target_modules=["q_proj"])
    out = tmp_path / "out"
    for base, adapter, error, message, options in (
        (dense_folder, tmp_path, CheckpointError, "has no adapter_config.json", {}),
        (dense_folder, prompt, InvalidArgument, "kind .*PROMPT_TUNING, which is not merged", {}),
        (dense_folder, other, CheckpointError, "does not fit the model: .*size mismatch", {}),
        (packed_folder, good, InvalidArgument, "is packed, and its modules", {"head": True}),
        (dense_folder, good, InvalidArgument, "q_prj", {"skip": ("q_prj",)}),
    ):
        with pytest.raises(error, match=message):
            merge(base, adapter, out, group_size=32, **options)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["good", "other", "prompt"]
    out.mkdir()
    (out / "mine").touch()
    with pytest.raises(InvalidArgument, match="pass force"):
        merge(dense_folder, good, out, group_size=32)
    merge(dense_folder, good, out, group_size=32, force=True)
    assert not (out / "mine").exists() and load(out)


@pytest.fixture(scope="module")
def adapter(dense_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters") / "adapter"
    adapter_of(load(dense_folder), folder, target_modules=["q_proj"])
    return folder


def _renamed(folder):
    """Tensors of another model: PEFT would go on with random numbers."""
    path = folder / "adapter_model.safetensors"
    save_file({k.replace(".layers.", ".h."): part for k, part in load_file(path).items()}, path)


def _with_one_more_layer(folder):
    path = folder / "adapter_model.safetensors"
    parts = load_file(path)
    save_file(
        parts | {k.replace("s.0.", "s.9."): part + 1 for k, part in parts.items() if "s.0." in k},
        path,
    )


def _not_finite(folder):
    path = folder / "adapter_model.safetensors"
    save_file({k: part * torch.inf for k, part in load_file(path).items()}, path)


def _torn(folder):
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])


def _without_tensors(folder):
    (folder / "adapter_model.safetensors").unlink()


def _of_an_unknown_kind(folder):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"peft_type": "MINE"}))


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (_renamed, CheckpointError, "4 are not among its tensors, such as .*q_proj.lora_A"),
        (_with_one_more_layer, CheckpointError, "2 of its tensors are not in the .*layers.9"),
        (_not_finite, InvalidArgument, "NaNs detected"),
        (_torn, CheckpointError, "tensors of .* are damaged"),
        (_without_tensors, CheckpointError, "has no adapter_model.safetensors"),
        (_of_an_unknown_kind, CheckpointError, "does not understand .*adapter_config.json.*MINE"),
    ],
)
def test_a_damaged_adapter_is_refused(
    damage, error, message, adapter, dense_folder, tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shutil.copytree(adapter, tmp_path / "bad")
    damage(tmp_path / "bad")
    with pytest.raises(error, match=message):
        merge(dense_folder, tmp_path / "bad", tmp_path / "out", group_size=32)
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]


def test_force_does_not_replace_the_adapter_that_is_merged(adapter, dense_folder):
    files = {path: path.read_bytes() for path in adapter.iterdir()}
    for out in (adapter, adapter.parent, adapter / "merged"):
        with pytest.raises(InvalidArgument, match="must not lie in each other"):
            merge(dense_folder, adapter, out, group_size=32, force=True)
    assert {path: path.read_bytes() for path in adapter.iterdir()} == files


def test_parameters_that_layers_of_an_adapter_share_are_found(dense_folder, tmp_path):
    """VB-LoRA's file has its bank of vectors once."""
    config = peft.VBLoRAConfig(r=4, num_vectors=16, vector_length=16, target_modules=["q_proj"])
    peft.get_peft_model(load(dense_folder), config).save_pretrained(tmp_path / "adapter")
    assert merge(dense_folder, tmp_path / "adapter", tmp_path / "out", group_size=32).packed


def test_the_command_says_what_it_did(ladder_folder, tmp_path, capsys):
    adapter_of(dense(load(ladder_folder)), tmp_path / "adapter", target_modules=["q_proj"])
    data = ladder_folder / "val_tokens.npy"

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main(["merge", str(ladder_folder), str(tmp_path / "adapter"), *map(str, arguments)])
        return stop.value.code, capsys.readouterr()

    options = ("--calibration", data, "--windows", 2, "--chunk", 64)
    code, said = run(tmp_path / "out", *options, "--json")
    assert not code
    summary = json.loads(said.out)
    assert len(summary["packed"]) == len(summary["errors"]) == 56
    assert main(["merge", str(ladder_folder), "none", str(tmp_path / "two"), "--chunk", "2"]) == 1
    assert "--chunk is for --calibration" in capsys.readouterr().err
