"""The trainer's record of releases, ``<run>/release.json``, and its sequential test.

The test is Wald's sequential probability ratio test for two binomial distributions (A. Wald,
Sequential Analysis, Wiley 1947, section 6.4.2). It may be evaluated after every pair of episodes.
Each episode of the new policy is paired with one of the old. Pairs with equal results are ignored.
In the others the new policy does worse with probability p. Equal policies have p = 1/2, whatever
their success rates. A policy that must be found worse has p = odds / (1 + odds). Each pair
multiplies the likelihood ratio of the second hypothesis to the first. The test ends when the ratio
reaches 1 / alpha (worse) or beta (not worse).

The ratio is a supermartingale under the first hypothesis, also for p < 1/2. Its inverse is one
under the second, also beyond the odds. By Ville's inequality (1939) the errors are at most alpha
and beta, however long the test runs and wherever it is stopped. For real-valued measures this is a
sequential sign test.

A policy that gets worse after many good episodes would be found late, because its ratio is tiny by
then. ``Evidence`` therefore uses the mean of the ratios from each pair on, with weights 1/2, 1/6,
1/12, ... A mean of supermartingales is a supermartingale, so the inequality holds. The inverse of
its maximum is an always-valid p-value (Johari et al., Operations Research 70(3), 2022).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from rlinf_core.core.atomic_io import write_atomically
from rlinf_core.core.errors import RlinfError

if TYPE_CHECKING:
    from rlinf_core.rollouts.types import Trajectory

WORSE = "worse"
NOT_WORSE = "not worse"
OPEN = ""


def sequential_verdict(pairs: Iterable[float], odds: float, alpha: float, beta: float) -> str:
    """Return the test's verdict after these pairs.

    Args:
        pairs: for each pair, in order: positive if the new policy did worse, negative if it did
            better, 0 if they did alike.
        odds: odds of worse to better of a policy that must be found worse.
        alpha: maximum probability of calling a policy worse that is not.
        beta: maximum probability of calling a policy not worse that is, by these odds.
    """
    evidence = 0.0
    for pair in pairs:
        evidence += math.log(_ratio(pair, odds)) if pair else 0.0
        if evidence >= -math.log(alpha):
            return WORSE
        if evidence <= math.log(beta):
            return NOT_WORSE
    return OPEN


@dataclass
class Evidence:
    """Evidence that the new version is worse, at once or from some pair on.

    Attributes:
        pairs: number of pairs that differed.
        begun: weighted sum of the likelihood ratios from each of these pairs on.
        largest: maximum so far of the mean ratio, in which future pairs count with ratio 1.
    """

    pairs: int = 0
    begun: float = 0.0
    largest: float = 1.0

    def add(self, pair: float, odds: float) -> None:
        """Add a pair; the arguments are those of ``sequential_verdict``."""
        if pair:
            self.pairs += 1
            self.begun = (self.begun + 1.0 / (self.pairs * (self.pairs + 1))) * _ratio(pair, odds)
            self.largest = max(self.largest, self.begun + 1.0 / (self.pairs + 1))

    @property
    def p_value(self) -> float:
        """Always-valid p-value: largest probability of this evidence for a policy as good."""
        return 1.0 / self.largest


def _ratio(pair: float, odds: float) -> float:
    """Return the factor of the likelihood ratio for a pair that differs."""
    return (2.0 * odds if pair > 0 else 2.0) / (1.0 + odds)


ALL = "*"  # the pin of every station
DECISIONS = 50  # stored decisions
USED = 2000  # stored ids of compared episodes


class StoredModel(BaseModel):
    """Base of stored models: unknown fields and other types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Outcome(StoredModel):
    """The result of one training episode.

    Attributes:
        id: identifier of the episode.
        version: version of the policy.
        success: success without a takeover by a person.
        interlock: fraction of the policy's time steps in which the interlock limited the action or
            held the arm.
    """

    id: str
    version: int
    success: bool
    interlock: float

    @classmethod
    def of(cls, trajectory: Trajectory) -> Outcome:
        autonomous = "operator" not in trajectory.sources
        return cls(
            id=trajectory.id,
            version=trajectory.version,
            success=trajectory.success and autonomous,
            interlock=trajectory.interlock,
        )


