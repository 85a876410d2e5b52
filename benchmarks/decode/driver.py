# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels of a folder, launched through the CUDA driver."""

import ctypes


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
            tensors = tensors[:-2]  # no workspace, no counters
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
