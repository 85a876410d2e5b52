# SPDX-License-Identifier: Apache-2.0
"""Unmodified folders whose activations are quantised, on a GPU: every token is rounded as the
kernels of ``activation_type`` state it, where the GPU has such kernels."""

import json
import sys
from pathlib import Path

import pytest
import torch
from gpu import HALVES, MARKS
from torch import Tensor, nn

import ladder
from ladder.checkpoints import open_folder, repack
from ladder.ops import activations
from ladder.testing import SIGNIFICANT_BITS, bound

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "checkpoints"), str(TESTS / "integrations")]

import checkpoint_oracle as oracle  # noqa: E402

pytestmark = MARKS
CAPABILITY = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
W8 = {"bits": 8, "form": "int-quantized", "group": -1}
F8 = {"bits": 8, "form": "float-quantized", "group": -1}
W4 = {"bits": 4, "group": 128, "symmetric": False}
NVFP4 = {"bits": 4, "form": "nvfp4-pack-quantized", "group": 16}
#: Options of the weights and activations of compressed-tensors, or a kind of FP8.
FOLDERS = {
    "W8A8": (W8, "int8"), "W8A8 static": (W8, "int8 static"), "W4A8": (W4, "int8"),
    "FP8_DYNAMIC": (F8, "float8"), "FP8": (F8, "float8 static"),
    "FP8_BLOCK": (F8, "float8 block"), "NVFP4": (NVFP4, "nvfp4"),
    "act-order": (W4 | {"order": True}, "int8"),
    **{f"fp8 {kind}": kind for kind in oracle.FP8},
}  # fmt: skip
AS_THEY_COME = ("NVFP4", "act-order")
STATIC = ("W8A8 static", "FP8", "fp8 static", "fp8 scalar")
N, K = 256, 512


def drawn(name: str, n: int, k: int, seed: int = 0) -> oracle.Truth:
    kind = FOLDERS[name]
    if isinstance(kind, str):
        return oracle.fp8(n, k, kind=kind, seed=seed)
    return oracle.compressed(n, k, seed=seed, activations=kind[1], **kind[0])


def settings_of(name: str):
    kind = FOLDERS[name]
    if isinstance(kind, str):
        return oracle.fp8_settings(kind)
    return oracle.compressed_settings(activations=kind[1], **kind[0])


def wanted_of(name: str) -> str | None:
    """What x is rounded to on this GPU."""
    if name in AS_THEY_COME:
        return None
    if "fp8" in name.lower():
        return "float8_e4m3" if CAPABILITY >= (8, 9) else None
    return "int8"


def check(
    y: Tensor,
    x: Tensor,
    values: Tensor,
    activation_type: str | None,
    scale: Tensor | None = None,
) -> None:
    """``y`` is the product of x rounded by scales of tokens, or by the static ``scale``, within
    what its kernels state, and not that of x as it comes; or, of None, the other way about."""
    x, dtype = x.reshape(-1, x.shape[-1]), y.dtype
    seen = x if activation_type is None else activations.round_tokens(x, activation_type, scale)
    seen, values = seen.double(), values.double()
    bits = 14 if activation_type == "float8_e4m3" else 24  # tensor cores of Hopper
    slack = 2.0**-22
    if activation_type is None:  # a weight that is dequantised is rounded to the dtype of x
        slack = 2.0 ** -SIGNIFICANT_BITS[dtype]
    limit = bound(seen, values, dtype, bits) + slack * (seen.abs() @ values.abs().T)
    y, wanted = y.reshape(-1, y.shape[-1]).double(), seen @ values.T
    assert bool(((y - wanted).abs() <= limit).all())
    other = x if activation_type is not None else activations.round_tokens(x, "int8")
    error = (y - wanted).norm() / (y - other.double() @ values.T).norm()
    assert error < 0.5, f"{error:.2f}: {'not ' * (activation_type is not None)}rounded"


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", FOLDERS)
def test_a_layer_of_an_engine_rounds_as_the_folder_asks(name, dtype, tmp_path):
    from ladder.integrations.serving.layer import finish_weight

    truth = drawn(name, N, K)
    tensors = oracle.tensors_of({"layer": truth})
    source = open_folder(oracle.write_folder(tmp_path / "a", settings_of(name), [tensors]))
    ((module, weight),) = source
    asked, static = source.layer(module).activation_type, source.side(source.layer(module))
    scale = static.input_scale
    assert (scale is not None) == (name in STATIC)
    run, parts = finish_weight(
        weight.to("cuda"), dtype, activation_type=asked,
        input_scale=None if scale is None else float(scale),
    )  # fmt: skip
    assert run.static == (name in STATIC and wanted_of(name) is not None)
    assert run.kind == "prepacked" and (run.activation_type or None) == wanted_of(name)
    room = nn.Module()
    for part, tensor in parts.items():
        room.register_buffer(part, tensor)
    values = torch.from_numpy(truth.weight.astype("float32")).cuda()
    torch.manual_seed(0)
    for m in (8, 48, 300):
        x = torch.randn(m, K, device="cuda", dtype=dtype)
        by = None if scale is None else scale.cuda()
        check(run(room, x, None), x, values, wanted_of(name) if m > 48 else None, by)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_model_of_transformers_rounds_as_the_folder_asks(name, tmp_path):
    """Loaded on the GPU, or on the CPU and moved; as it is, and repacked."""
    from hf_models import TINY, foreign_folder, load
    from transformers import LlamaConfig, LlamaForCausalLM

    from ladder.integrations.transformers import enable

    torch.manual_seed(0)
    wide = TINY | {"hidden_size": 256, "intermediate_size": 512, "head_dim": 128}
    model = LlamaForCausalLM(LlamaConfig(**wide)).half()
    model.save_pretrained(tmp_path / "dense")
    folder, _ = foreign_folder(
        tmp_path / "dense", tmp_path / "foreign",
        lambda n, k, seed: drawn(name, n, k, seed), settings_of(name),
    )  # fmt: skip
    repack(folder, tmp_path / "repacked")
    with enable():
        loaded = [load(folder, dtype=torch.bfloat16, device_map="cuda"),
                  load(folder, dtype=torch.bfloat16).cuda()]  # fmt: skip
    loaded.append(load(tmp_path / "repacked", dtype=torch.bfloat16, device_map="cuda"))
    logits = []
    for model in loaded:
        scale = model.model.layers[0].mlp.up_proj.input_scale
        assert (scale is not None) == (name in STATIC)
        checked = watch(model, wanted_of(name))
        with torch.no_grad():
            logits.append(model(torch.arange(128, device="cuda").view(2, 64)).logits)
        assert len(checked) == 14
    assert torch.equal(logits[0], logits[1]) and torch.equal(logits[0], logits[2])
    moved = loaded[1].cpu()
    on_cpu = wanted_of(name) if wanted_of(name) == "int8" else None
    assert moved.model.layers[0].mlp.up_proj.activation_type == on_cpu


