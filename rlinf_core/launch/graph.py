"""The process graph of a station: the processes of a recipe, for all launchers.

``collect_processes`` starts a station without policy and uplink, with a director that ends after
the last demonstration.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rlinf_core.config.base import Settings
from rlinf_core.core.errors import RecipeError
from rlinf_core.core.paths import expand_user
from rlinf_core.data.demonstrations import DemonstrationStats, demonstration_stats
from rlinf_core.deploy.bridge.fleet import Credentials
from rlinf_core.interlock import load_limits
from rlinf_core.interlock.latch import ROBOT
from rlinf_core.page.access import token_of
from rlinf_core.policies import custom_kinds
from rlinf_core.recipes import load_recipe
from rlinf_core.recipes.bridge_security import credentials_of, tokens_of
from rlinf_core.recipes.schema import Recipe
from rlinf_core.recipes.station import station_robot, station_task, task_file, tool_orientations
from rlinf_core.robots.calibration.camera_alignment import reference_path
from rlinf_core.robots.calibration.hand_eye import TOOL
from rlinf_core.robots.calibration.hand_eye import load as load_hand_eye
from rlinf_core.robots.config import Robot, robot_folder
from rlinf_core.robots.drivers import SIMULATOR
from rlinf_core.robots.operators import KEYBOARD, PAGE, REPLAY, SCRIPTED
from rlinf_core.robots.operators.homing import homes_of
from rlinf_core.specs.arrays import ActionSpec
from rlinf_core.specs.ros_parameters import to_parameters
from rlinf_core.specs.topics import VECTORS
from rlinf_core.specs.topics import parameters as qos_parameters
from rlinf_core.tasks.scripts import make_script

RESPAWN = "respawn"
SHUTDOWN = "shutdown"  # the end of the process ends the station
ONCE = "once"  # the process is never restarted
STOP_S, TRAINER_STOP_S = 5.0, 30.0
CONTROLLER_PRIORITY = 25  # real-time priority of the twin of a robot's controller
# topics of a station, without the prefix of an arm
STATION_TOPICS = (
    "enable",
    "policy/action",
    "teleop/action",
    "timestep",
    "episode",
    "endpoints",
)
STATE_FOR_OTHERS = "safety/to_others"  # an interlock's state, for those of the other arms
# the ROS package that contains the executable of the bridge to simulators
DRIVERS_PACKAGE = "rlinf_drivers"
# executables that share one process in lockstep
HOSTED_EXECUTABLES = (
    "sim_bridge",
    "interlock",
    "environment",
    "policy",
    "operator",
    "recorder",
)
FAST_DDS = "rmw_fastrtps_cpp"
MANAGER = "lifecycle_manager"


@dataclass(frozen=True)
class Process:
    """One process of a station.

    Attributes:
        name: name of the process.
        package: ROS package, for ``ros2 run`` and launch_ros.
        executable: executable of the package; the node has the same name.
        module: Python module of the executable, for ``python -m``.
        namespace: ROS namespace of the node.
        parameters: ROS parameters.
        remappings: (from, to) names.
        restart: RESPAWN, SHUTDOWN (its end ends the station) or ONCE.
        terminal: whether it reads the terminal of the launcher.
        stop_s: time to end after each signal [s].
        nodes: hosted nodes, if it hosts several.
    """

    name: str
    package: str
    executable: str
    module: str
    namespace: str
    parameters: dict[str, Any] = field(default_factory=dict)
    remappings: tuple[tuple[str, str], ...] = ()
    restart: str = RESPAWN
    terminal: bool = False
    stop_s: float = STOP_S
    nodes: tuple[Process, ...] = ()


def station_processes(
    recipe: Recipe, run_dir: Path, without: tuple[str, ...] = ()
) -> list[Process]:
    """Return the processes of the recipe's station, the robot side first.

    An external driver has no process here except its adapter node. A person's device has none,
    because ``rlinf teleop`` reads it; the operator's page has one.

    Args:
        recipe: recipe of the station.
        run_dir: folder of spool, policies and logs.
        without: names of processes to leave out.

    Raises:
        RecipeError: a script would arm a real robot, or the uplink would use a network without TLS.
    """
    check_operator(recipe)
    if credentials := credentials_of(recipe.bridge):
        Credentials(credentials, recipe.station.name)
    station = recipe.station
    robot = _with_stop(recipe)
    spec = station_task(recipe).spec
    web = station.web
    token_of(web)
    is_lockstep = station.lockstep and robot.driver == SIMULATOR
    observed = _camera_parameters(recipe) | {
        "orientations": to_parameters(tool_orientations(robot), "orientations")
    }
    policy = _node(
        recipe,
        "policy",
        "rlinf_station.policy",
        task_file=str(task_file(recipe)),
        seed=recipe.seed,
        device=station.device,
        lockstep=is_lockstep,
        custom_kinds=custom_kinds(recipe.policy) or [""],
        monitor=_monitor(recipe),
        **observed,
        **_remote(recipe),
    )
    environment = _node(
        recipe,
        "environment",
        "rlinf_station.environment",
        task_file=str(task_file(recipe)),
        station=station.name,
        lockstep=is_lockstep,
        person=_waits_for_person(recipe),
        external=robot.driver != SIMULATOR,
        teleports=robot.without_hardware,
        homes=bool(home_parameters(recipe)),
        joints=_joints(robot),
        axes=_axes(robot),
        **observed,
    )
    runs_in_environment = station.policy.backend == "composed" and "policy" not in without
    if runs_in_environment:
        environment.parameters.update(policy.parameters | {"composed": True})
    processes = [
        *_robot_side(recipe, robot),
        *_cameras(recipe, robot),
        *_grippers(recipe, robot),
        *(_interlock(recipe, robot, spec.action, arm) for arm in robot.limits_by_arm),
        environment,
    ]
    if not runs_in_environment:
        processes.append(policy)
    if station.operator.kind == SCRIPTED or web.port:
        processes.append(operator_process(recipe, run_dir))
    processes += [_recorder(recipe, robot, run_dir), _uplink(recipe, robot, run_dir)]
    if web.port:
        processes.append(_page(recipe, robot, run_dir))
    return [process for process in processes if process.name not in without]


def _camera_parameters(recipe: Recipe) -> dict[str, Any]:
    """Return the parameters of a node that reads or renders the policy's cameras."""
    station = recipe.station
    return {
        "cameras": list(station.observe_cameras) or [""],
        "image_size": list(station.image_size),
    }


