"""Chunks that go on where the last one is: what guides a flow beside a computation by hand, and
what it leads to.
"""

import numpy as np
import pytest
import torch

from rlinf_core.policies import make_policy
from rlinf_core.policies.base import ContinuesChunks, Observation
from rlinf_core.policies.real_time_chunking import Continuation, guide_velocity
from rlinf_core.policies.small import flow
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec

SPEC = StationSpec(
    (ArraySpec("side", (1,)),),
    ActionSpec("tcp_delta", ("dx", "dy"), (0.02, 0.02), ("m", "m")),
    20.0,
)


def test_the_correction_is_the_papers_by_finite_differences():
    """Black et al. 2025, equations 2 to 4, in its own time tau = 1 - t."""
    draw = torch.Generator().manual_seed(0)
    mix = torch.randn(6, 6, generator=draw, dtype=torch.float64)
    point, goal = (torch.randn(1, 3, 2, generator=draw, dtype=torch.float64) for _ in range(2))
    weights = torch.tensor([1.0, 0.4, 0.0], dtype=torch.float64).view(1, 3, 1).expand(1, 3, 2)

    def velocity(x):  # from action to noise
        return torch.tanh(x.flatten() @ mix).view(1, 3, 2)

    for t in (1.0, 0.8, 0.5, 0.1):
        tau = 1.0 - t

        def reached(x, t=t):
            return (x - t * velocity(x)).flatten().numpy()

        jacobian = np.zeros((6, 6))
        for j in range(6):
            step = torch.zeros(6, dtype=torch.float64)
            step[j] = 1e-6
            jacobian[:, j] = (
                reached(point + step.view(1, 3, 2)) - reached(point - step.view(1, 3, 2))
            ) / 2e-6
        off = weights.flatten().numpy() * (goal.flatten().numpy() - reached(point))
        r2 = (1 - tau) ** 2 / (tau**2 + (1 - tau) ** 2)
        factor = min(5.0, (1 - tau) / (tau * r2)) if tau else 5.0
        expected = -velocity(point).flatten().numpy() + factor * off @ jacobian  # da / dtau
        assert np.allclose(
            -guide_velocity(velocity, point, t, goal, weights).flatten().numpy(),
            expected,
            atol=1e-7,
        ), t


def test_what_is_left_is_weighed_as_far_as_it_goes():
    continuation = Continuation.from_remaining(np.full((5, 2), 0.5), 2, 8)
    c = np.array([3, 2, 1]) / 4
    expected = [1, 1, *(c * (np.exp(c) - 1) / (np.e - 1)), 0, 0, 0]
    assert continuation.weights[0].numpy() == pytest.approx(expected) and continuation.actions[
        0, 4
    ].tolist() == [0.5, 0.5]
    assert Continuation.from_remaining(np.zeros((12, 2)), 20, 8).weights.min() == 1.0, (
        "all of it will have begun"
    )


def two_sided_flow(**settings):
    """Return a flow with two equal modes: chunks of +0.6 and of -0.6 for any observation."""
    torch.manual_seed(0)
    policy = make_policy(
        SPEC,
        flow.Config(hidden=(64, 64), horizon=8, flow_steps=8, stochastic_eval=True, **settings),
    )
    adam, draw = torch.optim.Adam(policy.parameters(), 3e-3), torch.Generator().manual_seed(1)
    for _ in range(600):
        side = torch.randint(0, 2, (128, 1), generator=draw).float() * 1.2 - 0.6
        loss = policy.imitation_loss({"vectors": torch.zeros(128, 1)}, side.expand(128, 16), draw)
        adam.zero_grad()
        loss.backward()
        adam.step()
    return policy.eval()


@pytest.fixture(scope="module", params=[0, 3], ids=["guided", "cloned to go on"])
def two_sided(request):
    return two_sided_flow(max_delay=request.param)


