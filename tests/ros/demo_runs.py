"""A tiny demo of real processes, and checks of its folder at the end."""

import json
import os
import signal
import time

from rlinf_core.cli.demo import check_and_write
from rlinf_core.episodes import read_episode
from rlinf_core.launch.graph import compose, director_process, station_processes, trainer_process
from rlinf_core.recipes import load_recipe
from tests.ports import free_port
from tests.ros.fork_server import ForkingSupervisor


class Run:
    """A tiny demo under a supervisor, as ``rlinf demo`` runs it, with a task of short episodes."""

    def __init__(self, folder, *overrides, domain, trains=True, supervisor=ForkingSupervisor):
        self.folder, self.trains = folder, trains
        self.recipe = load_recipe(
            "demo_tiny",
            [
                f"bridge.port={free_port()}",
                f"station.domain_id={domain}",
                "station.task=reach",
                *overrides,
            ],
        )
        check_and_write(self.recipe, folder)
        self.supervisor = supervisor(folder, domain)

    def __enter__(self):
        if self.trains:
            self.supervisor.start(trainer_process(self.folder))
        for process in compose(self.recipe, station_processes(self.recipe, self.folder)):
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
        return [
            event
            for line in lines
            if (event := json.loads(line)) and kind in (None, event["event"])
        ]

    def wait(self, ready, timeout_s, what):
        deadline = time.time() + timeout_s
        while not ready():
            self.supervisor.poll()
            assert time.time() < deadline, (
                f"waited {timeout_s} s for {what}; last: {self.events()[-3:]}"
            )
            time.sleep(0.1)

    def finish(self, timeout_s=240):
        self.wait(
            lambda: self.director.popen.poll() is not None, timeout_s, "the director to finish"
        )
        assert self.director.popen.returncode == 0, self.events()[-3:]
        self.wait(
            lambda: not list((self.folder / "spool/closed").iterdir()),
            30,
            "the uplink to send the rest",
        )
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
    """Check that every closed episode is in the inbox, and in the buffers once."""
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
    imitated = sum(
        read_episode(run.folder / "inbox" / episode_id).success
        for episode_id, status in state["intake"]["ids"]
        if status == "online"
    )
    assert data["imitated"]["episodes"] == imitated
    online_ = sum(status in ("online", "stale") for _, status in state["intake"]["ids"])
    assert (data["demonstrations"]["episodes"], data["online"]["episodes"]) == (
        demonstrations,
        online_,
    )
