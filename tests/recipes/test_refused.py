"""Invalid recipes, robots and tasks: errors name place, expectation, value and nearest name."""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from rlinf_core.algorithms import algorithm, algorithms
from rlinf_core.cli.main import main
from rlinf_core.core.errors import RecipeError
from rlinf_core.policies import kinds, policy_kind
from rlinf_core.recipes import check_recipe, load_recipe, recipe_yaml
from rlinf_core.robots.config import load_robot
from rlinf_core.tasks.task import load_task
from tests.ports import free_port

RECIPES = [
    (
        "algorithm: {discount: 1.7}",
        "line 2: 'algorithm.discount': expected at most 1, got float 1.7",
    ),
    ("sft:\n  learning_rate: -1", "line 3: 'sft.learning_rate': expected above 0, got int -1"),
    ("collect: {episodes: -3}", "line 2: 'collect.episodes': expected at least 0, got int -3"),
    ("bridge: {port: 99999}", "'bridge.port': expected at most 65535, got int 99999"),
    (
        "station: {operator: {kind: spacemice}}",
        "'station.operator.kind': expected one of gamepad, joy, keyboard, leader",
    ),
    ("station: {operator: {kind: keybord}}", "did you mean 'keyboard'"),
    (
        "station: {operator: {kind: spacemouse, deadbend: 0.1}}",
        "unknown key 'station.operator.deadbend' (did you mean",
    ),
    (
        "station: {operator: {kind: spacemouse, axes: {q: tx}}}",
        "'station.operator.axes.q': expected one of x, y, z",
    ),
    (
        "station: {operator: {kind: spacemouse, axes: {x: ux}}}",
        "'station.operator.axes.x': expected one of tx, ty",
    ),
    (
        "station: {operator: {kind: gamepad, buttons: {a: fly}}}",
        "'station.operator.buttons.a': expected one of arm",
    ),
    ("station: {operator: {kind: leader, device: x}}", "'station.operator.joints' is missing"),
    (
        "station: {operator: {kind: leader, device: x, joints: {a: {id: 1, axis: [0.0, 0.0, "
        "0.0]}}}}",
        "a direction",
    ),
    (
        "station: {operator: {kind: leader, device: x, joints: {}, trigger: {id: 1, open: 1.0, "
        "closed: 1.0}}}",
        "differs from closed",
    ),
    ("station: {second_operator: {kind: pedal}}", "'station.second_operator.device' is missing"),
    (
        "station: {observe_cameras: front}",
        "'station.observe_cameras': expected a list, got str 'front'",
    ),
    (
        "station: {observe_cameras: [front, 3]}",
        "'station.observe_cameras[1]': expected a text, got int 3",
    ),
    ("station: {image_size: [64]}", "'station.image_size': expected more items, got list [64]"),
    (
        "station: {lockstep: false, real_time_factor: 1.0}",
        "'station.real_time_factor': expected 0 with",
    ),
    (
        "station: {policy: {backend: remote}}",
        "'station.policy.address': expected ws://host:port with",
    ),
    ("station: {lockstep: 'yes'}", "'station.lockstep': expected true or false, got str 'yes'"),
    (
        "station: {name: a b}",
        "'station.name': expected letters, digits and _, a letter first, got str 'a b'",
    ),
    (
        "station: {policy: {backend: remote, address: here}}",
        "'station.policy.address': expected ws://host:port, got str",
    ),
    ("seed: 1.0", "'seed': expected int, got float 1.0"),
    ("online: {max_minutes: .nan}", "'online.max_minutes': expected a finite number"),
    ("online: {max_minutes: '3'}", "'online.max_minutes': expected a number, got str '3'"),
    ("algorithm: {name: saq}", "line 2: 'algorithm.name': expected one of"),
    ("algorithm:", "line 2: 'algorithm': expected a mapping, got nothing"),
    ("algorithm: {name: 3}", "'algorithm.name': expected one of async_ppo"),
    (
        "algorithm: {name: ppo, level: token}",
        "'algorithm.level': expected one of action, chunk, mean, got str 'token'",
    ),
    (
        "algorithm: {name: ppo, dual_clip: 0.5}",
        "'algorithm.dual_clip': expected 0 or a number above 1, got float 0.5",
    ),
    (
        "algorithm: {name: dsrl, n_step: 3}",
        "'algorithm.n_step': expected 1 for dsrl, whose returns span the chunk",
    ),
    ("algorithm: {name: ppo, group: 4}", "unknown key 'algorithm.group'"),
    ("policy: {kind: flwo}", "did you mean 'flow'"),
    ("policy: {kind: gaussian, flow_steps: 4}", "unknown key 'policy.flow_steps'"),
    ("policy: {hidden: []}", "'policy.hidden': expected a list with at least 1 item"),
    ("policy: {hidden: [0]}", "'policy.hidden[0]': expected above 0, got int 0"),
    ("sft: {name: ppo}", "line 2: 'sft.name': expected sft, got 'ppo'"),
    (
        "simulation: {randomise: {delai_s: 1}}",
        "unknown key 'simulation.randomise.delai_s' (did you mean 'delay_s'?)",
    ),
    ("seed: 1\nseed: 2", "line 3: 'seed' occurs twice, first in line 2"),
    ("station: {<<: {name: a}}", "unknown key 'station.<<'"),
]


