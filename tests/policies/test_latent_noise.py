"""A small policy chooses the noise of a vision-language-action model that stays as it is."""

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from rlinf_core.algorithms import dsrl
from rlinf_core.core.errors import RecipeError
from rlinf_core.data.replay import ReplayBuffer
from rlinf_core.policies.policy_folder import policy_name
from rlinf_core.policies.serialization import load_policy, save_policy
from rlinf_core.policies.small.latent_noise import Config
from rlinf_core.policies.small.latent_noise.policy import LatentNoiseActor
from rlinf_core.policies.small.tanh_gaussian.policy import Actor
from rlinf_core.recipes import load_recipe
from rlinf_core.specs import arrays
from rlinf_core.trainer.learner_setup import initial_policy
from tests.policies import test_groot, test_groot_n1_6, test_pi0, test_pi05, test_smolvla, test_xvla

KINDS = {
    "pi0": (test_pi0.pi0, test_pi0.observation),
    "pi05": (test_pi05.pi05, test_pi0.observation),
    "smolvla": (test_smolvla.smolvla, test_smolvla.observation),
    "groot": (test_groot.groot, test_smolvla.observation),
    "groot_n1_6": (test_groot_n1_6.groot, test_smolvla.observation),
    "xvla": (test_xvla.xvla, test_smolvla.observation),
}
SMALL = {"noise_policy": (16,), "image_features": 4, "channels": (4,)}


def around(flow, **config):
    torch.manual_seed(1)
    return LatentNoiseActor.around(
        Config(flow=flow.config, horizon=flow.config.horizon, **SMALL | config), flow
    ).eval()


@pytest.mark.parametrize("kind", KINDS)
def test_its_actions_are_what_the_noise_leads_to_and_its_versions_are_small(kind, tmp_path):
    make, observation = KINDS[kind]
    flow, observations = make(), observation("push", "pull")
    flow.normalisation.set_statistics(np.full(3, 0.3), np.full(3, 2.0))
    policy = around(flow, noise_bound=0.7)
    assert (
        policy.needs_instruction
        and policy.reads_instructions
        and policy.latent_size == policy.action_size
    )
    for expected, buffer in zip(
        flow.normalisation.buffers(), (policy.encoder.mean, policy.encoder.std), strict=True
    ):
        assert torch.equal(expected, buffer)
    chunk = policy.act(observations, True, torch.Generator().manual_seed(2))
    size, ours = flow.config.horizon, flow.spec.action.dim
    noise = torch.zeros(2, size, flow.max_action_dim)
    noise[..., :ours] = 0.7 * chunk.drawn.view(2, size, ours)
    with torch.no_grad():
        assert torch.equal(
            chunk.actions.flatten(1), flow.decode(flow.to_batch(observations), noise)
        )
    assert (
        chunk.drawn.shape == (2, policy.latent_size)
        and chunk.log_probs.shape == (2,)
        and chunk.drawn.abs().max() < 1
    )

    one = save_policy(policy, tmp_path / policy_name(1))
    with torch.no_grad():
        for parameter in policy.noise_policy.parameters():
            parameter += 0.1
    two = save_policy(policy, tmp_path / policy_name(2))
    flow_file = save_policy(flow, tmp_path / "whole" / policy_name(1))
    (base,) = tmp_path.glob("base-*.safetensors")
    assert base.stat().st_size > 0.9 * (flow_file.stat().st_size - 2**14)
    policy_bytes = sum(
        tensor.nbytes
        for name, tensor in policy.state_dict().items()
        if not name.startswith("flow.network.")
    )
    assert max(one.stat().st_size, two.stat().st_size) < policy_bytes + 2**15
    again = load_policy(two, policy.spec)
    assert torch.equal(
        again.act(observations, False).actions, policy.act(observations, False).actions
    )
    assert not torch.equal(
        again.act(observations, False).actions, load_policy(one).act(observations, False).actions
    )


def test_one_choice_for_all_actions_of_a_chunk():
    flow, observations = test_pi0.pi0(), test_pi0.observation("push")
    policy = around(flow, same_noise=True)
    chunk = policy.act(observations, True, torch.Generator().manual_seed(0))
    assert policy.latent_size == policy.executed_size == 2 and chunk.drawn.shape == (1, 2)
    noise = torch.zeros(1, 4, flow.max_action_dim)
    noise[..., :2] = 1.5 * chunk.drawn
    with torch.no_grad():
        assert torch.equal(
            chunk.actions.flatten(1), flow.decode(flow.to_batch(observations), noise)
        )


