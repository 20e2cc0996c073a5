"""YAML with the file and line of every value. A repeated key is an error."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from rlinf_core.core.errors import RecipeError
from rlinf_core.core.paths import expand_user

Key = tuple[str | int, ...]
BITS = 1024  # size of a whole number, that of the largest float
MAX_BYTES = 4 << 20  # characters of a YAML text
MAX_DEPTH = 64
MAX_NODES = 100_000  # aliases expanded
TOO_MANY = (
    f"expected at most {MAX_NODES} values, with each alias (*name) counted at each use, and no "
    "value that contains itself (&name and *name)"
)
OCTAL = re.compile("[-+]?0[0-7_]*[1-7][0-7_]*")
SHOWN = 100  # characters of an invalid value in its error


@dataclass
class Document:
    """A mapping from YAML and overrides, and the place of each value.

    Attributes:
        data: plain values; lists are tuples.
        places: file and line by path of keys and indices; for an override, its text.
        prefix: prefix of every key, for errors.
    """

    data: dict[str, Any]
    places: dict[Key, str] = field(default_factory=dict)
    prefix: Key = ()

    def place(self, key: Key) -> str:
        """Return the file and line of a value, or of the nearest value that holds it."""
        while key and key not in self.places:
            key = key[:-1]
        return self.places.get(key, "")

    def below(self, key: Key) -> Document:
        """Return the mapping at ``key`` as a document. Errors still name the full keys."""
        data: Any = self.data
        for part in key:
            data = data.get(part, {})
        places = {
            at[len(key) :]: place for at, place in self.places.items() if at[: len(key)] == key
        }
        return Document(data, {(): self.place(key)} | places, (*self.prefix, *key))

    def set(self, key: Key, value: Any, place: str) -> None:
        """Set a value, and create the mappings on its path."""
        data: dict[Any, Any] = self.data
        for part in key[:-1]:
            if not isinstance(data.get(part, {}), dict):
                del data[part]
            data = data.setdefault(part, {})
        data[key[-1]] = value
        self.forget(key)
        self.places[key] = place

    def over(self, under: Document) -> Document:
        """Return this document's values over those of another one."""
        return Document(_merged(under.data, self.data), under.places | self.places)

    def forget(self, key: Key) -> None:
        """Drop the places of a value and of its parts."""
        self.places = {at: place for at, place in self.places.items() if at[: len(key)] != key}


def read_document(path: str | Path, document_kind: str, inside: str = "") -> Document:
    """Read a YAML file that holds a mapping.

    Args:
        path: path of the file.
        document_kind: kind of the file, for errors: "recipe", "task".
        inside: a key under which the file's content, of any type, becomes the document; empty for a
            mapping.

    Raises:
        RecipeError: the file cannot be read, is no mapping, or repeats a key.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"{document_kind} {path}: expected a readable YAML file, got: {error}"
        ) from error
    return parse_document(text, f"{document_kind} {path}", inside)


def parse_document(text: str, where: str, inside: str = "") -> Document:
    """Parse a YAML text like ``read_document``; ``where`` names its source in errors."""
    try:
        _check_size(text)
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise RecipeError(f"{where}: expected readable YAML, got: {error}") from error
    except RecursionError:
        raise RecipeError(f"{where}: expected fewer levels of nested brackets") from None
    if not isinstance(node, yaml.MappingNode) and not inside:
        actual = (
            "nothing"
            if node is None
            else {"seq": "list"}.get(tag := node.tag.rpartition(":")[2], tag)
        )
        raise RecipeError(f"{where}: expected 'key: value' lines, got {actual}")
    document, key = Document({}, {(): where}), (inside,) if inside else ()
    try:
        value: Any = _value(node, key, where, document.places) if node else None
    except RecursionError:
        raise RecipeError(f"{where}: expected fewer levels of nested aliases (*name)") from None
    document.data = {inside: value} if inside else value
    return document


def load_plain(text: str) -> Any:
    """Load a YAML text as plain values, within the same bounds.

    It is for files without settings, such as a recording's metadata.

    Raises:
        yaml.YAMLError: the text is no YAML, or too large.
    """
    _check_size(text)
    return yaml.load(text, Loader=_Plain)  # noqa: S506 - a SafeLoader


def _check_size(text: str) -> None:
    if len(text) > MAX_BYTES:
        raise yaml.YAMLError(f"expected at most {MAX_BYTES} characters, got {len(text)}")


def _expanded(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Return the number of nodes from this one down, with every alias expanded.

    ``MAX_DEPTH`` bounds the recursion.
    """
    if id(node) not in sizes:
        sizes[id(node)] = MAX_NODES + 1  # a node that contains itself
        items: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            items = node.value
        elif isinstance(node, yaml.MappingNode):
            items = [child for pair in node.value for child in pair]
        sizes[id(node)] = 1 + sum(_expanded(item, sizes) for item in items)
    return sizes[id(node)]


def _merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(under[key], value)
        for key, value in over.items()
        if isinstance(value, dict) and isinstance(under.get(key), dict)
    }
    return under | over | both


