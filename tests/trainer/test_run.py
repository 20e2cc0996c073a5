"""Decisions of a run without a source: episodes, due updates, publications and checkpoints."""

import json
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlinf_core.core.errors import RlinfError
from rlinf_core.episodes.spool import Spool
from rlinf_core.plan.graph import LEARNER, WEIGHTS
from rlinf_core.policies.policy_folder import policy_name, read_info
from rlinf_core.policies.serialization import load_policy
from rlinf_core.recipes import load_recipe
from rlinf_core.rollouts.evaluate import EpisodeResult
from rlinf_core.rollouts.types import Experience, Source, Trajectory
from rlinf_core.trainer import checkpoint
from rlinf_core.trainer.governor import Governor
from rlinf_core.trainer.policy_flush import NOTE
from rlinf_core.trainer.progress import Progress
from rlinf_core.trainer.run import Run
from tests.messages import record

GOVERNOR = Governor(updates_per_step=2.0, max_lag_episodes=2, max_staleness=3, steps_per_episode=10)
SMALL = (
    "collect.episodes=1",
    "sft.steps=4",
    "sft.batch_size=16",
    "policy.hidden=[32]",
    "replay.capacity=1000",
    "online.max_staleness=3",
    "online.min_transitions=0",
    "online.updates_per_step=2.0",
    "algorithm.batch_size=16",
)
RLPD = ("algorithm.critics=2", "algorithm.critic_hidden=[32]", "algorithm.critic_warmup=2")
ASYNC_PPO = ("algorithm={name: async_ppo}", "policy={kind: gaussian, hidden: [8]}")


class Silent(Source):
    """A source that brings nothing by itself."""

    asynchronous, report = True, None

    def take(self, updates, order):
        return Experience()

    def close(self):
        pass


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "spool")


def run_of(task, folder, *overrides, algorithm=RLPD):
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(
        load_recipe("demo", [*SMALL, *algorithm, *overrides]),
        folder,
        task.spec,
        lambda run, entry: None,
    )
    run.start(Silent())
    return run


def turn(run, times=1):
    """So many turns of the loop, without its pauses."""
    run.reported_at = float("inf")
    for _ in range(times):
        run.advance()
        if (LEARNER, WEIGHTS) in (run.in_flight or run._plan_turn()):
            run._send_weights()


def shown(run, spool, name, **how):
    return run.intake.take(record(spool, run.policy.spec, name, **how).close(), run.insert)


@pytest.mark.parametrize("use_executed", [False, True])
@pytest.mark.parametrize("algorithm, rollouts", [(RLPD, False), (ASYNC_PPO, True)])
def test_recordings_are_read_as_the_recipe_and_its_algorithm_want_them(
    task, tmp_path, use_executed, algorithm, rollouts
):
    run = run_of(
        task,
        tmp_path / "run",
        f"replay.use_executed={str(use_executed).lower()}",
        algorithm=algorithm,
    )
    assert (
        run.intake.use_executed is use_executed
        and run.intake.max_transitions == run.data.max_transitions
    )
    assert run.intake.rollouts_of == (run.recipe.policy if rollouts else None)


def test_the_rate_of_a_resumed_run_counts_its_own_steps_alone(task, tmp_path):
    run, entries = run_of(task, tmp_path / "run"), []
    run.on_progress = lambda run, entry: entries.append(entry)
    run.first_step, run.data.steps, run.started = 1000, 1600, time.perf_counter() - 3.0
    run.evaluator = lambda: [EpisodeResult(1, True, False, 1.0, 5)]
    run._evaluate()
    (entry,) = entries
    assert (entry["success"], entry["failure"], entry["return"], entry["episodes"]) == (
        1.0,
        0.0,
        1.0,
        1,
    )
    assert entry["policy_version"] == run.version == 1 and entry["env_steps"] == 1600
    assert (
        entry["steps_per_second"] == pytest.approx(600 / entry["seconds"])
        and 3.0 <= entry["seconds"] < 60.0
    )


def test_what_an_update_says_is_a_mean_of_all_that_were_said(tmp_path):
    progress = Progress(tmp_path)
    for value in (1.0, 2.0, 6.0):
        progress.note({"loss": value}, 1)
    assert progress.metrics["loss"] == pytest.approx(3.0)
    progress.close()


