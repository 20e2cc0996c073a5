"""``rlinf doctor``: installed and missing parts of this machine, and how to install them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from rlinf_core.core import extras, rendering
from rlinf_core.core.errors import RlinfError
from rlinf_core.core.paths import built_messages, home_remedy, message_packages
from rlinf_core.core.progress import Progress
from rlinf_core.core.ros import provides_messages, ros_is_sourced
from rlinf_core.deploy.bridge import PORT
from rlinf_core.deploy.bridge.credentials import read_certificate
from rlinf_core.deploy.bridge.fleet import CERTIFICATE, Fleet, expiry_warning
from rlinf_core.interlock.latch import FOLDERS, MAKE_FOLDER
from rlinf_core.interlock.latch import check as check_folder

SOCKET_BYTES = 4_194_304
AWAKE = "/dev/cpu_dma_latency"
KERNEL = Path("/proc/sys/net/core")
FAST_DDS = "rmw_fastrtps_cpp"
RENDER_S = 60.0


@dataclass(frozen=True)
class Finding:
    """A row of the doctor's table.

    ``fix`` is empty if all is well; ``needed`` marks a required part.
    """

    subject: str
    result: str
    fix: str = ""
    needed: bool = True


def doctor(station: str | None = None, name: str = "", overrides: Sequence[str] = ()) -> int:
    """Print the table of this machine or of a recipe's station.

    Returns 1 if a required part is missing.
    """
    if station is None:
        with Progress(len(CHECKS)) as progress:
            findings = [run_check(check, progress) for check in CHECKS]
        return print_findings(findings)
    from rlinf_core.cli.station import run_tool
    from rlinf_core.recipes import check_recipe, load_recipe

    recipe = load_recipe(name, list(overrides))
    check_recipe(recipe)
    return run_tool("station_doctor", [name, *overrides], recipe.station.domain)


def run_check(check: Callable[[], Finding], progress: Progress) -> Finding:
    """Return a check's finding; a failed check becomes a finding, too."""
    progress.step(check.__name__.strip("_").replace("_", " "))
    try:
        return check()
    except Exception as error:
        name = check.__name__.strip("_").replace("_", " ")
        return Finding(
            name,
            f"cannot be checked: {type(error).__name__}: {error}",
            "check it by hand",
            needed=False,
        )


