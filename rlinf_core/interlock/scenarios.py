"""Scenarios of the safety drill and faults of the fault injector.

Each scenario has a failure and the expected reaction.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from rlinf_core.config.base import Count, Discriminated, Positive, Settings
from rlinf_core.config.checking import checked
from rlinf_core.config.yaml_source import parse, read
from rlinf_core.core.errors import RecipeError, nearest

Expected = Annotated[str, Field(pattern=r"^((still|STOP|DISARMED|ARMED|ACTIVE|HOLD|FAULT)( \S+)?)?$")]


class Fault(Settings):
    """A change to the messages of a route."""

    route: str = Field(min_length=1, description="whose messages: the topic that the injector hears")
    kind: str = Field(description="what is done to them; none ends it, reorder swaps every two, freeze goes on with "
                      "the first one's content under fresh stamps")


class Drop(Fault):
    """Drop messages."""

    fraction: float = Field(1.0, gt=0, le=1, description="of them")


class Delay(Fault):
    """Deliver messages late."""

    seconds: Positive = Field(0.1, description="by how much [s]")


class Repeat(Fault):
    """Send every message again."""

    times: Count = Field(1, description="how often")


class Corrupt(Fault):
    """Overwrite a field."""

    field: str = Field("data", description="which one, with dots on the way; each number of a sequence")
    value: float | str = Field("nan", description="nan, inf, a number, or words")


class Offset(Fault):
    """Add to a field."""

    field: str = Field("data", description="which one, with dots on the way; each number of a sequence")
    value: float = Field(0.1, description="what is added")


class Scale(Fault):
    """Multiply a field."""

    field: str = Field("data", description="which one, with dots on the way; each number of a sequence")
    value: float = Field(100.0, description="by what")


class Shift(Fault):
    """Shift every stamp, like a clock that steps."""

    seconds: float = Field(10.0, description="by how much [s]")


FAULTS: dict[str, type[Fault]] = {
    "none": Fault, "drop": Drop, "delay": Delay, "reorder": Fault, "repeat": Repeat, "corrupt": Corrupt, "offset": Offset,
    "scale": Scale, "freeze": Fault, "shift": Shift}


def _fault(kind: str) -> type[Fault]:
    if kind not in FAULTS:
        raise RecipeError(f"kind: expected one of {', '.join(FAULTS)}, got '{kind}'{nearest(kind, FAULTS)}")
    return FAULTS[kind]


FAULT = Discriminated("kind", _fault, lambda: list(FAULTS))
MAYBE_FAULT = Discriminated("kind", _fault, lambda: list(FAULTS), optional=True)


class Say(Settings):
    """An act of the people around the arm, or of the robot."""

    estop: Literal["released", "press", "silent"] = Field("released", description="the pendant's; silent: its cable is cut")
    enabled: bool = Field(True, description="the enable is held")
    taking_over: bool = Field(False, description="the operator commands")
    operator_hangs: bool = Field(False, description="the operator takes over for 0.2 s, and then falls silent without "
                                 "a release")
    fault: str = Field("", description="what the robot reports of itself")
    rogue: Literal["target_pose", "drill/policy/action", "estop/pendant", "enable"] | None = Field(
        None, description="a topic on which somebody else publishes, too")
    end_episode: bool = Field(False, description="the episode ends")


class Scenario(Settings):
    """One failure while the arm moves under a stream of commands."""

    name: str = Field(min_length=1, description="in the table")
    requirement: Annotated[str, Field(pattern=r"^(S\d+)?$")] = Field("", description="of docs/safety.md")
    trap: int = Field(0, ge=0, description="the known one that it is; 0 for none")
    real: bool = Field(False, description="under the policy's own commands, as where another process than an interlock is "
                       "stopped, and not under the drill's")
    inject: Annotated[Fault | None, MAYBE_FAULT] = Field(None, description="what happens to messages")
    say: Say | None = Field(None, description="what people or the robot do")
    process: str = Field("", description="which one is stopped")
    signal: Literal["KILL", "STOP"] | None = Field(None, description="by which signal")
    seconds: Positive | None = Field(None, description="of STOP: until it goes on [s]; for good where nothing is said")
    expect: Expected = Field(min_length=1, description="the state that must be reached, and its cause or who commands: "
                             "HOLD contact; STOP: HOLD or FAULT, whichever comes first; still: the arm rests")
    within_ms: Positive | None = Field(None, description="of the first message altered, or the word [ms]; without, the arm "
                                       "must go on")
    then: Expected = Field("", description="a second state that must follow")
    then_within_ms: Positive | None = Field(None, description="and until when [ms]")
    counts: Literal["holds", "refused", "dropped", "limited"] | None = Field(
        None, description="where the arm goes on: what the interlock must have counted")
    others: Expected = Field("", description="with two arms: what the right one must reach, and then rest")
    others_within_ms: Positive | None = Field(None, description="and until when [ms]; by default within_ms and two ticks")
    others_go_on: bool = Field(False, description="it need not rest: the cause has gone by then")

    @model_validator(mode="after")
    def _something_goes_wrong(self) -> Scenario:
        if not (self.inject or self.say or self.process):
            raise ValueError("expected something that goes wrong: 'inject', 'say' or 'process'; got none of them")
        if bool(self.process) != bool(self.signal):
            raise ValueError("expected 'process' and 'signal' together, got one of them")
        if self.seconds and self.signal != "STOP":
            raise ValueError("seconds: expected none without signal: STOP, from which alone a process goes on")
        return self

    @model_validator(mode="after")
    def _something_is_expected(self) -> Scenario:
        if self.within_ms is None and self.expect != "ACTIVE":
            raise ValueError(f"expect: expected ACTIVE without 'within_ms', as the arm goes on then, got '{self.expect}'")
        if self.within_ms and self.counts:
            raise ValueError("counts: expected none with 'within_ms': it is of an arm that goes on")
        if bool(self.then) != bool(self.then_within_ms) or (self.then and not self.within_ms):
            raise ValueError("then: expected 'within_ms', 'then' and 'then_within_ms' together")
        if not self.others and (self.others_within_ms or self.others_go_on):
            raise ValueError("others: expected what the right arm must reach, with 'others_within_ms' or 'others_go_on'")
        return self


class Scenarios(Settings):
    """The scenarios' file, a list."""

    scenarios: tuple[Scenario, ...] = Field(min_length=1)


class Injection(Settings):
    """An instruction for the fault injector."""

    inject: Annotated[Fault, FAULT]


def load(path: Path) -> tuple[Scenario, ...]:
    """Load a file of scenarios.

    Raises:
        RecipeError: an invalid scenario; the message names file and line.
    """
    return checked(Scenarios, read(path, "scenarios", inside="scenarios")).scenarios


def read_fault(text: str) -> Fault:
    """Parse a fault written in YAML.

    Raises:
        RecipeError: the text is no valid fault.
    """
    return checked(Injection, parse(text, "message", inside="inject")).inject
