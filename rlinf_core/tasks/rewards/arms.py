"""Per-arm terms of a task: success needs all arms, failure needs one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from rlinf_core.specs.topics import arm_of, of_arms, topic
from rlinf_core.tasks.rewards import CanAbstain, Shaped, Stateful, Success

Channels = dict[str, np.ndarray]


def channels_of_arm(channels: Channels, arm: str) -> Channels:
    """Return the channels of a station with this arm alone.

    Its own channels lose the arm's name; other arms' channels are left out.
    """
    return {
        name.removeprefix(f"{arm}/"): value
        for name, value in channels.items()
        if arm_of(name) in ("", arm)
    }


def channels_of_arms(channels: Iterable[str], arms: Sequence[str]) -> tuple[str, ...]:
    """Return the channels of all arms for those of one."""
    return tuple(
        name for channel in channels for name in of_arms(channel, () if arm_of(channel) else arms)
    )


class PerArmReward:
    """A term for one arm, evaluated for each.

    Args:
        term: term for one arm.
        arms: their names.
        together: ``all`` of them for a success, ``any`` for a failure.
    """

    def __init__(
        self, term: Success, arms: Sequence[str], together: Callable[[Iterable[bool]], bool]
    ) -> None:
        remembers = isinstance(term, Stateful)  # each arm's term then needs a separate memory
        self.terms: dict[str, Any] = {arm: deepcopy(term) if remembers else term for arm in arms}
        self.together = together
        self.channels = channels_of_arms(term.channels, arms)

    def __call__(self, channels: Channels) -> bool:
        return self.together(
            [bool(term(channels_of_arm(channels, arm))) for arm, term in self.terms.items()]
        )

    @property
    def trouble(self) -> str:
        """Reason why one of them cannot judge now, or an empty string."""
        return next(
            (
                f"arm {arm}: {term.trouble}"
                for arm, term in self.terms.items()
                if isinstance(term, CanAbstain) and term.trouble
            ),
            "",
        )

    def begin(self) -> None:
        """Begin an episode, for terms that remember."""
        for term in self.terms.values():
            if isinstance(term, Stateful):
                term.begin()


class PerArmShapedReward(PerArmReward):
    """A per-arm term with a measure of progress."""

    def progress(self, channels: Channels) -> float:
        """Return the mean progress of the arms."""
        return float(
            np.mean(
                [term.progress(channels_of_arm(channels, arm)) for arm, term in self.terms.items()]
            )
        )


def per_arm(
    term: Success, arms: Sequence[str], together: Callable[[Iterable[bool]], bool]
) -> Success:
    """Return the term evaluated per arm, or the term itself.

    The term is returned unchanged if there is one arm, or if it names the arms or needs none.
    """
    if not arms or not knows_one_arm(term.channels):
        return term
    return (PerArmShapedReward if isinstance(term, Shaped) else PerArmReward)(term, arms, together)


def knows_one_arm(channels: Iterable[str]) -> bool:
    """Return True if these channels belong to an arm without a name."""
    return any(topic(name).per_arm and not arm_of(name) for name in channels)
