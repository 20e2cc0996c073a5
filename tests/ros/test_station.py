"""The whole loop on the real middleware, in real processes; and what happens when each of them is killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from rlinf_msgs.msg import PolicyUpdate
from rosbags.highlevel import AnyReader

from rlinf.qos import profile
from rlinf_core.cli.demo import prepare
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.messages import typestore
from rlinf_core.errors import RlinfError
from rlinf_core.launching.graph import RESPAWN, director_process, station_processes
from rlinf_core.launching.supervisor import Supervisor
from rlinf_core.policies.files import newest_policy
from rlinf_core.recipes import load_recipe

pytestmark = [pytest.mark.ros, pytest.mark.timeout(600)]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Run:
    """A tiny demo under a supervisor, as ``rlinf demo`` runs it."""

    def __init__(self, folder, *overrides, domain, trains=True):
        self.folder, self.trains = folder, trains
        self.recipe = load_recipe("demo_tiny", [f"bridge.port={free_port()}", f"station.domain_id={domain}",
                                                *overrides])
        prepare(self.recipe, folder)
        self.supervisor = Supervisor(folder, domain)

    def __enter__(self):
        if self.trains:
            self.supervisor.run("trainer", [sys.executable, "-m", "rlinf_core.cli.main", "train",
                                            str(self.folder / "recipe.yaml"), "--out", str(self.folder)], RESPAWN)
        for process in station_processes(self.recipe, self.folder):
            self.supervisor.start(process)
        self.director = self.supervisor.start(director_process(self.recipe, self.folder))
        return self

    def __exit__(self, *error):
        self.supervisor.stop()
        if error[0] is not None:
            for log in sorted((self.folder / "logs").iterdir()):
                print(f"--- {log.name}\n{log.read_text()[-1500:]}")

    def events(self, kind=None):
        try:
            lines = (self.folder / "progress.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [event for line in lines if (event := json.loads(line)) and kind in (None, event["event"])]

    def wait(self, ready, timeout_s, what):
        deadline = time.time() + timeout_s
        while not ready():
            self.supervisor.poll()
            assert time.time() < deadline, f"waited {timeout_s} s for {what}; last: {self.events()[-3:]}"
            time.sleep(0.1)

    def finish(self, timeout_s=240):
        self.wait(lambda: self.director.popen.poll() is not None, timeout_s, "the director to finish")
        assert self.director.popen.returncode == 0, self.events()[-3:]
        self.wait(lambda: not list((self.folder / "spool/closed").iterdir()), 30, "the uplink to send the rest")
        self.wait(lambda: self.statuses().keys() == self.sent(), 30, "the trainer to take the rest")

    def kill(self, name):
        os.kill(self.supervisor.children[name].popen.pid, signal.SIGKILL)

    def sent(self):
        return {path.name for path in (self.folder / "spool/sent").iterdir()}

    def statuses(self):
        log = self.folder / "journal.jsonl"
        statuses = {}
        for line in log.read_text().splitlines():
            entry = json.loads(line)
            if entry["status"] not in ("duplicate", "arrived"):
                statuses[entry["id"]] = entry["status"]
        return statuses


def online(run):
    return [event for event in run.events("episode") if event["mode"] == "train"]


def check_nothing_lost(run):
    """Every episode that the recorder closed is in the inbox, readable, and in the trainer's buffers once."""
    closed = [event["id"] for event in run.events("episode")]
    assert len(closed) == len(set(closed)) and set(closed) <= run.sent()
    statuses = run.statuses()
    assert statuses.keys() == run.sent()
    assert all(not status.startswith("refused") for status in statuses.values()), statuses
    for episode_id in run.sent():
        episode = read_episode(run.folder / "inbox" / episode_id)
        assert len(episode.limits_hash) == 12 and len(episode) >= 1
    from rlinf_core.trainer import checkpoint

    state = checkpoint.load(checkpoint.checkpoints(run.folder / "checkpoints")[-1])
    ids, data = [episode_id for episode_id, _ in state["intake"]["ids"]], state["data"]
    assert len(ids) == len(set(ids))
    demonstrations = sum(status == "demonstration" for _, status in state["intake"]["ids"])
    imitated = sum(read_episode(run.folder / "inbox" / episode_id).success
                   for episode_id, status in state["intake"]["ids"] if status == "online")
    assert data["imitated"]["episodes"] == imitated
    online_ = sum(status in ("online", "stale") for _, status in state["intake"]["ids"])
    assert (data["demonstrations"]["episodes"], data["online"]["episodes"]) == (demonstrations, online_)


