"""ACT and Diffusion Policy beside their formulas, written once more with torch's functions.

The names of the weights are LeRobot's and torchvision's. LeRobot's own classes are compared in
test_visuomotor.py, which needs an environment with LeRobot.
"""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from rlinf_core.core.errors import SpecError
from rlinf_core.policies.base import Observation
from rlinf_core.policies.pretrained.act.policy import image_positions, sinusoidal_positions
from rlinf_core.policies.pretrained.diffusion.policy import NoiseSchedule, crop_size
from rlinf_core.policies.pretrained.resnet import FrozenBatchNorm, ResNet, group_norm
from tests.policies.test_visuomotor import BLIND, SEEING, TINY, observation, policy_of

TRAINED = 20
SCHEDULES = {
    "linear": [0.01 + (0.3 - 0.01) * step / 19 for step in range(TRAINED)],
    "scaled_linear": [(0.1 + (0.3**0.5 - 0.1) * step / 19) ** 2 for step in range(TRAINED)],
    "squaredcos_cap_v2": [
        min(
            0.999,
            1
            - math.cos(((step + 1) / TRAINED + 0.008) / 1.008 * math.pi / 2) ** 2
            / math.cos((step / TRAINED + 0.008) / 1.008 * math.pi / 2) ** 2,
        )
        for step in range(TRAINED)
    ],
}
NOISE = {
    "num_train_timesteps": TRAINED,
    "beta_schedule": "linear",
    "beta_start": 0.01,
    "beta_end": 0.3,
    "clip_sample": False,
    "clip_sample_range": 0.5,
    "noise_scheduler_type": "DDIM",
    "prediction_type": "epsilon",
}
CPU = torch.device("cpu")


def signal_of(schedule):
    """Return the product of all (1 - beta) so far, at each step."""
    return np.cumprod(1.0 - np.array(SCHEDULES[schedule]))


