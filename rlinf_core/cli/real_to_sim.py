"""``rlinf find-dynamics`` and ``rlinf replay --in-sim``: the response of an arm and a simulator."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import yaml

from rlinf_core.cli.output import write_json
from rlinf_core.core.atomic_io import replace_text
from rlinf_core.core.errors import RecipeError
from rlinf_core.core.outputs import new_file
from rlinf_core.data.episodes import intact_episodes
from rlinf_core.episodes.arm_response import ArmResponse, identify
from rlinf_core.recipes import load_recipe
from rlinf_core.reports.recordings import run_recipe

RESPONSE_NAMES = ("delay_s", "lag_s", "gain")
MAX_SINGLE_FITS = 50  # largest number of episodes that are also fitted alone
LISTED = (1, 2, 5, 10, 20, 50, 100)  # time steps whose error is printed
LARGE_MM = 20.0  # error of the tool above which the simulator is unlike the arm


def find_dynamics(
    recordings: list[Path],
    velocity: str,
    episodes: int,
    json_file: Path | None,
    out: Path | None = None,
    recipe: str | None = None,
    overrides: list[str] | None = None,
) -> None:
    """Print the arm's response over all recordings, its spread, and ranges to randomise.

    With ``out`` fit a simulator instead, and write its recipe.
    """
    if out:
        fit_simulator(recordings, recipe, overrides or [], episodes, out, json_file)
        return
    if recipe or overrides:
        raise RecipeError(
            "rlinf find-dynamics: expected --out FILE.yaml with --recipe and --set, got none. "
            "They name the simulator that --out fits"
        )
    from rich.progress import track

    episode_paths = islice(intact_episodes(recordings), episodes)
    read = [episode for _, episode in track(episode_paths, "reading", total=None, transient=True)]
    together = identify(read, velocity)
    single = [
        identify([episode], velocity)
        for episode in track(read[:MAX_SINGLE_FITS], "fitting", transient=True)
    ]
    print(response_text(together, single, len(read)))
    write_json(
        json_file,
        {
            "episodes": len(read),
            **{name: getattr(together, name) for name in (*RESPONSE_NAMES, "explained")},
        },
    )


def response_text(together: ArmResponse, single: list[ArmResponse], episodes: int) -> str:
    """Return the result of ``find_dynamics`` in words."""
    lines = [
        f"{episodes} episodes; the model accounts for {together.explained:.0%} of the tool's motion"
    ]
    for name in RESPONSE_NAMES:
        low, high = np.quantile([getattr(response, name) for response in single], [0.05, 0.95])
        lines.append(
            f"  {name:<8} {getattr(together, name):.3f}   single episodes {low:.3f} to {high:.3f}"
        )
    if together.explained < 0.7:
        lines.append(
            "the fit is poor: contact, active limits, or a controller of another kind. Record free "
            "motion"
        )
    delay, lag = 1.5 * together.delay_s, 1.5 * together.lag_s
    lines.append(
        f"for simulation.randomise: {{delay_s: {delay:.2f}, lag_s: {lag:.2f}}}, minus the "
        "simulator's own values (run find-dynamics on a recording of the simulator too)"
    )
    return "\n".join(lines)


def replay_in_sim(
    recording: Path, recipe: str | None, overrides: list[str], json_file: Path | None
) -> int:
    """Play a recording in the recipe's simulator, and print the error by time step."""
    from rlinf_core.episodes.read import read_episode
    from sim_bridges.core.real_to_sim import replay, with_dynamics
    from sim_bridges.core.station import simulated_station

    loaded = load_recipe(recipe or run_recipe(recording), overrides)
    blind = loaded.station.model_copy(update={"observe_cameras": ()})
    loaded = loaded.model_copy(update={"station": blind})
    station = simulated_station(with_dynamics(loaded, loaded.simulation.dynamics, {}))
    result = replay(station, read_episode(recording))
    if not result.arranged:
        print(
            "the simulator cannot put tool and object where they were recorded, so displacements "
            "of the tool are compared"
        )
    felt = bool(len(result.force_n))
    print(f"error of the tool [mm]{' and of the force [N]' if felt else ''} by time step")
    last = len(result.tool_mm) - 1
    for step in sorted({step for step in LISTED if step <= last} | {last}):
        force = f"  {result.force_n[step]:6.2f}" if felt else ""
        print(f"  {step:4d}  {result.tool_mm[step]:7.2f}{force}")
    mean = float(result.tool_mm.mean())
    print(f"mean {mean:.2f} mm, largest {result.tool_mm.max():.2f} mm")
    if mean > LARGE_MM:
        print("the simulator moves unlike the arm: fit it with rlinf find-dynamics --out FILE")
    figures = {"mean_mm": mean, "largest_mm": float(result.tool_mm.max())}
    figures |= {f"error_{step}_mm": float(error) for step, error in enumerate(result.tool_mm)}
    write_json(json_file, figures)
    return 0


def fit_simulator(
    recordings: list[Path],
    recipe: str | None,
    overrides: list[str],
    episodes: int,
    out: Path,
    json_file: Path | None,
) -> None:
    """Fit the recipe's simulator to recordings, and write a recipe with the fitted values."""
    from sim_bridges.core.real_to_sim import fit, object_range

    new_file(out)
    name = recipe or str(run_recipe(recordings[0]))
    loaded = load_recipe(name, overrides)
    read = [episode for _, episode in islice(intact_episodes(recordings), episodes)]
    result = fit(loaded, read, lambda line: print(line, flush=True))
    print(
        f"mean error of the tool in a replay: {result.before_mm:.2f} mm before, "
        f"{result.after_mm:.2f} mm after"
    )
    ranges = object_range(loaded, read)
    for source, (low, high) in ranges.items():
        print(f"{source} at the first time step: {_numbers(low)} to {_numbers(high)} m")
    path = Path(name)
    document = {
        "defaults": str(path.resolve()) if path.is_file() else name,
        "name": f"{loaded.name}_fitted",
        "simulation": {"dynamics": result.dynamics.model_dump()},
    }
    if result.options:
        options = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in result.options.items()
        }
        document["station"] = {"options": options}
    lines = [
        f"# Simulator fitted to {len(read)} recorded episodes by rlinf find-dynamics.",
        *(
            f"# {key}: from {_numbers(low)} to {_numbers(high)} m"
            for key, (low, high) in ranges.items()
        ),
        yaml.safe_dump(document, sort_keys=False),
    ]
    replace_text(out, "\n".join(lines))
    print(f"written: {out}")
    write_json(json_file, _flat(result.dynamics.model_dump(), result.options, result))


def _flat(dynamics: dict, options: dict, result: object) -> dict[str, float]:
    document = dict(dynamics)
    for key, value in options.items():
        parts = value if isinstance(value, tuple) else (value,)
        names = [key] if len(parts) == 1 else [f"{key}_{index}" for index in range(len(parts))]
        document |= dict(zip(names, map(float, parts), strict=True))
    return document | {name: float(getattr(result, name)) for name in ("before_mm", "after_mm")}


def _numbers(values: np.ndarray) -> str:
    return "[" + ", ".join(f"{value:.3f}" for value in values) + "]"
