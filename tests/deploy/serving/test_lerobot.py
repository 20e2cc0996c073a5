"""LeRobot's asynchronous inference: its own client, and a client by hand with what it never
sends.
"""

import enum
import os
import pickle
import subprocess
import sys
import types
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch

from rlinf_core.cli.main import main
from rlinf_core.core.errors import SpecError
from rlinf_core.deploy.serving import lerobot, lerobot_pb2
from rlinf_core.deploy.serving.weights import Weights
from rlinf_core.policies.base import Observation
from rlinf_core.policies.serialization import policy_name, save_policy
from tests.deploy.serving.test_server_inside import Inside
from tests.deploy.serving.test_serving import policy_of, spec  # noqa: F401

pytestmark = pytest.mark.timed
VENV = Path(".venvs/lerobot").resolve()
HELPERS = "lerobot.async_inference.helpers"


class Record:
    """As one of LeRobot's, by its fields."""

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
            lerobot.unpickled(pickle.dumps(value, protocol))
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
        lerobot.unpickled(data)
    except SpecError as error:
        assert "lerobot: expected" in str(error)
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(lerobot.unpickled(pickle.dumps(array)).array, array)
    assert np.array_equal(lerobot.unpickled(pickle.dumps(np.asfortranarray(array))).array, array)
    assert lerobot.unpickled(pickle.dumps(np.float32(2.5))) == 2.5


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
    subprocess.run(
        [VENV / "bin/python", script, f"127.0.0.1:{inside.lerobot}", tmp_path],
        check=True,
        timeout=240,
        env=environment,
        cwd=tmp_path,
    )  # where it writes its log
    sent, chunk = np.load(tmp_path / "played.npz")["sent"], expected(spec, vectors, observation)
    assert (
        len(sent) >= 20
        and np.abs(sent[:, None] - chunk[None, :6]).max(axis=2).min(axis=1).max() < 1e-6
    )
