"""Stands in for Isaac Lab 2.3, which needs Isaac Sim and a GPU: what the adapter uses, over a world without physics."""
