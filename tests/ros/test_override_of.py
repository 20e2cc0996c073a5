"""Parameters that a node may read before ROS starts."""

import sys

import pytest

pytest.importorskip("rclpy")
from rlinf_ros.spinning import override_of  # noqa: E402


@pytest.mark.parametrize(
    "text",
    [
        "/**:\n  ros__parameters: {priority: 30, estops: [a]}\n",
        "/station_a/interlock:\n  ros__parameters:\n    estops: !!python/tuple\n    - a\n    "
        "priority: 30\n",
        "station_a:\n  interlock:\n    ros__parameters: {estops: [a], priority: 30}\n",
    ],
)
def test_a_parameter_is_read_from_what_rlinf_up_launch_ros_and_people_write(
    tmp_path, monkeypatch, text
):
    (tmp_path / "p.yaml").write_text(text)
    monkeypatch.setattr(
        sys, "argv", ["interlock", "--ros-args", "--params-file", str(tmp_path / "p.yaml")]
    )
    assert (
        override_of("priority") == 30
        and override_of("estops") == ["a"]
        and override_of("none") is None
    )


def test_without_a_file_nothing_is_given(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["interlock", "--ros-args", "-p", "priority:=30"])
    assert override_of("priority") is None
