"""The fields of messages, to their last bound and word."""

import threading

import msgpack
import numpy as np
import pytest

from rlinf_core.core.errors import AnswerError, ServingError, SpecError
from rlinf_core.deploy.serving import protocol
from rlinf_core.deploy.serving.protocol import (
    EXTENSION_KEY,
    MAX_ELEMENTS,
    PACKER_BYTES,
    check_horizon,
    check_keys,
    metadata,
    observation_message,
    pack,
    read_actions,
    read_extension,
    read_request,
    unpack,
)
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec

pytestmark = pytest.mark.timed

FRONT = ArraySpec("front", (4, 6, 3), "uint8", "", (0.0,), (255.0,), "camera/front", "image")
SPEC = StationSpec(
    (ArraySpec("pose", (3,), "float32", "m"), FRONT, ArraySpec("grip", (1,))),
    ActionSpec("tcp_delta", ("dx", "dy"), (0.5, 0.25), ("m", "rad")),
    10.0,
    "push it",
)
OBSERVED = {
    "pose": np.array([1.0, 2.0, 3.0], np.float32),
    "grip": np.array([4.0], np.float32),
    "front": np.full((4, 6, 3), 9, np.uint8),
}


def message_of(kind, call, *arguments):
    with pytest.raises(kind) as refused:
        call(*arguments)
    return str(refused.value)


# msgpack
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::2],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(5.0),
        np.array([True, False]),
        np.zeros((2, 0, 3), np.uint8),
        np.zeros((1,) * 8, np.float16),
    ],
)
def test_arrays_come_back_as_they_were(array):
    data = pack({"a": array})
    read = unpack(data)["a"]
    assert read.dtype == array.dtype and read.shape == array.shape and np.array_equal(read, array)
    assert not read.flags.writeable
    entry = msgpack.unpackb(data, strict_map_key=False)["a"]
    assert entry == {
        b"__ndarray__": True,
        b"data": np.ascontiguousarray(array).tobytes(),
        b"dtype": array.dtype.str,
        b"shape": list(array.shape),
    }
    number = msgpack.unpackb(pack({"a": np.int16(-7)}), strict_map_key=False)["a"]
    assert number == {b"__npgeneric__": True, b"data": -7, b"dtype": "<i2"}


@pytest.mark.parametrize(
    "value, shown",
    [
        (np.array(["a"]), "<U1"),
        (np.array([{}], object), "object"),
        (np.complex64(1), "complex64"),
        (np.datetime64("2026-01-01"), "datetime64[D]"),
        ({1, 2}, "set"),
        (object(), "object"),
    ],
)
def test_what_cannot_be_packed_is_named(value, shown):
    assert message_of(TypeError, pack, {"a": value}) == (
        f"expected numbers, texts, lists, maps and arrays of numbers, got {shown}"
    )


def expected_bytes(dtype, actual, shape):
    return (
        f"array: expected the bytes of {dtype} in a shape of at most 8 dimensions, got {actual} "
        f"for shape {shape}"
    )


def key(name, value):
    return {name.encode(): value}


@pytest.mark.parametrize(
    "change, message",
    [
        (key("shape", [2, 2]), expected_bytes("uint8", "6 bytes", "[2, 2]")),
        (key("shape", [-2, -3]), expected_bytes("uint8", "6 bytes", "[-2, -3]")),
        (key("shape", [6.0]), expected_bytes("uint8", "6 bytes", "[6.0]")),
        (key("shape", 6), expected_bytes("uint8", "6 bytes", "6")),
        (key("shape", "no"), expected_bytes("uint8", "6 bytes", "None")),
        (key("shape", [1] * 8 + [6]), expected_bytes("uint8", "6 bytes", [1] * 8 + [6])),
        (key("shape", [2, 3, 0]), expected_bytes("uint8", "6 bytes", "[2, 3, 0]")),
        (key("shape", [0, (64 << 20) + 1]), expected_bytes("uint8", "6 bytes", "[0, 67108865]")),
        (key("data", "abcdef"), expected_bytes("uint8", "str", "[2, 3]")),
        (key("data", "no"), expected_bytes("uint8", "NoneType", "[2, 3]")),
        (key("dtype", "<f2"), expected_bytes("float16", "6 bytes", "[2, 3]")),
        *(
            (
                key("dtype", dtype),
                "array: expected a dtype of numbers such as '<f4' or '|u1', got "
                + str(None if dtype == "no" else dtype)[:40],
            )
            for dtype in ("|O8", "<U4", "<f16", "<c8", "f", "<f", 4, "no", "<x" * 30, "<f4x")
        ),
    ],
)
def test_arrays_that_contradict_themselves_are_refused_in_full(change, message):
    entry = {b"__ndarray__": True, b"data": b"abcdef", b"dtype": "|u1", b"shape": [2, 3]} | change
    entry = {name: value for name, value in entry.items() if value != "no"}
    assert message_of(ServingError, unpack, msgpack.packb({"a": entry})) == message


