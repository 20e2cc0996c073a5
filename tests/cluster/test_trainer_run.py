"""One trainer in this process, with real Ray beside it: what it tells stations, publishes, keeps and goes on from."""

import json
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlinf_core.algorithms import rlpd, sft
from rlinf_core.bridge.client import BridgeClient
from rlinf_core.cluster import train as module
from rlinf_core.cluster.train import Ingest, Trainer, _RemoteLearner
from rlinf_core.episodes.spool import Spool
from rlinf_core.errors import BridgeError, RlinfError
from rlinf_core.policies import make_policy, tanh_gaussian
from rlinf_core.policies.files import policy_name, save_policy
from rlinf_core.recipes import load_recipe
from rlinf_core.recipes.schema import Checkpoint
from rlinf_core.trainer import checkpoint
from tests.messages import record

SMALL = ("collect.episodes=2", "sft.steps=60", "sft.batch_size=8", "policy.hidden=[8]", "replay.capacity=60", "seed=5",
         "online.min_transitions=5", "online.updates_per_step=7", "online.publish_every_updates=10",
         "online.max_staleness=0", "online.max_lag_episodes=0.01", "algorithm.critic_hidden=[8]",
         "algorithm.batch_size=8", "algorithm.critics=2", "algorithm.critic_warmup=3", "checkpoint.every_minutes=100")


class Station:
    """A thread beside the trainer's loop: it uploads, listens, and ends the run; what it heard is kept."""

    def __init__(self, trainer, recipe, spool, act):
        self.trainer, self.spool, self.act = trainer, spool, act
        self.client, self.heard, self.error = BridgeClient(recipe.bridge.address, "a"), [], None
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            self.act(self)
        except BaseException as error:
            self.error = error
        finally:
            self.trainer.stopping = True

    def wait(self, until, seconds=60.0):
        """Until a report is as wanted; returns it."""
        end = time.monotonic() + seconds
        while True:
            try:
                report = self.client.report(0, 0)
                if not self.heard or report != self.heard[-1]:
                    self.heard.append(report)
                if until(report):
                    return report
            except BridgeError:
                pass
            assert time.monotonic() < end, f"heard: {self.heard[-3:]}"
            time.sleep(0.02)

    def send(self, name, **how):
        self.client.upload(record(self.spool, self.trainer.task.spec, name, **how).close())

    def beside(self):
        """Run the trainer's loop in this thread until the station is through."""
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self.thread.start()
        try:
            self.trainer.run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self.thread.join()
            self.client.close()
        if self.error:
            raise self.error
        return self


@pytest.fixture
def recipe():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return load_recipe("demo", [*SMALL, f"bridge.port={probe.getsockname()[1]}"])


def phases(station):
    return list(dict.fromkeys(report.phase for report in station.heard))


def scalars(run_dir, name):
    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


