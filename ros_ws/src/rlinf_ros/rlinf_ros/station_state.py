"""The state of a station for other nodes and for people: its nodes, interlock and trainer.

``RequestStop`` ends a request for episodes once the interlock has stopped.
``command_node`` and ``command_context`` are the node and the session of a person's command.
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import rclpy
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from rclpy.task import Future
from rlinf_msgs.msg import PolicyStatus, SafetyState, TrainerStatus

from rlinf_core.core.errors import RlinfError
from rlinf_core.core.ros import MULTICAST, network_trouble, shell_domain
from rlinf_core.interlock import Mode
from rlinf_core.interlock.takeover import OPERATOR_SILENT
from rlinf_core.recipes.schema import Station
from rlinf_ros.arms import subscribe_safety

WARN_AFTER_S, WARN_INTERVAL_S = 5.0, 30.0
HELPERS = ("_inputs", "_services", "_client")  # second nodes of one process


def publisher_ids(node: Node, topic: str, others: bool = False) -> set[tuple[int, ...]]:
    """Return a topic's publishers by the middleware's identifiers, which distinguish namesakes.

    With ``others``, the node's own are left out.
    """
    return {
        tuple(publisher.endpoint_gid)
        for publisher in node.get_publishers_info_by_topic(topic)
        if not (others and publisher.node_name == node.get_name())
    }


def is_directed(node: Node, namespace: str = "") -> bool:
    """Return whether a director, which keeps requesting episodes, runs the station of a namespace.

    The default is the node's own namespace.
    """
    return ("director", namespace or node.get_namespace()) in node.get_node_names_and_namespaces()


def silence_message(node: Node, of: str, seconds: float) -> str:
    """Return an error text for a silent node ``of`` of the station.

    It names the place of the search and the nodes found there.
    """
    station = node.get_namespace().strip("/").partition("/")[0]
    nodes = [(name, space.strip("/")) for name, space in node.get_node_names_and_namespaces()]
    station_nodes = sorted(
        {
            name
            for name, space in nodes
            if space.partition("/")[0] == station
            and name != node.get_name()
            and not name.endswith(HELPERS)
            and not name.startswith("station_client_")
        }
    )
    others = sorted(
        {
            space
            for name, space in nodes
            if name == "interlock" and space.partition("/")[0] != station
        }
    )
    remark = f"nodes of this station: {', '.join(station_nodes)}; " if station_nodes else ""
    remark += f"other stations: {', '.join(others)}" if others else "no other station"
    reach = os.environ.get("ROS_AUTOMATIC_DISCOVERY_RANGE") or "SUBNET"
    where = (
        "this machine"
        if reach == "LOCALHOST"
        else f"the network (ROS_AUTOMATIC_DISCOVERY_RANGE {reach})"
    )
    if reach == "SUBNET" and (trouble := network_trouble(MULTICAST)):
        remark += f"; {trouble}"
    return (
        f"expected station '{station}' in ROS_DOMAIN_ID {os.environ.get('ROS_DOMAIN_ID') or 0} on "
        f"{where}, received no {of} for {seconds:.0f} s; {remark}. Start it (rlinf up <recipe>), "
        "or give the recipe and overrides of the running one: <recipe> --set station.name=... "
        "station.domain_id=..."
    )


class Discovery:
    """Warns, now and then, while a part of the station is missing.

    Args:
        node: a node in the station's namespace.
        of: the name of the awaited node.
        is_present: returns whether it is present.

    Attributes:
        warning: the warning; empty while all is well.
    """

    def __init__(self, node: Node, of: str, is_present: Callable[[], bool]) -> None:
        self.node = node
        self.of = of
        self.is_present = is_present
        self.warning = ""
        self.since = time.monotonic()
        node.create_timer(1.0, self._poll)

    def _poll(self) -> None:
        now = time.monotonic()
        if self.is_present():
            if self.warning:
                self.node.get_logger().info(f"the {self.of} was discovered")
            self.since = now
            self.warning = ""
        elif now - self.since > WARN_AFTER_S:
            self.warning = silence_message(self.node, self.of, now - self.since)
            self.node.get_logger().warning(self.warning, throttle_duration_sec=WARN_INTERVAL_S)


STOPPED = "the interlock stopped"
AT_REST = (SafetyState.DISARMED, SafetyState.FAULT)
RUN_CONTINUES_S = 3.0  # a director asks again this long after a person has armed
RUN_CONTINUES = (
    "A run is active and moves the arm as soon as it is armed. End the run first if the arm must "
    "stay at rest"
)


class RequestStop:
    """Watches the combined state of the interlocks.

    Attributes:
        reason: why the request in play must end; empty if it may go on.
    """

    def __init__(self) -> None:
        self.reason = ""
        self.safety = SafetyState()

    def begin(self) -> None:
        """Begin another request: an earlier stop does not concern it."""
        self.reason = ""

    def on_safety(self, safety: SafetyState) -> bool:
        """Return whether this message reports a stop: a disarming, or a new fault."""
        before = self.safety.state
        self.safety = safety
        has_come_to_rest = safety.state in AT_REST and before not in AT_REST
        is_new_fault = safety.state == SafetyState.FAULT and before != SafetyState.FAULT
        stops = has_come_to_rest or is_new_fault
        if stops:
            self.reason = (
                f"{STOPPED}: {Mode(safety.state).name} {safety.cause}".rstrip()
                + ". Arm, then try again"
            )
        return stops

    def refusal(self) -> str:
        """Return why no request is accepted now; empty if one may be.

        While disarmed, a person arms after the request.
        """
        if self.safety.state != SafetyState.FAULT:
            return ""
        return f"FAULT '{self.safety.cause}' is active. Reset it, arm, then try again"


DEFAULT = Station()


def resume_instruction(safety: SafetyState, namespace: str) -> str:
    """Return what a person must do before the arm can move; empty if nothing."""
    station = namespace.strip("/")
    arm = (
        f"{command('arm', station)}, or e in `rlinf teleop` or `rlinf collect` (with ROS: ros2 "
        f"service call {namespace}/interlock/arm std_srvs/srv/SetBool '{{data: true}}')"
    )
    if safety.state == SafetyState.DISARMED:
        return f"disarmed; arm it: {arm}"
    if safety.state == SafetyState.HOLD and safety.cause == "new_session":
        return f"a commander was restarted. Arm again: {arm}"
    if safety.state == SafetyState.HOLD and safety.cause == "clock":
        disarm = command("disarm", station)
        return f"the clock of the interlock's machine was set; disarm it: {disarm}. Then {arm}"
    if safety.state == SafetyState.HOLD and safety.cause == OPERATOR_SILENT:
        return (
            "the operator's messages stopped in a takeover. Let go of every device, then press a "
            "key or a button of the operator. If the operator has ended, start it and arm again: "
            f"{arm}"
        )
    if safety.state == SafetyState.FAULT:
        return (
            f"FAULT '{safety.cause}'. After its cause has ended: "
            f"{command('fault reset', station, safety.cause)} (with ROS: ros2 service call "
            f'{namespace}/interlock/reset_fault rlinf_msgs/srv/ResetFault "{{cause: '
            f"'{safety.cause}'}}\"). Then arm: {arm}"
        )
    return ""


@lru_cache(maxsize=64)
def command(action: str, station: str, cause: str = "") -> str:
    """Return the ``rlinf`` command that does ``action`` at this station."""
    overrides = []
    if station != DEFAULT.name:
        overrides.append(f"station.name={station}")
    if domain := shell_domain():
        overrides.append(f"station.domain_id={domain}")
    words = [f"rlinf {action}"]
    if cause:
        words += ["--cause", shlex.quote(cause)]
    if overrides:
        words += ["--set", *overrides]
    return " ".join(words)


TAKES_S = 0.15  # time from the answer to a request to the interlock's tick and report


def state_text(safety: SafetyState) -> str:
    """Return the state with its cause, or with the commander."""
    detail = f"{safety.source} commands" if safety.state == SafetyState.ACTIVE else safety.cause
    return f"{Mode(safety.state).name} {detail}".strip()


class ArmAnswerLog:
    """Logs each answer of the arm service with the following state, and the person's next step."""

    def __init__(self, node: Node, arms: Sequence[str]) -> None:
        self.node = node
        self.last_instruction = ""
        # answers that are not logged yet, each with the time from which states are newer
        self.pending: list[tuple[float, str]] = []
        subscribe_safety(node, arms, self._on_safety)

    def answered(self, answer: Future) -> None:
        """Record an answer of the arm service."""
        self.pending.append((time.monotonic() + TAKES_S, answer.result().message))

    def _on_safety(self, safety: SafetyState) -> None:
        while self.pending and time.monotonic() > self.pending[0][0]:
            _, answer = self.pending.pop(0)
            self.node.get_logger().info(f"{answer}: the interlock is {state_text(safety)}")
        instruction = resume_instruction(safety, self.node.get_namespace())
        if instruction and instruction != self.last_instruction:
            run_continues = safety.state in AT_REST and is_directed(self.node)
            text = f"{instruction}. {RUN_CONTINUES}" if run_continues else instruction
            self.node.get_logger().warning(text)
        self.last_instruction = instruction