def _robot_side(recipe: Recipe, robot: Robot) -> Iterator[Process]:
    """Yield simulator, twin, driver nodes and controller, as far as the robot has them."""
    station = recipe.station
    control_hz = station_task(recipe).spec.control_hz
    cameras = _camera_parameters(recipe)
    if robot.driver == SIMULATOR:
        yield _node(
            recipe,
            "sim_bridge",
            "sim_bridges.core.ros_bridge",
            SHUTDOWN,
            simulator=robot.simulator,
            frames=[load_limits(path).frame for path in robot.limits_by_arm.values()],
            options=to_parameters(robot.options, "options"),
            lockstep=station.lockstep,
            real_time_factor=station.real_time_factor,
            control_hz=control_hz,
            views=_views(recipe, robot),
            **cameras,
        )
    if robot.twin:
        # a camera with a device of its own is not rendered
        rendered = [name for name in station.observe_cameras if name not in robot.device_cameras]
        yield _node(
            recipe,
            "twin",
            "rlinf_drivers.driver",
            SHUTDOWN,
            module=robot.twin.node,
            lockstep=False,
            priority=CONTROLLER_PRIORITY,
            simulator=robot.twin.simulator,
            options=to_parameters(robot.twin.options, "options"),
            settings=_settings(robot.driver_node) if robot.driver_node else {},
            control_hz=control_hz,
            **cameras | {"cameras": rendered or [""]},
        )
    if driver := robot.driver_node:
        node = _node(
            recipe,
            "driver",
            "rlinf_drivers.driver",
            SHUTDOWN,
            module=driver.node,
            settings=_settings(driver),
        )
        for arm in robot.limits_by_arm:
            yield _of_arm(node, arm)
    if robot.controller:
        yield _node(
            recipe,
            "controller",
            "rlinf_drivers.controller",
            SHUTDOWN,
            limits_file=str(robot.limits),
            **robot.controller.model_dump(),
        )


