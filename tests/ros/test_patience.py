"""The interlock's tick waits a little for a chunk that is late, and for nothing else; no clock and no node is involved."""

from types import SimpleNamespace

import numpy as np
import pytest

from rlinf import interlock_clock
from rlinf.interlock_clock import RealTime
from rlinf.phase import LOOK_S, SOONEST
from rlinf_core.interlock import Chunk
from tests.ros.test_phase import Clock

TICK_S = 0.01


class Heard:
    """What an interlock hears, by the clock of the test."""

    def __init__(self, clock, times, horizon=1, execute=1, hz=100):
        self.clock, self.times, self.how = clock, list(times), (1.0 / hz, horizon, execute)
        self.pressed, self.robot_fault, self.enable, self.events = {"pendant": False}, "", True, []
        self.others, self.happens = {"left/safety/to_others": SimpleNamespace(held="")}, []
        self.state_topic, self.chunks = "current_pose", []
        self.listeners = {topic: SimpleNamespace(arrived=[]) for topic in interlock_clock.ROLES}
        self.pulls = 0

    def pull(self):
        self.pulls += 1
        dt_s, horizon, execute = self.how
        while self.times and self.times[0] <= self.clock.now:
            at = self.times.pop(0)
            self.chunks.append(Chunk("policy", "a", 1, 0, 0, dt_s, "tcp_delta", ((0.0, 0.0, 0.0),) * horizon, execute))
            self.listeners["policy/action"].arrived.append(round(at * 1e9))
        while self.happens and self.happens[0][0] <= self.clock.now:
            self.happens.pop(0)[1](self)

    def hand_over(self):
        came = list(self.listeners["policy/action"].arrived)
        self.chunks.clear()
        self.listeners["policy/action"].arrived.clear()
        return came

    def age_ns(self, _):
        return 0

    def look_around(self):
        pass


