# SPDX-License-Identifier: Apache-2.0
"""Checks kernels of few tokens against float64 and times them."""

import ctypes
import pathlib
from functools import partial

import torch

from benchmarks import graph
from benchmarks.decode.driver import Kernel

BYTES_PER_SECOND = 4.53e12
#: By the format of the operands; int8 by the datasheet, the others measured.
FLOPS = {"f16": 761e12, "bf16": 787e12, "e4m3": 1430e12, "s8": 1900e12}
#: Most launches of one graph.
LAUNCHES = 64
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
_SIGNIFICANT_BITS = {"f16": 11, "bf16": 8}
#: Bits that sums of products keep, by the format of the operands.
_SUM_BITS = {"e4m3": 13}


def formats(row):
    """Of y, and of x where that comes rounded to 8 bits: "f16", "s8"."""
    y, _, x = row["activation"].partition(":")
    return y, x.partition(",")[0]


def floor_us(row, m):
    """Microseconds that the bytes of codes, scales, activations and outputs take, or the products
    if those take longer."""
    n, k = row["n"], row["k"]
    y, x = formats(row)
    of_x = m * (k + 4) if x else 2 * m * k
    size = n * k * row["bits"] / 8 + n * (k // row["group"]) * 2 + 2 * m * n + of_x
    return max(size / BYTES_PER_SECOND, 2 * m * n * k / FLOPS[x or y]) * 1e6


def placed(x):
    """x [m, k] with its columns as kernels of bytes find them (csrc/layout/digits.h)."""
    return x.view(len(x), -1, 2, 4, 2).permute(0, 1, 3, 4, 2).reshape(x.shape).contiguous()


class Bench:
    """Data for the kernels of a folder that ``linear.py prepare`` filled."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        torch.cuda.init()
        self.x0 = torch.zeros(1, device="cuda")  # makes the context that the driver uses
        self.driver = ctypes.CDLL("libcuda.so.1")
        torch.manual_seed(1)
        # 1.6 GB of random codes, and as many scales as any of them need.
        codes = (3 << 27,)
        self.pool = torch.randint(-(2**31), 2**31 - 1, codes, dtype=torch.int32, device="cuda")
        self.scale_pool = torch.rand(1 << 26, device="cuda") * 0.01 + 0.001
        self.operands, self.problem = {}, None

    def load(self, row) -> Kernel:
        return Kernel(self.driver, self.folder, row)

    def image(self, codes, bits):
        """The weight image of codes [N, K], N and K multiples of 64, by the table of positions."""
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
        key = (row["bits"], row["n"], row["k"], row["group"], row["activation"])
        if self.problem != key:
            self.problem = key
            self.operands.clear()
        if kind not in self.operands:
            n, k, group = row["n"], row["k"], row["group"]
            values = torch.tensor([float("nan") if v is None else v for v in row["values"]])
            usable = values.isfinite()
            if kind == "integers" and formats(row)[1] == "e4m3":  # whose sums are exact
                usable &= (values.round() == values) & (values.abs() <= 8)
            choice = usable.nonzero()[:, 0].to("cuda", torch.uint8)
            codes = choice[torch.randint(0, len(choice), (n, k), device="cuda")]
            shape = (n, -(-k // group))
            if kind == "integers":
                scales = 2.0 ** -torch.randint(0, 3, shape, device="cuda").float()
            else:
                scales = torch.rand(shape, device="cuda") * 0.01 + 0.002
            scales = scales.to(DTYPES[formats(row)[0]])
            table = scales.t().reshape(-1, n // 64, 8, 8).transpose(2, 3).contiguous()
            value = values.cuda()[codes.int()].view(n, -1, group) * scales.float()[:, :, None]
            self.operands[kind] = (self.image(codes, row["bits"]), table, value.view(n, k))
        return self.operands[kind]

    def scratch(self, row, fill):
        """Workspace and counters of one launch after the other."""
        floats = torch.full((max(row["floats"], 1),), fill, device="cuda")
        return floats, torch.zeros(max(row["counters"], 1), dtype=torch.int32, device="cuda")

    def activations(self, row, kind, m):
        """What a kernel reads of x, and the numbers that this stands for."""
        y, rounded = formats(row)
        shape = (m, row["k"])
        if rounded == "s8":
            most = 16 if kind == "integers" else 127
            x = torch.randint(-most, most + 1, shape, device="cuda").to(torch.int8)
        elif kind == "integers":
            x = torch.randint(-2, 3, shape, device="cuda")
        else:
            x = torch.randn(shape, device="cuda")
        if not rounded:
            x = x.to(DTYPES[y])
            return (x,), x
        if rounded == "e4m3":
            x = x.to(torch.float8_e4m3fn)
        scales = 2.0 ** -torch.randint(0, 3, (m,), device="cuda").float()
        if kind != "integers":
            scales *= torch.rand_like(scales) + 0.5
        return (placed(x.view(torch.int8)), scales), x.float() * scales[:, None]

    def check(self, kernel):
        """The largest error as a fraction of the bound; raises unless integers are exact."""
        row, (form, rounded) = kernel.row, formats(kernel.row)
        dtype, worst = DTYPES[form], 0.0
        for kind in ("integers", "reals"):
            image, table, value = self.case(row, kind)
            if "rounded operands" in row["schedule"]:
                value = value.to(dtype).float()  # what the kernel multiplies by
            scratch = self.scratch(row, float("nan"))
            for m in sorted({1, min(3, row["max_m"]), row["max_m"]}):
                read, x = self.activations(row, kind, m)
                y = torch.full((m, row["n"]), float("nan"), dtype=dtype, device="cuda")
                stream = torch.cuda.current_stream().cuda_stream
                for _ in range(2):  # twice: the counters must be left at zero
                    y.fill_(float("nan"))
                    kernel(stream, image, table, *read, y, *scratch, tokens=m)
                torch.cuda.synchronize()
                exact, magnitude = self.exact(x, value)
                if kind == "integers":
                    if not torch.equal(y, exact.to(y.dtype)):
                        bad = (y != exact.to(y.dtype)).nonzero()
                        raise AssertionError(f"not exact at {bad[:4].tolist()} of {len(bad)}")
                else:
                    rounding = 2.0 ** -_SIGNIFICANT_BITS[form]
                    of_sums = 6 * row["k"] ** 0.5 * 2.0 ** -_SUM_BITS.get(rounded, 24)
                    bound = of_sums * magnitude + rounding * exact.abs()
                    ratio = ((y.double() - exact).abs() / bound).max().item()
                    if not ratio <= 1:
                        raise AssertionError(f"{ratio} of the bound")
                    worst = max(worst, ratio)
        return worst

    @staticmethod
    def exact(x, value):
        """x @ value.T and |x| @ |value|.T in float64, in parts that fit."""
        exact = torch.empty(len(x), len(value), dtype=torch.float64, device="cuda")
        magnitude = torch.empty_like(exact)
        for first in range(0, len(value), 8192):
            w = value[first : first + 8192].double()
            exact[:, first : first + 8192] = x.double() @ w.t()
            magnitude[:, first : first + 8192] = x.double().abs() @ w.abs_().t()
        return exact, magnitude

    def time(self, kernel, m):
        """Microseconds a launch, each with other weights than the ones before."""
        row, dtype = kernel.row, DTYPES[formats(kernel.row)[0]]
        words = row["n"] * row["k"] * row["bits"] // 32
        scales = row["n"] * (row["k"] // row["group"])
        pool = self.scale_pool.to(dtype)
        read, _ = self.activations(row, "reals", m)
        y = torch.empty(m, row["n"], dtype=dtype, device="cuda")
        scratch = self.scratch(row, 0.0)

        def launch(i):
            first = i * scales % (pool.numel() - scales) // 8 * 8
            kernel(
                torch.cuda.current_stream().cuda_stream,
                self.pool[i * words : (i + 1) * words],
                pool[first : first + scales],
                *read,
                y,
                *scratch,
                tokens=m,
            )

        count = min(LAUNCHES, self.pool.numel() // words)
        return graph.us([partial(launch, i) for i in range(count)])
