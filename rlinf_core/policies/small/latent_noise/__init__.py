"""A flow policy with latent noise chosen by a small policy (DSRL, arXiv 2506.15799)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from rlinf_core.config.base import Discriminated, Widths, with_default
from rlinf_core.core.plugins import lazy_attributes
from rlinf_core.policies.settings import FlowSettings, PolicySettings
from rlinf_core.policies.small.flow import Config as Flow
from rlinf_core.policies.small.tanh_gaussian import Config as TanhGaussian

__getattr__ = lazy_attributes(__name__, "policy")


FLOWS = ("flow", "groot", "groot_n1_6", "groot_n1_7", "pi0", "pi05", "smolvla", "xvla")


def _flow(kind: str) -> type[PolicySettings]:
    from rlinf_core.policies import policy_config

    config_class = policy_config(kind)
    if not issubclass(config_class, Flow | FlowSettings) or issubclass(config_class, Config):
        raise PydanticCustomError(
            "kind",
            "kind: expected a policy whose noise may be chosen, one of {known}, got '{kind}'",
            {"known": ", ".join(FLOWS), "kind": kind},
        )
    return config_class


class Config(Flow):
    """A flow with noise chosen by a small policy: DSRL."""

    kind: str = with_default(Flow, "kind", "latent_noise")
    flow: Annotated[
        PolicySettings | None, Discriminated("kind", _flow, lambda: list(FLOWS), optional=True)
    ] = Field(
        None,
        description="flow policy whose noise is chosen, with its settings. Example: {kind: "
        "pi0, checkpoint: FOLDER}. Keys beside it belong to the noise policy. "
        "Empty takes a small flow with the keys beside it",
    )
    noise_policy: Widths = Field((128, 128), description="widths of the noise policy's layers")
    noise_bound: float = Field(
        1.5, gt=0, description="largest noise that may be chosen, in standard deviations"
    )
    same_noise: bool = Field(
        False,
        description="choose one noise for all actions of a chunk. Long chunks have too "
        "many numbers for a small policy",
    )

    @model_validator(mode="after")
    def _check_horizon(self) -> Config:
        flow = self.flow
        if flow is not None and flow.horizon not in (
            self.horizon,
            type(flow).model_fields["horizon"].default,
        ):
            raise PydanticCustomError(
                "horizon",
                "flow.horizon: expected that of the policy, {horizon}, got {got}. Leave it out",
                {"horizon": self.horizon, "got": flow.horizon},
            )
        return self

    @property
    def flow_settings(self) -> PolicySettings:
        """Settings of the flow."""
        if self.flow is not None:
            return self.flow.but(horizon=self.horizon, n_action_steps=self.n_action_steps)
        return Flow(**{name: getattr(self, name) for name in Flow.model_fields if name != "kind"})

    @property
    def noise_policy_settings(self) -> TanhGaussian:
        """Settings of the policy that chooses the noise."""
        shared = {
            name: getattr(self, name) for name in PolicySettings.model_fields if name != "kind"
        }
        horizon = 1 if self.same_noise else self.horizon
        return TanhGaussian(
            **(shared | {"hidden": self.noise_policy, "n_action_steps": 0, "horizon": horizon})
        )
