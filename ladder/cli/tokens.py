# SPDX-License-Identifier: Apache-2.0
"""Numbers of tokens as users spell them, and those for which kernels are timed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: Of more tokens kernels are not timed: activations of a whole layer have to be in memory.
MOST_TOKENS = 8192


def ranges_of(text: str) -> list[tuple[int, int]]:
    """ "1,8,30-64" -> [(1, 1), (8, 8), (30, 64)]."""
    from ladder.errors import InvalidArgument

    found = []
    for part in text.split(","):
        ends = [end.strip() for end in part.split("-")]
        whole = len(ends) <= 2 and all(end.isascii() and end.isdigit() for end in ends)
        least, most = (int(ends[0]), int(ends[-1])) if whole else (0, 0)
        if not 1 <= least <= most < 1 << 31:
            raise InvalidArgument(f'--m is "{text}", not numbers of tokens such as 1,8,16 or 1-256')
        found.append((least, most))
    return found


def tokens_of(text: str, activation_type: str = "") -> tuple[int, ...]:
    """ "1,8,30-64" -> (1, 8, 30, 64): of a range, the least and the most of each kernel."""
    from ladder.cuda.kernels import interval

    found: list[int] = []
    for least, most in ranges_of(text):
        while least <= most:
            end = interval(least, activation_type)
            last = min(end, most) if end >= least else most
            found += [least, last]
            least = last + 1
    return tuple(sorted(set(found)))


def above(text: str, m: int) -> str:
    """What ``text`` says of more than ``m`` tokens: of "1,8,30-128" and 64 "65-128"."""
    of = ((max(least, m + 1), most) for least, most in ranges_of(text) if most > m)
    return ",".join(f"{least}-{most}" for least, most in of)


def expert_tokens(ranges: Iterable[tuple[int, int]], of_token: int) -> tuple[int, ...]:
    """Of each range the most tokens that each kernel serves: kernels of experts are the same for
    all numbers of rows, ``of_token`` for each token, up to a power of two."""
    found = set()
    for least, most in ranges:
        top = min(most, MOST_TOKENS)
        while least <= top:
            rows = 1 << (least * of_token - 1).bit_length()
            last = min(rows // of_token, top)
            found.add(last)
            least = last + 1
    return tuple(sorted(found))


def span(m: Sequence[int]) -> str:
    """(3, 5) -> "3-5"."""
    return str(m[0]) if m[0] == m[1] else f"{m[0]}-{m[1]}"
