#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds a wheel, installs it into an empty environment and uses it from another folder.
set -euo pipefail
root=$PWD
python=$root/${PYTHON:-.venv/bin/python}
unset PYTHONPATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps \
  -w "$work" "$root"
flags=()
base=$("$python" -c 'import sys; print(sys._base_executable)')
"$base" -c 'import torch' 2>/dev/null && flags=(--system-site-packages)
"$base" -m venv "${flags[@]}" "$work/env"
torch=$("$python" -c 'import torch; print(torch.__version__.split("+")[0])')
"$work/env/bin/python" -m pip install --quiet --disable-pip-version-check \
  "$work"/ladder-*.whl "torch==$torch"
cd "$work"
"$work/env/bin/python" "$root/tests/package/smoke.py"
"$work/env/bin/ladder" types > types.txt
grep -q float6_e3m2 types.txt
echo "wheel: installed and used from another folder"
