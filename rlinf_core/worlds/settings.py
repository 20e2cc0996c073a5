"""A recipe's settings of learned worlds; without torch."""

from __future__ import annotations

from pydantic import Field, model_validator

from rlinf_core.config.base import Place, Settings, Widths


class WorldSettings(Settings):
    """A model of the task, fitted to the run's own episodes.

    The model is a second source of experience beside the real one.
    """

    share: float = Field(
        0.0,
        ge=0,
        le=0.5,
        description="part of each batch's experience that may come from it; 0: no learned world. For "
        "learners with a replay",
    )
    run: Place = Field(
        "",
        description="train in a learned world alone: the folder of a run with one (rlinf world fit); empty trains in "
        "the simulators, or on what stations send",
    )
    horizon: int = Field(
        5,
        gt=0,
        le=1000,
        description="time steps of a branch at most; the world shortens it by itself where its error "
        "exceeds half of persistence's on held-out episodes",
    )
    branches: int = Field(
        64, gt=0, le=100_000, description="of each refit's imagination, side by side"
    )
    refit_every: int = Field(1000, gt=0, description="real time steps between two fits")
    first_updates: int = Field(3000, gt=0, description="gradient steps of the first fit")
    updates: int = Field(1000, gt=0, description="gradient steps of each later fit")
    members: int = Field(5, gt=1, le=50, description="size of the ensemble")
    hidden: Widths = Field((128, 128), description="widths of each member's layers")
    history: int = Field(
        3, gt=0, le=50, description="observations that it sees, with the actions between them"
    )
    batch_size: int = Field(96, gt=1, description="windows a gradient step, of each member")
    learning_rate: float = Field(
        2e-3, gt=0, le=1, description="of AdamW, falling to a hundredth in each fit"
    )
    quantile: float = Field(
        0.95,
        gt=0,
        lt=1,
        description="a branch ends where the members disagree more than in this part of held-out time "
        "steps",
    )

    @model_validator(mode="after")
    def _check_share(self) -> WorldSettings:
        if self.share and self.run:
            raise ValueError(
                f"share: expected 0 with world.run, which trains in the world alone, got {self.share:g}. "
                "Leave one of both out"
            )
        return self
