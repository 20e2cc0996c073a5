"""Overrides that cannot be meant are refused in words, whatever Hydra's parser makes of them."""

import pytest

from rlinf_core.config.overrides import MOST, combinations, override, quoted
from rlinf_core.config.yaml_source import Document
from rlinf_core.core.errors import RecipeError

DIGITS = "9" * 5000


def recipe_document():
    return Document({"seed": 3, "station": {"name": "a", "image_size": (64, 48)}})


@pytest.mark.parametrize(
    "text, reason",
    [
        ("seed=range(0,3,0)", "expected key=value, key=a,b,c, .* got: range"),
        ("seed=range(0.0,1.0,0.0)", "expected key=value, .* got: Invalid range values"),
        ("seed=range(3,0)", "expected 1 to 10,000 values, got none"),
        ("seed=range(0,1e9,0.1)", "expected 1 to 10,000 values, got more"),
        (
            f"seed={DIGITS}",
            r"override 'seed=9+\.\.\.': expected key=value, .* got: Exceeds the limit",
        ),
        (f"seed=1,{DIGITS}", "got: Exceeds the limit"),
    ],
)
def test_a_sweep_without_values_or_end_is_refused(text, reason):
    with pytest.raises(RecipeError, match=reason) as error:
        combinations(["name=x", text])
    assert len(str(error.value)) < 700


def test_a_sweep_may_list_as_many_values_as_there_is_room_for():
    assert len(combinations([f"seed=range({MOST})"])) == MOST
    assert combinations(["seed=range(2,0,-1)"]) == [("seed=2",), ("seed=1",)]


@pytest.mark.parametrize(
    "text, reason",
    [
        (f"seed={DIGITS}", "got: Exceeds the limit"),
        (f"seed={'[' * 3000}", "expected key=value, "),
        (f"seed={'[' * 3000}1{']' * 3000}", "expected fewer levels of nested brackets"),
    ],
)
def test_what_no_number_and_no_list_can_be_is_refused(text, reason):
    with pytest.raises(RecipeError, match=reason) as error:
        override(recipe_document(), text)
    assert len(str(error.value)) < 700


@pytest.mark.parametrize(
    "text, left",
    [
        ("~seed", {"name", "image_size"}),
        ("~seed=3", {"name", "image_size"}),
        ("~station.image_size=[64,48]", {"name"}),
        ("~station.name='a'", {"image_size"}),
    ],
)
def test_what_is_taken_out_by_its_value_has_it(text, left):
    document = recipe_document()
    override(document, text)
    assert document.data["station"].keys() == left and ("seed" in document.data) == (
        "station" in text
    )


@pytest.mark.parametrize(
    "text, reason",
    [
        ("~seed=4", "expected the value of 'seed', 3, got 4"),
        ("~seed=null", "', 3, got None"),
        ("~seed=", "', 3, got ''"),
        ("~station={name: a}", "expected the value of 'station'"),
        ("~station.image_size=[48,64]", r"', \(64, 48\), got \(48, 64\)"),
    ],
)
def test_what_has_another_value_stays(text, reason):
    document = recipe_document()
    with pytest.raises(RecipeError, match=reason):
        override(document, text)
    assert document.data == recipe_document().data


@pytest.mark.parametrize(
    "plain", ["franka_sim", "/runs/a-b_1.5", "./mine", "../tasks/t.yaml", "runs/x"]
)
def test_a_path_or_name_that_needs_no_quotes_has_none(plain):
    assert quoted(plain) == plain


@pytest.mark.parametrize(
    "text",
    [
        "true",
        "NULL",
        "nan",
        "12",
        "1e3",
        "",
        " a",
        "/home/o'brien/r",
        "/runs/é",
        "[::1]",
        'a"b',
        "ws://a:1",
        "a/b\\",
        "~/r",
    ],
)
def test_whatever_is_quoted_is_itself_alone_and_in_a_list(text):
    document = recipe_document()
    override(document, f"station.name={quoted(text)}")
    override(document, f"station.image_size=[{quoted(text)},{quoted(text)}]")
    assert document.data["station"] == {"name": text, "image_size": (text, text)}


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a=choice(null,2)", [None, 2]),
        ("a=null,2", [None, 2]),
        ("a=choice('null',null)", ["null", None]),
        ("a=choice(true,'true')", [True, "true"]),
        ("a=choice('1',1,1.0)", ["1", 1, 1.0]),
        ("a='x,y',z", ["x,y", "z"]),
        ("a=choice('a=b','c d')", ["a=b", "c d"]),
        ("a=choice('',x)", ["", "x"]),
        ("a=[1,null],[3]", [(1, None), (3,)]),
        ("a={b: 1},{b: null}", [{"b": 1}, {"b": None}]),
        ("a={b: {c: 'x,y'}},3", [{"b": {"c": "x,y"}}, 3]),
        ("a=[null,'null',true],2", [(None, "null", True), 2]),
        ('a="it\'s",b', ["it's", "b"]),
        (r"""a=choice("q\"q",'\'')""", ['q"q', "'"]),
        ("a=range(1,3)", [1, 2]),
    ],
)
def test_each_value_of_a_sweep_is_that_of_a_run(text, expected):
    values = []
    for (chosen,) in combinations([text]):
        document = Document({})
        override(document, chosen)
        values.append(document.data["a"])
    assert values == expected and list(map(type, values)) == list(map(type, expected))
