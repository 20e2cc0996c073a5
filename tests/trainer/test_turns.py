"""Measurements of each turn and changes of the layout, with stand-ins for workers on Ray."""

import contextlib
import signal
from contextlib import ExitStack

import numpy as np
import pytest
import torch

from rlinf_core.algorithms import sac
from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.plan.cost import Layout
from rlinf_core.plan.layout_controller import LayoutController
from rlinf_core.policies import make_policy
from rlinf_core.policies.base import SingleRobotPolicy
from rlinf_core.recipes import load_recipe
from rlinf_core.reports.curves import read_evaluations, read_events
from rlinf_core.rollouts.collect import EpisodeRollouts
from rlinf_core.rollouts.types import DEMONSTRATION
from rlinf_core.specs.embodiment import joined
from rlinf_core.trainer import checkpoint, layout_change, turn_meter
from rlinf_core.trainer import train as training
from rlinf_core.trainer.distributed.group import LearnerGroup
from rlinf_core.trainer.distributed.ray_cluster import NoRoomError
from rlinf_core.trainer.distributed.rollout_workers import SCENE_STRIDE, RolloutWorkers
from rlinf_core.trainer.environments import robot_environments
from rlinf_core.trainer.layout_change import change_layout, change_learner
from rlinf_core.trainer.learner_setup import make_learner
from rlinf_core.trainer.progress import Clock, Progress
from rlinf_core.trainer.sources import simulators
from rlinf_core.trainer.sources.robots import Robots
from rlinf_core.trainer.sources.simulators import InProcessRollouts, Simulators
from rlinf_core.trainer.train import train
from tests.algorithms.point import SPEC, Points, points

pytestmark = pytest.mark.timed

SAC = (
    "policy.hidden=[8]",
    "algorithm={name: sac, critic_hidden: [8], batch_size: 8}",
    "simulation.environments=4",
    "simulation.start_steps=0",
    "simulation.updates_per_step=0.5",
    "simulation.env_steps=160",
    "simulation.evaluate_every=80",
    "simulation.evaluate_episodes=2",
)
TWO_WORKERS = Layout(2, 0, pipelined=True)


def test_a_turn_is_measured_from_the_weights_to_the_updates(monkeypatch, tmp_path):
    turns, left, runs = [], [], []

    class Noted(LayoutController):
        def record_turn(self, turn, steps_left):
            turns.append(turn)
            left.append(steps_left)
            return super().record_turn(turn, steps_left)

    monkeypatch.setattr(training, "LayoutController", Noted)
    train(load_recipe("sim_sac", SAC), tmp_path, points, lambda run, entry: runs.append(run))
    run = runs[-1]
    assert all(turn.steps % 4 == 0 and turn.steps > 0 for turn in turns[1:])
    assert left[-1] <= 4 and len(turns) >= 10
    assert left[1:] == [before - turn.steps for before, turn in zip(left, turns[1:], strict=False)]
    measured_parts = {part for part, seconds in run.clock.seconds.items() if seconds > 0.0}
    assert measured_parts == {"simulate", "infer", "transfer", "learn", "evaluate"}
    parts = sum(run.clock.seconds[part] for part in turn_meter.TURN_PARTS)
    assert 0.0 < sum(turn.seconds for turn in turns) <= parts
    assert 0.9 * parts < sum(turn.seconds for turn in turns) + turns[-1].seconds * 5
    for turn in turns[1:]:
        assert len(turn.environment) == len(turn.policy) == len(turn.learner) == 1
        assert turn.environment[0][0] > 0 and turn.policy[0][0] > 0 and turn.learner[0][0] > 0
        assert min(turn.learner[0][1], turn.environment[0][1], turn.policy[0][1]) >= 0.0
        assert turn.call_s == turn.peak_bytes == turn.sent_bytes == 0.0 <= turn.send_s < 0.1
        assert turn.resident_bytes == run.meter.first_bytes > 1e6
    busy = [
        sum(part[0] for turn in turns for part in getattr(turn, name))
        for name in ("environment", "policy", "learner", "data")
    ]
    assert min(busy) > 0.0 and sum(busy) <= parts + 0.1


