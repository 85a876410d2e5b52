# SPDX-License-Identifier: Apache-2.0
"""Folders of diffusers: a model, whose config.json says ``_class_name``, and a pipeline, whose
``model_index.json`` names the models that lie in folders beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ladder._version import install_command
from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.report import Report, TypeRow
from ladder.checkpoints.shards import read_json
from ladder.checkpoints.writer import carried_files, carry, new_folder, require_space
from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.nn.layer_types import LayerTypes
from ladder.nn.report import Conversion
from ladder.nn.select import entries_of

INDEX = "model_index.json"
#: How the weight files of a model begin.
STEM = "diffusion_pytorch_model"
#: Models of a pipeline that run once in each step, and have most of its weights.
DENOISERS = ("transformer", "transformer_2", "unet")


def class_name(config: Mapping[str, Any]) -> str | None:
    """The class of diffusers that ``config``, of config.json, is of; None of other libraries."""
    name = config.get("_class_name")
    return name if isinstance(name, str) else None


def meta_model(folder: Path, name: str) -> Any:
    """The model that config.json describes, on the meta device.

    Raises:
        CheckpointError: diffusers knows no such model.
        Unsupported: diffusers is not installed.
    """
    try:
        import diffusers
        from accelerate import init_empty_weights
    except ImportError:
        raise Unsupported(
            f"{folder} is of diffusers' {name}, and convert needs diffusers and accelerate to know "
            f"its Linear modules: {install_command('diffusers')}"
        ) from None
    kind: Any = getattr(diffusers, name, None)
    ours = isinstance(kind, type) and issubclass(kind, diffusers.ModelMixin)
    if not ours:
        raise CheckpointError(
            f"{folder}/config.json: diffusers {diffusers.__version__} has no model {name!r}"
        )
    try:
        with init_empty_weights():
            return kind.from_config(kind.load_config(str(folder), local_files_only=True))
    except (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError,
            ValueError) as error:  # fmt: skip
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{folder}/config.json: {said}") from error


def config_and_stem(stored: StoredConfig, config: Mapping[str, Any]) -> dict[str, Any]:
    """What config.json of a model, of transformers or diffusers, holds because its weights are
    ladder's, and how its weight files begin: arguments of ``write_model``. diffusers refuses a
    quant_method that it does not know, so nothing need guard its folders."""
    if class_name(config) is None:
        return {"config": stored.put_in(config), "stem": "model"}
    return {"config": {**config, "quantization_config": stored.to_dict()}, "stem": STEM}


def is_pipeline(folder: Path) -> bool:
    """Whether a folder is that of a pipeline."""
    return (folder / INDEX).is_file() and not (folder / "config.json").is_file()


def parts_of_pipeline(folder: Path, wanted: Iterable[str] | None) -> list[str]:
    """The models of pipeline ``folder`` that are to be quantised: ``wanted``, or its denoisers.

    Raises:
        InvalidArgument: a name that is no model of the pipeline, or no name and no denoiser.
    """
    index = read_json(folder / INDEX)
    every = [
        name
        for name, each in index.items()
        if isinstance(each, list) and (folder / name / "config.json").is_file()
    ]
    chosen = [*(DENOISERS if wanted is None else entries_of("parts", wanted))]
    if wanted is None:
        chosen = [name for name in chosen if name in every]
    for name in chosen:
        if name not in every:
            raise InvalidArgument(
                f'"{name}" is no model of the pipeline {folder}, which has {", ".join(every)}'
            )
    if not chosen and wanted is not None:
        raise InvalidArgument(
            f"parts names no model of the pipeline {folder}, which has {', '.join(every)}"
        )
    if not chosen:
        raise InvalidArgument(
            f"{folder} is a pipeline without {' or '.join(DENOISERS)}: name the models that are to "
            f"be quantised with parts (--part), of {', '.join(every)}"
        )
    return [*dict.fromkeys(chosen)]


def convert_pipeline(
    folder: Path,
    destination: Path,
    parts: list[str],
    skip: tuple[str, ...] | None,
    types: LayerTypes,
    convert: Callable[[Path, Path, tuple[str, ...] | None, LayerTypes], Report],
    *,
    force: bool,
) -> Report:
    """Write pipeline ``folder`` with some of its models quantised; all else is copied.

    Args:
        skip: modules to leave in every part, or, as "part.module", in that part alone. A part that
            no entry concerns leaves what it leaves by default.
        types: entries of which are read likewise.
        convert: of one model: source, destination, what to leave, and types.
    """
    report = Report(str(folder), str(destination), "none", conversion=Conversion())
    every = carried_files(folder, frozenset())
    files = [file for file in every if file.parts[0] not in parts]
    with new_folder(destination, force=force) as temporary:
        require_space(temporary, sum((folder / file).stat().st_size for file in files))
        for part in parts:
            own, entries = types.of_part(part, parts), entries_of_part(skip, part, parts)
            report_part(report, part, convert(folder / part, temporary / part, entries, own))
        carry(folder, temporary, files)
    report.files_carried += len(files)
    return report


def entries_of_part(
    skip: tuple[str, ...] | None, part: str, parts: list[str]
) -> tuple[str, ...] | None:
    """The entries of ``skip`` that concern one model of a pipeline."""
    if skip is None:
        return None
    others = tuple(f"{name}." for name in parts if name != part)
    own = (entry for entry in skip if not entry.startswith(others))
    # () asks for every layer, which entries for other parts do not.
    return tuple(entry.removeprefix(f"{part}.") for entry in own) or (None if skip else ())


def report_part(whole: Report, part: str, of_part: Report) -> None:
    """Add what was done with one model of a pipeline."""
    for field in ("modules", "tensors_carried", "files_carried", "shards", "bytes_before",
                  "bytes_after", "seconds"):  # fmt: skip
        setattr(whole, field, getattr(whole, field) + getattr(of_part, field))
    for text, row in of_part.types.items():
        total = whole.types.setdefault(text, TypeRow())
        total.modules += row.modules
        total.weights += row.weights
        total.bytes += row.bytes
    whole.notes += of_part.notes
    own, said = whole.conversion, of_part.conversion
    if own is not None and said is not None:
        own.packed |= {f"{part}.{name}": text for name, text in said.packed.items()}
        own.left |= {f"{part}.{name}": left for name, left in said.left.items()}
        own.stacks |= {f"{part}.{name}": count for name, count in said.stacks.items()}
        own.weights += said.weights
        own.convolutions += said.convolutions
        own.embeddings += said.embeddings
