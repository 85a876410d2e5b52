# SPDX-License-Identifier: Apache-2.0
"""The function between the two products of a gated layer, for modules (ladder/ops/gating.py)."""

from ladder.ops.gating import ACTIVATIONS, SWIGLU_OAI, Gating, recognised

__all__ = ["ACTIVATIONS", "SWIGLU_OAI", "Gating", "recognised"]
