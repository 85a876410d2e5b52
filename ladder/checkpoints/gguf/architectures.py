# SPDX-License-Identifier: Apache-2.0
"""Architectures of GGUF files: configurations of transformers, and what llama.cpp's converter does
to tensors.

Most are transformers' own, whose loader of GGUF files has them; :data:`_PASSED_OVER` is what that
loader does not read although it changes results. The rest are rows of :data:`_OWN`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ladder.checkpoints.gguf import rope
from ladder.checkpoints.gguf.header import GgufFile
from ladder.checkpoints.gguf.parts import described_in_one
from ladder.errors import Unsupported

#: numbers of a tensor, its name in the file -> the numbers as the model has them
Process = Callable[[Any, str], Any]

#: Fields of the file that every row has, and attributes of transformers' configurations.
_COMMON = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps",
}
#: What a tensor of the first layer says.
_BY_TENSORS = {
    "attention_bias": "blk.0.attn_q.bias",
    "mlp_bias": "blk.0.ffn_up.bias",
    "use_qk_norm": "blk.0.attn_q_norm.weight",
}
#: Fields that are read elsewhere or say nothing more.
_READ_ELSEWHERE = frozenset({"vocab_size", "attention.value_length", *rope.FIELDS})
_TOKENS = {
    "bos_token_id": ("bos",),
    "eos_token_id": ("eos", "eot", "eom"),  # llama.cpp stops at any of them
    "pad_token_id": ("padding",),
}


@dataclass(frozen=True)
class Architecture:
    """One that ladder knows and transformers' loader does not.

    Attributes:
        model_type: of transformers.
        fields: of the file -> attribute, beyond those that all have.
        permuted: rows of q and k are in the order of llama.cpp's rotary embedding, in which the two
            halves of a head take turns.
        norm_offset: what the converter adds to weights of norms.
    """

    model_type: str
    fields: Mapping[str, str] = field(default_factory=dict)
    permuted: bool = False
    norm_offset: float = 0.0

    def config(self, file: GgufFile) -> Any:
        from transformers import AutoConfig

        known = _COMMON | dict(self.fields)
        prefix = f"{file.architecture}."
        values: dict[str, Any] = {}
        for name, value in file.fields.items():
            key = name.removeprefix(prefix)
            if key == name or key in _READ_ELSEWHERE or key.startswith(rope.SCALING):
                continue
            if key not in known:
                raise Unsupported(
                    f"{file.path}: has the field {name} ({value}), which ladder does not know of "
                    f"{file.architecture} models"
                )
            values[known[key]] = value
        for name, tensor in _BY_TENSORS.items():
            values |= {name: True} if tensor in file.entries else {}
        values["tie_word_embeddings"] = "output.weight" not in file.entries
        # Defaults of transformers are those of one model: a file says by its fields what it has.
        values["rope_parameters"] = {"rope_type": "default"}
        if (theta := file.of_model("rope.freq_base")) is not None:
            values["rope_parameters"]["rope_theta"] = float(theta)
        return AutoConfig.for_model(self.model_type, **values)

    def process(self, config: Any) -> Process:
        def process(numbers: Any, name: str) -> Any:
            if self.permuted and (".attn_q." in name or ".attn_k." in name):
                of_q = ".attn_q." in name
                heads = config.num_attention_heads if of_q else config.num_key_value_heads
                pairs = numbers.reshape(heads, -1, 2, *numbers.shape[1:])
                return pairs.swapaxes(1, 2).reshape(numbers.shape)
            if self.norm_offset and name.endswith("norm.weight"):
                return numbers - self.norm_offset
            return numbers

        return process


_EXPERTS = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
_LOCAL_EXPERTS = _EXPERTS | {"expert_count": "num_local_experts"}
#: To add an architecture, add its row; "mixtral" is what a LLaMA with experts is.
_OWN = {
    "command-r": Architecture("cohere", {"logit_scale": "logit_scale"}),
    "gemma": Architecture("gemma", norm_offset=1.0),
    "glm4": Architecture("glm4"),
    "gpt-oss": Architecture(
        "gpt_oss",
        _LOCAL_EXPERTS
        | {
            "expert_feed_forward_length": "intermediate_size",
            "attention.sliding_window": "sliding_window",
        },
    ),
    "granite": Architecture(
        "granite",
        {
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "logit_scale": "logits_scaling",
            "residual_scale": "residual_multiplier",
        },
        permuted=True,
    ),
    "mixtral": Architecture("mixtral", _LOCAL_EXPERTS, permuted=True),
    "olmo2": Architecture("olmo2"),
    "olmoe": Architecture("olmoe", _EXPERTS),
    "smollm3": Architecture("smollm3", permuted=True),
}

_SHARED_EXPERTS = {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
_WINDOW = {"attention.sliding_window": "sliding_window"}
_SOFTCAPS = {name: name for name in ("attn_logit_softcapping", "final_logit_softcapping")}
#: What the loader leaves at what its configurations have by default: architecture -> field of the
#: file -> attribute.
_PASSED_OVER: dict[str, dict[str, str]] = {
    "falcon": {"attention.layer_norm_epsilon": "layer_norm_epsilon"},
    "gemma2": _SOFTCAPS,
    "gemma3": _SOFTCAPS,
    "nemotron": {"attention.layer_norm_epsilon": "norm_eps"},
    "phi3": _WINDOW,
    "qwen2": {"attention.key_length": "head_dim"},
    "qwen2moe": _SHARED_EXPERTS,
    "qwen3": {"attention.key_length": "head_dim"},
    "qwen3moe": {"expert_feed_forward_length": "moe_intermediate_size"},
    "starcoder2": _WINDOW,
}
#: Models of 27B of Gemma divide the products of q and k by the root of hidden_size / heads, which
#: no file says, and llama.cpp knows them by their number of layers; the others by that of head_dim.
_GEMMA_27B = {"gemma2": 46, "gemma3": 62}


def architecture_of(file: GgufFile) -> Architecture | None:
    """The row of :data:`_OWN` for a file; None where transformers' loader may know it."""
    if file.architecture == "llama" and file.of_model("expert_count"):
        return _OWN["mixtral"]
    return _OWN.get(file.architecture)


