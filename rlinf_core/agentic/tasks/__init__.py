"""Tasks of language models, one per module, with a class ``Environment``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlinf_core.agentic.environment import TextEnvironment
from rlinf_core.core import plugins
from rlinf_core.core.errors import RecipeError


def text_tasks() -> list[str]:
    """Return the names of all tasks."""
    return plugins.valid_names("text_tasks", plugins.module_places(__name__, __file__))


def text_task(name: str, options: Mapping[str, Any]) -> Callable[[], TextEnvironment]:
    """Return a function that makes environments of a task.

    A task is one of this package's, an entry point, ``package.module`` or ``file.py``.

    Args:
        name: name of the task.
        options: arguments of its ``Environment``.

    Raises:
        RecipeError: there is no such task, or it does not take these options.
    """
    part = plugins.find("text_tasks", name, plugins.module_places(__name__, __file__), "env: text")
    kind = getattr(part, "Environment", part)

    def make() -> TextEnvironment:
        try:
            environment: TextEnvironment = kind(**options)
        except TypeError as error:
            raise RecipeError(f"text.options: task '{name}': {error}") from error
        return environment

    return make
