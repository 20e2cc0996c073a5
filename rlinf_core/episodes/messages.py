"""Message types of recordings without ROS.

They are rlinf_msgs, and standard ones that RViz, Foxglove and ``ros2 bag play`` show.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from rlinf_core.core.errors import RlinfError
from rlinf_core.core.paths import message_sources
from rlinf_core.episodes.ring import Message
from rlinf_core.specs.topics import topic

if TYPE_CHECKING:
    from rosbags.interfaces import Qos

# package of the messages, and the writer's name in an MCAP file
PACKAGE, LIBRARY = "rlinf_msgs", "rlinf"
NS = 1_000_000_000
STARTED, ENDED, CLOSED, ABORTED = range(4)  # EpisodeEvent.kind
FIRST, MID, LAST = range(3)  # TimeStep.step_type


@cache
def typestore() -> Any:
    """Return a rosbags typestore with the messages of ROS 2 Jazzy and rlinf_msgs."""
    store = get_typestore(Stores.ROS2_JAZZY)
    types: dict[str, Any] = {}
    for path in sorted((message_sources() / "msg").glob("*.msg")):
        types |= get_types_from_msg(path.read_text(), f"{PACKAGE}/msg/{path.stem}")
    store.register(types)
    return store


@lru_cache(maxsize=16)
def store_for(definitions: tuple[tuple[str, str], ...]) -> Any:
    """Return a typestore from a recording's own (type name, definition) pairs.

    Old recordings stay readable this way.
    """
    store = get_typestore(Stores.ROS2_JAZZY)
    types: dict[str, Any] = {}
    for name, text in definitions:
        types |= get_types_from_msg(text, name)
    store.register({name: fields for name, fields in types.items() if name.startswith(PACKAGE)})
    return store


def to_ns(stamp: Any) -> int:
    """Return the nanoseconds of a builtin_interfaces/Time."""
    return stamp.sec * NS + stamp.nanosec


IMAGE, POSE = "sensor_msgs/msg/Image", "geometry_msgs/msg/PoseStamped"
COMPRESSED, TRANSFORMS = "sensor_msgs/msg/CompressedImage", "tf2_msgs/msg/TFMessage"
TOOL = "tool0"  # REP-199's frame of a tool; prefixed with the arm's name if there are several
QUALITY = 90  # JPEG quality


def compress_image(message: Message) -> Message:
    """Return the recorded form of a sampled message: an image as JPEG, all else unchanged.

    An unreadable message is kept unchanged.

    Args:
        message: the message, with its topic's full name.
    """
    try:
        return _to_jpeg(message) if message.kind == IMAGE else message
    except Exception:  # a broken message may raise anything; it is kept unchanged
        return message


def _to_jpeg(message: Message) -> Message:
    """Compress an image like image_transport does; other encodings than rgb8 and bgr8 are kept."""
    import cv2

    image, store = typestore().deserialize_cdr(message.raw, IMAGE), typestore()
    if image.encoding not in ("rgb8", "bgr8") or image.step != 3 * image.width:
        return message
    pixels = image.data.reshape(image.height, image.width, 3)
    # takes half as long as a view
    bgr = pixels if image.encoding == "bgr8" else cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    _, jpeg = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    compressed = store.types[COMPRESSED](
        header=image.header, format=f"{image.encoding}; jpeg compressed bgr8", data=jpeg.ravel()
    )
    raw = bytes(store.serialize_cdr(compressed, COMPRESSED))
    return replace(message, topic=f"{message.topic}/compressed", kind=COMPRESSED, raw=raw)


@cache
def offered_qos(name: str) -> Qos:
    """Return the offered QoS of a topic, by its full name; ``ros2 bag play`` offers it again."""
    from rosbags import interfaces as rosbag

    try:
        row = topic(name.strip("/").partition("/")[2])
        depth, latched = row.depth, row.latched
    except RlinfError:  # /tf, and topics of other recorders
        depth, latched = 10, False
    never: Any = rosbag.QosTime(0, 0)
    durability = rosbag.QosDurability.TRANSIENT_LOCAL if latched else rosbag.QosDurability.VOLATILE
    return rosbag.Qos(
        rosbag.QosHistory.KEEP_LAST,
        depth,
        rosbag.QosReliability.RELIABLE,
        durability,
        never,
        never,
        rosbag.QosLiveliness.AUTOMATIC,
        never,
        False,
    )