def test_the_loop_runs_from_demonstrations_to_an_improved_policy(tmp_path):
    with Run(tmp_path, domain=81) as run:
        run.finish()
        versions = [event["version"] for event in run.events("policy") if event["version"] > 0]
        result = run.events("result")[0]
    assert versions == sorted(versions) and versions[-1] >= 2
    assert result["updates"] > 100 and result["env_steps"] >= 400
    assert result["ended"] == f"{result['env_steps']} time steps were played (online.max_env_steps)"
    check_nothing_lost(run)
    demonstrations = [event for event in run.events("episode") if event["mode"] == "demonstration"]
    episode = read_episode(tmp_path / "inbox" / demonstrations[0]["id"])
    assert set(episode.sources) == {"operator"} and episode.policy_version == -1
    trained = read_episode(tmp_path / "inbox" / online(run)[-1]["id"])
    assert set(trained.sources) == {"policy"} and trained.policy_version >= 1
    dt = {round(float(b - a)) for a, b in zip(trained.stamps_ns, trained.stamps_ns[1:], strict=False)}
    assert dt == {100_000_000}, "lockstep: every step is exactly one period"
    assert not [event for event in run.supervisor.events if "started again" in event]


def test_the_same_station_runs_in_real_time_with_cameras(tmp_path):
    """Real time is what a robot has: fixed-rate timers, images that come when they come, a policy from pixels."""
    with Run(tmp_path, "station.lockstep=false", "station.observe_cameras=[front, wrist]", "station.image_size=[32, 32]",
             "collect.episodes=1", "sft.steps=20", "online.max_env_steps=60", "online.min_transitions=40",
             "online.updates_per_step=0.1", "online.slice_episodes=1", "evaluate.episodes=1", domain=89) as run:
        run.finish()
        result = run.events("result")[0]
    assert result["env_steps"] >= 60
    check_nothing_lost(run)
    episode = read_episode(tmp_path / "inbox" / run.events("episode")[0]["id"])
    assert episode.observations["front"].shape[1:] == (32, 32, 3)
    assert episode.success and episode.sources.count("operator") > 0.8 * len(episode), "'' where the arm was held"
    periods = np.diff(np.array(episode.stamps_ns, dtype=np.int64)) / 1e9
    assert np.median(periods) == pytest.approx(0.1, abs=0.02), "fixed rate; single steps may be late on a busy machine"


@pytest.mark.domain(70)
def test_an_evaluation_is_of_one_version_whatever_arrives_and_dies_on_the_way(tmp_path, peer):
    """Newer weights wait; a policy that dies takes its episode along, and comes back with the newest: all over again."""
    updates = peer.node.create_publisher(PolicyUpdate, "policy/update", profile("policy/update"))

    def evaluated(run):
        return [event for event in run.events("episode") if event["mode"] == "evaluate"]

    with Run(tmp_path, "evaluate.episodes=6", "online.max_minutes=0.02", domain=70) as run:
        run.wait(lambda: len(evaluated(run)) >= 2, 150, "the evaluation")
        newest = PolicyUpdate(version=1000, path=str(newest_policy(tmp_path / "policies_at_station")))
        updates.publish(newest)
        run.wait(lambda: len(evaluated(run)) >= 4, 60, "two more")
        uplink = run.supervisor.children["uplink"].popen
        uplink.send_signal(signal.SIGSTOP)  # or it would announce the older version to the new process
        run.kill("policy")
        run.wait(lambda: updates.publish(newest) or evaluated(run)[-1]["policy_version"] == 1000, 90, "the new process")
        uplink.send_signal(signal.SIGCONT)
        run.wait(lambda: run.events("evaluation"), 120, "its end")
        run.wait(lambda: run.events("result"), 150, "the end")
    assert run.events("result")[0]["ended"] == "0.02 minutes were over (online.max_minutes)"
    before = run.events("evaluation")[0]
    first, again = evaluated(run)[:6], evaluated(run)[6:12]
    assert {event["policy_version"] for event in first[:4]} == {1}, "held while it was alive"
    assert {event["policy_version"] for event in first[4:]} == {1000}
    assert "got 1, 1000" in run.events("warning")[0]["detail"]
    assert {event["policy_version"] for event in again} == {before["policy_version"]}
    assert [event["id"] for event in again] == before["episode_ids"]
    aborted = [event["detail"] for event in run.events("aborted")]
    assert any("the policy was started again within the episode" in detail for detail in aborted)
    kept = [folder for name in ("closed", "sent") for folder in (tmp_path / "spool" / name).iterdir()]
    assert len(kept) > 16 and all(len(versions(folder)) <= 1 for folder in kept), "none has two"


