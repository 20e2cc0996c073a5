"""Settings from classes: every argument has its type, range, default and meaning."""

import json
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError

from rlinf_core.config import checking
from rlinf_core.config.base import (
    Count,
    Discriminated,
    FileFromFolder,
    Name,
    Place,
    Settings,
    constructor_arguments,
    settings_model,
    with_default,
)
from rlinf_core.config.yaml_source import Document, parse_document
from rlinf_core.core.errors import RecipeError


class Arm(Settings):
    """An arm.

    Attributes:
        speed: largest speed [m/s].
    """

    kind: str = "arm"
    speed: float = Field(1.0, gt=0, description="largest speed [m/s]")
    joints: tuple[int, ...] = (1, 2)


class Fingers(Settings):
    width: float = Field(0.08, gt=0, description="opening [m]")
    force: float = Field(20.0, description="force [N]")


class Palm(Settings):
    joints: list[int] = Field(default_factory=lambda: [1, 2])


class Gripper(Settings):
    kind: str = "gripper"
    fingers: Fingers = Fingers()
    others: tuple[Fingers, ...] = ()
    name: str


MODELS = {"arm": Arm, "gripper": Gripper}


def model_of(name):
    if name not in MODELS:
        raise RecipeError(f"kind: expected one of {', '.join(MODELS)}, got '{name}': a mistake")
    return MODELS[name]


class Cell(Settings):
    """A cell.

    Example:
        >>> Cell()
    """

    part: Annotated[Any, Discriminated("kind", model_of, lambda: list(MODELS), "arm")] = Arm()
    spare: Annotated[
        Any | None, Discriminated("kind", model_of, lambda: list(MODELS), optional=True)
    ] = None
    more: dict[
        str, Annotated[Any, Discriminated("kind", model_of, lambda: list(MODELS), "gripper")]
    ] = {}


def error_of(text):
    with pytest.raises(RecipeError) as error:
        checking.validate(Cell, parse_document(text, "cell.yaml"))
    return str(error.value)


def test_settings_are_frozen_and_take_no_other_keys_types_or_infinite_numbers():
    arm = Arm(speed=2.0)
    with pytest.raises(ValidationError, match="frozen"):
        arm.speed = 3.0
    for changes in ({"spede": 1.0}, {"speed": "1"}, {"speed": float("inf")}, {"speed": 0.0}):
        with pytest.raises(ValidationError):
            Arm(**changes)
    assert arm.but(joints=(3,)) == Arm(speed=2.0, joints=(3,)) and arm == Arm(speed=2.0)
    with pytest.raises(ValidationError, match="greater than 0"):
        arm.but(speed=-1.0)


def test_a_document_of_json_has_lists_for_tuples_and_whole_numbers_for_floats():
    assert Arm.from_document({"speed": 2, "joints": [4, 5]}) == Arm(speed=2.0, joints=(4, 5))
    with pytest.raises(ValidationError, match="valid integer"):
        Arm.from_document({"joints": [0.5]})


def test_a_field_with_another_default_keeps_its_range_and_meaning_and_the_parent_its_default():
    class Slow(Arm):
        speed: float = with_default(Arm, "speed", 0.1)

    assert (Slow().speed, Arm().speed) == (0.1, 1.0)
    assert Slow.model_fields["speed"].description == "largest speed [m/s]"
    with pytest.raises(ValidationError, match="greater than 0"):
        Slow(speed=0.0)


@pytest.mark.parametrize(
    "kind, good, bad",
    [
        (Name, ["a", "Arm_2", "a" * 64], ["", "2a", "a b", "a/b", "a" * 65]),
        (Count, [1, 7], [0, -1, 1.0]),
        (FileFromFolder, ["a", "./b"], [""]),
    ],
)
def test_names_counts_and_files(kind, good, bad):
    class Holder(Settings):
        value: kind

    assert [Holder(value=value).value for value in good] == good
    for value in bad:
        with pytest.raises(ValidationError):
            Holder(value=value)


def test_a_home_stands_for_the_tilde_at_the_beginning_alone(monkeypatch, tmp_path):
    class Holder(Settings):
        place: Place = ""

    monkeypatch.setenv("HOME", str(tmp_path))
    places = {"~/a": f"{tmp_path}/a", "a/~": "a/~", "": "", "./a/": "./a/"}
    assert {place: Holder(place=place).place for place in places} == places
    with pytest.raises(ValidationError, match="expected a path in which ~name is the home of"):
        Holder(place="~nobody_x/a")