@pytest.mark.parametrize("text, message", RECIPES)
def test_a_recipe(tmp_path, text, message):
    (tmp_path / "r.yaml").write_text(f"name: x\n{text}\n")
    with pytest.raises(RecipeError) as error:
        load_recipe(tmp_path / "r.yaml")
    assert message in str(error.value) and "r.yaml, line " in str(error.value)


def test_every_mistake_is_said_at_once_each_in_its_line(tmp_path):
    (tmp_path / "r.yaml").write_text("name: x\nsede: 1\nbridge:\n  port: 99999\n  hots: a\n")
    with pytest.raises(RecipeError) as error:
        load_recipe(tmp_path / "r.yaml")
    assert [
        line.partition(": ")[0].rpartition(", ")[2] for line in str(error.value).splitlines()
    ] == ["line 4", "line 5", "line 2"]


def test_a_mistake_in_the_recipe_below_names_that_file(tmp_path):
    (tmp_path / "base.yaml").write_text("name: base\nonline: {max_minute: 3}\n")
    (tmp_path / "r.yaml").write_text("defaults: base\nname: x\nonline: {max_env_steps: 3}\n")
    with pytest.raises(RecipeError, match=r"base.yaml, line 2: unknown key 'online.max_minute'"):
        load_recipe(tmp_path / "r.yaml")
    (tmp_path / "base.yaml").write_text("defaults: r\nname: base\n")
    with pytest.raises(RecipeError, match="expected 'defaults' without a circle"):
        load_recipe(tmp_path / "r.yaml")


@pytest.mark.parametrize("name", algorithms())
def test_every_number_of_every_algorithm_has_a_range_and_every_value_a_meaning(name):
    _has_ranges(algorithm(name).Config, without={"target_entropy"})


@pytest.mark.parametrize("name", kinds())
def test_every_number_of_every_policy_has_a_range_and_every_value_a_meaning(name):
    _has_ranges(policy_kind(name).Config)


def _has_ranges(model, without=frozenset()):
    for key, item in model.model_json_schema()["properties"].items():
        assert item["description"], key
        if item.get("type") in ("integer", "number") and key not in without:
            assert {"minimum", "exclusiveMinimum"} & item.keys(), key


def test_one_e_in_a_number_needs_no_dot(tmp_path):
    (tmp_path / "r.yaml").write_text(
        "name: x\nalgorithm: {learning_rate: 1e-3}\nonline: {max_minutes: 2}\n"
    )
    recipe = load_recipe(tmp_path / "r.yaml", ["sft.learning_rate=5e-4"])
    assert (
        recipe.algorithm.learning_rate,
        recipe.sft.learning_rate,
        recipe.online.max_minutes,
    ) == (1e-3, 5e-4, 2.0)


OVERRIDES = [
    (
        "algorithm.discount=1.7",
        "override 'algorithm.discount=1.7': 'algorithm.discount': expected at most 1",
    ),
    ("sft.learning_rate=-1", "'sft.learning_rate': expected above 0"),
    ("collect.episodes=-3", "'collect.episodes': expected at least 0"),
    ("bridge.port=99999", "'bridge.port': expected at most 65535"),
    (
        "station.operator.kind=spacemice",
        "'station.operator.kind': expected one of gamepad, joy, keyboard",
    ),
    ("online.max_minute=1", "did you mean 'max_minutes'"),
    ("seed=1,2", "expected one value, got several"),
    ("seed", "expected key=value"),
    ("~online.max_minutes", "expected a key that the recipe sets"),
    ("+name=x", "expected a new key"),
    ("station.robot=[", "expected key=value"),
]


