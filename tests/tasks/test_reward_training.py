"""Frames, splits, batches and scores of a visual reward, and the network in NumPy, by hand."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlinf_core.core.errors import EpisodeError, RecipeError
from rlinf_core.tasks.rewards import training
from rlinf_core.tasks.rewards.classifier import FORMAT, Classifier, Network
from rlinf_core.tasks.rewards.progress import Progress

SIZE = 16


def episode(name="e", success=True, steps=8, shade=0, hz=10, **sizes):
    """Images whose shade is the number of their time step, in each camera."""
    sizes = sizes or {"front": (SIZE, SIZE)}
    shades = np.arange(steps, dtype=np.uint8)[:, None, None, None] + shade
    observations = {
        camera: np.broadcast_to(shades + 100 * place, (steps, *size, 3))
        for place, (camera, size) in enumerate(sizes.items())
    }
    return SimpleNamespace(
        id=name,
        success=success,
        stamps_ns=np.arange(steps) * 1_000_000_000 // hz,
        observations=observations | {"force": np.zeros((steps, 3))},
    )


def shades(frames, colour=0):
    return frames.images[:, colour, 0, 0].tolist()


def test_a_success_is_its_last_frame_and_those_that_may_show_it_too_are_left_out():
    frames = training.frames_of([episode(), episode("f", False, 3, 50), episode("g")], ())
    assert shades(frames) == [0, 1, 2, 3, 7, 50, 51, 52, 0, 1, 2, 3, 7]
    assert frames.success.tolist() == [*[False] * 4, True, *[False] * 3, *[False] * 4, True]
    assert frames.episodes.tolist() == [0] * 5 + [1] * 3 + [2] * 5
    assert frames.cameras == ("front",) and frames.labels is None
    assert frames.images.shape == (13, 3, SIZE, SIZE) and frames.images.dtype == np.uint8


@pytest.mark.parametrize(
    "steps, hz, late_s, expected",
    [
        (8, 10, 0.3, [0, 1, 2, 3, 7]),
        (8, 10, 0.35, [0, 1, 2, 3, 7]),
        (8, 10, 0.5, [0, 1, 7]),
        (8, 10, 0.0, [0, 1, 2, 3, 7]),
        (8, 1, 0.3, [0, 1, 2, 3, 7]),
        (12, 20, 0.3, [0, 1, 2, 3, 4, 11]),
        (3, 10, 0.3, [2]),
    ],
)
def test_what_is_left_out_before_a_success_is_a_time_and_three_frames(steps, hz, late_s, expected):
    frames = training.frames_of([episode(steps=steps, hz=hz)], (), late_s=late_s)
    assert shades(frames) == expected and frames.success.tolist() == [False] * (
        len(expected) - 1
    ) + [True]


def test_a_success_that_a_person_takes_back_shows_none():
    frames = training.frames_of([episode("a"), episode("b")], (), failed=["b"])
    assert frames.success.sum() == 1 and (frames.episodes == 1).sum() == 8


def test_cameras_are_chosen_and_their_colours_concatenated():
    two = episode(front=(SIZE, 20), wrist=(SIZE, 20))
    frames = training.frames_of([two, two], ())
    assert frames.cameras == ("front", "wrist") and frames.images.shape == (10, 6, SIZE, 20)
    assert (shades(frames, 2)[:3], shades(frames, 3)[:3]) == ([0, 1, 2], [100, 101, 102])
    turned = training.frames_of([two], ["wrist", "front"])
    assert turned.cameras == ("wrist", "front") and shades(turned)[:2] == [100, 101]
    assert training.frames_of([two], ["wrist"]).images.shape == (5, 3, SIZE, 20)
    frames = training.progress_of([two], ["wrist"])
    assert frames.cameras == ("wrist",) and shades(frames)[:2] == [100, 101]


@pytest.mark.parametrize("frames_of", [training.frames_of, training.progress_of])
@pytest.mark.parametrize(
    "episodes, cameras, message",
    [
        (
            [episode("e7")],
            ["top", "front"],
            "^episode e7: expected the cameras top, front, got front. Record with",
        ),
        (
            [episode("e7", front=(SIZE, SIZE), wrist=(SIZE, SIZE))],
            ["top"],
            "^episode e7: expected the cameras top, got front, wrist. Record with",
        ),
        (
            [SimpleNamespace(id="e8", success=True, observations={"force": np.zeros((3, 3))})],
            (),
            r"^episode e8: expected the cameras \(at least one\), got none. Record with",
        ),
        (
            [episode("e9", front=(SIZE, SIZE), wrist=(SIZE, 20))],
            (),
            r"^episode e9: expected images of one size, got {'front': \(16, 16\), 'wrist': \(16, 20"
            r"\)}. Choose by --cameras",
        ),
        (
            [episode(), episode(front=(20, SIZE))],
            (),
            r"^expected images of one size in all episodes, got \(16, 16\) and \(20, 16\): station",
        ),
        (
            [episode(front=(15, 30))],
            (),
            r"^expected images of 16 pixels or more, got \(15, 30\): station.image_size",
        ),
    ],
)
def test_images_that_no_network_can_learn_from_are_refused(frames_of, episodes, cameras, message):
    with pytest.raises(EpisodeError, match=message):
        frames_of(episodes, cameras)


def test_progress_is_the_share_that_is_over_and_none_in_the_second_half_of_a_failure():
    frames = training.progress_of(
        [episode(steps=5), episode("f", False, 5, 50), episode("g", True, 4)], (), failed=["g"]
    )
    assert shades(frames) == [0, 1, 2, 3, 4, 52, 53, 54, 2, 3]
    assert frames.labels.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0] + [0.0] * 5
    assert frames.success.tolist() == [False] * 4 + [True] + [False] * 5
    assert frames.episodes.tolist() == [0] * 5 + [1] * 3 + [2] * 2
    assert frames.images.shape[1:] == (3, SIZE, SIZE)


def some_frames(successes, failures, labels=False):
    number = successes + failures
    frames = training.Frames(
        np.arange(2 * number, dtype=np.uint8)[:, None, None, None]
        + np.zeros((1, 3, SIZE, SIZE), np.uint8),
        np.arange(2 * number) % 2 * (np.arange(2 * number) < 2 * successes) > 0,
        np.arange(2 * number) // 2,
        ("front",),
        np.arange(2.0 * number) if labels else None,
    )
    return frames


def test_frames_of_some_episodes_keep_all_that_belongs_to_them():
    frames = some_frames(3, 1, labels=True).of(np.array([1, 3]))
    assert shades(frames) == [2, 3, 6, 7] and frames.labels.tolist() == [2, 3, 6, 7]
    assert frames.success.tolist() == [False, True, False, False]
    assert frames.episodes.tolist() == [1, 1, 3, 3] and frames.cameras == ("front",)
    assert some_frames(3, 1).of(np.array([2])).labels is None


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_share_of_successes_and_of_failures_is_held_out(seed):
    frames = some_frames(10, 5)
    ours, theirs = training.split(frames, 0.2, seed)
    assert sorted({*ours.episodes, *theirs.episodes}) == list(range(15))
    assert not {*ours.episodes} & {*theirs.episodes}
    assert (ours.success.sum(), theirs.success.sum()) == (8, 2)
    assert sum({*theirs.episodes} - {*range(10)}) >= 10 and len({*theirs.episodes}) == 3
    again = training.split(frames, 0.2, seed)[1]
    assert again.episodes.tolist() == theirs.episodes.tolist()
    drawn = {tuple(training.split(frames, 0.2, other)[1].episodes) for other in range(5)}
    assert len(drawn) > 1, "another seed, other episodes"


@pytest.mark.parametrize("held_out", [0.0, 0.05, 0.99])
def test_each_part_has_a_success(held_out):
    with pytest.raises(EpisodeError, match="for the held-out test, got 5. Record more, about 50"):
        training.split(some_frames(5, 3), held_out, 0)


def bright(channels):
    """Return a network that takes a frame's shade for its answer, in per cent."""
    return float(channels["camera/front/image"][0, 0, 0]) / 100