@pytest.mark.parametrize(
    "text, part, spare",
    [
        ("spare:", Arm(), None),
        ("part: {}", Arm(), None),
        ("part: {speed: 3}", Arm(speed=3.0), None),
        ("part: {kind: gripper, name: a}", Gripper(name="a"), None),
        ("spare: {kind: arm, joints: [3]}", Arm(), Arm(joints=(3,))),
    ],
)
def test_the_key_selects_the_model(text, part, spare):
    assert checking.validate(Cell, parse_document(text, "cell.yaml")) == Cell(
        part=part, spare=spare
    )


def test_parts_by_name_are_selected_each_by_its_own_key():
    text = "more: {a: {name: x}, b: {kind: arm, speed: 2}}"
    cell = checking.validate(Cell, parse_document(text, "cell.yaml"))
    assert cell.more == {"a": Gripper(name="x"), "b": Arm(speed=2.0)}


@pytest.mark.parametrize("annotation, may_be_none", [(Any, False), (Any | None, True)])
def test_a_field_may_be_empty_if_its_type_says_so(annotation, may_be_none):
    class Holder(Settings):
        part: Annotated[annotation, Discriminated("kind", model_of, lambda: list(MODELS), "arm")]

    assert Holder(part={"speed": 2.0}).part == Arm(speed=2.0)
    assert Holder.from_document({"part": {"speed": 2, "joints": [3]}}).part.joints == (3,)
    for value in (None, 3, [1]):
        if value is None and may_be_none:
            assert Holder(part=None).part is None
            continue
        with pytest.raises(ValidationError, match="expected a mapping") as error:
            Holder(part=value)
        assert error.value.errors()[0]["type"] == "model_type", "as of any other settings"


def test_json_selects_the_model_too_and_an_instance_stays():
    document = {"part": {"speed": 3, "joints": [5]}, "spare": {"kind": "gripper", "name": "b"}}
    cell = Cell.from_document(document)
    assert cell == Cell(part=Arm(speed=3.0, joints=(5,)), spare=Gripper(name="b"))
    assert Cell(part=cell.part).part is cell.part


@pytest.mark.parametrize(
    "text, message",
    [
        ("spare: {}", "line 1: 'spare.kind': expected one of arm, gripper, got nothing"),
        ("spare: {speed: 1.0}", "'spare.kind': expected one of arm, gripper, got nothing"),
        ("\npart: {kind: 3}", "line 2: 'part.kind': expected one of arm, gripper, got 3"),
        ("part: {kind: leg}", "'part.kind': expected one of arm, gripper, got 'leg': a mistake"),
        ("part: 3", "'part': expected a mapping, got int 3"),
        ("part:", "'part': expected a mapping, got nothing"),
        ("part: {spede: 1}", "unknown key 'part.spede' (did you mean 'speed'?); known here: "),
        ("part: {spede: 1}", "known here: joints, kind, speed"),
        (
            "more: {a: {name: x, nam: 1}}",
            "unknown key 'more.a.nam' (did you mean 'name'?); known here: fingers, kind, name, oth",
        ),
        ("more: {a: {kind: arm, nam: 1}}", "'more.a.nam'; known here: joints, kind, speed"),
        ("more: {a: {kind: leg}}", "'more.a.kind': expected one of arm, gripper, got 'leg'"),
        ("more: {a: {}}", "'more.a.name' is missing"),
        (
            "part: {kind: gripper, name: x, others: [{}, {widht: 1}]}",
            "'part.others[1].widht' (did you mean 'width'?); known here: force, width",
        ),
        (
            "spare: {kind: gripper, name: x, fingers: {widht: 1}}",
            "'spare.fingers.widht' (did you mean 'width'?); known here: force, width",
        ),
    ],
)
def test_an_unknown_selection_names_its_key_and_the_choices(text, message):
    assert message in error_of(text) and error_of(text).startswith("cell.yaml, line ")


def test_the_json_schema_has_a_variant_for_each_name():
    properties = checking.json_schema(Cell)["properties"]
    arm, gripper = properties["part"]["anyOf"]
    assert arm["properties"]["kind"] == {"const": "arm"} and arm["required"] == []
    assert list(arm["properties"]) == ["kind", "speed", "joints"]
    assert gripper["properties"]["kind"] == {"const": "gripper"}
    assert gripper["required"] == ["kind", "name"]
    assert gripper["properties"]["fingers"]["properties"]["width"]["exclusiveMinimum"] == 0
    assert gripper["properties"]["others"]["items"]["properties"]["force"]["default"] == 20.0
    *variants, empty = properties["spare"]["anyOf"]
    assert [variant["required"] for variant in variants] == [["kind"], ["kind", "name"]]
    assert empty == {"type": "null"}, "as a run's own recipe writes it"
    text = json.dumps(properties)
    assert "$ref" not in text and "$defs" not in text


