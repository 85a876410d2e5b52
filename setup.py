# SPDX-License-Identifier: Apache-2.0
"""Builds the C++ libraries with CMake; everything else is in pyproject.toml.

Nothing of torch is needed to build. The wheel is for every Python from 3.10 on: _C is the one
module of Python in it, and keeps to the limited API.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()


class CMakeBuild(build_ext):
    """Puts libladder_core.so, libladder.so and _C into the package."""

    def build_extension(self, extension: Extension) -> None:
        package = Path(self.get_ext_fullpath(extension.name)).parent.resolve()
        build = Path(self.build_temp).resolve()
        build.mkdir(parents=True, exist_ok=True)
        configure = [
            "cmake",
            "-S",
            str(ROOT),
            "-B",
            str(build),
            "-G",
            "Ninja",
            f"-DPython3_EXECUTABLE={sys.executable}",
            f"-DLADDER_PACKAGE_DIR={package}",
            "-DCMAKE_BUILD_TYPE=Release",
            *os.environ.get("CMAKE_ARGS", "").split(),
        ]
        if shutil.which("ccache"):
            configure.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
        subprocess.run(configure, check=True)
        jobs = os.environ.get("MAX_JOBS", str(os.cpu_count() or 2))
        subprocess.run(["cmake", "--build", str(build), "--parallel", jobs], check=True)


setup(
    ext_modules=[Extension("ladder._C", sources=[], py_limited_api=True)],
    cmdclass={"build_ext": CMakeBuild},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
