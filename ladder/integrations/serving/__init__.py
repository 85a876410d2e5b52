# SPDX-License-Identifier: Apache-2.0
"""What engines that serve models have in common: fused layers, ranks, loading tensor by tensor.

Nothing here knows an engine; ``ladder.integrations.vllm`` and ``sglang`` do.
"""
