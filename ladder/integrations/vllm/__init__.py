# SPDX-License-Identifier: Apache-2.0
"""vLLM: ladder folders, and folders of other packages when asked, with ladder's kernels.
docs/serving.md is the guide.

``pip install`` is enough: vLLM finds :func:`register` by the entry point ``vllm.general_plugins``.
"""

from __future__ import annotations

import logging
import os

#: A child of vLLM's logger, whose level and handlers it has.
_log = logging.getLogger("vllm.ladder")
#: The first minor version of vLLM that works, and the first that has not been tried.
FIRST, UNTRIED = (0, 26), (0, 34)
#: Words separated by commas; see :func:`asked`.
VARIABLE = "LADDER_VLLM"
WORDS = (
    "off", "any-version", "kernel",
    "auto-round", "awq", "bitnet", "bitsandbytes", "compressed-tensors", "fbgemm_fp8", "fp8",
    "gemma", "gptq", "hqq", "intel/auto-round", "mlx", "modelopt", "mxfp4", "quark", "torchao",
    "w4afp8",
)  # fmt: skip


def asked() -> frozenset[str]:
    """What the environment variable ``LADDER_VLLM`` asks for.

    =================== =======================================================================
    ``gptq``, ``awq``,  take unmodified folders of this quant_method, as ``--quantization ladder``
    ``mxfp4``, ...      does for one engine
    ``kernel``          come first among the kernels of vLLM's own methods
    ``any-version``     register in a version of vLLM that has not been tried
    ``off``             do not register
    =================== =======================================================================
    """
    words = {word.strip().lower() for word in os.environ.get(VARIABLE, "").split(",")} - {""}
    for word in sorted(words - {*WORDS}):
        _log.warning('%s has "%s", which is none of %s', VARIABLE, word, ", ".join(WORDS))
    return frozenset(words)


def register() -> None:
    """Make quant_method "ladder" known to vLLM. vLLM calls this in each of its processes, and does
    not catch what it raises: so nothing is raised, and the log says why ladder is off."""
    try:
        wanted = asked()
        if "off" in wanted or not _works("any-version" in wanted):
            return
        from ladder.integrations.vllm import config, kernel

        config.register()
        kernel.register()
    except Exception:
        _log.exception("ladder is off: it could not register itself")


def _works(any_version: bool) -> bool:
    import vllm

    version = str(getattr(vllm, "__version__", ""))
    numbers = version.split("+")[0].split(".")[:2]
    minor = tuple(int(n) for n in numbers) if all(n.isdigit() for n in numbers) else ()
    if any_version or (len(minor) == 2 and FIRST <= minor < UNTRIED):
        return True
    _log.warning(
        "ladder is off: it is tried with vLLM %d.%d to %d.%d, and this is %s; %s=any-version tries",
        *FIRST, UNTRIED[0], UNTRIED[1] - 1, version or "unknown", VARIABLE,
    )  # fmt: skip
    return False
