"""Environment node: owns the control timer, builds time steps, and runs episodes on request.

``Watch`` aborts an episode without messages, and reports the environment's wait on /diagnostics.
"""

from __future__ import annotations

import importlib
import time
from typing import NamedTuple

import numpy as np
from builtin_interfaces.msg import Time
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.action.server import ServerGoalHandle
from rclpy.task import Future
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import Applied, EpisodeEvent, SafetyState, TimeStep, TrainerStatus
from rosgraph_msgs.msg import Clock

from rlinf_core.core.errors import SpecError
from rlinf_core.episodes.record import HELD
from rlinf_core.interlock.types import Mode
from rlinf_core.specs.topics import of_arms
from rlinf_core.tasks.rewards import CanAbstain
from rlinf_core.tasks.task import StepResult, load_task, observe, step_result
from rlinf_ros.arms import arms_of, subscribe_arms, subscribe_safety
from rlinf_ros.conversions import NS, fill_observation, set_stamp, to_ns, to_stamp
from rlinf_ros.diagnostics import ERROR, INACTIVE, OK, WARN, Diagnostics, Health
from rlinf_ros.endpoints import EndpointReport, Endpoints
from rlinf_ros.latest_messages import Latest
from rlinf_ros.lifecycle_node import Managed
from rlinf_ros.qos import lossless_profile, publisher, subscription
from rlinf_ros.scene import NO_SERVER, HomeMotion, Scene, sleep
from rlinf_ros.spinning import override_of, run
from rlinf_ros.station_node import ControlNode
from rlinf_ros.station_state import (
    STOPPED,
    RequestStop,
    is_episode_held,
    publisher_ids,
    resume_instruction,
)
from rlinf_ros.timer_phase import PhaseLockedTimer, WarmUp, patience
from rlinf_ros.workarounds import AwaitFuture, run_routine
from rlinf_station.episodes import (
    RECORDER_INACTIVE,
    InstructionParameter,
    PolicyTracker,
    episode_name,
    new_request,
)
from rlinf_station.labels import AGAIN, CANCELLED, DISCARDED, Labels
from rlinf_station.scene_requests import SceneRequests

WARN_AFTER_S, WARN_INTERVAL_S = 5.0, 30.0
STALE_CAMERA_NS = NS // 5
# factor on the environment's patience for a present recorder to close an episode
CLOSE_PATIENCE = 10
NO_RECORDER = (
    "no recorder: expected a recorder node in the station, got none. rlinf status lists the "
    "running nodes"
)
UNMATCHED = "the station's nodes do not receive each other's messages"
STOPPED_DURING_RESET = "the arm was disarmed or came to a fault during the scene reset"
MAY_NOT_MOVE = "the interlock does not let the arm move. Arm it, or clear its fault"


