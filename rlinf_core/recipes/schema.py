"""The schema of recipes: every key, its range, its meaning and its default."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from rlinf_core.agentic.settings import FEEDBACK, Text
from rlinf_core.algorithms import algorithm, algorithms
from rlinf_core.algorithms.common.settings import AlgorithmSettings, Computing
from rlinf_core.algorithms.rlpd import Config as RLPD
from rlinf_core.algorithms.sft import Config as SFT
from rlinf_core.config.base import Count, Discriminated, Name, Place, Settings
from rlinf_core.core.errors import RlinfError
from rlinf_core.core.ros import MAX_DOMAIN, shell_domain
from rlinf_core.deploy.bridge import PORT
from rlinf_core.deploy.releases import Release
from rlinf_core.page.access import Web
from rlinf_core.policies import kinds, policy_config
from rlinf_core.policies.settings import PolicySettings
from rlinf_core.policies.small.tanh_gaussian import Config as TanhGaussian
from rlinf_core.policies.torch_device import Device
from rlinf_core.recipes.placement import Placement
from rlinf_core.robots.operators import OPERATOR, SECOND_OPERATOR
from rlinf_core.specs.topics import Overrides, check_all
from rlinf_core.worlds.settings import WorldSettings


class Embodiment(Settings):
    """One of several robots that share a policy (docs/howto/fleet.md)."""

    robot: str = Field(min_length=1, description="as station.robot")
    task: str = Field(min_length=1, description="as station.task")
    options: dict[str, Any] = Field({}, description="as station.options")


ALGORITHM = Discriminated("name", lambda name: algorithm(name).Config, algorithms, "rlpd")
POLICY = Discriminated("kind", policy_config, kinds, "tanh_gaussian")


class StationPolicy(Settings):
    """The process that answers a station's observations."""

    backend: Literal["local", "composed", "remote"] = Field(
        "local", description="local, in a process of its own; composed, in the environment's: sooner, for networks that "
        "answer within a few ms; or remote: a server answers (rlinf serve, openpi's), and the node never waits for it")
    address: str = Field("", pattern=r"^(wss?://[^\s/]+)?$", description="of a remote one: ws://host:port; wss: TLS")
    api_key_file: Place = Field("", description="of a remote one: a file with the API key that its server asks for")
    tls_ca: Place = Field("", description="of a remote one at wss://: a file (PEM) with the certificates of those who "
                          "sign its server's; empty for the machine's own")
    chunking: Literal["synchronous", "receding_horizon", "temporal_ensembling", "real_time"] = Field(
        "receding_horizon", description="of a remote one: what is played while an answer is on its way, and of it then "
        "(docs/howto/serving.md)")
    n_action_steps: int = Field(
        0, ge=0, le=1000, description="of a remote one: actions of a chunk that are played before the next is asked for; 0 "
        "for what the server says, or all")
    timeout_s: float = Field(2.0, gt=0, le=60, description="of a remote one: for how long an answer is waited for [s]")
    keys: dict[str, str] = Field(
        {}, description="of a remote one: how the server calls an observation, state (all numbers) or prompt: {wrist: "
        "observation/wrist_image}; empty for all under their own names")

    monitor: Place = Field("", description="a file of rlinf monitor fit: where an episode looks like one that fails, the "
                           "policy sends nothing more and a person is asked; not of a remote one; empty for none")

    @model_validator(mode="after")
    def _has_an_address(self) -> StationPolicy:
        if self.monitor and self.backend == "remote":
            raise ValueError("monitor: expected none where station.policy.backend is remote, got "
                             f"'{self.monitor}'. Watch a local policy")
        if (self.backend == "remote") != bool(self.address):
            raise ValueError("address: expected ws://host:port where station.policy.backend is remote, and "
                             f"nothing elsewhere; got backend {self.backend}, address '{self.address}'")
        return self


