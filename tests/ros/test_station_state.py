"""The exact texts about a station's state, without ROS's middleware."""

import os
import signal
from types import SimpleNamespace

import pytest
from rclpy.signals import SignalHandlerOptions
from rclpy.task import Future
from rlinf_msgs.msg import SafetyState, TrainerStatus

from rlinf_core.core.errors import RlinfError
from rlinf_core.interlock.takeover import OPERATOR_SILENT
from rlinf_ros import station_state
from rlinf_ros.station_state import (
    RUN_CONTINUES,
    TAKES_S,
    WARN_AFTER_S,
    ArmAnswerLog,
    Discovery,
    RequestStop,
    accepted_episodes,
    command,
    command_context,
    command_node,
    is_directed,
    is_episode_held,
    publisher_ids,
    resume_instruction,
    silence_message,
    state_text,
)

ARM = (
    "rlinf arm, or e in `rlinf teleop` or `rlinf collect` (with ROS: ros2 service call "
    "/station_a/interlock/arm std_srvs/srv/SetBool '{data: true}')"
)


@pytest.fixture(autouse=True)
def default_domain(monkeypatch):
    monkeypatch.setattr(station_state, "shell_domain", lambda: 0)
    command.cache_clear()
    yield
    command.cache_clear()


class Node:
    """One that knows others, by name and namespace, and a topic's publishers."""

    def __init__(self, *others, name="station_client_7", namespace="/station_a"):
        self.others, self.name, self.namespace = others, name, namespace
        self.timers, self.logged, self.publishers = [], [], []

    def get_name(self):
        return self.name

    def get_namespace(self):
        return self.namespace

    def get_node_names_and_namespaces(self):
        return [(self.name, self.namespace), *self.others]

    def get_publishers_info_by_topic(self, topic):
        return self.publishers if topic == "policy/action" else []

    def create_timer(self, seconds, callback):
        self.timers.append((seconds, callback))

    def get_logger(self):
        return SimpleNamespace(
            info=lambda text: self.logged.append(("info", text)),
            warning=lambda text, throttle_duration_sec=None: self.logged.append(
                ("warning", text, *([throttle_duration_sec] if throttle_duration_sec else []))
            ),
        )


def test_publishers_of_one_name_are_told_apart():
    node = Node(name="teleop")
    node.publishers = [
        SimpleNamespace(endpoint_gid=[1, 2], node_name="policy"),
        SimpleNamespace(endpoint_gid=[1, 3], node_name="policy"),
        SimpleNamespace(endpoint_gid=[1, 4], node_name="teleop"),
    ]
    assert publisher_ids(node, "policy/action") == {(1, 2), (1, 3), (1, 4)}
    assert publisher_ids(node, "policy/action", others=True) == {(1, 2), (1, 3)}


def test_a_station_is_directed_by_the_director_of_its_own_namespace():
    node = Node(("director", "/station_b"), ("policy", "/station_a"))
    assert is_directed(node, "/station_b") and not is_directed(node)
    assert is_directed(Node(("director", "/station_a")))


@pytest.mark.parametrize(
    "others, remark",
    [
        ([], "no other station"),
        (
            [
                ("recorder", "/station_a"),
                ("interlock", "/station_a/left"),
                ("interlock_services", "/station_a/left"),
                ("page_client", "/station_a"),
                ("policy_inputs", "/station_a"),
                ("station_client_8", "/station_a"),
                ("environment", "/station_ab"),
            ],
            "nodes of this station: interlock, recorder; no other station",
        ),
        (
            [("interlock", "/lab"), ("interlock", "/hall/left"), ("recorder", "/attic")],
            "other stations: hall/left, lab",
        ),
        (
            [("interlock", "/lab"), ("policy", "/station_a")],
            "nodes of this station: policy; other stations: lab",
        ),
    ],
)
def test_of_a_silent_station_it_says_who_was_found(monkeypatch, others, remark):
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    monkeypatch.setenv("ROS_DOMAIN_ID", "200")
    assert silence_message(Node(*others), "environment", 7.6) == (
        "expected station 'station_a' in ROS_DOMAIN_ID 200 on this machine, received no environment "
        f"for 8 s; {remark}. Start it (rlinf up <recipe>), or give the recipe and overrides of "
        "the running one: <recipe> --set station.name=... station.domain_id=..."
    )


@pytest.mark.parametrize(
    "reach, trouble, where, more",
    [
        ("", "", "the network (ROS_AUTOMATIC_DISCOVERY_RANGE SUBNET)", ""),
        (
            "",
            "no multicast",
            "the network (ROS_AUTOMATIC_DISCOVERY_RANGE SUBNET)",
            "; no multicast",
        ),
        ("OFF", "no multicast", "the network (ROS_AUTOMATIC_DISCOVERY_RANGE OFF)", ""),
        ("LOCALHOST", "no multicast", "this machine", ""),
    ],
)
def test_of_a_silent_station_it_says_where_it_looked(monkeypatch, reach, trouble, where, more):
    shell = {"ROS_AUTOMATIC_DISCOVERY_RANGE": reach}
    monkeypatch.setattr(station_state, "os", SimpleNamespace(environ=shell))
    groups = []
    monkeypatch.setattr(
        station_state, "network_trouble", lambda address: groups.append(address) or trouble
    )
    text = silence_message(Node(namespace="/lab/left"), "interlock", 8.0)
    assert f"expected station 'lab' in ROS_DOMAIN_ID 0 on {where}, received no interlock" in text
    assert f"no other station{more}. Start it" in text
    assert groups == ([station_state.MULTICAST] if not reach else [])


