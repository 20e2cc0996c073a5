"""Reinforcement learning of language models that reason, call tools and lead other agents."""
