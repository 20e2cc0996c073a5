"""HG-DAgger of chunks, on stations: a vision-language-action model learns what a person did who
took over.
"""

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from rlinf_core.algorithms import algorithm
from rlinf_core.algorithms.common.tensors import to_tensors
from rlinf_core.core.errors import RecipeError
from rlinf_core.policies import make_policy
from rlinf_core.policies.small import flow
from rlinf_core.recipes import load_recipe
from rlinf_core.recipes.sources import check_source
from rlinf_core.rollouts.types import DEMONSTRATION, Trajectory
from rlinf_core.specs import arrays
from rlinf_core.trainer.data import make_data
from tests.policies import test_pi0
from tests.trainer.test_run import GOVERNOR

STEPS = 12


@pytest.fixture
def recipe():
    overrides = [
        "policy={kind: pi0, horizon: 4}",
        "station.observe_cameras=[front]",
        "algorithm.batch_size=32",
        "algorithm.learning_rate=0.003",
        "algorithm.min_std=0.0",
    ]
    return load_recipe("demo_hg_dagger", overrides)


def episode(random, operator_steps, value, success=False, mode="train", handed_back=STEPS):
    """The policy does -0.8; from ``operator_steps`` on, until it is handed back, a person does
    ``value``.
    """
    sources = [
        "operator" if operator_steps <= step < handed_back else "policy" for step in range(STEPS)
    ]
    actions = np.array(
        [[value if source == "operator" else -0.8] * 2 for source in sources], np.float32
    )
    observations = {
        "vectors": np.arange(STEPS + 1, dtype=np.float32)[:, None].repeat(3, 1) / STEPS,
        arrays.INSTRUCTION: arrays.encode_instructions(["push"] * (STEPS + 1)),
        **{
            name: random.integers(0, 255, (STEPS + 1, 32, 32, 3)).astype(np.uint8)
            for name in ("front", "wrist")
        },
    }
    return Trajectory(
        observations,
        actions,
        np.zeros(STEPS, np.float32),
        np.ones(STEPS, np.float32),
        success,
        mode,
        sources,
        station="a",
    )


def test_a_model_learns_chunks_from_where_a_person_had_taken_over_and_none_else(recipe, random):
    check_source(recipe)
    policy = test_pi0.pi0(flow_steps=3).train()
    data = make_data(recipe, policy, GOVERNOR)
    assert data.insert(episode(random, 0, 0.6, True, DEMONSTRATION), 0) == "demonstration"
    for _ in range(4):
        assert data.insert(episode(random, 7, 0.6), 0) == "online"
    drawn = [data.batch() for _ in range(20)]
    rows = np.concatenate([batch["vectors"][:, 0] * STEPS for batch in drawn]).round().astype(int)
    actions = np.concatenate([batch["action"] for batch in drawn])
    assert (
        set(rows) == set(range(STEPS)) and actions.shape == (640, 8) and np.allclose(actions, 0.6)
    )
    assert (rows >= 7).mean() == pytest.approx((5 + 4 * 5) / (12 + 4 * 5), abs=0.06), (
        "of the policy's own, none"
    )

    learner = algorithm("dagger").Learner(policy, recipe.algorithm, seed=0)
    learner.fit_normalisation(data.normalisation())
    losses = [learner.update(data.batch())["sft_loss"] for _ in range(100)]
    policy.eval()
    observation = test_pi0.observation(*["push"] * 4)
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])
    assert (policy.act(observation, False).actions - 0.6).abs().mean() < 0.2


def test_of_a_takeover_that_ends_only_chunks_count_that_are_the_persons_as_far_as_they_are_played(
    recipe, random
):
    for execute, starts in ((4, {2, 3}), (2, {2, 3, 4, 5})):
        data = make_data(recipe, test_pi0.pi0(n_action_steps=execute), GOVERNOR)
        data.insert(episode(random, 2, 0.6, handed_back=7), 0)
        batch = data.batch()
        assert set((batch["vectors"][:, 0] * STEPS).round().astype(int)) == starts
        assert np.allclose(batch["action"][:, : 2 * execute], 0.6)


def test_in_simulators_a_label_is_of_one_time_step(recipe):
    with pytest.raises(
        RecipeError,
        match="in simulators dagger queries the expert at every time step, expected 1, got 4",
    ):
        check_source(recipe.but(simulation=recipe.simulation.but(environments=1)))
    with pytest.raises(RecipeError, match="With algorithm.gated=true"):
        check_source(recipe.but(algorithm=recipe.algorithm.but(gated=False)))


def flow_of(recipe):
    spec = test_pi0.pi0().spec
    config = flow.Config(
        hidden=(16,), channels=(4,), image_features=4, horizon=6, n_action_steps=2, max_delay=3
    )
    return recipe.but(policy=config), make_policy(spec, config)


def test_what_follows_on_what_the_policy_had_begun_counts_too_and_its_actions_are_given(
    recipe, random
):
    """A chunk asked for before a takeover is played after it: the policy's part is given, the
    person's is learned.
    """
    flow_recipe, policy = flow_of(recipe)
    data = make_data(flow_recipe, policy, GOVERNOR)
    data.insert(episode(random, 5, 0.6, handed_back=9), 0)
    batch = data.batch()
    rows = (batch["vectors"][:, 0] * STEPS).round().astype(int)
    given = dict(zip(rows.tolist(), batch["prefix_length"].tolist(), strict=True))
    assert given == {2: 3, 3: 2, 4: 1, 5: 0, 6: 0, 7: 0}, (
        "of 1 and before, more would have begun than ever does"
    )
    for row, count, actions in zip(
        rows, batch["prefix_length"].astype(int), batch["action"].reshape(-1, 6, 2), strict=True
    ):
        assert np.allclose(actions[:count], -0.8) and np.allclose(
            actions[count : count + 2], 0.6
        ), row
    policy.max_prefix = 0
    assert "given" not in make_data(flow_recipe, policy, GOVERNOR).demonstrations._arrays


def test_what_is_given_counts_for_nothing(recipe, random):
    flow_recipe, policy = flow_of(recipe)
    data = make_data(flow_recipe, policy, GOVERNOR)
    data.insert(episode(random, 5, 0.6, handed_back=9), 0)
    batch = to_tensors({name: value[:32] for name, value in data.batch().items()})

    def loss(actions, given):
        draw = torch.Generator().manual_seed(4)
        return policy.imitation_loss(
            batch | {"prefix_length": torch.full((32,), given)}, actions, draw
        ).item()

    other = batch["action"].clone()
    other[:, :6] = 0.1
    torch.nn.init.zeros_(policy.head.weight)  # a field that is 0 wherever it is asked
    assert loss(batch["action"], 3.0) == pytest.approx(loss(other, 3.0)) != loss(other, 0.0)
    assert loss(batch["action"], 0.0) != pytest.approx(loss(other, 0.0))
