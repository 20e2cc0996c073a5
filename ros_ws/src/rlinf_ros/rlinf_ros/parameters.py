"""Every parameter of the station's nodes: its meaning and range, for ``ros2 param describe``.

The interlock's limits have their own table (``rlinf_core.interlock.limits``); a twin's parameters
are declared in the twin.
"""

from __future__ import annotations

import math
from typing import Any

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor

LARGEST = 2**63 - 1
LIVE = (
    "instruction",
    "min_free_mb",
    "policies_gb",
    "real_time_factor",
    "retries",
)  # may change while the node runs
MEANINGS: dict[str, str] = {
    "address": "host:port of the trainer's bridge",
    "arms": "names of the arms, where there are several",
    "frames": "the frame of each arm's poses, as its limits have it, in the order of `arms`",
    "armed_file": "where the scripted operator remembers what it has armed; empty for nowhere",
    "attached": "files that belong to each recording: name=path",
    "autostart": "the node configures and activates itself; false where a lifecycle manager does",
    "second_operator": "settings of a second device",
    "camera": "its name in robot.yaml",
    "cameras": "those whose images are used, by name",
    "composed": "the policy is in the environment's process",
    "credentials": "folder of a station that is enrolled; empty on this machine",
    "device": "where the policy computes: auto, cpu, cuda",
    "distance": "`distance` must be heard",
    "driver": "`robot/fault` must be heard, ten times a second, of a driver's node",
    "follows": "the topic by which a controller of the robot's own is told, on which nobody else "
    "may publish either",
    "estops": "names of the e-stops that must be heard",
    "external": "the robot side is no simulator",
    "needs_viewer": "the page is the only e-stop source: its stop is silent while no browser has "
    "it open",
    "no_estop_reason": "why it may be armed although no e-stop is heard; empty for a robot with "
    "e-stops",
    "first_seeds": "of the scenes of collecting, training and evaluating",
    "gain": "twist: speed for each metre, and radian, to the target [1/s]",
    "slowed_by": "joint_trajectory: topic that says at how many per cent of its speed the robot "
    "plays; empty for none",
    "home": "where the arm waits for the next scene: `pose` or `joints` of each arm, and the "
    "longest age of an enable",
    "homes": "the operator can send the arm home",
    "horizon_s": "joint_trajectory: how long after its message a point is reached [s]",
    "host": "where the page is served",
    "image_size": "height and width of the cameras' images",
    "instruction": "what the policy is asked for from now on; empty for what scene or task say",
    "axes": "by twist or wrench, the frame that it is to be in, and whether it comes along the "
    "tool's axes",
    "joints": "by topic, the names of the joints that are read from it, in that order",
    "kind": "which of its kinds it is",
    "latch_file": "where a stop outlives this process: a file; robot:NAME for all users of this "
    "machine; empty for nowhere",
    "limits": "files of the limits of each arm",
    "limits_file": "YAML of the limits",
    "limits_hash": "of the limits that the interlocks begin with, which the trainer is told",
    "lockstep": "simulated time, as fast as it goes",
    "lockstep_guard_s": "lockstep: after so long without a chunk it ticks on [s]",
    "min_free_mb": "below that, nothing is recorded [MB]",
    "module": "what is run",
    "monitor": "file of the failure monitor; empty for none",
    "mounts": "what stands still, by its frame: in which frame, position [m] and orientation "
    "(quaternion x y z w)",
    "node_names": "managed nodes, in the order in which they are brought up",
    "noise": "of the script's demonstrations, as a fraction of the largest action",
    "observed": "topics of which the task takes numbers or images",
    "options": "of the simulator",
    "orientations": "by arm, the nominal orientation of its tool (quaternion x y z w), around "
    "which observed "
    "rotations are continuous",
    "others": "names of the other arms",
    "custom_kinds": "kinds of policy of the recipe that are neither built in nor installed",
    "page": "settings of the page as a device",
    "tokens": "files that may hold the token of a trainer on loopback; the first that exists is "
    "read",
    "patience_s": "after that a question to the robot side counts as lost [s]",
    "person": "a person is asked before some episodes",
    "plan_file": "what the director goes through",
    "policies": "folder of the policies at this station",
    "policies_gb": "so much of the disk they may take [GB]",
    "policy_file": "a policy to begin with; empty for the trainer's",
    "port": "of the page",
    "priority": "real-time priority (SCHED_FIFO); 0 for none",
    "real_time_factor": "lockstep: no faster than so many simulated seconds a second; 0 as fast as "
    "it goes",
    "references": "pictures of before, one of each camera",
    "remote": "settings of a policy that a server plays",
    "retries": "so many episodes may fail in a row",
    "routes": "topics that a fault injector stands between: from:to:type",
    "rows": "which numbers of an action are this arm's: first, end, of how many",
    "run_dir": "folder of the run",
    "script": "whether a script stands for the operator",
    "seed": "of what is drawn here",
    "session_gb": "so much of the disk the session's recording may take; 0 for none [GB]",
    "settings": "those of robot.yaml or the recipe",
    "simulator": "which one",
    "specs": "what is observed and done, in full: it belongs to each recording",
    "spool": "folder of the recordings",
    "spool_gb": "so much of the disk the recordings may take [GB]",
    "station": "its name",
    "takes_over": "the script takes over after so many time steps; 0 for never",
    "task_file": "YAML of the task",
    "teleports": "the arm may be elsewhere after a scene's reset, in simulation",
    "token_file": "whose token lets another machine see the page; empty for this machine alone",
    "tool_frame": "name of the tool's frame on /tf; empty for none",
    "topic": "where the robot's own controller listens",
    "views": "pictures for people that the simulator renders while a page is open",
    "urdf": "file of the robot's URDF; empty for none",
    "control_hz": "time steps a second [Hz]",
    "camera_hz": "images a second [Hz]",
}
RANGES: dict[str, tuple[float, float]] = {
    "camera_hz": (0.1, 1000.0),
    "control_hz": (0.1, 1000.0),
    "gain": (0.0, 100.0),
    "horizon_s": (0.0, 10.0),
    "lockstep_guard_s": (0.001, 60.0),
    "min_free_mb": (0.0, 1e9),
    "noise": (0.0, 10.0),
    "patience_s": (0.0, 3600.0),
    "policies_gb": (0.0, 1e6),
    "port": (0, 65535),
    "priority": (0, 99),
    "real_time_factor": (0.0, 1e6),
    "retries": (0, 1_000_000),
    "seed": (0, LARGEST),
    "session_gb": (0.0, 1e6),
    "spool_gb": (0.0, 1e6),
    "takes_over": (0, 1_000_000_000),
}


