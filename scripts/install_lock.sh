#!/usr/bin/env bash
# Installs the packages of one lock file into .venv: scripts/install_lock.sh locks/python311.lock
set -euo pipefail
cd "$(dirname "$0")/.."
if .venv/bin/python -m pip install -q uv 2>/dev/null; then
  # uv does not read pip's own settings: hand it the folder of wheels, if pip has one.
  links=$(.venv/bin/python -m pip config get global.find-links 2>/dev/null || true)
  UV_FIND_LINKS=${UV_FIND_LINKS:-$links} .venv/bin/uv pip install --python .venv/bin/python --no-deps -r "$1"
else
  grep -v '^ *--hash' "$1" | sed 's/ *\\$//' >.venv/requirements.txt
  .venv/bin/python -m pip install --no-deps -r .venv/requirements.txt
fi
