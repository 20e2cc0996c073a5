"""IQL: learning from a fixed set of transitions, without values of other actions."""

from __future__ import annotations

from pydantic import Field

from rlinf_core.algorithms.common.settings import DemonstrationSettings
from rlinf_core.config.base import Widths, with_default
from rlinf_core.core.plugins import lazy_attributes

__getattr__ = lazy_attributes(__name__, "learner")


class Config(DemonstrationSettings):
    """Hyper-parameters of IQL."""

    policies, include_failures = ("tanh_gaussian",), True

    name: str = with_default(DemonstrationSettings, "name", "iql")
    steps: int = Field(5000, gt=0, description="number of gradient steps")
    expectile: float = Field(
        0.7,
        gt=0,
        lt=1,
        description="expectile of the values in V. Near 1 it is the best action in the data",
    )
    temperature: float = Field(
        3.0,
        ge=0,
        description="inverse temperature of the advantage "
        "weights. A larger value prefers better "
        "actions more",
    )
    weight_limit: float = Field(100.0, gt=0, description="largest weight of a sample or action")
    critic_hidden: Widths = Field(
        (256, 256), description="widths of the hidden layers of critics and value"
    )
    discount: float = Field(0.99, ge=0, le=1, description="discount factor of a time step")
    target_rate: float = Field(
        0.005, gt=0, le=1, description="rate tau of the target critics' moving average"
    )
    learning_rate: float = Field(
        3e-4, gt=0, le=1, description="learning rate of Adam. The actor's falls to 0 along a cosine"
    )
    image_shift: int = Field(0, ge=0, description="largest random shift of images [pixels] (DrQ)")

    @property
    def gamma(self) -> float:
        return self.discount