def test_maps_without_an_array_s_key_are_maps():
    message = {"a": {b"data": b"x", b"shape": [1]}, "b": {"__ndarray__": True}}
    assert unpack(msgpack.packb(message)) == message
    scalar = {b"__npgeneric__": True, b"data": 2, b"dtype": "<f8"}
    read = unpack(msgpack.packb({"a": scalar}))["a"]
    assert read == 2.0 and read.dtype == np.float64


@pytest.mark.parametrize(
    "data, message",
    [
        (msgpack.packb([1]), "message: expected a map in msgpack, got list"),
        (msgpack.packb(7), "message: expected a map in msgpack, got int"),
        (
            b"",
            "message: expected a map in msgpack, got 0 bytes that begin with b'' (IndexError: index "
            "out of range)",
        ),
        (
            b"\xc1garbage and more",
            "message: expected a map in msgpack, got 17 bytes that begin with b'\\\\xc1garbage' "
            "(ValueError: no value begins with 0xc1)",
        ),
    ],
)
def test_what_is_no_map_is_told(data, message):
    assert message_of(ServingError, unpack, data) == message


def test_elements_are_counted_to_the_last():
    most = [0] * (MAX_ELEMENTS - 2)
    assert len(unpack(pack({"a": most}))["a"]) == MAX_ELEMENTS - 2
    assert message_of(ServingError, unpack, pack({"a": [*most, 0]})) == (
        "message: expected at most 100000 elements of lists and maps in total, got more"
    )
    levels = 1
    for _ in range(16):
        levels = [levels]
    assert message_of(ServingError, unpack, pack({"a": levels})) == (
        "message: expected at most 16 levels of lists and maps, got more"
    )
    assert unpack(pack({"a": levels[0]}))["a"] == levels[0]


@pytest.mark.parametrize("size", [0, 15, 16, 17, 255, 256, 65_535, 65_536])
@pytest.mark.parametrize("kind", ["list", "map", "bytes", "text", "extension"])
def test_lengths_of_each_header_are_read_to_their_bounds(kind, size):
    value = {
        "list": lambda: [1] * size,
        "map": lambda: dict.fromkeys(range(min(size, 45_000)), 1),
        "bytes": lambda: b"a" * size,
        "text": lambda: "a" * size,
        "extension": lambda: msgpack.ExtType(3, b"a" * size),
    }[kind]()
    data = msgpack.packb({"a": value, "b": 2})
    protocol._check_elements(data)
    with pytest.raises(IndexError):
        protocol._check_elements(data[:-1])
    if kind != "map":
        assert unpack(data) == {"a": value, "b": 2}


@pytest.mark.parametrize("value", [0, 127, 128, 255, 256, 65_535, 65_536, 2**32, -1, -32, -33, -129, -40_000, -(2**40), 1.5, None, True, False])  # fmt: skip
def test_numbers_of_each_size_are_passed_over(value):
    data = msgpack.packb({"a": value, "b": [value] * 3, "c": 2})
    protocol._check_elements(data)
    assert unpack(data) == {"a": value, "b": [value] * 3, "c": 2}
    with pytest.raises(IndexError):
        protocol._check_elements(data[:-1])


