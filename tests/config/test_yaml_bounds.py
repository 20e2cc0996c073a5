"""YAML that would grow or nest without bound is refused at once, by every reader."""

import sys

import pytest
import yaml

from rlinf_core.config import yaml_source
from rlinf_core.config.yaml_source import load_plain, parse_document
from rlinf_core.core.errors import RecipeError
from rlinf_core.interlock.limits_file import load_limits

LAUGHS = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)
)
ITSELF = "a: &a [*a]"
BAD = [
    (LAUGHS, "each alias"),
    (ITSELF, "no value that contains itself"),
    ("a: " + "[" * 5000 + "]" * 5000, "fewer levels of nested brackets"),
    ("\n".join(" " * n + "a:" for n in range(1000)), "fewer levels of nested brackets"),
    ("a: '" + "x" * (yaml_source.MAX_BYTES + 1) + "'", "characters"),
]


@pytest.mark.parametrize("text, words", BAD)
def test_a_text_that_grows_is_refused(text, words, tmp_path):
    with pytest.raises(RecipeError, match=words):
        parse_document(text, "a recipe")
    with pytest.raises(yaml.YAMLError, match=words):
        load_plain(text)
    path = tmp_path / "limits.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=words):
        load_limits(path)


def test_a_list_that_is_too_long_is_refused(monkeypatch):
    monkeypatch.setattr(yaml_source, "MAX_NODES", 1000)
    with pytest.raises(RecipeError, match="each alias"):
        parse_document("a: [" + "1," * 1001 + "]", "a recipe")


def test_plain_aliases_and_depth_within_the_bounds_are_read():
    nested = "[" * (yaml_source.MAX_DEPTH - 2) + "]" * (yaml_source.MAX_DEPTH - 2)
    text = f"a: &a [1, 2]\nb: *a\nc: {nested}\nd: 010\n"
    assert parse_document(text.replace("010", "8"), "x").data["b"] == (1, 2)
    assert load_plain(text)["b"] == [1, 2] and load_plain(text)["d"] == 8
    assert load_plain("e: 1e-3")["e"] == "1e-3", "as YAML 1.1, in which others write"
    assert load_plain("") is None


def test_a_chain_of_aliases_that_is_deeper_than_the_stack_is_refused():
    chain = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 430))

    def read(frames):
        return read(frames - 1) if frames else parse_document(chain, "a recipe")

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # Python's own, which libraries raise
    try:
        with pytest.raises(RecipeError, match="^a recipe: expected fewer levels of nested aliases"):
            read(250)
    finally:
        sys.setrecursionlimit(limit)
