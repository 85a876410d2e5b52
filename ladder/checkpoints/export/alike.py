# SPDX-License-Identifier: Apache-2.0
"""Whether a GGUF file is of the same model as a folder: what changes results and no shape."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ladder.checkpoints.gguf.model import GgufModel
from ladder.errors import CheckpointError

#: Attributes of configurations; a model has one of those of a row.
_NUMBERS = (
    ("num_attention_heads",), ("num_key_value_heads",), ("head_dim",), ("num_experts_per_tok",),
    ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"),
)  # fmt: skip
#: Numbers are float32 in the file.
_CLOSE = 1e-6
#: Of a model with a tower for pictures, where its language model is.
_TEXT = ("model.language_model.", "language_model.model.")


def text_name(name: str) -> str:
    """The name of a tensor in the language model alone."""
    for prefix in _TEXT:
        if name.startswith(prefix):
            return f"model.{name.removeprefix(prefix)}"
    return name.removeprefix("language_model.")


def is_apart(config: Mapping[str, Any], name: str) -> bool:
    """Whether a module, or a tensor, of a folder is outside of its language model."""
    inside = name.startswith((*_TEXT, "language_model.", "lm_head"))
    return "text_config" in config and not inside


def check_alike(found: GgufModel, config: Mapping[str, Any]) -> Any:
    """The configuration of transformers that ``config``, of a folder, describes.

    Raises:
        CheckpointError: the model of the file is another, with both values; or transformers does
            not know that of the folder.
    """
    from transformers import AutoConfig

    fields = {name: value for name, value in config.items() if name != "quantization_config"}
    kind = str(fields.pop("model_type", ""))
    try:
        whole = AutoConfig.for_model(kind, **fields)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"config.json: transformers knows no model_type {kind!r} with these fields, and the "
            f"file is of {found.config.model_type}"
        ) from error
    folder, file = whole.get_text_config(), found.config.get_text_config()

    def check(what: str, of_file: Any, of_folder: Any) -> None:
        if isinstance(of_file, (int, float)) and isinstance(of_folder, (int, float)):
            same = math.isclose(of_file, of_folder, rel_tol=_CLOSE)
        else:
            same = of_file == of_folder
        if not same:
            raise CheckpointError(
                f"{found.file.path}: has {what} {of_file}, but the folder {of_folder}: it is a "
                "file of another model"
            )

    check("model_type", file.model_type, folder.model_type)
    for names in _NUMBERS:
        for name in names:
            if hasattr(file, name) and hasattr(folder, name):
                check(name, _number(file, name), _number(folder, name))
    check("rope_theta", _rope_theta(file), _rope_theta(folder))
    return whole


def _number(config: Any, name: str) -> Any:
    value = getattr(config, name)
    if name == "head_dim" and value is None:
        return config.hidden_size // config.num_attention_heads
    return value


def _rope_theta(config: Any) -> Any:
    """Of all layers; None where layers differ, or there is none."""
    parameters = getattr(config, "rope_parameters", None)
    return parameters.get("rope_theta") if isinstance(parameters, dict) else None
