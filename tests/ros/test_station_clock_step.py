"""A machine's clock is set by an hour under a whole station that learns in real time."""

import time

import pytest
from rlinf_msgs.msg import SafetyState
from std_srvs.srv import SetBool

from rlinf_ros.qos import profile
from tests.ros.demo_runs import Run, check_nothing_lost, online
from tests.stepped_clock import SteppedClock

pytestmark = [pytest.mark.ros, pytest.mark.slow, pytest.mark.timeout(900)]
BACK_S = 200.0  # until nodes that lost each other have met again


@pytest.mark.domain(202)
def test_a_station_waits_for_a_person_after_its_clock_was_set_and_loses_no_episode(
    tmp_path, monkeypatch, peer
):
    """The arm holds until a person disarms and arms again. At most one episode ends meanwhile."""
    (tmp_path / "clock").mkdir()
    clock, states = SteppedClock(tmp_path / "clock"), []
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)
    peer.node.create_subscription(SafetyState, "safety", states.append, profile("safety"))
    arming = peer.node.create_client(SetBool, "interlock/arm")

    def request(value, states_wanted):
        peer.spin(arming.service_is_ready, BACK_S, "the interlock's services")
        sent_at, answers = [float("-inf")], []

        def done():
            if time.monotonic() - sent_at[0] > 2.0:
                sent_at[0] = time.monotonic()
                answer = arming.call_async(SetBool.Request(data=value))
                answer.add_done_callback(lambda done: answers.append(done.result().message))
            return states[-1].state in states_wanted

        peer.spin(done, BACK_S, lambda: f"arm {value}: {answers[-3:]}, {states[-1]}")

    with Run(
        tmp_path / "run",
        "station.processes=several",
        "station.lockstep=false",
        "online.max_env_steps=100000",
        "online.max_minutes=10",
        domain=202,
    ) as run:
        run.wait(lambda: len(online(run)) >= 2, 200, "the online phase")
        peer.spin(lambda: states, what="the interlock's state")
        for seconds in (3600, 0, -3600, 0):
            clock.step(seconds)
            began = time.monotonic()
            peer.spin(
                lambda: states[-1].state == SafetyState.HOLD and states[-1].cause == "clock",
                BACK_S,
                "the hold",
            )
            held_s, before = time.monotonic() - began, len(online(run))
            peer.for_s(5.0)
            assert states[-1].cause == "clock", "nothing but a person ends it"
            assert len(online(run)) <= before + 1, "no episode begins meanwhile"
            request(False, {SafetyState.DISARMED})
            request(True, {SafetyState.ARMED, SafetyState.ACTIVE, SafetyState.HOLD})
            before, began = len(online(run)), time.monotonic()
            run.wait(lambda n=before: len(online(run)) >= n + 2, BACK_S, f"episodes at {seconds}")
            print(
                f"clock at {seconds:+} s: hold after {held_s:.2f} s; two episodes "
                f"{time.monotonic() - began:.1f} s after the arming"
            )
        run.supervisor.children["director"].popen.terminate()
        run.wait(lambda: not list((run.folder / "spool/closed").iterdir()), 60, "the uplink")
        run.wait(lambda: run.statuses().keys() == run.sent(), 60, "the trainer")
    check_nothing_lost(run)
