import math

import numpy as np
import pytest
import torch

from rlinf_core.errors import PolicyFileError
from rlinf_core.policies import KINDS, make_policy
from rlinf_core.policies.actor import Actor, PolicyConfig, log_prob
from rlinf_core.policies.files import load_policy, read_info, save_policy


@pytest.fixture
def actor(task):
    torch.manual_seed(0)
    return Actor(task.with_images({"front": (32, 32)}).spec)


def observation(spec, random):
    return {item.name: random.integers(0, 255, item.shape, dtype=np.uint8) if item.is_image
            else random.normal(size=item.shape).astype(np.float32) for item in spec.observation}


def test_log_prob_equals_the_change_of_variables_computed_by_hand():
    raw, mean, log_std = (torch.tensor([[0.3, -1.2]], dtype=torch.float64) * k for k in (1.0, 0.5, -0.4))
    by_hand = 0.0
    for x, m, s in zip(raw[0].tolist(), mean[0].tolist(), log_std.exp()[0].tolist(), strict=True):
        density = math.exp(-0.5 * ((x - m) / s) ** 2) / (s * math.sqrt(2 * math.pi))
        by_hand += math.log(density / (1 - math.tanh(x) ** 2))
    assert log_prob(raw, mean, log_std).item() == pytest.approx(by_hand, abs=1e-9)


def test_a_policy_file_gives_the_same_actions_back(actor, tmp_path, random):
    path = save_policy(actor, tmp_path / "p.safetensors", version=3)
    again = load_policy(path)
    seen = observation(actor.spec, random)
    for policy in (actor.eval(), again):
        policy.result = policy.act(seen, explore=False, random=random)
    assert np.array_equal(actor.result, again.result) and actor.result.shape == (1, 3)
    assert again.spec == actor.spec and read_info(path) == {"version": 3}


def test_exploration_differs_and_stays_in_range(actor, random):
    seen = observation(actor.spec, random)
    actions = np.stack([actor.act(seen, explore=True, random=random) for _ in range(20)])
    assert actions.std() > 0.01 and np.abs(actions).max() <= 1.0


@pytest.mark.parametrize("damage, said", [
    (lambda data: data[: len(data) // 2], "cut short or damaged"),
    (lambda data: b"", "cut short or damaged"),
    (lambda data: data.replace(b"rlinf-policy-1", b"rlinf-policy-0"), "expected format rlinf-policy-1"),
    (lambda data: data.replace(b'hidden\\": [256, 256]', b'hidden\\": [128, 256]'), "expected shape"),
])
def test_a_damaged_file_is_refused_by_what_is_wrong(actor, tmp_path, damage, said):
    path = save_policy(actor, tmp_path / "p.safetensors")
    data = path.read_bytes()
    assert damage(data) != data
    path.write_bytes(damage(data))
    with pytest.raises(PolicyFileError, match=said):
        load_policy(path)


def test_diverged_weights_are_refused(actor, tmp_path):
    with torch.no_grad():
        next(actor.parameters()).fill_(float("nan"))
    with pytest.raises(PolicyFileError, match="diverged"):
        load_policy(save_policy(actor, tmp_path / "p.safetensors"))
    with pytest.raises(PolicyFileError, match="no such file"):
        load_policy(tmp_path / "absent.safetensors")


def test_normalisation_is_fitted_and_survives_constants(actor, random):
    vectors = random.normal(3.0, 2.0, (500, actor.spec.vector_size)).astype(np.float32)
    vectors[:, 0] = 7.0
    actor.encoder.fit_normalisation(vectors)
    assert actor.encoder.mean[1].item() == pytest.approx(3.0, abs=0.3)
    assert actor.encoder.std[0].item() > 0.1 and actor.encoder.std[1].item() == pytest.approx(2.0, abs=0.2)


def test_a_policy_without_images_acts_as_its_network_says(task, random):
    torch.manual_seed(0)
    actor = Actor(task.spec).eval()
    actor.encoder.fit_normalisation(random.normal(size=(50, task.spec.vector_size)).astype(np.float32))
    for parameter in actor.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape)
    seen = observation(task.spec, random)
    with torch.no_grad():
        mean, log_std = actor({"vectors": torch.as_tensor(task.spec.flatten(seen))[None]})
    assert np.allclose(actor.act(seen, explore=False, random=random), torch.tanh(mean).numpy(), atol=1e-6)
    noise = np.random.default_rng(3).standard_normal(mean.shape)
    explored = actor.act(seen, explore=True, random=np.random.default_rng(3))
    assert np.allclose(explored, np.tanh(mean.numpy() + log_std.exp().numpy() * noise), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_explores_and_does_not_as_it_is_asked(kind, task):
    """With gradients on, as in training."""
    torch.manual_seed(0)
    policy = make_policy(task.spec, PolicyConfig(kind=kind, hidden=(16,), steering=(16,), horizon=2))
    seen = {item.name: np.zeros(item.shape, item.dtype) for item in task.spec.observation}
    draw = np.random.default_rng(1)
    still = [policy.act(seen, explore=False, random=np.random.default_rng(2)) for _ in range(2)]
    explored = [policy.act(seen, explore=True, random=draw) for _ in range(2)]
    assert np.array_equal(*still) and not np.array_equal(*explored)
    assert explored[0].shape == (2, task.spec.action.dim) and np.abs(explored).max() <= 1.0
