#!/usr/bin/env bash
# Installs the packages of one lock file: scripts/install_lock.sh locks/python311.lock [ENVIRONMENT, .venv if not said]
set -euo pipefail
cd "$(dirname "$0")/.."
lock=$1 python=${2:-.venv}/bin/python
if .venv/bin/python -m pip install -q uv 2>/dev/null; then
  # uv does not read pip's own settings: hand it the folder of wheels, if pip has one.
  links=$(.venv/bin/python -m pip config get global.find-links 2>/dev/null || true)
  UV_FIND_LINKS=${UV_FIND_LINKS:-$links} .venv/bin/uv pip install --python "$python" --no-deps -r "$lock"
else
  grep -v '^ *--hash' "$lock" | sed 's/ *\\$//' >"${2:-.venv}/requirements.txt"
  "$python" -m pip install --no-deps -r "${2:-.venv}/requirements.txt"
fi
