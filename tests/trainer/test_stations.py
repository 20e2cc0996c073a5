"""A run that stations feed, with the real bridge: what it tells them, publishes, keeps and goes on
from.
"""

import json
import threading
import time
import urllib.request

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlinf_core.core.errors import BridgeError
from rlinf_core.deploy.bridge.client import BridgeClient
from rlinf_core.episodes.spool import Spool
from rlinf_core.policies import make_policy
from rlinf_core.policies.policy_folder import policy_files, policy_name, policy_version
from rlinf_core.policies.serialization import save_policy
from rlinf_core.policies.small import tanh_gaussian
from rlinf_core.recipes import load_recipe
from rlinf_core.recipes.schema import Checkpoint
from rlinf_core.rollouts.types import Trajectory
from rlinf_core.trainer import checkpoint
from rlinf_core.trainer.sources.recordings import Intake
from rlinf_core.trainer.sources.stations import Stations
from rlinf_core.trainer.train import train
from tests.messages import record
from tests.ports import free_port

pytestmark = pytest.mark.timed

# longer than any machine has been up
SMALL = (
    "collect.episodes=2",
    "sft.steps=60",
    "sft.batch_size=8",
    "policy.hidden=[8]",
    "replay.capacity=60",
    "seed=5",
    "online.min_transitions=0",
    "online.updates_per_step=7",
    "online.publish_every_updates=10",
    "online.max_staleness=0",
    "online.max_lag_episodes=0.01",
    "algorithm.critic_hidden=[8]",
    "algorithm.batch_size=8",
    "algorithm.critics=2",
    "algorithm.critic_warmup=3",
    "checkpoint.every_minutes=1000000",
)


class Station:
    """A thread beside the run's loop: it uploads, listens, and ends the run; what it heard
    is kept.
    """

    def __init__(self, recipe, task, folder, act):
        self.recipe, self.spec, self.folder, self.act = recipe, task.spec, folder, act
        self.spool, self.run = Spool(folder / "spool"), None
        tokens = [path / "run/bridge.token" for path in (folder, folder.parent)]
        self.client = BridgeClient(recipe.bridge.address, "a", tokens=tokens)
        self.reports = []
        self.error = None

    def _act(self):
        try:
            self.act(self)
        except BaseException as error:
            self.error = error
        finally:
            self.run.stopping = True

    def wait(self, until, seconds=60.0):
        """Wait until a report meets a condition, and return it."""
        end = time.monotonic() + seconds
        while True:
            try:
                report = self.client.report(0, 0)
                if not self.reports or report != self.reports[-1]:
                    self.reports.append(report)
                if until(report):
                    return report
            except BridgeError:
                pass
            assert time.monotonic() < end, f"heard: {self.reports[-3:]}"
            time.sleep(0.02)

    def send(self, name, **how):
        self.client.upload(record(self.spool, self.spec, name, **how).close())

    def feed(self, run_dir):
        """Run the loop in this thread until the station is through."""
        thread = threading.Thread(target=self._act)

        def on_progress(run, entry):
            if self.run is None:
                self.run = run
                thread.start()

        train(self.recipe, run_dir, on_progress=on_progress)
        thread.join()
        self.client.close()
        if self.error:
            raise self.error
        return self


@pytest.fixture
def port():
    return f"bridge.port={free_port()}"


def scalars(run_dir, name):
    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


