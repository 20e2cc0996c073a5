"""openpi's protocol: the fields of its messages, and their msgpack encoding. It uses no pickle.

As in openpi-client, an array is a map of ``__ndarray__``, ``data``, ``dtype`` and ``shape``, and a
NumPy scalar a map of ``__npgeneric__``, ``data`` and ``dtype``. These keys are bytes.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from rlinf_core.core.errors import AnswerError, ServingError, SpecError, escape_ascii, nearest
from rlinf_core.specs.arrays import Arrays, ArraySpec, StationSpec, other_units

KINDS = "biuf"  # allowed dtype kinds: booleans and numbers; no objects, records or texts
MAX_BYTES = 64 << 20
MAX_ELEMENTS = 100_000  # sum over all lists and maps of a message, nested ones included
MAX_DEPTH = 16
PACKER_BYTES = 1 << 20  # largest buffer of a packer between messages
MAX_DIMENSIONS = 8


class _Packers(threading.local):
    """A packer of each thread, whose buffer is allocated once."""

    def __init__(self) -> None:
        self.packer = msgpack.Packer(default=_pack, buf_size=PACKER_BYTES)


def pack(message: dict[str, Any]) -> bytes:
    """Pack a message. Raises TypeError for a value that msgpack cannot hold."""
    data: bytes = _packers.packer.pack(message)
    if len(data) > PACKER_BYTES:  # the buffer has grown to that size, and would stay so
        _packers.packer = msgpack.Packer(default=_pack, buf_size=PACKER_BYTES)
    return data


def unpack(data: bytes) -> dict[str, Any]:
    """Unpack a message; its arrays are read-only views of ``data``.

    Raises:
        ServingError: it is no msgpack map, or an array does not fit its dtype and shape.
    """
    try:
        _check_elements(data)
        # a second bound, of a reader that others wrote
        message = msgpack.unpackb(
            data, object_hook=_unpack, max_array_len=MAX_ELEMENTS, max_map_len=MAX_ELEMENTS
        )
    except ServingError:
        raise
    except Exception as error:  # msgpack passes on exceptions of hooks and of key hashes
        raise ServingError(
            f"message: expected a map in msgpack, got {len(data)} bytes that begin with "
            f"{escape_ascii(bytes(data[:8]))} ({type(error).__name__}: {escape_ascii(error)})"
        ) from error
    if not isinstance(message, dict):
        raise ServingError(f"message: expected a map in msgpack, got {type(message).__name__}")
    return message


# Of each first byte of a value: its size where that is fixed, else 0.
_OTHERS = [1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 5, 9, 2, 3, 5, 9, 2, 3, 5, 9, 3, 4, 6, 10, 18] + [0] * 7
_SIZES = [1] * 128 + [0] * 32 + [1 + length for length in range(32)] + _OTHERS + [1] * 32
# Bytes of the length behind a first byte, where there is one.
_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_EXTENSIONS = (0xC7, 0xC8, 0xC9)  # which have a byte for their type, too
_COUNTS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}  # bytes of the count, factor


def _check_elements(data: bytes) -> None:
    """Check the number of elements and levels of a message before any object is built.

    It reads the headers in place. The library's reader would copy the message.
    """
    elements, pending, at = 0, [1], 0  # pending: remaining values by level
    while pending:
        if not pending[-1]:
            pending.pop()
            continue
        pending[-1] -= 1
        kind = data[at]
        if size := _SIZES[kind]:
            at += size
            continue
        if width := _LENGTHS.get(kind, 0):
            length = int.from_bytes(data[at + 1 : at + 1 + width], "big")
            at += 1 + width + length + (kind in _EXTENSIONS)
            continue
        if kind < 0xA0:
            count, at = (2 if kind < 0x90 else 1) * (kind & 0x0F), at + 1
        elif kind in _COUNTS:
            width, factor = _COUNTS[kind]
            count = factor * int.from_bytes(data[at + 1 : at + 1 + width], "big")
            at += 1 + width
        else:
            raise ValueError(f"no value begins with {kind:#x}")
        elements += count
        if elements > MAX_ELEMENTS:
            raise ServingError(
                f"message: expected at most {MAX_ELEMENTS} elements of lists and maps in total, "
                "got more"
            )
        if len(pending) > MAX_DEPTH:
            raise ServingError(
                f"message: expected at most {MAX_DEPTH} levels of lists and maps, got more"
            )
        pending.append(count)


def _pack(value: Any) -> Any:
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in KINDS:
        type_name = (
            value.dtype if isinstance(value, np.ndarray | np.generic) else type(value).__name__
        )
        raise TypeError(
            f"expected numbers, texts, lists, maps and arrays of numbers, got {type_name}"
        )
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    data = np.ascontiguousarray(value).data.cast("B") if value.size else b""  # a view: no copy
    return {b"__ndarray__": True, b"data": data, b"dtype": value.dtype.str, b"shape": value.shape}


_packers = _Packers()


def _unpack(entry: dict[Any, Any]) -> Any:
    if b"__ndarray__" in entry:
        return _array(entry.get(b"data"), _dtype(entry.get(b"dtype")), entry.get(b"shape"))
    if b"__npgeneric__" in entry:
        return _dtype(entry.get(b"dtype")).type(entry.get(b"data"))
    return entry


@functools.lru_cache(64)
def _dtype(name: Any) -> np.dtype:
    if (
        not isinstance(name, str)
        or name[1:2] not in tuple(KINDS)
        or not name[2:].isdigit()
        or int(name[2:]) > 8
    ):
        raise ServingError(
            f"array: expected a dtype of numbers such as '<f4' or '|u1', got "
            f"{escape_ascii(name)[:40]}"
        )
    return np.dtype(name)


def _array(data: Any, dtype: np.dtype, shape: Any) -> np.ndarray:
    valid_shape = (
        isinstance(shape, list)
        and len(shape) <= MAX_DIMENSIONS
        and all(isinstance(size, int) and 0 <= size <= MAX_BYTES for size in shape)
    )
    if (
        not valid_shape
        or not isinstance(data, bytes)
        or math.prod(shape) * dtype.itemsize != len(data)
    ):
        actual = f"{len(data)} bytes" if isinstance(data, bytes) else type(data).__name__
        raise ServingError(
            f"array: expected the bytes of {dtype} in a shape of at most {MAX_DIMENSIONS} "
            f"dimensions, got {actual} for shape {escape_ascii(shape)[:80]}"
        )
    return np.frombuffer(data, dtype).reshape(shape)


# key of our extensions of openpi's protocol in metadata, requests and answers
EXTENSION_KEY = "rlinf"
STATE, PROMPT = "state", "prompt"
PREFIX = "observation/"  # optional prefix of each name, as in openpi's examples


@dataclass(frozen=True)
class Request:
    """An observation that requests an action chunk.

    Attributes:
        vectors: (V,) float32.
        images: (H, W, 3) uint8 by camera.
        instruction: instruction in words.
        explore: whether the policy explores; None if the client does not need the drawn sample.
        episode: identifier of the episode, which one version of the weights plays to its end; empty
            uses the newest version for each request.
        left: (L, A) [SI] actions of the last chunk from this observation on, which the client still
            executes (real-time chunking); None for an independent chunk.
        frozen: number of actions of ``left`` that will have started when the answer arrives.
    """

    vectors: np.ndarray
    images: Arrays
    instruction: str
    explore: bool | None = None
    episode: str = ""
    left: np.ndarray | None = None
    frozen: int = 0


def metadata(
    spec: StationSpec, version: int, horizon: int, execute: int, continues: bool
) -> dict[str, Any]:
    """Return the metadata for a new client: the observation in words, and our specs."""
    observation = {
        item.name: f"{item.dtype}{list(item.shape)} {item.unit}".strip()
        for item in spec.observation
    }
    return {
        "policy": "rlinf",
        "observation": observation,
        "action": list(spec.action.names),
        "action_units": list(spec.action.units),
        "action_horizon": horizon,
        EXTENSION_KEY: {
            "version": version,
            "spec": spec.to_dict(),
            "execute": execute,
            "continues": continues,
        },
    }


def read_request(spec: StationSpec, message: Mapping[str, Any], needs_instruction: bool) -> Request:
    """Read the request in a client's message.

    Raises:
        SpecError: a field is missing, unknown, or has another type or shape than the spec.
    """
    fields = {str(key).removeprefix(PREFIX): value for key, value in message.items()}
    names = {STATE, PROMPT, EXTENSION_KEY} | {item.name for item in spec.observation}
    for name in fields.keys() - names:
        expected = ", ".join([*(item.name for item in spec.observation), PROMPT])
        raise SpecError(
            f"observation: unknown '{escape_ascii(name)}'; expected "
            f"{expected}{nearest(name, names)}"
        )
    if STATE in fields:
        vectors = _field(ArraySpec(STATE, (spec.vector_size,)), fields)
    else:
        vectors = (
            spec.flatten({item.name: _field(item, fields) for item in spec.vectors})
            if spec.vectors
            else np.zeros(0, np.float32)
        )
    images = {item.name: _field(item, fields) for item in spec.images}
    instruction = fields.get(PROMPT, spec.instruction)
    if not isinstance(instruction, str) or (needs_instruction and not instruction.strip()):
        raise SpecError(
            f"{PROMPT}: expected an instruction, which this policy needs, got {instruction!r:.40}"
        )
    return Request(vectors, images, instruction, **_extension(spec, fields.get(EXTENSION_KEY, {})))


def check_keys(spec: StationSpec, keys: Mapping[str, str]) -> None:
    """Check that the client has each of ``keys``. Raises SpecError that names the missing one."""
    names = [*(item.name for item in spec.observation), STATE, PROMPT]
    for name in keys:
        if name not in names:
            raise SpecError(
                f"station.policy.keys: expected {', '.join(names)}, got "
                f"'{name}'{nearest(name, names)}"
            )


def observation_message(
    spec: StationSpec, named: Arrays, instruction: str, keys: Mapping[str, str]
) -> dict[str, Any]:
    """Return the client's message with all observations, or with those in ``keys``."""
    message: dict[str, Any] = {**named, PROMPT: instruction}
    if not keys:
        return message
    if STATE in keys:
        message[STATE] = spec.flatten(named)
    return {key: message[name] for name, key in keys.items()}


