# SPDX-License-Identifier: Apache-2.0
"""From options to the spelling of a tType."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

#: What --scale is where groups are asked for and it is not.
DEFAULT_SCALE = "float16"


def spelled(weight: str, group: int | None, scale: str | None, zero: str | None = None) -> str:
    """The tType that the options name; ``group`` 0 is no scales, -1 one for all of a row, None the
    default of formats of up to 8 bits. Unsigned integers with scales have the zero point in the
    middle unless ``zero`` is given.

    Raises:
        InvalidArgument: no such type, or an option that would change nothing: ``weight`` has fields
            of its own, or there are no scales for --scale to name.
    """
    from ladder.errors import InvalidArgument
    from ladder.types import DEFAULT_GROUP, parse

    parsed = parse(weight)  # "mxfp4" and its like name their scales
    if "," in weight or parsed.scale is not None:
        for option, given in (("--group", group or None), ("--scale", scale), ("--zero", zero)):
            if given is not None:
                raise InvalidArgument(
                    f'{option} is {given}, but weight "{weight}" says by itself how it is scaled'
                )
        return weight
    if group is None:
        group = DEFAULT_GROUP if parsed.bits <= 8 else 0
    if not group and scale is not None:
        raise InvalidArgument(f"--scale is {scale}, but --group is 0, so there are no scales")
    fields = [weight]
    if group and zero is None and parsed.element.encoding == "unsigned_integer":
        zero = "midpoint"
    if group:
        block = "channel" if group == -1 else f"group={group}"
        fields += [block, f"scale={scale or DEFAULT_SCALE}"]
    if zero is not None:
        fields.append(f"zero={zero}")
    return ",".join(fields)


def types_by_layer(given: Iterable[str]) -> dict[str, str]:
    """["mlp.down_proj=uint6,group=64"] -> {"mlp.down_proj": "uint6,group=64"}.

    Raises:
        InvalidArgument: one of another form, or one that names modules that another has named.
    """
    from ladder.errors import InvalidArgument

    types: dict[str, str] = {}
    for each in given:
        name, equals, ttype = each.partition("=")
        if not (name and equals and ttype):
            raise InvalidArgument(f'--layer-type is "{each}", not NAME=TYPE')
        if name in types:
            raise InvalidArgument(f"--layer-type {name} is {types[name]} and {ttype}, two types")
        types[name] = ttype
    return types


def types_of(given: Iterable[str]) -> list[str]:
    """["uint2,uint4,group=32", "nf4"] -> ["uint2", "uint4,group=32", "nf4"]: what is no name of a
    type belongs to the type before."""
    types: list[str] = []
    for part in (part.strip() for each in given for part in each.split(",")):
        if types and ("=" in part or part in ("channel", "tensor")):
            types[-1] += f",{part}"
        else:
            types.append(part)
    return types


def check_bits_options(
    bits: float | None,
    needed: Mapping[str, object],
    beside: Mapping[str, object],
    not_beside: Mapping[str, object],
) -> None:
    """Raise InvalidArgument for options that --bits needs, and that are not given; that are for
    --bits, where it is not given; or that it leaves nothing to say."""
    from ladder.errors import InvalidArgument

    if bits is None:
        if unused := [name for name, value in beside.items() if value]:
            raise InvalidArgument(f"{unused[0]} is for --bits, which is not given")
        return
    if missing := [name for name, value in needed.items() if not value]:
        raise InvalidArgument(
            f"--bits is {bits:g}, and {missing[0]} is not given: types are chosen from --types by "
            "--calibration"
        )
    if both := [name for name, value in not_beside.items() if value]:
        raise InvalidArgument(f"{both[0]} is given, and --bits {bits:g} chooses the types")
