"""Typing errors give one line with place, expectation, value and nearest name, no traceback."""

import shutil
from pathlib import Path

import pytest
import yaml

from rlinf_core.cli.main import main

COMMANDS = [
    ("dem", "invalid choice: 'dem' (did you mean 'demo'?)"),
    ("trian sim_sac", "did you mean 'train'"),
    (
        "fleet enrol a --out b",
        "rlinf fleet: argument COMMAND: invalid choice: 'enrol' (did you mean 'enroll'?)",
    ),
    ("data exprt lerobot a --out b", "did you mean 'export'"),
    ("data chek a", "did you mean 'check'"),
    ("data export lerobt a --out b", "did you mean 'lerobot'"),
    ("data import lerobott a --out b", "did you mean 'lerobot'"),
    ("reward trian a --out b", "did you mean 'train'"),
    ("fault rest", "did you mean 'reset'"),
    ("vla adaptors a --out b", "did you mean 'adapters'"),
    ("make-tiny-vla pi00 --out b", "did you mean 'pi0'"),
    (
        "fake-device spacemouze",
        "argument kind: invalid choice: 'spacemouze' (did you mean 'spacemouse'?)",
    ),
    ("camera locte demo wrist", "did you mean 'locate'"),
    ("doctor statoin", "did you mean 'station'"),
    ("check sims maniskill", "did you mean 'sim'"),
    (
        "demo --ste a=1",
        "unrecognized arguments: --ste (did you mean '--set'?). `rlinf demo --help`",
    ),
    ("train sim_sac --outt=x", "did you mean '--out'"),
    ("run demo --quit", "did you mean '--quiet'"),
    ("data merge a --otu b", "rlinf data merge: the following arguments are required: --out"),
    ("train", "rlinf train: the following arguments are required: recipe"),
    ("param set interlock", "required: parameter, value"),
    ("drill --domain 5000", "argument --domain: expected a number from 0 to 232, got 5000"),
    ("demo --web http", "argument --web: invalid int value: 'http'"),
    ("demo demoo", "recipe 'demoo': expected a file or one of"),
    ("up dmeo", "did you mean 'demo'"),
    ("status demoo", "did you mean 'demo'"),
    ("doctor station demoo", "did you mean 'demo'"),
    ("sweep sim_pp0 --set seed=0,1", "did you mean 'sim_ppo'"),
    ("up demo --set station.robot=franka_sm", "station.robot: expected one of"),
    ("up demo --set station.task=peg_insertio", "did you mean 'peg_insertion'"),
    ("check sim manskill", "did you mean 'maniskill'"),
    ("check sim maniskill --robot panda_maniskil", "did you mean 'panda_maniskill'"),
    ("up demo --set station.operator.kind=keybord", "'station.operator.kind': expected one of"),
    ("train sim_sac --set algorithm.learning_rte=1e-3", "did you mean 'learning_rate'"),
    ("train sim_sac --set algorithm.name=sacc", "did you mean 'sac'"),
    ("train sim_sac --set policy.kind=gausian", "did you mean 'gaussian'"),
    ("train sim_sac --set sed=1", "unknown key 'sed' (did you mean 'seed'?)"),
    ("train sim_sac --set seed=one", "'seed': expected int, got str 'one'"),
    ("train sim_sac --set seed=5cm", "'seed': expected int, got str '5cm'"),
    ("train sim_sac --set seed=[1]", "'seed': expected int, got list [1]"),
    ("train sim_sac --set seed=null", "'seed': expected int, got nothing"),
    ("train sim_sac --set seed=1,2", "expected one value, got several"),
    ("train sim_sac --set seed", "override 'seed': expected key=value"),
    ("train sim_sac --set env=gymm:Pendulum-v1", "did you mean 'gym'"),
    ("train sim_sac --set station.observe_cameras=[frnt]", "did you mean 'front'"),
]


@pytest.mark.parametrize("command, words", COMMANDS)
def test_a_wrong_command_is_one_line(command, words, capsys, tmp_path, monkeypatch):
    try:
        code = main(command.split())
    except SystemExit as end:
        code = end.code
    lines = capsys.readouterr().err.splitlines()
    assert (
        code in (1, 2) and len(lines) == 1 and words in lines[0] and lines[0].startswith("rlinf")
    ), lines
    assert not (tmp_path / "b").exists()


