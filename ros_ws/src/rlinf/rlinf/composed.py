"""Environment and policy composed into one process: a time step is handed over, and answered, before it is published.

For networks that answer within a few milliseconds: a time step with images takes as long on its way to another process.
While the policy computes, the environment hears nothing.
"""

from __future__ import annotations

import time

from rclpy.node import Node
from rlinf_msgs.msg import TimeStep

from rlinf.environment import Environment
from rlinf.local_policy import LocalPolicyNode
from rlinf.stamps import NS

NAMED = ["--ros-args", "-r", "__node:=policy"]  # where ros2 launch names the nodes of its process
SHARE = 0.5     # of a period: an answer that takes longer keeps the environment from its inputs
EVERY_S = 10.0


class Guest(LocalPolicyNode):
    """The policy's node in the environment's process."""

    def __init__(self) -> None:
        super().__init__(cli_args=NAMED)

    def _listen(self) -> None:
        """To nobody: time steps are handed over."""

    def answer(self, step: TimeStep) -> None:
        """What it does with a time step."""
        self._on_timestep(step)


class Composed(Environment):
    """The environment's node, with the policy's for a guest."""

    def __init__(self) -> None:
        super().__init__()
        self.declare_parameter("composed", True)
        self.policy = Guest()
        self.guests: list[Node] = [self.policy]
        self.say_step, self.publish_step = self.publish_step, self._hand_over

    def _hand_over(self, step: TimeStep) -> None:
        if step.step_type == TimeStep.LAST:  # there is nothing to answer, and newer weights may be loaded now
            self.say_step(step)
            self.policy.answer(step)
            return
        begun = time.monotonic()
        self.policy.answer(step)
        took_s, period_s = time.monotonic() - begun, self.period_ns / NS
        self.say_step(step)
        if step.step_type == TimeStep.MID and not self.lockstep and took_s > SHARE * period_s:
            self.get_logger().warning(
                f"the policy took {1e3 * took_s:.0f} of the {1e3 * period_s:.0f} ms between two time steps, in which its "
                "environment hears nothing. Give it a process of its own: station.policy.backend=local",
                throttle_duration_sec=EVERY_S)
