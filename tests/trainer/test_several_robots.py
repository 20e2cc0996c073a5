"""Stations of different robots feed one policy over the real bridge, and each plays its own part of
it.
"""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlinf_core.deploy.bridge.client import BridgeClient
from rlinf_core.policies.base import Observation
from rlinf_core.policies.serialization import load_policy
from rlinf_core.recipes import load_recipe
from rlinf_core.recipes.station import embodiment_recipes, learned_spec
from rlinf_core.rollouts.types import DEMONSTRATION, TRAIN, Experience, Trajectory
from rlinf_core.specs.arrays import decode_instructions
from rlinf_core.tasks.task import load_task
from rlinf_core.trainer.data import make_data
from rlinf_core.trainer.governor import make_governor
from rlinf_core.trainer.learner_setup import initial_policy, make_learner
from rlinf_core.trainer.sources.robots import Robots
from tests.messages import record
from tests.ports import free_port
from tests.trainer.test_stations import Station

pytestmark = pytest.mark.timed
TASKS = {name: load_task(f"configs/tasks/{name}.yaml") for name in ("reach", "reach_both", "push")}


def of_station(name, spec):
    """Episodes as that station's recorder writes them."""

    def change(topic, number, message):
        if topic == "episode":
            message.station = name
        if topic == "applied":
            message.requested = message.executed = np.full(spec.action.dim, 0.01)

    return change


@pytest.mark.timeout(240)
def test_stations_of_two_robots_feed_one_policy_and_of_a_third_one_are_refused(tmp_path):
    recipe = load_recipe(
        "sim_embodiments",
        [
            "simulation.environments=0",
            "collect.episodes=2",
            "algorithm.steps=64",
            "algorithm.batch_size=8",
            "policy.hidden=[16]",
            f"bridge.port={free_port()}",
        ],
    )
    one, two, third = (TASKS[name].spec for name in ("reach", "reach_both", "push"))
    clients = {
        name: BridgeClient(recipe.bridge.address, name, tokens=[tmp_path / "run/bridge.token"])
        for name in ("b", "c")
    }

    def act(station):
        station.wait(lambda r: True)
        assert station.client.register(json.dumps(one.to_dict()), "beef") == ""
        assert clients["b"].register(json.dumps(two.to_dict()), "beef") == ""
        why = clients["c"].register(json.dumps(third.to_dict()), "beef")
        assert why.startswith(
            f"station 'c': specs: expected those of this trainer (one {one.hash}, two {two.hash}), "
            f"got those of this station ({third.hash}): nearest is robot 'one': "
        )
        assert (
            "observation 'gripper': absent against float32[1]" in why
            and "Start both with the same task" in why
        )
        station.spec = one
        for number in range(3):
            station.send(f"a-one-{number}", mode="demonstration")
        report = station.wait(lambda r: r.metrics.get("demonstrations") == 3)
        assert report.phase == "waiting", "nothing of the other robot has been shown"
        for number in range(2):
            clients["b"].upload(
                record(
                    station.spool,
                    two,
                    f"b-two-{number}",
                    mode="demonstration",
                    change=of_station("b", two),
                ).close()
            )
        status = clients["c"].report(0, 0)
        assert status.message == why and not status.accepting
        clients["c"].upload(
            record(station.spool, third, "third", change=of_station("c", third)).close()
        )
        station.wait(lambda r: r.metrics.get("refused") == 1)
        report = station.wait(lambda r: r.policy_version >= 1 and r.metrics["sft_left"] == 0)
        assert (report.metrics["a/episodes"], report.metrics["demonstrations"]) == (3, 5)
        sampled = [report.metrics["a/sampled"], clients["b"].report(0, 0).metrics["b/sampled"]]
        assert sum(sampled) == 64 * 8 and sampled[0] == pytest.approx(256, abs=35), (
            "as many of each robot"
        )
        assert clients["c"].next_policy(-1, tmp_path / "c", wait_s=0.2) is None
        for client, spec, number in ((station.client, one, 0), (clients["b"], two, 1)):
            file = client.next_policy(-1, tmp_path / str(number), wait_s=20.0).path
            policy = load_policy(file, spec)
            chunk = policy.act(Observation(torch.zeros(1, spec.vector_size)), explore=True)
            assert policy.spec == spec and chunk.actions.shape == (1, 1, spec.action.dim)
            assert np.isfinite(chunk.actions.numpy()).all()

    Station(recipe, TASKS["reach"], tmp_path / "a", act).feed(tmp_path / "run")
    for client in clients.values():
        client.close()
    refused = next((tmp_path / "run/refused").glob("*.txt")).read_text()
    assert (
        f"was recorded with specs {third.hash}, this trainer serves one {one.hash}, two {two.hash}"
        in refused
    )


