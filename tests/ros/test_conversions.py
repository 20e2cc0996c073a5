"""ROS messages and the arrays of rlinf_core, without ROS's middleware."""

import io

import numpy as np
import pytest
from builtin_interfaces.msg import Time
from PIL import Image as Picture
from rlinf_msgs.msg import ActionChunk, TimeStep
from sensor_msgs.msg import JointState

from rlinf_core.core.errors import SpecError
from rlinf_core.recipes import load_recipe, station_task
from rlinf_ros.conversions import (
    action_chunk,
    angles_of,
    any_between,
    camera_info,
    compressed,
    fill_drawn,
    fill_observation,
    from_image,
    observation_of,
    release_chunk,
    set_stamp,
    to_image,
    to_ns,
    to_stamp,
)

STAMP = Time(sec=12, nanosec=345_678_901)


def test_stamps_are_nanoseconds():
    assert to_ns(STAMP) == 12_345_678_901
    assert to_stamp(12_345_678_901) == STAMP
    stamp = Time()
    set_stamp(stamp, 12_345_678_901)
    assert stamp == STAMP


@pytest.mark.parametrize(
    "low, high, is_between",
    [
        (0, 9, False),
        (0, 10, True),
        (10, 10, True),
        (11, 19, False),
        (11, 20, True),
        (31, 99, False),
    ],
)
def test_a_time_lies_between_two_others(low, high, is_between):
    assert any_between([10, 20, 30], low, high) is is_between


@pytest.mark.parametrize(
    "names, positions, wanted, angles",
    [
        ("abc", [1.0, 2.0, 3.0], "ca", (3.0, 1.0)),
        ("abc", [1.0, 2.0], "ac", None),
        ("ab", [1.0, 2.0], "ac", None),
        ("aba", [1.0, 2.0, 3.0], "ab", None),
        ("abaa", [1.0, 2.0], "ab", (1.0, 2.0)),
        ("abcc", [1.0, 2.0, 3.0, 4.0], "ab", (1.0, 2.0)),
    ],
)
def test_angles_are_those_of_the_joints_by_name(names, positions, wanted, angles):
    message = JointState(name=list(names), position=positions)
    assert angles_of(message, list(wanted)) == angles


@pytest.fixture
def pixels():
    """The top left is red, the top right green, the bottom blue."""
    picture = np.zeros((16, 32, 3), np.uint8)
    picture[:8, :16, 0] = picture[:8, 16:, 1] = picture[8:, :, 2] = 250
    return picture


def test_an_image_comes_back(pixels):
    message = to_image("wrist", pixels, STAMP)
    assert (message.height, message.width, message.step, message.encoding) == (16, 32, 96, "rgb8")
    assert (message.header.frame_id, message.header.stamp) == ("wrist", STAMP)
    assert np.array_equal(from_image(message), pixels)
    assert np.array_equal(from_image(to_image("wrist", pixels[:, ::-1], STAMP)), pixels[:, ::-1])


def test_an_image_with_padded_rows_or_blue_first_is_read(pixels):
    message = to_image("wrist", pixels, STAMP)
    padded = np.zeros((16, 100), np.uint8)
    padded[:, :96] = pixels.reshape(16, 96)
    message.step, message.data = 100, padded.tobytes()
    assert np.array_equal(from_image(message), pixels)
    message.encoding = "bgr8"
    assert np.array_equal(from_image(message), pixels[..., ::-1])


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"encoding": "mono8"}, "'wrist': expected encoding rgb8 or bgr8, got 'mono8'"),
        ({"height": 15}, "expected 15 rows of 96 bytes for 32 pixels of 3, got 1536 bytes"),
        ({"width": 33}, "16 rows of 96 bytes for 33 pixels"),
        ({"height": 0, "data": b""}, "expected 0 rows of 96 bytes .* got 0 bytes"),
    ],
)
def test_an_image_that_cannot_be_read_is_refused_with_its_camera(pixels, changes, words):
    message = to_image("wrist", pixels, STAMP)
    for name, value in changes.items():
        setattr(message, name, value)
    with pytest.raises(SpecError, match=words):
        from_image(message)


def test_a_compressed_image_is_a_jpeg_of_the_same_colours(pixels):
    """Read by another library."""
    image = to_image("wrist", pixels, STAMP)
    good, coarse = (compressed(image, pixels, quality) for quality in (95, 10))
    assert good.header == image.header and good.format == "rgb8; jpeg compressed bgr8"
    with Picture.open(io.BytesIO(bytes(good.data))) as picture:
        assert picture.format == "JPEG" and picture.size == (32, 16)
        read = np.asarray(picture.convert("RGB")).astype(int)
    middles = [(4, 8), (4, 24), (12, 16)]
    assert all(np.abs(read[spot] - pixels[spot]).max() < 30 for spot in middles)
    assert len(coarse.data) < len(good.data)


