"""Write the gallery of simulators' tasks, with a picture and a learning curve of each.

    python scripts/gallery.py [--only maniskill_push ...] [--runs runs/tasks]

With --runs the evaluations in FOLDER/<task>_<seed>/progress.jsonl go into
benchmarks/results/task_curves.json first. A curve is drawn from that file, or from the first and
last evaluation in tasks.json. The row of a task without a run says so.

The task's script plays one held-out scene, and the picture shows two thirds of it. The bars are
success by chance, after demonstrations alone and after RL, of benchmarks/results/tasks.json (python
benchmarks/tasks.py). A simulator that is not installed keeps the picture that it has.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
import sim_bridges.core.mujoco  # noqa: E402, F401
from rlinf_core.recipes import load_recipe  # noqa: E402
from rlinf_core.reports.curves import read_evaluations  # noqa: E402
from rlinf_core.reports.throughput import wilson  # noqa: E402

PAGE, PICTURES = ROOT / "docs/simulators/gallery.md", ROOT / "docs/images/gallery"
FIGURES = ROOT / "benchmarks/results/tasks.json"
# by task: time steps, success and episodes of each evaluation
CURVES = ROOT / "benchmarks/results/task_curves.json"
SIZE, TIMEOUT_S = (280, 210), 300
DASHES = ' stroke-dasharray="4 3"'
COLOURS = ((190, 190, 190), (96, 165, 235), (80, 175, 76))  # BGR: chance, demonstrations, RL
HEAD = """# Gallery

After this page you know how each task looks and how well the shipped recipe learns it.
`rlinf train simulators/NAME` trains one. The bars below a picture are success by chance (grey),
after ten demonstrations alone (orange) and after RL (green), on 50 held-out scenes each.
A learning curve is the success of one run (seed 0) over its time steps of RL, with the 95 %
interval of each evaluation. A dashed line joins the first and the last evaluation of a run whose
other evaluations were not kept. A short run has a small budget and may end before the task is
learned. [Simulators](index.md) has intervals, steps and minutes.

`python scripts/gallery.py` writes this page and its pictures; do not edit it.

"""


def recipes() -> list[str]:
    """Return every recipe of a simulator's task, without its folder."""
    return sorted(path.stem for path in (ROOT / "configs/simulators").glob("*.yaml"))


