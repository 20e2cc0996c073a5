"""Recipes: one named YAML that says everything about a run, as strict settings; without torch."""

from rlinf_core.recipes.loading import load_recipe, resolved
from rlinf_core.recipes.schema import Recipe, station_task

__all__ = ["Recipe", "load_recipe", "resolved", "station_task"]
