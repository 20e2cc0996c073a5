"""Collected demonstrations: counted, continued, and not mixed with those of another task."""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlinf_core.cli.collect import (
    CollectDisplay,
    _shows_picture,
    log_tail,
    motion_keys,
    next_commands,
    role_keys,
)
from rlinf_core.cli.main import main
from rlinf_core.core.errors import EpisodeError
from rlinf_core.data.demonstrations import DemonstrationStats, demonstration_stats, read_last_event
from rlinf_core.episodes.spool import Spool
from rlinf_core.launch.fleet import Member
from rlinf_core.launch.graph import collect_processes, load_collect_recipe
from rlinf_core.recipes import load_recipe, recipe_yaml, station_task
from rlinf_core.trainer.sources.recordings import closed_episodes
from tests.messages import raw_messages, record, write_raw

BY_HAND = [
    "station.operator={kind: gamepad}",
    "station.second_operator={kind: pedal, device: /dev/null, buttons: {a: ready}}",
]


@pytest.fixture
def run(tmp_path, task):
    """Three takes, the second of which failed; one discarded, one of the policy, one that was sent
    to a trainer.
    """
    spool = Spool(tmp_path / "run/spool", min_free_mb=0)
    for number in (1, 2, 3):

        def shown(topic, _, message, number=number):
            if topic == "episode":
                message.seed = 10 + number

        record(
            spool, task.spec, f"a-{number}", mode="demonstration", success=number != 2, change=shown
        ).close()
    record(spool, task.spec, "a-4", mode="demonstration").abort()
    record(spool, task.spec, "a-5", mode="evaluate").close()
    spool.mark_sent("a-1")
    (tmp_path / "run/recipe.yaml").write_text(recipe_yaml(load_recipe("demo")))
    return tmp_path / "run"


def test_what_counts_is_what_was_closed_and_succeeded(run, tmp_path):
    takes = demonstration_stats(run, load_recipe("demo"))
    assert (takes.succeeded, takes.failed, len(takes), takes.next_seed) == (
        2,
        1,
        3,
        14,
    ) and takes.size > 1000
    assert demonstration_stats(tmp_path / "nothing", load_recipe("demo")) == DemonstrationStats()


def test_a_second_call_goes_on_from_there(run, capsys):
    recipe, before = load_collect_recipe("demo", BY_HAND, run, 5)
    assert not recipe.station.lockstep, "simulated time would be faster than a hand"
    names = [process.name for process in collect_processes(recipe, run, before, terminal=True)]
    assert names == ["sim_bridge", "interlock", "environment", "recorder", "operator", "director"]
    plan = json.loads((run / "plan.json").read_text())["collect"]
    assert (plan["episodes"], plan["first_seed"], plan["ends"], plan["person"]) == (
        3,
        14,
        True,
        True,
    )
    assert main(["collect", "demo", "--out", str(run), "--episodes", "2"]) == 0
    output = capsys.readouterr().out
    assert (
        "2 of 2 demonstrations succeeded and count, 1 failed" in output
        and not (run / "logs").exists()
    )
    assert (
        f"""rlinf train demo --set 'collect.recordings=[{run}]' simulation.environments=1"""
        in output
    )


@pytest.mark.parametrize(
    "recipe, overrides, message",
    [
        (
            "demo",
            ["station.task=reach"],
            "expected demonstrations with station.task 'reach', got some with 'peg_insertion'",
        ),
        (
            "demo",
            ["station.robot=panda_gym_hil"],
            "expected demonstrations with station.robot 'panda_gym_hil', got some with 'franka_sim'",
        ),
        ("demo_vision", ["station.task=peg_insertion"], "observation 'wrist'"),
    ],
)
def test_takes_of_another_task_or_other_specs_are_refused_with_both_named(
    run, capsys, recipe, overrides, message
):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert main(["collect", recipe, "--out", str(run), "--set", *overrides]) == 1
    error = capsys.readouterr().err
    assert message in error and "Choose another --out" in error
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before, (
        "nothing was changed"
    )


def test_a_task_is_the_same_by_name_and_by_path_and_a_damaged_take_is_named(run):
    task = Path("configs/tasks/peg_insertion.yaml").resolve()
    assert len(demonstration_stats(run, load_recipe("demo", [f"station.task={task}"]))) == 3
    file = run / "spool/closed/a-2/a-2.mcap"
    file.write_bytes(file.read_bytes()[:-300])
    with pytest.raises(
        EpisodeError, match="a-2: expected an intact demonstration, .*`rlinf data check`"
    ):
        demonstration_stats(run, load_recipe("demo"))


def test_what_was_discarded_demonstrates_nothing(run):
    assert {folder.name for folder in closed_episodes((str(run),))} == {"a-1", "a-2", "a-3", "a-5"}


