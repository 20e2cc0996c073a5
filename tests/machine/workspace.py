"""The ROS workspace after `colcon build`: a copy of the clone, built once for a test session."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from rlinf_core.core.paths import built_messages, message_packages

ROOT = Path(__file__).resolve().parents[2]
PARTS = "ros_ws launch robots configs"
CLEAN = {
    key: value
    for key, value in os.environ.items()
    if key not in ("PYTHONPATH", "_ROS_WHEELS_BOOTSTRAP_COMPLETE")
}
COLCON = [sys.executable, "-c", "from colcon_core.command import main; raise SystemExit(main())"]


def colcon(clone, verb, *options):
    """Run a verb of colcon on our packages, without the messages, in a clone."""
    prefix = f"{built_messages()}:{sys.prefix}"
    ran = subprocess.run(
        [
            *COLCON,
            "--log-base",
            "log",
            verb,
            "--base-paths",
            "src",
            "--packages-ignore",
            "rlinf_msgs",
            *options,
        ],
        cwd=clone / "ros_ws",
        text=True,
        capture_output=True,
        timeout=500,
        env=CLEAN
        | {
            "AMENT_PREFIX_PATH": prefix,
            "CMAKE_PREFIX_PATH": prefix,
            "PYTHONPATH": str(message_packages()),
            "LD_LIBRARY_PATH": f"{built_messages()}/lib",
            "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
        },
    )
    return ran


def built(tmp_path_factory):
    """Return the clone with the built workspace."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    clone = base / "workspace"
    with open(base / "workspace.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (clone / "built").exists():
            clone.mkdir(exist_ok=True)
            subprocess.run(
                f"git ls-files -z {PARTS} | xargs -0 cp -P --parents -t {clone}",
                shell=True,
                cwd=ROOT,
                check=True,
            )
            ran = colcon(clone, "build")
            assert ran.returncode == 0, ran.stdout + ran.stderr
            (clone / "built").touch()
    return clone
