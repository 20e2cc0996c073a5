"""The networks' results, compared with NumPy and with torch's own distributions."""

import numpy as np
import pytest
import torch

from rlinf_core.core.errors import RecipeError
from rlinf_core.policies import kinds, make_policy, policy_kind
from rlinf_core.policies.base import Observation
from rlinf_core.policies.encoder import Encoder, mlp
from rlinf_core.policies.small import tanh_gaussian
from rlinf_core.policies.small.flow.policy import FlowActor
from rlinf_core.policies.small.gaussian.policy import GaussianActor, Value, tanh_mlp
from rlinf_core.policies.small.latent_noise.policy import LatentNoiseActor
from rlinf_core.policies.small.tanh_gaussian.policy import Actor, sample_squashed
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec
from tests.algorithms.toy import acted

ACTION = ActionSpec("tcp_delta", ("dx", "dy"), (0.1, 0.1), ("m", "m"))
STATE = StationSpec((ArraySpec("offset", (3,)),), ACTION, 10.0)
CAMERA = ArraySpec(
    "front", (12, 8, 3), "uint8", "", (0.0,), (255.0,), "camera/front/image", "image"
)
SEEING = StationSpec((ArraySpec("offset", (3,)), CAMERA), ACTION, 10.0)
SIZES = dict(hidden=(8, 6), image_features=4, channels=(4, 5), horizon=2)
CONFIG = tanh_gaussian.Config(**SIZES)


def policy(kind, spec=STATE, **changes):
    """Return a policy whose weights and normalisation are neither zero nor one."""
    torch.manual_seed(0)
    sizes = SIZES | ({"noise_policy": (7,)} if kind == "latent_noise" else {}) | changes
    network = make_policy(spec, policy_kind(kind).Config(**sizes)).eval()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=draw)
        for module in network.modules():
            if isinstance(module, Encoder):
                module.set_statistics(np.array([0.1, -0.2, 0.3]), np.array([0.5, 2.0, 1.5]))
    return network


def observation(random, size=None):
    arrays = {
        "offset": random.normal(size=(size or 1, 3)).astype(np.float32),
        "front": random.integers(0, 255, (size or 1, 12, 8, 3)).astype(np.uint8),
    }
    return arrays if size else {name: values[0] for name, values in arrays.items()}


def alone(arrays):
    """One observation as a batch."""
    return {
        "vectors": torch.as_tensor(arrays["offset"])[None],
        "front": torch.as_tensor(arrays["front"])[None],
    }


def observed(spec, arrays):
    """Return the same as policies take it."""
    return Observation.from_single(spec, arrays)


def batch(random, size=6):
    arrays = observation(random, size)
    return {"vectors": torch.as_tensor(arrays["offset"]), "front": torch.as_tensor(arrays["front"])}


def test_features_are_clipped_vectors_and_pictures_between_0_and_1(random):
    encoder = policy("tanh_gaussian", SEEING).encoder
    inputs = batch(random)
    inputs["vectors"][0] = torch.tensor([100.0, -100.0, 0.3])
    got = encoder(inputs).detach().numpy()
    vectors = (inputs["vectors"].numpy() - [0.1, -0.2, 0.3]) / (np.array([0.5, 2.0, 1.5]) + 1e-4)
    assert got.shape == (6, 7) and encoder.size == 7 and encoder.image_names == ["front"]
    assert got[:, :3] == pytest.approx(np.clip(vectors, -5, 5), abs=1e-5) and got[
        0, :3
    ].tolist() == [5, -5, 0]
    pictures = encoder.cnns["front"](
        torch.as_tensor(inputs["front"].numpy().transpose(0, 3, 1, 2) / 255.0).float()
    )
    assert got[:, 3:] == pytest.approx(pictures.detach().numpy(), abs=1e-6)
    blind = Encoder(SEEING, CONFIG.but(image_features=0))
    assert blind.image_names == [] and blind.size == 3 and not list(blind.parameters())
    assert blind.mean.tolist() == [0] * 3 and blind.std.tolist() == [1] * 3


