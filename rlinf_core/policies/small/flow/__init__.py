"""A flow-matching actor: a learned velocity field carries noise to an action in Euler steps."""

from __future__ import annotations

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes
from rlinf_core.policies.settings import PolicySettings

__getattr__ = lazy_attributes(__name__, "policy")


class Config(PolicySettings):
    """Flow matching: SFT, SAC-Flow."""

    kind: str = with_default(PolicySettings, "kind", "flow")
    flow_steps: int = Field(4, gt=0, le=1000, description="steps from noise to action")
    max_delay: int = Field(
        0,
        ge=0,
        lt=1000,
        description="largest number of given first actions of a cloned chunk. "
        "A station gives those that play while the server computes "
        "(station.policy.chunking=real_time). Half of the chunks "
        "have the largest number. 0 has none",
    )

    @model_validator(mode="after")
    def _check_max_delay(self) -> Config:
        if self.max_delay and self.max_delay >= self.horizon:
            raise PydanticCustomError(
                "max_delay",
                "max_delay: expected less than policy.horizon = {horizon}, got {got}",
                {"horizon": self.horizon, "got": self.max_delay},
            )
        return self
