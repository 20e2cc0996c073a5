"""The state of a station for other nodes and for people: who is there, how its interlock stands, what the trainer said.

``RequestStop`` ends a request for episodes once the interlock has stopped; ``asker`` and ``asking`` are the node and the
end of a person's command.
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
from rlinf_core.interlock.watch import OPERATOR_SILENT
from rlinf_core.recipes.schema import Station
from rlinf_ros.arms import hear_safety

SAY_AFTER_S, SAY_AGAIN_S = 5.0, 30.0
HELPERS = ("_inputs", "_desk", "_client")  # second nodes of one process


def speakers(node: Node, topic: str, others: bool = False) -> set[tuple[int, ...]]:
    """Return the publishers of a topic (without the node's own, of ``others``) by the middleware's
    identifiers, which tell namesakes apart.
    """
    return {tuple(publisher.endpoint_gid) for publisher in node.get_publishers_info_by_topic(topic)
            if not (others and publisher.node_name == node.get_name())}


def is_directed(node: Node, namespace: str = "") -> bool:
    """Whether a director runs the station of that namespace, by default the node's own: it goes on asking for episodes."""
    return ("director", namespace or node.get_namespace()) in node.get_node_names_and_namespaces()


def silence_message(node: Node, of: str, seconds: float) -> str:
    """Return an error text: the station's node ``of`` sent nothing, where it was looked for, and
    which nodes are there.
    """
    station = node.get_namespace().strip("/").partition("/")[0]
    nodes = [(name, space.strip("/")) for name, space in node.get_node_names_and_namespaces()]
    station_nodes = sorted({name for name, space in nodes if space.partition("/")[0] == station and name != node.get_name()
                  and not name.endswith(HELPERS) and not name.startswith("station_client_")})
    others = sorted({space for name, space in nodes if name == "interlock" and space.partition("/")[0] != station})
    remark = f"of it there are: {', '.join(station_nodes)}; " if station_nodes else ""
    remark += f"there are: {', '.join(others)}" if others else "there is no other"
    reach = os.environ.get("ROS_AUTOMATIC_DISCOVERY_RANGE") or "SUBNET"
    where = "this machine" if reach == "LOCALHOST" else f"the network (ROS_AUTOMATIC_DISCOVERY_RANGE {reach})"
    if reach == "SUBNET" and (trouble := network_trouble(MULTICAST)):
        remark += f"; {trouble}"
    return (
        f"expected station '{station}' in ROS_DOMAIN_ID {os.environ.get('ROS_DOMAIN_ID') or 0} on {where}, heard no "
        f"{of} for {seconds:.0f} s; {remark}. Start it (rlinf up <recipe>), or name the one you mean, as it was started: "
        "<recipe> --set station.name=... station.domain_id=..."
    )


class Discovery:
    """Warns, now and then, while a part of the station is not there; ``said`` is the warning, empty while all is well.

    Args:
        node: in the station's namespace.
        of: the name of the node that is awaited.
        there: whether it is.
    """

    def __init__(self, node: Node, of: str, is_present: Callable[[], bool]) -> None:
        self.node = node
        self.of = of
        self.is_present = is_present
        self.warning = ""
        self.since = time.monotonic()
        node.create_timer(1.0, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        if self.is_present():
            if self.warning:
                self.node.get_logger().info(f"the {self.of} is there")
            self.since, self.warning = now, ""
        elif now - self.since > SAY_AFTER_S:
            self.warning = silence_message(self.node, self.of, now - self.since)
            self.node.get_logger().warning(self.warning, throttle_duration_sec=SAY_AGAIN_S)


STOPPED = "the interlock stopped"
AT_REST = (SafetyState.DISARMED, SafetyState.FAULT)
GOES_ON_S = 3.0  # a director asks again so long after a person has armed
GOES_ON = "A run is under way: it moves the arm once that is armed. End the run first, if the arm is to stay at rest"


class RequestStop:
    """Watches how the interlocks stand together.

    Attributes:
        reason: why the request in play must end; empty if it may go on.
    """

    def __init__(self) -> None:
        self.reason, self.safety = "", SafetyState()

    def begin(self) -> None:
        """Another request: it came after whatever has stopped the arm."""
        self.reason = ""

    def on_safety(self, safety: SafetyState) -> bool:
        """Whether the interlock has stopped with this message: disarmed, or a fault that was not there before."""
        before, self.safety = self.safety.state, safety
        has_come_to_rest = safety.state in AT_REST and before not in AT_REST
        is_new_fault = safety.state == SafetyState.FAULT and before != SafetyState.FAULT
        stops = has_come_to_rest or is_new_fault
        if stops:
            self.reason = f"{STOPPED}: {Mode(safety.state).name} {safety.cause}".rstrip() + ". Arm, then ask again"
        return stops

    def refusal(self) -> str:
        """Why no request is taken now; empty if one may be. Disarmed, a person's arming follows the request."""
        fault = self.safety.state == SafetyState.FAULT
        return f"FAULT '{self.safety.cause}' stands. Reset it, arm, then ask again" if fault else ""


DEFAULT = Station()


def standstill(safety: SafetyState, namespace: str) -> str:
    """Return what a person must do before the arm can move; empty if nothing."""
    station = namespace.strip("/")
    arm = f"{command('arm', station)}, or e in `rlinf teleop` (with ROS: ros2 service call {namespace}/interlock/arm " \
          "std_srvs/srv/SetBool '{data: true}')"
    if safety.state == SafetyState.DISARMED:
        return f"disarmed; arm it: {arm}"
    if safety.state == SafetyState.HOLD and safety.cause == "new_session":
        return f"a commander was started again; arm it once more: {arm}"
    if safety.state == SafetyState.HOLD and safety.cause == OPERATOR_SILENT:
        return ("the operator fell silent in a takeover; let go of every device, then press a key or a button of the "
                f"operator's. If the operator does not run any more, start it and arm again: {arm}")
    if safety.state == SafetyState.FAULT:
        return (f"FAULT '{safety.cause}'; when its cause has gone: {command('fault reset', station, safety.cause)} (with "
                f"ROS: ros2 service call {namespace}/interlock/reset_fault rlinf_msgs/srv/ResetFault "
                f"\"{{cause: '{safety.cause}'}}\"), then arm it: {arm}")
    return ""


@lru_cache(maxsize=64)
def command(what: str, station: str, cause: str = "") -> str:
    """The ``rlinf`` command that does it at this station."""
    domain = shell_domain()
    other = [f"station.name={station}"] * (station != DEFAULT.name) + [f"station.domain_id={domain}"] * bool(domain)
    return " ".join([f"rlinf {what}", *(["--cause", shlex.quote(cause)] if cause else []),
                     *(["--set", *other] if other else [])])


TAKES_S = 0.15  # after the answer to a request, until the interlock has ticked and said so


def stands(safety: SafetyState) -> str:
    """State and cause, or who commands."""
    who = f"{safety.source} commands" if safety.state == SafetyState.ACTIVE else safety.cause
    return f"{Mode(safety.state).name} {who}".strip()


class Stands:
    """Logs each answer of the arm service with the state that followed, and what a person must do for the arm to move."""

    def __init__(self, node: Node, arms: Sequence[str]) -> None:
        self.node, self.still = node, ""
        self.owed: list[tuple[float, str]] = []  # answers, each with the time from which on the state is of after it
        hear_safety(node, arms, self._on_safety)

    def answered(self, answer: Future) -> None:
        """To be called with what the arm service has said."""
        self.owed.append((time.monotonic() + TAKES_S, answer.result().message))

    def _on_safety(self, safety: SafetyState) -> None:
        while self.owed and time.monotonic() > self.owed[0][0]:
            self.node.get_logger().info(f"{self.owed.pop(0)[1]}: the interlock is {stands(safety)}")
        still = standstill(safety, self.node.get_namespace())
        if still and still != self.still:
            auto_reset = safety.state in AT_REST and is_directed(self.node)
            self.node.get_logger().warning(f"{still}. {GOES_ON}" if auto_reset else still)
        self.still = still


SETTLED_S = 2.0  # reports come twice a second

def caught_up(trainer: TrainerStatus, policy: PolicyStatus, station: str, episodes: int) -> bool:
    """Whether the trainer has so many of a station, owes nothing, and the station plays the policy that came of it."""
    learned = trainer.accepting and trainer.backlog == 0 and taken(trainer, station) >= episodes
    return learned and policy.version == trainer.policy_version


def taken(trainer: TrainerStatus, station: str) -> int:
    """Episodes of a station that its trainer has taken in, of every mode."""
    return _counted(trainer, f"{station}/episodes")


class Settled:
    """Whether a count has been the same for SETTLED_S: what is on its way to the trainer, as its words are, has come."""

    def __init__(self, count: Callable[[], int]) -> None:
        self.count = count
        self.number = -1
        self.since = 0.0

    def __call__(self) -> bool:
        if (now := self.count()) != self.number:
            self.number, self.since = now, time.monotonic()
        return time.monotonic() - self.since > SETTLED_S


def holds_back(trainer: TrainerStatus, mode: str) -> bool:
    """Whether no episode of that mode begins now: it is held, nothing could be recorded, or the learner is behind."""
    behind = mode == "train" and trainer.connected and not trainer.accepting
    return bool(trainer.held or trainer.spool_full >= 1.0 or behind)


def refused(trainer: TrainerStatus, station: str) -> int:
    """Episodes of a station that its trainer did not take, at the door or when it read them."""
    return trainer.set_aside + _counted(trainer, f"{station}/refused")


def _counted(trainer: TrainerStatus, name: str) -> int:
    """Return a count from the trainer's report; 0 if the value is no count."""
    read = dict(zip(trainer.names, trainer.values, strict=False)).get(name, 0.0)
    return int(read) if math.isfinite(read) else 0


@contextlib.contextmanager
def asking() -> Iterator[None]:
    """Start ROS for one question. An RlinfError is a line on stderr and its exit code; Ctrl-C and SIGTERM have 130."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)  # rclpy's own ends ROS first: nothing could be taken back
    try:
        yield
    except RlinfError as error:
        print(f"rlinf: {error.with_code()}", file=sys.stderr)
        raise SystemExit(error.exit_status()) from error
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        rclpy.try_shutdown()


def asker(station: str) -> Node:
    """Its node beside a station's own: it says nothing of itself, and nobody sets it anything."""
    return rclpy.create_node(f"station_client_{os.getpid()}", namespace=f"/{station}", enable_rosout=False,
                             start_parameter_services=False)
