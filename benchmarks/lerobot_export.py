"""How fast episodes with two 480x640 cameras become a LeRobot data set, beside the time that recording them took.

    python benchmarks/lerobot_export.py --json results.json

The pictures are noise that moves over a gradient, which is harder for an encoder than a camera at rest. With
--updates N and `make lerobot`, LeRobot itself then trains its ACT on the data set for N updates (act_steps).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
VENV, CAMERAS = ROOT / ".venvs/lerobot", {"front": (480, 640), "wrist": (480, 640)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--steps", type=int, default=50, help="of an episode, at 10 Hz")
    parser.add_argument("--updates", type=int, default=0, help="of LeRobot's ACT on it")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made(Path(folder), arguments.episodes, arguments.steps)
        result = measured(Path(folder), arguments.episodes * arguments.steps / 10.0)
        result["act_steps"] = trained(Path(folder) / "set", arguments.updates) if arguments.updates else 0
    print(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result))


def made(folder: Path, episodes: int, steps: int) -> None:
    from rlinf_core.episodes.spool import Spool
    from rlinf_core.task import load_task
    from tests.messages import record

    spec = load_task(ROOT / "configs/tasks/peg_insertion.yaml").with_images(CAMERAS).spec
    noise = np.random.default_rng(0).integers(0, 12, (480, 640, 3)) + np.arange(640)[None, :, None] // 4

    def pictures(topic: str, number: int, message: object) -> None:
        for image in getattr(message, "images", ()):
            image.data = np.roll(noise, 3 * number, axis=1).astype(np.uint8).ravel()

    spool = Spool(folder / "spool", min_free_mb=0)
    for number in range(episodes):
        record(spool, spec, f"a-{number:02d}", steps=steps, change=pictures).close()


def measured(folder: Path, recorded_s: float) -> dict[str, float]:
    from rlinf_core.data.lerobot.export import export

    started, computed = time.perf_counter(), time.process_time()
    _, frames = export([folder / "spool"], folder / "set")
    seconds, computed = time.perf_counter() - started, time.process_time() - computed
    size = sum(path.stat().st_size for path in (folder / "set").rglob("*") if path.is_file())
    return {"times_real_time": recorded_s / seconds, "seconds": seconds, "cpu_s": computed, "frames": frames, "hz": 10,
            "megabytes": size / 1e6, "cores": len(os.sched_getaffinity(0))}


def trained(dataset: Path, updates: int) -> int:
    environment = os.environ | {"LD_LIBRARY_PATH": str(VENV / "ffmpeg"), "HF_HUB_OFFLINE": "1"}
    said = subprocess.run([VENV / "bin/python", ROOT / "tests/data/lerobot_itself.py", dataset, str(updates)], text=True,
                          stdout=subprocess.PIPE, env=environment, check=True)
    return len(json.loads(said.stdout.splitlines()[-1])["losses"])


if __name__ == "__main__":
    main()
