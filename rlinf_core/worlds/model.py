"""A world model learned from episodes. It is stepped like an environment, and estimates its error.

Its predictions of held-out episodes set the horizon, and decide whether the model is used at all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlinf_core.core.atomic_io import write_atomically
from rlinf_core.core.errors import RlinfError
from rlinf_core.specs.arrays import StationSpec
from rlinf_core.tasks.task import StepResult, Task, step_result
from rlinf_core.worlds.coordinates import Coordinates
from rlinf_core.worlds.ensemble import Ensemble
from rlinf_core.worlds.episodes import Episodes, Windows
from rlinf_core.worlds.settings import WorldSettings

FORMAT = "rlinf-world-1"
UNROLL = 2  # time steps along which a gradient step predicts
MAX_ERROR_RATIO = 0.5  # fraction of persistence's error up to which a prediction is useful
BAG = 0.8  # share of the episodes that each member is fitted to
LAST_RATE = 0.01  # fraction of the learning rate at the end of a fit
MAX_WINDOWS = 2000  # largest number of held-out windows in a check
VOTES = 2  # rollouts of each member in ``confirms``
VOTE_NOISE = 0.1  # fraction of a held-out error that each time step of a vote adds
MAX_STORED_ERRORS = 500  # largest number of held-out errors that a world keeps


@dataclass(frozen=True)
class WorldCheck:
    """A world's open-loop predictions of held-out episodes.

    Attributes:
        errors, persistence: (K,) mean error after k + 1 time steps, in standard deviations of the
            state's change, of the world and of the prediction that nothing changes.
        tool_mm, persistence_mm: (K,) the same of the tool's position [mm]; empty if that is not
            observed.
        correlation: rank correlation of disagreement and error after one time step.
        threshold: disagreement beyond which a branch ends.
        coverage: share of the time steps within the threshold whose error is below the 0.95
            quantile of all errors.
        horizon: time steps for which the errors stay below half of persistence's; 0: the world is
            off.
        windows: number of windows in the check.
    """

    errors: tuple[float, ...] = ()
    persistence: tuple[float, ...] = ()
    tool_mm: tuple[float, ...] = ()
    persistence_mm: tuple[float, ...] = ()
    correlation: float = 0.0
    threshold: float = 0.0
    coverage: float = 0.0
    horizon: int = 0
    windows: int = 0


@dataclass
class WorldState:
    """B branches, each at a time step.

    Attributes:
        vectors: (B, H, V) the last observations, the present one last.
        actions: (B, H - 1, A) between them.
        members: (B,) the member whose predictions each branch follows; -1 for the mean of all.
        steps: (B,) time steps since the episode began, imagined ones included.
        results: B results of the present time step.
    """

    vectors: Tensor
    actions: Tensor
    members: Tensor
    steps: np.ndarray
    results: list[StepResult] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.steps)


class WorldModel:
    """An ensemble that predicts a task's observations; the task's own terms judge them.

    Args:
        task: the task.
        settings: sizes of the ensemble.
        seed: seed of weights and batches.

    Attributes:
        check: result of the last fit.
        fits: number of fits.
        held_out_errors: (N, V) errors of held-out predictions of one time step, from the last fit.

    Raises:
        SpecError: the observed numbers do not contain the channels that judge the task.
    """

    def __init__(self, task: Task, settings: WorldSettings | None = None, seed: int = 0) -> None:
        self.task = task
        self.settings = settings or WorldSettings()
        self.spec = task.spec
        self.coordinates = Coordinates(task.spec)
        self.coordinates.check_judged(task)
        self.generator = torch.Generator().manual_seed(seed)
        self.ensemble = Ensemble(
            self.spec.vector_size,
            self.spec.action.dim,
            self.settings.history,
            self.settings.hidden,
            self.settings.members,
            torch.from_numpy(self.coordinates.matrix),
            self.generator,
        )
        self.check = WorldCheck()
        self.fits = 0
        self.held_out_errors = torch.zeros(0, self.spec.vector_size)

    @property
    def usable(self) -> bool:
        """Whether it predicts better than persistence."""
        return self.check.horizon > 0

    def fit(
        self, episodes: Episodes, updates: int | None = None, seconds: float | None = None
    ) -> WorldCheck:
        """Fit the world to episodes, every tenth held out, and check it on those.

        Args:
            episodes: at least two.
            updates: gradient steps; by default those of the settings.
            seconds: process time of the fit, instead of ``updates``.
        """
        if len(episodes) < 2:
            raise RlinfError(
                f"a learned world: expected at least 2 episodes to fit it to, got {len(episodes)}"
            )
        settings, ensemble = self.settings, self.ensemble
        updates = updates or (settings.updates if self.fits else settings.first_updates)
        index = episodes.starts(~episodes.held_out, UNROLL)
        if not len(index):
            raise RlinfError(
                f"a learned world: expected an episode of at least {UNROLL} time steps, got none"
            )
        vectors, actions, after = self._transitions(episodes, index, UNROLL)
        ensemble.fit_statistics(vectors[:, -1], after[:, 0])
        bags = self._bags(episodes, index)
        optimiser = torch.optim.AdamW(
            ensemble.parameters(), settings.learning_rate, weight_decay=1e-4
        )
        started, update = time.process_time(), 0
        while (
            done := (time.process_time() - started) / seconds if seconds else update / updates
        ) < 1.0:
            for group in optimiser.param_groups:
                group["lr"] = settings.learning_rate * (
                    LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + np.cos(np.pi * done))
                )
            rows = torch.stack(
                [
                    bag[torch.randint(len(bag), (settings.batch_size,), generator=self.generator)]
                    for bag in bags
                ]
            )
            optimiser.zero_grad()
            ensemble.loss(vectors[rows], actions[rows], after[rows]).backward()
            torch.nn.utils.clip_grad_norm_(ensemble.parameters(), 5.0)
            optimiser.step()
            update += 1
        self.fits += 1
        self.check = self.evaluate_held_out(episodes)
        self.held_out_errors = self._held_out_errors(episodes)
        return self.check

    def _bags(self, episodes: Episodes, index: np.ndarray) -> list[Tensor]:
        """Return the rows of ``index`` for each member, of four episodes in five."""
        numbers = np.searchsorted(episodes.bounds, index, side="right") - 1
        drawn = np.array(
            [
                np.random.default_rng(number).random(self.settings.members) < BAG
                for number in range(len(episodes))
            ]
        )
        rows = [np.flatnonzero(drawn[numbers, member]) for member in range(self.settings.members)]
        return [torch.from_numpy(part if len(part) else np.arange(len(index))) for part in rows]

    def _transitions(
        self, episodes: Episodes, index: np.ndarray, count: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return windows, the actions in and after them, and the following observations.

        Their shapes are (N, H, V), (N, H - 1 + count, A) and (N, count, V).
        """
        windows = episodes.windows(index, self.settings.history)
        actions, after = episodes.following(index, count)
        return (
            torch.from_numpy(windows.vectors),
            torch.from_numpy(np.concatenate([windows.actions, actions], axis=1)),
            torch.from_numpy(after),
        )

    @torch.no_grad()
    def evaluate_held_out(self, episodes: Episodes, depth: int | None = None) -> WorldCheck:
        """Predict the held-out episodes for ``depth`` time steps, and return the errors."""
        longest = int(np.diff(episodes.bounds)[episodes.held_out].max(initial=1)) - 1
        depth = max(1, min(depth or max(self.settings.horizon, 10), longest))
        index = self._evenly_spaced(episodes.starts(episodes.held_out, depth))
        vectors, actions, after = self._transitions(episodes, index, depth)
        history = self.settings.history
        mean_of_members = torch.full((len(index),), -1)
        state = WorldState(
            vectors, actions[:, : history - 1], mean_of_members, np.zeros(len(index), int)
        )
        distances, disagreements = [], []  # (B,) after each time step
        errors, persistence, tool_mm, persistence_mm = [], [], [], []
        tool, start = self.coordinates.tool, vectors[:, -1]
        for step in range(depth):
            state, disagreement = self._predict(state, actions[:, history - 1 + step])
            predicted, recorded = state.vectors[:, -1], after[:, step]
            distances.append(self._distance(predicted, recorded))
            disagreements.append(disagreement)
            errors.append(float(distances[-1].mean()))
            persistence.append(float(self._distance(start, recorded).mean()))
            if len(tool):
                tool_mm.append(_millimetres(predicted, recorded, tool))
                persistence_mm.append(_millimetres(start, recorded, tool))
        useful_steps = 0
        while (
            useful_steps < depth
            and errors[useful_steps] <= MAX_ERROR_RATIO * persistence[useful_steps]
        ):
            useful_steps += 1
        horizon = min(useful_steps, self.settings.horizon)
        trusted = torch.cat(disagreements[: max(1, horizon)])
        threshold = float(torch.quantile(trusted, self.settings.quantile))
        first_distance, first_disagreement = distances[0].numpy(), disagreements[0].numpy()
        within = first_disagreement <= threshold
        is_small = first_distance[within] <= np.quantile(first_distance, 0.95)
        return WorldCheck(
            tuple(errors),
            tuple(persistence),
            tuple(tool_mm),
            tuple(persistence_mm),
            rank_correlation(first_disagreement, first_distance),
            threshold,
            float(is_small.mean()) if within.any() else 0.0,
            horizon,
            len(index),
        )

    @torch.no_grad()
    def _held_out_errors(self, episodes: Episodes) -> Tensor:
        """Return errors (N, V) of the mean's predictions of one time step of held-out episodes."""
        index = self._evenly_spaced(episodes.starts(episodes.held_out), MAX_STORED_ERRORS)
        vectors, actions, after = self._transitions(episodes, index, 1)
        members, steps = torch.full((len(index),), -1), np.zeros(len(index), int)
        predicted, _ = self._predict(
            WorldState(vectors, actions[:, :-1], members, steps), actions[:, -1]
        )
        return after[:, 0] - predicted.vectors[:, -1]

    def _evenly_spaced(self, index: np.ndarray, most: int = MAX_WINDOWS) -> np.ndarray:
        """Return at most ``most`` indices, evenly spaced."""
        if not len(index):
            return index
        return index[np.linspace(0, len(index) - 1, min(len(index), most)).astype(int)]

    def _distance(self, one: Tensor, other: Tensor) -> Tensor:
        """Return the distance (B,) of two batches of vectors (B, V), as states.

        The unit is the standard deviation of the state's change.
        """
        change = ((one - other) @ self.ensemble.matrix) / self.ensemble.change_std
        return change.square().mean(-1).sqrt()

    def begin(self, windows: Windows, members: Tensor | None = None) -> WorldState:
        """Begin branches from recorded windows; each follows a given or drawn member (B,).

        A member below 0 stands for the mean of all.
        """
        if members is None:
            members = torch.randint(
                self.settings.members, (len(windows),), generator=self.generator
            )
        first = [
            step_result(self.task, self.coordinates.channels(vectors), 0)
            for vectors in windows.vectors[:, -1]
        ]
        return WorldState(
            torch.from_numpy(windows.vectors.copy()),
            torch.from_numpy(windows.actions.copy()),
            members,
            windows.steps.copy(),
            first,
        )

    @torch.no_grad()
    def step(
        self, state: WorldState, actions: np.ndarray | Tensor
    ) -> tuple[WorldState, np.ndarray, np.ndarray, np.ndarray]:
        """Play normalised actions (B, A) for one time step.

        Returns:
            The next state; the task's reward (B,); a mask (B,) of tasks that ended, by success or
            failure; and the members' disagreement (B,), in standard deviations of the state's
            change.
        """
        following, disagreement = self._predict(
            state, torch.as_tensor(actions, dtype=torch.float32).clamp(-1.0, 1.0)
        )
        following.results = [
            step_result(self.task, self.coordinates.channels(vectors), int(step), before)
            for vectors, step, before in zip(
                following.vectors[:, -1].numpy(), following.steps, state.results, strict=True
            )
        ]
        reward = np.array([result.reward for result in following.results])
        terminated = np.array([result.terminated for result in following.results], float)
        return following, reward, terminated, disagreement.numpy()

    def confirms(self, windows: Windows, plan: np.ndarray) -> bool:
        """Return whether all votes succeed with a plan (K, A) from one recorded window.

        Each member votes twice. It plays the plan along its own predictions, not along those of
        the others, and each time step adds a tenth of an error that was measured on a held-out
        time step. The errors are the same in every call.
        """
        count = VOTES * self.settings.members
        rows = np.zeros(count, int)
        repeated = Windows(windows.vectors[rows], windows.actions[rows], windows.steps[rows])
        state = self.begin(repeated, torch.arange(count) % self.settings.members)
        random = np.random.default_rng(0)
        succeeded = np.zeros(count, bool)
        for action in plan:
            state, _, _, _ = self.step(state, np.repeat(action[None], count, 0))
            succeeded |= np.array([result.success for result in state.results])
            if len(self.held_out_errors):
                drawn = random.integers(len(self.held_out_errors), size=count)
                state.vectors[:, -1] += VOTE_NOISE * self.held_out_errors[drawn]
        return bool(succeeded.all())

    def _predict(self, state: WorldState, actions: Tensor) -> tuple[WorldState, Tensor]:
        """Return the state after these actions, without results, and the disagreement (B,)."""
        ensemble, members = self.ensemble, self.settings.members
        played = torch.cat([state.actions, actions[:, None]], 1)
        spread = (members, -1, -1, -1)
        following, change = ensemble.following(state.vectors.expand(spread), played.expand(spread))
        disagreement = change.std(0, correction=0).square().mean(-1).sqrt()
        chosen = following[state.members.clamp_min(0), torch.arange(len(state))]
        chosen = torch.where((state.members < 0)[:, None], following.mean(0), chosen)
        vectors = torch.cat([state.vectors[:, 1:], chosen[:, None]], 1)
        return WorldState(vectors, played[:, 1:], state.members, state.steps + 1), disagreement

    # Files
    def save(self, path: Path, episodes: Episodes) -> Path:
        """Write one safetensors file with the world and the episodes that branches begin from."""
        from safetensors.torch import save_file

        described = {
            "settings": self.settings.model_dump(),
            "spec": self.spec.to_dict(),
            "check": asdict(self.check),
            "fits": self.fits,
        }
        tensors = {
            f"ensemble/{name}": tensor.contiguous()
            for name, tensor in self.ensemble.state_dict().items()
        }
        tensors |= {
            f"episodes/{name}": torch.from_numpy(np.ascontiguousarray(getattr(episodes, name)))
            for name in ARRAYS
        }
        tensors["held_out_errors"] = self.held_out_errors.contiguous()
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_atomically(
            path,
            lambda temporary: save_file(
                tensors,
                temporary,
                {
                    "format": FORMAT,
                    **{name: json.dumps(value) for name, value in described.items()},
                },
            ),
        )

    def state_dict(self) -> dict[str, object]:
        """Return the state for a later ``load_state_dict``."""
        return {
            "ensemble": self.ensemble.state_dict(),
            "generator": self.generator.get_state(),
            "fits": self.fits,
            "check": [asdict(self.check)],
            "held_out_errors": self.held_out_errors,
        }

    def load_state_dict(self, state: dict) -> None:
        """Restore a ``state_dict``."""
        self.ensemble.load_state_dict(
            {name: torch.as_tensor(value) for name, value in state["ensemble"].items()}
        )
        self.generator.set_state(torch.as_tensor(state["generator"]))
        self.fits = state["fits"]
        self.check = _check_of(state["check"][0])
        self.held_out_errors = torch.as_tensor(  # older checkpoints have none
            state.get("held_out_errors", torch.zeros(0, self.spec.vector_size))
        )


