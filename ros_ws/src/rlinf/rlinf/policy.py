"""Policy node: answers time steps with action chunks, and takes newer weights between episodes.

A chunk is due as in every simulator (``ChunkSchedule``): at an episode's beginning, after ``execute`` time steps, and at
every time step while somebody else commands or the arm is held, so that the policy goes on as soon as it may; and where it
is asked for something else.
All episodes of one request to evaluate are played by the version that played the first.
"""

from __future__ import annotations

import time
import uuid
from collections import deque

import numpy as np
import torch
from rlinf_msgs.msg import ActionChunk, PolicyStatus, PolicyUpdate, SafetyState, TimeStep

from rlinf.arms import arms_of, hear_safety
from rlinf.conversions import action_chunk, fill_drawn, observation_of
from rlinf.diagnostics import ERROR, OK, WARN, Diagnostics, Health
from rlinf.episode_ids import request_of
from rlinf.qos import profile
from rlinf.rehearsal import Rehearsal
from rlinf.spinning import ControlNode, given, run
from rlinf.stamps import NS, to_ns
from rlinf_core.devices import device_of
from rlinf_core.errors import PolicyFileError, SpecError
from rlinf_core.policies.chunks import ChunkSchedule
from rlinf_core.policies.files import load_policy
from rlinf_core.policies.policy import Observation, Policy
from rlinf_core.task import load_task

QUICK_MS = 3.0  # what takes longer is no matter of caches, and would be in its own way


