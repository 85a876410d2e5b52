# SPDX-License-Identifier: Apache-2.0
"""The fastest kernels of a run beside those of peers, as Markdown."""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.decode.peers import BITS, GROUP, PEERS, ZERO, Peer, measure


def _table(
    activation: str,
    rows: Sequence[dict],
    peers: Sequence[Peer],
    absent: set[str],
    tuning_seconds: float,
) -> list[str]:
    names = [peer.name for peer in peers]
    lines = [
        f"| N x K | M | floor | ladder {activation} | {' | '.join(names)} | best peer / ladder |",
        "|---" * (len(names) + 5) + "|",
    ]
    spent = 0.0
    for row in rows:
        n, k, m = row["n"], row["k"], row["m"]
        cells, best = [], float("inf")
        for peer in peers:
            start = time.perf_counter()
            us, why = measure(peer, n, k, m, spent < tuning_seconds)
            if peer.tunes:
                spent += time.perf_counter() - start
            cells.append("" if us is None else f"{us:.1f}")
            if us is None:
                absent.add(f"{peer.name} at {n} x {k}, M={m}: {why}")
            else:
                best = min(best, us)
        line = f"| {n} x {k} | {m} | {row['floor']:.1f} | {row['us']:.1f} | {' | '.join(cells)} "
        lines.append(line + f"| {best / row['us']:.2f} |")
        print(lines[-1], flush=True)
    return lines


def compared(fastest: Sequence[dict], tuning_seconds: float) -> str:
    """Peers that tune themselves are asked until that has taken ``tuning_seconds`` for a table.

    ``fastest``: a row of ladder's own for each problem; those that are not of uint4 with groups
    of 128 and a zero of 8 are left out."""
    rows = [r for r in fastest if (r["bits"], r["group"], r["zero"]) == (BITS, GROUP, ZERO)]
    lines, absent = [], set()
    for activation in ("f16", "bf16"):
        same = [row for row in rows if row["activation"] == activation]
        peers = [peer for peer in PEERS if peer.activation == activation]
        if same:
            lines += [*_table(activation, same, peers, absent, tuning_seconds), ""]
    lines += [
        "Weights: ladder uint4, groups of 128; "
        + "; ".join(f"{peer.name} {peer.what}" for peer in PEERS)
        + "."
    ]
    lines += ["", "Absent:", "", *(f"- {line}" for line in sorted(absent))] if absent else []
    return "\n".join(lines) + "\n"
