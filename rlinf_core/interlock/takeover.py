"""Takeovers: who commands, the allowed transitions, and the watch over a silent operator (S16)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from rlinf_core.interlock.types import NS, OPERATOR, Chunk, Inputs, Mode


class Takeover(IntEnum):
    """The takeover in one tick, or in a recorded time step."""

    PAUSED = 0  # no commander: held, disarmed, in fault, or between two commanders
    AUTONOMOUS = 1  # the policy
    CORRECTING = 2  # a person, or a script in a person's place


PAUSED, AUTONOMOUS, CORRECTING = Takeover
# Allowed transitions between commanders. The policy never follows a person without a pause.
TRANSITIONS = {
    (AUTONOMOUS, CORRECTING): "the operator commands: in that tick, from the commanded velocity",
    (AUTONOMOUS, PAUSED): "the policy sends nothing new, or something holds the arm: it brakes",
    (CORRECTING, PAUSED): "the operator lets go, or something holds the arm: it brakes",
    (PAUSED, CORRECTING): "the operator commands motion or rest: from the arm's position",
    (PAUSED, AUTONOMOUS): "the policy's next chunk, when the arm rests at its set-point",
}


def takeover(source: str, mode: Mode = Mode.ACTIVE) -> Takeover:
    """Return the takeover that belongs to a commander and the interlock's mode.

    Args:
        source: the commander (``SafetyState.source``, ``Applied.source``, ``Episode.sources``).
        mode: the interlock's mode.
    """
    if mode is not Mode.ACTIVE or not source:
        return PAUSED
    return CORRECTING if source == OPERATOR else AUTONOMOUS


OPERATOR_SILENT = "operator_silent"  # cause of the hold
RELEASE_S = 0.5  # the release must come this soon after the end of the operator's last command
IDLE_S = 0.3  # an enable that was not renewed for this long is not held


class Enabling(IntEnum):
    """Stages that the policy waits for after an operator fell silent, in their order."""

    GIVEN = 0  # no stage: the enable counts
    DROPPED = 1  # the operator must be heard again, and release the takeover
    RELEASED = 2  # the enable must be let go, in case something holds it down
    IDLE = 3  # a person must enable anew


@dataclass(frozen=True, slots=True)
class OperatorWatch:
    """State of the watch. Arming anew ends every stage.

    Attributes:
        until_ns: end of the operator's last command, in the clock of the chunks' stamps [ns]; None
            without a takeover.
        stage: the stage that the policy waits for; GIVEN if the enable counts.
    """

    until_ns: int | None = None
    stage: Enabling = Enabling.GIVEN

    @property
    def has_takeover(self) -> bool:
        """Whether the operator has taken over and not let go, so that the policy must wait."""
        return self.until_ns is not None

    @property
    def dropped(self) -> bool:
        """Whether the enable is ignored."""
        return self.stage is not Enabling.GIVEN

    def on_tick(self, inputs: Inputs, now_ns: int) -> OperatorWatch:
        """Return the watch at a tick, before its chunks."""
        if inputs.restart:  # a simulator begins a new scene, without a takeover
            return replace(self, until_ns=None)
        if self.until_ns is not None and now_ns >= self.until_ns + RELEASE_S * NS:
            return OperatorWatch(stage=Enabling.DROPPED)
        is_held = inputs.enable and inputs.enable_age_s <= IDLE_S
        if self.stage is Enabling.RELEASED and not is_held:
            return replace(self, stage=Enabling.IDLE)
        if self.stage is Enabling.IDLE and inputs.enable and inputs.enable_renewed:
            return replace(self, stage=Enabling.GIVEN)
        return self

    def on_command(self, chunk: Chunk) -> OperatorWatch:
        """Continue the takeover after a command of the operator, until they let go."""
        return replace(self, until_ns=chunk.valid_until_ns)

    def on_refusal(self, now_ns: int) -> OperatorWatch:
        """Return the watch after a refused command of the operator.

        The command takes nothing over, but it shows that the operator is present in a takeover.
        """
        return self if self.until_ns is None else replace(self, until_ns=max(self.until_ns, now_ns))

    def on_release(self) -> OperatorWatch:
        """Return the watch after the operator has let go."""
        stage = Enabling.RELEASED if self.stage is Enabling.DROPPED else self.stage
        return OperatorWatch(stage=stage)

    def on_arming(self) -> OperatorWatch:
        """Return the watch after a person has armed, which enables anew. A takeover goes on."""
        return replace(self, stage=Enabling.GIVEN)
