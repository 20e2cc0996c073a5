"""The ROS of a station's processes: a sourced installation, or this Python environment's wheels."""

from __future__ import annotations

import importlib.metadata
import os
import socket
import sys
from pathlib import Path

from rlinf_core.core.errors import RlinfError
from rlinf_core.core.paths import (
    NODES,
    SOURCE,
    built_messages,
    data_folder,
    in_source_tree,
    message_packages,
    replacement_folders,
)

MAX_DOMAIN = 232
DDS_PROFILE, PROFILE_VARIABLE = "fastdds.xml", "FASTDDS_DEFAULT_PROFILES_FILE"
OLDER_PROFILE_VARIABLE = "FASTRTPS_DEFAULT_PROFILES_FILE"  # before Kilted, which warns of it
MULTICAST, DISCOVERY_PORT = "239.255.0.1", 7400  # DDS's


def shell_domain() -> int:
    """Return ROS_DOMAIN_ID of this shell, which all of ROS uses; 0 by default.

    Raises:
        RlinfError: the variable is no valid number.
    """
    text = os.environ.get("ROS_DOMAIN_ID") or "0"
    if not (text.isdecimal() and int(text) <= MAX_DOMAIN):
        raise RlinfError(
            f"ROS_DOMAIN_ID: expected a number from 0 to {MAX_DOMAIN} in this shell, got '{text}'. "
            "Correct it (export ROS_DOMAIN_ID=0), or set one: --set station.domain_id=0"
        )
    return int(text)


def ros_environment(domain_id: int) -> dict[str, str]:
    """Return the environment of a station's processes: ROS, our messages, DDS profile, threads.

    ROS is the sourced one, or the wheels'.
    """
    if trouble := network_trouble():
        raise RlinfError(trouble)
    environment = dict(os.environ)
    sourced = ros_is_sourced()
    if not (sourced and provides_messages(environment["AMENT_PREFIX_PATH"])):
        built, site = built_messages(), message_packages()
        if site is None:
            raise RlinfError(
                f"rlinf_msgs: expected it built in {built} for Python {sys.version_info.major}."
                f"{sys.version_info.minor}. Run: rlinf messages (make setup does)"
            )
        ament_prefix = environment.get("AMENT_PREFIX_PATH", "") if sourced else sys.prefix
        environment["AMENT_PREFIX_PATH"] = f"{built}:{ament_prefix}"
        environment["LD_LIBRARY_PATH"] = (
            f"{built / 'lib'}:{environment.get('LD_LIBRARY_PATH', '')}".rstrip(":")
        )
        if in_source_tree():
            paths = [str(SOURCE), *map(str, NODES), str(site), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = ":".join(filter(None, paths))
        # the bootstrap must see our LD_LIBRARY_PATH
        environment.pop("_ROS_WHEELS_BOOTSTRAP_COMPLETE", None)
    return (
        environment
        | replacement_folders()
        | process_environment(domain_id)
        | {
            "ROS_AUTOMATIC_DISCOVERY_RANGE": environment.get(
                "ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST"
            )
        }
    )


def network_trouble(address: str = "127.0.0.1") -> str:
    """Return the reason why nodes on this machine cannot hear each other, or "".

    Args:
        address: loopback; or a multicast group, by which nodes of several machines find each other.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, DISCOVERY_PORT))  # sends nothing, but needs a route
    except OSError as error:
        if address == MULTICAST:
            return (
                f"no network interface supports multicast ({error.strerror}), which nodes need to "
                "discover other machines. Connect a network, or export "
                "ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST"
            )
        return (
            f"network: expected a loopback interface that is up, got: {error.strerror}. Without "
            "it, the processes of a station cannot communicate. Run: sudo ip link set lo up"
        )
    return ""


def process_environment(domain_id: int) -> dict[str, str]:
    """Return the environment variables of all processes of a station.

    They set DDS's profile, and one thread for matrices. OpenBLAS's other threads spin while they
    wait; at a node's real-time priority they would occupy a core.
    """
    is_newer = has_fast_dds_3()
    folder = data_folder() / ("configs/fastdds_3" if is_newer else "configs")
    profile = str(folder / DDS_PROFILE)
    return ({} if is_newer else {OLDER_PROFILE_VARIABLE: profile}) | {
        PROFILE_VARIABLE: profile,
        "ROS_DOMAIN_ID": str(domain_id),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
    }


def has_fast_dds_3() -> bool:
    """Return True if ROS has Fast DDS 3, as Kilted: it renames elements of its XML profiles."""
    if ros_is_sourced():
        return os.environ["ROS_DISTRO"] not in ("humble", "iron", "jazzy")
    return any(importlib.metadata.distributions(name="ros-fastdds"))  # ros-fastrtps before


def use_dds_profile(name: str) -> bool:
    """Give this process another DDS profile of the same folder, before ROS starts.

    Returns:
        Whether it had the profile of a station's processes. A user's own stays.
    """
    profile = Path(os.environ.get(PROFILE_VARIABLE, ""))
    if profile.name != DDS_PROFILE or data_folder() / "configs" not in profile.parents:
        return False
    for variable in {PROFILE_VARIABLE, OLDER_PROFILE_VARIABLE} & os.environ.keys():
        os.environ[variable] = str(profile.with_name(name))
    return True


def ros_is_sourced() -> bool:
    """Return True if this shell has a ROS installation; else this environment's wheels are used."""
    return bool(os.environ.get("ROS_DISTRO") and os.environ.get("AMENT_PREFIX_PATH"))


def provides_messages(prefixes: str) -> bool:
    """Return True if one of an AMENT_PREFIX_PATH's prefixes has rlinf_msgs."""
    return any((Path(prefix) / "share/rlinf_msgs").is_dir() for prefix in prefixes.split(":"))