def test_the_governor_owes_updates_per_step_and_asks_stations_to_pause_when_behind():
    assert GOVERNOR.due(transitions=100, updates=150) == 50 and GOVERNOR.due(100, 300) == 0
    assert GOVERNOR.accepting(100, 160) and not GOVERNOR.accepting(100, 159)
    waiting = replace(GOVERNOR, min_transitions=500)
    assert waiting.due(500, 0) == 0 and waiting.accepting(500, 0), (
        "who may not learn yet must not make others wait"
    )
    assert waiting.due(503, 2) == 4 and not waiting.accepting(521, 0) and waiting.accepting(520, 0)
    assert GOVERNOR.is_fresh(7, 10) and not GOVERNOR.is_fresh(6, 10)


@pytest.mark.parametrize(
    "how, version, status",
    [
        (dict(mode="demonstration"), 0, "demonstration"),
        (dict(mode="demonstration", success=False), 0, "failed demonstration"),
        (dict(), 7, "online"),
        (dict(), 8, "stale"),
        (dict(mode="evaluate"), 0, "evaluation"),
        (dict(leave=("ended",)), 0, "refused"),
    ],
)
def test_each_episode_goes_where_it_belongs_exactly_once(
    spool, task, tmp_path, how, version, status
):
    run = run_of(task, tmp_path / "run")
    run.version, folder = version, record(spool, task.spec, **how).close()
    assert (
        run.intake.take(folder, run.insert).startswith(status)
        and run.intake.take(folder, run.insert) == "duplicate"
    )
    counts = run.counts()
    assert counts["demonstrations"] == (status == "demonstration") and counts["steps"] == 5 * (
        status == "online"
    )
    assert run.data.online.episodes == (status in ("online", "stale"))
    assert (counts["stale"], counts["evaluations"], counts["refused"]) == (
        status == "stale",
        status == "evaluation",
        status == "refused",
    )
    if status != "refused":
        assert (counts["a/episodes"], counts["a/steps"], counts["a/sampled"]) == (
            1,
            5 * (status == "online"),
            0,
        )


CUSTOM_KIND, CORRECTED = {}, {1: "operator"}


@pytest.mark.parametrize(
    "algorithm, sources, success, counts",
    [
        ("rlpd", CORRECTED, True, (1, 0)),
        ("rlpd", CORRECTED, False, (1, 0)),
        ("rlpd", CUSTOM_KIND, True, (0, 1)),
        ("rlpd", CUSTOM_KIND, False, (0, 0)),
        ("rlpd, self_imitation: false", CUSTOM_KIND, True, (0, 0)),
        ("rlpd, self_imitation: false", CORRECTED, True, (1, 0)),
        ("sac", CORRECTED, True, (0, 0)),
        ("crossq", CUSTOM_KIND, True, (0, 0)),
    ],
)
def test_corrections_and_successes_are_demonstrations_where_these_fill_half_of_a_batch(
    algorithm, sources, success, counts, spool, task, tmp_path
):
    run = run_of(task, tmp_path / "run", f"algorithm={{name: {algorithm}}}", algorithm=())
    shown(run, spool, "o", sources=sources, success=success)
    data = run.data
    assert (data.online.episodes, data.demonstrations.episodes, data.imitated.episodes) == (
        1,
        *counts,
    )
    assert (run.counts()["demonstrations"], run.counts()["imitated"]) == counts
    assert len(data.demonstrations) == counts[0], (
        "the operator's one transition, whatever came of it"
    )


@pytest.mark.parametrize("success", [True, False])
def test_of_a_corrected_episode_what_the_operator_did_is_demonstrated_and_nothing_else(
    success, spool, task, tmp_path
):
    run = run_of(task, tmp_path / "run", "algorithm.batch_size=400")
    shown(run, spool, "d", mode="demonstration", steps=2, start=1000.0)
    run.version = 8
    assert (
        shown(run, spool, "o", steps=9, sources={3: "operator", 4: "operator"}, success=success)
        == "stale"
    )
    vectors = run.data.batch()["vectors"][:, 0]
    assert set(np.unique(vectors[200:])) == {1000.0, 1001.0, 3.0, 4.0}, (
        "a person's correction is never stale"
    )
    before = run.data.demonstrations._next
    shown(run, spool, "long", steps=40, sources={3: "operator", 30: "operator"}, success=success)
    assert run.data.demonstrations._next - before < 20, "what a person showed before has the room"
    assert len(np.unique(vectors[:200])) == 9


