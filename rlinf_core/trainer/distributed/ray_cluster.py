"""The Ray cluster of a run: a local one, or a remote one to join."""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rlinf_core.core.errors import RestartLimitError, RlinfError, StartupError
from rlinf_core.recipes.placement import PER_CPU, Placement

START_S = 180.0  # timeout for a cluster to start a process
FREED_S = 10.0  # timeout for free resources before a change of layout is refused
PARENT = Path("/tmp")  # parent of cluster folders: sockets need a short path
FOLDER_PREFIX = "rlinf-ray-"  # prefix of these folders; the process id follows
_folder: Path | None = None  # folder of the cluster that this process started
_joined = ""  # address of the cluster that this process joined


def connected() -> bool:
    """Return whether this process is connected to a cluster."""
    return "ray" in sys.modules and sys.modules["ray"].is_initialized()


def lost_errors() -> tuple[type[Exception], ...]:
    """Return Ray's exceptions for a lost process, machine or answer."""
    from ray import exceptions

    return (
        exceptions.RayActorError,
        exceptions.OutOfMemoryError,
        exceptions.NodeDiedError,
        exceptions.ObjectLostError,
    )


def is_ray_error(error: BaseException) -> bool:
    """Return whether an exception is one of Ray's own.

    RayError itself replaces an exception that cannot be pickled, so it does not count.
    """
    from ray import exceptions

    return isinstance(error, exceptions.RayError) and type(error) is not exceptions.RayError


def check_started(process_name: str, error: Exception) -> None:
    """Raise StartupError if one of the ``lost_errors`` processes failed in its own start."""
    if getattr(error, "actor_init_failed", False):
        raise StartupError(
            f"{process_name}: expected a process that starts, got one that failed at its start and "
            f"would fail again: {error}\nCorrect this cause; the same command then continues"
        ) from error


class NoRoomError(RestartLimitError):
    """The cluster does not start more processes."""


def no_room_error(
    process_name: str, count: int, per_process: dict[str, float], within_s: float
) -> NoRoomError:
    """Return the error for a cluster that did not start ``count`` processes in time."""
    import ray

    total, free = (
        ", ".join(f"{resource_table.get(name, 0):g} {name}" for name in ("CPU", "GPU"))
        for resource_table in (resources(), ray.available_resources())
    )
    return NoRoomError(
        f"{process_name}: expected room for {count} processes of {per_process['num_cpus']:g} CPU, "
        f"{per_process['num_gpus']:g} GPU each within {within_s:.0f} s; the cluster has {total}, "
        f"of which {free} are free. Request fewer in placement, or end other work there"
    )


def connect(address: str = "", **options: Any) -> Any:
    """Start or join a cluster, unless this process is connected. Returns the module ``ray``.

    A local cluster listens only on loopback. RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=1 sets this; without
    it Ray listens on every interface.

    Args:
        address: host:port of a cluster's head; empty starts a local one with all CPUs and GPUs.
        options: further arguments of ``ray.init``.

    Raises:
        RlinfError: no cluster answers at the address, or this process is in another one.
    """
    global _folder, _joined
    import ray

    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if address and address not in (_joined, here):
            raise RlinfError(
                f"placement.ray: expected to join the Ray cluster at {address}, but this process "
                f"has already joined the one at {here}. Leave that first (ray.shutdown()), or name "
                "its address"
            )
        return ray
    if address:
        host, _, port = address.rpartition(":")
        try:
            # Ray would retry for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
            ray.init(address, logging_level=logging.WARNING, **options)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise RlinfError(
                f"placement.ray: expected the head of a Ray cluster at {address}, of the same "
                f"versions of Ray and Python, got: {error}. Start one there (ray start --head), or "
                "leave the address empty to use only this machine"
            ) from error
        _joined = address
        return ray
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = ray_constants.env_bool(
        ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, False
    )
    # An own folder, because Ray would take the files of a killed cluster for a running one.
    _remove_stale_folders()
    _folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-", dir=PARENT))
    ray.init(
        "local",
        include_dashboard=False,
        logging_level=logging.WARNING,
        _temp_dir=str(_folder),
        **options,
    )
    return ray


def _remove_stale_folders() -> None:
    """Remove the folders of this user's killed clusters, which may hold spilled objects."""
    for folder in PARENT.glob(f"{FOLDER_PREFIX}*"):
        owner = re.match(rf"{FOLDER_PREFIX}(\d+)-", folder.name)
        try:
            if owner and folder.lstat().st_uid == os.getuid():
                os.kill(int(owner[1]), 0)
        except ProcessLookupError:
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # removed by another trainer, or the process id belongs to another user
            continue


def disconnect() -> None:
    """Disconnect. A cluster that this process started ends, and its folder is removed."""
    global _folder, _joined
    import ray

    ray.shutdown()
    _joined = ""
    if _folder:
        shutil.rmtree(_folder, ignore_errors=True)
        _folder = None


def resources() -> dict[str, float]:
    """Return the resources of the whole cluster, by Ray's names: CPU, GPU, ..."""
    import ray

    return ray.cluster_resources()


def gpus_of_machines() -> list[float]:
    """Return the number of GPUs of each machine in the cluster."""
    import ray

    return [node["Resources"].get("GPU", 0.0) for node in ray.nodes() if node["Alive"]]


def cpus_per_process(processes: int) -> float:
    """Return the CPUs to request for each process: 1, or less if there are fewer CPUs."""
    return min(1.0, int(1000 * resources().get("CPU", 0) / max(processes, 1)) / 1000)


def check_room(process_name: str, count: int, per_process: dict[str, float]) -> None:
    """Raise NoRoomError if the cluster has no room for ``count`` more processes.

    It waits up to FREED_S, since Ray frees the resources of ended processes with a delay.
    """
    import ray

    names = {"CPU": "num_cpus", "GPU": "num_gpus"}
    end = time.monotonic() + FREED_S
    while count > 0:
        free = ray.available_resources()
        if all(
            free.get(name, 0.0) + 1e-6 >= count * per_process[key] for name, key in names.items()
        ):
            return
        if time.monotonic() > end:
            raise no_room_error(process_name, count, per_process, FREED_S)
        time.sleep(0.2)


def cpus_for(placement: Placement) -> float:
    """Return the CPUs to request for each process of a run; a minimum if the layout may change."""
    return 1.0 / PER_CPU if placement.auto else cpus_per_process(placement.processes)