class Placed(RolloutWorkers):
    """Workers on Ray, of which this process plays the part."""

    def __init__(self, recipe, make, kind, policy, spawned):
        self.recipe, self.make, self.policy = recipe, make, policy
        self.spawned, self.usages, self.sent_bytes, self.call_s = spawned, [], 70, 0.5
        self.rollouts = kind(Points(recipe.simulation.environments), policy)
        self.is_closed, self.requests = False, []

    def start(self, version, amount):
        self.requests.append((version, amount))

    def take(self):
        return [self.rollouts.play(steps=10)], {"wait": 0.25}

    def close(self):
        self.is_closed = True


def source_of(*more):
    recipe = load_recipe("sim_sac", [*SAC, "placement=auto", *more])
    torch.manual_seed(0)
    return Simulators(recipe, Points(4), make_policy(SPEC, recipe.policy), points, Clock())


def placed(monkeypatch):
    """Let sources make these stand-ins; the list of them."""
    workers = []

    class Noted(Placed):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            workers.append(self)

    monkeypatch.setattr(simulators, "RolloutWorkers", Noted)
    return workers


def steps_of(experience):
    return sum(len(trajectory) for trajectory in experience.trajectories)


@pytest.mark.parametrize("pending", [False, True])
def test_a_change_of_the_layout_loses_no_time_step(pending, monkeypatch):
    source = source_of()
    workers = placed(monkeypatch)
    before = source.take(0, {})
    assert before.steps == 4 * 25, "25 time steps of each, as of a worker"
    assert source.clock.seconds["simulate"] > 0 and source.clock.seconds["infer"] > 0
    if pending:
        source._request_rollouts(source.players, 0, {"steps": 25})
    recipe = source.recipe.but(placement=source.recipe.placement.but(workers=2))
    source.change_layout(recipe)
    assert source.recipe is recipe and source.players is workers[0] and not source.is_pending
    (of_workers,) = workers
    assert of_workers.recipe is recipe and of_workers.make is points and of_workers.spawned == 1
    assert of_workers.policy is source.policy and type(of_workers.rollouts) is EpisodeRollouts
    after = source.take(1, {"random_warmup": False})
    assert workers[0].requests == [(1, {"random_warmup": False, "steps": 25})]
    assert after.steps == 4 * (10 + 25 * pending)
    played = 4 * (25 + 10 + 25 * pending)
    left = workers[0].rollouts.cut()
    assert steps_of(before) + steps_of(after) + sum(map(len, left)) == played
    assert source.clock.seconds["wait"] == 0.25 and source.spawned == 1
    assert source.send_s > 0.5 and source.sent_bytes == 70, "of a call that was waited for"
    again = source.take(2, {})
    assert again.steps == 40, "what was played before comes once"


class WorkersOnRay(RolloutWorkers):
    """Workers of which three have been started."""

    def __init__(self):
        self.spawned = 3

    def cut(self):
        return []

    def close(self):
        pass


def test_a_run_that_comes_back_into_one_process_has_new_scenes_and_noise(monkeypatch):
    """Once it repeated the first scenes with the first noise."""
    source = source_of()
    source.spawned, source.players = 1, WorkersOnRay()
    alone = source.recipe
    source.recipe = alone.but(placement=alone.placement.but(workers=2))
    source.change_layout(alone)
    rollouts = source.players.rollouts
    assert rollouts.scene == alone.scene(3 * SCENE_STRIDE) != alone.scene(0)
    assert rollouts.generator.initial_seed() == alone.seed + 3
    assert source.state_dict()["spawned"] == 4
    numbers = []
    monkeypatch.setattr(
        source, "_players", lambda kind, recipe, spawned: numbers.append(spawned) or WorkersOnRay()
    )
    source.change_layout(alone.but(placement=alone.placement.but(workers=2)))
    assert numbers == [4], "the workers that follow have their own"


