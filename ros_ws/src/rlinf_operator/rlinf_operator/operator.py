"""Operator node: a person with a device arms and takes over; in simulation, a script may stand in.

The script also demonstrates. Between episodes the device moves the arm, too, in real time. If no
robot side resets the scene, ``Homing`` brings the arms home, with its own chunks, behind the
interlock.
"""

from __future__ import annotations

import math
import sys
import termios
import time
import tty
import uuid
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import numpy as np
from action_msgs.msg import GoalStatus, GoalStatusArray
from builtin_interfaces.msg import Time
from geometry_msgs.msg import PoseStamped
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.action.server import ServerGoalHandle
from rclpy.node import Node
from rclpy.qos import qos_profile_action_status_default
from rlinf_msgs.action import Home
from rlinf_msgs.msg import EpisodeEvent, SafetyState, TimeStep
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool
from std_srvs.srv import SetBool

from rlinf_core.core.errors import RecipeError
from rlinf_core.episodes.actions import SentChunk
from rlinf_core.interlock import Mode
from rlinf_core.robots.operators import KEYBOARD, REPLAY, SCRIPTED, make_device, settings_of
from rlinf_core.robots.operators.homing import Homes, next_action
from rlinf_core.specs.arrays import StationSpec
from rlinf_core.tasks.task import load_task
from rlinf_operator.human_operator import HumanOperator
from rlinf_operator.replay_operator import CONTINUES, ReplayOperator
from rlinf_operator.scripted_operator import ScriptedOperator
from rlinf_ros.arms import arm_topic, arms_of, subscribe_safety
from rlinf_ros.conversions import (
    NS,
    action_chunk,
    angles_of,
    pose_values,
    release_chunk,
    to_ns,
    to_stamp,
)
from rlinf_ros.diagnostics import Diagnostics, is_active
from rlinf_ros.endpoints import EndpointReport
from rlinf_ros.latest_messages import Latest
from rlinf_ros.lifecycle_node import Managed
from rlinf_ros.qos import publisher, subscription
from rlinf_ros.spinning import run
from rlinf_ros.station_node import StationNode
from rlinf_ros.station_state import Discovery, is_directed, publisher_ids

GOALS = "run_episodes/_action/status"  # the status topic of every ROS action server
ACTIVE_STATUSES = (
    GoalStatus.STATUS_ACCEPTED,
    GoalStatus.STATUS_EXECUTING,
    GoalStatus.STATUS_CANCELING,
)
MAY_MOVE = (SafetyState.ARMED, SafetyState.ACTIVE, SafetyState.HOLD)
POLL_DIRECTOR_S = 1.0
REST_S = 1.0  # a held key may repeat first after 0.7 s


class IdleTeleop:
    """Device motion between episodes, to try a station or to show a camera its board.

    A device that was already held must be let go before it commands.

    Args:
        node: the operator's node.
        person: the person and their devices.
        spec: the station's spec.
        busy: returns whether an episode is in play, or an arm on its way home.
        publish: publishes an action as the operator's, for a state of the given time.
    """

    def __init__(
        self,
        node: Node,
        person: HumanOperator,
        spec: StationSpec,
        busy: Callable[[], bool],
        publish: Callable[[np.ndarray, Time], None],
    ) -> None:
        self.node = node
        self.person = person
        self.busy = busy
        self.publish = publish
        self.request_active = self.rested = False
        self.directed = True  # until the first poll
        self.rests_since = math.inf
        self.safety = SafetyState()
        self.received_at = 0.0
        self.servers = set[tuple[int, ...]]()
        node.create_subscription(
            GoalStatusArray, GOALS, self._on_goals, qos_profile_action_status_default
        )
        subscribe_safety(node, spec.action.arms, self._on_safety)
        node.create_timer(POLL_DIRECTOR_S, self._poll)
        node.create_timer(1.0 / spec.control_hz, self.go)

    def _on_goals(self, goals: GoalStatusArray) -> None:
        """Note whether the newest goal is active.

        Only one goal runs at a time. rclpy may keep older ones whose client never heard of their
        acceptance.
        """
        newest = max(goals.status_list, key=lambda goal: to_ns(goal.goal_info.stamp), default=None)
        self.request_active = newest is not None and newest.status in ACTIVE_STATUSES
        self.servers = publisher_ids(self.node, GOALS)

    def _on_safety(self, safety: SafetyState) -> None:
        # with several arms, the message may come from another arm
        if safety.header.stamp != self.safety.header.stamp:
            self.received_at = time.monotonic()
        self.safety = safety

    def _poll(self) -> None:
        """Note whether a director, which requests episodes, and an environment are present."""
        self.directed = is_directed(self.node)
        self.servers = self.servers or publisher_ids(self.node, GOALS)
        # a new server has no request
        self.request_active &= bool(publisher_ids(self.node, GOALS) & self.servers)

    def go(self) -> None:
        """Publish the devices' action once per time step, stamped by the interlock's clock."""
        now = time.monotonic()
        if self.request_active or self.directed or self.busy():
            self.rested = False
            self.rests_since = math.inf
            return
        action = self.person.idle_action()
        if action is None:
            self.rests_since = min(self.rests_since, now)
            self.rested |= now - self.rests_since >= REST_S
        elif self.rested and self.safety.state in MAY_MOVE:
            since_ns = round((now - self.received_at) * NS)
            self.publish(action, to_stamp(to_ns(self.safety.header.stamp) + since_ns))
        else:
            self.rested = False
            self.rests_since = math.inf