def test_the_keys_of_the_terminal_are_shown_and_a_simulated_scene_has_a_picture(
    monkeypatch, capsys
):
    web = ["station.web.port=8080"]
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    by_hand = load_recipe("demo", BY_HAND)
    assert motion_keys(by_hand) == "w/s forward/back, a/d left/right, r/f up/down; p rests"
    joints = load_recipe("ur5e_twin", BY_HAND)
    assert motion_keys(joints).startswith("w/s joint 1, a/d joint 2") and not _shows_picture(joints)
    assert (
        motion_keys(load_recipe("demo")) == "" == motion_keys(load_recipe("demo", [*BY_HAND, *web]))
    )
    served = load_recipe("demo", [*BY_HAND, *web])
    assert (
        motion_keys(served, with_picture=True)
        and "on the page" not in role_keys(served, with_picture=True)["success"]
    )
    monkeypatch.setattr("rlinf_core.cli.collect.listen_failure", lambda *_: "")
    assert (
        _shows_picture(by_hand)
        and not _shows_picture(served)
        and not _shows_picture(load_recipe("demo"))
    )
    monkeypatch.setattr(
        "rlinf_core.cli.collect.listen_failure", lambda *_: "another program has port 8080"
    )
    assert (
        not _shows_picture(by_hand)
        and "no picture of the scene: another program" in capsys.readouterr().out
    )
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: False))
    assert not _shows_picture(by_hand) and motion_keys(by_hand) == ""


