"""``rlinf view``: layouts of RViz and Foxglove for a station or a recording."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from rlinf_core.core.errors import RecipeError
from rlinf_core.core.ros import process_environment
from rlinf_core.launch.layouts import (
    LayoutContent,
    content_of_recipe,
    content_of_recording,
    foxglove,
    rviz,
    rviz_command,
)
from rlinf_core.recipes import load_recipe


def view(name: str, overrides: list[str], run_dir: Path, show: bool) -> int:
    """Write both layouts of a recipe's or a recording's station, and print how to open them."""
    shown, domain = _shown(name, overrides)
    run_dir.mkdir(parents=True, exist_ok=True)
    files = {kind: run_dir / f"{shown.station}.{kind}" for kind in ("rviz", "foxglove.json")}
    files["rviz"].write_text(rviz(shown))
    files["foxglove.json"].write_text(foxglove(shown))
    command = rviz_command(str(files["rviz"]), shown)
    print(f"RViz:     {shlex.join(command)}")
    print(
        f"Foxglove: open {files['foxglove.json']} (Layouts, Import), then a connection, or the "
        f"recording's .mcap file"
    )
    if not show:
        return 0
    if not shutil.which("rviz2"):
        raise RecipeError(
            "rviz2: expected the command in this shell, found none. Run: source "
            "/opt/ros/$ROS_DISTRO/setup.bash, or apt-get install ros-$ROS_DISTRO-rviz2"
        )
    if domain is not None:
        os.environ.update(process_environment(domain))
    os.execvp(command[0], command)


def _shown(name: str, overrides: list[str]) -> tuple[LayoutContent, int | None]:
    folder = Path(name)
    if (folder / "metadata.yaml").is_file():
        if overrides:
            raise RecipeError(f"--set: expected none with a recording, got {' '.join(overrides)}")
        return content_of_recording(folder), None
    recipe = load_recipe(name, overrides)
    return content_of_recipe(recipe), recipe.station.domain
