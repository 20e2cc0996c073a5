"""Exposure of a bridge: beyond this machine it needs TLS, or the recipe's explicit ``insecure``."""

from __future__ import annotations

import contextlib
from pathlib import Path

from rlinf_core.core.connections import is_loopback
from rlinf_core.core.errors import RecipeError
from rlinf_core.core.paths import expand_user
from rlinf_core.deploy.bridge.credentials import TOKEN_FILE, token_link
from rlinf_core.recipes.schema import Bridge


def fleet_of(bridge: Bridge) -> Path | None:
    """Return the folder of the fleet that a trainer serves, or None.

    Raises:
        RecipeError: the trainer would serve a network without TLS.
    """
    return _secured(
        bridge, "fleet", bridge.fleet, "At the trainer, set it to the folder of rlinf fleet"
    )


def credentials_of(bridge: Bridge) -> Path | None:
    """Return the folder with a station's credentials, or None.

    Raises:
        RecipeError: the station would call over a network without TLS.
    """
    return _secured(
        bridge,
        "credentials",
        bridge.credentials,
        "At the station, set it to the folder from rlinf fleet enroll",
    )


def token_of(bridge: Bridge, run_dir: Path) -> Path | None:
    """Return the file of a trainer's token; None if certificates or ``insecure`` replace it."""
    if bridge.fleet or not is_loopback(bridge.host):
        return None
    return _token_file(bridge) or run_dir.resolve() / TOKEN_FILE


def tokens_of(bridge: Bridge, run_dir: Path) -> list[Path]:
    """Return the files in which a station looks for the token; the first that holds one counts."""
    if bridge.credentials or not is_loopback(bridge.host):
        return []
    if named := _token_file(bridge):
        return [named]
    with contextlib.suppress(RuntimeError):  # a user without a home
        return [token_link(bridge.port), run_dir.resolve() / TOKEN_FILE]
    return [run_dir.resolve() / TOKEN_FILE]


def _token_file(bridge: Bridge) -> Path | None:
    name = bridge.token_file
    return expand_user(name, "bridge.token_file").absolute() if name else None


def _secured(bridge: Bridge, key: str, folder: str, fix: str) -> Path | None:
    if not folder and not is_loopback(bridge.host) and not bridge.insecure:
        raise RecipeError(
            f"bridge.{key}: expected a folder, since bridge.host is '{bridge.host}', which other "
            "machines can reach, got none. Without TLS anyone on that network can feed the "
            f"training and fetch policies. {fix} (docs/howto/fleet.md). Or use "
            "bridge.host=127.0.0.1 with a tunnel (ssh -L), or, on a private network, "
            "bridge.insecure=true"
        )
    return expand_user(folder, f"bridge.{key}").resolve() if folder else None