def test_every_thread_has_its_packer_and_a_large_message_leaves_it_small():
    packers = []

    def note():
        pack({"a": 1})
        packers.append(protocol._packers.packer)

    note()
    thread = threading.Thread(target=note)
    thread.start()
    thread.join()
    assert packers[0] is not packers[1]
    pack({"a": b"x" * (PACKER_BYTES // 2)})
    assert protocol._packers.packer is packers[0]
    pack({"a": b"x" * PACKER_BYTES})
    assert protocol._packers.packer is not packers[0]
    assert unpack(pack({"a": np.ones(3)}))["a"].tolist() == [1.0] * 3


# Requests
def test_metadata_say_what_is_observed_and_done():
    assert metadata(SPEC, 7, 8, 4, False) == {
        "policy": "rlinf",
        "observation": {"pose": "float32[3] m", "front": "uint8[4, 6, 3]", "grip": "float32[1]"},
        "action": ["dx", "dy"],
        "action_units": ["m", "rad"],
        "action_horizon": 8,
        "rlinf": {"version": 7, "spec": SPEC.to_dict(), "execute": 4, "continues": False},
    }


def test_a_request_is_read_in_its_parts():
    extension = {"explore": True, "episode": "e", "left": np.ones((3, 2)), "frozen": 2}
    request = read_request(SPEC, OBSERVED | {"prompt": "pull", EXTENSION_KEY: extension}, True)
    assert request.vectors.tolist() == [1.0, 2.0, 3.0, 4.0] and request.vectors.dtype == np.float32
    assert request.images.keys() == {"front"} and (request.images["front"] == 9).all()
    assert (request.instruction, request.explore, request.episode, request.frozen) == (
        "pull",
        True,
        "e",
        2,
    )
    assert request.left is extension["left"]
    plain = read_request(SPEC, OBSERVED, True)
    assert (plain.instruction, plain.explore, plain.episode) == ("push it", None, "")
    assert (plain.left, plain.frozen) == (None, 0)
    state = {"observation/state": np.arange(4.0), "observation/front": OBSERVED["front"]}
    assert read_request(SPEC, state, False).vectors.tolist() == [0.0, 1.0, 2.0, 3.0]
    blind = StationSpec((FRONT,), SPEC.action, 10.0)
    of_images = read_request(blind, {"front": OBSERVED["front"], "prompt": " "}, False)
    assert of_images.vectors.shape == (0,) and of_images.vectors.dtype == np.float32
    assert of_images.instruction == " "


def text_of(value):
    return (
        "rlinf: expected a map of explore (a boolean), episode, left and frozen, got "
        + str(value)[:80]
    )


def left_of(shown):
    return f"rlinf.left: expected finite actions of shape (at most 1000, 2), got {shown}"


def frozen_of(shown):
    return f"rlinf.frozen: expected a number of actions, 0 to 1000, got {shown}"


LEFT = np.ones((4, 2))


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"abcdefgh\x1b": 1},
            "observation: unknown 'abcdefgh\\x1b'; expected pose, front, grip, prompt",
        ),
        (
            {"frnt": 1},
            "observation: unknown 'frnt'; expected pose, front, grip, prompt (did you mean 'front'?)",
        ),
        ({"pose": 3}, "observation 'pose': expected an array float32[3], got int"),
        ({"state": [1]}, "observation 'state': expected an array float32[4], got list"),
        (
            {"front": OBSERVED["front"].astype(np.int64)},
            "observation 'front': expected uint8, 0 to 255, got int64",
        ),
        ({"prompt": " "}, "prompt: expected an instruction, which this policy needs, got ' '"),
        (
            {"prompt": b"x" * 60},
            "prompt: expected an instruction, which this policy needs, got b'" + "x" * 38,
        ),
        ({EXTENSION_KEY: 3}, text_of(3)),
        ({EXTENSION_KEY: {"explore": 1}}, text_of({"explore": 1})),
        ({EXTENSION_KEY: {"more": "x" * 90}}, text_of({"more": "x" * 90})),
        ({EXTENSION_KEY: {"left": "all"}}, left_of("str")),
        ({EXTENSION_KEY: {"left": LEFT[:, :1]}}, left_of("float64[4, 1]")),
        ({EXTENSION_KEY: {"left": LEFT.astype(int)}}, left_of("int64[4, 2]")),
        ({EXTENSION_KEY: {"left": np.ones((1001, 2))}}, left_of("float64[1001, 2]")),
        ({EXTENSION_KEY: {"left": LEFT * np.inf}}, left_of("float64[4, 2]")),
        ({EXTENSION_KEY: {"left": LEFT[0]}}, left_of("float64[2]")),
        ({EXTENSION_KEY: {"left": LEFT, "frozen": -1}}, frozen_of("-1")),
        ({EXTENSION_KEY: {"left": LEFT, "frozen": 1001}}, frozen_of("1001")),
        ({EXTENSION_KEY: {"left": LEFT, "frozen": True}}, frozen_of("True")),
        ({EXTENSION_KEY: {"left": LEFT, "frozen": "x" * 60}}, frozen_of("x" * 40)),
    ],
)
def test_a_request_that_does_not_fit_is_refused_in_full(change, message):
    assert message_of(SpecError, read_request, SPEC, OBSERVED | change, True) == message


def test_a_field_is_refused_with_the_words_of_its_spec():
    message = message_of(SpecError, read_request, SPEC, OBSERVED | {"grip": np.zeros(2)}, False)
    assert message.startswith("observation 'grip'") or message.startswith("observation grip")
    assert "shape" in message
    lacking = {name: value for name, value in OBSERVED.items() if name != "grip"}
    assert message_of(SpecError, read_request, SPEC, lacking, False) == (
        "observation 'grip': expected an array float32[1], got nothing"
    )


def test_keys_are_those_of_the_task_or_named():
    check_keys(SPEC, {"pose": "a", "front": "b", "grip": "c", "state": "d", "prompt": "e"})
    assert message_of(SpecError, check_keys, SPEC, {"pose": "a", "prmpt": "b"}) == (
        "station.policy.keys: expected pose, front, grip, state, prompt, got 'prmpt' (did you mean "
        "'prompt'?)"
    )