# causes of holds that end by themselves
TEMPORARY_HOLDS = (
    "stale_command",
    "stale_state",
    "silent:",
    "stalled",
    "realigning",
    "handing_back",
)
# rest at home without a command, so that an episode begins with none; longer than the recorder's
# EARLY_S
SETTLED_S = 1.5
STUCK_S, LONGEST_S = 3.0, 60.0
NEARER = 0.05  # fraction of the task's largest action
NEVER = float("-inf")


class Homing:
    """Server of ``home``: moves the arms home while they may move and nobody moves them by hand.

    The motion ends if an arm comes no nearer.

    Args:
        node: the operator's node.
        spec: the station's spec.
        homes: the goals.
        by_hand: returns whether a device requests motion now.
        publish: publishes an action as the operator's, for a state of the given time.
        playing: returns whether an episode is in play.
    """

    def __init__(
        self,
        node: Node,
        spec: StationSpec,
        homes: Homes,
        by_hand: Callable[[], bool],
        publish: Callable[[np.ndarray, Time], None],
        playing: Callable[[], bool],
    ) -> None:
        self.node = node
        self.spec = spec
        self.homes = homes
        self.by_hand = by_hand
        self.publish = publish
        self.playing = playing
        self.safety = SafetyState()
        self.enabled = True
        self.enabled_at = NEVER
        self.handle: ServerGoalHandle | None = None
        self.timestep_publishers = set[tuple[int, ...]]()
        self.started_at = self.nearer_at = 0.0
        # time since which all arms are at their homes [s, CLOCK_MONOTONIC]; None while one is not
        self.home_since: float | None = None
        self.nearest, self.result = float("inf"), Home.Result()
        topic = "joint_states" if spec.action.control_mode == "joint_delta" else "current_pose"
        self.topics = {arm: arm_topic(arm, topic) for arm in homes.goals}
        joints = {self.topics[arm]: goal.joints for arm, goal in homes.goals.items() if goal.joints}
        self.latest = Latest(node, set(self.topics.values()), False, joints=joints)
        self.measured = dict[str, tuple[Any, ...]]()
        self.timer = node.create_timer(1.0 / spec.control_hz, self._poll)
        self.timer.cancel()
        subscribe_safety(node, spec.action.arms, partial(setattr, self, "safety"))
        subscription(node, "enable", self._on_enable)
        self.server = ActionServer(
            node,
            Home,
            "home",
            self._end,
            goal_callback=self._accept,
            cancel_callback=lambda _: CancelResponse.ACCEPT,
            handle_accepted_callback=self._start,
        )

    def _on_enable(self, message: Bool) -> None:
        self.enabled = message.data
        self.enabled_at = time.monotonic()

    # One motion
    def _accept(self, _: Any) -> GoalResponse:
        if is_active(self.node) and self.handle is None and not self.playing():
            return GoalResponse.ACCEPT
        self.node.get_logger().error(
            "home refused: expected an active operator, no episode in play and no other home motion"
        )
        return GoalResponse.REJECT

    def _start(self, handle: ServerGoalHandle) -> None:
        self.handle = handle
        self.nearest = float("inf")
        self.home_since = None
        self.started_at = self.nearer_at = time.monotonic()
        self.timestep_publishers = publisher_ids(self.node, "timestep")
        self.measured.clear()
        self.timer.reset()

    def _poll(self) -> None:
        """Publish the next action once per time step, or end the motion."""
        self._update_states()
        now = time.monotonic()
        code, reason = self._end_reason(now)
        is_settled = self.home_since is not None and now - self.home_since > SETTLED_S
        if code or is_settled:
            self._finish(code, reason)
        elif self.measured.keys() == self.homes.goals.keys():
            self._go(now)

    def _update_states(self) -> None:
        """Take the newest state of each arm.

        A message that lacks one of its joints, or holds a non-finite number, is ignored.
        """
        self.latest.messages.clear()
        self.latest.pull()
        for arm, topic in self.topics.items():
            message = self.latest.messages.get(topic)
            if (
                message is not None
                and (state := _measured(message, self.homes.goals[arm].joints or ())) is not None
            ):
                self.measured[arm] = (message.header.stamp, *state)

    def _go(self, now: float) -> None:
        """Publish one step towards the homes; an arm at its home waits for the others."""
        action, far = np.zeros(self.spec.action.dim), 0.0
        for arm, goal in self.homes.goals.items():
            arm_spec = self.spec.action.of_arm(arm) if arm else self.spec.action
            error = goal.remaining(arm_spec, *self.measured[arm][1:])
            if not goal.is_reached(error):
                action[self.spec.action.rows(arm)] = next_action(
                    error, arm_spec, self.spec.control_hz
                )
                far = max(far, float(np.abs(arm_spec.from_si(error)).max()))
        if far == 0.0:  # every arm is at its home
            if self.home_since is None:
                self.home_since = now
            self.nearer_at = now
            return
        self.home_since = None
        if far < self.nearest - NEARER:
            self.nearest = far
            self.nearer_at = now
        stamps = [stamp for stamp, *_ in self.measured.values()]
        self.publish(action, min(stamps, key=lambda stamp: (stamp.sec, stamp.nanosec)))

    def _end_reason(self, now: float) -> tuple[int, str]:
        """Return the error code and the reason if the motion must end; NONE if it may go on."""
        safety, codes = self.safety, Home.Result
        held = safety.state == SafetyState.HOLD and not safety.cause.startswith(TEMPORARY_HOLDS)
        if self.handle is None or self.handle.is_cancel_requested:
            return codes.CANCELLED, "cancelled"
        if not is_active(self.node):
            return codes.NODE_INACTIVE, "the operator was deactivated"
        if self.timestep_publishers and not self.timestep_publishers & publisher_ids(
            self.node, "timestep"
        ):
            return codes.CLIENT_GONE, "the environment that requested it has ended"
        if held or safety.state in (SafetyState.FAULT, SafetyState.DISARMED):
            return (
                codes.INTERLOCK_STOPPED,
                f"the interlock is in {Mode(safety.state).name} {safety.cause}".strip(),
            )
        if not self.enabled or now - self.enabled_at > self.homes.lease_s:
            return codes.NOT_ENABLED, "the enable was let go"
        if self.by_hand():
            return codes.TAKEN_OVER, "a device moves the arm"
        missing = [topic for arm, topic in self.topics.items() if arm not in self.measured]
        if missing and now - self.nearer_at > STUCK_S:
            return codes.NO_STATE, (
                f"no message on {', '.join(missing)}. Is the arm's driver running, and do the "
                "topic names match?"
            )
        if now - self.nearer_at > STUCK_S:
            return codes.NO_PROGRESS, f"the arm came no nearer to home for {STUCK_S:.0f} s"
        if now - self.started_at > LONGEST_S:
            return codes.TIMEOUT, f"the motion took more than {LONGEST_S:.0f} s"
        return codes.NONE, ""

    def _finish(self, code: int, reason: str) -> None:
        self.timer.cancel()
        self.result = Home.Result(success=code == Home.Result.NONE, error_code=code, message=reason)
        if self.handle is not None:
            self.handle.execute()

    def _end(self, handle: ServerGoalHandle) -> Home.Result:
        self.handle = None
        if self.result.success:
            handle.succeed()
        elif handle.is_cancel_requested:
            handle.canceled()
        else:
            handle.abort()
        return self.result


