"""Environment and policy in one process: a time step is answered before it is even serialised.

This suits networks that answer within a few milliseconds: a time step with images takes as long to
reach another process. While the policy computes, the environment hears nothing.
"""

from __future__ import annotations

import time

import numpy as np
from rclpy.node import Node
from rlinf_msgs.msg import TimeStep

from rlinf_ros.conversions import NS
from rlinf_station.environment import Environment
from rlinf_station.local_policy import LocalPolicyNode

NAMED = ["--ros-args", "-r", "__node:=policy"]  # ros2 launch names the nodes of its process there
SHARE = 0.5  # fraction of a period; a slower answer keeps the environment from its inputs
EVERY_S = 10.0


class ColocatedPolicy(LocalPolicyNode):
    """The policy's node in the environment's process."""

    def __init__(self) -> None:
        super().__init__(cli_args=NAMED)

    def _listen(self) -> None:
        """Subscribe to nothing: time steps are handed over."""

    def answer(self, step: TimeStep, observation: dict[str, np.ndarray]) -> None:
        """Answer a time step, whose observation need not be serialised yet."""
        self.observation = observation
        self._on_timestep(step)

    def observed(self, step: TimeStep) -> dict[str, np.ndarray]:
        """Return the observation of the newest time step."""
        return self.observation


class Composed(Environment):
    """The environment's node, with the policy's node as a guest."""

    def __init__(self) -> None:
        super().__init__()
        self.declare_parameter("composed", True)
        self.policy = ColocatedPolicy()
        self.warned_at = float("-inf")  # time.monotonic() of the last warning about slowness
        self.guests: list[Node] = [self.policy]

    def _publish_step(self, step: TimeStep, observation: dict[str, np.ndarray]) -> None:
        # nothing to answer, and newer weights may be loaded now
        if step.step_type == TimeStep.LAST:
            super()._publish_step(step, observation)
            self.policy.answer(step, observation)
            return
        started_at = time.monotonic()
        self.policy.answer(step, observation)
        took_s, period_s = time.monotonic() - started_at, self.period_ns / NS
        super()._publish_step(step, observation)
        slow = step.step_type == TimeStep.MID and not self.lockstep and took_s > SHARE * period_s
        # rclpy's throttle takes a millisecond per skipped call
        if slow and started_at - self.warned_at > EVERY_S:
            self.warned_at = started_at
            self.get_logger().warning(
                f"the policy took {1e3 * took_s:.0f} of the {1e3 * period_s:.0f} ms between two "
                "time steps. The environment receives nothing meanwhile. Run the policy in a "
                "separate process: station.policy.backend=local"
            )
