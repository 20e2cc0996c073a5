"""Planner: a language model turns a sentence into a robot's instructions.

The reward comes from the robot's task.
"""

from __future__ import annotations

import inspect
import json
import os
import random
import weakref
from pathlib import Path
from typing import Any, Protocol

from rlinf_core.agentic.environment import Message, Scene, TextStep, Tool, run_tool_calls
from rlinf_core.agentic.tasks.arithmetic import EVALUATION
from rlinf_core.agentic.tasks.search import call_message, example_of
from rlinf_core.core import plugins
from rlinf_core.core.errors import RecipeError

ROBOTS = {
    "franka_marks": "sim_bridges.core.instructed:InstructedRobot",
    "stand_in": "rlinf_core.agentic.tasks.planner:StandIn",
}
# A sentence and the order of its visits; a and b are the two places, in either order.
SENTENCES: tuple[tuple[str, str], ...] = (
    ("Go to the {a} mark.", "a"),
    ("First the {a} one, then the {b} one.", "ab"),
    ("The {a} one, and after it the {b} one.", "ab"),
    ("The {b} one, but before it the {a} one.", "ab"),
    ("Visit both, {b} last.", "ab"),
    ("Visit both, {a} first.", "ab"),
    ("From {a} to {b} and back.", "aba"),
    ("Go to {a}, to {b}, and to {a} again.", "aba"),
    ("Begin and end at {a}, with {b} between.", "aba"),
)
HELD_OUT = (3, 4, 8)  # sentences absent from training; their plans occur there
# robots whose environment is gone, for reuse by the next one
_POOLS: dict[tuple[str, str], list[Any]] = {}


class Robot(Protocol):
    """A robot that carries out instructions in a scene.

    Attributes:
        places: names that an instruction can use.
    """

    places: tuple[str, ...]

    def reset(self, seed: int) -> None:
        """Lay out a scene."""

    def carry_out(self, instruction: str) -> dict[str, Any]:
        """Carry out an instruction.

        Returns:
            ``success``, the robot's ``place`` or "", ``steps`` and ``path``.
        """


class StandIn:
    """A point that moves to the place in an instruction: for tests and first training."""

    places = ("red", "blue")

    def reset(self, seed: int) -> None:
        """Go back to the start."""
        self.at = ""

    def carry_out(self, instruction: str) -> dict[str, Any]:
        """Move to the place in the instruction, if it names exactly one."""
        named = [place for place in self.places if place in instruction.lower().split()]
        self.at = named[0] if len(named) == 1 else self.at
        return {
            "success": len(named) == 1,
            "place": self.at,
            "steps": int(len(named) == 1),
            "path": [],
        }


class Planner:
    """Instruct a robot to fulfil a sentence, and then report the end.

    The agent has the tool ``instruct``. The reward is 1 if the robot visited the sentence's places
    in order and no other place, as the robot's own task measures it; text earns nothing.
    """

    def __init__(
        self,
        *,
        robot: str = "franka_marks",
        policy: str = "",
        max_turns: int = 6,
        trace_folder: str = "",
        brief: bool = False,
    ) -> None:
        """Set up the task.

        Args:
            robot: ``franka_marks`` (MuJoCo), ``stand_in`` (a point), or a reference to a class
            policy: file of the robot's policy; empty for its task's script
            max_turns: largest number of the agent's messages
            trace_folder: folder for each episode's plan, calls and path
            brief: the prompt names tools and does not describe them, for small networks
        """
        part = plugins.find("robots_instructed", robot, ROBOTS, "text.options.robot")
        options = {"policy": policy} if policy else {}
        if policy and "policy" not in inspect.signature(part).parameters:
            raise RecipeError(f"text.options.policy: expected none for the robot {robot}")
        pool = _POOLS.setdefault((robot, policy), [])
        self.robot: Robot = pool.pop() if pool else part(**options)
        weakref.finalize(self, pool.append, self.robot)
        self.max_turns, self.trace_folder, self.brief = max_turns, trace_folder, brief

    def reset(self, seed: int) -> Scene:
        """Lay out a scene and draw a sentence."""
        draw = random.Random(f"planner {seed}")
        is_held_out = seed in EVALUATION
        sentence, order = draw.choice(
            [pair for index, pair in enumerate(SENTENCES) if (index in HELD_OUT) == is_held_out]
        )
        names = dict(zip("ab", draw.sample(self.robot.places, 2), strict=True))
        self.sentence = sentence.format(**names)
        self.plan = [names[letter] for letter in order]
        self.robot.reset(seed)
        self.seed, self.turns = seed, 0
        self.visited: list[str] = []
        self.trace: list[dict[str, Any]] = []
        return Scene([{"role": "user", "content": self.sentence}], self._tools())

    def _tools(self) -> list[Tool]:
        """Return new tools.

        Stored tools would form a cycle that keeps the robot from the next environment.
        """
        tool = Tool.of(self.instruct)
        return [tool.brief() if self.brief else tool]

    def instruct(self, instruction: str) -> str:
        """Have the robot carry out one instruction.

        Args:
            instruction: for example "go to the red mark"
        """
        if len(self.trace) >= self.max_turns:
            return "not done: too many instructions"
        result = self.robot.carry_out(instruction[:128])
        if result["success"] and result["place"]:
            self.visited.append(result["place"])
        self.trace.append({"instruction": instruction, **result})
        return "done" if result["success"] else "not done"

    def step(self, message: Message) -> TextStep:
        """Carry out the message's instructions; a message without any ends the episode."""
        self.turns += 1
        results = run_tool_calls(message, self._tools())
        if results and self.turns < self.max_turns:
            return TextStep(results)
        reward = float(self.visited == self.plan and not results)
        steps = sum(int(played["steps"]) for played in self.trace)
        if self.trace_folder:
            self._write_trace(message, reward)
        return TextStep(
            results,
            reward,
            True,
            truncated=bool(results),
            metrics={"instructions": float(len(self.trace)), "robot_steps": float(steps)},
        )

    def _write_trace(self, last: Message, reward: float) -> None:
        """Write one JSON file per episode, atomically."""
        folder = Path(self.trace_folder)
        folder.mkdir(parents=True, exist_ok=True)
        number = sum(1 for _ in folder.glob(f"episode-{self.seed}-*.json"))
        path = folder / f"episode-{self.seed}-{number}.json"
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(
            json.dumps(
                {
                    "sentence": self.sentence,
                    "plan": self.plan,
                    "visited": self.visited,
                    "reward": reward,
                    "answer": last.get("content", ""),
                    "instructions": self.trace,
                },
                indent=1,
            )
        )
        os.replace(temporary, path)

    def expert(self) -> Message:
        """Return the message of a scripted planner."""
        if self.turns < len(self.plan):
            text = json.dumps({"instruction": f"go to the {self.plan[self.turns]} mark"})
            return call_message("instruct", text, self.turns)
        return {"role": "assistant", "content": "done"}

    def example(self) -> list[Message]:
        """Return the messages of a correct episode, for a warm start."""
        return example_of(self, self.expert)


Environment = Planner
