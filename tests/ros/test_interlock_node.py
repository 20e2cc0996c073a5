"""The interlock as a process on the real middleware, with this test as robot side, policy and
operator.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from geometry_msgs.msg import PoseStamped, WrenchStamped
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from rclpy.logging import get_logger
from rlinf_msgs.msg import ActionChunk, GripperWidth, SafetyEvent, SafetyState
from sensor_msgs.msg import JointState
from std_srvs.srv import SetBool

from rlinf_core.launch.graph import station_processes
from rlinf_core.recipes import load_recipe
from rlinf_interlock.interlock_services import log_line
from rlinf_ros.qos import profile
from tests.ros.stand_ins import Arm, listen, start

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]
DISARMED, ARMED, ACTIVE, HOLD, FAULT = range(5)


def test_the_node_refuses_to_start_without_limits(tmp_path):
    (tmp_path / "limits.yaml").write_text("speed: 0.1\n")
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "rlinf_interlock.interlock",
            "--ros-args",
            "-p",
            f"limits_file:={tmp_path / 'limits.yaml'}",
        ],
        text=True,
        capture_output=True,
        timeout=90,
    )
    assert result.returncode != 0 and "'box_low' is missing" in result.stderr


@pytest.mark.domain(88)
def test_trap10_trap11_only_the_interlock_commands_and_no_image_reaches_it(peer, evidence):
    """A whole station: resets go through the robot side's own action, and a camera can stall
    nothing that commands.
    """
    processes = station_processes(
        load_recipe("demo", ["station.observe_cameras=[front]", "station.image_size=[32, 32]"]),
        peer.supervisor.run_dir,
    )
    for process in processes:
        peer.supervisor.start(process)
    nodes = {process.name for process in processes}
    peer.spin(lambda: nodes <= set(peer.node.get_node_names()), what=f"{nodes}")
    commands = ["target_pose", "target_joints", "gripper/command"]

    def subscriptions():
        return dict(peer.node.get_subscriber_names_and_types_by_node("interlock", "/station_a"))

    def imaged(topics):
        return [topic for topic, kinds in topics if any("Image" in kind for kind in kinds)]

    peer.spin(lambda: peer.node.count_publishers("/station_a/target_pose"), what="the commands")
    peer.spin(lambda: "/station_a/current_pose" in subscriptions(), what="what the interlock hears")
    peer.spin(lambda: imaged(peer.node.get_topic_names_and_types()), what="the camera")
    commanding = {
        info.node_name
        for topic in commands
        for info in peer.node.get_publishers_info_by_topic(f"/station_a/{topic}")
    }
    assert commanding == {"interlock"}
    images = imaged(subscriptions().items())
    assert images == []
    evidence(
        "trap 10",
        f"of {len(nodes)} processes, {', '.join(commanding)} alone publishes commands",
        "1",
    )
    evidence(
        "trap 11",
        f"images among the {len(subscriptions())} topics that the interlock hears: {len(images)}",
        "0",
    )


@pytest.mark.domain(78)
def test_s14_s15_estop_and_enable_reach_the_arm_through_topics(peer):
    arm = Arm(peer)
    start(peer, "interlock", "station.robot=franka_fr3", estops=["pendant"], latch_file="")
    arm.estop_publishes = False
    arm.reach(SafetyState.DISARMED)
    peer.spin(lambda: arm.targets, what="targets")
    refused = arm.ask(arm.arming, SetBool.Request(data=True))
    assert not refused.success and "estop_silent:pendant" in refused.message
    arm.estop_publishes = True
    arm.arm()
    arm.reach(SafetyState.ACTIVE)
    arm.enabled = False
    arm.reach(SafetyState.HOLD, "enable")
    arm.enabled = True
    arm.reach(SafetyState.ACTIVE)
    arm.pressed = True
    arm.reach(SafetyState.FAULT, "estop:pendant")
    refused = arm.clear("estop:pendant")
    assert not refused.success and "persists" in refused.message
    arm.pressed = False
    peer.spin(
        lambda: arm.clear("estop:pendant").success,
        what="the pendant's release, and the fault to be cleared",
    )
    arm.reach(SafetyState.DISARMED)
    peer.for_s(0.3)
    assert arm.states[-1].state == SafetyState.DISARMED, "a reset never resumes motion"
    arm.arm()
    arm.reach(SafetyState.ACTIVE)
    arm.estop_publishes = False
    arm.reach(SafetyState.FAULT, "estop_silent:pendant")


@pytest.mark.domain(76)
def test_s14_an_interlock_that_ended_armed_starts_in_fault(peer, tmp_path):
    arm, settings = (
        Arm(peer),
        {"latch_file": str(tmp_path / "memory/station_a"), "estops": ["pendant"]},
    )

    def restart(kill=False):
        for child in peer.supervisor.children.values() if kill else ():
            child.popen.kill()
        peer.supervisor.stop()
        peer.supervisor.children.clear()
        arm.states.clear(), arm.targets.clear()
        start(peer, "interlock", "station.robot=franka_fr3", **settings)

    restart()
    arm.reach(SafetyState.DISARMED)
    arm.arm()
    arm.reach(SafetyState.ACTIVE)
    restart(kill=True)
    arm.reach(SafetyState.FAULT, "restarted")
    refused = arm.ask(arm.arming, SetBool.Request(data=True)).message
    assert "FAULT 'restarted' is active (" in refused and settings["latch_file"] in refused
    peer.spin(
        lambda: arm.clear("restarted").success,
        what="the pendant to be heard again, and the fault to be cleared",
    )
    arm.arm()
    arm.reach(SafetyState.ACTIVE)
    arm.arm(False)
    arm.reach(SafetyState.DISARMED)
    peer.for_s(0.3)
    restart(kill=True)
    arm.reach(SafetyState.DISARMED)
    arm.arm()
    arm.reach(SafetyState.ACTIVE)
    restart()
    arm.reach(SafetyState.DISARMED)  # asked to end, it brakes and disarms itself


@pytest.mark.domain(72)
def test_s19_joints_and_gripper_are_commanded_and_limits_only_tightened(peer, tmp_path):
    """joint_delta through topics, live parameters, and a lifecycle that refuses to leave an armed
    arm alone.
    """
    names = [f"fr3_joint{number}" for number in range(1, 8)]
    limits = yaml.safe_load(Path("robots/franka_fr3/limits.yaml").read_text())
    limits |= {"control_mode": "joint_delta", "gripper_width": 0.08, "enable_lease": "unlimited"}
    (tmp_path / "limits.yaml").write_text(yaml.safe_dump(limits))
    states, targets = listen(peer, SafetyState, "safety"), listen(peer, JointState, "target_joints")
    openings = listen(peer, GripperWidth, "gripper/command")
    joints = peer.node.create_publisher(JointState, "joint_states", profile("joint_states"))
    gripper = peer.node.create_publisher(JointState, "gripper/state", profile("gripper/state"))
    chunks = peer.node.create_publisher(ActionChunk, "policy/action", profile("policy/action"))
    poses = peer.node.create_publisher(PoseStamped, "current_pose", profile("current_pose"))
    wrenches = peer.node.create_publisher(WrenchStamped, "wrench", profile("wrench"))
    pose = PoseStamped()
    pose.pose.position.x = 0.5
    pose.pose.position.z = 0.2
    pose.pose.orientation.x = 1.0
    pose.pose.orientation.w = 0.0
    arming = peer.node.create_client(SetBool, "interlock/arm")
    setting = peer.node.create_client(SetParameters, "interlock/set_parameters")
    changing = peer.node.create_client(ChangeState, "interlock/change_state")
    angles, seq = dict(zip(names, (0.0, 0.35, 0.0, -2.1, 0.0, 2.45, 0.785), strict=True)), [0]

    def hundred_hertz():
        seq[0] += 1
        if targets:
            angles.update(zip(targets[-1].name, targets[-1].position, strict=True))
        joints.publish(
            JointState(
                name=["elsewhere", *reversed(names)],
                position=[9.0, *reversed(list(angles.values()))],
            )
        )
        gripper.publish(JointState(name=["width"], position=[0.04]))
        poses.publish(pose)
        wrenches.publish(WrenchStamped())
        if seq[0] % 5 == 0:
            chunk = ActionChunk(
                source="policy",
                session="s",
                seq=seq[0],
                dt=0.1,
                control_mode="joint_delta",
                horizon=1,
                dim=8,
                data=[0.01] + [0.0] * 6 + [0.001],
                joint_names=names,
            )
            chunk.observation_stamp = peer.node.get_clock().now().to_msg()
            chunks.publish(chunk)

    def ask(client, request):
        peer.spin(client.service_is_ready, what=client.srv_name)
        future = client.call_async(request)
        peer.spin(future.done, what="the answer")
        return future.result()

    def set_limit(name, value):
        value = ParameterValue(type=ParameterType.PARAMETER_DOUBLE, double_value=value)
        return ask(
            setting,
            SetParameters.Request(parameters=[Parameter(name=f"limits.{name}", value=value)]),
        ).results[0]

    peer.every(0.01, hundred_hertz)
    start(
        peer,
        "interlock",
        "station.robot=franka_fr3",
        limits_file=str(tmp_path / "limits.yaml"),
        latch_file="",
    )
    peer.spin(lambda: ask(arming, SetBool.Request(data=True)).success, what="arming")
    peer.spin(
        lambda: (
            targets and openings and targets[-1].position[0] > 0.01 and openings[-1].width > 0.041
        ),
        what="motion",
    )
    assert targets[-1].name == names and targets[-1].position[1] == pytest.approx(0.35)
    refused = set_limit("joint_speed", 0.6)
    assert (
        not refused.successful
        and "joint_speed would be loosened. While armed, limits can only be tightened"
        in refused.reason
    )
    assert "out of range Min: 0.001, Max: 6.3" in set_limit("joint_speed", 99.0).reason
    before = states[-1].limits_hash
    assert set_limit("joint_speed", 0.3).successful
    peer.spin(lambda: states[-1].limits_hash != before, what="the new hash")
    deactivate = ChangeState.Request(transition=Transition(id=Transition.TRANSITION_DEACTIVATE))
    assert not ask(changing, deactivate).success, "armed, it stays active"
    peer.for_s(0.2)
    peer.spin(lambda: states[-1].state == SafetyState.ACTIVE, what="motion to go on")
    ask(arming, SetBool.Request(data=False))
    peer.spin(lambda: states[-1].state == SafetyState.DISARMED, what="the disarming")
    peer.for_s(0.3)
    assert set_limit("joint_speed", 0.5).successful, "disarmed, it may be loosened"
    assert ask(changing, deactivate).success
    peer.for_s(0.2)
    count = len(targets)
    peer.for_s(0.3)
    assert len(targets) <= count + 1, "inactive, it commands nothing"
    guided = angles[names[1]] + 0.05  # by hand
    targets.clear()
    angles[names[1]] = guided
    peer.for_s(0.2)
    assert ask(
        changing, ChangeState.Request(transition=Transition(id=Transition.TRANSITION_ACTIVATE))
    ).success
    peer.spin(lambda: len(targets) > 5, what="its word again, once it has seen the arm at rest")
    assert [target.position[1] for target in targets] == pytest.approx([guided] * len(targets)), (
        "and never where it was"
    )


@pytest.mark.domain(71)
def test_s20_what_led_to_a_fault_is_kept(peer, tmp_path):
    arm = Arm(peer)
    start(peer, "interlock", "station.robot=franka_fr3", estops=["pendant"], latch_file="")
    start(peer, "recorder", "station.robot=franka_fr3", "station.lockstep=false")
    events = listen(peer, SafetyEvent, "safety/events")
    peer.meet(arm.say["current_pose"], arm.say["policy/action"], by=("interlock", "recorder"))
    arm.arm()
    arm.reach(SafetyState.ACTIVE)
    peer.for_s(1.0)
    arm.pressed = True
    arm.reach(SafetyState.FAULT, "estop:pendant")
    folder = tmp_path / "faults/closed"
    peer.spin(lambda: list(folder.glob("fault-*-estop_pendant")), what="the recording")
    (recording,) = folder.iterdir()
    topics = yaml.safe_load((recording / "metadata.yaml").read_text())[
        "rosbag2_bagfile_information"
    ]
    counts = {
        entry["topic_metadata"]["name"].removeprefix("/station_a/"): entry["message_count"]
        for entry in topics["topics_with_message_count"]
    }
    assert (
        counts["current_pose"] > 20 and counts["target_pose"] > 20 and counts["policy/action"] > 3
    )
    assert "FAULT:estop:pendant" in [event.cause for event in events if event.kind == "mode"]


@pytest.mark.domain(85)
def test_in_lockstep_a_state_said_again_is_answered_again_and_nothing_moves_twice(peer):
    """The simulator repeats its state for whoever has just joined."""
    start(peer, "interlock", latch_file="")
    targets, states = listen(peer, PoseStamped, "target_pose"), listen(peer, SafetyState, "safety")
    poses = peer.node.create_publisher(PoseStamped, "current_pose", profile("current_pose"))
    chunks = peer.node.create_publisher(ActionChunk, "policy/action", profile("policy/action"))
    arming = peer.node.create_client(SetBool, "interlock/arm")
    pose = PoseStamped()
    pose.pose.position.x = 0.5
    pose.pose.position.z = 0.15
    pose.pose.orientation.x = 1.0
    pose.pose.orientation.w = 0.0

    def say(tick):
        count = len(targets)
        pose.header.stamp.sec, pose.header.stamp.nanosec = 1, 10_000_000 * tick
        poses.publish(pose)
        return count

    peer.spin(
        lambda: poses.get_subscription_count() and chunks.get_subscription_count(),
        what="its subscriptions",
    )
    peer.spin(arming.service_is_ready, what="its services")

    def armed():  # until it hears us, too
        say(0)
        future = arming.call_async(SetBool.Request(data=True))
        peer.spin(future.done, what="the answer")
        return future.result().success

    peer.spin(armed, what="arming")
    peer.spin(lambda: say(0) >= 0 and states and states[-1].state == ARMED, what="arming")
    peer.for_s(0.3)
    chunk = ActionChunk(
        source="policy",
        session="s",
        seq=1,
        dt=0.1,
        control_mode="tcp_delta",
        horizon=1,
        dim=3,
        execute=1,
        data=[0.01, 0.0, 0.0],
    )
    chunk.observation_stamp.sec = 1
    chunk.observation_stamp.nanosec = 10_000_000
    chunks.publish(chunk)
    along = []
    for tick in range(1, 11):
        count = say(tick)
        peer.spin(lambda: len(targets) > count, what="a target")  # noqa: B023
        if tick in (3, 7):
            for _ in range(2):
                count = say(tick)
                peer.spin(lambda: len(targets) > count, what="the same target again")  # noqa: B023
            assert targets[-1] == targets[-2] == targets[-3]
        along.append(targets[-1].pose.position.x)
    assert along == sorted(along) and len(set(along)) > 5 and along[-1] <= 0.51 + 1e-9, along


def test_s25_a_defect_is_said_after_what_is_of_no_matter_too(capfd):
    logger = get_logger("interlock_services")
    for level in ("info", "fatal", "error", "info"):
        log_line(logger, level, f"of {level}")
    output = capfd.readouterr().err
    assert [word in output for word in ("[INFO] ", "[FATAL] ", "[ERROR] ")] == [
        True
    ] * 3 and output.count("of info") == 2
