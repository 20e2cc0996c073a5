"""The interlock's clock: a fixed rate in real time, one tick per measured pose in lockstep.

See docs/explain/timing.md.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from geometry_msgs.msg import PoseStamped
from rclpy.node import Node
from rclpy.serialization import deserialize_message
from rlinf_msgs.msg import ActionChunk, EpisodeEvent, SafetyState, TimeStep

from rlinf_core.interlock import Mode
from rlinf_core.interlock.types import OPERATOR
from rlinf_interlock.interlock_inputs import OVER, ROLES, Inputs
from rlinf_ros.conversions import NS, to_ns
from rlinf_ros.memory_bus import Envelope
from rlinf_ros.qos import received, subscription
from rlinf_ros.timer_phase import PhaseLockedTimer

Tick = Callable[[int, int, float], None]  # now_ns, age of the pose [ns], lateness of the tick [s]
READ_NS = 1_000_000  # longest time of reading two clocks
CLOCK_STEP_NS = 20_000_000  # between two ticks; slower drift is followed
# interval of the search for other publishers, if ticks are more frequent
LOOK_NS = 7_500_000
NEW_SCENE_NS = NS // 2  # between two poses in lockstep, which are one tick apart within a scene


class RealTime:
    """A timer that is phase-locked to the chunks.

    Stamps are at least one tick apart, so that the limits hold by measured time (S24).
    """

    new_scene = False  # only an episode's start tells of one

    def __init__(self, node: Node, inputs: Inputs, period_s: float, tick: Tick) -> None:
        self.inputs = inputs
        self.period_ns = round(period_s * NS)
        self.tick = tick
        self.offset_ns = time.time_ns() - time.monotonic_ns()
        self.last_ns = self.stamp_ns = self.looked_ns = time.monotonic_ns()
        self.late_ms: deque[float] = deque(maxlen=1000)
        self.clock_stepped = False
        self.phase = PhaseLockedTimer(node, period_s, self._on_timer, hurry=0.0, early=0.0)

    def _on_timer(self) -> None:
        now = time.monotonic_ns()
        late = now - self.last_ns - self.period_ns
        self.last_ns = now
        self.late_ms.append(late / 1e6)
        self._follow_clock()
        self.stamp_ns = max(self.stamp_ns + self.period_ns, now)
        self.inputs.pull()
        for at in [at for topic in ROLES for at in self.inputs.listeners[topic].arrived]:
            self.phase.arrived(at / NS)
        self.tick(
            self.stamp_ns + self.offset_ns,
            self.inputs.age_ns(self.inputs.state_topic),
            max(late, 0) / NS,
        )
        if now - self.looked_ns > LOOK_NS:
            self.looked_ns = now
            self.inputs.check_publishers()  # after the command, which does not wait for it

    def _follow_clock(self) -> None:
        """Follow this machine's clock, which stamps the messages.

        A step of the clock causes no motion: the interlock holds until it is armed anew (S4).
        """
        before_ns = time.monotonic_ns()
        offset_ns = time.time_ns() - before_ns
        if time.monotonic_ns() - before_ns > READ_NS:
            return  # interrupted between the two readings: the next tick looks again
        if abs(offset_ns - self.offset_ns) > CLOCK_STEP_NS:
            self.clock_stepped = True
        self.offset_ns = offset_ns

    def on_request(self) -> None:
        """Do nothing: the next tick handles a request soon enough."""

    def stop(self, node: Node) -> None:
        """Stop ticking."""
        self.phase.stop(node)


class Lockstep:
    """A clock for simulators: each pose that a chunk covers allows one tick.

    A chunk that spans several time steps allows the ticks of each one only once the environment has
    taken that time step, so that every observation is of its own time. With other arms, each waits
    for the others' state of the previous tick, so that the order does not matter. While the
    operator commands, a policy's chunk allows no tick before the operator's chunk has had time to
    arrive. A guard keeps time if nothing arrives.

    Attributes:
        new_scene: True in a tick whose pose is of a new scene: simulators begin one at a later
            time.
    """

    clock_stepped = False

    def __init__(
        self,
        node: Node,
        inputs: Inputs,
        period_s: float,
        tick: Tick,
        guard_s: float,
        mode: Callable[[], Mode],
        repeat: Callable[[], None],
    ) -> None:
        self.inputs = inputs
        self.period_s = period_s
        self.guard_s = guard_s
        self.mode = mode
        self.repeat = repeat
        self.tick = tick
        self.late_ms: deque[float] = deque(maxlen=1000)
        self.credits_ns = dict.fromkeys(ROLES.values(), 0)
        self.taken_over_ns = self.looked_ns = self.dt_ns = self.ticked_ns = 0
        # stamp of the newest time step; None until there is an environment
        self.step_ns: int | None = None
        self.pending = self.forced = self.running_on = self.answered = self.stopped = False
        self.new_scene = False
        self.last_ns = self.since_ns = time.monotonic_ns()
        self.subscriptions = [
            subscription(
                node,
                "current_pose",
                self._on_pose,
                quality=received("current_pose", True),
                raw=True,
                lazy=True,
            ),
            subscription(node, "episode", self._on_episode, raw=True, lazy=True),
            subscription(node, "timestep", self._on_timestep, raw=True, lazy=True),
            *(
                subscription(node, topic, partial(self._on_chunk, topic), raw=True, lazy=True)
                for topic in ROLES
            ),
            *(
                subscription(node, topic, partial(self._on_other, topic), raw=True, lazy=True)
                for topic in inputs.others
            ),
        ]
        self.timer = node.create_timer(period_s, self._on_guard)

    def _on_pose(self, raw: bytes | Envelope) -> None:
        before = self.inputs.pose_stamp_ns
        message = self.inputs.decode("current_pose", PoseStamped, raw)
        if message is None:
            return
        self.inputs.receive("current_pose", message)
        is_forced = self.forced and self.mode() is not Mode.ACTIVE
        if (
            self.answered
            and not self.pending
            and not is_forced
            and self.inputs.pose_stamp_ns == before
        ):
            self.repeat()  # a republished state gets its answer again: nothing moves twice
            return
        if not self.pending or self.inputs.pose_stamp_ns != before:
            self.since_ns = time.monotonic_ns()
        if before and self.inputs.pose_stamp_ns - before > NEW_SCENE_NS:
            self.new_scene = True
        self.pending = True
        self._tick_if_due()

    def _on_episode(self, raw: bytes | Envelope) -> None:
        message = self.inputs.decode("episode", EpisodeEvent, raw)
        if message is not None:
            self.inputs.receive("episode", message)
            if message.kind in OVER:
                self.credits_ns = dict.fromkeys(self.credits_ns, 0)
                self.taken_over_ns = 0

    def _on_timestep(self, raw: bytes | Envelope) -> None:
        try:
            step = raw.message if isinstance(raw, Envelope) else deserialize_message(raw, TimeStep)
        except Exception:  # a broken message is dropped, as everywhere here
            self.inputs.counts["unreadable"] += 1
            return
        self.step_ns = to_ns(step.header.stamp) if step.step_type != TimeStep.LAST else 0
        self._tick_if_due()

    def _on_chunk(self, topic: str, raw: bytes | Envelope) -> None:
        message: Any = self.inputs.decode(topic, ActionChunk, raw)
        if message is None:
            return
        self.inputs.receive(topic, message)
        chunk = self.inputs.chunks[-1]
        if chunk.is_release:
            self.taken_over_ns = 0
            self._tick_if_due()
        elif 0.0 < chunk.dt_s < 10.0:
            role, deadline = ROLES[topic], chunk.observation_stamp_ns + chunk.execute * chunk.dt_ns
            self.credits_ns[role] = max(self.credits_ns[role], deadline)
            self.taken_over_ns = deadline + chunk.dt_ns if role == OPERATOR else self.taken_over_ns
            self.dt_ns = chunk.dt_ns
            self._tick_if_due()

    def _on_other(self, topic: str, raw: bytes | Envelope) -> None:
        message = self.inputs.decode(topic, SafetyState, raw)
        if message is not None:
            self.inputs.receive(topic, message)
            self._tick_if_due()

    def on_request(self) -> None:
        """Answer a request with the present state, if that is still unanswered."""
        self.forced = True
        self._tick_if_due()

    @property
    def _has_tick_credit(self) -> bool:
        taken_over = self.inputs.pose_stamp_ns < self.taken_over_ns
        credit_ns = self.credits_ns[OPERATOR] if taken_over else max(self.credits_ns.values())
        deadline = credit_ns if self.step_ns is None else min(credit_ns, self.step_ns + self.dt_ns)
        others_ready = all(other.up_to() >= self.ticked_ns for other in self.inputs.others.values())
        return others_ready and self.inputs.pose_stamp_ns < deadline

    def _tick_if_due(self) -> None:
        if self.pending and (self.forced or self._has_tick_credit):
            self._tick()

    def _on_guard(self) -> None:
        """Tick without credit after too long a wait.

        Such ticks come at the real rate while ACTIVE, else once per guard period.
        """
        # since the pose: the first tick of a new scene belongs to its chunk
        waited_s = (time.monotonic_ns() - self.since_ns) / NS
        if waited_s > self.guard_s:
            self.taken_over_ns = 0  # the operator has let go
        running_on = self.running_on and self.mode() is Mode.ACTIVE
        if self.pending and (waited_s > self.guard_s or (running_on and waited_s > self.period_s)):
            self.running_on = True
            self._tick()

    def _tick(self) -> None:
        if self.stopped:
            return
        if self._has_tick_credit:
            self.running_on = False
        self.pending = self.forced = False
        self.last_ns = time.monotonic_ns()
        self.inputs.pull()
        if self.last_ns - self.looked_ns > 0.1 * NS:
            self.looked_ns = self.last_ns
            self.inputs.check_publishers()
        self.answered = True
        self.ticked_ns = self.inputs.pose_stamp_ns
        self.tick(self.inputs.pose_stamp_ns, 0, 0.0)
        self.new_scene = False

    def stop(self, node: Node) -> None:
        """Stop ticking, even for messages that the executor has already taken."""
        self.stopped = True
        node.destroy_timer(self.timer)
        for handle in self.subscriptions:
            node.destroy_subscription(handle)
