"""Nodes one by one, each a real process: what it does, and what it says when it cannot."""

import os
import pty
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from geometry_msgs.msg import PoseStamped
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from rclpy.action import ActionClient
from rlinf_msgs.action import ResetScene
from rlinf_msgs.msg import ActionChunk, EpisodeEvent, PolicyStatus, PolicyUpdate, SafetyEvent, SafetyState, TimeStep
from rlinf_msgs.srv import ResetFault
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Bool, Float64
from std_srvs.srv import SetBool

from rlinf.conversions import fill_observation
from rlinf.qos import profile
from rlinf.stamps import to_ns
from rlinf_core.policies.actor import Actor, PolicyConfig
from rlinf_core.policies.files import save_policy
from rlinf_core.recipes import load_recipe, station_task
from rlinf_core.station import operator_process, station_processes
from rlinf_core.supervisor import command_line

pytestmark = [pytest.mark.ros, pytest.mark.timeout(120)]
SMALL = PolicyConfig(hidden=(16,), image_features=4)


def start(peer, name, *overrides, **parameters):
    recipe = load_recipe("demo", overrides)
    process = next(p for p in station_processes(recipe, peer.supervisor.run_dir) if p.name == name)
    process.parameters.update(parameters)
    peer.supervisor.start(process)
    return station_task(recipe).spec


def listen(peer, kind, topic):
    got = []
    peer.node.create_subscription(kind, topic, got.append, profile(topic))
    return got


@pytest.mark.domain(86)
def test_the_simulator_in_lockstep_moves_one_tick_for_one_target_of_its_own_time(peer):
    poses, images = listen(peer, PoseStamped, "current_pose"), listen(peer, Image, "camera/wrist/image")
    targets = peer.node.create_publisher(PoseStamped, "target_pose", profile("target_pose"))
    start(peer, "sim_bridge", "station.observe_cameras=[wrist]", "station.image_size=[24, 32]")
    peer.spin(lambda: poses and images, what="the simulator")
    assert (images[-1].height, images[-1].width, images[-1].encoding) == (24, 32, "rgb8")
    first = poses[-1]
    for number in range(1, 6):
        now = to_ns(poses[-1].header.stamp)
        target = PoseStamped(pose=first.pose, header=poses[-1].header)
        targets.publish(target)
        peer.spin(lambda: to_ns(poses[-1].header.stamp) > now, what=f"tick {number}")  # noqa: B023
        assert to_ns(poses[-1].header.stamp) - now == 10_000_000
        targets.publish(target)  # of a time that has passed: no permit
        peer.for_s(0.1)
        assert to_ns(poses[-1].header.stamp) - now == 10_000_000
    resetter = ActionClient(peer.node, ResetScene, "reset_scene")
    peer.spin(resetter.server_is_ready, what="reset_scene")
    before = to_ns(poses[-1].header.stamp)
    sent = resetter.send_goal_async(ResetScene.Goal(seed=3))
    peer.spin(sent.done, what="the goal")
    answer = sent.result().get_result_async()
    peer.spin(answer.done, what="the reset")
    result = answer.result().result
    assert result.success and to_ns(result.stamp) == before + 10_000_000, "a new scene has a time of its own"


def step_of(spec, mode="train", kind=TimeStep.FIRST):
    observation = {item.name: np.zeros(item.shape, item.dtype) for item in spec.observation}
    step = TimeStep(step_type=kind, mode=mode, episode_id="e")
    step.header.stamp.sec = 12
    fill_observation(step, spec, observation)
    return step


@pytest.mark.domain(87)
def test_the_policy_refuses_what_does_not_fit_and_keeps_what_does(peer, tmp_path):
    statuses, chunks = listen(peer, PolicyStatus, "policy/status"), listen(peer, ActionChunk, "policy/action")
    steps = peer.node.create_publisher(TimeStep, "timestep", profile("timestep"))
    updates = peer.node.create_publisher(PolicyUpdate, "policy/update", profile("policy/update"))
    spec = start(peer, "policy")
    good = save_policy(Actor(spec, SMALL), tmp_path / "good.safetensors")
    other = save_policy(Actor(station_task(load_recipe("demo_vision")).spec, SMALL), tmp_path / "other.safetensors")
    peer.spin(lambda: statuses, what="the policy")
    updates.publish(PolicyUpdate(version=3, path=str(good)))
    peer.spin(lambda: statuses[-1].version == 3, what="version 3")
    updates.publish(PolicyUpdate(version=4, path=str(other)))
    peer.spin(lambda: statuses[-1].error, what="the refusal")
    assert statuses[-1].version == 3 and "does not fit this station" in statuses[-1].error
    assert "socket_offset" in statuses[-1].error
    (tmp_path / "torn.safetensors").write_bytes(good.read_bytes()[:-50])
    updates.publish(PolicyUpdate(version=5, path=str(tmp_path / "torn.safetensors")))
    peer.spin(lambda: "cut short" in statuses[-1].error, what="the second refusal")
    peer.spin(lambda: steps.get_subscription_count() >= 1, what="its subscription")
    steps.publish(step_of(spec))
    peer.spin(lambda: chunks, what="a chunk")
    assert (chunks[0].policy_version, chunks[0].observation_stamp.sec, chunks[0].horizon) == (3, 12, 1)
    assert np.abs(chunks[0].data).max() <= 0.02 + 1e-6
    for step in (step_of(spec, mode="demonstration"), step_of(spec, kind=TimeStep.LAST)):
        steps.publish(step)
    bad = step_of(spec)
    bad.vectors[0].data = [float("nan")] * 3
    steps.publish(bad)
    peer.for_s(0.5)
    assert len(chunks) == 1, "silent in demonstrations, after the last step, and on observations that are not finite"


