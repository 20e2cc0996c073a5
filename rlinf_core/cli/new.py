"""``rlinf new robot``: from an arm's MJCF or URDF to a robot, limits, a first task and a recipe."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import yaml

from rlinf_core.core.outputs import empty_folder

LIMITS = """# Limits of the interlock, for {name} in simulation. Every key: docs/reference/limits.md.
# A real arm needs its maker's values, a shorter enable_lease and limits of contact.
{values}
enable_lease: unlimited       # no person stands beside a simulated arm
contact_force: unlimited
contact_torque: unlimited
contact_fault: unlimited
"""
TASK = """# Bring the tool of {name} to a point in the air.
instruction: reach the goal
control_hz: 10.0
max_steps: 40
observation:
  tcp_position:
    {{source: current_pose, take: position, shape: [3], unit: m, low: {low}, high: {high}}}
  tcp_velocity: {{source: current_twist, take: linear, shape: [3], unit: m/s, low: [-0.5], high: [0.5]}}
  goal_offset: {{source: goal_pose, take: offset, shape: [3], unit: m, low: [-{far}], high: [{far}]}}
action:
  control_mode: tcp_delta
  dimensions:
    dx: {{scale: {step}, unit: m}}
    dy: {{scale: {step}, unit: m}}
    dz: {{scale: {step}, unit: m}}
reward: {{kind: reach, to: goal, height: 0.0, radius: {radius}}}
script: {{kind: reach, to: goal, height: 0.0}}
"""
RECIPE = """# Forty demonstrations of the script, then RL: rlinf train {path}
defaults: sim_task
name: {name}_reach
station: {{robot: ./, task: ./reach.yaml}}
collect: {{episodes: 40}}
sft: {{steps: 2000}}
simulation: {{env_steps: 2000, evaluate_every: 1000}}
"""
COMMENTS = {
    "model": "do not move this file",
    "joints": "from base to tool",
    "tool": "site or body of the model",
    "tool_offset": "from there to the tool [m]",
    "home": "joint angles where an episode begins [rad or m]",
    "gripper_open": "of each actuator or joint",
    "gripper_closed": "likewise",
    "gripper_width": "between the open fingers [m]",
    "goal_low": "corner of the box of goals, base frame [m]",
    "goal_high": "the opposite corner [m]",
    "start_range_m": "an episode begins within this of home [m]",
    "radius_m": "a goal is reached within this [m]",
    "box_low": "corner of the tool's workspace, base frame [m]",
    "box_high": "the opposite corner [m]",
    "speed": "[m/s]",
    "acceleration": "[m/s^2]",
    "orientation": "of the tool, quaternion x y z w",
    "cone": "around it [rad]",
    "front": "height and width of the picture",
}
SPEED_FACTOR = 1.25  # ratio of the interlock's speed limit to the speed of the largest action


def new_robot(
    model: Path,
    name: str,
    out: Path | None,
    joints: list[str],
    tool: str,
    home: list[float],
    gripper: bool,
) -> None:
    """Write robot.yaml, limits.yaml, reach.yaml and recipe.yaml, and print what was found.

    Args:
        model: an MJCF or a URDF.
        name: name of the robot; by default that of the model's file.
        out: a new folder; the name if None.
        joints: joints of the arm, from base to tool; found in the model if empty.
        tool: site or body of the tool's frame; found in the model if empty.
        home: joint angles where episodes begin [rad or m]; found if empty.
        gripper: whether to use the model's gripper.

    Raises:
        RlinfError: the folder exists, or the model has no arm; the message has the remedy.
    """
    from sim_bridges.simulators.mujoco_arm.design import design

    name = re.sub(r"\W+", "_", name or _name_of(model)).strip("_").lower()
    name = name if re.match("[a-z]", name) else f"arm_{name}"
    folder = empty_folder(out or Path(name))
    print(
        f"{model}: looking for arm, tool, gripper and workspace (seconds to a minute)", flush=True
    )
    plan = design(real_path(model), tuple(joints), tool, tuple(home), gripper)
    files = robot_files(name, model, folder, plan)
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file).write_text(text)
    _report(plan, folder)


def _name_of(model: Path) -> str:
    """Return the robot's name: the file's, or the folder's if the file has a generic name."""
    return (
        model.resolve().parent.name
        if model.stem in ("robot", "model", "scene", "arm")
        else model.stem
    )


