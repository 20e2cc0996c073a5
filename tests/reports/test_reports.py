"""A run's report: its attempt, the command that repeats it, and runs without a film."""

import json
import shlex
import sys

import numpy as np
import pytest

from rlinf_core.cli import demo, terminal
from rlinf_core.launch.graph import Process
from rlinf_core.launch.supervisor import ONCE, Supervisor
from rlinf_core.policies.policy_folder import policy_name
from rlinf_core.recipes import load_recipe
from rlinf_core.reports import films, report
from rlinf_core.reports.curves import read_events
from rlinf_core.trainer.folder import write_recipe


def phase(at_s, name):
    return {"time": float(at_s), "event": "phase", "name": name}


def episode(steps, updates, mode="train", success=True, **more):
    return {
        "event": "episode",
        "mode": mode,
        "seed": 7,
        "success": success,
        "env_steps": steps,
        "updates": updates,
        "intervened": 0,
    } | more


JUDGED = {"episodes": 2, "successes": 1, "policy_version": 1}
RESULT = {
    "time": 4260.0,
    "event": "result",
    "before": JUDGED,
    "after": JUDGED | {"successes": 2, "policy_version": 2},
    "ended": "40 time steps were played",
    "env_steps": 40,
    "updates": 90,
    "minutes": 11.0,
}
STOPPED = [
    phase(0, "collect"),
    phase(60, "sft"),
    phase(120, "online"),
    episode(100, 20),
    episode(200, 40),
    {"time": 180.0, "event": "stopped", "phase": "online"},
]
AGAIN = [
    phase(3600, "collect"),
    phase(3660, "online"),
    episode(20, 60),
    episode(40, 80),
    phase(4200, "done"),
    RESULT,
]


def lines(events):
    return "".join(json.dumps(event) + "\n" for event in events)


@pytest.fixture
def recipe():
    return load_recipe("demo", ["seed=3", "evaluate.filmed_episodes=0", "name=mine"])


@pytest.mark.parametrize(
    "before, duration_text",
    [
        (STOPPED, "90 gradient updates, earlier attempts included, 11.0 minutes"),
        ([], "90 gradient updates, 11.0 minutes"),
    ],
)
def test_a_report_is_of_its_own_attempt_and_says_how_to_repeat_it(
    before, duration_text, recipe, tmp_path, monkeypatch, capsys
):
    write_recipe(recipe, tmp_path)
    (tmp_path / "progress.jsonl").write_text(lines(before))
    for version in (1, 2):
        (tmp_path / "policies_at_station").mkdir(exist_ok=True)
        (tmp_path / "policies_at_station" / policy_name(version)).write_text("")
    drawn, curve = [], report._curve
    monkeypatch.setattr(
        report, "_curve", lambda events, *rest: drawn.extend(events) or curve(events, *rest)
    )
    code = f"open({str(tmp_path / 'progress.jsonl')!r}, 'a').write({lines(AGAIN)!r})"
    director = Process(
        "director",
        "rlinf",
        "director",
        "",
        "/x",
        {"command": [sys.executable, "-c", code]},
        (),
        ONCE,
    )
    with Supervisor(tmp_path, 90) as supervisor:
        since = demo.run_director(
            supervisor, director, tmp_path, terminal.Display(recipe, tmp_path, quiet=True)
        )
    assert demo._print_result(recipe, tmp_path, since) == 0
    assert [event["env_steps"] for event in drawn if event["event"] == "episode"] == [20, 40]
    text = (tmp_path / "report.md").read_text()
    assert (
        f"40 online environment steps, {duration_text}. Training ended" in text
        and duration_text in capsys.readouterr().out
    )
    assert "| collect | 1.0 |\n| online | 9.0 |\n| done | 1.0 |\n" in text and "| sft |" not in text
    assert len(read_events(tmp_path)) == len(before) + len(AGAIN), (
        "what happened before is still there"
    )
    command = text.partition("Repeat: `")[2].partition("`")[0]
    _, verb, again, *rest = shlex.split(command)
    assert (verb, rest) == ("demo", ["--out", "NEW_FOLDER"]) and load_recipe(again) == recipe


def test_a_scene_that_a_person_solved_is_not_shown_as_learned():
    judged = [episode(0, 0, "evaluate", False), episode(0, 0, "evaluate", True, intervened=3)]
    assert report._scenes_learned(judged) == []
    assert report._scenes_learned([*judged, episode(0, 0, "evaluate", True)]) == [7]


def test_one_evaluation_alone_is_not_filmed_beside_itself(tmp_path, monkeypatch):
    judged = {
        "event": "evaluation",
        "time": 0.0,
        "env_steps": 10,
        "updates": 4,
        "success": 0.5,
        "return": 1.0,
        "episodes": 4,
        "seconds": 60.0,
        "policy_version": 1,
    }
    recipe = load_recipe("sim_sac", ["station.task=reach"])
    monkeypatch.setattr(
        films,
        "_side_by_side",
        lambda recipe, sides, seeds: [([np.zeros((60, 160, 3), np.uint8)] * 2, len(sides) > 1)],
    )
    monkeypatch.setattr(films, "write_video", lambda path, pictures: None)
    for events, filmed in (([judged], False), ([judged, judged | {"env_steps": 20}], True)):
        (tmp_path / "progress.jsonl").write_text(lines(events))
        report.write_training_report(recipe, tmp_path)
        text = (tmp_path / "report.md").read_text()
        assert ("before_after.mp4" in text) is filmed
        assert ("No video: the run has only one evaluation so far." in text) is not filmed
