"""Run by LeRobot's own environment: its robot client with a robot that stands still, against a
server at an address.

    .venvs/lerobot/bin/python tests/deploy/serving/lerobot_client_itself.py ADDRESS FOLDER

FOLDER has ``given.npz``: numbers and pictures; written beside it: ``played.npz``, the actions that
the robot was sent.
"""

import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch

# its wheel is built for CUDA, and declares these only there
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from lerobot.async_inference import robot_client  # noqa: E402

address, folder = sys.argv[1], Path(sys.argv[2])
given = dict(np.load(folder / "given.npz"))
numbers = {name: float(value) for name, value in given.items() if value.ndim == 0}
pictures = {name: value for name, value in given.items() if value.ndim == 3}


class Robot:
    """A robot with constant observations that records the actions it gets."""

    observation_features = dict.fromkeys(numbers, float) | {
        name: value.shape for name, value in pictures.items()
    }
    action_features = dict.fromkeys(("a", "b", "c"), float)

    def __init__(self):
        self.sent = []

    def connect(self):
        pass

    disconnect = connect

    def get_observation(self):
        return numbers | pictures

    def send_action(self, action):
        self.sent.append([*action.values()])
        return action


class Config:
    robot, server_address, policy_type, pretrained_name_or_path = None, address, "act", "any"
    actions_per_chunk, policy_device, client_device, environment_dt, fps = 6, "cpu", "cpu", 0.1, 10
    chunk_size_threshold, aggregate_fn = 0.5, None


robot = Robot()
robot_client.make_robot_from_config = lambda config: robot
client = robot_client.RobotClient(Config())
assert client.start()
receiver = threading.Thread(target=client.receive_actions, daemon=True)
receiver.start()
client.start_barrier.wait()
end = time.monotonic() + 60
while len(robot.sent) < 20 and time.monotonic() < end:
    if client.actions_available():
        client.control_loop_action()
    if client._ready_to_send_observation():
        client.control_loop_observation("insert")
    time.sleep(0.05)
client.stop()
np.savez(folder / "played.npz", sent=np.array(robot.sent))
