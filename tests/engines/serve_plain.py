# SPDX-License-Identifier: Apache-2.0
"""An engine of vLLM without ladder: writes the log-probabilities of every next token of a prompt.

usage: serve_plain.py FOLDER TOKEN...
"""

from __future__ import annotations

import json
import os
import sys

os.environ |= {
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_PLUGINS": "",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}


def main(folder: str, prompt: list[int]) -> None:
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=folder, enforce_eager=True, skip_tokenizer_init=True, dtype="bfloat16",
        max_model_len=64, max_num_seqs=1, max_logprobs=-1,
    )  # fmt: skip
    wanted = SamplingParams(max_tokens=1, temperature=0, detokenize=False, logprobs=-1)
    (made,) = llm.generate([{"prompt_token_ids": prompt}], wanted)
    found = made.outputs[0].logprobs[0]
    assert "ladder" not in sys.modules
    print("LOGPROBS", json.dumps({int(token): each.logprob for token, each in found.items()}))


if __name__ == "__main__":
    main(sys.argv[1], [int(token) for token in sys.argv[2:]])
