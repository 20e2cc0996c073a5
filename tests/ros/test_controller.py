"""An arm that is one YAML (robots/ur5e): its driver's own topics and its own controller, behind the
interlock.
"""

import copy
import itertools
import math
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from geometry_msgs.msg import PoseStamped, Twist, TwistStamped, WrenchStamped
from rcl_interfaces.srv import GetParameters
from rclpy.duration import Duration
from rclpy.parameter import Parameter
from rlinf_msgs.msg import ActionChunk, SafetyState
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Float64, Float64MultiArray
from std_srvs.srv import SetBool
from trajectory_msgs.msg import JointTrajectory

from rlinf_core.core.errors import RecipeError
from rlinf_core.interlock import load_limits, with_values
from rlinf_core.launch.graph import Process, station_processes
from rlinf_core.recipes import check_recipe, load_recipe
from rlinf_core.robots.config import load_robot
from rlinf_drivers.controller import CATCH_UP_FACTOR, MAX_INTERVAL_S, Controller
from rlinf_ros.conversions import NS, to_ns, to_stamp
from rlinf_ros.qos import profile
from tests.ros.stand_ins import listen

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]
UR5E = [
    "station.robot=ur5e",
    "station.task=ur5e_reach",
    "station.operator.kind=keyboard",
    "station.lockstep=false",
]
ARM = (
    "shoulder_pan_joint",
    "shoulder_lift_joint",
    "elbow_joint",
    "wrist_1_joint",
    "wrist_2_joint",
    "wrist_3_joint",
)
FOLLOWS = "/scaled_joint_trajectory_controller/joint_trajectory"
HOME = dict(zip(ARM, (0.0, -1.57, 1.57, -1.57, -1.57, 0.0), strict=True))


class Driver:
    """A stand-in for ur_robot_driver: its topic names, order of joints, and controller."""

    def __init__(self, peer):
        self.node, self.angles, self.sent = peer.node, dict(HOME), []
        self.joints = peer.node.create_publisher(JointState, "/joint_states", 10)
        self.pose = peer.node.create_publisher(PoseStamped, "/tcp_pose_broadcaster/pose", 10)
        self.wrench = peer.node.create_publisher(
            WrenchStamped, "/force_torque_sensor_broadcaster/wrench", 10
        )
        self.slider = peer.node.create_publisher(
            Float64, "/speed_scaling_state_broadcaster/speed_scaling", 10
        )
        self.enable = peer.node.create_publisher(Bool, "enable", profile("enable"))
        self.following = peer.node.create_subscription(JointTrajectory, FOLLOWS, self.follow, 10)
        self.frame = "base"
        self.every = 1
        self.ahead_s = 0.0
        self.times_published = 0
        self.wrench_message = WrenchStamped()
        peer.every(0.01, self.say)

    def follow(self, trajectory):
        self.sent.append((time.monotonic(), trajectory))
        self.angles.update(
            zip(trajectory.joint_names, trajectory.points[-1].positions, strict=True)
        )

    def say(self):
        self.times_published += 1
        now = (self.node.get_clock().now() + Duration(seconds=self.ahead_s)).to_msg()
        names = sorted(self.angles)
        joints, pose, wrench = JointState(name=names), PoseStamped(), self.wrench_message
        joints.position = [self.angles[name] for name in names]
        pose.header.frame_id, pose.pose.position.x, pose.pose.position.z = self.frame, 0.4, 0.3
        pose.pose.orientation.x, pose.pose.orientation.w = 1.0, 0.0
        for publisher, message in ((self.joints, joints), (self.pose, pose), (self.wrench, wrench)):
            message.header.stamp = now
            if message is not pose or self.times_published % self.every == 0:
                publisher.publish(message)
        self.enable.publish(Bool(data=True))
        self.slider.publish(Float64(data=20.0))


