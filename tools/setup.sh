#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes $VENV with all that building, testing and the demo need. A torch that the machine already
# has is used as it is; otherwise the pinned one is installed.
set -euo pipefail
: "${PYTHON:=python3}" "${VENV:=.venv}"

# --- system packages ------------------------------------------------------------------------------
missing=()
command -v g++ >/dev/null || missing+=(g++)
command -v cmake >/dev/null || missing+=(cmake)
command -v "$PYTHON" >/dev/null || missing+=(python3)
"$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
"$PYTHON" -c 'import os, sysconfig
raise SystemExit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' \
  2>/dev/null || missing+=(python3-dev)
[ -e /usr/include/gmock/gmock.h ] || missing+=(libgtest-dev libgmock-dev)
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
  else
    echo "install these packages first: ${missing[*]}" >&2
    echo "  sudo apt-get install ${missing[*]}" >&2
    exit 1
  fi
fi

# --- python packages ------------------------------------------------------------------------------
torch=(torch==2.13.0)
flags=()
if "$PYTHON" -c 'import torch' 2>/dev/null; then
  torch=()
  flags=(--system-site-packages)
fi
[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "${flags[@]}" "$VENV"
pip=("$VENV/bin/python" -m pip install --quiet --disable-pip-version-check)
# torch first and alone: with it present, nothing below asks the registry for another build of it.
[ ${#torch[@]} = 0 ] || "${pip[@]}" "${torch[@]}"
"${pip[@]}" -r requirements.txt
