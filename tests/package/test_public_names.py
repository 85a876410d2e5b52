# SPDX-License-Identifier: Apache-2.0
"""The names of ``ladder`` mean one thing each; ladder survives a torch without private names."""

import subprocess
import sys
from types import ModuleType

import ladder


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_modules_that_need_time_or_other_libraries_resolve_when_asked_for():
    code = """
import sys, ladder
lazy = ("bitblas", "bounds", "checkpoints", "evaluate", "program")
assert not {f"ladder.{name}" for name in lazy} & {*sys.modules}, sys.modules
assert "transformers" not in sys.modules
for name in lazy:
    assert name in dir(ladder)
    assert getattr(ladder, name) is sys.modules[f"ladder.{name}"]
from ladder.integrations.transformers import LadderConfig
assert ladder.LadderConfig is LadderConfig and "LadderConfig" in dir(ladder)
try:
    ladder.no_such_name
except AttributeError as error:
    print(error)
"""
    assert run(code).strip() == "module 'ladder' has no attribute 'no_such_name'"


def test_no_public_function_hides_a_module_of_its_name():
    functions = (name for name in ladder.__all__ if callable(getattr(ladder, name)))
    for name in functions:
        assert f"ladder.{name}" not in sys.modules, name
    for module in (ladder.types, ladder.ops, ladder.testing):
        assert isinstance(module, ModuleType)
        last = module.__name__.rpartition(".")[2]
        assert not hasattr(module, last), f"{module.__name__}.{last}"


def test_a_torch_without_the_private_names_computes_the_same():
    """func_level and the levels of forward-mode differentiation have no public name."""
    code = """
import torch, torch.autograd.forward_ad as forward_ad, torch._C._functorch as functorch
level = forward_ad._current_level
del functorch.peek_interpreter_stack, torch.nn.modules.linear.NonDynamicallyQuantizableLinear
import ladder
from ladder import _torch
assert _torch.transformed()
torch.manual_seed(0)
layer = ladder.Linear.from_linear(torch.nn.Linear(64, 32), "uint4", 32)
x = torch.randn(3, 64)
ladder.testing.assert_linear_close(
    layer(x), x, layer.packed_weight.dequantize(), layer.bias.detach()
)
print("same")
"""
    assert run(code).strip() == "same"
