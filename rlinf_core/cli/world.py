"""``rlinf world``: fit and check a model of a run's task, and rank policies by its predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlinf_core.cli.output import write_json
from rlinf_core.core.errors import RlinfError
from rlinf_core.core.outputs import new_file
from rlinf_core.recipes import Recipe, load_recipe, station_task

if TYPE_CHECKING:
    from rlinf_core.worlds.model import WorldModel


VIDEO = "video.safetensors"


def fit(run_dir: Path, overrides: list[str], seconds: float | None, json_file: Path | None) -> None:
    """Fit a world to a run's recordings, and write it beside them."""
    import torch

    from rlinf_core.trainer.worlds import FILE, run_episodes
    from rlinf_core.worlds.episodes import Episodes
    from rlinf_core.worlds.model import WorldModel

    torch.set_num_threads(1)
    recipe = _recipe(_run_folder(run_dir), overrides)
    task = station_task(recipe)
    episodes = Episodes(run_episodes(run_dir, task.spec))
    print(
        f"{len(episodes)} episodes, {episodes.steps} time steps; every tenth episode is held out",
        flush=True,
    )
    world = WorldModel(task, recipe.world, recipe.seed)
    world.fit(episodes, seconds=seconds)
    print(f"written: {world.save(run_dir / FILE, episodes)}")
    _report(world, json_file)


def fit_video(
    run_dir: Path, overrides: list[str], updates: int, film: Path | None, json_file: Path | None
) -> None:
    """Fit the tiny video model to the camera of a run's recordings, and write it beside them."""
    import torch

    from rlinf_core.reports.films import write_video
    from rlinf_core.trainer.worlds import run_episodes
    from rlinf_core.worlds import tiny_video
    from rlinf_core.worlds.imagined_video import spec_camera

    torch.set_num_threads(1)
    recipe = _recipe(_run_folder(run_dir), overrides)
    spec = station_task(recipe).spec
    camera = spec_camera(spec)
    episodes = [(one.observations[camera], one.actions) for one in run_episodes(run_dir, spec)]
    print(f"{len(episodes)} episodes of camera {camera}; every fifth is held out", flush=True)
    network, result = tiny_video.fit(episodes, updates, recipe.seed)
    path = tiny_video.save(network, result, run_dir / VIDEO)
    print("mean error of the pictures by time step [of 255]; in brackets if nothing changed;")
    print("then the same over the pixels that moved")
    for step in range(len(result.errors)):
        print(
            f"  {step + 1:3d}  {result.errors[step]:6.2f}  ({result.persistence[step]:.2f})   "
            f"{result.moving[step]:6.1f}  ({result.moving_persistence[step]:.1f})"
        )
    print(f"written: {path}")
    if film:
        frames_shown, played = episodes[-1]
        frames = tiny_video.film_imagination(network, frames_shown, played)
        write_video(film, list(frames.repeat(8, axis=1).repeat(8, axis=2)))
        print(f"film, recorded left and imagined right: {film}")
    write_json(
        json_file,
        {f"error_{step + 1}": error for step, error in enumerate(result.errors)}
        | {f"still_{step + 1}": error for step, error in enumerate(result.persistence)},
    )


def check(
    run_dir: Path, overrides: list[str], steps: int, picture: Path | None, json_file: Path | None
) -> None:
    """Print and draw a world's error by step, its calibration and horizon on held-out episodes."""
    from rlinf_core.trainer.worlds import world_file
    from rlinf_core.worlds.model import load_world

    path = world_file(run_dir)
    world, episodes = load_world(path, station_task(_recipe(run_dir, overrides)))
    world.check = world.evaluate_held_out(episodes, steps)
    _report(world, json_file)
    picture = picture or path.with_name("world.png")
    draw(world, picture)
    print(f"picture: {picture}")


def rank(
    world: Path, policies: list[Path], overrides: list[str], episodes: int, json_file: Path | None
) -> None:
    """Print the success that a world predicts for each policy, the best first."""
    import torch

    from rlinf_core.policies.policy_folder import newest_policy
    from rlinf_core.policies.serialization import load_policy
    from rlinf_core.trainer.worlds import predict, world_file
    from rlinf_core.worlds.model import load_world

    torch.set_num_threads(1)
    task = station_task(_recipe(world, overrides))
    model, recorded = load_world(world_file(world), task)
    files = [file for place in policies or [world] for file in _policies(place)]
    # all of them first, so that a damaged one is refused before the imagination
    loaded = {file: load_policy(newest_policy(file), task.spec).eval() for file in files}
    predictions = {
        file: predict(model, recorded, policy, episodes) for file, policy in loaded.items()
    }
    for file, one in sorted(predictions.items(), key=lambda item: -item[1].success):
        print(
            f"{one.success:4.0%} (95 % interval {one.low:.0%} to {one.high:.0%} of {episodes} "
            f"imagined episodes, unsure in {one.unsure:.0%}): {file}"
        )
    write_json(json_file, {str(file): one.success for file, one in predictions.items()})


