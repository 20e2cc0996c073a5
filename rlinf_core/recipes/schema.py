"""The schema of recipes: every key, its range, its meaning and its default."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from rlinf_core.agentic.settings import FEEDBACK, Text
from rlinf_core.algorithms import algorithm, algorithms
from rlinf_core.algorithms.common.settings import AlgorithmSettings, Computing
from rlinf_core.algorithms.rlpd import Config as RLPD
from rlinf_core.algorithms.sft import Config as SFT
from rlinf_core.config.base import Count, Discriminated, FreeOptions, Name, Place, Settings
from rlinf_core.core.errors import RlinfError
from rlinf_core.core.ros import MAX_DOMAIN, shell_domain
from rlinf_core.deploy.bridge import PORT
from rlinf_core.deploy.releases import Release
from rlinf_core.page.access import Web
from rlinf_core.policies import kinds, policy_config
from rlinf_core.policies.settings import PolicySettings, PretrainedSettings
from rlinf_core.policies.small.tanh_gaussian import Config as TanhGaussian
from rlinf_core.policies.torch_device import Device
from rlinf_core.recipes.placement import Placement
from rlinf_core.robots.operators import OPERATOR, SECOND_OPERATOR
from rlinf_core.specs.topics import Overrides, check_all
from rlinf_core.worlds.settings import WorldSettings


class Embodiment(Settings):
    """One of several robots that share a policy (docs/howto/fleet.md)."""

    robot: str = Field(min_length=1, description="robot, as in station.robot")
    task: str = Field(min_length=1, description="task, as in station.task")
    options: FreeOptions = Field({}, description="options, as in station.options")


ALGORITHM = Discriminated("name", lambda name: algorithm(name).Config, algorithms, "rlpd")
POLICY = Discriminated("kind", policy_config, kinds, "tanh_gaussian")


class StationPolicy(Settings):
    """The process that answers a station's observations."""

    backend: Literal["local", "composed", "remote"] = Field(
        "local",
        description="process of the policy. `local` is its own one. `composed` is that "
        "of the environment, for networks of a few ms. `remote` is a server "
        "(rlinf serve, openpi), for which the node never blocks",
    )
    address: str = Field(
        "",
        pattern=r"^(wss?://[^\s/]+)?$",
        description="address of a remote policy. ws://host:port is plain and wss://host:port uses "
        "TLS",
    )
    api_key_file: Place = Field("", description="file with the API key of a remote policy")
    tls_ca: Place = Field(
        "",
        description="PEM file with the certificate authority of a remote "
        "policy at wss://. Empty takes the machine's own "
        "authorities",
    )
    chunking: Literal["synchronous", "receding_horizon", "temporal_ensembling", "real_time"] = (
        Field(
            "receding_horizon",
            description="actions that play while a remote policy computes (docs/howto/serving.md)",
        )
    )
    n_action_steps: int = Field(
        0,
        ge=0,
        le=1000,
        description="actions of a remote policy's chunk before the next "
        "request. 0 takes the server's number, or all",
    )
    timeout_s: float = Field(
        2.0, gt=0, le=60, description="longest wait for an answer of a remote policy [s]"
    )
    keys: dict[str, str] = Field(
        {},
        description="names of observations, state (all numbers) and prompt at the remote "
        "server. Example: {wrist: observation/wrist_image}. Empty keeps the "
        "names",
    )

    monitor: Place = Field(
        "",
        description="file of rlinf monitor fit, for a local policy. If an episode will probably "
        "fail, the policy sends nothing more and a person is asked. Empty for none",
    )

    @model_validator(mode="after")
    def _has_an_address(self) -> StationPolicy:
        if self.monitor and self.backend == "remote":
            raise ValueError(
                f"monitor: expected none with station.policy.backend remote, got '{self.monitor}'. "
                "Watch a local policy"
            )
        if (self.backend == "remote") != bool(self.address):
            raise ValueError(
                "address: expected ws://host:port with station.policy.backend remote, and nothing "
                f"otherwise, got backend {self.backend}, address '{self.address}'"
            )
        return self


