#!/usr/bin/env bash
# Installs the packages of one lock file into an environment: scripts/install_lock.sh locks/genesis311.lock .venvs/genesis
set -euo pipefail
cd "$(dirname "$0")/.."
# uv does not read pip's own settings: hand it the folder of wheels, if pip has one.
links=$(.venv/bin/python -m pip config get global.find-links 2>/dev/null | xargs | tr ' ' , || true)
UV_FIND_LINKS=${UV_FIND_LINKS:-$links} .venv/bin/uv pip install --no-config --python "$2/bin/python" --no-deps -r "$1"
