"""A client of a running station: reports its state and makes a person's requests.

    rlinf status | rlinf fault reset | rlinf arm | rlinf disarm
    rlinf gripper activate | rlinf set-instruction

It commands nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rcl_interfaces.srv import GetParameters, SetParameters
from rclpy.client import Client
from rclpy.parameter import Parameter
from rlinf_msgs.msg import SafetyState, TimeStep
from rlinf_msgs.srv import ResetFault
from std_srvs.srv import Trigger

from rlinf_core.cli.terminal import FULL, PHASES, REPORT_S, notify_started
from rlinf_core.core.errors import RlinfError
from rlinf_core.policies.monitor import PERSON_NEEDED
from rlinf_core.robots.operators import PAGE
from rlinf_ros.arms import arm_prefix, arm_topic, subscribe_safety
from rlinf_ros.qos import LAZY_PROFILE, subscription
from rlinf_ros.spinning import destroy
from rlinf_ros.station_state import (
    HELPERS,
    command,
    command_context,
    command_node,
    resume_instruction,
    silence_message,
    state_text,
)
from rlinf_tools import arming
from rlinf_tools.arming import ANSWER_S, disarm

# latched topics, each with the node that publishes it
LATCHED = {"policy/status": "policy", "trainer/status": "uplink", "prompt": "environment"}
AT_LEAST_S = 1.5  # discovery takes one second; meanwhile a playing station publishes a time step
MISSING_S = 3.0  # a node that is not discovered after so long is reported as missing
LATE = "tick_late_"  # in the interlock's diagnostics


class StationClient:
    """One node in the station's namespace that publishes nothing.

    Args:
        station: its namespace, without the slash.
        patience_s: timeout of the search for it.
        arms: the names of its arms, if it has several.
    """

    def __init__(self, station: str, patience_s: float, arms: Sequence[str] = ()) -> None:
        self.name = station
        self.patience_s = patience_s
        self.arms = list(arms) or [""]
        self.node = command_node(station)
        self.latest: dict[str, Any] = {}
        for topic in LATCHED:
            subscription(self.node, topic, partial(self.latest.__setitem__, topic))
        self.safety_by_arm = subscribe_safety(
            self.node, arms, partial(self.latest.__setitem__, "safety")
        )
        subscription(
            self.node,
            "timestep",
            partial(self.latest.__setitem__, "timestep"),
            quality=LAZY_PROFILE,
        )
        self.node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        notify_started()

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            for arm in self.arms:
                if status.name == f"{self.name}/operator":
                    self.latest["operator"] = status.message
                if status.name == f"{self.name}/{arm_topic(arm, 'interlock')}":
                    self.latest[arm_topic(arm, "diagnostics")] = {
                        value.key: value.value for value in status.values
                    }

    def nodes(self) -> list[str]:
        """Return the names of the station's live nodes, below their arm's or camera's name."""
        root = f"/{self.name}"
        namespaces = {root, *(f"{root}/{arm}" for arm in self.arms if arm)}
        names = self.node.get_node_names_and_namespaces()
        return sorted(
            f"{namespace}/{name}".removeprefix(f"{root}/")
            for name, namespace in names
            if namespace in namespaces or namespace.startswith(f"{root}/camera/")
        )

    def meet(self) -> SafetyState:
        """Listen until every present node has been heard; return the interlock's state.

        Raises:
            RlinfError: there is no such station, or its interlock is silent.
        """
        started_at = time.monotonic()
        expected = LATCHED | {
            arm_topic(arm, "diagnostics"): arm_topic(arm, "interlock") for arm in self.arms
        }
        self.within(
            self.patience_s,
            lambda: (
                time.monotonic() - started_at > AT_LEAST_S
                and "safety" in self.latest
                and not (
                    {owner for topic, owner in expected.items() if topic not in self.latest}
                    & set(self.nodes())
                )
            ),
            f"the state of station '{self.name}'",
        )
        if "safety" in self.latest:
            return self.latest["safety"]
        interlocks = [
            name
            for name in self.nodes()
            if name in (arm_topic(arm, "interlock") for arm in self.arms)
        ]
        if interlocks:
            missing = ", ".join(
                f" of arm '{arm}'" for arm in self.arms if arm and arm not in self.safety_by_arm
            )
            raise RlinfError(
                f"the interlock of station '{self.name}' was discovered, but no message came from "
                f"it{missing} for {self.patience_s:.0f} s. Try again; if that does not help, see "
                "its log"
            )
        raise RlinfError(silence_message(self.node, "interlock", self.patience_s))

    def call(self, client: Client, request: Any) -> Any:
        """Call a service and return its answer; raise RlinfError if there is none."""
        if not self.within(
            self.patience_s, client.service_is_ready, f"the service '{client.srv_name}'"
        ):
            node = client.srv_name.split("/")[-2]
            raise RlinfError(f"'{client.srv_name}' is not available. Is the {node} running?")
        future = client.call_async(request)
        if not self.within(ANSWER_S, future.done, f"the answer of '{client.srv_name}'"):
            raise RlinfError(f"no answer of '{client.srv_name}' for {ANSWER_S:.0f} s. Try again")
        return future.result()

    def parameter(self, node: str, name: str) -> Any:
        """Return a string or bool parameter of another node of the station, or None."""
        client = self.node.create_client(GetParameters, f"{node}/get_parameters")
        values = self.call(client, GetParameters.Request(names=[name])).values
        return values[0].string_value or values[0].bool_value if values else None

    def changed(self, state: int) -> SafetyState:
        """Return the interlock's state once it differs from ``state``, or after 2 s."""
        self.within(2.0, lambda: self.latest["safety"].state != state)
        return self.latest["safety"]

    def within(self, seconds: float, ready: Callable[[], bool], awaited: str = "") -> bool:
        """Spin until ``ready()`` is true; return whether it became true in time.

        A line on stderr names ``awaited`` every 5 s.
        """
        started_at = reported_at = time.monotonic()
        while not ready() and time.monotonic() < started_at + seconds:
            rclpy.spin_once(self.node, timeout_sec=0.05)
            if awaited and (now := time.monotonic()) > reported_at + REPORT_S:
                reported_at = now
                print(
                    f"rlinf: {now - started_at:.0f} of {seconds:.0f} s: waiting for {awaited}",
                    file=sys.stderr,
                    flush=True,
                )
        return ready()


