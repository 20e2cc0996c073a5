"""A few fields of a large message, read by their offsets, are those that rclpy converts."""

import math
import random

import pytest

rclpy = pytest.importorskip("rclpy", reason="rclpy comes with the extra ros")
franka_msgs = pytest.importorskip("franka_msgs.msg", reason="rlinf messages builds franka_msgs")
from franka_msgs.msg import FrankaRobotState  # noqa: E402
from rclpy.serialization import deserialize_message, serialize_message  # noqa: E402
from sensor_msgs.msg import JointState, PointCloud2, PointField  # noqa: E402

from rlinf_drivers.franka import FIELDS, fault_of, wrench_on_tool  # noqa: E402
from rlinf_drivers.partial_reader import Layout, PartialReader  # noqa: E402

pytestmark = pytest.mark.ros


def drawn(draw, names=7, frame="fr3_link0"):
    """Return a state with another number in each field."""
    message = FrankaRobotState()
    layout = Layout(message.get_fields_and_field_types())  # all fields
    layout.message(message, "")
    for item in layout.items:
        if item.path:
            owner = message
            *parents, name = item.path.split(".")
            for parent in parents:
                owner = getattr(owner, parent)
            value = {
                "d": draw.uniform(-1e3, 1e3),
                "?": draw.random() < 0.3,
                "i": draw.randrange(-(2**31), 2**31),
                "I": draw.randrange(10**9),
                "B": draw.randrange(8),
            }[item.code]
            setattr(owner, name, value)
    for name in ("measured_joint_state", "desired_joint_state", "tau_ext_hat_filtered"):
        joints = getattr(message, name)
        joints.name = [f"joint_{k}" for k in range(names)]
        joints.position = joints.effort = [draw.uniform(-3, 3) for _ in range(names)]
    message.header.frame_id = message.o_t_ee.header.frame_id = frame
    return message


def values(message, fields=FIELDS):
    layout = Layout(fields)
    layout.message(message, "")
    return [(item.path, item.value) for item in layout.items if item.path]


def test_the_fields_of_many_states_are_those_that_rclpy_converts():
    draw, reader = random.Random(0), PartialReader(FrankaRobotState, FIELDS)
    for k in range(200):
        raw = serialize_message(drawn(draw))
        read, converted = reader.read(raw), deserialize_message(raw, FrankaRobotState)
        assert values(read) == values(converted) and len(values(read)) > 80, k
        assert fault_of(read) == fault_of(converted)
        assert wrench_on_tool(read) == wrench_on_tool(converted)
    assert reader.converted == 1


def test_other_lengths_of_names_or_frames_are_noted_anew():
    draw, reader = random.Random(1), PartialReader(FrankaRobotState, FIELDS)
    rows = [(7, "fr3_link0"), (7, "base"), (0, ""), (8, "fr3_link0"), (7, "fr3_link0"), (7, "ü")]
    for names, frame in rows:
        for _ in range(2):
            raw = serialize_message(drawn(draw, names, frame))
            assert values(reader.read(raw)) == values(deserialize_message(raw, FrankaRobotState))
    assert reader.converted == len(rows)


def test_lengths_that_differ_in_a_message_of_the_same_size_are_noticed():
    """Two frames swap their lengths: all fields between them lie elsewhere."""
    draw, reader = random.Random(2), PartialReader(FrankaRobotState, FIELDS)
    for header, pose in (("a" * 8, "b" * 16), ("a" * 16, "b" * 8)):
        message = drawn(draw)
        message.header.frame_id, message.o_t_ee.header.frame_id = header, pose
        raw = serialize_message(message)
        assert values(reader.read(raw)) == values(deserialize_message(raw, FrankaRobotState))
    assert reader.converted == 2 and len(raw) == len(serialize_message(message))


def test_numbers_that_are_none_and_infinite_ones_are_read():
    message, reader = drawn(random.Random(3)), PartialReader(FrankaRobotState, FIELDS)
    message.o_t_ee.pose.position.x, message.k_f_ext_hat_k.wrench.force.z = math.nan, -math.inf
    for _ in range(2):
        read = reader.read(serialize_message(message))
        assert math.isnan(read.o_t_ee.pose.position.x)
        assert read.k_f_ext_hat_k.wrench.force.z == -math.inf
    assert reader.converted == 1


def test_another_encoding_is_converted_by_rclpy(monkeypatch):
    raw = serialize_message(drawn(random.Random(4)))
    reader = PartialReader(FrankaRobotState, FIELDS)
    big = b"\x00\x00" + raw[2:]  # says that it is big-endian
    monkeypatch.setattr(
        "rlinf_drivers.partial_reader.deserialize_message",
        lambda serialised, kind: deserialize_message(b"\x00\x01" + serialised[2:], kind),
    )
    for _ in range(2):
        assert values(reader.read(big)) == values(deserialize_message(raw, FrankaRobotState))
    assert reader.converted == 2


def test_a_reader_that_differs_from_rclpy_leaves_all_to_it(monkeypatch):
    draw, reader = random.Random(5), PartialReader(FrankaRobotState, FIELDS)
    monkeypatch.setattr("rlinf_drivers.partial_reader.HEADER_BYTES", 12)
    for _ in range(3):
        raw = serialize_message(drawn(draw))
        assert values(reader.read(raw)) == values(deserialize_message(raw, FrankaRobotState))
    assert reader.converted == 3


@pytest.mark.parametrize("data", [b"", bytes(range(9))])
def test_sequences_of_messages_and_of_numbers_are_passed_over(data):
    fields = ("header.stamp", "height", "is_dense")
    reader = PartialReader(PointCloud2, fields)
    message = PointCloud2(
        height=3, is_dense=True, fields=[PointField(name=n, count=2) for n in ("x", "yy")]
    )
    message.header.frame_id, message.data = "camera", data
    for height in (3, 4):
        message.height = height
        read = reader.read(serialize_message(message))
        assert (read.height, read.is_dense, read.header.stamp.sec) == (height, True, 0)
    assert reader.converted == 1


def test_a_damaged_message_is_an_error_and_the_next_is_read():
    reader = PartialReader(JointState, ("header.stamp",))
    message = JointState(name=["a"], position=[1.0])
    message.header.stamp.sec = 7
    raw = serialize_message(message)
    reader.read(raw)
    with pytest.raises(Exception):  # noqa: B017 (of rclpy's own kind)
        reader.read(raw[:21])
    assert reader.read(raw).header.stamp.sec == 7
