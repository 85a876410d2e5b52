# SPDX-License-Identifier: Apache-2.0
"""Chains of matmuls as YAML::

m: 32768                  # rows; every other key has the default shown
batch: 1                  # sequences along m
activation: float16
weight: float16           # any tType: "uint4,group=128,scale=float16"
layers:
  - {name: q, k: 4096, n: 4096}
  - {name: qk, k: 128, n: 2048, heads: 32, batch: 16, after: softmax}
  - {name: qkv, n: 128, heads: 32, batch: 16}   # k: what the layer before wrote
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ladder import bounds
from ladder._version import install_command
from ladder.errors import InvalidArgument

_CHAIN = {"m", "batch", "activation", "weight", "layers"}
_LAYER = {"name", "m", "k", "n", "heads", "batch", "after", "weight"}


def read_chain(path: Path) -> list[bounds.Layer]:
    """The layers of a file.

    Raises:
        FileNotFoundError: no such file.
        ImportError: PyYAML is missing.
        InvalidArgument: the file is not such a chain; the message names the layer and the key.
    """
    try:
        import yaml
    except ImportError:
        raise ImportError(f"chains in YAML need PyYAML: {install_command('plots')}") from None
    path = Path(path)
    try:
        chain = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise InvalidArgument(f"{path} is not YAML: {error}") from None
    if not isinstance(chain, dict) or not isinstance(chain.get("layers"), list):
        raise InvalidArgument(f"{path} has no list called layers")
    _known(chain, _CHAIN, str(path))
    layers: list[bounds.Layer] = []
    for index, row in enumerate(chain["layers"]):
        where = f"layer {index} of {path}"
        if not isinstance(row, dict):
            raise InvalidArgument(f"{where} is {row!r}, not a list of keys")
        _known(row, _LAYER, where)
        heads = _count(row, "heads", where, 1)
        before = layers[-1] if layers else None
        weight: Any = row.get("weight", chain.get("weight", "float16"))
        wrote = before.heads * before.n // heads if before else None
        layers.append(
            bounds.layer(
                str(row.get("name", f"layer{index}")),
                m=_count(row, "m", where, before.m if before else chain.get("m")),
                k=_count(row, "k", where, wrote),
                n=_count(row, "n", where, None),
                heads=heads,
                batch=_count(row, "batch", where, chain.get("batch", 1)),
                after=row.get("after", "nothing"),
                activation=chain.get("activation", "float16"),
                weight=weight,
            )
        )
    return layers


def _known(row: dict[str, Any], keys: set[str], where: str) -> None:
    for key in row:
        if key not in keys:
            raise InvalidArgument(f"{where} has {key!r}; known are {', '.join(sorted(keys))}")


def _count(row: dict[str, Any], key: str, where: str, default: object) -> int:
    value = row.get(key, default)
    if value is None:
        raise InvalidArgument(f"{where} has no {key}")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidArgument(f"{key} of {where} is {value!r}, not a positive integer")
    return value
