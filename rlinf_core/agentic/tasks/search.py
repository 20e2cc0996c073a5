"""Search: one document of many holds the answer, which each episode draws anew."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence

from rlinf_core.agentic.environment import (
    Message,
    Scene,
    ToolEnvironment,
)
from rlinf_core.agentic.tasks.arithmetic import EVALUATION
from rlinf_core.agentic.tools import SearchIndex
from rlinf_core.core.errors import RecipeError

COLOURS = (
    "amber",
    "azure",
    "black",
    "brown",
    "coral",
    "cream",
    "green",
    "grey",
    "ivory",
    "lilac",
    "olive",
    "pink",
    "plum",
    "ruby",
    "silver",
    "white",
)
ANIMALS = (
    "badger",
    "crane",
    "eagle",
    "falcon",
    "gecko",
    "heron",
    "horse",
    "lizard",
    "marten",
    "otter",
    "panda",
    "raven",
    "robin",
    "salmon",
    "stoat",
    "tiger",
)
PAIRS = tuple(f"{colour} {animal}" for colour, animal in itertools.product(COLOURS, ANIMALS))
HELD_OUT = tuple(  # a quarter, in which each colour and each animal occurs
    pair for index, pair in enumerate(PAIRS) if (index + index // len(ANIMALS)) % 4 == 0
)
TRAINED = tuple(pair for pair in PAIRS if pair not in HELD_OUT)


def call_message(name: str, arguments: str, number: int = 0) -> Message:
    """Return an assistant's message that calls one tool."""
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
        ],
    }


def names_of(seed: int) -> Sequence[str]:
    """Return the names for a scene; evaluation's names never occur in training."""
    return HELD_OUT if seed in EVALUATION else TRAINED


class Search(ToolEnvironment):
    """Find the code of a name. Codes are drawn anew, so only the tool knows them."""

    def __init__(
        self,
        *,
        documents: int = 16,
        digits: int = 2,
        hops: int = 1,
        max_turns: int = 4,
        brief: bool = False,
    ) -> None:
        """Set up the task.

        Args:
            documents: number of documents in an episode
            digits: number of a code's digits; a guess is right once in ten to this power
            hops: documents that lead to the code; each but the last names the next
            max_turns: largest number of the agent's messages
            brief: the prompt names tools and does not describe them, for small networks
        """
        super().__init__(max_turns)
        self.brief = brief
        if not 1 <= hops <= documents <= len(HELD_OUT) or digits < 1:
            raise RecipeError(
                f"text.options: expected 1 <= hops <= documents <= {len(HELD_OUT)} and "
                f"digits >= 1, got {hops}, {documents}, {digits}"
            )
        self.documents, self.digits, self.hops = documents, digits, hops

    def begin(self, seed: int) -> Scene:
        """Draw names, codes and the question."""
        draw = random.Random(f"search {seed}")
        names = draw.sample(names_of(seed), self.documents)
        codes = {name: f"{draw.randrange(10**self.digits):0{self.digits}}" for name in names}
        self.path, self.answer = names[: self.hops], codes[names[self.hops - 1]]
        texts = {name: f"The code of {name} is {codes[name]}." for name in names}
        for name, following in itertools.pairwise(self.path):
            texts[name] = f"The code of {name} is that of {following}."
        documents = list(texts.values())
        draw.shuffle(documents)
        question = f"What is the code of {self.path[0]}?"
        tool = SearchIndex(documents).tool()
        return Scene(
            [{"role": "user", "content": question}], [tool.brief() if self.brief else tool]
        )

    def score(self, answer: str) -> float:
        """Return 1 if the last number of the answer is the code, else 0."""
        numbers = re.findall(r"\d+", answer)
        return float(bool(numbers) and numbers[-1] == self.answer)

    def expert(self) -> Message:
        """Return the next message of a scripted solver, which knows the answer."""
        if self.turns < self.hops:
            return call_message("search", f'{{"query": "{self.path[self.turns]}"}}', self.turns)
        return {"role": "assistant", "content": self.answer}


Environment = Search