def scored(shades, success, episodes):
    images = np.array(shades, np.uint8)[:, None, None, None] * np.ones((1, 3, 2, 2), np.uint8)
    return training.Frames(images, np.array(success) > 0, np.array(episodes), ("front",))


def test_errors_are_counted_by_their_kind():
    frames = scored([49, 50, 51, 90, 10, 80], [1, 1, 1, 0, 0, 0], range(6))
    scores, predicted = training.judge(bright, frames)
    assert scores == training.Scores(positives=3, negatives=3, missed=2, invented=2)
    assert predicted.tolist() == [0.49, 0.5, 0.51, 0.9, 0.1, 0.8]
    assert scores.accuracy == pytest.approx(1 / 3)
    assert training.Scores(0, 0, 0, 0).accuracy == 1.0
    assert training.Scores(3, 5, 1, 0).accuracy == pytest.approx(7 / 8)


def test_a_network_is_shown_each_camera_by_its_name_with_colours_last():
    shown = []
    images = np.arange(6 * 4, dtype=np.uint8).reshape(1, 6, 2, 2)
    frames = training.Frames(images, np.array([True]), np.array([0]), ("front", "wrist"))
    training.judge(lambda channels: shown.append(channels) or 0.5, frames)
    assert list(shown[0]) == ["camera/front/image", "camera/wrist/image"]
    assert shown[0]["camera/front/image"].shape == (2, 2, 3)
    assert shown[0]["camera/front/image"][0, 1].tolist() == [1, 5, 9]
    assert shown[0]["camera/wrist/image"][1, 0].tolist() == [14, 18, 22]


