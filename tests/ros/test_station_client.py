"""`rlinf status`, `rlinf fault reset`, `rlinf arm` at an interlock that runs, and where
none does.
"""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from rclpy.task import Future
from rlinf_msgs.msg import PolicyStatus, SafetyState, TimeStep, TrainerStatus
from std_msgs.msg import String
from std_srvs.srv import SetBool

from rlinf_core.core.errors import RlinfError
from rlinf_core.interlock import latch
from rlinf_core.robots.config import load_robot
from rlinf_ros.qos import profile
from rlinf_ros.station_state import command
from rlinf_tools import arming
from rlinf_tools.station_client import _nodes, _release, _ticks, reset_fault, status
from tests.ros.stand_ins import Arm, start

pytestmark = [pytest.mark.ros, pytest.mark.patient, pytest.mark.timeout(300)]


def rlinf(peer, *words, domain):
    """Exit code, and what it said, on both."""
    ran, log = peer.supervisor.command(*words, "--set", f"station.domain_id={domain}")
    peer.spin(lambda: ran.poll() is not None, what=" ".join(words))
    code, output = ran.poll(), log.read_text()
    print(*words, code, output)
    assert "Traceback" not in output
    return code, output


@pytest.mark.domain(51)
def test_where_no_station_is_it_says_so_and_what_to_do(peer):
    for words in (["status"], ["arm"]):
        code, output = rlinf(peer, *words, "--timeout", "2", domain=51)
        assert code == 1 and len(output.splitlines()) == 1
        assert output.startswith(
            "rlinf: expected station 'station_a' in ROS_DOMAIN_ID 51 on this machine"
        )
        assert "received no interlock for 2 s; " in output
        assert "no other station. Start it (rlinf up <recipe>)" in output
    start(peer, "interlock", "station.name=station_b")
    code, output = rlinf(peer, "status", "--timeout", "15", domain=51)
    assert code == 1 and "other stations: station_b" in output


@pytest.mark.domain(52)
def test_status_says_what_the_station_says(peer):
    start(peer, "interlock", "station.lockstep=false")
    arm = Arm(peer)
    code, output = rlinf(peer, "status", domain=52)
    lines = {line[:16].strip(): line[17:] for line in output.splitlines()}
    assert (
        code == 0
        and lines["station"] == "station_a, ROS_DOMAIN_ID 52"
        and lines["interlock"] == "DISARMED"
    )
    assert "rlinf arm --set station.domain_id=52" in lines["waiting for you"]
    assert (
        lines["policy"] == "no message" and lines["trainer"] == "no message: no uplink is running"
    )
    assert (
        lines["nodes"] == "interlock, peer; "
        "MISSING for 'demo': sim_bridge, environment, policy, operator, recorder, uplink"
    )
    assert lines["ticks"].startswith("late by ")

    say = {
        topic: peer.node.create_publisher(kind, topic, profile(topic))
        for topic, kind in (
            ("policy/status", PolicyStatus),
            ("trainer/status", TrainerStatus),
            ("timestep", TimeStep),
        )
    }
    say["policy/status"].publish(PolicyStatus(version=7, inference_p50_ms=1.5, error="too old"))
    say["trainer/status"].publish(
        TrainerStatus(connected=False, message="refused", backlog=3, set_aside=2, spool_full=0.25)
    )
    peer.node.create_timer(
        0.1,
        lambda: say["timestep"].publish(
            TimeStep(episode_id="e-9", step_index=4, mode="train", instruction="to the left")
        ),
    )
    arm.arm()
    arm.reach(SafetyState.ACTIVE)
    for _ in range(5):  # on a busy machine a chunk may be late
        code, output = rlinf(peer, "status", domain=52)
        lines = {line[:16].strip(): line[17:] for line in output.splitlines()}
        if lines["interlock"].startswith("ACTIVE"):
            break
    assert (
        code == 0
        and lines["interlock"] == "ACTIVE policy commands"
        and "waiting for you" not in lines
    )
    assert lines["policy"] == "version 7, answers in 1.5 ms; refused the last update: too old"
    assert lines["trainer"] == (
        "away: refused; 3 episodes wait to be sent; the spool is 25% full; 2 refused by the "
        "trainer are in the spool's refused/"
    )
    assert lines["episode"] == "e-9, step 4, train" and lines["asked for"] == "to the left"


