#!/usr/bin/env bash
# Runs a command beside ROS and the messages that were built against it.
set -e
. /opt/ros/jazzy/setup.bash
. /rlinf/ros_ws/install/setup.bash
exec "$@"
