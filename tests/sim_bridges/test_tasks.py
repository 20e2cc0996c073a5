"""Tasks by the simulators' own names and measures: each can be shown by its script."""

from dataclasses import replace

import numpy as np
import pytest

from rlinf_core.core.errors import RecipeError
from rlinf_core.recipes import check_recipe, load_recipe
from rlinf_core.recipes.loader import recipe_names
from rlinf_core.specs.arrays import ActionSpec
from rlinf_core.tasks.rewards.geometry import Push, Reach, Stack
from rlinf_core.tasks.task import load_task
from sim_bridges.core.station import simulated_station
from sim_bridges.scripted import PushOperator

LEARNED = [name for name in recipe_names() if name.startswith("simulators/")]
ACTION = ActionSpec("tcp_delta", ("dx", "dy", "dz", "grip"), (0.03, 0.03, 0.03, 0.04), ("m",) * 4)


@pytest.mark.parametrize("name", LEARNED)
def test_the_script_does_what_the_simulator_calls_done(name):
    station = simulated_station(load_recipe(name))
    done = []
    for scene in (3, 4):
        station.reset(scene)
        assert not station.step(np.zeros(station.task.spec.action.dim))[1].success, (
            "not without a hand being moved"
        )
        for _ in range(station.task.max_steps - 1):
            _, result = station.step(station.expert())
            if result.last:
                break
        done.append(result.success)
        if "task/success" in station.channels:
            assert station.channels["task/success"][0] == float(station.simulator.succeeded())
    assert any(done)


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["station.options={task: PushCub-v1}"], ""),
        (
            ["station.options={tusk: PushCube-v1}"],
            "station.options: unknown key 'tusk' (did you mean 'task'?)",
        ),
        (["station.options={task: 3}"], "expected a text, got int 3"),
        (
            ["station.robot=franka_fr3", "station.options={task: a}", "env=''"],
            "station.options: expected none for a real robot, got task",
        ),
    ],
)
def test_a_recipe_says_other_options_than_its_robot(overrides, message):
    recipe = load_recipe("sim_task", overrides)
    if message:
        with pytest.raises(RecipeError) as error:
            check_recipe(recipe)
        assert message in str(error.value)
    else:
        check_recipe(recipe)
        with pytest.raises(RecipeError, match="did you mean 'PushCube-v1'"):
            simulated_station(recipe)


def places(tool=(0, 0, 0), thing=(0, 0, 0), goal=(0, 0, 0)):
    return {
        f"{name}_pose": np.array([*at, 0, 0, 0, 1], float)
        for name, at in (("current", tool), ("object", thing), ("goal", goal))
    }


def test_done_is_told_by_where_things_are():
    push, high = Push(radius=0.05), Push(radius=0.05, flat=False)
    assert push(places(thing=(0.03, 0.0, 0.2))) and not high(places(thing=(0.03, 0.0, 0.2)))
    assert not push(places(thing=(0.04, 0.04, 0.0))) and high(places(thing=(0.0, 0.0, 0.04)))
    nearer = [
        push.progress(places(tool, thing, (0.3, 0, 0)))
        for tool, thing in (
            ((-0.3, 0, 0), (0, 0, 0)),
            ((0, 0, 0), (0, 0, 0)),
            ((0.1, 0, 0), (0.1, 0, 0)),
            ((0.3, 0, 0), (0.3, 0, 0)),
        )
    ]
    assert nearer == sorted(nearer) and nearer[-1] == 4.0
    assert nearer[0] == pytest.approx(4 - np.tanh(1.5) - 3 * np.tanh(1.5))
    stack = Stack(height=0.04, radius=0.03, slack=0.008, clear=0.05)
    on = places(tool=(0, 0, 0.1), thing=(0.02, 0.0, 0.045))
    assert stack(on) and not stack(on | places(tool=(0.02, 0.0, 0.07), thing=(0.02, 0.0, 0.045)))
    assert not stack(places(tool=(0, 0, 0.2), thing=(0.0, 0.0, 0.05)))
    assert not stack(places(tool=(0, 0, 0.2), thing=(0.04, 0.0, 0.04)))
    reach = Reach(to="goal", height=0.0, radius=0.02)
    assert reach.channels == ("current_pose", "goal_pose") and Reach().channels == (
        "current_pose",
        "object_pose",
    )
    assert reach(places(goal=(0.01, 0, 0), thing=(1, 0, 0))) and not reach(
        places(goal=(0.03, 0, 0))
    )