def test_a_flow_goes_on_at_the_side_where_it_is(two_sided):
    """Half of its chunks go left; of those that go on from one to the right, none does."""
    assert isinstance(two_sided, ContinuesChunks)
    observations = Observation(torch.zeros(200, 1))
    free = two_sided.act(observations, False, torch.Generator().manual_seed(2)).actions
    share = (free.mean(dim=(1, 2)) > 0).float().mean().item()
    assert 0.3 < share < 0.7 and free.abs().mean() > 0.4
    one = Continuation.from_remaining(np.full((6, 2), 0.6), 3, 8)
    held = Continuation(one.actions.expand(200, 8, 2), one.weights.expand(200, 8))
    on = two_sided.continue_chunk(observations, held, torch.Generator().manual_seed(2)).actions
    assert (on.mean(dim=(1, 2)) > 0).float().mean() > 0.9, "beyond what was given, too"
    assert (on[:, :3] - 0.6).abs().mean() < 0.1 < (free[:, :3] - 0.6).abs().mean()
    if two_sided.config.max_delay:
        assert torch.allclose(on[:, :3], torch.full_like(on[:, :3], 0.6), atol=1e-6), (
            "what will have begun stays"
        )
    nothing = Continuation(held.actions, torch.zeros_like(held.weights))
    again = two_sided.continue_chunk(
        observations, nothing, torch.Generator().manual_seed(2)
    ).actions
    assert (again > 0).float().mean() == pytest.approx(share, abs=0.1), (
        "with nothing in play it is free"
    )


def test_a_chunk_is_cloned_as_what_follows_its_first_actions():
    """Black et al. 2025, arXiv 2512.05964: the given ones are at the end of their time, and count
    for nothing.
    """
    torch.manual_seed(3)
    policy = make_policy(SPEC, flow.Config(hidden=(32,), horizon=4, max_delay=2))
    torch.nn.init.normal_(policy.head.weight, std=0.1)
    draw = torch.Generator().manual_seed(5)
    inputs = {"vectors": torch.randn(64, 1, generator=draw)}
    actions = torch.rand(64, 8, generator=draw) - 0.5
    got = policy.imitation_loss(inputs, actions, torch.Generator().manual_seed(2))
    again = torch.Generator().manual_seed(2)
    goal, noise = torch.atanh(actions), torch.randn(64, 8, generator=again)
    time = torch.rand(64, generator=again)
    delays = [min(int(6 * x), 2) for x in torch.rand(64, generator=again)]
    assert {0, 1, 2} == set(delays) and delays.count(2) > 32
    features, off, count = policy.encoder(inputs), 0.0, 0
    for row, delay in enumerate(delays):
        times = torch.tensor([1.0] * delay + [time[row].item()] * (4 - delay))
        step_time = times.repeat_interleave(2)
        point = noise[row] + step_time * (goal[row] - noise[row])
        velocity, _ = policy.velocity(features[row : row + 1], point[None], times[None])
        off += ((velocity[0] - (goal[row] - noise[row])) ** 2)[2 * delay :].sum().item()
        count += 8 - 2 * delay
    assert got.item() == pytest.approx(off / count, rel=1e-5)


def test_a_chunk_that_is_all_given_is_refused():
    with pytest.raises(ValueError, match="max_delay: expected less than policy.horizon = 4, got 4"):
        flow.Config(horizon=4, max_delay=4)


@pytest.mark.parametrize("kind", ["pi0", "pi05", "smolvla", "groot", "groot_n1_6"])
def test_every_family_with_an_action_expert_does(kind):
    pytest.importorskip(
        "transformers", reason="the extra vla: transformers has none for Python 3.10"
    )
    from tests.policies import test_groot, test_groot_n1_6, test_pi0, test_pi05, test_smolvla

    make, observation = {
        "pi0": (test_pi0.pi0, test_pi0.observation),
        "pi05": (test_pi05.pi05, test_pi05.observation),
        "smolvla": (test_smolvla.smolvla, test_smolvla.observation),
        "groot": (test_groot.groot, test_smolvla.observation),
        "groot_n1_6": (test_groot_n1_6.groot, test_smolvla.observation),
    }[kind]
    policy, observations = make(), observation("push", "pull")
    horizon, size = policy.config.horizon, policy.spec.action.dim
    goal = torch.full((2, horizon, size), 0.9)
    weights = torch.zeros(2, horizon)
    assert torch.allclose(
        policy.continue_chunk(observations, Continuation(goal, weights)).actions,
        policy.act(observations, False).actions,
        atol=1e-6,
    ), "drawn to nothing it is what it was"
    weights[:, 0] = 1.0
    off = [
        (chunk.actions[:, 0] - 0.9).abs().mean()
        for chunk in (
            policy.act(observations, False),
            policy.continue_chunk(observations, Continuation(goal, weights)),
        )
    ]
    assert off[1] < 0.3 * off[0]
    assert all(parameter.grad is None for parameter in policy.parameters())
