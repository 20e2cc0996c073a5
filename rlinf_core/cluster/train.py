"""The trainer's cluster: Ray actors for ingest, replay and learner, and the loop that ties them together.

    bridge ──► Ingest ──(folders)──► Replay ──(batches)──► Learner ──(policy files)──► Ingest ──► bridge

The loop is the only place that decides: what is due, when to publish, when to checkpoint. A checkpoint is taken between two
groups of updates, when no batch is under way, so that a resumed run draws the same batches.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from rlinf_core.bridge.server import exposure
from rlinf_core.cluster import checkpoint
from rlinf_core.cluster.arrivals import Arrivals
from rlinf_core.cluster.governor import Governor
from rlinf_core.cluster.learner import Learner
from rlinf_core.cluster.local import start_ray
from rlinf_core.cluster.replay import ReplayStore
from rlinf_core.environment import Task
from rlinf_core.errors import RlinfError
from rlinf_core.recipes import Recipe, station_task

GROUP = 16  # updates between two looks at the world


class Ingest:
    """Ray actor: the bridge's server. Keeps the list of arrivals and the report for the stations."""

    def __init__(self, address: str, run_dir: str) -> None:
        from rlinf_core.bridge.server import BridgeServer

        self.report: dict[str, Any] = {"phase": "waiting", "accepting": True}
        self.arrived: list[str] = []
        root = Path(run_dir)
        self.server = BridgeServer(address, root / "inbox", root / "policies",
                                   lambda folder: self.arrived.append(str(folder)), lambda: self.report)

    def port(self) -> int:
        """The port it listens on."""
        return self.server.port

    def known(self) -> list[str]:
        """Folders of all episodes in the inbox, in order of arrival."""
        return [str(self.server.inbox / name) for name in self.server.journal.ids()]

    def exchange(self, report: dict[str, Any]) -> list[str]:
        """Hand over a new report, get the episodes that arrived since the last call."""
        self.report = report
        arrived, self.arrived = self.arrived, []
        return arrived