@pytest.mark.domain(53)
def test_a_fault_is_reset_by_its_name_once_its_cause_has_gone(peer):
    limits = str(load_robot("franka_fr3").limits)  # under which the enable must be held
    start(peer, "interlock", "station.lockstep=false", limits_file=limits)
    arm = Arm(peer)
    reflex = peer.node.create_publisher(String, "robot/fault", profile("robot/fault"))
    arm.arm()
    arm.arm(False)
    arm.reach(SafetyState.DISARMED)
    code, output = rlinf(peer, "arm", domain=53)
    assert code == 0 and output.startswith("arming: the interlock is ") and "DISARMED" not in output
    code, output = rlinf(peer, "fault", "reset", domain=53)
    assert code == 1 and output.startswith("rlinf: no fault is active: the interlock is ")
    reflex.publish(String(data="reflex"))
    arm.reach(SafetyState.FAULT, "robot:reflex")
    reset = ["fault", "reset", "--cause", "robot:reflex"]
    code, output = rlinf(peer, "fault", "reset", domain=53)
    assert code == 1 and output.endswith(
        f"rlinf {' '.join(reset)} --set station.domain_id=53 [RL-E517]\n"
    )
    code, output = rlinf(peer, *reset, domain=53)
    assert code == 1 and "refused: its cause persists: robot:reflex" in output
    reflex.publish(String(data=""))
    arm.enabled = False
    peer.for_s(0.5)
    code, output = rlinf(peer, *reset, domain=53)
    assert code == 1 and "the enable is not held. Enter in `rlinf teleop`" in output
    arm.enabled = True
    peer.for_s(0.5)
    code, output = rlinf(peer, "fault", "reset", "--cause", "stale_state", domain=53)
    assert (
        code == 1
        and "FAULT 'robot:reflex' is active, and the request named 'stale_state'" in output
    )
    assert arm.states[-1].state == SafetyState.FAULT
    code, output = rlinf(peer, *reset, domain=53)
    assert code == 0
    assert output.startswith(
        "FAULT 'robot:reflex' is cleared: the interlock is DISARMED. Arm it to move: rlinf arm "
        "--set"
    )
    assert arm.states[-1].state == SafetyState.DISARMED


@pytest.mark.domain(54)
def test_a_real_arm_is_armed_at_a_terminal(peer):
    start(peer, "interlock", "station.robot=franka_fr3", latch_file="", estops=["pendant"])
    arm = Arm(peer)
    peer.spin(lambda: arm.targets, what="targets")
    code, output = rlinf(peer, "arm", domain=54)
    assert code == 1 and "expected a person at a terminal" in output and "real arm" in output
    assert {state.state for state in arm.states} == {SafetyState.DISARMED}
    arm.arm()
    code, output = rlinf(peer, "disarm", domain=54)
    assert code == 0 and output.startswith("disarming: the interlock is DISARMED")


@pytest.mark.parametrize(
    "arms, trouble",
    [
        ([""], RlinfError("no answer of 'interlock/arm' for 12 s. Try again")),
        ([""], KeyboardInterrupt()),
        (["left", "right"], RlinfError("no answer of 'right/interlock/arm' for 12 s. Try again")),
    ],
)
def test_an_arming_of_which_nobody_heard_leaves_no_arm_armed(monkeypatch, arms, trouble):
    """After a lost answer the arm may be armed, and a streaming policy would move it."""
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    requests, answered = [], Future()
    answered.set_result(SetBool.Response(success=True))

    def client(kind, name):
        return SimpleNamespace(
            srv_name=name,
            service_is_ready=lambda: True,
            call_async=lambda request: requests.append((name, request.data)) or answered,
        )

    def call(client, request):
        client.call_async(request)
        if client.srv_name.startswith(arms[-1]):
            raise trouble
        return SimpleNamespace(success=True, message="arming")

    station = MagicMock(arms=arms, call=call)
    station.name = "station_a"
    station.node.create_client = client
    with pytest.raises(type(trouble)):
        arming.arm(station)
    names = [f"{arm}/interlock/arm".lstrip("/") for arm in arms]
    assert requests == [*((name, True) for name in names), *((name, False) for name in names)]


def test_a_shell_that_says_no_domain_is_in_domain_0(monkeypatch):
    monkeypatch.setenv("ROS_DOMAIN_ID", "")
    command.cache_clear()
    assert command("arm", "station_a") == "rlinf arm"
    assert latch.lock_name("/station_a") == "interlock/0/station_a"
    command.cache_clear()


