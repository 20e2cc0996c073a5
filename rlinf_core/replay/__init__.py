"""Replay: where transitions wait to be learned from."""

from rlinf_core.replay.buffer import ORIGINS, ReplayBuffer, mix

__all__ = ["ORIGINS", "ReplayBuffer", "mix"]
