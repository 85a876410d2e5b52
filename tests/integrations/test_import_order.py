# SPDX-License-Identifier: Apache-2.0
"""What must hold in a fresh process, whichever of ladder and transformers comes first."""

import os
import subprocess
import sys

import pytest
from hf_models import ROOT

LADDER_FIRST = """
import importlib, sys, threading
import ladder
assert not {"transformers", "peft", "safetensors"} & set(sys.modules), "import ladder imported it"
known = lambda: sys.modules["transformers.quantizers.auto"].AUTO_QUANTIZER_MAPPING.get("ladder")
threads = [threading.Thread(target=importlib.import_module, args=("transformers.quantizers",))
           for _ in range(3)]
[t.start() for t in threads], [t.join() for t in threads]
assert known().__name__ == "LadderHfQuantizer"
auto = sys.modules["transformers.quantizers.auto"]
assert type(auto.__spec__.loader).__name__ == type(auto.__loader__).__name__ == "SourceFileLoader"
importlib.reload(auto)
assert known() is not None, "forgotten after a reload"
del sys.modules["transformers.quantizers.auto"], auto
import transformers.quantizers.auto
assert known() is not None, "forgotten after a new import"
importlib.reload(ladder)
assert sum(type(f).__name__ == "_Finder" and type(f).__module__.startswith("ladder")
           for f in sys.meta_path) == 1
"""

TRANSFORMERS_FIRST = """
import sys
from transformers import AutoModelForCausalLM
try:
    AutoModelForCausalLM.from_pretrained(sys.argv[1])
except ValueError as error:
    assert "`import ladder` before loading" in str(error), error
else:
    raise AssertionError("random weights")
import ladder
model, info = AutoModelForCausalLM.from_pretrained(sys.argv[1], output_loading_info=True)
assert not info["missing_keys"] and not info["unexpected_keys"]
assert type(model.model.layers[0].mlp.up_proj) is ladder.Linear
with ladder.integrations.transformers.enable("gptq"):
    pass
"""

DIFFUSERS = """
import sys
if sys.argv[1] == "ladder":
    import ladder
    assert "diffusers" not in sys.modules and "transformers" not in sys.modules
from diffusers import FluxTransformer2DModel
from diffusers.quantizers import auto
try:
    model, info = FluxTransformer2DModel.from_pretrained(sys.argv[2], output_loading_info=True)
except ValueError as error:
    assert sys.argv[1] == "diffusers" and "got ladder" in str(error), error
    import ladder
    model, info = FluxTransformer2DModel.from_pretrained(sys.argv[2], output_loading_info=True)
assert not info["missing_keys"] and not info["unexpected_keys"]
assert type(model.x_embedder) is ladder.Linear
assert auto.AUTO_QUANTIZER_MAPPING["ladder"].__name__ == "LadderDiffusersQuantizer"
assert ladder.integrations.diffusers.LadderConfig is ladder.LadderConfig
"""


def run(text, *arguments):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", text, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def test_ladder_first_registers_when_transformers_is_imported_however_often():
    run(LADDER_FIRST)


def test_transformers_alone_fails_loudly_and_with_ladder_afterwards_loads(ladder_folder):
    run(TRANSFORMERS_FIRST, ladder_folder)


@pytest.mark.parametrize("first", ["ladder", "diffusers"])
def test_diffusers_loads_a_folder_whichever_comes_first(first, tmp_path):
    pytest.importorskip("diffusers", reason="diffusers is not installed")
    from diffusion_models import fresh

    import ladder

    model, _ = fresh("flux")
    ladder.convert(model, "uint4", group_size=16)
    model.save_pretrained(tmp_path)
    run(DIFFUSERS, first, tmp_path)
