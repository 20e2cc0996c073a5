"""The help of every command teaches: purpose, examples that parse, options by group with unit and
default.
"""

import argparse
import re
import shlex
from pathlib import Path

import pytest

from rlinf_core.cli.examples import EXAMPLES
from rlinf_core.cli.parsers import make_parser
from rlinf_core.recipes import load_recipe
from rlinf_core.recipes.loader import recipe_names

NO_VERBS = {
    "a",
    "an",
    "the",
    "of",
    "what",
    "that",
    "which",
    "from",
    "to",
    "in",
    "its",
    "whose",
    "by",
}
UNITS = {
    "N",
    "SECONDS",
    "METRES",
    "PIXELS",
    "MS",
    "SEED",
    "PORT",
    "RATIO",
    "FRACTION",
    "DAYS",
    "ANGLE",
    "T",
    "ID",
}
PARSER = make_parser()


def commands(parser, path=""):
    """Every command below a parser, with its words."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield f"{path} {name}".strip(), below
                yield from commands(below, f"{path} {name}".strip())


ALL = dict(commands(PARSER))
LEAVES = sorted(name for name in ALL if not any(other.startswith(f"{name} ") for other in ALL))


@pytest.fixture(autouse=True)
def width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize("name", ALL)
def test_help_begins_with_one_line_of_purpose_then_examples_then_usage(name):
    text = ALL[name].format_help()
    purpose = text.splitlines()[0]
    assert re.fullmatch(r"[A-Z].*[\w)]\.", purpose) and len(purpose.split()) <= 22, purpose
    assert purpose.split()[0].lower() not in NO_VERBS, purpose
    sections = [part for part in re.findall(r"^(\w[\w ]*):$", text, re.M) if part != "usage"]
    assert sections[0] == "examples" and len(sections) == len(set(sections))
    assert (
        text.index("\nexamples:\n  ") < text.index("\nusage: ") < text.index(f"\n{sections[1]}:\n")
    )


def test_every_command_has_examples_and_every_example_a_command():
    assert EXAMPLES.keys() == set(LEAVES)


@pytest.mark.parametrize(
    "name, line",
    [
        (name, line.strip())
        for name, lines in EXAMPLES.items()
        for line in lines.strip().splitlines()
    ],
)
def test_examples_parse(name, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, mark, comment = (line + " ").partition(" #")
    assert not mark or comment.startswith(" ") and comment.strip(), "a comment begins with #"
    code = re.sub(r'^eval "\$\((.*)\)"$', r"\1", code.strip())
    words = shlex.split(code)
    assert words[0] == "rlinf", line
    for word in words:
        if "/" in word and "=" not in word:
            Path(word).parent.mkdir(parents=True, exist_ok=True)
    arguments = vars(PARSER.parse_args(words[1:]))
    if name != "sweep" and arguments.get("name") in recipe_names():
        load_recipe(arguments["name"], arguments.get("overrides", []))


@pytest.mark.parametrize("name", LEAVES)
def test_the_command_itself_is_among_its_examples(name):
    assert re.search(rf"\brlinf {re.escape(name)}\b", EXAMPLES[name])


@pytest.mark.parametrize("name", LEAVES)
def test_every_option_has_a_meaning_and_numbers_have_a_unit(name):
    for action in ALL[name]._actions:
        assert (
            action.help
            or action.metavar == "COMMAND"
            or action.choices
            or not action.option_strings
        ), action.dest
        if action.option_strings and action.nargs != 0 and not action.required:
            assert "(default" in action.help, f"{name} {action.option_strings}: {action.help}"
        kind = getattr(action.type, "__name__", "")
        if action.option_strings and kind in ("int", "float", "fraction", "_days"):
            assert (action.metavar or action.dest.upper()) in UNITS, (
                f"{name} {action.option_strings}: unit?"
            )


def test_a_default_is_printed_once():
    for name in LEAVES:
        for action in ALL[name]._actions:
            assert (action.help or "").count("(default") <= 1, (name, action.option_strings)
