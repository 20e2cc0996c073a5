"""LeRobot's asynchronous inference: its own client, and a client by hand with what it never
sends.
"""

import asyncio
import enum
import os
import pickle
import subprocess
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
import torch

from rlinf_core.cli.main import main
from rlinf_core.core.errors import ServingError, SpecError
from rlinf_core.deploy.serving import lerobot, lerobot_pb2
from rlinf_core.deploy.serving.server import PolicyServer
from rlinf_core.deploy.serving.weights import Weights
from rlinf_core.policies.base import Observation
from rlinf_core.policies.policy_folder import policy_name
from rlinf_core.policies.serialization import save_policy
from tests.deploy.serving.test_server_inside import Inside
from tests.deploy.serving.test_serving import policy_of, spec  # noqa: F401

pytestmark = pytest.mark.timed
VENV = Path(".venvs/lerobot").resolve()
HELPERS = "lerobot.async_inference.helpers"


class Record:
    """A stand-in for a record of LeRobot's, with the same fields."""

    def __init__(self, **fields):
        vars(self).update(fields)


def record(name, **fields):
    return type(name, (Record,), {"__module__": HELPERS, "__qualname__": name})(**fields)


@pytest.fixture
def pickled(monkeypatch):
    """Pickles of LeRobot's classes, whose module is made for that."""
    module = types.ModuleType(HELPERS)
    for name in ("RemotePolicyConfig", "TimedObservation", "TimedAction"):
        setattr(module, name, type(name, (Record,), {"__module__": HELPERS, "__qualname__": name}))
    for name in ("lerobot", "lerobot.async_inference"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, HELPERS, module)

    def dumped(kind, protocol=4, **fields):
        return pickle.dumps(getattr(module, kind)(**fields), protocol)

    return dumped


class Peer:
    """A client by hand."""

    def __init__(self, port):
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def _unary(self, name, request=b""):
        call = self.channel.unary_unary(f"/transport.AsyncInference/{name}")
        return call(request, timeout=20)

    def ready(self):
        return self._unary("Ready")

    def setup(self, data):
        return self._unary(
            "SendPolicyInstructions", lerobot_pb2.PolicySetup(data=data).SerializeToString()
        )

    def observe(self, data, size=2 << 20):
        parts = [
            lerobot_pb2.Observation(transfer_state=2, data=data[at : at + size]).SerializeToString()
            for at in range(0, len(data), size)
        ]
        return self.channel.stream_unary("/transport.AsyncInference/SendObservations")(
            iter(parts), timeout=20
        )

    def actions(self):
        return lerobot_pb2.Actions.FromString(self._unary("GetActions")).data

    def health(self):
        return self.channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=20)


def features(spec):
    names = [f"n{index}" for index in range(spec.vector_size)]
    cameras = {
        f"observation.images.{image.name}": {
            "dtype": "image",
            "shape": image.shape,
            "names": ["h", "w", "c"],
        }
        for image in spec.images
    }
    return names, {
        "observation.state": {"dtype": "float32", "shape": (len(names),), "names": names},
        **cameras,
    }


@pytest.fixture
def served(tmp_path, spec):
    save_policy(policy_of(spec, 0), tmp_path / policy_name(1))
    inside = Inside(Weights(tmp_path), lerobot_port=0)
    peer = Peer(inside.lerobot)
    yield inside, peer
    peer.channel.close()
    inside.end()


def given(spec, seed=0):
    random = np.random.default_rng(seed)
    names, _ = features(spec)
    vectors = random.normal(size=len(names)).astype(np.float32)
    pictures = {
        image.name: random.integers(0, 256, image.shape).astype(np.uint8) for image in spec.images
    }
    return vectors, dict(zip(names, vectors.tolist(), strict=True)) | pictures


def expected(spec, vectors, pictures):
    images = {image.name: torch.from_numpy(pictures[image.name])[None] for image in spec.images}
    chunk = policy_of(spec, 0).act(
        Observation(torch.from_numpy(vectors)[None], images, ("insert",)), False
    )
    return spec.action.to_si(chunk.actions.numpy())[0]


