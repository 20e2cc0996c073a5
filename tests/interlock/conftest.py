import math
from dataclasses import dataclass, field

import pytest

from rlinf_core.interlock import Chunk, Inputs, Limits, Mode, State, step

TICK_NS = 10_000_000
HOME = (0.5, 0.0, 0.2, 0.0, 1.0, 0.0, 0.0)
JOINTS = (0.0, 0.35, 0.0, -2.1, 0.0, 2.45, 0.785)


def limits(**changes):
    values = dict(
        box_low=(0.3, -0.25, 0.005),
        box_high=(0.7, 0.25, 0.45),
        speed=0.25,
        acceleration=4.0,
        jerk=math.inf,
        divergence=0.03,
        orientation=HOME[3:],
        cone=0.5,
        enable_lease=math.inf,
    )
    return Limits(**(values | changes))


def joint_limits(**changes):
    ranges = dict(
        joint_names=tuple(f"fr3_joint{i}" for i in range(1, 8)),
        joint_low=(-2.74, -1.78, -2.90, -3.04, -2.81, 0.54, -3.02),
        joint_high=(2.74, 1.78, 2.90, -0.15, 2.81, 4.52, 3.02),
    )
    return limits(control_mode="joint_delta", **(ranges | changes))


def chunk(
    seq=1,
    stamp_ns=0,
    actions=((0.01, 0.0, 0.0),),
    dt_s=0.1,
    source="policy",
    session="a",
    mode="tcp_delta",
):
    return Chunk(source, session, seq, 7, stamp_ns, dt_s, mode, tuple(map(tuple, actions)))


def release(seq=1, stamp_ns=0, session="a", mode="tcp_delta"):
    """Return a chunk with which the operator lets go of a takeover."""
    return Chunk("operator", session, seq, -1, stamp_ns, 0.1, mode, (), execute=0, is_release=True)


@dataclass
class Rig:
    """An interlock whose arm follows its commands perfectly, one tick at a time."""

    limits: Limits = field(default_factory=limits)
    state: State = field(default_factory=State)
    now: int = 0
    pose: tuple | None = HOME
    joints: tuple | None = None
    gripper: float | None = None
    follow: bool = True

    def tick(self, *chunks, **inputs):
        inputs = {"pose": self.pose, "joints": self.joints, "gripper": self.gripper} | inputs
        self.state, self.output, self.events = step(
            self.limits, self.state, Inputs(chunks=chunks, **inputs), self.now
        )
        if self.follow and self.output.target is not None and self.pose is not None:
            self.pose = self.output.target
        if self.follow and self.output.joints:
            self.joints = self.output.joints
        if self.follow and self.output.gripper is not None:
            self.gripper = self.output.gripper
        self.now += round(self.limits.tick * 1e9)
        return self.output

    def settle(self):
        """Run enough ticks for the interlock to see the arm at rest."""
        for _ in range(max(3, round(0.1 / self.limits.tick))):
            self.tick()
        return self

    def arm(self):
        self.settle()
        self.tick(arm=True)
        assert self.state.mode is Mode.ARMED
        return self

    def kinds(self):
        return [event.kind for event in self.events]


@pytest.fixture
def rig():
    return Rig().arm()


S9 = dict(acceleration=1.0, jerk=10.0)


def stream(rig, action, actions=10, source="policy", seq=1, ticks=10, **inputs):
    """Send chunks of one action each, back to back; return the output of every tick."""
    outputs = []
    for number in range(actions):
        command = chunk(
            seq + number, rig.now, (action,), source=source, mode=rig.limits.control_mode
        )
        outputs += [rig.tick(*([command] if tick == 0 else []), **inputs) for tick in range(ticks)]
    return outputs


def until(rig, condition, ticks=1000, **inputs):
    """Run ticks until the condition holds; return their number."""
    for number in range(1, ticks):
        rig.tick(**inputs)
        if condition():
            return number
    raise AssertionError(f"not within {ticks} ticks")
