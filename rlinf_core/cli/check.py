"""``rlinf check``: check a simulator, the jail, or a policy against a data set and a station."""

from __future__ import annotations

from pathlib import Path

from rlinf_core.cli.output import write_json
from rlinf_core.config.overrides import quote_value
from rlinf_core.core.errors import RecipeError
from rlinf_core.recipes import Recipe, load_recipe
from rlinf_core.robots.config import load_robot, robots


def check_command(
    kind: str,
    simulator: str,
    robot: str | None,
    task: str | None,
    episodes: int,
    station: bool,
    json_file: Path | None,
    data: Path | None,
    recipe_name: str | None,
    overrides: list[str],
    video: Path | None = None,
) -> int:
    """Print every check of a simulator, of the jail or of a model; 1 if one failed."""
    if kind == "jail":
        return check_jail(json_file)
    if not simulator:
        raise RecipeError(
            f"rlinf check {kind}: expected a {'path' if kind == 'model' else 'name'}, got none"
        )
    if kind == "model":
        return check_model(Path(simulator), data, recipe_name, overrides, json_file)
    from sim_bridges.core.conformance import Row, checks

    recipe = simulator_recipe(simulator, robot, task)
    print(
        f"{simulator}: robot {recipe.station.robot}, task {recipe.station.task}, {episodes} scenes"
    )
    rows: list[Row] = []
    figures: dict[str, float] = {}
    for row in checks(recipe, episodes, station, figures, video):
        rows.append(row)
        print(f"  {row}", flush=True)
    passed = sum(bool(row.passed) for row in rows)
    print(f"{passed} of {len(rows)} kept")
    write_json(json_file, {"simulator": simulator, "kept": passed, "checks": len(rows), **figures})
    return 0 if passed == len(rows) else 1


def check_jail(json_file: Path | None) -> int:
    """Run every escape in a jail and print whether it succeeds; 1 if one does."""
    from rlinf_core.agentic.jail_drill import ESCAPES, attempt

    escaped = []
    for escape in ESCAPES:
        success, outcome = attempt(escape)
        escaped += [escape.name] if success else []
        print(f"  {'ESCAPED' if success else 'held   '}  {escape.name} ({outcome.end})", flush=True)
    print(f"{len(ESCAPES)} escapes tried, {len(escaped)} succeeded")
    write_json(json_file, {"jail_tried": len(ESCAPES), "jail_escapes": len(escaped)})
    return 1 if escaped else 0


def check_model(
    model: Path,
    data: Path | None,
    recipe_name: str | None,
    overrides: list[str],
    json_file: Path | None,
) -> int:
    """Print whether a checkpoint's folder or a policy file fits a data set and a recipe's station.

    Returns 1 if it does not fit.
    """
    if data is None or recipe_name is None:
        raise RecipeError(
            "check model: expected both --data and --recipe. Example: rlinf check model "
            "/models/pi0 --data runs/x/spool --recipe my_recipe"
        )
    from rlinf_core.data.check_model import check_policy, read_samples, to_json
    from rlinf_core.policies import make_policy
    from rlinf_core.policies.base import NetworkPolicy
    from rlinf_core.policies.serialization import load_policy
    from rlinf_core.recipes import station_task

    published = model.is_dir() and (model / "config.json").is_file()
    checkpoint = [f"policy.checkpoint={quote_value(model.resolve())}"] if published else []
    recipe = load_recipe(recipe_name, [*overrides, *checkpoint])
    spec = station_task(recipe).spec

    def load() -> NetworkPolicy:
        return make_policy(spec, recipe.policy).eval() if published else load_policy(model, spec)

    rows = []
    for row in check_policy(load, spec, read_samples(data, spec), model):
        rows.append(row)
        print(f"  {row}", flush=True)
    faults = [row.name for row in rows if not row.passed]
    print(
        f"{len(rows) - len(faults)} of {len(rows)} passed"
        + (f"; faults: {', '.join(faults)}" if faults else "")
    )
    if json_file:
        json_file.write_text(to_json(rows))
    return 1 if faults else 0


def simulator_recipe(simulator: str, robot: str | None = None, task: str | None = None) -> Recipe:
    """Return a recipe for a robot of a simulator and a task.

    Args:
        simulator: name of the simulator.
        robot: name or path of the robot; by default the first one of this simulator.
        task: name or path of the task; by default the robot's own.

    Raises:
        RecipeError: the simulator, a robot in it or a task is unknown.
    """
    from sim_bridges.core.interface import simulator_class

    simulator_type = simulator_class(simulator)
    for name in [robot] if robot else robots():
        candidate = load_robot(name)
        if not candidate.simulator or simulator_class(candidate.simulator) is not simulator_type:
            if robot:
                raise RecipeError(
                    f"--robot {robot}: expected a robot with 'simulator: {simulator}', got "
                    f"{candidate.simulator or 'a robot with another driver'}"
                )
            continue
        if not (task or candidate.task):
            raise RecipeError(
                f"robot '{name}': expected 'task' in its robot.yaml, or --task, got neither"
            )
        return load_recipe(
            "sim_rlpd",
            [
                f"station.robot={quote_value(name)}",
                f"station.task={quote_value(task or candidate.task)}",
                "station.lockstep=true",
            ],
        )
    raise RecipeError(
        f"simulator '{simulator}': expected a robot with 'simulator: {simulator}', found none. "
        "Name yours with --robot"
    )