def _policies(place: Path) -> list[Path]:
    """Return a policy file, or those of a run."""
    from rlinf_core.policies.policy_folder import policy_files

    return [place] if place.is_file() else policy_files(place / "policies") or [place]


def _run_folder(run_dir: Path) -> Path:
    """Return the folder of a run, into which a fit writes.

    Raises:
        RlinfError: it is a file.
    """
    if run_dir.is_file():
        raise RlinfError(
            f"{run_dir}: expected the folder of a run, got a file. Name its folder, such as "
            f"{run_dir.parent}"
        )
    return run_dir


def _recipe(run_dir: Path, overrides: list[str]) -> Recipe:
    """Return the recipe of a run's folder, or of the run that holds a world's file."""
    folder = run_dir if run_dir.is_dir() else run_dir.parent
    if not (folder / "recipe.yaml").is_file():
        raise RlinfError(f"{folder}: expected the folder of a run, with recipe.yaml, got none")
    return load_recipe(folder / "recipe.yaml", overrides)


def _report(world: WorldModel, json_file: Path | None) -> None:
    """Print the figures, and write them as one flat object."""
    check = world.check
    metres = bool(check.tool_mm)
    unit, errors, still = (
        ("mm of the tool", check.tool_mm, check.persistence_mm)
        if metres
        else ("deviations of a time step's change", check.errors, check.persistence)
    )
    print(
        f"error by time step, {check.windows} held-out beginnings [{unit}]; in brackets if nothing "
        f"changed"
    )
    for step in sorted({1, 2, 5, 10, len(errors)} & set(range(1, len(errors) + 1))):
        print(f"  {step:3d}  {errors[step - 1]:7.2f}  ({still[step - 1]:.2f})")
    print(
        f"disagreement: rank correlation with the error {check.correlation:.2f}; a branch ends "
        f"beyond {check.threshold:.3g}; of time steps within it {check.coverage:.0%} have no "
        "error among the largest 5 %"
    )
    print(
        f"branches of at most {check.horizon} time steps"
        if world.usable
        else "off: its prediction is hardly better than no change. Record more episodes"
    )
    write_json(
        json_file,
        {
            **{f"error_{step + 1}": error for step, error in enumerate(check.errors)},
            **{f"error_{step + 1}_mm": error for step, error in enumerate(check.tool_mm)},
            "disagreement_correlation": check.correlation,
            "threshold": check.threshold,
            "coverage": check.coverage,
            "horizon": check.horizon,
        },
    )


def draw(world: WorldModel, path: Path) -> None:
    """Draw the error by time step, and that of persistence."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    check = world.check
    unit, errors, still = (
        ("mm of the tool", check.tool_mm, check.persistence_mm)
        if check.tool_mm
        else ("deviations of a time step's change", check.errors, check.persistence)
    )
    steps = range(1, len(errors) + 1)
    figure, axes = pyplot.subplots(figsize=(6, 4))
    axes.plot(steps, errors, marker="o", label="learned world")
    axes.plot(steps, still, linestyle="--", label="nothing changes")
    if world.usable:
        axes.axvline(check.horizon, color="grey", linewidth=1, label="longest branch")
    axes.set_xlabel("time steps ahead")
    axes.set_ylabel(f"mean error [{unit}]")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def fit_splats(
    transforms: Path,
    out: Path,
    gaussians: int,
    updates: int,
    size: int,
    box: list[float],
    json_file: Path | None,
) -> None:
    """Fit Gaussian splats to pictures with camera poses, and write them."""
    import torch

    from sim_bridges.core import splats

    new_file(out)
    torch.set_num_threads(1)
    views, pictures = splats.read_transforms(transforms, size)
    print(f"{len(views)} pictures of {pictures.shape[2]} x {size}", flush=True)
    start = splats.scattered(gaussians, box[:3], box[3:])
    before = splats.picture_error(start, views, pictures)
    fitted = splats.fit(start, views, pictures, updates)
    after = splats.picture_error(fitted, views, pictures)
    print(f"mean error of the pictures [of 255]: {before:.1f} before, {after:.1f} after")
    print(f"written: {splats.save(fitted, out)}; use it with station.options.background={out}")
    write_json(json_file, {"before": before, "after": after})
