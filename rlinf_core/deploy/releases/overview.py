"""The state of a fleet: ``<run>/fleet.json``, written twice a second, and Prometheus metrics."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric

from rlinf_core.core.atomic_io import replace_text
from rlinf_core.core.errors import BridgeError
from rlinf_core.core.metrics import family
from rlinf_core.deploy.releases.commands import CommandQueue
from rlinf_core.deploy.releases.record import ALL
from rlinf_core.deploy.releases.releases import ReleaseController, StationReports

FILE = "fleet.json"
LOOK_S = 0.5
SHOWN_DECISIONS = 5


class ReleaseLoop:
    """Runs the release controller in the run's loop, at most twice a second.

    Args:
        releases: release controller of this trainer.
        run_dir: folder of the run.
    """

    def __init__(self, releases: ReleaseController, run_dir: Path) -> None:
        self.releases = releases
        self.orders = CommandQueue(releases, run_dir)
        self.path = run_dir / FILE
        self._next = 0.0

    def update(self, newest: int, reports: StationReports) -> None:
        """Execute commands, decide on releases and write the overview."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LOOK_S
        with contextlib.suppress(OSError):  # a full disk must not stop the run
            self.orders.execute(reports)
        self.releases.update_trials(newest, reports)
        with contextlib.suppress(OSError):
            replace_text(self.path, json.dumps(overview(self.releases, reports)))


def overview(releases: ReleaseController, reports: StationReports) -> dict[str, Any]:
    """Return an overview of the stations and of their policies."""
    record, trial = releases.record, releases.record.trial
    return {
        "time": time.time(),
        "staged": releases.settings.staged,
        "newest": releases.newest,
        "current": record.current,
        "trial": trial
        and {
            "version": trial.version,
            "station": trial.station,
            "episodes": len(trial.new),
            "of": len(trial.old),
            "figures": releases.figures(trial.pairs, record.current),
        },
        "watched": _watched(releases),
        "known": max(map(len, releases.recent.values()), default=0),
        "needed": releases.settings.episodes,
        "pins": record.pins,
        "decisions": record.decisions[-SHOWN_DECISIONS:],
        "stations": {name: _station(releases, name, *reports[name]) for name in sorted(reports)},
    }


def _watched(releases: ReleaseController) -> dict[str, Any] | None:
    """Return the comparison of the current version with the previous one; None if there is none."""
    watched = releases.record.watched
    if watched is None:
        return None
    return {
        "before": watched.before,
        "episodes": len(watched.pairs),
        "p_values": watched.p_values,
        "left": sum(map(len, watched.old.values())),
        "rolled_back_at": releases.threshold,
        "figures": releases.figures(watched.pairs, watched.before),
    }


def _station(
    releases: ReleaseController, name: str, reported_at: float, report: Any
) -> dict[str, Any]:
    record, last = releases.record, releases.last.get(name, ())
    notes = {
        "on trial": record.trial is not None and record.trial.station == name,
        "drained": name in record.drained,
        "pinned": name in record.pins or ALL in record.pins,
    }
    return {
        "last_report_s": time.monotonic() - reported_at,
        "meant": releases.version_for(name, releases.newest),
        "fetched": report.policy_version,
        "playing": report.playing if report.HasField("playing") else report.policy_version,
        "policy_error": report.policy_error,
        "backlog": report.backlog,
        "set_aside": report.set_aside,
        "spool_full": report.spool_full,
        **rates(releases, name),
        "software": report.software,
        "notes": [note for note, holds in notes.items() if holds],
        "episodes": len(last),
    }


def rates(releases: ReleaseController, name: str) -> dict[str, float]:
    """Return means over a station's last training episodes; empty without any."""
    last = releases.last.get(name)
    if not last:
        return {}
    return {
        metric: sum(getattr(outcome, metric) for outcome in last) / len(last)
        for metric in ("success", "interlock")
    }


def read_overview(run_dir: Path) -> dict[str, Any]:
    """Return the last overview of a run's trainer. Raises BridgeError if there is none."""
    try:
        document: dict[str, Any] = json.loads((run_dir / FILE).read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise BridgeError(
            f"{run_dir}: expected the folder of a run with stations and with {FILE}, got {error}. "
            f"It is the --out of rlinf train, which writes {FILE} at its start"
        ) from error
    return document


def families(releases: ReleaseController) -> Iterator[Metric]:
    """Yield the Prometheus metrics of releases; without stages they have no values."""
    record = releases.record
    versions = {"all": record.current, "trial": record.trial.version if record.trial else -1}
    yield family(
        "rlinf_release_version",
        "gauge",
        "version of the released policy and of the one on trial",
        [
            ({"which": selection}, version)
            for selection, version in versions.items()
            if version >= 0
        ],
    )
    watched = record.watched
    yield family(
        "rlinf_release_compared_episodes",
        "gauge",
        "episodes of the released policy since its release that were compared with the previous "
        "one",
        [({}, len(watched.pairs))] if watched else [],
    )
    yield family(
        "rlinf_release_p_value",
        "gauge",
        "always-valid p-value: largest probability of this result if the policy is no worse than "
        "the previous one",
        [
            ({"measure": name}, value)
            for name, value in (watched.p_values if watched else {}).items()
        ],
    )
    yield family(
        "rlinf_release_rolled_back_at",
        "gauge",
        "p-value at which the released policy is rolled back",
        [({}, releases.threshold)] if watched else [],
    )