class Station(Settings):
    """One robot with its task."""

    name: str = Field(
        "station_a",
        pattern="^[A-Za-z][A-Za-z0-9_]*$",
        max_length=64,
        description="ROS namespace, and prefix of the episodes' ids. It has letters, digits and _",
    )
    robot: str = Field(
        "franka_sim",
        min_length=1,
        description="folder in robots/ or of a simulator, entry "
        "point, or path. ./path is relative to this file",
    )
    options: FreeOptions = Field(
        {},
        description="options of the robot's simulator. They replace those in robot.yaml. "
        "Example: {task: PushCube-v1}",
    )
    task: str = Field(
        "peg_insertion",
        min_length=1,
        description="file in configs/tasks/, entry point, or path. ./path is relative to this file",
    )
    lockstep: bool = Field(
        True, description="run simulated time as fast as possible. false runs in real time"
    )
    processes: Literal["auto", "one", "several"] = Field(
        "auto",
        description="processes of the nodes. `one` holds all nodes of a simulator in "
        "lockstep, `several` has one for each node. `auto` takes one where "
        "possible",
    )
    real_time_factor: float = Field(
        0.0,
        ge=0,
        le=1000,
        description="largest speed of simulated time in lockstep [simulated s/s]. 0 sets no limit",
    )
    observe_cameras: tuple[str, ...] = Field(
        (), description="cameras that the policy observes. Empty observes state alone"
    )
    image_size: tuple[Count, Count] = Field(
        (64, 64), description="height and width of the observed images [pixels]"
    )
    device: Device = Field(
        "auto",
        description="torch device of the station's policy. `auto` "
        "takes the best one. Others are cpu, cuda and "
        "cuda:1",
    )
    domain_id: int | None = Field(
        None,
        ge=0,
        le=MAX_DOMAIN,
        description="ROS_DOMAIN_ID of the station. The default is that of the shell",
    )
    spool_gb: float = Field(
        20.0,
        gt=0,
        description="largest size of unsent and refused episodes "
        "on disk [GB]. Beyond it the station plays "
        "and records nothing",
    )
    policies_gb: float = Field(
        20.0,
        gt=0,
        description="largest size of the received policies on disk [GB]. Beyond it old versions "
        "are removed. The first, newest and playing versions stay",
    )
    session_gb: float = Field(
        1.0,
        ge=0,
        description="largest size of the session recordings on disk [GB]. Beyond it the oldest are "
        "removed. 0 records none (docs/howto/data.md)",
    )
    operator: Annotated[Any, OPERATOR] = Field(
        {},
        description="device of the operator. `scripted` is the task's script, in simulation "
        "only. A person uses any other kind in a terminal (rlinf teleop)",
    )
    second_operator: Annotated[Any | None, SECOND_OPERATOR] = Field(
        None, description="second device of the same person, for example a foot pedal"
    )
    qos_overrides: dict[str, dict[str, dict[str, str | int]]] = Field(
        {},
        description="quality of service of topics that docs/reference/topics.md marks. "
        "Example: {camera/wrist/image: {subscription: {reliability: reliable, "
        "depth: 5}}}",
    )
    policy: StationPolicy = StationPolicy()
    web: Web = Web()

    @field_validator("qos_overrides")
    @classmethod
    def _check_qos_topics(cls, overrides: Overrides) -> Overrides:
        try:
            check_all(overrides)
        except RlinfError as error:
            raise ValueError(str(error)) from error
        return overrides

    @model_validator(mode="after")
    def _paces_lockstep(self) -> Station:
        if self.real_time_factor and not self.lockstep:
            raise ValueError(
                "real_time_factor: expected 0 with station.lockstep false (real time), got "
                f"{self.real_time_factor:g}. Set station.lockstep=true, or leave it out"
            )
        return self

    @property
    def domain(self) -> int:
        """The ROS_DOMAIN_ID in force."""
        return shell_domain() if self.domain_id is None else self.domain_id