@pytest.mark.timeout(240)
def test_what_stations_of_two_robots_play_is_learned_from_alike(tmp_path):
    recipe = load_recipe(
        "sim_embodiments",
        [
            "simulation.environments=0",
            "collect.episodes=1",
            "algorithm={name: rlpd, critic_hidden: [16], batch_size: 16, critic_warmup: 0}",
            "sft={steps: 8, batch_size: 8}",
            "online={min_transitions: 0, updates_per_step: 4.0, publish_every_updates: 8}",
            "policy.hidden=[16]",
            f"bridge.port={free_port()}",
        ],
    )
    one, two = (TASKS[name].spec for name in ("reach", "reach_both"))
    other = BridgeClient(recipe.bridge.address, "b", tokens=[tmp_path / "run/bridge.token"])

    def act(station):
        station.wait(lambda r: True)
        for client, spec in ((station.client, one), (other, two)):
            assert client.register(json.dumps(spec.to_dict()), "beef") == ""
        station.spec = one

        def play(name, **how):
            station.send(f"a-one-{name}", **how)
            other.upload(
                record(
                    station.spool, two, f"b-two-{name}", change=of_station("b", two), **how
                ).close()
            )

        play("shown", mode="demonstration")
        version = station.wait(lambda r: r.policy_version >= 1).policy_version
        for number in range(3):
            play(number)
        report = station.wait(
            lambda r: r.metrics["steps"] == 2 * 3 * 5 and r.updates == 4 * r.metrics["steps"]
        )
        theirs = other.report(0, 0).metrics
        assert report.metrics["a/steps"] == theirs["b/steps"] == 15
        assert report.metrics["a/sampled"] == pytest.approx(theirs["b/sampled"], rel=0.3), (
            "as many of each robot"
        )
        assert report.policy_version > version

    Station(recipe, TASKS["reach"], tmp_path / "a", act).feed(tmp_path / "run")
    other.close()
    policies = sorted((tmp_path / "run/policies").glob("*.safetensors"))
    for spec in (one, two):
        first, last = (
            load_policy(path, spec)
            .act(Observation(torch.ones(1, spec.vector_size)), explore=False)
            .actions
            for path in (policies[0], policies[-1])
        )
        assert not torch.equal(first, last)


def test_a_station_of_a_robot_has_its_robot_and_its_task():
    both = embodiment_recipes(load_recipe("sim_embodiments", []))
    assert {
        name: (one.station.robot, one.station.task, one.embodiments) for name, one in both.items()
    } == {"one": ("franka_sim", "reach", {}), "two": ("two_franka_sim", "reach_both", {})}


def test_what_is_asked_of_each_robot_is_learned_with_what_it_did():
    robots = Robots.__new__(Robots)
    robots.spec = learned_spec(load_recipe("sim_embodiments"))
    robots.envs = {name: SimpleNamespace(spec=spec) for name, spec in robots.spec.robots.items()}
    for name, spec in robots.spec.robots.items():
        shown = Trajectory(
            {"vectors": np.zeros((4, spec.vector_size), np.float32)},
            np.zeros((3, spec.action.dim)),
            np.zeros(3),
            np.ones(3),
            True,
        )
        (placed,) = robots._in_joint_space(name, Experience([shown]))
        assert (
            decode_instructions(placed.observations["instruction"]) == (spec.instruction,) * 4
            and spec.instruction
        )
        assert (
            placed.observations["vectors"].shape == (4, robots.spec.vector_size)
            and placed.station == name
        )