def make_config(file: GgufFile) -> Any:
    """The configuration of transformers for a file.

    Raises:
        Unsupported: a field that changes results and that no configuration has.
        ValueError, KeyError, ...: of transformers, which does not know the architecture.
    """
    own = architecture_of(file)
    if own is not None:
        config = own.config(file)
    else:
        from transformers import AutoConfig

        with described_in_one(file) as path:
            config = AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
    if (embedding := file.entries.get("token_embd.weight")) is not None:
        config.vocab_size = embedding.shape[0]
    for key, attribute in _PASSED_OVER.get(file.architecture, {}).items():
        if (value := file.of_model(key)) is not None:
            setattr(config, attribute, value)
    if (layers := _GEMMA_27B.get(file.architecture)) is not None:
        head_dim = config.head_dim
        if config.num_hidden_layers == layers:
            head_dim = config.hidden_size // config.num_attention_heads
        config.query_pre_attn_scalar = head_dim
    if file.architecture == "falcon" and (heads := file.of_model("attention.head_count_kv")) != 1:
        raise Unsupported(
            f"{file.path}: is a falcon with {heads} heads of k and v, whose rows the converter has "
            "moved and transformers' loader does not move back"
        )
    _set_tokens(file, config, loaders=own is None)
    rope.set_rope(file, config)
    if file.architecture == "gpt-oss" and config.rope_parameters["rope_type"] == "yarn":
        config.rope_parameters["truncate"] = False  # as all published ones, and no file says so
    return config


def _set_tokens(file: GgufFile, config: Any, *, loaders: bool) -> None:
    """Put numbers of tokens into ``config``, whose defaults are those of one vocabulary: with
    another's end of a text, generating would never stop. Where the config is the loader's, several
    are what that knows of the model (Gemma 4)."""
    known = "tokenizer.ggml.model" in file.fields
    for name, keys in _TOKENS.items():
        found = [file.fields.get(f"tokenizer.ggml.{key}_token_id") for key in keys]
        tokens = list(dict.fromkeys(token for token in found if token is not None))
        before = getattr(config, name, None)
        if loaders and isinstance(before, list):
            continue
        if tokens:
            setattr(config, name, tokens if tokens[1:] else tokens[0])
        elif isinstance(before, int) and (known or before >= config.vocab_size):
            setattr(config, name, None)


def make_process(file: GgufFile, config: Any, loader: Any, names: Mapping[str, str]) -> Process:
    """What has to be done to the file's tensors.

    Args:
        loader: transformers' module.
        names: what it has made of the names, for its own processors.
    """
    own = architecture_of(file)
    if own is not None:
        return own.process(config)
    known = loader.TENSOR_PROCESSORS.get(file.architecture, loader.TensorProcessor)
    processor = known(config=config.to_dict())

    def process(numbers: Any, name: str) -> Any:
        if "ffn_gate_inp_shexp" in name and numbers.ndim == 2:
            return numbers  # the processor expects a row, which most files have
        kept: dict[str, Any] = {"tensors": {}}
        result = processor.process(
            weights=numbers, name=name, tensor_key_mapping=names, parsed_parameters=kept
        )
        if kept["tensors"]:  # GPT-2's head, which its processor puts there itself
            (made,) = kept["tensors"].values()
            return made.numpy()
        return result.weights

    return process
