"""Observations to a world's state, and its predictions to a task's channels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rlinf_core.core.errors import SpecError
from rlinf_core.core.rotation import to_quaternion
from rlinf_core.specs.arrays import ArraySpec, StationSpec
from rlinf_core.specs.topics import arm_of, of_arms, topic
from rlinf_core.tasks.task import Task

Write = Callable[[dict[str, np.ndarray], np.ndarray], None]
JUDGED = ("all", "position", "offset")  # parts of a pose by which a task may be judged


class Coordinates:
    """The place in space of the vectors of a station's specs.

    An offset from the tool changes with every motion, even if its object rests. A world predicts
    positions in the base frame instead: ``state = vectors @ matrix``, and back by its inverse.

    Attributes:
        matrix: (V, V) float32.
        tool: indices (3,) of the tool's position in the vectors, of the first arm; empty if it is
            not observed.
    """

    def __init__(self, spec: StationSpec) -> None:
        self.spec = spec
        self.matrix = np.eye(spec.vector_size, dtype=np.float32)
        self._slices: dict[str, slice] = {}
        start = 0
        for item in spec.vectors:
            self._slices[item.name] = slice(start, start + item.size)
            start += item.size
        positions = {
            item.source: self._slices[item.name]
            for item in spec.vectors
            if item.take == "position"
            or (item.take == "all" and topic(item.source).channel == (7,))
        }
        tools = [
            positions[tool]
            for arm in (spec.action.arms or ("",))
            if (tool := tool_of(arm)) in positions
        ]
        self.tool = np.arange(tools[0].start, tools[0].start + 3) if tools else np.zeros(0, int)
        self._tool_of: dict[str, slice] = {}
        for item in spec.vectors:
            source = tool_of(arm_of(item.source))
            if item.take == "offset" and source in positions:
                self._tool_of[item.name] = positions[source]
                columns, rows = self._slices[item.name], positions[source].start
                self.matrix[rows : rows + 3, columns] = np.eye(3)

    def check_judged(self, task: Task) -> None:
        """Check that the observed numbers contain the channels that judge the task.

        Raises:
            SpecError: a channel is missing; the message names it.
        """
        needed = {*task.success.channels, *(task.failure.channels if task.failure else ())}
        shown = {
            item.source
            for item in self.spec.vectors
            if topic(item.source).channel != (7,) or (item.take in JUDGED and self._placed(item))
        }
        if missing := sorted(needed - shown):
            raise SpecError(
                f"a learned world: the task's success needs {', '.join(missing)}, expected it in "
                f"the observation ({', '.join(sorted(shown)) or 'none'}). Add it to the task's "
                "observation, with take: position or offset"
            )

    def _placed(self, item: ArraySpec) -> bool:
        return item.take != "offset" or item.name in self._tool_of

    def channels(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        """Return the channels of one observation (V,), as far as its numbers contain them."""
        channels: dict[str, np.ndarray] = {}
        for item in self.spec.vectors:
            size = (topic(item.source).channel or (item.size,))[0]
            if item.source not in channels:
                channels[item.source] = np.zeros(item.size if size < 0 else size)
                if size == 7:
                    channels[item.source][6] = 1.0
            values, channel = vectors[self._slices[item.name]].astype(float), channels[item.source]
            if item.take == "offset" and item.name in self._tool_of:
                channel[:3] = values + vectors[self._tool_of[item.name]][:3]
            elif item.take in ("position", "linear", "force"):
                channel[:3] = values
            elif item.take == "rotation":
                channel[3:7] = to_quaternion(values)
            elif item.take in ("angular", "torque"):
                channel[3:6] = values
            elif item.take == "all":
                channel[:] = values
        return channels


def tool_of(arm: str) -> str:
    """Return the channel of an arm's tool."""
    return of_arms("current_pose", [arm] if arm else [])[0]
