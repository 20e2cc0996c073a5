"""Ray: a cluster of this machine, or one to join."""

from __future__ import annotations

import logging
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from rlinf_core.errors import RlinfError

_folder: Path | None = None  # of the cluster that this process started
_joined = ""  # where the cluster is that this process joined, as it was asked for


def connected() -> bool:
    """Whether this process is in a cluster."""
    return "ray" in sys.modules and sys.modules["ray"].is_initialized()


def lost() -> tuple[type[Exception], ...]:
    """What Ray raises of a process that is no more: it has died, was killed as memory ran out, or its machine is gone."""
    from ray import exceptions

    return exceptions.RayActorError, exceptions.OutOfMemoryError, exceptions.NodeDiedError


def connect(address: str = "", **options: Any) -> Any:
    """Start or join a cluster, unless that has been done; returns the module ``ray``.

    A cluster of this machine listens on loopback alone. Ray's processes would listen on every interface, though nobody else
    can join. RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=1 in the environment asks for that; the variable's name says where Ray's
    makers thought of it first.

    Args:
        address: host:port of a cluster's head, or empty for one of this machine, with the CPUs and GPUs that Ray finds.
        options: further ones of ``ray.init``.

    Raises:
        RlinfError: there is no cluster at the address, or it does not take this process, which may be in another.
    """
    global _folder, _joined
    import ray

    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if address and address not in (_joined, here):
            raise RlinfError(f"placement.ray: expected to join the Ray cluster at {address}, and this process is in the "
                             f"one at {here} already. Leave that first (ray.shutdown()), or name its address")
        return ray
    if address:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=10).close()  # Ray itself would try for minutes
            ray.init(address, logging_level=logging.WARNING, **options)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise RlinfError(f"placement.ray: expected the head of a Ray cluster at {address}, of the same versions of Ray "
                             f"and Python, got: {error}. Start one there (ray start --head), or leave the address "
                             "empty for this machine alone") from error
        _joined = address
        return ray
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = ray_constants.env_bool(ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, False)
    # A folder of its own: what a killed cluster leaves behind would be taken for a running one. Sockets need a short path.
    _folder = Path(tempfile.mkdtemp(prefix="rlinf-ray-", dir="/tmp"))
    ray.init("local", include_dashboard=False, logging_level=logging.WARNING, _temp_dir=str(_folder), **options)
    return ray


def disconnect() -> None:
    """Leave the cluster; one that this process started ends, and its folder goes."""
    global _folder, _joined
    import ray

    ray.shutdown()
    _joined = ""
    if _folder:
        shutil.rmtree(_folder, ignore_errors=True)
        _folder = None


def resources() -> dict[str, float]:
    """What the whole cluster has, by Ray's names: CPU, GPU, ..."""
    import ray

    return ray.cluster_resources()


def cpus_each(processes: int) -> float:
    """CPUs to ask of Ray for each of so many processes: 1, or less where there are more processes than CPUs."""
    return min(1.0, int(1000 * resources().get("CPU", 0) / max(processes, 1)) / 1000)
