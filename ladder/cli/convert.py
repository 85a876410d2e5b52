# SPDX-License-Identifier: Apache-2.0
"""``ladder convert``."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from ladder.cli.checkpoint import (
    Chunk,
    Data,
    Destination,
    Force,
    GroupSize,
    Source,
    Symmetric,
    Windows,
    print_report,
)
from ladder.cli.output import Json, progress_bar


def convert(
    src: Source,
    dst: Destination,
    weight_type: Annotated[
        str | None,
        typer.Option(
            "--type",
            help='Type of the weights: "uint4", "nf4", "mxfp4", ..., or a k-quant of llama.cpp, '
            '"q4_k", for `ladder export --format gguf`. \\[default: uint4]',
        ),
    ] = None,
    formats: Annotated[
        Path | None,
        typer.Option(
            help="JSON file of formats of your own, for --type: "
            '{"thirds": {"bits": 1, "values": \\[-0.3, 0.3]}}.'
        ),
    ] = None,
    group: GroupSize = None,
    symmetric: Symmetric = None,
    layer_type: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TYPE",
            help="Another type of modules: a name, or whole parts of names, as --skip. The entry "
            "of the most parts decides, of equally many the last. Repeatable.",
        ),
    ] = None,
    bits: Annotated[
        float | None,
        typer.Option(
            help="Choose the type of each layer, for so many bits a weight on average, by "
            "--calibration (docs/calibration.md)."
        ),
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option(help="--bits: types to choose from: uint2,uint3,uint4,uint5. Repeatable."),
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option(
            help="--bits: measure each type of each layer, or one, from which the others follow. "
            "\\[default: one]"
        ),
    ] = None,
    method: Annotated[str, typer.Option(help="nearest, or search for the best scale.")] = "search",
    activations: Annotated[
        str | None,
        typer.Option(
            help="int8, or on GPUs float8_e4m3 and float8_e4m3,fast_accum: x is rounded to 8 bits. "
            "\\[default: as it comes]"
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            help="Modules to leave: a name, or whole parts of names. Repeatable. "
            "\\[default: the output embedding]"
        ),
    ] = None,
    convolutions: Annotated[
        bool, typer.Option("--convolutions", help="Quantise convolutions (nn.Conv2d), too.")
    ] = False,
    head: Annotated[
        bool,
        typer.Option(
            "--head",
            help="Quantise the output embedding, too; one that is tied to the input embedding "
            "becomes a layer of its own.",
        ),
    ] = False,
    embeddings: Annotated[
        bool,
        typer.Option(
            "--embeddings",
            help="Quantise the input embedding, too; an output embedding that is tied to it "
            "becomes a layer of its own, dense without --head.",
        ),
    ] = False,
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="Of a pipeline of diffusers: a model to quantise. Repeatable. "
            "\\[default: transformer, unet]"
        ),
    ] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="SRC is a ladder folder, of `ladder repack` say: quantise its packed weights "
            "anew, which rounds them twice.",
        ),
    ] = False,
    calibration: Data = None,
    windows: Windows = None,
    chunk: Chunk = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="--calibration: where the model runs: cpu, cuda, ... \\[default: a GPU if any]"
        ),
    ] = None,
    train_blocks: Annotated[
        int | None,
        typer.Option(
            help="--calibration: train the weights of each block for so many steps, which two and "
            "three bits need most; 200 do much of what there is to do. \\[default: 0]"
        ),
    ] = None,
    offload: Annotated[
        bool,
        typer.Option(
            "--offload",
            help="--calibration: keep the blocks of the model on disk, and bring one at a time to "
            "where it runs: for models larger than memory.",
        ),
    ] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Quantise a floating-point checkpoint, each weight to its nearest code or by calibration
    data, and say what stays dense.

    Examples:

        ladder convert models/Llama out --type uint4 --group 128

        ladder convert models/Llama out --type mxfp4 --skip lm_head --skip model.layers.0

        ladder convert models/Llama out --layer-type mlp.down_proj=uint6 --layer-type layers.0=int8

        ladder convert models/ResNet out --type int8 --convolutions

        ladder convert models/Llama out --head --layer-type lm_head=uint6

        ladder convert models/Llama out --head --embeddings --layer-type embed_tokens=uint8

        ladder convert models/FLUX out --part transformer --part text_encoder_2

        ladder convert models/Llama out --type thirds --formats thirds.json

        ladder convert models/Llama-FP8-ladder out --type uint4 --again

        ladder convert models/Llama out --type uint3 --calibration wikitext-2.txt

        ladder convert models/Llama out --type uint2 --calibration wikitext-2.txt --train-blocks 200

        ladder convert models/Llama out --type q4_k --calibration wikitext-2.txt

        ladder convert models/Llama-70B out --calibration wikitext-2.txt --offload

        ladder convert models/Llama out --bits 3.5 --types uint2,uint3,uint4 --calibration text.txt
    """
    from ladder.checkpoints.convert import convert
    from ladder.checkpoints.disk_room import scratch
    from ladder.checkpoints.folder import define_from
    from ladder.checkpoints.source import require_folder
    from ladder.checkpoints.writer import check_destination
    from ladder.cli.calibration import calibration_of
    from ladder.cli.spelling import check_bits_options, types_by_layer, types_of
    from ladder.errors import InvalidArgument
    from ladder.nn.mixed_precision import candidates_of, check_measure
    from ladder.nn.mixed_precision.chosen import check_average

    if formats is not None:
        define_from(formats)
    check_bits_options(
        bits,
        needed={"--calibration": calibration, "--types": types},
        beside={"--types": types, "--measure": measure},
        not_beside={"--type": weight_type, "--layer-type": layer_type},
    )
    of_layers = types_by_layer(layer_type or ())
    choices = types_of(types or ())
    loaded = None
    given = {
        "--windows": windows, "--chunk": chunk, "--device": device, "--offload": offload or None,
        "--train-blocks": train_blocks,
    }  # fmt: skip
    if calibration is None and (unused := [n for n, value in given.items() if value is not None]):
        raise InvalidArgument(f"{unused[0]} is for --calibration, which is not given")
    if calibration is not None:
        if bits is not None:
            check_average(bits)
            candidates_of(choices, group, symmetric)
            check_measure(measure or "one")
        require_folder(src, or_pipeline=True)  # before a model is loaded
        check_destination(dst, force=force)
        if offload and bits is not None:
            raise InvalidArgument(
                "--bits measures types by running the whole model again and again, which --offload "
                "would read from disk each time"
            )
    with ExitStack() as stack:
        if calibration is not None:
            room = stack.enter_context(scratch(dst)) if offload else None
            loaded = calibration_of(
                src, calibration, windows, chunk, device, room, train_blocks or 0
            )
        progress = stack.enter_context(progress_bar("convert", quiet=as_json))
        report = convert(
            src,
            dst,
            weight_type or "uint4",
            group_size=group,
            symmetric=symmetric,
            types=of_layers if bits is None else choices,
            bits=bits,
            measure=measure or "one",
            method=method,
            activation_type=activations,
            skip=tuple(skip) if skip else None,
            convolutions=convolutions,
            head=head,
            embeddings=embeddings,
            parts=tuple(part) if part else None,
            again=again,
            calibration=loaded,
            force=force,
            progress=progress,
        )
    print_report(report, as_json)
