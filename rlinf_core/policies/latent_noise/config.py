"""Settings of the flow with a noise policy."""

from __future__ import annotations

from pydantic import Field

from rlinf_core.policies.flow.config import Config as Flow
from rlinf_core.policies.settings import PolicySettings
from rlinf_core.policies.tanh_gaussian.config import Config as TanhGaussian
from rlinf_core.settings.base import Widths, with_default


class Config(Flow):
    """A flow whose noise a small policy chooses: DSRL."""

    kind: str = with_default(Flow, "kind", "latent_noise")
    noise_policy: Widths = Field((128, 128), description="widths of the noise policy's layers")
    noise_bound: float = Field(1.5, gt=0, description="largest noise that may be chosen, in standard deviations")

    @property
    def of_flow(self) -> Flow:
        """Of the flow."""
        return Flow(**{name: getattr(self, name) for name in Flow.model_fields if name != "kind"})

    @property
    def of_noise_policy(self) -> TanhGaussian:
        """Of the policy that chooses its noise."""
        shared = {name: getattr(self, name) for name in PolicySettings.model_fields if name != "kind"}
        return TanhGaussian(**(shared | {"hidden": self.noise_policy, "execute": 0}))
