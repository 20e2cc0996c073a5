"""From an inbox into the replay: nothing that lies there stops a trainer, and nothing wrong is learned from."""

import json
import os
import re

import numpy as np
import pytest

from rlinf_core.cluster.arrivals import Arrivals
from rlinf_core.cluster.learner import Learner
from rlinf_core.cluster.replay import ReplayStore
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.spool import Spool
from rlinf_core.episodes.sums import SUMS, seal
from rlinf_core.policies import tanh_gaussian
from rlinf_core.policies.files import load_policy, policy_name
from rlinf_core.trainer.governor import Governor
from tests.cluster.test_trainer_parts import GOVERNOR, fill, learner, store
from tests.messages import record

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "spool")


def arrivals(run_dir, replay):
    run_dir.mkdir(exist_ok=True)
    return Arrivals(run_dir, lambda folders, version: [replay.insert(folder, version) for folder in folders])


def at(topic, number, **fields):
    """A change of one message: attributes to values, or to functions of the message."""
    def change(where, n, message):
        if where == topic and n == number:
            for name, value in fields.items():
                setattr(message, name, value(message) if callable(value) else value)
    return change


def vectors(value):
    def change(where, n, message):
        if where == "timestep" and n == 2:
            message.vectors[0].data = np.full(3, value, np.float32)
    return change


def stamped(message):
    message.header.stamp.sec = 0
    message.header.stamp.nanosec = 0
    return message.header


REFUSED = {
    "nobody commanded": (dict(leave=("applied",)), "nobody commanded the arm"),
    "mixed action sizes": (dict(change=at("applied", 3, requested=np.zeros(2))), r"actions of one size, got \[2, 3\]"),
    "another action size": (dict(change=lambda t, n, m: t == "applied" and (
        setattr(m, "requested", np.zeros(2)), setattr(m, "executed", np.zeros(2)))), "requested actions: expected shape"),
    "too long": (dict(steps=60), "expected 1 to 49 transitions"),
    "NaN observation": (dict(change=vectors(NAN)), "'tcp_position': expected finite values"),
    "Inf observation": (dict(change=vectors(-INF)), "'tcp_position': expected finite values"),
    "absurd observation": (dict(change=vectors(3e38)), "'tcp_position': expected finite values"),
    "NaN action": (dict(change=at("applied", 1, requested=np.array([NAN, 0, 0]))), "requested actions: expected finite"),
    "Inf executed": (dict(change=at("applied", 1, executed=np.array([INF, 0, 0]))), "executed actions: expected finite"),
    "NaN reward": (dict(change=at("timestep", 3, reward=NAN)), "rewards: expected finite"),
    "absurd reward": (dict(change=at("timestep", 3, reward=1e30)), "rewards: expected finite"),
    "NaN discount": (dict(change=at("timestep", 3, discount=NAN)), "discounts: expected values from 0 to 1"),
    "negative discount": (dict(change=at("timestep", 3, discount=-1.0)), "discounts"),
    "large discount": (dict(change=at("timestep", 3, discount=2.0)), "discounts"),
    "time goes back": (dict(change=at("timestep", 3, header=stamped)), "expected stamps that increase"),
    "unknown mode": (dict(mode="attack"), "mode: expected one of demonstration, train, evaluate, got 'attack'"),
    "another id inside": (dict(change=lambda t, n, m: t in ("timestep", "episode") and setattr(m, "episode_id", "b-2")),
                          "expected a recording of that id, got one of b-2"),
    "an observation of another name": (dict(change=lambda t, n, m: t == "timestep" and setattr(m.vectors[0], "name", "x")),
                                       "observations: expected"),
    "an observation of another size": (dict(change=lambda t, n, m: t == "timestep" and setattr(
        m.vectors[0], "data", np.zeros(4, np.float32))), r"expected float32\[6, 3\], got float32\[6, 4\]"),
}


@pytest.mark.parametrize("how, said", REFUSED.values(), ids=REFUSED.keys())
def test_what_may_not_be_learned_from_is_refused_by_name_set_aside_and_logged(spool, task, tmp_path, capsys, how, said):
    replay = ReplayStore(task.spec, 50, GOVERNOR)
    folder = record(spool, task.spec, **how).close()
    run = arrivals(tmp_path / "run", replay)
    run.take([str(folder)], 4)
    (line,) = map(json.loads, (tmp_path / "run/trained_on.jsonl").read_text().splitlines())
    reason = (tmp_path / "run/refused/a-1.reason.txt").read_text()
    assert line["fate"].startswith("refused: episode") and line["fate"] in reason and "a-1" in capsys.readouterr().out
    assert (tmp_path / "run/refused/a-1/a-1.mcap").is_file() and not folder.exists(), "kept, and out of the way"
    assert replay.counts()["refused"] == 1 and not replay.online.inserted and not replay.demonstrations.inserted
    assert re.search(said, reason), reason