def _recorder(recipe: Recipe, robot: Robot, run_dir: Path) -> Process:
    """Return the recorder, with recipe and limits as attachments of each recording."""
    station, task = recipe.station, station_task(recipe)
    limits = {
        f"{arm}_limits.yaml" if arm else "limits.yaml": path
        for arm, path in robot.limits_by_arm.items()
    }
    attached = {"recipe.yaml": run_dir / "recipe.yaml"} | limits
    return _node(
        recipe,
        "recorder",
        "rlinf_station.recorder",
        station=station.name,
        spool=str(run_dir / "spool"),
        spool_gb=station.spool_gb,
        session_gb=station.session_gb,
        estops=list(robot.estops) or [""],
        lockstep=station.lockstep and robot.driver == SIMULATOR,
        cameras=_camera_parameters(recipe)["cameras"],
        observed=sorted(task.channels) or [""],
        urdf=str(robot.urdf or ""),
        tool_frame=robot.tool_frame,
        limits=[str(path) for path in robot.limits_by_arm.values()],
        mounts=_mounts(robot),
        specs=to_parameters(task.spec.to_dict(), "specs"),
        attached=[f"{name}={path}" for name, path in attached.items()],
    )


def _uplink(recipe: Recipe, robot: Robot, run_dir: Path) -> Process:
    """Return the uplink, which sends episodes to the trainer and fetches its policies."""
    station = recipe.station
    return _node(
        recipe,
        "uplink",
        "rlinf_station.uplink",
        station=station.name,
        spool=str(run_dir / "spool"),
        spool_gb=station.spool_gb,
        policies=str(run_dir / "policies_at_station"),
        policies_gb=station.policies_gb,
        address=recipe.bridge.address,
        credentials=str(credentials_of(recipe.bridge) or ""),
        tokens=[str(path) for path in tokens_of(recipe.bridge, run_dir)] or [""],
        specs=to_parameters(station_task(recipe).spec.to_dict(), "specs"),
        limits_hash="+".join(
            load_limits(path).hash for _, path in sorted(robot.limits_by_arm.items())
        ),
    )


def compose(recipe: Recipe, processes: list[Process]) -> list[Process]:
    """Return the processes, with a lockstep station's nodes in one process if the recipe allows.

    A policy of a remote server, an operator at a terminal and all other nodes keep their own
    process.
    """
    hosted = [
        process
        for process in processes
        if process.executable in HOSTED_EXECUTABLES
        and not process.terminal
        and not (process.executable == "policy" and recipe.station.policy.backend == "remote")
    ]
    if len(hosted) < 2 or not _in_one_process(recipe):
        return processes
    host = Process(
        "station",
        "rlinf_station",
        "station",
        "rlinf_station.station_process",
        f"/{recipe.station.name}",
        nodes=tuple(hosted),
    )
    return [host, *(process for process in processes if process not in hosted)]


# The order in which a lifecycle manager brings nodes up; it takes them down in reverse. The nodes
# that command come last.
LIFECYCLE_ORDER = (
    "driver",
    "controller",
    "gripper",
    "camera",
    "interlock",
    "recorder",
    "uplink",
    "policy",
    "environment",
    "operator",
)


def with_lifecycle_manager(recipe: Recipe, processes: list[Process]) -> list[Process]:
    """Return the processes of a station whose nodes wait for a lifecycle manager.

    The manager is the first process. A driver from outside of rlinf may have no life cycle, so it
    is left unchanged.
    """
    station = f"/{recipe.station.name}"
    names: list[tuple[int, str]] = []  # (place in LIFECYCLE_ORDER, name of the node)

    def without_autostart(process: Process) -> Process:
        if process.nodes:
            return replace(process, nodes=tuple(map(without_autostart, process.nodes)))
        module = str(process.parameters.get("module") or process.module)
        if process.executable not in LIFECYCLE_ORDER or not module.startswith("rlinf_"):
            return process
        space = process.namespace.removeprefix(station).strip("/")
        has_policy = process.parameters.get("composed")
        for executable in (process.executable, "policy") if has_policy else (process.executable,):
            names.append((LIFECYCLE_ORDER.index(executable), f"{space}/{executable}".strip("/")))
        return replace(process, parameters=process.parameters | {"autostart": False})

    nodes = [without_autostart(process) for process in processes]
    manager = _node(
        recipe,
        MANAGER,
        "rlinf_station.lifecycle_manager",
        node_names=[name for _, name in sorted(names)],
    )
    return [manager, *nodes]


