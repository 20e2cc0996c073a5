"""`rlinf replay`: the same motion to the last bit in lockstep, and refusals."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.lockstep_starts import STATION as BENCHMARK_STATION
from benchmarks.lockstep_starts import play, write_policy
from rlinf_core.cli.replay import check
from rlinf_core.core.errors import EpisodeError
from rlinf_core.episodes.actions import motion_difference, read_actions
from rlinf_core.recipes import load_recipe
from rlinf_core.trainer.folder import keep_recipe
from tests.ros.conftest import peer_in

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]
STATION = ["station.task=reach"]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """Two episodes by a policy of chunks, and two by a script, of a station in lockstep."""
    folder = tmp_path_factory.mktemp("recorded")
    policy = write_policy(folder / "policy.safetensors")
    keep_recipe(load_recipe("demo", [*BENCHMARK_STATION]), folder)
    with peer_in(folder, 226) as peer:
        return play(peer, policy)[0]


def rlinf_replay(recording, out):
    words = [
        "replay",
        recording,
        "--out",
        out,
        "--json",
        f"{out}.json",
        "--set",
        "station.domain_id=227",
    ]
    command = [sys.executable, "-m", "rlinf_core.cli.main", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=200, stdin=subprocess.DEVNULL
    )


@pytest.mark.lockstep
@pytest.mark.parametrize("index", [0, 2], ids=["a policy's chunks", "a script's"])
def test_a_replay_in_lockstep_is_the_same_motion_to_the_last_bit(recordings, tmp_path, index):
    done = rlinf_replay(recordings[index], tmp_path / "again")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same motion, to the last bit" in done.stdout
    assert json.loads((tmp_path / "again.json").read_text()) == {"same": True, "difference": 0.0}


def test_a_recording_keeps_the_chunks_that_moved_the_arm(recordings):
    actions = read_actions(recordings[0])
    assert {chunk.horizon for chunk in actions.chunks.values()} == {8} and min(actions.chunks) == 0
    assert sorted(actions.chunks) == list(range(0, len(actions.episode), 4)), (
        "four of eight are played"
    )
    assert len(actions.pose) == 7 and actions.joints
    script = read_actions(recordings[2])
    first = script.chunks[0]
    np.testing.assert_array_equal(first.data, script.episode.requested[0])
    other = replace(script.episode, executed=script.episode.executed + 1e-12)
    assert (
        motion_difference(script.episode, script.episode)
        == 0.0
        < motion_difference(script.episode, other)
    )
    shorter = replace(script.episode, executed=script.episode.executed[:-1])
    assert motion_difference(script.episode, shorter) == float("inf")


def test_what_does_not_fit_the_station_is_refused_by_name(recordings, tmp_path):
    actions, demo = read_actions(recordings[0]), load_recipe("demo", STATION)
    check(actions, recordings[0], demo, "demo")
    slower = replace(
        actions, episode=replace(actions.episode, stamps_ns=actions.episode.stamps_ns * 2)
    )
    with pytest.raises(EpisodeError, match="expected 10 time steps a second, .* got 5.0"):
        check(slower, recordings[0], demo, "demo")
    task = tmp_path / "task.yaml"
    text = Path("configs/tasks/reach.yaml").read_text()
    task.write_text(text.replace("scale: 0.02", "scale: 0.01"))
    assert task.read_text() != text
    with pytest.raises(EpisodeError, match="expected the specs of the station of 'mine'"):
        check(actions, recordings[0], load_recipe("demo", [f"station.task={task}"]), "mine")
    robot = tmp_path / "franka_sim"
    shutil.copytree("sim_bridges/simulators/franka_mujoco/franka_sim", robot)
    limits = robot / "limits.yaml"
    limits.write_text(limits.read_text().replace("\nspeed: ", "\nspeed: 0.1  # "))
    with pytest.raises(EpisodeError, match="expected limits .* as the station has, got"):
        check(
            actions,
            recordings[0],
            load_recipe("demo", [*STATION, f"station.robot={robot}"]),
            "mine",
        )
    other = robot.rename(tmp_path / "another_arm")
    with pytest.raises(
        EpisodeError, match="expected a recording of robot '.*another_arm', got one of 'franka_sim'"
    ):
        check(
            actions,
            recordings[0],
            load_recipe("demo", [*STATION, f"station.robot={other}"]),
            "mine",
        )
