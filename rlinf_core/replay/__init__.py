"""Replay: where transitions wait to be learned from."""

from rlinf_core.replay.buffer import ReplayBuffer, mix

__all__ = ["ReplayBuffer", "mix"]
