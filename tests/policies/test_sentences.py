"""Small policies that are told what to do: the sentence's encoder, where pictures are looked at,
and that they obey.
"""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from rlinf_core.algorithms import rlpd, sft
from rlinf_core.data.replay import ReplayBuffer
from rlinf_core.policies import make_policy
from rlinf_core.policies.base import Observation
from rlinf_core.policies.encoder import (
    WINDOW,
    Keypoints,
    Modulation,
    SentenceEncoder,
    image_encoder,
)
from rlinf_core.policies.serialization import load_policy, save_policy
from rlinf_core.policies.small import flow, gaussian, latent_noise, tanh_gaussian
from rlinf_core.specs import arrays
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec

SPEC = StationSpec(
    (ArraySpec("nothing", (1,)), ArraySpec("front", (16, 16, 3), "uint8")),
    ActionSpec("tcp_delta", ("dx", "dy"), (0.02, 0.02), ("m", "m")),
    10.0,
    "go",
)
SIZES = {
    "hidden": (32,),
    "image_encoder": "keypoints",
    "channels": (8, 8),
    "image_features": 16,
    "sentence_features": 8,
}
KINDS = {module.Config().kind: module for module in (flow, gaussian, latent_noise, tanh_gaussian)}


def scene(random, target):
    """A picture with a red and a blue square, and the action (x, y) towards the one that is asked
    for.
    """
    picture = np.full((16, 16, 3), 120, np.uint8)
    at = random.integers(0, 13, (2, 2))
    at[1] = (at[0] + random.integers(4, 9, 2)) % 13
    for (row, column), colour in zip(at, ((230, 20, 20), (20, 20, 230)), strict=True):
        picture[row : row + 3, column : column + 3] = colour
    return picture, (at[target][::-1] / 6.0 - 1.0).astype(np.float32) * 0.8


def test_a_sentence_is_its_pieces_wherever_they_stand_and_however_it_is_filled_up():
    encoder = SentenceEncoder(8)
    rows = torch.from_numpy(arrays.encode_instructions(["go to red", "go to blue", "go to red"]))
    red, blue, again = encoder(rows)
    assert torch.equal(red, again) and not torch.allclose(red, blue)
    letters = torch.cat(
        [torch.zeros(2, 32), encoder.letters(torch.tensor(list(b"abc"))), torch.zeros(2, 32)]
    )
    weight, bias = encoder.pieces.weight, encoder.pieces.bias
    # one a letter
    pieces = [torch.einsum("oiw,wi->o", weight, letters[k : k + WINDOW]) + bias for k in range(3)]
    by_hand = encoder.out(torch.stack([torch.relu(piece) for piece in pieces]).max(dim=0).values)
    assert torch.allclose(
        encoder(torch.from_numpy(arrays.encode_instructions(["abc"])))[0], by_hand, atol=1e-5
    )
    alone = encoder(torch.from_numpy(arrays.encode_instructions(["abc"])))[0]
    short = torch.from_numpy(arrays.encode_instructions(["abc"]))[:, :9]
    assert torch.allclose(encoder(short)[0], alone, atol=1e-6), "what fills a row up says nothing"


def test_keypoints_are_where_the_channel_is_largest():
    encoder = Keypoints((16, 20, 3), tanh_gaussian.Config(**SIZES))
    heights, captured = torch.full((1, 8, 8, 10), -50.0), {}
    heights[0, :, 2, 7] = 50.0
    encoder.convolutions[-1].register_forward_hook(lambda *_: heights)
    encoder.out.register_forward_pre_hook(lambda module, inputs: captured.update(places=inputs[0]))
    encoder(torch.zeros(1, 3, 16, 20))
    columns, rows = captured["places"].detach().view(2, 8).tolist()
    assert columns == pytest.approx([-1 + 2 * 7 / 9] * 8, abs=1e-5)
    assert rows == pytest.approx([-1 + 2 * 2 / 7] * 8, abs=1e-5)


def modulated(maps, modulation, sentence):
    """Return FiLM by its definition: a scale and an offset of each channel."""
    scale, offset = (sentence @ modulation.by.weight.T + modulation.by.bias).split(maps.shape[1], 1)
    return maps * (1.0 + scale[..., None, None]) + offset[..., None, None]