class Station(Settings):
    """One robot with its task."""

    name: str = Field(
        "station_a", pattern="^[A-Za-z][A-Za-z0-9_]*$", max_length=64,
        description="its ROS namespace, and the prefix of its episodes' "
        "ids: letters, digits and _")
    robot: str = Field(
        "franka_sim", min_length=1, description="a folder of robots/ or of a simulator (sim_bridges/simulators/), "
        "an entry point, or the path of one; ./path from the file that says it")
    options: dict[str, Any] = Field(
        {}, description="of the robot's simulator, where they are others than in its robot.yaml: {task: PushCube-v1}")
    task: str = Field(
        "peg_insertion", min_length=1, description="a file of configs/tasks/, an entry point, or the path of one, likewise")
    lockstep: bool = Field(True, description="simulated time as fast as it goes; false runs in real time")
    processes: Literal["auto", "one", "several"] = Field(
        "auto", description="in which its nodes run: one, where simulator, interlock, environment, policy, operator and "
        "recorder of a simulator in lockstep share one; several, each with its own; auto: one where that can be")
    real_time_factor: float = Field(0.0, ge=0, le=1000, description="in lockstep, simulated seconds a second at most; "
                                    "0: as fast as it goes")
    observe_cameras: tuple[str, ...] = Field(
        (), description="cameras whose images the policy sees; empty for a policy from state")
    image_size: tuple[Count, Count] = Field((64, 64), description="height and width of those images")
    device: Device = Field("auto", description="of its policy: auto, the best there is, or cpu, cuda, cuda:1, ...")
    domain_id: int | None = Field(None, ge=0, le=MAX_DOMAIN, description="ROS_DOMAIN_ID of the station; by default the "
                                  "shell's, as in all of ROS")
    spool_gb: float = Field(20.0, gt=0, description="episodes that wait, or were set aside, may take so much of its disk; "
                            "then it plays and records none until they are sent")
    policies_gb: float = Field(20.0, gt=0, description="the trainer's policies may take so much of its disk, then older "
                               "ones are removed; never the first, the newest, or the one that plays")
    session_gb: float = Field(1.0, ge=0, description="what is recorded beside episodes may take so much of its disk, then "
                              "the oldest is removed; 0 records none (docs/howto/data.md)")
    operator: Annotated[Any, OPERATOR] = Field(
        {}, description="who demonstrates and arms: scripted, in simulation only; or a person with this device, in a "
        "terminal of their own (rlinf teleop)")
    second_operator: Annotated[Any | None, SECOND_OPERATOR] = Field(
        None, description="a second device of theirs, e.g. a foot pedal"
    )
    qos_overrides: dict[str, dict[str, dict[str, str | int]]] = Field(
        {}, description="other quality of service of topics whose row in docs/reference/topics.md says so: "
        "{camera/wrist/image: {subscription: {reliability: reliable, depth: 5}}}")
    policy: StationPolicy = StationPolicy()
    web: Web = Web()

    @field_validator("qos_overrides")
    @classmethod
    def _of_topics_that_may(cls, overrides: Overrides) -> Overrides:
        try:
            check_all(overrides)
        except RlinfError as error:
            raise ValueError(str(error)) from error
        return overrides

    @model_validator(mode="after")
    def _paces_lockstep(self) -> Station:
        if self.real_time_factor and not self.lockstep:
            raise ValueError("real_time_factor: expected 0 where station.lockstep is false: that is real time; "
                             f"got {self.real_time_factor:g}. Set station.lockstep=true, or leave it out")
        return self

    @property
    def domain(self) -> int:
        """The ROS_DOMAIN_ID in force."""
        return shell_domain() if self.domain_id is None else self.domain_id


class Collect(Settings):
    """Demonstrations."""

    episodes: int = Field(20, ge=0, description="successful ones that are needed; of embodiments, of each")
    first_seed: int = Field(10_000, ge=0, description="of the scenes, where the recipe's seed is 0")
    no_training: bool = Field(
        False, description="a station records this many episodes, successful or not, and trains nothing")
    recordings: tuple[str, ...] = Field(
        (), description="folders of recorded episodes (a spool, an inbox, a run) that demonstrate; empty for the station's "
        "operator, or the task's script in simulation")


