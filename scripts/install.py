"""Install this project and the locked packages of some extras into this environment.

    .venv/bin/python scripts/install.py trainer sim  # as uv.lock says
    .venv/bin/python scripts/install.py trainer --torch cuda

Needs only the standard library; fetches uv itself. torch is the CPU build where no NVIDIA driver
is, and its CUDA libraries (3 GB) then stay away. Where no CPU build can be had, it says so and
takes the CUDA build, which runs on a CPU.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
CUDA_LIBRARY = re.compile(r"nvidia-.*-cu\d+$|nvidia-(cu|nccl|nvjitlink|nvshmem|nvtx)|cuda-|triton$")
CPU_TORCH_MB = 200
TORCH = ("auto", "cpu", "cuda")
PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"
LINE_MBIT_S = 100  # speed of the network in the printed estimate
FETCH_MINUTES = 1.0  # time to unpack in the printed estimate
PACKAGE = re.compile(
    r'^name = "([^"]+)"\nversion = "([^"]+)"\n(.*?)(?=^\[\[package\]\]|\Z)', re.M | re.S
)
FILE = re.compile(r'url = "[^"]*/([^"/]+)", hash = "[^"]+", size = (\d+)')


def main() -> int:
    """Install the packages and return the exit code of uv."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("extras", nargs="*", help="extras of pyproject.toml")
    parser.add_argument(
        "--torch",
        choices=TORCH,
        default=os.environ.get("RLINF_TORCH", "auto"),
        help="which build (default: RLINF_TORCH, or by whether there is an NVIDIA driver)",
    )
    arguments = parser.parse_args()
    if arguments.torch not in TORCH:  # argparse does not look at a default
        parser.error(f"RLINF_TORCH: expected {', '.join(TORCH)}, got '{arguments.torch}'")
    if sys.prefix == sys.base_prefix:
        sys.exit(
            "install: expected the Python of a virtual environment, e.g. .venv/bin/python "
            "scripts/install.py"
        )
    os.chdir(ROOT)
    packages = {
        (name, version): text
        for name, version, text in PACKAGE.findall(Path("uv.lock").read_text())
    }
    uv = _uv(packages)
    sync = [
        uv,
        "sync",
        "--frozen",
        "--inexact",
        *(f"--extra={extra}" for extra in arguments.extras),
    ]
    missing = _missing(sync)
    torch = dict(missing).get("torch")
    if torch and wants_cpu(arguments.torch):
        without = sync + [
            f"--no-install-package={name}"
            for name, _ in packages
            if name == "torch" or CUDA_LIBRARY.match(name)
        ]
        if cpu_torch(uv, torch):
            sync, missing = without, _missing(without)
    _print_missing(missing, packages)
    return subprocess.call(sync, env=_environment())


def _environment() -> dict[str, str]:
    ours = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"}
    return ours | {"UV_PROJECT_ENVIRONMENT": sys.prefix}


def _uv(packages: Collection[tuple[str, str]]) -> str:
    """Return this environment's uv; install the locked version if there is none."""
    uv = Path(sys.prefix) / "bin/uv"
    if not uv.exists():
        version = dict(iter(packages))["uv"]
        if subprocess.call(
            [
                sys.executable,
                "-m",
                "pip",
                "install",
                "-q",
                "--disable-pip-version-check",
                f"uv=={version}",
            ]
        ):
            sys.exit(f"install: expected pip to fetch uv {version}; its message is above")
    return str(uv)


def _missing(sync: list[str]) -> list[tuple[str, str]]:
    """Return name and version of the packages that uv would install."""
    plan = subprocess.run([*sync, "--dry-run"], env=_environment(), text=True, capture_output=True)
    if plan.returncode:
        sys.exit(f"install: {plan.stderr}")
    return re.findall(r"^ \+ ([\w.-]+)==(\S+)", plan.stderr, re.M)


def wants_cpu(choice: str) -> bool:
    """Return whether torch comes without CUDA: on request, or without an NVIDIA driver."""
    return choice == "cpu" or (
        choice == "auto" and not Path("/proc/driver/nvidia/version").exists()
    )


def cpu_torch(uv: str, version: str, python: str = sys.executable) -> bool:
    """Install torch's CPU build from pip's wheels or from PyTorch; False if neither has one."""
    install = [uv, "pip", "install", "-q", "--python", python, "--no-deps", f"torch=={version}+cpu"]
    if (
        subprocess.run(
            [*install, "--offline", "--no-index"], capture_output=True, env=_environment()
        ).returncode
        == 0
    ):
        return True  # it is there
    links = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.find-links"],
        text=True,
        capture_output=True,
    ).stdout.split()
    print(f"torch {version}, CPU build ({CPU_TORCH_MB} MB)", flush=True)
    for source in [
        ["--no-index", *(f"--find-links={link}" for link in links)],
        ["--index-url", CPU_BUILDS],
    ]:
        tried = subprocess.run(
            [*install, *source],
            text=True,
            capture_output=True,
            env=_environment() | {"UV_HTTP_TIMEOUT": "20", "UV_HTTP_RETRIES": "1"},
        )
        if tried.returncode == 0:
            return True
    print(
        f"  none for {PYTHON} in pip's find-links or at {CPU_BUILDS}: the CUDA build from PyPI, "
        f"which runs on a CPU too"
    )
    return False


def _print_missing(missing: list[tuple[str, str]], packages: dict[tuple[str, str], str]) -> None:
    megabytes = sum(_size(packages.get(package, "")) for package in missing) / 1e6
    if missing:
        minutes = FETCH_MINUTES + megabytes * 8 / LINE_MBIT_S / 60
        print(
            f"{len(missing)} packages, {megabytes:,.0f} MB to download, {2 * megabytes / 1e3:.1f} "
            f"GB on disk; about {minutes:.0f} minutes at {LINE_MBIT_S} Mbit/s",
            flush=True,
        )


def _size(text: str) -> int:
    """Return the size in bytes of the locked file for this Python."""
    sizes = dict(FILE.findall(text))
    fitting = [name for name in sizes if f"-{PYTHON}-" in name] or [
        name for name in sizes if re.search("abi3|none", name)
    ]
    return int(sizes[(fitting or list(sizes))[0]]) if sizes else 0


if __name__ == "__main__":
    sys.exit(main())
