# SPDX-License-Identifier: Apache-2.0
"""The entry point: vLLM calls it in each of its processes, for every model, and catches nothing."""

from __future__ import annotations

import importlib
import logging
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "module", ("ladder", "ladder.integrations.vllm", "ladder.integrations.sglang")
)
def test_loading_an_entry_point_imports_nothing_of_an_engine(module):
    """In a process of its own, with what this process has on its path."""
    names = "[n for n in sys.modules if n.partition('.')[0] in ('vllm', 'sglang', 'transformers')]"
    assert run_python(f"import sys, {module}; print({names})") == "[]"


@pytest.fixture
def distribution(tmp_path, monkeypatch):
    """ladder's entry points as an installed wheel has them."""
    from setuptools.config.pyprojecttoml import read_configuration

    project = read_configuration(ROOT / "pyproject.toml", expand=False)["project"]
    folder = tmp_path / "ladder_torch-0.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: ladder-torch\nVersion: 0.0\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("group", ("vllm.general_plugins", "sglang.srt.plugins"))
def test_every_entry_point_names_a_function(group, distribution):
    found = [each for each in entry_points(group=group) if each.name == "ladder"]
    assert found
    for each in found:
        assert callable(each.load())


def test_vllm_finds_the_entry_point(vllm, distribution):
    from vllm.plugins import load_plugins_by_group

    from ladder.integrations.vllm import register

    assert load_plugins_by_group("vllm.general_plugins")["ladder"] is register


def test_registering_again_is_harmless(vllm, caplog):
    from vllm.model_executor.kernels import linear
    from vllm.model_executor.layers.quantization import (
        QUANTIZATION_METHODS,
        get_quantization_config,
    )

    from ladder.integrations.vllm import register

    kind = get_quantization_config("ladder")
    register()
    register()
    assert QUANTIZATION_METHODS.count("ladder") == 1
    assert get_quantization_config("ladder") is kind
    for kernels in linear._POSSIBLE_KERNELS.values():
        assert [k.__name__ for k in kernels].count("LadderMPLinearKernel") <= 1
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING and "ladder" in r.name]


@pytest.fixture
def log(vllm, monkeypatch):
    """Records of ladder's logger, which vLLM's handlers otherwise keep to themselves."""
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage() + str(record.exc_info or ""))
    logger = logging.getLogger("vllm.ladder")
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)


@pytest.fixture
def registered(vllm, monkeypatch):
    """What register() registered, instead of registering it."""
    from ladder.integrations.vllm import config, kernel

    done: list[str] = []
    monkeypatch.setattr(config, "register", lambda: done.append("config"))
    monkeypatch.setattr(kernel, "register", lambda: done.append("kernel"))
    monkeypatch.delenv("LADDER_VLLM", raising=False)
    return done


@pytest.mark.parametrize("name", ("config", "kernel"))
def test_what_goes_wrong_is_logged_and_never_reaches_vllm(name, registered, log, monkeypatch):
    from ladder.integrations.vllm import register

    def fail() -> None:
        raise AttributeError("vllm has no attribute 'renamed'")

    module = importlib.import_module(f"ladder.integrations.vllm.{name}")
    monkeypatch.setattr(module, "register", fail)
    register()
    assert len(log) == 1
    assert "ladder is off" in log[0] and "'renamed'" in log[0]


def test_a_part_of_vllm_that_is_gone_is_logged_and_never_reaches_vllm(log, monkeypatch):
    from ladder.integrations.vllm import register

    for name in ("ladder.integrations.vllm.config", "ladder.integrations.vllm.method"):
        monkeypatch.delitem(sys.modules, name)
    package = sys.modules["ladder.integrations.vllm"]
    for name in ("config", "method"):
        monkeypatch.delattr(package, name, raising=False)
    monkeypatch.setitem(sys.modules, "vllm.model_executor.layers.linear", None)
    register()
    assert len(log) == 1 and "ladder is off" in log[0]


@pytest.mark.parametrize("version", ("0.25.1", "0.34.0", "1.0.0", "0.9", "dev", ""))
def test_a_version_that_has_not_been_tried_is_refused_by_name(
    version, registered, log, monkeypatch, vllm
):
    from ladder.integrations.vllm import register

    monkeypatch.setattr(vllm, "__version__", version)
    register()
    assert registered == []
    assert len(log) == 1 and f"this is {version or 'unknown'}" in log[0] and "0.26" in log[0]
    monkeypatch.setenv("LADDER_VLLM", "any-version")
    register()
    assert registered == ["config", "kernel"] and len(log) == 1


@pytest.mark.parametrize("version", ("0.26.0", "0.32.0", "0.33.1", "0.30.0rc2", "0.32.0+cpu"))
def test_a_version_that_has_been_tried_is_not(version, registered, log, monkeypatch, vllm):
    from ladder.integrations.vllm import register

    monkeypatch.setattr(vllm, "__version__", version)
    register()
    assert registered == ["config", "kernel"] and log == []


def test_off_is_off(registered, log, monkeypatch):
    from ladder.integrations.vllm import register

    monkeypatch.setenv("LADDER_VLLM", "off")
    register()
    assert registered == [] and log == []


def test_a_word_that_asks_for_nothing_is_named(registered, log, monkeypatch):
    from ladder.integrations.vllm import register

    monkeypatch.setenv("LADDER_VLLM", "kernels, GPTQ")
    register()
    assert registered == ["config", "kernel"]
    assert len(log) == 1 and '"kernels"' in log[0]


@pytest.mark.parametrize(
    "options, why",
    [({"tunes": "off"}, 'has "tunes", not one of tune, budget, dependent'),
     ({"tune": "best"}, "tune is"),
     ({"budget": -1.0}, "-1.0, not seconds"), ({"budget": "20"}, "'20', not seconds"),
     ({"dependent_launch": 1}, "is 1, not true or false"),
     ({"weights_only": "yes"}, "is 'yes', not true or false"),
     ({"fuse_gated_mlp": None}, "is None, not true or false"),
     ({"fast_accum": 1}, "is 1, not true or false")],
)  # fmt: skip
def test_options_that_mean_nothing_are_refused(options, why, vllm):
    from ladder.errors import InvalidArgument
    from ladder.integrations.vllm.options import options_of

    engine = SimpleNamespace(additional_config={"ladder": options})
    with pytest.raises(InvalidArgument, match=re.escape(why)):
        options_of(engine)
    assert options_of(SimpleNamespace(additional_config={})) == {
        "tune": "fast", "budget": 20.0, "dependent_launch": False, "weights_only": False,
        "fuse_gated_mlp": True, "fast_accum": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    "settings, method",
    [({"bits": 4, "group_size": 64, "desc_act": False}, "gptq"),
     ({"w_bit": 4, "q_group_size": 64, "zero_point": True, "version": "gemm"}, "awq")],
)  # fmt: skip
def test_settings_in_a_file_of_their_own_need_no_quant_method(settings, method, vllm):
    from vllm.model_executor.layers.quantization import get_quantization_config

    from ladder.errors import Unsupported

    config = get_quantization_config("ladder").from_config(settings)
    assert config.folder.method == method
    with pytest.raises(Unsupported, match='quant_method is ""'):
        get_quantization_config("ladder").from_config({"group_size": 64})