def _in_one_process(recipe: Recipe) -> bool:
    """Return whether nodes share a process.

    Raises:
        RecipeError: the recipe asks for one process, and the robot side is no simulator in
            lockstep.
    """
    setting = recipe.station.processes
    is_lockstep = station_robot(recipe).driver == SIMULATOR and recipe.station.lockstep
    if setting == "one" and not is_lockstep:
        raise RecipeError(
            "station.processes: expected several or auto for a station in real time, since its "
            "interlock needs a separate process, got one. Leave it out, or set "
            "station.lockstep=true with a simulator"
        )
    middleware = os.environ.get("RMW_IMPLEMENTATION") or FAST_DDS
    return is_lockstep and (setting == "one" or (setting == "auto" and middleware == FAST_DDS))


def check_operator(recipe: Recipe) -> None:
    """Check the operator: only a person may arm a real arm. Raises RecipeError."""
    kind, robot = recipe.station.operator.kind, recipe.station.robot
    _devices(recipe)  # refuses two devices of one kind
    if kind == SCRIPTED and not station_robot(recipe).without_hardware:
        raise RecipeError(
            f"station.operator.kind: expected {KEYBOARD} for robot '{robot}', which is real, got "
            f"{kind}. A person arms a real arm: --set 'station.operator={{kind: {KEYBOARD}}}', and "
            "rlinf teleop"
        )
    if kind == SCRIPTED:
        task = station_task(recipe)
        make_script(task)
        if (after := recipe.station.operator.takes_over) >= task.max_steps:
            raise RecipeError(
                f"station.operator.takes_over: expected less than the {task.max_steps} time steps "
                f"of an episode (max_steps of task '{recipe.station.task}'), got {after}. The "
                "script would never take over"
            )


def _waits_for_person(recipe: Recipe) -> bool:
    """Return True if a person confirms that the scene is ready.

    A script or a replay in simulation needs none.
    """
    kind = recipe.station.operator.kind
    return kind != SCRIPTED and not (kind == REPLAY and station_robot(recipe).without_hardware)


def operator_process(recipe: Recipe, run_dir: Path | None = None) -> Process:
    """Return the operator's process: a script, or the node that reads a person's devices.

    The script stores in ``run_dir`` that it has armed.
    """
    operator, task = recipe.station.operator, str(task_file(recipe))
    lockstep = recipe.station.lockstep and station_robot(recipe).driver == SIMULATOR
    if operator.kind != SCRIPTED:
        replay = (
            {"simulated": station_robot(recipe).without_hardware} if operator.kind == REPLAY else {}
        )
        return _node(
            recipe,
            "operator",
            "rlinf_operator.operator",
            task_file=task,
            kind=operator.kind,
            home=home_parameters(recipe),
            lockstep=lockstep,
            **_devices(recipe),
            **replay,
        )
    return _node(
        recipe,
        "operator",
        "rlinf_operator.operator",
        task_file=task,
        kind=operator.kind,
        noise=operator.noise,
        joints=_joints(station_robot(recipe)),
        lockstep=lockstep,
        takes_over=operator.takes_over,
        seed=recipe.seed,
        armed_file=str(run_dir / "operator.armed") if run_dir else "",
        **_devices(recipe),
    )


def _joints(robot: Robot) -> dict[str, Any]:
    """Return the joint names of each arm in the order of its limits, by topic."""
    names = {
        f"{arm}/joint_states" if arm else "joint_states": load_limits(path).joint_names
        for arm, path in robot.limits_by_arm.items()
    }
    return to_parameters({topic: joints for topic, joints in names.items() if joints}, "joints")


def _axes(robot: Robot) -> dict[str, Any]:
    """Return frame and axes (base or tool) of each twist and wrench of a real arm, by topic."""
    frames = (
        {
            f"{arm}/{name}" if arm else name: load_limits(path).frame
            for arm, path in robot.limits_by_arm.items()
            for name in VECTORS
        }
        if robot.driver != SIMULATOR
        else {}
    )
    axes = {
        name: {"frame": frame, "tool": name in robot.tool_axes} for name, frame in frames.items()
    }
    return to_parameters(axes, "axes")


def home_parameters(recipe: Recipe) -> dict[str, Any]:
    """Return the robot's home pose; empty if it has none."""
    homes = homes_of(station_robot(recipe), station_task(recipe).spec.action)
    return to_parameters(asdict(homes), "home") if homes else {}


