"""`rlinf param` and `rlinf lifecycle` at an interlock that runs: what ros2 does, where no ROS is
beside the wheels.
"""

import pytest
from rlinf_msgs.msg import SafetyState

from rlinf_core.interlock import load_limits
from rlinf_core.recipes import load_recipe, station_robot
from tests.ros.stand_ins import listen, start
from tests.ros.test_station_client import rlinf

pytestmark = [pytest.mark.ros, pytest.mark.patient, pytest.mark.timeout(300)]


@pytest.mark.domain(58)
def test_parameters_are_listed_set_and_refused_with_what_they_may_be(peer):
    start(peer, "interlock", "station.lockstep=false")
    states = listen(peer, SafetyState, "safety")
    peer.spin(lambda: states, what="the interlock")
    speed = load_limits(station_robot(load_recipe("demo")).limits).speed

    code, output = rlinf(peer, "param", "list", "interlock", domain=58)
    lines = {
        line.split()[0]: " ".join(line.split()[1:])
        for line in output.splitlines()
        if line[0] != " "
    }
    assert code == 0 and lines["limits.speed"].startswith(
        f"{speed} 0.001 to 3 may change largest speed"
    )
    assert lines["lockstep"] == "false fixed true: simulated time, as fast as the machine allows"

    def refused(*words):
        code, output = rlinf(peer, "param", *words, domain=58)
        assert code == 2 and len(output.splitlines()) == 1
        return output

    assert "got '/station_a/interlok' (did you mean 'interlock'?). Nodes: interlock" in refused(
        "get", "/station_a/interlok", "limits.speed", "--timeout", "2"
    )
    assert "got 'limits.sped' (did you mean 'limits.speed'?)" in refused(
        "get", "interlock", "limits.sped"
    )
    error = refused("set", "interlock", "lockstep", "true")
    assert (
        "lockstep is fixed when the node starts, at false. These can change" in error
        and "limits.speed" in error
    )
    error = refused("set", "interlock", "limits.speed", "slow")
    assert f"limits.speed: expected a number, as {speed} is; got 'slow'" in error
    assert (
        "rlinf: interlock: " in (error := refused("set", "interlock", "limits.speed", "99"))
        and "Max: 3" in error
    )

    before = states[-1].limits_hash
    code, output = rlinf(
        peer, "param", "set", "/station_a/interlock", "limits.speed", "0.01", domain=58
    )
    assert (code, output) == (0, f"interlock: limits.speed is 0.01, was {speed}\n")
    peer.spin(lambda: states[-1].limits_hash != before, what="the new hash")
    code, output = rlinf(peer, "param", "get", "interlock", "limits.speed", domain=58)
    assert (code, output) == (0, "0.01\n")


@pytest.mark.domain(208)
def test_a_life_cycle_is_taken_through_its_transitions(peer):
    start(peer, "interlock", "station.lockstep=false")
    states = listen(peer, SafetyState, "safety")
    peer.spin(lambda: states, what="the interlock")
    code, output = rlinf(peer, "lifecycle", "interlock", "configure", domain=208)
    assert (
        code == 2
        and "expected an available transition, " in output
        and "; got 'configure'" in output
    )
    code, output = rlinf(peer, "lifecycle", "peer", "shutdown", "--timeout", "4", domain=208)
    assert code == 2 and output == (
        "rlinf: peer: expected a lifecycle node (such as an interlock), got another kind "
        "[RL-E502]\n"
    )
    interlock = peer.supervisor.children.pop("interlock").popen
    code, output = rlinf(peer, "lifecycle", "interlock", "shutdown", domain=208)
    assert (code, output) == (0, "interlock: shutdown: done\n")
    peer.spin(lambda: interlock.poll() is not None, what="its end")
    assert interlock.poll() == 0
