"""Operator node: a person at the keyboard who arms and takes over; in simulation, a script may stand in and demonstrate."""

from __future__ import annotations

import select
import sys
import termios
import time
import tty
import uuid
from collections.abc import Sequence

import numpy as np
from rclpy.client import Client
from rclpy.node import Node
from rclpy.task import Future
from rlinf_msgs.msg import ActionChunk, TimeStep
from std_msgs.msg import Bool
from std_srvs.srv import SetBool

from rlinf.arms import arms_of, each
from rlinf.conversions import action_chunk
from rlinf.qos import profile
from rlinf.scripted_operator import ScriptedOperator
from rlinf.spinning import run
from rlinf_core.errors import RlinfError
from rlinf_core.specs import ActionSpec, StationSpec
from rlinf_core.task import load_task

PAIRS = {"x": ("ws", "forward/back"), "y": ("ad", "left/right"), "z": ("rf", "up/down"), "rx": ("lj", "tilt right/left"),
         "ry": ("ik", "tip forward/back"), "rz": ("uo", "turn left/right"), "grip": ("vc", "open/close the gripper")}
KEY_HELD_S = 0.4
HELP = "{}; e arms, q disarms. You beat the policy while a key is held."
CHOOSE = " Keys move arm {}; choose by number: {}. The others rest, and e and q are for all."


def axes(action: ActionSpec) -> dict[str, int]:
    """Those of ``PAIRS`` that one arm's actions have, in their order: where each stands in them."""
    if action.control_mode != "tcp_delta":
        return {"x": 0, "y": 1, "z": 2}
    arm = ("x", "y", "z", "rx", "ry", "rz")[:6 if action.dim >= 6 else 3]
    return {axis: place for place, axis in enumerate((*arm, "grip")[:action.dim])}


class KeyboardOperator:
    """A person: every key renews the enable, ``e`` arms, ``q`` disarms, the others move while they are held.

    Of several arms they move one, which its number chooses, and the others rest meanwhile.
    """

    def __init__(self, node: Node, arming: Sequence[Client], spec: StationSpec) -> None:
        if not sys.stdin.isatty():
            raise RlinfError("operator: the keyboard needs a terminal: expected one, got none. In one of your own, run "
                             "rlinf teleop <recipe>, or ros2 run rlinf operator")
        self.node, self.arming, self.spec = node, arming, spec
        self.enables = node.create_publisher(Bool, "enable", profile("enable"))
        self.key, self.key_at = "", 0.0
        self.arms = dict(zip("123456789", spec.action.arms, strict=False))
        self.arm = self.arms.get("1", "")
        self._help()
        node.create_timer(0.02, self._read_keys)

    @property
    def axes(self) -> dict[str, int]:
        """Of the arm that the keys move; another arm may have others."""
        return axes(self.spec.action.of_arm(self.arm) if self.arm else self.spec.action)

    def _help(self) -> None:
        numbers = ", ".join(f"{number} {arm}" for number, arm in self.arms.items())
        keys = ", ".join(f"{pair[0]}/{pair[1]} {way}" for pair, way in map(PAIRS.__getitem__, self.axes))
        self.node.get_logger().info(HELP.format(keys) + (CHOOSE.format(self.arm, numbers) if self.arms else ""))

    def _read_keys(self) -> None:
        while select.select([sys.stdin], [], [], 0)[0]:
            key = sys.stdin.read(1)
            self.enables.publish(Bool(data=key != "q"))
            for client in self.arming if key in ("e", "q") else ():
                client.call_async(SetBool.Request(data=key == "e")).add_done_callback(self._told)
            if key in self.arms:
                self.arm = self.arms[key]
                self._help()
            self.key, self.key_at = key, time.monotonic()

    def _told(self, answer: Future) -> None:
        self.node.get_logger().info(answer.result().message)

    def answer(self, step: TimeStep) -> np.ndarray | None:
        """The direction of the key that is held; rest in demonstrations, and None elsewhere, while none is."""
        holding = time.monotonic() - self.key_at < KEY_HELD_S
        if not holding and step.mode != "demonstration":
            return None
        action = np.zeros(self.spec.action.dim)
        for axis, place in self.axes.items() if holding else ():
            keys = PAIRS[axis][0]
            action[self.spec.action.rows(self.arm)][place] = 0.5 * ((self.key == keys[0]) - (self.key == keys[1]))
        return action


class Operator(Node):
    """Commands on ``teleop/action``; asks the interlock to arm through its service, like everybody else."""

    def __init__(self) -> None:
        super().__init__("operator")
        task = load_task(self.declare_parameter("task_file", "").value)
        self.spec = task.spec
        self.session, self.seq = uuid.uuid4().hex[:12], 0
        self.actions = self.create_publisher(ActionChunk, "teleop/action", profile("teleop/action"))
        self.create_subscription(TimeStep, "timestep", self._on_timestep, profile("timestep"))
        arms, kind = arms_of(self), self.declare_parameter("kind", "keyboard").value
        arming = [self.create_client(SetBool, each(arm, "interlock/arm")) for arm in arms or [""]]
        self.device: ScriptedOperator | KeyboardOperator
        if kind == "scripted":
            self.device = ScriptedOperator(self, arms, arming, self.actions, task)
        elif kind == "keyboard":
            self.device = KeyboardOperator(self, arming, self.spec)
        else:
            raise RlinfError(f"operator: expected kind scripted or keyboard, got '{kind}'")

    def check(self) -> None:
        """RlinfError where a script finds itself at a real arm."""
        getattr(self.device, "check", lambda: None)()

    def _on_timestep(self, step: TimeStep) -> None:
        action = None if step.step_type == TimeStep.LAST else self.device.answer(step)
        if action is None:
            return
        self.seq += 1
        chunk = action_chunk(self.spec, action, source="operator", session=self.session, seq=self.seq, version=-1,
                             observation_stamp=step.header.stamp)
        chunk.header.stamp = self.get_clock().now().to_msg()
        self.actions.publish(chunk)


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
