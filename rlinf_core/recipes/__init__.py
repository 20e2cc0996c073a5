"""Recipes: one named YAML that says everything about a run, as typed dataclasses."""

from rlinf_core.recipes.loading import algorithm_name, load_recipe, resolved
from rlinf_core.recipes.schema import Recipe, station_task

__all__ = ["Recipe", "algorithm_name", "load_recipe", "resolved", "station_task"]