class Watch:
    """Checks an environment twice a second, and reports once a second on /diagnostics."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.recorders = set[tuple[int, ...]]()
        environment.create_timer(0.5, self._poll)
        self.diagnostics = Diagnostics(environment, self._health)

    def _poll(self) -> None:
        """Abort an episode after too long a silence, and name the missing topics."""
        env, logger = self.environment, self.environment.get_logger()
        if env.running and env.resume_hint and time.monotonic() - env.hint_since > WARN_AFTER_S:
            logger.warning(env.resume_hint, throttle_duration_sec=WARN_INTERVAL_S)
        if (
            env.running
            and self.lacks_trainer_status()
            and time.monotonic() - env.progress_at > WARN_AFTER_S
        ):
            logger.warning(
                "no message from the uplink yet. No episode begins before the first one (rlinf "
                "status)",
                throttle_duration_sec=WARN_INTERVAL_S,
            )
        if env.running and env.trainer.spool_full >= 1.0:
            logger.warning(
                "the spool is full. No episode begins until some are sent (rlinf status)",
                throttle_duration_sec=WARN_INTERVAL_S,
            )
        if trouble := self._reward_trouble():
            logger.warning(trouble, throttle_duration_sec=WARN_INTERVAL_S)
        quiet_s = time.monotonic() - env.progress_at
        if quiet_s < env.patience_s:
            return
        if env.step_index >= 0:
            missing = ", ".join(self.missing()) or "an action from the commander"
            env.abandon(f"no time step for {quiet_s:.0f} s; waiting for {missing}")
        elif env.episode_id in env.closings and not env.closings[env.episode_id].done():
            if self.recorders & self._recorders() and quiet_s < CLOSE_PATIENCE * env.patience_s:
                return  # the recorder flushes a large episode; a restarted one would not know it
            env.closings[env.episode_id].set_result(
                f"the recorder did not close the episode within {quiet_s:.0f} s"
            )

    def note_recorders(self) -> None:
        """Note the recorders that are present at an episode's start."""
        self.recorders = self._recorders()

    def _recorders(self) -> set[tuple[int, ...]]:
        return publisher_ids(self.environment, "episode", others=True)

    async def wait_for_parts(self, handle: ServerGoalHandle) -> str:
        """Wait a little for the parts that an episode needs.

        Returns:
            The missing part, a cancellation, or an empty string.
        """
        env = self.environment
        for is_ready, condition in (
            (
                lambda: env.scene.client.server_is_ready() or (env.person and env.external),
                NO_SERVER,
            ),
            (lambda: env.count_publishers("episode") > 1, NO_RECORDER),
            (env.may_move, MAY_NOT_MOVE),
            (lambda: not self._unmatched(), UNMATCHED),
        ):
            deadline = time.monotonic() + 2 * env.patience_s
            while not is_ready():
                if handle.is_cancel_requested or env.end_reason:
                    return CANCELLED if handle.is_cancel_requested else env.end_reason
                if time.monotonic() > deadline:
                    condition += f": {self._unmatched()}" if condition == UNMATCHED else ""
                    return (
                        f"{condition} (interlock: {Mode(env.safety.state).name} {env.safety.cause})"
                    )
                await sleep(env, 0.1)
        return ""

    def _unmatched(self) -> str:
        """Return, in lockstep, the nodes that cannot hear each other yet.

        A lost message would change an episode.
        """
        env = self.environment
        if env.endpoints is None:
            return ""
        topic = "teleop/action" if env.mode == "demonstration" else "policy/action"
        if not (env.person or env.count_publishers(topic)):
            return f"nobody publishes '{topic}'"
        return env.endpoints.unmatched()

    def refusal(self) -> str:
        """Return why no episode begins although its scene is ready; empty if it may."""
        if self.environment.end_reason:
            return self.environment.end_reason
        return "" if self.environment.may_move() else STOPPED_DURING_RESET

    def lacks_trainer_status(self) -> bool:
        """Return whether an uplink is present that has not reported yet."""
        env = self.environment
        return env.trainer is env.default_status and env.count_publishers("trainer/status") > 0

    def _reward_trouble(self) -> str:
        """Return why the reward cannot judge the task."""
        success = self.environment.task.success
        if isinstance(success, CanAbstain) and success.trouble:
            return f"the reward has no usable image: {success.trouble}"
        return ""

    def missing(self) -> list[str]:
        """Return the topics without a fresh message for the next step; none outside an episode."""
        env = self.environment
        since_ns, taken_at = env.due_ns, float("-inf")
        if not env.lockstep and env.step_index > 0:
            stale_ns = max(STALE_CAMERA_NS, 2 * env.period_ns)
            since_ns = env.get_clock().now().nanoseconds - stale_ns
            # a source with a fast clock would never become stale
            taken_at = time.monotonic() - stale_ns / NS
        return list(env.inputs.older_than(since_ns, taken_at)) if env.playing() else []

    def _health(self) -> Health:
        env = self.environment
        now_ns = env.clock_ns if env.lockstep else env.get_clock().now().nanoseconds
        ages = {
            f"{topic} age_s": (now_ns - stamp) / NS if stamp >= 0 else "never heard"
            for topic, stamp in env.inputs.stamps_ns.items()
        }
        values = {**ages, "episode": env.episode_id, "step": env.step_index}
        if (
            missing := ", ".join(self.missing())
        ) and time.monotonic() - env.progress_at > WARN_AFTER_S:
            return Health(ERROR, f"waits for {missing}", values)
        if trouble := self._reward_trouble():
            return Health(ERROR, trouble, values)
        if env.resume_hint:
            return Health(WARN, env.resume_hint, values)
        return Health(OK, env.mode if env.running else "idle", values)


DEACTIVATED = "the environment was deactivated"
MODES = ("demonstration", "train", "evaluate")
HELD_S = 2.0  # pause after an episode in which the interlock held the arm


class RequestEnd(NamedTuple):
    """Why a request to run episodes ended early, as in its result."""

    message: str
    error_code: int