def test_fine_features_tell_small_numbers_apart(random):
    """A second time each, in NumPy: 1 at one deviation, linear about zero, and never clipped."""
    encoder = policy("tanh_gaussian", SEEING, fine_scale=20.0).encoder
    inputs = batch(random)
    inputs["vectors"][0] = torch.tensor([100.0, -0.002, 0.0])
    deviation = np.array([0.5, 2.0, 1.5]) + 1e-4
    got = encoder(inputs).detach().numpy()
    expected = np.arcsinh(20.0 * inputs["vectors"].numpy() / deviation) / np.arcsinh(20.0)
    assert got.shape == (6, 10) and encoder.size == 10
    assert got[:, 3:6] == pytest.approx(expected, abs=1e-6) and got[0, 5] == 0
    assert np.abs(got[0, 3]) > 2 and got[0, 4] == pytest.approx(
        -20.0 * 0.001 / np.arcsinh(20.0), rel=1e-3
    )
    vectors = (inputs["vectors"].numpy() - [0.1, -0.2, 0.3]) / deviation
    assert got[:, :3] == pytest.approx(np.clip(vectors, -5, 5), abs=1e-5)


def test_normalisation_has_a_floor_of_a_twentieth_of_the_largest():
    encoder = Encoder(STATE, CONFIG)
    vectors = np.array([[7.0, 0.0, -1.0], [7.0, 0.0, 3.0]])
    encoder.fit_normalisation(vectors)
    assert encoder.mean.tolist() == [7, 0, 1]
    assert encoder.std.tolist() == pytest.approx([0.35 + 1e-4, 1e-4, 2 + 1e-4])


def test_a_trunk_is_linear_layernorm_relu_for_each_width():
    trunk = mlp(3, (8, 6))
    assert [type(layer).__name__ for layer in trunk] == ["Linear", "LayerNorm", "ReLU"] * 2
    assert [tuple(trunk[k].weight.shape) for k in (0, 1, 3, 4)] == [(8, 3), (8,), (6, 8), (6,)]


def test_the_actors_deviation_lies_between_its_bounds(random):
    actor = policy("tanh_gaussian")
    inputs = batch(random)
    mean, log_std = actor(inputs)
    outputs = actor.head(actor.trunk(actor.encoder(inputs)))
    assert mean.shape == log_std.shape == (6, 4) and torch.equal(mean, outputs[:, :4])
    assert torch.allclose(log_std, -5.0 + 3.0 * (torch.tanh(outputs[:, 4:]) + 1.0))
    with torch.no_grad():
        actor.head.weight.zero_()
        for bias, bound in ((1e3, 1.0), (-1e3, -5.0)):
            actor.head.bias.fill_(bias)
            assert actor(inputs)[1] == pytest.approx(bound)


def test_a_sample_is_the_tanh_of_a_gaussians_and_its_density_torchs(random):
    actor, inputs = policy("tanh_gaussian"), batch(random)
    mean, log_std = actor(inputs)
    got, log_prob = sample_squashed(mean, log_std, torch.Generator().manual_seed(3))
    raw = mean + log_std.exp() * torch.randn(mean.shape, generator=torch.Generator().manual_seed(3))
    by_torch = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean.double(), log_std.double().exp()),
        torch.distributions.TanhTransform(),
    )
    assert torch.allclose(got, torch.tanh(raw))
    near = raw.abs() < 3
    rows = near.all(dim=1)
    assert rows.sum() >= 3
    expected = by_torch.log_prob(torch.tanh(raw.double())).sum(-1)
    assert torch.allclose(log_prob[rows].double(), expected[rows], atol=1e-3)
    again = actor.sample(inputs, torch.Generator().manual_seed(3))
    assert torch.equal(again[0], got) and torch.equal(again[1], log_prob)


