# SPDX-License-Identifier: Apache-2.0
"""GPTQ, AWQ and compressed-tensors checkpoints with exact values, packed apart from ladder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import checkpoint_oracle as oracle
import more_oracles
import numpy as np
import torch
from layers import SHAPES, prefix
from torch import Tensor

GROUP = 32
#: Mixtral's names of the modules of an expert.
_MIXTRAL = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


@dataclass
class Foreign:
    """A checkpoint of another package, by short names: as layers.Stored for the tests."""

    layers: dict[str, oracle.Truth]
    settings: dict[str, Any]
    biases: dict[str, Tensor] = field(default_factory=dict)

    def dense(self, name: str) -> Tensor:
        """[N, K] float64."""
        return torch.from_numpy(self.layers[name].weight).double()

    def tensors(self) -> dict[str, Tensor]:
        found = oracle.tensors_of({prefix(name): truth for name, truth in self.layers.items()})
        return found | {f"{prefix(name)}.bias": bias for name, bias in self.biases.items()}

    def config(self) -> dict[str, Any]:
        return self.settings


def gptq(
    modules: Iterable[str], *, bits: int, form: str = "gptq", symmetric: bool, order: bool = False,
    exponent: int = 0,
) -> Foreign:  # fmt: skip
    """GPTQ layers; ``form`` "gptq" stores zeros less one, "gptq_v2" as they are."""

    def one(n: int, k: int, seed: int) -> oracle.Truth:
        return oracle.gptq(n, k, bits=bits, group=GROUP, symmetric=symmetric, form=form,
                           order=order, seed=seed, lowest=1)  # fmt: skip

    settings = {
        "quant_method": "gptq", "bits": bits, "group_size": GROUP, "desc_act": order,
        "sym": symmetric, "checkpoint_format": form,
    }  # fmt: skip
    return Foreign(_exact(modules, one, exponent), settings)


def auto_round(
    modules: Iterable[str], packing: str, *, bits: int = 4, exponent: int = 0
) -> Foreign:
    """AutoRound layers of a ``packing_format``."""
    form = {"auto_round": "gptq_v2", "auto_round:auto_gptq": "gptq"}.get(packing)

    def one(n: int, k: int, seed: int) -> oracle.Truth:
        if form is None:
            return oracle.awq(n, k, group=GROUP, seed=seed)
        return oracle.gptq(n, k, bits=bits, group=GROUP, symmetric=False, form=form, seed=seed,
                           lowest=1, g_idx=False)  # fmt: skip

    settings = {
        "quant_method": "auto-round", "bits": bits, "group_size": GROUP, "sym": False,
        "packing_format": packing, "data_type": "int",
    }  # fmt: skip
    return Foreign(_exact(modules, one, exponent), settings)


def quark(modules: Iterable[str], dtype: str, *, exponent: int = 0) -> Foreign:
    """Layers of Quark, FP8 or MXFP4, whose scales are powers of two."""
    layers = {}
    for seed, module in enumerate(modules):
        last = module.rpartition(".")[2]
        n, k = SHAPES[_MIXTRAL.get(last, last)]
        drawn = more_oracles.quark(n, k, dtype, seed=seed)
        if dtype == "fp4":
            powers = exponent + np.random.default_rng(seed).integers(-1, 2, (n, k // 32))
            stored = drawn.tensors["weight_scale"].numpy().repeat(32, 1).astype(float)
            truth = oracle.Truth(drawn.weight / np.exp2(stored - 127), np.exp2(1.0 * powers),
                                 np.zeros_like(powers), np.arange(k) // 32)  # fmt: skip
            drawn.tensors["weight_scale"] = torch.from_numpy((powers + 127).astype(np.uint8))
            truth.tensors = drawn.tensors
        else:
            scale = 2.0 ** (exponent + 2)
            truth = oracle.Truth(drawn.weight, np.full((n, 1), scale), np.zeros((n, 1)),
                                 np.zeros(k, int), tensors=drawn.tensors)  # fmt: skip
            truth.tensors["weight_scale"] = torch.tensor(scale).bfloat16()
            _small(truth, seed)
        layers[module] = truth
    qscheme = "per_group" if dtype == "fp4" else "per_tensor"
    return Foreign(layers, more_oracles.quark_settings(dtype, qscheme))


def bitnet(modules: Iterable[str], *, divides: bool = False) -> Foreign:
    """Ternary layers, whose scales are powers of two."""
    layers = {}
    for seed, module in enumerate(modules):
        drawn = more_oracles.bitnet(*SHAPES[module], seed=seed)
        signs = np.sign(drawn.weight)
        truth = oracle.Truth(signs, np.full((len(signs), 1), 2.0 ** (seed % 2 - 1)),
                             np.zeros((len(signs), 1)), np.zeros(signs.shape[1], int))  # fmt: skip
        stored = 1 / truth.scales[0] if divides else truth.scales[0]
        truth.tensors = drawn.tensors | {"weight_scale": torch.from_numpy(stored).bfloat16()}
        layers[module] = truth
    kind = "bitlinear" if divides else "autobitlinear"
    return Foreign(layers, more_oracles.BITNET | {"linear_class": kind})


def awq(
    modules: Iterable[str], *, symmetric: bool = False, version: str = "gemm", exponent: int = 0
) -> Foreign:
    """AWQ layers of 4 bits."""

    def one(n: int, k: int, seed: int) -> oracle.Truth:
        return oracle.awq(n, k, group=GROUP, symmetric=symmetric, version=version, seed=seed)

    settings = {
        "quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True,
        "version": version,
    }  # fmt: skip
    return Foreign(_exact(modules, one, exponent), settings)


def compressed(
    modules: Iterable[str], *, bits: int, symmetric: bool = True, channel: bool = False,
    order: bool = False, pad_words: bool = True, exponent: int = 0,
) -> Foreign:  # fmt: skip
    """compressed-tensors layers, "pack-quantized".

    ``pad_words``: 32 // bits codes in each word, as compressed-tensors 0.17 packs them; else a bit
    stream, as vLLM's own parameters hold them. The same for widths that divide 32.
    """

    def one(n: int, k: int, seed: int) -> oracle.Truth:
        truth = oracle.draw(n, k, bits, -1 if channel else GROUP, symmetric=symmetric, seed=seed)
        if order:
            truth.group_of = np.random.default_rng(seed + 1).permutation(truth.group_of)
        truth.tensors = {
            "weight_packed": _words(truth.codes, bits, pad_words),
            "weight_scale": torch.from_numpy(truth.scales),
            "weight_shape": torch.tensor([n, k]),
        }
        if not symmetric:
            packed = _words(truth.zeros.T, bits, pad_words).t().contiguous()
            truth.tensors["weight_zero_point"] = packed
        if order:
            truth.tensors["weight_g_idx"] = torch.from_numpy(truth.group_of.astype(np.int32))
        return truth

    weights = {
        "num_bits": bits, "type": "int", "symmetric": symmetric, "dynamic": False,
        "strategy": "channel" if channel else "group",
        "group_size": None if channel else GROUP, "actorder": "group" if order else None,
    }  # fmt: skip
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    settings = {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "quantization_status": "compressed", "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }  # fmt: skip
    return Foreign(_exact(modules, one, exponent), settings)


def compressed_8(modules: Iterable[str], activations: str, *, exponent: int = 0) -> Foreign:
    """compressed-tensors layers of 8 bits, "int-quantized" or "float-quantized", with a scale for
    each row. ``activations``: a name of the oracle's."""
    form = "float-quantized" if activations.startswith("float") else "int-quantized"

    def one(n: int, k: int, seed: int) -> oracle.Truth:
        return oracle.compressed(n, k, bits=8, group=-1, form=form, seed=seed,
                                 activations=activations)  # fmt: skip

    integers = form == "int-quantized"  # up to 127, beside 2
    layers = _exact(modules, one, exponent - 4 if integers else exponent + 2)
    if form == "float-quantized":
        for seed, truth in enumerate(layers.values()):
            _small(truth, seed)
    settings = oracle.compressed_settings(bits=8, group=-1, form=form, activations=activations)
    return Foreign(layers, settings)


