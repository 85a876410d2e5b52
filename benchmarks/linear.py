# SPDX-License-Identifier: Apache-2.0
"""Check and time the kernels of the linear layer on a GPU.

Compiling needs no GPU and measuring needs no compiler, so the two may be different machines:

    python benchmarks/linear.py prepare OUT --device h200 --nvrtc DIRECTORY --preset decode
    python benchmarks/linear.py run OUT --csv OUT/linear.csv

Every kernel is first checked: exactly, on integers, and by the derived bound on random numbers, at
one token and at the most it serves. Times are microseconds per call: the median of graph replays of
launches over weights that together exceed twice the L2, random data. The floor is the larger of
bytes / 4.53 TB/s and 2 M N K / 761 TFLOP/s, bytes = codes + scales + activations + outputs.
"""

import argparse
import csv
import ctypes
import itertools
import json
import pathlib
import subprocess
import sys

SHAPES = [(4096, 4096), (8192, 8192), (28672, 8192), (8192, 28672), (57344, 8192)]
BYTES_PER_SECOND, FLOPS = 4.53e12, 761e12
ROOT = pathlib.Path(__file__).parent.parent


# The schedules worth measuring: warps along N and K, blocks, splits of K (0: one round each, as
# many as it takes), stages, reduction, route, blocks per multiprocessor, and for those that keep
# rounds in registers: row units, depth, whether a block sweeps over rows.
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
]
MULTIPROCESSORS = 132


def scheduled(head, family, m, n, k, dependent):
    """The request of one family for one problem; nothing where it does not divide."""
    wn, wk, blocks, splits, stages, reduction, route, resident, *deep = family
    if splits and k % (64 * wk * blocks * splits):
        return None
    rounds = k // (64 * wk * blocks * splits) if splits else 1
    units, depth, sweeps = deep or (4, 0, 0)
    if depth and (rounds % depth or rounds > 8):
        return None
    tiles = n // (16 * units * wn)
    count = -(-tiles * splits // (MULTIPROCESSORS * resident)) if sweeps else 1
    return (
        f"{head} {m} {wn} {wk} {blocks} {rounds} {stages} {reduction} {route} "
        f"{dependent} {resident} {units} {depth} {max(count, 1)}"
    )


def decode(activation, bits=4, group=128, dependent=0, shapes=SHAPES, families=FAMILIES):
    """Every shape and 8 or 16 tokens, each family and the schedule that the model prefers."""
    for (n, k), m in itertools.product(shapes, (8, 16)):
        head = f"{bits} {2 ** (bits - 1)} {group} {activation} {m} {n} {k}"
        yield f"{head} auto"
        for family in families:
            if family[3] > 8 and k < 28672 or family[6] == "in_place" and activation == "bf16":
                continue
            if request := scheduled(head, family, m, n, k, dependent):
                yield request


def widths():
    """One shape, every width: the families that served one of them best."""
    n, k = 28672, 8192
    for bits, activation, m in itertools.product(range(1, 9), ("f16", "bf16"), (8, 16)):
        head = f"{bits} {2 ** (bits - 1)} 128 {activation} {m} {n} {k}"
        units = next(u for u in (2, 4) if u * bits % 4 == 0)
        few = 2 if bits <= 4 else 1
        for family in (
            (4, 1, few, 8, 2, "cluster", "multiply_add", 3),
            (1, 4, 2 * few, 0, 1, "ordered", "multiply_add", 3),
            (1, 8, 2, 2, 1, "cluster", "multiply_add", 1 if m > 8 or bits > 4 else 2, units, 2, 1),
            (1, 8, 2, 2, 1, "cluster", "multiply_add", 1, 4, 2, 1),
            (1, 8, 2, 2, 1, "cluster", "in_place", 1, units, 2, 1),
        ):
            if family[6] == "multiply_add" or activation == "f16":
                yield scheduled(head, family, m, n, k, 0)


def presets():
    return {
        "decode": [*decode("f16"), *decode("bf16")],
        "f16": list(decode("f16")),
        "small": [  # for compute-sanitizer, with run --only-check
            *decode("f16", shapes=[(512, 2048)]),
            *decode("bf16", bits=3, shapes=[(512, 2048)], dependent=1),
        ],
        "chain": list(decode("f16", dependent=1, shapes=[(4096, 4096)])),
        "widths": list(widths()),
    }


def prepare(args):
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    requests = list(dict.fromkeys(presets()[args.preset]))
    tool = ROOT / "build/benchmarks/ladder-kernels"
    with open(out / "compile.log", "w") as log:
        subprocess.run(
            [tool, out, args.device, args.nvrtc],
            input="\n".join(requests),
            text=True,
            stderr=log,
            check=True,
        )
    kernels = json.loads((out / "manifest.json").read_text())
    print(f"{len(kernels)} kernels of {len(requests)} requests")


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int * 16)]


class Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    ]


class Kernel:
    """A loaded kernel and how to launch it."""

    MAX_SHARED, CARVEOUT, DEPENDENT = 8, 9, 6

    def __init__(self, driver, folder, row):
        self.driver, self.row = driver, row
        image = (folder / f"{row['id']}.cubin").read_bytes()
        self.module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(driver.cuModuleLoadData(ctypes.byref(self.module), image))
        self.check(
            driver.cuModuleGetFunction(
                ctypes.byref(self.function), self.module, row["name"].encode()
            )
        )
        for attribute, value in ((self.MAX_SHARED, row["shared"]), (self.CARVEOUT, 100)):
            self.check(driver.cuFuncSetAttribute(self.function, attribute, value))

    @staticmethod
    def check(result):
        if result != 0:
            raise RuntimeError(f"the driver returned {result}")

    def __call__(self, stream, *tensors, tokens, dependent=None):
        dependent = self.row["dependent"] if dependent is None else dependent
        if self.row["counters"] == 0:
            tensors = tensors[:4]  # no workspace, no counters
        values = [ctypes.c_void_p(t.data_ptr()) for t in tensors] + [ctypes.c_uint(tokens)]
        pointers = (ctypes.c_void_p * len(values))(
            *(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values)
        )
        attribute = Attribute(id=self.DEPENDENT)
        attribute.value[0] = 1
        config = Config(
            grid=(*self.row["grid"], 1),
            block=(self.row["threads"], 1, 1),
            shared=self.row["shared"],
            stream=stream,
            attributes=ctypes.pointer(attribute),
            count=1 if dependent else 0,
        )
        self.check(
            self.driver.cuLaunchKernelEx(ctypes.byref(config), self.function, pointers, None)
        )


