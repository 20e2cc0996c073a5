"""The interface of an engine, which draws token ids.

It takes token ids and returns token ids with log-probabilities and the policy's version.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rlinf_core.core.errors import RlinfError

# tokens that each request of a check draws, and tokens of their shared prefix
CHECK_TOKENS, CHECK_PREFIX = 8, 16


class ScoringPolicy(Protocol):
    """The part of a language policy that an engine needs.

    See ``rlinf_core.policies.pretrained.language``.

    Attributes:
        network: the causal language model of transformers, with its adapters, if any.
        vocabulary_size: number of its tokens.
        temperature: divisor of its logits.
    """

    network: Any

    @property
    def vocabulary_size(self) -> int: ...

    @property
    def temperature(self) -> float: ...

    def score(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-probability of each token of each row; 0 for each row's first token."""


class EngineMismatchError(RlinfError):
    """An engine's log-probabilities differ from those of the policy that it should hold."""


@dataclass(frozen=True)
class GenerationRequest:
    """One completion.

    Attributes:
        tokens: the row so far, as ids.
        max_new_tokens: largest size of the completion, its stop token included.
        temperature: divisor of the logits; 0 takes the likeliest token.
        stop_ids: ids that end the completion.
        seed: seed of the draws. The draw of a token depends only on the seed and on the token's
            position in the row. A completion in two parts therefore equals one in one part.
    """

    tokens: Sequence[int]
    max_new_tokens: int
    temperature: float = 1.0
    stop_ids: Sequence[int] = ()
    seed: int = 0


@dataclass(frozen=True)
class Generation:
    """An engine's answer.

    Attributes:
        tokens: new ids, with the stop token, if any.
        log_probs: log-probability of each id under its sampling distribution, with temperature.
        finish_reason: ``stop`` after a stop token, ``length`` after ``max_new_tokens``.
        version: version of the weights that drew the ids.
    """

    tokens: list[int]
    log_probs: list[float]
    finish_reason: Literal["stop", "length"]
    version: int


class Engine(ABC):
    """Draws tokens of a policy; holds the policy's weights of ``version``.

    Attributes:
        copies: whether an update copies weights, so that each update is checked.
    """

    version: int = 0
    copies: bool = True

    @abstractmethod
    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Return a completion of each request, in their order."""

    @abstractmethod
    def update(self, policy: ScoringPolicy, version: int) -> None:
        """Take the policy's weights, and drop all caches of older ones."""

    def close(self) -> None:  # noqa: B027 (an engine in this process started nothing)
        """End the engine's processes and threads."""

    def check(self, policy: ScoringPolicy, tolerance: float = 1e-4) -> float:
        """Compare the engine's log-probabilities with the policy's on fixed prompts.

        The prompts share a prefix and are the same at each call. They reveal an engine that kept
        keys and values of older weights, or an update that left the head unchanged.

        Args:
            policy: policy whose weights the engine should hold.
            tolerance: largest difference allowed, in nats.

        Returns:
            The largest difference found, in nats.

        Raises:
            EngineMismatchError: a log-probability differs by more, or is not finite.
        """
        requests = _check_requests(policy.vocabulary_size, policy.temperature)
        generations = self.generate(requests)
        rows = [
            [*request.tokens, *generation.tokens]
            for request, generation in zip(requests, generations, strict=True)
        ]
        worst = 0.0
        for request, generation, values in zip(
            requests, generations, policy.score(rows), strict=True
        ):
            expected = values[len(request.tokens) :]
            for token, drawn_logprob, replayed_logprob in zip(
                generation.tokens, generation.log_probs, expected, strict=True
            ):
                difference = abs(drawn_logprob - replayed_logprob)
                if not (math.isfinite(drawn_logprob) and difference <= tolerance):
                    raise EngineMismatchError(
                        f"engine {type(self).__name__}: after the update to version "
                        f"{self.version} expected the trainer's log-probability "
                        f"{replayed_logprob:.6f} of token {token}, got {drawn_logprob:.6f}, a "
                        f"difference of {difference:.2g} nats (at most {tolerance:g}). The engine "
                        "holds other weights: a tied head that a reload left, or keys and values "
                        "of older weights in its prefix cache. Restart the engine"
                    )
                worst = max(worst, difference)
        return worst


def _check_requests(vocabulary: int, temperature: float) -> list[GenerationRequest]:
    """Return four prompts of different lengths behind one prefix, made of the first ids."""
    limit = min(vocabulary, 200)
    prefix = [(7 * index + 3) % limit for index in range(CHECK_PREFIX)]
    return [
        GenerationRequest(
            prefix + [(11 * index + 5 * row) % limit for index in range(3 * row + 1)],
            CHECK_TOKENS,
            temperature,
            (),
            seed=row,
        )
        for row in range(4)
    ]
