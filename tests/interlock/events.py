"""Helpers to test the core branch by branch: rigs in each mode, and a tick's events as tuples."""

import math

from rlinf_core.interlock import EStop, Mode
from tests.interlock import conftest
from tests.interlock.conftest import HOME, Rig, limits, stream

NAN = math.nan
NS = 10**9
PRESSED = (EStop("pendant", True, 0.0),)
# Far enough to realign the set-point, near enough not to count as divergence.
AWAY = (HOME[0] + 0.02, *HOME[1:])


def chunk(seq, stamp_ns, actions=((0.002, 0.0, 0.0),), **changes):
    """Return a chunk slow enough for all limits."""
    return conftest.chunk(seq, stamp_ns, actions, **changes)


def mode(name):
    return ("mode", name, "", "", -1, ())


def about(kind, cause, command, index=0):
    return (
        kind,
        cause,
        command.source,
        command.session,
        command.seq,
        command.actions[index] if command.actions else (),
    )


def tick(rig, *chunks, **inputs):
    """Run one tick; return its events as tuples."""
    now = rig.now
    rig.tick(*chunks, **inputs)
    assert all(event.now_ns == now for event in rig.events)
    assert rig.output.cause == rig.state.cause == str(rig.output.cause)
    assert (rig.output.cause != "") is (
        rig.output.mode is rig.state.mode in (Mode.HOLD, Mode.FAULT)
    )
    return [(e.kind, e.cause, e.source, e.session, e.seq, e.requested) for e in rig.events]


def active(source="policy", actions=((0.002, 0.0, 0.0),), ticks=1, limits_=None, **inputs):
    rig = Rig(limits_ or limits()).arm()
    assert tick(rig, chunk(1, rig.now, actions, source=source), **inputs) == [mode("ACTIVE")]
    for _ in range(ticks - 1):
        assert tick(rig, **inputs) == []
    return rig


def fast(source="policy"):
    """Return a rig at 0.2 m/s, 20 ticks from rest, whose last action has just ended."""
    rig = Rig(limits(acceleration=1.0)).arm()
    stream(rig, (0.02, 0.0, 0.0), actions=4, source=source)
    return rig


def held():
    rig = active()
    tick(rig, silent=("x",))
    assert rig.state.cause == "silent:x"
    return rig


def faulty():
    rig = active()
    assert tick(rig, robot_fault="reflex") == [mode("FAULT:robot:reflex")]
    return rig