def ticked(monkeypatch, times, seconds=30.0, happens=(), patient=True, late_s=0.0, **how):
    """(now, stamp) of each tick [s], and what each chunk waited for its own [s]."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr(interlock_clock, "time", SimpleNamespace(monotonic_ns=lambda: round(clock.now * 1e9),
                                                                 time_ns=lambda: round(clock.now * 1e9)))
    if not patient:
        monkeypatch.setattr(interlock_clock, "patience", lambda period_s: 0.0)
    heard, ticks, waits = Heard(clock, times, **how), [], []
    heard.happens = list(happens)

    def tick(now_ns, age_ns, late_s):
        ticks.append((clock.now, now_ns / 1e9))
        waits.extend(clock.now - at / 1e9 for at in heard.hand_over())

    RealTime(clock, heard, TICK_S, tick)
    while clock.due < seconds:
        clock.now = clock.due + late_s
        clock.callback()
    return np.array(ticks), np.array(waits), heard


def late_now_and_then(hz, seconds=30.0, most=0.0025):
    random, count = np.random.default_rng(0), round(seconds * hz)
    late = np.abs(random.normal(0.0, 1e-4, count)) + (random.random(count) < 0.03) * random.uniform(0.0, most, count)
    return np.maximum.accumulate(0.0137 + np.arange(count) / hz + late)


@pytest.mark.parametrize("hz", [20, 100])
def test_a_chunk_that_is_late_is_taken_as_it_comes_and_not_a_tick_later(monkeypatch, hz):
    times = late_now_and_then(hz)
    ticks, waits, _ = ticked(monkeypatch, times, hz=hz)
    assert waits[len(waits) // 4:].max() < 0.0035 and np.median(waits) < 0.0005, "after a late one ticks catch up slowly"
    assert np.diff(ticks[:, 0]).min() >= SOONEST * TICK_S - 1e-9
    assert np.diff(ticks[:, 1]).min() >= TICK_S - 1e-9, "the limits hold by measured time (S24)"
    assert (ticks[:, 1] - ticks[:, 0]).max() < 0.0036, "stamps are ahead by no more than one waits"
    assert np.diff(ticks[50:, 0]).mean() == pytest.approx(TICK_S, rel=2e-3), "its rate is what it was"


@pytest.mark.parametrize("hz", [20, 100])
def test_without_patience_they_wait_for_the_next(monkeypatch, hz):
    _, waits, _ = ticked(monkeypatch, late_now_and_then(hz), patient=False, hz=hz)
    assert np.sum(waits[len(waits) // 4:] > 0.006) > 3


def test_one_that_does_not_come_is_waited_for_once(monkeypatch):
    times = 0.0137 + np.arange(2000) / 100
    ticks, *_ = ticked(monkeypatch, np.delete(times, slice(1000, 1200)), seconds=19.0)
    late = np.flatnonzero(np.diff(ticks[500:, 0]) > TICK_S + 0.002)
    assert len(late) == 1, "and those after it as if none had been expected"


@pytest.mark.parametrize("how", [{"horizon": 8, "execute": 4}, {"horizon": 2}])
def test_none_is_waited_for_where_the_one_before_has_more_to_play(monkeypatch, how):
    ticks, waits, _ = ticked(monkeypatch, late_now_and_then(100), **how)
    assert np.diff(ticks[len(ticks) // 4:, 0]).max() < TICK_S * 1.051 and waits.max() > 0.006


@pytest.mark.parametrize("hz", [15, 30])
def test_at_a_rate_of_its_own_one_that_is_due_after_a_tick_is_not_waited_for(monkeypatch, hz):
    times = 0.0137 + np.arange(30 * hz) / hz
    ticks, *_ = ticked(monkeypatch, times, hz=hz)
    assert np.sum(np.diff(ticks[500:2900, 0]) > TICK_S + 0.001) <= 2


def test_after_a_wait_in_vain_the_grid_is_where_it_was(monkeypatch):
    """Though the machine wakes it a little late."""
    times = 0.0137 + np.arange(2500) / 100
    ticks, waits, _ = ticked(monkeypatch, np.delete(times, 1000), seconds=24.0, late_s=0.0001)
    assert np.max(np.diff(ticks[500:, 0])) > TICK_S + 0.002, "it has waited"
    assert np.median(waits[1100:]) == pytest.approx(np.median(waits[800:990]), abs=2e-4)


def test_none_is_waited_for_that_comes_without_a_rhythm(monkeypatch):
    random = np.random.default_rng(0)
    times = np.sort(np.arange(600) / 20 + random.uniform(0.0, 0.05, 600))
    ticks, *_ = ticked(monkeypatch, times, hz=20)
    gaps = np.diff(ticks[500:, 0])
    assert np.sum(gaps > TICK_S * 1.06) < 0.1 * 600, "but by chance"


@pytest.mark.parametrize("what", [
    lambda heard: heard.pressed.update(pendant=True), lambda heard: setattr(heard, "robot_fault", "reflex"),
    lambda heard: setattr(heard, "enable", False), lambda heard: heard.events.append("ended"),
    lambda heard: setattr(heard.others["left/safety/to_others"], "held", "estop:pendant")],
    ids=["e-stop", "fault", "enable let go", "episode", "other arm"])
def test_who_wants_the_arm_to_stop_is_not_kept_waiting(monkeypatch, what):
    """Nothing comes from 10.0 s on; it happens within the tick that waits."""
    times = 0.0137 + np.arange(1000) / 100
    without, *_ = ticked(monkeypatch, times)
    at = int(np.argmax(np.diff(without[500:, 0]))) + 501
    due, ended = without[at - 1, 0] + TICK_S, without[at, 0]
    assert ended - due > 0.0025, "it has waited there"
    monkeypatch.undo()
    stopped, *_ = ticked(monkeypatch, times, happens=[(due + 0.0005, what)])
    assert stopped[at, 0] == pytest.approx(due + 0.0005, abs=1.1 * LOOK_S)
