"""A learned dense reward: it follows time, and a failure does not look like progress."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlinf_core.core.errors import EpisodeError
from rlinf_core.tasks.rewards import reward_class as reward_kind
from rlinf_core.tasks.rewards import training
from rlinf_core.tasks.rewards.progress import Progress

SIZE, STEPS = 24, 12


def episode(number, success):
    """A bright peg sinks towards a socket below it, or beside the socket where it fails."""
    random, images = np.random.default_rng(number), []
    column, aside = random.integers(8, SIZE - 10), 0 if success else 7 * random.choice([-1, 1])
    for step in range(STEPS):
        image = random.integers(0, 60, (SIZE, SIZE, 3), np.uint8)
        image[SIZE - 6 :, column - 3 : column + 5] = (40, 90, 200)
        top = round((SIZE - 14) * step / (STEPS - 1))
        left = np.clip(column + aside * step // (STEPS - 1), 0, SIZE - 2)
        image[top : top + 8, left : left + 2] = 250
        images.append(image)
    observations = {"front": np.array(images), "force": np.zeros((STEPS, 3))}
    return SimpleNamespace(id=str(number), success=success, observations=observations)


def frames(first, failures=True):
    return training.progress_of(
        [episode(first + number, number % 2 == 0 or not failures) for number in range(40)], ()
    )


@pytest.fixture(scope="module")
def network():
    torch.set_num_threads(1)
    return training.train(frames(0), 250, 0)


def test_labels_are_the_share_that_is_over_and_0_late_in_a_failure():
    some = training.progress_of([episode(0, True), episode(1, False)], ("front",), failed=["9"])
    np.testing.assert_allclose(some.labels[:STEPS], np.arange(STEPS) / (STEPS - 1))
    assert some.labels[STEPS:].tolist() == [0.0] * (STEPS - STEPS // 2)
    assert some.success.sum() == 1 and some.success[STEPS - 1]
    wrong = training.progress_of([episode(0, True)], (), failed=["0"])
    assert not wrong.success.any() and not wrong.labels.any()
    with pytest.raises(EpisodeError, match="expected the cameras top, got front"):
        training.progress_of([episode(0, True)], ("top",))


def test_it_follows_time_and_is_not_fooled_where_demonstrations_alone_are(network):
    """A model without failures takes a peg beside the socket for progress."""
    held_out = frames(100)
    scores = training.judge_progress(network, held_out)
    assert (scores.successes, scores.failures) == (20, 20)
    assert scores.order >= 0.9 and scores.fooled <= 0.2, scores
    naive = training.judge_progress(training.train(frames(0, failures=False), 250, 0), held_out)
    assert naive.fooled >= 0.5 > scores.fooled, naive


def test_the_reward_takes_success_from_the_classifier_alone(network, tmp_path):
    network.save(tmp_path / "progress.safetensors")
    judge = training.train(frames(0), 1, 0)
    judge.save(tmp_path / "success.safetensors")
    assert reward_kind("progress") is Progress
    reward = Progress(
        model=str(tmp_path / "progress.safetensors"),
        classifier=str(tmp_path / "success.safetensors"),
        threshold=0.999,
    )
    image = episode(7, True).observations["front"]
    channels = {"camera/front/image": image[-1]}
    assert reward.channels == ("camera/front/image",) and not reward(channels)
    assert reward.progress(channels) > reward.progress({"camera/front/image": image[0]}) + 0.4