def randomised(network, seed=3):
    """Set all weights and statistics of a network to random numbers."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in network.state_dict().items():
            if not value.is_floating_point() or name.endswith(("pos_grid", "pos_enc")):
                continue
            drawn = torch.randn(value.shape, generator=draw)
            size = max(1, value[0].numel()) if value.ndim > 1 else 9
            value.copy_(drawn.abs() + 0.5 if name.endswith("running_var") else drawn / size**0.5)
    return network


# The schedule of the noise
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_noise_by_its_schedule(schedule):
    noise = NoiseSchedule(NOISE | {"beta_schedule": schedule}, CPU)
    signal = signal_of(schedule)
    np.testing.assert_allclose(noise.signal.numpy(), signal, rtol=1e-4, atol=1e-7)
    actions, drawn = torch.rand(3, 4, 2), torch.randn(3, 4, 2)
    steps = torch.tensor([0, 7, 19])
    for row, step in enumerate(steps.tolist()):
        expected = signal[step] ** 0.5 * actions[row] + (1 - signal[step]) ** 0.5 * drawn[row]
        torch.testing.assert_close(
            noise.add_noise(actions, drawn, steps)[row], expected.float(), rtol=1e-4, atol=1e-5
        )
    assert noise.steps(5) == [(16, 12), (12, 8), (8, 4), (4, 0), (0, -4)]
    assert noise.steps(20)[0] == (19, 18) and noise.steps(20)[-1] == (0, -1)


def test_an_unknown_schedule_is_refused():
    with pytest.raises(ValueError) as refused:
        NoiseSchedule(NOISE | {"beta_schedule": "cubic"}, CPU)
    assert str(refused.value) == (
        "beta_schedule: expected squaredcos_cap_v2, scaled_linear or linear, got 'cubic'"
    )


@pytest.mark.parametrize("predicts", ["epsilon", "sample"])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("step, following", [(12, 8), (4, 0), (0, -4)])
def test_a_step_back_is_that_of_ddim_and_of_ddpm(predicts, clip, step, following):
    signal = signal_of("linear")
    now, after = signal[step], signal[following] if following >= 0 else 1.0
    draw = torch.Generator().manual_seed(1)
    point, predicted, drawn = (
        torch.randn(2, 3, 2, generator=draw, dtype=torch.float64) for _ in range(3)
    )
    config = NOISE | {"prediction_type": predicts, "clip_sample": clip}
    if predicts == "epsilon":
        noise, goal = predicted, (point - (1 - now) ** 0.5 * predicted) / now**0.5
    else:
        noise, goal = (point - now**0.5 * predicted) / (1 - now) ** 0.5, predicted
    goal = goal.clamp(-0.5, 0.5) if clip else goal

    def back(kind, draw):
        part = NoiseSchedule(config | {"noise_scheduler_type": kind}, CPU)
        part.signal = torch.from_numpy(signal)
        return part.denoise_step(point, predicted, step, following, draw)

    expected = after**0.5 * goal + (1 - after) ** 0.5 * noise
    for given in (None, lambda: drawn):
        torch.testing.assert_close(back("DDIM", given), expected)
    alpha = now / after  # of the steps between both
    mean = after**0.5 * (1 - alpha) / (1 - now) * goal
    mean = mean + alpha**0.5 * (1 - after) / (1 - now) * point
    torch.testing.assert_close(back("DDPM", None), mean)
    deviation = ((1 - after) / (1 - now) * (1 - alpha)) ** 0.5 if step else 0.0
    torch.testing.assert_close(back("DDPM", lambda: drawn), mean + deviation * drawn)


@pytest.mark.parametrize(
    ("keys", "crop"),
    [
        (dict(resize_shape=None, crop_shape=None, crop_ratio=0.5), None),
        (dict(resize_shape=None, crop_shape=[30, 20], crop_ratio=0.5), (30, 20)),
        (dict(resize_shape=[41, 60], crop_shape=[30, 20], crop_ratio=1.0), None),
        (dict(resize_shape=[41, 60], crop_shape=[30, 20], crop_ratio=0.9), (36, 54)),
    ],
)
def test_a_crop_is_a_shape_or_a_part_of_the_resized_picture(keys, crop):
    assert crop_size(keys) == crop


# The networks
def resnet_by_hand(weights, pixels, norm, blocks):
    """He et al. 2015: a stem, and stages of blocks of two convolutions."""

    def convolved(x, name, stride, padding):
        return F.conv2d(x, weights[f"{name}.weight"], None, stride, padding)

    x = norm(convolved(pixels, "conv1", 2, 3), "bn1").relu()
    x = F.max_pool2d(x, 3, 2, 1)
    for stage, count in enumerate(blocks, 1):
        for number in range(count):
            name = f"layer{stage}.{number}"
            stride = 2 if stage > 1 and number == 0 else 1
            y = norm(convolved(x, f"{name}.conv1", stride, 1), f"{name}.bn1").relu()
            y = norm(convolved(y, f"{name}.conv2", 1, 1), f"{name}.bn2")
            if stride == 2:
                x = norm(convolved(x, f"{name}.downsample.0", 2, 0), f"{name}.downsample.1")
            x = (y + x).relu()
    return x


@torch.no_grad()
@pytest.mark.parametrize("name, blocks", [("resnet18", (2, 2, 2, 2)), ("resnet34", (3, 4, 6, 3))])
@pytest.mark.parametrize("kind", ["batch", "group"])
def test_a_resnet_is_its_paper_s(name, blocks, kind):
    torch.manual_seed(0)
    network = ResNet(name, FrozenBatchNorm if kind == "batch" else group_norm)
    deviations = {key: value.std().item() for key, value in network.named_parameters()}
    assert deviations["layer3.0.conv2.weight"] == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.01)
    assert deviations["conv1.weight"] == pytest.approx((2 / (64 * 49)) ** 0.5, rel=0.03)
    if kind == "batch":
        statistics = [network.bn1.weight, network.bn1.bias, network.bn1.running_mean]
        assert [set(part.tolist()) for part in (*statistics, network.bn1.running_var)] == [
            *({1.0}, {0.0}, {0.0}, {1.0})
        ]
        assert not [key for key, _ in network.named_parameters() if "bn" in key]
    weights = randomised(network).state_dict()

    def norm(x, key):
        scale, offset = weights[f"{key}.weight"], weights[f"{key}.bias"]
        if kind == "group":
            return F.group_norm(x, x.shape[1] // 16, scale, offset)
        mean, variance = weights[f"{key}.running_mean"], weights[f"{key}.running_var"]
        return F.batch_norm(x, mean, variance, scale, offset)

    pixels = torch.rand(2, 3, 64, 48)
    expected = resnet_by_hand(weights, pixels, norm, blocks)
    assert expected.shape == (2, 512, 2, 2)
    torch.testing.assert_close(network(pixels), expected, rtol=1e-3, atol=1e-3)


def camera_by_hand(weights, pixels, config, corner):
    """Return the features of one camera: a ResNet and the soft places of its maps."""
    names = ["conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4"]
    backbone = {
        ".".join([names[int(key.split(".")[1])], *key.split(".")[2:]]): value
        for key, value in weights.items()
        if key.startswith("backbone.")
    }

    def norm(x, key):
        scale, offset = backbone[f"{key}.weight"], backbone[f"{key}.bias"]
        if config["use_group_norm"]:
            return F.group_norm(x, x.shape[1] // 16, scale, offset)
        mean, variance = backbone[f"{key}.running_mean"], backbone[f"{key}.running_var"]
        return F.batch_norm(x, mean, variance, scale, offset)

    if config["resize_shape"]:
        pixels = F.interpolate(
            pixels, tuple(config["resize_shape"]), mode="bilinear", antialias=True
        )
    if crop := crop_size(config):
        top, left = (corner(side - part) for side, part in zip(pixels.shape[2:], crop, strict=True))
        pixels = pixels[:, :, top : top + crop[0], left : left + crop[1]]
    maps = resnet_by_hand(backbone, pixels, norm, (2, 2, 2, 2))
    maps = F.conv2d(maps, weights["pool.nets.weight"], weights["pool.nets.bias"])
    height, width = maps.shape[2:]
    share = torch.exp(maps) / torch.exp(maps).sum(dim=(2, 3), keepdim=True)
    x = (share * torch.linspace(-1, 1, width)).sum(dim=(2, 3))
    y = (share * torch.linspace(-1, 1, height)[:, None]).sum(dim=(2, 3))
    points = torch.stack([x, y], dim=2).flatten(1)
    return F.linear(points, weights["out.weight"], weights["out.bias"]).relu()


def unet_by_hand(weights, point, steps, condition, config):
    """Return a U-Net's output (B, H, A) for noisy actions (B, H, A)."""

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def convolved(x, name, groups):
        weight, bias = weights[f"{name}.block.0.weight"], weights[f"{name}.block.0.bias"]
        x = F.conv1d(x, weight, bias, padding=config["kernel_size"] // 2)
        norm = weights[f"{name}.block.1.weight"], weights[f"{name}.block.1.bias"]
        return F.mish(F.group_norm(x, groups, *norm))

    size = config["diffusion_step_embed_dim"]
    angles = torch.stack(
        [steps / 10_000 ** (index / (size // 2 - 1)) for index in range(size // 2)], dim=1
    )
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)
    encoded = F.mish(linear(waves, "diffusion_step_encoder.1"))
    condition = torch.cat([linear(encoded, "diffusion_step_encoder.3"), condition], dim=1)

    def block(x, name):
        y = convolved(x, f"{name}.conv1", config["n_groups"])
        by = linear(F.mish(condition), f"{name}.cond_encoder.1")[:, :, None]
        if config["use_film_scale_modulation"]:
            channels = y.shape[1]
            y = by[:, :channels] * y + by[:, channels:]
        else:
            y = y + by
        y = convolved(y, f"{name}.conv2", config["n_groups"])
        if f"{name}.residual_conv.weight" in weights:
            x = F.conv1d(
                x, weights[f"{name}.residual_conv.weight"], weights[f"{name}.residual_conv.bias"]
            )
        return y + x

    x, skips = point.transpose(1, 2), []
    last = len(config["down_dims"]) - 1
    for index in range(last + 1):
        x = block(block(x, f"down_modules.{index}.0"), f"down_modules.{index}.1")
        skips.append(x)
        if index < last:
            name = f"down_modules.{index}.2"
            x = F.conv1d(x, weights[f"{name}.weight"], weights[f"{name}.bias"], 2, 1)
    x = block(block(x, "mid_modules.0"), "mid_modules.1")
    for index in range(last):
        x = torch.cat([x, skips.pop()], dim=1)
        x = block(block(x, f"up_modules.{index}.0"), f"up_modules.{index}.1")
        name = f"up_modules.{index}.2"
        x = F.conv_transpose1d(x, weights[f"{name}.weight"], weights[f"{name}.bias"], 2, 1)
    x = convolved(x, "final_conv.0", 8)
    x = F.conv1d(x, weights["final_conv.1.weight"], weights["final_conv.1.bias"])
    return x.transpose(1, 2)


def part_of(weights, prefix):
    return {
        key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)
    }


DIFFUSION = {
    "cropped": (SEEING, 1, dict(crop_shape=[32, 36])),
    "resized": (
        SEEING,
        2,
        dict(
            resize_shape=[64, 70],
            crop_ratio=0.9,
            use_separate_rgb_encoder_per_camera=True,
            use_group_norm=False,
            use_film_scale_modulation=False,
            prediction_type="sample",
            kernel_size=3,
            n_groups=4,
            crop_is_random=False,
        ),
    ),
    "blind": (
        BLIND,
        1,
        dict(down_dims=[8, 16, 24], noise_scheduler_type="DDPM", beta_schedule="linear"),
    ),
}


def diffusion(case, **config):
    spec, observed, keys = DIFFUSION[case]
    policy = policy_of(
        "diffusion",
        spec,
        network=TINY["diffusion"] | keys,
        n_obs_steps=observed,
        horizon=5,
        **config,
    )
    randomised(policy.network)
    policy.normalisation.set_statistics(np.array([0.2, -0.1, 0.4]), np.array([0.5, 2.0, 1.5]))
    return policy


def condition_by_hand(policy, observed, corner):
    """Return the U-Net's condition: state and cameras, once for each observed time step."""
    config, weights = policy.network.config, policy.network.state_dict()
    state = (observed.vectors - policy.normalisation.mean) / policy.normalisation.std
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    parts = [state]
    for index, name in enumerate(observed.images):
        prefix = "rgb_encoder."
        if config["use_separate_rgb_encoder_per_camera"]:
            prefix += f"{index}."
        pixels = ((observed.images[name] / 255.0 - mean) / std).permute(0, 3, 1, 2)
        parts.append(camera_by_hand(part_of(weights, prefix), pixels, config, corner))
    if not observed.images:
        parts.append(state)
    return torch.cat(parts, dim=1).repeat(1, config["n_obs_steps"])


@torch.no_grad()
@pytest.mark.parametrize("case", DIFFUSION)
def test_diffusion_denoises_as_its_formulas(case):
    policy = diffusion(case)
    config, weights = policy.network.config, policy.network.state_dict()
    before = config["n_obs_steps"] - 1
    multiple = 2 ** len(config["down_dims"])
    assert config["horizon"] % multiple == 0 and 0 <= config["horizon"] - 5 - before < multiple
    observed = observation(policy.spec, seed=2)
    condition = condition_by_hand(policy, observed, lambda free: round(free / 2))
    unet = part_of(weights, "unet.")
    for draws in (False, True):
        ours, generator = (torch.Generator().manual_seed(4) for _ in range(2))

        def draw(generator=generator):
            return torch.randn(2, config["horizon"], 2, generator=generator)

        point = draw() if draws else torch.zeros(2, config["horizon"], 2)
        noise = NoiseSchedule(config, CPU)
        for step in (16, 12, 8, 4, 0):  # five of the twenty steps
            steps = torch.full((2,), float(step))
            predicted = unet_by_hand(unet, point, steps, condition, config)
            following = step - 4 if step else -1
            point = noise.denoise_step(point, predicted, step, following, draw if draws else None)
        expected = point[:, before : before + 5].clamp(-1, 1)
        chunk = policy.act(observed, explore=draws, generator=ours)
        assert chunk.actions.shape == (2, 5, 2) and expected.std() > 0.01
        torch.testing.assert_close(chunk.actions, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("case", DIFFUSION)
def test_diffusion_is_cloned_by_the_noise_that_was_mixed_in(case):
    policy = diffusion(case)
    config, weights = policy.network.config, policy.network.state_dict()
    observed, before = observation(policy.spec, seed=2), config["n_obs_steps"] - 1
    actions = torch.rand(2, 5, 2, generator=torch.Generator().manual_seed(1)) * 2 - 1
    got = policy.imitation_loss(
        policy.to_batch(observed), actions.flatten(1), torch.Generator().manual_seed(7)
    )
    generator = torch.Generator().manual_seed(7)
    rows = [0] * before + [0, 1, 2, 3, 4]
    rows += [4] * (config["horizon"] - len(rows))  # the last action fills it up
    goal = actions[:, rows]
    noise = torch.randn(goal.shape, generator=generator)
    steps = (torch.rand(2, generator=generator) * 20).long()

    def corner(free):
        if not config["crop_is_random"]:
            return round(free / 2)
        return int(torch.randint(free + 1, (), generator=generator))

    condition = condition_by_hand(policy, observed, corner)
    mixed = NoiseSchedule(config, CPU).add_noise(goal, noise, steps)
    predicted = unet_by_hand(part_of(weights, "unet."), mixed, steps, condition, config)
    goal_or_noise = noise if config["prediction_type"] == "epsilon" else goal
    assert got.item() == pytest.approx(((predicted - goal_or_noise) ** 2).mean().item(), rel=1e-3)
    assert any(p.grad is None for p in policy.parameters())
    got.backward()
    assert policy.network.unet.final_conv[1].weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("denoising_steps", "trained", "steps"), [(0, 5, 5), (4, 5, 4), (0, None, 20)]
)
def test_the_number_of_denoising_steps(denoising_steps, trained, steps, monkeypatch):
    network = TINY["diffusion"] | {"num_inference_steps": trained}
    policy = policy_of("diffusion", network=network, denoising_steps=denoising_steps)
    visited = []
    forward = policy.network.unet.forward
    policy.network.unet.forward = lambda point, at, condition: (
        visited.append(at.tolist()),
        forward(point, at, condition),
    )[1]
    policy.act(observation(BLIND), explore=False)
    stride = 20 // steps
    assert visited == [[stride * index] * 2 for index in reversed(range(steps))]


def test_more_denoising_steps_than_trained_ones_are_refused():
    assert policy_of("diffusion", denoising_steps=20).config.denoising_steps == 20
    with pytest.raises(SpecError) as refused:
        policy_of("diffusion", denoising_steps=21)
    assert str(refused.value) == (
        "policy.denoising_steps: expected at most 20, with which the network is trained "
        "(num_train_timesteps), got 21"
    )


# ACT
def layer_by_hand(weights, x, positions, memory, config):
    """A transformer's layer; sequences are (B, L, D)."""

    def normed(x, index):
        name = f"norm{index}"
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"])

    def attended(queries, keys, values, name):
        width, heads = queries.shape[-1], config["n_heads"]
        projected = [
            F.linear(part, weight, bias).unflatten(-1, (heads, width // heads)).transpose(1, 2)
            for part, weight, bias in zip(
                (queries, keys, values),
                weights[f"{name}.in_proj_weight"].chunk(3),
                weights[f"{name}.in_proj_bias"].chunk(3),
                strict=True,
            )
        ]
        scores = projected[0] @ projected[1].mT / (width // heads) ** 0.5
        joined = (scores.softmax(-1) @ projected[2]).transpose(1, 2).flatten(2)
        return F.linear(
            joined, weights[f"{name}.out_proj.weight"], weights[f"{name}.out_proj.bias"]
        )

    def added(x, index, part):
        if config["pre_norm"]:
            return x + part(normed(x, index))
        return normed(x + part(x), index)

    x = added(x, 1, lambda y: attended(y + positions, y + positions, y, "self_attn"))
    if memory is not None:
        keys, values = memory[0] + memory[1], memory[0]
        x = added(x, 2, lambda y: attended(y + positions, keys, values, "multihead_attn"))
    activation = getattr(F, config["feedforward_activation"])

    def perceptron(y):
        y = activation(F.linear(y, weights["linear1.weight"], weights["linear1.bias"]))
        return F.linear(y, weights["linear2.weight"], weights["linear2.bias"])

    return added(x, 2 if memory is None else 3, perceptron)


def stack_by_hand(weights, name, count, x, positions, config, memory=None):
    for index in range(count):
        x = layer_by_hand(part_of(weights, f"{name}.layers.{index}."), x, positions, memory, config)
    if memory is not None or config["pre_norm"]:
        norm = weights[f"{name}.norm.weight"], weights[f"{name}.norm.bias"]
        x = F.layer_norm(x, x.shape[-1:], *norm)
    return x


def act_by_hand(policy, observed, latent):
    """Return the network's chunk (B, H, A)."""
    config, weights = policy.network.config, policy.network.state_dict()

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(x, key):
        statistics = [
            weights[f"backbone.{key}.{part}"]
            for part in ("running_mean", "running_var", "weight", "bias")
        ]
        return F.batch_norm(x, *statistics)

    state = (observed.vectors - policy.normalisation.mean) / policy.normalisation.std
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    tokens = [
        linear(latent, "encoder_latent_input_proj")[:, None],
        linear(state, "encoder_robot_state_input_proj")[:, None],
    ]
    if not observed.images:
        tokens.append(linear(state, "encoder_env_state_input_proj")[:, None])
    positions = [weights["encoder_1d_feature_pos_embed.weight"]]
    for images in observed.images.values():
        pixels = ((images / 255.0 - mean) / std).permute(0, 3, 1, 2)
        maps = resnet_by_hand(part_of(weights, "backbone."), pixels, norm, (2, 2, 2, 2))
        positions.append(image_positions(maps, config["dim_model"])[:, 0])
        name = "encoder_img_feat_input_proj"
        projected = F.conv2d(maps, weights[f"{name}.weight"], weights[f"{name}.bias"])
        tokens.append(projected.flatten(2).transpose(1, 2))
    place = torch.cat(positions)
    memory = stack_by_hand(
        weights, "encoder", config["n_encoder_layers"], torch.cat(tokens, 1), place, config
    )
    queries = torch.zeros(len(state), config["chunk_size"], config["dim_model"])
    decoded = stack_by_hand(
        weights,
        "decoder",
        config["n_decoder_layers"],
        queries,
        weights["decoder_pos_embed.weight"],
        config,
        (memory, place),
    )
    return linear(decoded, "action_head")


ACT = {
    "seeing": (SEEING, {}),
    "blind": (BLIND, dict(feedforward_activation="gelu", n_encoder_layers=2)),
    "before": (SEEING, dict(pre_norm=True, n_decoder_layers=2, use_vae=False)),
}


def act(case):
    spec, keys = ACT[case]
    policy = policy_of("act", spec, network=TINY["act"] | {"kl_weight": 0.7} | keys)
    randomised(policy.network)
    policy.normalisation.set_statistics(np.array([0.2, -0.1, 0.4]), np.array([0.5, 2.0, 1.5]))
    return policy


@torch.no_grad()
@pytest.mark.parametrize("case", ACT)
def test_act_maps_pictures_state_and_latent_to_a_chunk(case):
    policy = act(case)
    observed = observation(policy.spec, seed=2)
    expected = act_by_hand(policy, observed, torch.zeros(2, 4)).clamp(-1, 1)
    got = policy.act(observed, explore=False).actions
    assert got.shape == (2, 4, 2)
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)
    latent = torch.randn(2, 4, generator=torch.Generator().manual_seed(5))
    expected = act_by_hand(policy, observed, latent).clamp(-1, 1)
    got = policy.act(observed, explore=True, generator=torch.Generator().manual_seed(5)).actions
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("case", ACT)
def test_act_is_cloned_as_the_decoder_of_a_variational_auto_encoder(case):
    policy = act(case)
    config, weights = policy.network.config, policy.network.state_dict()
    observed = observation(policy.spec, seed=2)
    actions = torch.rand(2, 4, 2, generator=torch.Generator().manual_seed(1)) * 2 - 1
    got = policy.imitation_loss(
        policy.to_batch(observed), actions.flatten(1), torch.Generator().manual_seed(7)
    )
    latent, information = torch.zeros(2, 4), 0.0
    if config["use_vae"]:
        state = (observed.vectors - policy.normalisation.mean) / policy.normalisation.std

        def linear(x, name):
            name = f"vae_encoder_{name}"
            return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

        tokens = torch.cat(
            [
                weights["vae_encoder_cls_embed.weight"].expand(2, 1, -1),
                linear(state, "robot_state_input_proj")[:, None],
                linear(actions, "action_input_proj"),
            ],
            dim=1,
        )
        positions = sinusoidal_positions(6, config["dim_model"])
        encoded = stack_by_hand(weights, "vae_encoder", 1, tokens, positions, config)
        mean, log_variance = linear(encoded[:, 0], "latent_output_proj").split(4, dim=1)
        normal = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
        prior = torch.distributions.Normal(torch.zeros(2, 4), torch.ones(2, 4))
        information = torch.distributions.kl_divergence(normal, prior).sum(1).mean()
        latent = mean + normal.scale * torch.randn(2, 4, generator=torch.Generator().manual_seed(7))
    distance = (act_by_hand(policy, observed, latent) - actions).abs().mean()
    expected = float(distance + 0.7 * information)
    assert got.item() == pytest.approx(expected, rel=1e-3) and expected > 0.1


@torch.no_grad()
def test_dropout_is_used_by_a_loss_in_training_alone():
    policy = act("blind").train()
    batch = policy.to_batch(observation(BLIND))
    actions = torch.zeros(2, 8)

    def loss(seed):
        return policy.imitation_loss(batch, actions, torch.Generator().manual_seed(seed)).item()

    assert policy.network.config["dropout"] == 0.1 and not policy.network.training
    state = torch.get_rng_state()
    with_dropout = loss(1)
    assert torch.equal(torch.get_rng_state(), state), "nobody else's random numbers are drawn"
    assert loss(1) == with_dropout and not policy.network.training
    policy.eval()
    assert loss(1) != with_dropout and loss(1) == loss(1)


def test_observations_of_a_batch_do_not_mix():
    for policy in (act("blind"), diffusion("blind")):
        observed = observation(BLIND, count=3)
        together = policy.act(observed, explore=False).actions
        for row in range(3):
            one = Observation(observed.vectors[row : row + 1], {}, ("",))
            torch.testing.assert_close(
                policy.act(one, explore=False).actions[0], together[row], rtol=1e-4, atol=1e-5
            )