@pytest.mark.parametrize(
    "command, text, message",
    [
        *(("up", *refusal) for refusal in OVERRIDES),
        *(
            (command, *refusal)
            for command in ("train", "demo", "run", "sweep", "eval")
            for refusal in OVERRIDES[:5]
        ),
    ],
)
def test_at_the_command_line_before_a_folder_is_made(tmp_path, capsys, command, text, message):
    out = tmp_path / "run"
    if command == "eval":
        (tmp_path / "policy-00000001.safetensors").write_bytes(b"")
        arguments = [
            command,
            str(tmp_path / "policy-00000001.safetensors"),
            "--recipe",
            "demo",
            "--set",
            text,
        ]
    else:
        arguments = [
            command,
            "demo" if command != "sweep" else "sim_sac",
            "--set",
            text,
            "--out",
            str(out),
        ]
    assert main(arguments) == 2
    assert message in capsys.readouterr().err and not out.exists()


def test_overrides_in_hydras_grammar():
    recipe = load_recipe(
        "demo_vision",
        [
            "station.observe_cameras=[front]",
            "++seed=3",
            "+simulation.randomise={delay_s: 0.1}",
            "~algorithm.critic_warmup",
            "station.name='a_b'",
            "policy={kind: flow, hidden: [8]}",
            "simulation.initial_policy='runs/a b, c=d'",
        ],
    )
    assert (
        recipe.station.observe_cameras == ("front",)
        and recipe.seed == 3
        and recipe.station.name == "a_b"
    )
    assert recipe.simulation.randomise.delay_s == 0.1 and recipe.algorithm.critic_warmup == 500
    assert (recipe.policy.kind, recipe.policy.hidden) == ("flow", (8,))
    assert recipe.simulation.initial_policy == "runs/a b, c=d"


ROBOTS = [
    ("estop: [pendant]", "unknown key 'estop' (did you mean 'estops'?)"),
    ("estops: pendant", "'estops': expected a list, got str 'pendant'"),
    ("estops: [3]", "'estops[0]': expected a text, got int 3"),
    (
        "no_estop_reason: ok",
        "'no_estop_reason': expected a reason of ten characters or more, or nothing, got str 'ok'",
    ),
    ("no_estop_reason: true", "'no_estop_reason': expected a text, got bool True"),
    (
        "estops: [pendant]\nno_estop_reason: it has a pendant",
        "'no_estop_reason': expected none beside estops: [pendant]",
    ),
    (
        "estops: [pendant, wall, pendant]",
        "expected a name for each source, got 'pendant' more than once",
    ),
    (f"estops: [{'a' * 65}]", "'estops[0]': expected a text with at most 64 characters"),
    (
        f"cameras: {{{'a' * 200}: [64, 64]}}",
        "expected a text with at most 64 characters, got str 'aaa",
    ),
    ("cameras: [front]", "'cameras': expected a mapping, got list ['front']"),
    (
        "cameras: {front: 64}",
        "'cameras.front': expected a list of height and width, or a mapping with its "
        "'kind', got int 64",
    ),
    ("distance: 1", "'distance': expected true or false, got int 1"),
    ("limits: limit.yaml", "'limits': expected a file in"),
    (
        "driver: simulated",
        "'driver': expected one of external, franka, servo_arm, simulator, universal_robots, or "
        "package.module:name",
    ),
    ("driver: frnka", "did you mean 'franka'"),
    ("driver: franka", "'simulator': expected none with driver: franka"),
    (
        "driver: rlinf_core.robots.config:Arm",
        "expected a class that extends rlinf_core.robots.drivers.DriverSettings",
    ),
    (
        "twin: {node: sim_bridges.twins.franka, simulator: franka_mujoco}",
        "'twin': expected none with driver: simulator",
    ),
    ("twin: {node: franka, simulator: franka_mujoco}", "'twin.node': expected"),
    ("simulator: ''", "'driver': simulator needs 'simulator'"),
    ("driver: external", "'driver': external has neither 'simulator' nor 'options'"),
    ("simulator: franka_mujico", "did you mean 'franka_mujoco'"),
    (
        "options: {pose_noise: 0.1}",
        "unknown key 'options.pose_noise' (did you mean 'pose_noise_m'?)",
    ),
    (
        "options: {pose_noise_m: -1.0}",
        "'options.pose_noise_m': expected at least 0, got float -1.0",
    ),
    ("options: {start_height_m: 0.1}", "'options.start_height_m': expected a list, got float 0.1"),
    ("options: 3", "'options': expected a mapping, got int 3"),
    (
        "tool_axes: [wrenchs]",
        "expected current_twist or wrench, got 'wrenchs' (did you mean 'wrench'?)",
    ),
]


