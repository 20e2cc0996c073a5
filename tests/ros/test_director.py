"""The recipe's rules that end training at a station, and the definition of success there."""

import contextlib
import json
import time
from collections import deque
from unittest.mock import MagicMock

import builtin_interfaces.msg
import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.task import Future
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import Applied, EpisodeEvent, PolicyStatus, SafetyState, TrainerStatus
from std_msgs.msg import String

from rlinf_core.cli.compare import compare
from rlinf_core.cli.sweep import table
from rlinf_core.reports.curves import draw, read_evaluations
from rlinf_ros import arms, station_state
from rlinf_ros.station_state import (
    RUN_CONTINUES,
    RUN_CONTINUES_S,
    SettledCount,
    has_caught_up,
    refused_episodes,
)
from rlinf_station import director as director_module
from rlinf_station import director_status, labels
from rlinf_station.director import Director
from rlinf_station.director_status import Lines, Recent, RunStopped, ending, write_status

CODES = RunEpisodes.Result


@pytest.mark.parametrize(
    "recent, steps, minutes, why",
    [
        ([1] * 5, 10, 1, "5 of the last 5 training episodes succeeded (online.stop_at_success)"),
        (
            [0, 0, 1, 1, 0, 1, 1],
            10,
            1,
            "4 of the last 5 training episodes succeeded (online.stop_at_success)",
        ),
        ([1] * 4, 10, 1, ""),
        ([1, 1, 1, 0, 0, 1, 1], 10, 1, ""),
        ([1, 0], 500, 1, "500 time steps were played (online.max_env_steps)"),
        ([1, 0], 10, -1, "3 minutes have passed (online.max_minutes)"),
        ([], 0, 1, ""),
    ],
)
def test_it_says_why_training_ends(recent, steps, minutes, why):
    of_this_run = Recent.__new__(Recent)  # without ROS
    of_this_run.ended = deque((bool(success), 0.0) for success in recent)
    online = {"stop_at_success": 0.8, "stop_episodes": 5, "max_env_steps": 500, "max_minutes": 3.0}
    assert ending(of_this_run, steps, online, time.monotonic() + 60 * minutes) == why
    assert of_this_run.success(2) == pytest.approx(sum(recent[-2:]) / max(len(recent[-2:]), 1))


@pytest.mark.parametrize(
    "set_aside, read, count", [(0, 0.0, 0), (2, 1.0, 3), (1, float("nan"), 1), (0, float("inf"), 0)]
)
def test_what_the_trainer_refused_of_a_station_is_counted_whatever_it_says(set_aside, read, count):
    status = TrainerStatus(
        set_aside=set_aside, names=["other/refused", "station_a/refused"], values=[7.0, read]
    )
    assert refused_episodes(status, "station_a") == count


@pytest.mark.parametrize("collect", [{"episodes": 2}, {"episodes": 0, "share": 2}])
def test_a_trainer_that_refuses_more_than_it_needs_ends_the_run(tmp_path, monkeypatch, collect):
    director = Director.__new__(Director)  # without ROS
    director.lines, director.plan, director.station = Lines(tmp_path), {"collect": collect}, "a"
    director.refused = 0
    director.policy = MagicMock(version=0, error="")
    director.trainer = TrainerStatus(connected=True)
    requests = []

    def recorded(count, seed):
        requests.append((count, seed))
        return seed + count

    monkeypatch.setattr(director, "_collect_demonstrations", recorded)
    monkeypatch.setattr(
        director,
        "_spin",
        lambda _: setattr(director.trainer, "set_aside", director.trainer.set_aside + 1),
    )
    with pytest.raises(
        RunStopped, match=r"the trainer refused 3 episodes\. The reasons .*; expected at most 2"
    ):
        director._wait_for_first_policy(7)
    assert requests == [(1, 7), (1, 8)]


def test_its_evaluation_is_a_trainers_record_that_every_reader_of_evaluations_takes(
    tmp_path, monkeypatch
):
    director = Director.__new__(Director)  # without ROS
    director.lines = Lines(tmp_path)
    director.plan = {"evaluate": {"episodes": 4, "first_seed": 7, "control_hz": 10.0}}
    director.env_steps = 120
    director.trainer = MagicMock(updates=60)
    director.started = time.monotonic()
    ended = [
        EpisodeEvent(
            episode_id=f"e{n}",
            success=n == 0,
            failure=n == 1,
            episode_return=value,
            policy_version=5,
            steps=20 + n,
        )
        for n, value in enumerate((1.5, -0.5, 0.25, 0.75))
    ]
    monkeypatch.setattr(director, "_run_episodes", lambda *_: ended)
    director._evaluate("before")
    [entry] = read_evaluations(tmp_path)
    volatile_keys = {"event", "time", "name", "successes", "episode_ids", "seconds"}
    assert {key: value for key, value in entry.items() if key not in volatile_keys} == {
        "env_steps": 120,
        "updates": 60,
        "policy_version": 5,
        "episodes": 4,
        "success": 0.25,
        "failure": 0.25,
        "return": 0.5,
        "robot_minutes": 0.2,
        "longest_run": 1,
        "time_to_success_s": 2.0,
        "time_to_success_s_low": 2.0,
        "time_to_success_s_high": 2.0,
    } | {name: entry[name] for name in entry if name.startswith("successes_per_hour")}
    assert entry["successes_per_hour"] == pytest.approx(3600 / 8.6)
    assert (
        0.0 <= entry["seconds"] < 60.0
        and entry["successes"] == 1
        and entry["episode_ids"] == ["e0", "e1", "e2", "e3"]
    )
    compare([tmp_path], tmp_path / "curve.png")
    draw({"returns": [[entry]]}, tmp_path / "return.png", "return")
    assert "0.50" in table({tmp_path: ([], [entry])}, tmp_path / "sweep.csv")


