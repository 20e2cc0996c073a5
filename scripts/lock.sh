#!/usr/bin/env bash
# Makes uv.lock from pyproject.toml, and locks/NAME311.lock (isaaclab312.lock) from locks/NAME.in for environments of their own, to
# which the constraints of pyproject.toml do not apply.
#   scripts/lock.sh [genesis | libero | calvin ...]     uv.lock alone, if none is said
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || exec .venv/bin/uv lock
links=$(.venv/bin/python -m pip config get global.find-links 2>/dev/null | xargs | tr ' ' , || true)
for name in "$@"; do
  overrides=locks/overrides.txt
  [ ! -f "locks/${name}_overrides.txt" ] || overrides=locks/${name}_overrides.txt
  python=3.11
  case $name in isaaclab | references) python=3.12 ;; esac
  UV_FIND_LINKS=${UV_FIND_LINKS:-$links} .venv/bin/uv pip compile -q --no-config --python-version $python --generate-hashes --no-annotate \
    --no-header "locks/$name.in" --override "$overrides" -o "locks/$name${python/./}.lock"
  # torch's build differs by machine (CPU or CUDA), so its version is pinned and its hash is not.
  sed -i -E '/^torch==/{:next; N; /\\$/b next; s/^(torch==[0-9]+\.[0-9]+\.[0-9]+).*/\1/}' "locks/$name${python/./}.lock"
done
