"""Each way to bring up a robot moves its twin: a forward position controller, MoveIt Servo by pose,
franka_ros2's own.
"""

import pytest
from geometry_msgs.msg import PoseStamped
from rlinf_msgs.msg import ActionChunk, SafetyState
from std_msgs.msg import Bool, String
from std_srvs.srv import SetBool

from rlinf_core.launch.graph import station_processes
from rlinf_core.recipes import load_recipe
from rlinf_ros.qos import LAZY_PROFILE, profile
from tests.ros.conftest import peer_in
from tests.ros.stand_ins import listen, start

pytestmark = [pytest.mark.ros, pytest.mark.timeout(240)]
JOINTS = [0.0, 0.0, 0.02, 0.0, 0.0, 0.0]
CASES = [
    ("ur5e_forward_twin", "ur5e_reach", "ur_dashboard_msgs.msg", "joint_delta", JOINTS, 203),
    (
        "ur5e_servo_twin",
        "ur5e_servo_reach",
        "ur_dashboard_msgs.msg",
        "tcp_delta",
        [0.0, 0.0, 0.01],
        204,
    ),
    ("franka_twin_example", "reach", "franka_msgs.msg", "tcp_delta", [0.0, 0.0, 0.01], 205),
]


class Follower:
    """Interlock, driver and controller of a robot that is brought up, with a test as its policy and
    person.
    """

    def __init__(self, peer, changes, mode, step, names=("driver", "controller", "interlock")):
        self.peer, self.mode, self.step, self.seq = peer, mode, step, 0
        self.states = listen(peer, SafetyState, "safety")
        self.faults = listen(peer, String, "robot/fault")
        self.poses = []
        processes = {
            process.name: process
            for process in station_processes(load_recipe("demo", changes), peer.supervisor.run_dir)
        }
        where = dict(processes["interlock"].remappings)
        peer.node.create_subscription(
            PoseStamped,
            where.get("/station_a/current_pose", "current_pose"),
            self.poses.append,
            LAZY_PROFILE,
        )
        self.actions, self.enables = (
            peer.node.create_publisher(kind, name, profile(name))
            for name, kind in (("policy/action", ActionChunk), ("enable", Bool))
        )
        peer.every(0.1, self.ten_hertz)
        self.started = processes.keys() & {*names}
        for name in sorted(self.started, reverse=True):
            start(peer, name, *changes)
        self.arming = peer.node.create_client(SetBool, "interlock/arm")
        peer.spin(
            lambda: self.poses and self.states and self.faults and self.faults[-1].data == "",
            what=lambda: f"the robot side: {self.faults[-1:]}",
        )
        peer.spin(self.arming.service_is_ready, what="the interlock")

    def ten_hertz(self):
        self.seq += 1
        self.enables.publish(Bool(data=True))
        self.actions.publish(
            ActionChunk(
                source="policy",
                session="policy",
                seq=self.seq,
                dt=0.1,
                control_mode=self.mode,
                horizon=1,
                dim=len(self.step),
                execute=1,
                data=self.step,
                observation_stamp=self.peer.node.get_clock().now().to_msg(),
            )
        )

    def expect_rest(self):
        """Disarmed, the arm ignores what the policy wants."""
        begun = self.poses[-1].pose.position
        self.peer.for_s(0.5)
        assert moved(self.poses[-1].pose.position, begun) < 0.001

    def expect_motion(self):
        """Armed, it moves."""
        begun = self.poses[-1].pose.position
        self.peer.spin(
            lambda: (
                arm(self.peer, self.arming) and moved(self.poses[-1].pose.position, begun) > 0.02
            ),
            60,
            what=lambda: (
                f"motion: {self.states[-1].state} {self.states[-1].cause}, {self.faults[-1].data}"
            ),
        )


@pytest.mark.parametrize(
    "robot, task, messages, mode, step, domain", CASES, ids=[case[0] for case in CASES]
)
def test_the_twin_follows_by_the_controllers_own_topic(
    tmp_path, robot, task, messages, mode, step, domain
):
    pytest.importorskip(messages, reason=f"rlinf messages builds {messages}")
    changes = (
        f"station.robot={robot}",
        f"station.task={task}",
        "station.lockstep=false",
        "station.operator.kind=keyboard",
    )
    with peer_in(tmp_path, domain) as peer:
        follower = Follower(
            peer, changes, mode, step, ("twin", "driver", "controller", "interlock")
        )
        assert ("controller" in follower.started) is (mode == "joint_delta")
        follower.expect_motion()


def arm(peer, arming):
    """Armed again where it is not: a test is no person, and the first commands may be older than
    the arming.
    """
    if getattr(arming, "request", None) is None or arming.request.done():
        arming.request = arming.call_async(SetBool.Request(data=True))
    return True


def moved(here, begun):
    return max(abs(getattr(here, axis) - getattr(begun, axis)) for axis in "xyz")