def test_what_succeeded_with_a_persons_help_is_no_success_of_the_policy():
    recent = Recent(MagicMock(), [])
    stamp = builtin_interfaces.msg.Time

    def episode(success, sources, mode="train"):
        recent.begin()
        for number, source in enumerate(sources):
            for _ in range(2):  # by two arms
                recent._on_applied(Applied(source=source, observation_stamp=stamp(sec=number)))
        return recent.close(EpisodeEvent(success=success, mode=mode, steps=len(sources)))

    assert episode(True, ["operator"] * 4, "demonstration") == 0
    assert episode(True, ["policy", "operator"], "evaluate") == 1, (
        "in an evaluation it counts as help too"
    )
    recent.ended.clear()
    assert episode(True, ["policy", "policy", "operator", "operator"]) == 2
    assert (recent.success(50), recent.intervened(50)) == (0.0, 0.5)
    assert episode(True, ["policy"] * 4) == 0 and episode(False, ["policy"] * 4) == 0
    assert (recent.success(50), recent.success(2)) == (pytest.approx(1 / 3), 0.5)
    assert (recent.intervened(50), recent.intervened(2)) == (pytest.approx(1 / 6), 0.0)


def test_only_episodes_of_what_was_asked_for_count_as_answers_to_it(tmp_path):
    director = Director.__new__(Director)  # without ROS
    director.mode = "evaluate"
    director.phase = "evaluate_after"
    director.recent = MagicMock(close=lambda event: 0)
    director.lines = Lines(tmp_path)
    director.trainer = TrainerStatus()
    director._closed_ids = set()
    director._closed_events = []
    director.done = director.successes = director.env_steps = 0
    for number, mode in enumerate(("train", "evaluate", "demonstration")):
        director._on_episode(
            EpisodeEvent(
                kind=EpisodeEvent.CLOSED, episode_id=f"e{number}", mode=mode, success=True, steps=7
            )
        )
    assert [event.episode_id for event in director._closed_events] == ["e1"] and (
        director.done,
        director.successes,
    ) == (1, 1)
    assert (
        director.env_steps == 7 and len((tmp_path / "progress.jsonl").read_text().splitlines()) == 3
    ), "all are told"


def test_of_an_evaluation_what_a_person_did_counts_nowhere(tmp_path):
    director = Director.__new__(Director)  # without ROS
    director.mode, director.phase = "evaluate", "evaluate_after"
    director.recent = MagicMock(close=lambda event: event.steps - 7)
    director.lines = Lines(tmp_path)
    director.trainer = TrainerStatus()
    director._closed_ids = set()
    director._closed_events = []
    director.done = director.successes = director.env_steps = 0
    for number in range(2):  # in the second a person had three of its steps
        director._on_episode(
            EpisodeEvent(
                kind=EpisodeEvent.CLOSED,
                episode_id=f"e{number}",
                mode="evaluate",
                success=True,
                steps=7 + 3 * number,
            )
        )
    assert (
        [event.success for event in director._closed_events],
        director.done,
        director.successes,
    ) == (
        [True, False],
        2,
        1,
    )
    entries = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert [(line["success"], line["intervened"]) for line in entries] == [(True, 0), (True, 3)], (
        "as it ended, and by whom"
    )


@pytest.mark.parametrize(
    "statuses, refused_since",
    [
        ([(False, None), (True, 3), (True, 3)], 0),
        ([(True, 3), (True, 4)], 1),
        ([(True, 2), (True, 0), (True, 1)], 1),
        ([(False, None), (False, None)], 0),
        ([(True, 3), (True, None), (True, 3)], 0),
        ([(True, None), (True, 3)], 3),
        ([(True, None), (True, 2), (True, 3)], 1),
    ],
)
def test_what_was_refused_before_is_not_recorded_anew_and_what_is_since_is(statuses, refused_since):
    director = Director.__new__(Director)  # without ROS
    director.station = "a"
    director.refused = -1
    director._closed_ids = set()
    director.counted = False
    for number, (connected, count) in enumerate(statuses):
        names, values = (
            ([], []) if count is None else (["refused", "a/refused"], [9.0, float(count)])
        )
        director._on_trainer(TrainerStatus(connected=connected, names=names, values=values))
        if number == len(statuses) - 2:
            director._closed_ids.add("the first of this run")
    assert (
        max(0, refused_episodes(director.trainer, "a") - max(director.refused, 0)) == refused_since
    )


def test_refusals_are_counted_from_the_first_report_on():
    """Also after a report without counts, as a trainer that has only begun to listen sends it."""
    director = Director.__new__(Director)  # without ROS
    director.station, director.refused = "a", -1
    director.counted, director._closed_ids = False, set()
    for count in (3, None, 5):
        names = [] if count is None else ["refused", "a/refused"]
        values = [] if count is None else [9.0, float(count)]
        director._on_trainer(TrainerStatus(connected=True, names=names, values=values))
    assert (director.refused, director.counted) == (3, True)
    assert refused_episodes(director.trainer, "a") - director.refused == 2


