"""Strict settings: every field has a type, a range, a default and a meaning.

Nothing is coerced, and unknown keys are errors.

``settings_model`` makes settings from a signature, because the arguments of a reward, a script or a
simulator are its parameters. An argument needs a type: ``Annotated[float, Field(gt=0)]`` sets a
range, ``Literal`` the choices. Its meaning comes from the docstring's ``Args`` or ``Attributes``. A
constructor with ``**kwargs`` also has the arguments of its base class.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    create_model,
)
from pydantic_core import PydanticCustomError, core_schema

from rlinf_core.core.errors import RecipeError

Self = TypeVar("Self", bound="Settings")
# three of them fit into a topic
Name = Annotated[str, Field(pattern="^[A-Za-z][A-Za-z0-9_]*$", max_length=64)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]
Widths = Annotated[tuple[Count, ...], Field(min_length=1)]


def _at_home(place: str) -> str:
    try:
        return str(Path(place).expanduser()) if place.startswith("~") else place
    except RuntimeError as error:
        raise ValueError(
            "expected a path in which ~name is the home of a user of this machine"
        ) from error


def _with_tuples(value: Any) -> Any:
    """Return nested lists as tuples: YAML gives tuples and JSON lists, and both must be equal."""
    if isinstance(value, dict):
        return {key: _with_tuples(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_with_tuples(item) for item in value)
    return value


# keys and values of another program, which are not checked here
FreeOptions = Annotated[dict[str, Any], AfterValidator(_with_tuples)]
Place = Annotated[str, AfterValidator(_at_home)]  # path in which ~ is the user's home
FROM_FOLDER = "from folder"  # marks an option: its path is relative to the folder of the YAML
FileFromFolder = Annotated[str, Field(min_length=1), AfterValidator(_at_home), FROM_FOLDER]


class Settings(BaseModel):
    """Base of every config.

    It is frozen. Unknown keys, wrong types and numbers that are not finite are errors.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True
    )

    @classmethod
    def from_document(cls: type[Self], document: Mapping[str, Any]) -> Self:
        """Build settings from JSON's types, which have no tuples, and in which 1 may be a float."""
        return cls.model_validate_json(json.dumps(document))

    def but(self: Self, **changes: Any) -> Self:
        """Return a copy with some values changed. It is checked again."""
        return type(self)(**(dict(self) | changes))


def with_default(parent: type[Settings], name: str, default: Any) -> Any:
    """Return the parent's field of that name, with its range and meaning, and another default."""
    field = copy(parent.model_fields[name])
    field.default = default
    return field


class Discriminated:
    """Annotation of a field whose model is selected by one of the field's own keys.

    Args:
        key: name of the selecting key, e.g. ``name``.
        model: returns the model of a name; raises RecipeError for an unknown one.
        names: returns every name, for the reference and the JSON schema.
        default: name if the key is missing; None makes the key required.
        optional: True if the field may be empty.
    """

    def __init__(
        self,
        key: str,
        model: Callable[[str], type[Settings]],
        names: Callable[[], list[str]],
        default: str | None = None,
        optional: bool = False,
    ) -> None:
        self.key = key
        self.model = model
        self.names = names
        self.default = default
        self.optional = optional

    def of(self, data: Mapping[str, Any]) -> type[Settings]:
        """Return the model that the mapping of a file selects."""
        name = data.get(self.key, self.default)
        if not isinstance(name, str):
            allowed = ", ".join(self.names())
            raise PydanticCustomError(
                "discriminated",
                "expected one of {known}, got {got}",
                {
                    "known": allowed,
                    "got": "nothing" if name is None else repr(name),
                    "key": self.key,
                },
            )
        try:
            return self.model(name)
        except RecipeError as error:
            text = str(error).partition(": ")[2]  # the key already names the place
            raise PydanticCustomError(
                "discriminated", "{text}", {"text": text, "key": self.key}
            ) from error

    def validated(self, value: Any, info: ValidationInfo | None = None) -> Settings | None:
        """Return an instance of the model. An existing instance is returned unchanged."""
        if isinstance(value, Settings) or (value is None and self.optional):
            return value
        if not isinstance(value, Mapping):
            raise PydanticCustomError("model_type", "expected a mapping")
        settings = {self.key: self.default} | dict(value) if self.default else value
        if info is not None and info.mode == "json":  # which has no tuples
            return self.of(value).model_validate_json(json.dumps(settings))
        return self.of(value).model_validate(settings)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        schema = core_schema.with_info_plain_validator_function(self.validated)
        return core_schema.nullable_schema(schema) if type(None) in get_args(source) else schema

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return a schema with one variant for each name, and null if the field may be empty."""
        variants = []
        for name in self.names():
            model = _without_references(self.model(name).model_json_schema())
            model["properties"] = {self.key: {"const": name}} | {
                key: value for key, value in model.get("properties", {}).items() if key != self.key
            }
            model["required"] = [key for key in model.get("required", []) if key != self.key]
            variants.append(
                model
                if name == self.default
                else model | {"required": [self.key, *model["required"]]}
            )
        return {"anyOf": [*variants, *([{"type": "null"}] if self.optional else [])]}


def _without_references(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON schema with each reference replaced by its definition."""
    definitions = schema.pop("$defs", {})

    def placed(item: Any) -> Any:
        if isinstance(item, list):
            return [placed(child) for child in item]
        if not isinstance(item, dict):
            return item
        name = str(item.get("$ref", "")).removeprefix("#/$defs/")
        return {
            key: placed(value)
            for key, value in (definitions.get(name, {}) | item).items()
            if key != "$ref"
        }

    return placed(schema)