def test_a_layout_with_as_many_workers_changes_nothing_but_the_recipe():
    source = source_of()
    players, recipe = source.players, source.recipe.but(seed=3)
    source.change_layout(recipe)
    assert source.players is players and source.recipe is recipe
    assert isinstance(players, InProcessRollouts) and source.usages == [] and source.sent_bytes == 0
    source.close()
    shown = load_recipe("sim_sac", [*SAC, "algorithm={name: sft, steps: 3}"])
    only = Simulators(shown, Points(4), make_policy(SPEC, shown.policy), points, Clock())
    assert only.players is None and only.take(0, {}).steps == 0 and only.state_dict() == {}
    assert only.usages == [] and only.sent_bytes == 0
    only.change_layout(recipe)
    assert only.recipe is recipe
    only.close()


def begun(monkeypatch, tmp_path):
    """Return a run on simulators with a free placement, after some updates."""
    runs = []

    def on_progress(run, entry):
        runs[:] = [run]
        run.stopping = run.learner.updates > 0

    auto = "placement={auto: true, fixed: [workers, learners, mode]}"
    train(load_recipe("sim_sac", [*SAC, auto]), tmp_path, points, on_progress)
    (run,) = runs
    notes = []
    run.layout_controller.note = notes.append
    monkeypatch.setattr(layout_change, "connect", lambda address: None)
    return run, notes


def test_a_run_goes_on_in_another_layout_with_its_state(monkeypatch, tmp_path, capsys):
    run, notes = begun(monkeypatch, tmp_path)
    workers, state = placed(monkeypatch), run.learner.state_dict()
    closed, old = [], run.learner
    monkeypatch.setattr(old, "close", lambda: closed.append(old))
    learner_counts = []

    def learner(recipe, config, policy):
        learner_counts.append(recipe.placement.learners)
        alone = recipe.but(placement=recipe.placement.but(learners=0))
        return make_learner(alone, config, policy)

    monkeypatch.setattr(layout_change, "make_learner", learner)
    run.meter.turn.steps = 5
    change_layout(run, TWO_WORKERS)
    assert run.source.players is workers[0] and run.layout_controller.layout == TWO_WORKERS
    assert run.recipe.placement.workers == 2 and run.recipe.placement.mode == "pipelined"
    assert run.learner is old and not learner_counts, "learners stay where they are"
    assert run.meter.turn.steps == 0 and run.clock.seconds["place"] > 0
    assert "layout: 2 workers, updates in the trainer's process, pipelined, in 0." in (
        capsys.readouterr().out
    )
    change_layout(run, Layout(2, 1))
    assert learner_counts == [1] and closed == [old] and run.learner is not old
    assert run.learner.updates == state["updates"] > 0
    for name, module in run.learner.state_dict()["modules"].items():
        for key, value in module.items():
            assert np.array_equal(value, state["modules"][name][key]), (name, key)
    assert run.prefetch.device is None, "the processes of a group copy for themselves"
    assert run.graph.nodes != () and run.recipe.placement.learners == 1 and not notes


def test_a_run_goes_over_to_the_layout_that_its_controller_chooses(monkeypatch, tmp_path):
    class Chooses(LayoutController):
        def record_turn(self, turn, steps_left):
            return TWO_WORKERS if self.layout != TWO_WORKERS else None

    monkeypatch.setattr(training, "LayoutController", Chooses)
    monkeypatch.setattr(layout_change, "connect", lambda address: None)
    workers, runs = placed(monkeypatch), []

    def on_progress(run, entry):
        runs[:] = [run]
        if workers:
            raise InterruptedError("enough, before a checkpoint of the stand-ins")

    auto = "placement={auto: true, fixed: [workers, learners, mode]}"
    with pytest.raises(InterruptedError):
        train(load_recipe("sim_sac", [*SAC, auto]), tmp_path, points, on_progress)
    assert runs[0].recipe.placement.workers == 2 and runs[0].source.players is workers[0]
    assert runs[0].layout_controller.layout == TWO_WORKERS


