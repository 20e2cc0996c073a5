"""The learner of a run: from another run's learner or policy, for several stations."""

import re

import numpy as np
import pytest
import torch

from rlinf_core.algorithms.common.learner import BaseLearner
from rlinf_core.core.errors import RecipeError
from rlinf_core.core.usage import Usage
from rlinf_core.interlock import load_limits
from rlinf_core.policies.policy_folder import policy_name
from rlinf_core.policies.serialization import save_policy
from rlinf_core.recipes import load_recipe
from rlinf_core.recipes.station import station_robot
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec
from rlinf_core.trainer import checkpoint, learner_setup
from rlinf_core.trainer.distributed.group import LearnerGroup
from rlinf_core.trainer.learner_setup import inherit_networks, initial_policy, make_learner
from rlinf_core.trainer.train import train
from rlinf_core.trainer.turn_meter import learner_usage
from sim_bridges.core.randomization import Randomised
from sim_bridges.core.station import simulated_station
from tests.algorithms.point import SPEC, Points

SHORT = (
    "policy.hidden=[8]",
    "simulation.env_steps=400",
    "simulation.start_steps=100",
    "simulation.environments=2",
    "simulation.evaluate_episodes=2",
)
SAC = ("algorithm.critic_hidden=[8]", "algorithm.batch_size=16")


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """Return the folder of a run that has ended."""
    folder = tmp_path_factory.mktemp("before")
    train(
        load_recipe("sim_sac", [*SHORT, *SAC, "seed=4"]), folder, lambda recipe, size: Points(size)
    )
    return folder


