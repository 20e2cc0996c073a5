"""rlinf plan prints and draws where a run's parts execute."""

import json

import pytest

from rlinf_core.cli.main import main
from rlinf_core.trainer.progress import Clock
from rlinf_core.trainer.trace import FILE, write_spans


@pytest.mark.parametrize("picture", ["plan.svg", "plan.png"])
def test_a_plan_is_printed_and_drawn(capsys, tmp_path, picture):
    path = tmp_path / picture
    assert (
        main(["plan", "sim_sac", "--set", "placement=auto", "--cpus", "2", "--picture", str(path)])
        == 0
    )
    text = capsys.readouterr().out
    for part in (
        "environment  workers",
        "environment -> data: experience",
        "layout: 2 workers",
        "expected: ",
        "why: ",
        "runner-up: ",
        "a first guess",
        "refused: ",
    ):
        assert part in text, part
    assert path.stat().st_size > 5000


def test_todays_keys_are_planned_as_they_stand_and_a_better_layout_is_named(capsys):
    assert main(["plan", "sim_sac", "--cpus", "4", "--set", "placement={workers: 1}"]) == 0
    text = capsys.readouterr().out
    assert "layout: 1 worker, updates in the trainer's process, in turns" in text
    assert (
        "placement.auto=true would choose: 2 workers, updates in the trainer's process, pipelined"
        in text
    )


def test_a_recipe_without_a_placement_says_when_its_run_moves(capsys):
    assert main(["plan", "sim_sac", "--cpus", "4"]) == 0
    text = capsys.readouterr().out
    assert "layout: rollouts in the trainer's process" in text
    assert "moves to workers if its measurements promise 30% less seconds a turn and 60 s" in text
    assert main(["plan", "sim_sac", "--cpus", "4", "--set", "placement.auto=false"]) == 0
    assert "moves to workers" not in capsys.readouterr().out


def test_stations_set_their_own_rate(capsys):
    assert main(["plan", "demo"]) == 0
    text = capsys.readouterr().out
    assert "(fixed rate)" in text and "the stations set the rate" in text


def test_learners_that_divide_layers_are_printed_and_small_policies_refused(capsys):
    divided = "placement={learners: 4, tensor_parallel: 2}"
    assert main(["plan", "text_arithmetic", "--cpus", "8", "--set", divided]) == 0
    assert "4 learners (layers divided among 2)" in capsys.readouterr().out
    assert main(["plan", "sim_ppo", "--set", divided]) == 2
    assert "no decoder layers of transformers, got 2" in capsys.readouterr().err


def test_fixed_points_that_cannot_be_end_in_one_line(capsys):
    assert (
        main(["plan", "sim_ppo", "--cpus", "2", "--set", "placement={auto: true, learners: 40}"])
        == 2
    )
    assert "2 CPUs carry at most 16 processes" in capsys.readouterr().err


def test_a_trace_has_a_lane_for_each_process_and_the_decisions(capsys, tmp_path):
    clock = Clock()
    with clock("learn"):
        pass
    clock.span("rollout", "worker 0", 100.0, 2.0)
    write_spans(tmp_path, clock.spans)
    assert not clock.spans
    with (tmp_path / FILE).open("a") as file:
        file.write('["learn", "trai')  # as a power cut leaves it
    decision = {"event": "placement", "time": 101.0, "decision": "change", "layout": "x"}
    (tmp_path / "progress.jsonl").write_text(json.dumps(decision) + "\n")
    out = tmp_path / "trace.json"
    assert main(["trace", str(tmp_path), "--out", str(out)]) == 0
    assert "2 spans" in capsys.readouterr().out
    events = json.loads(out.read_text())["traceEvents"]
    lanes = {
        event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    (rollout,) = [event for event in events if event["name"] == "rollout"]
    assert lanes == {0: "trainer", 1: "worker 0"} and (
        rollout["tid"],
        rollout["ts"],
        rollout["dur"],
    ) == (1, 0, 2e6)
    assert [event["ts"] for event in events if event["ph"] == "i"] == [1e6]


def test_a_folder_without_spans_is_named(capsys, tmp_path):
    assert main(["trace", str(tmp_path)]) == 1
    assert "expected the spans of a run, got none" in capsys.readouterr().err
