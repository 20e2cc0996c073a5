"""The set-point of one tick: it plays an action's window, returns to the arm, or brakes.

The set-point always stays within the limits (S8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import replace
from operator import gt, mul, sub

from rlinf_core.interlock.coordinates import REST_M, REST_RAD, Coordinates, displacement, velocities
from rlinf_core.interlock.limits import Limits
from rlinf_core.interlock.motion import Group, Motion, Numbers, advance, resting, stopping_speed
from rlinf_core.interlock.types import Applied, Chunk, Window

# A set-point further from the arm than this goes to the arm before it moves again.
REALIGN_M, REALIGN_RAD = 0.01, 0.05
_NONE: frozenset[str] = frozenset()
# A set-point nearer to its goal than this is at the goal [m] or [rad].
ALIGNED = 1e-9
# A set-point nearer to the resting arm than this is at the arm.
SAME_M, SAME_RAD = 0.0002, 0.0005
# Rate at which a set-point's excess distance from the arm is taken back while actions request more
# of it [1/s].
DRAW_BACK_RATE = 5.0
# A resting set-point this many divergences away from the arm has lost the arm.
DIVERGED_FACTOR = 1.5


class Trajectory:
    """The moving part of a tick's working copy.

    It holds the set-points, the current window, and the way back to the arm.
    """

    def __init__(
        self,
        limits: Limits,
        motions: tuple[Motion, ...],
        window: Window | None,
        goal: Coordinates | None,
        note: Callable[[str, str, Chunk, int], None],
    ) -> None:
        self.limits = limits
        self.motions = motions
        self.window = window
        self.goal = goal
        self.note = note
        self.applied: list[Applied] = []
        self.share = 1.0  # fraction of each speed limit that holds in this tick
        # Cached results, each with the motions and the arm that it belongs to: a tick needs each
        # several times.
        self._set_points: tuple[tuple[Motion, ...], Coordinates] = ((), ())
        self._error: tuple[Coordinates, Coordinates | None, list[float]] | None = None

    # Places of the set-points
    @property
    def still(self) -> bool:
        return resting(self.motions)

    def set_points(self) -> Coordinates:
        motions, result = self._set_points
        if motions is not self.motions:
            result = tuple([motion.set_point for motion in self.motions])
            self._set_points = self.motions, result
        return result

    def zeros(self) -> Coordinates:
        """Return a velocity of zero for each group."""
        return tuple([(0.0,) * len(motion.position) for motion in self.motions])

    def rest_at(self, coordinates: Coordinates) -> None:
        """Put the set-points at ``coordinates`` at once, without motion."""
        self.goal = None
        self.motions = tuple(map(Motion.at_rest, self.limits.groups, coordinates))

    def reset_to_arm(self, arm: Coordinates) -> None:
        """Put the set-points at the arm, except for a gripper, because it would drop its object."""
        gripper_motions = self.motions[len(self.divergences()) :]
        self.rest_at(arm)
        if gripper_motions:
            self.motions = (*self.motions[:-1], *gripper_motions)

    def leave_gripper_at(self, width: Numbers) -> None:
        """Put the gripper's set-point at its measured ``width``."""
        if self.motions:
            self.motions = (*self.motions[:-1], Motion.at_rest(self.limits.groups[-1], width))

    def rest(self) -> None:
        """Stop the set-points in place, because the robot side has stood at the last target."""
        if not self.still:
            self.rest_at(self.set_points())

    def tracking_error(self, arm: Coordinates | None) -> list[float]:
        """Return the distance of each set-point from the arm, except for the gripper's.

        A gripper that grasps rests away from its set-point. Without an arm each distance is zero.
        """
        at = self.set_points()
        if self._error is None or self._error[0] is not at or self._error[1] is not arm:
            arm_at = at if arm is None else arm
            groups = self.limits.groups[: len(self.divergences())]
            pairs = zip(groups, at, arm_at, strict=False)
            self._error = at, arm, [group.distance(a, b) for group, a, b in pairs]
        return self._error[2]

    def divergences(self) -> tuple[float, ...]:
        """Return the largest ``tracking_error`` at which a set-point may still go further."""
        return self.limits.divergences

    def too_far(self, arm: Coordinates | None) -> bool:
        """Return True if a moving set-point has run further from the arm than it may."""
        return _beyond(self.tracking_error(arm), self.divergences())

    def has_diverged(self, arm: Coordinates | None) -> bool:
        """Return True if a resting set-point is far from the arm (S21)."""
        return (
            bool(self.motions)
            and self.still
            and (self.goal is None or self.arrived())
            and _beyond(
                self.tracking_error(arm),
                [DIVERGED_FACTOR * largest for largest in self.divergences()],
            )
        )

    def differs_from(self, arm: Coordinates, far: tuple[float, float] = (REST_M, REST_RAD)) -> bool:
        """Return True if the set-point is further than ``far`` [m, rad] from a resting arm.

        The default of ``far`` is the noise of measuring an arm at rest.
        """
        return bool(self.motions) and _beyond(
            self.tracking_error(arm), far[1:] if self.limits.control_mode == "joint_delta" else far
        )

    def differs_slightly_from(self, arm: Coordinates) -> bool:
        """Return True if the distance from the arm is more than an invisible motion."""
        return self.differs_from(arm, (SAME_M, SAME_RAD))

    # The way back to the arm (traps 3 and 4)
    def misaligned(self, arm: Coordinates | None) -> bool:
        """Return True if the set-point must go to the arm before it may follow actions."""
        smallest = (
            (REALIGN_RAD,)
            if self.limits.control_mode == "joint_delta"
            else (REALIGN_M, REALIGN_RAD)
        )
        return _beyond(self.tracking_error(arm), smallest)

    def exceeded_workspace(self, arm: Coordinates) -> str:
        """Return the name of the first workspace that does not hold the arm, or an empty string."""
        for group, at in zip(self.limits.groups, arm, strict=True):
            if not group.inside(at):
                return "box" if group.name == "position" else group.name
        return ""

    def left_workspace(self, arm: Coordinates) -> str:
        """Return the name of the first workspace that the arm has left beyond its lag, or ""."""
        errors = zip(self.tracking_error(arm), self.divergences(), strict=False)
        for index, (error, largest) in enumerate(errors):
            group, at = self.limits.groups[index], arm[index]
            if error > largest and not group.inside(at):
                return "box" if group.name == "position" else group.name
        return ""

    def set_goal(self, arm: Coordinates) -> None:
        """Make the resting arm the set-point's goal."""
        self.goal = arm[: len(self.divergences())]

    def lost_its_goal(self, arm: Coordinates | None) -> bool:
        """Return True if the arm has left the place that the set-point goes to."""
        return arm is None or _beyond(
            map(Group.distance, self.limits.groups, self.goal or (), arm), self.divergences()
        )

    def velocities_to_goal(self) -> Coordinates:
        """Return the velocities towards the goal, from which each group can still stop there."""
        desired: list[Numbers] = []
        for index, motion in enumerate(self.motions):
            group = self.limits.groups[index]
            if self.goal is None or index >= len(self.goal):
                desired.append((0.0,) * len(motion.position))
                continue
            delta = tuple(map(sub, self.goal[index], motion.position))
            far = group.norm(delta)
            speed = min(group.speed, stopping_speed(far, 0.5 * group.acceleration, group.tick))
            desired.append(
                tuple([v * speed / far for v in delta]) if far > ALIGNED else (0.0,) * len(delta)
            )
        return tuple(desired)

    def arrived(self) -> bool:
        """Return True if the set-point rests at its goal."""
        return (
            self.goal is not None
            and self.still
            and all(
                far <= 2.0 * ALIGNED
                for far in map(Group.distance, self.limits.groups, self.set_points(), self.goal)
            )
        )

    # One tick
    def move(self, desired: Coordinates, now_ns: int, window_end: int) -> None:
        """Advance every set-point.

        Args:
            desired: the desired velocity of each group.
            now_ns: time of this tick.
            window_end: end of the current window [ns].
        """
        groups = (
            map(_without_walls_if_outside, self.limits.groups, self.motions)
            if self.goal is not None
            else self.limits.groups
        )
        motions, active = [], _NONE
        for group, motion, velocity in zip(groups, self.motions, desired, strict=True):
            next_motion, limits_hit = advance(group, motion, velocity, self.share)
            motions.append(next_motion)
            active |= limits_hit
        self.motions = tuple(motions)
        if self.window is not None and not self.window.done:
            self.limited_by(active)
            if now_ns + self.limits.tick_ns >= window_end:
                self.finish_window()

    def play(
        self, chunk: Chunk, index: int, arm: Coordinates | None, distance_m: float | None
    ) -> Coordinates:
        """Return the velocities of action ``index`` of the chunk, slower near an obstacle."""
        if self.window is None or self.window.index != index or self.window.chunk is not chunk:
            self.finish_window()
            self.window = Window(chunk, index, self.set_points())
        plan = tuple([motion.position for motion in self.motions])
        desired = velocities(self.limits, chunk, chunk.actions[index], plan)
        return self._clamped_by_divergence(self._scaled_by_distance(desired, distance_m), arm)

    def _scaled_by_distance(self, desired: Coordinates, distance_m: float | None) -> Coordinates:
        """Slow the velocity and its limit in proportion to the distance of an obstacle (S11)."""
        fraction = 1.0 if distance_m is None else distance_m / self.limits.slow_distance
        if fraction >= 1.0:
            return desired
        self.share = fraction
        self.limited_by({"distance"})
        return tuple([tuple([value * fraction for value in velocity]) for velocity in desired])

    def _clamped_by_divergence(self, desired: Coordinates, arm: Coordinates | None) -> Coordinates:
        """Keep a set-point that is too far from the arm from going further.

        Motion that does not lead away is kept, so that a tool can slide. Meanwhile the set-point is
        drawn back. Coordinates that share one path, like joints, stop together if one that is too
        far would go further.
        """
        if arm is None:
            return desired
        result = list(desired)
        for index, (error, largest) in enumerate(
            zip(self.tracking_error(arm), self.divergences(), strict=True)
        ):
            if not error > largest:
                continue
            away = tuple(map(sub, self.motions[index].set_point, arm[index]))
            outward_speeds = map(mul, away, desired[index])
            together = self.limits.groups[index].together
            if together:
                too_far = [
                    speed
                    for speed, distance in zip(outward_speeds, away, strict=True)
                    if abs(distance) > largest
                ]
                outward = max(too_far, default=0.0)
            else:
                outward = sum(outward_speeds)
            if not outward > 0.0:
                continue
            self.limited_by({"divergence"})
            if together:
                result[index] = (0.0,) * len(away)
            else:
                back = (outward / error + DRAW_BACK_RATE * (error - largest)) / error
                pairs = zip(desired[index], away, strict=True)
                result[index] = tuple([value - back * part for value, part in pairs])
        return tuple(result)

    def limited_by(self, limits: Set[str]) -> None:
        """Note that ``limits`` have changed the current action."""
        if self.window is not None and not limits <= self.window.limits:
            self.window = replace(self.window, limits=self.window.limits | limits)

    def finish_window(self) -> None:
        """Report the outcome of the current action (``Applied``), once."""
        window = self.window
        if window is None or window.done or not self.motions:
            return
        chunk = window.chunk
        executed = displacement(
            self.limits, window.start, self.set_points(), len(chunk.actions[window.index])
        )
        self.applied.append(
            Applied(
                chunk.source,
                chunk.session,
                chunk.seq,
                window.index,
                chunk.policy_version,
                chunk.observation_stamp_ns + window.index * chunk.dt_ns,
                chunk.observation_stamp_ns,
                tuple((chunk.all_arms or chunk.actions)[window.index]),
                executed,
                tuple(sorted(window.limits)),
            )
        )
        if window.limits:
            self.note("limited", ",".join(sorted(window.limits)), chunk, window.index)
        self.window = replace(window, done=True)


def _beyond(values: Iterable[float], largest: Iterable[float]) -> bool:
    return any(map(gt, values, largest))


def _without_walls_if_outside(group: Group, motion: Motion) -> Group:
    """Return the group, without its walls while its path is outside, so that it can come back."""
    if all(map(group.inside, motion.trail)) and group.can_stop(motion.position, motion.velocity):
        return group
    return group.without_walls