def test_a_client_by_hand_is_answered_with_the_policys_chunk(served, spec, pickled):
    (_, peer), (vectors, observation) = served, given(spec)
    peer.ready()
    peer.setup(
        pickled("RemotePolicyConfig", lerobot_features=features(spec)[1], actions_per_chunk=6)
    )
    for protocol in (4, 5):
        fields = {
            "timestamp": 12.5,
            "timestep": protocol,
            "must_go": False,
            "observation": observation | {"task": "insert"},
        }
        peer.observe(pickled("TimedObservation", protocol, **fields), 1000)
        actions = pickle.loads(peer.actions())
        chunk = np.stack([action.action.numpy() for action in actions])
        assert np.allclose(chunk, expected(spec, vectors, observation)[:6], atol=1e-6)
        assert [action.timestep for action in actions] == [*range(protocol, protocol + 6)]
        assert [action.timestamp for action in actions] == pytest.approx(
            [12.5 + index / spec.control_hz for index in range(6)]
        )
    peer.observe(pickled("TimedObservation", **fields))
    assert not peer.actions(), "this time step was answered"
    assert peer.health() == b"\x08\x01"
    larger = observation | {
        image.name: np.zeros((2 * image.shape[0], *image.shape[1:]), np.uint8)
        for image in spec.images
    }
    peer.observe(pickled("TimedObservation", **fields | {"observation": larger, "timestep": 9}))
    assert pickle.loads(peer.actions())[0].timestep == 9


class Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/owned",)


class Dtype:
    def __reduce__(self):
        return np.dtype, ("O",)


class Kind(str, enum.Enum):
    STATE = "STATE"


@pytest.mark.parametrize(
    "value, error",
    [
        (Evil(), "got posix.system. It is not unpickled"),
        (Dtype(), "expected a dtype of numbers, got O"),
        (Kind.STATE, "It is not unpickled"),
        (np.array([{}], object), "expected a dtype of numbers|got _codecs.encode"),
        ([[] for _ in range(20_000)], "at most 10000 operations"),
        (np.memmap, "got numpy.memmap. It is not unpickled"),
    ],
)
def test_a_pickle_with_anything_else_is_refused_and_not_run(value, error):
    Path("/tmp/owned").unlink(missing_ok=True)
    for protocol in (2, 4, 5):
        with pytest.raises(SpecError, match=error):
            lerobot.unpickle(pickle.dumps(value, protocol))
    assert not Path("/tmp/owned").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04",
        b"cnumpy\ndtype\n(S'f4'\ntR.",
        b"\x80\x04\x8c\x05numpy\x8c\x07ndarray\x93N}\x8c\x05_makeK\x01s\x86b.",
    ],
)
def test_bytes_that_are_no_pickle_or_change_a_stand_in_do_no_harm(data):
    try:
        lerobot.unpickle(data)
    except SpecError as error:
        assert "lerobot: expected" in str(error)
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(lerobot.unpickle(pickle.dumps(array)).array, array)
    assert np.array_equal(lerobot.unpickle(pickle.dumps(np.asfortranarray(array))).array, array)
    assert lerobot.unpickle(pickle.dumps(np.float32(2.5))) == 2.5


def test_what_does_not_fit_is_refused_by_name(served, spec, pickled):
    inside, peer = served
    names, described = features(spec)

    def refused(call, code, error):
        with pytest.raises(grpc.RpcError, match=error) as raised:
            call()
        assert raised.value.code().name == code

    refused(peer.actions, "FAILED_PRECONDITION", "expected Ready first")
    peer.ready()
    config = {"lerobot_features": described, "actions_per_chunk": 6}
    for change, error in (
        ({"lerobot_features": 3}, "expected lerobot_features"),
        ({"actions_per_chunk": 0}, "of 1 or more"),
        (
            {"lerobot_features": described | {"observation.state": {"names": names[1:]}}},
            "names of obs",
        ),
        (
            {"lerobot_features": {"observation.state": described["observation.state"]}},
            "the cameras",
        ),
    ):
        refused(
            lambda change=change: peer.setup(pickled("RemotePolicyConfig", **config | change)),
            "INVALID_ARGUMENT",
            error,
        )
    observation = given(spec)[1]
    timed = {"timestamp": 1.0, "timestep": 0, "observation": observation}
    refused(
        lambda: peer.observe(pickled("TimedObservation", **timed)),
        "INVALID_ARGUMENT",
        "expected policy instructions",
    )
    peer.setup(pickled("RemotePolicyConfig", **config))
    camera = spec.images[0].name
    for change, error in (
        ({"n0": "x"}, "expected numbers of n0"),
        ({"n0": float("nan")}, "finite"),
        ({camera: np.zeros((4, 4), np.uint8)}, "expected a picture"),
        ({camera: None}, "got NoneType"),
    ):
        sent = pickled("TimedObservation", **timed | {"observation": observation | change})
        refused(lambda sent=sent: peer.observe(sent), "INVALID_ARGUMENT", error)
    refused(
        lambda: peer.observe(pickled("TimedObservation", **timed | {"timestep": "x"})),
        "INVALID_ARGUMENT",
        "timestep",
    )
    assert inside.figures()[("rlinf_serve_refused_total",)] >= 9
    peer.observe(pickled("TimedObservation", **timed))
    assert peer.actions(), "the client goes on"


