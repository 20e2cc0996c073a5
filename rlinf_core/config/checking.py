"""Check a document against a model, with errors that name place and key.

Describe models as tables and as JSON schemas for editors.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from rlinf_core.config.base import Discriminated, Settings
from rlinf_core.config.yaml_source import Document, Key
from rlinf_core.core.errors import RecipeError, nearest
from rlinf_core.core.renames import current_key

Model = TypeVar("Model", bound=Settings)


def validate(model: type[Model], document: Document) -> Model:
    """Return an instance of the model from a document.

    Raises:
        RecipeError: every fault, one line each.
    """
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        raise RecipeError(_lines(model, document, error)) from error


def validate_parameters(model: type[Model], values: Mapping[str, Any], where: str) -> Model:
    """Return an instance of the model from a node's parameters, which have JSON's types.

    Raises:
        RecipeError: every fault, one line each, after ``where``.
    """
    try:
        return model.from_document(values)
    except ValidationError as error:
        document = Document(dict(values), {(): where})
        raise RecipeError(_lines(model, document, error)) from error


def _lines(model: type[Settings], document: Document, error: ValidationError) -> str:
    problems = error.errors(include_url=False)
    parents = {problem["loc"][:-1] for problem in problems}
    lines = [
        _line(model, document, problem)
        for problem in problems
        # pydantic counts valid items: a list with a wrong item is not too short
        if problem["type"] != "too_short" or problem["loc"] not in parents
    ]
    return "\n".join(dict.fromkeys(lines))


def _line(model: type[Settings], document: Document, problem: Any) -> str:
    """Return the error message of one problem of pydantic: place, key, and what was expected."""
    # the fault of a mapping's key has the place of its value
    key: Key = tuple(part for part in problem["loc"] if part != "[key]")
    kind = problem["type"]
    actual = problem["input"]
    context = problem.get("ctx", {})

    def full_name(path: Key) -> str:
        return dotted_key((*document.prefix, *path))

    def key_error(path: Key, text: str) -> str:
        return f"{document.place(path)}: '{full_name(path)}': {text}"

    if kind == "discriminated":
        return key_error((*key, context["key"]), problem["msg"])
    key_and_reason = re.match(r"Value error, ([\w.]+): (.*)", problem["msg"], re.S)
    if key_and_reason and isinstance(actual, dict):
        # a check of several values names the one that it means
        return key_error((*key, *key_and_reason[1].split(".")), key_and_reason[2])
    name = full_name(key)
    if kind == "extra_forbidden":
        return f"{document.place(key)}: {_unknown_key(model, document, key)}"
    if kind == "missing" and isinstance(key[-1], int):
        text = f"'{full_name(key[:-1])}': expected more items, got {_shown(actual)}"
        return f"{document.place(key)}: {text}"
    if kind == "missing":
        meaning = _fields_at(model, document.data, key[:-1])[str(key[-1])].description
        return f"{document.place(key[:-1])}: '{name}' is missing{f': {meaning}' if meaning else ''}"
    if kind == "value_error":
        text = f"{problem['msg'].removeprefix('Value error, ')}, got {_shown(actual)}"
        return key_error(key, text) if name else f"{document.place(key)}: {text}"
    expected = _expected(kind, problem["msg"], context)
    hint = nearest(str(actual), choices(context)) if kind == "literal_error" else ""
    return key_error(key, f"expected {expected}, got {_shown(actual)}{hint}")


def _unknown_key(model: type[Settings], document: Document, key: Key) -> str:
    """Return the message for a key that the model lacks: its new name, or the nearest known one."""
    path = (*document.prefix, *key)
    name = dotted_key(path)
    current = dotted_key(current_key(path))
    if current == name:  # the options of a simulator are checked alone
        current = dotted_key(current_key(("station", "options", *path))[2:])
    if current != name:
        return f"'{name}' has a new name. Write {current} instead"
    fields = _fields_at(model, document.data, key[:-1])
    allowed = ", ".join(sorted(fields))
    return f"unknown key '{name}'{nearest(str(key[-1]), fields)}; known here: {allowed}"


def dotted_key(key: Key) -> str:
    """Return a key in dotted form, such as ``station.observe_cameras[0]``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).lstrip(".")


