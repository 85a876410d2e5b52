# SPDX-License-Identifier: Apache-2.0
"""What the scripts that run engines have alike: jobs from the standard input, one after the other,
and a line of JSON for each."""

from __future__ import annotations

import gc
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any


def run_all(run: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    for job in json.load(sys.stdin):
        try:
            done = run(job)
        except Exception as error:
            traceback.print_exc()
            done = {"error": f"{type(error).__name__}: {error}"}
        print("DONE " + json.dumps({"name": job["name"]} | done), flush=True)
        gc.collect()