def test_s23_a_file_in_tmp_is_neither_followed_nor_a_lock(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("ROS_DOMAIN_ID", "56")
    (tmp_path / "rlinf-56-station_a.interlock.lock").symlink_to(tmp_path / "of_somebody")
    held = "another interlock commands station '/station_a'.* process [0-9]+ of "
    with latch.exclusive_command("/station_a"), pytest.raises(RlinfError, match=held):
        latch.exclusive_command("/station_a")
    latch.exclusive_command("/station_a").close()
    assert not (tmp_path / "of_somebody").exists()


@pytest.mark.parametrize(
    "first, second, refused",
    [
        (["/arm/goal"], ["/arm/goal"], "the robot on '/arm/goal'"),
        (["/arm/goal"], ["/other/goal"], ""),
        (["/a/target_pose"], ["/b/target_pose"], ""),
        (["/a/target_pose"], ["/a/target_pose"], "the robot on"),
    ],
)
def test_s23_two_stations_of_other_names_do_not_command_one_robot(
    monkeypatch, first, second, refused
):
    """A driver with names of its own, as ur_robot_driver's, is commanded on them whatever a
    station's name is.
    """
    monkeypatch.setenv("ROS_DOMAIN_ID", "56")
    with latch.exclusive_command("/a", first):
        if refused:
            with pytest.raises(RlinfError, match=f"another interlock commands {refused}"):
                latch.exclusive_command("/b", second)
            latch.exclusive_command("/b").close()  # a refusal holds nothing
        else:
            latch.exclusive_command("/b", second).close()


def test_s23_where_no_socket_is_granted_the_interlock_is_refused(monkeypatch):
    def none_left(_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(latch, "acquire", none_left)
    with pytest.raises(RlinfError, match="cannot check whether .*Too many open files"):
        latch.exclusive_command("/station_a")


def test_an_arm_of_which_nobody_says_that_it_was_taken_back_is_named(monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    station = MagicMock(
        arms=["left", "right"],
        call=lambda client, request: SimpleNamespace(
            success="left" in client.srv_name, message="this stands: silent:wrench"
        ),
    )
    station.name = "station_a"
    station.node.create_client = lambda kind, name: SimpleNamespace(
        srv_name=name, service_is_ready=lambda: True, call_async=lambda request: Future()
    )
    message = "arm 'right': this stands: silent:wrench; arm 'left': it may be armed: rlinf disarm"
    with pytest.raises(RlinfError, match=message):
        arming.arm(station)


def test_a_refused_reset_of_an_e_stop_names_the_release():
    assert "press 'Release the stop' on the operator's page" in _release("estop:page")
    assert "The e-stop 'pendant' is still pressed: release it" in _release("estop:pendant")
    assert _release("estop_silent:page") == _release("divergence") == ""


def test_a_reset_refused_by_the_interlock_of_a_pressed_e_stop_names_the_release():
    answer = SimpleNamespace(
        success=False, message="refused: its cause persists: estop:pendant, the enable is not ready"
    )
    station = MagicMock(
        arms=[""],
        safety_by_arm={"": SafetyState(state=SafetyState.FAULT, cause="estop:pendant")},
        call=lambda *_: answer,
    )
    with pytest.raises(RlinfError, match="'pendant' is still pressed: release it, then reset"):
        reset_fault(station, "estop:pendant")


def test_a_station_that_collects_needs_neither_policy_nor_uplink():
    expected = ["interlock", "policy", "uplink"]
    note = "; MISSING for 'demo': policy, uplink"
    with_director = _nodes(["director", "interlock"], expected, "demo")
    assert with_director.endswith(f"{note} (rlinf collect needs neither)")
    assert _nodes(["interlock"], expected, "demo").endswith(note)
    assert "collect" not in _nodes(["director"], expected, "demo")


def test_a_node_that_is_discovered_late_is_not_missing(capsys):
    looks = []

    def nodes():
        looks.append("")
        return ["interlock", "policy"] if len(looks) > 2 else ["interlock"]

    def within(seconds, ready):
        while not ready() and len(looks) < 10:
            pass

    station = SimpleNamespace(
        name="station_a",
        arms=[""],
        latest={},
        safety_by_arm={},
        meet=SafetyState,
        within=within,
        nodes=nodes,
    )
    status(station, ["interlock", "policy"], "demo")
    assert "interlock, policy" in (output := capsys.readouterr().out) and "MISSING" not in output


def test_the_number_of_samples_is_no_lateness():
    values = {"tick_late_p50_ms": "0.1", "tick_late_samples": "1000"}
    assert _ticks(values, "") == [("ticks", "late by 0.10 ms (p50)")]
