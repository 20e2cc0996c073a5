"""Write docs/simulators/gallery.md and docs/images/gallery/: a picture and the success of each task that simulators have.

    python scripts/gallery.py [--only maniskill_push ...]

The task's script plays one held-out scene, and the picture shows two thirds of it. The bars are success by chance, after
demonstrations alone and after RL, of benchmarks/results/tasks.json (python benchmarks/tasks.py). A simulator that is not
installed keeps the picture that it has.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
import sim_bridges.core.mujoco  # noqa: E402, F401 (says how MuJoCo renders before any simulator imports it)
from rlinf_core.recipes import load_recipe  # noqa: E402

PAGE, PICTURES = ROOT / "docs/simulators/gallery.md", ROOT / "docs/images/gallery"
FIGURES = ROOT / "benchmarks/results/tasks.json"
SIZE, TIMEOUT_S = (280, 210), 300
COLOURS = ((190, 190, 190), (96, 165, 235), (80, 175, 76))  # BGR: chance, demonstrations, RL
HEAD = """# Gallery

After this page you know how each task looks and how well the shipped recipe learns it.
`rlinf train simulators/NAME` trains one. The bars below a picture are success by chance (grey),
after ten demonstrations alone (orange) and after RL (green), on 50 held-out scenes each.
[Simulators](index.md) has the intervals, steps and minutes.

`python scripts/gallery.py` writes this page and its pictures; do not edit it.

"""


def recipes() -> list[str]:
    """Every recipe of a simulator's task, without its folder."""
    return sorted(path.stem for path in (ROOT / "configs/simulators").glob("*.yaml"))


def draw(name: str) -> None:
    """Play one scene and write its picture."""
    import cv2

    from sim_bridges.core.environments import stations

    recipe = load_recipe(f"simulators/{name}")
    env = stations(recipe, 1)
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
    small = cv2.resize(picture[top:top + high, left:left + wide, ::-1], SIZE, interpolation=cv2.INTER_AREA)
    figures = json.loads(FIGURES.read_text())
    for row, key in enumerate(("chance", "before", "after")):
        if (success := figures.get(f"{name}_{key}")) is not None:
            line = SIZE[1] - 18 + 6 * row
            cv2.rectangle(small, (0, line), (SIZE[0], line + 5), (255, 255, 255), -1)
            cv2.rectangle(small, (0, line), (round(success * SIZE[0]), line + 5), COLOURS[row], -1)
    PICTURES.mkdir(exist_ok=True)
    cv2.imwrite(str(PICTURES / f"{name}.jpg"), small, [cv2.IMWRITE_JPEG_QUALITY, 80])


def page() -> str:
    """The Markdown of the page, of the pictures that exist."""
    figures = json.loads(FIGURES.read_text())
    rows = ["| task | picture | recipe | chance, demonstrations, RL |", "|---|---|---|---|"]
    for name in recipes():
        recipe = load_recipe(f"simulators/{name}")
        words = name.replace("_", " ")
        picture = f"![The task {words} during the script's episode](../images/gallery/{name}.jpg)"
        success = ", ".join(f"{figures[key]:.0%}" if (key := f"{name}_{part}") in figures else "not measured"
                            for part in ("chance", "before", "after"))
        rows.append(f"| {words} | {picture if (PICTURES / f'{name}.jpg').exists() else 'not installed'} | "
                    f"`simulators/{name}` with `{recipe.station.robot}` | {success} |")
    return HEAD + "\n".join(rows) + "\n"


def main() -> None:
    """Draw each task in a process of its own, as simulators exclude each other, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=recipes(), metavar="NAME")
    parser.add_argument("--draw", choices=recipes(), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.draw:
        draw(options.draw)
        return
    for name in recipes() if options.only is None else options.only:
        ended = subprocess.run([sys.executable, __file__, "--draw", name], cwd=ROOT,
                               timeout=TIMEOUT_S, text=True, capture_output=True)
        print(f"{name}: {'drawn' if ended.returncode == 0 else ended.stderr.strip().splitlines()[-1]}", flush=True)
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