def test_a_run_that_ends_ends_its_learner(tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(BaseLearner, "close", lambda learner: closed.append(learner.updates))
    recipe = load_recipe("sim_sac", [*SHORT, *SAC])
    last = train(recipe, tmp_path, lambda recipe, size: Points(size))
    assert closed == [last["updates"]] and closed[0] > 0


def learner_of(*overrides, before=None):
    recipe = load_recipe("sim_sac", [*SHORT, *overrides])
    return make_learner(recipe, recipe.algorithm, initial_policy(recipe, SPEC, before))


def test_a_learner_goes_on_from_that_of_another_run(before):
    learner = learner_of(*SAC)
    inherit_networks(learner, before, "sac")
    policy = initial_policy(load_recipe("sim_sac", [*SHORT, *SAC]), SPEC, before)
    assert learner.updates == 0, "it counts its own, and a schedule begins anew"
    for one, other in zip(
        learner.actor.state_dict().values(), policy.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), "the newest policy of that run is its learner's"


def test_it_draws_by_a_seed_of_its_own_and_its_reference_is_what_it_begins_with(
    before, monkeypatch
):
    learner = learner_of("seed=7", *SAC)
    rng_state = learner.generator.get_state()
    inherit_networks(learner, before, "sac")
    assert torch.equal(learner.generator.get_state(), rng_state)
    one, other = (
        learner_of(f"seed={seed}", "algorithm={name: reinforce}", "policy.kind=gaussian")
        for seed in (1, 2)
    )
    for weight in one.policy.parameters():
        weight.data += 1.0  # it has learned something
    monkeypatch.setattr(checkpoint, "checkpoints", lambda _: ["its newest"])
    monkeypatch.setattr(checkpoint, "load", lambda folder, parts=(): {"learner": one.state_dict()})
    inherit_networks(other, before, "reinforce")
    for got, policy, first in zip(
        other.reference.parameters(),
        one.policy.parameters(),
        one.reference.parameters(),
        strict=True,
    ):
        assert torch.equal(got, policy) and not torch.equal(got, first)


def test_a_learner_of_another_algorithm_is_refused_with_the_parts_of_both(before, tmp_path):
    other = learner_of("algorithm={name: iql}")
    with pytest.raises(RecipeError) as refused:
        inherit_networks(other, before, "iql")
    expected, actual = (
        ", ".join(names)
        for names in (
            other.state_dict()["modules"],
            sorted(learner_of(*SAC).state_dict()["modules"]),
        )
    )
    assert str(refused.value) == (
        f"simulation.initial_policy: expected in {before / 'checkpoints'} a learner with "
        f"{expected}, got {actual}. Name a run of iql, or a policy file to use only the policy"
    )
    with pytest.raises(RecipeError, match=re.escape(f"{expected}, got none. Name a run of iql")):
        inherit_networks(other, tmp_path, "iql")


def test_a_policy_of_other_settings_is_refused(before):
    with pytest.raises(
        RecipeError, match=r"initial_policy: expected the recipe's policy .*\(9,\).*, got .*\(8,\)"
    ):
        initial_policy(load_recipe("sim_sac", [*SHORT, *SAC, "policy.hidden=[9]"]), SPEC, before)


def test_a_policy_whose_network_has_a_list_is_the_recipes(tmp_path):
    pytest.importorskip("transformers", reason="the extra vla: transformers has none")
    recipe = load_recipe(
        "sim_vla",
        [
            "policy={kind: smolvla, horizon: 2, network: {resize_imgs_with_padding: [32, 32], "
            "vlm_config: {scale_factor: 1, vision_config: {image_size: 32}}}}"
        ],
    )
    action = ActionSpec("tcp_delta", ("dx",), (0.02,), ("m",))
    spec = StationSpec(
        (ArraySpec("pose", (3,)), ArraySpec("front", (32, 32, 3), "uint8")), action, 10.0, "push"
    )
    file = save_policy(initial_policy(recipe, spec, None), tmp_path / policy_name(1))
    assert initial_policy(recipe, spec, file).config.flow_steps == recipe.policy.flow_steps


def test_a_recipes_simulated_station_has_its_shaping_its_randomisation_and_its_interlock():
    plain = simulated_station(load_recipe("sim_sac", ["station.task=reach"]))
    assert plain.task.shaping == 0.0 and not isinstance(plain.simulator, Randomised)
    station = simulated_station(
        load_recipe(
            "sim_sac",
            ["station.task=reach", "simulation.shaping=0.5", "simulation.randomise.delay_s=0.1"],
        )
    )
    assert station.task.shaping == 0.5 and station.task.spec == plain.task.spec
    assert isinstance(station.simulator, Randomised)
    assert plain.limits == load_limits(station_robot(load_recipe("sim_sac")).limits_by_arm[""]), (
        "those of its robot"
    )
    plain.reset(0)
    plain.step(np.ones(plain.task.spec.action.dim, np.float32))
    assert abs(plain.executed).max() < 1.0, "the interlock let less through than was asked"
    free = simulated_station(
        load_recipe("sim_sac", ["station.task=reach", "simulation.interlock=false"])
    )
    free.reset(0)
    free.step(np.ones(free.task.spec.action.dim, np.float32))
    assert free.executed == pytest.approx(1.0)


def test_a_group_of_learners_is_as_the_recipe_says(monkeypatch):
    class Group:
        def __init__(self, name, policy, config, seed, **settings):
            self.name, self.policy, self.config, self.seed = name, policy, config, seed
            self.settings = settings

    monkeypatch.setattr(learner_setup, "LearnerGroup", Group)
    monkeypatch.setattr(learner_setup, "cpus_for", lambda placement: placement.learners / 4)
    recipe = load_recipe(
        "sim_sac",
        [
            *SHORT,
            *SAC,
            "seed=7",
            "placement={learners: 3, restarts: 5}",
            "learner.precision=bfloat16",
        ],
    )
    policy = initial_policy(recipe, SPEC, None)
    group = make_learner(recipe, recipe.algorithm, policy)
    assert (group.name, group.policy, group.config, group.seed) == (
        "sac",
        policy,
        recipe.algorithm,
        7,
    )
    assert group.settings == {
        "size": 3,
        "strategy": recipe.placement.strategy,
        "restarts": 5,
        "gpus": recipe.placement.learner_gpus,
        "cpus": 0.75,
        "computing": recipe.learner,
        "tensor_parallel": recipe.placement.tensor_parallel,
    }


def test_what_a_call_of_a_group_costs_is_its_time_beyond_the_longest_process():
    def usage(wall_s, busy_s, idle_s):
        return Usage(wall_s=wall_s, busy_s=busy_s, idle_s=idle_s)

    group = LearnerGroup.__new__(LearnerGroup)
    group.usages = [usage(2.0, 1.5, 0.5), usage(3.0, 1.0, 2.0)]
    group.close = lambda: None
    parts = [(1.5, 0.5), (1.0, 2.0)]
    assert learner_usage(group, usage(3.5, 9.0, 9.0)) == (parts, 0.5)
    assert learner_usage(group, usage(2.5, 9.0, 9.0)) == (parts, 0.0)
    assert learner_usage(learner_of(*SAC), usage(3.0, 1.0, 2.0)) == ([(1.0, 2.0)], 0.0)


def test_a_learner_that_leaves_its_device_meanwhile_learns_the_same(tmp_path):
    results = {}
    for offload in ("false", "true"):
        recipe = load_recipe("sim_sac", [*SHORT, *SAC, f"placement.offload={offload}"])
        results[offload] = train(recipe, tmp_path / offload, lambda recipe, size: Points(size))
    assert results["false"]["seconds_switch"] == 0.0 < results["true"]["seconds_switch"]
    for name in ("success", "return", "updates", "critic_loss", "env_steps"):
        assert results["true"][name] == results["false"][name], name