def descriptor(name: str, value: object) -> ParameterDescriptor:
    """Return a parameter's descriptor, read-only after the start unless it is one of ``LIVE``."""
    if name not in MEANINGS:  # ROS's own
        return ParameterDescriptor()
    result = ParameterDescriptor(description=MEANINGS[name], read_only=name not in LIVE)
    low, high = RANGES.get(name, (None, None))
    if low is not None and high is not None:
        if isinstance(value, float):
            result.floating_point_range = [
                FloatingPointRange(from_value=float(low), to_value=float(high))
            ]
        elif isinstance(value, int):
            result.integer_range = [IntegerRange(from_value=int(low), to_value=int(high))]
    return result


def described_field(structure: str, key: str, value: object, field: Any) -> ParameterDescriptor:
    """Describe a parameter of a structure, by the field of its pydantic model, if any.

    Args:
        structure, key: the parameter is ``structure.key``.
        value: the one that was given.
        field: pydantic's FieldInfo, or None.
    """
    result = ParameterDescriptor(
        description=getattr(field, "description", "") or MEANINGS[structure], read_only=True
    )
    bounds = [
        getattr(item, name)
        for name in ("ge", "gt", "le", "lt")
        for item in getattr(field, "metadata", ())
        if getattr(item, name, None) is not None
    ]
    if len(bounds) == 2 and "." not in key:
        low, high = bounds
        if isinstance(value, float):
            result.floating_point_range = [
                FloatingPointRange(from_value=float(low), to_value=float(high))
            ]
        elif type(value) is int and low == int(low) and high == int(high):
            result.integer_range = [IntegerRange(from_value=int(low), to_value=int(high))]
    return result


def expected(name: str, value: object) -> str:
    """Describe the allowed values of a parameter in words."""
    kind = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}.get(
        type(value), "a list"
    )
    low, high = RANGES.get(name, (None, None))
    bounds = (
        f" from {low:g} to {high:g}"
        if low is not None and high is not None and high < LARGEST
        else f" of at least {low:g}"
        if low is not None
        else ""
    )
    return f"{kind}{bounds}"


def finite(value: Any) -> Any:
    """Return the value of a limit as a limits file spells it."""
    return "unlimited" if isinstance(value, float) and math.isinf(value) and value > 0 else value