@pytest.mark.domain(88)
def test_a_full_disk_aborts_the_episode_with_the_way_out_and_the_recorder_lives(peer):
    events = listen(peer, EpisodeEvent, "episode")
    tell = peer.node.create_publisher(EpisodeEvent, "episode", profile("episode"))
    start(peer, "recorder", min_free_mb=1e12)
    peer.spin(lambda: tell.get_subscription_count() >= 2 and peer.node.count_publishers("/station_a/episode") >= 2,
              what="the recorder")
    for number in range(2):
        tell.publish(EpisodeEvent(kind=EpisodeEvent.STARTED, episode_id=f"e{number}", station="station_a", mode="train"))
        peer.spin(lambda: any(e.kind == EpisodeEvent.ABORTED and e.episode_id == f"e{number}" for e in events),  # noqa: B023
                  what="the abort")
    assert "Free the disk" in events[-1].detail and "closed episodes are safe" in events[-1].detail
    assert not peer.supervisor.events, "nothing died"


@pytest.mark.domain(80)
def test_a_person_at_the_keyboard_arms_takes_over_and_lets_go(peer, tmp_path):
    chunks, asked = listen(peer, ActionChunk, "teleop/action"), []

    def on_arm(request, response):
        asked.append(request.data)
        response.success = True
        return response

    peer.node.create_service(SetBool, "interlock/arm", on_arm)
    steps = peer.node.create_publisher(TimeStep, "timestep", profile("timestep"))
    recipe = load_recipe("demo", ["station.operator.kind=keyboard"])
    spec = station_task(recipe).spec
    assert "operator" not in {process.name for process in station_processes(recipe, tmp_path)}
    terminal, inside = pty.openpty()
    person = subprocess.Popen(command_line(operator_process(recipe), tmp_path), stdin=inside,
                              env=peer.supervisor.environment)
    try:
        peer.spin(lambda: steps.get_subscription_count() >= 1, what="the operator")
        peer.for_s(1.0)
        steps.publish(step_of(spec))
        peer.for_s(0.3)
        assert not chunks, "hands off: the policy goes on"
        os.write(terminal, b"e")
        peer.spin(lambda: asked, what="arming")
        os.write(terminal, b"w")
        peer.for_s(0.1)
        steps.publish(step_of(spec))
        peer.spin(lambda: chunks, what="the takeover")
        peer.for_s(0.6)
        steps.publish(step_of(spec))
        os.write(terminal, b"q")
        peer.spin(lambda: len(asked) == 2, what="disarming")
    finally:
        person.terminate()
        person.wait(10)
    assert asked == [True, False] and len(chunks) == 1
    assert chunks[0].source == "operator" and list(chunks[0].data) == pytest.approx([0.01, 0, 0])


def test_the_keyboard_needs_a_terminal(tmp_path):
    command = command_line(operator_process(load_recipe("demo", ["station.operator.kind=keyboard"])), tmp_path)
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    assert result.returncode != 0 and "rlinf teleop" in result.stderr


