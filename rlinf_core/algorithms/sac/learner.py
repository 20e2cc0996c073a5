"""SAC: soft actor-critic with twin critics and a learned temperature.

Haarnoja et al. 2018, arXiv 1812.05905. With chunked actions a transition spans H time steps: its
reward is the discounted sum over them and the next value counts gamma^H
(``replay.ReplayBuffer.sample``).
"""

from __future__ import annotations

from rlinf_core.algorithms.common.actor_critic import TargetNetworks
from rlinf_core.algorithms.sac import Config


class Learner(TargetNetworks):
    """The plain algorithm."""

    config: Config
