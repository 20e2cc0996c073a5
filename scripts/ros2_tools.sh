#!/usr/bin/env bash
# ROS's own launch and ros2 beside this environment's ROS wheels, in .venv/ros2, for tests/machine/test_launch.py. Where they come
# from is a folder with an `install.sh VENV TARGET`, named by RLINF_ROS2_TOOLS. A sourced ROS needs none; where neither is, the
# tests are skipped and say so.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=${RLINF_ROS2_TOOLS:-}
if [ -n "${ROS_DISTRO:-}" ] || [ -z "$tools" ] || [ ! -x "$tools/install.sh" ] || [ .venv/ros2/setup.sh -nt "$tools/install.sh" ]; then exit 0; fi
rm -rf .venv/ros2
"$tools/install.sh" .venv .venv/ros2
