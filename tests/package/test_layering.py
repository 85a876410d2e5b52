# SPDX-License-Identifier: Apache-2.0
"""The order of layers is the architecture: nothing includes or imports what comes after it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE = (
    *("base", "types", "expr", "layout", "device", "bounds", "schedule", "program"),
    *("pipelines", "codegen", "compile", "cpu", "runtime", "binding"),
)
PYTHON = (
    *(
        "errors",
        "grids",
        "types",
        "ops",
        "weight",
        "compensation",
        "two_levels",
        "quantization_range",
        "quantization",
        "cuda",
        "program",
        "nn",
        "qat",
        "evaluate",
    ),
    *("checkpoints", "integrations", "cli"),
)
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
TORCH = re.compile(r"^(torch/|ATen/|c10/|pybind11/|Python\.h)")
#: The layers of Python modules that are not named after one.
PYTHON_ALIASES = {
    "_library": "types",
    "_torch": "errors",
    "_version": "errors",
    "testing": "errors",
    "bounds": "ops",
    "bitblas": "integrations",
    "__main__": "cli",
}


def layer_of(path: Path) -> str:
    parts = path.relative_to(ROOT / "csrc").parts
    return parts[0] if len(parts) > 1 else path.stem


def violations_of_cpp():
    for path in sorted((ROOT / "csrc").rglob("*")):
        if path.suffix not in (".h", ".cpp"):
            continue
        layer = layer_of(path)
        for number, line in enumerate(path.read_text().splitlines(), 1):
            include = INCLUDE.match(line)
            if not include:
                continue
            used = include[2].split("/")[0].removesuffix(".h")
            if include[1] == '"' and CORE.index(used) > CORE.index(layer):
                yield f"{path}:{number}: {layer} may not include {include[2]}"
            if layer != "binding" and TORCH.match(include[2]):
                yield f"{path}:{number}: only csrc/binding may include {include[2]}"


def python_layer(name: str) -> int:
    return PYTHON.index(PYTHON_ALIASES.get(name, name))


def violations_of_python():
    pattern = re.compile(r"^(?:from ladder(?:\.(\w+))?[\w.]* import (.+)|import ladder\.(\w+))")
    for path in sorted((ROOT / "ladder").rglob("*.py")):
        parts = path.relative_to(ROOT / "ladder").parts
        if parts == ("__init__.py",):
            continue
        layer = python_layer(parts[0].removesuffix(".py"))
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = pattern.match(
                line.split("#")[0]
            )  # top-level imports only: lazy ones cost nothing
            if not found:
                continue
            names = [found[1] or found[3]] if found[1] or found[3] else re.findall(r"\w+", found[2])
            for name in names:
                known = name in PYTHON or name in PYTHON_ALIASES
                if known and python_layer(name) > layer:
                    yield f"{path}:{number}: {parts[0]} may not import ladder.{name}"


def test_no_layer_includes_a_later_one_and_only_the_binding_sees_torch():
    assert list(violations_of_cpp()) == []


def test_only_its_own_folder_and_the_table_of_targets_name_a_target():
    """DESIGN: a target is a row; what is not its own says what it wants of any of them."""
    named = re.compile(r"\b(cuda|hip)::|codegen/(cuda|hip)/")
    for path in sorted((ROOT / "csrc").rglob("*")):
        relative = path.relative_to(ROOT / "csrc")
        if path.suffix not in (".h", ".cpp") or relative.name.startswith("target"):
            continue
        own = relative.parts[1] if relative.parts[0] == "codegen" else ""
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for found in named.finditer(line.split("//")[0]):
                assert own == (found[1] or found[2]), f"{relative}:{number}: {line.strip()}"


def test_no_python_module_imports_a_later_layer():
    assert list(violations_of_python()) == []


def test_every_module_of_the_package_has_a_layer():
    names = {
        p.name.removesuffix(".py")
        for p in (ROOT / "ladder").iterdir()
        if p.suffix == ".py" or (p.is_dir() and list(p.glob("*.py")))
    }
    assert names - {"__init__", *PYTHON, *PYTHON_ALIASES} == set()