def status(station: StationClient, expected: list[str], recipe: str) -> None:
    """Print the station's state, one line per part."""
    safety = station.meet()
    station.within(MISSING_S, lambda: set(expected) <= set(station.nodes()))
    rows = [
        ("station", f"{station.name}, ROS_DOMAIN_ID {os.environ.get('ROS_DOMAIN_ID', '0')}"),
        ("interlock", state_text(safety)),
    ]
    rows += [
        ("", f"arm {arm}: {state_text(state)}")
        for arm, state in sorted(station.safety_by_arm.items())
        if arm
    ]
    if still := resume_instruction(safety, f"/{station.name}"):
        rows.append(("waiting for you", still))
    elif (policy := station.latest.get("policy/status")) and policy.error == PERSON_NEEDED:
        rows.append(("waiting for you", PERSON_NEEDED))
    elif (prompt := station.latest.get("prompt")) and prompt.data:
        rows.append(("waiting for you", prompt.data))
    rows += [
        (
            "so far",
            f"{safety.holds} holds, {safety.refused} refused, {safety.dropped} dropped, "
            f"{safety.limited} limited; limits {safety.limits_hash}",
        ),
        *(
            row
            for arm in station.arms
            for row in _ticks(station.latest.get(arm_topic(arm, "diagnostics"), {}), arm)
        ),
        *([("operator", station.latest["operator"])] if "operator" in station.latest else []),
        ("episode", _episode(station.latest.get("timestep"))),
        *_instruction_rows(station.latest.get("timestep")),
        *_phase(station),
        ("policy", _policy(station.latest.get("policy/status"))),
        ("trainer", _trainer(station.latest.get("trainer/status"))),
        ("nodes", _nodes(station.nodes(), expected, recipe)),
    ]
    for key, value in rows:
        print(f"{key:<16} {value}")