class PolicyNode(ControlNode):
    """Explores in ``train`` episodes, acts deterministically in ``evaluate``, is silent in ``demonstration``."""

    def __init__(self) -> None:
        super().__init__("policy")
        cameras = [name for name in self.declare_parameter("cameras", [""]).value if name]
        size = tuple(self.declare_parameter("image_size", [64, 64]).value)
        task = load_task(self.declare_parameter("task_file", "").value).with_images(dict.fromkeys(cameras, size))
        self.spec = task.spec
        self.period_ns, self.seed = NS / self.spec.control_hz, self.declare_parameter("seed", 0).value
        self.device = device_of(self.declare_parameter("device", "auto").value)
        self.session, self.seq = uuid.uuid4().hex[:12], 0
        self.policy: Policy | None = None
        self.idle, self.evaluating, self.interrupted, self.stamp_ns = True, "", False, 0
        self.asked_for = ""
        self.waiting: PolicyUpdate | None = None
        self.times_ms: deque[float] = deque(maxlen=500)
        self.newest: tuple[Policy, TimeStep]
        lockstep = self.declare_parameter("lockstep", False).value
        self.rehearsal = None if lockstep else Rehearsal(self, self._again)
        self.status = PolicyStatus(session=self.session, version=-1, spec_hash=self.spec.hash)
        self.actions = self.create_publisher(ActionChunk, "policy/action", profile("policy/action"))
        self.statuses = self.create_publisher(PolicyStatus, "policy/status", profile("policy/status"))
        self.create_subscription(PolicyUpdate, "policy/update", self._on_update, profile("policy/update"))
        hear_safety(self, arms_of(self), self._on_safety)
        self.create_subscription(TimeStep, "timestep", self._on_timestep, profile("timestep"))
        self.create_timer(2.0, self._publish_status)
        self.diagnostics = Diagnostics(self, self._health)
        self._publish_status()
        path = self.declare_parameter("policy_file", "").value
        if path:
            self._on_update(PolicyUpdate(version=0, path=path))

    def _health(self) -> Health:
        said = self.status
        values = {"version": said.version, "inference_p50_ms": said.inference_p50_ms}
        if said.error:
            return Health(ERROR, said.error, values)
        return Health(OK, f"version {said.version}", values) if self.policy else Health(WARN, "has no policy yet", values)

    def _on_update(self, update: PolicyUpdate) -> None:
        self.waiting = update
        if self.policy is None or (self.idle and not self.evaluating):
            self._take_update()

    def _take_update(self) -> None:
        """Load the newest announced policy; keep the present one and say why if it does not fit."""
        update, self.waiting = self.waiting, None
        if update is None:
            return
        try:
            policy = load_policy(update.path, self.spec).to(self.device)
            self.policy, self.status.version = policy, update.version
            self.generator = torch.Generator(policy.device).manual_seed(self.seed + max(update.version, 0))
            self.schedule = ChunkSchedule(1, policy.config.executed)
            self.status.path, self.status.error = update.path, ""
        except (PolicyFileError, SpecError) as error:
            self.status.error = str(error)
            self.get_logger().error(str(error))
        self._publish_status()

    def _may_change(self, step: TimeStep) -> bool:
        """Before the first step and after the last, but not between the episodes of one evaluation."""
        if step.step_type == TimeStep.FIRST:
            evaluating = request_of(step.episode_id) if step.mode == "evaluate" else ""
            same, self.evaluating = evaluating and evaluating == self.evaluating, evaluating
            return not same
        return step.step_type == TimeStep.LAST and not self.evaluating

    def _on_safety(self, safety: SafetyState) -> None:
        """Whether what is left of a chunk is not played: the operator commands, or nobody."""
        taken_over = safety.state == SafetyState.ACTIVE and safety.source != "policy"
        self.interrupted = taken_over or safety.state not in (SafetyState.ACTIVE, SafetyState.ARMED)

    def _on_timestep(self, step: TimeStep) -> None:
        self.idle = step.step_type == TimeStep.LAST
        if self._may_change(step) and self.waiting:
            self._take_update()
        if self.policy is None:
            return
        before_ns, self.stamp_ns = self.stamp_ns, to_ns(step.header.stamp)
        other, self.asked_for = step.instruction != self.asked_for, step.instruction
        if step.step_type == TimeStep.FIRST or self.idle or self.interrupted or other:
            self.schedule.cut()
        else:
            self.schedule.advance(steps=max(1, round((self.stamp_ns - before_ns) / self.period_ns)))
        if self.schedule.due[0] and not self.idle and step.mode != "demonstration":
            self._decide(self.policy, step)

    def _decide(self, policy: Policy, step: TimeStep) -> None:
        started = time.perf_counter()
        try:
            chunk = self._plan(policy, step, step.mode == "train")
        except (KeyError, ValueError, SpecError) as error:
            self.get_logger().error(f"time step {step.step_index} of {step.episode_id} does not fit the specs: {error}")
            return
        self.schedule.decided()
        self.seq += 1
        chunk.seq, chunk.header.stamp = self.seq, self.get_clock().now().to_msg()
        self.actions.publish(chunk)
        self.times_ms.append(1e3 * (time.perf_counter() - started))
        self.status.inferences += 1
        self.newest = policy, step
        if self.rehearsal is not None and self.times_ms[-1] < QUICK_MS:
            self.rehearsal.before(chunk.execute * self.period_ns / NS)

    def _again(self) -> ActionChunk:
        return self._plan(*self.newest, explore=False)

    def _plan(self, policy: Policy, step: TimeStep, explore: bool) -> ActionChunk:
        observation = Observation.of_one(self.spec, observation_of(step, self.spec), policy.device, step.instruction)
        decided = policy.act(observation, explore=explore, generator=self.generator)
        chunk = action_chunk(self.spec, decided.actions[0].numpy(force=True), source="policy", session=self.session,
                             seq=0, version=self.status.version, observation_stamp=step.header.stamp,
                             execute=decided.execute)
        fill_drawn(chunk, decided.drawn[0].numpy(force=True),
                   None if decided.log_probs is None else decided.log_probs[0].numpy(force=True))
        return chunk

    def _publish_status(self) -> None:
        if self.times_ms:
            self.status.inference_p50_ms, self.status.inference_p99_ms = np.percentile(self.times_ms, [50, 99]).tolist()
        self.status.header.stamp = self.get_clock().now().to_msg()
        self.statuses.publish(self.status)


def main() -> None:
    """Entry point."""
    torch.set_num_threads(1)
    if given("remote"):
        from rlinf.remote_policy import RemotePolicyNode

        run(RemotePolicyNode, priority=10)
    else:
        run(PolicyNode, priority=10)


if __name__ == "__main__":
    main()
