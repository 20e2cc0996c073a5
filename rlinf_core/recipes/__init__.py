"""Recipes: one named YAML with all settings of a run, checked strictly; without torch."""

from rlinf_core.recipes.loader import load_recipe, recipe_yaml
from rlinf_core.recipes.schema import Recipe
from rlinf_core.recipes.station import check_recipe, station_robot, station_task

__all__ = ["Recipe", "check_recipe", "load_recipe", "recipe_yaml", "station_robot", "station_task"]