class Arm:
    """A perfectly following arm at 100 Hz, a policy at 10 Hz, an enable and one e-stop source."""

    def __init__(self, peer):
        self.peer, self.seq = peer, 0
        self.pressed, self.heard, self.enabled = False, True, True
        self.states, self.targets = listen(peer, SafetyState, "safety"), listen(peer, PoseStamped, "target_pose")
        kinds = {"estop/pendant": Bool, "enable": Bool, "current_pose": PoseStamped, "policy/action": ActionChunk}
        self.say = {topic: peer.node.create_publisher(kind, topic, profile(topic)) for topic, kind in kinds.items()}
        self.arming = peer.node.create_client(SetBool, "interlock/arm")
        self.clearing = peer.node.create_client(ResetFault, "interlock/reset_fault")
        self.pose = PoseStamped()
        self.pose.pose.position.x, self.pose.pose.position.z, self.pose.pose.orientation.y = 0.5, 0.2, 1.0
        self.pose.pose.orientation.w = 0.0
        peer.node.create_timer(0.01, self.hundred_hertz)
        peer.node.create_timer(0.1, self.ten_hertz)

    def hundred_hertz(self):
        self.pose.header.stamp = self.peer.node.get_clock().now().to_msg()
        self.pose.pose = self.targets[-1].pose if self.targets else self.pose.pose
        self.say["current_pose"].publish(self.pose)
        if self.heard:
            self.say["estop/pendant"].publish(Bool(data=self.pressed))
        self.say["enable"].publish(Bool(data=self.enabled))

    def ten_hertz(self):
        self.seq += 1
        self.say["policy/action"].publish(ActionChunk(
            source="policy", session="s", seq=self.seq, dt=0.1, control_mode="tcp_delta", horizon=1, dim=3,
            data=[0.0, 0.0, 0.001], observation_stamp=self.peer.node.get_clock().now().to_msg()))

    def ask(self, client, request):
        self.peer.spin(client.service_is_ready, what="the interlock's services")
        future = client.call_async(request)
        self.peer.spin(future.done, what="the answer")
        return future.result()

    def arm(self, value=True):
        self.peer.spin(lambda: self.targets, what="targets")
        self.peer.spin(lambda: self.ask(self.arming, SetBool.Request(data=value)).success, what="arming")

    def clear(self, cause):
        return self.ask(self.clearing, ResetFault.Request(cause=cause))

    def reach(self, state, cause=""):
        self.peer.spin(lambda: self.states and (self.states[-1].state, self.states[-1].cause) == (state, cause),
                       what=f"{state} {cause}")


@pytest.mark.domain(78)
def test_s14_s15_estop_and_enable_reach_the_arm_through_topics(peer):
    arm = Arm(peer)
    start(peer, "interlock", "station.robot=franka_fr3", estops=["pendant"], memory_file="")
    arm.heard = False
    arm.reach(SafetyState.DISARMED)
    peer.spin(lambda: arm.targets, what="targets")
    refused = arm.ask(arm.arming, SetBool.Request(data=True))
    assert not refused.success and "estop_silent:pendant" in refused.message
    arm.heard = True
    arm.arm()
    arm.reach(SafetyState.ACTIVE)
    arm.enabled = False
    arm.reach(SafetyState.HOLD, "enable")
    arm.enabled = True
    arm.reach(SafetyState.ACTIVE)
    arm.pressed = True
    arm.reach(SafetyState.FAULT, "estop:pendant")
    refused = arm.clear("estop:pendant")
    assert not refused.success and "has not gone" in refused.message
    arm.pressed = False
    peer.spin(lambda: arm.clear("estop:pendant").success, what="the pendant's release, and the fault to be cleared")
    arm.reach(SafetyState.DISARMED)
    peer.for_s(0.3)
    assert arm.states[-1].state == SafetyState.DISARMED, "a reset never resumes motion"
    arm.arm()
    arm.reach(SafetyState.ACTIVE)
    arm.heard = False
    arm.reach(SafetyState.FAULT, "estop_silent:pendant")


@pytest.mark.domain(76)
def test_s14_an_interlock_that_ended_armed_starts_in_fault(peer, tmp_path):
    arm, settings = Arm(peer), {"memory_file": str(tmp_path / "memory/station_a"), "estops": ["pendant"]}

    def restart():
        peer.supervisor.stop()
        peer.supervisor.children.clear()
        arm.states.clear(), arm.targets.clear()
        start(peer, "interlock", "station.robot=franka_fr3", **settings)

    restart()
    arm.reach(SafetyState.DISARMED)
    arm.arm()
    arm.reach(SafetyState.ACTIVE)
    restart()
    arm.reach(SafetyState.FAULT, "restarted")
    peer.spin(lambda: arm.clear("restarted").success, what="the pendant to be heard again, and the fault to be cleared")
    arm.arm()
    arm.reach(SafetyState.ACTIVE)
    arm.arm(False)
    arm.reach(SafetyState.DISARMED)
    peer.for_s(0.3)
    restart()
    arm.reach(SafetyState.DISARMED)