@pytest.mark.parametrize("spec", [STATE, SEEING], ids=["state", "pictures"])
def test_the_actor_acts_as_its_network_says(spec, random):
    actor, arrays = policy("tanh_gaussian", spec), observation(random)
    with torch.no_grad():
        mean, log_std = actor(alone(arrays))
    assert acted(actor, arrays) == pytest.approx(torch.tanh(mean).view(2, 2).numpy(), abs=1e-5)
    noise = torch.randn(1, 4, generator=torch.Generator().manual_seed(4))
    expected = torch.tanh(mean + log_std.exp() * noise).view(2, 2).numpy()
    assert acted(actor, arrays, True, torch.Generator().manual_seed(4)) == pytest.approx(
        expected, abs=1e-5
    )


def test_far_observations_are_clipped_where_it_acts():
    actor = policy("tanh_gaussian")
    for far in (1e4, -1e4):
        with torch.no_grad():
            mean, _ = actor({"vectors": torch.full((1, 3), far)})
        arrays = {"offset": np.full(3, far, np.float32)}
        assert acted(actor, arrays) == pytest.approx(torch.tanh(mean).view(2, 2).numpy(), abs=1e-5)


def test_a_gaussian_is_torchs_own(random):
    actor, inputs = policy("gaussian"), batch(random)
    mean, log_std = actor(inputs)
    assert mean.shape == (6, 2, 2) and log_std.shape == (2,)
    normal = torch.distributions.Normal(mean, log_std.exp())
    actions = torch.tensor(random.normal(size=(6, 2, 2)), dtype=torch.float32)
    log_probs, entropy = actor.log_probs(inputs, actions)
    assert torch.allclose(log_probs, normal.log_prob(actions).sum(-1), atol=1e-4)
    assert torch.allclose(entropy, normal.entropy().sum(-1), atol=1e-5) and entropy.shape == (6, 2)
    drawn, density = actor.sample(inputs, torch.Generator().manual_seed(5))
    noise = torch.randn(mean.shape, generator=torch.Generator().manual_seed(5))
    assert torch.allclose(drawn, mean + log_std.exp() * noise)
    assert torch.allclose(density, normal.log_prob(drawn).sum(-1), atol=1e-4)


@pytest.mark.parametrize("spec", [STATE, SEEING], ids=["state", "pictures"])
def test_a_gaussian_acts_as_its_network_says_and_is_clipped(spec, random):
    actor, arrays = policy("gaussian", spec), observation(random)
    with torch.no_grad():
        actor.log_std.fill_(0.5)
        mean, _ = actor(alone(arrays))
    still = acted(actor, arrays)
    assert (
        still == pytest.approx(np.clip(mean[0].numpy(), -1, 1), abs=1e-6)
        and still.dtype == np.float32
    )
    generators = [[torch.Generator().manual_seed(seed) for seed in range(40)] for _ in range(2)]
    drawn = np.stack([acted(actor, arrays, True, generator) for generator in generators[0]])
    noise = np.stack(
        [torch.randn(2, 2, generator=generator).numpy() for generator in generators[1]]
    )
    assert drawn == pytest.approx(np.clip(mean[0].numpy() + np.exp(0.5) * noise, -1, 1), abs=1e-5)
    assert (drawn.min(), drawn.max()) == (-1, 1)
    chunk = actor.act(observed(spec, arrays), True, torch.Generator().manual_seed(0))
    assert torch.equal(chunk.drawn.clamp(-1, 1), chunk.actions), "learned as drawn, played clipped"
    with torch.no_grad():
        assert torch.equal(chunk.log_probs, actor.log_probs(alone(arrays), chunk.drawn)[0])


def test_a_gaussian_begins_near_zero_with_orthogonal_layers_and_the_stated_deviation():
    actor = make_policy(STATE, policy_kind("gaussian").Config(**SIZES, initial_log_std=-0.7))
    assert actor.log_std.tolist() == pytest.approx([-0.7] * 2)
    assert [type(layer).__name__ for layer in actor.mean] == [
        "Linear",
        "Tanh",
        "Linear",
        "Tanh",
        "Head",
    ]
    for layers, last in (
        (actor.mean, 0.01),
        (Value(STATE, CONFIG).head, 1.0),
        (tanh_mlp(3, (8, 6), 4, 0.3), 0.3),
    ):
        for layer, gain in zip(
            (layers[0], layers[2], layers[4]), (2**0.5, 2**0.5, last), strict=True
        ):
            weight = layer.weight.detach()
            short = weight if weight.shape[0] <= weight.shape[1] else weight.T
            assert torch.allclose(short @ short.T, gain**2 * torch.eye(len(short)), atol=1e-5)
            assert not layer.bias.any()
    assert [layers[k].weight.shape for k in (0, 2, 4)] == [(8, 3), (6, 8), (4, 6)]


