"""Documents of YAML: values, their places, and one document over another."""

import pytest
import yaml

from rlinf_core.config import yaml_source
from rlinf_core.config.yaml_source import (
    MAX_DEPTH,
    Document,
    load_plain,
    parse_document,
    read_document,
    resolve_file_reference,
)
from rlinf_core.core.errors import RecipeError

TEXT = """\
name: x
arms:
  left: {speed: 1.5, joints: [1, 2]}
  right:
    speed: 2
empty:
"""


def test_a_document_has_plain_values_and_the_line_of_each():
    document = parse_document(TEXT, "robot r.yaml")
    assert document.data == {
        "name": "x",
        "arms": {"left": {"speed": 1.5, "joints": (1, 2)}, "right": {"speed": 2}},
        "empty": None,
    }
    assert document.places == {
        (): "robot r.yaml",
        ("name",): "robot r.yaml, line 1",
        ("arms",): "robot r.yaml, line 2",
        ("arms", "left"): "robot r.yaml, line 3",
        ("arms", "left", "speed"): "robot r.yaml, line 3",
        ("arms", "left", "joints"): "robot r.yaml, line 3",
        ("arms", "left", "joints", 0): "robot r.yaml, line 3",
        ("arms", "left", "joints", 1): "robot r.yaml, line 3",
        ("arms", "right"): "robot r.yaml, line 4",
        ("arms", "right", "speed"): "robot r.yaml, line 5",
        ("empty",): "robot r.yaml, line 6",
    }
    assert document.prefix == ()


def test_a_value_without_a_place_has_that_of_what_holds_it():
    document = parse_document(TEXT, "r.yaml")
    assert document.place(("arms", "right", "colour", 3)) == "r.yaml, line 4"
    assert document.place(("nothing",)) == "r.yaml" and Document({}).place(("a",)) == ""
    assert Document({}, {("a", "b"): "there"}).place(("a",)) == ""


def test_a_part_of_a_document_knows_where_it_was():
    below = parse_document(TEXT, "r.yaml").below(("arms", "left"))
    assert below.data == {"speed": 1.5, "joints": (1, 2)} and below.prefix == ("arms", "left")
    assert below.places == {
        (): "r.yaml, line 3",
        ("speed",): "r.yaml, line 3",
        ("joints",): "r.yaml, line 3",
        ("joints", 0): "r.yaml, line 3",
        ("joints", 1): "r.yaml, line 3",
    }
    again = parse_document(TEXT, "r.yaml").below(("arms",)).below(("right",))
    assert again.prefix == ("arms", "right") and again.place(("speed",)) == "r.yaml, line 5"
    missing = parse_document(TEXT, "r.yaml").below(("arms", "third"))
    assert (missing.data, missing.place(())) == ({}, "r.yaml, line 2")


def test_a_value_is_set_with_the_mappings_on_its_path_and_the_place_of_its_own():
    document = parse_document(TEXT, "r.yaml")
    document.set(("arms", "left", "joints"), (3,), "override")
    document.set(("name", "first"), "y", "override 2")
    document.set(("new", "a", "b"), 1, "override 3")
    assert document.data == {
        "name": {"first": "y"},
        "arms": {"left": {"speed": 1.5, "joints": (3,)}, "right": {"speed": 2}},
        "empty": None,
        "new": {"a": {"b": 1}},
    }
    assert document.place(("arms", "left", "joints", 1)) == "override"
    assert document.place(("arms", "left", "speed")) == "r.yaml, line 3"
    assert document.place(("name", "first")) == "override 2"
    assert document.place(("new", "a", "b")) == "override 3"
    assert document.place(("new", "a")) == "r.yaml"


def test_one_document_over_another_keeps_what_it_does_not_say():
    under, over = (
        parse_document(TEXT, "base.yaml"),
        parse_document("arms: {left: {speed: 3}, right: 4}", "top.yaml"),
    )
    both = over.over(under)
    assert both.data == {
        "name": "x",
        "arms": {"left": {"speed": 3, "joints": (1, 2)}, "right": 4},
        "empty": None,
    }
    assert both.place(("arms", "left", "speed")) == "top.yaml, line 1"
    assert both.place(("arms", "left", "joints")) == "base.yaml, line 3"
    assert under.data == parse_document(TEXT, "base.yaml").data, "the one below stays"
    assert parse_document("name: {a: 1}", "t").over(under).data["name"] == {"a": 1}


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "r.yaml: expected 'key: value' lines, got nothing"),
        ("[1]", "r.yaml: expected 'key: value' lines, got list"),
        ("3", "r.yaml: expected 'key: value' lines, got int"),
        ("x", "r.yaml: expected 'key: value' lines, got str"),
        ("a: [", "r.yaml: expected readable YAML, got: while parsing a flow node"),
        ("a: 1\nb:\n  c: 1\n  c: 2", "r.yaml, line 4: 'b.c' occurs twice, first in line 3"),
        ("a: 1\na: 2", "r.yaml, line 2: 'a' occurs twice, first in line 1"),
        ("a: 1\n? [b]\n: 2", "r.yaml, line 2: expected a name before the colon, got a seq"),
        ("a: 1\n? {b: 1}\n: 2", "r.yaml, line 2: expected a name before the colon, got a map"),
        ("a:\n - &x 1\n - {b: !!int x}", "r.yaml, line 3: expected a plain value, got: "),
    ],
)
def test_a_text_that_is_no_mapping_of_names_is_refused_with_its_place(text, message):
    with pytest.raises(RecipeError) as error:
        parse_document(text, "r.yaml")
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    "text, value", [("[1, a]", (1, "a")), ("3", 3), ("", None), ("{a: 1}", {"a": 1})]
)
def test_a_text_of_any_type_may_stand_under_a_name(text, value):
    document = parse_document(text, "list.yaml", "items")
    assert document.data == {"items": value}
    assert document.place(("items",)) == ("list.yaml, line 1" if text else "list.yaml")