TYPES = {
    "int_type": "int",
    "float_type": "a number",
    "string_type": "a text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "int_from_float": "int",
    "model_attributes_type": "a mapping",
    "finite_number": "a finite number",
}
NAME = "letters, digits and _, a letter first"
PATTERNS = {
    r"^[A-Za-z][A-Za-z0-9_]*$": NAME,
    r"^([A-Za-z][A-Za-z0-9_]*)?$": f"{NAME}, or nothing",
    r"^/[A-Za-z][A-Za-z0-9_/]*$": "a ROS name that begins with /: letters, digits, _ and /",
    r"^/?[A-Za-z][A-Za-z0-9_/]*$": "a ROS name: letters, digits, _ and /, a letter or / first",
    r"^(/?[A-Za-z][A-Za-z0-9_/]*)?$": "a ROS name: letters, digits, _ and /, a letter or / first, "
    "or nothing",
    r"^(/|/?[A-Za-z][A-Za-z0-9_/]*)$": "/ or a ROS name: letters, digits, _ and /, a letter or / "
    "first",
    r"^[A-Za-z_]\w*(\.\w+)+$": "a module's name: package.module",
    r"^(\w+:\S+)?$": "a name like kind:environment",
    r"^(auto|cpu|(cuda|hpu|mps|mtia|npu|xpu)(:\d+)?)$": "auto, cpu, cuda, cuda:1, or another "
    "device name of torch",
    r"^([^\s:/]+:\d{1,5})?$": "host:port, or nothing",
    r"^(wss?://[^\s/]+)?$": "ws://host:port",
    r"^(https?://[^\s]+)?$": "http://host:port/path, or nothing",
    r"^[A-Za-z0-9.:-]*$": "a host's name or address",
    r"^((still|STOP|DISARMED|ARMED|ACTIVE|HOLD|FAULT)( \S+)?)?$": "still, STOP, DISARMED, ARMED, "
    "ACTIVE, HOLD or FAULT, optionally with a cause: HOLD contact",
    r"^(\s*\S.{8,}\S\s*)?$": "a reason of ten characters or more, or nothing",
    r"^(S\d+)?$": "S and a number",
    r"^[0-9A-Za-z]+$": "letters and digits",
    r"^[a-z0-9_]+$": "small letters, digits and _",
    r"^[A-Z0-9]{4}$": "four capital letters or digits",
}


def _expected(kind: str, message: str, context: dict[str, Any]) -> str:
    if kind in TYPES:
        return TYPES[kind]
    if kind == "string_pattern_mismatch":
        return PATTERNS.get(context["pattern"], f"a text that matches {context['pattern']}")
    if kind == "literal_error":
        return f"one of {', '.join(choices(context))}"
    text = message.removeprefix("Input should be ").removeprefix("expected ")
    for lax, plain in (
        ("Tuple should have", "a list with"),
        ("String should have", "a text with"),
        ("after validation, not", "but has"),
        ("greater than or equal to", "at least"),
        ("less than or equal to", "at most"),
        ("greater than", "above"),
        ("less than", "below"),
    ):
        text = text.replace(lax, plain)
    return text if text.startswith(("a ", "at ", "above", "below", "one")) else f"that {text}"


def choices(context: dict[str, Any]) -> list[str]:
    """Return the choices of a literal from pydantic's wording: 'a', 'b' or 'c'."""
    return [part.strip(" '") for part in context["expected"].replace(" or ", ", ").split(",")]


def _shown(value: Any) -> str:
    """Return type and value for an error message, shortened to 100 characters."""
    names = {tuple: "list", dict: "mapping", type(None): "nothing"}
    name = names.get(type(value), type(value).__name__)
    text = repr(list(value)) if isinstance(value, tuple) else repr(value)
    return name if value is None else f"{name} {text if len(text) < 100 else text[:97] + '...'}"


def _fields_at(model: Any, data: Any, key: Key) -> dict[str, FieldInfo]:
    """Return the fields of the mapping at ``key``, by name."""
    for part in key:
        annotation, metadata = _field(model, part)
        held: Any = data if isinstance(data, dict | tuple) else {part: None}
        data = held[part]
        model = _model(annotation, metadata, data)
    return model.model_fields if _is_model(model) else {}


def _is_model(model: Any) -> bool:
    return isinstance(model, type) and issubclass(model, BaseModel)


def _field(model: Any, part: str | int) -> tuple[Any, list[Any]]:
    if _is_model(model):
        return model.model_fields[str(part)].annotation, model.model_fields[str(part)].metadata
    inner = typing.get_args(model)[-1 if isinstance(part, str) else 0]
    return (
        (inner.__origin__, list(inner.__metadata__))
        if typing.get_origin(inner) is typing.Annotated
        else (inner, [])
    )