def test_a_value_is_one_number_from_an_encoder_of_its_own(random):
    value, inputs = Value(SEEING, CONFIG), batch(random)
    assert value(inputs).shape == (6,)
    assert torch.equal(value(inputs), value.head(value.encoder(inputs))[:, 0])


def test_a_gaussian_is_cloned_by_the_density_of_whole_chunks(random):
    """-E log N(a | mean, std), summed over the actions of a chunk and over their numbers."""
    actor, inputs = policy("gaussian"), batch(random)
    actions = torch.tensor(random.normal(size=(6, 4)), dtype=torch.float32)
    mean, log_std = actor(inputs)
    expected = (
        -torch.distributions.Normal(mean, log_std.exp())
        .log_prob(actions.view(6, 2, 2))
        .sum((1, 2))
        .mean()
    )
    assert actor.imitation_loss(inputs, actions).item() == pytest.approx(expected.item(), rel=1e-5)


def test_each_kind_has_the_sizes_of_its_config():
    assert policy("tanh_gaussian").head.weight.shape == (8, 6)
    assert policy("flow").field[0].weight.shape == (8, 3 + 4 + 1) and policy(
        "flow"
    ).head.weight.shape == (8, 6)
    latent_noise = policy("latent_noise")
    assert latent_noise.noise_policy.trunk[0].weight.shape == (7, 3) and latent_noise.flow.field[
        0
    ].weight.shape == (8, 8)
    assert (latent_noise.flow.config.kind, latent_noise.noise_policy.config.kind) == (
        "flow",
        "tanh_gaussian",
    )


@pytest.mark.parametrize(
    "cls, kind",
    [
        (Actor, "tanh_gaussian"),
        (GaussianActor, "gaussian"),
        (FlowActor, "flow"),
        (LatentNoiseActor, "latent_noise"),
    ],
)
def test_a_policy_without_a_config_is_of_its_own_kind_and_says_what_it_is(cls, kind):
    network = cls(STATE)
    assert network.config == policy_kind(kind).Config()
    assert (
        network.describe()["spec"] == STATE.to_dict()
        and network.describe()["config"]["kind"] == kind
    )
    assert isinstance(make_policy(STATE, policy_kind(kind).Config()), cls) and kind in kinds()


def test_an_unknown_kind_is_answered_with_the_nearest():
    with pytest.raises(
        RecipeError,
        match=r"policy.kind: expected one of act, conditioned, diffusion, flow, gaussian, "
        r"groot, groot_n1_6, groot_n1_7, language, latent_noise, lerobot, openvla, pi0, pi05, pi0_fast, qwen_vl, residual, "
        r"smolvla, tanh_gaussian, .*got 'flwo' \(did you mean 'flow'",
    ):
        make_policy(STATE, tanh_gaussian.Config(kind="flwo"))


def test_an_observation_goes_with_all_its_parts_to_the_device_that_is_named(random):
    arrays = observation(random, 3)
    here = Observation.from_arrays(
        SEEING, {"vectors": arrays["offset"], "front": arrays["front"]}, instruction="push"
    )
    elsewhere = here.to("meta")
    assert elsewhere.vectors.device.type == elsewhere.images["front"].device.type == "meta"
    assert elsewhere.instruction == ("push",) * 3 and elsewhere.vectors.shape == (3, 3)
    one = Observation.from_single(SEEING, observation(random), "meta")
    many = Observation.from_arrays(
        SEEING, {"vectors": arrays["offset"], "front": arrays["front"]}, "meta"
    )
    for placed in (one, many):
        assert placed.vectors.device.type == placed.images["front"].device.type == "meta"
