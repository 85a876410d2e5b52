# SPDX-License-Identifier: Apache-2.0
"""What `ladder-kernels` is asked to compile: problems and the schedules worth measuring."""

import itertools

#: N and K of the layers that tables show.
SHAPES = [(4096, 4096), (8192, 8192), (28672, 8192), (8192, 28672), (57344, 8192)]

# The schedules worth measuring: warps along N and K, blocks, splits of K (0: one k-tile each, as
# many as it takes), stages (1: through registers), reduction, route, CTAs of a multiprocessor, and
# for those with register stages: m16 tiles, register stages, whether a CTA has several tiles of
# rows, activation stages (of a bulk copy 1: by k-tiles), consumer lag, multicast of a bulk copy,
# and whether blocks are loaded anew one by one (-1: where a tile of rows has k-tiles to load anew
# and activations come at once).
FAMILIES = [
    (4, 1, 2, 8, 2, "cluster", "multiply_add", 2),
    (1, 8, 4, 0, 1, "cluster", "multiply_add", 1),
    (1, 4, 4, 0, 1, "ordered", "multiply_add", 3),
    (4, 2, 1, 8, 1, "ordered", "multiply_add", 2),
    (4, 2, 1, 14, 1, "ordered", "multiply_add", 2),
    (2, 4, 1, 8, 1, "ordered", "multiply_add", 2),
    (2, 4, 1, 4, 1, "ordered", "multiply_add", 2),
    (2, 2, 1, 8, 1, "ordered", "multiply_add", 4),
    (1, 16, 2, 1, 1, "none", "multiply_add", 1, 2, 2, 0),
    (1, 8, 2, 1, 1, "none", "multiply_add", 1, 2, 4, 0),
    (1, 16, 2, 1, 1, "none", "multiply_add", 1, 2, 2, 1),
    (1, 8, 2, 2, 1, "cluster", "multiply_add", 2, 2, 2, 1),
    (1, 8, 2, 2, 1, "cluster", "multiply_add", 1, 2, 2, 1),
    (1, 8, 2, 2, 1, "cluster", "multiply_add", 1, 2, 4, 1),
    (1, 8, 2, 2, 1, "cluster", "multiply_add", 1, 4, 2, 1),
    (1, 8, 2, 2, 1, "cluster", "in_place", 1, 2, 4, 1),
    (1, 8, 2, 2, 1, "cluster", "in_place", 1, 4, 2, 1),
    (4, 2, 1, 8, 1, "ordered", "in_place", 2),
    (4, 2, 2, 4, 1, "ordered", "multiply_add", 1, 4, 2, 0, 4, 1),
    (2, 4, 2, 2, 1, "cluster", "multiply_add", 1, 4, 2, 0, 4, 1),
    (1, 8, 2, 1, 1, "none", "multiply_add", 1, 4, 2, 0, 4, 1),
    (4, 2, 2, 1, 1, "none", "multiply_add", 1, 4, 2, 0, 4, 1),
    (4, 2, 2, 1, 1, "none", "multiply_add", 1, 4, 2, 0, 4, 1, 0, 1),
    (4, 4, 1, 4, 1, "ordered", "multiply_add", 1, 4, 2, 0, 4, 1),
    (4, 4, 1, 1, 1, "none", "multiply_add", 1, 4, 2, 0, 4, 1),
    (4, 2, 2, 1, 1, "none", "in_place", 1, 4, 2, 0, 4, 1),
    (4, 2, 2, 4, 1, "ordered", "in_place", 1, 4, 2, 0, 4, 1),
    (1, 8, 2, 1, 1, "none", "in_place", 1, 4, 2, 0, 4, 1),
    (4, 4, 1, 4, 1, "ordered", "in_place", 1, 4, 2, 0, 4, 1),
    (1, 16, 2, 1, 1, "none", "multiply_add", 1, 2, 1, 1, 0, 0, 1),
    (1, 16, 2, 1, 1, "none", "multiply_add", 1, 2, 1, 1, 0, 0, 2),
    (1, 16, 2, 1, 1, "none", "multiply_add", 1, 2, 2, 1, 0, 0, 2),
    (1, 16, 2, 1, 1, "none", "in_place", 1, 2, 2, 1, 0, 0, 2),
    (1, 16, 1, 1, 1, "none", "multiply_add", 1, 2, 2, 1, 0, 0, 2),
    (1, 16, 2, 2, 1, "cluster", "multiply_add", 1, 2, 1, 1, 0, 0, 1),
    (1, 16, 2, 2, 1, "cluster", "in_place", 1, 2, 1, 1, 0, 0, 1),
    (1, 16, 2, 1, 1, "none", "multiply_add", 1, 2, 2, 1, 1, 0, 2),
    (1, 16, 1, 1, 1, "none", "multiply_add", 1, 2, 2, 1, 1, 0, 2),
]
#: Of them, each the best for some problem: to set beside peers.
FEW = [
    (2, 4, 1, 4, 1, "ordered", "multiply_add", 2),
    (2, 4, 1, 8, 1, "ordered", "multiply_add", 2),
    (4, 2, 1, 8, 1, "ordered", "multiply_add", 2),
    (4, 2, 1, 14, 1, "ordered", "multiply_add", 2),
    (1, 8, 2, 2, 1, "cluster", "multiply_add", 2, 2, 2, 1),
    (1, 8, 2, 2, 1, "cluster", "in_place", 1, 2, 4, 1),
]
MULTIPROCESSORS = 132


