"""DDS segments: those of dead processes of this user go, and no others."""

import fcntl
import os
import subprocess
import sys
import time

import pytest

from rlinf_core.launch import supervisor
from rlinf_core.launch.supervisor import SHARED_MEMORY, free_segments

SEGMENT, PORT = "fastrtps_0123456789abcdef", "fastrtps_port7411"


def left(folder, name, lock="_el", old=True):
    paths = [folder / name, folder / f"{name}{lock}", folder / f"sem.{name}_mutex"]
    for path in paths:
        path.touch()
    if old:
        os.utime(paths[1], (0, 0))
    return paths


@pytest.mark.parametrize("lock", ["_el", "_sl"])
def test_what_a_dead_process_has_left_goes_and_what_is_no_segment_stays(tmp_path, lock):
    left(tmp_path, SEGMENT, lock), left(tmp_path, PORT, lock)
    others = [
        tmp_path / name
        for name in ("fastrtps_", "somebody's", "fastrtps_port_el", f"{SEGMENT}_el.bak")
    ]
    for path in others:
        path.touch()
    assert sorted(free_segments(tmp_path)) == [SEGMENT, PORT] and sorted(
        tmp_path.iterdir()
    ) == sorted(others)
    assert free_segments(tmp_path / "nowhere") == []


@pytest.mark.parametrize("how", [fcntl.LOCK_EX, fcntl.LOCK_SH])
def test_what_a_living_process_holds_stays(tmp_path, how):
    paths = left(tmp_path, PORT, "_sl") + left(tmp_path, PORT, "_el")
    with open(tmp_path / f"{PORT}_sl") as lock:
        fcntl.flock(lock, how)
        assert free_segments(tmp_path) == [] and all(path.exists() for path in paths)
    assert free_segments(tmp_path) == [PORT]


def test_one_that_is_as_yet_unlocked_stays(tmp_path):
    left(tmp_path, SEGMENT, old=False)
    assert free_segments(tmp_path) == []


def test_a_lock_has_ten_seconds_to_be_taken(tmp_path, monkeypatch):
    lock = left(tmp_path, SEGMENT)[1]
    os.utime(lock, (1000, 1000))
    monkeypatch.setattr(supervisor.time, "time", lambda: 1010.0)
    assert free_segments(tmp_path) == []
    monkeypatch.setattr(supervisor.time, "time", lambda: 1010.1)
    assert free_segments(tmp_path) == [SEGMENT]


def test_no_link_is_followed(tmp_path):
    target = tmp_path / "target"
    target.touch()
    os.utime(target, (0, 0))
    (tmp_path / f"{SEGMENT}_el").symlink_to(target)
    (tmp_path / SEGMENT).touch()
    assert free_segments(tmp_path) == [] and target.exists() and (tmp_path / SEGMENT).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_those_of_another_user_stay(tmp_path):
    paths = left(tmp_path, SEGMENT)
    os.chown(paths[1], 12345, 12345)
    assert free_segments(tmp_path) == [] and all(path.exists() for path in paths)
    os.chown(paths[1], 0, 0), os.chown(paths[0], 12345, 12345)
    free_segments(tmp_path)
    assert paths[0].exists(), "nor a segment of another user beside a lock of one's own"


def test_a_station_frees_them_when_it_starts_and_when_it_stops(tmp_path, monkeypatch):
    freed = []
    monkeypatch.setattr(supervisor, "free_segments", lambda: freed.append(time.monotonic()))
    with supervisor.Supervisor(tmp_path, 90):
        assert len(freed) == 1
    assert len(freed) == 2


@pytest.mark.ros
@pytest.mark.timeout(120)
def test_the_segments_of_a_killed_node_go_and_those_of_a_living_one_stay(tmp_path):
    code = (
        "import rclpy, time; rclpy.init(); node = rclpy.create_node('a'); print('there', "
        "flush=True); time.sleep(99)"
    )
    environment = supervisor.ros_environment(141)
    killed, alive = (
        subprocess.Popen(
            [sys.executable, "-c", code], env=environment, text=True, stdout=subprocess.PIPE
        )
        for _ in range(2)
    )
    try:
        assert killed.stdout.readline() == alive.stdout.readline() == "there\n"
        before = set(os.listdir(SHARED_MEMORY))
        killed.kill()
        killed.wait()
        for path in SHARED_MEMORY.glob("fastrtps_*_[es]l"):
            os.utime(path, (0, 0))
        freed = free_segments()
        assert freed and {name for name in os.listdir(SHARED_MEMORY)} < before
        assert alive.poll() is None and free_segments() == []
        assert list(SHARED_MEMORY.glob("fastrtps_*_el")), "those of the living one"
    finally:
        alive.kill()
        alive.wait()