def test_a_missing_part_is_warned_of_after_a_while_and_its_return_is_told(monkeypatch):
    now, present, node = [100.0], [False], Node()
    monkeypatch.setattr(station_state, "time", SimpleNamespace(monotonic=lambda: now[0]))
    discovery = Discovery(node, "environment", lambda: present[0])
    [(period, poll)] = node.timers
    assert period == 1.0 and discovery.warning == ""
    now[0] += WARN_AFTER_S
    poll()
    assert discovery.warning == "" and not node.logged
    now[0] += 1.0
    poll()
    assert "received no environment for 6 s" in discovery.warning
    assert node.logged == [("warning", discovery.warning, 30.0)]
    present[0] = True
    poll()
    poll()
    assert discovery.warning == "" and node.logged[1:] == [
        ("info", "the environment was discovered")
    ]
    present[0] = False
    now[0] += WARN_AFTER_S
    poll()
    assert discovery.warning == "", "the time begins anew"


def state(name, cause="", source=""):
    return SafetyState(state=getattr(SafetyState, name), cause=cause, source=source)


@pytest.mark.parametrize(
    "before, after, reason",
    [
        ("ACTIVE", ("DISARMED",), "the interlock stopped: DISARMED. Arm, then try again"),
        (
            "ACTIVE",
            ("FAULT", "estop:page"),
            "the interlock stopped: FAULT estop:page. Arm, then try again",
        ),
        (
            "DISARMED",
            ("FAULT", "estop:page"),
            "the interlock stopped: FAULT estop:page. Arm, then try again",
        ),
        ("FAULT", ("FAULT", "estop:page"), ""),
        ("FAULT", ("DISARMED",), ""),
        ("DISARMED", ("DISARMED",), ""),
        ("ARMED", ("HOLD", "clock"), ""),
        ("DISARMED", ("ARMED",), ""),
    ],
)
def test_a_disarming_or_a_new_fault_ends_a_request(before, after, reason):
    stop = RequestStop()
    stop.on_safety(state(before))
    stop.begin()
    assert stop.reason == ""
    assert stop.on_safety(state(*after)) is bool(reason) and stop.reason == reason
    assert not stop.on_safety(state(*after)) and stop.reason == reason, "once"
    stop.begin()
    assert stop.reason == ""


def test_in_a_fault_no_request_is_accepted():
    stop = RequestStop()
    assert stop.refusal() == ""
    stop.on_safety(state("FAULT", "estop:page"))
    assert stop.refusal() == "FAULT 'estop:page' is active. Reset it, arm, then try again"
    stop.on_safety(state("DISARMED", "estop:page"))
    assert stop.refusal() == "", "a person arms after the request"


@pytest.mark.parametrize(
    "safety, words",
    [
        (state("ACTIVE"), ""),
        (state("ARMED"), ""),
        (state("HOLD", "silent"), ""),
        (state("ACTIVE", "new_session"), ""),
        (state("ARMED", "clock"), ""),
        (state("DISARMED"), f"disarmed; arm it: {ARM}"),
        (state("HOLD", "new_session"), f"a commander was restarted. Arm again: {ARM}"),
        (
            state("HOLD", "clock"),
            "the clock of the interlock's machine was set; disarm it: rlinf disarm. Then " + ARM,
        ),
        (
            state("HOLD", OPERATOR_SILENT),
            "the operator's messages stopped in a takeover. Let go of every device, then press a "
            "key or a button of the operator. If the operator has ended, start it and arm again: "
            + ARM,
        ),
        (
            state("FAULT", "estop:page"),
            "FAULT 'estop:page'. After its cause has ended: rlinf fault reset --cause estop:page "
            "(with ROS: ros2 service call /station_a/interlock/reset_fault "
            "rlinf_msgs/srv/ResetFault \"{cause: 'estop:page'}\"). Then arm: " + ARM,
        ),
    ],
)
def test_what_a_person_must_do_before_the_arm_moves(safety, words):
    assert resume_instruction(safety, "/station_a") == words


@pytest.mark.parametrize(
    "shell, arguments, words",
    [
        (0, ("arm", "station_a"), "rlinf arm"),
        (206, ("arm", "station_a"), "rlinf arm --set station.domain_id=206"),
        (0, ("arm", "lab"), "rlinf arm --set station.name=lab"),
        (206, ("disarm", "lab"), "rlinf disarm --set station.name=lab station.domain_id=206"),
        (
            0,
            ("fault reset", "lab", "robot: a b"),
            "rlinf fault reset --cause 'robot: a b' --set station.name=lab",
        ),
    ],
)
def test_a_command_is_one_for_this_station(monkeypatch, shell, arguments, words):
    monkeypatch.setattr(station_state, "shell_domain", lambda: shell)
    assert command(*arguments) == words


