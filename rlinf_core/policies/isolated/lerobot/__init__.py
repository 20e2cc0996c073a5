"""Any policy of LeRobot, by LeRobot's class in a process of its own: played, not trained."""

from __future__ import annotations

from pydantic import Field, model_validator

from rlinf_core.config.base import Place, with_default
from rlinf_core.core.plugins import lazy_attributes
from rlinf_core.policies.settings import PolicySettings

__getattr__ = lazy_attributes(__name__, "policy")


class Config(PolicySettings):
    """A folder that LeRobot's class loads.

    The keys about encoders and trunks are of no use to it.
    """

    kind: str = with_default(PolicySettings, "kind", "lerobot")
    checkpoint: Place = Field(
        "", description="folder written by LeRobot's save_pretrained, with both processors"
    )
    features: dict[str, tuple[str, ...]] = Field(
        {},
        description="the task's names for each of LeRobot's features, in the folder's order: "
        "{observation.state: [joints, gripper], observation.images.top: [front], "
        "action: [dx, dy]}. A feature that is not listed takes all numbers of the "
        "task, or the camera of that name",
    )

    @model_validator(mode="after")
    def _draw_like_makers(self) -> Config:
        """Draw the noise of every chunk, as LeRobot does, unless the recipe decides."""
        if "stochastic_eval" not in self.model_fields_set:
            vars(self)["stochastic_eval"] = True
        return self
