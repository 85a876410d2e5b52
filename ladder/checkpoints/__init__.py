# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of other packages: read layer by layer, or repacked as ladder folders."""

from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.repack import repack
from ladder.checkpoints.report import Report, TypeRow
from ladder.checkpoints.source import FORMATS, METHODS, Source, open_folder
from ladder.checkpoints.writer import DestinationError

__all__ = [
    "FORMATS", "METHODS", "DestinationError", "StoredConfig", "Report", "Source", "TypeRow",
    "open_folder", "repack",
]  # fmt: skip