@pytest.mark.parametrize(
    "safety, text",
    [
        (state("ACTIVE", "was", "policy"), "ACTIVE policy commands"),
        (state("HOLD", "clock", "policy"), "HOLD clock"),
        (state("DISARMED"), "DISARMED"),
    ],
)
def test_a_state_in_words(safety, text):
    assert state_text(safety) == text


@pytest.fixture
def answers(monkeypatch):
    """The log of a node that asks to arm, and how the interlock reports its state."""
    now, reports, node = [50.0], [], Node()

    def subscribe_safety(subscriber, arms, callback):
        assert (subscriber, arms) == (node, ["left"])
        reports.append(callback)

    monkeypatch.setattr(station_state, "subscribe_safety", subscribe_safety)
    monkeypatch.setattr(station_state, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now, ArmAnswerLog(node, ["left"]), reports[0], node


def answer(words):
    future = Future()
    future.set_result(SimpleNamespace(message=words))
    return future


def test_an_answer_is_logged_with_the_state_that_follows_it(answers):
    now, log, report, node = answers
    log.answered(answer("arming"))
    now[0] += 0.01
    log.answered(answer("again"))
    now[0] += TAKES_S - 0.02
    report(state("DISARMED"))
    assert node.logged == [("warning", f"disarmed; arm it: {ARM}")], "a state of before"
    now[0] += 0.015
    report(state("ARMED"))
    assert node.logged[1:] == [("info", "arming: the interlock is ARMED")]
    now[0] += 1.0
    report(state("HOLD", "silent"))
    report(state("HOLD", "silent"))
    assert node.logged[2:] == [("info", "again: the interlock is HOLD silent")]


def test_what_a_person_must_do_is_logged_once_and_with_a_run_that_goes_on(answers):
    _, _, report, node = answers
    report(state("DISARMED"))
    report(state("DISARMED"))
    assert len(node.logged) == 1
    report(state("ARMED"))
    node.others = [("director", "/station_a")]
    report(state("DISARMED"))
    report(state("HOLD", "new_session"))
    assert [entry[1] for entry in node.logged[1:]] == [
        f"disarmed; arm it: {ARM}. {RUN_CONTINUES}",
        f"a commander was restarted. Arm again: {ARM}",
    ]


@pytest.mark.parametrize(
    "mode, fields, held",
    [
        ("train", {"connected": True, "accepting": True}, False),
        ("train", {"connected": True}, True),
        ("demonstration", {"connected": True}, False),
        ("train", {"accepting": False}, False),
        ("demonstration", {"held": True, "accepting": True}, True),
        ("evaluate", {"spool_full": 1.0}, True),
        ("evaluate", {"spool_full": 0.99}, False),
    ],
)
def test_a_trainer_or_a_full_spool_holds_episodes_back(mode, fields, held):
    assert is_episode_held(TrainerStatus(**fields), mode) is held


def test_episodes_taken_are_those_of_the_station():
    status = TrainerStatus(names=["b/episodes", "a/episodes"], values=[2.0, 5.0])
    assert (
        accepted_episodes(status, "a"),
        accepted_episodes(status, "b"),
        accepted_episodes(status, "c"),
    ) == (5, 2, 0)


@pytest.fixture
def ros(monkeypatch):
    """Return the calls of a command to rclpy, in order."""
    calls = []
    fake = SimpleNamespace(
        init=lambda signal_handler_options: calls.append(signal_handler_options),
        try_shutdown=lambda: calls.append("shutdown"),
        create_node=lambda name, **fields: (name, fields),
    )
    monkeypatch.setattr(station_state, "rclpy", fake)
    before = signal.getsignal(signal.SIGTERM)
    yield calls
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    "error, code, line",
    [
        (RlinfError("no station", code="RL-E208"), 1, "rlinf: no station [RL-E208]\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_a_command_ends_with_one_line_and_its_exit_code(ros, capsys, error, code, line):
    with pytest.raises(SystemExit) as ended, command_context():
        raise error
    printed = capsys.readouterr()
    assert ended.value.code == code and printed.out == ""
    assert printed.err.startswith(line.rstrip("\n")) and printed.err.count("\n") == bool(line)
    assert ros == [SignalHandlerOptions.NO, "shutdown"]


def test_sigterm_ends_a_command_like_ctrl_c(ros):
    with pytest.raises(SystemExit) as ended, command_context():
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    assert ended.value.code == 130 and ros[-1] == "shutdown"
    with command_context():
        pass


def test_the_node_of_a_command_has_a_name_of_its_own(ros):
    name, fields = command_node("lab")
    assert name == f"station_client_{os.getpid()}" and fields.pop("namespace") == "/lab"
    assert fields == {"enable_rosout": False, "start_parameter_services": False}