_ANNOTATED: Any = Annotated  # untyped, because its arguments are known only at run time


class Parameters(Settings):
    """Base of the models that ``settings_model`` creates. Values of other types are not checked."""

    model_config = ConfigDict(arbitrary_types_allowed=True)


@cache
def settings_model(part: type, without: tuple[str, ...] = (), key: str = "") -> type[Settings]:
    """Return the settings model of a class, with a field for each argument of its constructor.

    Args:
        part: the class.
        without: arguments that do not come from a file.
        key: an additional key that names the part; empty for none.
    """
    meanings = dict(_meanings(part))
    fields: dict[str, Any] = (
        {key: (str, Field(description="kind, which selects the other keys"))} if key else {}
    )
    for name, kind, default in _arguments(part):
        if name not in without and name not in fields:
            fields[name] = (
                kind,
                Field(
                    ... if default is inspect.Parameter.empty else default,
                    description=meanings.get(name),
                ),
            )
    return create_model(part.__name__, __base__=Parameters, **fields)


def constructor_arguments(settings: Settings, key: str = "") -> dict[str, Any]:
    """Return the keyword arguments that settings of ``settings_model`` hold."""
    return {name: value for name, value in settings if name != key}


def _arguments(part: type) -> Iterator[tuple[str, Any, Any]]:
    if issubclass(part, BaseModel):
        for name, item in part.model_fields.items():
            parts = (item.annotation, *item.metadata)
            kind = _ANNOTATED[parts] if item.metadata else item.annotation
            yield (
                name,
                kind,
                inspect.Parameter.empty
                if item.is_required()
                else item.get_default(call_default_factory=True),
            )
        return
    for base in part.__mro__:
        make: Callable[..., Any] | None = vars(base).get("__init__")
        if make is None or base is object:
            continue
        hints = get_type_hints(make, include_extras=True)
        signature = list(inspect.signature(make).parameters.values())[1:]
        for parameter in signature:
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                yield parameter.name, hints.get(parameter.name, Any), parameter.default
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature):
            return


def _meanings(part: type) -> Iterator[tuple[str, str]]:
    """Yield argument and text, from the docstrings of a class and of its base classes."""
    for base in reversed(part.__mro__[:-1]):
        for text in (base.__doc__, getattr(vars(base).get("__init__"), "__doc__", "")):
            section = re.search(
                r"^(?:Args|Attributes):\n((?: {4}.*\n?|\n)*)", inspect.cleandoc(text or ""), re.M
            )
            lines = section.group(1) if section else ""
            for names, meaning in re.findall(r"^ {4}([\w, ]+): (.*(?:\n {8,}.*)*)", lines, re.M):
                yield from (
                    (name, re.sub(r"\s+", " ", meaning).rstrip(".")) for name in names.split(", ")
                )