def test_a_camera_without_calibration_has_a_size_and_no_lens(pixels):
    image = to_image("wrist", pixels, STAMP)
    info = camera_info(image)
    assert (info.height, info.width, info.distortion_model) == (16, 32, "plumb_bob")
    assert info.header == image.header and not any(info.k) and not any(info.p) and not info.d


def test_the_lens_of_a_camera_maps_a_point_to_its_pixel(pixels):
    """A point one metre ahead, 0.1 m to the right and 0.2 m below."""
    info = camera_info(to_image("wrist", pixels, STAMP), [60.0, 70.0, 16.0, 8.0, 0.1, -0.2])
    assert list(info.d) == [0.1, -0.2, 0.0, 0.0, 0.0]
    point = np.array([0.1, 0.2, 1.0])
    assert np.reshape(info.k, (3, 3)) @ point == pytest.approx([22.0, 22.0, 1.0])
    assert np.reshape(info.p, (3, 4)) @ [*point, 1.0] == pytest.approx([22.0, 22.0, 1.0])
    assert np.array_equal(np.reshape(info.r, (3, 3)), np.eye(3))
    four = camera_info(to_image("wrist", pixels, STAMP), [60.0, 70.0, 16.0, 8.0])
    assert list(four.d) == [0.0] * 5


@pytest.fixture(scope="module")
def spec():
    cameras = ["station.observe_cameras=[front,wrist]", "station.image_size=[16,32]"]
    return station_task(load_recipe("demo", cameras)).spec


@pytest.fixture
def observation(spec, random):
    return {
        item.name: random.integers(0, 256, item.shape, np.uint8)
        if len(item.shape) == 3
        else np.asarray(item.low, np.float32) + np.zeros(item.shape, np.float32)
        for item in spec.observation
    }


def test_an_observation_comes_back_from_a_time_step(spec, observation):
    message = TimeStep()
    message.header.stamp = STAMP
    fill_observation(message, spec, observation)
    assert [vector.name for vector in message.vectors] == [item.name for item in spec.vectors]
    assert [image.header.stamp for image in message.images] == [STAMP] * 2
    message.images.reverse()
    read = observation_of(message, spec)
    assert list(read) == [item.name for item in spec.observation]
    for name, value in observation.items():
        assert np.array_equal(read[name], value) and read[name].dtype == value.dtype, name
    del message.images[0]
    with pytest.raises(KeyError):
        observation_of(message, spec)


def test_a_chunk_is_in_si_units_and_says_whose_it_is(spec):
    actions = np.array([[0.5, -0.5, 1.0], [0.0, 0.25, -1.0]])
    identity = {"source": "policy", "session": "s", "seq": 4, "version": 9}
    chunk = action_chunk(spec, actions, **identity, observation_stamp=STAMP, execute=2)
    assert (chunk.source, chunk.session, chunk.seq, chunk.policy_version) == ("policy", "s", 4, 9)
    assert (chunk.observation_stamp, chunk.dt, chunk.execute) == (STAMP, 0.1, 2)
    assert (chunk.control_mode, chunk.horizon, chunk.dim) == ("tcp_delta", 2, 3)
    assert chunk.data == pytest.approx((actions * spec.action.to_si(np.ones(3))).ravel())
    single = action_chunk(spec, actions[0], **identity, observation_stamp=STAMP)
    assert (single.horizon, single.dim, single.execute) == (1, 3, 1)


def test_a_release_is_a_chunk_of_the_operator_without_actions(spec):
    chunk = release_chunk(spec, session="s", seq=5, stamp=STAMP)
    assert (chunk.source, chunk.session, chunk.seq, chunk.policy_version) == (
        "operator",
        "s",
        5,
        -1,
    )
    assert (chunk.observation_stamp, chunk.dt, chunk.control_mode) == (STAMP, 0.1, "tcp_delta")
    assert not chunk.data and not chunk.horizon


@pytest.mark.parametrize(
    "shape, log_probs, dim", [((4, 6), [-1.0, -2.0, -3.0, -4.0], 6), ((6,), -0.5, 6)]
)
def test_what_a_policy_drew_is_exact(random, shape, log_probs, dim):
    drawn, message = random.normal(size=shape).astype(np.float32), ActionChunk()
    fill_drawn(message, drawn, None)
    assert not message.log_probs
    fill_drawn(message, drawn, np.float32(log_probs))
    assert message.drawn_dim == dim
    assert np.array_equal(np.array(message.drawn, np.float32), drawn.ravel())
    assert np.array_equal(np.array(message.log_probs), np.atleast_1d(np.float32(log_probs)))
