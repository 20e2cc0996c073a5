#!/usr/bin/env bash
# Builds ros_ws/src/rlinf_msgs with colcon against the ROS wheels of .venv.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$root/.venv
# The wheels' exported CMake files name the include directories of the machine that built them.
read -r python_include numpy_include < <("$venv/bin/python" -c \
  'import sysconfig, numpy; print(sysconfig.get_paths()["include"], numpy.get_include())')
grep -rlE 'INTERFACE_INCLUDE_DIRECTORIES "[^"]*python3\.11' "$venv/share" --include='*Export.cmake' | xargs -r sed -i -E \
  "s#INTERFACE_INCLUDE_DIRECTORIES \"[^\";]*/include/python3\.11;[^\"]*\"#INTERFACE_INCLUDE_DIRECTORIES \"$python_include;$numpy_include\"#"
export AMENT_PREFIX_PATH=$venv CMAKE_PREFIX_PATH=$venv PATH=$venv/bin:$PATH
cd "$root/ros_ws"
colcon --log-level error build --packages-select rlinf_msgs --event-handlers console_direct- \
  --cmake-args -DPython3_EXECUTABLE="$venv/bin/python" -DBUILD_TESTING=OFF "$@"
