"""Write a film of two minutes about rlinf: the demo, the operator's page, the simulators.

    python scripts/film.py --out film.mp4                  # with the pictures of docs/images
    rlinf demo --out runs/film && python scripts/film.py --run runs/film --out film.mp4

With ``--run`` the scenes before and after RL are those of that demo, and its learning curve is
shown. The film has no sound. Each scene states its length below, so the text on it can be read
twice.
"""

from __future__ import annotations

import argparse
import itertools
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageSequence

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs/images"
SIZE, RATE = (1280, 720), 10
INK, PAPER, ACCENT = "#e8eaed", "#14171a", "#7bc4a4"
GALLERY = ("maniskill_pick", "robosuite_stack", "metaworld_drawer", "gymnasium_robotics_push")


@dataclass(frozen=True)
class Scene:
    """A heading, text below it, and pictures or a film beside it.

    Attributes:
        seconds: length of the scene.
        heading: one line.
        text: lines; a line that begins with ``$`` is a command.
        pictures: files. Several pictures share the time; a film or GIF is repeated.
    """

    seconds: float
    heading: str
    text: tuple[str, ...] = ()
    pictures: tuple[Path, ...] = ()


def scenes(run: Path | None) -> list[Scene]:
    """Return the scenes; they last 120 s together."""
    demo = run / "before_after.mp4" if run else IMAGES / "demo.gif"
    curve = run / "learning_curve.png" if run else IMAGES / "learning_curves.png"
    states = tuple(
        IMAGES / f"page_{name}.jpg" for name in ("disarmed", "active", "takeover", "hold", "fault")
    )
    return [
        Scene(8, "rlinf", ("Robot policies by reinforcement learning,", "over ROS 2.")),
        Scene(
            12,
            "One loop for robots and simulators",
            (
                "A station plays the policy and records episodes.",
                "A trainer learns from them and sends the next policy.",
                "A simulated station runs the nodes of a real one.",
            ),
        ),
        Scene(
            12,
            "Only the interlock moves the arm",
            (
                "Policy, person, script and reset pass through it.",
                "It limits workspace, speed, acceleration and force.",
                "A person arms a real arm. STOP always stops it.",
            ),
        ),
        Scene(10, "The first run", ("$ make setup", "$ make demo")),
        Scene(20, "Peg insertion: before RL (left), after RL (right)", (), (demo,)),
        Scene(12, "Success over time steps", (), (curve,)),
        Scene(
            20,
            "The operator's page",
            ("Take over, label, stop.", "By mouse, touch or keyboard."),
            states,
        ),
        Scene(
            12,
            "Twelve simulators, one interface",
            (),
            tuple(IMAGES / f"gallery/{name}.jpg" for name in GALLERY),
        ),
        Scene(
            10,
            "Your own arm, from its MJCF or URDF",
            ("$ rlinf new robot arm.xml", "$ rlinf train robots/arm/recipe.yaml"),
        ),
        Scene(4, "docs/start/first_run.md", ("Nothing of this has run on your arm yet.",)),
    ]


def frames(scene: Scene, size: tuple[int, int], rate: float) -> Iterator[np.ndarray]:
    """Yield the frames (height, width, 3) of a scene."""
    count = max(round(scene.seconds * rate), 1)
    card = _card(scene, size)
    moving = [_moving(path, rate) for path in scene.pictures]
    for index in range(count):
        frame = card.copy()
        if moving:
            picture = next(moving[index * len(moving) // count])
            _paste(frame, picture, bool(scene.text))
        yield np.asarray(frame)


def _card(scene: Scene, size: tuple[int, int]) -> Image.Image:
    card = Image.new("RGB", size, PAPER)
    draw, (width, height) = ImageDraw.Draw(card), size
    draw.rectangle((0, 0, width, height // 90), fill=ACCENT)
    draw.text((width // 20, height // 18), scene.heading, INK, _font(height / 15))
    column = width // 3 if scene.pictures else width
    per_line = int(column * 0.9 / (height / 22 * 0.55))
    lines = itertools.chain.from_iterable(
        [line] if line.startswith("$") else textwrap.wrap(line, per_line) for line in scene.text
    )
    for number, line in enumerate(lines):
        at = width // 20, height // 4 + number * height // 12
        draw.text(at, line, ACCENT if line.startswith("$") else INK, _font(height / 22))
    return card


def _font(pixels: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=pixels)


def _paste(frame: Image.Image, picture: Image.Image, has_text: bool) -> None:
    """Put a picture below the heading, right of the text if there is one."""
    width, height = frame.size
    left, top = (width * 2 // 5 if has_text else width // 20), height // 6
    room = width - left - width // 20, height - top - height // 20
    scale = min(room[0] / picture.width, room[1] / picture.height)
    fitted = picture.resize(
        (max(int(picture.width * scale), 1), max(int(picture.height * scale), 1))
    )
    frame.paste(fitted, (left + (room[0] - fitted.width) // 2, top))


def _moving(path: Path, rate: float) -> Iterator[Image.Image]:
    """Yield the pictures of a file for ever, at the film's rate."""
    if path.suffix not in (".gif", ".mp4"):
        still = Image.open(path).convert("RGB")
        while True:
            yield still
    while True:
        ahead_s = 0.0
        for picture, seconds in _timed(path):
            ahead_s += seconds
            while ahead_s > 1e-6:
                yield picture
                ahead_s -= 1.0 / rate


def _timed(path: Path) -> Iterator[tuple[Image.Image, float]]:
    """Yield each picture of a film or GIF and its time [s]."""
    import imageio.v3 as imageio

    if path.suffix == ".gif":
        with Image.open(path) as gif:
            for picture in ImageSequence.Iterator(gif):
                yield picture.convert("RGB"), max(picture.info.get("duration", 100), 10) / 1000.0
        return
    seconds = 1.0 / float(imageio.immeta(path)["fps"])
    for frame in imageio.imiter(path):
        yield Image.fromarray(frame), seconds


def main() -> None:
    """Write the film."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, help="folder of a finished rlinf demo")
    parser.add_argument("--out", type=Path, required=True, help="the film (.mp4)")
    parser.add_argument("--height", type=int, default=SIZE[1], help="of the film [px]")
    parser.add_argument("--rate", type=float, default=RATE, help="frames a second (default: 10)")
    options = parser.parse_args()
    height = options.height // 16 * 16  # the codec's blocks
    size = (height * 16 // 9 // 16 * 16, height)
    everything = scenes(options.run)
    missing = [path for scene in everything for path in scene.pictures if not path.is_file()]
    if missing:
        raise SystemExit(
            f"{missing[0]}: expected a picture or film, got no file. Name a finished demo: --run"
        )
    import imageio

    with imageio.get_writer(options.out, fps=options.rate, macro_block_size=16) as film:
        for number, scene in enumerate(everything, 1):
            print(f"{number} of {len(everything)}: {scene.heading}", flush=True)
            for frame in frames(scene, size, options.rate):
                film.append_data(frame)
    print(f"{options.out}: {sum(scene.seconds for scene in everything):g} s")


if __name__ == "__main__":
    main()
