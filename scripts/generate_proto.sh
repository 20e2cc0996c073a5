#!/usr/bin/env bash
# Generates bridge_pb2*.py and lerobot_pb2.py of rlinf_core/deploy, and their .pyi, from the .proto files.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. --grpc_python_out=. rlinf_core/deploy/bridge/bridge.proto
.venv/bin/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. rlinf_core/deploy/serving/lerobot.proto
