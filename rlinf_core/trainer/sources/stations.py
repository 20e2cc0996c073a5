"""Stations as a source: the bridge's server stores their episodes and serves policies."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.algorithms.common.settings import RolloutLength
from rlinf_core.deploy.bridge import server
from rlinf_core.deploy.bridge.client import prune_policies
from rlinf_core.deploy.bridge.server import BridgeServer
from rlinf_core.deploy.releases import Release
from rlinf_core.deploy.releases import overview as release_metrics
from rlinf_core.deploy.releases.overview import ReleaseLoop, rates
from rlinf_core.deploy.releases.record import Outcome
from rlinf_core.deploy.releases.releases import ReleaseController
from rlinf_core.episodes.spool import MAX_GB
from rlinf_core.rollouts.types import TRAIN, Experience, Source, Trajectory
from rlinf_core.trainer.policy_flush import discard_unflushed
from rlinf_core.trainer.sources.recordings import LATER, Intake

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

EPISODES_PER_TURN = 8  # of each queue
RETRY_S = 60.0
REPORTED = ("backlog", "policy_version", "set_aside", "spool_full")


class Stations(Source):
    """Serves stations, which play on while the learner trains.

    Episodes in the inbox come first, in order of arrival.

    Args:
        address: host and port to listen on.
        run_dir: folder of the run, with ``inbox/`` and ``policies/``.
        intake: reads the arrived episodes.
        insert: inserts an episode and returns its status.
        fleet: folder of the fleet whose stations may connect; None admits stations by token.
        release: settings of the release of new policies.
        policies_gb: size limit of ``policies/`` [10^9 bytes]; the oldest unneeded files are
            removed.
        token_file: file of the token for stations without a fleet; None requires none.
        stations: names of stations that may connect; empty allows all.

    Raises:
        BridgeError: the port is in use.
    """

    asynchronous = True

    def __init__(
        self,
        address: str,
        run_dir: Path,
        intake: Intake,
        insert: Callable[[Trajectory], str],
        fleet: Path | None = None,
        release: Release | None = None,
        policies_gb: float = MAX_GB,
        token_file: Path | None = None,
        stations: Collection[str] = (),
    ) -> None:
        self.policies_gb = policies_gb
        self.last_version = -1
        self.intake, self.insert = intake, insert
        self.releases = ReleaseController(release or Release(), run_dir)
        self.watch = ReleaseLoop(self.releases, run_dir)
        self.report: dict[str, Any] = {"phase": "waiting", "accepting": True}
        # episodes that arrived before this start, and those since
        self.journaled = deque(run_dir / "inbox" / name for name in intake.journal.ids())
        self.arrived: deque[Path] = deque()
        discard_unflushed(run_dir / "policies")
        # episodes that could not be read, each with the time of its next try
        self.later: list[tuple[float, Path]] = []
        self.tries = Counter[str]()
        self.server = BridgeServer(
            address,
            run_dir / "inbox",
            run_dir / "policies",
            self.arrived.append,
            lambda: self.report,
            intake.journal,
            fleet,
            choice=self.releases,
            specs=intake.spec,
            token_file=token_file,
            stations=stations,
        )

    def take(self, updates: int, length: RolloutLength) -> Experience:
        """Insert some of the arrived episodes.

        ``length`` is ignored: stations decide how much they play.
        """
        # the checkpoint contains these episodes
        while self.journaled and self.journaled[0].name in self.intake.ids:
            self.journaled.popleft()
        due = [entry for entry in self.later if time.monotonic() > entry[0]]
        self.later = [entry for entry in self.later if entry not in due]
        self.arrived.extend(folder for _, folder in due)
        for queue in (self.journaled, self.arrived):
            self.intake.prefetch(list(islice(queue, EPISODES_PER_TURN * 4)))
            for _ in range(min(EPISODES_PER_TURN, len(queue))):
                self._read(queue.popleft())
        self.watch.update(self.server.newest, dict(self.server.stations))
        if self.last_version != self.server.newest:
            self.last_version = self.server.newest
            prune_policies(
                self.server.policies, self.policies_gb, self.last_version, *self.releases.needed()
            )
        return Experience()

    def _read(self, folder: Path) -> None:
        status = self.intake.take(folder, self._insert)
        if status.startswith(LATER):
            self.tries[folder.name] += 1
            wait_s = RETRY_S * self.tries[folder.name]
            print(
                f"{status}. It stays in the inbox; the trainer reads it again in {wait_s:.0f} s",
                flush=True,
            )
            self.later.append((time.monotonic() + wait_s, folder))

    def _insert(self, trajectory: Trajectory) -> str:
        if trajectory.mode == TRAIN:
            self.releases.add_outcome(trajectory.station, Outcome.of(trajectory))
        return self.insert(trajectory)

    def counts(self) -> dict[str, float]:
        """Return each station's report, and the results of its last training episodes."""
        reports = {name: report for name, (_, report) in sorted(self.server.stations.items())}
        counts = {}
        for name, report in reports.items():
            counters = {counter: getattr(report, counter) for counter in REPORTED}
            for counter, value in (counters | rates(self.releases, name)).items():
                counts[f"{name}/{counter}"] = float(value)
        return counts

    def families(self) -> Iterator[Metric]:
        """Return the metrics of stations and policies for Prometheus."""
        yield from server.families(self.server)
        yield from release_metrics.families(self.releases)

    def close(self) -> None:
        """Stop serving. Stations resume their uploads with the next trainer."""
        self.server.stop()
