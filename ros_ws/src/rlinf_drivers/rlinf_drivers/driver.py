"""Runs the module named in robot.yaml: the node beside a vendor's driver, or the driver's twin.

See ``rlinf_core.robots.drivers``.
"""

from __future__ import annotations

import importlib
import sys

from rlinf_core.core.paths import message_definitions
from rlinf_ros.spinning import override_of


def main() -> None:
    """Run the module that the parameter file names; SystemExit names its fault."""
    name = override_of("module")
    if not name:
        sys.exit(
            "driver: expected a parameter file with 'module', the module to run (rlinf up writes "
            "one)"
        )
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        sys.exit(_install_remedy(name, error))
    if not callable(getattr(module, "main", None)):
        sys.exit(
            f"driver: {name}: expected a module with main(), which runs a node; it has none. "
            "Correct robot.yaml"
        )
    module.main()


def _install_remedy(name: str, error: ModuleNotFoundError) -> str:
    """Return the remedy for a module that is not installed."""
    package = (error.name or "").partition(".")[0]
    remedy = (
        "Run: rlinf messages"
        if package in (definition.name for definition in message_definitions())
        else "Install it, or correct robot.yaml"
    )
    return f"driver: {name}: expected the package '{error.name}', which is not installed. {remedy}"


if __name__ == "__main__":
    main()
