"""Episodes as nodes agree on them: their names, the policy that plays one, and the instruction that it is given.

The name of an episode is ``<station>-<request>-<number>``: those of one request belong together.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from rcl_interfaces.msg import SetParametersResult
from rclpy.node import Node
from rclpy.parameter import Parameter
from rlinf_msgs.msg import Applied, PolicyStatus

from rlinf_core.core.errors import SpecError
from rlinf_core.episodes.names import time_stamp
from rlinf_core.specs.arrays import encoded
from rlinf_ros.conversions import to_ns

RECORDER_INACTIVE = "the recorder is inactive: activate it (rlinf lifecycle recorder activate)"


def new_request() -> str:
    """A name for a request to run episodes, ordered by time."""
    return f"{time_stamp()}-{uuid.uuid4().hex[:8]}"


def episode_name(station: str, request: str, number: int) -> str:
    """The ``number``-th episode that was begun for ``request``.

    >>> episode_name("station_a", "20261122T040052-1f3a9c2b", 7)
    'station_a-20261122T040052-1f3a9c2b-007'
    """
    return f"{station}-{request}-{number:03d}"


def request_of(episode_id: str) -> str:
    """Station and request of an episode, the same for all that were asked for together.

    >>> request_of("station_a-20261122T040052-1f3a9c2b-007")
    'station_a-20261122T040052-1f3a9c2b'
    """
    return episode_id.rpartition("-")[0]


class PolicyTracker:
    """Follows what the policy says of itself and what was applied; a change within an episode is told in words.

    Attributes:
        version: of the policy that plays this episode; -1 where the operator does.
    """

    def __init__(self) -> None:
        self.version = -1
        self.announced = PolicyStatus(version=-1)
        self.mode = ""
        self.began_ns = 0
        self.session: str | None = None  # of the policy; empty while the operator alone has played, None before that

    def begin(self, mode: str, began_ns: int) -> None:
        """An episode begins; until something is applied, whoever has announced itself plays it."""
        self.mode = mode
        self.began_ns = began_ns
        self.session = None
        self.version = -1 if mode == "demonstration" else self.announced.version

    def update(self, status: PolicyStatus) -> str:
        """Take a status of the policy; returns what changed, if that breaks the episode."""
        before, self.announced = self.announced, status
        if self.mode == "demonstration":
            return ""
        if self.session is None:
            self.version = status.version
        return "the policy was started again within the episode" if before.session not in ("", status.session) else ""

    def played(self, applied: Applied) -> str:
        """Take an applied action, of this episode or the one before; returns what changed, if that breaks the episode."""
        if to_ns(applied.observation_stamp) < self.began_ns:
            return ""
        if applied.source != "policy":
            if self.session is None:
                self.session, self.version = "", -1
            return ""
        before = self.session
        self.session = applied.session
        was = self.version
        self.version = applied.policy_version
        if before and (before, was) != (self.session, self.version):
            return f"the policy changed within the episode, from version {was} to {self.version}"
        return ""


NAME = "instruction"


def fitting(words: str) -> str:
    """The instruction without what surrounds it; SpecError where it is none."""
    encoded([words])
    if words and not words.strip():
        raise SpecError("instruction: expected words, or nothing at all for what scene or task say; got blanks")
    if not words.isprintable():
        raise SpecError(f"instruction: expected one line of words, got {words!r}")
    return words.strip()


class InstructionParameter:
    """The parameter ``instruction`` of a node: words hold from the next time step on, until others are said."""

    def __init__(self, node: Node) -> None:
        self.node, self.words = node, ""
        node.add_on_set_parameters_callback(self._check)
        node.add_post_set_parameters_callback(self._changed)
        node.declare_parameter(NAME, "")

    def _check(self, parameters: Sequence[Parameter]) -> SetParametersResult:
        try:
            for parameter in parameters:
                if parameter.name == NAME:
                    fitting(str(parameter.value))
        except SpecError as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def _changed(self, parameters: Sequence[Parameter]) -> None:
        for parameter in parameters:
            if parameter.name == NAME and (words := fitting(str(parameter.value))) != self.words:
                self.words = words
                self.node.get_logger().info(f"asked for: {words or 'what scene or task say'}")