RECIPES = [
    ("sed: 1", "unknown key 'sed' (did you mean 'seed'?)"),
    ("seed: '3'", "'seed': expected int, got str '3'"),
    ("seed: [1]", "'seed': expected int, got list [1]"),
    ("seed: null", "'seed': expected int, got nothing"),
    ("seed: 1.5", "'seed': expected int, got float 1.5"),
    ("online: {max_minutes: 5min}", "'online.max_minutes': expected a number, got str '5min'"),
    ("online: null", "'online': expected a mapping, got nothing"),
    ("collect: {episods: 5}", "(did you mean 'episodes'?)"),
    ("bridge: {port: '8000'}", "'bridge.port': expected int, got str '8000'"),
    ("policy: {hidden: 64}", "'policy.hidden': expected a list, got int 64"),
    ("station: [demo]", "'station': expected a mapping, got list ['demo']"),
    ("station: {namee: a}", "unknown key 'station.namee' (did you mean 'name'?)"),
    (
        "station: {lockstep: sometimes}",
        "'station.lockstep': expected true or false, got str 'sometimes'",
    ),
    (
        "station: {observe_cameras: front}",
        "'station.observe_cameras': expected a list, got str 'front'",
    ),
    ("station: {image_size: 64}", "'station.image_size': expected a list, got int 64"),
    ("station: {operator: {kind: keybord}}", "(did you mean 'keyboard'?)"),
    ("station: {policy: {backnd: remote}}", "(did you mean 'backend'?)"),
]
ROBOTS = [
    ("estop: [pendant]", "unknown key 'estop' (did you mean 'estops'?)"),
    ("estops: pendant", "'estops': expected a list, got str 'pendant'"),
    ("cameras: {front: null}", "'cameras.front': expected"),
    ("cameras: {front: {kind: uvcc}}", "(did you mean 'uvc'?)"),
    (
        "cameras: {front: {kind: uvc, device: /dev/video0, size: 64}}",
        "'cameras.front.size': expected",
    ),
    ("distance: 5cm", "'distance': expected true or false, got str '5cm'"),
    ("limits: 3", "'limits': expected"),
]
TASKS = [
    ("control_hz: 10Hz", "'control_hz': expected a number, got str '10Hz'"),
    ("max_steps: '50'", "'max_steps': expected int, got str '50'"),
    ("max_steps: [50]", "'max_steps': expected int, got list [50]"),
    ("max_steps: null", "'max_steps': expected int, got nothing"),
    ("max_step: 50", "(did you mean 'max_steps'?)"),
    ("reward: {kind: insertio}", "(did you mean 'insertion'?)"),
    (
        "action: {control_mode: tcp_delta, dimensions: {dx: {scale: 2cm, unit: m}}}",
        "'action.dimensions.dx.scale': expected a number, got str '2cm'",
    ),
    (
        "action: {control_mode: tcp_delt, dimensions: {dx: {scale: 0.1, unit: m}}}",
        "(did you mean 'tcp_delta'?)",
    ),
]
LIMITS = [
    ("sped: 0.2", "unknown limit 'sped' (did you mean 'speed'?)"),
    ("speed: 5cm", "'speed': expected a number"),
    ("speed: '0.2'", "'speed': expected a number"),
    ("speed: [0.2]", "'speed': expected a number"),
    ("speed: null", "'speed': expected a number"),
    ("speed: true", "'speed': expected a number"),
    ("box_low: 0.3", "'box_low': expected three numbers"),
    ("box_low: [30cm, 0, 0]", "'box_low': expected three numbers"),
    ("joint_names: j1", "'joint_names': expected a list of names"),
    ("frame: 3", "'frame': expected the name of a frame"),
    ("control_mode: tcp_delt", "(did you mean 'tcp_delta'?)"),
]


def changed(path, text):
    """Return the YAML at ``path`` with the keys of ``text`` in their last lines."""
    document = yaml.safe_load(path.read_text())
    rest = {key: value for key, value in document.items() if key not in yaml.safe_load(text)}
    path.write_text(yaml.safe_dump(rest, sort_keys=False) + text + "\n")
    return len(path.read_text().splitlines())


CASES = [
    (level, *case)
    for level, cases in (
        ("recipe", RECIPES),
        ("robot", ROBOTS),
        ("task", TASKS),
        ("limits", LIMITS),
    )
    for case in cases
]


@pytest.mark.parametrize("level, text, words", CASES)
def test_a_wrong_key_or_value_is_one_line_with_its_place(level, text, words, capsys, tmp_path):
    robot, task, recipe = tmp_path / "robot", tmp_path / "task.yaml", tmp_path / "recipe.yaml"
    shutil.copytree("sim_bridges/simulators/franka_mujoco/franka_sim", robot)
    shutil.copy("configs/tasks/peg_insertion.yaml", task)
    recipe.write_text("defaults: demo\nname: mine\n")
    path = {
        "recipe": recipe,
        "task": task,
        "robot": robot / "robot.yaml",
        "limits": robot / "limits.yaml",
    }[level]
    line = changed(path, text)
    overrides = [f"station.robot={robot}", f"station.task={task}"] if level != "recipe" else []
    assert (
        main(
            [
                "up",
                str(recipe),
                "--out",
                str(tmp_path / "run"),
                *(["--set", *overrides] if overrides else []),
            ]
        )
        == 2
    )
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and words in lines[0], lines
    assert f"{Path(path).name}, line {line}: " in lines[0], (line, lines)
    assert not (tmp_path / "run").exists()