class Online(Settings):
    """The online phase and its governors."""

    max_env_steps: int = Field(20_000, ge=0, description="stop after this many transitions")
    max_minutes: float = Field(60.0, ge=0, description="or after this long, on whatever machine it is")
    stop_at_success: float = Field(
        0.98, ge=0, le=2, description="or once this part of the last stop_episodes training episodes succeeded; 2 never "
        "stops")
    stop_episodes: int = Field(100, gt=0, description="how many those are")
    request_episodes: int = Field(10, gt=0, description="episodes asked for at a time")
    synchronous: bool = Field(False, description="between episodes wait for the learner, after so many for its policy, too")
    first_seed: int = Field(100_000, ge=0, description="of the scenes, where the recipe's seed is 0")
    min_transitions: int = Field(300, ge=0, description="before the first update")
    updates_per_step: float = Field(2.0, ge=0, description="gradient updates per online transition")
    max_lag_episodes: float = Field(1.0, gt=0, description="how far the learner may fall behind before stations pause")
    max_staleness: int = Field(50, ge=0, description="versions by which an episode's policy may be older and still count")
    max_staleness_of: dict[str, int] = Field({}, description="the same of single stations, by name, instead")
    max_samples_per_insert: float = Field(
        0.0, ge=0, description="how often a station's transitions may be drawn, on average over what it has sent; 0: no "
        "limit")
    min_samples_per_insert: float = Field(
        0.0, ge=0, description="a station whose transitions were drawn less often than that waits while the learner is "
        "behind; the others go on")
    publish_every_updates: int = Field(100, gt=0, description="how often a policy goes down to the stations")
    drain_timeout_s: float = Field(30.0, ge=0, description="how long the learner may take at the end for what has come")


class Evaluate(Settings):
    """Held-out episodes, before and after."""

    episodes: int = Field(50, gt=0, description="how many")
    first_seed: int = Field(1_000_000, ge=0, description="of their scenes, apart from all others")
    filmed_episodes: int = Field(
        3,
        ge=0,
        description="how many of them the report films in simulation, side by side; 0: none",
    )


class Replay(Settings):
    """The trainer's data."""

    capacity: int = Field(100_000, gt=0, description="time steps kept online")
    use_executed: bool = Field(
        False, description="learn from the action that the interlock let through instead of the one asked for")
    balance_stations: bool = Field(
        False, description="draw each station's transitions as often as any other's, however many it sends")


class Checkpoint(Settings):
    """Interval of checkpoints. Saving is on by default."""

    every_minutes: float = Field(2.0, ge=0, description="between two checkpoints")


class Bridge(Settings):
    """The trainer's address and access."""

    host: str = Field("127.0.0.1", min_length=1, description="address it binds, and stations call")
    port: int = Field(PORT, ge=1, le=65535, description="TCP port")
    fleet: str = Field("", description="at the trainer: the folder of rlinf fleet; it serves the stations that are "
                       "enrolled there, over TLS. Empty serves this machine alone, by a token")
    credentials: str = Field("", description="at a station: the folder that rlinf fleet enroll has made for it; empty "
                             "calls without TLS")
    token_file: str = Field("", description="without TLS on this machine: the file of the trainer's "
                            "token, which a station shows. Empty: bridge.token in the trainer's run "
                            "folder, which stations of the same user find by themselves")
    stations: tuple[str, ...] = Field((), description="at the trainer: the names of the stations that "
                                      "may call; empty takes any name that is let in")
    metrics_port: int = Field(0, ge=0, le=65535, description="at the trainer: TCP port, on this machine alone, at which "
                              "Prometheus reads how the fleet is; 0 serves none")
    policies_gb: float = Field(20.0, gt=0, description="at the trainer: its policies may take so much of its disk, then "
                               "older ones go; never the first, the newest, or one that a station is meant to have")
    insecure: bool = Field(False, description="listen, or call, beyond this machine without TLS: whoever is on that "
                           "network can feed the training, fetch policies, and pose as the trainer")

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class Randomise(Settings):
    """Domain randomisation while training in simulation, drawn anew in each scene; evaluations are randomised too."""

    delay_s: float = Field(0.0, ge=0, description="commands come up to so much late [s]")
    lag_s: float = Field(0.0, ge=0, description="and are followed with a time constant of up to so much, but for turns [s]")
    pose_error_m: float = Field(
        0.0, ge=0, description="standard deviation of a scene's error of reported objects and goals [m]")
    pose_noise_m: float = Field(0.0, ge=0, description="and of the noise on top, at every time step [m]")
    brightness: float = Field(0.0, ge=0, le=1, description="cameras are brighter or darker by up to this fraction")