def watch(model: nn.Module, activation_type: str | None) -> list[str]:
    """Check each packed layer as it is called. Gives the names of those that were."""
    checked: list[str] = []

    def hook(name: str):
        def look(module: ladder.Linear, inputs: tuple[Tensor, ...], y: Tensor) -> None:
            assert module.activation_type == activation_type, name
            values = module.packed_weight.dequantize()
            check(y, inputs[0], values, activation_type, module.input_scale)
            checked.append(name)

        return look

    for name, module in model.named_modules():
        if isinstance(module, ladder.Linear):
            module.register_forward_hook(hook(name))
    return checked


def test_an_offer_is_made_anew_where_a_layer_is_moved():
    dense = nn.Linear(512, 256, bias=False)
    layer = ladder.Linear.from_linear(dense, "float8_e4m3", method="nearest")
    assert "none for cpu" in layer.offer_activation_type("float8_e4m3")
    assert layer.activation_type is None
    layer.cuda()
    assert layer.activation_type == ("float8_e4m3" if CAPABILITY >= (8, 9) else None)
    x = torch.randn(80, 512, device="cuda").half()
    check(layer(x), x, layer.packed_weight.dequantize(), layer.activation_type)
    assert layer.cpu().activation_type is None and layer(x.cpu()).isfinite().all()
    table = ladder.Linear.from_linear(dense, "nf4", method="nearest")
    assert table.offer_activation_type("int8") == "" and table.activation_type == "int8"
    table.cuda()  # GPUs have no such kernels for tables
    assert table.activation_type is None and table(x).isfinite().all()


def test_zero_points_that_bytes_do_not_hold_leave_x_as_it_comes():
    weight = ladder.quantize(
        torch.randn(64, 512, device="cuda"), "uint4,group=64,scale=float16,zero=integer"
    )
    weight.zeros[3, 1] = 17
    layer = ladder.Linear.from_weight(weight)
    assert "a zero point of 17 on GPUs" in layer.offer_activation_type("int8")
    x = torch.randn(80, 512, device="cuda").half()
    check(layer(x), x, weight.dequantize(), None)


def test_experts_are_offered_activations_that_this_gpu_multiplies():
    from ladder.nn.offered import offer_activation_types

    experts = ladder.Experts.from_tensors(
        torch.randn(4, 512, 256), torch.randn(4, 256, 256), weight_type="uint4", group_size=32
    ).cuda()
    assert offer_activation_types(nn.Sequential(experts), lambda name: "int8") == {}
    assert experts.activation_type == "int8" and experts.cpu().activation_type == "int8"
    left = offer_activation_types(nn.Sequential(experts), lambda name: "float8_e4m3")
    assert ["0"] in left.values() and experts.activation_type is None  # on the CPU
    wanted = "float8_e4m3" if CAPABILITY >= (8, 9) else None
    assert experts.cuda().activation_type == wanted


def test_a_folder_is_tuned_for_what_its_layers_round_to(tmp_path, capsys):
    from ladder.cli import main

    layers = {"up": drawn("W8A8", N, K), "down": drawn("W8A8", N, K, seed=1)}
    source = oracle.write_folder(tmp_path / "a", settings_of("W8A8"), [oracle.tensors_of(layers)])
    with pytest.raises(SystemExit) as stop:
        main(["tune", str(source), "--m", "100", "--tune", "off", "--json"])
    assert stop.value.code == 0
    (shape,) = json.loads(capsys.readouterr().out)["shapes"]
    assert shape["activation_type"] == "int8" and "bytes" in shape["kernels"][0]["kernel"]