class Group(LearnerGroup):
    """Learners on Ray, of which this process plays the part."""

    def __init__(self, learner):
        self.learner, self.sizes, self.is_closed = learner, [], False

    def resize(self, count):
        self.sizes.append(count)

    def sync(self):
        self.learner.sync()

    def state_dict(self):
        return self.learner.state_dict()

    def close(self):
        self.is_closed = True


def test_a_group_of_learners_is_resized_and_given_up_for_the_trainers_process(
    monkeypatch, tmp_path
):
    run, notes = begun(monkeypatch, tmp_path)
    group = run.learner = Group(run.learner)
    two, state = run.recipe.placement.but(learners=2), run.learner.state_dict()
    run.recipe = run.recipe.but(placement=two)
    change_learner(run, run.recipe.but(placement=two.but(learners=3)))
    assert run.learner is group and group.sizes == [3] and run.recipe.placement.learners == 3
    alone = run.recipe.but(placement=two.but(learners=0))
    change_learner(run, alone)
    assert group.is_closed and group.sizes == [3] and run.recipe is alone
    assert not isinstance(run.learner, LearnerGroup) and run.prefetch.device is not None
    for name, module in run.learner.state_dict()["modules"].items():
        for key, value in module.items():
            assert np.array_equal(value, state["modules"][name][key]), (name, key)
    change_learner(run, alone.but(seed=5))
    assert run.recipe.seed == 5 and not notes


def test_a_layout_that_cannot_be_is_refused_and_the_run_goes_on(monkeypatch, tmp_path):
    run, notes = begun(monkeypatch, tmp_path)
    layout, players, before = run.layout_controller.layout, run.source.players, run.recipe

    def refuses(error):
        def raises(*_):
            raise error

        return raises

    monkeypatch.setattr(layout_change, "connect", refuses(RlinfError("no address")))
    change_layout(run, TWO_WORKERS)
    monkeypatch.setattr(layout_change, "connect", lambda address: None)
    for error in (NoRoomError("no room for 2"), RecipeError("no divisor of 4")):
        monkeypatch.setattr(run.source, "_players", refuses(error))
        change_layout(run, Layout(2, 0))
    assert [(note["decision"], note["reason"], note["refused"]) for note in notes] == [
        ("refused", "Ray does not start: no address", str(TWO_WORKERS)),
        ("refused", "no room for 2", str(Layout(2, 0))),
        ("refused", "no divisor of 4", str(Layout(2, 0))),
    ]
    assert run.layout_controller.layout == layout and run.layout_controller.refused == {
        TWO_WORKERS,
        Layout(2, 0),
    }
    assert run.source.players is players and run.source.recipe is run.recipe is before


ROBOTS = (
    "policy.hidden=[8]",
    "algorithm={name: rlpd, critic_hidden: [8], batch_size: 8, critic_warmup: 0}",
    "sft={steps: 5, batch_size: 8}",
    "collect.episodes=2",
    "simulation={environments: 2, env_steps: 120, start_steps: 0, updates_per_step: 0.1, "
    "evaluate_every: 1000, evaluate_episodes: 3}",
)


def robots_source(ending):
    recipe = load_recipe("sim_embodiments", ROBOTS)
    envs, held_out = (robot_environments(recipe, points, ending, size) for size in (2, 4))
    torch.manual_seed(0)
    spec = joined({name: env.spec for name, env in envs.items()})
    policy = make_policy(spec, recipe.policy)
    return Robots(recipe, envs, held_out, policy, points, Clock()), policy


