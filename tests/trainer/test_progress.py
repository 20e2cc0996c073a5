"""The clock, the running means and the curves of a run; the versions of policies that it
published.
"""

import json
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlinf_core.core.errors import RlinfError
from rlinf_core.policies import make_policy
from rlinf_core.policies.policy_folder import policy_name
from rlinf_core.policies.serialization import save_policy
from rlinf_core.recipes import load_recipe
from rlinf_core.trainer.data import make_data
from rlinf_core.trainer.governor import make_governor
from rlinf_core.trainer.progress import Clock, Progress
from rlinf_core.trainer.trace import MAX_BYTES, trace_of, write_spans
from tests.algorithms.point import SPEC


def scalars(folder):
    """(step, value) of each point, by tag."""
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_the_clock_counts_a_part_within_another_as_the_outer_one():
    clock, before = Clock(), time.time()
    with clock("learn"):
        with clock("transfer"):
            time.sleep(0.01)
        time.sleep(0.01)
    assert list(clock.seconds) == ["learn"] and 0.02 <= clock.seconds["learn"] < 5.0
    ((part, process, began, seconds),) = clock.spans
    assert (part, process, seconds) == ("learn", "trainer", clock.seconds["learn"])
    assert before - 0.01 <= began <= time.time() - seconds + 0.01
    with pytest.raises(ValueError), clock("learn"):
        raise ValueError
    with clock("wait"):
        pass
    assert set(clock.seconds) == {"learn", "wait"} and len(clock.spans) == 3
    assert clock.seconds["learn"] >= seconds, "seconds of a part add up"


def test_a_mean_is_of_all_values_at_first_and_of_the_newest_later(tmp_path):
    progress = Progress(tmp_path)
    for updates in range(1, 61):
        progress.note({"loss": 0.0 if updates < 60 else 1.0, "q": 3.0}, updates)
    assert progress.metrics == {"loss": pytest.approx(0.02), "q": pytest.approx(3.0)}
    with pytest.raises(RlinfError) as diverged:
        progress.note({"loss": float("nan")}, 61)
    assert str(diverged.value) == (
        "training diverged: loss is nan after 61 updates. The last good state is in "
        f"{tmp_path / 'checkpoints'}; lower the learning rate and resume from it"
    )
    progress.close()


def test_curves_have_the_learners_metrics_the_datas_counts_and_the_evaluations(tmp_path):
    progress = Progress(tmp_path)
    progress.note({"loss": 0.5}, 1)
    progress.write(10, {"steps": 10.0})
    entry = {"success": 0.25, "return": 2.0, "env_steps": 20, "seconds": 1.0}
    progress.write_evaluation(entry)
    assert progress.last == entry
    progress.close()
    assert scalars(tmp_path) == {
        "train/loss": [(10, 0.5)],
        "data/steps": [(10, 10.0)],
        "eval/success": [(20, 0.25)],
        "eval/return": [(20, 2.0)],
    }
    line = json.loads((tmp_path / "progress.jsonl").read_text())
    assert abs(line.pop("time") - time.time()) < 60.0
    assert line == {"event": "evaluation"} | entry


def test_a_resumed_run_writes_its_curves_and_evaluations_from_its_checkpoint_on(tmp_path):
    first = Progress(tmp_path)
    first.note({"loss": 0.5}, 1)
    first.note({"loss": 1.5}, 2)
    state = first.state_dict()
    for step in (10, 20, 21, 30):
        first.write(step, {"steps": float(step)})
        if step != 21:
            first.write_evaluation({"success": step / 100, "env_steps": step})
    first.write_placement({"decision": "change"})
    first.close()
    resumed = Progress(tmp_path)
    resumed.load_state_dict(state, before=30, step=20)
    assert resumed.last == {"success": 0.2, "env_steps": 20}
    resumed.note({"loss": 4.0}, 3)
    assert resumed.metrics == {"loss": pytest.approx(2.0)}, "the third value of three"
    resumed.write(40, {"steps": 40.0})
    resumed.close()
    assert scalars(tmp_path)["data/steps"] == [(10, 10.0), (20, 20.0), (40, 40.0)]
    events = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert [event.get("env_steps") for event in events] == [10, 20, None]
    assert events[2]["event"] == "placement" and events[2]["decision"] == "change"


def test_versions_after_a_checkpoint_are_those_of_the_folder(tmp_path):
    recipe = load_recipe("sim_rlpd", ["policy.hidden=[8]", "replay.capacity=100"])
    policy = make_policy(SPEC, recipe.policy)
    data = make_data(recipe, policy, make_governor(recipe, 10))
    for version, updates in ((1, 4), (2, 10), (3, 99)):
        save_policy(policy, tmp_path / policy_name(version), version=version, updates=updates)
    (tmp_path / policy_name(5)).write_bytes(b"a power cut")
    assert data.register_published(1, tmp_path, 20) == 5
    assert data.versions == {2: 10, 3: 20}, "no policy is of more updates than the checkpoint"
    assert data.register_published(7, tmp_path, 20) == 7
    assert data.register_published(0, tmp_path / "none", 20) == 0


def test_spans_are_written_until_the_file_is_large(tmp_path):
    clock = Clock()
    clock.span("learn", "trainer", 100.12345678, 0.5)
    clock.span("rollout", "worker 1", 101.0, 2.0)
    write_spans(tmp_path, clock.spans)
    write_spans(tmp_path, clock.spans)
    path = tmp_path / "spans.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [["learn", "trainer", 100.123457, 0.5], ["rollout", "worker 1", 101.0, 2.0]]
    with path.open("r+b") as file:
        file.truncate(MAX_BYTES)
    clock.span("learn", "trainer", 102.0, 0.5)
    write_spans(tmp_path, clock.spans)
    assert path.stat().st_size == MAX_BYTES == 2**26 and not clock.spans


def test_a_trace_is_in_the_format_of_chrome(tmp_path):
    (tmp_path / "spans.jsonl").write_text(
        '["learn", "trainer", 10.5, 0.25]\n["rollout", "b", 10.0, 1.0]\n["rollout", "a", 11.0, 1]\n'
        '[1]\n["learn", "tr'
    )
    (tmp_path / "progress.jsonl").write_text(
        '{"event": "placement", "time": 9.0, "decision": "first"}\n'
        '{"event": "evaluation", "time": 1.0, "success": 0.5, "env_steps": 3}\n'
    )
    trace = trace_of(tmp_path)
    assert trace["displayTimeUnit"] == "ms"
    common = {"cat": "turn", "ph": "X", "pid": 0}
    assert trace["traceEvents"] == [
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": tmp_path.name}},
        *(
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": lane, "args": {"name": name}}
            for lane, name in enumerate(("trainer", "a", "b"))
        ),
        {"name": "learn", "tid": 0, "ts": 1.5e6, "dur": 0.25e6} | common,
        {"name": "rollout", "tid": 2, "ts": 1e6, "dur": 1e6} | common,
        {"name": "rollout", "tid": 1, "ts": 2e6, "dur": 1e6} | common,
        {
            "name": "placement: first",
            "cat": "placement",
            "ph": "i",
            "s": "g",
            "pid": 0,
            "tid": 0,
            "ts": 0.0,
            "args": {"event": "placement", "time": 9.0, "decision": "first"},
        },
    ]
    with pytest.raises(RlinfError, match="expected the spans of a run, got none"):
        trace_of(tmp_path / "none")
