"""LeRobot itself, in an environment of its own (make lerobot), on a data set of ours."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from rlinf_core.cli.main import main
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.spool import Spool
from tests.messages import record

VENV = Path(".venvs/lerobot").resolve()
EPISODES, STEPS, UPDATES = 20, 15, 100


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not (VENV / "bin/python").exists(), reason="not run: .venvs/lerobot is not there (make lerobot)"
)
def test_lerobot_loads_and_iterates_an_export_and_trains_its_act_on_it(task, tmp_path):
    spool = Spool(tmp_path / "spool", min_free_mb=0)
    spec = task.with_images({"front": (64, 96), "wrist": (64, 96)}).spec
    operator = dict.fromkeys(range(STEPS), "operator")
    for number in range(EPISODES):
        record(
            spool,
            spec,
            f"a-{number:02d}",
            steps=STEPS,
            start=float(number),
            sources=operator,
            mode="demonstration",
        ).close()
    assert main(["data", "export", "lerobot", str(spool.root), "--out", str(tmp_path / "set")]) == 0
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(VENV / "ffmpeg"),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "hf"),
    }
    process = subprocess.run(
        [VENV / "bin/python", "tests/data/lerobot_itself.py", tmp_path / "set", str(UPDATES)],
        text=True,
        capture_output=True,
        env=environment,
        timeout=800,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    report = json.loads(process.stdout.splitlines()[-1])
    assert (report["episodes"], report["frames"], report["task"]) == (
        EPISODES,
        EPISODES * STEPS,
        "do it",
    )
    episodes = [read_episode(folder) for folder in sorted((spool.root / "closed").iterdir())]
    vectors = [item.name for item in spec.vectors]
    state = np.concatenate(
        [
            np.concatenate([one.observations[name][:-1] for name in vectors], axis=1)
            for one in episodes
        ]
    )
    assert np.array_equal(np.array(report["state"], np.float32), state)
    action = np.concatenate([one.requested for one in episodes]).astype(np.float32)
    assert np.array_equal(np.array(report["action"], np.float32), action)
    for camera in ("front", "wrist"):
        brightness = np.concatenate(
            [one.observations[camera][:-1].mean((1, 2, 3)) for one in episodes]
        )
        assert (
            np.abs(np.array(report["cameras"][f"observation.images.{camera}"]) - brightness).max()
            < 4
        )
    losses = report["losses"]
    assert (
        len(losses) == UPDATES
        and np.isfinite(losses).all()
        and np.mean(losses[-20:]) < 0.7 * np.mean(losses[:20])
    )
