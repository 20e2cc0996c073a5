#!/usr/bin/env bash
# Makes locks/NAME311.lock from locks/NAME.in: python, simulators (what that adds to it), genesis, libero or calvin.
#   scripts/lock.sh [NAME ...]     python and simulators, if none is said
set -euo pipefail
cd "$(dirname "$0")/.."
links=$(.venv/bin/python -m pip config get global.find-links 2>/dev/null || true)
compile() {
  UV_FIND_LINKS=${UV_FIND_LINKS:-$links} .venv/bin/uv pip compile -q --python-version 3.11 --generate-hashes --no-annotate \
    --no-header "$@"
}
names=${*:-python simulators}
constraints=$(mktemp --suffix .txt)
for name in $names; do
  overrides=locks/overrides.txt
  [ ! -f "locks/${name}_overrides.txt" ] || overrides=locks/${name}_overrides.txt
  [ "$name" != simulators ] || sed -n 's/^\([^ #]*==[^ ]*\).*/\1/p' locks/python311.lock >"$constraints"
  compile "locks/$name.in" --override "$overrides" -c "$constraints" -o "locks/${name}311.lock"
  : >"$constraints"
done
.venv/bin/python - $names <<'PY'
import pathlib, re, sys
ENTRY = re.compile(r"^(\S+?)==(?:.*\n)(?:    --hash=.*\n?)*", re.M)
base = ENTRY.findall(pathlib.Path("locks/python311.lock").read_text())
for name in sys.argv[1:]:
    lock = pathlib.Path(f"locks/{name}311.lock")
    # torch's build differs by machine (CPU or CUDA), so its version is pinned and its hash is not.
    text = re.sub(r"torch==(\d+\.\d+\.\d+)\S* \\\n(?:    --hash=.*\n?)+", r"torch==\1\n", lock.read_text())
    if name == "simulators":
        text = "".join(entry.group() for entry in ENTRY.finditer(text) if entry.group(1) not in base)
    lock.write_text(text)
PY
