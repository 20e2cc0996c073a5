"""Policy node: answers time steps with action chunks. Subclasses compute or fetch the chunks.

A chunk is due as in every simulator (``ChunkSchedule``): at an episode's beginning and after
``execute`` time steps. It is also due at every time step while another source commands or the arm
is held, so that the policy resumes as soon as it may, and after a change of instruction. The module
imports no torch: a station with a served policy has none.
"""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections import deque
from typing import Any

import numpy as np
from builtin_interfaces.msg import Time
from rlinf_msgs.msg import PolicyStatus, PolicyUpdate, SafetyState, TimeStep

from rlinf_core.policies.chunking import ChunkSchedule
from rlinf_core.tasks.task import load_task
from rlinf_ros.arms import arms_of, subscribe_safety
from rlinf_ros.conversions import NS, to_ns
from rlinf_ros.diagnostics import ERROR, OK, WARN, Diagnostics, Health
from rlinf_ros.endpoints import EndpointReport
from rlinf_ros.lifecycle_node import Managed
from rlinf_ros.qos import publisher, subscription
from rlinf_ros.station_node import ControlNode


class PolicyNode(Managed, ControlNode):
    """Silent in ``demonstration`` episodes, while it is inactive, and until it is ``ready``."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("policy", **kwargs)
        cameras = [name for name in self.declare_parameter("cameras", [""]).value if name]
        size = tuple(self.declare_parameter("image_size", [64, 64]).value)
        task = (
            load_task(self.declare_parameter("task_file", "").value)
            .with_images(dict.fromkeys(cameras, size))
            .around(self.declare_structure("orientations"))
        )
        self.spec = task.spec
        self.period_ns = NS / self.spec.control_hz
        self.lockstep = self.declare_parameter("lockstep", False).value
        self.session = uuid.uuid4().hex[:12]
        self.seq = 0
        self.ready = False
        self.schedule = ChunkSchedule(1, 1)
        self.idle = True
        self.interrupted = False
        self.stamp_ns = 0
        self.instruction = ""
        self.times_ms: deque[float] = deque(maxlen=500)
        self.status = PolicyStatus(session=self.session, version=-1, spec_hash=self.spec.hash)
        if self.lockstep:
            EndpointReport(self)
        self.actions = publisher(self, "policy/action")
        self.statuses = publisher(self, "policy/status")
        subscription(self, "policy/update", self._on_update)
        subscribe_safety(self, arms_of(self), self._on_safety)
        self._listen()
        self.create_timer(2.0, self._publish_status)
        self.diagnostics = Diagnostics(self, self._health)
        self._publish_status()

    def activate(self) -> str:
        """Answer the next time step, whatever was due before."""
        self.schedule.cut()
        return ""

    def _listen(self) -> None:
        subscription(self, "timestep", self._on_timestep)

    def _health(self) -> Health:
        status = self.status
        values = {"version": status.version, "inference_p50_ms": status.inference_p50_ms}
        if status.error:
            return Health(ERROR, status.error, values)
        if not self.ready:
            return Health(WARN, "has no policy yet", values)
        return Health(OK, f"version {status.version}", values)

    def _on_safety(self, safety: SafetyState) -> None:
        """Note whether the rest of a chunk is void: the operator commands, or nobody."""
        taken_over = safety.state == SafetyState.ACTIVE and safety.source != "policy"
        self.interrupted = taken_over or safety.state not in (SafetyState.ACTIVE, SafetyState.ARMED)

    def _on_timestep(self, step: TimeStep) -> None:
        self.idle = step.step_type == TimeStep.LAST
        if not (self.ready and self.active):
            return
        before_ns = self.stamp_ns
        self.stamp_ns = to_ns(step.header.stamp)
        is_new_instruction = step.instruction != self.instruction
        self.instruction = step.instruction
        is_first = step.step_type == TimeStep.FIRST
        if is_first or self.idle or self.interrupted or is_new_instruction:
            self.schedule.cut()
        else:
            self.schedule.advance(steps=max(1, round((self.stamp_ns - before_ns) / self.period_ns)))
        if self.schedule.due[0] and not self.idle and step.mode != "demonstration":
            self._answer_step(step)

    @abstractmethod
    def _on_update(self, update: PolicyUpdate) -> None:
        """Take newer weights, which are on this station's disk."""

    @abstractmethod
    def _answer_step(self, step: TimeStep) -> None:
        """Answer this time step with a chunk, which is due."""

    def _now(self, step: TimeStep) -> Time:
        """Return the publication time of a chunk for this step; in lockstep no time has passed."""
        return step.header.stamp if self.lockstep else self.get_clock().now().to_msg()

    def _publish_status(self) -> None:
        if self.times_ms:
            self.status.inference_p50_ms, self.status.inference_p99_ms = np.percentile(
                self.times_ms, [50, 99]
            ).tolist()
        self.status.header.stamp = self.get_clock().now().to_msg()
        self.statuses.publish(self.status)
