"""The film about the project, by scripts/film.py."""

import subprocess
import sys
from pathlib import Path

import imageio.v3 as imageio
import numpy as np

from scripts.film import Scene, frames, scenes


def test_it_lasts_two_minutes_and_each_picture_is_there():
    everything = scenes(None)
    assert sum(scene.seconds for scene in everything) == 120
    assert [path for scene in everything for path in scene.pictures if not path.is_file()] == []


def test_commands_in_it_exist():
    from rlinf_core.cli.parsers import make_parser

    words = [line[2:].split() for scene in scenes(None) for line in scene.text if line[0] == "$"]
    assert any(words[0] == "rlinf" for words in words)
    for command in (line[1:] for line in words if line[0] == "rlinf"):
        make_parser().parse_args(command)
    targets = Path("Makefile").read_text()
    assert all(f"\n{line[1]}:" in targets for line in words if line[0] == "make")


def test_a_film_in_a_scene_moves_and_a_still_does_not(tmp_path):
    pictures = np.zeros((4, 32, 32, 3), dtype=np.uint8)
    pictures[2:] = 255
    imageio.imwrite(tmp_path / "a.gif", pictures, duration=100)
    imageio.imwrite(tmp_path / "b.jpg", pictures[0])
    for name, differing in (("a.gif", True), ("b.jpg", False)):
        first, *_, last = frames(Scene(0.4, "a", (), (tmp_path / name,)), (160, 96), 10.0)
        assert first.shape == (96, 160, 3) and (first != last).any() == differing


def test_the_command_writes_it(tmp_path):
    film = tmp_path / "film.mp4"
    command = [sys.executable, "scripts/film.py", "--height", "96", "--rate", "1"]
    done = subprocess.run([*command, "--out", film], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert abs(imageio.immeta(film)["duration"] - 120) < 2
    command += ["--run", str(tmp_path), "--out", str(film)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and "Name a finished demo: --run" in done.stderr
