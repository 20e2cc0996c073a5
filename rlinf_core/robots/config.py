"""A robot and its robot.yaml: homes, arms, a following controller, and twins of the hardware.

Real robots are in ``robots``, simulated ones in the folder of their simulator.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rlinf_core.config.base import (
    FROM_FOLDER,
    FreeOptions,
    Name,
    Positive,
    Settings,
    constructor_arguments,
)
from rlinf_core.config.checking import validate
from rlinf_core.config.yaml_source import Document, read_document, resolve_file_reference
from rlinf_core.core import plugins
from rlinf_core.core.errors import RecipeError, RlinfError, nearest
from rlinf_core.core.paths import SOURCE, data_folder
from rlinf_core.robots.calibration.hand_eye import check as check_hand_eye
from rlinf_core.robots.cameras import CAMERA, CameraSettings, DeviceCamera
from rlinf_core.robots.drivers import EXTERNAL, SIMULATOR, DriverSettings, driver
from rlinf_core.robots.grippers import GRIPPER, GripperSettings
from rlinf_core.specs.topics import TAKEN, VECTORS, of_arms, topic


class Home(Settings):
    """The pose in which an arm waits for the next scene, in the form of the task's actions."""

    position: tuple[float, float, float] | None = Field(
        None,
        description="home position of the tool in the base frame, x y z [m]. It lies in "
        "the limits' box. For a task in tcp_delta",
    )
    orientation: tuple[float, float, float, float] | tuple[()] = Field(
        (),
        description="home orientation of the tool, quaternion x y z w, for a task that turns "
        "it. Without it the tool keeps its orientation",
    )
    joints: dict[str, float] = Field(
        {}, description="home angle of each joint by name [rad]. For a task in joint_delta"
    )

    @model_validator(mode="after")
    def _check_position_or_joints(self) -> Home:
        if self.position is None and not self.joints:
            raise ValueError("expected 'position' (of the tool) or 'joints', got neither")
        if self.orientation and abs(sum(value * value for value in self.orientation) - 1.0) > 0.02:
            raise ValueError(
                f"orientation: expected a quaternion of length 1, got {list(self.orientation)}"
            )
        return self


class Arm(Settings):
    """One of several arms of a robot."""

    limits: Path = Field(strict=False, description="file of this arm's limits beside robot.yaml")
    home: Home | None = Field(None, description="pose in which this arm waits for the next scene")
    gripper: Annotated[GripperSettings | None, GRIPPER] = Field(
        None, description="gripper of this arm, as in `gripper`"
    )


class Controller(Settings):
    """A controller that does not follow the interlock's own topics.

    A node translates its commands.
    """

    kind: Literal["joint_trajectory", "forward_position", "twist"] = Field(
        description="`joint_trajectory` and `forward_position` follow target_joints, for a task "
        "in joint_delta. `twist` follows target_pose by TwistStamped, as MoveIt "
        "Servo reads it"
    )
    topic: str = Field(
        pattern="^/?[A-Za-z][A-Za-z0-9_/]*$",
        description="topic of the controller. Example: "
        "/scaled_joint_trajectory_controller/joint_trajectory",
    )
    horizon_s: Positive = Field(
        0.05,
        description="joint_trajectory: time to reach the first "
        "target [s]. A target that is later than this "
        "and than three ticks has the same time. Other "
        "targets have the time between the two",
    )
    slowed_by: str = Field(
        "",
        pattern="^(/?[A-Za-z][A-Za-z0-9_/]*)?$",
        description="joint_trajectory: topic (std_msgs/Float64) with the robot's speed scaling "
        "[%], as "
        "ur_robot_driver publishes it. Below 100 the trajectory continues from the reached point",
    )
    gain: Positive = Field(5.0, description="twist: speed for each metre and radian of error [1/s]")


class Twin(Settings):
    """A process in the hardware's place: the vendor driver's interface, around a simulator."""

    node: str = Field(
        pattern=r"^[A-Za-z_]\w*(\.\w+)+$",
        description="module with the twin's main function, for example sim_bridges.twins.franka",
    )
    simulator: str = Field("", description="simulator inside the twin, if it has one")
    options: FreeOptions = Field({}, description="options of the twin's simulator")

    @model_validator(mode="after")
    def _check_options(self) -> Twin:
        if self.options and not self.simulator:
            raise ValueError(
                "options: expected 'simulator' with them, got none. Name the twin's simulator, "
                "or leave the options out"
            )
        return self


