"""Policy node that computes its chunks here, and takes newer weights between episodes.

One version plays all episodes of an evaluation request, that of the first episode.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rlinf_msgs.msg import ActionChunk, PolicyUpdate, SafetyState, TimeStep

from rlinf_core.core.errors import PolicyFileError, ServingError, SpecError, harmless_lines
from rlinf_core.policies import policy_config
from rlinf_core.policies.base import Observation, Policy
from rlinf_core.policies.chunking import ChunkSchedule
from rlinf_core.policies.monitor import PERSON_NEEDED, Monitor, Watch
from rlinf_core.policies.serialization import load_policy
from rlinf_core.policies.torch_device import device_of
from rlinf_core.policies.update_record import (
    MAX_TEXT,
    Update,
    UpdateRecord,
    is_permanent,
    is_unchanged,
)
from rlinf_ros.conversions import NS, action_chunk, fill_drawn, observation_of
from rlinf_ros.timer_phase import WarmUp
from rlinf_station.episodes import request_of
from rlinf_station.policy_node import PolicyNode

# Caches do not matter for slower policies, whose warm-up would delay them.
QUICK_MS = 3.0


class LocalPolicyNode(PolicyNode):
    """Explores in ``train`` episodes, acts deterministically in ``evaluate``."""

    def __init__(self, **kwargs: Any) -> None:
        torch.set_num_threads(1)
        self.policy: Policy
        self.newest: tuple[Policy, TimeStep]
        self.waiting: PolicyUpdate | None = None
        self.evaluating = ""
        super().__init__(**kwargs)
        self.seed = self.declare_parameter("seed", 0).value
        self.device = device_of(self.declare_parameter("device", "auto").value)
        self.warm_up = None if self.lockstep else WarmUp(self, self._make_extra_chunk)
        self.record: UpdateRecord | None = None
        self.custom_kinds = [*filter(None, self.declare_parameter("custom_kinds", [""]).value)]
        for kind in self.custom_kinds:
            policy_config(kind)  # policy files may name it from now on
        file = self.declare_parameter("monitor", "").value
        self.monitor = Monitor.load(Path(file), self.spec.hash) if file else None
        self.watch: Watch | None = None
        # sends nothing until a person takes over, or the episode ends
        self.needs_person = False
        path = self.declare_parameter("policy_file", "").value
        if path:
            self._on_update(PolicyUpdate(version=0, path=path))

    def _on_update(self, update: PolicyUpdate) -> None:
        self.waiting = update
        if not self.ready or (self.idle and not self.evaluating):
            self._take_update()

    def _take_update(self) -> None:
        """Load the newest announced policy; keep the present one, with a reason, on a misfit."""
        message = self.waiting
        self.waiting = None
        if message is None:
            return
        update = Update(message.version, message.path, message.sha256)
        self.status.error = self._load(update)
        if self.status.error:
            self.get_logger().error(self.status.error)
        if not self.ready and self.record is not None and (last := self.record.last_good()):
            if not (error := self._load(last)):
                self.get_logger().warning(
                    f"playing the last valid policy: version {last.version}, {last.path}"
                )
            else:
                self.get_logger().error(error)
        self._publish_status()

    def _load(self, update: Update) -> str:
        """Load a policy file; return the reason for a failure, or an empty string.

        The fate of an update from the trainer, which has a SHA-256, is recorded: a refused one is
        not loaded again, not even by a later process.
        """
        if update.sha256 and self.record is None:
            self.record = UpdateRecord(
                Path(update.path).parent, [self.spec.hash, *self.custom_kinds]
            )
        record = self.record if update.sha256 else None
        if record and (reason := record.refusal(update)):
            return reason
        if record:
            record.begin(update)
        try:
            policy = load_policy(update.path, self.spec).to(self.device)
        # whatever a file holds, the present policy keeps playing
        except (Exception, SystemExit) as error:
            is_refused = isinstance(error, PolicyFileError | SpecError)
            reason = harmless_lines(
                str(error)
                if is_refused
                else f"policy {update.path}: {type(error).__name__}: {error}"
            )
            if record and is_permanent(error) and is_unchanged(update):
                record.refuse(update, reason)
            elif record:
                record.end(update, loaded=False)
            return reason[:MAX_TEXT]
        if record:
            record.end(update, loaded=True)
        self.policy = policy
        self.ready = True
        self.status.version = update.version
        self.generator = torch.Generator(policy.device).manual_seed(
            self.seed + max(update.version, 0)
        )
        self.schedule = ChunkSchedule(1, policy.config.executed)
        self.status.path = update.path
        return ""

    def _may_change(self, step: TimeStep) -> bool:
        """Return whether the version may change: not between the episodes of one evaluation.

        Otherwise it may before the first step and after the last.
        """
        if step.step_type == TimeStep.FIRST:
            evaluating = request_of(step.episode_id) if step.mode == "evaluate" else ""
            same = evaluating and evaluating == self.evaluating
            self.evaluating = evaluating
            return not same
        return step.step_type == TimeStep.LAST and not self.evaluating

    def _on_timestep(self, step: TimeStep) -> None:
        if self._may_change(step) and self.waiting:
            self._take_update()
        if step.step_type != TimeStep.MID:
            self._set_needs_person(False)
            is_first = step.step_type == TimeStep.FIRST and step.mode != "demonstration"
            self.watch = self.monitor.watch() if self.monitor is not None and is_first else None
        super()._on_timestep(step)
        if self.watch is not None and self.ready and not self.interrupted and not self.needs_person:
            self._judge(self.watch, step)

    def _on_safety(self, safety: SafetyState) -> None:
        super()._on_safety(safety)
        # a person has taken over and watches
        if safety.state == SafetyState.ACTIVE and safety.source != "policy":
            self.watch = None
            self._set_needs_person(False)

    def _judge(self, watch: Watch, step: TimeStep) -> None:
        """Ask for a person if the episode seems to fail; the sent chunk plays to its end."""
        action = self.sent[min(int(self.schedule.index[0]), len(self.sent) - 1)]
        if watch.is_alarm(self.spec.flatten(self.observed(step)), action):
            self.get_logger().warning(
                f"time step {step.step_index} of {step.episode_id}: {PERSON_NEEDED}"
            )
            self._set_needs_person(True)

    def _set_needs_person(self, needs_person: bool) -> None:
        if needs_person != self.needs_person:
            self.needs_person = needs_person
            self.status.error = PERSON_NEEDED if needs_person else ""
            self._publish_status()

    def _answer_step(self, step: TimeStep) -> None:
        if self.needs_person:
            return
        started = time.perf_counter()
        try:
            chunk = self._plan(self.policy, step, step.mode == "train")
        except ServingError as error:  # the arm holds once its chunk is over
            self.get_logger().error(
                f"the served base policy does not answer: {harmless_lines(str(error))}"
            )
            return
        except (KeyError, ValueError, SpecError) as error:
            self.get_logger().error(
                f"time step {step.step_index} of {step.episode_id} does not fit the specs: {error}"
            )
            return
        self.schedule.replan()
        self.seq += 1
        chunk.seq = self.seq
        chunk.header.stamp = self._now(step)
        self.actions.publish(chunk)
        self.times_ms.append(1e3 * (time.perf_counter() - started))
        self.status.inferences += 1
        self.newest = self.policy, step
        if self.warm_up is not None and self.times_ms[-1] < QUICK_MS:
            self.warm_up.before(chunk.execute * self.period_ns / NS)

    def _make_extra_chunk(self) -> ActionChunk:
        """Return a chunk for the last answered step, which nobody publishes (``WarmUp``)."""
        return self._plan(*self.newest, explore=False)

    def observed(self, step: TimeStep) -> dict[str, np.ndarray]:
        """Return the observation of a time step."""
        return observation_of(step, self.spec)

    def _plan(self, policy: Policy, step: TimeStep, explore: bool) -> ActionChunk:
        observation = Observation.from_single(
            self.spec, self.observed(step), self.device, step.instruction
        )
        plan = policy.act(observation, explore=explore, generator=self.generator)
        self.sent = plan.actions[0].numpy(force=True)
        chunk = action_chunk(
            self.spec,
            self.sent,
            source="policy",
            session=self.session,
            seq=0,
            version=self.status.version,
            observation_stamp=step.header.stamp,
            execute=plan.execute,
        )
        fill_drawn(
            chunk,
            plan.drawn[0].numpy(force=True),
            None if plan.log_probs is None else plan.log_probs[0].numpy(force=True),
        )
        return chunk
