# SPDX-License-Identifier: Apache-2.0
"""The code of the documents runs as a reader would paste it: blocks of Python in order and in one
namespace, commands of ladder between them, each document in a process of its own.

A block that cannot run has a line above it that says why::

    <!-- not run: it serves until it is stopped -->
    <!-- needs a GPU: captures a CUDA graph -->
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>not run|needs a GPU): (?P<reason>[^\n]+) -->\n)?"
    r"```(?P<language>\w+)\n(?P<code>.*?)^```$",
    re.M | re.S,
)
#: Languages that nothing runs here; docs/bounds.md's YAML has tests/bounds/test_bounds_docs.py.
OTHER = {"cpp", "yaml"}


def example_models(folder: Path) -> None:
    """Small models under the names that the documents use."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    (folder / "models").mkdir()
    (folder / "models" / "Llama-GPTQ").symlink_to(ROOT / "examples" / "tiny-llama-gptq")
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 4096}
    dense = folder / "models" / "Llama"
    LlamaForCausalLM(LlamaConfig(**sizes, **heads)).half().save_pretrained(dense)
    AutoTokenizer.from_pretrained(ROOT / "examples" / "tiny-llama-gptq").save_pretrained(dense)


def calibrated_models(folder: Path) -> None:
    """The same, one of them packed, and a text."""
    from ladder.checkpoints import repack

    example_models(folder)
    repack(folder / "models" / "Llama-GPTQ", folder / "models" / "Llama-GPTQ-ladder")
    (folder / "text.txt").write_text((ROOT / "docs" / "format.md").read_text())


def packed_model(folder: Path) -> None:
    """A ladder folder."""
    from ladder.checkpoints import repack

    (folder / "models").mkdir()
    repack(ROOT / "examples" / "tiny-llama-gptq", folder / "models" / "Llama-ladder")


def diffusion_model(folder: Path) -> None:
    """A FLUX pipeline that knows the letters of the alphabet."""
    sys.path.append(str(ROOT / "tests" / "integrations"))
    from diffusion_models import flux_pipeline

    flux_pipeline(tokenizers=True).save_pretrained(folder / "models" / "FLUX")


def nothing(folder: Path) -> None:
    pass


#: Document -> what makes the folder in which it is read.
DOCUMENTS = {
    "README.md": example_models,
    "docs/bitblas.md": nothing,
    "docs/bounds.md": nothing,
    "docs/calibration.md": calibrated_models,
    "docs/cuda.md": packed_model,
    "docs/diffusers.md": diffusion_model,
    "docs/format.md": nothing,
    "docs/new-type.md": nothing,
    "docs/programs.md": nothing,
    "docs/serving.md": nothing,
    "docs/training.md": calibrated_models,
    "docs/transformers.md": calibrated_models,
}

#: Packages that a document needs, and not every environment has.
NEEDS = {"docs/diffusers.md": ("diffusers", "peft"), "docs/transformers.md": ("peft",)}


def script_of(document: str, *, gpu: bool) -> str:
    """What the document says to run, every line of it where the document has it, so that a
    traceback names the line of the document."""
    text = (ROOT / document).read_text()
    lines = [""] * (text.count("\n") + 1)
    for block in BLOCK.finditer(text):
        if block["language"] in OTHER or block["mark"] == "not run":
            continue
        if block["mark"] == "needs a GPU" and not gpu:
            continue
        first = text.count("\n", 0, block.start("code"))
        code = block["code"].replace("\\\n", " \n") if block["language"] == "sh" else block["code"]
        for at, line in enumerate(code.splitlines(), start=first):
            lines[at] = line if block["language"] == "python" else command(line)
    return "\n".join(lines)


def command(line: str) -> str:
    """Python that runs a line of the shell: of ladder's command, which needs no installation."""
    line = line.split("  #")[0].strip()
    if not line:
        return ""
    program, _, arguments = line.partition(" ")
    assert program == "ladder", f"a shell block has {line!r}; say above it why it is not run"
    run = "__import__('subprocess').run"
    return (
        f"{run}([__import__('sys').executable, '-m', 'ladder', *{arguments.split()!r}], check=True)"
    )


def run(document: str, folder: Path, *, gpu: bool) -> None:
    DOCUMENTS[document](folder)
    (folder / "examples").symlink_to(ROOT / "examples")
    script = folder / (Path(document).stem + ".md.py")
    script.write_text(script_of(document, gpu=gpu))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "COLUMNS": "120"}
    environment |= {"LADDER_CACHE": str(folder / "cache")} | (
        {} if gpu else {"CUDA_VISIBLE_DEVICES": ""}
    )
    done = subprocess.run(
        [sys.executable, script], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{document}: {done.stderr[-3000:]}"


def test_every_document_with_code_is_run():
    with_code = {
        str(path.relative_to(ROOT))
        for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
        if re.search(r"^```(python|sh)$", path.read_text(), re.M)
    }
    assert with_code == set(DOCUMENTS)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_code_of_the_document_runs(document, tmp_path):
    for package in NEEDS.get(document, ()):
        pytest.importorskip(package, reason=f"{package} is not installed")
    run(document, tmp_path, gpu=False)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize(
    "document", [d for d in DOCUMENTS if "needs a GPU" in (ROOT / d).read_text() or "cuda" in d]
)
def test_the_code_of_the_document_runs_on_a_gpu(document, tmp_path):
    run(document, tmp_path, gpu=True)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_block_that_is_not_run_says_why(document):
    """A mark that BLOCK does not read, or shell lines without one, would be left out unseen."""
    text = (ROOT / document).read_text()
    marks = len(re.findall(r"<!-- (not run|needs a GPU)", text))
    assert marks == sum(block["mark"] is not None for block in BLOCK.finditer(text))
    languages = set(re.findall(r"^```(\w+)$", text, re.M))
    assert languages <= OTHER | {"python", "sh"}
