"""Encoders of pictures: a ResNet-10 beside torch's own operations, frozen weights, and that it
learns to see.
"""

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from torch.nn import functional as F

from rlinf_core.algorithms import sft
from rlinf_core.core.errors import PolicyFileError
from rlinf_core.policies import make_policy
from rlinf_core.policies.base import Observation
from rlinf_core.policies.encoder import ResNet10, SmallCNN, image_encoder
from rlinf_core.policies.serialization import load_policy, save_policy
from rlinf_core.policies.small import tanh_gaussian
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec

SPEC = StationSpec(
    (
        ArraySpec("still", (1,)),
        ArraySpec(
            "front", (32, 32, 3), "uint8", "", (0.0,), (255.0,), "camera/front/image", "image"
        ),
    ),
    ActionSpec("tcp_delta", ("dx", "dy"), (0.1, 0.1), ("m", "m")),
    10.0,
)
CONFIG = tanh_gaussian.Config(hidden=(32,), image_features=16, image_encoder="resnet")
SMALL = tanh_gaussian.Config(image_features=4, channels=(4, 5))


def resnet(config=CONFIG, seed=0):
    torch.manual_seed(seed)
    return ResNet10((32, 32, 3), config)


def test_it_is_a_resnet_10():
    """Stem, and by stage two convolutions, the way around where the width changes, and
    their norms.
    """
    stage = [
        2 * 9 * 64 * 64 + 4 * 64,
        *(9 * a * 2 * a + 9 * 4 * a * a + 2 * a * a + 12 * a for a in (64, 128, 256)),
    ]
    net = resnet()
    assert sum(
        p.numel() for part in (net.stem, net.stages) for p in part.parameters()
    ) == 49 * 3 * 64 + 128 + sum(stage)
    assert [stage.first.stride[0] for stage in net.stages] == [1, 2, 2, 2]


