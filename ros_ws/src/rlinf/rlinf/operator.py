"""Operator node: a person with a device who arms and takes over; in simulation, a script may stand in and demonstrate."""

from __future__ import annotations

import json
import sys
import termios
import tty
import uuid

from rlinf_msgs.msg import ActionChunk, TimeStep
from std_srvs.srv import SetBool

from rlinf.arms import arms_of, each
from rlinf.conversions import action_chunk
from rlinf.person import Person
from rlinf.qos import profile
from rlinf.scripted_operator import ScriptedOperator
from rlinf.spinning import StationNode, run
from rlinf.whereabouts import Lookout
from rlinf_core.operators import KEYBOARD, SCRIPTED, make_device
from rlinf_core.task import load_task


class Operator(StationNode):
    """Commands on ``teleop/action``; asks the interlock to arm through its service, like everybody else."""

    def __init__(self) -> None:
        super().__init__("operator")
        task = load_task(self.declare_parameter("task_file", "").value)
        self.spec = task.spec
        self.session, self.seq = uuid.uuid4().hex[:12], 0
        self.actions = self.create_publisher(ActionChunk, "teleop/action", profile("teleop/action"))
        self.create_subscription(TimeStep, "timestep", self._on_timestep, profile("timestep"))
        arms, kind = arms_of(self), self.declare_parameter("kind", KEYBOARD).value
        arming = [self.create_client(SetBool, each(arm, "interlock/arm")) for arm in arms or [""]]
        Lookout(self, "interlock", arming[0].service_is_ready)
        self.device: ScriptedOperator | Person
        if kind == SCRIPTED:
            self.device = ScriptedOperator(self, arms, arming, self.actions, task)
        else:
            said = [self.declare_parameter(name, "").value for name in ("settings", "beside")]
            devices = [said[0] or json.dumps({"kind": kind}), *filter(None, said[1:])]
            self.device = Person(self, arming, self.spec, {json.loads(each)["kind"]: make_device(each) for each in devices})

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
