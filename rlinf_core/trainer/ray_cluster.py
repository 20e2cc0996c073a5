"""Ray on this machine, for this machine."""

from __future__ import annotations

from typing import Any


def start_ray(num_cpus: int, **options: Any) -> Any:
    """Start a local cluster that listens on loopback alone, and return the module ``ray``.

    Its processes would listen on every interface, though nobody else can join. RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=1 in the
    environment asks for that; the variable's name says where Ray's makers thought of it first.
    """
    import ray
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = ray_constants.env_bool(ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, False)
    ray.init("local", num_cpus=num_cpus, include_dashboard=False, logging_level="warning", **options)
    return ray