def test_each_demonstrated_transition_is_as_likely_whoever_showed_it(spool, task, tmp_path):
    run = run_of(task, tmp_path / "run", "algorithm.batch_size=4000")
    shown(run, spool, "d", mode="demonstration", steps=3, start=1000.0)
    shown(run, spool, "o", steps=9)
    drawn = run.data.batch()["vectors"][2000:, 0]
    values, counts = np.unique(drawn, return_counts=True)
    assert (
        len(values) == 12
        and (values >= 1000).sum() == 3
        and np.abs(counts / 2000 - 1 / 12).max() < 0.03
    )
    state = run.data.state_dict()
    again = run_of(task, tmp_path / "again", "algorithm.batch_size=4000")
    again.data.load_state_dict(state)
    assert np.array_equal(again.data.batch()["vectors"], run.data.batch()["vectors"])


def test_a_refusal_changes_nothing_of_what_was_learned_from(spool, task, tmp_path):
    """An operator's correction goes to two buffers; it must fit both before it goes to either."""
    run = run_of(task, tmp_path / "run", "replay.capacity=60000")
    assert run.data.max_transitions == 49_999 == run.intake.max_transitions
    run.intake.max_transitions = 4
    assert shown(run, spool, "o", sources={1: "operator"}).startswith("refused")
    assert run.data.online.inserted == run.data.steps == 0


