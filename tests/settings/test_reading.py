"""YAML that no value can be made of is refused with its place."""

import pytest

from rlinf_core.errors import RecipeError
from rlinf_core.settings.reading import parse


@pytest.mark.parametrize("value, told", [
    ("!!bool x", "bool 'x'"), ("!!int ''", "int ''"), ("!!float ''", "float ''"), ("!!timestamp x", "timestamp 'x'"),
    ("!!int x", "invalid literal for int"), ("!!seq x", "seq 'x'"), ("!!map x", "map 'x'"), ("!!set x", "set 'x'"),
    ("9" * 5000, "Exceeds the limit"), (f"0x{'f' * 5000}", "int '0xffff"),
    ("!mine x", "could not determine a constructor")])
def test_a_value_that_its_tag_does_not_fit_is_named_with_its_line(value, told):
    with pytest.raises(RecipeError) as error:
        parse(f"name: x\nseed: {value}\n", "recipe r.yaml")
    assert str(error.value).startswith(f"recipe r.yaml, line 2: expected a plain value, got: {told}")
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("bracket", ["[", "{a: ", "- "])
def test_what_is_nested_without_end_is_refused(bracket):
    with pytest.raises(RecipeError, match="^recipe r.yaml: expected "):
        parse(f"seed: {bracket * 2000}" if bracket != "- " else bracket * 2000, "recipe r.yaml")


def test_what_has_a_tag_that_fits_is_that():
    said = parse("a: !!int '3'\nb: !!bool true\nc: !!float 1\nd: !!str 2\ne: 0x10\nf: [[[[1]]]]\n", "here").data
    assert said == {"a": 3, "b": True, "c": 1.0, "d": "2", "e": 16, "f": ((((1,),),),)}