@pytest.mark.domain(72)
def test_s19_joints_and_gripper_are_commanded_and_limits_only_tightened(peer, tmp_path):
    """joint_delta through topics, live parameters, and a lifecycle that refuses to leave an armed arm alone."""
    names = [f"fr3_joint{number}" for number in range(1, 8)]
    limits = yaml.safe_load(Path("robots/franka_fr3/limits.yaml").read_text())
    limits |= {"control_mode": "joint_delta", "gripper_width": 0.08, "enable_lease": "unlimited"}
    (tmp_path / "limits.yaml").write_text(yaml.safe_dump(limits))
    states, targets = listen(peer, SafetyState, "safety"), listen(peer, JointState, "target_joints")
    openings = listen(peer, Float64, "gripper/command")
    joints = peer.node.create_publisher(JointState, "joint_states", profile("joint_states"))
    gripper = peer.node.create_publisher(JointState, "gripper/state", profile("gripper/state"))
    chunks = peer.node.create_publisher(ActionChunk, "policy/action", profile("policy/action"))
    arming = peer.node.create_client(SetBool, "interlock/arm")
    setting = peer.node.create_client(SetParameters, "interlock/set_parameters")
    changing = peer.node.create_client(ChangeState, "interlock/change_state")
    angles, seq = dict(zip(names, (0.0, 0.35, 0.0, -2.1, 0.0, 2.45, 0.785), strict=True)), [0]

    def hundred_hertz():
        seq[0] += 1
        if targets:
            angles.update(zip(targets[-1].name, targets[-1].position, strict=True))
        joints.publish(JointState(name=["elsewhere", *reversed(names)], position=[9.0, *reversed(list(angles.values()))]))
        gripper.publish(JointState(name=["width"], position=[0.04]))
        if seq[0] % 5 == 0:
            chunk = ActionChunk(source="policy", session="s", seq=seq[0], dt=0.1, control_mode="joint_delta", horizon=1,
                                dim=8, data=[0.01] + [0.0] * 6 + [0.001], joint_names=names)
            chunk.observation_stamp = peer.node.get_clock().now().to_msg()
            chunks.publish(chunk)

    def ask(client, request):
        peer.spin(client.service_is_ready, what=client.srv_name)
        future = client.call_async(request)
        peer.spin(future.done, what="the answer")
        return future.result()

    def set_limit(name, value):
        value = ParameterValue(type=ParameterType.PARAMETER_DOUBLE, double_value=value)
        return ask(setting, SetParameters.Request(parameters=[Parameter(name=f"limits.{name}", value=value)])).results[0]

    peer.node.create_timer(0.01, hundred_hertz)
    start(peer, "interlock", "station.robot=franka_fr3", limits_file=str(tmp_path / "limits.yaml"), memory_file="")
    peer.spin(lambda: ask(arming, SetBool.Request(data=True)).success, what="arming")
    peer.spin(lambda: targets and openings and targets[-1].position[0] > 0.01 and openings[-1].data > 0.041, what="motion")
    assert targets[-1].name == names and targets[-1].position[1] == pytest.approx(0.35)
    refused = set_limit("joint_speed", 0.6)
    assert not refused.successful and "joint_speed would be loosened: disarm first" in refused.reason
    assert "expected a number in" in set_limit("joint_speed", 99.0).reason
    before = states[-1].limits_hash
    assert set_limit("joint_speed", 0.3).successful
    peer.spin(lambda: states[-1].limits_hash != before, what="the new hash")
    deactivate = ChangeState.Request(transition=Transition(id=Transition.TRANSITION_DEACTIVATE))
    assert not ask(changing, deactivate).success, "armed, it stays active"
    peer.for_s(0.2)
    assert states[-1].state == SafetyState.ACTIVE
    ask(arming, SetBool.Request(data=False))
    peer.for_s(1.0)
    assert set_limit("joint_speed", 0.5).successful, "disarmed, it may be loosened"
    assert ask(changing, deactivate).success
    peer.for_s(0.2)
    count = len(targets)
    peer.for_s(0.3)
    assert len(targets) <= count + 1, "inactive, it commands nothing"


@pytest.mark.domain(71)
def test_s20_what_led_to_a_fault_is_kept(peer, tmp_path):
    arm = Arm(peer)
    start(peer, "interlock", "station.robot=franka_fr3", estops=["pendant"], memory_file="")
    start(peer, "recorder", "station.robot=franka_fr3", "station.lockstep=false")
    events = listen(peer, SafetyEvent, "safety/events")
    arm.arm()
    arm.reach(SafetyState.ACTIVE)
    peer.for_s(1.0)
    arm.pressed = True
    arm.reach(SafetyState.FAULT, "estop:pendant")
    folder = tmp_path / "faults/closed"
    peer.spin(lambda: list(folder.glob("fault-*-estop_pendant")), what="the recording")
    (kept,) = folder.iterdir()
    topics = yaml.safe_load((kept / "metadata.yaml").read_text())["rosbag2_bagfile_information"]
    counts = {entry["topic_metadata"]["name"].removeprefix("/station_a/"): entry["message_count"]
              for entry in topics["topics_with_message_count"]}
    assert counts["current_pose"] > 20 and counts["target_pose"] > 20 and counts["policy/action"] > 3
    assert "FAULT:estop:pendant" in [event.cause for event in events if event.kind == "mode"]
