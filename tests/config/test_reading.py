"""YAML that no value can be made of is refused with its place."""

import pytest

from rlinf_core.config.yaml_source import parse_document
from rlinf_core.core.errors import RecipeError


@pytest.mark.parametrize(
    "value, error_text",
    [
        ("!!bool x", "bool 'x'"),
        ("!!int ''", "int ''"),
        ("!!float ''", "float ''"),
        ("!!timestamp x", "timestamp 'x'"),
        ("!!int x", "invalid literal for int"),
        ("!!seq x", "seq 'x'"),
        ("!!map x", "map 'x'"),
        ("!!set x", "set 'x'"),
        ("9" * 5000, "Exceeds the limit"),
        (f"0x{'f' * 5000}", "int '0xffff"),
        ("!mine x", "could not determine a constructor"),
    ],
)
def test_a_value_that_its_tag_does_not_fit_is_named_with_its_line(value, error_text):
    with pytest.raises(RecipeError) as error:
        parse_document(f"name: x\nseed: {value}\n", "recipe r.yaml")
    assert str(error.value).startswith(
        f"recipe r.yaml, line 2: expected a plain value, got: {error_text}"
    )
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("bracket", ["[", "{a: ", "- "])
def test_what_is_nested_without_end_is_refused(bracket):
    with pytest.raises(RecipeError, match="^recipe r.yaml: expected "):
        parse_document(
            f"seed: {bracket * 2000}" if bracket != "- " else bracket * 2000, "recipe r.yaml"
        )


def test_what_has_a_tag_that_fits_is_that():
    document = parse_document(
        "a: !!int '3'\nb: !!bool true\nc: !!float 1\nd: !!str 2\ne: 0x10\nf: [[[[1]]]]\n", "here"
    ).data
    assert document == {"a": 3, "b": True, "c": 1.0, "d": "2", "e": 16, "f": ((((1,),),),)}


@pytest.mark.parametrize(
    "text, read, write",
    [
        ("010", "8", "10 (or 8) for the number, or '010' in quotes"),
        ("-010", "-8", "-10 (or -8) for"),
        ("1:30", "90", "90 for the number, or '1:30' in quotes"),
        ("1:30.5", "90.5", "90.5 for the number"),
        ("2026-11-29", "2026-11-29", "'2026-11-29' in quotes for a text"),
        ("2026-11-29 10:00:00", "2026-", "'2026-11-29 1"),
    ],
)
@pytest.mark.parametrize("form", ["seed: {}", "a:\n  b: {}", "a: [1, {}]", "a: {{b: {}}}"])
def test_what_yaml_reads_as_another_number_is_refused_with_its_line(text, read, write, form):
    with pytest.raises(RecipeError) as error:
        parse_document("name: x\n" + form.format(text), "limits l.yaml")
    line = 2 + form.count("\n")
    assert str(error.value).startswith(
        f"limits l.yaml, line {line}: expected an unambiguous value, got {text}, which YAML 1.1 "
        f"reads as {read}"
    )
    assert f"Write {write}" in str(error.value)


@pytest.mark.parametrize(
    "text, value",
    [
        ("0", 0),
        ("-0", 0),
        ("00", 0),
        ("0.10", 0.1),
        ("1_000", 1000),
        ("1e3", 1000.0),
        ("1.5e+3", 1500.0),
        ("0x10", 16),
        ("yes", True),
        ("off", False),
        ("'010'", "010"),
        ('"1:30"', "1:30"),
        ("'2026-11-29'", "2026-11-29"),
        ("a:b", "a:b"),
        ("10.0.0.1:6379", "10.0.0.1:6379"),
        (".inf", float("inf")),
    ],
)
def test_what_means_one_thing_is_read_as_it(text, value):
    data = parse_document(f"a: {text}", "here").data["a"]
    assert data == value and type(data) is type(value)