def test_a_key_and_lerobots_client_do_not_go_together(tmp_path, spec, capsys):
    (tmp_path / "api.key").write_text("0" * 32)
    (tmp_path / "api.key").chmod(0o600)
    words = ["--lerobot-port", "0", "--api-key-file", str(tmp_path / "api.key")]
    assert main(["serve", str(tmp_path), *words]) == 2
    assert "--lerobot-port: expected no --api-key-file" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(
    not [*VENV.glob("lib/python*/site-packages/grpc")],
    reason="not run: .venvs/lerobot with grpcio is not there (make lerobot)",
)
def test_lerobots_own_client_plays_the_policys_actions(served, spec, tmp_path):
    (inside, _), (vectors, observation) = served, given(spec)
    np.savez(tmp_path / "given.npz", **observation)
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    script = Path("tests/deploy/serving/lerobot_client_itself.py").resolve()
    # where it writes its log
    subprocess.run(
        [VENV / "bin/python", script, f"127.0.0.1:{inside.lerobot}", tmp_path],
        check=True,
        timeout=240,
        env=environment,
        cwd=tmp_path,
    )
    sent, chunk = np.load(tmp_path / "played.npz")["sent"], expected(spec, vectors, observation)
    assert (
        len(sent) >= 20
        and np.abs(sent[:, None] - chunk[None, :6]).max(axis=2).min(axis=1).max() < 1e-6
    )


def spec_error(call, *arguments):
    with pytest.raises(SpecError) as refused:
        call(*arguments)
    return str(refused.value)


def unpickled_as(value, module, protocol=3):
    """Return the value of a pickle from a client with another version of NumPy."""
    data = pickle.dumps(value, protocol).replace(b"numpy.core.", f"{module}.".encode())
    return lerobot.unpickle(data.replace(b"numpy._core.", f"{module}.".encode()))


@pytest.mark.parametrize("module", ["numpy.core", "numpy._core"])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=np.int64).reshape(1, 2, 3),
        np.array([True, False]),
        np.zeros((0, 3), np.uint8),
        np.array(2.5),
        np.zeros((1,) * 8),
    ],
)
def test_arrays_of_every_numpy_are_read(module, array):
    read = unpickled_as(array, module)
    assert read.array.dtype == array.dtype and read.array.shape == array.shape
    assert np.array_equal(read.array, array)
    assert np.array_equal(lerobot._plain(read), array) and lerobot._plain(3) == 3
    assert unpickled_as(np.int16(-7), module) == -7
    assert unpickled_as(np.float64(0.5), module) == 0.5


def test_arrays_beside_their_pickle_are_read_in_their_order():
    for array in (np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3))):
        read = lerobot.unpickle(pickle.dumps(array, 5))
        assert np.array_equal(lerobot._plain(read), array)


@pytest.mark.parametrize("name", ["f4", "f8", "i2", "u1", "b1", "i8"])
def test_dtypes_of_numbers_are_taken(name):
    assert lerobot._Dtype(name, False, True).dtype == np.dtype(name)


@pytest.mark.parametrize(
    "name", ["O8", "f16", "f", "", "c8", "M8", "V4", 4, None, "x" * 60, "f4,f4"]
)
def test_other_dtypes_are_refused(name):
    assert spec_error(lerobot._Dtype, name) == (
        f"lerobot: expected a dtype of numbers, got {str(name)[:40]}"
    )


