#!/usr/bin/env bash
# Installs everything into .venv: the locked Python packages, this project, ROS 2's wheels where no ROS is sourced, and the
# built messages. Python 3.10 to 3.13, a C++ compiler and make. Run through `make setup`, or `make station`:
#   scripts/setup.sh EXTRA ...
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf '\033[1m%s\033[0m\n' "$*"; }
fits() { command -v "$1" >/dev/null && "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }

python=
candidates=(.venv/bin/python python3 python3.12 python3.11 python3.13 python3.10)
[ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
for candidate in "${candidates[@]}"; do
  if fits "$candidate"; then python=$candidate && break; fi
done
[ -n "$python" ] || {
  if [ -n "${PYTHON:-}" ] && ! answer=$("$PYTHON" --version 2>&1); then  # a shim of pyenv says which versions it has
    printf 'setup: PYTHON=%s does not run. It says:\n%s\nSet PYTHON= to one of 3.10 to 3.13 that runs, or leave it out.\n' "$PYTHON" "$answer" >&2
    exit 1
  fi
  echo "setup: expected Python 3.10 to 3.13, got $("${PYTHON:-python3}" --version 2>&1)${PYTHON:+ (PYTHON=$PYTHON)}. Install python3 and python3-venv, or set PYTHON=" >&2
  exit 1
}
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
ros=ros with="ROS 2 from its wheels"
if [ -n "${ROS_DISTRO:-}" ]; then
  base=$("$python" -c 'import sys; print(getattr(sys, "_base_executable", sys.executable))')  # of a .venv that is empty yet
  "$python" -c 'import rclpy' 2>/dev/null || "$base" -c 'import rclpy' 2>/dev/null || {
    echo "setup: ROS 2 $ROS_DISTRO is sourced, and Python $version cannot import its rclpy. Expected ROS's own Python (3.12 for" \
      "Jazzy): PYTHON=/usr/bin/python3 make setup. Or open a shell without ROS, and the wheels are used" >&2
    exit 1
  }
  if [[ $("$python" -c 'import rclpy; print(rclpy.__file__)' 2>/dev/null) != "$PWD/.venv/"* ]]; then
    if compgen -G ".venv/lib/python*/site-packages/ros_wheels_bootstrapper.pth" >/dev/null; then
      echo "setup: expected .venv without ROS 2's wheels, since ROS 2 $ROS_DISTRO is sourced, and they come before it. Run: make clean," \
        "then this again" >&2
      exit 1
    fi
    ros='' with="ROS 2 $ROS_DISTRO as it is sourced"
  fi
fi
if [ -x .venv/bin/python ] && ! .venv/bin/python --version | grep -qF "Python $version."; then
  echo "setup: .venv is of $(.venv/bin/python --version), PYTHON is of $version. Run: make clean, then this again" >&2
  exit 1
fi

say "1/3 system libraries for offscreen rendering, and RealSense cameras"
lacking() { echo "  not installed: ${missing[*]}. Videos and cameras need them: sudo ${install[*]}"; }
missing=() libraries=$(PATH=$PATH:/usr/sbin:/sbin ldconfig -p || true)
for library in libOSMesa.so.8:libosmesa6 libEGL.so.1:libegl1 libGL.so.1:libgl1 libusb-1.0.so.0:libusb-1.0-0; do
  [[ $libraries == *"${library%%:*}"* ]] || missing+=("${library##*:}")
done
if [ ${#missing[@]} -gt 0 ]; then
  install=(apt-get install -y --no-install-recommends "${missing[@]}")
  if [ "$(id -u)" = 0 ]; then
    { apt-get update -qq && "${install[@]}" -qq; } || lacking
  elif sudo -n true 2>/dev/null; then
    { sudo apt-get update -qq && sudo "${install[@]}" -qq; } || lacking
  else
    lacking
  fi
fi

say "2/3 Python packages (.venv, Python $version, $with)"
has() { .venv/bin/python -m "$1" --version >/dev/null 2>&1; }
has uv || has pip || "$python" -m venv .venv # also of one that ended before it had pip: what is in it stays
.venv/bin/python scripts/install.py "$@" $ros

say "3/3 ROS 2 messages"
.venv/bin/rlinf messages
echo "done. Next: make demo, or .venv/bin/rlinf --help"
