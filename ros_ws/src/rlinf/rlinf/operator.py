"""Operator node: a scripted stand-in that demonstrates and arms, or a person at the keyboard who takes over."""

from __future__ import annotations

import select
import sys
import termios
import time
import tty
import uuid

import numpy as np
from rclpy.node import Node
from rlinf_msgs.msg import ActionChunk, EpisodeEvent, SafetyState, TimeStep
from std_msgs.msg import Bool
from std_srvs.srv import SetBool

from rlinf.conversions import action_chunk
from rlinf.latest import Latest
from rlinf.qos import profile
from rlinf.spinning import run
from rlinf_core.environment import load_task
from sim_bridges.scripted import make_script

KEYS = {"w": (1, 0, 0), "s": (-1, 0, 0), "a": (0, 1, 0), "d": (0, -1, 0), "r": (0, 0, 1), "f": (0, 0, -1)}
KEY_HELD_S = 0.4
SEEDS_APART = 1_000_003  # another seed of the run shows the same scenes with other hands
HELP = "w/s forward/back, a/d left/right, r/f up/down; e arms, q disarms. You beat the policy while a key is held."


class Operator(Node):
    """Commands on ``teleop/action``; asks the interlock to arm through its service, like everybody else."""

    def __init__(self) -> None:
        super().__init__("operator")
        task = load_task(self.declare_parameter("task_file", "").value)
        self.spec = task.spec
        self.kind = self.declare_parameter("kind", "scripted").value
        noise = self.declare_parameter("noise", 0.12).value
        self.seed = seed = self.declare_parameter("seed", 0).value
        self.session, self.seq, self.asked_at = uuid.uuid4().hex[:12], 0, 0.0
        self.safety = SafetyState()
        self.actions = self.create_publisher(ActionChunk, "teleop/action", profile("teleop/action"))
        self.enables = self.create_publisher(Bool, "enable", profile("enable"))
        self.arming = self.create_client(SetBool, "interlock/arm")
        self.create_subscription(SafetyState, "safety", self._on_safety, profile("safety"))
        self.create_subscription(TimeStep, "timestep", self._on_timestep, profile("timestep"))
        self.create_subscription(EpisodeEvent, "episode", self._on_episode, profile("episode"))
        if self.kind == "scripted":
            self.script = make_script(task, noise=noise, seed=seed)
            self.eyes = Latest(self, set(self.script.channels), True)  # an operator sees more than a policy may
            self.create_timer(0.5, self._arm_if_needed)
        elif not sys.stdin.isatty():
            raise SystemExit("operator: the keyboard needs a terminal: expected one, got none. In one of your own, run "
                             "rlinf teleop <recipe>, or ros2 run rlinf operator")
        else:
            self.key, self.key_at = "", 0.0
            self.get_logger().info(HELP)
            self.create_timer(0.02, self._read_keys)

    def _on_safety(self, safety: SafetyState) -> None:
        self.safety = safety

    def _on_episode(self, event: EpisodeEvent) -> None:
        if event.kind == EpisodeEvent.STARTED and self.kind == "scripted":
            self.script.reset(event.seed + SEEDS_APART * self.seed)

    def _on_timestep(self, step: TimeStep) -> None:
        if step.step_type == TimeStep.LAST:
            return
        if self.kind == "scripted" and step.mode == "demonstration":
            self.eyes.pull()
            self._send(self.script.act(self.eyes.channels).astype(np.float32), step.header.stamp)  # as a policy's
        elif self.kind == "keyboard" and (step.mode == "demonstration" or self._holding()):
            direction = KEYS.get(self.key, (0, 0, 0)) if self._holding() else (0, 0, 0)
            action = np.zeros(self.spec.action.dim)
            action[:3] = 0.5 * np.array(direction)
            self._send(action, step.header.stamp)

    def _send(self, action: np.ndarray, stamp: object) -> None:
        self.seq += 1
        chunk = action_chunk(self.spec, action, source="operator", session=self.session, seq=self.seq, version=-1,
                             observation_stamp=stamp)
        chunk.header.stamp = self.get_clock().now().to_msg()
        self.actions.publish(chunk)

    def _arm_if_needed(self) -> None:
        """Hold the enable and arm, as a person would: at the start, and after a commander has restarted."""
        self.enables.publish(Bool(data=True))
        waiting = self.safety.state == SafetyState.DISARMED or (
            self.safety.state == SafetyState.HOLD and self.safety.cause == "new_session")
        heard = self.actions.get_subscription_count() and self.count_publishers("timestep")
        if waiting and heard and self.arming.service_is_ready() and time.monotonic() - self.asked_at > 1.0:
            self._arm(True)

    def _arm(self, value: bool) -> None:
        self.asked_at = time.monotonic()
        self.arming.call_async(SetBool.Request(data=value))

    def _holding(self) -> bool:
        return time.monotonic() - self.key_at < KEY_HELD_S

    def _read_keys(self) -> None:
        while select.select([sys.stdin], [], [], 0)[0]:
            key = sys.stdin.read(1)
            self.enables.publish(Bool(data=key != "q"))  # every key renews it
            if key in ("e", "q"):
                self._arm(key == "e")
            self.key, self.key_at = key, time.monotonic()


def main() -> None:
    """Entry point; at a terminal, keys are read one by one and the terminal is put right again."""
    if not sys.stdin.isatty():
        run(Operator)
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        run(Operator)
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


if __name__ == "__main__":
    main()