def _devices(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Return the settings of the operator's devices.

    A page counts as a device. It replaces the keyboard, which would need a terminal.
    """
    station, served = recipe.station, bool(recipe.station.web.port)
    if station.second_operator is not None and station.second_operator.kind == SCRIPTED:
        raise RecipeError(
            f"station.second_operator.kind: expected an input device, got {SCRIPTED}. A script can "
            "only be station.operator. Leave second_operator out"
        )
    devices = [
        device
        for device in (station.operator, station.second_operator)
        if device is not None and device.kind != SCRIPTED
    ]
    if len(devices) == 2 and devices[0].kind == devices[1].kind != KEYBOARD:
        raise RecipeError(
            "station.second_operator.kind: expected another kind than that of station.operator, "
            f"got {devices[0].kind} for both. One of the two would be ignored. Leave one out"
        )
    settings_by_kind = {
        device.kind: _settings(device)
        for device in devices
        if not (served and device.kind == KEYBOARD)
    }
    page = settings_by_kind.pop(PAGE, {"kind": PAGE}) if served else {}
    first, second = [*settings_by_kind.values(), {}, {}][:2]
    return {"settings": first, "second_operator": second, "page": page}


def _with_stop(recipe: Recipe) -> Robot:
    """Return the robot of a station. The page, if there is one, is one of its e-stop sources."""
    robot = station_robot(recipe)
    if not recipe.station.web.port:
        return robot
    return robot.but(estops=tuple(dict.fromkeys((*robot.estops, PAGE))), no_estop_reason="")


def _page_is_the_only_stop(recipe: Recipe) -> bool:
    """Return True if arming a robot with hardware relies on the page's STOP alone."""
    robot = station_robot(recipe)
    return not (robot.without_hardware or robot.no_estop_reason or set(robot.estops) - {PAGE})


def _page(recipe: Recipe, robot: Robot, run_dir: Path) -> Process:
    station, web = recipe.station, recipe.station.web
    cameras = station.observe_cameras if robot.without_hardware else tuple(robot.cameras)
    folder = robot_folder(recipe.station.robot).resolve()
    token = (
        str(expand_user(web.token_file, "station.web.token_file").resolve())
        if web.token_file
        else ""
    )
    return _node(
        recipe,
        "page",
        "rlinf_operator.page",
        task_file=str(task_file(recipe)),
        run_dir=str(run_dir),
        port=web.port,
        host=web.host,
        token_file=token,
        lockstep=station.lockstep and robot.driver == SIMULATOR,
        cameras=list(cameras) or [""],
        views=_views(recipe, robot),
        script=recipe.station.operator.kind == SCRIPTED,
        needs_viewer=_page_is_the_only_stop(recipe),
        references=[str(reference_path(folder, camera)) for camera in cameras] or [""],
        limits=[str(path) for path in robot.limits_by_arm.values()],
        first_seeds=[
            recipe.scene(recipe.collect.first_seed),
            recipe.scene(recipe.online.first_seed),
            recipe.evaluate.first_seed,
        ],
    )


def _views(recipe: Recipe, robot: Robot) -> list[str]:
    """Return the simulator's cameras for the page: its own view and the policy's cameras."""
    shown = robot.driver == SIMULATOR and recipe.station.web.port
    return ["video", *recipe.station.observe_cameras] if shown else [""]


def director_process(recipe: Recipe, run_dir: Path) -> Process:
    """Return the director's process, which runs the phases of the recipe and then ends."""
    return _node(
        recipe,
        "director",
        "rlinf_station.director",
        ONCE,
        plan_file=str(run_dir / "plan.json"),
        run_dir=str(run_dir),
    )


def trainer_process(run_dir: Path) -> Process:
    """Return the process of the trainer of ``run_dir``. It saves a checkpoint before it ends."""
    command = [
        sys.executable,
        "-m",
        "rlinf_core.cli.trainer",
        str(run_dir / "recipe.yaml"),
        "--out",
        str(run_dir),
    ]
    return Process("trainer", "", "", "", "", {"command": command}, stop_s=TRAINER_STOP_S)


def write_plan(recipe: Recipe, run_dir: Path, **collect: Any) -> None:
    """Write the director's plan; ``collect`` overrides the recipe's section."""
    plan = {part: getattr(recipe, part).model_dump() for part in ("collect", "online", "evaluate")}
    for part in ("collect", "online"):
        plan[part]["first_seed"] = recipe.scene(plan[part]["first_seed"])
    plan["collect"] |= collect
    plan["evaluate"]["control_hz"] = station_task(recipe).spec.control_hz
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "plan.json").write_text(json.dumps(plan))


