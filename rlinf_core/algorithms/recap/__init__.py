"""RECAP: a value labels recorded actions; the policy is cloned with the label as an input."""

from __future__ import annotations

from pydantic import Field

from rlinf_core.algorithms.common.settings import DemonstrationSettings
from rlinf_core.config.base import Widths, with_default
from rlinf_core.core.plugins import lazy_attributes

__getattr__ = lazy_attributes(__name__, "learner")


class Config(DemonstrationSettings):
    """Hyper-parameters of RECAP."""

    policies, include_failures = ("conditioned",), True

    name: str = with_default(DemonstrationSettings, "name", "recap")
    steps: int = with_default(DemonstrationSettings, "steps", 4000)
    value_steps: int = Field(
        1000, ge=0, description="gradient steps of the value network before the policy is cloned"
    )
    value_hidden: Widths = Field((256, 256), description="widths of the value's layers")
    bins: int = Field(
        51, gt=1, le=1001, description="bins of the value's distribution over returns from 0 to 1"
    )
    discount: float = Field(0.97, ge=0, le=1, description="gamma per time step")
    n_step: int = Field(
        10,
        gt=0,
        le=1000,
        description="time steps after which the value replaces the rest of a return",
    )
    target_rate: float = Field(
        0.01, gt=0, le=1, description="rate tau of the value's moving average for the targets"
    )
    positive_share: float = Field(
        0.3,
        gt=0,
        lt=1,
        description="share of a batch with the highest advantages, whose label is positive",
    )
    label_dropout: float = Field(
        0.1, ge=0, lt=1, description="share of a batch that is cloned without a label"
    )
    min_std: float = Field(
        0.03,
        ge=0,
        description="standard deviation of noise on the cloned action, as in sft.min_std",
    )

    @property
    def gamma(self) -> float:
        return self.discount

    @property
    def n_return_steps(self) -> int:
        return self.n_step