def draw(name: str) -> None:
    """Play one scene and write its picture."""
    import cv2

    from sim_bridges.core.environments import make_environments

    recipe = load_recipe(f"simulators/{name}")
    env = make_environments(recipe, 1)
    env.auto_reset = False
    env.reset([recipe.evaluate.first_seed])
    pictures = [env.render()]
    while True:
        done = env.step(env.expert()).done[0]
        pictures.append(env.render())
        if done:
            break
    env.close()
    picture = pictures[len(pictures) * 2 // 3]
    height, width = picture.shape[:2]
    high, wide = min(height, width * SIZE[1] // SIZE[0]), min(width, height * SIZE[0] // SIZE[1])
    top, left = (height - high) // 2, (width - wide) // 2
    small = cv2.resize(
        picture[top : top + high, left : left + wide, ::-1], SIZE, interpolation=cv2.INTER_AREA
    )
    figures = json.loads(FIGURES.read_text())
    for row, key in enumerate(("chance", "before", "after")):
        if (success := figures.get(f"{name}_{key}")) is not None:
            line = SIZE[1] - 18 + 6 * row
            cv2.rectangle(small, (0, line), (SIZE[0], line + 5), (255, 255, 255), -1)
            cv2.rectangle(small, (0, line), (round(success * SIZE[0]), line + 5), COLOURS[row], -1)
    PICTURES.mkdir(exist_ok=True)
    cv2.imwrite(str(PICTURES / f"{name}.jpg"), small, [cv2.IMWRITE_JPEG_QUALITY, 80])


def read_curves(runs: Path) -> None:
    """Add the evaluations of the runs below a folder to the curves."""
    curves = json.loads(CURVES.read_text()) if CURVES.exists() else {}
    for name in recipes():
        for run in sorted(runs.glob(f"{name}_[0-9]*"))[:1]:
            if (run / "progress.jsonl").exists():
                curves[name] = [
                    [int(entry["env_steps"]), entry["success"], int(entry["episodes"])]
                    for entry in read_evaluations(run)
                ]
    CURVES.write_text(json.dumps(curves, indent=1) + "\n")


def curve(points: Iterable[tuple[int, float, int]], dashed: bool) -> str:
    """Return a learning curve as SVG: success over time steps, with 95 % intervals.

    Args:
        points: (time steps, success, episodes) of each evaluation.
        dashed: evaluations between the points are missing.
    """
    points = list(points)
    width, height, left, top = 200, 110, 34, 8
    last = max(points[-1][0], 1)

    def place(steps: int, success: float) -> str:
        x = left + (width - left - 8) * steps / last
        y = top + (height - top - 20) * (1 - success)
        return f"{x:.1f},{y:.1f}"

    bounds = [
        (steps, *wilson(round(success * episodes), episodes)) for steps, success, episodes in points
    ]
    band = [place(steps, low) for steps, low, _ in bounds] + [
        place(steps, high) for steps, _, high in reversed(bounds)
    ]
    line = " ".join(place(steps, success) for steps, success, _ in points)
    dots = "".join(
        f'<circle cx="{x}" cy="{y}" r="2"/>'
        for x, y in (point.split(",") for point in line.split())
    )
    words = "".join(
        f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'
        for x, y, anchor, text in (
            (left - 4, top + 4, "end", "100%"),
            (left - 4, height - 17, "end", "0%"),
            (left, height - 6, "start", "0"),
            (width - 8, height - 6, "end", f"{last:,} steps"),
        )
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 '
        f'{width} {height}" '
        f'font-family="sans-serif" font-size="10" fill="#666">\n<rect x="{left}" y="{top}" '
        f'width="{width - left - 8}" '
        f'height="{height - top - 20}" fill="none" stroke="#bbb"/>\n<polygon '
        f'points="{" ".join(band)}" fill="#4caf50" '
        f'fill-opacity="0.2"/>\n<polyline points="{line}" fill="none" stroke="#4caf50" '
        f'stroke-width="2"'
        f"{DASHES if dashed else ''}/>\n"
        f'<g fill="#4caf50">{dots}</g>\n{words}\n</svg>\n'
    )


def ends(name: str) -> list[tuple[int, float, int]]:
    """Return the first and the last evaluation of the full run in benchmarks/results/tasks.json.

    The list is empty without a run.
    """
    figures = json.loads(FIGURES.read_text())
    if f"{name}_after" not in figures:
        return []
    episodes = figures[f"{name}_episodes"]
    return [
        (0, figures[f"{name}_before"], episodes),
        (figures[f"{name}_env_steps"], figures[f"{name}_after"], episodes),
    ]


def write_curves() -> None:
    """Draw each curve that was measured, and remove others."""
    curves = json.loads(CURVES.read_text())
    for name in recipes():
        path = PICTURES / f"{name}_curve.svg"
        path.unlink(missing_ok=True)
        if points := curves.get(name) or ends(name):
            path.write_text(curve(points, dashed=name not in curves))


def page() -> str:
    """Return the page's Markdown, with the pictures that exist."""
    figures, curves = json.loads(FIGURES.read_text()), json.loads(CURVES.read_text())
    rows = [
        "| task | picture | recipe | chance, demonstrations, RL | learning curve |",
        "|---|---|---|---|---|",
    ]
    for name in recipes():
        recipe = load_recipe(f"simulators/{name}")
        words = name.replace("_", " ")
        picture = f"![The task {words} during the script's episode](../images/gallery/{name}.jpg)"
        success = ", ".join(
            f"{figures[key]:.0%}" if (key := f"{name}_{part}") in figures else "not measured"
            for part in ("chance", "before", "after")
        )
        learning = "not run"
        if points := curves.get(name) or ends(name):
            full = recipe.simulation.env_steps
            run = (
                "start and end of the full run"
                if name not in curves
                else (
                    "full run"
                    if points[-1][0] >= full
                    else f"short run of {points[-1][0]:,} of {full:,} steps"
                )
            )
            learning = (
                f"![Success of {words} over time steps](../images/gallery/{name}_curve.svg) {run}"
            )
        rows.append(
            f"| {words} | {picture if (PICTURES / f'{name}.jpg').exists() else 'not installed'} | "
            f"`simulators/{name}` with `{recipe.station.robot}` | {success} | {learning} |"
        )
    return HEAD + "\n".join(rows) + "\n"


def main() -> None:
    """Draw each task in its own process, because simulators exclude each other; write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=recipes(), metavar="NAME")
    parser.add_argument(
        "--runs",
        type=Path,
        metavar="FOLDER",
        help="run folders of benchmarks/tasks.py, for the curves",
    )
    parser.add_argument("--draw", choices=recipes(), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.draw:
        draw(options.draw)
        return
    if options.runs:
        read_curves(options.runs)
    write_curves()
    for name in recipes() if options.only is None else options.only:
        ended = subprocess.run(
            [sys.executable, __file__, "--draw", name],
            cwd=ROOT,
            timeout=TIMEOUT_S,
            text=True,
            capture_output=True,
        )
        failed = ended.returncode != 0
        print(f"{name}: {ended.stderr.strip().splitlines()[-1] if failed else 'drawn'}", flush=True)
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
