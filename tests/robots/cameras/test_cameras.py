"""Cameras without ROS: a video in a UVC camera's place, librealsense's software device, and what is
said where none is.
"""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from rlinf_core.core.errors import DeviceError, RlinfError
from rlinf_core.core.machine import DEVICE_RULES
from rlinf_core.robots.cameras import DeviceClock, realsense, uvc
from sim_bridges.twins.realsense import RealSenseTwin

pytestmark = pytest.mark.timed

MS = 1_000_000


def uvc_camera(device, **changes):
    return uvc.Camera(
        **({"kind": "uvc", "device": str(device), "size": (48, 64), "fps": 200.0} | changes)
    )


def test_a_video_plays_over_and_over_with_red_first(video):
    source = uvc_camera(video, lens=(60.0, 60.0, 32.0, 24.0)).open()
    frames = [source.read() for _ in range(10)]
    greens = [int(frame.pixels[..., 1].mean()) for frame in frames]
    assert all(
        frame.pixels.shape == (48, 64, 3) and frame.pixels[..., 0].mean() > 150 for frame in frames
    )
    assert greens[:8] == sorted(greens[:8]) and greens[8] < 20, "the ninth is the first"
    assert source.lens == (60.0, 60.0, 32.0, 24.0)
    source.close()


def test_what_nobody_reads_in_time_is_lost_as_of_a_camera(video):
    source = uvc_camera(video).open()
    first = source.read().number
    time.sleep(0.05)  # ten of them
    late = source.read()
    assert late.number >= first + 10 and abs(time.time_ns() - late.stamp_ns) < 1000 * MS
    assert source.read().number > late.number


def test_a_camera_that_is_pulled_out_or_of_another_size_is_said(video):
    source = uvc_camera(video).open()
    source.read()
    video.rename(video.with_suffix(".gone"))
    with pytest.raises(
        DeviceError,
        match="unplugged: expected an image of .*wrist.avi.* searches for it every second",
    ) as error:
        source.read()
    assert error.value.disconnected
    video.with_suffix(".gone").rename(video)
    with pytest.raises(
        DeviceError,
        match=r"expected images of \[64, 64\] .*got \[48, 64\].*Set cameras.<name>.size",
    ):
        uvc_camera(video, size=(64, 64)).open().read()


def test_what_is_no_camera_is_refused_with_those_that_are_there(tmp_path, monkeypatch):
    links = tmp_path / "by-id"
    links.mkdir()
    (links / "usb-Logitech_C920-video-index0").touch()
    (links / "usb-Logitech_C920-video-index1").touch()  # its metadata
    monkeypatch.setattr(uvc, "LINKS", links)
    with pytest.raises(
        DeviceError,
        match=r"got: No such file.*Devices: .*C920-video-index0\. If .* udev rule 71-rlinf",
    ):
        uvc_camera("/dev/none").open()
    with pytest.raises(DeviceError, match="expected a camera or a video file at .*got neither"):
        uvc_camera(tmp_path).open()
    (tmp_path / "text.avi").write_text("no video")
    with pytest.raises(DeviceError, match="got a path that OpenCV cannot open"):
        uvc_camera(tmp_path / "text.avi").open()
    with pytest.raises(DeviceError, match="got a path that OpenCV cannot open"):
        uvc_camera("/dev/null").open()
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may all
    with pytest.raises(
        DeviceError, match=r"permission denied: .* /dev/null\. .* udev rule 71-rlinf-devices.rules"
    ):
        uvc_camera("/dev/null").open()


def test_a_devices_stamps_become_ours_without_what_a_busy_bus_adds():
    """The device's clock began an hour ago and gains 50 parts in a million; every third image takes
    30 ms longer.
    """
    clock, begun = DeviceClock(), 5_000_000 * MS
    taken = [begun + 33 * MS * index for index in range(900)]
    arrived = [at + 4 * MS + (30 * MS if index % 3 == 0 else 0) for index, at in enumerate(taken)]
    theirs = [3600_000 * MS + round((at - begun) * 1.00005) for at in taken]
    ours = [clock.host_ns(*pair) for pair in zip(theirs, arrived, strict=True)]
    late = np.subtract(ours, taken)[1:]
    assert late.min() >= 4 * MS - 1 and late.max() < 4 * MS + 1 * MS, (
        "the shortest way, and at most 0.5 ms of drift"
    )
    assert all(stamp <= came for stamp, came in zip(ours, arrived, strict=True))
    assert clock.host_ns(17, arrived[-1] + 33 * MS) == arrived[-1] + 33 * MS, (
        "it was switched off meanwhile"
    )