def _value(node: yaml.Node, key: Key, where: str, places: dict[Key, str]) -> Any:
    if key:
        places.setdefault(key, f"{where}, line {node.start_mark.line + 1}")
    if isinstance(node, yaml.SequenceNode):
        return tuple(
            _value(item, (*key, index), where, places) for index, item in enumerate(node.value)
        )
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, key, where, places)
    line = f"{where}, line {node.start_mark.line + 1}"
    try:
        value = _Loader.make(node)
    except (
        yaml.YAMLError,
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:  # raised by the constructor of the tag
        actual = error if isinstance(error, yaml.YAMLError | ValueError) else _scalar_text(node)
        raise RecipeError(f"{line}: expected a plain value, got: {actual}") from error
    if isinstance(value, list | dict | set) or (
        isinstance(value, int) and value.bit_length() > BITS
    ):
        raise RecipeError(f"{line}: expected a plain value, got: {_scalar_text(node)}")
    if getattr(node, "style", "") is None and (meant := _ambiguous(node.value, value)):
        raise RecipeError(
            f"{line}: expected an unambiguous value, got {node.value[:SHOWN]}, which YAML 1.1 "
            f"reads as {value}. Write {meant}"
        )
    return value


def _ambiguous(text: str, value: Any) -> str:
    """Return advice for a scalar that YAML 1.1 reads as another number or as a date.

    The advice is empty if the scalar is unambiguous.
    """
    if isinstance(value, date):
        return f"'{text}' in quotes for a text"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if ":" in text:
        return f"{value} for the number, or '{text}' in quotes for a text"
    if isinstance(value, int) and OCTAL.fullmatch(text):
        decimal = int(text.replace("_", ""))
        return f"{decimal} (or {value}) for the number, or '{text}' in quotes for a text"
    return ""


def _scalar_text(node: yaml.Node) -> str:
    """Return the text of a scalar as in the file, with its tag."""
    return f"{node.tag.rpartition(':')[2]} {node.value[:SHOWN]!r}"


def _mapping(
    node: yaml.MappingNode, key: Key, where: str, places: dict[Key, str]
) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for name_node, item in node.value:
        line = f"{where}, line {name_node.start_mark.line + 1}"
        if not isinstance(name_node, yaml.ScalarNode):
            raise RecipeError(
                f"{line}: expected a name before the colon, got a "
                f"{name_node.tag.rpartition(':')[2]}"
            )
        name = name_node.value
        at = (*key, name)
        if name in data:
            raise RecipeError(
                f"{line}: '{'.'.join(map(str, at))}' occurs twice, first in "
                f"{places[at].removeprefix(where).lstrip(', ')}"
            )
        places[at] = line
        data[name] = _value(item, at, where, places)
    return data


class _Loader(yaml.SafeLoader):
    """Reads 1e-3 as a number, as YAML 1.2 does; refuses deep nesting and aliases that grow."""

    depth = nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node with at most ``MAX_DEPTH`` parents."""
        self.depth, self.nodes = self.depth + 1, self.nodes + 1
        try:
            if self.depth > MAX_DEPTH:
                raise yaml.YAMLError(
                    f"expected fewer levels of nested brackets: at most {MAX_DEPTH} levels"
                )
            if self.nodes > MAX_NODES:
                raise yaml.YAMLError(TOO_MANY)
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def get_single_node(self) -> Any:
        """Return the root. It has at most ``MAX_NODES`` nodes with every alias expanded."""
        node = super().get_single_node()
        if node is not None and _expanded(node, {}) > MAX_NODES:
            raise yaml.YAMLError(TOO_MANY)
        return node

    @classmethod
    def make(cls, node: yaml.Node) -> Any:
        """Return the value of a scalar node."""
        loader = cls("")
        try:
            return loader.construct_object(node)
        finally:
            loader.dispose()


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?\d[\d_]*(\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


class _Plain(_Loader):
    """Reads numbers like YAML 1.1, as the writers of these files do."""

    yaml_implicit_resolvers = yaml.SafeLoader.yaml_implicit_resolvers


def resolve_file_reference(document: Document, key: Key, folder: Path, prefix: str = "") -> None:
    """Make the path in a ``file.py:name`` of a config absolute.

    A relative path begins at the config's folder.

    Args:
        document: the config.
        key: path of the value.
        folder: folder of the config, or the working directory for an override.
        prefix: text before the path, such as ``text:``.
    """
    *parents, last = key
    holder: Any = document.data
    for part in parents:
        holder = holder.get(part) if isinstance(holder, dict) else None
    name = holder.get(last) if isinstance(holder, dict) else None
    if not isinstance(name, str) or not name.startswith(prefix):
        return
    name = name.removeprefix(prefix)
    if name.partition(":")[0].endswith(".py"):
        where = f"{document.place(key)}: '{'.'.join(map(str, key))}'"
        holder[last] = prefix + str((folder / expand_user(name, where)).resolve())
