"""IQL: learning from a fixed set of transitions, without values of other actions."""

from __future__ import annotations

from pydantic import Field

from rlinf_core.algorithms.common.settings import DemonstrationSettings
from rlinf_core.config.base import Widths, with_default
from rlinf_core.core.plugins import deferred

__getattr__ = deferred(__name__, "learner")


class Config(DemonstrationSettings):
    """Hyper-parameters of IQL."""

    policies, include_failures = ("tanh_gaussian",), True

    name: str = with_default(DemonstrationSettings, "name", "iql")
    steps: int = Field(5000, gt=0, description="gradient steps")
    expectile: float = Field(
        0.7, gt=0, lt=1, description="of the values that V takes; towards 1 it is the best action in the data")
    temperature: float = Field(3.0, ge=0, description="how much better actions are preferred")
    weight_limit: float = Field(100.0, gt=0, description="of an action's preference")
    critic_hidden: Widths = Field((256, 256), description="widths of the critics' and the value's layers")
    discount: float = Field(0.99, ge=0, le=1, description="gamma per time step")
    target_rate: float = Field(0.005, gt=0, le=1, description="tau of the target critics' moving average")
    learning_rate: float = Field(3e-4, gt=0, le=1, description="of Adam; the actor's falls to 0 along a cosine")
    image_shift: int = Field(0, ge=0, description="pixels by which images are moved at random (DrQ)")

    @property
    def gamma(self) -> float:
        return self.discount
