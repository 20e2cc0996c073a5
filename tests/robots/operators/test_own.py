"""A device of one's own: a file beside the recipe, as the page shows it."""

import re
from pathlib import Path

import pytest

from rlinf_core.core.errors import RecipeError
from rlinf_core.recipes import load_recipe
from rlinf_core.robots.operators import make_device

PAGE = Path("docs/howto/teleop.md").read_text()


@pytest.fixture
def folder(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    (tmp_path / "my_device.py").write_text(code)
    return tmp_path


def recipe(folder, operator):
    (folder / "r.yaml").write_text(f"defaults: demo\nname: x\nstation:\n  operator: {operator}\n")
    return load_recipe(folder / "r.yaml")


def test_the_device_of_the_page_is_found_beside_its_recipe_and_has_its_settings(folder):
    device = make_device(
        recipe(folder, "{kind: my_device.py:Knob, gain: 0.2}").station.operator.model_dump(
            mode="json"
        )
    )
    device.turn = 0.5
    assert (
        device.motion() == {"z": pytest.approx(0.1)}
        and device.poll() == ("enable",)
        and not device.at_rest()
    )


@pytest.mark.parametrize(
    "operator, expected",
    [
        (
            "{kind: my_device.py:Knob, gian: 0.2}",
            "r.yaml, line 4: unknown key 'station.operator.gian' (did you mean 'gain'?)",
        ),
        ("{kind: my_device.py:Nob}", "has no 'Nob' (did you mean 'Knob'?)"),
        ("{kind: other.py:Knob}", "expected an importable module"),
    ],
)
def test_what_is_wrong_with_it_is_said_with_its_line(folder, operator, expected):
    with pytest.raises(RecipeError) as error:
        recipe(folder, operator)
    assert expected in str(error.value) and "line" in str(error.value)


def test_the_recipe_of_the_page_is_one(tmp_path):
    (tmp_path / "recipe.yaml").write_text(re.findall(r"```yaml\n(.*?)```", PAGE, re.S)[0])
    station = load_recipe(tmp_path / "recipe.yaml").station
    assert (station.operator.clutch, station.second_operator.buttons["b"]) == ("1", "rerecord")
    leader = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)[1]
    (tmp_path / "leader.yaml").write_text(
        "defaults: demo\nname: x\nstation:\n  " + leader.replace("\n", "\n  ")
    )
    device = make_device(
        load_recipe(tmp_path / "leader.yaml").station.operator.model_dump(mode="json")
    )
    assert device.ids == [1, 2, 3]