class Base:
    """A base.

    Args:
        gain: gain of the loop,
            without a unit.
        low, high: bounds [m]
    """

    def __init__(
        self, *, gain: Annotated[float, Field(gt=0)], low: float = -1.0, high: float = 1.0
    ) -> None:
        self.gain, self.low, self.high = gain, low, high


class Derived(Base):
    def __init__(self, mode: Literal["a", "b"], seed: int = 3, *_: int, **others: Any) -> None:
        """Settings.

        Args:
            mode: how it works.
            seed: seed of the noise.
        """
        super().__init__(**others)
        self.mode, self.seed = mode, seed


class Closed(Derived):
    """Takes nothing else: the arguments of its bases are its own matter."""

    def __init__(self, size: int = 2) -> None:
        super().__init__("a", gain=1.0)
        self.size = size


class Untyped:
    def __init__(self, value, other=3):
        self.value, self.other = value, other


def fields_of(model):
    return {
        name: (item.is_required() or item.default, item.description)
        for name, item in model.model_fields.items()
    }


def test_arguments_of_a_class_and_of_the_bases_that_it_passes_them_to_are_its_settings():
    assert fields_of(settings_model(Derived)) == {
        "mode": (True, "how it works"),
        "seed": (3, "seed of the noise"),
        "gain": (True, "gain of the loop, without a unit"),
        "low": (-1.0, "bounds [m]"),
        "high": (1.0, "bounds [m]"),
    }
    assert fields_of(settings_model(Closed)) == {"size": (2, None)}
    assert settings_model(Untyped)(value="a", other=[1]).other == [1], "of any type"
    model = settings_model(Derived, ("seed",), "kind")
    assert model.__name__ == "Derived" and list(model.model_fields) == [
        "kind",
        "mode",
        "gain",
        "low",
        "high",
    ]
    assert fields_of(model)["kind"] == (True, "kind, which selects the other keys")
    settings = model(kind="derived", mode="b", gain=2.0)
    assert constructor_arguments(settings, "kind") == {
        "mode": "b",
        "gain": 2.0,
        "low": -1.0,
        "high": 1.0,
    }
    assert constructor_arguments(settings) == {"kind": "derived"} | constructor_arguments(
        settings, "kind"
    )
    derived = Derived(**constructor_arguments(settings, "kind"))
    assert (derived.mode, derived.seed, derived.gain) == ("b", 3, 2.0)
    for wrong in ({"mode": "c"}, {"gain": 0.0}, {"seed": 1}):
        with pytest.raises(ValidationError):
            model(**({"kind": "derived", "mode": "b", "gain": 2.0} | wrong))


def test_fields_of_a_settings_class_are_its_settings():
    model = settings_model(Fingers)
    assert fields_of(model) == {"width": (0.08, None), "force": (20.0, None)}
    with pytest.raises(ValidationError, match="greater than 0"):
        model(width=0.0)
    assert fields_of(settings_model(Gripper))["name"] == (True, None)
    assert fields_of(settings_model(Palm)) == {"joints": ([1, 2], None)}
    assert fields_of(settings_model(Arm))["speed"] == (1.0, "largest speed [m/s]")


def test_a_nodes_parameters_are_checked_with_all_faults_after_their_source():
    good = checking.validate_parameters(Arm, {"speed": 2, "joints": [1]}, "node 'arm'")
    assert good == Arm(speed=2.0, joints=(1,))
    with pytest.raises(RecipeError) as error:
        checking.validate_parameters(Arm, {"speed": 0, "jonts": [1]}, "node 'arm'")
    assert str(error.value).splitlines() == [
        "node 'arm': 'speed': expected above 0, got int 0",
        "node 'arm': unknown key 'jonts' (did you mean 'joints'?); known here: joints, kind, speed",
    ]


def test_a_document_below_another_key_names_the_full_keys():
    document = parse_document("cell:\n  part:\n    spede: 1\n", "line.yaml").below(("cell",))
    with pytest.raises(RecipeError, match="^line.yaml, line 3: unknown key 'cell.part.spede' "):
        checking.validate(Cell, document)
    assert Document({"a": 1}).below(("b",)).data == {}