def test_a_client_sends_everything_or_what_its_keys_name():
    assert observation_message(SPEC, OBSERVED, "push", {}) == {**OBSERVED, "prompt": "push"}
    sent = observation_message(SPEC, OBSERVED, "push", {"state": "s", "front": "f", "grip": "g"})
    assert sent.keys() == {"s", "f", "g"} and sent["s"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert sent["f"] is OBSERVED["front"] and sent["g"] is OBSERVED["grip"]


# Answers
def test_actions_are_taken_within_the_largest_steps():
    actions = np.array([[0.6, 0.1], [-0.6, -0.3], [0.2, 0.0]], np.float32)
    taken = read_actions(SPEC, {"actions": actions})
    assert taken.dtype == np.float64
    assert taken == pytest.approx(np.array([[0.5, 0.1], [-0.5, -0.25], [0.2, 0.0]]))
    assert len(read_actions(SPEC, {"actions": np.zeros((1000, 2))})) == 1000
    assert len(read_actions(SPEC, {"actions": np.zeros((1, 2))})) == 1


def shape_of(shown):
    return (
        f"answer: expected 'actions' of shape (1 to 1000, 2) for dx, dy, got {shown}. Serve a "
        "policy of this task"
    )


@pytest.mark.parametrize(
    "actions, message",
    [
        (np.zeros((8, 3)), shape_of("(8, 3)")),
        (np.zeros(2), shape_of("(2,)")),
        (np.zeros((0, 2)), shape_of("(0, 2)")),
        (np.zeros((1001, 2)), shape_of("(1001, 2)")),
        (np.zeros((1, 2, 2)), shape_of("(1, 2, 2)")),
        ([[0.0, 0.0]], shape_of("list")),
        (None, shape_of("NoneType")),
        (
            np.zeros((4, 2), np.int64),
            "answer: expected actions of float32 or float64, got int64. Serve a policy of this task",
        ),
        (np.full((1, 2), np.nan), "answer: expected finite actions, got NaN or Inf"),
        (
            np.array([[9.0, 0.0], [-8.0, 0.0]]),
            "answer: expected 'dx' within 0.5 m in both directions (a step of the station), got -8 "
            "to 9. Are its actions of another kind, or in other units? Serve a policy of this task "
            "with answers in SI units. The station does not play this answer",
        ),
    ],
)
def test_answers_of_another_task_are_refused_in_full(actions, message):
    assert message_of(AnswerError, read_actions, SPEC, {"actions": actions}) == message


@pytest.mark.parametrize(
    "extension, message",
    [
        ([1], "expected a map in 'rlinf', got list"),
        ({"version": "x" * 60}, "expected a version of -1 or more, got " + "x" * 40),
        ({"version": -2}, "expected a version of -1 or more, got -2"),
        ({"version": 2**63}, f"expected a version of -1 or more, got {2**63}"),
        ({"version": True}, "expected a version of -1 or more, got True"),
        ({"drawn": "a"}, "expected 'drawn' as an array of finite numbers, got str"),
        (
            {"drawn": np.zeros((2, 3), bool)},
            "expected 'drawn' as an array of finite numbers, got bool[2, 3]",
        ),
        (
            {"drawn": np.array(1.0)},
            "expected 'drawn' as an array of finite numbers, got float64[]",
        ),
        (
            {"log_probs": np.array([0.0, np.nan])},
            "expected 'log_probs' as an array of finite numbers, got float64[2]",
        ),
        ({"drawn": None}, "expected 'drawn' as an array of finite numbers, got NoneType"),
    ],
)
def test_extra_data_that_are_malformed_are_refused_in_full(extension, message):
    assert message_of(AnswerError, read_extension, {EXTENSION_KEY: extension}) == (
        f"answer: {message}"
    )


def test_extra_data_are_taken_as_they_are():
    assert read_extension({"actions": 3}) == {}
    for extension in (
        {"version": -1},
        {"version": 2**63 - 1},
        {"drawn": np.zeros(1, np.int64), "log_probs": np.zeros(2)},
        {"log_probs": None, "more": "x"},
    ):
        assert read_extension({EXTENSION_KEY: extension}) is extension


@pytest.mark.parametrize(
    "length, horizon, execute, expected",
    [(7, 8, 0, "8"), (3, 0, 4, "4 or more (the executed ones)"), (3, 3, 4, "3")],
)
def test_a_chunk_of_another_length_is_refused_in_full(length, horizon, execute, expected):
    message = message_of(AnswerError, check_horizon, np.zeros((length, 2)), horizon, execute)
    assert message == (
        f"answer: expected {expected} actions in a chunk, got {length}. Set "
        "station.policy.n_action_steps to the server's number, or serve another policy"
    )
