"""Agreements between nodes about episodes: their names, playing policy and instruction.

An episode's name is ``<station>-<request>-<number>``: those of one request belong together.
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
from rlinf_core.specs.arrays import encode_instructions
from rlinf_ros.conversions import to_ns

RECORDER_INACTIVE = "the recorder is inactive: activate it (rlinf lifecycle recorder activate)"


def new_request() -> str:
    """Return a name for a request to run episodes, ordered by time."""
    return f"{time_stamp()}-{uuid.uuid4().hex[:8]}"


def episode_name(station: str, request: str, number: int) -> str:
    """Return the name of the ``number``-th episode of ``request``.

    >>> episode_name("station_a", "20261122T040052-1f3a9c2b", 7)
    'station_a-20261122T040052-1f3a9c2b-007'
    """
    return f"{station}-{request}-{number:03d}"


def request_of(episode_id: str) -> str:
    """Return station and request of an episode, the same for all episodes of a request.

    >>> request_of("station_a-20261122T040052-1f3a9c2b-007")
    'station_a-20261122T040052-1f3a9c2b'
    """
    return episode_id.rpartition("-")[0]


class PolicyTracker:
    """Follows the policy's reports and the applied actions; describes changes in an episode.

    Attributes:
        version: version of the policy that plays this episode; -1 for the operator.
    """

    def __init__(self) -> None:
        self.version = -1
        self.announced = PolicyStatus(version=-1)
        self.mode = ""
        self.began_ns = 0
        # the policy's; empty while only the operator has played, None before that
        self.session: str | None = None

    def begin(self, mode: str, began_ns: int) -> None:
        """Begin an episode; until an action is applied, the announced policy plays it."""
        self.mode = mode
        self.began_ns = began_ns
        self.session = None
        self.version = -1 if mode == "demonstration" else self.announced.version

    def update(self, status: PolicyStatus) -> str:
        """Take a status of the policy; return a description of a change that breaks the episode."""
        before = self.announced
        self.announced = status
        if self.mode == "demonstration":
            return ""
        if self.session is None:
            self.version = status.version
        if before.session not in ("", status.session):
            return "the policy was restarted during the episode"
        return ""

    def played(self, applied: Applied) -> str:
        """Take an applied action, of this or the previous episode.

        Returns:
            A description of a change that breaks the episode.
        """
        if to_ns(applied.observation_stamp) < self.began_ns:
            return ""
        if applied.source != "policy":
            if self.session is None:
                self.session = ""
                self.version = -1
            return ""
        before_session, before_version = self.session, self.version
        self.session, self.version = applied.session, applied.policy_version
        same = (before_session, before_version) == (self.session, self.version)
        if before_session and not same:
            return (
                f"the policy changed during the episode, from version {before_version} to "
                f"{self.version}"
            )
        return ""


NAME = "instruction"


def checked_instruction(words: str) -> str:
    """Return the instruction without surrounding blanks; raise SpecError if it is invalid."""
    encode_instructions([words])
    if words and not words.strip():
        raise SpecError(
            "instruction: expected words, or '' for the instruction of scene or task; got blanks"
        )
    if not words.isprintable():
        raise SpecError(f"instruction: expected one line of words, got {words!r}")
    return words.strip()


class InstructionParameter:
    """The parameter ``instruction`` of a node, valid from the next time step on."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.words = ""
        node.add_on_set_parameters_callback(self._check)
        node.add_post_set_parameters_callback(self._changed)
        node.declare_parameter(NAME, "")

    def _check(self, parameters: Sequence[Parameter]) -> SetParametersResult:
        try:
            for parameter in parameters:
                if parameter.name == NAME:
                    checked_instruction(str(parameter.value))
        except SpecError as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def _changed(self, parameters: Sequence[Parameter]) -> None:
        for parameter in parameters:
            if (
                parameter.name == NAME
                and (words := checked_instruction(str(parameter.value))) != self.words
            ):
                self.words = words
                self.node.get_logger().info(
                    f"asked for: {words or 'the instruction of scene or task'}"
                )
