"""DAgger: the policy drives, an expert labels its steps, and cloning uses all data so far.

Ross, Gordon, Bagnell 2011, arXiv 1011.0686. Human-gated (HG-DAgger, Kelly et al. 2018, arXiv
1810.02890): a person takes over when they must, and only their actions are learned from.
"""

from __future__ import annotations

from rlinf_core.algorithms.dagger import Config
from rlinf_core.algorithms.sft.learner import Learner as SFT


class Learner(SFT):
    """Cloning over all labelled time steps."""

    config: Config
