"""The Franka's twin whose arm is behind FCI: libfranka's client and franka-sim's robot beneath
franka_ros2's topics.
"""

from pathlib import Path

import pytest

from sim_bridges.core.isolated import python_of
from tests.ros.conftest import peer_in
from tests.ros.stand_ins import start
from tests.ros.test_franka import DISARMED, FAULT, Bench

pytestmark = [
    pytest.mark.ros,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not python_of("sim_bridges.twins.fci"), reason="not run: .venvs/fci is not there (make fci)"
    ),
]
JUMP = "controller_torque_discontinuity"


@pytest.fixture(scope="module")
def station(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fci")
    (folder / "limits.yaml").write_text(
        f"extends: {Path('robots/franka_fr3/limits.yaml').resolve()}\ngripper_width: "
        f"0.08\ngripper_speed: 0.2\n"
    )
    robot = Path("robots/franka_fci_twin/robot.yaml").read_text()
    (folder / "robot.yaml").write_text("options: {hand_timeout_s: 1.0}\n" + robot)
    with peer_in(folder, 10) as peer:
        bench = Bench(peer)
        for name in ("twin", "driver", "interlock"):
            start(peer, name, f"station.robot={folder}", "station.lockstep=false")
        peer.spin(
            lambda: bench.targets and bench.poses and bench.widths and bench.fault() == "",
            what=lambda: f"the station: fault {bench.fault()}",
        )
        yield bench


def test_an_arm_of_franka_sim_stands_as_the_limits_of_a_real_one_have_it_and_moves(station):
    """``orientation`` of robots/franka_fr3 is that of a Franka hand by libfranka's frames."""
    station.moves()
    turned = station.poses[-1].pose.orientation
    assert abs(turned.x) > 0.99
    station.moves()


def test_s17_the_robots_own_error_is_the_fault_and_libfrankas_recovery_ends_it(station):
    station.moves()
    assert station.inject(JUMP).successful
    station.reach(FAULT, f"robot:reflex ({JUMP})")
    stood = station.poses[-1].pose.position.z
    station.peer.for_s(1.0)
    assert abs(station.poses[-1].pose.position.z - stood) < 0.005, (
        "it stands while nobody has reset it"
    )
    answer = station.clear(f"robot:reflex ({JUMP})")
    assert answer.success, answer.message
    station.reach(DISARMED)
    assert station.fault() == ""
    station.moves()


def test_what_is_no_error_of_its_own_is_injected_above_it(station):
    station.moves()
    assert station.inject("cartesian_reflex").successful
    station.reach(FAULT, "robot:reflex (cartesian_reflex)")
    assert station.clear("robot:reflex (cartesian_reflex)").success
    station.moves()