class Trainer:
    """One run: builds the actors, resumes from the newest checkpoint if there is one, and loops until stopped."""

    def __init__(self, recipe: Recipe, run_dir: Path) -> None:
        self.recipe, self.run_dir = recipe, run_dir
        self.checkpoints = run_dir / "checkpoints"
        self.stopping = False
        self.task: Task = station_task(recipe)
        if recipe.algorithm.name != "rlpd":
            raise RlinfError(f"algorithm: on what stations send, the trainer learns by rlpd, and the recipe says "
                             f"{recipe.algorithm.name}. Set simulation.environments to train in simulation")
        online = recipe.online
        self.governor = Governor(
            updates_per_step=online.updates_per_step, max_lag_episodes=online.max_lag_episodes,
            max_staleness=online.max_staleness, steps_per_episode=self.task.max_steps,
            min_transitions=online.min_transitions)
        # A folder of its own: what a killed cluster leaves behind would be taken for a running one.
        self.temporary = tempfile.mkdtemp(prefix="rlinf-ray-", dir="/tmp")
        self.ray = ray = start_ray(4, _temp_dir=self.temporary)
        if warning := exposure(recipe.bridge.address):
            print(warning, flush=True)
        remote = ray.remote(num_cpus=0.1)
        spec = self.task.spec
        self.ingest = remote(Ingest).options(max_concurrency=2).remote(recipe.bridge.address, str(run_dir))
        ray.get(self.ingest.port.remote())  # a port in use is said before anything else starts
        self.replay = remote(ReplayStore).remote(spec, recipe.replay.capacity, self.governor,
                                                 recipe.replay.use_executed, recipe.seed)
        self.learner = remote(_RemoteLearner).remote(spec, recipe.policy, recipe.sft, recipe.algorithm,
                                                     run_dir / "policies", recipe.seed)
        self.arrivals = Arrivals(run_dir, lambda folders, version: ray.get(
            [self.replay.insert.remote(folder, version) for folder in folders]))
        self._resume()

    def _resume(self) -> None:
        found = checkpoint.checkpoints(self.checkpoints)
        if found:
            state = checkpoint.load(found[-1])
            self.ray.get([self.replay.load_state_dict.remote(state["replay"]),
                          self.learner.load_state_dict.remote(state["learner"])])
        self._insert(self.ray.get(self.ingest.known.remote()))  # those the checkpoint has are skipped by id

    def run(self) -> None:
        """Loop until SIGINT or SIGTERM; the last act is a checkpoint."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: setattr(self, "stopping", True))
        saved_at, told_at = time.monotonic(), 0.0
        self.writer = _writer(self.run_dir / "tensorboard")
        while not self.stopping:
            busy = self._advance()
            now = time.monotonic()
            if now - told_at > 0.25:
                self._exchange()
                told_at = now
            first = self.status["phase"] == "online" and not checkpoint.checkpoints(self.checkpoints)
            if first or now - saved_at > 60.0 * self.recipe.checkpoint.every_minutes and self.status["phase"] == "online":
                self.save()
                saved_at = time.monotonic()
            if not busy:
                time.sleep(0.02)
        self.save()
        self.ray.shutdown()
        shutil.rmtree(self.temporary, ignore_errors=True)

    def _advance(self) -> bool:
        """One group of whatever is due; returns whether anything was."""
        get, recipe = self.ray.get, self.recipe
        counts = self.counts = get(self.replay.counts.remote())
        self.status = status = get(self.learner.status.remote())
        if status["sft_left"] > 0:
            if counts["demonstrations"] < recipe.collect.episodes:
                return False
            if status["sft_steps"] == 0:
                get(self.learner.fit_normalisation.remote(self.replay.demonstration_vectors.remote()))
            batches = self.replay.sample_demonstrations.remote(recipe.sft.batch_size, min(50, status["sft_left"]))
            get(self.learner.fine_tune.remote(batches))
            return True
        due = self.governor.due(counts["counted"], status["updates"])
        if due < 1:
            return False
        batches = self.replay.sample.remote(recipe.algorithm.batch_size, min(GROUP, due))
        get(self.learner.improve.remote(batches, recipe.online.publish_every_updates))
        return True

    def _exchange(self) -> None:
        arrived = self.ray.get(self.ingest.exchange.remote(self._report()))
        self._insert(arrived)
        step = self.status["updates"] or self.status["sft_steps"]
        for name, value in {**self.status["metrics"], "update_ratio": self._ratio()}.items():
            self.writer.add_scalar(f"train/{name}", value, step)

    def _insert(self, folders: list[str]) -> None:
        if folders:
            self.arrivals.take(folders, self.ray.get(self.learner.status.remote())["version"])

    def _ratio(self) -> float:
        return self.status["updates"] / max(1, self.counts["counted"])

    def _report(self) -> dict[str, Any]:
        status, counts = self.status, self.counts
        waiting = status["sft_left"] > 0 and counts["demonstrations"] < self.recipe.collect.episodes
        phase = "waiting" if waiting else "sft" if status["sft_left"] > 0 else "online"
        self.status["phase"] = phase
        extra = {name: float(counts[name]) for name in ("demonstrations", "stale", "refused", "evaluations")}
        return {"phase": phase, "policy_version": status["version"], "updates": status["updates"],
                "episodes": counts["episodes"], "transitions": counts["counted"], "update_ratio": self._ratio(),
                "accepting": self.governor.accepting(counts["counted"], status["updates"]),
                "metrics": {**status["metrics"], **extra, "sft_left": float(status["sft_left"])}}

    def save(self) -> None:
        """Write a checkpoint of replay and learner, taken at the same moment."""
        if self.status["sft_left"] > 0:
            return  # supervised fine-tuning is short and starts again from the inbox
        replay, learner = self.ray.get([self.replay.state_dict.remote(), self.learner.state_dict.remote()])
        checkpoint.save(self.checkpoints, f"updates-{self.status['updates']:09d}", {"replay": replay, "learner": learner})


class _RemoteLearner(Learner):
    """The learner as a Ray actor: one call a group, and publishing when it is due."""

    def status(self) -> dict[str, Any]:
        return {"updates": self.updates, "version": self.version, "sft_left": self.sft_left,
                "sft_steps": self.sft_steps, "metrics": dict(self.metrics), "phase": "sft" if self.cloner else "online"}

    def improve(self, batches: list[Any], publish_every: int) -> None:
        before = self.updates // publish_every
        super().improve(batches)
        if self.updates // publish_every > before:
            self.publish()


def _writer(folder: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder))


def train(recipe: Recipe, run_dir: Path) -> None:
    """Run a trainer in ``run_dir`` until it is told to stop; RlinfError says why it could not."""
    import ray

    try:
        Trainer(recipe, run_dir).run()
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, RlinfError) else None
        raise cause or RlinfError(f"the trainer stopped: {error}") from error
    except ray.exceptions.RayActorError as error:
        raise RlinfError(f"a part of the trainer died ({error}). Start it again: it resumes from "
                         f"{run_dir / 'checkpoints'} and the inbox") from error