def two_robots(algorithm, batch_size):
    """The data of a recipe of two robots, its learner, and what makes an episode of one of them."""
    recipe = load_recipe(
        "sim_embodiments",
        [
            "simulation.environments=0",
            "collect.episodes=1",
            "online.min_transitions=0",
            "policy.hidden=[8]",
            f"algorithm={{name: {algorithm}, critic_hidden: [8], batch_size: {batch_size}}}",
        ],
    )
    spec = learned_spec(recipe)
    policy = initial_policy(recipe, spec, None)
    data = make_data(recipe, policy, make_governor(recipe, 50))
    random = np.random.default_rng(0)

    def episode(name, steps=9, mode=TRAIN, success=True):
        robot_spec = spec.robots[name]
        vectors = random.normal(7.0, 3.0, (steps + 1, robot_spec.vector_size)).astype(np.float32)
        vectors, actions = spec.with_others(
            robot_spec, vectors, np.zeros((steps, robot_spec.action.dim), np.float32)
        )
        return Trajectory(
            {"vectors": vectors},
            actions,
            np.zeros(steps),
            np.ones(steps),
            success,
            mode,
            ["policy"] * steps,
            0,
            station=f"station of {name}",
        )

    return recipe, data, policy, episode


def test_nothing_is_learned_before_each_robot_has_brought_something_by_which_it_is_seen():
    recipe, data, policy, episode = two_robots("sac", 8)
    learner = make_learner(recipe, recipe.algorithm, policy)
    for _ in range(40):
        data.insert(episode("one"), 0)
    assert (
        data.due(0, learner) == 0
        and data.normalisation() is None
        and data.accepting(0)
        and not data.has_all_robots
    )
    data.insert(episode("two"), 0)
    assert data.has_all_robots and data.due(0, learner) == 0, (
        "what came before is not owed for at once"
    )
    data.insert(episode("two"), 0)
    assert data.due(0, learner) > 0
    learner.fit_normalisation(data.normalisation())
    robots = len(policy.spec.robots)
    assert (policy.encoder.mean[robots:].abs() > 1.0).all()
    state, owed = data.state_dict(), data.due(0, learner)
    for _ in range(data.online.capacity // 10 + 1):
        data.insert(episode("one"), 0)
    assert data.has_all_robots and data.due(0, learner) > 0, "once and for all"
    again = two_robots("sac", 8)[1]
    again.load_state_dict(state)
    assert again.has_all_robots and again.due(0, learner) == owed


def test_a_resumed_run_still_waits_for_a_robot_that_has_no_data():
    _, data, _, episode = two_robots("sac", 8)
    data.insert(episode("one"), 0)
    again = two_robots("sac", 8)[1]
    again.load_state_dict(data.state_dict())
    assert not again.has_all_robots and again.due(0, None) == 0
    again.insert(episode("two"), 0)
    assert again.has_all_robots


@pytest.mark.parametrize("names, counts", [(["one", "two", "one"], [2, 1]), (["two"] * 2, [0, 2])])
def test_an_older_checkpoint_counts_the_demonstrations_of_each_robot_by_its_episodes(names, counts):
    """It was learned from before all robots had data, and every time step has earned updates."""
    _, data, _, episode = two_robots("sac", 8)
    for name in names:
        data.insert(episode(name, mode=DEMONSTRATION), 0)
    data.insert(episode("two"), 0)
    newer = ("shown_of", "met", "unearned")
    state = {name: value for name, value in data.state_dict().items() if name not in newer}
    assert len(state) == len(data.state_dict()) - 3
    again = two_robots("sac", 8)[1]
    again.load_state_dict(state)
    assert again.demonstrations_by_robot.tolist() == data.demonstrations_by_robot.tolist() == counts
    assert (
        again.demonstration_count == min(counts) and again.demonstrations_by_robot.dtype == np.int64
    )
    assert again.has_all_robots and again.due(0, None) == again.governor.due(again.steps, 0) > 0
    assert data.has_all_robots is (0 not in counts)


def test_of_each_robot_as_much_is_demonstrated_also_where_one_alone_succeeds():
    _, data, policy, episode = two_robots("rlpd", 4000)
    for name in policy.spec.robots:
        for _ in range(3):
            data.insert(episode(name, mode=DEMONSTRATION), 0)
    for _ in range(40):
        data.insert(episode("one"), 0)
    assert data.imitated.episodes == 40
    assert data.demonstration_batch(4000)["vectors"][:, :2].mean(axis=0) == pytest.approx(
        [0.5, 0.5], abs=0.04
    )