@pytest.mark.slow
def test_dsrl_raises_what_pays_and_the_model_stays_as_it_is():
    """A first number above 0.5 pays; standard noise leads to it in 31 % of the cases."""
    policy = around(test_pi0.pi0(flow_steps=2), noise_policy=(32,))
    observations = test_pi0.observation(*["push"] * 16)
    before = {name: value.clone() for name, value in policy.flow.state_dict().items()}
    config = dsrl.Config(
        learning_rate=3e-3,
        batch_size=64,
        critic_hidden=(32,),
        target_entropy=-1.0,
        initial_temperature=0.02,
    )
    learner = dsrl.Learner(policy, config, seed=0)
    draw = torch.Generator().manual_seed(0)
    random = np.random.default_rng(0)
    replay = ReplayBuffer(policy.spec, 4000, latent=policy.latent_size, instructions=True)
    word, paid = arrays.encode_instructions(["push"]), []
    for _ in range(30):
        chunk = policy.act(observations, True, draw)
        rewards = (chunk.actions[:, 0, 0] > 0.5).float().numpy()
        paid.append(rewards.mean())
        for index, reward in enumerate(rewards):
            at = {
                "vectors": observations.vectors[index].numpy(),
                arrays.INSTRUCTION: word[0],
                **{name: values[index].numpy() for name, values in observations.images.items()},
            }
            replay.insert_episode(
                {name: np.stack([value] * 5) for name, value in at.items()},
                chunk.actions[index].numpy(),
                np.array([0, 0, 0, reward]),
                np.array([1.0, 1, 1, 0]),
                np.array([True, False, False, False]),
                np.repeat(chunk.drawn[index][None].numpy(), 4, 0),
            )
        for _ in range(10):
            learner.update(replay.sample(64, random, 4, 0.99))
    assert np.mean(paid[:2]) < 0.5 and np.mean(paid[-3:]) > 0.9, paid
    assert all(torch.equal(value, before[name]) for name, value in policy.flow.state_dict().items())


def recipe_of(*overrides):
    return load_recipe("sim_vla", ["algorithm={name: dsrl}", *overrides])


def test_a_model_that_has_learned_is_taken_as_it_is(tmp_path):
    network = {
        "max_action_dim": 8,
        "max_state_dim": 8,
        "dit_config": test_pi0.LAYERS,
        "vlm_config": {
            "projection_dim": 32,
            "text_config": test_pi0.LAYERS,
            "vision_config": test_pi0.VISION,
        },
    }
    overrides = ["policy={kind: latent_noise, horizon: 4, flow: {kind: pi0}}"]
    recipe = recipe_of(*overrides)
    recipe = recipe.but(policy=recipe.policy.but(flow=recipe.policy.flow.but(network=network)))
    assert recipe.policy.flow_settings.horizon == 4
    torch.manual_seed(0)
    flow = test_pi0.Pi0(test_pi0.SPEC, recipe.policy.flow_settings)
    file = save_policy(flow, tmp_path / policy_name(3))
    policy = initial_policy(recipe, test_pi0.SPEC, file)
    assert policy.config == recipe.policy and isinstance(policy.noise_policy, Actor)
    observations = test_pi0.observation("push")
    assert torch.equal(
        policy.flow.act(observations, False).actions, flow.eval().act(observations, False).actions
    )
    with pytest.raises(
        RecipeError, match="simulation.initial_policy: expected the recipe's policy"
    ):
        initial_policy(
            recipe.but(policy=recipe.policy.but(flow=recipe.policy.flow.but(flow_steps=7))),
            test_pi0.SPEC,
            file,
        )


@pytest.mark.parametrize(
    "flow, error",
    [
        (
            "{kind: gaussian}",
            "whose noise may be chosen, one of flow, groot, groot_n1_6, groot_n1_7, pi0, pi05, smolvla, xvla, got 'gaussian'",
        ),
        ("{kind: latent_noise}", "whose noise may be chosen, .*got 'latent_noise'"),
        ("{kind: pi9}", "policy.flow.kind.*got 'pi9'"),
        ("{horizon: 3}", "'policy.flow.kind'.*got nothing"),
        (
            "{kind: pi0, flow_stops: 3}",
            r"unknown key 'policy.flow.flow_stops' \(did you mean 'flow_steps'",
        ),
        ("{kind: pi0, horizon: 3}", "flow.horizon.*expected that of the policy, 4, got 3"),
    ],
)
def test_what_cannot_be_steered_is_named(flow, error):
    with pytest.raises(RecipeError, match=error):
        recipe_of(f"policy={{kind: latent_noise, horizon: 4, flow: {flow}}}")