def test_it_says_which_key_and_button_does_what(monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    roles = role_keys(load_recipe("demo", BY_HAND))
    assert roles["ready"] == ["g", "r3 (gamepad)", "a (pedal)"] and roles["discard"] == ["x"]
    assert role_keys(load_recipe("demo")) == {}
    assert role_keys(load_recipe("demo", [*BY_HAND, "station.web.port=8080"]))["discard"] == [
        "on the page"
    ]


@pytest.mark.parametrize(
    "argv, message",
    [
        (
            ["--set", "station.operator.kind=keyboard"],
            "expected a terminal for the keyboard, got none",
        ),
        (["--set", "collect.episodes=0"], "--episodes: expected at least 1"),
        (["--set", "env=gym:Pendulum-v1"], "is not a station"),
    ],
)
def test_what_cannot_be_collected_is_told_before_anything_starts(
    tmp_path, capsys, monkeypatch, argv, message
):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert main(["collect", "demo", "--out", str(tmp_path / "run"), *argv]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_its_last_words_are_commands_for_the_same_recipe(tmp_path):
    commands = next_commands(load_recipe("sim_rlpd"), "sim_rlpd", ["seed=3", *BY_HAND], tmp_path)
    assert (
        f"""rlinf train sim_rlpd --set seed=3 'collect.recordings=[{tmp_path}]'  """ in commands
        and "gamepad" not in commands
    )
    assert "    rlinf demo sim_rlpd --set seed=3 'collect" in commands


def test_what_learns_from_recordings_alone_is_not_said_to_learn_on_a_station(tmp_path):
    commands = next_commands(load_recipe("sim_iql"), "sim_iql", [], tmp_path)
    assert "rlinf demo" not in commands and "rlinf train sim_iql --set" in commands


def test_the_folder_of_takes_may_have_any_name(tmp_path):
    run = tmp_path / "it's été, 1"
    commands = next_commands(load_recipe("demo"), "demo", [], run)
    lines = [line.partition("    # ")[0] for line in commands.splitlines() if " --set " in line]
    assert len(lines) == 2
    for words in map(shlex.split, lines):
        assert load_recipe(
            "demo", [word for word in words if word.startswith("collect.rec")]
        ).collect.recordings == (str(run),)


def test_of_a_fleet_what_the_trainer_refused_is_recorded_again(run):
    assert demonstration_stats(run, load_recipe("demo"), {"a-1"}).succeeded == 1
    member = Member(load_recipe("demo", ["collect.episodes=5"]), run)
    (run.parent.parent / "refused/a-3").mkdir(parents=True)
    member.prepare()
    plan = json.loads((run / "plan.json").read_text())["collect"]
    assert (plan["episodes"], plan["share"]) == (4, 5)


@pytest.mark.parametrize(
    "state, keys",
    [
        ("DISARMED", "e: arm"),
        ("FAULT", "reset the fault first; then e: arm"),
        ("ARMED", "g: the scene is ready · q: disarm"),
    ],
)
def test_the_panel_names_the_keys_that_have_an_effect_now(tmp_path, state, keys):
    """In FAULT the interlock refuses the key that arms."""
    recipe = load_recipe("demo", BY_HAND)
    display = CollectDisplay(recipe, tmp_path, True, DemonstrationStats(), False)
    display.roles = {"arm": ["e"], "ready": ["g"], "disarm": ["q"]}
    assert display._keys({"safety": {"state": state}, "waiting_for": "the question"}) == keys


def test_the_last_words_of_a_log_keep_their_quotation_marks(tmp_path):
    log = tmp_path / "operator.log"
    log.write_text(
        """[WARN] [1.0] [station_a.operator]: FAULT 'estop:page': "{cause: 'x'}" \x1b\n"""
    )
    assert log_tail(log) == """FAULT 'estop:page': "{cause: 'x'}" \\x1b"""


NOTHING = "Nothing was changed. Choose another --out, or start with the earlier settings"


def test_takes_are_counted_with_their_size_and_the_next_seed(run, task):
    folders = [
        path for part in ("closed", "sent") for path in sorted((run / "spool" / part).glob("*"))
    ]
    size = sum(file.stat().st_size for folder in folders for file in folder.iterdir())
    assert demonstration_stats(run, load_recipe("demo")) == DemonstrationStats(2, 1, size, 14)
    assert demonstration_stats(run, load_recipe("demo"), {"a-3"}).next_seed == 13
    assert len(DemonstrationStats(2, 1)) == 3
    only = demonstration_stats(run, load_recipe("demo"), {"a-1", "a-2", "a-3"})
    assert (only.succeeded, only.failed, only.next_seed) == (0, 0, None) and only.size > 0
    for folder in folders:  # none of them was closed
        (folder / "SHA256SUMS").unlink()
    assert demonstration_stats(run, load_recipe("demo")) == DemonstrationStats()


def test_takes_of_other_specs_are_refused_in_full(run):
    recipe = load_recipe("demo_vision")
    expected, actual = (station_task(load_recipe(name)).spec for name in ("demo_vision", "demo"))
    begin = f"--out {run}: expected demonstrations with "
    middle = f"the specs {expected.hash} of recipe 'demo_vision', got {actual.hash} in a-2"

    def refusal():
        with pytest.raises(EpisodeError) as refused:
            demonstration_stats(run, recipe)
        return str(refused.value)

    assert refusal() == (
        f"{begin}station.task '{recipe.station.task}', got some with 'peg_insertion'. {NOTHING}"
    )
    (run / "recipe.yaml").write_text(
        recipe_yaml(load_recipe("demo", [f"station.task={recipe.station.task}"]))
    )
    difference = actual.difference(expected)
    assert refusal().startswith(f"{begin}{middle} (") and refusal().endswith(f"). {NOTHING}")
    for broken in ("kind: none", "station: {robot: none}\n"):
        (run / "recipe.yaml").write_text(broken)  # of another version
        assert refusal() == f"{begin}{middle}. {NOTHING}"
    (run / "recipe.yaml").unlink()
    assert refusal() == f"{begin}{middle}. {NOTHING}" and difference


def test_takes_of_another_robot_are_refused_in_full(run):
    recipe = load_recipe("demo", ["station.robot=panda_gym_hil"])
    with pytest.raises(EpisodeError) as refused:
        demonstration_stats(run, recipe)
    assert str(refused.value) == (
        f"--out {run}: expected demonstrations with station.robot 'panda_gym_hil', got some with "
        f"'franka_sim'. {NOTHING}"
    )
    (run / "recipe.yaml").write_text(recipe_yaml(recipe))
    with pytest.raises(EpisodeError, match="station.robot 'franka_sim', got some with 'panda_gym"):
        demonstration_stats(run, load_recipe("demo"))


def test_the_last_end_of_an_episode_counts(tmp_path, task):
    spool = Spool(tmp_path, min_free_mb=0)
    event = read_last_event(record(spool, task.spec, "a-1", steps=4, success=False).close())
    assert (event.kind, event.steps, event.success, event.seed) == (1, 4, False, 3)
    messages = raw_messages(task.spec, "a-2", steps=4)
    more = raw_messages(task.spec, "a-2", steps=9, success=False)
    topic, kind, _, raw = messages[0]  # begun again
    folder = write_raw(spool, "a-2", [*messages, *more, (topic, kind, 10**10, raw)]).close()
    assert read_last_event(folder).steps == 9, "the last end, and no beginning after it"
    folder = record(spool, task.spec, "a-3", leave=("ended",)).close()
    with pytest.raises(EpisodeError) as refused:
        read_last_event(folder)
    assert str(refused.value) == (
        f"{folder}: expected an intact demonstration, got one without an end. Move it elsewhere to "
        "continue"
    )
    (folder / "a-3.mcap").write_bytes(b"x")
    with pytest.raises(EpisodeError) as refused:
        read_last_event(folder)
    begin = f"{folder}: expected an intact demonstration, got: "
    end = ". `rlinf data check` lists all damaged ones. Move it elsewhere to continue"
    assert str(refused.value).startswith(begin) and str(refused.value).endswith(end)
    assert ": " in str(refused.value).removeprefix(begin)
