"""Check every installed simulator, and measure our overhead over the bare simulator.

    python benchmarks/simulators.py --json results.json

Success is that of the task's script in ten scenes, through the vectorised environment and through a
whole station over ROS (`rlinf check sim`). The cost is the time of one control period of 0.1 s with
a moving arm and without resets: the simulator's own ``step``, and our vectorised environment without
and with the interlock. The figures are medians of three rounds, in which the variants take turns. The
benchmark does not cover pictures, nor the cost of simulators with a Python of their own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
from benchmarks.figures import write  # noqa: E402
from rlinf_core.cli.check import simulator_recipe  # noqa: E402
from rlinf_core.reports.films import caption  # noqa: E402
from sim_bridges.core.conformance import load_recipe_like  # noqa: E402
from sim_bridges.core.environments import make_environments  # noqa: E402
from sim_bridges.core.interface import simulators  # noqa: E402
from sim_bridges.core.isolated import make, python_of  # noqa: E402
from sim_bridges.core.station import simulated_station  # noqa: E402

STEPS, ROUNDS, PICTURE_STEP = 150, 3, 15


def bare_step(name: str) -> Callable[[int], None]:
    """Return a function that steps the simulator alone for one control period."""
    if name == "maniskill":
        import gymnasium
        import mani_skill.envs  # noqa: F401

        env = gymnasium.make(
            "PickCube-v1",
            obs_mode="state",
            control_mode="pd_ee_delta_pos",
            sim_backend="cpu",
            render_backend="cpu",
        ).unwrapped
        env.reset(seed=0)
        return lambda i: [
            env.step(np.array([0.1 * np.sin(0.2 * i), 0, 0, 1.0], np.float32)) for _ in range(2)
        ]
    simulator = make(name)
    if name in ("franka_mujoco", "franka_marks"):
        target = simulator.tcp_pose()
        return lambda i: [
            simulator.advance(target + [0.02 * np.sin(0.2 * i), 0, 0, 0, 0, 0, 0])
            for _ in range(10)
        ]
    if name == "two_frankas":
        poses, rest = simulator.tcp_poses(), simulator.gripper_widths()
        return lambda i: [
            simulator.advance_arms(
                {
                    arm: pose + [0.02 * np.sin(0.2 * i), 0, 0, 0, 0, 0, 0]
                    for arm, pose in poses.items()
                },
                rest,
            )
            for _ in range(10)
        ]
    env = simulator.env
    if name == "gym_hil":
        return lambda i: [
            env.step(np.array([0.002 * np.cos(0.2 * i), 0, 0, 0, 0, 0, 0])) for _ in range(5)
        ]
    if name == "robosuite":
        goal = env.robots[0].part_controllers["right"].ref_pos - simulator.scene.origin
        turn = [2.2, 2.2, 0.0]
        return lambda i: [
            env.step(np.concatenate([goal + [0.02 * np.sin(0.2 * i), 0, 0], turn, [-1.0]]))
            for _ in range(2)
        ]
    if name == "metaworld":
        env.max_path_length = 10**9
        return lambda i: [env.step(np.array([0.2 * np.cos(0.2 * i), 0, 0, -1.0])) for _ in range(8)]
    if name == "gymnasium_robotics":
        return lambda i: [env.step(np.array([0.2 * np.cos(0.2 * i), 0, 0, 1.0])) for _ in range(2)]
    raise SystemExit(f"{name}: expected a case in bare_step that steps this simulator, found none")


def environment_step(name: str, interlock: bool) -> Callable[[int], None]:
    """Return a function that steps the vectorised environment for one control period."""
    recipe = load_recipe_like(
        simulator_recipe(name), f"simulation.interlock={'true' if interlock else 'false'}"
    )
    vector = make_environments(recipe, 1)
    vector.reset([0])
    action = np.zeros((1, vector.spec.action.dim))

    def step(i: int) -> None:
        if i % (vector.envs[0].station.task.max_steps - 1) == 0:
            vector.reset([0])
        action[0, 0] = 0.2 * np.cos(0.2 * i)
        started = time.perf_counter()
        vector.step(action)
        step_seconds.append(time.perf_counter() - started)

    step_seconds: list[float] = []
    step.step_seconds = step_seconds  # resets are not counted
    return step


def milliseconds(step: Callable[[int], None]) -> float:
    """Return the median milliseconds of the steps of one round."""
    times = []
    if hasattr(step, "step_seconds"):
        step.step_seconds.clear()
    for i in range(1, STEPS):
        started = time.perf_counter()
        step(i)
        times.append(time.perf_counter() - started)
    return 1e3 * float(np.median(getattr(step, "step_seconds", None) or times))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--json", type=Path, help="write one flat object there")
    parser.add_argument("--picture", type=Path, help="draw all simulators there, side by side")
    parser.add_argument("--cost-of", help=argparse.SUPPRESS)
    parser.add_argument("--picture-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.picture_of:
        draw(options.picture_of, options.picture)
        return
    if options.cost_of:
        print(json.dumps(measure_cost(options.cost_of)))
        return
    result: dict[str, float] = {"simulators_run_here": 0}
    print(
        f"{'':22}{'checks':>9}{'vectorised':>12}{'station':>9}{'bare_step ms':>9}{'ours':>7}{'ratio':>7}"
        f"{'with interlock':>16}"
    )
    for name in options.only or simulators():
        figures = check_simulator(name)
        if figures is None:
            print(f"{name:22}  not installed here")
            continue
        result["simulators_run_here"] += figures["kept"] == figures["checks"]
        print(
            f"{name:22}{figures['kept']:5.0f}/{figures['checks']:.0f}{figures['success_vectorised']:12.0%}"
            f"{figures['success_station']:9.0%}"
            + (
                ""
                if "ratio" not in figures
                else f"{figures['bare_ms']:9.2f}"
                f"{figures['ours_ms']:7.2f}{figures['ratio']:7.2f}{figures['ratio_interlock']:16.2f}"
            ),
            flush=True,
        )
        result |= {f"{name}_{key}": value for key, value in figures.items() if key != "simulator"}
    if options.json:
        write(options.json, result)
    if options.picture:
        side_by_side(options.only or simulators(), options.picture)


def draw(name: str, file: Path) -> None:
    """Write a picture of the script at work, half way."""
    import imageio

    station = simulated_station(simulator_recipe(name))
    station.reset(3)
    for _ in range(PICTURE_STEP):
        station.step(station.expert())
    imageio.imwrite(file, caption([station.simulator.render("video", 360, 480)], name)[0])


def side_by_side(names: list[str], file: Path) -> None:
    """Write the pictures of all installed simulators, three in a row."""
    import imageio

    with TemporaryDirectory() as folder:
        for name in names:
            subprocess.run(
                [
                    sys.executable,
                    __file__,
                    "--picture-of",
                    name,
                    "--picture",
                    f"{folder}/{name}.png",
                ],
                cwd=ROOT,
                capture_output=True,
            )
        pictures = [imageio.v2.imread(path) for path in sorted(Path(folder).glob("*.png"))]
    pictures += [np.full_like(pictures[0], 255)] * (-len(pictures) % 3)
    imageio.imwrite(
        file, np.vstack([np.hstack(pictures[i : i + 3]) for i in range(0, len(pictures), 3)])
    )


def check_simulator(name: str) -> dict[str, float] | None:
    """Check one simulator in separate processes, because graphics libraries conflict."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        command = [
            sys.executable,
            "-m",
            "rlinf_core.cli.main",
            "check",
            "sim",
            name,
            "--json",
            str(file),
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        if not file.exists():
            if "which is not installed" in done.stderr or "expected ROBOTWIN_ROOT" in done.stderr:
                return None
            raise SystemExit(f"{name}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        figures = json.loads(file.read_text())
    if python_of(name):
        return figures
    done = subprocess.run(
        [sys.executable, __file__, "--cost-of", name], capture_output=True, text=True, cwd=ROOT
    )
    if done.returncode:
        raise SystemExit(f"{name}, its cost:\n{done.stderr[-2000:]}")
    return figures | json.loads(done.stdout.strip().splitlines()[-1])


def measure_cost(name: str) -> dict[str, float]:
    """Return medians over the rounds [ms], and the ratios to the bare simulator."""
    variants = {
        "bare": bare_step(name),
        "ours": environment_step(name, False),
        "interlock": environment_step(name, True),
    }
    rounds = {variant: [] for variant in variants}
    for _ in range(ROUNDS):
        for variant, step in variants.items():
            rounds[variant].append(milliseconds(step))
    medians = {variant: float(np.median(values)) for variant, values in rounds.items()}
    return {f"{variant}_ms": value for variant, value in medians.items()} | {
        "ratio": medians["ours"] / medians["bare"],
        "ratio_interlock": medians["interlock"] / medians["bare"],
    }


if __name__ == "__main__":
    main()
