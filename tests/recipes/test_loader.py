"""Recipes from files: those below them, the paths in them, and what a run has written."""

import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from rlinf_core.config.checking import json_schema
from rlinf_core.core.errors import RecipeError
from rlinf_core.recipes import load_recipe, recipe_yaml
from rlinf_core.recipes.loader import is_written_by_run, recipe_names
from rlinf_core.recipes.schema import Recipe


def test_the_shipped_recipes_are_those_of_configs_and_its_simulators():
    names = recipe_names()
    assert names == sorted(names) and {"demo", "sim_sac", "simulators/maniskill_pick"} <= set(names)
    assert not [name for name in names if "drill" in name or name.endswith(".yaml")]
    assert len(names) == len(set(names)) >= 60
    assert load_recipe("simulators/maniskill_pick").name


def test_a_name_without_a_recipe_is_answered_with_all_and_the_nearest(tmp_path):
    with pytest.raises(RecipeError) as error:
        load_recipe("sim_sacc")
    assert str(error.value).startswith("recipe 'sim_sacc': expected a file or one of demo, demo_hg")
    assert ", sim_sac, sim_sac_flow, " in str(error.value)
    assert str(error.value).endswith(" (did you mean 'sim_sac'?)")
    with pytest.raises(RecipeError, match=f"^recipe '{tmp_path}': expected a file"):
        load_recipe(tmp_path)


def test_a_file_in_the_working_folder_comes_before_a_shipped_recipe(tmp_path, monkeypatch):
    (tmp_path / "demo").write_text("name: mine\n")
    monkeypatch.chdir(tmp_path)
    assert load_recipe("demo").name == "mine" and load_recipe("sim_sac").name != "mine"


def files(tmp_path, **texts):
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path / f"{next(iter(texts))}.yaml"


def test_a_recipe_has_the_values_of_the_one_below_it_which_lies_beside_it_or_is_shipped(tmp_path):
    path = files(
        tmp_path,
        top="defaults: middle\nname: top\ncollect: {episodes: 3}\n",
        middle="defaults: sim_sac\nseed: 7\ncollect: {episodes: 2, first_seed: 5}\n",
    )
    recipe, shipped = load_recipe(path), load_recipe("sim_sac")
    assert (recipe.name, recipe.seed) == ("top", 7)
    assert (recipe.collect.episodes, recipe.collect.first_seed) == (3, 5)
    assert recipe.algorithm == shipped.algorithm and recipe.station == shipped.station
    files(tmp_path, sim_sac="name: near\nseed: 8\nalgorithm: {name: crossq}\n")
    files(tmp_path, middle="defaults: sim_sac\n")
    recipe = load_recipe(path)
    assert (recipe.seed, recipe.algorithm.name) == (8, "crossq"), "the one beside it comes first"


@pytest.mark.parametrize("first", ["top", "middle", "bottom"])
def test_a_circle_of_any_length_is_refused(tmp_path, first):
    files(
        tmp_path, top="defaults: middle\n", middle="defaults: bottom\n", bottom="defaults: middle\n"
    )
    with pytest.raises(RecipeError, match="expected 'defaults' without a circle, got a circle"):
        load_recipe(tmp_path / f"{first}.yaml")


@pytest.mark.parametrize(
    "below, above, name, discount",
    [
        ("{name: sac, discount: 0.5}", "{name: crossq}", "crossq", 0.99),
        ("{name: sac, discount: 0.5}", "{name: sac, n_step: 2}", "sac", 0.5),
        ("{name: sac, discount: 0.5}", "{n_step: 2}", "sac", 0.5),
        ("{discount: 0.5}", "{name: rlpd}", "rlpd", 0.5),  # which is the default
        ("{discount: 0.5}", "{name: sac}", "sac", 0.99),
        ("{discount: 0.5}", "{n_step: 2}", "rlpd", 0.5),
    ],
)
def test_hyper_parameters_come_from_below_for_the_same_algorithm_alone(
    tmp_path, below, above, name, discount
):
    path = files(
        tmp_path,
        top=f"defaults: base\nname: a\nalgorithm: {above}\n",
        base=f"algorithm: {below}\n",
    )
    algorithm = load_recipe(path).algorithm
    assert (algorithm.name, algorithm.discount) == (name, discount)


def test_an_algorithm_that_is_no_mapping_is_refused_with_its_place(tmp_path):
    path = files(tmp_path, top="defaults: base\nname: a\nalgorithm: sac\n", base="algorithm: {}\n")
    with pytest.raises(RecipeError, match="top.yaml, line 3: 'algorithm': expected a mapping, got"):
        load_recipe(path)
    assert load_recipe(path, ["algorithm.name=sac"]).algorithm.name == "sac"
    files(tmp_path, top="defaults: base\nname: a\nalgorithm: {name: sac}\n", base="algorithm: 3\n")
    assert load_recipe(path).algorithm.name == "sac"


@pytest.mark.parametrize("sign", ["", "+", "++"])
def test_an_override_of_the_algorithms_name_keeps_none_of_the_others_numbers(tmp_path, sign):
    path = files(tmp_path, top="name: a\nalgorithm: {discount: 0.5, critic_warmup: 7}\n")
    if sign == "+":
        path.write_text("name: a\n")
    other = load_recipe(path, [f"{sign}algorithm.name=sac"]).algorithm
    assert (other.name, other.discount) == ("sac", 0.99)
    same = load_recipe(path, [f"{sign}algorithm.name=rlpd"]).algorithm
    assert same == load_recipe(path).algorithm and (same.discount == 0.5) == (sign != "+")


