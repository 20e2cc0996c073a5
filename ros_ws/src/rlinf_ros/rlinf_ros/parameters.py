"""Every parameter of the station's nodes: its meaning and range, for ``ros2 param describe``.

The interlock's limits have their own table (``rlinf_core.interlock.limits``); a twin's parameters
are declared in the twin.
"""

from __future__ import annotations

import math
from typing import Any

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor

LARGEST = 2**63 - 1
# may change while the node runs
LIVE = (
    "instruction",
    "min_free_mb",
    "policies_gb",
    "real_time_factor",
    "retries",
)
MEANINGS: dict[str, str] = {
    "address": "host:port of the trainer's bridge",
    "arms": "names of the arms; empty for a single arm",
    "frames": "frame of each arm's poses, from its limits, in the order of `arms`",
    "armed_file": "file in which the scripted operator stores what it has armed; empty for none",
    "attached": "files that belong to each recording: name=path",
    "autostart": "the node configures and activates itself; false where a lifecycle manager does",
    "second_operator": "settings of a second device",
    "camera": "name of the camera in robot.yaml",
    "cameras": "names of the cameras whose images are used",
    "composed": "true: the policy runs in the process of the environment",
    "credentials": "credentials folder of an enrolled station; empty for a trainer on this machine",
    "device": "where the policy computes: auto, cpu, cuda",
    "distance": "true: the topic `distance` is required",
    "driver": "true: a driver node must publish `robot/fault` at 10 Hz",
    "follows": "command topic of the robot's own controller; a second publisher there is a fault",
    "estops": "names of the required e-stop sources",
    "external": "true: the robot side is not a simulator",
    "needs_viewer": "the page is the only e-stop source: its stop is silent while no browser has "
    "it open",
    "no_estop_reason": "the reason why the robot may be armed without an e-stop source; empty "
    "for a robot with sources",
    "first_seeds": "first seeds of the scenes for collection, training and evaluation",
    "gain": "twist: speed for each metre or radian of distance to the target [1/s]",
    "slowed_by": "joint_trajectory: topic with the speed scaling of the robot [%]; empty for none",
    "home": "where the arm waits for the next scene: `pose` or `joints` of each arm, and the "
    "longest age of an enable",
    "homes": "true: the operator can send the arm home",
    "horizon_s": "joint_trajectory: time from a message to its point [s]",
    "host": "address at which the page is served",
    "image_size": "height and width of the cameras' images",
    "instruction": "instruction of the policy from now on; empty for that of the scene or task",
    "axes": "for each twist or wrench: its required frame, and whether its axes are the tool's",
    "joints": "for each topic, the names of its joints, in order",
    "kind": "kind of the device or controller",
    "latch_file": "file that keeps a stop after the end of this process. robot:NAME: one file for "
    "all users of this machine. Empty: no file",
    "limits": "limits file of each arm",
    "limits_file": "YAML of the limits",
    "limits_hash": "hash of the limits at the start, for the trainer",
    "lockstep": "true: simulated time, as fast as the machine allows",
    "lockstep_guard_s": "lockstep: the simulator continues after this time without a chunk [s]",
    "min_free_mb": "nothing is recorded if less disk space is free [MB]",
    "module": "Python module of the process",
    "monitor": "file of the failure monitor; empty for none",
    "mounts": "fixed frames by name: parent frame, position [m], orientation (quaternion x y z w)",
    "node_names": "managed nodes, in the order in which they are brought up",
    "noise": "noise of the script's demonstrations, as a fraction of the largest action",
    "observed": "topics whose numbers or images the task observes",
    "options": "options of the simulator",
    "orientations": "nominal orientation of each arm's tool (quaternion x y z w). Observed "
    "rotations are continuous around it",
    "others": "names of the other arms",
    "custom_kinds": "kinds of policy of the recipe that are neither built in nor installed",
    "page": "settings of the page as a device",
    "tokens": "files that may hold the token of a trainer on loopback; the first that exists is "
    "read",
    "patience_s": "timeout of a request to the robot side [s]",
    "person": "true: a person is asked before some episodes",
    "plan_file": "file with the phases of the director",
    "policies": "folder of the policies at this station",
    "policies_gb": "largest size of the policies on disk [GB]",
    "policy_file": "file of the first policy; empty for the trainer's",
    "port": "port of the page",
    "priority": "real-time priority (SCHED_FIFO); 0 for none",
    "real_time_factor": "lockstep: most simulated seconds in a second; 0 for no limit",
    "references": "earlier picture of each camera",
    "remote": "settings of a policy on a server",
    "retries": "number of episodes that may fail in a row",
    "routes": "topics that the fault injector forwards: from:to:type",
    "rows": "numbers of an action for this arm: first, end, total",
    "run_dir": "folder of the run",
    "script": "true: a script replaces the operator",
    "seed": "seed of the random numbers of this node",
    "session_gb": "largest size of the session's recording; 0 for no recording [GB]",
    "settings": "settings from robot.yaml or the recipe",
    "simulator": "name of the simulator",
    "specs": "complete specification of observation and action, stored with each recording",
    "spool": "folder of the recordings",
    "spool_gb": "largest size of the recordings on disk [GB]",
    "station": "name of the station",
    "takes_over": "time steps after which the script takes over; 0 for never",
    "task_file": "YAML of the task",
    "teleports": "true: there is no hardware, and a new scene may place the arm elsewhere",
    "token_file": "file with the token that admits other machines to the page; empty for this "
    "machine only",
    "tool_frame": "name of the tool's frame on /tf; empty for none",
    "topic": "command topic of the robot's own controller",
    "views": "views that the simulator renders while a page is open",
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
    kinds = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
    kind = kinds.get(type(value), "a list")
    if name not in RANGES:
        return kind
    low, high = RANGES[name]
    if high < LARGEST:
        return f"{kind} from {low:g} to {high:g}"
    return f"{kind} of at least {low:g}"


def finite(value: Any) -> Any:
    """Return the value of a limit as a limits file spells it."""
    return "unlimited" if isinstance(value, float) and math.isinf(value) and value > 0 else value