class Collect(Settings):
    """Demonstrations."""

    episodes: int = Field(
        20, ge=0, description="number of successful demonstrations. Each embodiment needs as many"
    )
    first_seed: int = Field(
        10_000, ge=0, description="seed of the first training scene, for the recipe's seed 0"
    )
    no_training: bool = Field(
        False,
        description="the station records this many episodes of any outcome and trains nothing",
    )
    recordings: tuple[str, ...] = Field(
        (),
        description="folders of recorded demonstrations (spool, inbox or run). Empty takes "
        "the operator, or the task's script in simulation",
    )


class Online(Settings):
    """The online phase and its governors."""

    max_env_steps: int = Field(20_000, ge=0, description="stop after this many transitions")
    max_minutes: float = Field(60.0, ge=0, description="stop after this time [min]")
    stop_at_success: float = Field(
        0.98,
        ge=0,
        le=2,
        description="stop at this success rate of the last stop_episodes "
        "training episodes. 2 never stops",
    )
    stop_episodes: int = Field(
        100, gt=0, description="training episodes that stop_at_success counts"
    )
    request_episodes: int = Field(10, gt=0, description="episodes of one request")
    synchronous: bool = Field(
        False,
        description="wait for the learner between episodes, and for its policy after each request",
    )
    first_seed: int = Field(
        100_000, ge=0, description="seed of the first training scene, for the recipe's seed 0"
    )
    min_transitions: int = Field(300, ge=0, description="transitions before the first update")
    updates_per_step: float = Field(2.0, ge=0, description="gradient updates for each transition")
    max_lag_episodes: float = Field(
        1.0, gt=0, description="largest lag of the learner [episodes]. Beyond it stations pause"
    )
    max_staleness: int = Field(
        50,
        ge=0,
        description="largest age of an episode's policy [versions]. Older episodes are not used",
    )
    max_staleness_of: dict[str, int] = Field(
        {}, description="max_staleness of single stations, by name"
    )
    max_samples_per_insert: float = Field(
        0.0,
        ge=0,
        description="largest mean number of draws of a station's transition. 0 sets no limit",
    )
    min_samples_per_insert: float = Field(
        0.0,
        ge=0,
        description="a station below this mean number of draws waits while the "
        "learner is behind. Others continue",
    )
    publish_every_updates: int = Field(
        100, gt=0, description="updates between two policies for the stations"
    )
    drain_timeout_s: float = Field(
        30.0, ge=0, description="longest time for the learner to use the last episodes [s]"
    )


class Evaluate(Settings):
    """Held-out episodes, before and after."""

    episodes: int = Field(50, gt=0, description="number of episodes")
    first_seed: int = Field(
        1_000_000,
        ge=0,
        description="seed of the first evaluation scene. No other phase uses these scenes",
    )
    filmed_episodes: int = Field(
        3,
        ge=0,
        description="episodes in the report's film, in simulation. 0 films none",
    )


class Replay(Settings):
    """The trainer's data."""

    capacity: int = Field(
        100_000, gt=0, description="capacity for the policy's own experience [time steps]"
    )
    use_executed: bool = Field(
        False,
        description="learn from the action that the interlock applied. false learns from "
        "the requested one",
    )
    balance_stations: bool = Field(
        False,
        description="draw equally many transitions from each station, independent of its share",
    )


class Checkpoint(Settings):
    """Interval of checkpoints. Saving is on by default."""

    every_minutes: float = Field(2.0, ge=0, description="time between two checkpoints [min]")