@pytest.mark.timeout(240)
def test_a_run_from_the_first_demonstration_to_the_second_life(tmp_path, recipe):
    spool, run_dir = Spool(tmp_path / "spool"), tmp_path / "run"
    run_dir.mkdir()

    def first_life(station):
        report = station.wait(lambda r: "sft_left" in r.metrics)
        assert report.phase == "waiting" and report.accepting
        assert (report.episodes, report.updates, report.policy_version) == (0, 0, 0)
        assert list(Path(station.trainer.temporary).glob("session_*")), "Ray keeps its files where they are cleared away"
        assert report.metrics["sft_left"] == 60 and report.metrics["demonstrations"] == report.metrics["stale"] == 0
        station.send("first", mode="demonstration", start=7.0)
        station.send("failed", mode="demonstration", success=False)
        report = station.wait(lambda r: r.episodes == 2)
        assert report.phase == "waiting" and report.metrics["demonstrations"] == 1 and not report.metrics["sft_left"] < 60
        station.send("second", mode="demonstration")
        report = station.wait(lambda r: r.policy_version == 1)
        assert report.phase == "online" and report.metrics["sft_left"] == 0 and report.updates == 0
        assert report.metrics["sft_loss"] != 0 and report.update_ratio == 0 and report.transitions == 0
        version, file, _ = station.client.next_policy(0, tmp_path / "policies")
        assert version == 1 and file.exists()
        station.send("online", start=3.0)
        station.send("held-out", mode="evaluate")
        report = station.wait(lambda r: r.updates == 35)
        assert (report.transitions, report.episodes, report.update_ratio) == (5, 5, 7.0) and report.accepting
        assert report.metrics["evaluations"] == 1 and report.metrics["refused"] == report.metrics["stale"] == 0
        assert report.policy_version == 1 + 2, "published once in each group of 16 in which ten more were through"
        station.wait(lambda r: len(checkpoint.checkpoints(run_dir / "checkpoints")) == 1)
        time.sleep(0.5)
        assert station.client.report(0, 0).updates == 35, "no more than is owed"

    station = Station(Trainer(recipe, run_dir), recipe, spool, first_life).beside()
    assert phases(station)[0] == "waiting" and phases(station)[-1] == "online"
    (_, newest) = [path.name for path in checkpoint.checkpoints(run_dir / "checkpoints")]
    assert newest == "updates-000000035"
    assert [json.loads(line)["fate"] for line in (run_dir / "trained_on.jsonl").read_text().splitlines()] == [
        "demonstration", "failed demonstration", "demonstration", "online", "evaluation"]
    steps, ratios = zip(*scalars(run_dir, "train/update_ratio"), strict=True)
    assert (steps[-1], ratios[-1]) == (35, 7.0)
    assert scalars(run_dir, "train/sft_loss") and {step for step, _ in scalars(run_dir, "train/critic_loss")} >= {35}
    assert not station.trainer.ray.is_initialized() and not (tmp_path / station.trainer.temporary).exists()

    def second_life(station):
        report = station.wait(lambda r: r.phase == "online")
        assert (report.updates, report.transitions, report.episodes) == (35, 5, 5), "nothing is learned from twice"
        assert report.metrics["evaluations"] == 1 and report.metrics["demonstrations"] == 2 and report.policy_version == 3
        station.send("more", steps=6)  # of policy version 4
        report = station.wait(lambda r: r.updates == 77)
        assert report.transitions == 11 and report.metrics["stale"] == 0 and report.policy_version == 6
        station.send("late")  # of version 4 too
        report = station.wait(lambda r: r.episodes == 7)
        assert report.transitions == 11 and report.metrics["stale"] == 1
        station.wait(lambda r: checkpoint.checkpoints(run_dir / "checkpoints")[-1].name == "updates-000000077")

    recipe = recipe.but(checkpoint=Checkpoint(every_minutes=0.01))
    Station(Trainer(recipe, run_dir), recipe, spool, second_life).beside()


def test_ingest_hands_over_what_arrived_and_tells_what_it_was_told(task, tmp_path):
    ingest = Ingest("127.0.0.1:0", str(tmp_path / "run"))
    client = BridgeClient(f"127.0.0.1:{ingest.port()}", "a")
    try:
        assert (client.report(0, 0).phase, client.report(0, 0).accepting) == ("waiting", True)
        client.upload(record(Spool(tmp_path / "spool"), task.spec, "one").close())
        folder = str(tmp_path / "run/inbox/one")
        assert ingest.exchange({"phase": "online", "updates": 3}) == [folder] and ingest.exchange(ingest.report) == []
        assert (client.report(0, 0).phase, client.report(0, 0).updates) == ("online", 3)
        policy = make_policy(task.spec, tanh_gaussian.Config(hidden=(8,)))
        save_policy(policy, tmp_path / "run/policies" / policy_name(2), version=2)
        assert client.next_policy(1, tmp_path / "station")[0] == 2
    finally:
        client.close()
        ingest.server.stop()
    again = Ingest("127.0.0.1:0", str(tmp_path / "run"))
    assert again.known() == [folder]
    again.server.stop()


def test_the_learner_tells_its_phase(task, tmp_path):
    learner = _RemoteLearner(task.spec, tanh_gaussian.Config(hidden=(8,)), sft.Config(steps=2),
                             rlpd.Config(critic_hidden=(8,)), tmp_path)
    before = learner.status()
    assert (before["phase"], before["sft_left"], before["sft_steps"], before["version"]) == ("sft", 2, 0, 0)
    learner.begin_online()
    assert (learner.status()["phase"], learner.status()["sft_left"], learner.status()["updates"]) == ("online", 0, 0)


def test_what_stations_cannot_feed_is_refused_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "start_ray", lambda *_, **__: pytest.fail("Ray was started"))
    with pytest.raises(RlinfError, match="on what stations send, the trainer learns by rlpd, and the recipe says sac"):
        Trainer(load_recipe("demo", ["algorithm.name=sac"]), tmp_path)