@pytest.mark.parametrize(
    "goal, how",
    [
        ((0.2, 0.0, 0.0), {}),
        ((-0.2, 0.05, 0.0), {}),
        ((0.0, 0.2, 0.0), {"behind": 0.05}),
        ((0.02, -0.2, 0.03), {"flat": True}),
        ((0.0, 0.0, -0.1), {"above": 0.05}),
    ],
)
def test_it_pushes_from_the_side_that_is_away_from_the_goal(goal, how):
    """An object that a tool within 3 cm of it takes along, in a world without inertia."""
    goal, tool, thing = np.array(goal), np.array([0.05, 0.06, 0.05]), np.zeros(3)
    script, heights = PushOperator(ACTION, noise=0.05, pause=0.05, seed=1, **how), []
    begun = False
    for _ in range(80):
        action = script.act(places(tool, thing, goal))
        assert action.shape == (4,) and np.abs(action).max() <= 1.0 and action[3] == -1.0
        moved = 0.03 * action[:3]
        tool, offset = tool + moved, thing - tool
        heights.append(tool[2] - thing[2])
        if np.linalg.norm(offset) < 0.03 and offset @ moved > 0.0:
            assert begun or offset @ (goal - thing) > 0.0, "it touches it from the far side first"
            begun, thing = True, thing + moved * [1, 1, goal[2] < 0.0]
        if np.linalg.norm((goal - thing)[: 2 if how.get("flat") else 3]) < 0.03:
            break
    assert begun and np.linalg.norm((goal - thing)[: 2 if how.get("flat") else 3]) < 0.03
    assert max(heights) > 0.7 * how.get("above", 0.1), "it travels above"


def test_a_task_takes_from_another_what_it_does_not_say(tmp_path):
    (tmp_path / "mine.yaml").write_text("defaults: below\nmax_steps: 7\nscript: {above: 0.2}\n")
    (tmp_path / "below.yaml").write_text(
        "control_hz: 5.0\nmax_steps: 9\nobservation:\n  offset: {source: object_pose, take: "
        "offset, shape: [3], unit: m}\n"
        "action: {control_mode: tcp_delta, dimensions: {dx: {scale: 0.1, unit: m}}}\n"
        "reward: {kind: place, radius: 0.3}\nscript: {kind: pick, carry: 0.1}\n"
    )
    task = load_task(tmp_path / "mine.yaml")
    assert (task.max_steps, task.spec.control_hz, task.success.radius) == (7, 5.0, 0.3)
    assert (task.script.above, task.script.carry) == (0.2, 0.1)
    (tmp_path / "mine.yaml").write_text(
        "defaults: below\nreward: {kind: push}\nscript: {kind: push}\n"
    )
    other = load_task(tmp_path / "mine.yaml")
    assert other.success == Push() and dict(other.script)["kind"] == "push", (
        "another kind takes no parameters"
    )
    (tmp_path / "vague.yaml").write_text(
        (tmp_path / "below.yaml").read_text().replace("kind: place, ", "")
    )
    (tmp_path / "mine.yaml").write_text("defaults: vague\nreward: {kind: push}\n")
    assert load_task(tmp_path / "mine.yaml").success == Push(), (
        "a file that others begin with need not stand alone"
    )
    (tmp_path / "vague.yaml").unlink()
    (tmp_path / "mine.yaml").write_text("defaults: peg_insertion_vision\nsuccess_steps: 2\n")
    ours = load_task(tmp_path / "mine.yaml")
    assert ours == replace(load_task("configs/tasks/peg_insertion_vision.yaml"), success_steps=2)
    for text, message in (
        (
            "defaults: bellow\n",
            "'defaults': expected a task in the same folder or in configs/tasks, one of below, ",
        ),
        ("defaults: bellow\n", "; got 'bellow' (did you mean 'below'?)"),
        ("defaults: mine\n", "expected 'defaults' without a circle, got a circle"),
        ("defaults: below\nmax_step: 3\n", "mine.yaml, line 2: unknown key 'max_step'"),
    ):
        (tmp_path / "mine.yaml").write_text(text)
        with pytest.raises(RecipeError) as error:
            load_task(tmp_path / "mine.yaml")
        assert message in str(error.value)