def real(**changes):
    settings = {"kind": "realsense", "serial": "001", "size": (48, 64), "fps": 30.0, "twin": True}
    return realsense.Camera(**(settings | changes))


@pytest.fixture
def twin():
    camera = RealSenseTwin("001", (48, 64), 30.0, depth=True)
    yield camera
    camera.close()


@pytest.mark.parametrize("depth", [False, True])
def test_librealsenses_software_device_is_read_as_a_camera_is(depth):
    source = real(depth=depth).open()
    frames = [source.read() for _ in range(6)]
    for frame in frames:
        number = frame.number
        assert frame.pixels.shape == (48, 64, 3) and tuple(frame.pixels[0, 0]) == (
            number & 255,
            number >> 8,
            0,
        )
        assert 0 <= time.time_ns() - frame.stamp_ns < 2000 * MS, "its clock began with it"
    assert [frame.number for frame in frames] == sorted({frame.number for frame in frames})
    stamps = [frame.stamp_ns for frame in frames]
    assert stamps == sorted(stamps)
    assert source.lens[:4] == (64.0, 64.0, 32.0, 24.0)
    if depth:
        row = frames[-1].depth[24, 4:60].astype(int)
        assert (
            frames[-1].depth.dtype == np.uint16
            and (np.diff(row) > 0).all()
            and 300 < row[0] < row[-1] < 1500
        )
    else:
        assert frames[-1].depth is None
    source.close()


def test_one_that_falls_silent_is_begun_anew(twin):
    source = realsense.RealSenseSource(real(), twin.device)
    source.read()
    twin.close()
    with pytest.raises(
        DeviceError, match="unplugged or silent: expected an image of RealSense '001' within 1 s"
    ) as error:
        for _ in range(5):  # what waited is read first
            source.read()
    assert error.value.disconnected and not source.sensors, "closed"


@pytest.mark.parametrize("closed", [True, False])
def test_its_thread_ends_before_the_process_does(closed):
    """One that came back to Python's end out of librealsense aborted ``rlinf doctor station``."""
    words = (
        "import atexit, threading; n = threading.active_count; atexit.register(lambda: "
        "print(n()))\n"
        "from sim_bridges.twins.realsense import RealSenseTwin\n"
        "twin = RealSenseTwin('001', (48, 64), 30.0, depth=True); "
        f"{closed} and (twin.close(), print(n()))"
    )
    ran = subprocess.run([sys.executable, "-c", words], text=True, capture_output=True)
    assert ran.returncode == 0 and ran.stdout.split() == (["1", "1"] if closed else ["1"]), (
        ran.stderr
    )


def test_a_size_that_it_has_not_is_refused(twin):
    with pytest.raises(
        DeviceError,
        match=r"expected color of \[480, 640\] .* at 30 Hz of RealSense '001', which lacks",
    ):
        realsense.RealSenseSource(real(size=(480, 640)), twin.device)


def test_another_serial_number_and_a_missing_rule_are_said(twin, tmp_path, monkeypatch):
    rs = realsense.library()
    assert (
        realsense.select(rs, [twin.device], "001").get_info(rs.camera_info.serial_number) == "001"
    )
    monkeypatch.setattr(realsense, "USB", tmp_path)
    with pytest.raises(
        DeviceError,
        match="serial number '002', found '001' .software device.. Plug it into a USB 3 port",
    ):
        realsense.select(rs, [twin.device], "002")
    (tmp_path / "2-1").mkdir()
    for name, attribute in (
        ("idVendor", "8086"),
        ("idProduct", "0b07"),
        ("busnum", "2"),
        ("devnum", "7"),
    ):
        (tmp_path / "2-1" / name).write_text(f"{attribute}\n")
    rule = os.path.basename(DEVICE_RULES)
    with pytest.raises(
        DeviceError, match=f"found none. permission denied: .*/dev/bus/usb/002/007.*{rule}"
    ):
        realsense.select(rs, [], "002")


def test_a_library_that_does_not_load_ends_it_for_good(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyrealsense2", None)
    with pytest.raises(RlinfError, match="expected pyrealsense2 to load, .*libusb-1.0-0") as error:
        real(twin=False).open()
    assert not isinstance(error.value, DeviceError), "plugging in does not mend it"


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_video_plays_on_where_the_clock_is_set(video, monkeypatch, hours):
    """Once it slept for an hour after the clock was set back, and skipped one the other way."""
    source = uvc_camera(video).open()
    first, real_ns = source.read().number, time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + hours * 3600 * 10**9)
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    frame = source.read()
    assert max(pauses) < 1.0 and frame.number < first + 200 * 60
    assert abs(frame.stamp_ns - time.time_ns()) < 60 * 10**9, (
        "stamped by the clock as it is set now"
    )
    source.close()
