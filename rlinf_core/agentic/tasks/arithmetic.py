"""Sums of two two-digit numbers, without tools; evaluations use sums that training never shows."""

from __future__ import annotations

import random
from functools import cache

from rlinf_core.agentic.environment import Message, Scene, TextStep

HELD_OUT = 500  # sums for evaluation, from 8,100
EVALUATION = range(1_000_000, 2_000_000)  # scenes of evaluations (``evaluate.first_seed``)


@cache
def sums() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the pairs of numbers for evaluation and for training."""
    pairs = [(first, second) for first in range(10, 100) for second in range(10, 100)]
    random.Random(0).shuffle(pairs)
    return pairs[:HELD_OUT], pairs[HELD_OUT:]


class Environment:
    """``12+34=`` asks for ``46``; the reward is 1 for exactly the sum, else 0.

    The policy may think first: text before a colon does not count. Its examples add the ones before
    they write the sum: ``6:46``.
    """

    def __init__(self) -> None:
        self.held_out, self.training = sums()
        self.answer = self.ones = ""

    def reset(self, seed: int) -> Scene:
        """Return the sum of a seed."""
        if seed in EVALUATION:
            first, second = self.held_out[(seed - EVALUATION.start) % HELD_OUT]
        else:
            first, second = random.Random(seed).choice(self.training)
        self.answer, self.ones = str(first + second), str(first % 10 + second % 10)
        return Scene([{"role": "user", "content": f"{first}+{second}="}])

    def step(self, message: Message) -> TextStep:
        """Judge the text after the last colon."""
        written = str(message.get("content", "")).rpartition(":")[2]
        return TextStep(reward=float(written == self.answer), done=True)

    def example(self) -> list[Message]:
        """Return the right message for the scene, for a warm start."""
        return [{"role": "assistant", "content": f"{self.ones}:{self.answer}"}]