def test_progress_is_judged_by_its_order_and_by_the_failures_that_look_like_it():
    frames = scored(
        [10, 20, 30, 40, 30, 40, 20, 50, 20, 49, 60, 51],
        [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3],
    )
    scores = training.judge_progress(bright, frames)
    # ranks 2, 3, 1, 4 have a correlation of 0.4 with 1, 2, 3, 4
    assert (scores.successes, scores.failures) == (2, 2)
    assert scores.order == pytest.approx((1.0 + 0.4) / 2) and scores.fooled == 0.5
    assert training.judge_progress(bright, frames.of(np.array([0]))).fooled == 0.0
    half = scored([1, 2, 50, 50], [0, 1, 0, 0], [0, 0, 1, 1])
    assert training.judge_progress(bright, half).fooled == 0.0, "0.5 itself is not fooled"


@pytest.mark.parametrize(
    "values, order",
    [
        ([30, 30, 30, 30], 0.0),
        ([40, 30, 20, 10], -1.0),
        ([10, 20, 20, 30], np.corrcoef([1, 2.5, 2.5, 4], [1, 2, 3, 4])[0, 1]),
        ([0, 0, 100, 100], np.corrcoef([1.5, 1.5, 3.5, 3.5], [1, 2, 3, 4])[0, 1]),
    ],
)
def test_equal_values_show_no_order(values, order):
    scores = training.judge_progress(bright, scored(values, [0, 0, 0, 1], [0] * 4))
    assert scores.order == pytest.approx(order)


def test_an_image_is_shifted_by_up_to_three_pixels_and_shaded_by_up_to_a_tenth():
    images = np.zeros((300, 3, 20, 24), np.uint8)
    images[:, :, 10, 12] = 100  # one bright pixel on black, whose edge goes on in black
    moved = training._disturbed(images, np.random.default_rng(0))
    assert moved.shape == images.shape
    offsets, strengths = [], []
    for image in moved:
        (y,), (x,) = np.nonzero(image[0])
        offsets.append((y - 10, x - 12))
        strengths.append(image[0, y, x])
        assert np.array_equal(image[0], image[1]) and np.array_equal(image[0], image[2])
    for axis in (0, 1):
        assert {offset[axis] for offset in offsets} == set(range(-3, 4))
    assert len(set(offsets)) > 40, "both directions by themselves"
    assert 90 <= min(strengths) < 91 and 109 < max(strengths) <= 110
    white = np.full((50, 3, 16, 16), 250, np.uint8)
    shaded = training._disturbed(white, np.random.default_rng(1))
    assert shaded.max() == 255 and shaded.min() >= 225, "the edge goes on, and nothing is above"


