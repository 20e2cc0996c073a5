"""Measure the export of episodes with two 480x640 cameras to a LeRobot data set.

    python benchmarks/lerobot_export.py --json results.json

``times_real_time`` is the time of the recording divided by the time of the export. The pictures are
noise that moves over a gradient, which is harder for an encoder than a camera at rest. With
--updates N and `make lerobot`, LeRobot trains its ACT on the data set for N updates (act_steps). With
--peer, LeRobot writes a data set of the same pictures by the calls of its own recording (add_frame,
save_episode, finalize; its own threads and encoder): lerobot_times_real_time, lerobot_cpu_s. The
benchmark does not cover making pictures, nor those of a real camera.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks.figures import write  # noqa: E402

VENV, CAMERAS = ROOT / ".venvs/lerobot", {"front": (480, 640), "wrist": (480, 640)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--steps", type=int, default=50, help="time steps of an episode, at 10 Hz")
    parser.add_argument("--updates", type=int, default=0, help="updates of LeRobot's ACT")
    parser.add_argument("--peer", action="store_true", help="also measure LeRobot's own recording")
    parser.add_argument("--recording", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="write one flat object there")
    arguments = parser.parse_args()
    if arguments.recording:  # this process runs in LeRobot's environment
        print(
            json.dumps(
                record_with_lerobot(arguments.recording, arguments.episodes, arguments.steps)
            )
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        write_episodes(Path(folder), arguments.episodes, arguments.steps)
        result = measure_export(Path(folder), arguments.episodes * arguments.steps / 10.0)
        result["act_steps"] = (
            train_act(Path(folder) / "set", arguments.updates) if arguments.updates else 0
        )
        if arguments.peer:
            result |= run_peer(Path(folder), arguments.episodes, arguments.steps)
    print(result)
    if arguments.json:
        write(arguments.json, result)


def write_episodes(folder: Path, episodes: int, steps: int) -> None:
    """Record the episodes into a spool."""
    from rlinf_core.episodes.spool import Spool
    from rlinf_core.tasks.task import load_task
    from tests.messages import record

    spec = load_task(ROOT / "configs/tasks/peg_insertion.yaml").with_images(CAMERAS).spec
    first = noise()

    def pictures(topic: str, number: int, message: object) -> None:
        for image in getattr(message, "images", ()):
            image.data = np.roll(first, 3 * number, axis=1).ravel()

    spool = Spool(folder / "spool", min_free_mb=0)
    for number in range(episodes):
        record(spool, spec, f"a-{number:02d}", steps=steps, change=pictures).close()


def noise() -> np.ndarray:
    """Return the first picture (480, 640, 3), uint8."""
    grain = np.random.default_rng(0).integers(0, 12, (480, 640, 3))
    return (grain + np.arange(640)[None, :, None] // 4).astype(np.uint8)


def measure_export(folder: Path, recorded_s: float) -> dict[str, float]:
    from rlinf_core.data.lerobot.export import export

    started, computed = time.perf_counter(), time.process_time()
    _, frames = export([folder / "spool"], folder / "set")
    seconds, computed = time.perf_counter() - started, time.process_time() - computed
    size = sum(path.stat().st_size for path in (folder / "set").rglob("*") if path.is_file())
    return {
        "times_real_time": recorded_s / seconds,
        "seconds": seconds,
        "cpu_s": computed,
        "frames": frames,
        "hz": 10,
        "megabytes": size / 1e6,
        "cores": len(os.sched_getaffinity(0)),
    }


def train_act(dataset: Path, updates: int) -> int:
    return len(run_in_lerobot(ROOT / "tests/data/lerobot_itself.py", dataset, updates)["losses"])


def run_peer(folder: Path, episodes: int, steps: int) -> dict[str, float]:
    return run_in_lerobot(
        __file__, "--recording", folder / "theirs", "--episodes", episodes, "--steps", steps
    )


def run_in_lerobot(*command: object) -> dict:
    """Run a script in LeRobot's environment; return the JSON of its last line."""
    if not (VENV / "bin/python").exists():
        raise SystemExit(
            f"{VENV}: expected LeRobot's own environment, found none. Make it: make lerobot"
        )
    environment = os.environ | {"LD_LIBRARY_PATH": str(VENV / "ffmpeg"), "HF_HUB_OFFLINE": "1"}
    process = subprocess.run(
        [VENV / "bin/python", *map(str, command)],
        text=True,
        stdout=subprocess.PIPE,
        env=environment,
        check=True,
    )
    return json.loads(process.stdout.splitlines()[-1])


def record_with_lerobot(folder: Path, episodes: int, steps: int) -> dict[str, float]:
    """Write a data set like ``lerobot-record``, in LeRobot's environment."""
    import torch

    library = torch.library.Library("torchvision", "DEF")  # as in tests/data/lerobot_itself.py
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from run_in_lerobot.datasets.lerobot_dataset import LeRobotDataset

    image = {"dtype": "video", "shape": (480, 640, 3), "names": ["height", "width", "channels"]}
    vector = {"dtype": "float32", "shape": (7,), "names": [f"v{index}" for index in range(7)]}
    features = {f"observation.images.{name}": image for name in CAMERAS} | {
        "observation.state": vector,
        "action": vector,
    }
    pictures = [np.roll(noise(), 3 * step, axis=1) for step in range(steps)]
    numbers = np.zeros(7, np.float32)
    before, started = cpu_s(), time.perf_counter()
    dataset = LeRobotDataset.create(
        "local/theirs",
        fps=10,
        features=features,
        root=folder,
        use_videos=True,
        image_writer_threads=4 * len(CAMERAS),
    )
    for _ in range(episodes):
        for step in range(steps):
            images = {f"observation.images.{name}": pictures[step] for name in CAMERAS}
            dataset.add_frame(
                images | {"observation.state": numbers, "action": numbers, "task": "insert the peg"}
            )
        dataset.save_episode()
    dataset.finalize()
    seconds = time.perf_counter() - started
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {
        "lerobot_times_real_time": episodes * steps / 10.0 / seconds,
        "lerobot_seconds": seconds,
        "lerobot_cpu_s": cpu_s() - before,
        "lerobot_megabytes": size / 1e6,
    }


def cpu_s() -> float:
    """Return the processor time of this process, its threads and its ended children [s]."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


if __name__ == "__main__":
    main()