@pytest.mark.timeout(240)
def test_a_run_from_the_first_demonstration_to_the_second_life(task, tmp_path, port):
    metrics, run_dir = free_port(), tmp_path / "run"
    recipe = load_recipe("demo", [*SMALL, port, f"bridge.metrics_port={metrics}"])

    def first_life(station):
        report = station.wait(lambda r: "sft_left" in r.metrics)
        assert report.phase == "waiting" and report.accepting
        assert (report.episodes, report.updates, report.policy_version) == (0, 0, 0)
        assert (
            report.metrics["sft_left"] == 60
            and report.metrics["demonstrations"] == report.metrics["stale"] == 0
        )
        station.send("first", mode="demonstration", start=7.0)
        station.send("failed", mode="demonstration", success=False)
        report = station.wait(lambda r: r.episodes == 2)
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=20) as page:
            metrics_text = page.read().decode()
        assert (
            "rlinf_trainer_episodes 2.0" in metrics_text
            and 'rlinf_station_up{station="a"} 1.0' in metrics_text
        )
        assert (
            report.phase == "waiting"
            and report.metrics["demonstrations"] == 1
            and not report.metrics["sft_left"] < 60
        )
        station.send("second", mode="demonstration")
        report = station.wait(lambda r: r.policy_version == 1)
        assert report.phase == "online" and report.metrics["sft_left"] == 0 and report.updates == 0
        assert (
            report.metrics["sft_loss"] != 0 and report.update_ratio == 0 and report.transitions == 0
        )
        version, file, _ = station.client.next_policy(0, tmp_path / "policies")
        assert version == 1 and file.exists()
        station.wait(lambda r: len(checkpoint.checkpoints(run_dir / "checkpoints")) == 1)
        station.send("online", start=3.0)
        station.send("held_out", mode="evaluate")
        report = station.wait(lambda r: r.updates == 35 and r.metrics["evaluations"] == 1)
        assert (report.transitions, report.episodes, report.update_ratio) == (
            5,
            5,
            7.0,
        ) and report.accepting
        assert report.metrics["refused"] == report.metrics["stale"] == 0
        assert report.metrics["a/episodes"] == 5 and report.metrics["a/steps"] == 5
        assert report.metrics["a/sampled"] == 60 * 8 + 35 * 8, (
            "all that was learned from came from this station"
        )
        assert report.policy_version == 1 + 2, (
            "published once in each group of 16 in which ten more were through"
        )
        time.sleep(0.5)
        assert station.client.report(0, 0).updates == 35, "no more than is owed"

    station = Station(recipe, task, tmp_path, first_life).feed(run_dir)
    assert list(dict.fromkeys(report.phase for report in station.reports))[-1] == "online"
    (_, newest) = checkpoint.checkpoints(run_dir / "checkpoints")
    assert newest.name == "00000002-updates-000000095"
    lines = list(map(json.loads, (run_dir / "journal.jsonl").read_text().splitlines()))
    arrived = [line["id"] for line in lines if line["status"] == "arrived"]
    assert arrived == ["first", "failed", "second", "online", "held_out"]
    assert [line["status"] for line in lines if line["status"] != "arrived"] == [
        "demonstration",
        "failed demonstration",
        "demonstration",
        "online",
        "evaluation",
    ]
    assert scalars(run_dir, "train/sft_loss") and scalars(run_dir, "data/demonstrations")

    save_policy(
        make_policy(task.spec, tanh_gaussian.Config(hidden=(8,))),
        run_dir / "policies" / policy_name(4),
    )

    def second_life(station):
        report = station.wait(lambda r: r.phase == "online")
        assert (report.updates, report.transitions, report.episodes) == (35, 5, 5), (
            "nothing is learned from twice"
        )
        assert (
            report.metrics["evaluations"] == 1
            and report.metrics["demonstrations"] == 2
            and report.policy_version == 4
        )
        station.send("more", steps=6)  # of policy version 4
        report = station.wait(lambda r: r.updates == 77)
        assert (
            report.transitions == 11 and report.metrics["stale"] == 0 and report.policy_version > 4
        )
        station.send("late")  # of version 4 too
        report = station.wait(lambda r: r.episodes == 7)
        assert report.transitions == 11 and report.metrics["stale"] == 1
        station.wait(
            lambda r: checkpoint.checkpoints(run_dir / "checkpoints")[-1].name.endswith(
                "-updates-000000137"
            )
        )

    Station(
        recipe.but(checkpoint=Checkpoint(every_minutes=0.01)), task, tmp_path, second_life
    ).feed(run_dir)


