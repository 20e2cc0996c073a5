"""The camera node as a process: its images and what /diagnostics say while devices come and go."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray
from sensor_msgs.msg import CameraInfo, CompressedImage, Image

from rlinf_core.launch.graph import station_processes
from rlinf_core.recipes import load_recipe
from rlinf_ros.conversions import from_image, to_ns
from tests.robots.cameras.conftest import video  # noqa: F401
from tests.ros.stand_ins import Lives, listen, start

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]
LIMITS = Path("robots/franka_fr3/limits.yaml").resolve()
ROBOT = f"""
driver: franka
limits: {LIMITS}
twin: {{node: sim_bridges.twins.franka, simulator: franka_mujoco}}
tool_axes: [current_twist]
cameras:
  wrist: {{kind: uvc, device: ./wrist.avi, size: [48, 64], published: [24, 32], jpeg: 80, lens: [60.0, 60.0, 32.0, 24.0]}}
  side: {{kind: realsense, serial: '001', size: [48, 64], depth: true, twin: true}}
  front: [64, 64]
"""
OK, ERROR = b"\0", b"\2"


def test_a_station_has_a_process_for_each_camera_that_is_read_here(tmp_path):
    (tmp_path / "robot.yaml").write_text(ROBOT)
    recipe = load_recipe(
        "franka_twin", [f"station.robot={tmp_path}", "station.observe_cameras=[wrist,front]"]
    )
    processes = {process.name: process for process in station_processes(recipe, tmp_path)}
    assert {name: process.namespace for name, process in processes.items() if "camera" in name} == {
        "camera_wrist": "/station_a/camera/wrist",
        "camera_side": "/station_a/camera/side",
    }
    assert processes["twin"].parameters["cameras"] == ["front"], (
        "the twin shows no picture in a camera's place"
    )
    assert processes["environment"].parameters["cameras"] == ["wrist", "front"]
    assert str(tmp_path / "wrist.avi") in processes["camera_wrist"].parameters["settings"].values()


@pytest.mark.domain(178)
def test_images_come_and_a_camera_that_is_pulled_out_disturbs_no_other(peer, video):
    folder = video.parent
    (folder / "robot.yaml").write_text(ROBOT)
    images, depths = (
        listen(peer, Image, "camera/wrist/image"),
        listen(peer, Image, "camera/side/depth"),
    )
    infos, jpegs = (
        listen(peer, CameraInfo, "camera/wrist/camera_info"),
        listen(peer, CompressedImage, "camera/wrist/image/compressed"),
    )
    others, health = listen(peer, Image, "camera/side/image"), {}
    peer.node.create_subscription(
        DiagnosticArray,
        "/diagnostics",
        lambda array: health.update({status.name: status for status in array.status}),
        10,
    )
    video.rename(folder / "pulled_out")
    for name in ("camera_wrist", "camera_side"):
        start(peer, name, f"station.robot={folder}", "station.lockstep=false")
    wrist, side = "station_a/camera/wrist/camera", "station_a/camera/side/camera"
    peer.spin(lambda: wrist in health, what="its diagnostics")
    assert health[wrist].level == ERROR and "expected a camera at" in health[wrist].message
    assert not peer.supervisor.events, "it is waited for, and nobody had to start it again"
    (folder / "pulled_out").rename(video)
    peer.spin(lambda: images and infos and jpegs and depths and others, what="both cameras")
    assert (
        from_image(images[-1]).shape == (24, 32, 3) and from_image(images[-1])[..., 0].mean() > 150
    )
    assert list(infos[-1].k) == [30.0, 0.0, 16.0, 0.0, 30.0, 12.0, 0.0, 0.0, 1.0], "half the size"
    jpeg = cv2.imdecode(np.frombuffer(jpegs[-1].data, np.uint8), cv2.IMREAD_COLOR)
    assert jpeg.shape == (24, 32, 3) and jpeg[..., 2].mean() > 150
    assert (depths[-1].encoding, depths[-1].step) == ("16UC1", 128)
    assert to_ns(depths[-1].header.stamp) in {to_ns(image.header.stamp) for image in others}
    peer.spin(lambda: health[wrist].level != ERROR, what=lambda: health)

    video.rename(folder / "pulled_out")
    peer.spin(
        lambda: health[wrist].level == ERROR and "got: No such file" in health[wrist].message,
        what=lambda: health,
    )
    before, other_count = len(images), len(others)
    peer.spin(lambda: len(others) > other_count + 10, what="the other camera, meanwhile")
    assert len(images) == before and health[side].level != ERROR
    (folder / "pulled_out").rename(video)
    peer.spin(lambda: len(images) > before, what="its images again")
    peer.spin(lambda: health[wrist].level != ERROR, what=lambda: health[wrist].message)
    assert {"opened": "2"}.items() <= {
        value.key: value.value for value in health[wrist].values
    }.items()
    lives, node = Lives(peer), "camera/side/camera"
    assert lives.change(node, "deactivate")
    peer.for_s(0.3)
    before = len(others)
    peer.spin(
        lambda: health[side].message.startswith("inactive"), what=lambda: health[side].message
    )
    assert len(others) == before
    assert (
        lives.change(node, "cleanup")
        and lives.change(node, "configure")
        and lives.change(node, "activate")
    )
    peer.spin(
        lambda: len(others) > before + 10 and health[side].level != ERROR, what="its images again"
    )
    log = (folder / "logs/camera_wrist.log").read_text()
    assert log.count("unplugged") == 1 and log.count("images arrive again") == 2, log
