"""A recipe's settings of learned worlds; without torch."""

from __future__ import annotations

from pydantic import Field, model_validator

from rlinf_core.config.base import FreeOptions, Place, Settings, Widths


class VideoSettings(Settings):
    """A video model that predicts the frames of one camera, in a process of its own."""

    model: str = Field(
        "",
        description="tiny, replay, an entry point of rlinf.video_models, module:Class or "
        "file.py:Class. Empty predicts numbers instead of frames",
    )
    options: FreeOptions = Field(
        {}, description="arguments of the model's class, such as {file: runs/x/video.safetensors}"
    )


class WorldSettings(Settings):
    """A model of the task, fitted to the run's own episodes.

    The model is a second source of experience beside the real one.
    """

    share: float = Field(
        0.0,
        ge=0,
        le=0.5,
        description="share of imagined experience in each batch, for learners with a replay. 0 "
        "uses no learned world",
    )
    run: Place = Field(
        "",
        description="run folder with a learned world (rlinf world fit). Training then takes "
        "place in it alone. Empty trains in simulators or with stations",
    )
    horizon: int = Field(
        5,
        gt=0,
        le=1000,
        description="largest length of an imagined branch [time steps]. The world shortens it if "
        "its held-out error exceeds half of persistence",
    )
    branches: int = Field(
        64, gt=0, le=100_000, description="imagined branches after each fit, computed in parallel"
    )
    refit_every: int = Field(1000, gt=0, description="real time steps between two fits")
    first_updates: int = Field(3000, gt=0, description="gradient steps of the first fit")
    updates: int = Field(1000, gt=0, description="gradient steps of each later fit")
    members: int = Field(5, gt=1, le=50, description="networks of the ensemble")
    hidden: Widths = Field((64, 64), description="widths of each network's hidden layers")
    history: int = Field(
        3,
        gt=0,
        le=50,
        description="observations in the world's input, with the actions between them",
    )
    batch_size: int = Field(96, gt=1, description="windows of each gradient step and network")
    learning_rate: float = Field(
        2e-3, gt=0, le=1, description="learning rate of AdamW. It falls to a hundredth in each fit"
    )
    quantile: float = Field(
        0.95,
        gt=0,
        lt=1,
        description="a branch ends if the ensemble disagrees more than in this share of held-out "
        "time steps",
    )

    video: VideoSettings = VideoSettings()

    @model_validator(mode="after")
    def _check_share(self) -> WorldSettings:
        if self.share and self.run:
            raise ValueError(
                "share: expected 0 with world.run, which trains in the world alone, got "
                f"{self.share:g}. Leave one of both out"
            )
        if self.video.model and not self.run:
            raise ValueError(
                "video.model: expected world.run with the recorded episodes that branches begin "
                "from, got none. Name a run folder"
            )
        return self