class Simulation(Settings):
    """Training in vectorised simulators, without stations."""

    environments: int = Field(0, ge=0, description="simulators stepped together; 0 trains on what stations send")
    interlock: bool = Field(
        True, description="each simulator behind its interlock, as on a station; false plays actions straight, which is "
        "faster")
    shaping: float = Field(
        0.0, ge=0, description="weight of the task's progress in the reward that is learned from, for learners that need "
        "a slope to climb; success is success all the same")
    initial_policy: str = Field(
        "", description="a policy file to begin with, of the same kind, sizes and task; or the folder of a run, whose "
        "newest policy goes on together with its learner: critics, temperature, optimisers. Empty to begin anew")
    randomise: Randomise = Randomise()
    env_steps: int = Field(50_000, ge=0, description="stop after so many time steps, over all environments")
    updates_per_step: float = Field(1.0, ge=0, description="gradient updates per time step, of learners that replay")
    start_steps: int = Field(
        500, ge=0, description="time steps of random actions before the first update, of learners that replay")
    evaluate_every: int = Field(2_000, gt=0, description="time steps between two evaluations")
    evaluate_episodes: int = Field(20, gt=0, description="held-out episodes of each")


SEED_OFFSET = 2_000_000  # beyond the scenes of seed 0 and of evaluations
# odd, so that no two seeds share a beginning; 2^32 / golden ratio, so that they begin far apart
SPREAD = 2_654_435_761


class Recipe(Settings):
    """Everything about a run."""

    name: str = Field(min_length=1, description="of the recipe")
    seed: int = Field(0, ge=0, lt=2**31, description="of all that is drawn: weights, noise, batches, the scenes of "
                      "demonstrations and of training; those of evaluations are the same for all")
    device: Device = Field("auto", description="of networks in training: auto, the best there is, or cpu, cuda, cuda:1, "
                           "...")
    learner: Computing = Computing()
    wandb: str = Field("", description="project of Weights & Biases that gets the trainer's curves beside TensorBoard "
                       "(extra wandb); empty for none")
    env: str = Field(
        "", pattern=r"^(\w+:\S+)?$", description="an environment with its own task and reward instead of a station, and no "
        "interlock: gym: and the id of one of Gymnasium's (gym:Pendulum-v1), or a simulator that steps a batch of them at "
        "once and its task (maniskill:PickCube-v1, isaaclab:Isaac-Reach-Franka); or text: and a task of language "
        "models (text:arithmetic, docs/howto/agentic.md)")
    env_options: dict[str, bool | int | float | str] = Field(
        {}, description="keyword arguments of gymnasium.make for env gym:..., by name: {env_name: reach-v3}")
    station: Station = Station()
    embodiments: dict[Name, Embodiment] = Field(
        {}, description="robots that share one policy, by name, where the trainer is to learn for several: {one: {robot: "
        "franka_sim, task: reach}, two: {robot: two_franka_sim, task: reach_both}}; a station of each names its own in "
        "station.robot and station.task")
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
        """The id of the recipe's Gymnasium environment; empty for a station or another environment.
        """
        kind, _, name = self.env.partition(":")
        return name if kind == "gym" else ""

    @model_validator(mode="after")
    def _options_have_an_environment(self) -> Recipe:
        if self.env_options and not self.gymnasium_id:
            raise ValueError(f"env_options: expected none without an environment of Gymnasium (env: gym:<id>), got "
                             f"{', '.join(self.env_options)}")
        return self

    @model_validator(mode="after")
    def _check_compile(self) -> Recipe:
        if self.learner.compile and self.placement.learners and self.placement.strategy == "fsdp":
            raise ValueError("learner.compile: expected false with placement.strategy = fsdp, which gathers weights anew "
                             "for every update, got true. Set placement.strategy to ddp, or learner.compile to false")
        return self

    @model_validator(mode="after")
    def _clones_by_sft(self) -> Recipe:
        if self.sft.name != "sft":
            raise ValueError(f"sft.name: expected sft, got '{self.sft.name}'. Another algorithm is algorithm.name")
        return self
