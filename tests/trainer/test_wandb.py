"""Curves go to Weights & Biases beside TensorBoard, where the recipe names a project."""

import sys
from types import SimpleNamespace

import pytest

from rlinf_core.core import extras
from rlinf_core.core.errors import RlinfError
from rlinf_core.recipes import load_recipe
from rlinf_core.trainer.progress import Progress
from rlinf_core.trainer.run import Run


class Board:
    """Stands for the package ``wandb`` and its run."""

    def __init__(self):
        self.settings, self.lines = {}, []

    def init(self, **settings):
        self.settings = settings
        return self

    def define_metric(self, name, step_metric):
        self.axis = (name, step_metric)

    def log(self, values):
        self.lines.append(values)


@pytest.fixture
def board(monkeypatch):
    board = Board()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=board.init))
    monkeypatch.setattr(extras, "require", lambda extra, what: None)
    return board


def test_the_same_curves_go_there_by_environment_steps_and_a_resumed_run_goes_on(board, tmp_path):
    progress = Progress(tmp_path, "arms", {"seed": 3})
    progress.note({"loss": 0.5}, 1)
    progress.write(100, {"episodes": 4.0})
    progress.write_evaluation({"env_steps": 120.0, "success": 0.75, "episodes": 4})
    assert board.lines[0] == {"train/loss": 0.5, "data/episodes": 4.0, "env_steps": 100}
    assert board.lines[1]["eval/success"] == 0.75 and board.lines[1]["env_steps"] == 120
    assert board.settings["project"] == "arms" and board.settings["config"] == {"seed": 3}
    assert board.settings["dir"] == str(tmp_path) and board.settings["resume"] == "allow"
    first = board.settings["id"]
    Progress(tmp_path, "arms")
    assert board.settings["id"] == first and board.axis == ("*", "env_steps")
    progress.close()


def test_without_a_project_nothing_goes_there_and_a_missing_package_is_named(
    board, tmp_path, monkeypatch
):
    progress = Progress(tmp_path)
    progress.write(1, {})
    progress.close()
    assert board.settings == {} and board.lines == []
    monkeypatch.undo()
    monkeypatch.setattr(extras, "missing", lambda extra: ["wandb>=0.21"])
    with pytest.raises(RlinfError, match="recipe key wandb: expected the extra 'wandb'"):
        Progress(tmp_path, "arms")


def test_a_runs_recipe_goes_there_with_its_curves(board, task, tmp_path):
    recipe = load_recipe("demo", ["wandb=arms", "seed=7", "policy.hidden=[8]"])
    run = Run(recipe, tmp_path, task.spec, lambda run, entry: None)
    run.progress.close()
    assert board.settings["project"] == "arms" and board.settings["dir"] == str(tmp_path)
    config = board.settings["config"]
    assert config["seed"] == 7 and config["policy"]["hidden"] == [8]
    assert config["algorithm"]["name"] == recipe.algorithm.name
    board.settings = {}
    Run(recipe.but(wandb=""), tmp_path, task.spec, lambda run, entry: None).progress.close()
    assert board.settings == {}