def versions(folder):
    """Of the policy, in the actions of a recorded episode."""
    with AnyReader([folder], default_typestore=typestore()) as reader:
        of = [connection for connection in reader.connections if connection.topic.endswith("/applied")]
        messages = [reader.deserialize(raw, connection.msgtype) for connection, _, raw in reader.messages(of)]
    return {message.policy_version for message in messages if message.source == "policy"}


def test_s18_killed_nodes_come_back_and_nothing_closed_is_lost(tmp_path, evidence):
    """SIGKILL policy, recorder, uplink, operator, environment and trainer in turn, all in one online phase."""
    with Run(tmp_path, "online.max_env_steps=1200", "online.max_minutes=6", "online.updates_per_step=0.5",
             "checkpoint.every_minutes=0.1", domain=82) as run:
        run.wait(lambda: len(online(run)) >= 2, 150, "the online phase")
        for name in ("policy", "recorder", "uplink", "operator", "environment", "trainer"):
            before = len(online(run))
            run.kill(name)
            run.wait(lambda: len(online(run)) >= before + 2, 90, f"episodes after {name} was killed")  # noqa: B023
        run.finish()
        restarted = [event for event in run.supervisor.events if "SIGKILL" in event]
    assert len(restarted) == 6, restarted
    check_nothing_lost(run)
    evidence("S18", f"{len(restarted)} of 6 killed processes came back, every closed episode kept", "6")


@pytest.mark.parametrize("name, domain", [("interlock", 83), ("sim_bridge", 84)])
def test_s18_the_death_of_interlock_or_robot_side_ends_the_station_with_a_clear_message(tmp_path, name, domain, evidence):
    with Run(tmp_path, domain=domain) as run:
        run.wait(lambda: len(run.events("episode")) >= 1, 60, "the first episode")
        run.kill(name)
        with pytest.raises(RlinfError, match=f"{name} ended \\(killed by SIGKILL\\), and the station cannot go on"):
            run.wait(lambda: False, 20, "the supervisor to notice")
        children = [child.popen for child in run.supervisor.children.values()]
    assert all(child.poll() is not None for child in children), "nobody is left behind"
    evidence("S18", f"{name} killed: {len(children)} processes ended, 0 left", "0 left")


def test_station_trainer_and_director_are_started_apart_as_on_a_robot(tmp_path):
    """``rlinf train``, ``rlinf up`` and ``rlinf direct`` in three terminals, the trainer last."""
    settings = ["--set", f"bridge.port={free_port()}", "station.domain_id=79", "collect.episodes=2", "sft.steps=50",
                "online.max_env_steps=120", "evaluate.episodes=2"]
    logs = {}

    def terminal(name, *arguments):
        logs[name] = tmp_path / f"{name}.txt"
        with open(logs[name], "w") as log:
            return subprocess.Popen([sys.executable, "-m", "rlinf_core.cli.main", name, "demo_tiny", *settings, *arguments],
                                    stdout=log, stderr=log)

    station = terminal("up", "--out", str(tmp_path / "run"))
    director = terminal("direct", "--quiet", "--out", str(tmp_path / "run"))
    trainer = terminal("train", "--out", str(tmp_path / "trainer"))
    try:
        assert director.wait(200) == 0, [log.read_text()[-1500:] for log in logs.values()]
    finally:
        for process in (director, station, trainer):
            process.terminate()
        ended = [process.wait(30) for process in (station, trainer)]
    assert ended == [0, 0], "asked to end, both end in order"
    assert json.loads((tmp_path / "run/report.json").read_text())["eval_episodes"] == 2
    assert "is up: sim_bridge, interlock" in logs["up"].read_text()
