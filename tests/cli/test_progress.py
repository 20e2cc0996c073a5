"""No command is silent for long, and the terminal's panel says what is so."""

import itertools
import time
from types import SimpleNamespace

from rlinf_core.cli import demo, doctor, terminal, train
from rlinf_core.cli.main import main
from rlinf_core.core import progress
from rlinf_core.recipes import load_recipe
from rlinf_core.reports import report

TRAINER = {"updates": 8, "update_ratio": 1.0, "backlog": 0, "connected": False}
STATUS = {
    "phase": "online", "phase_seconds": 119.0, "done": 1, "total": 2, "successes": 1, "policy_version": -1,
    "inference_p50_ms": 0.0, "recent_success": 0.5, "recent_intervened": 0.0, "env_steps": 9, "trainer": TRAINER,
    "safety": {"state": "HOLD", "cause": "stale_command", "limited": 0, "holds": 0, "refused": 0}}  # fmt: skip


def test_a_step_says_which_it_is_of_how_many_and_again_while_it_lasts(monkeypatch):
    monkeypatch.setattr(progress, "EVERY_S", 0.05)
    lines = []
    with progress.Progress(2, lines.append) as steps:
        steps.step("filming")
        end = time.monotonic() + 5.0
        while len(lines) < 3 and time.monotonic() < end:
            time.sleep(0.01)
        steps.step("the poster")
    assert lines[0] == "[1 of 2] filming" and "[2 of 2] the poster" in lines
    assert all(line.startswith("[1 of 2] filming: ") for line in lines[1:3])
    count = len(lines)
    time.sleep(0.2)
    assert len(lines) == count, "nothing after its end"


def test_the_doctor_names_each_check_before_it_begins(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "CHECKS", (doctor._python, doctor._disk))
    doctor.doctor()
    assert capsys.readouterr().err.splitlines() == ["[1 of 2] python", "[2 of 2] disk"]


def test_a_report_says_its_steps(tmp_path, monkeypatch):
    lines = []
    recipe = load_recipe("demo", ["evaluate.filmed_episodes=0"])
    side = {"episodes": 2, "successes": 1, "policy_version": 1}
    result = {"event": "result", "time": 0.0, "before": side, "after": side, "env_steps": 9, "updates": 8,
              "minutes": 1.0, "ended": "9 time steps were played"}  # fmt: skip
    monkeypatch.setattr(report, "read_events", lambda run_dir: [result])
    with progress.Progress(report.REPORT_STEPS, lines.append) as steps:
        report.write_report(recipe, tmp_path, 0, steps)
    assert [line[:8] for line in lines if "so far" not in line] == [
        "[1 of 3]",
        "[2 of 3]",
        "[3 of 3]",
    ]


def test_the_panel_has_no_version_minus_one_no_negative_time_and_no_trainer_that_went_before_it_came(
    tmp_path,
):
    show = terminal.Display(load_recipe("demo"), tmp_path, quiet=True)
    rows = dict(show._rows(STATUS))
    assert rows["policy"] == "none yet"
    assert rows["trainer"] == "not connected yet"
    assert rows["taken over (last 50)"] == "0% of the time steps"
    assert rows["interlock"].startswith("HOLD stale_command: The policy sends no command in time")
    show._rows(STATUS | {"trainer": TRAINER | {"connected": True}})
    assert dict(show._rows(STATUS))["trainer"] == "away; nothing is lost"
    for done, seconds in itertools.product((1, 2, 3), (1.0, 1e5)):
        status = STATUS | {"phase": "collect", "done": done, "phase_seconds": seconds}
        assert not dict(show._rows(status))["left in phase"].startswith("-1")
        status = STATUS | {"env_steps": 10**9, "phase_seconds": seconds}
        assert dict(show._rows(status))["left in phase"] == "0:00"


def test_a_run_that_is_too_short_to_learn_says_so_before_it_starts():
    assert demo.short_run_note(load_recipe("demo")) == ""
    assert demo.short_run_note(load_recipe("demo_tiny")).startswith(
        "this run is short: 400 time steps"
    )
    assert demo.short_run_note(load_recipe("demo_tiny", ["collect.no_training=true"])) == ""


def test_shares_of_time_count_a_warm_start_that_was_before_the_runs_clock():
    entry = {
        "success": 0.5,
        "return": 1.0,
        "seconds": 1.0,
        "steps_per_second": 10.0,
        "seconds_warm_start": 99.0,
        "seconds_learn": 1.0,
    }
    assert "(warm_start 99%, learn 1%)" in train._line(10, entry)
    del entry["seconds_warm_start"]
    assert "(learn 100%)" in train._line(10, entry)


def test_a_training_run_says_its_phase_from_the_first_seconds_on(tmp_path, monkeypatch, capsys):
    """Demonstrations and SFT were silent without a terminal, until the first evaluation."""
    run = SimpleNamespace(
        stopping=False, steps=7, total=100, phase="sft", learner=SimpleNamespace(updates=12)
    )

    def train(recipe, run_dir, on_progress, adapts):
        time.sleep(0.05)
        on_progress(run, None)

    monkeypatch.setattr("rlinf_core.trainer.train.train", train)
    monkeypatch.setattr("rlinf_core.cli.train.LINES_S", 0.0)
    monkeypatch.setattr(progress, "EVERY_S", 0.02)
    assert main(["train", "sim_rlpd", "--no-report", "--out", str(tmp_path / "run")]) == 0
    words = capsys.readouterr()
    assert "[1 of 2] loading the trainer" in words.err
    assert "[2 of 2] starting, with demonstrations of the script: 0 s so far" in words.err
    assert "supervised fine-tuning, 12 updates, 7 time steps" in words.out