def test_a_block_and_the_embeddings_are_what_they_say():
    net = resnet().eval()
    x, block = torch.rand(2, 64, 8, 8), net.stages[1]
    y = F.group_norm(F.conv2d(x, block.first.weight, stride=2, padding=1), 4)
    y = F.group_norm(F.conv2d(F.relu(y), block.second.weight, padding=1), 4)
    expected = F.relu(y + F.group_norm(F.conv2d(x, block.around[0].weight, stride=2), 4))
    assert torch.allclose(block(x), expected, atol=1e-5)
    pixels = torch.rand(2, 3, 32, 32)
    mean, std = (
        torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
    normalised = (pixels - mean) / std
    y = F.conv2d(normalised, net.stem[0].weight, stride=2, padding=3)
    stem = F.max_pool2d(F.relu(F.group_norm(y, 4)), 3, 2, 1)
    torch.testing.assert_close(net.stem(normalised), stem)
    maps = net.stages(stem)
    summed = torch.stack([(maps * net.embeddings[k]).sum((2, 3)) for k in range(8)], 1).flatten(1)
    assert torch.allclose(net(pixels), net.out(summed), atol=1e-5)


def test_pretrained_weights_are_frozen_and_the_rest_learns(tmp_path):
    donor = resnet(seed=1)
    file = tmp_path / "resnet.safetensors"
    save_file(
        {
            name: value
            for name, value in donor.state_dict().items()
            if name.startswith(("stem.", "stages."))
        },
        file,
    )
    net = resnet(
        tanh_gaussian.Config(image_features=16, image_encoder="resnet", image_weights=str(file))
    )
    net(torch.rand(2, 3, 32, 32)).sum().backward()
    assert torch.equal(net.stages[3].second.weight, donor.stages[3].second.weight)
    assert net.stages[3].second.weight.grad is None and net.embeddings.grad is not None
    assert {name.split(".")[0] for name, p in net.named_parameters() if p.requires_grad} == {
        "embeddings",
        "out",
    }
    pixels = torch.rand(1, 3, 32, 32, requires_grad=True)
    net(pixels).sum().backward()
    assert pixels.grad is None, "nothing is kept for a way back that nobody goes"


def test_a_policy_file_has_the_weights_that_were_given_and_they_stay_frozen(tmp_path):
    file, donor = tmp_path / "resnet.safetensors", resnet(seed=1)
    save_file(
        {
            name: value
            for name, value in donor.state_dict().items()
            if name.startswith(("stem.", "stages."))
        },
        file,
    )
    policy = make_policy(SPEC, CONFIG.model_copy(update={"image_weights": str(file)})).eval()
    path = save_policy(policy, tmp_path / "policy.safetensors")
    file.unlink()  # or a station has it nowhere
    observations = Observation(
        torch.zeros(1, 1), {"front": torch.full((1, 32, 32, 3), 9, dtype=torch.uint8)}, [""]
    )
    loaded = load_policy(path)
    assert torch.equal(
        loaded.act(observations, explore=False).actions,
        policy.act(observations, explore=False).actions,
    )
    assert torch.equal(
        loaded.encoder.cnns["front"].stages[3].second.weight, donor.stages[3].second.weight
    )
    assert (
        {name for name, p in loaded.named_parameters() if not p.requires_grad}
        == {name for name, p in policy.named_parameters() if not p.requires_grad}
        != set()
    )
    with pytest.raises(PolicyFileError, match="image_weights"):
        make_policy(SPEC, policy.config)  # one that begins needs it


def test_without_gradients_none_are_kept():
    with torch.no_grad():
        assert not resnet()(torch.rand(1, 3, 32, 32)).requires_grad


def test_wrong_weights_and_kinds_are_named(tmp_path):
    file = tmp_path / "other.safetensors"
    save_file({"conv1.weight": torch.zeros(1), "a.weight": torch.zeros(1)}, file)
    with pytest.raises(
        PolicyFileError, match="names differ, among them a.weight, conv1.weight, stages"
    ):
        resnet(tanh_gaussian.Config(image_encoder="resnet", image_weights=str(file)))
    with pytest.raises(ValidationError, match="'cnn', 'keypoints' or 'resnet'"):
        tanh_gaussian.Config(image_encoder="resent")


def pictures(size, random):
    """Return a bright square somewhere on a dark ground, and where it is."""
    places = random.integers(2, 26, (size, 2))
    images = random.integers(0, 60, (size, 32, 32, 3)).astype(np.uint8)
    for image, (row, column) in zip(images, places, strict=True):
        image[row : row + 4, column : column + 4] = 230
    return {
        "vectors": np.zeros((size, 1), np.float32),
        "front": images,
        "action": ((places[:, ::-1] - 13.5) / 15.0).astype(np.float32),
    }


@pytest.mark.parametrize(
    "kind, steps, rate",
    [("cnn", 500, 1e-3), pytest.param("resnet", 160, 3e-4, marks=pytest.mark.slow)],
)
def test_it_learns_where_the_square_is_and_stays_so_in_its_file(kind, steps, rate, tmp_path):
    """Mean error of the place at most a third of what not looking gives, on pictures that it has
    not seen; seed 0.
    """
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    actor = make_policy(
        SPEC, tanh_gaussian.Config(hidden=(32,), image_features=16, image_encoder=kind)
    )
    learner = sft.Learner(actor, sft.Config(learning_rate=rate, image_shift=0))
    unseen = pictures(64, random)
    for _ in range(steps):
        learner.update(pictures(32, random))
    file = save_policy(actor, tmp_path / "policy.safetensors")
    again = load_policy(file or tmp_path / "policy.safetensors", SPEC)
    observations = Observation.from_arrays(
        SPEC, {"vectors": np.zeros((64, 1), np.float32), "front": unseen["front"]}
    )
    acted = again.act(observations, explore=False).actions[:, 0].numpy()
    blind = np.abs(unseen["action"] - unseen["action"].mean(0)).mean()
    assert np.abs(acted - unseen["action"]).mean() < blind / 3


def test_a_small_encoder_halves_by_each_convolution():
    small = image_encoder((12, 8, 3), SMALL)
    assert isinstance(small, SmallCNN)
    convolutions = [layer for layer in small if isinstance(layer, torch.nn.Conv2d)]
    assert [
        (c.in_channels, c.out_channels, c.kernel_size, c.stride, c.padding) for c in convolutions
    ] == [(3, 4, (3, 3), (2, 2), (1, 1)), (4, 5, (3, 3), (2, 2), (1, 1))]
    assert small[5].in_features == 5 * 3 * 2 and small[5].out_features == 4
    pixels = torch.rand(2, 3, 12, 8)
    x = pixels - 0.5
    for layer in small:
        x = layer(x)
    assert torch.equal(small(pixels), x) and small(pixels).shape == (2, 4) and x.abs().max() <= 1
    odd = SmallCNN((13, 9, 3), SMALL)
    assert odd[5].in_features == 5 * 4 * 3 and odd(torch.rand(1, 3, 13, 9)).shape == (1, 4)


def test_a_resnets_embeddings_fit_its_pictures():
    torch.manual_seed(0)
    net = ResNet10((40, 64, 3), tanh_gaussian.Config(image_features=4, image_encoder="resnet"))
    assert net.embeddings.shape == (8, 512, 2, 2) and net.out[0].weight.shape == (4, 8 * 512)
    assert net.embeddings.std().item() == pytest.approx(0.5, rel=0.05), (
        "a sum over four places keeps its deviation"
    )
    assert not {"mean", "std"} & set(net.state_dict()) and not net.frozen
    assert all(p.requires_grad for p in net.parameters())
    stem = net.stem[0]
    assert (stem.kernel_size, stem.stride, stem.padding, stem.bias) == (
        (7, 7),
        (2, 2),
        (3, 3),
        None,
    )
    pool = net.stem[3]
    assert (pool.kernel_size, pool.stride, pool.padding) == (3, 2, 1)