def test_placement_auto_is_a_mapping_to_which_other_keys_come(tmp_path):
    path = files(tmp_path, top="defaults: base\nname: a\nplacement: {learners: 2}\n", base="")
    files(tmp_path, base="placement: auto\n")
    assert (load_recipe(path).placement.auto, load_recipe(path).placement.learners) == (True, 2)
    for overrides in (
        ["placement=auto", "placement.workers=3"],
        ["placement={auto: true}", "placement.workers=3"],
    ):
        placement = load_recipe("sim_ppo", overrides).placement
        assert (placement.auto, placement.workers, placement.fixed) == (True, 3, ("workers",))


@pytest.mark.parametrize(
    "text, at",
    [
        ("station: {{robot: {}}}", "station.robot"),
        ("station: {{task: {}}}", "station.task"),
        (
            "embodiments: {{a: {{robot: {}, task: t}}, b: {{robot: r, task: s}}}}",
            "embodiments.a.robot",
        ),
        (
            "embodiments: {{a: {{robot: r, task: {}}}, b: {{robot: r, task: s}}}}",
            "embodiments.a.task",
        ),
    ],
)
@pytest.mark.parametrize("name", ["./mine", "../mine", "mine", "/there/mine", ".mine"])
def test_a_robot_or_task_with_dots_is_relative_to_its_file(tmp_path, monkeypatch, text, at, name):
    folder = tmp_path / "recipes"
    folder.mkdir()
    path = files(folder, top="name: a\n" + text.format(name) + "\n")
    monkeypatch.chdir("/")
    values = load_recipe(path).model_dump()
    for part in at.split("."):
        values = values[part]
    expected = {"./mine": f"{folder}/mine", "../mine": f"{tmp_path}/mine"}
    assert values == expected.get(name, name)


@pytest.mark.parametrize("part", ["operator", "second_operator"])
def test_an_operator_of_ones_own_lies_beside_the_recipe(tmp_path, monkeypatch, part):
    (tmp_path / "pad.py").write_text(
        "from rlinf_core.robots.operators.keyboard import Keyboard as Pad\n"
    )
    path = files(tmp_path, top=f"name: a\nstation: {{{part}: {{kind: 'pad.py:Pad'}}}}\n")
    monkeypatch.chdir("/")
    assert getattr(load_recipe(path).station, part).kind == f"{tmp_path}/pad.py:Pad"


def test_the_recipe_of_a_run_is_known_as_such_until_somebody_changes_it(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe_yaml(load_recipe("sim_sac")))
    assert is_written_by_run(path)
    text = path.read_text()
    for other in (
        "# a word\n" + text,
        text.replace("name:", "name: ", 1),
        re.sub("^seed: .*\n", "", text, flags=re.M),
        "[1]\n",
        "a: [\n",
        "",
    ):
        path.write_text(other)
        assert not is_written_by_run(path), other[:50]
    path.write_bytes(b"\xff")
    assert not is_written_by_run(path)


def test_the_recipe_of_an_older_run_has_todays_names_and_another_file_does_not(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe_yaml(load_recipe("sim_sac", ["online.request_episodes=7"])))
    old = path.read_text().replace("request_episodes:", "slice_episodes:")
    path.write_text(yaml.safe_dump(yaml.safe_load(old), sort_keys=False))
    assert load_recipe(path).online.request_episodes == 7
    with pytest.raises(
        RecipeError,
        match=rf"^recipe {path}, line \d+: 'online.request_episodes': expected above 0, got int 0",
    ):
        path.write_text(old.replace("slice_episodes: 7", "slice_episodes: 0"))
        load_recipe(path)
    path.write_text("# by hand\n" + old)
    with pytest.raises(
        RecipeError,
        match="'online.slice_episodes' has a new name. Write online.request_episodes instead",
    ):
        load_recipe(path)


def test_a_written_recipe_has_every_key_in_order_and_fits_the_schema_for_editors():
    recipe = load_recipe("demo_vision")
    document = yaml.safe_load(recipe_yaml(recipe))
    assert list(document) == list(Recipe.model_fields)
    assert document["station"]["observe_cameras"] == list(recipe.station.observe_cameras)
    assert document["station"]["second_operator"] is None
    jsonschema.Draft202012Validator(json_schema(Recipe)).validate(document)


def test_scenes_of_runs_and_evaluations_do_not_meet():
    recipe = load_recipe("sim_sac")
    assert recipe.scene(10_000) == 10_000
    first, second = (recipe.but(seed=seed).scene(10_000) for seed in (1, 2))
    assert (first, second) == (
        10_000 + 2_000_000 + 2_654_435_761 % 2**31,
        10_000 + 2_000_000 + 2 * 2_654_435_761 % 2**31,
    )
    assert recipe.but(seed=2**31 - 1).scene(0) < 2_000_000 + 2**31


@pytest.mark.parametrize(
    "path, resolved_path", [("a/b", "a/b"), ("./a", "{cwd}/a"), ("../a", "{above}/a")]
)
def test_an_overrides_path_is_relative_to_the_working_folder(
    tmp_path, monkeypatch, path, resolved_path
):
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe("demo", [f"station.robot={path}"])
    assert recipe.station.robot == resolved_path.format(cwd=Path.cwd(), above=Path.cwd().parent)
