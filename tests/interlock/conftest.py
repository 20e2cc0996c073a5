import math
from dataclasses import dataclass, field

import pytest

from rlinf_core.interlock import Chunk, Inputs, Limits, Mode, State, step

TICK_NS = 10_000_000
HOME = (0.5, 0.0, 0.2, 0.0, 1.0, 0.0, 0.0)


def limits(**changes):
    values = dict(box_low=(0.3, -0.25, 0.005), box_high=(0.7, 0.25, 0.45), speed=0.25, acceleration=4.0,
                  divergence=0.03, enable_lease=math.inf)
    return Limits(**(values | changes))


def chunk(seq=1, stamp_ns=0, actions=((0.01, 0.0, 0.0),), dt_s=0.1, source="policy", session="a", mode="tcp_delta"):
    return Chunk(source, session, seq, 7, stamp_ns, dt_s, mode, tuple(map(tuple, actions)))


@dataclass
class Rig:
    """An interlock whose arm follows its commands perfectly, one tick at a time."""

    limits: Limits = field(default_factory=limits)
    state: State = field(default_factory=State)
    now: int = 0
    pose: tuple | None = HOME
    follow: bool = True

    def tick(self, *chunks, **inputs):
        inputs.setdefault("pose", self.pose)
        self.state, self.output, self.events = step(self.limits, self.state, Inputs(chunks=chunks, **inputs), self.now)
        if self.follow and self.output.target is not None and self.pose is not None:
            self.pose = self.output.target
        self.now += TICK_NS
        return self.output

    def arm(self):
        self.tick(arm=True)
        assert self.state.mode is Mode.ARMED
        return self

    def kinds(self):
        return [event.kind for event in self.events]


@pytest.fixture
def rig():
    return Rig().arm()
