#!/usr/bin/env bash
# Makes locks/python311.lock from locks/requirements.in.
set -euo pipefail
cd "$(dirname "$0")/.."
links=$(.venv/bin/python -m pip config get global.find-links 2>/dev/null || true)
UV_FIND_LINKS=${UV_FIND_LINKS:-$links} .venv/bin/uv pip compile -q --python-version 3.11 locks/requirements.in \
  --override locks/overrides.txt --generate-hashes --no-annotate --no-header -o locks/python311.lock
# torch's build differs by machine (CPU or CUDA), so its version is pinned and its hash is not.
.venv/bin/python - <<'PY'
import pathlib, re
path = pathlib.Path("locks/python311.lock")
path.write_text(re.sub(r"torch==(\d+\.\d+\.\d+)\S* \\\n(?:    --hash=.*\n?)+", r"torch==\1\n", path.read_text()))
PY
