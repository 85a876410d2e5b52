# SPDX-License-Identifier: Apache-2.0
"""setuptools as a build backend that asks for CMake and Ninja only where there are none."""

import re
import shutil
import subprocess
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

OLDEST_CMAKE = (3, 22)


def _tools() -> list[str]:
    missing = [] if shutil.which("ninja") else ["ninja"]
    cmake = shutil.which("cmake")
    text = (
        subprocess.run([cmake, "--version"], capture_output=True, text=True).stdout if cmake else ""
    )
    version = re.search(r"version (\d+)\.(\d+)", text)
    if version is None or (int(version[1]), int(version[2])) < OLDEST_CMAKE:
        missing.append(f"cmake>={OLDEST_CMAKE[0]}.{OLDEST_CMAKE[1]}")
    return missing


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_tools()]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    return [*build_meta.get_requires_for_build_editable(config_settings), *_tools()]