def read_actions(spec: StationSpec, answer: Mapping[str, Any]) -> np.ndarray:
    """Return the actions (H, A) [SI] of an answer, clipped to the task's bounds.

    A value far beyond its bound is an error, since it is in other units.

    Raises:
        AnswerError: the actions do not fit the task; none of them must be executed.
    """
    actions, size = answer.get("actions"), spec.action.dim
    if (
        not isinstance(actions, np.ndarray)
        or actions.ndim != 2
        or actions.shape[1] != size
        or not 0 < len(actions) <= 1000
    ):
        actual = actions.shape if isinstance(actions, np.ndarray) else type(actions).__name__
        raise AnswerError(
            f"answer: expected 'actions' of shape (1 to 1000, {size}) for "
            f"{', '.join(spec.action.names)}, got {actual}. Serve a policy of this task"
        )
    if actions.dtype.kind != "f":
        raise AnswerError(
            f"answer: expected actions of float32 or float64, got {actions.dtype}. "
            "Serve a policy of this task"
        )
    if not np.isfinite(actions).all():
        raise AnswerError("answer: expected finite actions, got NaN or Inf")
    if wrong := other_units(spec.action, actions.min(axis=0), actions.max(axis=0)):
        raise AnswerError(
            f"answer: {wrong} Serve a policy of this task with answers in SI units. The station "
            "does not play this answer"
        )
    return np.clip(actions.astype(float), -np.array(spec.action.scale), spec.action.scale)