def test_a_full_disk_keeps_its_lines_for_later_and_ends_nothing(tmp_path, monkeypatch):
    lines = Lines(tmp_path / "gone")
    lines.add({"event": "one"})
    lines.add({"event": "two"})
    assert "2 lines wait and are written later. Free disk space" in lines.trouble
    write_status(tmp_path / "gone", {"phase": "online"})
    (tmp_path / "gone").mkdir()
    lines.add({"event": "three"})
    assert lines.trouble == "" and [
        json.loads(line)["event"] for line in lines.path.read_text().splitlines()
    ] == ["one", "two", "three"]


@pytest.mark.parametrize(
    "trainer, version, episodes, is_so",
    [
        ({}, 3, 5, True),
        ({"accepting": False}, 3, 5, False),
        ({"backlog": 1}, 3, 5, False),
        ({}, 2, 5, False),
        ({}, 3, 6, False),
        ({"policy_version": 4}, 3, 5, False),
        ({"names": ["b/episodes"]}, 3, 5, False),
    ],
)
def test_the_learner_is_caught_up_with_once_it_has_all_owes_nothing_and_its_policy_plays(
    trainer, version, episodes, is_so
):
    status = TrainerStatus(
        **{"accepting": True, "names": ["a/episodes"], "values": [5.0], "policy_version": 3}
        | trainer
    )
    assert has_caught_up(status, PolicyStatus(version=version), "a", episodes) is is_so


def test_what_is_on_its_way_has_come_once_its_number_has_been_the_same_for_a_while(monkeypatch):
    now, number = [0.0], [0]
    settled = SettledCount(lambda: number[0])
    monkeypatch.setattr("rlinf_ros.station_state.time", MagicMock(monotonic=lambda: now[0]))
    results = [
        settled()
        for now[0], number[0] in ((0.0, 1), (1.9, 1), (2.0, 2), (3.9, 2), (4.1, 2), (4.2, 3))
    ]
    assert results == [False, False, False, False, True, False]


@pytest.mark.parametrize("synchronous, waited_for", [(True, [6, 7, 0]), (False, [0])])
def test_in_turns_each_question_waits_until_the_trainer_has_its_episodes(
    synchronous, waited_for, tmp_path, monkeypatch
):
    director = Director.__new__(Director)  # without ROS
    director.lines, director.recent, director.env_steps = Lines(tmp_path), MagicMock(ended=[]), 0
    director.trainer = TrainerStatus(names=["a/episodes"], values=[4.0])
    director._closed_events = []
    waited = []
    orders = []
    director.station, come = "a", iter([4.0, 5.0])  # the evaluation before it comes now
    director._spin_until = lambda seconds, ready: (
        [ready() for director.trainer.values in ([episode_count] for episode_count in come)]
        and not ready()
    )
    ends = iter(["", "", "the end"])
    monkeypatch.setattr("rlinf_station.director.ending", lambda *_: next(ends))

    def play(count, mode, seed, deadline):
        orders.append((count, mode, seed))
        director._closed_events = [EpisodeEvent(episode_id=f"e{seed}")]

    def catch_up(seconds, episodes=0):
        waited.append(episodes)
        director.trainer.values = [max(director.trainer.values[0], float(episodes))]

    monkeypatch.setattr(director, "_run_episodes", play)
    monkeypatch.setattr(director, "_catch_up", catch_up)
    online = {
        "first_seed": 9,
        "max_minutes": 1.0,
        "request_episodes": 1,
        "drain_timeout_s": 3.0,
        "synchronous": synchronous,
    }
    assert (
        director._run_online_phase(online) == "the end"
        and orders == [(1, "train", 9), (1, "train", 10)]
        and waited == waited_for
    )


@pytest.mark.parametrize(
    "mode, state, waits",
    [
        ("train", {"accepting": True}, False),
        ("train", {"connected": True}, True),
        ("evaluate", {"connected": True}, False),
        ("train", {"connected": False}, False),
        ("evaluate", {"held": True, "accepting": True}, True),
        ("evaluate", {"spool_full": 1.0, "accepting": True}, True),
    ],
)
def test_an_environment_that_is_silent_is_asked_again_but_where_it_waits_for_the_trainer(
    monkeypatch, tmp_path, mode, state, waits
):
    now = [0.0]
    monkeypatch.setattr(
        director_module, "time", MagicMock(monotonic=lambda: now[0], time=time.time)
    )
    director, answer = Director.__new__(Director), Future()  # without ROS
    director.trainer, director.safety = TrainerStatus(**state), SafetyState(state=SafetyState.ARMED)
    director.operator, director.lines = MagicMock(prompt=""), Lines(tmp_path)
    director.runner = MagicMock()
    director.runner.send_goal_async.return_value.result.return_value.get_result_async.return_value = answer
    answer.result = lambda: MagicMock(result=MagicMock(success=True))

    def turn(seconds):
        now[0] += 1.0
        if now[0] > 100.0:
            answer.set_result(None)

    director._spin, director._spin_until = turn, lambda seconds, ready: ready()
    director._request_episodes(1, mode, 0, 0.0)
    cancelled = director.runner._cancel_goal_async.called
    assert (now[0] > 100.0, cancelled) == (waits, not waits), "after 20 s"


