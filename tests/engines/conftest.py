# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / name) for name in ("serving", "checkpoints", "run")]