def read_extension(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Read the extra data of our own servers. Raises AnswerError if they are malformed."""
    extension = answer.get(EXTENSION_KEY, {})
    if not isinstance(extension, dict):
        raise AnswerError(
            f"answer: expected a map in '{EXTENSION_KEY}', got {type(extension).__name__}"
        )
    if type(version := extension.get("version", 0)) is not int or not -1 <= version < 2**63:
        raise AnswerError(
            f"answer: expected a version of -1 or more, got {escape_ascii(version)[:40]}"
        )
    for name in ("drawn", "log_probs"):
        value = extension.get(name, np.zeros(1, np.float32))
        if name == "log_probs" and value is None:
            continue
        if (
            not isinstance(value, np.ndarray)
            or value.dtype.kind not in "if"
            or not value.ndim
            or not np.isfinite(value).all()
        ):
            actual = (
                f"{value.dtype}{list(value.shape)}"
                if isinstance(value, np.ndarray)
                else type(value).__name__
            )
            raise AnswerError(
                f"answer: expected '{name}' as an array of finite numbers, got {actual}"
            )
    return extension


def check_horizon(actions: np.ndarray, horizon: int, execute: int) -> None:
    """Check the length of a chunk.

    Args:
        actions: (H, A).
        horizon: length of the server's earlier chunks; 0 if there is none.
        execute: number of executed actions of a chunk; 0 for all.

    Raises:
        AnswerError: the length differs from ``horizon``, or is less than ``execute``.
    """
    if (horizon and len(actions) != horizon) or len(actions) < execute:
        expected = str(horizon) if horizon else f"{execute} or more (the executed ones)"
        raise AnswerError(
            f"answer: expected {expected} actions in a chunk, got {len(actions)}. Set "
            "station.policy.n_action_steps to the server's number, or serve another policy"
        )


def _field(item: ArraySpec, fields: Mapping[str, Any]) -> np.ndarray:
    """Return the array of an item after a check with its spec; it is not scaled or rounded."""
    value = fields.get(item.name)
    if not isinstance(value, np.ndarray):
        actual = "nothing" if item.name not in fields else type(value).__name__
        raise SpecError(
            f"observation '{item.name}': expected an array {item.dtype}{list(item.shape)}, got "
            f"{actual}"
        )
    if item.dtype == "uint8" and value.dtype != np.uint8:
        raise SpecError(f"observation '{item.name}': expected uint8, 0 to 255, got {value.dtype}")
    try:
        return item.check(value)
    except SpecError as error:
        raise SpecError(f"observation {error}") from error


def _extension(spec: StationSpec, options: Any) -> dict[str, Any]:
    """Return the extra data of our own clients."""
    if (
        not isinstance(options, dict)
        or not options.keys() <= {"explore", "episode", "left", "frozen"}
        or not isinstance(options.get("explore"), bool | None)
    ):
        raise SpecError(
            f"{EXTENSION_KEY}: expected a map of explore (a boolean), episode, left and frozen, "
            f"got {escape_ascii(options)[:80]}"
        )
    return {
        "explore": options.get("explore"),
        "episode": str(options.get("episode", "")),
    } | _in_play(spec, options)


def _in_play(spec: StationSpec, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields ``left`` and ``frozen`` of a client's current chunk.

    The result is empty if the client sends neither.
    """
    left, frozen = options.get("left"), options.get("frozen", 0)
    if left is None:
        return {}
    if (
        not isinstance(left, np.ndarray)
        or left.ndim != 2
        or left.shape[1] != spec.action.dim
        or len(left) > 1000
        or left.dtype.kind != "f"
        or not np.isfinite(left).all()
    ):
        actual = (
            f"{left.dtype}{list(left.shape)}"
            if isinstance(left, np.ndarray)
            else type(left).__name__
        )
        raise SpecError(
            f"{EXTENSION_KEY}.left: expected finite actions of shape (at most 1000, "
            f"{spec.action.dim}), got {actual}"
        )
    if not isinstance(frozen, int) or isinstance(frozen, bool) or not 0 <= frozen <= 1000:
        raise SpecError(
            f"{EXTENSION_KEY}.frozen: expected a number of actions, 0 to 1000, got "
            f"{escape_ascii(frozen)[:40]}"
        )
    return {"left": left, "frozen": frozen}