def test_two_robots_play_demonstrate_and_are_judged_each_in_its_own_task():
    with ExitStack() as ending:
        source, policy = robots_source(ending)
        assert {name: env.size for name, env in source.envs.items()} == {"one": 2, "two": 2}
        assert source.report == {} == source.counts(), "no station, no evaluation"
        shown = source.demonstrate().trajectories
        assert [(one.station, one.mode, one.success) for one in shown] == [
            (name, DEMONSTRATION, True) for name in ("one", "one", "two", "two")
        ]
        vectors = {one.station: one.observations["vectors"] for one in shown}
        assert vectors["one"].shape[1] == vectors["two"].shape[1] == policy.spec.vector_size
        assert vectors["one"][:, :2].tolist() == [[1, 0]] * len(vectors["one"])
        assert vectors["two"][:, :2].tolist() == [[0, 1]] * len(vectors["two"])
        results = source.evaluate(policy, [5, 6, 7])
        assert [result.scene for result in results] == [5, 6, 7, 5, 6, 7]
        rates = [
            np.mean([result.success for result in part]) for part in (results[:3], results[3:])
        ]
        assert source.counts() == {"one/success": rates[0], "two/success": rates[1]}
        played = [source.take(0, {}).trajectories for _ in range(30)]
        names = [one.station for trajectories in played for one in trajectories]
        assert set(names) == {"one", "two"} and names.count("one") >= 2
        other, _ = robots_source(ending)
        other.load_state_dict(source.state_dict())
        for _ in range(30):
            first, second = (one.take(0, {}).trajectories for one in (source, other))
            assert [one.actions.tolist() for one in first] == [
                one.actions.tolist() for one in second
            ]
        other.load_state_dict({})
        source.close()


def test_each_robot_is_played_by_its_part_of_the_policy():
    with ExitStack() as ending:
        source, policy = robots_source(ending)
        for name, one in source.sources.items():
            player = one.players.rollouts.policy
            assert isinstance(player, SingleRobotPolicy)
            assert player.spec == source.envs[name].spec


def test_a_run_of_two_robots_is_judged_by_the_mean_of_both(tmp_path):
    last = train(load_recipe("sim_embodiments", ROBOTS), tmp_path, points)
    assert last["episodes"] == 6 and last["updates"] >= 10
    assert last["success"] == pytest.approx((last["one/success"] + last["two/success"]) / 2)
    assert [entry["env_steps"] for entry in read_evaluations(tmp_path)][0] == 0
    assert not [event for event in read_events(tmp_path) if event["event"] == "placement"]


class Closable(Points):
    """Knows how often it was closed."""

    closed = 0

    def close(self):
        self.closed += 1


@pytest.mark.parametrize("ends", [True, False])
def test_each_environment_is_closed_once_however_the_run_ends(ends, tmp_path):
    envs = []

    def make(recipe, size):
        envs.append(Closable(size))
        return envs[-1]

    def on_progress(run, entry):
        if not ends and run.data.steps:
            raise KeyError("a fault")

    recipe = load_recipe("sim_sac", [*SAC, "simulation.environments=10"])
    if ends:
        train(recipe, tmp_path, make, on_progress)
    else:
        with pytest.raises(KeyError):
            train(recipe, tmp_path, make, on_progress)
    assert [(env.size, env.closed) for env in envs] == [(10, 1), (8, 1)], "8 are judged at once"


def test_robots_have_environments_of_their_own_for_evaluations(tmp_path):
    sizes = []

    def make(recipe, size):
        sizes.append((recipe.station.task, size))
        return points(recipe, size)

    many = [override.replace("environments: 2", "environments: 12") for override in ROBOTS]
    train(load_recipe("sim_embodiments", many), tmp_path / "online", make)
    assert sizes == [("reach", 12), ("reach_both", 12), ("reach", 8), ("reach_both", 8)]
    sizes.clear()
    only = "algorithm={name: sft, steps: 3, batch_size: 8}"
    train(load_recipe("sim_embodiments", [*many, only]), tmp_path / "offline", make)
    assert sizes == [("reach", 12), ("reach_both", 12)], "no training episode is interrupted"


def test_more_workers_join_those_that_there_are(monkeypatch):
    class Resized(WorkersOnRay):
        def resize(self, count):
            self.count = count

    source = source_of()
    source.players = players = Resized()
    two, four = (
        source.recipe.but(placement=source.recipe.placement.but(workers=workers))
        for workers in (2, 4)
    )
    source.recipe = two
    source.change_layout(four)
    assert source.players is players and players.count == 4 and source.recipe is four