def real_path(model: Path) -> Path:
    """Resolve the links in the model's path.

    A link to a file of another kind is kept, as a cache of blobs has it: the meshes lie beside the
        link.
    """
    real = model.resolve()
    return real if real.suffix == model.suffix else model.parent.resolve() / model.name


def robot_files(name: str, model: Path, folder: Path, plan: Any) -> dict[str, str]:
    """Return the text of each file of a robot, by file name."""
    low, high = plan.box.round(3).tolist()
    gripper = plan.options.get("gripper")
    real = real_path(model)
    near = real.is_relative_to(folder.resolve().parent)
    path = os.path.relpath(real, folder.resolve()) if near else str(real)
    options = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in plan.options.items()
        if value
    }
    robot = {
        "driver": "simulator",
        "simulator": "mujoco_arm",
        "options": options | {"model": path},
        "limits": "limits.yaml",
        "task": "./reach.yaml",
        "cameras": {"front": [64, 64]},
    }
    limits = {
        "box_low": low,
        "box_high": high,
        "speed": round(SPEED_FACTOR * plan.step_m * 10, 3),
        "acceleration": 4.0,
        "jerk": "unlimited",
        "divergence": 0.08,
        "orientation": plan.orientation.round(6).tolist(),
        "cone": plan.cone,
        "rotation_divergence": 1.0,
        "stale_state": 0.2,
        "lost_state": 1.0,
        "tick": 0.05,
    }
    if gripper:
        limits |= {"gripper_width": plan.options["gripper_width"], "gripper_speed": 0.5}
    far = round(max(top - bottom for bottom, top in zip(low, high, strict=True)), 2)
    return {
        "robot.yaml": f"# {name}: {model.name} in MuJoCo. Options: docs/tutorials/your_robot.md\n"
        + _yaml(robot),
        "limits.yaml": LIMITS.format(name=name, values=_yaml(limits).rstrip()),
        "reach.yaml": TASK.format(
            name=name,
            low=low,
            high=high,
            far=far,
            step=plan.step_m,
            radius=plan.options["radius_m"],
        ),
        "recipe.yaml": RECIPE.format(name=name, path=folder / "recipe.yaml"),
    }


def _yaml(document: dict[str, Any]) -> str:
    """Write YAML: a block for each mapping, a line for each list, and units as comments."""
    text = yaml.safe_dump(
        document, sort_keys=False, default_flow_style=None, width=math.inf, allow_unicode=True
    )
    lines = [(line, COMMENTS.get(line.strip().partition(":")[0], "")) for line in text.splitlines()]
    return "".join(f"{line}{f'  # {comment}' if comment else ''}\n" for line, comment in lines)


def _report(plan: Any, folder: Path) -> None:
    """Print the parts that were found, and the next steps."""
    options = plan.options
    for joint, (low, high), angle in zip(
        options["joints"], plan.joint_ranges, options["home"], strict=True
    ):
        print(f"  joint    {joint:<28}{low:8.2f} to {high:5.2f}, begins at {angle:.2f}")
    offset = options.get("tool_offset")
    print(
        f"  tool     {options['tool']}"
        + (f", and {list(offset)} m from there, between the fingers" if offset else "")
    )
    if options.get("gripper"):
        print(
            f"  gripper  {', '.join(options['gripper'])}, opens "
            f"{1e3 * options['gripper_width']:.0f} mm"
        )
    else:
        print("  gripper  none")
    print(
        f"  goals    {list(options['goal_low'])} to {list(options['goal_high'])} m in the base "
        f"frame"
    )
    for note in plan.notes[:12]:
        print(f"  note     {note}")
    if len(plan.notes) > 12:
        print(f"  note     and {len(plan.notes) - 12} more of that kind")
    print(
        f"\n{folder} has robot.yaml, limits.yaml, reach.yaml and recipe.yaml. Next:\n"
        f"  rlinf check sim mujoco_arm --robot {_place(folder)} --no-station\n"
        f"  rlinf train {folder / 'recipe.yaml'} --out runs/{folder.name}"
    )


def _place(folder: Path) -> str:
    """Return the folder as a path; a bare word would be the name of a robot."""
    return str(folder) if "/" in str(folder) else f"./{folder}"
