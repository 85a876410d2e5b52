# SPDX-License-Identifier: Apache-2.0
"""What the wheel for 64-bit ARM must do besides smoke.py; run by .ci/aarch64_test under qemu.
Arguments: a GPTQ model, and the folder of pip's NVRTC."""

import contextlib
import io
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import ladder
from ladder import cli

TYPES = ("uint1", "ternary", "uint2", "uint3", "uint4", "nf4", "mxfp4", "nvfp4", "float5_e2m2")
TYPES += ("mxfp6_e2m3", "uint7", "int8", "float8_e4m3")


def command(*arguments: str) -> str:
    """What the command prints, in this process: starting Python takes half a minute."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        try:
            cli.main(list(arguments))
        except SystemExit as stop:
            assert not stop.code, f"ladder {arguments} ended with {stop.code}"
    return text.getvalue()


assert platform.machine() == "aarch64"
found = json.loads(command("devices", "--json"))
assert found["cpu"] == ["generic", "neon", "neon_dotprod", "neon_i8mm"], found["cpu"]
assert found["cpu_name"].startswith("aarch64, implementer"), found["cpu_name"]
assert all(name in command("types") for name in TYPES)

linear = torch.nn.Linear(256, 48)
for isa in found["cpu"]:
    ladder.use_cpu_isa(isa)
    for kind in TYPES:
        packed = ladder.Linear.from_linear(linear, weight_type=kind)
        dense = packed.dequantize()
        for tokens in (1, 5, 40):
            x = torch.randn(tokens, 256, requires_grad=True)
            y = packed(x)
            ladder.testing.assert_linear_close(
                y.detach(), x.detach(), dense.weight.detach(), dense.bias.detach()
            )
            (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
            ladder.testing.assert_linear_close(
                gradient, torch.ones(tokens, 48), dense.weight.detach().T.contiguous()
            )
        other = ladder.Linear.from_linear(torch.nn.Linear(256, 48), weight_type=kind)
        other.load_state_dict(packed.state_dict())
        assert torch.equal(other(x), packed(x)), (isa, kind)
ladder.use_cpu_isa()

# x of 8 bits: all instruction sets round to the same bits and sum integers; blocks are added in
# float32, in any order. A number is at most 1/254 of its block's largest away from x.
of_isa = {}
x = torch.randn(9, 256)
for isa in found["cpu"]:
    ladder.use_cpu_isa(isa)
    torch.manual_seed(0)
    layer = ladder.Linear.from_linear(torch.nn.Linear(256, 48), weight_type="uint4", group_size=128)
    dense = layer.dequantize()
    ladder.set_activation_type(layer, "int8")
    of_isa[isa] = layer(x)
    most = x.abs().max() / 254 * dense.weight.abs().sum(dim=1)
    assert ((of_isa[isa] - dense(x)).abs() <= most).all(), isa
assert all(torch.allclose(y, of_isa["generic"], rtol=1e-5, atol=1e-6) for y in of_isa.values())
ladder.use_cpu_isa()

with tempfile.TemporaryDirectory() as folder:
    command("repack", sys.argv[1], f"{folder}/model")
    assert Path(f"{folder}/model/model.safetensors").stat().st_size > 1e6
    for device, architecture in (("h200", "sm_90a"), ("b200", "sm_100a"), ("rtx5090", "sm_120a")):
        problem = ("--m", "16", "--n", "4096", "--k", "4096", "--weight", "uint4")
        told = json.loads(command("explain", *problem, "--device", device, "--source", "--json"))
        helper = Path(ladder.__file__).parent / "ladder-nvrtc"
        where = [f"{folder}/{device}", f"{folder}/key", "CUDA", architecture, sys.argv[2]]
        subprocess.run([helper, *where], input=told["source"], text=True, check=True)
        (kernel,) = Path(folder, device).rglob("kernel.cubin")
        assert kernel.read_bytes()[:4] == b"\x7fELF", device
print(f"{len(TYPES)} types by {', '.join(found['cpu'])}; repacked; {found['nvrtc']} compiled")
