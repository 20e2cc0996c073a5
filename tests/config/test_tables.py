"""Tables and schemas of settings, as the reference and editors show them."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, field_validator, model_validator

from rlinf_core.config.base import Discriminated, Settings
from rlinf_core.config.checking import (
    choices,
    dotted_key,
    json_schema,
    range_text,
    reference_rows,
    type_text,
    validate,
)
from rlinf_core.config.yaml_source import Document, parse_document
from rlinf_core.core.errors import RecipeError


class Wheel(Settings):
    radius: float = Field(0.1, gt=0, le=2, description="radius [m]")
    count: int = Field(ge=1, lt=9, description="number of wheels")


class Axle(Settings):
    left: float = 0.0
    right: float = 0.0
    kind: str = "a"

    @model_validator(mode="after")
    def _fits(self) -> "Axle":
        if self.left > self.right:
            raise ValueError(f"left: expected at most right = {self.right:g}, got {self.left:g}")
        if self.right > 9:
            raise ValueError("expected an axle that fits")
        return self

    @field_validator("kind")
    @classmethod
    def _is_a_or_b(cls, kind: str) -> str:
        if kind not in "ab":
            raise ValueError("expected a or b")
        return kind


class Motor(Settings):
    """A motor.

    Example:
        >>> Motor()
    """

    kind: str = ""
    power: float = 1.5


class Machine(Settings):
    """A machine.

    It has parts.

    Example:
        >>> Machine(wheel=Wheel(count=4))
    """

    name: str = Field("a", description="its name")
    on: bool = Field(True, description="whether it runs")
    mode: Literal["slow", "fast"] = Field("slow", description="its speed")
    size: tuple[int, int] = Field((2, 3), description="size [pixels]")
    limits: tuple[Annotated[float, Field(gt=0)], ...] = Field((1.0,), min_length=1)
    words: dict[str, str] = Field({}, description="words")
    code: str = Field("", pattern="^(a|b)?$")
    host: str = Field("", pattern="^[A-Za-z0-9.:-]*$")
    seed: int | None = Field(None, ge=0)
    wheel: Wheel
    wheels: dict[str, Wheel] = Field({}, description="more of them")
    spare: Wheel | None = None
    axle: Axle = Axle()
    motor: Annotated[
        Any, Discriminated("kind", lambda name: Motor, lambda: ["electric", "steam"], "steam")
    ] = Field(Motor(), description="its motor")
    engine: Annotated[Any, Discriminated("kind", lambda name: Motor, lambda: ["electric"])] = (
        Motor()
    )
    brake: Annotated[
        Any, Discriminated("kind", lambda name: Motor, lambda: ["disc"], optional=True)
    ] = None


def test_a_row_has_key_type_range_default_and_meaning():
    assert list(reference_rows(Machine)) == [
        ("name", "text", "", "a", "its name"),
        ("on", "bool", "", "true", "whether it runs"),
        ("mode", "text", "one of slow, fast", "slow", "its speed"),
        ("size", "list of int", "2 items", "[2, 3]", "size [pixels]"),
        ("limits", "list of number", "at least 1 items, each above 0", "[1.0]", ""),
        ("words", "mapping of text", "", "{}", "words"),
        ("code", "text", r"`^(a\|b)?$`", "", ""),
        ("host", "text", "a host's name or address", "", ""),
        ("seed", "int", "at least 0", "None", ""),
        ("wheel.radius", "number", "above 0, at most 2", "0.1", "radius [m]"),
        ("wheel.count", "int", "at least 1, below 9", "required", "number of wheels"),
        ("wheels.<name>.radius", "number", "above 0, at most 2", "0.1", "radius [m]"),
        ("wheels.<name>.count", "int", "at least 1, below 9", "required", "number of wheels"),
        ("spare.radius", "number", "above 0, at most 2", "0.1", "radius [m]"),
        ("spare.count", "int", "at least 1, below 9", "required", "number of wheels"),
        ("axle.left", "number", "", "0.0", ""),
        ("axle.right", "number", "", "0.0", ""),
        ("axle.kind", "text", "", "a", ""),
        ("motor.kind", "text", "one of electric, steam", "steam", "its motor"),
        ("engine.kind", "text", "one of electric", "required", ""),
        ("brake.kind", "text", "one of disc", "", ""),
    ]
    assert [row[0] for row in reference_rows(Wheel, "a.b.")] == ["a.b.radius", "a.b.count"]


@pytest.mark.parametrize(
    "item, expected",
    [
        ({"enum": ["a", "b"], "type": "string"}, "text"),
        ({"const": "a"}, "text"),
        ({"type": "integer"}, "int"),
        ({"type": "number"}, "number"),
        ({"type": "boolean"}, "bool"),
        ({}, "any"),
        ({"type": "blob"}, "any"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]}, "int or text"),
        ({"anyOf": [{"type": "integer"}, {"type": "integer"}]}, "int"),
        ({"type": "array", "items": {"type": "boolean"}}, "list of bool"),
        ({"type": "array", "prefixItems": [{"type": "number"}, {}]}, "list of number"),
        ({"type": "array"}, "list of any"),
        ({"type": "object"}, "mapping"),
        ({"type": "object", "additionalProperties": False}, "mapping"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "mapping of int"),
        (
            {
                "type": "object",
                "patternProperties": {"^a": {"type": "string"}},
                "additionalProperties": False,
            },
            "mapping of text",
        ),
    ],
)
def test_types_in_words(item, expected):
    assert type_text(item) == expected


@pytest.mark.parametrize(
    "item, expected",
    [
        ({"enum": ["a", 2]}, "one of a, 2"),
        ({"minimum": 0, "maximum": 10}, "at least 0, at most 10"),
        ({"exclusiveMinimum": 0.5, "exclusiveMaximum": 1e-7}, "above 0.5, below 1e-07"),
        ({"type": "integer"}, ""),
        ({"type": "array", "items": {}, "minItems": 3, "maxItems": 3}, "3 items"),
        ({"type": "array", "items": {}, "minItems": 3, "maxItems": 4}, "at least 3 items"),
        ({"type": "array", "items": {}, "maxItems": 4}, ""),
        ({"type": "array"}, ""),
        ({"type": "array", "items": {"minimum": 1}}, "each at least 1"),
        (
            {"type": "array", "prefixItems": [{"minimum": 1}, {}], "minItems": 2, "maxItems": 2},
            "2 items, each at least 1",
        ),
        ({"anyOf": [{"minimum": 1}, {"type": "null"}]}, "at least 1"),
        ({"anyOf": [{"minimum": 1}, {"enum": ["a"]}]}, "at least 1, one of a"),
        ({"pattern": "^[a-z]|b$"}, r"`^[a-z]\|b$`"),
        ({"pattern": "^[0-9A-Za-z]+$"}, "letters and digits"),
    ],
)
def test_ranges_in_words(item, expected):
    assert range_text(item) == expected


def test_a_schema_for_editors_has_no_example_and_may_have_a_title():
    data = json_schema(Machine)
    assert data["description"] == "A machine.\n\nIt has parts." and data["title"] == "Machine"
    assert data["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert json_schema(Machine, "A title")["title"] == "A title"
    assert "description" not in json_schema(Wheel) and json_schema(Wheel)["required"] == ["count"]
    assert json_schema(Machine)["properties"]["name"]["default"] == "a"


@pytest.mark.parametrize(
    "key, text",
    [
        ((), ""),
        (("a",), "a"),
        (("a", "b"), "a.b"),
        (("a", 0, "b"), "a[0].b"),
        ((1,), "[1]"),
        (("a", 1, 2), "a[1][2]"),
    ],
)
def test_a_key_in_dotted_form(key, text):
    assert dotted_key(key) == text


@pytest.mark.parametrize(
    "expected, names",
    [("'a'", ["a"]), ("'a' or 'b c'", ["a", "b c"]), ("'a', 'b' or 'c'", ["a", "b", "c"])],
)
def test_choices_of_a_literal(expected, names):
    assert choices({"expected": expected}) == names


def errors_of(text):
    with pytest.raises(RecipeError) as error:
        validate(Machine, parse_document(f"wheel: {{count: 4}}\n{text}", "m.yaml"))
    return str(error.value).splitlines()


@pytest.mark.parametrize(
    "text, message",
    [
        ("name: 3", "'name': expected a text, got int 3"),
        ("on: 1", "'on': expected true or false, got int 1"),
        ("mode: fats", "'mode': expected one of slow, fast, got str 'fats' (did you mean 'fast'?)"),
        ("size: 3", "'size': expected a list, got int 3"),
        ("size: [1]", "'size': expected more items, got list [1]"),
        ("size: [1, 2, 3]", "'size': expected a list with at most 2 items but has 3, got list"),
        ("size: [1, a]", "'size[1]': expected int, got str 'a'"),
        ("size: [1, 0.5]", "'size[1]': expected int, got float 0.5"),
        ("limits: []", "'limits': expected a list with at least 1 item but has 0, got list []"),
        ("limits: [1, 0]", "'limits[1]': expected above 0, got int 0"),
        ("limits: [.inf]", "'limits[0]': expected a finite number, got float inf"),
        ("limits: [a]", "'limits[0]': expected a number, got str 'a'"),
        ("words: 3", "'words': expected a mapping, got int 3"),
        ("words: {a: [1]}", "'words.a': expected a text, got list [1]"),
        ("words: {a: {b: 1}}", "'words.a': expected a text, got mapping {'b': 1}"),
        ("words: {a: }", "'words.a': expected a text, got nothing"),
        ("code: c", "'code': expected a text that matches ^(a|b)?$, got str 'c'"),
        ("host: a b", "'host': expected a host's name or address, got str 'a b'"),
        ("seed: -1", "'seed': expected at least 0, got int -1"),
        ("wheels: {a: {count: 9}}", "'wheels.a.count': expected below 9, got int 9"),
        ("wheels: {a: {count: 0}}", "'wheels.a.count': expected at least 1, got int 0"),
        (
            "wheels: {a: {count: 1, radius: 3}}",
            "'wheels.a.radius': expected at most 2, got int 3",
        ),
        ("wheels: {a: {}}", "'wheels.a.count' is missing: number of wheels"),
        ("wheels: {a: 3}", "'wheels.a': expected a mapping, got int 3"),
        (
            "wheels: {a: {count: 1, raduis: 3}}",
            "unknown key 'wheels.a.raduis' (did you mean 'radius'?); known here: count, radius",
        ),
        ("spare: {}", "'spare.count' is missing: number of wheels"),
        (
            "spare: {count: 1, raduis: 3}",
            "unknown key 'spare.raduis' (did you mean 'radius'?); known here: count, radius",
        ),
        (
            "motor: {powr: 1.0}",
            "unknown key 'motor.powr' (did you mean 'power'?); known here: kind, power",
        ),
    ],
)
def test_a_fault_is_one_line_with_key_range_and_value(text, message):
    (line,) = errors_of(text)
    assert line.startswith(f"m.yaml, line 2: {message}")


@pytest.mark.parametrize(
    "text, message",
    [
        ("left: 1", "m.yaml, line 1: 'left': expected at most right = 0, got 1"),
        ("right: 10", "m.yaml: expected an axle that fits, got mapping {'right': 10}"),
        ("kind: c", "m.yaml, line 1: 'kind': expected a or b, got str 'c'"),
    ],
)
def test_a_check_of_several_values_names_one_or_none(text, message):
    with pytest.raises(RecipeError) as error:
        validate(Axle, parse_document(text, "m.yaml"))
    assert str(error.value) == message
    with pytest.raises(RecipeError) as error:
        validate(Machine, parse_document(f"wheel: {{count: 4}}\naxle: {{{text}}}", "m.yaml"))
    key = message.partition(": '")[2].partition("'")[0]
    name = f"'axle.{key}'" if key else "'axle'"
    rest = message.partition(f"'{key}': ")[2] if key else message.partition(": ")[2]
    assert str(error.value) == f"m.yaml, line 2: {name}: {rest}"


def test_each_fault_is_in_a_line_of_its_own_and_a_long_value_is_cut():
    one, two = errors_of(f"name: [{', '.join(['1'] * 50)}]\non: no-one")
    assert two == "m.yaml, line 3: 'on': expected true or false, got str 'no-one'"
    assert one.startswith("m.yaml, line 2: 'name': expected a text, got list [1, 1, ")
    assert one.endswith("1, 1, ...") and len(one.partition("list ")[2]) == 100
    text = "x" * 97
    assert errors_of(f"on: {text}")[0].endswith(f"got str '{text}'"), "99 characters stay"
    assert errors_of(f"on: {text}x")[0].endswith(f"got str '{'x' * 96}..."), "and 100 do not"


def test_a_missing_key_has_the_place_of_the_mapping_that_lacks_it():
    with pytest.raises(RecipeError, match="^m.yaml: 'wheel' is missing$"):
        validate(Machine, Document({}, {(): "m.yaml"}))
    with pytest.raises(RecipeError, match="^m.yaml, line 2: 'wheel.count' is missing: number of"):
        validate(Machine, parse_document("name: a\nwheel: {radius: 1}", "m.yaml"))
