"""SAC-Flow: soft actor-critic with a flow as actor, differentiated through its few steps.

Zhang et al. 2025, arXiv 2509.25756. The entropy is that of the noisy path from noise to action,
with a density known step by step.
"""

from __future__ import annotations

from rlinf_core.algorithms.sac.learner import Learner as SAC
from rlinf_core.algorithms.sac_flow import Config


class Learner(SAC):
    """Trains a ``FlowActor``."""

    config: Config
