"""Each way to bring up a robot moves its twin: a forward position controller, MoveIt Servo by pose, franka_ros2's own."""

import pytest
from geometry_msgs.msg import PoseStamped
from rlinf_msgs.msg import ActionChunk, SafetyState
from std_msgs.msg import Bool, String
from std_srvs.srv import SetBool

from rlinf_core.launch.graph import station_processes
from rlinf_core.recipes import load_recipe
from rlinf_ros.qos import OVERHEARD, profile
from tests.ros.conftest import peer_in
from tests.ros.stand import listen, start

pytestmark = [pytest.mark.ros, pytest.mark.timeout(240)]
JOINTS = [0.0, 0.0, 0.02, 0.0, 0.0, 0.0]
CASES = [
    ("ur5e_forward_twin", "ur5e_reach", "ur_dashboard_msgs.msg", "joint_delta", JOINTS, 203),
    ("ur5e_servo_twin", "ur5e_servo_reach", "ur_dashboard_msgs.msg", "tcp_delta", [0.0, 0.0, 0.01], 204),
    ("franka_twin_example", "reach", "franka_msgs.msg", "tcp_delta", [0.0, 0.0, 0.01], 205)]


@pytest.mark.parametrize("robot, task, messages, mode, step, domain", CASES, ids=[case[0] for case in CASES])
def test_the_twin_follows_by_the_controllers_own_topic(tmp_path, robot, task, messages, mode, step, domain):
    pytest.importorskip(messages, reason=f"rlinf messages builds {messages}")
    changes = (f"station.robot={robot}", f"station.task={task}", "station.lockstep=false",
               "station.operator.kind=keyboard")
    with peer_in(tmp_path, domain) as peer:
        states, faults, poses = listen(peer, SafetyState, "safety"), listen(peer, String, "robot/fault"), []
        processes = {process.name: process for process in station_processes(load_recipe("demo", changes), tmp_path)}
        where = dict(processes["interlock"].remappings)
        peer.node.create_subscription(PoseStamped, where.get("/station_a/current_pose", "current_pose"), poses.append,
                                      OVERHEARD)
        actions, enables = (peer.node.create_publisher(kind, name, profile(name))
                            for name, kind in (("policy/action", ActionChunk), ("enable", Bool)))
        sent = [0]

        def ten_hertz():
            sent[0] += 1
            enables.publish(Bool(data=True))
            actions.publish(ActionChunk(source="policy", session="policy", seq=sent[0], dt=0.1, control_mode=mode,
                                        horizon=1, dim=len(step), execute=1, data=step,
                                        observation_stamp=peer.node.get_clock().now().to_msg()))

        peer.every(0.1, ten_hertz)
        names = processes.keys() & {"twin", "driver", "controller", "interlock"}
        assert ("controller" in names) is (mode == "joint_delta")
        for name in sorted(names, reverse=True):
            start(peer, name, *changes)
        peer.spin(lambda: poses and states and faults and faults[-1].data == "",
                  what=lambda: f"the robot side: {faults[-1:]}")
        begun = poses[-1].pose.position
        arming = peer.node.create_client(SetBool, "interlock/arm")
        peer.spin(arming.service_is_ready, what="the interlock")
        peer.spin(lambda: arm(peer, arming) and moved(poses[-1].pose.position, begun) > 0.02, 60,
                  what=lambda: f"motion: {states[-1].state} {states[-1].cause}, {faults[-1].data}")


def arm(peer, arming):
    """Armed again where it is not: a test is no person, and the first commands may be older than the arming."""
    if getattr(arming, "request", None) is None or arming.request.done():
        arming.request = arming.call_async(SetBool.Request(data=True))
    return True


def moved(here, begun):
    return max(abs(getattr(here, axis) - getattr(begun, axis)) for axis in "xyz")
