# SPDX-License-Identifier: Apache-2.0
"""Synthetic layers of other packages, packed one field at a time with Python integers.

Nothing here shares a line with ladder: a layer is drawn as codes, scales and zeros, packed as the
format's own documents say, and kept beside what it must mean.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

PLANES = {2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1), 8: (8,)}


@dataclass
class Truth:
    """What a layer means, and the tensors in which a foreign package stores it."""

    codes: np.ndarray  #: [N, K]
    scales: np.ndarray  #: [N, G]
    zeros: np.ndarray  #: [N, G] integers, or floats to subtract after scaling (rescaled)
    group_of: np.ndarray  #: [K]
    rescaled: bool = False
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def weight(self) -> np.ndarray:
        """[N, K] float32."""
        codes = self.codes.astype(np.float32)
        scales = self.scales[:, self.group_of].astype(np.float32)
        zeros = self.zeros[:, self.group_of].astype(np.float32)
        return codes * scales - zeros if self.rescaled else (codes - zeros) * scales


def stream(fields, bits: int) -> list[int]:
    """A little-endian bit stream of ``fields`` as 32-bit words."""
    number = sum(int(value) << (bits * at) for at, value in enumerate(fields))
    return [number >> (32 * w) & 0xFFFFFFFF for w in range((len(fields) * bits + 31) // 32)]


def planar(fields, bits: int) -> list[int]:
    """gptq_p: for each 32 fields, their low plane first, each plane a stream of its own."""
    words = []
    for first in range(0, len(fields), 32):
        block, low = [int(value) for value in fields[first : first + 32]], 0
        for width in PLANES[bits]:
            words += stream([value >> low & ((1 << width) - 1) for value in block], width)
            low += width
    return words


def words(rows: list[list[int]]) -> torch.Tensor:
    return torch.from_numpy(np.array(rows, dtype=np.uint32).view(np.int32).copy())


def draw(n, k, bits, group, *, symmetric, seed, lowest=0, dtype=np.float16) -> Truth:
    rng = np.random.default_rng(seed)
    group = k if group == -1 else group
    groups = -(-k // group)
    codes = rng.integers(0, 1 << bits, (n, k))
    scales = (rng.random((n, groups)) * 0.02 + 0.001).astype(dtype)
    zeros = rng.integers(lowest, 1 << bits, (n, groups))
    if symmetric:
        zeros[:] = 1 << (bits - 1)
    return Truth(codes, scales, zeros, np.arange(k) // group)


def gptq(n, k, *, bits=4, group=32, symmetric=True, form="gptq", order=False, seed=0, lowest=0,
         g_idx=True) -> Truth:  # fmt: skip
    """A GPTQ layer. ``order``: columns lie in groups in random order, as desc_act leaves them; a
    number is the seed of that order."""
    truth = draw(n, k, bits, group, symmetric=symmetric, seed=seed, lowest=lowest)
    if order:
        drawn = np.random.default_rng(seed + 1 if order is True else order)
        truth.group_of = drawn.permutation(truth.group_of)
    pack = planar if form == "gptq_p" else stream
    zero_rows = []
    for zeros in truth.zeros.T:
        if form == "gptq" and 32 % bits == 0:  # minus one from whole words, borrows and all
            ones = int("".join(["1".zfill(bits)] * (32 // bits)), 2)
            zero_rows.append([(word - ones) % (1 << 32) for word in stream(zeros, bits)])
        elif form == "gptq":
            zero_rows.append(stream([(int(z) - 1) % (1 << bits) for z in zeros], bits))
        else:
            zero_rows.append(pack(zeros, bits))
    truth.tensors = {
        "qweight": words([pack(row, bits) for row in truth.codes]).t().contiguous(),
        "qzeros": words(zero_rows),
        "scales": torch.from_numpy(truth.scales.T.copy()),
    }
    if g_idx:
        truth.tensors["g_idx"] = torch.from_numpy(truth.group_of.astype(np.int32))
    return truth


def awq(n, k, *, group=32, version="gemm", symmetric=False, seed=0) -> Truth:
    """An AWQ layer of 4 bits."""
    truth = draw(n, k, 4, group, symmetric=symmetric, seed=seed)
    groups = truth.scales.shape[1]
    width = -(-groups // 8)
    group = k if group == -1 else group
    multiple = {32: 4, 64: 2}.get(group, 1)
    width = -(-width // multiple) * multiple
    padded = np.zeros((n, 8 * width), dtype=np.float16)
    padded[:, :groups] = truth.scales
    if version == "gemm":
        order = [0, 2, 4, 6, 1, 3, 5, 7]

        def line(values):
            return [word for c in range(0, len(values), 8)
                    for word in stream([values[c + o] for o in order], 4)]  # fmt: skip

        truth.tensors = {
            "qweight": words([line(column) for column in truth.codes.T]),
            "qzeros": words([line(row) for row in truth.zeros.T]),
            "scales": torch.from_numpy(truth.scales.T.copy()),
        }
    elif version == "gemv":
        fill = [0] * (8 * width - groups)
        truth.tensors = {
            "qweight": words([stream(row, 4) for row in truth.codes]),
            "qzeros": words([stream([*row, *fill], 4) for row in truth.zeros]),
            "scales": torch.from_numpy(padded),
        }
    else:
        scaled = np.zeros_like(padded)
        scaled[:, :groups] = -(truth.scales.astype(np.float32) * truth.zeros)
        truth.tensors = {
            "qweight": _fast_lines(truth.codes),
            "scaled_zeros": torch.from_numpy(scaled.T.copy()),
            "scales": torch.from_numpy(padded.T.copy()),
        }
        truth.zeros, truth.rescaled = -scaled[:, :groups], True
    return truth


#: form of compressed-tensors: the bits of exponent and mantissa of its floats
FLOATS = {"float-quantized": (4, 3), "mxfp8-quantized": (4, 3), "nvfp4-pack-quantized": (2, 1),
          "mxfp4-pack-quantized": (2, 1), "mxfp6-pack-quantized": (2, 3)}  # fmt: skip


#: What the presets of compressed-tensors say of activations.
ACTIVATIONS = {
    "int8": {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True},
    "int8 static": {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": False},
    "int8 asymmetric": {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": False,
                        "symmetric": False},
    "float8": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
    "float8 static": {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False},
    "float8 block": {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 128,
                     "dynamic": True},
    "nvfp4": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
              "dynamic": "local"},
    "int4": {"num_bits": 4, "type": "int", "strategy": "token", "dynamic": True},
}  # fmt: skip


def inputs_of(name: str) -> dict[str, torch.Tensor]:
    """The tensors that each layer has for activations of ACTIVATIONS[name]."""
    if name == "nvfp4":
        return {"input_global_scale": torch.tensor([384.0])}
    if ACTIVATIONS[name]["dynamic"]:
        return {}
    parts = {"input_scale": torch.tensor([0.03])}
    if "asymmetric" in name:
        parts["input_zero_point"] = torch.tensor([3], dtype=torch.int8)
    return parts


def compressed_settings(bits=4, group=32, form="pack-quantized", symmetric=True, order=False,
                        activations=None):  # fmt: skip
    """The quantization_config of layers that :func:`compressed` draws with these options.
    ``activations``: a name of ACTIVATIONS."""
    strategy = "tensor_group" if form.startswith("nvfp4") else "channel" if group == -1 else "group"
    weights: dict[str, Any] = {
        "num_bits": bits, "type": "float" if form in FLOATS else "int", "strategy": strategy,
        "symmetric": symmetric, "dynamic": False, "group_size": None if group == -1 else group,
    }  # fmt: skip
    if order:
        weights["actorder"] = "group"
    scheme = {"targets": ["Linear"], "weights": weights,
              "input_activations": ACTIVATIONS.get(activations)}  # fmt: skip
    return {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"],
            "quantization_status": "compressed", "config_groups": {"group_0": scheme}}  # fmt: skip


def float_values(exponent_bits: int, mantissa_bits: int) -> np.ndarray:
    """What each code of a float means, sign first, bias 2**(e-1) - 1, without special values."""
    values = []
    for code in range(1 << (exponent_bits + mantissa_bits)):
        exponent, fraction = code >> mantissa_bits, code % (1 << mantissa_bits)
        whole = fraction / (1 << mantissa_bits) + (exponent > 0)
        values.append(whole * 2.0 ** (max(exponent, 1) - (1 << (exponent_bits - 1)) + 1))
    return np.array(values + [-value for value in values])


def octets(rows: list[list[int]], bits: int) -> torch.Tensor:
    """Little-endian bit streams as bytes."""
    lines = [sum(int(v) << (bits * at) for at, v in enumerate(row)) for row in rows]
    size = (len(rows[0]) * bits + 7) // 8
    return torch.tensor([list(line.to_bytes(size, "little")) for line in lines], dtype=torch.uint8)


def compressed(n, k, *, bits=4, group=32, form="pack-quantized", symmetric=True, order=False,
               whole_words=False, seed=0, activations=None) -> Truth:  # fmt: skip
    """A layer of compressed-tensors, its integers drawn unsigned. ``whole_words``: as early
    versions pack, whole codes in each word. A global scale is a power of two. ``activations``: a
    name of ACTIVATIONS, of whose tensors the weight knows nothing."""
    truth = draw(n, k, bits, group, symmetric=symmetric, seed=seed)
    rng = np.random.default_rng(seed + 1)
    if order:
        truth.group_of = rng.permutation(truth.group_of)
    if activations is not None:
        truth.tensors = inputs_of(activations)
    if form in FLOATS:
        return _compressed_floats(truth, bits, form, rng)

    def pack(row):
        if not whole_words:
            return stream(row, bits)
        each = 32 // bits
        return [stream(row[at : at + each], bits)[0] for at in range(0, len(row), each)]

    half = 1 << (bits - 1)
    if form == "pack-quantized":
        truth.tensors["weight_packed"] = words([pack(row) for row in truth.codes])
        truth.tensors["weight_shape"] = torch.tensor([n, k])
    else:
        truth.tensors["weight"] = torch.from_numpy((truth.codes - half).astype(np.int8))
    truth.tensors["weight_scale"] = torch.from_numpy(truth.scales)
    if not symmetric and form == "pack-quantized":
        truth.tensors["weight_zero_point"] = (
            words([pack(z) for z in truth.zeros.T]).t().contiguous()
        )
    elif not symmetric:
        truth.tensors["weight_zero_point"] = torch.from_numpy((truth.zeros - half).astype(np.int8))
    if order:
        truth.tensors["weight_g_idx"] = torch.from_numpy(truth.group_of.astype(np.int32))
    return truth


def _compressed_floats(truth: Truth, bits: int, form: str, rng) -> Truth:
    values = float_values(*FLOATS[form])
    if bits == 8:  # the code of all ones is no number
        truth.codes = np.where(truth.codes % 128 == 127, 0, truth.codes)
    codes, truth.codes = truth.codes, values[truth.codes]
    truth.zeros = np.zeros_like(truth.scales)
    if bits == 8:
        eight = torch.from_numpy(codes.astype(np.uint8))
        truth.tensors["weight"] = eight.view(torch.float8_e4m3fn)
    else:
        truth.tensors["weight_packed"] = octets(codes.tolist(), bits)
    scales = torch.from_numpy(truth.scales)
    if form.startswith("mx"):
        stored = torch.from_numpy(rng.integers(110, 125, truth.scales.shape).astype(np.uint8))
        truth.scales = 2.0 ** (stored.numpy().astype(np.float32) - 127)
        scales = stored
    elif form.startswith("nvfp4"):
        scales = (scales * 1000).to(torch.float8_e4m3fn)
        truth.scales = scales.float().numpy() / 512
        truth.tensors["weight_global_scale"] = torch.tensor([512.0])
    truth.tensors["weight_scale"] = scales
    return truth


#: weight_block_size and activation_scheme of each kind of FP8 folder, the name of its scales and
#: their dtype.
FP8 = {
    "blocks": ([128, 128], "dynamic", "weight_scale_inv", torch.float32),
    "small blocks": ([48, 64], "dynamic", "weight_scale_inv", torch.bfloat16),
    "e8m0 blocks": ([128, 128], "dynamic", "weight_scale_inv", torch.float8_e8m0fnu),
    "v4 blocks": ([128, 128], "dynamic", "scale", torch.float8_e8m0fnu),
    "tensor": (None, "dynamic", "weight_scale", torch.float32),
    "static": (None, "static", "weight_scale", torch.float32),
    "scalar": (None, "static", "weight_scale_inv", torch.float32),
    "channel": (None, "dynamic", "weight_scale", torch.float32),
}


def fp8_settings(kind="blocks", dense=("lm_head",)):
    """The quantization_config of layers that :func:`fp8` draws."""
    block, scheme, *_ = FP8[kind]
    fields = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": scheme}
    names = {"modules_to_not_convert" if block else "ignored_layers": list(dense)}
    return fields | names | ({"weight_block_size": block} if block else {})


def fp8(n, k, *, kind="blocks", seed=0) -> Truth:
    """A layer of float8_e4m3, a kind of FP8. Its scales are [N, K], one for each weight."""
    block, scheme, name, dtype = FP8[kind]
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (n, k))
    codes = np.where(codes % 128 == 127, 0, codes)  # the code of all ones is no number
    rows, columns = block or ((1, k) if kind == "channel" else (n, k))
    blocks = (-(-n // rows), -(-k // columns))
    drawn = torch.from_numpy(rng.random(blocks, dtype=np.float32) * 0.02 + 0.001)
    powers = dtype == torch.float8_e8m0fnu
    stored = torch.exp2(drawn.log2().round()).to(dtype) if powers else drawn.to(dtype)
    scales = stored.float().numpy()[np.arange(n) // rows][:, np.arange(k) // columns]
    truth = Truth(float_values(4, 3)[codes], scales, np.zeros_like(scales), np.arange(k))
    shape = {"scalar": (), "tensor": (1,), "static": (1,)}.get(kind, blocks)
    truth.tensors = {
        "weight": torch.from_numpy(codes.astype(np.uint8)).view(torch.float8_e4m3fn),
        name: stored.reshape(shape),
    }
    if scheme == "static":
        part = "activation_scale" if kind == "scalar" else "input_scale"
        truth.tensors[part] = torch.tensor(0.03)
    return truth


#: quantization_config of layers of :func:`fp8`, kind "channel", as FBGEMM's files have it.
FBGEMM = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0,
          "modules_to_not_convert": ["lm_head"]}  # fmt: skip


def fp8_expert_of_4_bits(n, k, *, seed=0) -> Truth:
    """A projection of an expert as DeepSeek-V4 stores it among layers of :func:`fp8`."""
    truth = compressed(n, k, form="mxfp4-pack-quantized", seed=seed)
    codes, scales = truth.tensors["weight_packed"], truth.tensors["weight_scale"]
    truth.tensors = {"weight": codes.view(torch.int8), "scale": scales.view(torch.float8_e8m0fnu)}
    return truth


def modelopt_settings(algorithm, **more):
    """The quantization_config of layers that :func:`modelopt` draws."""
    ignored = {"producer": {"name": "modelopt"}, "ignore": ["lm_head", "mlp.gate*"]}
    return {"quant_method": "modelopt", "quant_algo": algorithm} | ignored | more


def modelopt(n, k, *, algorithm="NVFP4", seed=0) -> Truth:
    """A layer as NVIDIA's Model Optimizer exports it. Its scales are [N, K], one for each weight,
    and its codes are values."""
    rng = np.random.default_rng(seed)
    if algorithm.endswith("AWQ"):
        return _modelopt_awq(n, k, algorithm, rng)
    if algorithm.endswith("NVFP4"):
        codes, scale_codes = rng.integers(0, 16, (n, k)), rng.integers(1, 127, (n, k // 16))
        scales = np.repeat(float_values(4, 3)[scale_codes], 16, 1).astype(np.float32) / 64
        truth = Truth(float_values(2, 1)[codes], scales, np.zeros_like(scales), np.arange(k))
        octets = codes[:, ::2] | codes[:, 1::2] << 4
        truth.tensors = {
            "weight": torch.from_numpy(octets.astype(np.uint8)),
            "weight_scale": torch.from_numpy(scale_codes.astype(np.uint8)).view(
                torch.float8_e4m3fn
            ),
            "weight_scale_2": torch.tensor(1 / 64),
        }
        if algorithm == "NVFP4":
            truth.tensors["input_scale"] = torch.tensor(0.03)
        return truth
    if algorithm == "MXFP8":
        truth, powers = fp8(n, k, seed=seed), rng.integers(118, 128, (n, k // 32))
        truth.scales = np.repeat(np.exp2(powers - 127.0), 32, 1).astype(np.float32)
        scales = torch.from_numpy(powers.astype(np.uint8))
        truth.tensors = {"weight": truth.tensors["weight"], "weight_scale": scales}
        return truth
    kind = {"FP8": "static", "FP8_PER_CHANNEL_PER_TOKEN": "channel", "FP8_PB_WO": "blocks"}
    truth = fp8(n, k, kind=kind[algorithm], seed=seed)
    scale = next(part for part in truth.tensors if "scale" in part and part != "input_scale")
    stored = truth.tensors.pop(scale).float()
    if algorithm == "FP8_PB_WO":
        stored = stored[:, None, :, None]
    truth.tensors["weight_scale"] = stored.reshape(()) if algorithm == "FP8" else stored
    return truth


def _modelopt_awq(n, k, algorithm, rng) -> Truth:
    """Columns of x have powers of two, so that the weight times them is exact, too."""
    if algorithm == "NVFP4_AWQ":
        truth = modelopt(n, k, algorithm="NVFP4", seed=int(rng.integers(100)))
    else:
        codes, groups = rng.integers(-8, 8, (n, k)), -(-k // 128)
        scales = (rng.random((n, groups), dtype=np.float32) * 0.02 + 0.001).astype(np.float32)
        truth = Truth(codes, scales, np.zeros_like(scales), np.arange(k) // 128)
        octets = (codes[::2] & 15) | (codes[1::2] & 15) << 4
        truth.tensors = {
            "weight": torch.from_numpy(octets.astype(np.uint8)),
            "weight_scale": torch.from_numpy(scales.copy()),
        }
        if algorithm == "W4A8_AWQ":
            truth.tensors["weight_scale_2"] = torch.tensor(0.002)
            truth.tensors["input_scale"] = torch.tensor(0.03)
    powers = np.exp2(rng.integers(-2, 3, k)).astype(np.float32)
    truth.tensors["pre_quant_scale"] = torch.from_numpy(powers).bfloat16()
    return truth


W4AFP8 = {"quant_method": "w4afp8", "activation_scheme": "static"}


def w4afp8_expert(n, k, *, seed=0) -> Truth:
    """A projection of an expert of quant_method "w4afp8": int4 in groups of 128 columns."""
    rng = np.random.default_rng(seed)
    codes, groups = rng.integers(-8, 8, (n, k)), -(-k // 128)
    scales = (rng.random((n, groups), dtype=np.float32) * 0.02 + 0.001).astype(np.float32)
    truth = Truth(codes, scales, np.zeros_like(scales), np.arange(k) // 128)
    octets = (codes[:, ::2] & 15) | ((codes[:, 1::2] & 15) << 4)
    truth.tensors = {
        "weight": torch.from_numpy(octets.astype(np.uint8)).view(torch.int8),
        "weight_scale_inv": torch.from_numpy(scales.copy()),
        "input_scale": torch.tensor([0.25 + seed % 4], dtype=torch.bfloat16),
    }
    return truth


MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.embed_tokens", "lm_head"],
}


@dataclass
class Stack:
    """One product of all experts of a layer: what it means, and its tensors by the end of their
    names."""

    weight: np.ndarray  #: [E, N, K]
    tensors: dict[str, torch.Tensor]


def mxfp4_stack(experts, n, k, *, seed=0) -> Stack:
    """Of quant_method "mxfp4", as gpt-oss has it."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, (experts, n, k))
    exponents = rng.integers(118, 128, (experts, n, k // 32))
    scales = np.exp2(exponents - 127.0)
    octets = codes[..., ::2] | codes[..., 1::2] << 4
    blocks = octets.astype(np.uint8).reshape(experts, n, k // 32, 16)
    return Stack(
        float_values(2, 1)[codes] * scales.repeat(32, -1),
        {
            "blocks": torch.from_numpy(blocks),
            "scales": torch.from_numpy(exponents.astype(np.uint8)),
            "bias": torch.from_numpy(rng.normal(size=(experts, n))).bfloat16(),
        },
    )


def mxfp4_of(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a ladder folder whose experts are stacks of mxfp4, as gpt-oss's published
    folders have them: rows of gate and up in turn, codes as bytes. Others stay as they are."""
    found = {}
    for name, tensor in tensors.items():
        head, _, part = name.rpartition(".")
        if not head.endswith((".experts.gate_up", ".experts.down")):
            found[name] = tensor
            continue
        if head.endswith(".gate_up"):
            tensor = torch.stack(tensor.chunk(2, 1), 2).flatten(1, 2)
        if part != "bias":
            tensor = tensor.contiguous().view(torch.uint8)
        if part == "qweight":
            tensor = tensor.unflatten(2, (-1, 16))
        found[f"{head}_proj_{'blocks' if part == 'qweight' else part}"] = tensor.contiguous()
    return found


def _fast_lines(codes: np.ndarray) -> torch.Tensor:
    """gemv_fast: 4 rows x 64 columns are 64 int16, the nibbles of a row in its kernel's order."""
    n, k = codes.shape
    lines = np.zeros((n // 4, k), dtype=np.uint16)
    for row in range(n):
        for column in range(k):
            a, rest = divmod(column % 32, 8)
            b, c = divmod(rest, 2)
            place = column % 64 // 32 * 32 + 8 * b + 4 * c + a
            nibble = row % 4 * 64 + place
            at = column // 64 * 64 + nibble // 4
            lines[row // 4, at] |= int(codes[row, column]) << (4 * (nibble % 4))
    return torch.from_numpy(lines.view(np.int16).copy())


def tensors_of(layers: dict[str, Truth]) -> dict[str, torch.Tensor]:
    return {f"{name}.{p}": t for name, truth in layers.items() for p, t in truth.tensors.items()}


def write_folder(folder: Path, quantization: dict[str, Any] | None, shards: list[dict]) -> Path:
    """A model folder of one or more safetensors shards, with a config and a few other files."""
    folder.mkdir(parents=True)
    config: dict[str, Any] = {"model_type": "llama", "hidden_size": 64, "torch_dtype": "float16"}
    if quantization is not None:
        config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "extra").mkdir()
    (folder / "extra" / "notes.txt").write_text("carried over")
    if len(shards) == 1:
        save_file(shards[0], folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    weight_map = {}
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(tensors, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, name)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def small(folder: Path, **changes: Any) -> Path:
    """A one-layer GPTQ checkpoint, its tensors or settings changed by name; None leaves one out."""
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}
    settings |= changes.pop("settings", {})
    truth = gptq(32, 64, symmetric=False, lowest=1)
    tensors = tensors_of({"layer": truth}) | {"norm.weight": torch.ones(64)}
    tensors |= {f"layer.{part}": value for part, value in changes.items()}
    return write_folder(folder, settings, [{k: v for k, v in tensors.items() if v is not None}])