def _model(annotation: Any, metadata: list[Any], data: Any) -> Any:
    for item in metadata:
        if isinstance(item, Discriminated):
            return item.of(data)
    arguments = [argument for argument in typing.get_args(annotation) if argument is not type(None)]
    return (
        _model(arguments[0], [], data)
        if typing.get_origin(annotation) in (typing.Union, UnionType)
        else annotation
    )


WORDS = {"integer": "int", "number": "number", "string": "text", "boolean": "bool"}


def reference_rows(
    model: type[Settings], prefix: str = ""
) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield key, type, range, default and meaning of every value, nested settings included."""
    properties = json_schema(model)["properties"]
    for name, item in model.model_fields.items():
        selectors = [mark for mark in item.metadata if isinstance(mark, Discriminated)]
        if selectors:
            selector = selectors[0]
            default = "" if selector.optional else selector.default or "required"
            names = f"one of {', '.join(selector.names())}"
            yield f"{prefix}{name}.{selector.key}", "text", names, default, item.description or ""
        elif nested := _nested(item.annotation):
            many = typing.get_origin(item.annotation) is dict
            yield from reference_rows(nested, f"{prefix}{name}.{'<name>.' if many else ''}")
        else:
            field_schema = properties[name]
            yield (
                f"{prefix}{name}",
                type_text(field_schema),
                range_text(field_schema),
                _default(item),
                item.description or "",
            )


def json_schema(model: type[Settings], title: str = "") -> dict[str, Any]:
    """Return the JSON schema of a model, for editors; without the examples of its docstring."""
    data = model.model_json_schema(mode="validation")
    if "description" in data:
        data["description"] = data["description"].partition("\n\nExample:")[0]
    return (
        data
        | {"$schema": "https://json-schema.org/draft/2020-12/schema"}
        | ({"title": title} if title else {})
    )


def _nested(annotation: Any) -> type[Settings] | None:
    """Return the settings class that a field holds, also as values of a mapping, or None."""
    inner = typing.get_args(annotation)[1] if typing.get_origin(annotation) is dict else annotation
    if typing.get_origin(inner) in (typing.Union, UnionType):  # an optional value
        inner = next(argument for argument in typing.get_args(inner) if argument is not type(None))
    return inner if isinstance(inner, type) and issubclass(inner, Settings) else None


def type_text(item: dict[str, Any]) -> str:
    """Return the type of a property in a JSON schema, as text."""
    if "enum" in item or "const" in item:
        return "text"
    if "anyOf" in item:
        return " or ".join(
            dict.fromkeys(
                type_text(alternative)
                for alternative in item["anyOf"]
                if alternative.get("type") != "null"
            )
        )
    if item.get("type") == "array":
        parts = item.get("prefixItems", [item.get("items", {})])
        return f"list of {type_text(parts[0])}"
    if item.get("type") == "object":
        inside = [*item.get("patternProperties", {}).values(), item.get("additionalProperties")][0]
        return f"mapping of {type_text(inside)}" if isinstance(inside, dict) else "mapping"
    return WORDS.get(item.get("type", ""), "any")


def range_text(item: dict[str, Any]) -> str:
    """Return the range or the choices of a property in a JSON schema, as text."""
    if "enum" in item:
        return f"one of {', '.join(map(str, item['enum']))}"
    if item.get("type") == "array":
        size = item.get("minItems") if item.get("minItems") == item.get("maxItems") else None
        least = f"at least {item['minItems']} items" if item.get("minItems") and not size else ""
        inner = range_text(item.get("items", item.get("prefixItems", [{}])[0]))
        return ", ".join(
            filter(None, [f"{size} items" if size else least, f"each {inner}" if inner else ""])
        )
    if "anyOf" in item:  # an optional value
        return ", ".join(filter(None, map(range_text, item["anyOf"])))
    if "pattern" in item:
        plain = "`" + item["pattern"].replace("|", r"\|") + "`"  # a bar would begin another cell
        return PATTERNS.get(item["pattern"], plain)
    names = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    return ", ".join(f"{word} {item[key]:g}" for key, word in names.items() if key in item)


def _default(item: FieldInfo) -> str:
    if item.is_required():
        return "required"
    value = item.get_default(call_default_factory=True)
    if isinstance(value, tuple):
        return str(list(value))
    return str(value).lower() if isinstance(value, bool) else str(value)
