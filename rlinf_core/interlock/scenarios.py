"""Scenarios of the safety drill and faults of the fault injector.

Each scenario has a failure and the expected reaction.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from rlinf_core.config.base import Count, Discriminated, Positive, Settings
from rlinf_core.config.checking import validate
from rlinf_core.config.yaml_source import parse_document, read_document
from rlinf_core.core.errors import RecipeError, nearest

Expected = Annotated[
    str, Field(pattern=r"^((still|STOP|DISARMED|ARMED|ACTIVE|HOLD|FAULT)( \S+)?)?$")
]


class Fault(Settings):
    """A change to the messages of a route."""

    route: str = Field(min_length=1, description="topic whose messages change")
    kind: str = Field(description="kind of change to the messages")


class Drop(Fault):
    """Drop messages."""

    fraction: float = Field(1.0, gt=0, le=1, description="fraction of messages")


class Delay(Fault):
    """Deliver messages late."""

    seconds: Positive = Field(0.1, description="delay [s]")


class Repeat(Fault):
    """Send every message again."""

    times: Count = Field(1, description="number of copies")


class Corrupt(Fault):
    """Overwrite a field."""

    field: str = Field(
        "data", description="field, with dots on the path. Each number of a sequence changes"
    )
    value: float | str = Field("nan", description="nan, inf, a number or a text")


class Offset(Fault):
    """Add to a field."""

    field: str = Field(
        "data", description="field, with dots on the path. Each number of a sequence changes"
    )
    value: float = Field(0.1, description="offset in the field's unit")


class Scale(Fault):
    """Multiply a field."""

    field: str = Field(
        "data", description="field, with dots on the path. Each number of a sequence changes"
    )
    value: float = Field(100.0, description="factor")


class Shift(Fault):
    """Shift every stamp, like a clock that steps."""

    seconds: float = Field(10.0, description="delay [s]")


FAULTS: dict[str, type[Fault]] = {
    "none": Fault,
    "drop": Drop,
    "delay": Delay,
    "reorder": Fault,
    "repeat": Repeat,
    "corrupt": Corrupt,
    "offset": Offset,
    "scale": Scale,
    "freeze": Fault,
    "shift": Shift,
}


def _fault(kind: str) -> type[Fault]:
    if kind not in FAULTS:
        raise RecipeError(
            f"kind: expected one of {', '.join(FAULTS)}, got '{kind}'{nearest(kind, FAULTS)}"
        )
    return FAULTS[kind]


FAULT = Discriminated("kind", _fault, lambda: list(FAULTS))
MAYBE_FAULT = Discriminated("kind", _fault, lambda: list(FAULTS), optional=True)


class StationInputs(Settings):
    """Inputs that people, the robot or a second publisher change during the scenario."""

    estop: Literal["released", "press", "silent"] = Field(
        "released", description="state of the pendant's e-stop. `silent` means a cut cable"
    )
    enabled: bool = Field(True, description="the enable is held")
    taking_over: bool = Field(False, description="the operator commands the arm")
    operator_hangs: bool = Field(
        False, description="the operator takes over for 0.2 s, then falls silent without a release"
    )
    fault: str = Field("", description="fault that the robot reports")
    rogue: Literal["target_pose", "drill/policy/action", "estop/pendant", "enable"] | None = Field(
        None, description="topic with a second publisher"
    )
    end_episode: bool = Field(False, description="the episode ends")


class Scenario(Settings):
    """One failure while the arm moves under a stream of commands."""

    name: str = Field(min_length=1, description="name in the drill's table")
    requirement: Annotated[str, Field(pattern=r"^(S\d+)?$")] = Field(
        "", description="requirement of docs/safety.md"
    )
    trap: int = Field(0, ge=0, description="number of the known trap. 0 is none")
    real: bool = Field(
        False,
        description="run under the policy's own commands instead of the "
        "drill's. For scenarios that stop another process than "
        "an interlock",
    )
    inject: Annotated[Fault | None, MAYBE_FAULT] = Field(
        None, description="kind of change to the messages"
    )
    inputs: StationInputs | None = Field(None, description="state of the station's other inputs")
    process: str = Field("", description="process that receives the signal")
    signal: Literal["KILL", "STOP"] | None = Field(None, description="name of the signal")
    seconds: Positive | None = Field(
        None, description="duration of STOP [s]. Without it the process stays stopped"
    )
    expect: Expected = Field(
        min_length=1,
        description="required state and its cause or commander, such as HOLD contact. STOP means "
        "HOLD or "
        "FAULT, whichever is first. `still` means an arm at rest",
    )
    within_ms: Positive | None = Field(
        None,
        description="longest time from the first changed message or word [ms]. Without it the arm "
        "must "
        "continue",
    )
    then: Expected = Field("", description="required second state")
    then_within_ms: Positive | None = Field(
        None, description="longest time to the second state [ms]"
    )
    counts: Literal["holds", "refused", "dropped", "limited"] | None = Field(
        None, description="counter of the interlock that must rise while the arm continues"
    )
    others: Expected = Field(
        "", description="with two arms, required state of the right one, which must then rest"
    )
    others_within_ms: Positive | None = Field(
        None, description="longest time to that state [ms]. The default is within_ms and two ticks"
    )
    others_go_on: bool = Field(
        False, description="the right arm need not rest, since the cause has ended"
    )

    @model_validator(mode="after")
    def _check_disturbance(self) -> Scenario:
        if not (self.inject or self.inputs or self.process):
            raise ValueError(
                "expected a disturbance: 'inject', 'inputs' or 'process'; got none of them"
            )
        if bool(self.process) != bool(self.signal):
            raise ValueError("expected 'process' and 'signal' together, got one of them")
        if self.seconds and self.signal != "STOP":
            raise ValueError(
                "seconds: expected none without signal: STOP, the only signal after which a "
                "process continues"
            )
        return self

    @model_validator(mode="after")
    def _check_expectation(self) -> Scenario:
        if self.within_ms is None and self.expect != "ACTIVE":
            raise ValueError(
                "expect: expected ACTIVE without 'within_ms', since the arm then continues, got "
                f"'{self.expect}'"
            )
        if self.within_ms and self.counts:
            raise ValueError(
                "counts: expected none with 'within_ms'. It is for an arm that continues"
            )
        if bool(self.then) != bool(self.then_within_ms) or (self.then and not self.within_ms):
            raise ValueError("then: expected 'within_ms', 'then' and 'then_within_ms' together")
        if not self.others and (self.others_within_ms or self.others_go_on):
            raise ValueError(
                "others: expected the required state of the right arm, with 'others_within_ms' or "
                "'others_go_on'"
            )
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
    return validate(Scenarios, read_document(path, "scenarios", inside="scenarios")).scenarios


def read_fault(text: str) -> Fault:
    """Parse a fault written in YAML.

    Raises:
        RecipeError: the text is no valid fault.
    """
    return validate(Injection, parse_document(text, "message", inside="inject")).inject
