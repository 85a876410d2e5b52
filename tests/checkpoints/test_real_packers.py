# SPDX-License-Identifier: Apache-2.0
"""Layers that the libraries of the formats packed mean what those libraries say they mean.

``fixtures/make.py`` and ``make_more.py`` made the files. checkpoint_oracle.py draws more forms,
from the formats' documents; here no reading of a document stands between ladder and the libraries.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from checkpoint_oracle import write_folder
from safetensors import safe_open

import ladder
from ladder.checkpoints import open_folder, repack
from ladder.checkpoints.compressed_config import _ELEMENTS, Config

FIXTURES = Path(__file__).parent / "fixtures"


def layers() -> dict[str, tuple[dict, dict[str, torch.Tensor]]]:
    """name: (quantization_config, tensors)."""
    found = {}
    for file in sorted(FIXTURES.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            for name, config in sorted(opened.metadata().items()):
                parts = [key for key in opened.keys() if key.startswith(f"{name}.")]  # noqa: SIM118
                tensors = {part.removeprefix(name + "."): opened.get_tensor(part) for part in parts}
                found[name] = json.loads(config), tensors
    return found


LAYERS = layers()
#: Those of GPTQ and AWQ themselves.
WHOLE = {name for name, (config, _) in LAYERS.items() if config["quant_method"] in ("gptq", "awq")}


def check(name: str, values: torch.Tensor) -> None:
    """``values`` [N, K] float32 are those of the library, which rounds them to its dtype once."""
    config, tensors = LAYERS[name]
    if name == "llm_int8":
        # ladder multiplies by SCB / 127, bitsandbytes by SCB and then by 1 / 127 (rounded): two
        # roundings and three, each 2**-24 of the value.
        error = (values - tensors["values"]).abs()
        assert bool((error <= 5 * 2.0**-24 * tensors["values"].abs()).all())
        scales = tensors["SCB"] / 127
        assert torch.equal(values, tensors["weight"].float() * scales[:, None])
        return
    if name == "nvfp4":
        # ladder multiplies by the rounded reciprocal of the number by which the library divides,
        # each after one more product: four roundings, each 2**-24 of the value.
        error = (values - tensors["values"]).abs()
        assert bool((error <= 2.0**-22 * tensors["values"].abs()).all())
        assert bool((error > 0).any()), "the reciprocal was exact: the bound was not needed"
        return
    if config.get("version") != "gemv_fast":
        assert torch.equal(values.to(tensors["values"].dtype), tensors["values"])
        return
    # gemv_fast stores -scale * zero in float16 (2**-11 of it), where the quantiser that gave the
    # values multiplied scale and code - zero, rounded once (2**-11 of the value).
    groups = tensors["values"].shape[1] // config["group_size"]
    stored = tensors["qzeros"][:groups].float().t().repeat_interleave(config["group_size"], 1)
    error = (values - tensors["values"].float()).abs()
    assert bool((error <= 2.0**-11 * (stored.abs() + tensors["values"].float().abs())).all())
    assert bool((error > 0).any()), "no zero was rounded: the bound was not needed"


def test_every_form_that_is_read_has_a_layer():
    configs = [LAYERS[name][0] for name in WHOLE]
    forms = {(c.get("checkpoint_format", c.get("version")), c["bits"]) for c in configs}
    assert forms >= {*(("gptq", bits) for bits in (2, 3, 4, 8)), ("gptq_v2", 2), ("gptq_v2", 3)}
    assert forms >= {("gptq_v2", 4), ("gptq_v2", 8), *(("gptq_p", bits) for bits in (3, 5, 6, 7))}
    assert forms >= {("gemm", 4), ("gemv", 4), ("gemv_fast", 4)}
    assert any(config.get("desc_act") for config in configs)
    compressed = [config for config, _ in LAYERS.values() if "config_groups" in config]
    schemes = [Config.from_dict(config).for_module("") for config in compressed]
    assert {scheme.format for scheme in schemes} == set(_ELEMENTS)
    assert {s.bits for s in schemes if s.packs_zeros} == {2, 3, 4, 5, 6, 7, 8}
    strategies = {(scheme.strategy, scheme.element is None) for scheme in schemes}
    assert len(strategies) == 8, "tensor, channel, group of both, block and tensor_group"


@pytest.mark.parametrize("name", LAYERS)
def test_a_folder_means_what_its_packer_says(tmp_path, name):
    config, tensors = LAYERS[name]
    stored = {f"layer.{part}": t for part, t in tensors.items() if part != "values"}
    folder = write_folder(tmp_path / "src", config, [stored])
    ((_, weight),) = open_folder(folder)
    check(name, weight.dequantize())
    repack(folder, tmp_path / "dst")
    repacked = json.loads((tmp_path / "dst" / "config.json").read_text())["quantization_config"]
    assert ladder.ttype(repacked["weight_type"]) == weight.type


MODULES = [name for name in LAYERS if name in WHOLE and not name.startswith(("planar", "gemv"))]


@pytest.mark.parametrize("name", MODULES)
def test_a_module_of_the_package_means_what_it_says(name):
    config, tensors = LAYERS[name]
    group = config["group_size"]
    module = SimpleNamespace(bias=None, bits=config["bits"], group_size=group, **tensors)
    n, k = tensors["values"].shape
    layer = ladder.Linear(k, n, bias=False, weight_type=f"uint{config['bits']}", group_size=group)
    forms = {"gptq": "repack_from_gptq", "gptq_v2": "repack_from_gptq_v2"}
    getattr(layer, forms.get(config.get("checkpoint_format"), "repack_from_awq"))(module)
    check(name, layer.packed_weight.dequantize())