def _ticks(values: dict[str, str], arm: str) -> list[tuple[str, str]]:
    late = {
        key[len(LATE) :].removesuffix("_ms"): float(value)
        for key, value in values.items()
        if key.startswith(LATE) and key.endswith("_ms")
    }
    lateness = ", ".join(f"{value:.2f} ms ({name})" for name, value in late.items())
    return [(f"ticks {arm}".strip(), f"late by {lateness}")] if late else []


def _episode(step: TimeStep | None) -> str:
    return (
        f"{step.episode_id}, step {step.step_index}, {step.mode}"
        if step
        else "no time step received: no episode is in play"
    )


def _instruction_rows(step: TimeStep | None) -> list[tuple[str, str]]:
    return [("asked for", step.instruction)] if step and step.instruction else []


def _phase(station: StationClient) -> list[tuple[str, str]]:
    """Return the phase of the director, if one runs on this machine."""
    if "director" not in station.nodes():
        return []
    try:
        document = json.loads(
            (Path(station.parameter("director", "run_dir")) / "status.json").read_text()
        )
    except (RlinfError, OSError) as error:
        return [("phase", f"unknown, although a director is running: {error}")]
    total = f" of {document['total']}" if document["total"] else ""
    phase = PHASES.get(document["phase"], document["phase"])
    progress = f"{document['done']}{total} episodes, {document['successes']} succeeded"
    return [("phase", f"{phase}: {progress}")]


def _policy(status: Any) -> str:
    if status is None:
        return "no message"
    loaded = (
        f"version {status.version}, answers in {status.inference_p50_ms:.1f} ms"
        if status.version >= 0
        else "none loaded"
    )
    if status.error in ("", PERSON_NEEDED):
        return loaded
    return f"{loaded}; refused the last update: {status.error}"


def _trainer(status: Any) -> str:
    if status is None:
        return "no message: no uplink is running"
    waiting = f"; {status.backlog} episodes wait to be sent" if status.backlog else ""
    waiting += (
        f"; the spool is {status.spool_full:.0%} full{FULL if status.spool_full >= 1.0 else ''}"
    )
    waiting += (
        f"; {status.set_aside} refused by the trainer are in the spool's refused/"
        if status.set_aside
        else ""
    )
    if not status.connected:
        return f"away: {status.message or 'no message from it'}{waiting}"
    slow = ""
    if not (status.accepting or status.spool_full >= 1.0):
        slow = "; learning is behind, so the stations pause"
    return (
        f"connected, {status.phase}, version {status.policy_version}, {status.episodes} episodes, "
        f"{status.updates} updates{slow}{waiting}"
    )


TO_LEARN = {"policy", "uplink"}  # rlinf collect starts a station without them


def _nodes(alive: list[str], expected: list[str], recipe: str) -> str:
    missing = [name for name in expected if name not in alive]
    station_nodes = [
        name
        for name in alive
        if not name.startswith("station_client_") and not name.endswith(HELPERS)
    ]
    text = ", ".join(station_nodes)
    if missing:
        text += f"; MISSING for '{recipe}': {', '.join(missing)}"
        if "director" in alive and set(missing) <= TO_LEARN:
            text += " (rlinf collect needs neither)"
    return text


def _release(cause: str) -> str:
    """Return how a person releases a pressed e-stop; empty for another cause."""
    kind, _, name = cause.partition(":")
    if kind != "estop":
        return ""
    where = "press 'Release the stop' on the operator's page" if name == PAGE else "release it"
    return f". The e-stop '{name}' is still pressed: {where}, then reset again"