def _measured(
    message: PoseStamped | JointState, joints: Collection[str]
) -> tuple[np.ndarray, Mapping[str, float]] | None:
    """Return the measured joints to compare a goal with; None if some are missing."""
    if isinstance(message, JointState):
        angles = angles_of(message, joints)
        if angles is None or not all(map(math.isfinite, angles)):
            return None
        return np.zeros(7), dict(zip(joints, angles, strict=True))
    pose = np.array(pose_values(message.pose))
    if not np.isfinite(pose).all() or np.linalg.norm(pose[3:]) <= 0.5:
        return None
    return pose, {}


PLAYING_S = 1.0  # since the last time step that was not LAST
LOOK_S = 0.02
# control periods after its publication at which a command has ended; its state was older
ENDS_PERIODS = 2.5


class Operator(Managed, StationNode):
    """Commands on ``teleop/action``, and arms through the interlock's service.

    While inactive it has let go of the enable, commands nothing and passes on only ``disarm``.
    """

    def __init__(self) -> None:
        super().__init__("operator")
        task = load_task(self.declare_parameter("task_file", "").value)
        self.spec = task.spec
        self.session = uuid.uuid4().hex[:12]
        self.seq = 0
        self.stepped_at = float("-inf")
        # time of the last command [s] and its stamp; None once released
        self.takeover: tuple[float, Time] | None = None
        self.lockstep = self.declare_parameter("lockstep", False).value
        endpoints = EndpointReport(self) if self.lockstep else None
        self.actions = publisher(self, "teleop/action")
        subscription(self, "timestep", self._on_timestep)
        subscription(self, "episode", self._on_episode)
        arms, kind = arms_of(self), self.declare_parameter("kind", KEYBOARD).value
        arming = [
            self.create_client(SetBool, arm_topic(arm, "interlock/arm")) for arm in arms or [""]
        ]
        Discovery(self, "interlock", arming[0].service_is_ready)
        enables = self.enables = publisher(self, "enable")
        self.script = (
            ScriptedOperator(self, arms, arming, self.actions, task, enables)
            if kind == SCRIPTED
            else None
        )
        device_settings = self._devices(kind)
        self.replay: ReplayOperator | None = None
        if kind == REPLAY:
            simulated = self.declare_parameter("simulated", False).value
            self.replay = ReplayOperator(self, arms, arming, self.actions, enables, simulated)
            device_settings = device_settings[1:]
        if endpoints is not None:
            endpoints.nodes += [
                player.latest.node for player in (self.script, self.replay) if player
            ]
        kinds = [document["kind"] for document in device_settings]
        if len({*kinds}) < len(kinds):
            raise RecipeError(
                f"operator: expected devices of different kinds, got {', '.join(kinds)}. Leave "
                "one out: settings, second_operator or page"
            )
        devices = {
            kind: make_device(document)
            for kind, document in zip(kinds, device_settings, strict=True)
        }
        at_terminal = self.replay is not None and sys.stdin.isatty()  # its keyboard arms and stops
        self.person = (
            HumanOperator(self, arming, self.spec, devices, enables)
            if devices or at_terminal
            else None
        )
        self.homing = self._homing(self.declare_structure("home"))
        if not self.lockstep:  # in lockstep a command lasts as long as the simulator waits
            self.create_timer(LOOK_S, self._poll)
        if self.person and not self.lockstep:
            self.between = IdleTeleop(
                self, self.person, self.spec, self._busy, self._publish_action
            )
        if self.script and self.person:
            self.script.arming.trouble = lambda: self.person.trouble if self.person else ""
        elif self.script:  # a person's devices report for themselves
            self.diagnostics = Diagnostics(self, self.script.arming.health)

    def _devices(self, kind: str) -> list[dict[str, Any]]:
        """Return the recipe's settings of each device."""
        settings, second, page = (
            self.declare_structure(name, lambda document: settings_of(document["kind"]))
            for name in ("settings", "second_operator", "page")
        )
        settings = settings or ({} if page or kind == SCRIPTED else {"kind": kind})
        return [device for device in (settings, second, page) if device]

    def _homing(self, homes: dict[str, Any]) -> Homing | None:
        """Make the homing of a robot that has a home, where a person can start it."""
        person = self.person
        if not homes or person is None:
            return None
        return Homing(
            self,
            self.spec,
            Homes.from_document(homes),
            lambda: person.moves,
            self._publish_action,
            lambda: time.monotonic() - self.stepped_at < PLAYING_S,
        )

    def activate(self) -> str:
        """Activate; a device that is held now must be let go before it commands."""
        if self.person:
            self.person.distrust()
        return ""

    def deactivate(self) -> None:
        """Let go of the enable: the arm holds, whoever commands."""
        self.takeover = None
        if self.script:
            self.script.arming.end()
        if self.replay:
            self.replay.deactivate()
        self.enables.publish(Bool(data=False))

    def check(self) -> None:
        """Check the script and the replay.

        Raises:
            RlinfError: the script is at a real arm, or the replay far from its start.
        """
        for player in (self.script, self.replay):
            if player:
                player.check()

    def _answer(self, step: TimeStep) -> np.ndarray | SentChunk | None:
        """Return the action for a time step; a person precedes the script, and ends a replay."""
        moves = self.person.device_motions() if self.person else []
        if self.replay:
            if self.person and (self.person.trouble or any(any(move.values()) for move in moves)):
                self.replay.end(self.person.trouble or "a device moves the arm")
            if not self.replay.ended:
                return self.replay.answer(step)
        if self.script and not (self.person and (self.person.trouble or moves)):
            return self.script.answer(step)
        return self.person.answer(step.mode, moves) if self.person else None

    def _on_timestep(self, step: TimeStep) -> None:
        last = step.step_type == TimeStep.LAST
        self.stepped_at = float("-inf") if last else time.monotonic()
        action = self._answer(step) if self.active and not last else None
        if action is CONTINUES:
            self.takeover = self.takeover and (time.monotonic(), self.takeover[1])
            return
        if action is not None:
            self._publish_action(action, step.header.stamp)
        elif self.takeover and (last or self._is_at_rest()):
            self._release(step.header.stamp)

    def _on_episode(self, event: EpisodeEvent) -> None:
        """Release the takeover: an aborted episode has no last time step."""
        if event.kind == EpisodeEvent.ABORTED and self.takeover:
            self._release(self.takeover[1])

    def _poll(self) -> None:
        """Release the takeover once time steps have stopped and no device commands."""
        ended_s = ENDS_PERIODS / self.spec.control_hz
        if self.takeover and time.monotonic() - self.takeover[0] > ended_s and self._is_at_rest():
            self._release(self.takeover[1])

    def _is_at_rest(self) -> bool:
        """Return True if a takeover ends because no device commands.

        A failing device is no release.
        """
        return self.person is None or (self.person.trusted and not self.person.moves)

    def _busy(self) -> bool:
        """Return whether an episode is in play, an arm on its way home, or the node inactive."""
        if not self.active or time.monotonic() - self.stepped_at < PLAYING_S:
            return True
        return self.homing is not None and self.homing.handle is not None

    def _publish_action(self, action: np.ndarray | SentChunk, stamp: Time) -> None:
        """Publish an action, or a recorded chunk, for a state of the given time."""
        self.seq += 1
        self.takeover = (time.monotonic(), stamp)
        values = (
            np.zeros((action.horizon, self.spec.action.dim))
            if isinstance(action, SentChunk)
            else action
        )
        chunk = action_chunk(
            self.spec,
            values,
            source="operator",
            session=self.session,
            seq=self.seq,
            version=-1,
            observation_stamp=stamp,
        )
        if isinstance(action, SentChunk):  # bit by bit
            chunk.execute, chunk.data = action.execute, action.data
        chunk.header.stamp = stamp if self.lockstep else self.get_clock().now().to_msg()
        self.actions.publish(chunk)

    def _release(self, stamp: Time) -> None:
        """Release the takeover; without a release the interlock withdraws the enable (S16)."""
        if self.person and not self.person.trusted:
            return
        self.seq += 1
        self.takeover = None
        chunk = release_chunk(self.spec, session=self.session, seq=self.seq, stamp=stamp)
        chunk.header.stamp = stamp if self.lockstep else self.get_clock().now().to_msg()
        self.actions.publish(chunk)


def main() -> None:
    """Run the node; at a terminal, read single keys and restore the terminal afterwards."""
    if not sys.stdin.isatty():
        run(Operator)
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        run(Operator)
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


if __name__ == "__main__":
    main()
