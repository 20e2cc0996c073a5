from dataclasses import replace

import numpy as np
import pytest
import torch

from rlinf_core.algorithms import rlpd, sft
from rlinf_core.cluster.learner import Learner
from rlinf_core.cluster.replay import ReplayStore
from rlinf_core.episodes.spool import Spool
from rlinf_core.errors import RlinfError
from rlinf_core.policies import tanh_gaussian
from rlinf_core.policies.files import load_policy, policy_name, read_info
from rlinf_core.trainer import checkpoint
from rlinf_core.trainer.governor import Governor
from tests.messages import record

GOVERNOR = Governor(updates_per_step=2.0, max_lag_episodes=2, max_staleness=3, steps_per_episode=10)


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "spool")


def store(task, seed=0):
    return ReplayStore(task.spec, 1000, GOVERNOR, seed=seed)


def learner(task, folder, steps=4):
    return Learner(task.spec, tanh_gaussian.Config(hidden=(32,)), sft.Config(steps=steps, batch_size=16),
                   rlpd.Config(batch_size=16, critics=2, critic_hidden=(32,), critic_warmup=2), folder)


def test_the_governor_owes_updates_per_step_and_asks_stations_to_pause_when_behind():
    assert GOVERNOR.due(transitions=100, updates=150) == 50 and GOVERNOR.due(100, 300) == 0
    assert GOVERNOR.accepting(100, 160) and not GOVERNOR.accepting(100, 159)
    waiting = replace(GOVERNOR, min_transitions=500)
    assert waiting.due(499, 0) == 0 and waiting.accepting(499, 0), "who may not learn yet must not make others wait"
    assert not waiting.accepting(500, 0)
    assert GOVERNOR.is_fresh(7, 10) and not GOVERNOR.is_fresh(6, 10)


@pytest.mark.parametrize("how, version, fate", [
    (dict(mode="demonstration"), 0, "demonstration"),
    (dict(mode="demonstration", success=False), 0, "failed demonstration"),
    (dict(), 4, "online"), (dict(), 99, "stale"), (dict(mode="evaluate"), 0, "evaluation"),
    (dict(leave=("ended",)), 0, "refused")])
def test_each_episode_goes_where_it_belongs_exactly_once(spool, task, how, version, fate):
    replay, folder = store(task), record(spool, task.spec, **how).close()
    assert replay.insert(folder, version).startswith(fate)
    assert replay.insert(folder, version) == "duplicate"
    counts = replay.counts()
    assert counts["episodes"] == 1 and counts["demonstrations"] == (fate == "demonstration")
    assert counts["online_episodes"] == (fate in ("online", "stale")) and counts["counted"] == 5 * (fate == "online")
    assert (counts["stale"], counts["evaluations"], counts["refused"]) == (
        fate == "stale", fate == "evaluation", fate == "refused")


def test_episodes_of_another_station_are_refused_by_their_specs(spool, task):
    fate = store(task.with_images({"front": (8, 8)})).insert(record(spool, task.spec).close(), 0)
    assert fate.startswith("refused") and "same recipe" in fate


def test_the_learned_action_is_the_requested_or_the_executed_one(spool, task, random):
    folder = record(spool, task.spec).close()
    for use_executed, value in ((False, 1.0), (True, 0.5)):
        replay = ReplayStore(task.spec, 1000, GOVERNOR, use_executed)
        replay.insert(folder, 4)
        assert replay.online.sample(10, random)["action"][:, 0] == pytest.approx(value)


def test_an_operators_correction_becomes_a_demonstration_too(spool, task):
    replay = store(task)
    replay.insert(record(spool, task.spec, sources={1: "operator"}).close(), 4)
    assert replay.counts()["demonstrations"] == 1 and replay.counts()["online_episodes"] == 1


def fill(replay, spool, task):
    replay.insert(record(spool, task.spec, "d1", steps=9, mode="demonstration").close(), 0)
    replay.insert(record(spool, task.spec, "o1", steps=9, start=3.0).close(), 4)


def test_a_resumed_run_makes_the_same_next_updates_as_an_uninterrupted_one(spool, task, tmp_path):
    replay, learning = store(task), learner(task, tmp_path / "policies")
    fill(replay, spool, task)
    learning.fit_normalisation(replay.demonstration_vectors())
    learning.fine_tune(replay.sample_demonstrations(16, 4))
    learning.improve(replay.sample(16, 6))
    folder = checkpoint.save(tmp_path / "checkpoints", "updates-6",
                             {"replay": replay.state_dict(), "learner": learning.state_dict()})
    torch.manual_seed(123)
    state = checkpoint.load(folder)
    replay2, learning2 = store(task, seed=9), learner(task, tmp_path / "policies2")
    replay2.load_state_dict(state["replay"])
    learning2.load_state_dict(state["learner"])
    assert (learning2.updates, learning2.version, replay2.counts()) == (6, 1, replay.counts())
    assert replay2.insert(spool.root / "closed" / "o1", 4) == "duplicate"
    for _ in range(5):
        a, b = replay.sample(16, 2), replay2.sample(16, 2)
        assert all(np.array_equal(x[name], y[name]) for x, y in zip(a, b, strict=True) for name in x)
        learning.improve(a)
        learning2.improve(b)
        assert learning.metrics == learning2.metrics
    for p, q in zip(learning.actor.parameters(), learning2.actor.parameters(), strict=True):
        assert torch.equal(p, q)


def test_fine_tuning_ends_with_version_1_and_improving_makes_more(spool, task, tmp_path):
    replay, learning = store(task), learner(task, tmp_path)
    fill(replay, spool, task)
    learning.fine_tune(replay.sample_demonstrations(16, 4))
    assert learning.sft_left == 0 and learning.version == 1
    learning.improve(replay.sample(16, 6))
    learning.publish()
    first, second = (load_policy(tmp_path / policy_name(v)) for v in (1, 2))
    assert any(not torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))
    for version, updates in ((1, 0), (2, 6)):
        assert read_info(tmp_path / policy_name(version)) == {"version": version, "updates": updates}


def test_divergence_stops_with_what_to_do(spool, task, tmp_path):
    replay, learning = store(task), learner(task, tmp_path)
    fill(replay, spool, task)
    learning.fine_tune(replay.sample_demonstrations(16, 4))
    batch = replay.sample(16, 1)[0]
    batch["reward"] = np.full_like(batch["reward"], np.nan)
    with pytest.raises(RlinfError, match="training diverged: critic_loss is nan.*resume"):
        learning.improve([batch])


def test_checkpoints_appear_whole_and_old_ones_go(tmp_path):
    for step in range(4):
        checkpoint.save(tmp_path, f"updates-{step}", {"a": {"x": np.float32(step), "y": np.arange(3)}, "n": [step]})
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == ["updates-2", "updates-3"]
    state = checkpoint.load(tmp_path / "updates-3")
    assert state["a"]["x"] == 3.0 and state["a"]["x"].shape == () and state["n"] == [3]
    (tmp_path / "updates-3" / "arrays.safetensors").write_bytes(b"half")
    with pytest.raises(RlinfError, match="Delete this folder to go on from the one before it"):
        checkpoint.load(tmp_path / "updates-3")
