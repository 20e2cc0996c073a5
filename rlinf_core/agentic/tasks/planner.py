"""Planner: a language model turns a sentence into a robot's instructions.

The reward comes from the robot's task.
"""

from __future__ import annotations

import inspect
import json
import os
import random
import threading
from collections import OrderedDict
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol

from rlinf_core.agentic.environment import Message, Scene, TextStep, Tool, run_tool_calls
from rlinf_core.agentic.tasks.arithmetic import EVALUATION
from rlinf_core.agentic.tasks.search import call_message
from rlinf_core.core import plugins
from rlinf_core.core.errors import RecipeError

ROBOTS = {
    "franka_marks": "sim_bridges.core.instructed:InstructedRobot",
    "stand_in": "rlinf_core.agentic.tasks.planner:StandIn",
}
# A sentence and the order of its visits; a and b are the two places, in either order.
FORMS: tuple[tuple[str, str], ...] = (
    ("Go to the {a} {noun}.", "a"),
    ("First the {a} {noun}, then the {b} {noun}.", "ab"),
    ("The {a} {noun}, and after it the {b} {noun}.", "ab"),
    ("The {b} {noun}, but before it the {a} {noun}.", "ab"),
    ("Visit both {noun}s, {b} last.", "ab"),
    ("Visit both {noun}s, {a} first.", "ab"),
    ("From the {a} {noun} to the {b} {noun} and back.", "aba"),
    ("Go to the {a} {noun}, the {b} {noun}, and the {a} {noun} again.", "aba"),
    ("Begin and end at the {a} {noun}, with the {b} {noun} between.", "aba"),
)
OPENINGS = ("", "Robot: ", "Please: ", "Next task: ")
NOUNS = ("mark", "spot", "place", "target")
SENTENCES = tuple(
    (opening + form.replace("{noun}", noun), order)
    for form, order in FORMS
    for opening in OPENINGS
    for noun in NOUNS
)
# A quarter is absent from training. Each form, opening and noun occurs there in other combinations.
HELD_OUT = frozenset(
    index
    for index in range(len(SENTENCES))
    if (index + index // len(NOUNS) + index // (len(NOUNS) * len(OPENINGS))) % 4 == 0
)
RESULTS = 4096  # remembered results of instructions


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


class SharedRobot:
    """One robot for all conversations of a process. Each conversation has its own scene.

    A simulated robot is deterministic: the same instructions in the same scene have the same
    results. They are played once for a group of conversations. After another scene, the robot
    repeats the earlier instructions.

    Args:
        robot: plays the scenes, one at a time.
    """

    def __init__(self, robot: Robot) -> None:
        self.robot = robot
        self.places = robot.places
        self._lock = threading.Lock()
        self._scene: tuple[int, tuple[str, ...]] | None = None  # seed and instructions so far
        self._results: OrderedDict[tuple[int, tuple[str, ...]], dict[str, Any]] = OrderedDict()

    def carry_out(self, seed: int, instructions: tuple[str, ...]) -> dict[str, Any]:
        """Return the result of the last instruction, after the earlier ones in the same scene."""
        with self._lock:
            key = seed, instructions
            if key not in self._results:
                earlier, last = instructions[:-1], instructions[-1]
                scene, self._scene = self._scene, None  # after an error the scene is unknown
                if scene != (seed, earlier):
                    self.robot.reset(seed)
                    for instruction in earlier:
                        self.robot.carry_out(instruction)
                self._results[key] = self.robot.carry_out(last)
                self._scene = key
                if len(self._results) > RESULTS:
                    self._results.popitem(last=False)
            return dict(self._results[key])


@cache
def _shared_robot(name: str, policy: str) -> SharedRobot:
    """Return the process's robot of this name, with this policy."""
    part = plugins.find("robots_instructed", name, ROBOTS, "text.options.robot")
    if policy and "policy" not in inspect.signature(part).parameters:
        raise RecipeError(f"text.options.policy: expected none for the robot {name}")
    return SharedRobot(part(**({"policy": policy} if policy else {})))


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
        examples: Literal["right", "random"] = "right",
        layouts: int = 64,
    ) -> None:
        """Set up the task.

        Args:
            robot: ``franka_marks`` (MuJoCo), ``stand_in`` (a point), or a reference to a class
            policy: file of the robot's policy; empty for its task's script
            max_turns: largest number of the agent's messages
            trace_folder: folder for each episode's plan, calls and path
            brief: the prompt names tools and does not describe them, for small networks
            examples: plans of a warm start's examples. Random ones teach the form of the calls, not
                the meaning of the sentences
            layouts: number of the robot's scenes in training, and of others in evaluation. The
                result of equal instructions in a scene is remembered, so few scenes save time
        """
        if layouts < 1:
            raise RecipeError(f"text.options.layouts: expected at least 1, got {layouts}")
        if examples not in ("right", "random"):
            raise RecipeError(f"text.options.examples: expected right or random, got '{examples}'")
        self.examples, self.layouts = examples, layouts
        self.robot = _shared_robot(robot, policy)
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
        self.seed = seed
        self.layout = seed % self.layouts + (EVALUATION.start if is_held_out else 0)
        self.turns = 0
        self.visited: list[str] = []
        self.trace: list[dict[str, Any]] = []
        return Scene([{"role": "user", "content": self.sentence}], self._tools())

    def _tools(self) -> list[Tool]:
        """Return the tools of the agent."""
        tool = Tool.of(self.instruct)
        return [tool.brief() if self.brief else tool]

    def instruct(self, instruction: str) -> str:
        """Have the robot carry out one instruction.

        Args:
            instruction: for example "go to the red mark"
        """
        if len(self.trace) >= self.max_turns:
            return "not done: too many instructions"
        earlier = tuple(played["instruction"][:128] for played in self.trace)
        result = self.robot.carry_out(self.layout, (*earlier, instruction[:128]))
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
                    "layout": self.layout,
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
        """Return the messages of an episode, for a warm start. The robot does not move."""
        if self.examples == "random":
            draw = random.Random(f"planner example {self.seed}")
            order = draw.choice(sorted({order for _, order in FORMS}))
            names = dict(zip("ab", draw.sample(self.robot.places, 2), strict=True))
            self.plan = [names[letter] for letter in order]
        messages: list[Message] = []
        while self.turns < len(self.plan):
            call = self.expert()
            self.turns += 1
            result: Message = {"role": "tool", "name": "instruct", "content": "done"}
            result["tool_call_id"] = call["tool_calls"][0]["id"]
            messages += [call, result]
        return [*messages, self.expert()]


Environment = Planner