def test_keypoints_by_their_definition():
    config = tanh_gaussian.Config(channels=(4, 5, 6), image_features=7, sentence_features=3)
    torch.manual_seed(0)
    encoder = Keypoints((9, 14, 3), config)
    strides = [convolution.stride for convolution in encoder.convolutions]
    assert strides == [(2, 2), (1, 1), (1, 1)] and encoder.sharpness.item() == 1.0
    pixels, sentence = torch.rand(2, 3, 9, 14), torch.rand(2, 3)
    with torch.no_grad():
        assert torch.equal(encoder(pixels), encoder(pixels, sentence)), "no effect at first"
        encoder.modulation.by.weight.normal_()
        encoder.modulation.by.bias.normal_()
        encoder.sharpness.fill_(3.0)
        maps = pixels - 0.5
        for index, (stride, convolution) in enumerate(
            zip((2, 1, 1), encoder.convolutions, strict=True)
        ):
            maps = F.conv2d(maps, convolution.weight, convolution.bias, stride, 1)
            maps = maps.relu() if index < 2 else maps
        assert maps.shape == (2, 6, 5, 7)
        maps = 3.0 * modulated(maps, encoder.modulation, sentence)
        share = torch.exp(maps) / torch.exp(maps).sum(dim=(2, 3), keepdim=True)
        x, y = torch.arange(7.0) / 3.0 - 1.0, torch.arange(5.0) / 2.0 - 1.0
        places = [(share * x).sum(dim=(2, 3)), (share * y[:, None]).sum(dim=(2, 3))]
        linear, norm, _ = encoder.out
        features = torch.cat(places, 1) @ linear.weight.T + linear.bias
        expected = torch.tanh(F.layer_norm(features, (7,), norm.weight, norm.bias))
        torch.testing.assert_close(encoder(pixels, sentence), expected)


@pytest.mark.parametrize("kind", ["cnn", "resnet"])
def test_a_sentence_scales_and_shifts_channels_of_the_other_encoders(kind):
    config = tanh_gaussian.Config(
        channels=(4, 5), image_features=6, sentence_features=3, image_encoder=kind
    )
    torch.manual_seed(0)
    encoder = image_encoder((32, 32, 3), config)
    parts = [part for part in encoder.modules() if isinstance(part, Modulation)]
    pixels, sentence, outputs = torch.rand(2, 3, 32, 32), torch.rand(2, 3), []
    for part in parts:
        torch.nn.init.normal_(part.by.weight)
        torch.nn.init.normal_(part.by.bias)
        part.register_forward_hook(
            lambda part, inputs, output: outputs.append(
                torch.allclose(output, modulated(inputs[0], part, sentence), atol=1e-5)
            )
        )
    assert [part.by.out_features for part in parts] == ([8, 10] if kind == "cnn" else [1024])
    features = encoder(pixels, sentence)
    assert outputs == [True] * len(parts) and features.shape == (2, 6)
    other = encoder(pixels, torch.rand(2, 3))
    assert not torch.allclose(features, other)


@pytest.mark.parametrize("kind", KINDS)
def test_every_small_policy_listens_and_says_that_it_must_be_told(kind, tmp_path):
    torch.manual_seed(0)
    policy = make_policy(SPEC, KINDS[kind].Config(**SIZES)).eval()
    assert policy.reads_instructions and policy.needs_instruction
    picture, _ = scene(np.random.default_rng(0), 0)
    pictures = {"front": torch.from_numpy(picture)[None].repeat(2, 1, 1, 1)}
    observations = Observation(torch.zeros(2, 1), pictures, ("go to red", "go to blue"))
    actions = policy.act(observations, False).actions
    assert (actions[0] - actions[1]).abs().max() > 1e-5
    again = load_policy(save_policy(policy, tmp_path / "policy.safetensors"), SPEC)
    assert torch.equal(again.act(observations, False).actions, actions) and again.needs_instruction
    deaf = make_policy(SPEC, KINDS[kind].Config(**(SIZES | {"sentence_features": 0}))).eval()
    actions = deaf.act(observations, False).actions
    assert not deaf.reads_instructions and torch.allclose(actions[0], actions[1], atol=1e-7)


def test_by_cloning_it_goes_where_the_sentence_says_and_a_critic_reads_it_too():
    torch.manual_seed(0)
    random, replay = np.random.default_rng(0), ReplayBuffer(SPEC, 3000, instructions=True)
    words = arrays.encode_instructions(["go to red", "go to blue"])
    for number in range(1500):
        picture, action = scene(random, number % 2)
        replay.insert_episode(
            {
                "vectors": np.zeros((2, 1), np.float32),
                "front": np.stack([picture, picture]),
                arrays.INSTRUCTION: words[[number % 2] * 2],
            },
            action[None],
            np.ones(1),
            np.zeros(1),
        )
    policy = make_policy(SPEC, tanh_gaussian.Config(**SIZES))
    cloner = sft.Learner(policy, sft.Config(learning_rate=5e-3, image_shift=0, min_std=0.03))
    for _ in range(500):
        cloner.update(replay.sample(64, random))
    scenes = [scene(random, target) for target in (0, 1) * 50]
    pictures = {"front": torch.from_numpy(np.stack([picture for picture, _ in scenes]))}
    goals = torch.from_numpy(np.stack([goal for _, goal in scenes]))

    def near(*sentences):
        acted = (
            policy.eval()
            .act(Observation(torch.zeros(100, 1), pictures, sentences * 50), False)
            .actions[:, 0]
        )
        return ((acted - goals).norm(dim=1) < 0.3).float().mean().item()

    assert near("go to red", "go to blue") > 0.8 and near("go to blue", "go to red") < 0.2
    learner = rlpd.Learner(policy, rlpd.Config(batch_size=32, critic_warmup=0, image_shift=0))
    before = learner.encoder.sentence.pieces.weight.clone()
    for _ in range(4):
        learner.update(replay.sample(32, random))
    assert not torch.equal(learner.encoder.sentence.pieces.weight, before)