@pytest.mark.parametrize("change, said", [
    (lambda m: setattr(m.images[0], "width", 4) or setattr(m.images[0], "height", 16), "'front': expected uint8"),
    (lambda m: m.images.pop(), "observations: expected"),
    (lambda m: setattr(m.images[0].header, "frame_id", "side"), "observations: expected")])
def test_images_must_be_those_of_the_spec(spool, task, change, said):
    spec = task.with_images({"front": (8, 8)}).spec
    folder = record(spool, spec, change=lambda topic, n, m: topic == "timestep" and change(m)).close()
    assert said in ReplayStore(spec, 50, GOVERNOR).insert(folder, 4)


def test_a_damaged_folder_is_refused_whatever_it_raises_and_the_next_one_is_taken(spool, task, tmp_path, monkeypatch):
    replay = store(task)
    folders = [record(spool, task.spec, f"e{number}").close() for number in range(6)]
    (folders[0] / SUMS).unlink()
    (folders[1] / "e1.mcap").write_bytes(b"")
    (folders[2] / "e2.mcap").write_bytes(os.urandom(5000))
    seal(folders[2])
    (folders[3] / "e3.mcap").unlink()
    seal(folders[3])
    monkeypatch.setattr("rlinf_core.cluster.replay.read_episode", lambda folder, sealed: (
        read_episode(folder, sealed) if folder.name != "e4" else exec("raise MemoryError('of another kind')")))
    arrivals(tmp_path / "run", replay).take([*map(str, folders), str(tmp_path / "absent")], 4)
    fates = [json.loads(line)["fate"] for line in (tmp_path / "run/trained_on.jsonl").read_text().splitlines()]
    assert [fate.split(":")[0] for fate in fates] == ["refused"] * 5 + ["online"] + ["refused"]
    assert "MemoryError: of another kind" in fates[4] and replay.counts()["refused"] == 6
    assert sorted(path.name for path in (tmp_path / "run/refused").glob("*/")) == [f"e{n}" for n in range(5)]


def test_a_refusal_changes_nothing_of_what_was_learned_from(spool, task):
    """An operator's correction goes to two buffers; it must fit both before it goes to either."""
    replay = ReplayStore(task.spec, 60_000, Governor(updates_per_step=1, max_lag_episodes=1, max_staleness=1,
                                                     steps_per_episode=1))
    assert replay.longest == 49_999
    replay.demonstrations.capacity = 4
    fate = replay.insert(record(spool, task.spec, sources={1: "operator"}).close(), 4)
    assert fate.startswith("refused") and replay.online.inserted == replay.counts()["counted"] == 0


def test_half_of_a_batch_is_online_and_half_demonstrations(spool, task):
    replay = store(task)
    replay.insert(record(spool, task.spec, "d", mode="demonstration", start=1000.0).close(), 0)
    replay.insert(record(spool, task.spec, "o").close(), 4)
    for size in (16, 17):
        (batch,) = replay.sample(size, 1)
        first = batch["vectors"][:, 0]
        assert (first[:size - size // 2] < 1000).all() and (first[size - size // 2:] >= 1000).all() and len(first) == size


def test_versions_never_go_back_after_a_crash(spool, task, tmp_path):
    """Stations take only newer policies: one published after the last checkpoint counts."""
    replay, learning = store(task), learner(task, tmp_path)
    fill(replay, spool, task)
    learning.fine_tune(replay.sample_demonstrations(16, 4))
    state = learning.state_dict()
    learning.publish()
    again = learner(task, tmp_path)
    again.load_state_dict(state)
    assert again.publish().name == policy_name(3)
    newer = Learner(task.spec, tanh_gaussian.Config(hidden=(32,)), again.warm_start, again.algorithm_config,
                    tmp_path / "elsewhere")
    newer.load_state_dict({**state, "version": 7})
    assert newer.version == 7


def test_what_is_published_is_normalised_by_the_demonstrations(spool, task, tmp_path):
    replay, learning = store(task), learner(task, tmp_path)
    fill(replay, spool, task)
    learning.fit_normalisation(replay.demonstration_vectors())
    learning.fine_tune(replay.sample_demonstrations(16, 4))
    encoder = load_policy(tmp_path / policy_name(1)).encoder
    seen = replay.demonstration_vectors()
    assert np.allclose(encoder.mean.numpy(), seen.mean(axis=0))
    assert np.allclose(encoder.std.numpy(), seen.std(axis=0), atol=1e-3)


def test_what_a_recording_says_of_itself_does_nothing_to_a_terminal_or_a_log(spool, task, tmp_path, capsys):
    replay = store(task)
    modes = {"a": "\x1b[2J\nfake line", "b": "x" * 9999}
    folders = [record(spool, task.spec, name, mode=mode).close() for name, mode in modes.items()]
    arrivals(tmp_path / "run", replay).take([str(folder) for folder in folders], 4)
    said = capsys.readouterr().out
    assert said.count("\n") == 2 and "\x1b" not in said and len(said) < 5000
