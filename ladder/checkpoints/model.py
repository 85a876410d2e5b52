# SPDX-License-Identifier: Apache-2.0
"""The model that a folder is of: its modules, and what its files call them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ladder._version import install_command
from ladder.checkpoints import diffusion
from ladder.checkpoints.shards import read_json
from ladder.errors import CheckpointError, Unsupported


def meta_model(folder: Path) -> Any:
    """The model that config.json describes, on the meta device: of the class that wrote the folder
    (``architectures``), else the causal language model of its configuration; or the model of
    diffusers. No code of the folder runs.

    Raises:
        CheckpointError: transformers, or diffusers, knows no such model.
        Unsupported: that library is not installed.
    """
    if (name := diffusion.class_name(read_json(folder / "config.json"))) is not None:
        return diffusion.meta_model(folder, name)
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError:
        raise Unsupported(
            "convert needs transformers to know a model's Linear modules: "
            + install_command("transformers")
        ) from None
    try:
        # Without an answer transformers asks at the terminal whether it may run the folder's code.
        config = AutoConfig.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
        kind = class_of(config)
        with torch.device("meta"):
            if kind:
                return kind._from_config(config)
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:  # whatever classes of models raise where a number makes no sense
        # The lines that follow list every model that transformers knows.
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{folder}/config.json: {said}") from error


def class_of(config: Any) -> Any:
    """The class of transformers that ``architectures`` names, of this configuration; or None."""
    import transformers

    name = (getattr(config, "architectures", None) or [""])[0]
    kind = getattr(transformers, name, None) if isinstance(name, str) else None
    ours = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    return kind if ours and isinstance(config, getattr(kind, "config_class", None) or ()) else None


def _renames(model: Any) -> bool:
    """Whether ``model`` is one of transformers, whose files may have other names than it."""
    return hasattr(model, "base_model_prefix")


def _conversions(model: Any) -> tuple[list[Any], list[Any], bool]:
    """Of the files of ``model``, one of transformers: its renamings, its converters, and whether
    there is anything beside renamings."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming

    mapping = get_model_conversion_mapping(model)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    return renamings, converters, len(renamings) < len(mapping)


def renamer(model: Any) -> tuple[Callable[[str], str], bool]:
    """The name in ``model`` of a name in its files; False if other conversions exist as well."""
    if not _renames(model):
        return str, True
    from transformers.core_model_loading import rename_source_key

    renamings, _, more = _conversions(model)
    state = model.state_dict()

    def rename(name: str) -> str:
        renamed: str = rename_source_key(name, renamings, [], model.base_model_prefix, state)[0]
        return renamed

    return rename, not more


def after_renamings(model: Any) -> Callable[[str], str]:
    """What transformers calls a tensor of the files of ``model`` when its converters see it."""
    from transformers.core_model_loading import rename_source_key

    renamings, *_ = _conversions(model)

    def rename(name: str) -> str:
        renamed: str = rename_source_key(name, renamings, [])[0]
        return renamed

    return rename


def placer(model: Any) -> Callable[[str], tuple[str, str | None]]:
    """The parameter of ``model``, one of transformers, that a tensor of its files goes to, and the
    pattern of the conversion that makes it of several; None where it is that tensor."""
    from transformers.core_model_loading import rename_source_key

    renamings, converters, _ = _conversions(model)
    state, prefix = model.state_dict(), model.base_model_prefix

    def place(name: str) -> tuple[str, str | None]:
        made: tuple[str, str | None] = rename_source_key(name, renamings, converters, prefix, state)
        return made

    return place


def _conversions_of_new(model: Any) -> list[Any]:
    """Those that ``save_pretrained`` undoes in a model that was not loaded."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import PrefixChange

    found = get_model_conversion_mapping(model, add_legacy=False)
    return [each for each in found if not isinstance(each, PrefixChange)]


def file_names(model: Any) -> Callable[[str], str]:
    """The name in the files of a module of ``model``, as ``save_pretrained`` will write it."""
    if not _renames(model):
        return str
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    # Of the transforms that loading used; in reverse, as saving goes through them.
    used = getattr(model, "_weight_conversions", None)
    if used is None:
        used = _conversions_of_new(model)
    renamings = [t.reverse_transform() for t in used[::-1] if isinstance(t, WeightRenaming)]

    def rename(name: str) -> str:
        renamed: str = rename_source_key(f"{name}.qweight", renamings, [])[0]
        return renamed.removesuffix(".qweight")

    return rename