@pytest.mark.timeout(240)
def test_two_stations_feed_one_run_and_each_is_counted(task, tmp_path, port):
    recipe, run_dir = load_recipe("demo", [*SMALL, port]), tmp_path / "run"

    def of(name):
        def change(topic, number, message):
            if topic == "episode":
                message.station = name

        return change

    def act(station):
        other = BridgeClient(recipe.bridge.address, "b", tokens=[tmp_path / "run/bridge.token"])
        spool = Spool(tmp_path / "spool_b")
        station.wait(lambda r: "sft_left" in r.metrics)
        station.send("a-1", mode="demonstration")
        assert station.wait(lambda r: r.episodes == 1).phase == "waiting"
        other.upload(
            record(spool, station.spec, "b-1", mode="demonstration", change=of("b")).close()
        )
        station.wait(lambda r: r.policy_version == 1)
        for number in (2, 3):
            other.upload(
                record(
                    spool, station.spec, f"b-{number}", steps=9, start=3.0, change=of("b")
                ).close()
            )
        station.send("a-2")
        metrics = dict(station.wait(lambda r: r.transitions == 23 and r.updates == 161).metrics)
        assert not any(name.startswith("b/") for name in metrics), "each hears of itself"
        metrics |= dict(other.report(7, 3, set_aside=2, spool_full=0.5).metrics)
        assert (metrics["a/episodes"], metrics["a/steps"]) == (2, 5)
        assert (metrics["b/episodes"], metrics["b/steps"]) == (3, 18)
        assert metrics["a/sampled"] + metrics["b/sampled"] == (60 + 161) * 8
        wanted = {"b/backlog": 7, "b/policy_version": 3, "b/set_aside": 2, "b/spool_full": 0.5}
        end = time.monotonic() + 20
        while (
            not wanted.items()
            <= dict(other.report(7, 3, set_aside=2, spool_full=0.5).metrics).items()
        ):
            assert time.monotonic() < end
            time.sleep(0.05)
        assert metrics["a/sampled"] > 300 and metrics["b/sampled"] > 400
        assert (
            other.next_policy(0, tmp_path / "policies_b")[0]
            == station.client.next_policy(0, tmp_path / "policies_a")[0]
        )
        other.close()

    Station(recipe, task, tmp_path, act).feed(run_dir)
    assert scalars(run_dir, "data/b/steps")[-1][1] == 18


def test_the_bridge_hands_over_what_arrived_and_tells_what_it_was_told(task, tmp_path):
    taken: list[Trajectory] = []
    (tmp_path / "run").mkdir()
    stations = Stations(
        "127.0.0.1:0", tmp_path / "run", Intake(tmp_path / "run", task.spec, 100), taken.append
    )
    client = BridgeClient(f"127.0.0.1:{stations.server.port}", "a")
    try:
        assert (client.report(0, 0).phase, client.report(0, 0).accepting) == ("waiting", True)
        client.upload(record(Spool(tmp_path / "spool"), task.spec, "one").close())
        stations.take(0, {})
        stations.report = {"phase": "online", "updates": 3}
        assert [episode.id for episode in taken] == ["one"]
        assert (client.report(0, 0).phase, client.report(0, 0).updates) == ("online", 3)
        policy = make_policy(task.spec, tanh_gaussian.Config(hidden=(8,)))
        save_policy(policy, tmp_path / "run/policies" / policy_name(2), version=2)
        assert client.next_policy(1, tmp_path / "station")[0] == 2
        for version in range(3, 7):
            save_policy(policy, tmp_path / "run/policies" / policy_name(version), version=version)
        stations.policies_gb = 1e-9
        stations.releases.record.pins = {"b": 4}
        assert client.next_policy(2, tmp_path / "station")[0] == 6
        stations.take(0, {})
        left = [policy_version(path) for path in policy_files(tmp_path / "run/policies")]
        assert left == [2, 4, 6], "the first, that of a station, and the newest"
    finally:
        client.close()
        stations.close()
    again = Stations(
        "127.0.0.1:0", tmp_path / "run", Intake(tmp_path / "run", task.spec, 100), taken.append
    )
    again.take(0, {})
    again.close()
    assert [episode.id for episode in taken] == ["one", "one"], "the inbox is the truth"


def test_a_turn_takes_eight_episodes_and_reads_four_turns_ahead(task, tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    intake = Intake(tmp_path / "run", task.spec, 100)
    ahead, taken = [], []
    monkeypatch.setattr(intake, "prefetch", lambda folders: ahead.append([f.name for f in folders]))
    monkeypatch.setattr(
        intake, "take", lambda folder, insert: taken.append(folder.name) or "online"
    )
    stations = Stations("127.0.0.1:0", tmp_path / "run", intake, print)
    try:
        stations.arrived.extend(tmp_path / str(number) for number in range(40))
        stations.take(0, {})
        assert taken == [str(number) for number in range(8)]
        assert ahead == [[], [str(number) for number in range(32)]]
        stations.take(0, {})
        assert taken[8:] == [str(number) for number in range(8, 16)] and len(ahead[3]) == 32
    finally:
        stations.close()