@pytest.mark.domain(120)
def test_a_ur5e_moves_by_its_own_joint_trajectory_controller_and_stops_with_the_interlock(peer):
    recipe = load_recipe("demo", UR5E)
    check_recipe(recipe)
    states, driver = listen(peer, SafetyState, "safety"), Driver(peer)
    for process in station_processes(recipe, peer.supervisor.run_dir):
        if process.name in ("interlock", "controller"):
            process.parameters.update(
                {"latch_file": "", "driver": False, "no_estop_reason": "the test is no robot"}
                if process.name == "interlock"
                else {}
            )
            peer.supervisor.start(process)
    chunks = peer.node.create_publisher(ActionChunk, "policy/action", profile("policy/action"))
    arming = peer.node.create_client(SetBool, "interlock/arm")

    def armed():
        peer.spin(arming.service_is_ready, what="the interlock")
        answer = arming.call_async(SetBool.Request(data=True))
        peer.spin(answer.done, what="the answer")
        return answer.result().success

    def step():
        chunks.publish(
            ActionChunk(
                source="policy",
                session="s",
                seq=len(driver.sent) + 1,
                dt=0.1,
                horizon=1,
                dim=6,
                execute=1,
                control_mode="joint_delta",
                data=[0.0, 0.0, 0.02, 0.0, 0.0, 0.0],
                observation_stamp=peer.node.get_clock().now().to_msg(),
            )
        )

    peer.spin(armed, what="arming")
    peer.node.create_timer(0.1, step)
    peer.spin(
        lambda: driver.angles["elbow_joint"] > 1.62,
        what=lambda: f"motion: {states[-1:]}, {driver.angles}",
    )
    others = {name: angle for name, angle in driver.angles.items() if name != "elbow_joint"}
    assert others == pytest.approx({name: HOME[name] for name in others}, abs=1e-6)
    _, newest = driver.sent[-1]
    assert tuple(newest.joint_names) == ARM
    first, last = driver.sent[0][1], newest.points[-1].time_from_start.nanosec
    assert [point.time_from_start.nanosec for point in first.points] == [50_000_000], (
        "from where the arm is"
    )
    assert newest.points[0].time_from_start.nanosec == 0 and 5_000_000 < last <= 50_000_000, (
        "from the target before"
    )
    distances = [
        message.points[-1].positions[2] - message.points[0].positions[2]
        for _, message in driver.sent
    ]
    assert max(distances) > 0.004, (
        "from where a robot that is slowed to a fifth has come to: 0.002 is the way of a message"
    )
    twin, real = (load_robot(name).controller for name in ("ur5e_twin", "ur5e"))
    assert (twin.kind, twin.topic, twin.slowed_by) == (
        real.kind,
        f"/ur_twin{real.topic}",
        f"/ur_twin{real.slowed_by}",
    )
    peer.supervisor.children.pop("interlock").popen.kill()
    peer.for_s(0.5)
    count = len(driver.sent)
    peer.for_s(0.5)
    assert len(driver.sent) == count, "nothing keeps the arm going"


def as_ros2_control(slider, trajectories, hz=10_000.0):
    """What a joint is told 500 times a second by a controller as ros2_controllers' scaled one is,
    which plays each of the messages ``told`` as it comes, [(s, message)], at so much of its speed:
    ``slider`` of the time.
    """
    place, played, points, out = 0.0, 0.0, [(0.0, 0.0)], []
    for tick in range(round(trajectories[-1][0] * hz)):
        while trajectories and trajectories[0][0] <= tick / hz:
            message = trajectories.pop(0)[1]
            points = [
                (to_ns(point.time_from_start) / NS, point.positions[0]) for point in message.points
            ]
            played = 0.0
            points = points if points[0][0] == 0.0 else [(0.0, place), *points]
        place = float(np.interp(played, *zip(*points, strict=True)))
        played += slider(tick / hz) / hz
        out.append(place)
    return np.array(out[:: round(hz / 500.0)])


@pytest.mark.parametrize(
    "slider, far",
    [
        (lambda at: 1.0, 0.7),
        (lambda at: 0.5, 0.69),
        (lambda at: 0.1, 0.21),
        (lambda at: 0.0, 0.0),
        (lambda at: min(1.0, 0.05 + max(0.0, at - 1.2) / 0.3), 0.69),
    ],
)
@pytest.mark.parametrize("gap", [(), range(60, 69)])
def test_a_trajectory_that_is_slowed_down_goes_on_where_the_robot_has_come_to(slider, far, gap):
    """A joint that is sent on at 0.5 rad/s, 100 times a second and not quite evenly, by a robot
    whose slider is down.
    """
    sent, random = [], np.random.default_rng(0)
    node = SimpleNamespace(
        kind="joint_trajectory",
        last_target=JointState(),
        segment=([], [], 0.0),
        horizon_s=0.05,
        speed=1.0,
        _count_target=lambda: None,
        _may_forward=lambda: True,
        limits=SimpleNamespace(tick=0.01, joint_speed=0.5),
        output=SimpleNamespace(publish=lambda message: sent.append((at, message))),
    )
    for number in range(220):
        if number in gap:
            continue
        at = 0.01 * number + random.uniform(0.0, 0.002)
        for percent in (100.0 * slider(at), math.nan):
            Controller._on_scaling(node, Float64(data=percent))
        target = JointState(name=["elbow"], position=[min(0.005 * number, 0.7)])
        target.header.stamp = to_stamp(round((at + 1.0) * NS))
        Controller._on_joints(node, target)
    commands = as_ros2_control(slider, sent)
    steps = np.diff(commands) * 500.0  # rad/s
    assert steps.max() < CATCH_UP_FACTOR * 0.5 + 0.1 and steps.min() > -1e-9, (
        "no jump, and never back"
    )
    assert far - 1e-3 < commands[-1] < max(far, 0.01) + 0.02