@pytest.mark.parametrize(
    "data, dtype, shape, message",
    [
        ("abcd", lerobot._Dtype("u1"), (4,), "expected the bytes, dtype and shape of an array"),
        (b"abcd", np.dtype("u1"), (4,), "expected the bytes, dtype and shape of an array"),
        (b"a", lerobot._Dtype("u1"), (1,) * 9, "expected the bytes, dtype and shape of an array"),
        (b"abcd", lerobot._Dtype("u1"), (5,), "expected 4 numbers of an array, got the shape (5,)"),
        (b"abcd", lerobot._Dtype("u2"), (4,), "expected 2 numbers of an array, got the shape (4,)"),
        (b"abcd", lerobot._Dtype("u1"), (-2, -2), "expected 4 numbers of an array, got the shape (-2, -2)"),
        (b"abcd", lerobot._Dtype("u1"), (4.0,), "expected 4 numbers of an array, got the shape (4.0,)"),
        (b"a", lerobot._Dtype("u1"), (True,), "expected 1 numbers of an array, got the shape (True,)"),
        (b"abcd", lerobot._Dtype("u1"), ("x" * 90,), "expected 4 numbers of an array, got the shape ('" + "x" * 78),
    ],
)  # fmt: skip
def test_arrays_that_contradict_themselves_are_refused(data, dtype, shape, message):
    assert spec_error(lerobot._filled, data, dtype, shape) == f"lerobot: {message}"


