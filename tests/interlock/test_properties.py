"""S8 for every input sequence: whatever comes in, what goes out stays inside the envelope at every tick, to 1e-9."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlinf_core.interlock import Mode
from tests.interlock.conftest import HOME, Rig, chunk

EDGE = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e300, -0.0, 0.02, -0.02, 5e-324])
NUMBER = st.one_of(EDGE, st.floats(-0.05, 0.05))
ACTION = st.one_of(st.tuples(NUMBER, NUMBER, NUMBER), st.lists(NUMBER, max_size=4).map(tuple))
CHUNK = st.tuples(
    st.integers(0, 60), st.integers(-5, 5), st.lists(ACTION, max_size=4), st.sampled_from([0.1, 0.05, 0.0, math.nan]),
    st.sampled_from(["policy", "operator", ""]), st.sampled_from("ab"), st.sampled_from(["tcp_delta", "joint"]))
TICK = st.fixed_dictionaries({
    "chunk": st.one_of(st.none(), CHUNK), "arm": st.sampled_from([None, None, None, True, True, False]),
    "end": st.booleans(), "age_ms": st.sampled_from([0, 0, 0, 0, 60, 600]),
    "clock": st.sampled_from([0, 0, 0, 0, 7, 3_000, -2_000]), "blocked": st.booleans(), "repeat": st.integers(1, 12),
    "pose": st.sampled_from(["fine", "fine", "fine", "none", "nan"]), "reset": st.sampled_from([None, "invalid_command"]),
})


def check_envelope(ticks):
    rig = Rig().arm()
    limits, velocity, position = rig.limits, (0.0, 0.0, 0.0), rig.output.target[:3]
    for entry in ticks:
        chunks = () if entry["chunk"] is None else (_chunk(rig.now, *entry["chunk"]),)
        for again in range(entry["repeat"]):
            poses = {"fine": rig.pose, "none": None, "nan": (math.nan, *HOME[1:])}
            rig.follow = not entry["blocked"]
            output = rig.tick(*(chunks if again == 0 else ()), arm=entry["arm"] if again == 0 else None,
                              end_episode=entry["end"], pose=poses[entry["pose"]],
                              pose_age_ns=entry["age_ms"] * 1_000_000, reset_fault=entry["reset"])
            target = output.target[:3]
            assert all(map(math.isfinite, output.target))
            assert all(lo - 1e-9 <= t <= hi + 1e-9 for lo, t, hi in
                       zip(limits.box_low, target, limits.box_high, strict=True))
            if "reseeded" in rig.kinds():
                velocity, position = (0.0, 0.0, 0.0), tuple(p - v * 0.01 for p, v in
                                                            zip(target, rig.state.velocity, strict=True))
            moved = tuple((t - p) / limits.tick for t, p in zip(target, position, strict=True))
            assert math.hypot(*moved) <= limits.speed + 1e-9
            change = math.dist(moved, velocity) / limits.tick
            assert change <= limits.acceleration + 1e-6
            assert output.mode in (Mode.ACTIVE, Mode.HOLD, Mode.ARMED, Mode.DISARMED, Mode.FAULT)
            velocity, position = moved, target
        rig.now += entry["clock"] * 1_000_000


def _chunk(now, seq, ticks_ago, actions, dt, source, session, mode):
    return chunk(seq, now - ticks_ago * 10_000_000, actions, dt, source, session, mode)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(TICK, max_size=25))
def test_s08_envelope_for_any_input(ticks):
    check_envelope(ticks)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=20_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(TICK, max_size=25))
def test_s08_envelope_for_any_input_at_length(ticks):
    check_envelope(ticks)
