#!/usr/bin/env bash
# Runs pytest in the environment of a station's processes, never in the ROS domain of this shell.
set -euo pipefail
cd "$(dirname "$0")/.."
eval "$(.venv/bin/python -c '
from rlinf_core.core.ros import ros_environment
import os, shlex
for key, value in ros_environment(77).items():
    if os.environ.get(key) != value:
        print(f"export {key}={shlex.quote(value)}")')"
unset _ROS_WHEELS_BOOTSTRAP_COMPLETE PYTHONDONTWRITEBYTECODE  # hundreds of processes: what each imports is compiled once
exec .venv/bin/python -m pytest -q "$@"