class Bridge(Settings):
    """The trainer's address and access."""

    host: str = Field(
        "127.0.0.1", min_length=1, description="address that the trainer binds and stations call"
    )
    port: int = Field(PORT, ge=1, le=65535, description="TCP port of the trainer")
    fleet: str = Field(
        "",
        description="at the trainer, folder of rlinf fleet. It admits the enrolled stations "
        "over TLS. Empty serves only this machine, with a token",
    )
    credentials: str = Field(
        "", description="at a station, its folder from rlinf fleet enroll. Empty calls without TLS"
    )
    token_file: str = Field(
        "",
        description="file of the trainer's token, without TLS on this "
        "machine. Empty takes bridge.token in the trainer's "
        "run folder. Stations of the same user find it there",
    )
    stations: tuple[str, ...] = Field(
        (), description="at the trainer, names of the admitted stations. Empty admits every name"
    )
    metrics_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="at the trainer, TCP port of the fleet's metrics for Prometheus, on this "
        "machine alone. 0 serves none",
    )
    policies_gb: float = Field(
        20.0,
        gt=0,
        description="at the trainer, largest size of its policies on disk [GB]. Beyond it old "
        "versions are removed. The first, newest and assigned versions stay",
    )
    insecure: bool = Field(
        False,
        description="listen or call beyond this machine without TLS. "
        "Anyone on that network can then send episodes, "
        "fetch policies and imitate the trainer",
    )

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class Randomise(Settings):
    """Domain randomisation while training in simulation, drawn anew in each scene.

    Evaluations are randomised too.
    """

    delay_s: float = Field(0.0, ge=0, description="largest delay of commands [s]")
    lag_s: float = Field(
        0.0, ge=0, description="largest time constant of the arm's translation [s]"
    )
    pose_error_m: float = Field(
        0.0,
        ge=0,
        description="standard deviation of the constant error of object and goal "
        "poses in a scene [m]",
    )
    pose_noise_m: float = Field(
        0.0,
        ge=0,
        description="standard deviation of the noise of these poses at each time step [m]",
    )
    brightness: float = Field(
        0.0, ge=0, le=1, description="largest relative change of the cameras' brightness"
    )


class Dynamics(Settings):
    """Constant response of the simulated arm, beside the simulator's own.

    ``rlinf find-dynamics --out`` fits it to recordings.
    """

    delay_s: float = Field(0.0, ge=0, le=2, description="delay of commands [s]")
    lag_s: float = Field(0.0, ge=0, le=5, description="time constant of the arm's translation [s]")
    gain: float = Field(
        1.0, gt=0, le=2, description="executed fraction of the commanded translation"
    )


class Simulation(Settings):
    """Training in vectorised simulators, without stations."""

    environments: int = Field(
        0,
        ge=0,
        description="number of simulators that step together. 0 trains on episodes of stations",
    )
    interlock: bool = Field(
        True,
        description="each simulator has an interlock, as on a station. false plays actions "
        "directly and is faster",
    )
    shaping: float = Field(
        0.0,
        ge=0,
        description="weight of the task's progress in the training reward. Success is "
        "measured without it",
    )
    initial_policy: str = Field(
        "",
        description="policy file of the same kind, sizes and task, or a run folder. A run "
        "folder also brings the learner's state. Empty starts anew",
    )
    randomise: Randomise = Randomise()
    dynamics: Dynamics = Dynamics()
    env_steps: int = Field(50_000, ge=0, description="time steps of the run, over all environments")
    updates_per_step: float = Field(
        1.0, ge=0, description="gradient updates for each time step, of learners with a replay"
    )
    start_steps: int = Field(
        500,
        ge=0,
        description="time steps of random actions before the first update, of "
        "learners with a replay",
    )
    evaluate_every: int = Field(2_000, gt=0, description="time steps between two evaluations")
    evaluate_episodes: int = Field(20, gt=0, description="held-out episodes of each evaluation")


SEED_OFFSET = 2_000_000  # beyond the scenes of seed 0 and of evaluations
# odd, so that no two seeds share a beginning; 2^32 / golden ratio, so that they begin far apart
SPREAD = 2_654_435_761


