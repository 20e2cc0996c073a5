"""Parts of a policy file on the wire: the missing tensors, in an encoding that copies data once.

The encoding is valid protobuf. Concatenated messages merge their fields (protobuf.dev, Encoding,
"Last One Wins"). So the library encodes a part without its data, and the data field is appended.

Only the trainer parses tensors. A station receives byte ranges, of its own file or of the message,
and the hash of the whole file. It verifies the result by that hash.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from rlinf_core.deploy.bridge import bridge_pb2 as pb

Bytes: TypeAlias = "bytes | memoryview"
# tag of the field: bytes, whose length follows
DATA = pb.PolicyPart.DESCRIPTOR.fields_by_name["data"].number << 3 | 2


def encode(part: pb.PolicyPart, data: Bytes = b"") -> bytes:
    """Return the message of ``part`` with ``data`` appended."""
    head = part.SerializeToString()
    return b"".join((head, bytes([DATA]), _varint(len(data)), data)) if data else head


def decode(message: bytes) -> tuple[pb.PolicyPart, Bytes]:
    """Return the part without its data, and the data as a view of the message.

    Raises:
        DecodeError: the message is not a valid part.
    """
    before, start, end = _data(message)
    if not before <= start <= end <= len(message):
        raise DecodeError(
            f"PolicyPart.data: expected {end - start} bytes, got {len(message) - start}"
        )
    part = pb.PolicyPart.FromString(message[:before] + message[end:])
    if not part.data:
        return part, memoryview(message)[start:end]
    part = pb.PolicyPart.FromString(message)  # the field occurs twice
    return part, part.data


def _data(message: bytes) -> tuple[int, int, int]:
    """Return the offsets of the data field's tag, of its first byte and of its end.

    All are the message's end if it has no data field.
    """
    at = 0
    while at < len(message):
        before = at
        tag, at = _number(message, at)
        if tag & 7 == 2:
            length, at = _number(message, at)
            if tag == DATA:
                return before, at, at + length
            at += length
        elif tag & 7 == 0:
            at = _number(message, at)[1]
        else:
            break
    return (len(message),) * 3


def _number(message: bytes, at: int) -> tuple[int, int]:
    """Return the varint at offset ``at``, and the offset behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise DecodeError("PolicyPart: expected a number, got the message's end")
        value |= (message[at] & 127) << shift
        at += 1
        if message[at - 1] < 128:
            return value, at
    raise DecodeError("PolicyPart: expected a number of at most 10 bytes, got a longer one")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


MIN_RANGE_BYTES = 256  # bytes: a reference to a shorter range costs about as much as the range


class Tensor(NamedTuple):
    """Offsets [bytes] and digest of a tensor, or of the header, in its file."""

    start: int
    end: int
    digest: bytes


class Range(NamedTuple):
    """Bytes ``start`` to ``end`` of the new file; ``copy`` is their offset in the base, or None."""

    start: int
    end: int
    copy: int | None = None


def tensor_spans(data: Bytes) -> list[Tensor]:
    """Return the tensors of a safetensors file, with the header first.

    Empty for any other file, which is then sent in full.
    """
    try:
        begin = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(bytes(data[8:begin]))
        spans = sorted(
            entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"
        )
        spans = [(0, begin), *((begin + start, begin + end) for start, end in spans)]
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return []
    if [start for start, _ in spans[1:]] + [len(data)] != [end for _, end in spans]:
        return []
    view = memoryview(data)
    return [
        Tensor(start, end, blake2b(view[start:end], digest_size=16).digest())
        for start, end in spans
    ]


def base_of(data: Bytes) -> str:
    """Return the hash of the base weights, from the metadata of an adapter's file.

    The hash is empty if the metadata has none.
    """
    try:
        end = 8 + int.from_bytes(data[:8], "little")
        base = json.loads(bytes(data[8:end]))["__metadata__"]["base"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
    return base if isinstance(base, str) else ""


def ranges(size: int, new: list[Tensor], base: Mapping[bytes, int]) -> Iterator[Range]:
    """Yield consecutive ranges that cover a file of ``size`` bytes with the tensors ``new``.

    Args:
        size: bytes of the file.
        new: tensors of the file.
        base: offset in the base file by digest of its tensors.
    """
    at = 0
    for run in _shared_ranges(new, base):
        if run.end - run.start >= MIN_RANGE_BYTES and run.start >= at:
            yield from [Range(at, run.start)] if run.start > at else []
            yield run
            at = run.end
    yield from [Range(at, size)] if size > at else []


def _shared_ranges(new: list[Tensor], base: Mapping[bytes, int]) -> Iterator[Range]:
    """Yield the ranges that the base file holds, joined where they are contiguous in both files."""
    run: Range | None = None
    for tensor in new:
        copy = base.get(tensor.digest)
        if copy is None:
            continue
        if (
            run is not None
            and run.copy is not None
            and (run.end, run.copy + run.end - run.start) == (tensor.start, copy)
        ):
            run = Range(run.start, tensor.end, run.copy)
        else:
            yield from [run] if run else []
            run = Range(tensor.start, tensor.end, copy)
    yield from [run] if run else []
