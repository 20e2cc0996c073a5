"""What a recipe may say: every key, its meaning and its default."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml

from rlinf_core.algorithms import rlpd, sft
from rlinf_core.bridge import PORT
from rlinf_core.environment import Task, load_task
from rlinf_core.errors import RecipeError, nearest
from rlinf_core.places import shared
from rlinf_core.policies.actor import PolicyConfig


@dataclass(frozen=True, kw_only=True)
class Operator:
    """Who demonstrates and arms.

    Attributes:
        kind: scripted, in simulation only; or keyboard: a person in a terminal of their own (rlinf teleop).
        noise: tremor of the scripted hand, in normalised units.
    """

    kind: str = "scripted"
    noise: float = 0.12


@dataclass(frozen=True, kw_only=True)
class Station:
    """One robot with its task.

    Attributes:
        name: its ROS namespace, and the prefix of its episodes' ids.
        robot: a folder of robots/.
        task: a file of configs/tasks/, or the path of one.
        lockstep: simulated time as fast as it goes; false runs in real time.
        observe_cameras: cameras whose images the policy sees; empty for a policy from state.
        image_size: height and width of those images.
        domain_id: ROS_DOMAIN_ID of the station.
    """

    name: str = "station_a"
    robot: str = "franka_sim"
    task: str = "peg_insertion"
    lockstep: bool = True
    observe_cameras: tuple[str, ...] = ()
    image_size: tuple[int, int] = (64, 64)
    domain_id: int = 42
    operator: Operator = field(default_factory=Operator)


@dataclass(frozen=True, kw_only=True)
class Collect:
    """Demonstrations.

    Attributes:
        episodes: successful ones that are needed.
        first_seed: of the scenes.
        only: a station records so many, successful or not, and that is all.
    """

    episodes: int = 20
    first_seed: int = 10_000
    only: bool = False


@dataclass(frozen=True, kw_only=True)
class Online:
    """The online phase and its governors.

    Attributes:
        max_env_steps: stop after this many transitions.
        max_minutes: or after this long.
        stop_at_success: or when this share of the last 50 training episodes succeeded; 2 never stops early.
        slice_episodes: episodes asked for at a time.
        first_seed: of the scenes.
        min_transitions: before the first update.
        updates_per_step: gradient updates per online transition.
        max_lag_episodes: how far the learner may fall behind before stations pause.
        max_staleness: versions by which an episode's policy may be older and still count.
        publish_every_updates: how often a policy goes down to the stations.
        settle_s: how long to wait for the learner at the end.
    """

    max_env_steps: int = 20_000
    max_minutes: float = 15.0
    stop_at_success: float = 1.0
    slice_episodes: int = 10
    first_seed: int = 100_000
    min_transitions: int = 300
    updates_per_step: float = 2.0
    max_lag_episodes: float = 4.0
    max_staleness: int = 50
    publish_every_updates: int = 400
    settle_s: float = 30.0


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Held-out episodes, before and after.

    Attributes:
        episodes: how many.
        first_seed: of their scenes, apart from all others.
    """

    episodes: int = 50
    first_seed: int = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The trainer's data.

    Attributes:
        capacity: time steps kept online.
        use_executed: learn from the action that the interlock let through instead of the one asked for.
    """

    capacity: int = 100_000
    use_executed: bool = False


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Saving is on by default.

    Attributes:
        every_minutes: between two checkpoints.
    """

    every_minutes: float = 2.0