def test_workers_keep_their_number_and_how_often_they_went_on():
    class Resumed(WorkersOnRay):
        resumes = 2

        def restart_workers(self, begun, spawned):
            self.numbers = begun, spawned

    source = source_of()
    source.players = Resumed()
    assert source.state_dict() == {"begun": 2, "spawned": 3}
    source.load_state_dict({"begun": 2, "spawned": 3})
    assert source.players.numbers == (3, 3)
    source.load_state_dict({"generator": None})
    assert source.players.numbers == (1, 0), "the state of this process's environments"
    assert source.spawned == 3


@pytest.mark.parametrize(
    "more, resources, machines, message",
    [
        ("", {"CPU": 0.01}, [], "4 workers are 4 processes; the cluster at 10.0.0.2:6379 has 0.01"),
        (", worker_gpus: 1", {"CPU": 8.0, "GPU": 4.0}, [0.5] * 8, "do not fit into the GPUs of"),
    ],
)
def test_a_placement_without_room_is_refused_before_any_environment_is_made(
    more, resources, machines, message, monkeypatch, tmp_path
):
    addresses = []
    monkeypatch.setattr(training, "connect", addresses.append)
    monkeypatch.setattr(training, "resources", lambda: resources)
    monkeypatch.setattr(training, "gpus_of_machines", lambda: machines)

    def make(recipe, size):
        raise AssertionError("no environment")

    recipe = load_recipe("sim_sac", [*SAC, f"placement={{workers: 4, ray: '10.0.0.2:6379'{more}}}"])
    with pytest.raises(RlinfError, match=message):
        train(recipe, tmp_path / "run", make)
    assert addresses == ["10.0.0.2:6379"] and not (tmp_path / "run").exists()


@pytest.mark.parametrize("before, ended", [(False, 1), (True, 0)])
def test_a_run_leaves_the_cluster_that_it_joined_and_not_that_of_its_caller(
    before, ended, monkeypatch, tmp_path
):
    joined, endings = [before], []
    monkeypatch.setattr(training, "connected", lambda: joined[-1])
    monkeypatch.setattr(training, "connect", lambda address: joined.append(True))
    monkeypatch.setattr(training, "disconnect", lambda: endings.append(joined.append(False)))
    monkeypatch.setattr(training, "resources", lambda: {"CPU": 0.01})
    monkeypatch.setattr(training, "gpus_of_machines", list)
    with pytest.raises(RlinfError, match="4 workers are 4 processes"):
        train(load_recipe("sim_sac", [*SAC, "placement={workers: 4}"]), tmp_path / "run", points)
    assert len(endings) == ended
    train(load_recipe("sim_sac", [*SAC, "simulation.env_steps=4"]), tmp_path / "alone", points)
    assert len(endings) == ended, "a run in one process leaves nothing"


@pytest.mark.parametrize("ends", [True, False])
def test_learner_source_and_curves_are_closed_however_a_run_ends(ends, monkeypatch, tmp_path):
    closed, threads = [], []
    kinds = {"learner": sac.Learner, "source": Simulators, "curves": Progress}
    for name, kind in kinds.items():

        def close(self, name=name, close=kind.close):
            closed.append(name)
            close(self)

        monkeypatch.setattr(kind, "close", close)

    def on_progress(run, entry):
        threads.append(torch.get_num_threads())
        if not ends:
            raise KeyError("a fault")

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with contextlib.nullcontext() if ends else pytest.raises(KeyError):
            train(
                load_recipe("sim_sac", [*SAC, "simulation.env_steps=8"]),
                tmp_path,
                points,
                on_progress,
            )
    finally:
        torch.set_num_threads(before)
    assert closed == ["learner", "source", "curves"]
    assert set(threads) == {1}, "small networks are slower in several"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_after_its_turn_with_a_checkpoint(number, tmp_path):
    steps = []

    def on_progress(run, entry):
        steps.append(run.data.steps)
        if len(steps) == 3:
            signal.raise_signal(number)

    train(load_recipe("sim_sac", SAC), tmp_path, points, on_progress)
    state = checkpoint.load_newest(tmp_path / "checkpoints")
    assert len(steps) == 3 and state["data"]["steps"] == steps[-1] < 160
