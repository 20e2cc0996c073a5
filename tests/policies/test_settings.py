"""Settings of policies that contradict each other are refused with the key, and bounds are not."""

import pytest
from pydantic import ValidationError

from rlinf_core.policies import policy_config

REGRESSION = "decoding: expected autoregressive or parallel with token_log_probs or stochastic_eval"
NOISE = "learned_noise: expected a smaller and a larger deviation, and sde_noise of 0; got "
REFUSED = [
    ("tanh_gaussian", dict(horizon=2, n_action_steps=3), "expected at most policy.horizon = 2"),
    (
        "flow",
        dict(horizon=2, max_delay=2),
        "max_delay: expected less than policy.horizon = 2, got 2",
    ),
    (
        "latent_noise",
        dict(horizon=2, flow=dict(kind="flow", horizon=3)),
        "flow.horizon: expected that of the policy, 2, got 3. Leave it out",
    ),
    ("openvla", dict(decoding="regression", token_log_probs=True), REGRESSION),
    ("openvla", dict(decoding="regression", stochastic_eval=True), REGRESSION),
    ("pi0_fast", dict(token_log_probs=True), "token_log_probs: expected false"),
    ("pi0", dict(learned_noise=(0.2, 0.1)), NOISE + r"\(0.2, 0.1\) and 0"),
    ("pi0", dict(learned_noise=(0.1, 0.1)), NOISE),
    ("pi0", dict(learned_noise=(0.1, 0.2), sde_noise=0.5), NOISE + r"\(0.1, 0.2\) and 0.5"),
    ("pi0", dict(learned_noise=(0.1,)), "expected two deviations, or none, got 1"),
    (
        "pi0",
        dict(checkpoint="x", network={"a": 1}),
        "network: expected none with policy.checkpoint, which defines the network",
    ),
    (
        "pi0",
        dict(adapters="x"),
        "adapters: expected their checkpoint too, got none. Set policy.checkpoint",
    ),
    (
        "act",
        dict(checkpoint="x", network={"a": 1}),
        "network: expected none with policy.checkpoint, which defines the network",
    ),
]


@pytest.mark.parametrize("kind, keys, message", REFUSED)
def test_settings_that_contradict_each_other_are_refused(kind, keys, message):
    with pytest.raises(ValidationError, match=message):
        policy_config(kind)(**keys)


@pytest.mark.parametrize(
    "kind, keys",
    [
        ("tanh_gaussian", dict(horizon=2, n_action_steps=2)),
        ("flow", dict(horizon=2, max_delay=1)),
        ("flow", dict(horizon=1, max_delay=0)),
        ("latent_noise", dict(horizon=2, flow=dict(kind="flow"))),
        ("latent_noise", dict(horizon=2, flow=dict(kind="flow", horizon=2))),
        ("openvla", dict(decoding="regression")),
        ("openvla", dict(decoding="parallel", token_log_probs=True, stochastic_eval=True)),
        ("pi0_fast", {}),
        ("pi0", dict(learned_noise=(0.1, 0.2))),
        ("pi0", dict(learned_noise=(), sde_noise=0.5)),
        ("pi0", dict(checkpoint="x", adapters="x")),
        ("act", dict(checkpoint="x")),
        ("act", dict(network={"a": 1})),
    ],
)
def test_settings_at_a_bound_are_accepted(kind, keys):
    config = policy_config(kind)(**keys)
    assert config.kind == kind


def test_all_of_a_chunk_is_played_unless_a_number_is_set():
    config = policy_config("tanh_gaussian")
    assert config(horizon=4).executed == 4 and config(horizon=4, n_action_steps=3).executed == 3


@pytest.mark.parametrize(
    "kind, keys, lacks",
    [
        ("pi0", {}, "policy.sde_noise"),
        ("pi0", dict(sde_noise=0.5), ""),
        ("pi0", dict(learned_noise=(0.1, 0.2)), ""),
        ("openvla", dict(decoding="regression"), "policy.decoding"),
        ("openvla", {}, ""),
        ("tanh_gaussian", {}, ""),
    ],
)
def test_settings_whose_draws_have_no_density_name_the_key(kind, keys, lacks):
    reason = policy_config(kind)(**keys).no_density_reason
    assert reason.partition(":")[0] == lacks


@pytest.mark.parametrize("kind", ["pi0", "diffusion", "lerobot"])
def test_a_checkpoint_draws_noise_in_evaluations_unless_the_recipe_decides(kind):
    config = policy_config(kind)
    assert config(checkpoint="x").stochastic_eval is True
    assert config(checkpoint="x", stochastic_eval=False).stochastic_eval is False
    assert config().stochastic_eval is (kind == "lerobot"), "which has no policy of its own"
    assert policy_config("act")(checkpoint="x").stochastic_eval is False


def test_the_policy_that_chooses_noise_has_its_own_widths_and_one_action_for_one_noise():
    config = policy_config("latent_noise")(horizon=3, n_action_steps=2, noise_policy=(8, 9))
    shared = config.but(same_noise=True)
    for settings, horizon in ((config, 3), (shared, 1)):
        chooses = settings.noise_policy_settings
        assert (chooses.kind, chooses.hidden, chooses.horizon) == ("tanh_gaussian", (8, 9), horizon)
        assert chooses.n_action_steps == 0
    flow = config.flow_settings
    assert (flow.kind, flow.horizon, flow.n_action_steps) == ("flow", 3, 2)
    given = policy_config("latent_noise")(
        horizon=3, n_action_steps=2, flow=dict(kind="flow", flow_steps=9)
    )
    assert (given.flow_settings.flow_steps, given.flow_settings.horizon) == (9, 3)
    assert given.flow_settings.n_action_steps == 2
