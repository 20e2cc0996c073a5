"""Overrides from the command line in Hydra's grammar, by Hydra's own parser.

``key.sub=value`` changes a key, ``+key=value`` adds a missing one, ``++key=value`` does either.
``~key`` removes a key, ``~key=value`` only if it has this value. Values may be ``[1,2]``,
``{a: 1}`` or ``'quoted, text'``. Sweeps use ``key=a,b``, ``key=choice(a,b)``, ``key=range(0,3)``.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.config.yaml_source import Document, Key
from rlinf_core.core.errors import RecipeError
from rlinf_core.core.renames import current_key

MAX_VALUES = 10_000  # largest number of values of one override
MAX_ERROR_CHARS = 200  # characters of an unreadable override in its error
PLAIN = re.compile(  # a name or path that Hydra reads without quotes
    r"(?!(true|false|null|nan|inf)$)[a-z_][a-z0-9_]*|[a-z_.]*/[a-z0-9_./-]*",
    re.IGNORECASE | re.ASCII,
)

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override


def apply_override(document: Document, text: str) -> None:
    """Apply one override.

    Raises:
        RecipeError: the text is not in Hydra's grammar, has several values, adds an existing key or
            removes a missing one.
    """
    parsed = _parsed(text)
    if parsed.is_sweep_override():
        raise RecipeError(
            f"override '{text}': expected one value, got several; `rlinf sweep` and `rlinf eval "
            "--vary` take them. Quote a text with commas: key='a,b'"
        )
    key: Key = tuple(parsed.key_or_group.split("."))
    exists, before = _lookup(document.data, key)
    if parsed.is_delete():
        if not exists and current_key(key) != key:
            new_name = ".".join(map(str, current_key(key)))
            raise RecipeError(
                f"override '{text}': '{parsed.key_or_group}' has a new name. Write ~{new_name} "
                f"instead"
            )
        if not exists:
            raise RecipeError(
                f"override '{text}': expected a key that the recipe sets, got "
                f"'{parsed.key_or_group}', which it does not set"
            )
        if parsed.value_type is not None and (value := _plain(parsed.value())) != before:
            raise RecipeError(
                f"override '{text}': expected the value of '{parsed.key_or_group}', {before!r}, "
                f"got {value!r}. Use ~key without a value to remove any value"
            )
        _lookup(document.data, key[:-1])[1].pop(key[-1])
        document.forget(key)
        return
    if parsed.is_add() and not parsed.is_force_add() and exists:
        raise RecipeError(
            f"override '{text}': expected a new key, got '{parsed.key_or_group}', which is "
            f"{before!r}. Leave out the + to change it"
        )
    document.set(key, _plain(parsed.value()), f"override '{text}'")


def combinations(texts: list[str]) -> list[tuple[str, ...]]:
    """Return every combination of the values that the overrides list.

    Raises:
        RecipeError: an override is not in Hydra's grammar, or lists no value.
    """
    choices = []
    for text in texts:
        parsed = _parsed(text)
        if not parsed.is_sweep_override():
            choices.append([text])
            continue
        values, key = _listed(text, parsed), text.partition("=")[0]
        choices.append([f"{key}={value}" for value in values])
    return list(itertools.product(*choices))


def _listed(text: str, parsed: Override) -> list[str]:
    """Return the values of an override that lists several."""
    from hydra.errors import HydraException

    try:
        values = [
            str(value)
            for value in itertools.islice(parsed.sweep_iterator(_written), MAX_VALUES + 1)
        ]
    except (HydraException, ArithmeticError, ValueError) as error:
        raise _refused(text, error) from error
    if not 0 < len(values) <= MAX_VALUES:
        raise RecipeError(
            f"override '{text}': expected 1 to {MAX_VALUES:,} values, got "
            f"{'more' if values else 'none'}"
        )
    return values


def _written(value: Any) -> str:
    """Return a value of a sweep as the text of an override. A quoted text stays a text."""
    from hydra.core.override_parser.types import QuotedString, Transformer

    if isinstance(value, QuotedString):
        return str(value.with_quotes())
    if isinstance(value, str):
        return value if PLAIN.fullmatch(value) else quote_value(value)
    return str(value).lower() if isinstance(value, bool) else str(Transformer.str(value))


def quote_value(path: Path | str) -> str:
    """Return a path or name as the value of an override, quoted if it has special characters."""
    from hydra.core.override_parser.types import Quote, QuotedString

    text = str(path)
    return text if PLAIN.fullmatch(text) else QuotedString(text, Quote.double).with_quotes()


def split_overrides(text: str) -> list[str]:
    """Split the text of several overrides at spaces outside of brackets and quotes."""
    parts = [""]
    quote = ""
    depth = 0
    for before, sign in itertools.pairwise(" " + text):
        if quote or sign in "'\"":
            quote = "" if sign == quote and before != "\\" else quote or sign
        elif sign in "[{(":
            depth += 1
        elif sign in "]})":
            depth = max(depth - 1, 0)
        if sign.isspace() and not quote and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return [part for part in parts if part]


def _parsed(text: str) -> Override:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parser = OverridesParser.create()
        signature = parser.functions.definitions["choice"]  # Hydra's own takes no null
        parameter = signature.parameters["args"]
        parser.functions.definitions["choice"] = signature.replace(
            parameters=[parameter.replace(annotation=parameter.annotation | None)]
        )
        parsed = parser.parse_override(text)
        if parsed.package is not None:
            raise RecipeError(
                f"override '{text}': expected key=value, got a package (@), which recipes do not "
                "support"
            )
        return parsed
    except (HydraException, ValueError) as error:  # a ValueError: a number of thousands of digits
        raise _refused(text, error) from error
    except RecursionError:
        raise RecipeError(
            f"override '{_short(text)}': expected fewer levels of nested brackets"
        ) from None


def _refused(text: str, error: Exception) -> RecipeError:
    return RecipeError(
        f"override '{_short(text)}': expected key=value, key=a,b,c, key=range(from,to,step), "
        f"key=choice(a,b), +key=value or ~key, got: {_short(str(error).splitlines()[0])}"
    )


def _short(text: str) -> str:
    return text if len(text) <= MAX_ERROR_CHARS else f"{text[:MAX_ERROR_CHARS]}..."


def _lookup(data: Any, key: Key) -> tuple[bool, Any]:
    for part in key:
        if not isinstance(data, dict) or part not in data:
            return False, None
        data = data[part]
    return True, data


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_plain(item) for item in value)
    return value
