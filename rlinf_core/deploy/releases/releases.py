"""The release controller: gives stations the newest policy at once or in stages."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from pathlib import Path

from rlinf_core.deploy.bridge import bridge_pb2 as pb
from rlinf_core.deploy.bridge.policies import PolicySelector
from rlinf_core.deploy.releases import Release
from rlinf_core.deploy.releases.record import (
    ALL,
    NOT_WORSE,
    WORSE,
    Evidence,
    Outcome,
    ReleaseComparison,
    Trial,
    read_record,
    sequential_verdict,
)
from rlinf_core.policies.policy_folder import policy_name

SILENT_S = 60.0  # silence of the trial's station after which another one takes over
REFERENCE_EPISODES = 50  # training episodes of each station in its figures
KEEP_S = 5.0  # interval of writing the comparison
RECENT_VERSIONS = 5  # former versions kept on disk for a rollback
FILE = "release.json"
StationReports = Mapping[str, tuple[float, pb.StationReport]]
MEASURES: dict[str, Callable[[Outcome, Outcome], float]] = {  # positive: the new policy did worse
    "success": lambda new, old: old.success - new.success,
    "interlock": lambda new, old: new.interlock - old.interlock,
}


class ReleaseController(PolicySelector):
    """Decides on releases. The run's loop changes it, and the bridge's thread reads it.

    Args:
        settings: settings of the recipe.
        run_dir: folder of the run, with ``policies/`` and the record of decisions.
    """

    def __init__(self, settings: Release, run_dir: Path) -> None:
        self.settings = settings
        self.path = run_dir / FILE
        self.policies = run_dir / "policies"
        self.record = read_record(self.path)
        self.revision = 0
        self.newest = -1
        if not settings.staged:
            self.record.trial = None
            self.record.watched = None
            self.record.current = -1
        self.measures = [name for name in MEASURES if settings.interlock or name != "interlock"]
        # of each station
        self.last: dict[str, deque[Outcome]] = defaultdict(lambda: deque(maxlen=REFERENCE_EPISODES))
        self.recent: dict[str, deque[Outcome]] = defaultdict(  # outcomes with the current version
            lambda: deque(maxlen=settings.episodes + settings.watch)
        )
        self._unwritten = False
        self._next_write = 0.0
        self._written_version = self.record.current

    # Queries of the bridge
    def version_for(self, station: str, newest: int) -> int:
        """See ``PolicySelector``. The first version becomes current at once."""
        record, trial = self.record, self.record.trial
        if self.settings.staged and record.current < 0 < newest:
            record.current = newest
        pin = record.pins.get(station, record.pins.get(ALL))
        if pin is not None:
            return pin
        if trial is not None and station == trial.station:
            return trial.version
        return newest if record.current < 0 else record.current

    def wait_reason(self, station: str) -> str:
        """See ``PolicySelector``."""
        return (
            "drained: the station begins no further episode until rlinf fleet drain --off at the "
            "trainer"
            if station in self.record.drained
            else ""
        )

    # Input of the run's loop
    def add_outcome(self, station: str, outcome: Outcome) -> None:
        """Add a training episode. An episode that was compared already changes nothing."""
        self.last[station].append(outcome)
        trial = self.record.trial
        if outcome.id in self.record.used:
            return
        if self.settings.staged and outcome.version == self.record.current:
            self.recent[station].append(outcome)
            self._check_release(station, outcome)
        elif (
            trial
            and (station, outcome.version) == (trial.station, trial.version)
            and outcome not in trial.new
        ):
            trial.new.append(outcome)
            self._judge(trial)
            if self.record.trial is trial:
                self.record_decision()

    def update_trials(self, newest: int, reports: StationReports) -> None:
        """Start a trial of a newer policy, or give the trial another station, if it is due."""
        record = self.record
        self.newest = newest
        if not self.settings.staged or record.current < 0:
            return
        # a restarted trainer needs the current version
        if not self.path.exists() or record.current != self._written_version:
            self._written_version = record.current
            self.record_decision()
        if record.trial is None:
            self._begin(reports)
        else:
            self._watch(record.trial, reports)
        if self._unwritten and time.monotonic() > self._next_write:
            record.write(self.path)
            self._unwritten = False
            self._next_write = time.monotonic() + KEEP_S

    def _begin(self, reports: StationReports) -> None:
        record, station = self.record, self._canary(reports)
        due = (
            self.newest > record.current
            and self.newest not in record.refused
            and ALL not in record.pins
        )
        if due and station:
            self._try(self.newest, station, "")

    def _try(self, version: int, station: str, reason: str) -> None:
        self.record.trial = Trial(
            version=version,
            station=station,
            old=list(self.recent.get(station, ()))[-self.settings.episodes :],
        )
        self.record_decision(f"version {version} is on trial at station '{station}'{reason}")

    def _watch(self, trial: Trial, reports: StationReports) -> None:
        """Check that the trial's station has loaded the policy and is connected.

        If not, roll back or move the trial.
        """
        _, report = reports.get(trial.station, (0.0, pb.StationReport()))
        if policy_name(trial.version) in report.policy_error:
            self.roll_back(f"station '{trial.station}' cannot load it: {report.policy_error[:300]}")
            return
        station = self._canary(reports, trial.station)
        if station and station != trial.station:
            self._try(
                trial.version, station, f", again: '{trial.station}' is pinned, drained or silent"
            )

    def _canary(self, reports: StationReports, present: str = "") -> str:
        """Return the station for a trial: the present one if free, else one with old episodes."""
        record = self.record
        station = self.settings.canary
        now = time.monotonic()
        free = [
            name
            for name, (reported_at, _) in reports.items()
            if now - reported_at < SILENT_S
            and name not in record.pins
            and name not in record.drained
            and station in ("", name)
        ]
        able = [name for name in free if len(self.recent.get(name, ())) >= self.settings.episodes]
        return present if present in free else min(able, default="")

    def needed(self) -> set[int]:
        """Return the versions whose files must stay: those in use, and the last RECENT_VERSIONS."""
        record = self.record
        record.previous = record.previous[-RECENT_VERSIONS:]
        return {
            self.newest,
            record.current,
            *record.previous,
            *record.pins.values(),
            *((record.trial.version,) if record.trial else ()),
            *((record.watched.before,) if record.watched else ()),
        }

    # Decisions
    def _judge(self, trial: Trial) -> None:
        """Decide on a trial by the tests of all measures, which share the error probability."""
        settings = self.settings
        verdicts = {
            name: sequential_verdict(
                (MEASURES[name](*pair) for pair in trial.pairs),
                settings.odds_ratio,
                self.threshold,
                settings.beta,
            )
            for name in self.measures
        }
        figures = self.figures(trial.pairs, self.record.current)
        if WORSE in verdicts.values():
            self.roll_back(
                f"{' and '.join(name for name in verdicts if verdicts[name] == WORSE)} worse: "
                f"{figures}"
            )
        elif set(verdicts.values()) == {NOT_WORSE}:
            self.promote(trial.version, f"not worse: {figures}")
        elif len(trial.new) >= len(trial.old):
            self.promote(trial.version, f"not found worse: {figures}")

    def _check_release(self, station: str, outcome: Outcome) -> None:
        """Compare the current version with the previous one, and roll back if it is worse."""
        watched = self.record.watched
        if watched is None or not watched.pair(station, outcome):
            return
        self._unwritten = True
        for name in self.measures:
            evidence = watched.evidence.setdefault(name, Evidence())
            evidence.add(MEASURES[name](*watched.pairs[-1]), self.settings.odds_ratio)
        if worse := [name for name, value in watched.p_values.items() if value <= self.threshold]:
            if self.record.trial is not None:
                self.record.note_verdict(
                    f"the trial of version {self.record.trial.version} ends undecided"
                )
                self.record.trial = None
            figures = self.figures(watched.pairs, watched.before)
            self.roll_back(f"{' and '.join(worse)} worse since its release to all: {figures}")

    @property
    def threshold(self) -> float:
        """Maximum false-alarm probability of each measure."""
        return self.settings.alpha / len(self.measures)

    def figures(self, pairs: list[tuple[Outcome, Outcome]], before: int) -> str:
        """Describe the pairs and version ``before`` in words."""

        def of(outcomes: list[Outcome]) -> str:
            rate = sum(outcome.interlock for outcome in outcomes) / max(len(outcomes), 1)
            return (
                f"{sum(outcome.success for outcome in outcomes)} of {len(outcomes)} succeeded, "
                f"interlock {rate:.1%}"
            )

        return (
            f"{of([new for new, _ in pairs])}; version {before} there: "
            f"{of([old for _, old in pairs])}"
        )

    def promote(self, version: int, reason: str) -> str:
        """Release a version to all stations.

        Its episodes on trial become no reference for the next version, because the test selected
        them for being good.
        """
        self.record.use(self.record.trial, self.record.watched)
        if version != self.record.current:
            self.record.watched = self._from_now_on()
        self.record.make_current(version)
        self.recent.clear()
        return self.record_decision(f"version {version} goes to all stations: {reason}")

    def _from_now_on(self) -> ReleaseComparison | None:
        """Return the reference for the next version: each station's last episodes of this one.

        Episodes that a trial has used are left out.
        """
        record = self.record
        used = {old.id for _, old in record.trial.pairs} if record.trial else set()
        left = {
            station: unused
            for station, recent in self.recent.items()
            if (unused := [outcome for outcome in recent if outcome.id not in used])
        }
        share = math.ceil(self.settings.watch / max(len(left), 1))
        old = {station: unused[-share:] for station, unused in left.items()}
        return (
            ReleaseComparison(before=record.current, old=old)
            if self.settings.watch and old and record.current >= 0
            else None
        )

    def roll_back(self, reason: str) -> str:
        """Reject the version on trial.

        Without a trial, replace the current version by the previous one. The reference episodes are
        dropped, too. If they were good by chance, every later policy would be rejected.
        """
        record, trial = self.record, self.record.trial
        record.use(trial or record.watched)
        if trial is not None:
            rejected = trial.version
            record.trial = None
            self.recent.pop(trial.station, None)
        else:
            rejected = record.current
            record.current = record.previous[-1]
            record.previous = record.previous[:-1]
            record.watched = None
            self.recent.clear()
        record.refused[rejected] = reason
        return self.record_decision(
            f"version {rejected} is rolled back to {record.current}: {reason}"
        )

    def record_decision(self, text: str = "") -> str:
        """Write the record with a decision in words, and notify the bridge; return the words."""
        if text:
            self.record.note_verdict(text)
        self.record.write(self.path)
        self.revision += 1
        return text