SETTLED_S = 2.0  # reports come twice a second


def has_caught_up(
    trainer: TrainerStatus, policy: PolicyStatus, station: str, episodes: int
) -> bool:
    """Return whether the trainer has learned from enough of a station's episodes.

    It has no backlog then, and the station plays the resulting policy.
    """
    accepted = accepted_episodes(trainer, station)
    learned = trainer.accepting and trainer.backlog == 0 and accepted >= episodes
    return learned and policy.version == trainer.policy_version


def accepted_episodes(trainer: TrainerStatus, station: str) -> int:
    """Return the number of a station's episodes that its trainer accepted, of every mode."""
    return _count(trainer, f"{station}/episodes")


class SettledCount:
    """Returns whether a count has been constant for SETTLED_S, so that nothing is in transit."""

    def __init__(self, count: Callable[[], int]) -> None:
        self.count = count
        self.number = -1
        self.since = 0.0

    def __call__(self) -> bool:
        if (now := self.count()) != self.number:
            self.number = now
            self.since = time.monotonic()
        return time.monotonic() - self.since > SETTLED_S


def is_episode_held(trainer: TrainerStatus, mode: str) -> bool:
    """Return whether no episode of that mode may begin now.

    The trainer holds it, the spool is full, or the learner is behind.
    """
    behind = mode == "train" and trainer.connected and not trainer.accepting
    return bool(trainer.held or trainer.spool_full >= 1.0 or behind)


def refused_episodes(trainer: TrainerStatus, station: str) -> int:
    """Return the number of a station's episodes that its trainer refused, at any stage."""
    return trainer.set_aside + _count(trainer, f"{station}/refused")


def _count(trainer: TrainerStatus, name: str) -> int:
    """Return a count from the trainer's report; 0 if the value is no count."""
    read = dict(zip(trainer.names, trainer.values, strict=False)).get(name, 0.0)
    return int(read) if math.isfinite(read) else 0


@contextlib.contextmanager
def command_context() -> Iterator[None]:
    """Run ROS for one command.

    An RlinfError becomes a line on stderr and its exit code; Ctrl-C and SIGTERM give 130.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # rclpy's own handlers end ROS first: nothing could be withdrawn
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    try:
        yield
    except RlinfError as error:
        print(f"rlinf: {error.with_code()}", file=sys.stderr)
        raise SystemExit(error.exit_status()) from error
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        rclpy.try_shutdown()


def command_node(station: str) -> Node:
    """Return a node in the station's namespace for one command, without logs and parameters."""
    return rclpy.create_node(
        f"station_client_{os.getpid()}",
        namespace=f"/{station}",
        enable_rosout=False,
        start_parameter_services=False,
    )
