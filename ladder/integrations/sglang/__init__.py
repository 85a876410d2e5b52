# SPDX-License-Identifier: Apache-2.0
"""SGLang: ladder folders with ladder's kernels, and GPTQ, AWQ, FP8 and compressed-tensors ones with
``--quantization ladder``.

``pip install`` is enough: SGLang finds :func:`register` by the entry point ``sglang.srt.plugins``.
Tested on the layer classes of SGLang 0.5.16 and 0.5.23, and in engines of 0.5.16 on a processor and
on one GPU.
"""

from __future__ import annotations

import logging

_log = logging.getLogger("sglang.ladder")


def register() -> None:
    """Make quant_method "ladder" known to SGLang, which calls this in each of its processes.
    Nothing is raised: the log says why ladder is off."""
    try:
        from ladder.integrations.sglang import config

        config.register()
    except Exception:
        _log.exception("ladder is off: it could not register itself")
