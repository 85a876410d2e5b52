# SPDX-License-Identifier: Apache-2.0
"""The engines that vllm_decode.py and sglang_decode.py compare: their models, as folders without
weights, their environments, and what their logs must say."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

SHAPES = {
    # Of LLaMA 3.2, whose output embedding is tied: a fifth of all weights.
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
           "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
           "vocab_size": 128256, "tie_word_embeddings": True},
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
           "num_attention_heads": 32, "num_key_value_heads": 8},
    "70b": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
            "num_attention_heads": 64, "num_key_value_heads": 8},
    # Of Qwen3-30B-A3B.
    "30b-a3b": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
                "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
                "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
                "norm_topk_prob": True},
    "gpt-oss-20b": {"hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
                    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
                    "num_local_experts": 32, "num_experts_per_tok": 4, "vocab_size": 201088},
    # To try this program itself.
    "tiny": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2},
}  # fmt: skip
_PROJECTIONS = [
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
]
_DENSE_OF_GPT_OSS = ("self_attn", "attn", "mlp.router", "embed_tokens", "lm_head")
_RIVALS = {
    "machete": "MacheteLinearKernel",
    "marlin": "MarlinLinearKernel",
    "humming": "HummingLinearKernel",
}
# Files of compressed-tensors: the format, and fields of weights and of x.
_TOKENS = {"num_bits": 8, "strategy": "token", "symmetric": True, "dynamic": True}
_ROWS = {"num_bits": 8, "strategy": "channel", "symmetric": True, "dynamic": False}
_INT4 = {
    "num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True,
    "dynamic": False,
}  # fmt: skip
_FP4 = {"num_bits": 4, "type": "float", "symmetric": True, "dynamic": False}
_COMPRESSED: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {
    "fp8": ("float-quantized", _ROWS | {"type": "float"}, _TOKENS | {"type": "float"}),
    "int8": ("int-quantized", _ROWS | {"type": "int"}, _TOKENS | {"type": "int"}),
    "w4afp8": ("pack-quantized", _INT4, _TOKENS | {"type": "float"}),
    "mxfp4": (
        "mxfp4-pack-quantized",
        _FP4 | {"strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}, None,
    ),
    "nvfp4": ("nvfp4-pack-quantized", _FP4 | {"strategy": "tensor_group", "group_size": 16}, None),
}  # fmt: skip
#: What vLLM's log says of their kernels.
_THEIR_KERNEL = {
    "fp8": r"Selected \w*FP8ScaledMM\w*Kernel for",
    "int8": r"Selected \w*Int8ScaledMM\w*Kernel for",
    "w4afp8": r"Using CutlassW4A8LinearKernel",
    "mxfp4": r"Using \w+ for MXFP4 GEMM",
    "nvfp4": r"Using \w+ for NVFP4 GEMM",
}
_KERNELS = (
    "CutlassW4A8LinearKernel", "MacheteLinearKernel", "AllSparkLinearKernel", "MarlinLinearKernel",
    "ConchLinearKernel", "ExllamaLinearKernel", "TritonW4A16LinearKernel", "HummingLinearKernel",
)  # fmt: skip


def quantization(engine: str, shape: str) -> dict[str, Any] | None:
    """The quantization_config of an engine's model."""
    if engine == "fp16":
        return None
    if engine in _RIVALS:
        config = {
            "quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False,
            "lm_head": False,
        }  # fmt: skip
        # Of experts vLLM does not ask whether they are listed.
        return config | {"modules_in_block_to_quantize": _PROJECTIONS}
    if is_gpt_oss(shape) and engine.startswith("mxfp4"):
        return {"quant_method": "mxfp4", "modules_to_not_convert": [*_DENSE_OF_GPT_OSS]}
    if engine in _COMPRESSED:
        form, weights, activations = _COMPRESSED[engine]
        group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
        return {
            "quant_method": "compressed-tensors", "format": form, "config_groups": {"all": group},
            "ignore": ["lm_head"], "quantization_status": "compressed",
        }  # fmt: skip
    from ladder.checkpoints.folder import StoredConfig
    from ladder.types import with_defaults

    weight, rounded = stored_types(engine)
    # Routers of mixtures, and attention of gpt-oss, stay as they are in the files that rivals read.
    dense = _DENSE_OF_GPT_OSS if is_gpt_oss(shape) else ("lm_head", "mlp.gate")
    head = head_type(engine)
    return StoredConfig(
        str(with_defaults(weight)),
        modules={"lm_head": str(with_defaults(head))} if head else {},
        modules_to_not_convert=dense,
        activation_type=rounded or None,
    ).to_dict()


