"""Overrides that cannot be meant are refused in words, whatever Hydra's parser makes of them."""

import pytest

from rlinf_core.config.overrides import (
    MAX_VALUES,
    apply_override,
    combinations,
    quote_value,
    split_overrides,
)
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
    assert len(combinations([f"seed=range({MAX_VALUES})"])) == MAX_VALUES
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
        apply_override(recipe_document(), text)
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
    apply_override(document, text)
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
        apply_override(document, text)
    assert document.data == recipe_document().data


@pytest.mark.parametrize(
    "plain", ["franka_sim", "/runs/a-b_1.5", "./mine", "../tasks/t.yaml", "runs/x"]
)
def test_a_path_or_name_that_needs_no_quotes_has_none(plain):
    assert quote_value(plain) == plain


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
    apply_override(document, f"station.name={quote_value(text)}")
    apply_override(document, f"station.image_size=[{quote_value(text)},{quote_value(text)}]")
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
        apply_override(document, chosen)
        values.append(document.data["a"])
    assert values == expected and list(map(type, values)) == list(map(type, expected))


@pytest.mark.parametrize(
    "text, parts",
    [
        ("", []),
        ("  ", []),
        ("a=1", ["a=1"]),
        (" a=1  b=2\tc=3\n", ["a=1", "b=2", "c=3"]),
        ("a='x y' b=2", ["a='x y'", "b=2"]),
        ('a="x \' y" b=2', ['a="x \' y"', "b=2"]),
        (r"a='x\' y' b=2", [r"a='x\' y'", "b=2"]),
        (
            "a=[1, 2] b={c: 3, d: [4, 5]} e=choice(6, 7) f",
            [
                "a=[1, 2]",
                "b={c: 3, d: [4, 5]}",
                "e=choice(6, 7)",
                "f",
            ],
        ),
        ("a='[' b=2", ["a='['", "b=2"]),
        ("a=] b=[1, 2]", ["a=]", "b=[1, 2]"]),
        ("a=}) b={c: 1} d", ["a=})", "b={c: 1}", "d"]),
        ("'a b", ["'a b"]),
    ],
)
def test_several_overrides_are_split_at_spaces_outside_of_brackets_and_quotes(text, parts):
    assert split_overrides(text) == parts


@pytest.mark.parametrize(
    "text, data",
    [
        ("seed=4", {"seed": 4, "station": {"name": "a", "image_size": (64, 48)}}),
        ("++seed=4", {"seed": 4, "station": {"name": "a", "image_size": (64, 48)}}),
        ("station.name=b", {"seed": 3, "station": {"name": "b", "image_size": (64, 48)}}),
        (
            "+x.y.z=[1,[2]]",
            {
                "seed": 3,
                "station": {"name": "a", "image_size": (64, 48)},
                "x": {"y": {"z": (1, (2,))}},
            },
        ),
        (
            "seed={a: {1: [2]}}",
            {"seed": {"a": {"1": (2,)}}, "station": {"name": "a", "image_size": (64, 48)}},
        ),
        ("seed.a=1", {"seed": {"a": 1}, "station": {"name": "a", "image_size": (64, 48)}}),
        ("~station.name", {"seed": 3, "station": {"image_size": (64, 48)}}),
    ],
)
def test_an_override_changes_its_key_alone(text, data):
    document = recipe_document()
    apply_override(document, text)
    assert document.data == data


def test_an_overridden_value_has_the_override_for_its_place():
    document = Document(
        {"a": {"b": 1, "c": 2}}, {("a",): "r, line 1", ("a", "b"): "r, line 2", ("a", "c"): "r, 3"}
    )
    apply_override(document, "a.b=5")
    assert document.place(("a", "b")) == "override 'a.b=5'"
    assert document.place(("a", "c")) == "r, 3"
    apply_override(document, "~a.c")
    assert document.place(("a", "c")) == "r, line 1", "the nearest that is left"
    apply_override(document, "a={b: 1}")
    assert document.place(("a", "b")) == document.place(("a",)) == "override 'a={b: 1}'"


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "+seed=4",
            r"override '\+seed=4': expected a new key, got 'seed', which is 3. Leave out the \+ to",
        ),
        (
            "~sede",
            "override '~sede': expected a key that the recipe sets, got 'sede', which it does",
        ),
        ("~seed.a", "expected a key that the recipe sets, got 'seed.a'"),
        ("seed=1,2", "override 'seed=1,2': expected one value, got several; `rlinf sweep`"),
        ("seed@here=1", r"override 'seed@here=1': expected key=value, got a package \(@\), which"),
        (
            "~replay.fair",
            "override '~replay.fair': 'replay.fair' has a new name. Write ~replay.balance_stations inst",
        ),
        ("seed", "override 'seed': expected key=value, key=a,b,c, .*~key, got: "),
    ],
)
def test_an_override_that_cannot_be_is_refused_and_changes_nothing(text, message):
    document = recipe_document()
    with pytest.raises(RecipeError, match=f"^{message}" if message[0] == "o" else message):
        apply_override(document, text)
    assert document.data == recipe_document().data


def test_combinations_are_those_of_all_values_the_last_override_first():
    assert combinations(["a=1,2", "b=x", "c.d=[3],[4]"]) == [
        ("a=1", "b=x", "c.d=[3]"),
        ("a=1", "b=x", "c.d=[4]"),
        ("a=2", "b=x", "c.d=[3]"),
        ("a=2", "b=x", "c.d=[4]"),
    ]
    assert combinations([]) == [()]
    with pytest.raises(RecipeError, match="^override 'a=1,,2': expected key=value"):
        combinations(["a=1,,2"])


def test_a_long_override_is_cut_in_its_error():
    text = f"a={'[' * 198}"
    with pytest.raises(RecipeError) as error:
        apply_override(recipe_document(), text)
    assert str(error.value).startswith(f"override '{text}': expected"), "200 characters stay"
    with pytest.raises(RecipeError) as error:
        apply_override(recipe_document(), f"{text}[")
    assert str(error.value).startswith(f"override '{text}...': expected")