def _remote(recipe: Recipe) -> dict[str, Any]:
    """Return the parameters of a policy node that uses a remote server; else empty."""
    policy = recipe.station.policy
    return {"remote": _settings(policy)} if policy.backend == "remote" else {}


def _monitor(recipe: Recipe) -> str:
    """Return the file of the failure monitor; empty if there is none."""
    file = recipe.station.policy.monitor
    return str(expand_user(file, "station.policy.monitor").resolve()) if file else ""


def _settings(part: Settings) -> dict[str, Any]:
    """Return the parameters of a part's settings."""
    return to_parameters(part.model_dump(mode="json"), "settings")


def _mounts(robot: Robot) -> dict[str, Any]:
    """Return static transforms by child frame: cameras, and the root of the driver's tf tree."""
    transforms: dict[str, Any] = {}
    if (
        robot.root_frame
        and robot.limits
        and robot.root_frame != (base := load_limits(robot.limits).frame)
    ):
        transforms[robot.root_frame] = {
            "frame": base,
            "position": (0.0, 0.0, 0.0),
            "orientation": (0.0, 0.0, 0.0, 1.0),
        }
    for name, mount in load_hand_eye(robot.hand_eye).cameras.items() if robot.hand_eye else ():
        tool = f"{mount.arm}_{robot.tool_frame}" if mount.arm else robot.tool_frame
        frame = tool if mount.on == TOOL else load_limits(robot.limits_by_arm[mount.arm]).frame
        transforms[f"{name}_optical_frame"] = {
            "frame": frame,
            "position": mount.position,
            "orientation": mount.orientation,
        }
    return to_parameters(transforms, "mounts")


def _cameras(recipe: Recipe, robot: Robot) -> Iterator[Process]:
    """Yield one process for each camera device, so that a failure affects one camera only."""
    for name, camera in robot.device_cameras.items():
        node = _node(
            recipe, "camera", "rlinf_drivers.camera", camera=name, settings=_settings(camera)
        )
        yield replace(node, name=f"camera_{name}", namespace=f"{node.namespace}/camera/{name}")


def _grippers(recipe: Recipe, robot: Robot) -> Iterator[Process]:
    """Yield the node of each arm's gripper, and its twin if it has one."""
    for arm, gripper in robot.grippers.items():
        settings = _settings(gripper)
        if gripper.twin_node:
            twin = _node(
                recipe,
                "gripper_twin",
                "rlinf_drivers.driver",
                module=gripper.twin_node,
                settings=settings,
            )
            yield _of_arm(twin, arm)
        yield _of_arm(
            _node(
                recipe, "gripper", "rlinf_drivers.driver", module=gripper.node, settings=settings
            ),
            arm,
        )


def _interlock(recipe: Recipe, robot: Robot, action: ActionSpec, arm: str) -> Process:
    """Return an arm's interlock.

    With several arms, its topics are below the arm's name, except common ones.
    """
    station, simulated = recipe.station, robot.without_hardware
    driver = robot.driver_node
    latch = "" if simulated else f"{ROBOT}{commanded_robot(recipe, robot, arm)}"
    process = _node(
        recipe,
        "interlock",
        "rlinf_interlock.interlock",
        SHUTDOWN,
        limits_file=str(robot.limits_by_arm[arm]),
        estops=list(robot.estops) or [""],
        no_estop_reason=robot.no_estop_reason,
        latch_file=latch,
        lockstep=station.lockstep and robot.driver == SIMULATOR,
        teleports=simulated,
        distance=robot.distance,
        driver=driver is not None and driver.repeats,
        follows=robot.controller.topic if robot.controller else "",
    )
    if not arm:
        return process
    rows, others = action.rows(arm), [other for other in robot.arms if other != arm]
    common = [
        *(f"estop/{name}" for name in robot.estops),
        *STATION_TOPICS,
        *(f"{other}/{STATE_FOR_OTHERS}" for other in others),
    ]
    return replace(
        _of_arm(process, arm),
        parameters=process.parameters
        | {"others": others, "rows": [rows.start, rows.stop, action.dim]},
        remappings=process.remappings
        + tuple(  # ROS applies one remapping only: the robot's own name
            (topic, robot.topics.get(topic, f"{process.namespace}/{topic}")) for topic in common
        ),
    )