def test_arrays_are_filled_in_their_order():
    data, dtype = bytes(range(6)), lerobot._Dtype("u1")
    assert lerobot._filled(data, dtype, (2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert lerobot._filled(data, dtype, (2, 3), True).tolist() == [[0, 2, 4], [1, 3, 5]]
    assert lerobot._in_order(data, dtype, (2, 3), "F").tolist() == [[0, 2, 4], [1, 3, 5]]
    for order in ("C", "A", None, ["F"]):
        taken = lerobot._in_order(bytearray(data), dtype, (2, 3), order)
        assert taken.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert lerobot._filled(b"", dtype, (0, 3)).shape == (0, 3)


def test_a_pickle_is_refused_in_full():
    assert spec_error(lerobot.unpickle, b"abc").startswith(
        "lerobot: expected a pickle of LeRobot's robot client, got 3 bytes: "
    )
    assert spec_error(lerobot.unpickle, b"\x80\x02cnumpy\nndarray\n)R(K\x01tb.") == (
        "lerobot: expected a pickle of LeRobot's robot client, got 25 bytes: ValueError: not enough "
        "values to unpack (expected 5, got 1)"
    )
    named = b"c" + b"m" * 90 + b"\n" + b"n" * 90 + b"\n."
    assert spec_error(lerobot.unpickle, named) == (
        f"lerobot: expected numbers, texts, arrays and LeRobot's records, got {'m' * 80}.{'n' * 80}. "
        "It is not unpickled"
    )
    for module, name in (("numpy", "load"), ("lerobot.configs.types", "Other"), ("os", "ndarray")):
        text = spec_error(lerobot.unpickle, f"c{module}\n{name}\n.".encode())
        assert f"got {module}.{name}. It is not unpickled" in text
    few = b"N0" * 4999 + b"N."  # 10000 operations
    assert lerobot.unpickle(few) is None
    assert spec_error(lerobot.unpickle, b"N0" * 5000 + b"N.") == (
        "lerobot: expected a pickle of at most 10000 operations, got more"
    )
    assert lerobot.unpickle(b"clerobot.configs.types\nFeatureType\n(S'STATE'\ntR.") == "STATE"
    changed = b"\x80\x02cnumpy\ndtype\nK\x01b."
    assert spec_error(lerobot.unpickle, changed) == ("lerobot: expected no state of a function")


def test_records_of_lerobot_are_their_fields():
    for module, name in (
        ("lerobot.async_inference.helpers", "RemotePolicyConfig"),
        ("lerobot.async_inference.helpers", "TimedObservation"),
        ("lerobot.configs.types", "PolicyFeature"),
    ):
        data = f"c{module}\n{name}\n)\x81}}S'a'\nI7\nsb.".encode("latin1")
        record = lerobot.unpickle(data)
        assert vars(record) == {"a": 7} and type(record).__name__ == name


def test_actions_are_a_list_of_lerobots_records(pickled):
    actions = np.array([[0.5, 1.0], [2.0, 3.0], [4.0, 5.0]])
    read = pickle.loads(lerobot.pickle_actions(actions, 12.0, 7, 0.25))
    helpers = sys.modules[HELPERS]
    assert [type(one) for one in read] == [helpers.TimedAction] * 3
    assert [(one.timestamp, one.timestep) for one in read] == [(12.0, 7), (12.25, 8), (12.5, 9)]
    for one, action in zip(read, actions, strict=True):
        assert one.action.dtype == torch.float32 and one.action.tolist() == action.tolist()
        assert one.action.untyped_storage().nbytes() == 8, "of its own, not of all"


def test_a_picture_is_resized_as_lerobot_does():
    shape = (2, 2, 3)
    rows = np.array([[0, 2, 100, 104], [4, 6, 108, 112], [7, 7, 7, 7], [7, 8, 8, 8]], np.uint8)
    picture = np.repeat(rows[:, :, None], 3, axis=2)
    picture[..., 2] = 255 - picture[..., 2]
    small = lerobot.resize_picture(picture, "front", shape)
    assert small.dtype == np.uint8 and small.shape == shape
    # the mean of each four; halves to the even number
    assert small[..., 0].tolist() == [[3, 106], [7, 8]] == small[..., 1].tolist()
    assert small[..., 2].tolist() == [[252, 149], [248, 248]]
    assert lerobot.resize_picture(small, "front", shape) is small
    large = lerobot.resize_picture(small, "front", (4, 2, 3))
    assert large[..., 0].tolist() == [[3, 106], [4, 82], [6, 32], [7, 8]], "between them"


@pytest.mark.parametrize(
    "picture, shown",
    [
        (None, "NoneType"),
        ([1], "list"),
        (np.zeros((4, 4), np.uint8), "uint8[4, 4]"),
        (np.zeros((4, 4, 4), np.uint8), "uint8[4, 4, 4]"),
        (np.zeros((4, 4, 3)), "float64[4, 4, 3]"),
        (np.zeros((0, 4, 3), np.uint8), "uint8[0, 4, 3]"),
    ],
)
def test_what_is_no_picture_is_refused_by_its_camera(picture, shown):
    assert spec_error(lerobot.resize_picture, picture, "front", (2, 2, 3)) == (
        "lerobot: expected a picture (height, width, 3) of uint8 from the camera front, got "
        + shown
    )


@pytest.fixture
def service(tmp_path, spec):
    """Return the service of a server that does not listen."""
    save_policy(policy_of(spec, 0), tmp_path / policy_name(1))
    lines = []
    server = PolicyServer(Weights(tmp_path), 4, 0.0, lines.append)
    service = lerobot.LerobotService(server)
    service.lines = lines
    return service


def test_a_client_s_features_are_those_of_the_policy(service, spec):
    names, described = features(spec)

    def read(**changes):
        return service._features(SimpleNamespace(lerobot_features=described | changes))

    assert read() == names and read(**{"observation.images.more": {}, "action": 3}) == names
    assert spec_error(service._features, SimpleNamespace()) == (
        "lerobot: expected lerobot_features in the client's instructions, got none"
    )
    vectors = ", ".join(item.name for item in spec.vectors)
    begin = f"lerobot: expected {len(names)} names of observation.state ({vectors}), got "
    for state, shown in (
        ({"names": names[:-1]}, names[:-1]),
        ({"names": [*names[:-1], 3]}, [*names[:-1], 3]),
        ({"names": "x" * 300}, "x" * 300),
        ({}, None),
        (3, None),
        (None, None),
    ):
        assert spec_error(lambda state=state: read(**{"observation.state": state})) == (
            begin + str(shown)[:200]
        )
    cameras = [image.name for image in spec.images]
    only = {"observation.state": described["observation.state"]}
    for features_, shown in (
        (only, "none"),
        (only | {"observation.images.b": {}, "observation.images.a": {}}, "a, b"),
    ):
        config = SimpleNamespace(lerobot_features=features_)
        assert spec_error(service._features, config) == (
            f"lerobot: expected the cameras {', '.join(cameras)}, got {shown}. Give the robot's "
            "cameras these names"
        )


@pytest.mark.parametrize("value", [0, -1, 1.5, True, None, "x" * 60])
def test_a_client_asks_for_a_number_of_actions(value):
    assert lerobot._chunk(SimpleNamespace(actions_per_chunk=1)) == 1
    assert spec_error(lerobot._chunk, SimpleNamespace(actions_per_chunk=value)) == (
        f"lerobot: expected actions_per_chunk of 1 or more, got {str(value)[:40]}"
    )
    assert spec_error(lerobot._chunk, None).endswith("got None")


def test_an_observation_becomes_a_request(service, spec):
    names, _ = features(spec)
    robot = lerobot.LerobotClient(names, 3)
    vectors, observation = given(spec)
    wrapped = lerobot._Array()
    wrapped.array = np.array(vectors[1])
    request = service._request(robot, observation | {names[1]: wrapped, "task": "pull", "more": 1})
    assert np.array_equal(request.vectors, vectors) and request.instruction == "pull"
    for image in spec.images:
        assert np.array_equal(request.images[image.name], observation[image.name])
    for task in ("", 3):
        without = service._request(robot, observation | {"task": task})
        assert without.instruction == spec.instruction and without.explore is None
    assert spec_error(service._request, lerobot.LerobotClient(), observation) == (
        "lerobot: expected policy instructions before the first observation"
    )
    assert spec_error(service._request, robot, [1]) == (
        "lerobot: expected a map as an observation, got a list"
    )
    lacking = {name: value for name, value in observation.items() if name not in names[1:3]}
    assert spec_error(service._request, robot, lacking) == (
        f"lerobot: expected {names[1]}, {names[2]} in the observation, got nothing"
    )
    text = spec_error(service._request, robot, observation | {names[0]: "x"})
    assert text == (
        f"lerobot: expected numbers of {', '.join(names)}, got: could not convert string to float: "
        "'x'"
    )
    camera = spec.images[0].name
    text = spec_error(service._request, robot, observation | {camera: None})
    assert text.endswith(f"from the camera {camera}, got NoneType")


class Context:
    """A call's context, like gRPC's."""

    def __init__(self, name):
        self.name, self.ended = name, []

    def peer(self):
        return self.name

    async def abort(self, code, text):
        self.ended.append((code.name, text))
        raise ConnectionAbortedError


def test_the_newest_64_clients_are_kept(service):
    async def ask():
        for number in range(65):
            assert await service.ready(None, Context(f"client {number}")) == lerobot_pb2.Empty()
        assert list(service.robots) == [f"client {number}" for number in range(1, 65)]
        first = service.robots["client 7"]
        await service.ready(None, Context("client 7"))
        assert service.robots["client 7"] is not first
        context = Context("stranger")
        with pytest.raises(ConnectionAbortedError):
            await service._robot(context)
        assert context.ended == [("FAILED_PRECONDITION", "expected Ready first")]

    asyncio.run(ask())


def test_where_no_observation_comes_the_answer_is_empty(service, monkeypatch):
    monkeypatch.setattr(lerobot, "WAIT_S", 0.01)

    async def ask():
        await service.ready(None, Context("a"))
        return await service.get_actions(None, Context("a"))

    assert asyncio.run(ask()) == lerobot_pb2.Actions()


def test_an_observation_of_more_than_64_mib_is_refused(service, monkeypatch):
    context = Context("a")

    async def parts(sizes):
        for size in sizes:
            yield lerobot_pb2.Observation(data=bytes(size))

    async def ask():
        await service.ready(None, context)
        with pytest.raises(ConnectionAbortedError):
            await service.observation(parts([30, 34, 1]), context)
        assert context.ended == [("RESOURCE_EXHAUSTED", "expected at most 0 MiB")]
        with pytest.raises(ConnectionAbortedError):  # no pickle, and not too large
            await service.observation(parts([30, 34]), context)
        assert context.ended[1][0] == "INVALID_ARGUMENT"

    monkeypatch.setattr(lerobot, "MAX_BYTES", 64)
    asyncio.run(ask())


def test_an_observation_is_kept_where_it_is_new_or_must_go(service, spec, pickled):
    context = Context("a")
    names, described = features(spec)
    observation = given(spec)[1]

    async def send(**fields):
        data = pickled("TimedObservation", observation=observation, **fields)

        async def parts():
            yield lerobot_pb2.Observation(data=data[:100])
            yield lerobot_pb2.Observation(data=data[100:])

        return await service.observation(parts(), context)

    async def ask():
        await service.ready(None, context)
        robot = service.robots["a"]
        config = pickled("RemotePolicyConfig", lerobot_features=described, actions_per_chunk=6)
        request = lerobot_pb2.PolicySetup(data=config)
        assert await service.instructions(request, context) == lerobot_pb2.Empty()
        assert (robot.names, robot.actions) == (names, 6)
        assert await send(timestep=4, timestamp=2, must_go=False) == lerobot_pb2.Empty()
        assert robot.waiting[1:] == (2.0, 4) and type(robot.waiting[1]) is float
        assert robot.arrived.is_set()
        robot.arrived.clear()
        robot.answered.add(4)
        await send(timestep=4, timestamp=3.0)
        assert robot.waiting[1] == 2.0 and not robot.arrived.is_set()
        await send(timestep=4, timestamp=3.0, must_go=1)
        assert robot.waiting[1] == 2.0 and not robot.arrived.is_set()
        await send(timestep=4, timestamp=3.0, must_go=True)
        assert robot.waiting[1] == 3.0 and robot.arrived.is_set()
        for wrong in ({"timestep": 4.0, "timestamp": 1.0}, {"timestep": 4, "timestamp": "1"}, {}):
            with pytest.raises(ConnectionAbortedError):
                await send(**wrong)
        text = "lerobot: expected an observation with a timestep and a timestamp"
        assert context.ended == [("INVALID_ARGUMENT", text)] * 3
        assert service.server.metrics.refused == 3
        assert service.lines == [f"serve: {text}"] * 3

    asyncio.run(ask())


def test_an_error_is_its_client_s_and_counted(service):
    async def ask():
        for error, text in (
            (SpecError("of a client"), "of a client"),
            (ZeroDivisionError("by 0\x1b"), "ZeroDivisionError: by 0\\x1b"),
            (SpecError("x" * 1200), "x" * 1000),
        ):
            context = Context("a")
            with lerobot.CountErrors(service.server) as refusal:
                raise error
            with pytest.raises(ConnectionAbortedError):
                await refusal.abort_on_error(context)
            assert context.ended == [("INVALID_ARGUMENT", text)]
        context = Context("a")
        with lerobot.CountErrors(service.server) as refusal:
            pass
        await refusal.abort_on_error(context)
        assert not context.ended and service.server.metrics.refused == 3
        with pytest.raises(KeyboardInterrupt), lerobot.CountErrors(service.server):
            raise KeyboardInterrupt
        assert service.server.metrics.refused == 3

    asyncio.run(ask())
    assert service.lines[0] == "serve: of a client" and "ZeroDivisionError" in service.lines[1]


def test_it_listens_on_this_machine_and_a_taken_port_is_told(service):
    async def ask():
        async with lerobot.serve_lerobot(service.server, 0) as port:
            assert service.lines == [
                f"grpc://127.0.0.1:{port} serves LeRobot's robot client with this policy, on this "
                "machine only"
            ]
            with pytest.raises(ServingError) as refused:
                async with lerobot.serve_lerobot(service.server, port):
                    pass
        assert str(refused.value) == (
            f"serve: cannot listen on 127.0.0.1:{port} for LeRobot. Stop the program on that port, "
            "or choose another with --lerobot-port"
        )
        assert refused.value.code == "RL-E205"

    asyncio.run(ask())


def test_answers_are_counted_and_their_time_steps_kept(served, spec, pickled):
    (inside, peer), (_, observation) = served, given(spec)
    peer.ready()
    config = {"lerobot_features": features(spec)[1], "actions_per_chunk": 100}
    peer.setup(pickled("RemotePolicyConfig", **config))
    for timestep in (3, 5):
        peer.observe(
            pickled("TimedObservation", timestamp=1.0, timestep=timestep, observation=observation)
        )
        assert len(pickle.loads(peer.actions())) == 8, "a chunk has no more"
    figures = inside.figures()
    assert figures["rlinf_serve_requests_total",] == 2
    assert figures["rlinf_serve_batches_total", ("size", "1")] == 2
    assert 0.0 < figures["rlinf_serve_latency_seconds_sum",] < 20.0
