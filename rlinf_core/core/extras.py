"""The extras of the distribution: their purpose, and their missing packages."""

from __future__ import annotations

import contextlib
from importlib import metadata

from packaging.requirements import Requirement

from rlinf_core.core.errors import RlinfError
from rlinf_core.core.paths import DISTRIBUTION, VERSION, in_source_tree

# Purpose of each extra. Of two extras with the same package the first one is suggested.
PURPOSE = {
    "ros": "every node, where no ROS 2 is sourced",
    "serving": "policies over the network: a station's policy node with backend remote",
    "policy": "the policy node, rlinf eval, rlinf serve",
    "trainer": "rlinf train, demo, sweep, compare, find-dynamics, reports",
    "wandb": "curves at Weights & Biases: recipe key wandb",
    "report": "rlinf run on a station: the report at its end",
    "sim": "rlinf demo, eval, check sim: the demo's simulators",
    "data": "rlinf data export, import: LeRobot data sets",
    "hub": "rlinf data push, pull and rlinf policy push, pull: the Hugging Face Hub",
    "rerun": "rlinf data export rerun",
    "page": "the operator's page: rlinf up --web",
    "teleop": "a leader arm as the operator's device",
    "servo": "arms and leader arms of Feetech or Dynamixel servos: SO-101, Koch",
    "realsense": "a RealSense camera",
    "gripper": "a Robotiq gripper",
    "agentic": "language models: rlinf train text_..., rlinf chat",
    "vla": "LoRA, vision-language-action policies",
    "maniskill": "sim_bridges/simulators/maniskill",
    "robosuite": "sim_bridges/simulators/robosuite",
    "metaworld": "sim_bridges/simulators/metaworld",
    "gymnasium-robotics": "sim_bridges/simulators/gymnasium_robotics",
    "test": "make test",
}
DISTRIBUTIONS = {  # distribution by module, where the names differ
    "scservo_sdk": "feetech-servo-sdk",
    "hydra": "hydra-core",
    "rerun": "rerun-sdk",
    "rclpy": "ros-jazzy-rclpy",
    "mani_skill": "mani-skill",
}


def requirements(extra: str = "") -> list[Requirement]:
    """Return the requirements that an extra adds to the base, or the base's without an extra.

    Raises:
        PackageNotFoundError: rlinf itself is not installed, only found on the path.
    """
    listed = [Requirement(line) for line in metadata.requires(DISTRIBUTION) or []]
    base = [
        requirement
        for requirement in listed
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    ]
    if not extra:
        return base
    optional = [
        requirement
        for requirement in listed
        if requirement not in base
        and requirement.marker
        and requirement.marker.evaluate({"extra": extra})
    ]
    nested = [
        nested_requirement
        for requirement in optional
        if requirement.name == DISTRIBUTION
        for name in requirement.extras
        for nested_requirement in requirements(name)
    ]
    return [requirement for requirement in optional if requirement.name != DISTRIBUTION] + nested


def missing(extra: str = "") -> list[str]:
    """Return the requirements that are not installed, or in another version."""
    return [
        str(requirement).partition(";")[0].strip()
        for requirement in requirements(extra)
        if not _installed(requirement)
    ]


def extra_of(module: str) -> str | None:
    """Return the extra that brings a module, e.g. ``trainer`` for ``ray._private``, or None."""
    top = module.partition(".")[0]
    name = DISTRIBUTIONS.get(top, top).replace("_", "-")
    try:
        return next(
            (
                extra
                for extra in PURPOSE
                if any(requirement.name == name for requirement in requirements(extra))
            ),
            None,
        )
    except metadata.PackageNotFoundError:
        return None


def require(extra: str, feature: str) -> None:
    """Raise RlinfError if an extra that ``feature`` needs is missing."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        if lacking := missing(extra):
            raise RlinfError(
                f"{feature}: expected the extra '{extra}', which lacks {', '.join(lacking)} here. "
                f"Run: {how_to_get(extra)}"
            )


def how_to_get(extra: str = "") -> str:
    """Return the command that installs an extra, several with commas between, or the base.

    The source is the clone or the wheel, because no index has the package.
    """
    if in_source_tree():
        return f".venv/bin/python scripts/install.py {extra.replace(',', ' ')}".rstrip()
    wheel = f"./{DISTRIBUTION}-{VERSION}-py3-none-any.whl"
    return f"pip install '{wheel}[{extra}]'" if extra else f"pip install {wheel}"


def _installed(requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(metadata.version(requirement.name), prereleases=True)
    except metadata.PackageNotFoundError:
        return False
