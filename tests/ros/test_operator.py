"""Arming: a person arms a real arm each time, a script a simulated one once."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from rcl_interfaces.msg import ParameterType, ParameterValue
from rcl_interfaces.srv import GetParameters
from rclpy.action import ActionClient, ActionServer
from rlinf_msgs.action import ResetScene, RunEpisodes
from rlinf_msgs.msg import ActionChunk, EpisodeEvent, SafetyState, TimeStep
from rlinf_msgs.srv import ResetFault
from std_msgs.msg import Bool
from std_srvs.srv import SetBool

from rlinf_core.launch.graph import operator_process
from rlinf_core.launch.supervisor import command_line
from rlinf_core.recipes import load_recipe
from rlinf_ros.qos import profile
from tests.ros.conftest import peer_in
from tests.ros.stand_ins import listen, start

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]
SCRIPTED, PATIENCE_S = "station.operator.kind=scripted", 5.0


class Watched:
    """A simulated station with its scripted operator, and what is heard of it."""

    def __init__(self, peer):
        self.peer, self.states = peer, listen(peer, SafetyState, "safety")
        self.enables = listen(peer, Bool, "enable")
        self.episodes = listen(peer, EpisodeEvent, "episode")
        self.arming = peer.node.create_client(SetBool, "interlock/arm")
        for name in ("sim_bridge", "interlock", "operator", "recorder"):
            start(peer, name, SCRIPTED)
        start(peer, "environment", SCRIPTED, patience_s=PATIENCE_S)

    def begin(self):
        """From here on, ``log`` has what was logged."""
        self.begun = {
            path.stem: path.stat().st_size
            for path in (self.peer.supervisor.run_dir / "logs").iterdir()
        }

    def log(self, name):
        return (self.peer.supervisor.run_dir / f"logs/{name}.log").read_text()[self.begun[name] :]

    def reach(self, state, timeout_s=90):
        self.peer.spin(
            lambda: self.states and self.states[-1].state == state, timeout_s, f"state {state}"
        )

    def ask(self, client, request):
        self.peer.spin(client.service_is_ready, what=client.srv_name)
        answer = client.call_async(request)
        self.peer.spin(answer.done, what="the answer")
        return answer.result()

    def arm(self, value):
        """As soon as a process that was killed is forgotten."""
        deadline = time.monotonic() + 20
        while not (answer := self.ask(self.arming, SetBool.Request(data=value))).success:
            assert "two_publishers:enable" in answer.message and time.monotonic() < deadline, (
                answer.message
            )
            self.peer.for_s(0.5)

    def stays(self, state, seconds):
        self.peer.for_s(0.3)
        before = len(self.states)
        self.peer.for_s(seconds)
        assert {safety.state for safety in self.states[before:]} <= {state}
        assert self.states[-1].state == state


@pytest.mark.domain(64)
def test_a_script_arms_no_real_arm_however_it_is_started(peer):
    states, enables, chunks = (
        listen(peer, SafetyState, "safety"),
        listen(peer, Bool, "enable"),
        listen(peer, ActionChunk, "teleop/action"),
    )
    start(peer, "interlock", "station.robot=franka_fr3", latch_file="")
    peer.spin(lambda: states, what="the interlock")
    # a recipe of a simulator: it claims to be one
    process = operator_process(load_recipe("demo"), peer.supervisor.run_dir)
    command = command_line(process, peer.supervisor.run_dir / "params")
    claims = subprocess.Popen(
        [*command, "-p", "driver:=simulator", "-p", "teleports:=true"],
        stderr=subprocess.PIPE,
        text=True,
        env=peer.supervisor.environment,
    )
    peer.spin(lambda: claims.poll() is not None, what="the refusal")
    error = claims.stderr.read()
    assert (
        claims.returncode == 1
        and "got the interlock of a real one" in error
        and "rlinf teleop" in error
    )
    assert "Traceback" not in error and len(error.splitlines()) == 1
    assert (
        not enables and not chunks and {state.state for state in states} == {SafetyState.DISARMED}
    )


def imitate_interlock(peer, requests, state, arm):
    """Publish ``state`` as a simulated robot's interlock does; it answers requests, an arming by
    ``arm``.
    """
    safety = peer.node.create_publisher(SafetyState, "safety", profile("safety"))
    peer.node.create_publisher(TimeStep, "timestep", profile("timestep"))
    peer.node.create_subscription(
        ActionChunk, "teleop/action", lambda _: None, profile("teleop/action")
    )
    peer.node.create_timer(0.1, lambda: safety.publish(state))

    def parameters(request, response):
        response.values = [ParameterValue(type=ParameterType.PARAMETER_BOOL, bool_value=True)]
        return response

    def reset(request, response):
        requests.append(f"reset {request.cause}")
        state.state, state.cause, response.success = SafetyState.DISARMED, "", True
        return response

    for kind, name, answer in (
        (GetParameters, "get_parameters", parameters),
        (SetBool, "arm", arm),
        (ResetFault, "reset_fault", reset),
    ):
        peer.node.create_service(kind, f"interlock/{name}", answer)


@pytest.mark.domain(184)
def test_a_script_resets_a_jam_of_a_simulated_arm_and_no_other_fault(peer):
    """Beside a stand-in of the interlock, which says what state it is in and keeps what it is
    asked.
    """
    requests, state = [], SafetyState(state=SafetyState.DISARMED)

    def arm(request, response):
        requests.append("arm" if request.data else "disarm")
        state.state = SafetyState.ARMED if request.data else SafetyState.DISARMED
        state.cause = ""
        response.success = True
        return response

    imitate_interlock(peer, requests, state, arm)
    start(peer, "operator", SCRIPTED)
    peer.spin(lambda: requests, what="the first arming")
    state.state, state.cause = SafetyState.FAULT, "contact"
    peer.for_s(2.5)
    assert requests == ["arm"] and state.cause == "contact"
    state.cause = "divergence"
    peer.spin(lambda: state.state == SafetyState.ARMED, what="the arm to be freed")
    assert requests == ["arm", "reset divergence", "arm"]
    peer.for_s(1.5)
    state.state = SafetyState.DISARMED  # by a person
    peer.for_s(3.0)
    assert requests == ["arm", "reset divergence", "arm"], "what a person disarms stays so"


@pytest.mark.domain(184)
def test_a_script_lays_out_a_scene_where_a_freed_arm_rests_outside(peer):
    """Beside a stand-in of the interlock, which refuses to arm until the robot side has a new
    scene.
    """
    requests, state = [], SafetyState(state=SafetyState.DISARMED)

    def arm(request, response):
        response.success = "reset divergence" not in requests or "scene" in requests
        response.message = (
            ""
            if response.success
            else "the arm rests outside its rotation and far from its last position"
        )
        if response.success:
            state.state, state.cause = SafetyState.ARMED, ""
        return response

    def scene(handle):
        requests.append("scene")
        handle.succeed()
        return ResetScene.Result(success=True)

    imitate_interlock(peer, requests, state, arm)
    ActionServer(peer.node, ResetScene, "reset_scene", scene)
    start(peer, "operator", SCRIPTED)
    peer.spin(lambda: state.state == SafetyState.ARMED, what="the first arming")
    state.state, state.cause = SafetyState.FAULT, "divergence"
    peer.spin(lambda: state.state == SafetyState.ARMED, what="the arm to be guided inside")
    assert requests == ["reset divergence", "scene"]


@pytest.mark.domain(184)
def test_a_lockstep_station_goes_on_after_its_arm_jammed_outside_the_limits(peer, tmp_path):
    robot = tmp_path / "jammed_franka"
    ours = Path("sim_bridges/simulators/franka_mujoco/franka_sim").resolve()
    shutil.copytree(ours, robot)
    description = (robot / "robot.yaml").read_text()
    (robot / "robot.yaml").write_text(
        description.replace("simulator: franka_mujoco", "simulator: tests.ros.jammed_arm:Simulator")
    )
    recipe = [SCRIPTED, f"station.robot={robot}"]
    states = listen(peer, SafetyState, "safety")
    for name in ("sim_bridge", "interlock", "operator", "recorder"):
        start(peer, name, *recipe, **({"lockstep_guard_s": 1.0} if name == "interlock" else {}))
    start(peer, "environment", *recipe, patience_s=PATIENCE_S)
    runner = ActionClient(peer.node, RunEpisodes, "run_episodes")
    peer.spin(runner.server_is_ready, what="the environment")

    def run_episodes(timeout_s):
        sent = runner.send_goal_async(RunEpisodes.Goal(count=2, mode="demonstration"))
        peer.spin(sent.done, what="the goal")
        answer = sent.result().get_result_async()
        peer.spin(answer.done, timeout_s, "the episodes")
        return answer.result().result

    jammed = run_episodes(60)
    assert not jammed.success and "FAULT divergence" in jammed.message
    peer.spin(lambda: states[-1].state != SafetyState.FAULT, what="the reset")
    after = run_episodes(60)  # as the director does; it waits for the arming
    assert after.success and after.episodes == 2, after.message
    assert {state.cause for state in states if state.state == SafetyState.FAULT} == {"divergence"}


@pytest.fixture(scope="module")
def only_one(tmp_path_factory):
    with peer_in(tmp_path_factory.mktemp("station"), 65) as peer:
        station = Watched(peer)
        station.reach(SafetyState.ARMED, 60)  # once, by its script
        yield station


@pytest.fixture
def station(only_one):
    """One station for all, armed: by a person, where the test before left it disarmed."""
    if only_one.states[-1].state == SafetyState.DISARMED:
        only_one.arm(True)
    only_one.reach(SafetyState.ARMED)
    only_one.begin()
    return only_one


def test_a_disarming_stands_until_a_person_arms_again(station):
    peer = station.peer
    log_count, died = station.log("operator").count("disarmed; arm it"), len(peer.supervisor.events)
    station.arm(False)
    station.reach(SafetyState.DISARMED)
    station.stays(SafetyState.DISARMED, 3.0)
    message = "disarmed; arm it: rlinf arm --set station.domain_id=65, or e in `rlinf teleop`"
    assert station.log("operator").count(message) == log_count + 1
    operator = peer.supervisor.children["operator"].popen
    operator.kill()  # nor does the one that comes after it
    peer.spin(
        lambda: station.log("operator").count("disarmed; arm it") == log_count + 2,
        what="another operator to say it",
    )
    assert peer.supervisor.events[died:] == ["operator ended (killed by SIGKILL) and was restarted"]
    station.stays(SafetyState.DISARMED, 3.0)
    assert station.log("operator").count("disarmed; arm it") == log_count + 2
    station.arm(True)
    station.reach(SafetyState.ARMED)
    station.arm(False)
    station.reach(SafetyState.DISARMED)
    station.stays(SafetyState.DISARMED, 3.0)


def test_what_a_person_lets_go_stays_let_go(station):
    peer, enables = station.peer, station.enables
    say = peer.node.create_publisher(Bool, "enable", profile("enable"))
    try:
        peer.meet(say, by=("operator", "interlock", "peer"))
        peer.spin(lambda: enables, what="the enable")
        say.publish(Bool(data=False))
        peer.for_s(1.0)
        before = len(enables)
        peer.for_s(2.0)
        assert not enables[before:], "nobody holds it for them"
        say.publish(Bool(data=True))
        peer.spin(lambda: len(enables) > before + 2, what="the script to hold it again")
    finally:
        # or no test after this one could arm: it would be another who says it
        peer.node.destroy_publisher(say)


def test_a_fault_is_said_once_with_the_way_out_and_left_to_a_person(station):
    peer, died = station.peer, len(station.peer.supervisor.events)
    robot = peer.node.create_publisher(*_robot_fault())
    peer.spin(lambda: robot.get_subscription_count(), what="the interlock's ear")
    robot.publish(_robot_fault()[0](data="reflex"))
    station.reach(SafetyState.FAULT)
    robot.publish(_robot_fault()[0](data=""))
    station.stays(SafetyState.FAULT, 3.0)
    assert station.log("operator").count("FAULT 'robot:reflex'") == 1
    assert (
        "interlock/reset_fault rlinf_msgs/srv/ResetFault \"{cause: 'robot:reflex'}\""
        in station.log("operator")
    )
    clearing = peer.node.create_client(ResetFault, "interlock/reset_fault")
    peer.spin(
        lambda: station.ask(clearing, ResetFault.Request(cause="robot:reflex")).success,
        what="the reset",
    )
    station.reach(SafetyState.DISARMED)
    station.stays(SafetyState.DISARMED, 3.0)
    assert len(peer.supervisor.events) == died, "nothing died"
    peer.node.destroy_publisher(robot)


def _robot_fault():
    from std_msgs.msg import String

    return String, "robot/fault", profile("robot/fault")


def test_an_environment_that_waits_for_a_person_says_so_and_waits_as_long_as_it_takes(station):
    peer = station.peer
    station.arm(False)
    station.reach(SafetyState.DISARMED)
    runner = ActionClient(peer.node, RunEpisodes, "run_episodes")
    peer.spin(runner.server_is_ready, what="the environment")
    sent = runner.send_goal_async(RunEpisodes.Goal(count=1, mode="demonstration"))
    peer.spin(sent.done, what="the goal")
    answer = sent.result().get_result_async()
    end = time.monotonic() + 2 * PATIENCE_S + 3  # longer than it has patience with machines
    peer.spin(lambda: time.monotonic() > end)
    assert (
        "disarmed; arm it" in station.log("environment")
        and not answer.done()
        and not station.episodes
    )
    station.arm(True)
    peer.spin(answer.done, what="the episode")
    assert answer.result().result.success
