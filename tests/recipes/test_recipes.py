import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rlinf_core.algorithms import algorithm
from rlinf_core.core.errors import RecipeError
from rlinf_core.interlock import load_limits
from rlinf_core.recipes import check_recipe, load_recipe, recipe_yaml, station_task
from rlinf_core.recipes.loader import recipe_names
from rlinf_core.robots.config import load_robot, robots
from rlinf_core.tasks.rewards.geometry import External
from rlinf_core.tasks.task import load_task, with_shaping
from rlinf_core.trainer.governor import make_governor

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_loads_and_survives_being_written_down(name, tmp_path):
    recipe = load_recipe(name, ["seed=5"])
    (tmp_path / "again.yaml").write_text(recipe_yaml(recipe))
    assert load_recipe(tmp_path / "again.yaml") == recipe and recipe.seed == 5
    check_recipe(recipe)


def test_a_recipe_inherits_and_overrides(tmp_path):
    tiny = load_recipe("demo_tiny", ["online.max_env_steps=7", "station.operator.noise=0.5"])
    assert (tiny.collect.episodes, tiny.online.max_env_steps, tiny.station.operator.noise) == (
        4,
        7,
        0.5,
    )
    demo = load_recipe("demo")
    assert (tiny.station.task, tiny.algorithm.discount, tiny.replay) == (
        demo.station.task,
        demo.algorithm.discount,
        demo.replay,
    )


def test_an_override_that_names_another_algorithm_takes_none_of_the_recipes_hyper_parameters():
    rlpd = load_recipe("sim_rlpd").algorithm
    for overrides in (
        ["algorithm.discount=0.5", "algorithm.name=sac"],
        ["algorithm.name=sac", "algorithm.discount=0.5"],
    ):
        other = load_recipe("sim_rlpd", overrides).algorithm
        assert (other.name, other.discount) == ("sac", 0.5)
        assert rlpd.n_step == 3 and other.n_step == type(other)().n_step == 1
    assert load_recipe("sim_rlpd", ["algorithm.name=rlpd"]).algorithm == rlpd
    assert load_recipe("demo_tiny", ["algorithm.name=rlpd"]) == load_recipe("demo_tiny")


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "name: x\nonline:\n  max_minute: 3\n",
            "line 3: unknown key 'online.max_minute' (did you mean 'max_minutes'?)",
        ),
        ("name: x\nsede: 3\n", "line 2: unknown key 'sede' (did you mean 'seed'?)"),
        ("name: x\nseed: soon\n", "line 2: 'seed': expected int, got str 'soon'"),
        ("name: x\nseed: true\n", "expected int, got bool"),
        ("name: x\nalgorithm: {batchsize: 3}\n", "did you mean 'batch_size'"),
        ("name: x\npolicy: 3\n", "'policy': expected a mapping"),
        ("seed: 1\n", "name"),
        ("- 1\n", "expected 'key: value' lines"),
        ("name: [\n", "r.yaml: expected readable YAML, got"),
    ],
)
def test_mistakes_are_named_with_their_line_and_the_nearest_key(tmp_path, text, message):
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as error:
        load_recipe(path)
    assert message in str(error.value)


def test_unknown_names_are_answered_with_known_ones():
    with pytest.raises(RecipeError, match="did you mean 'demo_tiny'"):
        load_recipe("demo_tin")
    with pytest.raises(RecipeError, match="has no camera 'wirst'.*did you mean 'wrist'"):
        station_task(load_recipe("demo", ["station.observe_cameras=[wirst]"]))
    with pytest.raises(RecipeError, match="did you mean 'franka_sim'"):
        station_task(load_recipe("demo", ["station.robot=franka-sim"]))


