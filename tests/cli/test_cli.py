import inspect
import json
import pkgutil
import shutil
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rlinf_core.cli import demo, doctor, duel, terminal
from rlinf_core.cli.main import main
from rlinf_core.cli.parsers import make_parser
from rlinf_core.core.errors import PolicyFileError, RlinfError
from rlinf_core.episodes.spool import Spool
from rlinf_core.launch.graph import ONCE, SHUTDOWN, Process
from rlinf_core.launch.supervisor import Supervisor
from rlinf_core.policies.policy_folder import newest_policy, policy_name
from rlinf_core.policies.serialization import save_policy
from rlinf_core.policies.small import tanh_gaussian
from rlinf_core.policies.small.tanh_gaussian.policy import Actor
from rlinf_core.recipes import load_recipe, station_task
from rlinf_core.reports import report
from rlinf_core.reports.throughput import wilson
from rlinf_core.rollouts.evaluate import EpisodeResult
from tests.messages import record


def save(folder, version=1, recipe="demo"):
    actor = Actor(
        station_task(load_recipe(recipe)).spec, tanh_gaussian.Config(hidden=(16,), image_features=4)
    )
    return save_policy(actor, folder / policy_name(version))


def test_help_of_every_command_teaches(capsys):
    for command in ("demo", "up", "train", "eval", "doctor"):
        with pytest.raises(SystemExit) as exit_:
            main([command, "--help"])
        assert exit_.value.code == 0
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "rlinf demo demo_vision" in capsys.readouterr().out