@pytest.mark.parametrize(
    "states, armed_s",
    [
        ([SafetyState.FAULT] * 5 + [SafetyState.DISARMED] * 5 + [SafetyState.ARMED] * 99, 10.0),
        (
            [SafetyState.DISARMED] * 3
            + [SafetyState.ARMED] * 2
            + [SafetyState.DISARMED] * 4
            + [SafetyState.ACTIVE] * 99,
            9.0,
        ),
    ],
)
def test_after_a_stop_a_run_goes_on_a_while_after_a_person_has_armed_for_good(
    monkeypatch, tmp_path, states, armed_s
):
    now, warnings = [0.0], []
    monkeypatch.setattr(
        director_module, "time", MagicMock(monotonic=lambda: now[0], time=time.time)
    )
    director = Director.__new__(Director)  # without ROS
    director.safety = SafetyState(state=states[0])
    director.lines = Lines(tmp_path)
    director.get_logger = MagicMock()
    director.get_logger().warning = warnings.append

    def turn(_):
        now[0] += 1.0
        director.safety.state = states[int(now[0])]

    director._spin = turn
    director._await_arming(0.0)
    assert armed_s + RUN_CONTINUES_S - 1.0 <= now[0] <= armed_s + RUN_CONTINUES_S + 1.0, (
        "seen in turns of a second"
    )
    assert "moves the arm as soon as it is armed" in warnings[0]
    line = json.loads((tmp_path / "progress.jsonl").read_text().splitlines()[0])
    assert line["event"] == "stopped_by_interlock"


def test_after_a_stop_a_run_waits_no_longer_than_its_time(monkeypatch, tmp_path):
    now = [0.0]
    monkeypatch.setattr(
        director_module, "time", MagicMock(monotonic=lambda: now[0], time=time.time)
    )
    director = Director.__new__(Director)  # without ROS
    director.safety = SafetyState(state=SafetyState.FAULT, cause="estop:x")
    director.lines = Lines(tmp_path)
    director.get_logger, director._spin = MagicMock(), lambda _: now.__setitem__(0, now[0] + 1.0)
    director._await_arming(20.0)
    assert 20.0 < now[0] <= 21.0


@pytest.mark.parametrize(
    "code, waits, stops",
    [
        (CODES.INTERLOCK_STOPPED, [7.0], False),
        (CODES.CANCELLED, [], False),
        (CODES.NONE, [], False),
        (CODES.EPISODES_FAILED, [], True),
    ],
)
def test_a_request_that_the_interlock_stopped_ends_no_run(
    monkeypatch, tmp_path, code, waits, stops
):
    director, answer, waited = Director.__new__(Director), Future(), []  # without ROS
    director.trainer, director.safety = TrainerStatus(), SafetyState(state=SafetyState.ARMED)
    director.operator = MagicMock(prompt="")
    director.lines = Lines(tmp_path)
    director.runner = MagicMock()
    director.runner.send_goal_async.return_value.result.return_value.get_result_async.return_value = answer
    answer.set_result(MagicMock(result=CODES(success=code == CODES.NONE, error_code=code)))
    director._spin_until, director._await_arming = lambda seconds, ready: ready(), waited.append
    with pytest.raises(RunStopped) if stops else contextlib.nullcontext():
        director._request_episodes(1, "train", 0, 7.0)
    assert waited == waits


def test_in_a_fault_nothing_is_asked_before_a_person_has_armed(tmp_path):
    director, order = Director.__new__(Director), []  # without ROS
    director.safety = SafetyState(state=SafetyState.FAULT)
    director.runner = MagicMock()
    director.lines = Lines(tmp_path)
    director._await_arming = lambda deadline: order.append("waited")
    director._spin_until = lambda seconds, ready: order.append("asked") or True
    director.runner.send_goal_async.return_value.result.return_value.accepted = False
    director._request_episodes(1, "train", 0, 0.0)
    assert order[:2] == ["waited", "asked"]


PLAN = {
    "collect": {"episodes": 2, "first_seed": 10, "no_training": False},
    "online": {
        "first_seed": 100,
        "max_env_steps": 60,
        "max_minutes": 10.0,
        "stop_at_success": 0.9,
        "stop_episodes": 50,
        "request_episodes": 3,
        "synchronous": False,
        "drain_timeout_s": 5.0,
    },
    "evaluate": {"episodes": 2, "first_seed": 1000, "control_hz": 10.0},
}