class Trial(StoredModel):
    """The trial of a new policy at one station.

    Attributes:
        version: version on trial.
        station: station of the trial.
        old: last episodes of the current policy at this station, oldest first.
        new: episodes of the new policy.
    """

    version: int
    station: str
    old: list[Outcome]
    new: list[Outcome] = []

    @property
    def pairs(self) -> list[tuple[Outcome, Outcome]]:
        """Pairs (new, old); the first new episode is paired with the last old one."""
        return list(zip(self.new, reversed(self.old), strict=False))


class ReleaseComparison(StoredModel):
    """The comparison of the current version with the previous one after its release.

    Attributes:
        before: previous version.
        old: last episodes of the previous version by station, oldest first, that are not paired
            yet.
        pairs: pairs (new, old), in order of arrival of the new ones.
        evidence: evidence that the current version is worse, by measure.
    """

    before: int
    old: dict[str, list[Outcome]]
    pairs: list[tuple[Outcome, Outcome]] = []
    evidence: dict[str, Evidence] = {}

    @property
    def p_values(self) -> dict[str, float]:
        """Always-valid p-values by measure."""
        return {name: evidence.p_value for name, evidence in self.evidence.items()}

    def pair(self, station: str, outcome: Outcome) -> bool:
        """Pair a new episode; False if it is paired already, or no old episode is left."""
        if not self.old.get(station) or any(outcome.id == new.id for new, _ in self.pairs):
            return False
        self.pairs.append((outcome, self.old[station].pop()))
        return True


class Record(StoredModel):
    """The state of the releases.

    Attributes:
        current: version of all stations; -1 before the first.
        previous: former current versions, oldest first.
        trial: current trial; None without one.
        watched: comparison of the current version with the previous one; None without one.
        refused: reasons of versions that were rolled back.
        pins: pinned version by station, or of ALL.
        drained: stations that begin no further episode.
        used: ids of episodes that earlier decisions compared. They are not compared again, also if
            a restarted trainer reads them anew.
        decisions: decisions in words.
    """

    current: int = -1
    previous: list[int] = []
    trial: Trial | None = None
    watched: ReleaseComparison | None = None
    refused: dict[int, str] = {}
    pins: dict[str, int] = {}
    drained: list[str] = []
    used: list[str] = []
    decisions: list[str] = []

    def note_verdict(self, text: str) -> str:
        """Store a decision in words, and print it."""
        print(text, flush=True)
        self.decisions = [*self.decisions, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}"][
            -DECISIONS:
        ]
        return text

    def use(self, *compared: Trial | ReleaseComparison | None) -> None:
        """Mark the episodes of a comparison as used."""
        ids = [
            outcome.id
            for comparison in compared
            if comparison is not None
            for pair in comparison.pairs
            for outcome in pair
        ]
        self.used = [*dict.fromkeys([*self.used, *ids])][-USED:]

    def make_current(self, version: int) -> None:
        """Make a version current, and end the trial."""
        if self.current not in (-1, version):
            self.previous = [*self.previous, self.current][-DECISIONS:]
        self.current = version
        self.trial = None
        self.refused.pop(version, None)

    def write(self, path: Path) -> None:
        """Write the record durably. A failure is printed, and the run continues."""
        try:
            write_atomically(
                path, lambda temporary: temporary.write_text(self.model_dump_json(indent=1))
            )
        except OSError as error:
            print(
                f"{path}: cannot be written: {error}. A restarted trainer continues from the old "
                "content",
                flush=True,
            )


def read_record(path: Path) -> Record:
    """Read the record of an earlier start, or return a new one.

    Raises RlinfError if it is damaged.
    """
    try:
        return Record.model_validate_json(path.read_text()) if path.exists() else Record()
    except ValueError as error:
        raise RlinfError(
            f"{path}: expected a file of this trainer, got: {str(error)[:300]}. Correct or delete "
            "it. Without it, all stations play the newest policy and none is pinned or drained"
        ) from error