COMMANDS = [
    "recipes",
    "chat a",
    "world fit a",
    "world fit-video a",
    "world splats a --out b.ply",
    "world check a",
    "world rank a b",
    "completion bash",
    "robots",
    "tasks",
    "simulators",
    "config x",
    "demo",
    "train x",
    "sweep x",
    "compare a b",
    "up x",
    "run x",
    "teleop",
    "status",
    "arm",
    "disarm",
    "fault reset",
    "collect x",
    "show a",
    "replay a",
    "data push a --to b/c",
    "data pull b/c --out d",
    "policy push a --to b/c",
    "policy pull b/c --out d",
    "view x",
    "import rlinf a.yaml",
    "import-contract a.yaml",
    "eval a",
    "duel a b",
    "why a",
    "monitor fit a",
    "find-dynamics a",
    "drill",
    "check sim x",
    "messages",
    "doctor",
    "fleet up",
    "fleet enroll a --out b",
    "fleet revoke a",
    "fleet list",
    "fleet status a",
    "fleet promote a",
    "fleet rollback a",
    "fleet pin a --off",
    "fleet drain a b",
    "serve a",
    "data list a",
    "data show a",
    "data check a",
    "data repair a --out b",
    "data merge a --out b",
    "data split a --out b",
    "data stats a",
    "data throughput a",
    "data export lerobot a --out b",
    "data export rerun a --out b",
    "data import lerobot a --out b",
    "calibrate a --write",
    "camera align a wrist",
    "first-motion a",
    "gripper activate a",
    "set-instruction go a",
    "param list a",
    "param get a b",
    "param set a b c",
    "lifecycle a b",
    "fake-device pedal",
    "reward train a --out b",
    "make-tiny-vla pi0 --out b",
    "vla adapters a --out b",
    "vla policy a --out b",
    "explain RL-E101",
    "new robot arm.xml --name a",
    "plan sim_ppo",
    "trace runs/a",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_commands_options_are_the_arguments_of_what_it_runs(command):
    arguments = vars(make_parser().parse_args(command.split()))
    inspect.signature(pkgutil.resolve_name(f"rlinf_core.{arguments.pop('run')}")).bind(**arguments)


def test_every_command_is_among_those():
    choices = next(
        action.choices for action in make_parser()._actions if action.metavar == "COMMAND"
    )
    assert choices.keys() == {command.split()[0] for command in COMMANDS}


@pytest.mark.parametrize(
    "command, message",
    [
        ("eval a --episodes 0", "--episodes: expected a number from 1 on, got 0"),
        ("eval a --first-seed -1", "--first-seed: expected a number from 0 on, got -1"),
        ("sweep sim_sac --jobs 0", "--jobs: expected a number from 1 on, got 0"),
        ("serve a --port 65536", "--port: expected a number from 0 to 65535, got 65536"),
        ("up demo --web 0", "--web: expected a number from 1 to 65535, got 0"),
        ("drill --domain 233", "--domain: expected a number from 0 to 232, got 233"),
        ("find-dynamics a --episodes -3", "--episodes: expected a number from 1 on, got -3"),
        ("check sim x --episodes 0", "--episodes: expected a number from 1 on, got 0"),
        ("status --timeout nan", "--timeout: expected a number from 0 on, got nan"),
        ("data split a --out b --seed -1", "--seed: expected a number from 0 on, got -1"),
        ("reward train a --out b --seed -1", "--seed: expected a number from 0 on, got -1"),
        ("fleet promote a --version 0", "--version: expected a number from 1 on, got 0"),
        ("fleet pin a --version two", "--version: invalid int value: 'two'"),
    ],
)
def test_numbers_of_options_have_ranges(command, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(command.split())
    assert exit_.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.usefixtures("default_port_free")
@pytest.mark.parametrize(
    "argv, message",
    [
        (["demo", "demoo"], "did you mean 'demo'"),
        (["demo", "--set", "online.max_minute=1"], "did you mean 'max_minutes'"),
        (["demo", "--set", "online.max_minutes=soon"], "'online.max_minutes': expected"),
        (["up", "demo", "--set", "station.robot=frank_sim"], "did you mean 'franka_sim'"),
        (
            ["up", "demo", "--set", "station.robot=franka_fr3"],
            "expected keyboard for robot 'franka_fr3'",
        ),
        (
            ["demo", "--set", "station.robot=franka_fr3"],
            "A person arms a real arm: --set 'station.operator={kind: keyboard}'",
        ),
        (["up", "demo", "--json", "station.json"], "--json: expected together with --episodes"),
        (["demo", "--set", "station.observe_cameras=[top]"], "has no camera 'top'"),
    ],
)
def test_mistakes_are_told_in_one_line_and_start_nothing(argv, message, capsys, tmp_path):
    assert main([*argv, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("rlinf: ") and message in error and "Traceback" not in error
    assert not (tmp_path / "run/logs").exists()


@pytest.mark.usefixtures("default_port_free")
@pytest.mark.parametrize("command", ["up", "demo"])
def test_an_interlock_that_refuses_to_start_is_quoted(command, capsys, tmp_path, monkeypatch):
    """The error quotes the interlock; messages of other nodes are in their logs."""
    (tmp_path / "refusing.py").write_text(
        "raise SystemExit('interlock: station_a is commanded already, by process 17')"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(
        demo,
        "station_processes",
        lambda recipe, folder, without=(): [
            Process("interlock", "rlinf", "interlock", "refusing", "/station_a", {}, (), SHUTDOWN)
        ],
    )
    assert (
        main([command, "demo", "--out", str(tmp_path / "run"), "--set", "station.domain_id=44"])
        == 1
    )
    error = capsys.readouterr().err
    assert "interlock ended (exit code 1). The station cannot continue without it" in error
    assert "Its last line: 'interlock: station_a is commanded already, by process 17'" in error


@pytest.mark.parametrize(
    "last, code, message",
    [
        ("stopped", 130, "stopped before its end; everything recorded is in"),
        ("result", 0, "the report"),
    ],
)
def test_a_run_that_was_stopped_has_no_report(last, code, message, capsys, tmp_path, monkeypatch):
    (tmp_path / "progress.jsonl").write_text(
        json.dumps({"event": "result"}) + "\n" + json.dumps({"event": last}) + "\n"
    )
    monkeypatch.setattr(demo, "write_report", lambda recipe, folder, since, progress: "the report")
    assert demo._print_result(load_recipe("demo"), tmp_path) == code
    assert message in capsys.readouterr().out


def test_what_was_recorded_is_counted_once(task, capsys, tmp_path):
    (tmp_path / "progress.jsonl").write_text(json.dumps({"event": "result"}) + "\n")
    spool = Spool(tmp_path / "spool", min_free_mb=0)
    for number in range(2):
        record(spool, task.spec, f"a-{number}", steps=3).close()
    shutil.copytree(spool.root / "closed/a-0", tmp_path / "inbox/a-0")
    assert demo._print_result(load_recipe("demo", ["collect.no_training=true"]), tmp_path) == 0
    assert capsys.readouterr().out.startswith("2 episodes recorded in")


def test_eval_writes_its_result_and_uses_the_runs_own_recipe(tmp_path, capsys):
    save(tmp_path, 1), save(tmp_path, 12)
    (tmp_path / "recipe.yaml").write_text("defaults: demo\nname: mine\n")
    assert (
        main(["eval", str(tmp_path), "--episodes", "2", "--json", str(tmp_path / "out.json")]) == 0
    )
    assert policy_name(12) in capsys.readouterr().out
    result = json.loads((tmp_path / "out.json").read_text())
    assert (
        result["episodes"] == 2
        and 0.0 <= result["low"] <= result["success"] <= result["high"] <= 1.0
    )


def test_eval_gives_a_line_for_every_variation(tmp_path, capsys):
    path = save(tmp_path)
    command = [
        "eval",
        str(path),
        "--recipe",
        "sim_rlpd",
        "--episodes",
        "1",
        "--json",
        str(tmp_path / "out.json"),
        "--vary",
    ]
    assert (
        main([*command, "simulation.randomise.delay_s=0.0,0.1", "simulation.interlock=true,false"])
        == 0
    )
    output = capsys.readouterr().out
    assert output.count(" of 1 succeeded") == 4
    assert "simulation.randomise.delay_s=0.1 simulation.interlock=false: " in output
    result = json.loads((tmp_path / "out.json").read_text())
    assert len([key for key in result if key.startswith("success simulation")]) == 4
    assert main([*command, "simulation.interlock"]) == 2
    assert "expected key=value, key=a,b,c" in capsys.readouterr().err


def test_eval_refuses_a_policy_of_another_task(tmp_path, capsys):
    path = save(tmp_path, recipe="demo_vision")
    assert main(["eval", str(path), "--recipe", "demo", "--episodes", "1"]) == 1
    error = capsys.readouterr().err
    assert "does not fit this station" in error and "socket_offset" in error


def test_eval_of_a_folder_without_policies(tmp_path):
    with pytest.raises(PolicyFileError, match="found none"):
        newest_policy(tmp_path)


def test_wilson_interval_against_known_values():
    assert wilson(0, 50) == pytest.approx((0.0, 0.0713), abs=1e-4)
    assert wilson(45, 50) == pytest.approx((0.7864, 0.9565), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


def test_doctor_finds_what_is_here_and_says_how_to_get_what_is_not(monkeypatch, capsys):
    checks = (doctor._python, doctor._packages, doctor._ros, doctor._messages, doctor._rendering)
    monkeypatch.setattr(doctor, "CHECKS", checks)
    assert main(["doctor"]) == 0
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    assert main(["doctor"]) == 1
    output = " ".join(capsys.readouterr().out.split())
    assert (
        "source one, or .venv/bin/python scripts/install.py ros" in output
        and "not tried: no mujoco" in output
    )


def test_a_check_of_the_doctors_that_fails_is_its_line_and_not_its_end(
    monkeypatch, tmp_path, capsys
):
    def slow(*_, **__):
        raise subprocess.TimeoutExpired("python", 60)

    monkeypatch.setattr(doctor, "KERNEL", tmp_path)
    monkeypatch.setattr(doctor.subprocess, "run", slow)
    monkeypatch.setattr(doctor.shutil, "which", slow)
    monkeypatch.setattr(
        doctor,
        "CHECKS",
        (doctor._sockets, doctor._rendering, doctor._tool("cmake", ""), doctor._python),
    )
    assert main(["doctor"]) == 0
    output = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "sockets cannot be checked: FileNotFoundError: " in output and "Python 3." in output
    assert (
        "rendering cannot be checked: TimeoutExpired: " in output
        and "cmake cannot be checked: TimeoutExpired: " in output
    )


def test_doctor_says_how_sockets_become_large_enough(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "KERNEL", tmp_path)
    for most, fix in (
        (212_992, "sudo sysctl -w net.core.rmem_max=4194304 net.core.wmem_max=4194304"),
        (4_194_304, ""),
    ):
        (tmp_path / "rmem_max").write_text("8388608\n")
        (tmp_path / "wmem_max").write_text(f"{most}\n")
        assert doctor._sockets().fix == fix


def test_the_report_needs_no_training_episode(tmp_path):
    summary = {"success_before": 0.5, "success_after": 0.5, "eval_episodes": 2}
    report._curve([], summary, "reach: learned online", tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_report_and_display_name_the_version_that_was_evaluated(tmp_path):
    result = {
        "before": {"episodes": 2, "successes": 1, "policy_version": 1},
        "env_steps": 9,
        "updates": 8,
        "minutes": 1.0,
        "ended": "9 time steps were played",
        "after": {"episodes": 2, "successes": 2, "policy_version": 55},
    }
    recipe = load_recipe("demo")
    summary = report._summary(recipe, result)
    assert (summary["version_before"], summary["version_after"]) == (1, 55)
    text = report._markdown(recipe, tmp_path, summary, [], "")
    assert (
        "| after RL | 55 | 100% |" in text
        and "Training ended because 9 time steps were played." in text
    )
    status = {
        "phase": "evaluate_after",
        "phase_seconds": 1.0,
        "done": 1,
        "total": 2,
        "successes": 1,
        "policy_version": 55,
        "inference_p50_ms": 1.0,
        "waiting_for": "disarmed; arm it",
        "safety": {"state": "DISARMED", "cause": "", "limited": 0, "holds": 0, "refused": 0},
        "trainer": {"updates": 8, "update_ratio": 1.0, "backlog": 0, "connected": True},
    }
    rows = dict(terminal.Display(recipe, tmp_path, quiet=True)._rows(status))
    assert rows["policy"].startswith("version 55, held for this evaluation")
    assert rows["waiting for you"] == "disarmed; arm it"
    assert "spool" not in rows and "set aside" not in rows


def test_the_display_says_what_was_set_aside_and_when_the_spool_is_filling_up(tmp_path):
    trainer = {
        "updates": 8,
        "update_ratio": 1.0,
        "backlog": 0,
        "connected": True,
        "set_aside": 2,
        "spool_full": 0.6,
    }
    status = {
        "phase": "online",
        "phase_seconds": 1.0,
        "done": 1,
        "total": 2,
        "successes": 1,
        "policy_version": 55,
        "inference_p50_ms": 1.0,
        "recent_success": 0.5,
        "recent_intervened": 0.25,
        "env_steps": 9,
        "trainer": trainer,
        "safety": {"state": "ARMED", "cause": "", "limited": 0, "holds": 0, "refused": 0},
    }
    show = terminal.Display(load_recipe("demo"), tmp_path, quiet=True)
    rows = dict(show._rows(status))
    assert rows["phase"] == "improving online (rlpd)"
    other = terminal.Display(load_recipe("sim_sac"), tmp_path, quiet=True)
    assert dict(other._rows(status))["phase"] == "improving online (sac)"
    assert rows["set aside"] == (
        "2 episodes refused by the trainer; the reasons are in spool/refused"
    )
    assert rows["spool"] == "60% full"
    trainer["spool_full"] = 1.01
    assert (
        dict(show._rows(status))["spool"]
        == "101% full: nothing is played or recorded until the trainer accepts some"
    )


def test_others_words_are_shown_as_they_are_and_do_nothing_to_a_terminal(tmp_path, capsys):
    from rich.console import Console

    status = {
        "phase": "online",
        "phase_seconds": 1.0,
        "done": 1,
        "total": 2,
        "successes": 1,
        "policy_version": 55,
        "inference_p50_ms": 1.0,
        "recent_success": 0.5,
        "recent_intervened": 0.25,
        "env_steps": 9,
        "waiting_for": "press [a] on [/dev/hidraw0]",
        "operator": "unplugged: [/dev/hidraw0] \x1b[2J\u202e ü",
        "trainer": {"updates": 8, "update_ratio": 1.0, "backlog": 0, "connected": True},
        "safety": {"state": "FAULT", "cause": "[/red]", "limited": 0, "holds": 0, "refused": 0},
    }
    show = terminal.Display(load_recipe("demo", ["name='[/b]'"]), tmp_path, quiet=True)
    show.note("[/dev/ttyUSB0] \x07 was lost")
    (tmp_path / "status.json").write_text(json.dumps(status))
    show.update()
    plain, console = capsys.readouterr().out, Console(width=150, record=True)
    console.print(show._panel(status))
    panel = console.export_text()
    for output in (plain, panel):
        for words in (
            "press [a] on [/dev/hidraw0]",
            r"unplugged: [/dev/hidraw0] \x1b[2J\u202e ü",
            "FAULT [/red]",
            r"[/dev/ttyUSB0] \x07 was lost",
        ):
            assert words in output
    assert "rlinf · [/b] · seed" in panel


@pytest.mark.parametrize(
    "traceback, message",
    [
        ("", "ended without a message"),
        ('{"event": "error", "detail": "of now"}', "stopped: of now"),
    ],
)
def test_a_director_that_failed_is_told_by_its_own_error_not_by_that_of_the_last_time(
    traceback, message, tmp_path
):
    (tmp_path / "progress.jsonl").write_text('{"event": "error", "detail": "of the last time"}\n')
    (tmp_path / "logs").mkdir()
    program = (
        f"import sys; open({str(tmp_path / 'progress.jsonl')!r}, 'a').write({traceback!r}); "
        f"sys.exit(1)"
    )
    director = Process(
        "director",
        "rlinf",
        "director",
        "",
        "/x",
        {"command": [sys.executable, "-c", program]},
        (),
        ONCE,
    )
    with Supervisor(tmp_path, 90) as supervisor, pytest.raises(RlinfError, match=message):
        demo.run_director(
            supervisor,
            director,
            tmp_path,
            terminal.Display(load_recipe("demo"), tmp_path, quiet=True),
        )


@pytest.mark.timeout(120)
def test_a_trainer_whose_port_is_taken_says_so_and_what_to_do(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = subprocess.run(
            [
                sys.executable,
                "-m",
                "rlinf_core.cli.main",
                "train",
                "demo",
                "--out",
                str(tmp_path),
                "--set",
                f"bridge.port={port}",
            ],
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert result.returncode == 1
    assert "in use. Stop the other trainer" in result.stderr and "bridge.port" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_duel_stops_once_it_is_decided_tells_nothing_before_and_says_what_it_saved(
    tmp_path, capsys, monkeypatch
):
    good, bad = save(tmp_path, 1), save(tmp_path, 2)
    monkeypatch.setattr(
        duel, "load_policy", lambda path: SimpleNamespace(spec=SimpleNamespace(control_hz=10.0))
    )
    played = []

    def rollout(recipe, policy, seeds):
        for seed in seeds:
            played.append((policy, seed))
            assert "succeeded" not in capsys.readouterr().out
            yield EpisodeResult(seed, policy == good, policy != good, float(policy == good), 50), []

    monkeypatch.setattr(duel, "rollout", rollout)
    assert (
        main(
            ["duel", str(good), str(bad), "--recipe", "demo", "--json", str(tmp_path / "out.json")]
        )
        == 0
    )
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["verdict"] == "A is better"
    assert result["pairs"] == 10 == len(played) / 2, "the fewest that decide"
    assert result["a_success"] == 1.0 and result["b_success"] == 0.0
    assert result["a_time_to_success_s"] == 5.0
    assert {seed for policy, seed in played if policy == good} == {
        seed for policy, seed in played if policy == bad
    }
    assert len({policy for policy, _ in played[::2]}) == 2, "which plays first is drawn"
    assert "verdict: A is better" in capsys.readouterr().out


@pytest.mark.parametrize(
    "more, message",
    [
        ([], "expected two policies, got one"),
        (["--by", "speed"], "--by: expected some of success, time, return, got speed"),
    ],
)
def test_a_duel_of_one_policy_or_by_no_measure_is_refused(more, message, tmp_path, capsys):
    one = save(tmp_path, 1)
    other = save(tmp_path, 2) if more else one
    assert main(["duel", str(one), str(other), "--recipe", "demo", *more]) == 2
    assert message in capsys.readouterr().err


def test_two_policies_play_a_duel_in_simulation(tmp_path, capsys):
    one, other = save(tmp_path, 1), save(tmp_path, 2)
    assert main(["duel", str(one), str(other), "--recipe", "demo", "--pairs", "2"]) == 0
    output = capsys.readouterr().out
    assert "verdict: open: not enough pairs" in output
    assert output.count("of 2 succeeded") == 2


def test_rlinf_alone_shows_the_first_steps(capsys):
    assert main([]) == 0
    assert "rlinf demo" in capsys.readouterr().out


@pytest.mark.parametrize(
    "kind, names",
    [
        ("recipes", {"demo", "sim_sac", "simulators/maniskill_pick"}),
        ("robots", {"franka_fr3", "panda_maniskill", "ur5e"}),
        ("tasks", {"reach", "peg_insertion"}),
        ("simulators", {"maniskill", "isaaclab"}),
    ],
)
def test_what_there_is_to_choose_from_is_listed_with_a_sentence_each(kind, names, capsys):
    assert main([kind]) == 0
    lines = {
        line.split()[0]: line.split()
        for line in capsys.readouterr().out.splitlines()
        if line.strip()
    }
    assert names <= lines.keys()
    assert all(len(lines[name]) > 3 for name in names)


def test_a_recipe_is_printed_in_full_and_is_the_same_recipe(tmp_path, capsys):
    assert main(["config", "demo_vision", "--set", "seed=7", "--check"]) == 0
    (tmp_path / "full.yaml").write_text(capsys.readouterr().out)
    assert load_recipe(tmp_path / "full.yaml") == load_recipe("demo_vision", ["seed=7"])
    assert main(["config", "demo_vison"]) == 2
    assert "did you mean 'demo_vision'" in capsys.readouterr().err