class World:
    """A station around a director, whose time passes only while the director waits.

    An episode takes a second. Demonstrations of ``failing`` seeds and all of mode evaluate before
    the training fail. The learner has a policy two seconds after the demonstrations.
    """

    def __init__(self, monkeypatch, run_dir, failing=(), **plan):
        self.now, self.goals, self.withdrawn, self.pending = 50.0, [], [], []
        self.listeners, self.timers, self.errors, self.failing = {}, [], [], failing
        self.trainer = TrainerStatus(connected=True, accepting=True, policy_version=0)
        self.policy = PolicyStatus(version=0, session="p")
        self.safety = SafetyState(state=SafetyState.ARMED)
        self.accepts, self.answers, self.result, self.ready = True, True, {}, True
        self.number, self.stops_at, self.versions = 0, float("inf"), {}
        self.on_goal = lambda goal: None
        clock = MagicMock(monotonic=lambda: self.now, time=lambda: 1e9 + self.now)
        for module in (director_module, director_status, station_state):
            monkeypatch.setattr(module, "time", clock)
        (run_dir / "plan.json").write_text(
            json.dumps({part: PLAN[part] | plan.get(part, {}) for part in PLAN})
        )
        parameters = {"plan_file": str(run_dir / "plan.json"), "run_dir": str(run_dir)}
        node = {
            "__init__": lambda node, name: None,
            "declare_parameter": lambda node, name, default: MagicMock(
                value=parameters.get(name, default)
            ),
            "get_namespace": lambda node: "/lab",
            "get_name": lambda node: "director",
            "get_logger": lambda node: MagicMock(
                error=lambda text, **_: self.errors.append(text),
                warning=lambda text, **_: self.errors.append(text),
            ),
            "get_node_names_and_namespaces": lambda node: [("interlock", "/lab")],
            "create_timer": lambda node, seconds, do: self.timers.append((seconds, do)),
            "create_subscription": lambda node, kind, name, do, depth: self.listen(node, name, do),
        }
        for name, function in node.items():
            monkeypatch.setattr(director_module.StationNode, name, function, raising=False)
        for module in (arms, director_status):
            monkeypatch.setattr(module, "subscription", self.listen)
        self.health = []
        monkeypatch.setattr(
            director_module, "Diagnostics", lambda node, health: self.health.append(health)
        )
        monkeypatch.setattr(
            director_module,
            "ActionClient",
            lambda node, kind, name: MagicMock(
                server_is_ready=lambda: self.ready, served=(kind, name)
            ),
        )
        monkeypatch.setattr(director_module, "GoalHandle", self.goal_handle)
        self.director, self.run_dir = Director(), run_dir
        assert self.director.runner.served == (RunEpisodes, "run_episodes")

    def listen(self, node, name, callback, **_):
        self.listeners.setdefault(name, []).append(callback)

    def publish(self, topic, message):
        for callback in self.listeners.get(topic, []):
            callback(message)

    def goal_handle(self, client, goal):
        assert client is self.director.runner
        acceptance, answer = Future(), Future()
        handle = MagicMock(accepted=self.accepts)
        handle.get_result_async = lambda: answer

        def send():
            self.goals.append((goal.count, goal.mode, goal.first_seed))
            if self.answers:
                acceptance.set_result(handle)
            if self.answers and self.accepts:
                self.play(goal, answer)
            self.on_goal(goal)
            return acceptance

        def withdraw():
            self.withdrawn.append((goal.count, goal.mode))
            return Future()

        return MagicMock(send=send, withdraw=withdraw)

    def play(self, goal, answer):
        for index in range(goal.count):
            self.later(index + 1.0, lambda seed=goal.first_seed + index: self.episode(goal, seed))
        fields = {"success": True, "error_code": CODES.NONE, "episodes": goal.count} | self.result
        self.later(goal.count + 0.05, lambda: answer.set_result(MagicMock(result=CODES(**fields))))

    def later(self, seconds, do):
        self.pending.append((self.now + seconds, do))

    def episode(self, goal, seed):
        self.number += 1
        success = seed not in self.failing and (goal.mode != "evaluate" or self.policy.version > 1)
        event = {"episode_id": f"e{self.number}", "mode": goal.mode, "seed": seed}
        self.publish("episode", EpisodeEvent(kind=EpisodeEvent.STARTED, **event))
        self.publish("applied", Applied(source="policy"))
        version = self.versions.get(self.number, self.policy.version)
        closed = EpisodeEvent(
            kind=EpisodeEvent.CLOSED,
            steps=10,
            success=success,
            failure=not success,
            episode_return=float(success),
            policy_version=version,
            **event,
        )
        self.publish("episode", closed)

    def spin_once(self, timeout_sec):
        assert 0.0 < timeout_sec <= 1.0
        self.now += timeout_sec
        for entry in sorted((e for e in self.pending if e[0] <= self.now), key=lambda e: e[0]):
            self.pending.remove(entry)
            entry[1]()
        waited_s = self.now - self.director.phase_started
        if self.director.phase == "sft" and self.policy.version == 0 and waited_s > 2.0:
            self.learn(1)
        if self.director.env_steps >= 60 and self.trainer.policy_version == 1:
            self.trainer.policy_version = 2  # the station loads it a second later
            self.later(1.0, lambda: self.learn(2))
        self.publish("trainer/status", self.trainer)
        self.publish("policy/status", self.policy)
        self.publish("safety", self.safety)

    def learn(self, version):
        self.trainer.policy_version, self.trainer.updates = version, 100 * version
        self.policy = PolicyStatus(version=version, session="p")

    def spin_until_future_complete(self, future, timeout_sec):
        self.spun = timeout_sec

    def run(self):
        self.director.run(self, lambda: self.now > self.stops_at)

    def lines(self, *events):
        lines = (self.run_dir / "progress.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, lines) if line["event"] in events]


@pytest.fixture
def world(monkeypatch, tmp_path):
    return lambda **settings: World(monkeypatch, tmp_path, **settings)


def test_a_whole_run_phase_by_phase(world):
    station = world(failing=(11,))
    station.run()
    assert station.goals == [
        (2, "demonstration", 10),
        (1, "demonstration", 12),  # in place of the failed one
        (2, "evaluate", 1000),
        (3, "train", 100),
        (3, "train", 103),
        (2, "evaluate", 1000),
    ]
    assert [line["name"] for line in station.lines("phase")] == [
        *("collect", "sft", "evaluate_before", "online", "drain", "evaluate_after", "done")
    ]
    assert [(line["version"], line["error"]) for line in station.lines("policy")] == [
        (0, ""),
        (1, ""),
        (2, ""),
    ]
    episodes = station.lines("episode")
    assert [line["id"] for line in episodes] == [f"e{number}" for number in range(1, 14)]
    assert episodes[1] | {"time": 0.0} == {
        "time": 0.0,
        "event": "episode",
        "id": "e2",
        "mode": "demonstration",
        "seed": 11,
        "steps": 10,
        "success": False,
        "failure": True,
        "policy_version": 0,
        "env_steps": 0,
        "updates": 0,
        "intervened": 0,
    }
    assert [line["env_steps"] for line in episodes[5:11]] == [10, 20, 30, 40, 50, 60]
    before, after = station.lines("evaluation")
    assert (before["name"], before["success"], before["policy_version"]) == ("before", 0.0, 1)
    assert (after["name"], after["success"], after["policy_version"]) == ("after", 1.0, 2)
    assert (after["episodes"], after["successes"], after["episode_ids"]) == (2, 2, ["e12", "e13"])
    [result] = station.lines("result")
    assert result["ended"] == "60 time steps were played (online.max_env_steps)"
    assert (result["env_steps"], result["updates"]) == (60, 200)
    assert result["minutes"] == pytest.approx((station.now - 50.0) / 60)
    assert result["before"]["success"] == 0.0 and result["after"]["success"] == 1.0
    assert result["time"] == pytest.approx(1e9 + station.now)
    assert not station.lines("warning", "stopped_by_interlock", "fault") and not station.withdrawn


def test_the_status_is_that_of_the_phase_and_written_twice_a_second(world):
    station = world(failing=(11,))
    station.on_goal = lambda goal: station.later(1.5, station.timers_run)
    seconds = [seconds for seconds, _ in station.timers]
    written = []

    def timers_run():
        for _, do in station.timers:
            do()
        written.append(json.loads((station.run_dir / "status.json").read_text()))

    station.timers_run = timers_run
    station.run()
    assert 0.5 in seconds
    first, online = written[0], written[3]
    assert (first["phase"], first["done"], first["total"], first["successes"]) == (
        "collect",
        1,
        2,
        1,
    )
    assert first["phase_seconds"] == pytest.approx(1.5, abs=0.2) and first["waiting_for"] == ""
    assert (online["phase"], online["total"], online["env_steps"]) == ("online", 0, 10)
    assert (online["recent_success"], online["recent_intervened"], online["dropped"]) == (
        1.0,
        0.0,
        0,
    )
    assert (online["policy_version"], online["safety"]["state"]) == (1, "ARMED")
    last = json.loads((station.run_dir / "status.json").read_text())
    assert (last["phase"], last["total"], last["done"]) == ("done", 0, 0)


def test_recordings_alone_are_so_many_attempts(world):
    station = world(collect={"no_training": True}, failing=(10, 11))
    station.run()
    assert station.goals == [(2, "demonstration", 10)]
    assert not station.lines("evaluation", "result")


def test_a_run_that_only_collects_ends_with_the_last_that_succeeds(world):
    station = world(collect={"ends": True}, failing=(10, 11, 12))
    station.run()
    assert station.goals == [
        (2, "demonstration", 10),
        (2, "demonstration", 12),
        (1, "demonstration", 14),
    ]
    assert [line["name"] for line in station.lines("phase")] == ["collect"]


def test_demonstrations_that_nobody_can_show_end_the_run_unless_a_person_shows_them(world):
    station = world(collect={"episodes": 1}, failing=range(10, 15))
    with pytest.raises(RunStopped, match="^only 0 of 5 demonstrations succeeded; expected 1. Can"):
        station.run()
    station = world(collect={"episodes": 1, "person": True, "ends": True}, failing=range(10, 17))
    station.run()
    assert len(station.goals) == 8


def test_a_take_that_a_person_discards_is_replaced_by_another_scene(world):
    station = world(collect={"ends": True})
    discard = EpisodeEvent(kind=EpisodeEvent.ABORTED, episode_id="x", detail=labels.DISCARDED)
    again = EpisodeEvent(kind=EpisodeEvent.ABORTED, episode_id="y", detail=labels.AGAIN)

    def on_goal(goal):
        if len(station.goals) == 1:
            station.pending.clear()
            station.later(0.3, lambda: station.publish("episode", discard))
            station.later(0.4, lambda: station.publish("episode", again))
            station.later(0.5, lambda: station.episode(goal, 11))
            station.later(25.0, lambda: None)

    station.on_goal = on_goal
    station.run()
    assert station.goals == [(2, "demonstration", 10), (1, "demonstration", 12)]
    assert [(line["id"], line["detail"]) for line in station.lines("aborted")] == [
        ("x", labels.DISCARDED),
        ("y", labels.AGAIN),
    ]
    assert station.director.dropped == 2 and station.director.discarded == 1
    assert station.withdrawn == [(2, "demonstration")], "it had been silent for 20 s"
    [warning] = station.lines("warning")
    assert (
        "no message from the environment for 20 s; sending the request again" in warning["detail"]
    )


def test_without_an_environment_a_run_ends_after_a_minute(world):
    station = world()
    station.ready = False
    with pytest.raises(RunStopped, match="received no environment for 60 s; nodes of this station"):
        station.run()
    assert station.now - 50.0 == pytest.approx(60.0, abs=0.2) and not station.goals


def test_a_request_without_an_answer_is_withdrawn_and_sent_four_times(world):
    station = world()
    station.answers = False
    with pytest.raises(
        RunStopped, match="waited 40 s for .* accept 2 demonstration .*See the logs"
    ):
        station.run()
    assert station.goals == [(2, "demonstration", 10)] * 4
    assert station.withdrawn == [(2, "demonstration")] * 4
    assert station.now - 50.0 == pytest.approx(40.0, abs=0.5)


def test_an_environment_that_is_busy_is_asked_every_second(world):
    station = world(collect={"ends": True})
    station.accepts = False
    station.on_goal = lambda goal: setattr(station, "accepts", len(station.goals) == 3)
    station.run()
    assert station.goals == [(2, "demonstration", 10)] * 4
    assert 3.0 <= station.now - 50.0 - 2.0 <= 3.6


def test_a_request_that_failed_ends_the_run_with_its_reason(world):
    station = world()
    station.result = {
        "success": False,
        "error_code": CODES.EPISODES_FAILED,
        "episodes": 1,
        "message": "no image",
    }
    with pytest.raises(RunStopped) as error:
        station.run()
    assert str(error.value) == "demonstration episodes stopped after 1 of 2: no image"


def test_a_run_without_a_trainer_ends_after_five_minutes_and_a_late_policy_is_waited_for(world):
    station = world(collect={"episodes": 0})
    station.trainer = TrainerStatus(connected=False)
    station.learn = lambda version: None
    with pytest.raises(RunStopped, match="no trainer for 300 s. Start one: rlinf train"):
        station.run()
    assert station.now - 50.0 == pytest.approx(300.0, abs=1.0)
    station = world(collect={"episodes": 0})
    learn, station.learn = station.learn, lambda version: None
    station.later(900.0, lambda: learn(1))
    station.run()
    assert station.lines("result")


def test_a_policy_that_cannot_be_used_ends_the_run(world):
    station = world(collect={"episodes": 0})
    station.policy = PolicyStatus(version=0, error="other specs")
    with pytest.raises(RunStopped, match="^the trainer's policy cannot be used: other specs$"):
        station.run()


def test_demonstrations_that_the_trainer_refuses_are_replaced(world):
    station = world()
    station.trainer.names, station.trainer.values = ["refused", "lab/refused"], [4.0, 4.0]

    def refuse():
        station.trainer.values = [5.0, 5.0]

    station.later(3.5, refuse)
    station.run()
    assert station.goals[:2] == [(2, "demonstration", 10), (1, "demonstration", 12)]
    [warning] = station.lines("warning")
    assert warning["detail"].startswith(
        "the trainer refused 1 episodes. The reasons are in refused/"
    )
    assert [line["name"] for line in station.lines("phase")][:4] == ["collect", "sft"] * 2


def test_an_evaluation_by_several_policies_is_repeated_twice(world):
    station = world(collect={"episodes": 0})
    station.versions = {1: 3, 4: 3}
    station.run()
    assert station.goals[:3] == [(2, "evaluate", 1000)] * 3
    warnings = [line["detail"] for line in station.lines("warning")]
    assert len(warnings) == 2
    assert all(
        "expected one policy version (-1: the operator), got 1, 3" in line for line in warnings
    )
    assert all(line.endswith("The evaluation is repeated") for line in warnings)
    station = world(collect={"episodes": 0})
    station.versions = {1: 3, 4: 3, 6: 3}
    with pytest.raises(
        RunStopped, match=r"got 1, 3\. .*restarted, 3 times\. See the logs in .*logs"
    ):
        station.run()


def test_training_ends_at_its_time_and_withdraws_what_is_played(world):
    station = world(collect={"episodes": 0}, online={"max_minutes": 0.1, "max_env_steps": 10**6})
    station.run()
    [result] = station.lines("result")
    assert result["ended"] == "0.1 minutes have passed (online.max_minutes)"
    assert [goal for goal in station.goals if goal[1] == "train"] == [
        (3, "train", 100),
        (3, "train", 103),
    ]
    assert station.withdrawn == [(3, "train")]


@pytest.mark.parametrize("backlog, waits_s", [(1, 5.0), (0, 0.8)])
def test_after_the_training_the_learner_has_time_to_catch_up(world, backlog, waits_s):
    station = world(collect={"episodes": 0})
    station.trainer.backlog = backlog
    station.run()
    drain, after = (
        next(line["time"] for line in station.lines("phase") if line["name"] == name)
        for name in ("drain", "evaluate_after")
    )
    assert after - drain == pytest.approx(waits_s, abs=0.3)
    assert [
        line["detail"].partition(". See the logs in ")[0] for line in station.lines("warning")
    ] == ["waited 5 s for the learner to catch up"] * backlog


def test_faults_and_stops_of_the_interlock_are_written_down(world):
    station = world(collect={"ends": True})
    fault = SafetyState(state=SafetyState.FAULT, cause="estop:page")
    station.safety = fault
    station.later(2.0, lambda: setattr(station, "safety", SafetyState(state=SafetyState.ARMED)))
    station.publish("safety", fault)
    station.publish("safety", fault)
    station.run()
    assert [line["cause"] for line in station.lines("fault")] == ["estop:page"], "once"
    [stop] = station.lines("stopped_by_interlock")
    assert (stop["state"], stop["cause"]) == ("FAULT", "estop:page")
    assert station.errors[0].endswith("After the arming it waits 3 s")
    assert station.errors[1] == "the run continues"
    episodes = station.lines("episode")
    assert episodes[0]["time"] - 1e9 - 50.0 == pytest.approx(6.0, abs=0.4), "2 s, 3 s, an episode"


def test_a_director_that_is_asked_to_stop_withdraws_its_request(world):
    station = world()
    station.stops_at = 51.5
    with pytest.raises(director_module.StopRequested):
        station.run()
    station.director.cancel()
    assert station.withdrawn == [(2, "demonstration")] and station.spun == 1.0
    [line] = station.lines("stopped")
    assert line["phase"] == "collect"
    station.director.request = None
    station.director.cancel("error", detail="no disk")
    [line] = station.lines("error")
    assert (line["phase"], line["detail"], len(station.withdrawn)) == ("collect", "no disk", 1)


def test_its_health_is_that_of_devices_and_progress(world):
    station = world()
    [health] = station.health
    station.director._enter("online", 0)
    station.director.done, station.director.successes, station.director.env_steps = 4, 3, 40
    station.now += 7.0
    assert health() == (
        director_module.OK,
        "online",
        {
            "phase": "online",
            "seconds": 7,
            "episodes": 4,
            "successes": 3,
            "env_steps": 40,
            "dropped": 0,
        },
    )
    station.director.request = object()
    station.now += 13.5
    level, words, _ = health()
    assert (level, words) == (director_module.WARN, "online: no progress for 20 s")
    station.publish("applied", Applied())
    assert health()[0] == director_module.OK
    status = DiagnosticStatus(
        name="lab/operator", level=DiagnosticStatus.ERROR, message="unplugged"
    )
    station.publish("/diagnostics", DiagnosticArray(status=[status]))
    assert health()[:2] == (
        director_module.WARN,
        "online: the operator's devices: unplugged",
    )
    other = DiagnosticStatus(name="hall/operator", level=DiagnosticStatus.OK)
    station.publish("/diagnostics", DiagnosticArray(status=[other]))
    assert health()[0] == director_module.WARN, "another station's"
    status.level = DiagnosticStatus.OK
    station.publish("/diagnostics", DiagnosticArray(status=[status]))
    assert health()[0] == director_module.OK


def test_the_status_says_what_a_run_waits_for(world):
    station = world()
    written = lambda: (  # noqa: E731
        station.director._write_status(),
        json.loads((station.run_dir / "status.json").read_text()),
    )[1]
    station.publish("safety", SafetyState(state=SafetyState.ARMED))
    station.publish("prompt", String(data="put the peg back"))
    assert written()["waiting_for"] == "put the peg back"
    station.now += 1.0
    station.publish("safety", SafetyState(state=SafetyState.DISARMED))
    station.now += 4.0
    assert written()["waiting_for"] == "put the peg back", "a moment's rest is nothing to say"
    station.now += 1.5
    words = written()["waiting_for"]
    assert words.startswith("disarmed; arm it: rlinf arm") and words.endswith(RUN_CONTINUES)
    assert "/lab/interlock/arm" in words
    station.publish("safety", SafetyState(state=SafetyState.HOLD, cause="new_session"))
    assert "commander was restarted" in written()["waiting_for"]
    assert not written()["waiting_for"].endswith(RUN_CONTINUES)
    station.ready = False
    station.now += 6.0
    for _, do in station.timers:
        do()
    assert "received no environment for " in written()["waiting_for"]
    station.director.lines.trouble, station.director.lines.write = "the disk is full", lambda: None
    written()
    assert station.errors[-1] == "the disk is full"


def test_the_status_holds_what_trainer_policy_and_interlock_report():
    trainer = TrainerStatus(
        connected=True,
        phase="online",
        updates=7,
        episodes=3,
        transitions=90,
        backlog=2,
        update_ratio=1.5,
        accepting=True,
        message="fine",
        set_aside=1,
        spool_full=0.25,
        names=["loss", "a/episodes"],
        values=[0.5, 3.0],
    )
    safety = SafetyState(
        state=SafetyState.ACTIVE,
        source="operator",
        cause="c",
        holds=1,
        refused=2,
        limited=3,
        dropped=4,
    )
    policy = PolicyStatus(version=6, error="e", inference_p50_ms=2.5)
    assert director_status.status_fields(policy, trainer, safety, "unplugged") == {
        "operator": "unplugged",
        "policy_version": 6,
        "policy_error": "e",
        "inference_p50_ms": 2.5,
        "trainer": {
            "connected": True,
            "phase": "online",
            "updates": 7,
            "episodes": 3,
            "transitions": 90,
            "backlog": 2,
            "update_ratio": 1.5,
            "accepting": True,
            "message": "fine",
            "set_aside": 1,
            "spool_full": 0.25,
            "loss": 0.5,
            "a/episodes": 3.0,
        },
        "safety": {
            "state": "ACTIVE",
            "takeover": "CORRECTING",
            "cause": "c",
            "source": "operator",
            "holds": 1,
            "refused": 2,
            "limited": 3,
            "dropped": 4,
        },
    }


@pytest.mark.parametrize(
    "error, cancelled, code, logged",
    [
        (None, [], None, []),
        (director_module.StopRequested(), [("stopped", {})], None, []),
        (RunStopped("no trainer"), [("error", {"detail": "no trainer"})], 1, ["no trainer"]),
        (ValueError("a bug"), [("error", {"detail": "ValueError: a bug"})], ValueError, []),
    ],
)
def test_a_director_that_ends_withdraws_its_request_and_says_why(
    monkeypatch, error, cancelled, code, logged
):
    calls, errors = [], []

    class Played:
        def run(self, executor, stop_requested):
            assert executor.nodes == [self] and stop_requested == "stop"
            if error:
                raise error

        def cancel(self, message="stopped", **fields):
            calls.append((message, fields))

        def get_logger(self):
            return MagicMock(error=errors.append)

        def _write_status(self):
            calls.append("status")

    class Executor:
        def __init__(self):
            self.nodes = []

        def add_node(self, node):
            self.nodes.append(node)

        def shutdown(self):
            calls.append("shutdown")

    monkeypatch.setattr(director_module, "stop_on_signal", lambda: contextlib.nullcontext("stop"))
    monkeypatch.setattr(director_module, "Director", Played)
    monkeypatch.setattr(director_module, "SingleThreadedExecutor", Executor)
    monkeypatch.setattr(director_module, "destroy", lambda node: calls.append(type(node)))
    raised = pytest.raises(SystemExit if code == 1 else code) if code else contextlib.nullcontext()
    with raised as ended:
        director_module.main()
    assert calls == [*cancelled, "status", "shutdown", Played] and errors == logged
    assert code != 1 or ended.value.code == 1
