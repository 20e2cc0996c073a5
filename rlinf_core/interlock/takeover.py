"""Who has the arm, as a table: the policy, nobody, or a person who corrects it; and how one becomes another (S16)."""

from __future__ import annotations

from enum import IntEnum

from rlinf_core.interlock.types import OPERATOR, Mode


class Takeover(IntEnum):
    """Of one tick, or of a recorded time step."""

    PAUSED = 0      # nobody: held, disarmed, in fault, or between two commanders
    AUTONOMOUS = 1  # the policy
    CORRECTING = 2  # a person, or the script that stands for one


PAUSED, AUTONOMOUS, CORRECTING = Takeover
TABLE = {
    (AUTONOMOUS, CORRECTING): "the operator asks for motion or rest: in that tick, on from the commanded velocity",
    (AUTONOMOUS, PAUSED): "nothing new comes of the policy, or something holds the arm: it brakes",
    (CORRECTING, PAUSED): "the operator lets go, or something holds the arm: it brakes",
    (PAUSED, CORRECTING): "the operator asks for motion or rest: on from where the arm is",
    (PAUSED, AUTONOMOUS): "the policy's next chunk, once the arm rests and is where its set-point is",
}
"""What may follow what. A person is never followed by the policy without a pause."""


def takeover(source: str, mode: Mode = Mode.ACTIVE) -> Takeover:
    """By who commands (``SafetyState.source``, ``Applied.source``, ``Episode.sources``), and the interlock's mode."""
    if mode is not Mode.ACTIVE or not source:
        return PAUSED
    return CORRECTING if source == OPERATOR else AUTONOMOUS