@pytest.mark.parametrize("text, message", ROBOTS)
def test_a_robot(tmp_path, capsys, text, message):
    folder = tmp_path / "mine"
    shutil.copytree("sim_bridges/simulators/franka_mujoco/franka_sim", folder)
    changed = yaml.safe_load(text)
    lines = [
        line
        for line in (folder / "robot.yaml").read_text().splitlines()
        if line.split(":")[0] not in changed
    ]
    (folder / "robot.yaml").write_text("\n".join([*lines, text]) + "\n")
    with pytest.raises(RecipeError) as error:
        load_robot(str(folder))
    assert message in str(error.value) and "robot.yaml" in str(error.value)
    out = tmp_path / "run"
    assert main(["up", "demo", "--set", f"station.robot={folder}", "--out", str(out)]) == 2
    assert message in capsys.readouterr().err and not out.exists()


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "options: {contollers: []}",
            "unknown key 'options.contollers' (did you mean 'controllers'?)",
        ),
        (
            "options: {hand_speed: 0.02}",
            "expected at least 4.1, the time to open fully at hand_speed = 0.02, got 3",
        ),
        (
            "options: {hand_force: 700.0}",
            "'options.hand_force': expected at most 70, got float 700.0",
        ),
        (
            "twin: {node: sim_bridges.twins.franka, simulator: franka_mujico}",
            "did you mean 'franka_mujoco'",
        ),
        (
            "twin: {node: a.b, simulator: franka_mujoco, options: {noise: 1}}",
            "unknown key 'twin.options.noise'",
        ),
        (
            "twin: {nod: a.b, simulator: franka_mujoco}",
            "unknown key 'twin.nod' (did you mean 'node'?)",
        ),
    ],
)
def test_a_robot_with_a_drivers_node(tmp_path, text, message):
    limits = Path("robots/franka_fr3/limits.yaml").resolve()
    (tmp_path / "limits.yaml").write_text(f"extends: {limits}\n")
    (tmp_path / "robot.yaml").write_text(f"driver: franka\nlimits: limits.yaml\n{text}\n")
    with pytest.raises(RecipeError) as error:
        load_robot(str(tmp_path))
    assert message in str(error.value) and "robot.yaml, line 3" in str(error.value)


def test_a_robot_names_the_line(tmp_path):
    folder = tmp_path / "mine"
    shutil.copytree("sim_bridges/simulators/franka_mujoco/franka_sim", folder)
    lines = (folder / "robot.yaml").read_text().splitlines()
    (folder / "robot.yaml").write_text("\n".join([*lines, "estop: [pendant]"]) + "\n")
    with pytest.raises(
        RecipeError, match=rf"^robot .*robot.yaml, line {len(lines) + 1}: unknown key 'estop'"
    ):
        load_robot(str(folder))


