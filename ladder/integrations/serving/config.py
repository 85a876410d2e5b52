# SPDX-License-Identifier: Apache-2.0
"""What the QuantizationConfigs of engines answer alike."""

from __future__ import annotations

import torch

from ladder.checkpoints.folder import QUANT_METHOD
from ladder.checkpoints.source import FALLBACKS
from ladder.integrations.serving.stored import Folder
from ladder.types import FLOAT_DTYPES

#: What a model that does not say it fuses, where the files have no module of the fused name.
FUSED = {
    "qkv_proj": ["q_proj", "k_proj", "v_proj"],
    "gate_up_proj": ["gate_proj", "up_proj"],
}


class Answers:
    """Comes before an engine's own base class, which asks its subclasses for these."""

    folder: Folder

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.folder.config})"

    def get_name(self) -> str:
        return QUANT_METHOD

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return list(FLOAT_DTYPES.values())

    @classmethod
    def get_min_capability(cls) -> int:
        return 75  # below 80 torch decodes; the log says so

    @staticmethod
    def get_config_filenames() -> list[str]:
        return list(FALLBACKS)