def print_findings(findings: Sequence[Finding]) -> int:
    """Print findings. Returns 1 if a required part is missing."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("", "what", "found", "how to get it")
    for finding in findings:
        mark = "[green]ok"
        if finding.fix:
            mark = "[red]missing" if finding.needed else "[yellow]optional"
        table.add_row(mark, *map(escape, (finding.subject, finding.result, finding.fix)))
    Console(width=140 if not sys.stdout.isatty() else None).print(table)
    return int(any(finding.fix and finding.needed for finding in findings))


def _python() -> Finding:
    version = sys.version.split()[0]
    return Finding(
        "Python",
        version,
        "" if (3, 10) <= sys.version_info[:2] <= (3, 13) else "expected 3.10 to 3.13",
    )


def _packages() -> Finding:
    try:
        missing = extras.missing()
    except PackageNotFoundError:
        return Finding("rlinf", "found on the path, not installed", "make setup")
    return Finding(
        "packages of every machine",
        f"lacks {', '.join(missing)}" if missing else "all",
        extras.how_to_get() if missing else "",
    )


def _extra(name: str) -> Callable[[], Finding]:
    """Return the check of an optional extra: its purpose, and its missing packages."""

    def check() -> Finding:
        try:
            missing = [] if name == "ros" and ros_is_sourced() else extras.missing(name)
        except PackageNotFoundError:
            missing = ["rlinf itself"]
        return Finding(
            f"extra {name}",
            f"lacks {', '.join(missing)}" if missing else "all",
            f"for {extras.PURPOSE[name]}: {extras.how_to_get(name)}" if missing else "",
            needed=False,
        )

    check.__name__ = f"extra {name}"
    return check


def _ros() -> Finding:
    if ros_is_sourced():
        return Finding("ROS 2", f"{os.environ['ROS_DISTRO']} (sourced)")
    has_rclpy = importlib.util.find_spec("rclpy") is not None
    return Finding(
        "ROS 2",
        "Jazzy wheels in this environment" if has_rclpy else "none",
        "" if has_rclpy else f"source one, or {extras.how_to_get('ros')}",
    )


def _messages_are_built() -> bool:
    return message_packages() is not None or (
        ros_is_sourced() and provides_messages(os.environ["AMENT_PREFIX_PATH"])
    )


def _messages() -> Finding:
    built = _messages_are_built()
    return Finding(
        "rlinf_msgs",
        "built" if built else f"none in {built_messages()}",
        "" if built else "rlinf messages",
    )


def _middleware() -> Finding:
    """Check that a message of image size passes between two processes on the real middleware."""
    from rlinf_core.core.ros import ros_environment

    node = (
        "import rclpy; from sensor_msgs.msg import Image; rclpy.init(); n = "
        "rclpy.create_node('doctor')\n"
    )
    publisher_code = (
        f"{node}import array, time; m = Image(height=480, width=640, data=array.array('B', "
        f"bytes(921600)))\n"
        "p = n.create_publisher(Image, 'doctor_image', 1)\nfor _ in range(300): p.publish(m); "
        "time.sleep(0.1)"
    )
    subscriber_code = (
        f"{node}import time; got, end = [], time.monotonic() + 8\n"
        "n.create_subscription(Image, 'doctor_image', got.append, 1)\n"
        "while not got and time.monotonic() < end: rclpy.spin_once(n, timeout_sec=0.1)\n"
        "print('ok' if got else 'lost', rclpy.get_rmw_implementation_identifier())"
    )
    environment = ros_environment(99)
    try:
        with subprocess.Popen(
            [sys.executable, "-c", publisher_code],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as other:
            try:
                result = subprocess.run(
                    [sys.executable, "-c", subscriber_code],
                    env=environment,
                    text=True,
                    capture_output=True,
                    timeout=30,
                )
            finally:
                other.kill()
    except Exception as error:  # any failure is a finding
        return Finding("DDS", f"{error}", "rlinf messages")
    received, _, middleware = result.stdout.strip().partition(" ")
    if middleware and middleware != FAST_DDS:
        return Finding(
            "DDS",
            f"{middleware}, for which rlinf has no profile",
            f"unset RMW_IMPLEMENTATION, in .bashrc too: expected {FAST_DDS}",
        )
    return Finding(
        "DDS",
        "Fast DDS, 32 MiB shared-memory profile: an image came through"
        if received == "ok"
        else f"an image was lost {result.stderr[-200:]}",
        "" if received == "ok" else "see docs/howto/troubleshooting.md, DDS",
    )


def _shared_memory() -> Finding:
    free = shutil.disk_usage("/dev/shm").free / 1e6
    return Finding(
        "/dev/shm",
        f"{free:.0f} MB free",
        ""
        if free > 500
        else "expected 500 MB: mount -o remount,size=2G /dev/shm, or docker run --shm-size=2g",
    )


def _sockets() -> Finding:
    """Check the socket buffers against configs/fastdds.xml.

    Smaller ones lose messages to busy processes.
    """
    largest = min(int((KERNEL / name).read_text()) for name in ("rmem_max", "wmem_max"))
    return Finding(
        "socket buffers",
        f"{largest / 2**20:.1f} MiB at most",
        ""
        if largest >= SOCKET_BYTES
        else f"sudo sysctl -w net.core.rmem_max={SOCKET_BYTES} net.core.wmem_max={SOCKET_BYTES}",
        needed=False,
    )


def _priority() -> Finding:
    code = "import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(30))"
    granted = subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
    return Finding(
        "real-time priority",
        "granted" if granted else "not granted (needed for the control of a real robot)",
        "" if granted else "'<you> - rtprio 90' in /etc/security/limits.conf, and log in again",
        needed=False,
    )


def _awake() -> Finding:
    granted = os.access(AWAKE, os.W_OK)
    return Finding(
        "cores kept awake",
        "granted" if granted else "not granted (the interlock requests it in real time)",
        "" if granted else f"sudo chmod a+w {AWAKE} (at every boot: a udev rule)",
        needed=False,
    )


def _rendering() -> Finding:
    """Check that MuJoCo renders with this shell's renderer, or its default.

    If not, name a renderer that works.
    """
    name = "offscreen rendering"
    if importlib.util.find_spec("mujoco") is None:
        return Finding(name, "not tried: no mujoco", "see extra sim", needed=False)
    configured = os.environ.get(rendering.MUJOCO_GL, "").strip()
    first = configured or next(filter(rendering.has_library, rendering.OFFSCREEN_LIBRARIES), "glfw")
    render_error = _render_error(first)
    if not render_error:
        return Finding(name, first)
    subject = f"{rendering.MUJOCO_GL}={configured} of this shell" if configured else first
    others = [library for library in rendering.OFFSCREEN_LIBRARIES if library != first]
    works = next((library for library in others if not _render_error(library)), None)
    install = "apt-get install libosmesa6 libegl1 libgl1"
    fix = f"export {rendering.MUJOCO_GL}={works}" if works else install
    return Finding(
        name,
        f"{subject} does not render (cameras and videos need it): {render_error}",
        fix,
        needed=False,
    )


def _render_error(renderer: str) -> str:
    """Return why MuJoCo cannot render with a renderer; empty if it can."""
    code = (
        "import mujoco; m = mujoco.MjModel.from_xml_string('<mujoco><worldbody><geom "
        'size="1"/></worldbody>'
        "</mujoco>'); d = mujoco.MjData(m); r = mujoco.Renderer(m, 32, 32); r.update_scene(d); "
        "r.render(); "
        "print('ok', flush=True); import os; os._exit(0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {rendering.MUJOCO_GL: renderer},
        text=True,
        capture_output=True,
        timeout=RENDER_S,
    )
    lines = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
    return "" if "ok" in result.stdout else lines[-1][:200]


def _tool(name: str, fix: str) -> Callable[[], Finding]:
    """Return the check of a build tool of ``rlinf messages``."""

    def check() -> Finding:
        path = shutil.which(name) or shutil.which(name, path=os.path.dirname(sys.executable))
        return Finding(name, path or "none", "" if path else fix, needed=not _messages_are_built())

    check.__name__ = name
    return check


def _gpu() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding("GPU", "not tried: no torch", "see extra policy", False)
    import torch

    if torch.cuda.is_available():
        return Finding("GPU", torch.cuda.get_device_name(0))
    return Finding(
        "GPU", f"none seen by torch {torch.__version__}", "not needed for the demo", False
    )


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    return Finding(
        "disk",
        f"{free:.0f} GB free",
        "" if free > 5 else "expected 5 GB for the installation and a run",
    )


def _home() -> Finding:
    """Check the folders of ROS logs and of the libraries' caches."""
    lacks = home_remedy()
    place = os.environ.get("HOME") or "no HOME in this shell"
    return Finding(
        "home",
        f"{place}: not writable. Logs go to the run folder, caches to a folder that is removed at "
        "the end of each command"
        if lacks
        else place,
        lacks,
        needed=False,
    )


