"""Where the arm is believed to be: a measured jump faster than the arm can move is no state (S21)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import le

from rlinf_core.interlock.coordinates import Coordinates
from rlinf_core.interlock.limits import Limits
from rlinf_core.interlock.motion import Group
from rlinf_core.interlock.types import NS

SETTLE_S = 0.1                            # how long an arm is watched before it counts as resting somewhere
NOISE_M, NOISE_RAD = 0.005, 0.03          # what measuring alone may jump by
REST_M, REST_RAD = 0.002, 0.01            # what a resting arm may be measured to move by


@dataclass(frozen=True, slots=True)
class Track:
    """What is known of the arm's place.

    Attributes:
        at: the last measured coordinates that are believed; None before any are.
        sampled_ns: when the newest sample was measured.
        jumped: whether a sample has jumped since the last that was believed: an arm that is where it cannot be does not get
            there by waiting.
        rest: where the samples have rested, and ``rested`` for how many ticks in a row.
        believed: whether the newest sample is one of a place where the arm can be.
    """

    at: Coordinates | None = None
    sampled_ns: int = 0
    jumped: bool = False
    rest: Coordinates | None = None
    rested: int = 0
    believed: bool = False


def seen_at_rest(limits: Limits, track: Track) -> bool:
    """Whether the arm has been seen at rest for long enough to say where it is."""
    return track.believed and track.rested >= _ticks(limits)


def update_track(limits: Limits, track: Track, sample: Coordinates | None, age_ns: int, now_ns: int, anew: bool) -> Track:
    """One tick on, with the newest sample, or None if there is none that is a number.

    The first place is believed once the arm has been seen to rest there for ``SETTLE_S``. From then on a sample is
    believed if the arm can have come there from the last one that was. ``anew`` (while nothing is armed) the arm may be
    found at rest anywhere; otherwise a place that has jumped and stays is a fault, for people to look at.
    """
    if sample is None:
        return replace(track, rest=None, rested=0, believed=False)
    rests = track.rest is not None and _within(limits, track.rest, sample, (REST_M, REST_RAD), 0.0)
    rest, rested = (track.rest, track.rested + 1) if rests else (sample, 1)
    sampled_ns = now_ns - age_ns
    max_s = limits.tick if track.jumped else limits.stale_state
    since_s = min(max((sampled_ns - track.sampled_ns) / NS, limits.tick), max_s)
    believed = track.at is not None and _within(limits, track.at, sample, (NOISE_M, NOISE_RAD), since_s)
    if believed or (rested >= _ticks(limits) and (anew or track.at is None)):
        return Track(sample, sampled_ns, False, rest, rested, True)
    return replace(track, sampled_ns=sampled_ns, jumped=True, rest=rest, rested=rested, believed=False)


def looked_at_anew(limits: Limits, track: Track) -> bool:
    """Every ``SETTLE_S`` of an arm that is seen at rest."""
    return track.rested % _ticks(limits) == 0


def placed(limits: Limits, sample: Coordinates, now_ns: int) -> Track:
    """The track of an arm that was put somewhere without moving there, as simulators do."""
    return Track(sample, now_ns, False, sample, _ticks(limits), True)


def _ticks(limits: Limits) -> int:
    return max(3, round(SETTLE_S / limits.tick))


def _within(limits: Limits, a: Coordinates, b: Coordinates, slack: tuple[float, float], seconds: float) -> bool:
    """Whether the arm's groups (not the gripper) are no further apart than slack and so many seconds of motion allow."""
    reach: tuple[float, ...]
    if limits.control_mode == "joint_delta":
        reach = (slack[1] + limits.measured_joint_speed * seconds,)
    else:
        reach = (slack[0] + limits.measured_speed * seconds, slack[1] + limits.measured_rotation_speed * seconds)
    return all(map(le, map(Group.distance, limits.groups, a, b), reach))