def is_failure(trouble: str) -> bool:
    """Return whether an episode does not count because of a failure of the station.

    A hold, a stop of the interlock or a person's word is none.
    """
    is_expected = HELD in trouble or trouble.startswith(STOPPED)
    return not is_expected and trouble not in (AGAIN, DISCARDED, STOPPED_DURING_RESET)


class Environment(Managed, ControlNode):
    """Runs one goal of ``run_episodes`` at a time; a ``person`` is asked before some episodes.

    See docs/explain/timing.md.
    """

    def __init__(self) -> None:
        super().__init__("environment")
        cameras = [name for name in self.declare_parameter("cameras", [""]).value if name]
        size = tuple(self.declare_parameter("image_size", [64, 64]).value)
        self.task = (
            load_task(self.declare_parameter("task_file", "").value)
            .with_images(dict.fromkeys(cameras, size))
            .around(self.declare_structure("orientations"))
        )
        self.station = self.declare_parameter("station", "station").value
        self.lockstep = self.declare_parameter("lockstep", False).value
        self.patience_s = self.declare_parameter("patience_s", 15.0).value
        self.retries = 0
        self.declare_live("retries", 5, lambda retries: setattr(self, "retries", retries))
        self.person, self.external, self.homes, self.teleports = (
            self.declare_parameter(name, False).value
            for name in ("person", "external", "homes", "teleports")
        )
        self.period_ns = round(NS / self.task.spec.control_hz)
        self.endpoints = Endpoints(self) if self.lockstep else None
        report = EndpointReport(self) if self.lockstep else None
        on_arrival = None if self.lockstep else lambda: self.timer.arrived()
        joints, axes = map(self.declare_structure, ("joints", "axes"))
        self.inputs = Latest(self, self.task.channels, self.lockstep, on_arrival, joints, axes)
        if report is not None:
            report.nodes.append(self.inputs.node)
        self.running = False
        self.mode = ""
        self.episode_id = ""
        self.step_index = -1
        self.last_result = StepResult()
        self.due_ns = 0
        self.clock_ns = 0
        self.last_step_ns = 0  # stamp of the last time step
        # time.monotonic() until which no episode begins, because the arm was just held
        self.held_until = 0.0
        self.episode_end = Future()
        self.closings = dict[str, Future]()  # the recorder's answer about an episode, by its id
        self.policy_tracker = PolicyTracker()
        # status of a station without an uplink
        self.trainer = self.default_status = TrainerStatus(accepting=True)
        self.safety = SafetyState()
        # what a person must do before the arm can move; empty if nothing
        self.resume_hint = ""
        self.hint_since = 0.0
        self.progress_at = time.monotonic()
        self.stop = RequestStop()
        self.withdrawal = ""  # reason why the request in play ends without a stop of the interlock
        self._make_interfaces()

    def _make_interfaces(self) -> None:
        self.steps, self.events = publisher(self, "timestep"), publisher(self, "episode")
        subscription(self, "episode", self._on_event)
        self.poses = of_arms("current_pose", arms := arms_of(self))
        subscribe_arms(self, "applied", arms, self._on_applied)
        # a short disarming also ends a request
        subscribe_safety(self, arms, self._on_safety, lossless_profile("safety"))
        subscription(
            self, "policy/status", lambda status: self.abandon(self.policy_tracker.update(status))
        )
        subscription(self, "trainer/status", lambda status: setattr(self, "trainer", status))
        self.scene = Scene(self, self.patience_s)
        self.labels = Labels(self, self.abandon, self.playing)
        self.scenes = SceneRequests(
            self.scene,
            self.labels,
            HomeMotion(self, self.patience_s) if self.homes else None,
            self.get_logger(),
            person=self.person,
            simulated=not self.external,
            jumps=self.teleports and not self.lockstep,
            may_move=self.may_move,
            start_stamp=self._start_stamp,
        )
        self.server = ActionServer(
            self,
            RunEpisodes,
            "run_episodes",
            self._answer_goal,
            goal_callback=self._accept,
            cancel_callback=self._cancel,
            handle_accepted_callback=self._start_request,
        )
        if self.lockstep:
            subscription(self, "clock", self._on_clock)
            # while the clock is ahead of other topics
            self.retry = self.create_timer(0.001, self._step_if_due)
            self.retry.cancel()
        else:
            self.timer = PhaseLockedTimer(
                self,
                self.period_ns / NS,
                self._step_now,
                hurry=0.05,
                early=0.25,
                late=patience(self.period_ns / NS),
            )
            self.warm_up = WarmUp(self, self._make_extra_step)
        self.watch, self.instruction = Watch(self), InstructionParameter(self)

    # Incoming messages
    def _on_event(self, event: EpisodeEvent) -> None:
        future = self.closings.get(event.episode_id)
        if future is None or future.done():
            return
        if event.kind == EpisodeEvent.CLOSED:
            future.set_result("")
        elif event.kind == EpisodeEvent.ABORTED:
            future.set_result(event.detail or "aborted")
            if event.episode_id == self.episode_id:
                self._end_episode(None, publish=False)

    def _on_applied(self, applied: Applied) -> None:
        self.abandon(self.policy_tracker.played(applied))

    def playing(self) -> bool:
        return self.step_index >= 0

    def abandon(self, trouble: str) -> None:
        if trouble and self.playing():
            self._end_episode(trouble)

    def _on_safety(self, safety: SafetyState) -> None:
        before = self.resume_hint
        self.safety = safety
        self.resume_hint = resume_instruction(safety, self.get_namespace())
        self.hint_since = self.hint_since if before else time.monotonic()
        if self.stop.on_safety(safety) and self.running:
            self.abandon(self.stop.reason)
            if self.scenes.waits_for_person(self.mode):  # only a person's word begins the next one
                self.stop.begin()

    # Life cycle
    def deactivate(self) -> None:
        """Abort the episode in play, and end its request with the reason.

        The arm holds after its chunk.
        """
        self.withdrawal = DEACTIVATED
        self.scenes.cancel()
        self.abandon(DEACTIVATED)

    @property
    def end_reason(self) -> str:
        """The reason why the request in play must end; empty if it may go on."""
        return self.stop.reason or self.withdrawal

    # Running episodes
    def _accept(self, goal: RunEpisodes.Goal) -> GoalResponse:
        if not self.active:
            refusal = f"run_episodes refused: the environment is {INACTIVE}"
            self.get_logger().error(refusal, throttle_duration_sec=WARN_AFTER_S)
            return GoalResponse.REJECT
        if self.running or goal.mode not in MODES or goal.count == 0:
            self.get_logger().error(
                "run_episodes refused: expected an idle station, count > 0 and mode one of "
                f"{MODES}; got running={self.running}, count={goal.count}, mode='{goal.mode}'"
            )
            return GoalResponse.REJECT
        if (refusal := self.stop.refusal()) and not self.scenes.waits_for_person(goal.mode):
            self.get_logger().error(f"run_episodes refused: {refusal}")
            return GoalResponse.REJECT
        return GoalResponse.ACCEPT

    def _start_request(self, handle: ServerGoalHandle) -> None:
        self.running = True
        self.mode = handle.request.mode
        self.request = new_request()
        self.episode_count = 0
        self.stop.begin()
        self.withdrawal = ""
        if self.resume_hint and not self.scenes.waits_for_person(self.mode):
            self.get_logger().warning(
                "run_episodes: an episode begins as soon as the interlock lets the arm move"
            )

        def execute(result: RunEpisodes.Result) -> None:
            self.result = result
            handle.execute()

        run_routine(self._run(handle), execute)

    def _cancel(self, _: ServerGoalHandle) -> CancelResponse:
        self.scenes.cancel()
        return CancelResponse.ACCEPT

    def _answer_goal(self, handle: ServerGoalHandle) -> RunEpisodes.Result:
        (handle.canceled if handle.is_cancel_requested else handle.succeed)()
        return self.result

    async def _run(self, handle: ServerGoalHandle) -> RunEpisodes.Result:
        """Run a request; return its result."""
        result = RunEpisodes.Result(success=True)
        started = time.monotonic()
        self.labels.is_cancelled = False
        try:
            end = await self._run_episodes(handle, result)
        finally:
            self.running = False
        if end is not None:
            result.success = False
            result.message, result.error_code = end
        result.seconds = time.monotonic() - started
        return result

    async def _run_episodes(
        self, handle: ServerGoalHandle, result: RunEpisodes.Result
    ) -> RequestEnd | None:
        """Run the episodes of a request, and count them in its result.

        An episode that does not count is repeated. After a person has discarded a scene, the next
        one is played.

        Returns:
            Why the request ended before its last episode; None if all were played.
        """
        goal = handle.request
        failures = 0  # in a row
        discarded = 0
        while result.episodes < goal.count:
            while self._must_wait() and not self._end_of_request(handle):
                await sleep(self, 0.05)
            if end := self._end_of_request(handle):
                return end
            trouble = await self._one_episode(handle, goal.first_seed + result.episodes + discarded)
            if trouble:
                self.get_logger().warning(f"episode {self.episode_id} does not count: {trouble}")
                if HELD in trouble:
                    self.held_until = time.monotonic() + HELD_S
                elif is_failure(trouble):
                    failures += 1
                elif trouble == DISCARDED:
                    discarded += 1
                if end := self._end_after_trouble(trouble, failures):
                    return end
                continue
            failures = 0
            result.episodes += 1
            result.successes += self.outcome.success
            result.episode_ids.append(self.episode_id)
            handle.publish_feedback(
                RunEpisodes.Feedback(episode=result.episodes, successes=result.successes)
            )
        return None

    def _end_of_request(self, handle: ServerGoalHandle) -> RequestEnd | None:
        """Return why a request ends before its next episode; None if it goes on."""
        if handle.is_cancel_requested:
            return RequestEnd(CANCELLED, RunEpisodes.Result.CANCELLED)
        if self.stop.reason:
            return RequestEnd(self.stop.reason, RunEpisodes.Result.INTERLOCK_STOPPED)
        if self.withdrawal:
            return RequestEnd(self.withdrawal, RunEpisodes.Result.NODE_INACTIVE)
        return None

    def _end_after_trouble(self, trouble: str, failures: int) -> RequestEnd | None:
        """Return why a request ends after an episode that does not count; None if it goes on."""
        has_failed = failures > self.retries
        message = self.withdrawal or trouble
        if has_failed:
            message = f"{failures} episodes failed in a row: {message}"
        if self.withdrawal or RECORDER_INACTIVE in trouble:
            return RequestEnd(message, RunEpisodes.Result.NODE_INACTIVE)
        if has_failed:
            return RequestEnd(message, RunEpisodes.Result.EPISODES_FAILED)
        if trouble == CANCELLED:
            return RequestEnd(message, RunEpisodes.Result.CANCELLED)
        return None

    async def _one_episode(self, handle: ServerGoalHandle, seed: int) -> str:
        """Reset, run and await the recorder; return the error, or an empty string."""
        self.seed = seed
        self.outcome = StepResult()
        self.episode_return = 0.0
        self.episode_count = self.episode_count + 1
        self.episode_id = episode_name(self.station, self.request, self.episode_count)
        if trouble := await self.watch.wait_for_parts(handle):
            return trouble
        stamp, trouble = await self.scenes.reset(seed, self.mode)
        trouble = CANCELLED if handle.is_cancel_requested else trouble or self.watch.refusal()
        if stamp is None or trouble:
            return trouble
        self.closings = {self.episode_id: Future(executor=self.executor)}
        self.episode_end = Future(executor=self.executor)
        self.policy_tracker.begin(self.mode, to_ns(stamp))
        self.last_step_ns = to_ns(stamp)
        self.watch.note_recorders()
        self._publish_event(EpisodeEvent.STARTED)
        self._begin_episode(stamp)
        trouble = await AwaitFuture(self.episode_end)
        return trouble or await AwaitFuture(self.closings[self.episode_id])

    def _start_stamp(self, reset_stamp: Time | None) -> Time:
        """Return the time of an episode's first step after a person's word.

        Args:
            reset_stamp: time from which the robot side's scene stands; None if it reset none.
        """
        if self.lockstep:
            return to_stamp(max(self.clock_ns, to_ns(reset_stamp or Time())))
        return to_stamp(self.get_clock().now().nanoseconds)

    def _must_wait(self) -> bool:
        """Return whether the next episode must wait.

        The trainer holds it or is behind, the spool is full, the arm was just held, or a person
        must act.
        """
        return (
            bool(self.resume_hint)
            or is_episode_held(self.trainer, self.mode)
            or self.watch.lacks_trainer_status()
            or time.monotonic() < self.held_until
        )

    def may_move(self) -> bool:
        """Return whether an episode may begin."""
        # DISARMED also before its first report
        return self.safety.state != SafetyState.DISARMED and not self.resume_hint

    # Stepping
    def _begin_episode(self, stamp: Time) -> None:
        self.step_index = 0
        self.due_ns = to_ns(stamp)
        self.progress_at = time.monotonic()
        self.labels.begin()
        if self.lockstep:
            self._step_if_due()

    def _step_if_due(self) -> None:
        """Take the step once every source has a message of its time (lockstep)."""
        if self.step_index < 0 or self.clock_ns < self.due_ns:
            self.retry.cancel()
            return
        self._pull()
        if self.watch.missing():
            self.retry.reset()
        else:
            self.retry.cancel()
            self._step(self.due_ns)

    def _pull(self) -> None:
        try:
            self.inputs.pull()
        except SpecError as error:
            self.get_logger().error(str(error), throttle_duration_sec=2.0)

    def _on_clock(self, message: Clock) -> None:
        self.clock_ns = to_ns(message.clock)
        self._step_if_due()

    def _step_now(self) -> None:
        """Take a step from the newest messages (real time), unless a source is stale.

        With a stale source the policy waits and the interlock holds.
        """
        if self.step_index < 0:
            return
        self._pull()
        stamp_ns = min(self.inputs.stamps_ns[pose] for pose in self.poses)
        # a pause shorter than the stale limit
        is_repeated = self.step_index > 0 and stamp_ns <= self.last_step_ns
        if not is_repeated and not self.watch.missing():
            self._step(stamp_ns)

    def _step(self, stamp_ns: int) -> None:
        channels, index = self.inputs.channels, self.step_index
        try:
            observation = observe(self.task.spec, channels)
        except SpecError as error:
            self.get_logger().error(str(error), throttle_duration_sec=2.0)
            return
        result = self.last_result = step_result(
            self.task, channels, index, self.last_result if index else None
        )
        # no action has been executed yet
        result = self.labels.with_verdict(result) if index else StepResult()
        kind = TimeStep.LAST if result.last else TimeStep.MID if index else TimeStep.FIRST
        message = TimeStep(
            step_type=kind,
            reward=float(result.reward),
            discount=result.discount,
            mode=self.mode,
            terminated=result.terminated,
            truncated=result.truncated,
            success=result.success,
            failure=result.failure,
            episode_id=self.episode_id,
            step_index=index,
            instruction=self.instruction.words
            or self.scene.instruction
            or self.task.spec.instruction,
        )
        set_stamp(message.header.stamp, stamp_ns)
        self._publish_step(message, observation)
        if not self.lockstep:
            self.warm_up.before(self.timer.until_next())
        self.episode_return += result.reward
        self.last_step_ns = stamp_ns
        self.step_index = index + 1
        self.due_ns = self.due_ns + self.period_ns
        self.progress_at = time.monotonic()
        if result.last:
            self.outcome = result
            self._publish_event(EpisodeEvent.ENDED, steps=index)
            self._end_episode("")

    def _publish_step(self, step: TimeStep, observation: dict[str, np.ndarray]) -> None:
        fill_observation(step, self.task.spec, observation)
        self.steps.publish(step)

    def _make_extra_step(self) -> TimeStep:
        """Return a time step of the newest messages, which nobody publishes (``WarmUp``)."""
        fill_observation(
            message := TimeStep(), self.task.spec, observe(self.task.spec, self.inputs.channels)
        )
        return message

    def _end_episode(self, trouble: str | None, publish: bool = True) -> None:
        self.step_index = -1
        if not self.episode_end.done():
            self.episode_end.set_result("" if trouble is None else trouble)
        if trouble and publish:
            self._publish_event(EpisodeEvent.ABORTED, detail=trouble)

    def finish(self) -> bool:
        """End the node: abort an episode in play and a motion home.

        The interlock stops the arm on its path.
        """
        self.scenes.cancel()
        self.abandon("the environment was stopped during the episode")
        return True

    def _publish_event(self, kind: int, steps: int = 0, detail: str = "") -> None:
        event = EpisodeEvent(
            kind=kind,
            episode_id=self.episode_id,
            station=self.station,
            mode=self.mode,
            seed=self.seed,
            steps=steps,
            episode_return=self.episode_return,
            success=self.outcome.success,
            failure=self.outcome.failure,
            truncated=self.outcome.truncated,
            policy_version=self.policy_tracker.version,
            spec_hash=self.task.spec.hash,
            detail=detail,
        )
        now = self.get_clock().now().to_msg()
        event.header.stamp = to_stamp(self.last_step_ns) if self.lockstep else now
        self.events.publish(event)


def main() -> None:
    """Entry point."""
    composed = override_of("composed")  # it loads torch
    make = importlib.import_module("rlinf_station.composed").Composed if composed else Environment
    run(make, priority=20)


if __name__ == "__main__":
    main()
