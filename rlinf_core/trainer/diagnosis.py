"""Diagnosis of a run that does not learn, from its curves, replay, demonstrations and episodes.

Each check names one fault, the figures that show it, and the remedy. A check without data finds
nothing. The thresholds are wide, so that each finding is worth a person's time.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_core.algorithms.common.settings import ActorCriticSettings
from rlinf_core.core.errors import EpisodeError, RlinfError
from rlinf_core.episodes import read_episode
from rlinf_core.recipes import Recipe, load_recipe
from rlinf_core.reports.curves import read_events
from rlinf_core.rollouts.types import TRAIN
from rlinf_core.trainer import checkpoint
from rlinf_core.trainer.governor import make_governor

# smallest number of episodes for a meaningful fraction
MIN_EPISODES = 10
# |action| from which an action counts as the largest
AT_BOUND = 0.98
# number of the newest recordings that are read for takeovers
RECORDINGS = 30
# time steps after which an episode should have ended
PLAYED_STEPS = 200
# success from which a run needs no diagnosis of its learning
SOLVED = 0.9


@dataclass(frozen=True)
class Finding:
    """One fault.

    Attributes:
        name: of the check.
        evidence: the figures, in words.
        remedy: what to do.
    """

    name: str
    evidence: str
    remedy: str


@dataclass(frozen=True)
class Episodes:
    """Episodes of a replay, the oldest first.

    Attributes:
        vectors: (T + 1, V) of each.
        actions: (T, A) of each, normalised to [-1, 1].
        rewards: (T,) of each.
        discounts: (T,) of each; 0 where the task ended.
    """

    vectors: list[np.ndarray] = field(default_factory=list)
    actions: list[np.ndarray] = field(default_factory=list)
    rewards: list[np.ndarray] = field(default_factory=list)
    discounts: list[np.ndarray] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rewards)

    @classmethod
    def from_replay(cls, state: dict[str, Any]) -> Episodes:
        """Read the state of a ``ReplayBuffer``.

        The episodes of a replay in several processes are not read.
        """
        arrays, episodes = state.get("arrays"), cls()
        if not arrays or not {"final", "vectors", "action", "reward", "discount"} <= arrays.keys():
            return episodes
        filled = len(arrays["final"])
        order = np.roll(np.arange(filled), -int(state["next"]) % max(1, filled))
        begin = 0
        for end in np.flatnonzero(arrays["final"][order]):
            slots = order[begin : end + 1]
            begin = end + 1
            if len(slots) < 2:
                continue
            episodes.vectors.append(arrays["vectors"][slots])
            episodes.actions.append(arrays["action"][slots[:-1]])
            episodes.rewards.append(arrays["reward"][slots[:-1]])
            episodes.discounts.append(arrays["discount"][slots[:-1]])
        return episodes

    @cached_property
    def lengths(self) -> np.ndarray:
        """(N,) time steps."""
        return np.array([len(rewards) for rewards in self.rewards])

    @cached_property
    def ended(self) -> np.ndarray:
        """(N,) whether the task ended each episode, and not a time limit."""
        return np.array([discounts[-1] == 0 for discounts in self.discounts])


@dataclass
class Evidence:
    """The files that a run has left.

    Attributes:
        recipe: of the run.
        evaluations: the records of progress.jsonl, the oldest first.
        metrics: of the last evaluation or checkpoint, as learners name them.
        demonstrations, online: episodes of the newest checkpoint.
        statuses: number of episodes by their status, such as ``stale`` or ``refused``.
        updates: of the learner.
        steps: time steps of experience.
        no_episode: whether the replay of the policy's own episodes exists and is empty.
        operator_shares: of the newest recorded training episodes, the share of time steps that a
            person commanded.
    """

    recipe: Recipe
    evaluations: list[dict[str, Any]]
    metrics: dict[str, float] = field(default_factory=dict)
    demonstrations: Episodes = field(default_factory=Episodes)
    online: Episodes = field(default_factory=Episodes)
    statuses: Counter[str] = field(default_factory=Counter)
    updates: int = 0
    steps: int = 0
    no_episode: bool = False
    operator_shares: list[float] = field(default_factory=list)

    @property
    def success(self) -> float:
        """The success of the last evaluation; 0 without any."""
        return float(self.evaluations[-1]["success"]) if self.evaluations else 0.0

    @property
    def discount(self) -> float:
        """The discount per time step of the algorithm; 0.99 if it has none."""
        return float(getattr(self.recipe.algorithm, "discount", 0.99))


def read_evidence(run_dir: Path) -> Evidence:
    """Read a run folder.

    Raises:
        RlinfError: it is no run folder, or its checkpoint cannot be read.
    """
    recipe_file = run_dir / "recipe.yaml"
    if not recipe_file.is_file():
        raise RlinfError(f"{run_dir}: expected the folder of a run, with recipe.yaml, got none")
    evaluations = [event for event in read_events(run_dir) if event.get("event") == "evaluation"]
    evidence = Evidence(
        load_recipe(recipe_file), evaluations, operator_shares=_operator_shares(run_dir / "inbox")
    )
    state = checkpoint.load_newest(run_dir / "checkpoints")
    if state is None:
        if not evaluations:
            raise RlinfError(
                f"{run_dir}: expected a started run with an evaluation or a checkpoint, got neither"
            )
        return evidence
    data, intake = state.get("data", {}), state.get("intake", {})
    evidence.metrics = dict((state.get("progress", {}).get("metrics") or [{}])[0])
    evidence.demonstrations = Episodes.from_replay(data.get("demonstrations", {}))
    evidence.online = Episodes.from_replay(data.get("online", {}))
    evidence.no_episode = "arrays" in data.get("online", {}) and not len(evidence.online)
    evidence.statuses = Counter(data.get("statuses", {}))
    evidence.statuses["refused"] = sum(
        status.startswith("refused") for _, status in intake.get("ids", [])
    )
    evidence.updates = int(state.get("learner", {}).get("updates", 0))
    evidence.steps = int(data.get("steps", 0))
    return evidence


def _operator_shares(inbox: Path) -> list[float]:
    """Return the operator's share of the newest whole recordings.

    `rlinf data check` names the others. A trainer that runs may move a recording meanwhile.
    """
    folders = sorted(path for path in inbox.glob("[!.]*") if path.is_dir())
    shares: list[float] = []
    for folder in sorted(folders, key=_changed_at)[-RECORDINGS:]:
        with contextlib.suppress(EpisodeError, OSError):
            episode = read_episode(folder)
            if episode.mode == TRAIN:
                shares.append(float(np.mean([source == "operator" for source in episode.sources])))
    return shares


def _changed_at(folder: Path) -> float:
    """Return the time of the last change, or 0 if the file is gone."""
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def diagnose(evidence: Evidence) -> list[Finding]:
    """Run every check; the most harmful fault comes first."""
    return [finding for check in CHECKS if (finding := check(evidence)) is not None]


def _reward_absent(run: Evidence) -> Finding | None:
    if len(run.online) < MIN_EPISODES or any((rewards > 0).any() for rewards in run.online.rewards):
        return None
    shown = any((rewards > 0).any() for rewards in run.demonstrations.rewards)
    more = (
        "the demonstrations have one"
        if shown
        else "nor have the demonstrations"
        if len(run.demonstrations)
        else ""
    )
    return Finding(
        "reward_absent",
        f"none of the {len(run.online)} newest episodes has a reward above 0"
        + (f"; {more}" if more else ""),
        "check that the task can succeed: rlinf check sim, or label an episode by hand. Sparse "
        "tasks need demonstrations (collect.episodes), a helper's takeovers, or simulation.shaping",
    )


def _reward_constant(run: Evidence) -> Finding | None:
    rewards = np.concatenate(run.online.rewards) if len(run.online) >= MIN_EPISODES else np.zeros(1)
    if rewards.std() > 0 or rewards[0] == 0:
        return None
    return Finding(
        "reward_constant",
        f"every time step of {len(run.online)} episodes has the reward {rewards[0]:g}",
        "a reward must differ between good and bad time steps: check the task's reward",
    )


def _terminals_missing(run: Evidence) -> Finding | None:
    rewarded = [rewards[-1] > 0 for rewards in run.online.rewards]
    ended = run.online.ended
    if sum(rewarded) < MIN_EPISODES or (ended & np.array(rewarded)).any():
        return None
    return Finding(
        "terminals_missing",
        f"{sum(rewarded)} episodes end with a reward, and in none the task ended "
        "(discount 0): the critic counts on more after success",
        "the environment must report the end of the task (terminated), not a time limit "
        "(truncated)",
    )


def _time_limit_ends_the_task(run: Evidence) -> Finding | None:
    if len(run.online) < MIN_EPISODES:
        return None
    longest = run.online.lengths == run.online.lengths.max()
    unrewarded = np.array([rewards[-1] <= 0 for rewards in run.online.rewards])
    at_limit = longest & unrewarded
    if (
        at_limit.sum() < max(MIN_EPISODES, 0.3 * len(run.online))
        or not run.online.ended[at_limit].all()
    ):
        return None
    return Finding(
        "time_limit_as_end",
        f"{at_limit.sum()} of {len(run.online)} episodes end without a reward after exactly "
        f"{run.online.lengths.max()} steps, each as if the task had ended (discount 0)",
        "a time limit must be reported as truncated, not as terminated",
    )


def _actions_saturated(run: Evidence) -> Finding | None:
    if len(run.online) < MIN_EPISODES or run.success >= SOLVED:
        return None
    actions = np.concatenate(run.online.actions[-50:])
    share = float((np.abs(actions) >= AT_BOUND).mean())
    if share < 0.7:
        return None
    return Finding(
        "actions_saturated",
        f"{share:.0%} of the policy's actions have the largest possible value",
        "lower algorithm.learning_rate, or raise the largest step of the task if demonstrations "
        "need it",
    )


def _demonstrations_small(run: Evidence) -> Finding | None:
    if not len(run.demonstrations):
        return None
    largest = np.quantile(np.abs(np.concatenate(run.demonstrations.actions)), 0.99, axis=0)
    if largest.max() >= 0.2:
        return None
    return Finding(
        "demonstrations_small",
        f"99 % of the demonstrated actions are below {largest.max():.2f} of the largest step",
        "check the unit of the actions (metres, not millimetres or normalised values), or lower "
        "the task's largest step to that of the demonstrations",
    )


def _demonstrations_clipped(run: Evidence) -> Finding | None:
    if not len(run.demonstrations):
        return None
    share = (np.abs(np.concatenate(run.demonstrations.actions)) >= AT_BOUND).mean(0)
    if share.min() < 0.8:
        return None
    return Finding(
        "demonstrations_clipped",
        f"at least {share.min():.0%} of the demonstrated actions of every dimension equal the "
        "largest step: they were clipped",
        "check the unit of the actions, or raise the task's largest step",
    )


def _demonstrations_elsewhere(run: Evidence) -> Finding | None:
    """Compare the first observations of demonstrations and episodes, dimension by dimension."""
    if len(run.demonstrations) < 3 or len(run.online) < MIN_EPISODES:
        return None
    shown = np.stack([vectors[0] for vectors in run.demonstrations.vectors])
    played = np.stack([vectors[0] for vectors in run.online.vectors])
    spread = np.maximum(shown.std(0), played.std(0)) + 1e-3 * (1 + np.abs(shown.mean(0)))
    distance = np.abs(shown.mean(0) - played.mean(0)) / spread
    disjoint = (shown.max(0) < played.min(0)) | (played.max(0) < shown.min(0))
    far = np.flatnonzero((distance > 4.0) & disjoint)
    if not len(far):
        return None
    worst = int(far[distance[far].argmax()])
    return Finding(
        "demonstrations_elsewhere",
        f"{len(far)} of {shown.shape[1]} observed numbers begin elsewhere in the demonstrations; "
        f"number {worst} at {shown[:, worst].mean():.3g} instead of {played[:, worst].mean():.3g}",
        "demonstrate the trained task and scene, with the same frames and units",
    )


def _demonstrations_fail(run: Evidence) -> Finding | None:
    failed = run.statuses["failed demonstration"]
    shown = run.statuses["demonstration"]
    if failed < 3 or failed <= 2 * shown:
        return None
    return Finding(
        "demonstrations_fail",
        f"{failed} demonstrations failed and {shown} succeeded",
        "inspect one with rlinf show or rlinf eval --video. A person or the task's script must "
        "be able to solve the task",
    )


def _critic_diverges(run: Evidence) -> Finding | None:
    value = run.metrics.get("q")
    if value is None or not len(run.online):
        return None
    rewards = [*run.online.rewards, *run.demonstrations.rewards]
    largest = max(float(np.abs(episode).max()) for episode in rewards)
    longest = max(len(episode) for episode in rewards)
    bound = (
        largest * min(longest, 1.0 / (1.0 - run.discount))
        if run.discount < 1
        else largest * longest
    )
    if abs(value) <= max(3.0 * bound, 10.0):
        return None
    return Finding(
        "critic_diverges",
        f"the critic predicts {value:.3g} on average; rewards of at most {largest:.3g} over "
        f"{longest} steps give at most {bound:.3g}",
        "lower algorithm.learning_rate, use more critics or layer normalisation, and check that "
        "time limits do not count as ends of the task",
    )


def _exploration_gone(run: Evidence) -> Finding | None:
    if len(run.online) < MIN_EPISODES or run.success >= 0.5:
        return None
    actions = np.concatenate(run.online.actions[-20:])
    if float(actions.std(0).max()) >= 0.02:
        return None
    return Finding(
        "exploration_gone",
        f"the policy's actions vary by at most {actions.std(0).max():.3f} of the largest step, "
        f"at {run.success:.0%} success",
        "raise algorithm.target_entropy or the policy's first spread",
    )


def _learner_behind(run: Evidence) -> Finding | None:
    ratio = make_governor(run.recipe, max_steps=1).updates_per_step
    if not isinstance(run.recipe.algorithm, ActorCriticSettings) or run.steps < 1000 or not ratio:
        return None
    reached = run.updates / run.steps
    if reached >= 0.25 * ratio or run.success >= SOLVED:
        return None
    return Finding(
        "learner_behind",
        f"{reached:.2f} updates per time step, expected {ratio:g}",
        "a faster device, smaller batches, or fewer stations; see placement for the use of time",
    )


def _episodes_stale(run: Evidence) -> Finding | None:
    stale, total = run.statuses["stale"], sum(run.statuses.values())
    if stale < max(5, 0.2 * total):
        return None
    return Finding(
        "episodes_stale",
        f"{stale} of {total} episodes came from a policy that was too old and were left out",
        "check the stations' connection (rlinf fleet status), publish more often, or allow older "
        "ones",
    )


def _episodes_refused(run: Evidence) -> Finding | None:
    refused, total = run.statuses["refused"], sum(run.statuses.values())
    if refused < max(3, 0.1 * total):
        return None
    return Finding(
        "episodes_refused",
        f"{refused} of {total} episodes were refused",
        "the reasons are in journal.jsonl and in refused/",
    )


def _helped_too_much(run: Evidence) -> Finding | None:
    if (
        len(run.operator_shares) < MIN_EPISODES
        or (share := float(np.mean(run.operator_shares))) < 0.5
    ):
        return None
    return Finding(
        "helped_too_much",
        f"a person commanded in {share:.0%} of the time steps of the newest "
        f"{len(run.operator_shares)} recordings",
        "let the policy fail more often: it learns from its own time steps",
    )


def _time_limit_short(run: Evidence) -> Finding | None:
    """Find a time limit that demonstrations, which end with success, nearly reach."""
    if len(run.demonstrations) < 3 or len(run.online) < MIN_EPISODES or run.success >= 0.5:
        return None
    limit = int(run.online.lengths.max())
    cut = run.online.lengths == limit
    needed = float(np.median(run.demonstrations.lengths))
    if cut.mean() < 0.8 or needed < 0.95 * limit:
        return None
    return Finding(
        "time_limit_short",
        f"demonstrations take {needed:.0f} steps, and {cut.mean():.0%} of the episodes are cut "
        f"off after {limit}",
        "raise max_steps of the task",
    )


def _nothing_learned_yet(run: Evidence) -> Finding | None:
    if run.updates or not (run.steps or run.evaluations):
        return None
    return Finding(
        "no_updates",
        f"{run.steps} time steps arrived, but the learner made no update",
        "the learner waits: for demonstrations (collect.episodes), or for its first steps "
        "(simulation.start_steps)",
    )


def _no_finished_episode(run: Evidence) -> Finding | None:
    played = run.steps - int(run.demonstrations.lengths.sum())
    if not run.no_episode or played < PLAYED_STEPS or run.statuses["stale"]:
        return None
    return Finding(
        "no_finished_episode",
        f"the policy played {played:,} time steps, and no episode of it has ended: the replay is "
        f"empty",
        "lower max_steps of the task, or have the environment report its time limit (truncated)",
    )


def _observations_dead(run: Evidence) -> Finding | None:
    if len(run.online) < MIN_EPISODES:
        return None
    vectors = np.concatenate(run.online.vectors)
    if (vectors.std(0) > 0).any():
        return None
    return Finding(
        "observations_dead",
        f"none of the {vectors.shape[1]} observed numbers ever changes in {len(vectors)} time "
        "steps",
        "check the sensors' topics, or the environment's observation",
    )


CHECKS: tuple[Callable[[Evidence], Finding | None], ...] = (
    _no_finished_episode,
    _nothing_learned_yet,
    _observations_dead,
    _reward_absent,
    _reward_constant,
    _terminals_missing,
    _time_limit_ends_the_task,
    _critic_diverges,
    _demonstrations_small,
    _demonstrations_clipped,
    _demonstrations_elsewhere,
    _demonstrations_fail,
    _actions_saturated,
    _exploration_gone,
    _time_limit_short,
    _episodes_refused,
    _episodes_stale,
    _learner_behind,
    _helped_too_much,
)