ARRAYS = ("vectors", "actions", "bounds", "success", "demonstrations")


def load_world(path: Path, task: Task, seed: int = 0) -> tuple[WorldModel, Episodes]:
    """Load a file's world for a task, and the episodes that it was fitted to.

    Raises:
        RlinfError: there is none, it is damaged, or it was fitted to other observations or actions.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise RlinfError(
            f"{path}: expected a learned world, got no file. `rlinf world fit RUN` makes it"
        )
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        if metadata.get("format") != FORMAT:
            raise RlinfError(
                f"{path}: expected a learned world of format {FORMAT}, got "
                f"{metadata.get('format', 'another file')}. `rlinf world fit RUN` makes one"
            )
        spec = StationSpec.from_dict(json.loads(metadata["spec"]))
        settings = WorldSettings.model_validate_json(metadata["settings"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise RlinfError(
            f"{path}: expected a learned world, got a damaged file: {error}. `rlinf world fit RUN` "
            "writes it again"
        ) from error
    if difference := spec.difference(task.spec):
        raise RlinfError(
            f"{path}: expected a world of this task's observations and actions, got one of another "
            f"task:\n{difference}"
        )
    world = WorldModel(task, settings, seed)
    episodes = Episodes()
    try:
        bad = [
            name
            for name, tensor in tensors.items()
            if tensor.is_floating_point() and not bool(tensor.isfinite().all())
        ]
        if bad:
            raise ValueError(f"values that are not finite in {', '.join(bad)}")
        world.ensemble.load_state_dict(
            {
                name.removeprefix("ensemble/"): tensor
                for name, tensor in tensors.items()
                if name.startswith("ensemble/")
            }
        )
        world.check = _check_of(json.loads(metadata["check"]))
        world.fits = json.loads(metadata["fits"])
        if "held_out_errors" in tensors:  # older files have none
            errors = tensors["held_out_errors"]
            if errors.ndim != 2 or errors.shape[1] != task.spec.vector_size:
                raise ValueError(f"held_out_errors of shape {tuple(errors.shape)}")
            world.held_out_errors = errors
        for name in ARRAYS:
            setattr(episodes, name, tensors[f"episodes/{name}"].numpy())
        _check_stored(episodes, task.spec)
    except (RuntimeError, ValueError, LookupError, TypeError) as error:
        fault = " ".join(str(error).split())  # torch's messages have several lines
        raise RlinfError(
            f"{path}: expected a learned world, got a damaged file: {fault}. `rlinf world fit RUN` "
            "writes it again"
        ) from error
    return world, episodes


def _check_stored(episodes: Episodes, spec: StationSpec) -> None:
    """Raise ValueError if the arrays of stored episodes do not fit together."""
    rows, bounds = len(episodes.vectors), episodes.bounds
    expected = {
        "vectors": (rows, spec.vector_size),
        "actions": (rows, spec.action.dim),
        "bounds": (len(episodes) + 1,),
        "success": (len(episodes),),
        "demonstrations": (len(episodes),),
    }
    for name, shape in expected.items():
        if (actual := getattr(episodes, name).shape) != shape:
            raise ValueError(f"episodes/{name} of shape {actual} instead of {shape}")
    if bounds[0] != 0 or bounds[-1] != rows or (np.diff(bounds) < 2).any():
        raise ValueError(f"episodes/bounds that do not divide {rows} rows into episodes")


def _check_of(document: dict[str, Any]) -> WorldCheck:
    curves = ("errors", "persistence", "tool_mm", "persistence_mm")
    return WorldCheck(**{**document, **{name: tuple(document[name]) for name in curves}})


def _millimetres(one: Tensor, other: Tensor, tool: np.ndarray) -> float:
    """Return the mean distance [mm] of the tool's positions, at the indices ``tool``."""
    return float((one[:, tool] - other[:, tool]).norm(dim=-1).mean()) * 1000.0


def rank_correlation(
    one: Sequence[float] | np.ndarray, other: Sequence[float] | np.ndarray
) -> float:
    """Return Spearman's rank correlation, ties at their mean; 0 if an input does not vary."""
    ranks = [_ranks(np.asarray(values, float)) for values in (one, other)]
    if len(ranks[0]) < 2 or any(part.std() == 0.0 for part in ranks):
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2.0)[place]