def commanded_robot(recipe: Recipe, robot: Robot, arm: str) -> str:
    """Return the name of a robot on this machine: its driver's command topic.

    A driver in the station's namespace has the name of that namespace.
    """
    joints = load_limits(robot.limits_by_arm[arm]).control_mode == "joint_delta"
    target = "target_joints" if joints else "target_pose"
    topic = robot.topics.get(f"{arm}/{target}" if arm else target, "")
    if robot.controller and robot.controller.topic.startswith("/"):
        topic = robot.controller.topic
    return topic.strip("/") or "/".join(filter(None, (recipe.station.name, arm)))


def _of_arm(process: Process, arm: str) -> Process:
    """Return a process with name and namespace of its arm, if the arm has a name."""
    return (
        replace(process, name=f"{process.name}_{arm}", namespace=f"{process.namespace}/{arm}")
        if arm
        else process
    )


def _node(
    recipe: Recipe, name: str, module: str, restart: str = RESPAWN, /, **parameters: Any
) -> Process:
    """Return the process of a node of the station. ``parameters`` are its ROS parameters."""
    robot, station = station_robot(recipe), f"/{recipe.station.name}"
    if robot.arms:
        parameters["arms"] = list(robot.arms)
    # ROS has no empty structure
    parameters = {key: value for key, value in parameters.items() if value != {}}
    parameters |= qos_parameters(recipe.station.qos_overrides, station, robot.topics)
    renamed = tuple(
        (f"{station}/{topic}", vendor_topic) for topic, vendor_topic in robot.topics.items()
    )
    package = module.split(".")[0] if module.startswith("rlinf_") else DRIVERS_PACKAGE
    return Process(
        name,
        package,
        name,
        module,
        station,
        parameters,
        (("/clock", f"{station}/clock"), *renamed),
        restart,
    )


TRAINER_NODES = ("policy", "uplink")  # a station without trainer needs neither
REAL_TIME = ("station.real_time_factor=0", "station.lockstep=false")


def is_too_fast_for_person(recipe: Recipe) -> bool:
    """Return whether a person would operate a simulator that runs faster than real time."""
    station = recipe.station
    return (
        station.lockstep
        and not 0 < station.real_time_factor <= 1
        and station.operator.kind != SCRIPTED
        and station_robot(recipe).driver == SIMULATOR
    )


def load_collect_recipe(
    name: str, overrides: list[str], run_dir: Path, episodes: int | None = None
) -> tuple[Recipe, DemonstrationStats]:
    """Return the recipe for collecting demonstrations, and the takes that ``run_dir`` holds.

    With a person, a simulator runs in real time, unless ``real_time_factor`` paces it.
    """
    all_overrides = [
        *overrides,
        *([f"collect.episodes={episodes}"] if episodes is not None else []),
    ]
    recipe = load_recipe(name, all_overrides)
    if is_too_fast_for_person(recipe):
        recipe = load_recipe(name, [*all_overrides, *REAL_TIME])
    return recipe, demonstration_stats(run_dir, recipe)


def collect_processes(
    recipe: Recipe,
    run_dir: Path,
    before: DemonstrationStats,
    terminal: bool,
    with_page: bool = False,
) -> list[Process]:
    """Write the director's plan and return the processes, the director last.

    Args:
        recipe: recipe to collect for.
        run_dir: folder of the recordings.
        before: existing takes.
        terminal: whether this terminal reads the operator's devices and keyboard.
        with_page: whether the keyboard counts also where the operator's page is served.
    """
    person = recipe.station.operator.kind != SCRIPTED
    write_plan(
        recipe,
        run_dir,
        episodes=recipe.collect.episodes - before.succeeded,
        no_training=False,
        ends=True,
        person=person,
        **({} if before.next_seed is None else {"first_seed": before.next_seed}),
    )
    read_here = person and terminal and (with_page or not recipe.station.web.port)
    processes = station_processes(
        recipe, run_dir, (*TRAINER_NODES, *(("operator",) if read_here else ()))
    )
    if read_here:
        processes.append(replace(operator_process(recipe, run_dir), terminal=True))
    return [*compose(recipe, processes), director_process(recipe, run_dir)]
