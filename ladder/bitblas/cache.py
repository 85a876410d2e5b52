# SPDX-License-Identifier: Apache-2.0
"""Operators by configuration, in memory and on disk.

BitBLAS stores compiled libraries here, because making one takes minutes. Making an operator of
ladder takes none, so the database holds what was asked for: one JSON file per configuration, which
makes the same operators again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

from ladder.bitblas.attention import FlashAtten, FlashAttenConfig
from ladder.bitblas.config import MatmulConfig, MatmulConfigWithSplitK, OperatorConfig
from ladder.bitblas.matmul import Matmul, MatmulWithSplitK
from ladder.bitblas.operator import Operator
from ladder.bitblas.utils import default_target
from ladder.errors import CheckpointError

_OPERATORS: dict[str, tuple[type[OperatorConfig], type[Operator]]] = {
    "MatmulConfig": (MatmulConfig, Matmul),
    "MatmulConfigWithSplitK": (MatmulConfigWithSplitK, MatmulWithSplitK),
    "FlashAttenConfig": (FlashAttenConfig, FlashAtten),
}
_database: list[Path] = []


def get_database_path() -> str:
    """Where operators are saved: what was set, else ``bitblas`` in ladder's cache folder."""
    if _database:
        return str(_database[-1])
    home = os.environ.get("LADDER_CACHE") or Path.home() / ".cache" / "ladder"
    return str(Path(home) / "bitblas")


def set_database_path(path: str | Path) -> None:
    """Save and load operators there from now on."""
    _database[:] = [Path(path)]


class OperatorCache:
    """Operators by their configuration. Safe to use from several threads."""

    def __init__(self) -> None:
        self._operators: dict[OperatorConfig, Operator] = {}
        self._lock = threading.RLock()

    def add(self, config: OperatorConfig, op: Operator) -> None:
        with self._lock:
            self._operators[config] = op

    def get(self, config: OperatorConfig) -> Operator | None:
        with self._lock:
            return self._operators.get(config)

    def exists(self, config: OperatorConfig) -> bool:
        return self.get(config) is not None

    def clear(self) -> None:
        with self._lock:
            self._operators.clear()

    def size(self) -> int:
        with self._lock:
            return len(self._operators)

    def save_into_database(self, path: str | Path | None = None, target: str | None = None) -> None:
        """Write every configuration under ``path``/``target``; a file is whole or not there."""
        folder = _folder(path, target)
        folder.mkdir(parents=True, exist_ok=True)
        with self._lock:
            configs = list(self._operators)
        for config in configs:
            text = json.dumps(
                {"config_type": type(config).__name__, "fields": dataclasses.asdict(config)},
                indent=1, sort_keys=True,
            )  # fmt: skip
            name = hashlib.sha256(text.encode()).hexdigest()[:32] + ".json"
            with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
                file.write(text)
            os.replace(file.name, folder / name)

    def load_from_database(self, path: str | Path | None, target: str | None = None) -> None:
        """Make an operator of every configuration saved there; a missing folder has none.

        Raises:
            CheckpointError: a file is not a configuration.
        """
        for file in sorted(_folder(path, target).glob("*.json")):
            try:
                stored = json.loads(file.read_text())
                config_type, operator = _OPERATORS[stored["config_type"]]
                config = config_type(**_tuples(stored["fields"]))
            except (ValueError, KeyError, TypeError) as error:
                raise CheckpointError(f"{file} is not a saved operator: {error}") from error
            if not self.exists(config):
                self.add(config, operator(config, target=target))  # type: ignore[call-arg]


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}


def _folder(path: str | Path | None, target: str | None) -> Path:
    return Path(path or get_database_path()) / (target or default_target()).replace("/", "-")


global_operator_cache = OperatorCache()


def load_global_ops_cache(
    database_path: str | Path | None = None, target: str | None = None
) -> OperatorCache:
    """Load the database into :data:`global_operator_cache` and return that."""
    global_operator_cache.load_from_database(database_path, target)
    return global_operator_cache
