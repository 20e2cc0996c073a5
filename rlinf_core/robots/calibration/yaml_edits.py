"""Changes of keys in a YAML file that keep its comments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rlinf_core.config.yaml_source import load_plain
from rlinf_core.core.atomic_io import publish_file
from rlinf_core.core.errors import RlinfError


def with_keys(text: str, changes: Mapping[str, Any]) -> str:
    """Return a YAML's text with these keys at its top level, and unchanged comments.

    Raises:
        RlinfError: a key cannot be written; the message has the line to write by hand.
    """
    new = text
    for key, value in changes.items():
        line = f"{key}: {flow(value)}"
        pattern = re.compile(rf"^{key}:[^#\n]*?( *#.*)?$", re.M)
        match = pattern.search(new)
        new = (
            new[: match.start()] + line + (match[1] or "") + new[match.end() :]
            if match
            else new.rstrip("\n") + f"\n{line}\n"
        )
    try:
        is_equal = load_plain(new) == {**(load_plain(text) or {}), **changes}
    except yaml.YAMLError:
        is_equal = False
    if not is_equal:
        raise RlinfError(
            f"expected {', '.join(changes)} on one line each. Write by hand:\n"
            + "\n".join(f"{key}: {flow(value)}" for key, value in changes.items())
        )
    return new


def flow(value: Any) -> str:
    """Return the value as one line of YAML."""
    return (
        str(yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False))
        .strip()
        .removesuffix("\n...")
    )


def publish(path: Path, text: str) -> None:
    """Replace a file's text atomically."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text)
    if path.exists():
        temporary.chmod(path.stat().st_mode)
    publish_file(temporary, path)