WRENCH = "observation: {x: {source: wrench, take: force, "
MOVE = "action: {control_mode: tcp_delta, dimensions: {dx: "
TASKS = [
    ("max_step: 3", "unknown key 'max_step' (did you mean 'max_steps'?)"),
    ("max_steps: 0", "'max_steps': expected above 0"),
    ("control_hz: fast", "'control_hz': expected a number, got str 'fast'"),
    ("reward: {kind: insertio}", "did you mean 'insertion'"),
    (
        "reward: {depth: 0.1}",
        "'reward.kind': expected one of classifier, external, insertion, outside, place, progress, "
        "push, reach, stack, vlm, got nothing",
    ),
    ("reward: {kind: insertion, dept: 0.1}", "unknown key 'reward.dept' (did you mean 'depth'?)"),
    ("reward: {kind: insertion, depth: -0.1}", "'reward.depth': expected above 0, got float -0.1"),
    ("reward: {kind: insertion, depth: deep}", "'reward.depth': expected a number, got str 'deep'"),
    ("script: {kind: insertoin}", "did you mean 'insertion'"),
    ("script: {kind: pick, gain: 2.0}", "'script.gain': expected at most 1, got float 2.0"),
    (
        "script: {kind: pick, relaese: true}",
        "unknown key 'script.relaese' (did you mean 'release'?)",
    ),
    ("script: {kind: pick, seed: 3}", "unknown key 'script.seed'"),
    (
        "action: {control_mode: tcp, dimensions: {dx: {scale: 0.1, unit: m}}}",
        "'action.control_mode': expected one of",
    ),
    (MOVE + "{scale: 0, unit: m}}}", "'action.dimensions.dx.scale': expected"),
    (MOVE + "{scale: 0.1}}}", "'action.dimensions.dx.unit' is missing: SI unit of the step"),
    (MOVE + "{scal: 0.1, unit: m}}}", "(did you mean 'scale'?)"),
    ("observation: {x: {source: rench, take: force, shape: [3]}}", "did you mean 'wrench'"),
    ("observation: {x: {source: wrench, take: forces, shape: [3]}}", "did you mean 'force'"),
    (WRENCH + "shape: [2]}}", "'observation.x.shape': expected [3] of wrench.force, got [2]"),
    (WRENCH + "shape: [3], low: [1.0, 2.0]}}", "'observation.x.low': expected 1 or 3 numbers"),
    (WRENCH + "shape: [3], low: [1], high: [0]}}", "'observation.x.low': expected at most high"),
]


@pytest.mark.parametrize("text, message", TASKS)
def test_a_task(tmp_path, capsys, text, message):
    data = yaml.safe_load(Path("configs/tasks/peg_insertion.yaml").read_text()) | yaml.safe_load(
        text
    )
    path = tmp_path / "task.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(RecipeError) as error:
        load_task(path)
    assert message in str(error.value) and "task.yaml, line " in str(error.value)
    out = tmp_path / "run"
    assert main(["train", "sim_rlpd", "--set", f"station.task={path}", "--out", str(out)]) == 2
    assert message in capsys.readouterr().err and not out.exists()


def test_limits_are_read_with_everything_else(tmp_path, capsys):
    folder, out = tmp_path / "mine", tmp_path / "run"
    shutil.copytree("sim_bridges/simulators/franka_mujoco/franka_sim", folder)
    (folder / "limits.yaml").write_text((folder / "limits.yaml").read_text() + "sped: 1.0\n")
    assert main(["up", "demo", "--set", f"station.robot={folder}", "--out", str(out)]) == 2
    assert (
        "unknown limit 'sped' (did you mean 'speed'?)" in capsys.readouterr().err
        and not out.exists()
    )


@pytest.mark.parametrize(
    "command, wrong, code",
    [
        (["up", "demo"], "bridge.port=99999", 2),
        (["demo", "demo"], "bridge.fleet=/not/there", 1),
        (["demo", "demo"], "collect.recordings=[/not/there]", 2),
    ],
)
def test_a_recipe_is_refused_before_anything_slow_is_imported(command, wrong, code):
    """The last two are found by the last checks before a run, which look at folders."""
    program = textwrap.dedent(f"""
        import sys
        from rlinf_core.cli.main import main
        overrides = ["--set", "bridge.port={free_port()}", "{wrong}"]
        code = main([*{command}, *overrides, "--out", "/nonexistent/run"])
        print(code, [name for name in ("torch", "ray", "mujoco") if name in sys.modules])
    """)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == f"{code} []\n" and wrong.partition("=")[0] in done.stderr


