"""Tensors, advantages, clipped objectives, critics and checkpoints of several algorithms."""
