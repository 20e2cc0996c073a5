"""A video model as a vector of environments, judged by the task on the predicted frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.rollouts.envs import Steps
from rlinf_core.rollouts.types import DEMONSTRATION, EVALUATE, IMAGINED, Trajectory
from rlinf_core.specs.arrays import Arrays, StationSpec
from rlinf_core.specs.topics import arm_of
from rlinf_core.tasks.task import StepResult, Task, step_result
from rlinf_core.worlds.coordinates import Coordinates, tool_of
from rlinf_core.worlds.frames import check_actions, check_frames
from rlinf_core.worlds.video import VideoModel, check_count

SUCCESS_SHARE = 0.5  # share of branches that begin in a successful episode, if there is one


class ImaginedVideoEnv:
    """N branches of a video model: a ``rlinf_core.rollouts.envs.VectorEnv``.

    A branch begins in a recorded time step. The tool's position is integrated from the commands,
    its velocity is that of the command, and every other number keeps its recorded value. The
    frames of a chunk come after its last action; until then the last frame stays.

    Args:
        model: the video model.
        task: its success must be judged by the camera, such as by a classifier of
            ``rlinf reward train``, or by the tool's position.
        trajectories: real episodes with frames.
        size: N.
        horizon: time steps of a branch.

    Raises:
        RecipeError: not exactly one camera, or no episode is long enough.
        RlinfError: a recording has no frames of the camera, damaged ones, or damaged numbers.
    """

    auto_reset = True

    def __init__(
        self,
        model: VideoModel,
        task: Task,
        trajectories: Sequence[Trajectory],
        size: int,
        horizon: int,
    ) -> None:
        if len(task.spec.images) != 1:
            raise RecipeError(
                f"a video model: expected one camera, got {len(task.spec.images)}. Set "
                "station.observe_cameras to one camera"
            )
        self.model = model
        self.task = task
        self.spec = task.spec
        self.size, self.horizon = size, horizon
        self.coordinates = Coordinates(task.spec)
        self.camera = task.spec.images[0]
        self._check_judged()
        for part in ("condition", "chunk"):
            check_count(getattr(model, part, None), f"a video model: {part}")
        shortest = model.condition + 1
        usable = [
            one
            for one in trajectories
            if one.mode not in (EVALUATE, IMAGINED) and len(one) >= shortest
        ]
        if not usable:
            raise RlinfError(
                f"a video model: expected recorded episodes of at least {shortest} time steps with "
                f"the camera {self.camera.name}, got none. Record some with rlinf collect"
            )
        for number, one in enumerate(usable):
            self._check_recorded(number, one)
        self.trajectories = usable
        self.successes = [one for one in usable if one.success]
        self.branch_count = 0

    def _check_judged(self) -> None:
        """Raise RecipeError if the task is judged by something that no frame and no number has."""
        judged = {*self.task.success.channels, *(getattr(self.task.failure, "channels", ()))}
        observed = {item.source for item in (*self.spec.vectors, self.camera)}
        if missing := sorted(judged - observed):
            raise RecipeError(
                f"a video model: the task's success needs {', '.join(missing)}, expected it in the "
                f"observation ({', '.join(sorted(observed))}). Train a classifier of the camera "
                "(rlinf reward train) and name it in the task's reward"
            )

    def _check_recorded(self, number: int, recorded: Trajectory) -> None:
        """Raise RlinfError if a recording's frames, numbers or actions are damaged."""
        name = f"a video model: recorded episode {recorded.id or number}"
        remedy = "Leave this episode out, or record it again"
        steps, camera = len(recorded), self.camera.name
        if missing := [one for one in (camera, "vectors") if one not in recorded.observations]:
            raise RlinfError(
                f"{name}: expected observations called {camera} and vectors, got none called "
                f"{', '.join(missing)}. {remedy}"
            )
        frames, numbers = recorded.observations[camera], recorded.observations["vectors"]
        check_frames(frames, (steps + 1, *self.camera.shape), f"{name}, camera {camera}", remedy)
        check_actions(recorded.actions, (steps, self.spec.action.dim), name, remedy)
        if numbers.shape != (steps + 1, self.spec.vector_size) or not np.isfinite(numbers).all():
            raise RlinfError(
                f"{name}: expected finite observations of shape "
                f"{(steps + 1, self.spec.vector_size)}, got shape {numbers.shape} and "
                f"{int((~np.isfinite(numbers)).sum())} values that are not finite. {remedy}"
            )

    def reset(self, seeds: Sequence[int]) -> Arrays:
        self._random = [np.random.default_rng(int(seed)) for seed in seeds]
        self.frames = np.zeros((self.size, *self.camera.shape), np.uint8)
        self.vectors = np.zeros((self.size, self.spec.vector_size), np.float32)
        self.age = np.zeros(self.size, int)
        self.results: list[StepResult] = [self._result_of(row, None) for row in range(self.size)]
        self.pending = np.zeros((self.size, self.model.chunk, self.spec.action.dim), np.float32)
        self._begin(np.arange(self.size))
        return self._observed()

    def _begin(self, rows: np.ndarray) -> None:
        """Begin the next branch of each row, half of them late in a successful episode."""
        self.branch_count += len(rows)
        count, frames, actions = self.model.condition, [], []
        for row in rows:
            random = self._random[row]
            episodes = self.trajectories
            if self.successes and random.random() < SUCCESS_SHARE:
                episodes = self.successes
            episode = episodes[int(random.integers(len(episodes)))]
            first = count - 1
            step = int(random.integers(first, max(first + 1, len(episode) - 1)))
            recorded_frames = episode.observations[self.camera.name]
            frames.append(recorded_frames[step - count + 1 : step + 1])
            actions.append(episode.actions[step - count + 1 : step])
            self.frames[row] = recorded_frames[step]
            self.vectors[row] = episode.observations["vectors"][step]
            self.age[row] = 0
            self.results[row] = self._result_of(row, None)
        self.model.begin(rows.tolist(), np.stack(frames), np.stack(actions))

    def _result_of(self, row: int, before: StepResult | None) -> StepResult:
        channels = self.coordinates.channels(self.vectors[row])
        channels[self.camera.source] = self.frames[row]
        return step_result(self.task, channels, int(self.age[row]), before)

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> Steps:
        rows = np.arange(self.size) if active is None else np.flatnonzero(active)
        reward, terminated, truncated, success = (np.zeros(self.size) for _ in range(4))
        name, remedy = "the policy in a video model", "Correct the policy"
        played = np.asarray(actions, np.float32)[rows]
        check_actions(played, (len(rows), self.spec.action.dim), name, remedy)
        played = np.clip(played, -1.0, 1.0)
        self.vectors[rows] = self._moved(self.vectors[rows], played)
        chunk_index = self.age[rows] % self.model.chunk
        self.pending[rows, chunk_index] = played
        self.age[rows] += 1
        full = rows[chunk_index == self.model.chunk - 1]
        if len(full):
            frames = self.model.step(full.tolist(), self.pending[full])
            check_frames(
                frames,
                (len(full), self.model.chunk, *self.camera.shape),
                "a video model",
                "Set station.image_size, or correct the model's method step",
            )
        for index, row in enumerate(full):
            for frame in frames[index]:  # a success between two looks of the policy counts
                self.frames[row] = frame
                self.results[row] = self._result_of(row, self.results[row])
                if self.results[row].terminated:
                    break
        for row in full:
            result = self.results[row]
            reward[row], success[row] = result.reward, float(result.success)
            terminated[row] = float(result.terminated)
        truncated[rows] = (self.age[rows] >= self.horizon) & (terminated[rows] == 0.0)
        after = self._observed()
        done = np.flatnonzero(np.maximum(terminated, truncated))
        if not self.auto_reset:
            done = done[:0]
        if len(done):
            self._begin(done)
        observation = self._observed() if len(done) else after
        return Steps(after, reward, terminated, truncated, success, observation)

    def _moved(self, vectors: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return the numbers after normalised actions (R, A), integrated from the commands."""
        moved = vectors.copy()
        si = np.array([self.spec.action.to_si(action) for action in actions])
        start = 0
        for item in self.spec.vectors:
            columns = slice(start, start + item.size)
            start += item.size
            arm = arm_of(item.source)
            step = si[:, self.spec.action.rows(arm)][:, :3]
            if item.source == tool_of(arm) and item.take in ("position", "all"):
                moved[:, columns.start : columns.start + 3] += step
            elif item.take == "linear":
                moved[:, columns] = step * self.spec.control_hz
            elif item.take == "offset":
                moved[:, columns] -= step
        return moved

    def _observed(self) -> Arrays:
        return {"vectors": self.vectors.copy(), self.camera.name: self.frames.copy()}

    def demonstrations(self) -> list[Trajectory]:
        """Return the real demonstrations."""
        return [one for one in self.successes if one.mode == DEMONSTRATION]

    def expert(self) -> np.ndarray:
        """Raise RecipeError, because there is no expert."""
        raise RecipeError(
            "a video model has no script for demonstrations: expected recorded ones. Record them "
            "with rlinf collect"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the draws; a resumed run begins new branches."""
        return {"random": [random.bit_generator.state for random in self._random]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the draws with new branches."""
        self.reset(range(self.size))
        for random, random_state in zip(self._random, state["random"], strict=True):
            random.bit_generator.state = random_state
        self._begin(np.arange(self.size))

    def render(self, index: int = 0) -> np.ndarray:
        """Return the present frame (H, W, 3) of a branch."""
        return self.frames[index].copy()

    def close(self) -> None:
        """End the model's process, if it has one."""
        if hasattr(self.model, "close"):
            self.model.close()


def spec_camera(spec: StationSpec) -> str:
    """Return the name of the only camera of a spec.

    Raises:
        RecipeError: there is none, or several.
    """
    if len(spec.images) != 1:
        raise RecipeError(
            f"a video model: expected one camera, got {len(spec.images)}. Set "
            "station.observe_cameras to one camera"
        )
    return spec.images[0].name