def reset_fault(station: StationClient, cause: str) -> None:
    """Reset a fault by its name; an RlinfError gives the reason for a refusal."""
    safety = station.meet()
    if not cause:
        if safety.state != SafetyState.FAULT:
            raise RlinfError(
                f"no fault is active: the interlock is {state_text(safety)}", code="RL-E517"
            )
        raise RlinfError(
            f"FAULT '{safety.cause}' is active. Reset it by its name after its cause has ended: "
            f"{command('fault reset', station.name, safety.cause)}",
            code="RL-E517",
        )
    for arm in [
        arm
        for arm, state in station.safety_by_arm.items()
        if state.state == SafetyState.FAULT and state.cause == cause
    ] or station.arms[:1]:
        client = station.node.create_client(ResetFault, arm_topic(arm, "interlock/reset_fault"))
        answer = station.call(client, ResetFault.Request(cause=cause))
        if not answer.success:
            hint = (
                ". Enter in `rlinf teleop` renews it"
                if "the enable is not held" in answer.message
                else _release(cause)
                if f"its cause persists: {cause}" in answer.message
                else ""
            )
            raise RlinfError(f"{arm_prefix(arm)}{answer.message}{hint}", code="RL-E517")
    after = station.changed(SafetyState.FAULT)
    if after.state == SafetyState.FAULT:
        raise RlinfError(
            f"the reset of '{cause}' was accepted, but FAULT '{after.cause}' is active",
            code="RL-E517",
        )
    print(
        f"FAULT '{cause}' is cleared: the interlock is {state_text(after)}. Arm it to move: "
        f"{command('arm', station.name)}, or e in `rlinf teleop`"
    )


def activate(station: StationClient) -> None:
    """Open and close grippers that need activation once; an RlinfError gives the obstacle."""
    clients = {
        arm: station.node.create_client(Trigger, arm_topic(arm, "gripper/activate"))
        for arm in station.arms
    }
    if not station.within(
        station.patience_s, lambda: any(client.service_is_ready() for client in clients.values())
    ):
        raise RlinfError(
            f"no gripper of station '{station.name}' can be activated. `rlinf status` lists the "
            "running nodes",
            code="RL-E517",
        )
    for arm, client in clients.items():
        if client.service_is_ready():
            answer = station.call(client, Trigger.Request())
            if not answer.success:
                raise RlinfError(f"{arm_prefix(arm)}{answer.message}", code="RL-E517")
            print(f"{arm_prefix(arm)}{answer.message}")


def instruct(station: StationClient, words: str) -> None:
    """Change the policy's instruction; without words, return to that of scene and task.

    Raises:
        RlinfError: the environment refuses it.
    """
    station.meet()
    client = station.node.create_client(SetParameters, "environment/set_parameters")
    value = Parameter("instruction", value=words).to_parameter_msg()
    (answer,) = station.call(client, SetParameters.Request(parameters=[value])).results
    if not answer.successful:
        raise RlinfError(answer.reason, code="RL-E515")
    print(f"instruction from the next time step on: {words.strip() or 'that of scene or task'}")


def main() -> None:
    """Run the command; an RlinfError becomes one line on stderr, and its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "what", choices=["status", "reset", "arm", "disarm", "activate", "set-instruction"]
    )
    parser.add_argument("--station", required=True)
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--cause", default="")
    parser.add_argument("--words", default="")
    parser.add_argument("--expect", nargs="*", default=[])
    parser.add_argument("--recipe", default="")
    parser.add_argument("--arms", nargs="*", default=[])
    options = parser.parse_args()
    with command_context():
        station = StationClient(options.station, options.timeout, options.arms)
        try:
            {
                "status": lambda: status(station, options.expect, options.recipe),
                "reset": lambda: reset_fault(station, options.cause),
                "activate": lambda: activate(station),
                "set-instruction": lambda: instruct(station, options.words),
                "arm": lambda: arming.arm(station),
                "disarm": lambda: disarm(station),
            }[options.what]()
        finally:
            destroy(station.node)


if __name__ == "__main__":
    main()