def test_the_network_of_torch_has_three_convolutions_and_two_layers():
    net = training._net(6, 40, 48)
    shapes = [tuple(part.weight.shape) for part in net if hasattr(part, "weight")]
    # 40 -> 19 -> 9 -> 4 and 48 -> 23 -> 11 -> 5 pixels
    assert shapes == [(16, 6, 3, 3), (32, 16, 3, 3), (32, 32, 3, 3), (32, 32 * 4 * 5), (1, 32)]
    kinds = [type(part).__name__ for part in net]
    assert kinds == ["Conv2d", "ReLU"] * 3 + ["Flatten", "Linear", "ReLU", "Linear"]
    assert net(torch.zeros(2, 6, 40, 48)).shape == (2, 1)
    assert training._as_input(np.array([0, 51, 255])).tolist() == pytest.approx([-0.5, -0.3, 0.5])
    assert training._as_input(np.array([1])).dtype == torch.float32


def separable(labels=None):
    """Dark frames, and bright ones that are successes; four times as many dark ones."""
    success = np.arange(40) % 5 == 0
    images = np.where(success, 200, 40).astype(np.uint8)[:, None, None, None] * np.ones(
        (1, 3, SIZE, SIZE), np.uint8
    )
    return training.Frames(images, success, np.arange(40) // 5, ("front",), labels)


def test_training_is_repeatable_and_learns():
    torch.set_num_threads(1)
    steps_done = []
    frames = separable()
    network = training.train(frames, 30, 3, steps_done.append)
    assert steps_done == list(range(30))
    assert training.judge(network, frames)[0].accuracy == 1.0
    one, again, other = (training.train(frames, 3, seed) for seed in (3, 3, 4))
    assert np.array_equal(one.layers[0][0], again.layers[0][0])
    assert not np.array_equal(one.layers[0][0], other.layers[0][0])
    assert network.cameras == ("camera/front/image",) and network.size == (SIZE, SIZE)
    assert network.inputs == () and network.flaw == ""


@pytest.mark.parametrize("labelled", [False, True])
def test_half_of_a_batch_are_successes_but_where_progress_is_learned(labelled, monkeypatch):
    torch.set_num_threads(1)
    batches = []
    disturbed = training._disturbed
    monkeypatch.setattr(
        training,
        "_disturbed",
        lambda images, random: batches.append(images) or disturbed(images, random),
    )
    few = separable(np.zeros(40) if labelled else None).of(np.array([0]))  # one of five
    training.train(few, 3, 0)
    assert [len(images) for images in batches] == [64] * 3
    bright = [int((images[:, 0, 0, 0] == 200).sum()) for images in batches]
    assert all(2 <= count <= 25 for count in bright) if labelled else bright == [32] * 3


def test_labels_are_learned_where_there_are_some():
    torch.set_num_threads(1)
    success = separable().success
    predicted = training.judge(
        training.train(separable(np.where(success, 0.2, 0.9)), 60, 0), separable()
    )[1]
    assert abs(predicted[success].mean() - 0.2) < 0.1 < abs(predicted[success].mean() - 0.5)
    assert abs(predicted[~success].mean() - 0.9) < 0.1


NUMBERS = Network(
    ("a", "b"),
    np.array([1.0, 2.0, 3.0]),
    np.array([1.0, 2.0, 0.5]),
    (
        (np.array([[1.0, 0.0, 0.0], [0.0, 1.0, -1.0]]), np.array([0.5, -4.0])),
        (np.array([[2.0, 3.0]]), np.array([-1.0])),
    ),
)


def test_a_network_of_numbers_by_hand():
    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    # (2, 4, 2) becomes (1, 1, -2), the layer (1.5, -1) and, without what is negative, 2 * 1.5 - 1
    channels = {"a": np.array([2.0]), "b": np.array([[4.0, 2.0]]), "c": np.array([9.0])}
    assert NUMBERS(channels) == pytest.approx(sigmoid(2.0))
    # (0, 10, 2) becomes (-1, 4, -2), (-0.5, 2), (0, 2)
    channels = {"a": np.array([0.0]), "b": np.array([10.0, 2.0])}
    assert NUMBERS(channels) == pytest.approx(sigmoid(5.0))
    for value, expected in ((1e6, sigmoid(50.0)), (-1e6, sigmoid(-1.0))):
        assert NUMBERS({"a": np.array([value]), "b": np.array([2.0, 3.0])}) == pytest.approx(
            expected, rel=1e-12
        )
    last = Network((), np.zeros(0), np.ones(0), ((np.zeros((1, 0)), np.array([-60.0])),))
    assert last({}) == pytest.approx(sigmoid(-50.0), rel=1e-12)
    assert NUMBERS.flaw == ""


def seeing(**changes):
    """Two cameras of 5 x 5 pixels, one convolution to 2 x 2, one layer."""
    rng = np.random.default_rng(0)
    parts = dict(
        inputs=("force",),
        mean=np.zeros(2),
        std=np.ones(2),
        layers=((rng.normal(size=(1, 2 + 2 * 4)), np.array([0.1])),),
        cameras=("front", "wrist"),
        size=(5, 5),
        convolutions=((rng.normal(size=(2, 6, 3, 3)), np.array([0.2, -0.1])),),
    )
    return Network(**(parts | changes))


def images(shape=(5, 5)):
    rng = np.random.default_rng(1)
    return {
        "front": rng.integers(0, 256, (*shape, 3), np.uint8),
        "wrist": rng.integers(0, 256, (*shape, 3), np.uint8),
        "force": np.array([0.3, -0.7]),
    }


def test_a_network_of_images_and_numbers_is_that_of_torch():
    network, channels = seeing(), images()
    ((weight, bias),) = network.convolutions
    ((matrix, offset),) = network.layers
    both = np.concatenate([channels["front"], channels["wrist"]], axis=2).transpose(2, 0, 1)
    x = torch.tensor(both / 255.0 - 0.5)[None]
    features = torch.relu(
        torch.nn.functional.conv2d(x, torch.tensor(weight), torch.tensor(bias), stride=2)
    )
    numbers = np.concatenate([channels["force"], features.flatten().numpy()])
    expected = 1 / (1 + np.exp(-(matrix @ numbers + offset)))
    assert network(channels) == pytest.approx(expected[0], abs=1e-6) and network.flaw == ""
    plain = seeing(cameras=(), convolutions=(), size=(0, 0), layers=((np.ones((1, 2)), offset),))
    assert plain({"force": np.array([0.3, -0.7])}) == pytest.approx(1 / (1 + np.exp(0.3)))


def test_an_image_of_another_size_is_resized_by_its_area():
    network, small = seeing(), images()
    large = small | {
        camera: small[camera].repeat(2, axis=0).repeat(3, axis=1) for camera in network.cameras
    }
    assert network(large) == pytest.approx(network(small), abs=1e-6)
    wide = seeing(size=(5, 7), layers=((np.ones((1, 2 + 2 * 2 * 3)), np.array([0.1])),))
    assert wide.flaw == "" and 0 <= wide(images((10, 14))) <= 1


@pytest.mark.parametrize(
    "changes, flaw",
    [
        ({"cameras": ("front",)}, "convolutions [(2, 6, 3, 3)] for 3 colours"),
        (
            {"convolutions": ((np.zeros((2, 6, 3, 3)), np.zeros(3)),)},
            "convolutions [(2, 6, 3, 3)] for 6 colours",
        ),
        (
            {"convolutions": ((np.zeros((2, 6)), np.zeros(2)),)},
            "convolutions [(2, 6)] for 6 colours",
        ),
        ({"size": (5, 7)}, "layers [(1, 10)] for 14 numbers"),
        ({"size": (2, 5)}, "layers [(1, 10)] for 2 numbers"),
        ({"layers": ()}, "layers [] for 10 numbers"),
        ({"layers": ((np.zeros((2, 10)), np.zeros(2)),)}, "layers [(2, 10)] for 10 numbers"),
        ({"layers": ((np.zeros((1, 9)), np.zeros(1)),)}, "layers [(1, 9)] for 10 numbers"),
        (
            {"layers": ((np.zeros((4, 10)), np.zeros(4)), (np.zeros((1, 3)), np.zeros(1)))},
            "layers [(4, 10), (1, 3)] for 10 numbers",
        ),
        ({"mean": np.zeros(3), "std": np.ones(3)}, "layers [(1, 10)] for 11 numbers"),
        ({"std": np.ones(3)}, "mean (2,) and std (3,)"),
        ({"mean": np.zeros((2, 1)), "std": np.ones((2, 1))}, "mean (2, 1) and std (2, 1)"),
    ],
)
def test_parts_that_do_not_fit_are_a_flaw_and_refused_from_a_file(changes, flaw, tmp_path):
    network = seeing(**changes)
    assert network.flaw == flaw
    network.save(tmp_path / "model")
    with pytest.raises(RecipeError) as error:
        Network.load(tmp_path / "model")
    assert str(error.value) == (
        f"reward.model {tmp_path}/model: expected a classifier as `rlinf reward train` writes it "
        f"(rlinf-classifier-1, one output), got: {flaw}"
    )


@pytest.mark.parametrize("network", [NUMBERS, seeing()], ids=["numbers", "images"])
def test_a_file_holds_the_whole_network(network, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    network.save(tmp_path / "model")
    for again in (Network.load(tmp_path / "model"), Network.load("~/model")):
        assert (again.inputs, again.cameras, again.size) == (
            network.inputs,
            network.cameras,
            network.size,
        )
        for name in ("layers", "convolutions"):
            ours, theirs = getattr(network, name), getattr(again, name)
            assert len(ours) == len(theirs)
            for one, other in zip(ours, theirs, strict=True):
                assert all(map(np.array_equal, one, other))
        assert np.array_equal(again.mean, network.mean) and np.array_equal(again.std, network.std)


@pytest.mark.parametrize(
    "metadata, got",
    [
        (None, "format None"),
        ({"format": "rlinf-classifier-0"}, "format 'rlinf-classifier-0'"),
        ({"format": FORMAT}, "'inputs'"),
        ({"format": FORMAT, "inputs": "[", "cameras": "[]", "size": "[0, 0]"}, "Expecting value"),
        ({"format": FORMAT, "inputs": "[]", "cameras": "[]", "size": "[0, 0]"}, "'mean'"),
    ],
)
def test_another_file_is_refused_with_the_reason(metadata, got, tmp_path):
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(2)}, tmp_path / "model", metadata)
    with pytest.raises(RecipeError) as error:
        Network.load(tmp_path / "model")
    assert str(error.value).startswith(f"reward.model {tmp_path}/model: expected a classifier as")
    assert f", got: {got}" in str(error.value)
    for name, content in (("text", b"hello, this is none"), ("none", None)):
        if content:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(RecipeError, match=f"^reward.model {tmp_path}/{name}: expected a class"):
            Network.load(tmp_path / name)


def test_a_classifier_and_progress_compare_the_probability_with_their_threshold(tmp_path):
    NUMBERS.save(tmp_path / "numbers")
    offset = Network(("c",), np.zeros(1), np.ones(1), ((np.ones((1, 1)), np.zeros(1)),))
    offset.save(tmp_path / "other")
    channels = {"a": np.array([2.0]), "b": np.array([4.0, 2.0]), "c": np.array([0.0])}
    probability = NUMBERS(channels)
    for threshold, success in ((probability - 1e-9, True), (probability, False)):
        classifier = Classifier(model=str(tmp_path / "numbers"), threshold=threshold)
        assert classifier(channels) is success
        progress = Progress(
            model=str(tmp_path / "other"),
            classifier=str(tmp_path / "numbers"),
            threshold=threshold,
        )
        assert progress(channels) is success and progress.progress(channels) == 0.5
    assert classifier.progress(channels) == probability and classifier.channels == ("a", "b")
    assert progress.channels == ("c", "a", "b") and Classifier.threshold == 0.5
    assert json.dumps(progress.progress(channels)) == "0.5"
    with pytest.raises(RecipeError, match="expected a classifier"):
        Progress(model=str(tmp_path / "numbers"), classifier=str(tmp_path / "none"))