@pytest.mark.parametrize(
    "wrong",
    [
        JointState(name=["elbow"], position=[math.nan]),
        JointState(name=["elbow"], position=[0.1, 0.2]),
        JointState(name=["wrist"], position=[0.3]),
        JointState(),
        JointState(name=["elbow"]),
    ],
)
def test_one_target_that_is_none_ends_no_controller_and_comes_back_in_no_other(wrong):
    sent = []
    node = SimpleNamespace(
        kind="joint_trajectory",
        last_target=JointState(),
        segment=([], [], 0.0),
        horizon_s=0.05,
        speed=1.0,
        _count_target=lambda: None,
        _may_forward=lambda: True,
        limits=SimpleNamespace(tick=0.01, joint_speed=0.5),
        output=SimpleNamespace(publish=sent.append),
    )
    for number, target in enumerate(
        [
            *[JointState(name=["elbow"], position=[0.1])] * 2,
            wrong,
            *[JointState(name=["elbow"], position=[0.1])] * 2,
        ]
    ):
        target = copy.deepcopy(target)
        target.header.stamp = to_stamp(NS + 10_000_000 * number)
        Controller._on_joints(node, target)
    for message in sent[3:]:
        assert message.joint_names == ["elbow"] and {
            tuple(point.positions) for point in message.points
        } == {(0.1,)}
    assert len(sent[4].points) == 2


def controller(peer, kind, topic):
    peer.supervisor.start(
        Process(
            "controller",
            "rlinf_drivers",
            "controller",
            "rlinf_drivers.controller",
            "/station_a",
            {"kind": kind, "topic": topic, "limits_file": str(load_robot("franka_fr3").limits)},
        )
    )


@pytest.mark.domain(121)
def test_forward_position_is_told_the_joints_as_they_are(peer):
    got, say = [], peer.node.create_publisher(JointState, "target_joints", profile("target_joints"))
    peer.node.create_subscription(
        Float64MultiArray, "/forward_position_controller/commands", got.append, 10
    )
    controller(peer, "forward_position", "/forward_position_controller/commands")
    peer.spin(say.get_subscription_count, what="the controller")
    say.publish(JointState(name=["a", "b"], position=[0.25, -0.5]))
    peer.spin(lambda: got, what="the command")
    assert list(got[0].data) == [0.25, -0.5]


