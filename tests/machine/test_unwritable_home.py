"""A home that cannot be written ends no run, and loses no log."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf_core.core import paths as homes
from rlinf_core.core.paths import (
    CACHES,
    INDUCTOR,
    ROS_LOG_DIR,
    can_write,
    home_remedy,
    replacement_folders,
)

SET = [ROS_LOG_DIR, "ROS_HOME", "HF_HOME", INDUCTOR, *CACHES]


@pytest.fixture
def fresh(monkeypatch):
    """Reset the process's state as at its start; its files are removed after the test."""
    for name in SET:
        monkeypatch.delenv(name, raising=False)
    for cached in (replacement_folders, homes._spare):
        cached.cache_clear()
    yield monkeypatch
    for cached in (replacement_folders, homes._spare):
        cached.cache_clear()


def test_a_home_that_can_be_written_stays_as_it_is(fresh, tmp_path):
    fresh.setenv("HOME", str(tmp_path))
    assert replacement_folders() == {INDUCTOR: str(tmp_path / ".cache/rlinf/torchinductor")}, (
        "not /tmp, by a known name"
    )
    assert home_remedy() == "" and list(tmp_path.iterdir()) == [], "nothing is made to find out"


@pytest.mark.parametrize("place", ["/proc/none", "a_file", None])
def test_in_the_place_of_a_home_that_cannot_be_written_there_are_empty_folders(
    fresh, tmp_path, place
):
    (tmp_path / "a_file").touch()
    if place is None:  # no user's number has a home
        fresh.delenv("HOME", raising=False)
        fresh.setattr(homes.os.path, "expanduser", lambda path: path)
    else:
        fresh.setenv("HOME", str(tmp_path / place))
    folders = replacement_folders()
    assert folders.keys() == {ROS_LOG_DIR, INDUCTOR, *CACHES}
    assert all(can_write(Path(folder)) for folder in folders.values())
    assert "export ROS_LOG_DIR=" in home_remedy() and "XDG_CACHE_HOME=" in home_remedy()


def test_what_the_user_has_set_stays(fresh, tmp_path):
    fresh.setenv("HOME", "/proc/none")
    for name in SET:
        fresh.setenv(name, str(tmp_path / name))
    assert replacement_folders() == {} and home_remedy() == ""
    fresh.delenv(ROS_LOG_DIR)
    replacement_folders.cache_clear()
    assert replacement_folders() == {}, "ROS_HOME says it too"


def test_what_huggingface_has_fetched_is_still_found(fresh, tmp_path):
    cache = tmp_path / ".cache/huggingface"
    cache.mkdir(parents=True)
    fresh.setenv("HOME", str(tmp_path))
    fresh.setattr(homes, "can_write", lambda folder: not folder.is_relative_to(tmp_path))
    assert replacement_folders()["HF_HOME"] == str(cache) and replacement_folders()[
        "XDG_CACHE_HOME"
    ] != str(tmp_path / ".cache")


def test_a_log_folder_of_another_user_alone_is_replaced(fresh, tmp_path):
    (tmp_path / ".ros").touch()  # as one that `sudo ros2` has left
    fresh.setenv("HOME", str(tmp_path))
    assert replacement_folders().keys() == {ROS_LOG_DIR, INDUCTOR} and "XDG" not in home_remedy()


def test_the_folders_end_with_their_process(tmp_path):
    code = "from rlinf_core.core.paths import replacement_folders; print(replacement_folders()['XDG_CACHE_HOME'])"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"HOME": "/proc/none"},
        text=True,
        capture_output=True,
    )
    folder = Path(ran.stdout.strip())
    assert folder.name.startswith("rlinf-home-") and not folder.exists(), ran.stderr


@pytest.mark.ros
@pytest.mark.timeout(300)
def test_a_station_runs_without_a_home_and_its_nodes_log_into_the_run(tmp_path):
    run = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "rlinf_core.cli.main",
        "collect",
        "demo",
        "--episodes",
        "1",
        "--out",
        str(run),
        "--set",
        "station.domain_id=136",
    ]
    values = {name: value for name, value in os.environ.items() if name not in SET}
    ran = subprocess.run(
        command, env=values | {"HOME": "/proc/none"}, text=True, capture_output=True
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    assert "initialize logging" not in "".join(log.read_text() for log in (run / "logs").iterdir())
    assert list((run / "ros_logs").glob("*.log"))