@pytest.mark.parametrize(
    "recipe, overrides, message",
    [
        (
            "sim_ppo",
            ["placement.workers=2", "placement.mode=pipelined", "simulation.environments=16"],
            "placement.mode: expected collocated or disaggregated for ppo, which learns only "
            "from rollouts of the newest policy",
        ),
        (
            "sim_grpo",
            ["placement.workers=2", "placement.mode=pipelined", "simulation.environments=16"],
            "placement.mode: .* grpo",
        ),
        (
            "sim_ppo",
            [
                "env=maniskill:PickCube-v1",
                "placement.workers=2",
                "policy.horizon=4",
                "policy.n_action_steps=2",
            ],
            "policy.n_action_steps: expected 1 with env 'maniskill:PickCube-v1', whose "
            "environments are stepped at once, got 2",
        ),
        (
            "sim_rlpd",
            ["replay.use_executed=true"],
            "replay.use_executed: expected false in simulators",
        ),
        (
            "sim_sac",
            ["env=gym:Pendulum-v1", "simulation.shaping=1"],
            "simulation.shaping: expected none with env 'gym:Pend",
        ),
        (
            "sim_sac",
            ["env=gym:Pendulum-v1", "simulation.randomise.delay_s=0.1"],
            "simulation.randomise: expected none with",
        ),
        (
            "demo",
            ["algorithm={name: async_ppo}", "policy={kind: openvla, token_log_probs: true}"],
            "policy.token_log_probs: expected false on stations",
        ),
    ],
)
def test_what_would_be_found_in_the_midst_of_a_run_is_refused_before(recipe, overrides, message):
    with pytest.raises(RecipeError, match=message):
        check_recipe(load_recipe(recipe, overrides))
    if "mode" in message:
        check_recipe(load_recipe("sim_async_ppo", overrides))


@pytest.mark.parametrize("robot, task", [("ur5e_twin", "reach"), ("franka_fr3", "ur5e_reach")])
def test_task_and_limits_of_one_arm_move_in_the_same_mode(robot, task):
    recipe = load_recipe("franka_twin", [f"station.robot={robot}", f"station.task={task}"])
    with pytest.raises(
        RecipeError,
        match=f"task '{task}': action.control_mode: expected .* \\(limits of robot "
        f"'{robot}'\\), got .*. Take a task in that mode",
    ):
        check_recipe(recipe)


@pytest.mark.parametrize(
    "operator, key",
    [
        ("{kind: gamepad, clutch: a}", "operator"),
        ("{kind: vr, clutch: grip, buttons: {grip: close}}", "operator"),
        ("{kind: gamepad, clutch: rb, buttons: {rb: disarm}}", "second_operator"),
    ],
)
def test_a_clutch_has_no_other_role(operator, key):
    overrides = [f"station.{key}={operator}", "station.lockstep=false"]
    with pytest.raises(
        RecipeError,
        match=rf"station.{key}.clutch: expected a button without another role, got '\w+', "
        r"which is also (close|disarm)",
    ):
        check_recipe(load_recipe("demo", overrides))
    check_recipe(
        load_recipe(
            "demo", [f"station.{key}={{kind: gamepad, buttons: {{rb: intervene, a: close}}}}"]
        )
    )


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["station.lockstep=true"], "station.lockstep: expected false with robot 'franka_fr3'"),
        (
            [],
            "robot 'franka_fr3': estops: expected the name of at least one e-stop source, got none",
        ),
        (["station.web.port=8080"], ""),
    ],
)
def test_config_check_asks_a_real_arm_for_its_confirmations(tmp_path, capsys, overrides, message):
    (tmp_path / "mine.yaml").write_text("defaults: demo\nstation: {robot: franka_fr3}\n")
    command = [
        "config",
        str(tmp_path / "mine.yaml"),
        "--check",
        "--set",
        "station.task=reach",
        *overrides,
    ]
    assert main(command) == (2 if message else 0)
    assert message in (error := capsys.readouterr().err)
    assert ("[RL-E106]" in error) == bool(message)
    if not message:  # what a run has written says every default, lockstep too, and is checked again
        (tmp_path / "recipe.yaml").write_text(
            recipe_yaml(load_recipe(tmp_path / "mine.yaml", command[4:]))
        )
        assert main(["config", str(tmp_path / "recipe.yaml"), "--check"]) == 0


@pytest.mark.parametrize("recipe", ["franka_twin", "so101_twin", "ur5e_twin", "ur5e_servo_twin"])
def test_config_check_passes_for_a_twin_without_an_e_stop_source(recipe):
    """The interlock arms a robot without hardware, so the check must not say that it refuses."""
    assert main(["config", recipe, "--check"]) == 0
