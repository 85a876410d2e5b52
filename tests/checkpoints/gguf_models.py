# SPDX-License-Identifier: Apache-2.0
"""GGUF files for tests, written by the ``gguf`` package as llama.cpp's converter writes them."""

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Format

#: Where a block of a format has float16 numbers.
_HALVES = {
    2: (0,), 3: (0, 2), 6: (0,), 7: (0, 2), 8: (0,), 10: (80, 82), 11: (108,), 12: (0, 2),
    13: (0, 2), 14: (208,), 16: (0,), 17: (0,), 18: (0,), 19: (0,), 20: (0,), 21: (0,), 22: (0,),
    23: (0,), 34: (52,), 35: (64,),
}  # fmt: skip


def random_blocks(number: int, rows: int, columns: int, seed: int = 0, scale: float = 1.0):
    """[rows, bytes of a row]: blocks of any bits whose scales are finite."""
    rng = np.random.default_rng(seed)
    elements, nbytes = gguf.GGML_QUANT_SIZES[Format(number)]
    blocks = rng.integers(0, 256, (rows, columns // elements, nbytes), dtype=np.uint8)
    for at in _HALVES.get(number, ()):
        halves = (scale * rng.standard_normal((*blocks.shape[:2], 1))).astype(np.float16)
        blocks[..., at : at + 2] = halves.view(np.uint8)
    if number == Format.IQ1_M:  # its float16 lies in pieces, the exponent's highest bit here
        blocks[..., 55] &= 0xBF
    if number == Format.MXFP4:
        blocks[..., 0] = rng.integers(118, 124, blocks.shape[:2])
    if number == Format.NVFP4:
        blocks[..., :4] = rng.integers(0, 127, (*blocks.shape[:2], 4))
    if number == Format.TQ2_0:  # 3 is no code of it
        pairs = blocks[..., :64]
        blocks[..., :64] = pairs & ~(pairs & (pairs >> 1 & 0x55))
    return blocks.reshape(rows, -1)


def reference(blocks: np.ndarray, number: int) -> torch.Tensor:
    """What the ``gguf`` package dequantises blocks to, float32."""
    return torch.from_numpy(gguf.dequantize(blocks, Format(number)).copy())


def permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of q or k in the order of llama.cpp's rotary embedding: the two halves of a head in
    turn."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


class Writer:
    """The file of a model of transformers. ``tensors`` and ``fields`` may be changed before
    :meth:`write`; :meth:`quantize` rounds tensors."""

    def __init__(self, model, architecture: str = "llama") -> None:
        self.architecture, self.config = architecture, model.config
        self.fields: dict[str, object] = {}
        self.tensors: dict[str, tuple[np.ndarray, Format | None]] = {}
        layers = self.config.num_hidden_layers
        kind = next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
        called = gguf.get_tensor_name_map(kind, layers)
        for name, tensor in model.state_dict().items():
            module, _, part = name.rpartition(".")
            if self.config.tie_word_embeddings and module == "lm_head":
                continue
            tensor = self._as_stored(name, tensor.float())
            if module.endswith("mlp.experts"):
                self._add_experts(module.split(".")[2], part, tensor)
                continue
            if part == "sinks":
                module, part = name, "weight"
            self.tensors[f"{called.get_name(module)}.{part}"] = (tensor.numpy(), None)

    def _add_experts(self, layer: str, part: str, tensor: torch.Tensor) -> None:
        """The tensors of one parameter of experts, of gpt-oss's order or the others'."""
        which, kind = ("gate", "up") if part.startswith("gate_up") else ("down",), "weight"
        if part.endswith("_bias"):
            kind = "bias"
        elif self.architecture == "gpt-oss":
            tensor = tensor.transpose(1, 2)
        parts = tensor.chunk(len(which), 1)
        if self.architecture == "gpt-oss" and len(which) == 2:
            parts = tensor[:, ::2], tensor[:, 1::2]
        for name, each in zip(which, parts, strict=True):
            key = f"blk.{layer}.ffn_{name}_exps.{kind}"
            self.tensors[key] = (each.contiguous().numpy(), None)

    def _as_stored(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        config = self.config
        moved = self.architecture in ("llama", "granite", "smollm3")
        if moved and ("q_proj" in name or "k_proj" in name):
            of_k = "k_proj" in name
            heads = config.num_key_value_heads if of_k else config.num_attention_heads
            return permuted(tensor, heads)
        if self.architecture in ("gemma", "gemma2", "gemma3", "nemotron") and (
            name.endswith("norm.weight")
        ):
            return tensor + 1
        if self.architecture == "gpt2" and ".c_" in name and tensor.dim() == 2:
            return tensor.T.contiguous()
        return tensor

    def quantize(self, name: str, number: Format) -> None:
        """Round the tensors whose names end in ``name``."""
        for full in [full for full in self.tensors if full.endswith(name)]:
            values = self.tensors[full][0]
            shape = values.shape
            try:
                blocks = gguf.quantize(values, number)
            except NotImplementedError:  # gguf reads k-quants but does not make them
                scale = float(np.abs(values).mean()) / 64
                blocks = random_blocks(number, values.size // shape[-1], shape[-1], scale=scale)
                blocks = blocks.reshape(*shape[:-1], -1)
            self.tensors[full] = (blocks, number)

    def write(self, path: Path, tokenizer: Path | None = None, **split) -> Path:
        """``split``: of gguf.GGUFWriter, which then names the files itself."""
        writer = gguf.GGUFWriter(path, self.architecture, **split)
        config = self.config
        heads = config.num_attention_heads
        writer.add_context_length(config.max_position_embeddings)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_embedding_length(config.hidden_size)
        writer.add_head_count(heads)
        writer.add_vocab_size(config.vocab_size)
        for name in ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps"):
            if hasattr(config, name):
                writer.add_layer_norm_eps(getattr(config, name))
        if hasattr(config, "rms_norm_eps"):
            writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        if self.architecture != "gpt2":
            head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
            rope = config.rope_parameters
            partial = rope.get("partial_rotary_factor", 1.0)
            writer.add_feed_forward_length(
                getattr(config, "intermediate_size", None) or config.ffn_hidden_size
            )
            falcons = 1 if getattr(config, "multi_query", False) else heads
            writer.add_head_count_kv(getattr(config, "num_key_value_heads", falcons))
            writer.add_rope_dimension_count(int(head_dim * partial))
            writer.add_key_length(head_dim)
            writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
        if getattr(config, "sliding_window", None):
            writer.add_sliding_window(config.sliding_window)
        if experts := getattr(config, "num_local_experts", getattr(config, "num_experts", 0)):
            writer.add_expert_count(experts)
            writer.add_expert_used_count(config.num_experts_per_tok)
        if hasattr(config, "moe_intermediate_size"):
            writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        if hasattr(config, "shared_expert_intermediate_size"):
            writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
        for name, value in self.fields.items():
            add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}
            add[type(value)](name, value)
        if tokenizer is not None:
            _add_tokenizer(writer, json.loads((tokenizer / "tokenizer.json").read_text()))
        for name, (data, number) in self.tensors.items():
            writer.add_tensor(name, data, raw_dtype=number)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def _add_tokenizer(writer, fields) -> None:
    special = {token["id"] for token in fields["added_tokens"]}
    vocabulary = sorted(fields["model"]["vocab"].items(), key=lambda item: item[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([3 if number in special else 1 for _, number in vocabulary])
    merges = fields["model"]["merges"]
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
