"""Recordings, policies and runs of the version before the packages moved stay readable
(tests/previous_version).
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

from rlinf_core.cli.main import main
from rlinf_core.core.errors import RecipeError
from rlinf_core.core.renames import COMMANDS, RECIPE_KEYS, current_key
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.validate import check_episode
from rlinf_core.policies.base import Observation
from rlinf_core.policies.serialization import load_policy
from rlinf_core.recipes import load_recipe, station_robot, station_task
from rlinf_core.trainer.checkpoint import load_newest
from rlinf_core.trainer.train import train

FILES = Path(__file__).parent / "previous_version"
SPEC = station_task(load_recipe("demo")).spec


@pytest.mark.parametrize(
    "file",
    sorted(FILES.glob("policies/*.safetensors")) + sorted(FILES.glob("run/policies/*")),
    ids=lambda path: path.stem,
)
def test_a_policy_of_the_previous_version_plays(file):
    """The actions equal those that the previous version computed (actions.json)."""
    torch.manual_seed(0)
    observation = Observation(torch.linspace(-1, 1, SPEC.vector_size).repeat(2, 1))
    actions = load_policy(file, SPEC).act(observation, explore=False).actions.flatten()[:6]
    assert actions.tolist() == pytest.approx(
        json.loads((FILES / "actions.json").read_text())[file.stem], abs=1e-5
    )


def test_a_recording_of_the_previous_version_is_whole_and_can_be_learned_from(tmp_path):
    shutil.copytree(FILES / "station_a-1", tmp_path / "station_a-1")
    episode = read_episode(tmp_path / "station_a-1", sealed=True)
    check_episode(episode, SPEC, 1000)
    assert (len(episode), episode.success, episode.station) == (5, True, "a")


def test_a_checkpoint_of_the_previous_version_is_loaded():
    state = load_newest(FILES / "run/checkpoints")
    assert state["learner"]["updates"] == 160 and state["data"]["steps"] == 120


def test_a_run_of_the_previous_version_goes_on(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(FILES / "run", run)
    recipe = load_recipe(str(run / "recipe.yaml"), ["simulation.env_steps=124"])
    train(recipe, run)
    assert load_newest(run / "checkpoints")["data"]["steps"] >= 124


# checked with the robot
OPTIONS = {key for key in RECIPE_KEYS if key.startswith("station.options.")}


@pytest.mark.parametrize("old", sorted(RECIPE_KEYS.keys() - OPTIONS))
def test_a_key_of_the_previous_version_is_refused_with_its_new_name(old, tmp_path):
    *sections, key = old.split(".")
    text = f"{{{key}: 1}}"
    for section in reversed(sections):
        text = f"{{{section}: {text}}}"
    if old.startswith("policy.flow."):
        text = f"{{policy: {{kind: latent_noise, flow: {{kind: flow, {key}: 1}}}}}}"
    path = tmp_path / "recipe.yaml"
    path.write_text(f"defaults: demo\n{text[1:-1]}\n")
    with pytest.raises(RecipeError) as error:
        load_recipe(path)
    assert f"{path}, line 2: '{old}'" in str(
        error.value
    ) and f"Write {RECIPE_KEYS[old]} instead" in str(error.value)
    with pytest.raises(
        RecipeError, match=f"override '{old}=1': '{old}' .*Write {RECIPE_KEYS[old]} instead"
    ):
        load_recipe(
            "demo",
            [
                *(["policy={kind: latent_noise, flow: {kind: flow}}"] if "flow" in old else []),
                f"{old}=1",
            ],
        )
    with pytest.raises(RecipeError, match=f"'{old}' .*Write ~{RECIPE_KEYS[old]} instead"):
        load_recipe("demo", [f"~{old}"])


@pytest.mark.parametrize("old", sorted(OPTIONS))
def test_an_option_of_the_previous_version_is_refused_with_its_new_name(old):
    recipe = load_recipe("demo", ["station.robot=franka_marks_sim", f"{old}=[0.05,0.1]"])
    names = [key.removeprefix("station.options.") for key in (old, RECIPE_KEYS[old])]
    with pytest.raises(RecipeError, match=f"'{names[0]}' has a new name. Write {names[1]} instead"):
        station_robot(recipe)


def test_a_key_below_a_renamed_one_is_refused_with_its_new_name():
    assert current_key(("station", "beside", "kind")) == ("station", "second_operator", "kind")
    with pytest.raises(
        RecipeError, match="'station.beside' .*Write station.second_operator instead"
    ):
        load_recipe("demo", ["station.beside.kind=pedal"])


def test_every_new_name_is_a_key_of_today():
    pages = (Path(__file__).parent.parent / "docs/reference").glob("*.md")
    reference = "".join(page.read_text() for page in pages)
    keys = [
        key
        for key in RECIPE_KEYS.values()
        if not key.startswith(("station.options.", "policy.flow."))
    ]
    missing = {key for key in keys if f"`{key}`" not in reference}
    assert missing <= {"station.second_operator"} and "station.second_operator.kind" in reference


@pytest.mark.parametrize("old", COMMANDS)
def test_a_command_of_the_previous_version_is_refused_with_its_new_name(old, capsys):
    with pytest.raises(SystemExit) as end:
        main(old.split())
    assert end.value.code == 2 and f"`rlinf {COMMANDS[old]}`" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        main([COMMANDS[old], "--help"])
    assert end.value.code == 0