def stored_types(engine: str) -> tuple[str, str]:
    """The types of weights and of x of an engine of ladder's; "": x as it comes."""
    weight, _, rounded = engine.partition(":")[2].partition("^")[0].partition("@")
    return weight.replace("+", ",") or "uint4", rounded.replace("+", ",")


def head_type(engine: str) -> str:
    """The type of the output embedding of an engine of ladder's; "" where that is dense."""
    return engine.partition("^")[2].replace("+", ",")


def environment(engine: str) -> dict[str, str]:
    """Of an engine's process."""
    fixed = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_USE_DEEP_GEMM": "0",
    }
    if engine in _RIVALS:
        others = [name for name in _KERNELS if name != _RIVALS[engine]]
        fixed["VLLM_DISABLED_KERNELS"] = ",".join(others)
    return {**os.environ, **fixed}


def is_gpt_oss(shape: str) -> bool:
    return shape.startswith("gpt-oss")


def is_mixture(shape: str) -> bool:
    return "num_experts" in SHAPES[shape] or is_gpt_oss(shape)


def expected(engine: str, shape: str, ladder: dict[str, Any]) -> list[str]:
    """What the log of an engine must have; ``ladder`` has the options of ladder."""
    if engine in _RIVALS:
        # What vLLM 0.26 takes for experts of such weights.
        experts = [r"Using 'MARLIN' \w+ MoE backend"] if is_mixture(shape) else []
        return [f"Using {_RIVALS[engine]}", *experts]
    if is_gpt_oss(shape) and engine.startswith("mxfp4"):
        backend = engine.partition(":")[2]
        return [rf"Using '{backend.upper() or 'TRITON'}' Mxfp4 MoE backend"]
    if engine in _COMPRESSED:
        return [_THEIR_KERNEL[engine]]
    if not engine.startswith("ladder"):
        return []
    experts = [r"ladder: \d+ experts of .* have kernels for items"] if is_mixture(shape) else []
    _, rounded = stored_types(engine)
    fuses = ladder.get("fuse_gated_mlp", True) and not is_mixture(shape)
    products = [r"ladder: (\d+) of \1 layers of two parts give act\(gate\) \* up"] if fuses else []
    of = f".* of {rounded}" if rounded else ""
    linear = [] if is_gpt_oss(shape) else [f"ladder: .* has kernels for 1 to{of}"]
    return [*linear, *experts, *products]


def write_model(folder: Path, shape: str, layers: int, engine: str, dtype: str) -> None:
    import transformers

    fields = {"vocab_size": 32768, "max_position_embeddings": 8192, "tie_word_embeddings": False}
    kind = "GptOss" if is_gpt_oss(shape) else "Qwen3Moe" if is_mixture(shape) else "Llama"
    fields |= SHAPES[shape] | {"num_hidden_layers": layers}
    if head_type(engine):
        fields["tie_word_embeddings"] = False
    made = getattr(transformers, f"{kind}Config")(**fields)
    config = made.to_dict() | {"architectures": [f"{kind}ForCausalLM"], "dtype": dtype}
    if quantised := quantization(engine, shape):
        config["quantization_config"] = quantised
    (folder / "config.json").write_text(json.dumps(config))
