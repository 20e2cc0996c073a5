"""The director runs a station through a recipe.

The phases are: collect, wait for the first policy, evaluate, train, evaluate again.

It only makes requests: episodes from the environment, weights from the trainer. It logs to
``progress.jsonl`` (one event per line, for reports) and ``status.json`` (the latest state, for the
live display).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rclpy.action import ActionClient
from rclpy.executors import SingleThreadedExecutor
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import EpisodeEvent, PolicyStatus, SafetyState, TrainerStatus

from rlinf_core.interlock.types import Mode
from rlinf_core.reports.evaluations import Outcome, evaluation
from rlinf_ros.action_clients import GoalHandle
from rlinf_ros.arms import arms_of, subscribe_arms, subscribe_safety
from rlinf_ros.diagnostics import OK, WARN, Diagnostics, Health
from rlinf_ros.spinning import destroy, stop_on_signal
from rlinf_ros.station_node import StationNode
from rlinf_ros.station_state import (
    AT_REST,
    RUN_CONTINUES,
    RUN_CONTINUES_S,
    Discovery,
    SettledCount,
    accepted_episodes,
    has_caught_up,
    is_episode_held,
    refused_episodes,
    resume_instruction,
    silence_message,
)
from rlinf_station.director_status import (
    Lines,
    OperatorHealth,
    Recent,
    RunStopped,
    StopRequested,
    ending,
    status_fields,
    write_status,
)
from rlinf_station.labels import AGAIN, DISCARDED

TRAINER_PATIENCE_S = 300.0  # longest wait for a trainer's report before the first policy
SILENCE_S = 20.0  # longest silence of the environment during a request
STILL_S = 5.0  # delay before the display says that a person must act
RECENT = 50  # training episodes in the displayed success rate
EVALUATIONS = 3  # tries to evaluate with only one policy version


class Director(StationNode):
    """Runs the phases of a recipe at one station."""

    def __init__(self) -> None:
        super().__init__("director")
        self.plan: dict[str, Any] = json.loads(
            Path(self.declare_parameter("plan_file", "").value).read_text()
        )
        self.run_dir = Path(self.declare_parameter("run_dir", "").value)
        self.logs_hint = f"See the logs in {self.run_dir / 'logs'}"
        self.trainer = TrainerStatus(accepting=True)
        self.policy = PolicyStatus(version=-1)
        self.safety = SafetyState()
        self.phase = "start"
        self.phase_started = time.monotonic()
        self.started = time.monotonic()
        self.done = self.successes = self.env_steps = self.total = self.dropped = self.discarded = 0
        self._closed_ids: set[str] = set()
        # closed episodes of the requested mode since the last request
        self._closed_events: list[EpisodeEvent] = []
        self.mode = ""  # requested mode of episodes
        self.lines = Lines(self.run_dir)  # waiting lines of progress.jsonl
        self.station = self.get_namespace().strip("/")
        self.counted = False  # whether the trainer has reported a number of refused episodes
        self.refused = -1  # episodes refused by the trainer; -1 before its first report
        self.active_at = self.moved_at = time.monotonic()
        self.request: GoalHandle | None = None
        self.runner = ActionClient(self, RunEpisodes, "run_episodes")
        self.operator = OperatorHealth(self)
        arms = arms_of(self)
        self.discovery = Discovery(self, "environment", self.runner.server_is_ready)
        self.recent = Recent(self, arms)
        for topic, callback in (
            ("trainer/status", self._on_trainer),
            ("policy/status", self._on_policy),
            ("episode", self._on_episode),
            ("applied", lambda _: setattr(self, "active_at", time.monotonic())),
        ):
            subscribe_arms(self, topic, arms, callback)
        subscribe_safety(self, arms, self._on_safety)
        self.create_timer(0.5, self._write_status)
        self.diagnostics = Diagnostics(self, self._health)

    def _health(self) -> Health:
        """Report the plan's phase and progress, and what it waits for."""
        values = {
            "phase": self.phase,
            "seconds": round(time.monotonic() - self.phase_started),
            "episodes": self.done,
            "successes": self.successes,
            "env_steps": self.env_steps,
            "dropped": self.dropped,
        }
        silent_s = time.monotonic() - self.active_at
        if trouble := self.operator.trouble:
            return Health(WARN, f"{self.phase}: the operator's devices: {trouble}", values)
        if self.request is not None and silent_s > SILENCE_S:
            return Health(WARN, f"{self.phase}: no progress for {silent_s:.0f} s", values)
        return Health(OK, self.phase, values)

    # Incoming messages
    def _on_trainer(self, message: TrainerStatus) -> None:
        self.trainer = message
        now = refused_episodes(message, self.station)
        counts = "refused" in message.names  # absent while the trainer has only begun to listen
        first = counts and not (self.counted or self._closed_ids)
        self.counted = self.counted or counts
        if self.refused < 0 or first or (counts and now < self.refused):
            # earlier refusals: a resumed trainer counts them, and after a restart loses some
            self.refused = now

    def _on_policy(self, message: PolicyStatus) -> None:
        if message.version != self.policy.version:
            self._log("policy", version=message.version, error=message.error)
        self.policy = message

    def _on_safety(self, message: SafetyState) -> None:
        self.moved_at = self.moved_at if resume_instruction(message, "") else time.monotonic()
        if message.state == SafetyState.FAULT and self.safety.state != SafetyState.FAULT:
            self._log("fault", cause=message.cause)
        self.safety = message

    def _on_episode(self, event: EpisodeEvent) -> None:
        self.active_at = time.monotonic()
        if event.kind == EpisodeEvent.STARTED:
            self.recent.begin()
        elif event.kind == EpisodeEvent.CLOSED and event.episode_id not in self._closed_ids:
            self._closed_ids.add(event.episode_id)
            commanded = self.recent.close(event)
            names = ("mode", "seed", "steps", "success", "failure", "policy_version")
            # a success of a person is none of the policy
            is_policy_success = event.success and not (commanded and event.mode == "evaluate")
            # episodes of another mode belong to another client or to a withdrawn request
            if event.mode == self.mode:
                self._closed_events.append(event)
                self.done, self.successes = self.done + 1, self.successes + is_policy_success
            self.env_steps += event.steps if event.mode == "train" else 0
            if self.phase == "collect":
                self.get_logger().info(
                    f"{self.successes} of {self.total} demonstrations succeeded in {self.done} "
                    "attempts"
                )
            self._log(
                "episode",
                id=event.episode_id,
                **{name: getattr(event, name) for name in names},
                env_steps=self.env_steps,
                updates=self.trainer.updates,
                intervened=commanded,
            )
            event.success = is_policy_success
        elif event.kind == EpisodeEvent.ABORTED:
            self.discarded += event.detail == DISCARDED
            self.dropped += event.detail in (AGAIN, DISCARDED)
            self._log("aborted", id=event.episode_id, detail=event.detail)

    # Phases
    def run(self, executor: SingleThreadedExecutor, stop_requested: Callable[[], bool]) -> None:
        """Run every phase in order.

        Raises:
            RunStopped: a phase cannot be finished.
            StopRequested: ``stop_requested()`` is true.
        """
        self.run_executor, self.stop_requested = executor, stop_requested
        plan = self.plan
        if not self._spin_until(60.0, self.runner.server_is_ready):
            raise RunStopped(silence_message(self, "environment", 60.0))
        self._enter("collect", plan["collect"]["episodes"])
        if plan["collect"]["no_training"]:
            self._run_episodes(
                plan["collect"]["episodes"], "demonstration", plan["collect"]["first_seed"]
            )
            return
        seed = self._collect_demonstrations(
            plan["collect"]["episodes"], plan["collect"]["first_seed"]
        )
        if plan["collect"].get("ends"):
            return
        self._wait_for_first_policy(seed)
        before = self._evaluate("before")
        ended = self._run_online_phase(plan["online"])
        after = self._evaluate("after")
        self._enter("done", 0)
        self._log(
            "result",
            before=before,
            after=after,
            ended=ended,
            env_steps=self.env_steps,
            updates=self.trainer.updates,
            minutes=(time.monotonic() - self.started) / 60,
        )
        self._write_status()

    def _wait_for_first_policy(self, seed: int) -> None:
        """Wait for the first policy, however long a present trainer takes.

        Each episode that the trainer refuses is replaced by another.
        """
        self._enter("sft", 0)
        received_at = time.monotonic()
        episode_count = self.plan["collect"].get("share", self.plan["collect"]["episodes"])
        refused_now = 0
        while self.policy.version < 1:
            if (again := refused_episodes(self.trainer, self.station) - max(self.refused, 0)) > 0:
                self.refused = max(self.refused, 0) + again
                refused_now += again
                reason = (
                    f"the trainer refused {refused_now} episodes. The reasons are in refused/ of "
                    "the trainer's folder or of the spool"
                )
                if refused_now > episode_count:
                    raise RunStopped(
                        f"{reason}; expected at most {episode_count}, the number of required "
                        "demonstrations"
                    )
                self._log("warning", detail=f"{reason}; the station records others in their place")
                self._enter("collect", again)
                seed = self._collect_demonstrations(again, seed)
                self._enter("sft", 0)
            self._spin(0.1)
            received_at = time.monotonic() if self.trainer.connected else received_at
            if time.monotonic() - received_at > TRAINER_PATIENCE_S:
                raise RunStopped(
                    f"no trainer for {TRAINER_PATIENCE_S:.0f} s. Start one: rlinf train <recipe>. "
                    "The demonstrations stay in the spool"
                )
            if self.policy.error:
                raise RunStopped(f"the trainer's policy cannot be used: {self.policy.error}")

    def _collect_demonstrations(self, needed: int, seed: int) -> int:
        """Collect until enough demonstrations have succeeded; return the next seed.

        A failed one is recorded, but not used for training.
        """
        tries = 5 * needed
        while self.successes < needed:
            if self.done >= tries and not self.plan["collect"].get("person"):
                raise RunStopped(
                    f"only {self.successes} of {self.done} demonstrations succeeded; expected "
                    f"{needed}. Can the operator solve the task?"
                )
            count = needed - self.successes
            self._run_episodes(count, "demonstration", seed)
            seed += count + self.discarded
        return seed

    def _evaluate(self, name: str) -> dict[str, Any]:
        """Play held-out episodes with one version of the policy; repeat if it changed meanwhile."""
        evaluate = self.plan["evaluate"]
        for _ in range(EVALUATIONS):
            self._enter(f"evaluate_{name}", evaluate["episodes"])
            ended = self._run_episodes(evaluate["episodes"], "evaluate", evaluate["first_seed"])
            versions = sorted({event.policy_version for event in ended})
            if len(versions) == 1:
                summary = evaluation(
                    [
                        Outcome(
                            episode.success,
                            episode.failure,
                            episode.episode_return,
                            episode.steps / evaluate["control_hz"],
                        )
                        for episode in ended
                    ],
                    self.env_steps,
                    self.trainer.updates,
                    time.monotonic() - self.started,
                    versions[0],
                    evaluate["control_hz"],
                )
                summary |= {
                    "successes": sum(e.success for e in ended),
                    "episode_ids": [e.episode_id for e in ended],
                }
                self._log("evaluation", name=name, **summary)
                return summary
            several = (
                "evaluation: expected one policy version (-1: the operator), got "
                f"{', '.join(map(str, versions))}. The policy or the environment was probably "
                "restarted"
            )
            self._log("warning", detail=f"{several}. The evaluation is repeated")
        raise RunStopped(f"{several}, {EVALUATIONS} times. {self.logs_hint}")

    def _run_online_phase(self, online: dict[str, Any]) -> str:
        """Train until a rule of the recipe ends it; return the rule in words."""
        self._enter("online", 0)
        seed, deadline = online["first_seed"], time.monotonic() + 60 * online["max_minutes"]
        self.recent.ended.clear()
        if online["synchronous"]:  # the preceding evaluation does not answer a slice
            self._spin_until(
                online["drain_timeout_s"],
                SettledCount(lambda: accepted_episodes(self.trainer, self.station)),
            )
        while not (ended := ending(self.recent, self.env_steps, online, deadline)):
            before = accepted_episodes(self.trainer, self.station)
            self._run_episodes(online["request_episodes"], "train", seed, deadline)
            seed += online["request_episodes"]
            if online["synchronous"]:
                self._catch_up(online["drain_timeout_s"], before + len(self._closed_events))
        self._enter("drain", 0)
        self._catch_up(online["drain_timeout_s"])
        return ended

    def _catch_up(self, seconds: float, episodes: int = 0) -> None:
        """Wait until the learner has caught up, and the policy node has the newest weights."""
        if not self._spin_until(
            seconds, lambda: has_caught_up(self.trainer, self.policy, self.station, episodes)
        ):
            self._log(
                "warning",
                detail=f"waited {seconds:.0f} s for the learner to catch up. {self.logs_hint}",
            )

    # Waiting, always spinning
    def _run_episodes(
        self, count: int, mode: str, first_seed: int, deadline: float = 0.0
    ) -> list[EpisodeEvent]:
        """Run ``count`` episodes until closed; ask again if the environment restarts meanwhile."""
        self._closed_events = []
        self.discarded = 0
        self.mode = mode
        while len(self._closed_events) < count and not (deadline and time.monotonic() > deadline):
            self._request_episodes(
                count - len(self._closed_events),
                mode,
                first_seed + len(self._closed_events) + self.discarded,
                deadline,
            )
        return list(self._closed_events)

    def _await_arming(self, deadline: float) -> None:
        """Wait for a person's arming after a stop of the interlock.

        The run resumes after a while in which they may disarm again.
        """
        self._log(
            "stopped_by_interlock", state=Mode(self.safety.state).name, cause=self.safety.cause
        )
        self.get_logger().warning(
            f"{RUN_CONTINUES}. After the arming it waits {RUN_CONTINUES_S:g} s"
        )
        at_rest_s = time.monotonic()
        while time.monotonic() - at_rest_s < RUN_CONTINUES_S and not (
            deadline and time.monotonic() > deadline
        ):
            self._spin(0.1)
            if self.safety.state in AT_REST:
                at_rest_s = time.monotonic()
        self.get_logger().warning("the run continues")

    def _request_episodes(self, count: int, mode: str, first_seed: int, deadline: float) -> None:
        if self.safety.state == SafetyState.FAULT:  # the environment takes no request then
            self._await_arming(deadline)
        # the middleware drops requests to a server that has not discovered the client
        for _ in range(4):
            self.request = goal_handle = GoalHandle(
                self.runner, RunEpisodes.Goal(count=count, mode=mode, first_seed=first_seed)
            )
            if self._spin_until(10.0, (sent := goal_handle.send()).done):
                break
            goal_handle.withdraw()  # otherwise it might be played unnoticed
        else:
            raise RunStopped(
                f"waited 40 s for the environment to accept {count} {mode} episodes. "
                f"{self.logs_hint}"
            )
        if not (handle := sent.result()).accepted:  # it is still busy with the previous request
            self._spin_until(1.0, lambda: False)
            return
        answer = handle.get_result_async()
        self.active_at = time.monotonic()
        while not answer.done():
            self._spin(0.1)
            if (
                resume_instruction(self.safety, "")
                or self.operator.prompt
                or is_episode_held(self.trainer, mode)
            ):
                # it waits for a person or the trainer, not for the environment
                self.active_at = time.monotonic()
            if deadline and time.monotonic() > deadline:
                goal_handle.withdraw()
                deadline = 0.0
            if time.monotonic() - self.active_at > SILENCE_S:
                self._log(
                    "warning",
                    detail=f"no message from the environment for {SILENCE_S:.0f} s; sending the "
                    "request again",
                )
                goal_handle.withdraw()
                return
        result = answer.result().result
        if result.error_code == result.INTERLOCK_STOPPED:
            self._await_arming(deadline)
        elif not result.success and result.error_code != result.CANCELLED:
            raise RunStopped(
                f"{mode} episodes stopped after {result.episodes} of {count}: {result.message}"
            )
        self._spin_until(0.2, lambda: False)

    def _spin(self, seconds: float) -> None:
        self.run_executor.spin_once(timeout_sec=seconds)
        if self.stop_requested():
            raise StopRequested

    def _spin_until(self, seconds: float, ready: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + seconds
        while not ready() and time.monotonic() < deadline:
            self._spin(0.1)
        return ready()

    def cancel(self, message: str = "stopped", **fields: str) -> None:
        """Withdraw the request from the environment, and log the reason."""
        if self.request is not None:
            self.run_executor.spin_until_future_complete(self.request.withdraw(), timeout_sec=1.0)
        self._log(message, phase=self.phase, **fields)

    # Published state
    def _enter(self, phase: str, total: int) -> None:
        self.phase = phase
        self.total = total
        self.phase_started = time.monotonic()
        self.done = self.successes = self.dropped = 0
        self._log("phase", name=phase)

    def _log(self, event: str, **fields: Any) -> None:
        self.lines.add({"time": time.time(), "event": event, **fields})

    def _write_status(self) -> None:
        self.lines.write()
        if self.lines.trouble:
            self.get_logger().error(self.lines.trouble, throttle_duration_sec=10.0)
        instruction = ""
        if time.monotonic() - self.moved_at > STILL_S:
            instruction = resume_instruction(self.safety, self.get_namespace())
        if instruction and self.safety.state in AT_REST:
            instruction = f"{instruction}. {RUN_CONTINUES}"
        status = {
            "phase": self.phase,
            "phase_seconds": time.monotonic() - self.phase_started,
            "done": self.done,
            "total": self.total,
            "successes": self.successes,
            "recent_success": self.recent.success(RECENT),
            "recent_intervened": self.recent.intervened(RECENT),
            "env_steps": self.env_steps,
            "waiting_for": self.discovery.warning or instruction or self.operator.prompt,
            "dropped": self.dropped,
            **status_fields(self.policy, self.trainer, self.safety, self.operator.trouble),
        }
        write_status(self.run_dir, status)


def main() -> None:
    """Run the director.

    If the run has to stop, the exit code is 1 and progress.jsonl has an ``error`` line.
    """
    with stop_on_signal() as stop_requested:
        director = Director()
        executor = SingleThreadedExecutor()
        executor.add_node(director)
        try:
            director.run(executor, stop_requested)
        except StopRequested:
            director.cancel()
        except RunStopped as reason:
            director.cancel("error", detail=str(reason))
            director.get_logger().error(str(reason))
            sys.exit(1)
        except Exception as error:  # otherwise the request would play on without a director
            director.cancel("error", detail=f"{type(error).__name__}: {error}")
            raise
        finally:
            director._write_status()
            executor.shutdown()  # otherwise it is collected after its context, and logs an error
            destroy(director)


if __name__ == "__main__":
    main()