@dataclass(frozen=True, kw_only=True)
class Bridge:
    """Where the trainer listens.

    Attributes:
        host: address it binds, and stations call.
        port: TCP port.
    """

    host: str = "127.0.0.1"
    port: int = PORT

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class Randomise:
    """Domain randomisation while training in simulation, drawn anew in each scene; evaluations are randomised too.

    Attributes:
        delay_s: commands come up to so much late [s].
        lag_s: and are followed with a time constant of up to so much [s].
        pose_error_m: standard deviation of a scene's error of reported objects and goals [m].
        pose_noise_m: and of the noise on top, at every time step [m].
        brightness: cameras are brighter or darker by up to this share.
    """

    delay_s: float = 0.0
    lag_s: float = 0.0
    pose_error_m: float = 0.0
    pose_noise_m: float = 0.0
    brightness: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """Training in vectorised simulators, without stations.

    Attributes:
        environments: simulators stepped together; 0 trains on what stations send.
        workers: rollout workers on Ray, each with its share of the environments; 0 for all of them in this process.
        pipelined: workers play on with the last policy while the learner learns; the data is one update older.
        interlock: each simulator behind its interlock, as on a station; false plays actions straight, which is faster.
        shaping: weight of the task's progress in the reward that is learned from, for learners that need a slope to climb;
            success is success all the same.
        initial_policy: a policy file to begin with, of the same kind, sizes and task; or the folder of a run, whose newest
            policy goes on together with its learner: critics, temperature, optimisers. Empty to begin anew.
        env_steps: stop after so many time steps, over all environments.
        updates_per_step: gradient updates per time step, of learners that replay.
        start_steps: time steps of random actions before the first update, of learners that replay.
        evaluate_every: time steps between two evaluations.
        evaluate_episodes: held-out episodes of each.
    """

    environments: int = 0
    workers: int = 0
    pipelined: bool = False
    interlock: bool = True
    shaping: float = 0.0
    initial_policy: str = ""
    randomise: Randomise = field(default_factory=Randomise)
    env_steps: int = 50_000
    updates_per_step: float = 1.0
    start_steps: int = 500
    evaluate_every: int = 2_000
    evaluate_episodes: int = 20


class AlgorithmConfig(Protocol):
    """The ``Config`` of any algorithm, by its ``name``."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything about a run.

    Attributes:
        name: of the recipe.
        seed: of weights, noise and sampling.
        algorithm: ``name`` (rlpd by default) and that algorithm's hyper-parameters.
    """

    name: str
    seed: int = 0
    station: Station = field(default_factory=Station)
    collect: Collect = field(default_factory=Collect)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    sft: sft.Config = field(default_factory=sft.Config)
    algorithm: AlgorithmConfig = field(default_factory=rlpd.Config)
    simulation: Simulation = field(default_factory=Simulation)
    replay: Replay = field(default_factory=Replay)
    online: Online = field(default_factory=Online)
    evaluate: Evaluate = field(default_factory=Evaluate)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    bridge: Bridge = field(default_factory=Bridge)


@dataclass(frozen=True)
class Robot:
    """What robots/<name>/robot.yaml says.

    Attributes:
        driver: simulator, or external when somebody else publishes the robot interface.
        simulator: its name in sim_bridges, when simulated.
        options: of that simulator.
        limits: path of the interlock's limits.
        cameras: names of the cameras there are.
        estops: names of the e-stop sources that must be heard on ``estop/<name>``.
        distance: whether ``distance`` (sensor_msgs/Range) tells how near the nearest obstacle is; silent, it stops the arm.
    """

    driver: str
    limits: Path
    simulator: str = ""
    cameras: tuple[str, ...] = ()
    estops: tuple[str, ...] = ()
    distance: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def task_file(recipe: Recipe) -> Path:
    """Path of the recipe's task; RecipeError names the nearest known one."""
    return _named(shared() / "configs/tasks", recipe.station.task, ".yaml", "station.task")


def station_task(recipe: Recipe) -> Task:
    """The task as the recipe's station observes it, cameras included; a camera the robot lacks is refused by name."""
    robot, station = load_robot(recipe), recipe.station
    for camera in station.observe_cameras:
        if camera not in robot.cameras:
            raise RecipeError(f"station.observe_cameras: robot '{station.robot}' has no camera '{camera}'; it has "
                              f"{', '.join(robot.cameras) or 'none'}{nearest(camera, robot.cameras)}")
    return load_task(task_file(recipe)).with_images(dict.fromkeys(station.observe_cameras, station.image_size))


def load_robot(recipe: Recipe) -> Robot:
    """The recipe's robot."""
    folder = _named(shared() / "robots", recipe.station.robot, "", "station.robot")
    data = yaml.safe_load((folder / "robot.yaml").read_text())
    return Robot(driver=data["driver"], limits=folder / data["limits"], simulator=data.get("simulator", ""),
                 cameras=tuple(data.get("cameras", ())), estops=tuple(data.get("estops", ())),
                 distance=bool(data.get("distance", False)), options=data.get("options", {}))


def _named(folder: Path, name: str, ending: str, key: str) -> Path:
    path = Path(name).expanduser() if "/" in name else folder / f"{name}{ending}"
    if not path.exists():
        known = sorted(entry.name.removesuffix(ending) for entry in folder.iterdir())
        raise RecipeError(f"{key}: expected one of {', '.join(known)}, or a path; got '{name}'{nearest(name, known)}")
    return path
