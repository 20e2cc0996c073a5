"""Simulated time: a clock in each station's namespace, which its own nodes and a user's take with
use_sim_time.
"""

from dataclasses import replace

import pytest
import rclpy
from rclpy.parameter import Parameter
from rosgraph_msgs.msg import Clock

from rlinf_core.core.errors import RlinfError
from rlinf_core.launch.graph import station_processes
from rlinf_core.recipes import load_recipe
from rlinf_ros.conversions import to_ns
from rlinf_ros.qos import profile
from tests.ros.stand_ins import start

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]


def in_simulated_time(peer, station, seed):
    recipe = load_recipe("demo", [f"station.name={station}"])
    for process in station_processes(recipe, peer.supervisor.run_dir):
        if process.name in ("sim_bridge", "interlock"):
            # disarmed, it ticks that often
            process.parameters.update(
                use_sim_time=True,
                **({"seed": seed} if process.name == "sim_bridge" else {"lockstep_guard_s": 0.05}),
            )
            peer.supervisor.start(replace(process, name=f"{station}_{process.name}"))


@pytest.mark.lockstep
@pytest.mark.domain(115)
def test_two_simulated_stations_have_a_clock_each_and_a_users_node_follows_one(peer):
    clocks = {"station_a": [], "station_b": []}
    for station, times in clocks.items():
        peer.node.create_subscription(
            Clock,
            f"/{station}/clock",
            lambda message, to=times: to.append(to_ns(message.clock)),
            profile("clock"),
        )
    in_simulated_time(peer, "station_a", 1)
    peer.spin(lambda: len(clocks["station_a"]) > 5, what="the first clock")
    in_simulated_time(peer, "station_b", 2)
    peer.spin(
        lambda: len(clocks["station_b"]) > 5 and clocks["station_a"][-1] > clocks["station_a"][0],
        what="both, going on",
    )
    for times in clocks.values():
        assert times == sorted(times), "it runs backwards"
    assert not peer.node.count_publishers("/clock")
    theirs = rclpy.create_node(
        "rviz",
        context=peer.context,
        parameter_overrides=[Parameter("use_sim_time", value=True)],
        cli_args=["--ros-args", "-r", "/clock:=/station_a/clock"],
    )
    peer.executor.add_node(theirs)
    peer.spin(
        lambda: theirs.get_clock().now().nanoseconds in clocks["station_a"],
        what="the station's time",
    )
    assert theirs.get_clock().now().nanoseconds < 3600 * 10**9, "and no wall clock"
    theirs.destroy_node()


@pytest.mark.domain(116)
def test_a_station_in_real_time_takes_no_simulated_time(peer):
    start(peer, "interlock", "station.lockstep=false", use_sim_time=True)
    with pytest.raises(
        RlinfError, match="interlock: use_sim_time: expected false for a station in real time"
    ):
        peer.spin(lambda: False, 30)