def _latches() -> Finding:
    """Check the folder that stores a latched fault for all users of this machine."""
    subject = "latches of robots"
    folder = next((candidate for candidate in FOLDERS if candidate.is_dir()), None)
    if folder is None:
        return Finding(subject, "no folder", MAKE_FOLDER, needed=False)
    try:
        check_folder(folder)
    except OSError as error:
        return Finding(
            subject, str(error), "see the message: a robot with hardware cannot be armed before"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        return Finding(
            subject,
            f"{folder}, which this user cannot write",
            f"sudo chmod 1777 {folder}",
            needed=False,
        )
    return Finding(
        subject,
        str(folder),
        ""
        if folder == FOLDERS[0]
        else f"where systemd removes files after 30 days; with a real arm: {MAKE_FOLDER}",
        needed=False,
    )


def _port() -> Finding:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        used = probe.connect_ex(("127.0.0.1", PORT)) == 0
    return Finding(
        f"bridge port {PORT}",
        "in use" if used else "free",
        "another trainer runs; stop it, or --set bridge.port=<number>" if used else "",
        False,
    )


def _certificates() -> Finding:
    """Check the certificates in the default folders of docs/howto/fleet.md."""
    certificate_path, fleet = Path("credentials") / CERTIFICATE, Fleet(Path("fleet"))
    try:
        warnings = fleet.warnings() + (
            [expiry_warning(str(certificate_path), read_certificate(certificate_path))]
            if certificate_path.exists()
            else []
        )
        count = len(fleet.days_left()) + certificate_path.exists()
    except (RlinfError, OSError) as error:
        return Finding("certificates", str(error), "see docs/howto/fleet.md", needed=False)
    return Finding(
        "certificates",
        f"{count} in fleet/ and credentials/ here",
        " ".join(filter(None, warnings)),
        needed=False,
    )


CHECKS = (
    _python,
    _packages,
    *map(_extra, extras.PURPOSE),
    _ros,
    _messages,
    _tool("g++", "apt-get install g++"),
    _tool("cmake", "apt-get install cmake"),
    _middleware,
    _shared_memory,
    _sockets,
    _priority,
    _awake,
    _rendering,
    _gpu,
    _disk,
    _home,
    _latches,
    _port,
    _certificates,
)