class Recipe(Settings):
    """All settings of a run. Values are checked, and immutable; ``but`` returns a changed copy.

    Example:
        >>> recipe = load_recipe("sim_sac")
        >>> isinstance(recipe, Recipe), recipe.algorithm.name, recipe.but(seed=4).seed
        (True, 'sac', 4)
    """

    name: str = Field(min_length=1, description="name of the recipe")
    seed: int = Field(
        0,
        ge=0,
        lt=2**31,
        description="seed of weights, noise, batches and training scenes. Evaluation scenes do not "
        "depend on it",
    )
    device: Device = Field(
        "auto",
        description="torch device of the networks in training. `auto` "
        "takes the best one. Others are cpu, cuda and "
        "cuda:1",
    )
    learner: Computing = Computing()
    wandb: str = Field(
        "",
        description="project of Weights & Biases for the training curves "
        "(extra wandb). Empty sends none",
    )
    env: str = Field(
        "",
        pattern=r"^(\w+:\S+)?$",
        description="environment with its own task and reward, "
        "without station and interlock. gym:Pendulum-v1 "
        "is one of Gymnasium. maniskill:PickCube-v1 is "
        "a batched simulator. text:arithmetic is a task "
        "of language models (docs/howto/agentic.md)",
    )
    env_options: dict[str, bool | int | float | str] = Field(
        {},
        description="keyword arguments of gymnasium.make for env gym:ID. Example: {env_name: "
        "reach-v3}",
    )
    station: Station = Station()
    embodiments: dict[Name, Embodiment] = Field(
        {},
        description="robots that share one policy, by name, for training on several: {one: "
        "{robot: franka_sim, task: reach}, two: {robot: two_franka_sim, task: "
        "reach_both}}. The station of each robot sets station.robot and station.task",
    )
    text: Text = Text()
    collect: Collect = Collect()
    policy: Annotated[PolicySettings, POLICY] = TanhGaussian()
    sft: SFT = SFT()
    algorithm: Annotated[AlgorithmSettings, ALGORITHM] = RLPD()
    simulation: Simulation = Simulation()
    world: WorldSettings = WorldSettings()
    placement: Placement = Placement()
    replay: Replay = Replay()
    online: Online = Online()
    evaluate: Evaluate = Evaluate()
    checkpoint: Checkpoint = Checkpoint()
    bridge: Bridge = Bridge()
    release: Release = Release()

    def scene(self, first: int) -> int:
        """Return the first of this run's own scenes; ``first`` is that of seed 0."""
        return first + (SEED_OFFSET + self.seed * SPREAD % 2**31 if self.seed else 0)

    @property
    def text_task(self) -> str:
        """The task of a language model; empty if the recipe has none."""
        kind, _, name = self.env.partition(":")
        return name if kind == "text" else ""

    @property
    def learns_from_feedback(self) -> bool:
        """Whether the run serves completions to editors and learns from their feedback."""
        return self.text_task == FEEDBACK

    @property
    def gymnasium_id(self) -> str:
        """The id of the recipe's Gymnasium environment.

        It is empty for a station or another environment.
        """
        kind, _, name = self.env.partition(":")
        return name if kind == "gym" else ""

    @model_validator(mode="after")
    def _options_have_an_environment(self) -> Recipe:
        if self.env_options and not self.gymnasium_id:
            raise ValueError(
                "env_options: expected none without an environment of Gymnasium (env: gym:<id>), "
                f"got {', '.join(self.env_options)}"
            )
        return self

    @model_validator(mode="after")
    def _check_compile(self) -> Recipe:
        if self.learner.compile and self.placement.learners and self.placement.strategy == "fsdp":
            raise ValueError(
                "learner.compile: expected false with placement.strategy = fsdp, which gathers "
                "weights at every update, got true. Set placement.strategy to ddp, or "
                "learner.compile to false"
            )
        if self.learner.compile and self.placement.tensor_parallel > 1:
            raise ValueError(
                "learner.compile: expected false with placement.tensor_parallel = "
                f"{self.placement.tensor_parallel}, got true"
            )
        return self

    @model_validator(mode="after")
    def _divides_layers(self) -> Recipe:
        size = self.placement.tensor_parallel
        if size > 1 and not isinstance(self.policy, PretrainedSettings):
            raise ValueError(
                "placement.tensor_parallel: expected 1 for policy.kind "
                f"{self.policy.kind}, which has no decoder layers of transformers, got {size}"
            )
        return self

    @model_validator(mode="after")
    def _clones_by_sft(self) -> Recipe:
        if self.sft.name != "sft":
            raise ValueError(
                f"sft.name: expected sft, got '{self.sft.name}'. Another algorithm is "
                f"algorithm.name"
            )
        return self
