"""Programs: an agent writes a function; hidden tests call it in a jail."""

from __future__ import annotations

import json
import random
import re
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

from rlinf_core.agentic.environment import Message, Scene, Tool, ToolEnvironment
from rlinf_core.agentic.jail import JailLimits, run_program
from rlinf_core.agentic.tasks.arithmetic import EVALUATION
from rlinf_core.core.errors import RecipeError

MAX_PROGRAM = 8000  # characters
# Statement, expected function, solution; {a} and {b} are drawn.
INTEGERS: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("x times {a} plus {b}", lambda x, a, b: x * a + b, "x*{a}+{b}"),
    ("x times {a} minus {b}", lambda x, a, b: x * a - b, "x*{a}-{b}"),
    ("x plus {b}, then times {a}", lambda x, a, b: (x + b) * a, "(x+{b})*{a}"),
    ("x minus {b}, then times {a}", lambda x, a, b: (x - b) * a, "(x-{b})*{a}"),
    ("the square of x plus {b}", lambda x, a, b: x * x + b, "x*x+{b}"),
    ("the remainder of x by {a} plus {b}", lambda x, a, b: x % a + b, "x%{a}+{b}"),
    ("the larger of x and {b}", lambda x, a, b: max(x, b), "max(x,{b})"),
    ("the smaller of x and {b}", lambda x, a, b: min(x, b), "min(x,{b})"),
)
LISTS: tuple[tuple[str, Callable[..., Any], str], ...] = (
    (
        "the numbers of the list x that are larger than {b}",
        lambda x, a, b: [v for v in x if v > b],
        "[v for v in x if v > {b}]",
    ),
    (
        "the list x with each number times {a}",
        lambda x, a, b: [v * a for v in x],
        "[v*{a} for v in x]",
    ),
    ("the sum of the list x plus {b}", lambda x, a, b: sum(x) + b, "sum(x)+{b}"),
    (
        "the list x in reverse without its multiples of {a}",
        lambda x, a, b: [v for v in x[::-1] if v % a],
        "[v for v in x[::-1] if v % {a}]",
    ),
)


def program_text(answer: str) -> str:
    """Return the program of an answer: its last fenced block, or all of it.

    An expression becomes f(x).
    """
    blocks = re.findall(r"```(?:python|py)?[ \t]*\n(.*?)```", answer, re.S)
    text = (blocks[-1] if blocks else answer).strip()
    return text if re.search(r"^(def|f\s*=)", text, re.M) else f"def f(x):\n    return ({text}\n)"


@lru_cache(maxsize=4096)
def _values(program: str, inputs: str, limits: JailLimits) -> tuple[str, ...]:
    """Return the values of f for inputs (JSON). Equal programs of a group run once.

    Raises:
        TimeoutError: the program took too long. Such a result is not cached.
    """
    outcome = run_program(program, "f", json.loads(inputs), limits)
    if outcome.end == "wall_time":
        raise TimeoutError
    return outcome.values


class Programs(ToolEnvironment):
    """Write a function f(x). The reward is 1 if it is right for all hidden inputs.

    Only inputs enter the jail, and the values of f are compared outside of it. An exit code, a
    print, a file or a changed comparison is therefore no success.
    """

    def __init__(
        self,
        *,
        kind: Literal["integers", "lists"] = "integers",
        tests: int = 8,
        examples: int = 0,
        with_tool: bool = False,
        max_turns: int = 4,
        wall_s: float = 5.0,
    ) -> None:
        """Set up the task.

        Args:
            kind: the type of x
            tests: number of hidden inputs
            examples: inputs that the prompt shows with their values; none of them is hidden
            with_tool: the agent may run programs in a jail before it answers
            max_turns: largest number of the agent's messages
            wall_s: time limit of a program for all tests [s]
        """
        super().__init__(max_turns)
        if kind not in ("integers", "lists") or tests < 1 or examples < 0:
            raise RecipeError(
                f"text.options: expected integers or lists, tests >= 1, examples >= 0, "
                f"got {kind}, {tests}, {examples}"
            )
        self.kind, self.tests, self.examples, self.with_tool = kind, tests, examples, with_tool
        self.limits = JailLimits(wall_s=wall_s)

    def begin(self, seed: int) -> Scene:
        """Draw a problem and its inputs."""
        draw = random.Random(f"programs {self.kind} {seed}")
        statement, function, solution = draw.choice(INTEGERS if self.kind == "integers" else LISTS)
        numbers = [
            (a, b)
            for a in range(2, 10)
            for b in range(1, 10)
            if ((a + b) % 4 == 0) == (seed in EVALUATION)
        ]
        a, b = draw.choice(numbers)
        inputs = self._inputs(draw, self.tests + self.examples)
        values = [function(value, a, b) for value in inputs]
        self.solution = solution.format(a=a, b=b)
        self.inputs = inputs[: self.tests]
        self.expected = [json.dumps(value) for value in values[: self.tests]]
        shown = "".join(f"\nf({inputs[i]}) = {values[i]}" for i in range(self.tests, len(inputs)))
        text = f"Write f(x): {statement.format(a=a, b=b)}.{shown}"
        return Scene(
            [{"role": "user", "content": text}], [Tool.of(self.run)] if self.with_tool else []
        )

    def _inputs(self, draw: random.Random, count: int) -> list[Any]:
        if self.kind == "integers":
            return draw.sample(range(-60, 61), count)
        lists: list[list[int]] = []
        while len(lists) < count:
            values = [draw.randrange(-20, 21) for _ in range(draw.randrange(7))]
            lists += [values] if values not in lists else []
        return lists

    def run(self, program: str) -> str:
        """Run a Python program and return what it prints.

        Args:
            program: its text
        """
        outcome = run_program(program[:MAX_PROGRAM], limits=self.limits)
        return f"{outcome.stdout}{outcome.stderr}({outcome.end} {outcome.exit_code})"

    def score(self, answer: str) -> float:
        """Return 1 if each hidden input gives the expected value, else 0."""
        program = program_text(answer)
        if len(program) > MAX_PROGRAM:
            return 0.0
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(program, "program.py", "exec")
        except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError):
            return 0.0  # a program that does not compile needs no jail
        try:
            values = _values(program, json.dumps([[value] for value in self.inputs]), self.limits)
        except TimeoutError:
            return 0.0
        return float(list(values) == self.expected)

    def expert(self) -> Message:
        """Return the message of a scripted solver."""
        return {"role": "assistant", "content": self.solution}

    def example(self) -> list[Message]:
        """Return the messages of a correct episode, for a warm start."""
        return [self.expert()]


Environment = Programs