class Robot(Settings):
    """The content of a robot.yaml."""

    driver: str = Field(
        min_length=1,
        description="`simulator`, or `external` for another program that publishes "
        "the robot interface. Otherwise a node beside a vendor's "
        "driver, by name (franka), package.module:Class or entry point",
    )
    limits: Path | None = Field(
        None,
        strict=False,
        description="file of the interlock's limits beside robot.yaml, for a robot with one arm",
    )
    arms: dict[Name, Arm] = Field(
        {},
        description="the arms of a robot with several, in the order of their parts of an "
        "action. Each has its own interlock, and its topics are below its name",
    )
    home: Home | None = Field(
        None,
        description="pose of a real arm while a person resets the scene. The arm moves there "
        "after the operator's confirmation (docs/tutorials/collect.md). For a robot "
        "with one arm and without `reset_scene`",
    )
    simulator: str = Field("", description="name of the simulator")
    options: FreeOptions = Field({}, description="options of the simulator or of the driver's node")
    twin: Twin | None = Field(
        None,
        description="twin that the station starts in place of hardware and the vendor's driver",
    )
    task: str = Field(
        "",
        description="task of the simulator's own success signal, which `rlinf check sim` "
        "plays. A name, or ./path relative to this file",
    )
    cameras: dict[Name, Annotated[Any, CAMERA]] = Field(
        {},
        description="cameras by name. [height, width] is a camera that another program "
        "publishes. A mapping with `kind` is read here",
    )
    gripper: Annotated[GripperSettings | None, GRIPPER] = Field(
        None,
        description="gripper that a node of rlinf commands, with its settings. Leave it "
        "out if the driver or the simulator commands it",
    )
    estops: tuple[Name, ...] = Field(
        (),
        description="e-stop sources on `estop/<name>`. A robot "
        "with hardware and no source needs "
        "`no_estop_reason` before it is armed",
    )
    no_estop_reason: str = Field(
        "",
        pattern=r"^(\s*\S.{8,}\S\s*)?$",
        description="reason why this robot may be armed without an e-stop on the network, in a "
        "few words. The author of the file confirms it",
    )
    topics: dict[str, Annotated[str, Field(pattern="^/?[A-Za-z][A-Za-z0-9_/]*$")]] = Field(
        {},
        description="topics with another name at the driver. Example: {joint_states: "
        "/joint_states}. Names are below the station's namespace, unless they "
        "begin with /",
    )
    controller: Controller | None = Field(
        None,
        description="controller that follows the interlock, if it is not an impedance "
        "controller on target_pose",
    )
    urdf: Path | None = Field(
        None,
        strict=False,
        description="URDF file beside robot.yaml. It is published as `robot_description` and "
        "recorded with "
        "each episode",
    )
    hand_eye: Path | None = Field(
        None,
        strict=False,
        description="file with the poses of the cameras beside robot.yaml (rlinf camera locate). "
        "They are "
        "published on `tf_static`",
    )
    tool_frame: str = Field(
        "tool0",
        pattern="^([A-Za-z][A-Za-z0-9_]*)?$",
        description="name of the tool's frame on `tf`. Choose another one if the driver's "
        "robot_state_publisher uses this name. Empty publishes none",
    )
    root_frame: str = Field(
        "",
        pattern="^([A-Za-z][A-Za-z0-9_]*)?$",
        description="root of the driver's frames on `/tf`, if it is the limits' `frame` under "
        "another name. "
        "It becomes that frame's child, so all frames form one tree. For a robot with one arm",
    )
    tool_axes: tuple[str, ...] = Field(
        (),
        description="twists and wrenches that the driver publishes along the tool's axes. "
        "They are turned by current_pose into the limits' frame. CRISP does so "
        "with current_twist, ur_robot_driver with wrench",
    )
    distance: bool = Field(
        False,
        description="the topic `distance` (sensor_msgs/Range) has the distance to the "
        "nearest obstacle. Silence stops the arm",
    )

    @model_validator(mode="after")
    def _check_driver(self) -> Robot:
        try:
            driver_settings = self.driver in (SIMULATOR, EXTERNAL) or driver(self.driver)
        except RlinfError as error:
            raise ValueError(str(error)) from error
        if driver_settings is not True and self.simulator:
            raise ValueError(
                f"simulator: expected none with driver: {self.driver}. A simulator in place of the "
                "hardware is 'twin'"
            )
        return self

    @model_validator(mode="after")
    def _check_driver_keys(self) -> Robot:
        if self.driver == SIMULATOR and not self.simulator:
            raise ValueError("driver: simulator needs 'simulator', the simulator's name")
        if self.driver == EXTERNAL and (self.simulator or self.options):
            raise ValueError("driver: external has neither 'simulator' nor 'options'")
        if self.twin and self.driver == SIMULATOR:
            raise ValueError(
                "twin: expected none with driver: simulator, which has no hardware to replace"
            )
        return self

    @model_validator(mode="after")
    def _check_arms(self) -> Robot:
        if (self.limits is None) == (not self.arms):
            raise ValueError("expected either 'limits' (one arm) or 'arms' (several arms)")
        if len(self.arms) == 1:
            raise ValueError(
                f"arms: expected two or more, got {next(iter(self.arms))} alone. A robot with one "
                "arm has 'limits' and no name"
            )
        for name in self.arms:
            if name in TAKEN:
                raise ValueError(
                    f"arms: '{name}' is the beginning of other topic names. Give the arm another "
                    "name, e.g. left"
                )
        return self

    @model_validator(mode="after")
    def _check_estop_reason(self) -> Robot:
        if self.estops and self.no_estop_reason:
            raise ValueError(
                f"no_estop_reason: expected none beside estops: [{', '.join(self.estops)}]. "
                "Leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _check_estops(self) -> Robot:
        if doubled := [name for name in self.estops if self.estops.count(name) > 1]:
            raise ValueError(
                f"estops: expected a name for each source, got '{doubled[0]}' more than once. Two "
                "sources on one topic hide each other's silence. Give the second another name and "
                "remap its topic"
            )
        return self

    @model_validator(mode="after")
    def _check_tool_axes(self) -> Robot:
        allowed = [channel for name in VECTORS for channel in of_arms(name, list(self.arms))]
        if others := [name for name in self.tool_axes if name not in allowed]:
            raise ValueError(
                f"tool_axes: expected {' or '.join(allowed)}, got "
                f"'{others[0]}'{nearest(others[0], allowed)}"
            )
        return self

    @model_validator(mode="after")
    def _check_gripper(self) -> Robot:
        if self.arms and self.gripper:
            raise ValueError("gripper: expected arms.<name>.gripper for a robot with several arms")
        if self.driver == SIMULATOR and self.grippers:
            raise ValueError(
                "gripper: expected none with driver: simulator, which has a gripper of its own. A "
                "twin needs driver: external or a vendor's driver"
            )
        return self

    @model_validator(mode="after")
    def _check_simulator_driver(self) -> Robot:
        if self.driver == SIMULATOR and (self.topics or self.controller):
            raise ValueError(
                "driver: simulator has neither 'topics' nor 'controller', since it publishes the "
                "robot interface itself"
            )
        if self.arms and self.home:
            raise ValueError(
                "'home' is for a robot with one arm. With several arms, each has its own: arms: "
                "{left: {home: ...}}"
            )
        if self.arms and self.twin:
            raise ValueError(
                "'twin' is for a robot with one arm. For several arms use a simulator: driver: "
                "simulator"
            )
        if self.arms and self.root_frame:
            raise ValueError(
                "'root_frame' is for a robot with one arm. With several arms, set the frame of "
                "each in its limits"
            )
        if self.arms and self.controller:
            raise ValueError(
                "'controller' is for a robot with one arm. Give each of several arms a driver "
                "that follows its target_pose"
            )
        for name in self.topics:
            try:
                row = topic(name)
            except RlinfError as error:
                raise ValueError(f"topics: {error}") from error
            # the page only shows the robot's commands
            receivers = {*row.receivers.split(", ")} - {"page"}
            if not {"robot side", "e-stop"} & {*row.sender.split(", ")} and receivers != {
                "robot side"
            }:
                raise ValueError(
                    f"topics: '{name}' is not a topic of the robot side. Expected a topic that a "
                    "driver publishes or subscribes to"
                )
        return self

    @model_validator(mode="after")
    def _check_cameras(self) -> Robot:
        taken: dict[str, str] = {}
        for name, camera in self.device_cameras.items():
            if self.driver == SIMULATOR:
                raise ValueError(
                    f"cameras.{name}: expected [height, width], since driver: simulator renders "
                    f"the pictures itself, got kind: {camera.kind}. A twin needs driver: external "
                    "or a vendor's driver"
                )
            # one device has several names
            if other := taken.get(where := os.path.realpath(camera.where)):
                raise ValueError(
                    f"cameras.{name}: expected its own device, got '{camera.where}', the device of "
                    f"'{other}'"
                )
            taken[where] = name
        return self

    @model_validator(mode="after")
    def _check_grippers(self) -> Robot:
        taken: dict[str, str] = {}
        for arm, gripper in self.grippers.items():
            if not gripper.where:
                continue
            if other := taken.get(where := os.path.realpath(gripper.where)):
                raise ValueError(
                    f"arms.{arm}.gripper: expected its own gripper, got '{gripper.where}', which "
                    f"arm '{other}' commands"
                )
            taken[where] = arm
        return self

    def with_options(self, options: dict[str, Any], where: str) -> Robot:
        """Return the robot with other options of its simulator.

        Raises:
            RecipeError: the robot has no simulator, or it has no such option.
        """
        if not self.simulator:
            raise RecipeError(f"{where}: expected none for a real robot, got {', '.join(options)}")
        return self.but(
            options=_simulator_options(
                self.simulator, where, Document(self.options | options, {(): where})
            )
        )

    @property
    def without_hardware(self) -> bool:
        """Whether there is no hardware, so that a script may operate and the scene may jump."""
        return self.driver == SIMULATOR or self.twin is not None

    @property
    def device_cameras(self) -> dict[str, DeviceCamera]:
        """Cameras that a node of ours reads, by name."""
        return {
            name: camera
            for name, camera in self.cameras.items()
            if isinstance(camera, DeviceCamera)
        }

    @property
    def driver_node(self) -> DriverSettings | None:
        """Settings of the node beside the vendor's driver, or None."""
        return None if self.driver in (SIMULATOR, EXTERNAL) else driver(self.driver)(**self.options)

    @property
    def homes(self) -> dict[str, Home | None]:
        """The home of each arm by its name; "" for a single arm."""
        return {name: arm.home for name, arm in self.arms.items()} if self.arms else {"": self.home}

    @property
    def grippers(self) -> dict[str, GripperSettings]:
        """Grippers that a node of ours commands, by the arm's name; "" for a single arm."""
        by_arm = {"": self.gripper} | {name: arm.gripper for name, arm in self.arms.items()}
        return {arm: gripper for arm, gripper in by_arm.items() if gripper}

    @property
    def limits_by_arm(self) -> dict[str, Path]:
        """The limits of each arm by its name, in the order of actions; "" for a single arm."""
        return (
            {"": self.limits}
            if self.limits
            else {name: arm.limits for name, arm in self.arms.items()}
        )


def load_robot(name: str) -> Robot:
    """Load a robot by its folder's name, by path, or by entry point (``rlinf_core.core.plugins``).

    Raises:
        RecipeError: no such robot, or an invalid YAML, with file and line.
    """
    folder = robot_folder(name)
    document = read_document(folder / "robot.yaml", "robot")
    resolve_file_reference(document, ("simulator",), folder)
    robot = validate(Robot, document)
    for arm, limits in robot.limits_by_arm.items():
        key = ("arms", arm, "limits") if arm else ("limits",)
        if not (folder / limits).is_file():
            raise RecipeError(
                f"{document.place(key)}: '{'.'.join(key)}': expected a file in {folder}, got "
                f"'{limits}', which does not exist"
            )
    options: dict[str, Any] = {}
    if robot.simulator:
        options = _simulator_options(
            robot.simulator, document.place(("simulator",)), document.below(("options",)), folder
        )
    elif robot.driver != EXTERNAL:
        kind = driver(robot.driver)
        options = _resolve_paths(
            kind, constructor_arguments(validate(kind, document.below(("options",)))), folder
        )
        if robot.grippers and driver(robot.driver)(**options).has_gripper:
            raise RecipeError(
                f"{document.place(('driver',))}: 'gripper': expected none, since driver: "
                f"{robot.driver} commands one. Leave it out, or set options: {{hand: false}}"
            )
    if robot.twin and robot.twin.simulator:
        twin_options = _simulator_options(
            robot.twin.simulator,
            document.place(("twin", "simulator")),
            document.below(("twin", "options")),
            folder,
        )
        robot = robot.but(twin=robot.twin.but(options=twin_options))
    task = (
        str((folder / robot.task).resolve()) if robot.task.startswith((".", "..")) else robot.task
    )
    urdf, hand_eye, limits_path = (
        folder / path if path else None for path in (robot.urdf, robot.hand_eye, robot.limits)
    )
    if urdf:
        _check_urdf(urdf, document.place(("urdf",)))
    if hand_eye:
        check_hand_eye(
            hand_eye,
            document.place(("hand_eye",)),
            robot.cameras,
            robot.limits_by_arm,
            robot.tool_frame,
        )
    cameras: dict[str, CameraSettings] = robot.cameras | {
        name: camera.with_paths_from(folder) for name, camera in robot.device_cameras.items()
    }
    return robot.but(
        urdf=urdf,
        hand_eye=hand_eye,
        cameras=cameras,
        limits=limits_path,
        options=options,
        task=task,
        arms={name: arm.but(limits=folder / arm.limits) for name, arm in robot.arms.items()},
    )


def _check_urdf(path: Path, where: str) -> None:
    """Raise RecipeError if the file is unreadable, or not a robot's URDF."""
    from xml.etree import ElementTree

    try:
        root_tag = ElementTree.parse(path).getroot().tag
    except (OSError, ElementTree.ParseError) as error:
        root_tag = f"{type(error).__name__}: {error}"
    if root_tag != "robot":
        raise RecipeError(
            f"{where}: 'urdf': expected a file whose XML is a <robot>, got {path}: {root_tag}. "
            "Expand a xacro first: xacro robot.urdf.xacro > robot.urdf"
        )


def _simulator_options(
    simulator: str, where: str, document: Document, folder: Path | None = None
) -> dict[str, Any]:
    """Return the options of a simulator; paths among them are relative to ``folder``."""
    from sim_bridges.core.interface import options_of

    kind = options_of(simulator, where)
    options = constructor_arguments(validate(kind, document))
    return _resolve_paths(kind, options, folder) if folder else options


def _resolve_paths(kind: type[Settings], options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return options whose relative paths begin at the folder of the robot's YAML."""
    return options | {
        name: str((folder / options[name]).resolve())
        for name, item in kind.model_fields.items()
        if FROM_FOLDER in item.metadata and options.get(name)
    }


def robot_folder(name: str) -> Path:
    """Return a robot's folder.

    Raises:
        RecipeError: there is no such robot; the message suggests the nearest name.
    """
    folder = plugins.find_path("robots", name, _builtin(), "station.robot")
    if not (folder / "robot.yaml").is_file():
        raise RecipeError(f"station.robot: expected a folder with a robot.yaml, got '{name}'")
    return folder


def robots() -> list[str]:
    """Return the names of all robots."""
    return plugins.valid_names("robots", _builtin())


def _builtin() -> dict[str, Path]:
    """Return the folders of the robots that come with rlinf, by their names."""
    paths = (
        *(data_folder() / "robots").glob("*/robot.yaml"),
        *(SOURCE / "sim_bridges/simulators").glob("*/*/robot.yaml"),
    )
    return {path.parent.name: path.parent for path in paths}