class Bench:
    def __init__(self, folder):
        import torch

        self.torch, self.folder = torch, folder
        torch.cuda.init()
        self.x0 = torch.zeros(1, device="cuda")
        self.driver = ctypes.CDLL("libcuda.so.1")
        torch.manual_seed(1)
        self.pool = torch.randint(
            -(2**31), 2**31 - 1, (3 << 27,), dtype=torch.int32, device="cuda"
        )  # 1.6 GB of random codes
        self.scale_pool = (
            torch.rand(1 << 26, device="cuda") * 0.01 + 0.001
        )  # as many scales as any pool needs
        self.operands, self.problem = {}, None

    def dtype(self, row):
        return self.torch.float16 if row["activation"] == "f16" else self.torch.bfloat16

    def image(self, codes, bits):
        """The weight image of codes [N, K], N and K multiples of 64, by the table of positions."""
        torch = self.torch
        n, k = codes.shape
        where = torch.frombuffer(
            bytearray((self.folder / f"positions_{bits}.i32").read_bytes()), dtype=torch.int32
        ).to("cuda", torch.int64)
        blocks = codes.view(n // 64, 64, k // 64, 64).permute(0, 2, 1, 3).reshape(-1, 4096)
        out = torch.empty(blocks.shape[0], 128 * bits, dtype=torch.int32, device="cuda")
        weights = (1 << torch.arange(32, device="cuda", dtype=torch.int64))[None]
        for first in range(0, blocks.shape[0], 4096):
            part = blocks[first : first + 4096].to(torch.int64)
            flat = torch.zeros(part.shape[0], 4096 * bits, dtype=torch.int8, device="cuda")
            spread = ((part[:, :, None] >> torch.arange(bits, device="cuda")) & 1).to(torch.int8)
            flat[:, where] = spread.reshape(part.shape[0], -1)
            words = (flat.view(-1, 32).to(torch.int64) * weights).sum(1)
            out[first : first + 4096] = words.to(torch.int32).view(part.shape[0], -1)
        return out.view(-1)

    def case(self, row, kind):
        """Weight, scales and dequantised weight of one problem, kept for kernels that share it."""
        torch = self.torch
        key = (row["bits"], row["n"], row["k"], row["group"], row["activation"])
        if self.problem != key:
            self.problem = key
            self.operands.clear()
        key = kind
        if key not in self.operands:
            n, k, group = row["n"], row["k"], row["group"]
            codes = torch.randint(0, 2 ** row["bits"], (n, k), dtype=torch.uint8, device="cuda")
            shape = (n, -(-k // group))
            if kind == "integers":
                scales = 2.0 ** -torch.randint(0, 3, shape, device="cuda").float()
            else:
                scales = torch.rand(shape, device="cuda") * 0.01 + 0.002
            scales = scales.to(self.dtype(row))
            table = scales.t().reshape(-1, n // 64, 8, 8).transpose(2, 3).contiguous()
            value = codes.float().sub_(row["zero"]).view(n, -1, group) * scales.float()[:, :, None]
            self.operands[key] = (self.image(codes, row["bits"]), table, value.view(n, k))
        return self.operands[key]

    def check(self, kernel):
        """The largest error as a fraction of the bound; raises unless integers are exact."""
        torch, row = self.torch, kernel.row
        worst = 0.0
        for kind in ("integers", "reals"):
            image, table, value = self.case(row, kind)
            workspace = torch.full((max(row["floats"], 1),), float("nan"), device="cuda")
            counters = torch.zeros(max(row["counters"], 1), dtype=torch.int32, device="cuda")
            for m in sorted({1, 3, row["max_m"]}):
                if kind == "integers":
                    x = torch.randint(-2, 3, (m, row["k"]), device="cuda").to(self.dtype(row))
                else:
                    x = torch.randn(m, row["k"], device="cuda").to(self.dtype(row))
                y = torch.full((m, row["n"]), float("nan"), dtype=x.dtype, device="cuda")
                stream = torch.cuda.current_stream().cuda_stream
                for _ in range(2):  # twice: the counters must be left at zero
                    y.fill_(float("nan"))
                    kernel(stream, image, table, x, y, workspace, counters, tokens=m)
                torch.cuda.synchronize()
                exact = torch.empty(m, row["n"], dtype=torch.float64, device="cuda")
                magnitude = torch.empty_like(exact)
                for first in range(0, row["n"], 8192):
                    w = value[first : first + 8192].double()
                    exact[:, first : first + 8192] = x.double() @ w.t()
                    magnitude[:, first : first + 8192] = x.double().abs() @ w.abs_().t()
                if kind == "integers":
                    if not torch.equal(y, exact.to(y.dtype)):
                        bad = (y != exact.to(y.dtype)).nonzero()
                        raise AssertionError(f"not exact at {bad[:4].tolist()} of {len(bad)}")
                else:
                    q = 11 if row["activation"] == "f16" else 8
                    bound = 6 * row["k"] ** 0.5 * 2.0**-24 * magnitude + 2.0**-q * exact.abs()
                    ratio = ((y.double() - exact).abs() / bound).max().item()
                    if not ratio <= 1:
                        raise AssertionError(f"{ratio} of the bound")
                    worst = max(worst, ratio)
        return worst

    def time(self, kernel, m, dependent=None, launches=64, replays=9):
        torch, row = self.torch, kernel.row
        words = row["n"] * row["k"] * row["bits"] // 32
        scales = row["n"] * (row["k"] // row["group"])
        count = min(launches, self.pool.numel() // words)
        pool = self.scale_pool.to(self.dtype(row))
        x = torch.randn(m, row["k"], device="cuda").to(self.dtype(row))
        y = torch.empty(m, row["n"], dtype=x.dtype, device="cuda")
        workspace = torch.zeros(max(row["floats"], 1), device="cuda")
        counters = torch.zeros(max(row["counters"], 1), dtype=torch.int32, device="cuda")

        def launch_all():
            stream = torch.cuda.current_stream().cuda_stream
            for i in range(count):
                first = i * scales % (pool.numel() - scales) // 8 * 8
                kernel(
                    stream,
                    self.pool[i * words : (i + 1) * words],
                    pool[first : first + scales],
                    x,
                    y,
                    workspace,
                    counters,
                    tokens=m,
                    dependent=dependent,
                )

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            launch_all()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch_all()
        # The checks before leave the clocks low.
        warm = torch.cuda.Event(enable_timing=True)
        warm.record()
        for _ in range(1000):
            graph.replay()
            now = torch.cuda.Event(enable_timing=True)
            now.record()
            torch.cuda.synchronize()
            if warm.elapsed_time(now) > 30:
                break
        times = []
        for _ in range(replays):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e3 / count)
        return sorted(times)[len(times) // 2]


def floor_us(row, m):
    n, k = row["n"], row["k"]
    size = n * k * row["bits"] / 8 + n * (k // row["group"]) * 2 + 2 * m * (n + k)
    return max(size / BYTES_PER_SECOND, 2 * m * n * k / FLOPS) * 1e6


def run(args):
    folder = pathlib.Path(args.out)
    rows = json.loads((folder / "manifest.json").read_text())
    bench = Bench(folder)
    table, failed = [], 0
    for row in rows:
        try:
            kernel = Kernel(bench.driver, folder, row)
            worst = bench.check(kernel) if not args.no_check else float("nan")
            if args.only_check:
                continue
            for m in (1, 8) if row["max_m"] <= 8 else (row["max_m"],):
                us, floor = bench.time(kernel, m), floor_us(row, m)
                table.append({**row, "m": m, "us": us, "floor": floor, "bound": worst})
        except (AssertionError, RuntimeError) as error:
            failed += 1
            print(f"FAILED {row['n']}x{row['k']} {row['schedule']}: {error}"[:300])
            if isinstance(error, RuntimeError):
                break  # the context is lost
    if args.only_check:
        print(f"{len(rows)} kernels checked, {failed} failed")
        return 1 if failed else 0
    if args.csv:
        with open(args.csv, "w", newline="") as out:
            writer = csv.DictWriter(out, table[0].keys())
            writer.writeheader()
            writer.writerows(table)
    problems = sorted({(r["bits"], r["activation"], r["n"], r["k"], r["m"]) for r in table})
    for problem in problems:
        same = [r for r in table if (r["bits"], r["activation"], r["n"], r["k"], r["m"]) == problem]
        bits, activation, n, k, m = problem
        best = min(same, key=lambda r: r["us"])
        print(f"u{bits} {activation} {n}x{k} m={m}: floor {best['floor']:.2f}")
        for r in sorted(same, key=lambda r: r["us"])[: args.top]:
            print(
                f"  {r['us']:7.2f} us  {r['floor'] / r['us']:.2f}  bound {r['bound']:.2f}  "
                f"{r['registers']} regs  {r['schedule']}"
            )
    print(f"{len(rows)} kernels, {failed} failed")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("prepare")
    one.add_argument("out")
    one.add_argument("--device", default="h200")
    one.add_argument("--nvrtc", default="/usr/local/cuda/lib64")
    one.add_argument("--preset", default="decode", choices=sorted(presets()))
    two = commands.add_parser("run")
    two.add_argument("out")
    two.add_argument("--csv")
    two.add_argument("--top", type=int, default=6)
    two.add_argument("--no-check", action="store_true")
    two.add_argument("--only-check", action="store_true")
    args = parser.parse_args()
    return prepare(args) if args.command == "prepare" else run(args)


if __name__ == "__main__":
    sys.exit(main())