def scheduled(head, family, m, n, k, dependent):
    """The request of one family for one problem; nothing where it does not divide."""
    wn, wk, blocks, splits, stages, reduction, route, resident, *deep = family
    if splits and k % (64 * wk * blocks * splits):
        return None
    k_tiles = k // (64 * wk * blocks * splits) if splits else 1
    deep = (*(deep or (4, 0, 0)), *(0, 0, 0, -1)[max(len(deep), 3) - 3 :])
    m16_tiles, register_stages, persistent, x_stages, lag, multicast, by_blocks = deep
    if register_stages and (
        k_tiles % register_stages or k_tiles > 8 and not x_stages or k_tiles < x_stages
    ):
        return None
    if by_blocks < 0:
        by_blocks = 0 < register_stages < k_tiles and blocks > 1 and not x_stages
    tiles = n // (16 * m16_tiles * wn)
    tiles_per_cta = -(-tiles * splits // (MULTIPROCESSORS * resident)) if persistent else 1
    if multicast and x_stages and (tiles_per_cta > 1 or k_tiles == 1):
        return None  # a bulk copy goes by k-tiles for one tile of rows
    items = [f"tokens {m}", f"warps {wn}x{wk}", f"m16 tiles {m16_tiles}" * (m16_tiles != 4)]
    items += [f"blocks {blocks}"]
    if register_stages:
        items += [f"k-tiles {k_tiles}", f"register stages {register_stages}"]
        items += ["block by block"] if by_blocks else []
        if tiles_per_cta > 1:
            items += [f"tiles per CTA {tiles_per_cta}", "reduction buffers 2"]
    elif stages > 1:
        items += [f"k-tiles {k_tiles}", f"stages {stages}"]
    else:
        items += [f"k-tiles {k_tiles}" if k_tiles > 1 else "one k-tile"]
    if multicast:
        items += ["bulk copy" + " by k-tiles" * bool(x_stages), f"multicast {multicast}"]
    elif x_stages:
        items += [f"activation stages {x_stages}"] + [f"consumer lag {lag}"] * bool(lag)
    items += [reduction, route] + ["dependent launch"] * bool(dependent)
    items += [f"{resident} per multiprocessor"]
    return f"{head} schedule {', '.join(filter(None, items))}"


def guesses(head, dependent=0):
    """What tuning would measure."""
    return (f"{head} guess {number} {dependent}" for number in range(8))


def decode(activation, bits=4, group=128, dependent=0, shapes=SHAPES, families=FAMILIES):
    """Every shape and 8 or 16 tokens, each family and what tuning would measure."""
    for (n, k), m in itertools.product(shapes, (8, 16)):
        head = f"{bits} {2 ** (bits - 1)} {group} {activation} {m} {n} {k}"
        yield from guesses(head, dependent)
        for family in families:
            if family[3] > 8 and k < 28672:
                continue
            if request := scheduled(head, family, m, n, k, dependent):
                yield request


def widths():
    """One shape, every width: what tuning would measure, and families that served one of them."""
    n, k = 28672, 8192
    for bits, activation, m in itertools.product(range(1, 9), ("f16", "bf16"), (1, 8, 16)):
        head = f"{bits} {2 ** (bits - 1)} 128 {activation} {m} {n} {k}"
        yield from guesses(head)
        if m == 1:
            continue
        units = next(u for u in (2, 4) if u * bits % 4 == 0)
        few = 2 if bits <= 4 else 1
        for family in (
            (4, 1, few, 8, 2, "cluster", "multiply_add", 3),
            (1, 4, 2 * few, 0, 1, "ordered", "multiply_add", 3),
            (1, 8, 2, 2, 1, "cluster", "multiply_add", 1 if m > 8 or bits > 4 else 2, units, 2, 1),
            (1, 8, 2, 2, 1, "cluster", "multiply_add", 1, 4, 2, 1),
            (1, 8, 2, 2, 1, "cluster", "in_place", 1, units, 2, 1),
        ):
            if family[6] == "multiply_add" or activation == "f16" or bits <= 4:
                yield scheduled(head, family, m, n, k, 0)


#: N and K of benchmarks/results/peers.md.
PEERS = [*SHAPES[:4], (5120, 13824), (6144, 2048), (18944, 3584)]
#: Rows, tokens and columns of a CTA's tile, warps along rows and tokens, CTAs of a multiprocessor.
TILES = [
    (256, 32, 128, 8, 1, 1), (256, 32, 128, 4, 1, 2), (128, 32, 128, 4, 1, 2),
    (256, 64, 128, 8, 1, 1), (128, 64, 128, 4, 1, 2), (256, 64, 64, 8, 1, 1),
    (128, 64, 128, 4, 2, 1), (256, 64, 128, 4, 2, 1), (128, 128, 128, 4, 2, 1),
    (128, 128, 64, 4, 2, 1), (256, 128, 64, 8, 2, 1), (64, 128, 128, 2, 2, 2),
]  # fmt: skip
#: The same of warpgroups, whose tile has all tokens up to 128: rows, warps, CTAs.
WARPGROUPS = [(128, 8, 1), (128, 8, 2), (256, 8, 1), (256, 16, 1), (128, 4, 2), (64, 4, 2)]


def tiles(activation="f16", bits=4, group=128, shapes=PEERS):
    """Every shape and 32 to 256 tokens: what tuning would measure, and tiles over as many parts of
    K as fill the device once, or nearly twice, with three and four stages."""
    for (n, k), m in itertools.product(shapes, (32, 64, 128, 256)):
        head = f"{bits} {2 ** (bits - 1)} {group} {activation} {m} {n} {k}"
        yield from guesses(head)
        of_warps = [(*tile, False) for tile in TILES]
        tokens = -(-m // -(-m // 128))
        of_warpgroups = [(rows, tokens, 128, w, 1, r, True) for rows, w, r in WARPGROUPS]
        for tile in (*of_warps, *of_warpgroups):
            yield from tiled(head, m, n, k, group, *tile)


def wide(shapes=(*SHAPES[:4], (5120, 13824)), groups=(128, 32)):
    """More tokens, where operands may be rounded: what tuning would measure."""
    for (n, k), m in itertools.product(shapes, (96, 128, 192, 256, 384, 512, 768, 1024)):
        for group in groups:
            if group == groups[0] or (n, k) == SHAPES[1]:
                yield from list(guesses(f"4 8 {group} f16 {m} {n} {k}"))[:5]


def tiled(head, m, n, k, group, rows, tokens, columns, warps_n, warps_m, resident, warpgroups):
    """The requests of one tile for one problem."""
    if tokens > m:
        return
    token_tiles = -(-m // tokens)
    places, ctas = MULTIPROCESSORS * resident, -(-n // rows) * token_tiles
    most = max(k // (4 * columns), 1)  # shorter parts are mostly reduction
    for splits in sorted({min(s, most) or 1 for s in (places // ctas, 2 * places // ctas)}):
        k_tiles = -(-k // (columns * splits))
        k_tiles += k_tiles % max(group // columns, 1)
        splits = -(-k // (columns * k_tiles))
        cluster = splits <= (2 if warpgroups else 8) and rows % (2 * splits) == 0
        reduction = "none" if splits == 1 else "cluster" if cluster else "ordered"
        beside = f"token tiles {token_tiles}, " if token_tiles > 1 else ""
        groups = "warpgroups, " if warpgroups else ""
        for stages in (3, 4):
            yield (
                f"{head} schedule tile {rows}x{tokens}x{columns}, {beside}warps "
                f"{warps_n}x{warps_m}, {groups}k-tiles {k_tiles}, stages {stages}, {reduction}, "
                f"multiply_add, {resident} per multiprocessor"
            )


#: Bits, zero, group and format of x of weights beside activations of 8 bits: int4 in groups and by
#: row, int8, ternary codes, float8_e4m3 by row, with fast sums and in groups, mxfp4's element.
BYTES = [
    (4, 8, 128, "s8"), (4, 8, 0, "s8"), (8, 128, 0, "s8"), (2, 2, 0, "s8"),
    (8, 0, 0, "e4m3"), (8, 0, 0, "e4m3,fast_accum"), (8, 0, 128, "e4m3"), (4, 0, 32, "e4m3"),
]  # fmt: skip


def of_bytes(shapes, tokens=(32, 64, 128, 256, 512, 1024, 4096)):
    """Activations of 8 bits: what tuning would measure."""
    for (bits, zero, group, x), (n, k), m in itertools.product(BYTES, shapes, tokens):
        yield from guesses(f"{bits} {zero} {group} f16:{x} {m} {n} {k}")


def presets():
    return {
        "decode": [*decode("f16"), *decode("bf16")],
        "f16": list(decode("f16")),
        "few": [*decode("f16", families=FEW), *decode("bf16", families=FEW)],  # for run --peers
        "small": [  # for compute-sanitizer, with run --only-check
            *decode("f16", shapes=[(512, 2048)]),
            *decode("bf16", bits=3, shapes=[(512, 2048)], dependent=1),
        ],
        "chain": list(decode("f16", dependent=1, shapes=[(4096, 4096)])),
        "widths": list(widths()),
        "tiles": [*tiles(), *tiles("bf16", shapes=PEERS[1:2])],
        "wide": list(wide()),
        "small-tiles": list(tiles(shapes=[(512, 2048)])),
        "bytes": list(of_bytes([(4096, 4096), (8192, 8192)])),
        "small-bytes": list(of_bytes([(512, 2048)], (32, 100, 300))),
    }
