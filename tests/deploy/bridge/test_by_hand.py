"""Parts of a policy that are put together and taken apart here, beside protobuf's own."""

import pytest
from google.protobuf.message import DecodeError

from rlinf_core.deploy.bridge import bridge_pb2 as pb
from rlinf_core.deploy.bridge.policy_parts import decode, encode

PARTS = [
    pb.PolicyPart(
        version=version, sha256=sha, needs=needs, copy_offset=offset, copy_size=size, path=path
    )
    for version, sha, needs, offset, size, path in (
        (0, "", "", 0, 0, ""),
        (-1, "", "", 0, 0, ""),
        (1, "a" * 64, "", 0, 0, ""),
        (2**40, "", "", 2**63, 2**35, ""),
        (
            7,
            "b" * 64,
            "base-0123456789abcdef.safetensors",
            0,
            0,
            "/somewhere/a b/\u00e9.safetensors",
        ),
    )
]
LENGTHS = (0, 1, 127, 128, 16_383, 16_384, 1 << 19)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("part", PARTS, ids=range(len(PARTS)))
def test_what_is_put_together_by_hand_is_what_protobuf_reads_and_the_other_way_round(
    part, length, random
):
    data = random.bytes(length)
    full_part = pb.PolicyPart()
    full_part.CopyFrom(part)
    full_part.data = data
    assert pb.PolicyPart.FromString(encode(part, memoryview(data))) == full_part
    for message in (encode(part, data), full_part.SerializeToString()):
        got, came = decode(message)
        assert got == part and bytes(came) == data


def test_whoever_says_the_data_twice_or_says_what_nobody_knows_is_read_as_protobuf_does():
    twice = encode(pb.PolicyPart(version=1), b"first") + encode(pb.PolicyPart(sha256="c"), b"last")
    got, came = decode(twice)
    assert (got.version, got.sha256, bytes(came)) == (1, "c", b"last")
    # bytes, and a fixed32
    unknown = b"\x7a\x03abc" + b"\x7d\x00\x00\x00\x00" + encode(pb.PolicyPart(version=3), b"data")
    got, came = decode(unknown)
    assert (got.version, bytes(came)) == (3, b"data")


def read(how, message):
    """Version, path and data; None where it is no message."""
    try:
        part = how(message)
    except DecodeError:
        return None
    part, data = part if isinstance(part, tuple) else (part, part.data)
    return part.version, part.path, bytes(data)


def test_a_message_that_is_cut_anywhere_is_what_protobuf_makes_of_it():
    message = encode(PARTS[-1], b"x" * 300)
    for end in range(len(message)):
        assert read(decode, message[:end]) == read(pb.PolicyPart.FromString, message[:end])


def test_noise_is_an_error_of_decoding_or_what_protobuf_makes_of_it(random):
    messages = [random.bytes(int(random.integers(1, 40))) for _ in range(3000)]
    read_by_both = [
        message
        for message in messages
        if read(decode, message) and read(pb.PolicyPart.FromString, message)
    ]
    assert all(
        read(decode, message) == read(pb.PolicyPart.FromString, message) for message in read_by_both
    )
    assert len(read_by_both) > 10
