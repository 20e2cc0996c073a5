"""The ROS that a station's processes use."""

import os

import pytest

from rlinf_core.core import ros
from rlinf_core.core.paths import data_folder

PROFILES = ("fastdds.xml", "fastdds_one_process.xml", "fastdds_control.xml")


@pytest.mark.parametrize("distro, folder", [("jazzy", "configs"), ("kilted", "configs/fastdds_3")])
def test_each_ros_gets_the_profile_that_its_fast_dds_reads(monkeypatch, distro, folder):
    monkeypatch.setenv("ROS_DISTRO", distro)
    monkeypatch.setenv("AMENT_PREFIX_PATH", "/somewhere")
    environment = ros.process_environment(90)
    assert environment["FASTDDS_DEFAULT_PROFILES_FILE"] == str(
        data_folder() / folder / "fastdds.xml"
    )
    # Kilted warns of the older variable
    assert ("FASTRTPS_DEFAULT_PROFILES_FILE" in environment) == (distro == "jazzy")


@pytest.mark.parametrize("name", PROFILES)
def test_the_profiles_of_fast_dds_3_differ_in_a_name_alone(name):
    """Fast DDS 3 refuses heartbeatPeriod, and Fast DDS 2 heartbeat_period."""
    older, newer = (
        (data_folder() / folder / name).read_text().partition("<profiles")[2]
        for folder in ("configs", "configs/fastdds_3")
    )
    assert "heartbeatPeriod" in older and "heartbeatPeriod" not in newer
    assert newer == older.replace("heartbeatPeriod", "heartbeat_period")


@pytest.mark.parametrize("folder", ["configs", "configs/fastdds_3"])
def test_a_process_takes_another_profile_of_the_same_folder(monkeypatch, folder):
    monkeypatch.setenv("FASTDDS_DEFAULT_PROFILES_FILE", str(data_folder() / folder / "fastdds.xml"))
    monkeypatch.delenv("FASTRTPS_DEFAULT_PROFILES_FILE", raising=False)
    assert ros.use_dds_profile("fastdds_control.xml")
    chosen = data_folder() / folder / "fastdds_control.xml"
    assert os.environ["FASTDDS_DEFAULT_PROFILES_FILE"] == str(chosen)
    assert "FASTRTPS_DEFAULT_PROFILES_FILE" not in os.environ


def test_a_users_own_profile_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("FASTDDS_DEFAULT_PROFILES_FILE", str(tmp_path / "fastdds.xml"))
    assert not ros.use_dds_profile("fastdds_control.xml")
    assert os.environ["FASTDDS_DEFAULT_PROFILES_FILE"] == str(tmp_path / "fastdds.xml")