@pytest.mark.domain(122)
def test_a_twist_goes_the_shorter_way_to_the_target_within_the_limits_and_only_while_it_may(peer):
    got = listen_to(peer, TwistStamped, "/servo_node/delta_twist_cmds")
    targets = peer.node.create_publisher(PoseStamped, "target_pose", profile("target_pose"))
    poses = peer.node.create_publisher(PoseStamped, "current_pose", profile("current_pose"))
    safety = peer.node.create_publisher(SafetyState, "safety", profile("safety"))
    controller(peer, "twist", "/servo_node/delta_twist_cmds")
    peer.spin(
        lambda: all(sender.get_subscription_count() for sender in (targets, poses, safety)),
        what="the controller",
    )
    target, pose = PoseStamped(), PoseStamped()
    target.header.frame_id = "base"
    # 0.1 rad
    target.pose.position.x = 0.41
    target.pose.orientation.z = 0.0499792
    target.pose.orientation.w = 0.9987503
    pose.pose.position.x, pose.pose.orientation.w = 0.4, -1.0  # the same as 1, with the other sign
    pose.header.frame_id = "base"

    def twist_for(state=SafetyState.ACTIVE, stale_s=0.0, limits_hash="", **changed):
        """Linear x, y, z and angular z of what it says to a target, by a pose and a state of that
        moment.
        """
        stamped = copy.deepcopy(pose)
        stamped.header.frame_id = changed.pop("frame", "base")
        for name, value in changed.items():
            setattr(stamped.pose.position, name, value)
        got.clear()
        deadline = time.monotonic() + 60
        while not (got and got[-1].header.stamp.sec == 7) and time.monotonic() < deadline:
            safety.publish(SafetyState(state=state, limits_hash=limits_hash))
            if stale_s == 0.0:
                poses.publish(stamped)
            peer.for_s(stale_s or 0.02)
            if stale_s:
                safety.publish(SafetyState(state=state))
                peer.for_s(0.02)
            target.header.stamp.sec = 7
            targets.publish(target)
            peer.for_s(0.01)
        twist = got[-1].twist
        return [twist.linear.x, twist.linear.y, twist.linear.z, twist.angular.z]

    targets.publish(target)
    peer.spin(lambda: got, what="an answer")
    assert got[-1].twist == Twist(), "it does not know where the arm is"
    peer.spin(
        lambda: twist_for() == pytest.approx([0.05, 0.0, 0.0, 0.5], abs=1e-4),
        what=lambda: f"motion: {twist_for()}",
    )
    assert got[-1].header.frame_id == "base" and got[-1].twist.angular.x == pytest.approx(
        0.0, abs=1e-6
    )
    limits = load_limits(load_robot("franka_fr3").limits)
    still, most, speeds = [0.0] * 4, limits.acceleration * MAX_INTERVAL_S + 1e-9, [0.05]

    def faster():
        speeds.append(math.hypot(*twist_for(x=-0.6, y=-0.5)[:3]))
        return speeds[-1] == pytest.approx(limits.speed)

    peer.spin(faster, what="what it may at most")
    held = [math.hypot(*twist_for(state=SafetyState.HOLD, x=-0.6, y=-0.5)[:3]) for _ in range(2)]
    assert limits.speed > held[0] > held[1] > 0.0, "held, it comes to rest, and not at once"
    for one, two in itertools.pairwise([*speeds, *held]):
        assert abs(two - one) <= most, "as fast as it may"
    peer.spin(faster, what="what it may at most")
    assert twist_for(state=SafetyState.FAULT, x=-0.6, y=-0.5) == still, "and in a fault at once"
    for held in (
        {"state": SafetyState.HOLD},
        {"state": SafetyState.FAULT},
        {"state": SafetyState.DISARMED},
        {"state": SafetyState.ARMED},
        {"limits_hash": "others"},
        {"frame": "world"},
        {"x": math.nan},
        {"stale_s": 0.2},
    ):
        peer.spin(
            lambda held=held: twist_for(**held) == still,
            30,
            lambda held=held: f"a stop: {held} {twist_for(**held)}",
        )
    assert twist_for(stale_s=0.2) == still

    now = [with_values(limits, {"speed": 0.06})]
    peer.node.create_service(
        GetParameters,
        "interlock/get_parameters",
        lambda request, response: GetParameters.Response(
            values=[
                Parameter(
                    "",
                    value=list(limit)
                    if isinstance(limit := getattr(now[0], name.removeprefix("limits.")), tuple)
                    else limit,
                ).get_parameter_value()
                for name in request.names
            ]
        ),
    )

    def fastest():
        return math.hypot(*twist_for(x=-0.6, y=-0.5, limits_hash=now[0].hash)[:3])

    peer.spin(
        lambda: fastest() == pytest.approx(0.06),
        what=lambda: f"a speed that was tightened (S19): {fastest()}",
    )
    now[0] = replace(limits, speed=2.9, lost_state=4.0)
    peer.spin(
        lambda: fastest() == 0.0,
        what=lambda: f"none that is looser than the robot's own: {fastest()}",
    )
    assert [fastest() for _ in range(10)] == [0.0] * 10, "however often it is told"
    now[0] = limits
    peer.spin(
        lambda: fastest() == pytest.approx(limits.speed),
        what=lambda: f"what it was before: {fastest()}",
    )


def listen_to(peer, kind, topic):
    got = []
    peer.node.create_subscription(kind, topic, got.append, 10)
    return got


@pytest.mark.parametrize(
    "line, error",
    [
        ("topics: {joint_state: /joint_states}", "did you mean 'joint_states'"),
        ("topics: {timestep: /steps}", "'topics': 'timestep' is not a topic of the robot side"),
        ("topics: {joint_states: joint-states}", "topics.joint_states"),
        ("controller: {kind: torque, topic: /x}", "controller.kind"),
        ("controller: {kind: twist}", "controller.topic"),
        ("urdf: arm.urdf", "expected a file whose XML is a <robot>"),
    ],
)
def test_what_is_wrong_in_a_robots_yaml_is_said_by_its_key(tmp_path, line, error):
    (tmp_path / "limits.yaml").write_text("extends: " + str(load_robot("ur5e").limits) + "\n")
    (tmp_path / "robot.yaml").write_text(f"driver: external\nlimits: limits.yaml\n{line}\n")
    with pytest.raises(RecipeError, match=error.replace("[", "\\[")):
        load_robot(str(tmp_path) + "/")


def test_s21_a_pose_that_no_arm_can_have_come_to_steers_nothing():
    limits = load_limits("sim_bridges/simulators/franka_mujoco/franka_sim/limits.yaml")
    now = time.monotonic()
    for x, ago_s, taken in ((0.5, 0.01, False), (0.005, 0.01, True), (0.5, 1.0, True)):
        # without ROS
        controller = SimpleNamespace(limits=limits, pose=PoseStamped(), pose_at=now - ago_s)
        pose = PoseStamped()
        pose.pose.position.x = x
        Controller._on_pose(controller, pose)
        assert (controller.pose is pose) is taken, (x, ago_s)