def test_an_alias_has_the_places_of_its_own_key(tmp_path):
    document = parse_document("a: &a\n  b: 1\nc: *a\n", "r.yaml")
    assert document.data == {"a": {"b": 1}, "c": {"b": 1}}
    assert document.place(("c",)) == "r.yaml, line 3"
    assert document.place(("c", "b")) == "r.yaml, line 2"


def test_a_whole_number_has_at_most_the_size_of_the_largest_float():
    for number in (2**1024 - 1, -(2**1024) + 1):
        assert parse_document(f"a: {number}", "r").data == {"a": number}
    for number in (2**1024, -(2**1024)):
        with pytest.raises(
            RecipeError, match=f"^r, line 1: expected a plain .* int '{number}"[:60]
        ):
            parse_document(f"a: {number}", "r")


def test_a_file_is_read_with_its_kind_in_the_error(tmp_path):
    path = tmp_path / "task.yaml"
    path.write_text("a: 1\n")
    assert read_document(path, "task").data == {"a": 1}
    assert read_document(path, "task").place(("a",)) == f"task {path}, line 1"
    path.write_text("[1]")
    assert read_document(path, "list", "items").data == {"items": (1,)}
    with pytest.raises(RecipeError, match=f"^task {path}: expected 'key: value' lines, got list"):
        read_document(path, "task")
    path.write_bytes(b"a: \xff\n")
    with pytest.raises(
        RecipeError, match=f"^task {path}: expected a readable YAML file, got: 'utf"
    ):
        read_document(path, "task")
    with pytest.raises(
        RecipeError, match=r"^task .*: expected a readable YAML file, got: .*No such"
    ):
        read_document(tmp_path / "none.yaml", "task")


def nested(levels):
    return "[" * levels + "]" * levels


def test_the_bounds_of_depth_and_number_are_inclusive(monkeypatch):
    # the mapping and its value each take one level
    assert parse_document(f"a: {nested(MAX_DEPTH - 1)}", "r").data
    with pytest.raises(RecipeError, match=f"fewer levels of nested brackets: at most {MAX_DEPTH}"):
        parse_document(f"a: {nested(MAX_DEPTH)}", "r")
    monkeypatch.setattr(yaml_source, "MAX_NODES", 20)
    for load in (load_plain, lambda text: parse_document(text, "r").data):
        # the mapping, two keys and the second list are 4, and each use of a is 3
        assert len(load("a: &a [1, 2]\nb: [*a, *a, *a, *a, 1]\n")["b"]) == 5
        for text in ("a: &a [1, 2]\nb: [*a, *a, *a, *a, 1, 2]\n", f"a: [{'1, ' * 18}]"):
            with pytest.raises((yaml.YAMLError, RecipeError), match="with each alias"):
                load(text)
        assert len(load(f"a: [{'1, ' * 17}]")["a"]) == 17


@pytest.mark.parametrize(
    "value, expected",
    [
        ("./mine.py:Pad", "{folder}/mine.py:Pad"),
        ("mine.py", "{folder}/mine.py"),
        ("../mine.py:Pad", "{parent}/mine.py:Pad"),
        ("/a/mine.py:Pad", "/a/mine.py:Pad"),
        ("keyboard", "keyboard"),
        ("package.module:Pad", "package.module:Pad"),
        ("a:b.py", "a:b.py"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "text:"])
def test_a_file_of_ones_own_is_relative_to_the_folder(tmp_path, value, expected, prefix):
    folder = tmp_path / "here"
    folder.mkdir()
    document = Document({"a": {"kind": prefix + value}, "kind": prefix + value})
    expected = prefix + expected.format(folder=folder, parent=tmp_path)
    resolve_file_reference(document, ("a", "kind"), folder, prefix)
    assert document.data == {"a": {"kind": expected}, "kind": prefix + value}
    resolve_file_reference(document, ("kind",), folder, prefix)
    assert document.data["kind"] == expected


@pytest.mark.parametrize("data", [{}, {"a": 3}, {"a": {"kind": 3}}, {"a": {"other": "x.py"}}])
def test_what_is_no_name_of_a_file_stays(data, tmp_path):
    document = Document(dict(data))
    resolve_file_reference(document, ("a", "kind"), tmp_path)
    resolve_file_reference(document, ("a", "b", "kind"), tmp_path)
    assert document.data == data
    other = Document({"a": {"kind": "x.py"}})
    resolve_file_reference(other, ("a", "kind"), tmp_path, "text:")
    assert other.data == {"a": {"kind": "x.py"}}, "without the prefix it is no file"


def test_a_file_below_a_home_that_nobody_has_is_refused_with_key_and_place(tmp_path):
    document = parse_document("name: x\na:\n  kind: ~nobody_x/mine.py:Pad\n", "r.yaml")
    with pytest.raises(RecipeError, match="^r.yaml, line 3: 'a.kind': expected a path in which"):
        resolve_file_reference(document, ("a", "kind"), tmp_path)


def test_plain_values_are_those_of_yaml_up_to_a_size(monkeypatch):
    text = "a: [1, 2.5, x]\nb: {c: true}\n"
    monkeypatch.setattr(yaml_source, "MAX_BYTES", len(text))
    assert load_plain(text) == {"a": [1, 2.5, "x"], "b": {"c": True}}
    with pytest.raises(yaml.YAMLError, match=r"expected at most 28 characters, got 29"):
        load_plain(f"{text} ")