@pytest.mark.parametrize(
    "base, message",
    [
        ("[demo]", "'defaults': expected the name of one recipe, got ('demo',)"),
        ("5", "'defaults': expected the name of one recipe, got 5"),
        ("{demo: 1}", "expected the name of one recipe, got {'demo': 1}"),
        (
            "demo_tin",
            "'defaults': recipe 'demo_tin': expected a file or one of .*did you mean 'demo_tiny'",
        ),
    ],
)
def test_a_base_that_is_none_is_named_with_its_line(tmp_path, base, message):
    (tmp_path / "r.yaml").write_text(f"name: x\ndefaults: {base}\n")
    with pytest.raises(RecipeError) as error:
        load_recipe(tmp_path / "r.yaml")
    assert f"{tmp_path}/r.yaml, line 2: 'defaults': " in str(error.value)
    assert message in str(error.value) or re.search(message, str(error.value))


def test_another_algorithm_takes_none_of_the_bases_hyper_parameters(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("defaults: sim_ppo\nname: mine\nalgorithm: {name: grpo, group: 4}\n")
    recipe = load_recipe(path)
    assert recipe.algorithm.name == "grpo"
    assert (recipe.algorithm.group, recipe.algorithm.learning_rate) == (4, 3e-4)
    path.write_text("defaults: sim_ppo\nname: mine\nalgorithm: {epochs: 2}\n")
    assert (load_recipe(path).algorithm.epochs, load_recipe(path).algorithm.chunks) == (2, 64)


def test_a_recipe_its_robot_and_its_task_are_checked_without_torch_and_ray():
    code = (
        "import sys; from rlinf_core.recipes import check_recipe, load_recipe, station_task; from "
        "rlinf_core.launch.graph import *; from rlinf_core.launch.preflight import *; recipe = "
        "load_recipe('sim_dsrl', ['policy.flow_steps=8']); station_task(recipe); "
        "check_operator(recipe); check_trainer(recipe, Path('nowhere')); "
        "check_policy_device(recipe); print([name for name in ('torch', 'ray') if name in "
        "sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        ).stdout
        == "[]\n"
    )


@pytest.mark.parametrize("name", robots())
def test_every_shipped_robot_loads_with_its_limits_its_options_and_its_task(name):
    robot = load_robot(name)
    assert (
        all(load_limits(limits).tick > 0 for limits in robot.limits_by_arm.values())
        and robot.limits_by_arm
    )
    assert all(min(camera.size) > 0 for camera in robot.cameras.values())
    assert (
        robot.driver != "simulator"
        or load_task(
            robot.task if robot.task.endswith(".yaml") else f"configs/tasks/{robot.task}.yaml"
        ).max_steps
        > 0
    )


def test_hosts_paths_and_names_need_no_quotes():
    overrides = {
        "bridge.host": "192.168.1.5",
        "bridge.host ": "robot-pc.local",
        "station.robot": "/a/my-arm_2",
        "station.task": "../t.yaml",
        "station.name": "a_1",
        "simulation.initial_policy": "runs/20260101-120000/policies/policy-00002000.safetensors",
    }
    for key, value in overrides.items():
        recipe = load_recipe("demo", [f"{key.strip()}={value}"])
        section, name = key.strip().split(".")
        assert getattr(getattr(recipe, section), name) == (
            str(Path(value).resolve()) if value[0] == "." else value
        )


@pytest.mark.parametrize(
    "name, key, value, what, expected, otherwise",
    [
        ("sac", "discount", 0.5, "gamma", 0.5, 0.99),
        ("ppo", "discount", 0.5, "gamma", 0.5, 0.99),
        ("iql", "discount", 0.5, "gamma", 0.5, 0.99),
        ("grpo", "group", 4, "gamma", 1.0, 1.0),
        ("sac", "ema_rate", 0.5, "averages", True, False),
        ("sac", "n_step", 3, "n_return_steps", 3, 1),
        ("rlpd", "self_imitation", False, "imitates_itself", False, True),
        ("dagger", "updates_per_step", 2.0, "utd_ratio", 2.0, 1.0),
        ("sac", "batch_size", 8, "transitions_per_batch", 8, 256),
        ("sft", "batch_size", 8, "transitions_per_batch", 8, 256),
        ("ppo", "chunks", 8, "transitions_per_batch", None, None),
        ("sac", "batch_size", 8, "utd_ratio", None, None),
    ],
)
def test_what_a_run_must_know_of_an_algorithm_is_what_its_settings_say(
    name, key, value, what, expected, otherwise
):
    config = algorithm(name).Config
    assert (getattr(config(**{key: value}), what), getattr(config(), what)) == (expected, otherwise)


@pytest.mark.parametrize(
    "overrides, owed, accepting",
    [
        ([], 200, True),
        ([], 202, False),
        (["online.synchronous=true"], 0, True),
        (["online.synchronous=true"], 1, False),
        (["online.synchronous=true", "online.max_lag_episodes=5"], 2, False),
    ],
)
def test_in_turns_whoever_plays_waits_for_every_update_else_for_an_episodes_worth_of_them(
    overrides, owed, accepting
):
    governor = make_governor(
        load_recipe("demo", ["online.min_transitions=0", "online.updates_per_step=2", *overrides]),
        100,
    )
    assert governor.accepting(500, 1000 - owed) is accepting


def test_an_algorithm_that_says_its_own_pace_does_not_wait_for_the_phases_first_transitions():
    dagger, phase = (make_governor(load_recipe(name), 100) for name in ("sim_dagger", "sim_rlpd"))
    assert (dagger.updates_per_step, dagger.min_transitions) == (5.0, 0)
    simulation = load_recipe("sim_rlpd").simulation
    assert (phase.updates_per_step, phase.min_transitions) == (
        simulation.updates_per_step,
        simulation.start_steps,
    )
    assert phase.min_transitions > 0


def test_a_reward_without_a_measure_of_progress_cannot_be_shaped():
    task = load_task("configs/tasks/reach.yaml")
    assert with_shaping(task, 2.0).shaping == 2.0
    with pytest.raises(
        RecipeError,
        match="simulation.shaping: expected 0, got 2.0: the reward External has no measure",
    ):
        with_shaping(replace(task, success=External()), 2.0)


@pytest.mark.parametrize(
    "key, value",
    [
        ("station.robot", "./bot"),
        ("station.task", "./task.yaml"),
        ("station.operator.kind", "pad.py:Pad"),
        ("policy.kind", "brain.py"),
    ],
)
def test_what_an_override_names_beside_oneself_is_found_by_the_runs_own_recipe_too(
    tmp_path, monkeypatch, key, value
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "sim_bridges/simulators/franka_mujoco/franka_sim", tmp_path / "bot")
    shutil.copy(ROOT / "configs/tasks/reach.yaml", tmp_path / "task.yaml")
    (tmp_path / "pad.py").write_text(
        "from rlinf_core.robots.operators.keyboard import Keyboard as Pad\n"
    )
    (tmp_path / "brain.py").write_text(
        "from rlinf_core.policies.small.tanh_gaussian import Config\n"
    )
    overrides = (
        [f"{key}={value}"] if "operator" not in key else [f"station.operator={{kind: '{value}'}}"]
    )
    (tmp_path / "run").mkdir()
    (tmp_path / "run/recipe.yaml").write_text(recipe_yaml(load_recipe("demo", overrides)))
    monkeypatch.chdir("/")
    again = load_recipe(tmp_path / "run/recipe.yaml")
    paths = {
        "robot": again.station.robot,
        "task": again.station.task,
        "operator": again.station.operator.kind,
        "policy": again.policy.kind,
    }
    assert paths[key.removesuffix(".kind").rpartition(".")[2]] == str(
        tmp_path / value[2 * value.startswith("./") :]
    )
    if key != "policy.kind":  # which no algorithm of ours trains
        check_recipe(again)


@pytest.mark.parametrize(
    "policy", ["{kind: brain.py}", "{kind: latent_noise, flow: {kind: ./brain.py}}"]
)
def test_a_policy_of_ones_own_lies_beside_the_recipe_that_names_it(tmp_path, monkeypatch, policy):
    (tmp_path / "recipes").mkdir()
    base = "tanh_gaussian" if "flow" not in policy else "flow"
    (tmp_path / "recipes/brain.py").write_text(
        f"from rlinf_core.policies.small.{base} import Config\n"
    )
    (tmp_path / "recipes/r.yaml").write_text(f"defaults: demo\npolicy: {policy}\n")
    monkeypatch.chdir("/")
    settings = load_recipe(tmp_path / "recipes/r.yaml").policy
    assert getattr(settings, "flow", settings).kind == str(tmp_path / "recipes/brain.py")


def test_robots_that_share_a_policy_lie_beside_the_recipe_that_says_so(tmp_path, monkeypatch):
    (tmp_path / "recipes").mkdir()
    shutil.copytree(
        ROOT / "sim_bridges/simulators/franka_mujoco/franka_sim", tmp_path / "recipes/bot"
    )
    (tmp_path / "recipes/r.yaml").write_text(
        "defaults: sim_embodiments\nembodiments:\n  one: {robot: ./bot, task: reach}\n"
        "  two: {robot: two_frankas_sim, task: reach_both}\n"
    )
    monkeypatch.chdir("/")
    assert load_recipe(tmp_path / "recipes/r.yaml").embodiments["one"].robot == str(
        tmp_path / "recipes/bot"
    )


@pytest.mark.parametrize(
    "lockstep, hz, reason",
    [
        (True, 30.0, "got 0.0333 s"),
        (True, 300.0, "got 0.0033 s"),
        (False, 30.0, ""),
        (False, 300.0, "got 0.0033 s"),
        (True, 50.0, ""),
    ],
)
def test_a_time_step_of_a_simulator_is_whole_ticks(tmp_path, lockstep, hz, reason):
    task = (ROOT / "configs/tasks/reach.yaml").read_text()
    (tmp_path / "task.yaml").write_text(re.sub("control_hz: .*", f"control_hz: {hz}", task))
    recipe = load_recipe(
        "demo", [f"station.task={tmp_path}/task.yaml", f"station.lockstep={str(lockstep).lower()}"]
    )
    if not reason:
        check_recipe(recipe)
        return
    with pytest.raises(
        RecipeError,
        match=f"control_hz: robot 'franka_sim' is a simulator that ticks every 0.01 s.*{reason}",
    ):
        check_recipe(recipe)


@pytest.mark.parametrize(
    "recipe, override, message",
    [
        (
            "demo",
            "replay.balance_stations=true",
            "replay.balance_stations: expected false for async_ppo, which keeps no replay, got "
            "true",
        ),
        (
            "demo",
            "online.max_staleness=3",
            "online.max_staleness: expected 50 for .* got 3. There algorithm.max_staleness",
        ),
        (
            "demo",
            "online.max_staleness_of={far: 3}",
            "online.max_staleness_of: expected {} for async_ppo",
        ),
        (
            "sim_ppo",
            "online.min_samples_per_insert=3",
            "online.min_samples_per_insert: expected 0.0 for ppo, which keeps no",
        ),
        (
            "sim_ppo",
            "online.max_samples_per_insert=3",
            "online.max_samples_per_insert: expected 0.0 for ppo, .* got 3.0$",
        ),
    ],
)
def test_a_learner_of_rollouts_draws_from_no_replay(recipe, override, message):
    one = ["algorithm={name: async_ppo}", "policy={kind: gaussian}"] if recipe == "demo" else []
    check_recipe(load_recipe(recipe, one))
    with pytest.raises(RecipeError, match=message):
        check_recipe(load_recipe(recipe, [*one, override]))
