"""The director's view of the other nodes, for ``status.json``, and the reasons for an early end."""

import contextlib
import json
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node
from rlinf_msgs.msg import Applied, EpisodeEvent, PolicyStatus, SafetyState, TrainerStatus
from std_msgs.msg import String

from rlinf_core.core.atomic_io import append_line, replace_text
from rlinf_core.interlock.takeover import takeover
from rlinf_core.interlock.types import OPERATOR, Mode
from rlinf_ros.arms import subscribe_arms
from rlinf_ros.qos import subscription


class RunStopped(Exception):
    """The run cannot continue; the message gives the reason and the remedy."""


class StopRequested(Exception):
    """SIGINT or SIGTERM came before the run was complete."""


class Lines:
    """The lines of progress.jsonl.

    Lines that the disk refuses are kept and written later; the run continues.

    Args:
        run_dir: the file's folder.
    """

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / "progress.jsonl"
        self.trouble = ""
        self._waiting: list[str] = []

    def add(self, line: dict[str, Any]) -> None:
        """Add a line."""
        self._waiting.append(json.dumps(line))
        self.write()

    def write(self) -> None:
        """Write the waiting lines; if they keep waiting, ``trouble`` is the reason."""
        try:
            while self._waiting:
                append_line(self.path, self._waiting[0])
                del self._waiting[0]
            self.trouble = ""
        except OSError as error:
            self.trouble = (
                f"{self.path}: cannot be written: {error}. {len(self._waiting)} lines wait and are "
                "written later. Free disk space"
            )


def write_status(run_dir: Path, status: dict[str, Any]) -> None:
    """Write the latest state atomically; if the disk refuses it, the previous one stays."""
    with contextlib.suppress(OSError):
        replace_text(run_dir / "status.json", json.dumps(status))


class OperatorHealth:
    """Faults of the operator's devices (/diagnostics) and requests to the person."""

    def __init__(self, node: Node) -> None:
        self.name = f"{node.get_namespace().strip('/')}/operator"
        self.trouble = ""
        self.prompt = ""
        node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        subscription(node, "prompt", self._on_prompt)

    def _on_prompt(self, message: String) -> None:
        self.prompt = message.data

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            if status.name == self.name:
                self.trouble = status.message if status.level == DiagnosticStatus.ERROR else ""


class Recent:
    """The newest episodes: success without a person's help, and the share commanded by a person."""

    def __init__(self, node: Node, arms: Sequence[str]) -> None:
        # time steps of the episode in play, at any arm
        self.commanded: set[tuple[int, int]] = set()
        self.ended: deque[tuple[bool, float]] = deque()
        subscribe_arms(node, "applied", arms, self._on_applied)

    def __len__(self) -> int:
        return len(self.ended)

    def _on_applied(self, applied: Applied) -> None:
        if applied.source == OPERATOR:
            self.commanded.add((applied.observation_stamp.sec, applied.observation_stamp.nanosec))

    def begin(self) -> None:
        """Begin another episode."""
        self.commanded = set()

    def close(self, event: EpisodeEvent) -> int:
        """Close the episode; return the number of its time steps in a takeover."""
        commanded = len(self.commanded) if event.mode != "demonstration" else 0
        self.ended.append((event.success and not commanded, commanded / max(event.steps, 1)))
        return commanded

    def success(self, episodes: int) -> float:
        """Return the share of the last episodes that succeeded without help."""
        return fmean(success for success, _ in self._last(episodes))

    def intervened(self, episodes: int) -> float:
        """Return the share of their time steps that a person commanded."""
        return fmean(share for _, share in self._last(episodes))

    def _last(self, episodes: int) -> list[tuple[bool, float]]:
        return list(self.ended)[-episodes:] or [(False, 0.0)]


def ending(recent: Recent, env_steps: int, online: dict[str, Any], deadline: float) -> str:
    """Return the recipe's rule that ends training now, in words; empty if none does.

    ``deadline`` is on the monotonic clock.
    """
    last = online["stop_episodes"]
    if len(recent) >= last and (share := recent.success(last)) >= online["stop_at_success"]:
        return (
            f"{share * last:.0f} of the last {last} training episodes succeeded "
            f"(online.stop_at_success)"
        )
    if env_steps >= online["max_env_steps"]:
        return f"{env_steps} time steps were played (online.max_env_steps)"
    if time.monotonic() >= deadline:
        return f"{online['max_minutes']:g} minutes have passed (online.max_minutes)"
    return ""


def status_fields(
    policy: PolicyStatus, trainer: TrainerStatus, safety: SafetyState, operator: str
) -> dict[str, Any]:
    """Return the state of policy, trainer, interlock and the operator's devices."""
    shown = (
        "connected",
        "phase",
        "updates",
        "episodes",
        "transitions",
        "backlog",
        "update_ratio",
        "accepting",
        "message",
        "set_aside",
        "spool_full",
    )
    counted = ("cause", "source", "holds", "refused", "limited", "dropped")
    measured = dict(zip(trainer.names, trainer.values, strict=False))
    mode = Mode(safety.state)
    safety_fields = {"state": mode.name, "takeover": takeover(safety.source, mode).name}
    return {
        "operator": operator,
        "policy_version": policy.version,
        "policy_error": policy.error,
        "inference_p50_ms": policy.inference_p50_ms,
        "trainer": {name: getattr(trainer, name) for name in shown} | measured,
        "safety": safety_fields | {name: getattr(safety, name) for name in counted},
    }