def fp8(modules: Iterable[str], form: str, *, exponent: int = 0) -> Foreign:
    """Layers of quant_method "fp8", of a kind of the oracle's, whose scales are powers of two."""
    block, name = oracle.FP8[form][0], oracle.FP8[form][2]
    layers = {}
    for seed, module in enumerate(modules):
        last = module.rpartition(".")[2]
        n, k = SHAPES[_MIXTRAL.get(last, last)]
        truth = oracle.fp8(n, k, kind=form, seed=seed)
        stored = truth.tensors[name].float()
        powers = exponent + 2 + np.random.default_rng(seed).integers(-1, 2, stored.shape)
        scales = torch.tensor(np.exp2(powers), dtype=torch.float32).reshape(stored.shape)
        rows, columns = block or ((1, k) if form == "channel" else (n, k))
        grid = scales.reshape(-(-n // rows), -(-k // columns))
        truth.scales = grid.numpy()[np.arange(n) // rows][:, np.arange(k) // columns]
        truth.tensors[name] = scales.to(truth.tensors[name].dtype)
        _small(truth, seed)
        layers[module] = truth
    return Foreign(layers, oracle.fp8_settings(form))


def fbgemm(modules: Iterable[str]) -> Foreign:
    """Layers of quant_method "fbgemm_fp8", whose scales are powers of two."""
    return Foreign(fp8(modules, "channel").layers, oracle.FBGEMM)


def modelopt(modules: Iterable[str], algorithm: str, *, exponent: int = 0) -> Foreign:
    """Layers of quant_method "modelopt", whose scales are powers of two: NVFP4, FP8 and AWQ. What
    columns of x are multiplied by is in the values of the weight."""
    layers = {}
    for seed, module in enumerate(modules):
        last = module.rpartition(".")[2]
        n, k = SHAPES[_MIXTRAL.get(last, last)]
        truth, drawn = oracle.modelopt(n, k, algorithm=algorithm, seed=seed), np.random
        if algorithm.startswith("NVFP4"):
            powers = drawn.default_rng(seed).integers(-1, 2, (n, k // 16))
            codes = torch.from_numpy((powers + 7 << 3).astype(np.uint8))
            truth.tensors["weight_scale"] = codes.view(torch.float8_e4m3fn)
            truth.tensors["weight_scale_2"] = torch.tensor(2.0**exponent)
            truth.scales = np.repeat(np.exp2(powers + exponent), 16, 1).astype(np.float32)
        elif algorithm == "FP8":
            truth.tensors["weight_scale"] = torch.tensor(2.0 ** (exponent + 2))
            truth.scales[:] = 2.0 ** (exponent + 2)
            _small(truth, seed)
        else:
            powers = exponent + drawn.default_rng(seed).integers(-1, 2, truth.scales.shape)
            truth.scales = np.exp2(powers).astype(np.float32)
            truth.tensors["weight_scale"] = torch.from_numpy(truth.scales.copy())
        if (columns := truth.tensors.get("pre_quant_scale")) is not None:
            truth.scales = truth.scales[:, truth.group_of] * columns.float().numpy()
            truth.zeros, truth.group_of = np.zeros_like(truth.scales), np.arange(k)
        layers[module] = truth
    return Foreign(layers, oracle.modelopt_settings(algorithm))


def _small(truth: oracle.Truth, seed: int) -> None:
    """Let codes of float8 be of -2 to 2 in eighths, whose sums have few bits."""
    values = oracle.float_values(4, 3)
    allowed = np.flatnonzero((np.abs(values) <= 2) & (values * 8 == np.round(values * 8)))
    codes = np.random.default_rng(seed).choice(allowed, truth.codes.shape)
    truth.codes = values[codes]
    bits = torch.from_numpy(codes.astype(np.uint8))
    truth.tensors["weight"] = bits.view(torch.float8_e4m3fn)


def _exact(
    modules: Iterable[str], one: Callable[[int, int, int], oracle.Truth], exponent: int
) -> dict[str, oracle.Truth]:
    """Layers whose scales are powers of two about 2**exponent, so that their products with integers
    are exact. ``modules``: names of layers.SHAPES, whole ones or their ends."""
    layers = {}
    for seed, name in enumerate(modules):
        last = name.rpartition(".")[2]
        truth = one(*SHAPES[_MIXTRAL.get(last, last)], seed)
        powers = exponent + np.random.default_rng(seed).integers(-1, 2, truth.scales.shape)
        truth.scales = np.exp2(powers).astype(np.float16)
        key = "weight_scale" if "weight_scale" in truth.tensors else "scales"
        stored = truth.scales if key == "weight_scale" else truth.scales.T
        assert tuple(truth.tensors[key].shape) == stored.shape
        truth.tensors[key] = torch.from_numpy(stored.copy())
        layers[name] = truth
    return layers


def _words(fields: np.ndarray, bits: int, pad_words: bool) -> Tensor:
    """[rows, words] int32 of [rows, columns] codes."""
    if not pad_words:
        return oracle.words([oracle.stream(row, bits) for row in fields])
    each = 32 // bits
    return oracle.words([[_word(row[at : at + each], bits) for at in range(0, len(row), each)]
                         for row in fields])  # fmt: skip


def _word(fields: np.ndarray, bits: int) -> int:
    return oracle.stream(fields, bits)[0]


def w4afp8(modules: Iterable[str], *, exponent: int = 0) -> Foreign:
    """Experts of quant_method "w4afp8", whose scales are powers of two."""
    layers = {}
    for seed, module in enumerate(modules):
        last = module.rpartition(".")[2]
        n, k = SHAPES[_MIXTRAL.get(last, last)]
        truth = oracle.w4afp8_expert(n, k, seed=seed)
        powers = exponent + np.random.default_rng(seed).integers(-1, 2, truth.scales.shape)
        truth.scales = np.exp2(powers).astype(np.float32)
        truth.tensors["weight_scale_inv"] = torch.from_numpy(truth.scales.copy())
        layers[module] = truth
    return Foreign(layers, dict(oracle.W4AFP8))