def test_half_of_a_batch_is_online_and_half_demonstrations(spool, task, tmp_path):
    for size in (16, 17):
        run = run_of(task, tmp_path / f"run{size}", f"algorithm.batch_size={size}")
        shown(run, spool, f"d{size}", mode="demonstration", start=1000.0)
        shown(run, spool, f"o{size}", success=False)
        first = run.data.batch()["vectors"][:, 0]
        assert (
            (first[: size - size // 2] < 1000).all()
            and (first[size - size // 2 :] >= 1000).all()
            and len(first) == size
        )


def begun(task, folder, spool, *overrides):
    """Fine-tuned, with nine online transitions."""
    run = run_of(task, folder, *overrides)
    shown(run, spool, "d1", steps=9, mode="demonstration")
    turn(run)
    assert run.version == 1 and run.phase == "online" and run.updates == 0, (
        "fine-tuning ends with version 1"
    )
    shown(run, spool, "o1", steps=9, start=3.0)
    return run


def test_a_resumed_run_makes_the_same_next_updates_as_an_uninterrupted_one(spool, task, tmp_path):
    one = begun(task, tmp_path / "run", spool)
    one._learn(6)
    one.save()
    torch.manual_seed(123)
    two = run_of(task, tmp_path / "run")
    assert (two.updates, two.version, two.counts()) == (6, 1, one.counts()) and two.stage == 1
    assert two.intake.take(spool.root / "closed" / "o1", two.insert) == "duplicate"
    for _ in range(4):
        a, b = one.data.batch(), two.data.batch()
        assert all(np.array_equal(a[name], b[name]) for name in a)
        assert one.learner.update(a) == two.learner.update(b)
    for p, q in zip(one.policy.parameters(), two.policy.parameters(), strict=True):
        assert torch.equal(p, q)


def test_both_stages_learn_in_the_recipes_precision_and_what_is_published_is_float32(
    task, tmp_path
):
    runs = {}
    for precision in ("float32", "bfloat16"):
        folder = tmp_path / precision
        run = runs[precision] = begun(
            task, folder, Spool(folder / "spool"), f"learner.precision={precision}"
        )
        run._learn(6)
        run.publish()
        run.save()
    first, last = (
        [
            load_policy(tmp_path / precision / "policies" / policy_name(version)).head.weight
            for precision in runs
        ]
        for version in (1, 2)
    )
    for one, two in (first, last):
        assert (
            not torch.equal(one, two)
            and torch.allclose(one, two, atol=5e-3)
            and two.dtype == torch.float32
        )
    resumed = run_of(task, tmp_path / "bfloat16")  # in float32
    for name, part in runs["bfloat16"].learner.modules.items():
        assert all(
            torch.equal(p, q)
            for p, q in zip(
                part.parameters(), resumed.learner.modules[name].parameters(), strict=True
            )
        )
    resumed._learn(2)


def test_what_is_published_is_normalised_by_the_demonstrations_and_says_what_it_is(
    spool, task, tmp_path
):
    run = begun(task, tmp_path / "run", spool)
    run._learn(6)
    run.publish()
    first, second = (load_policy(tmp_path / "run/policies" / policy_name(v)) for v in (1, 2))
    assert any(
        not torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True)
    )
    for version, updates, steps in ((1, 0, 0), (2, 6, 9)):
        assert read_info(tmp_path / "run/policies" / policy_name(version)) == {
            "version": version,
            "updates": updates,
            "env_steps": steps,
        }
    vectors = run.data.demonstrations.vectors()
    assert np.allclose(first.encoder.mean.numpy(), vectors.mean(axis=0))
    assert np.allclose(first.encoder.std.numpy(), vectors.std(axis=0), atol=1e-3)


def test_what_is_published_and_evaluated_is_the_moving_average(spool, task, tmp_path):
    run = begun(task, tmp_path / "run", spool, "algorithm.ema_rate=0.1")
    run._learn(6)
    run.publish()
    averaged = run.learner.modules["averaged"]
    published = load_policy(tmp_path / "run/policies" / policy_name(2))
    for p, q, newest in zip(
        published.parameters(), averaged.parameters(), run.policy.parameters(), strict=True
    ):
        assert torch.equal(p, q) and not torch.equal(p, newest)
    assert all(
        torch.equal(p, q)
        for p, q in zip(run.shipped.parameters(), averaged.parameters(), strict=True)
    )


def test_versions_never_go_back_after_a_crash(spool, task, tmp_path):
    """Stations take only newer policies: one published after the last checkpoint counts."""
    run = begun(task, tmp_path / "run", spool)
    run.save()
    run.publish()
    again = run_of(task, tmp_path / "run")
    again.publish()
    assert again.version == 3 and (tmp_path / "run/policies" / policy_name(3)).exists()


def test_a_checkpoint_of_an_earlier_version_is_refused_in_words(spool, task, tmp_path):
    run = begun(task, tmp_path / "run", spool)
    run.save()
    newest = checkpoint.checkpoints(tmp_path / "run/checkpoints")[-1]
    state = checkpoint.load(newest)
    del state["source"], state["clock"]
    checkpoint.save(tmp_path / "run/checkpoints", "older", state)
    with pytest.raises(
        RlinfError,
        match="got none of source, clock. An earlier version wrote it. Begin another run",
    ):
        run_of(task, tmp_path / "run")


def test_divergence_stops_with_what_to_do(spool, task, tmp_path):
    run = begun(task, tmp_path / "run", spool)
    run.data.online._arrays["reward"][:] = np.nan
    with pytest.raises(RlinfError, match="training diverged: critic_loss is nan.*resume"):
        run._learn(1)


def test_stations_are_asked_to_pause_only_while_the_learner_is_behind(spool, task, tmp_path):
    run = begun(task, tmp_path / "run", spool)
    assert run.report()["accepting"]
    observations = {"vectors": np.zeros((401, run.policy.spec.vector_size), np.float32)}
    run.insert(
        Trajectory(
            observations,
            np.zeros((400, 3)),
            np.zeros(400),
            np.ones(400),
            False,
            version=1,
            station="b",
        )
    )
    report = run.report()
    assert (
        not report["accepting"]
        and report["transitions"] == 409
        and report["metrics"]["b/steps"] == 400
    )
    turn(run, 60)
    assert run.report()["accepting"] and run.updates == 818 and run.report()["update_ratio"] == 2.0


def test_checkpoints_appear_whole_and_old_ones_go(tmp_path):
    for step in (0, 12, 1, 1):
        checkpoint.save(
            tmp_path,
            f"updates-{step}",
            {"a": {"x": np.float32(step), "y": np.arange(3)}, "n": [step]},
        )
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == [
        "00000003-updates-1",
        "00000004-updates-1",
    ]
    newest = checkpoint.checkpoints(tmp_path)[-1]
    state = checkpoint.load(newest)
    assert state["a"]["x"] == 1.0 and state["a"]["x"].shape == () and state["n"] == [1]
    (newest / "arrays.safetensors").write_bytes(b"half")
    with pytest.raises(
        RlinfError, match="json, intact, got: arrays.safetensors does not fit SHA256SUMS"
    ):
        checkpoint.load(newest)


def test_stations_are_told_phase_counts_and_who_may_play(spool, task, tmp_path):
    run = run_of(task, tmp_path / "run", "collect.episodes=2")
    reports = []
    for name in ("d1", "d2"):
        reports.append(run.report())
        shown(run, spool, name, mode="demonstration")
    reports.append(run.report())
    assert [report["phase"] for report in reports] == ["waiting", "waiting", "sft"]
    assert [report["metrics"]["sft_left"] for report in reports] == [4.0] * 3
    assert [report["metrics"]["demonstrations"] for report in reports] == [0.0, 1.0, 2.0]
    assert all(report["accepting"] is True and "waiting" not in report for report in reports)
    turn(run)
    shown(run, spool, "o1", steps=9)
    run._learn(3)
    report = run.report()
    metrics = report.pop("metrics")
    assert report == {
        "phase": "online",
        "policy_version": 1,
        "updates": 3,
        "transitions": 9,
        "episodes": 3,
        "update_ratio": 3 / 9,
        "accepting": True,
        "waiting": {},
    }
    assert metrics["sft_left"] == 0.0 and metrics["a/steps"] == 9.0
    assert metrics["critic_loss"] == run.progress.metrics["critic_loss"] and "sft_loss" in metrics


def test_reports_checkpoints_and_curves_come_at_their_intervals(spool, task, tmp_path, monkeypatch):
    run, folder = begun(task, tmp_path / "run", spool, "checkpoint.every_minutes=2"), tmp_path
    entries = []
    run.on_progress = lambda run, entry: entries.append(entry)
    now = time.monotonic()

    def happened():
        """Return which of the three happened after a turn at this time."""
        before = checkpoint.checkpoints(folder / "run/checkpoints")
        run.source.report, run.progress.written_at = None, written_at
        with monkeypatch.context() as patch:
            patch.setattr(time, "monotonic", lambda: now)
            run._do_periodic_work(True)
        return (
            run.source.report is not None,
            checkpoint.checkpoints(folder / "run/checkpoints") != before,
            run.progress.written_at == now,
        )

    run.reported_at, run.saved_at, written_at = now - 0.25, now - 120.0, now - 2.0
    assert happened() == (False, False, False), "not before"
    run.reported_at, run.saved_at, written_at = now - 0.26, now - 120.1, now - 2.01
    assert happened() == (True, True, True)
    assert (run.reported_at, run.saved_at) == (now, now) and entries == [None, None]
    run.saved_at = now - 999.0
    assert happened()[1] is False, "nothing has changed since"


@pytest.mark.parametrize(
    "worked, asynchronous, pauses", [(False, True, [0.02]), (True, True, []), (False, False, [])]
)
def test_a_run_that_waits_for_stations_pauses_between_two_looks(
    spool, task, tmp_path, monkeypatch, worked, asynchronous, pauses
):
    run, slept = begun(task, tmp_path / "run", spool), []
    run.source.asynchronous = asynchronous
    monkeypatch.setattr(time, "sleep", slept.append)
    run._do_periodic_work(worked)
    assert slept == pauses


def test_a_checkpoint_that_counts_the_updates_of_an_earlier_run_goes_on_without_them(
    spool, task, tmp_path
):
    """Releases before kept the updates of the run that they continued."""
    run = begun(task, tmp_path / "run", spool)
    run._learn(3)
    run.publish()
    run.save()
    folder = run.run_dir / "checkpoints"
    state = checkpoint.load_newest(folder)
    state["learner"]["updates"] += 40
    state["run"] |= {"published_at": 43, "owed_from": 40}
    checkpoint.save(folder, "older", state)
    again = run_of(task, tmp_path / "run")
    assert (again.updates, again.published_at) == (run.updates, run.published_at) == (3, 3)


def test_an_evaluation_says_what_was_played_in_how_much_time_and_when_the_next_is_due(
    spool, task, tmp_path
):
    run, entries = begun(task, tmp_path / "run", spool, "simulation.evaluate_every=250"), []
    run._learn(2)
    run.on_progress = lambda run, entry: entries.append(entry)
    run.evaluator = lambda: [
        EpisodeResult(1, True, False, 2.0, 30),
        EpisodeResult(2, False, True, -1.0, 60),
    ]
    run.source.counts = lambda: {"a/backlog": 3.0}
    run.seconds, run.next_evaluation, run.data.steps = 1000.0, 300, 900
    run._evaluate()
    (entry,) = entries
    hz = task.spec.control_hz
    assert entry["time_to_success_s"] == pytest.approx(30 / hz)
    assert (entry["return"], entry["success"], entry["failure"]) == (0.5, 0.5, 0.5)
    assert entry["robot_minutes"] == pytest.approx(900 / hz / 60) and entry["updates"] == 2
    assert 1000.0 < entry["seconds"] < 1060.0 and entry["policy_version"] == 2
    assert entry["critic_loss"] == run.progress.metrics["critic_loss"] and entry["a/backlog"] == 3.0
    assert entry["seconds_learn"] == run.clock.seconds["learn"] > 0.0
    assert "seconds_evaluate" in entry and run.progress.last == entry
    assert run.next_evaluation == 1050, "a turn may take more steps than one interval"
    run.data.steps = 1050
    run._evaluate()
    assert run.next_evaluation == 1300


def test_a_checkpoint_is_saved_when_any_of_its_numbers_has_changed(spool, task, tmp_path):
    run = begun(task, tmp_path / "run", spool)
    run._learn(3)

    def newest():
        return checkpoint.checkpoints(run.run_dir / "checkpoints")[-1].name

    run.save()
    before = newest()
    assert before.endswith("updates-000000007"), "4 of the warm start and 3"
    run.save()
    assert newest() == before, "nothing has changed"
    for holder, name in (
        (run.data, "steps"),
        (run.learner, "updates"),
        (run, "next_evaluation"),
        (run, "version"),
    ):
        setattr(holder, name, getattr(holder, name) + 1)
        run.save()
        assert newest() > before, name
        before = newest()
    run.intake.ids["another"] = "online"
    run.save()
    assert newest() > before


def test_a_run_pauses_only_after_a_turn_without_updates_and_data(
    spool, task, tmp_path, monkeypatch
):
    run, slept = begun(task, tmp_path / "run", spool), []
    monkeypatch.setattr(time, "sleep", slept.append)
    while run.updates_due():
        run.advance()
    assert slept == [] and run.updates > 0
    run.advance()
    assert slept == [0.02]


def test_a_run_that_died_before_its_first_checkpoint_counts_its_policies_on(task, tmp_path):
    first = run_of(task, tmp_path / "run")
    assert first.version == 0
    for version in (1, 2):
        first.publish()
        assert first.version == version
    again = run_of(task, tmp_path / "run")
    assert again.version == 2 and again.published_at == -1
    again.publish()
    assert again.version == 3


def test_a_policy_that_stations_wait_for_is_flushed_where_it_lies(spool, task, tmp_path):
    run = begun(task, tmp_path / "run", spool)
    run.flush.wait()
    note = json.loads((run.run_dir / "policies" / NOTE).read_text())
    assert note["version"] == run.version == 1


def test_the_first_look_writes_curves(spool, task, tmp_path):
    run = run_of(task, tmp_path / "run")
    assert not (run.run_dir / "tensorboard").exists()
    shown(run, spool, "d1", mode="demonstration")
    run._do_periodic_work(True)
    assert list((run.run_dir / "tensorboard").iterdir())


def test_a_policy_is_published_first_and_then_every_so_many_updates(spool, task, tmp_path):
    run = run_of(task, tmp_path / "run", "online.publish_every_updates=4")
    assert not run.is_publication_due(), "nothing is shown yet"
    shown(run, spool, "d1", mode="demonstration")
    assert not run.is_publication_due(), "it is not fine-tuned yet"
    turn(run)
    assert run.version == 1 and not run.is_publication_due()
    shown(run, spool, "o1", steps=9)
    due = []
    for _ in range(9):
        run._learn(1)
        due.append(run.is_publication_due())
        if due[-1]:
            run.publish()
    assert due == [False, False, False, True, False, False, False, True, False]
    assert run.version == 3 and run.data.versions == {1: 0, 2: 4, 3: 8}


def test_at_most_sixteen_updates_come_between_two_looks(spool, task, tmp_path):
    run = begun(task, tmp_path / "run", spool)
    run._learn(100)
    assert run.updates == 16
    run._learn(3)
    assert run.updates == 19
    run._learn(0)
    assert run.updates == 20, "a call that is made takes one"
