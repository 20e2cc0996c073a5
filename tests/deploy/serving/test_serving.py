"""A served policy over real sockets, with openpi-client as the peer."""

import pickle
import subprocess
import sys
import threading
import time
import urllib.request
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from rlinf_core.core.errors import (
    AnswerError,
    EngineError,
    PolicyFileError,
    RefusedRequestError,
    ServingError,
    SpecError,
)
from rlinf_core.deploy.serving import weights as serving_weights
from rlinf_core.deploy.serving.batching import Batcher, Waiting
from rlinf_core.deploy.serving.client import PolicyClient
from rlinf_core.deploy.serving.protocol import (
    EXTENSION_KEY,
    check_horizon,
    check_keys,
    pack,
    read_actions,
    read_extension,
    read_request,
    unpack,
)
from rlinf_core.deploy.serving.weights import Version, Weights
from rlinf_core.policies import make_policy
from rlinf_core.policies.base import Observation
from rlinf_core.policies.policy_folder import policy_name
from rlinf_core.policies.real_time_chunking import Continuation
from rlinf_core.policies.serialization import save_policy
from rlinf_core.policies.small import flow, tanh_gaussian
from rlinf_core.recipes import load_recipe, station_task
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec

pytestmark = pytest.mark.timed

SMALL = tanh_gaussian.Config(hidden=(16,), image_features=4, horizon=8, n_action_steps=4)


@pytest.fixture(scope="module")
def spec():
    return station_task(load_recipe("demo_vision")).spec


def policy_of(spec, seed):
    torch.manual_seed(seed)
    return make_policy(spec, SMALL).eval()


def observed(spec, seed=0):
    random = np.random.default_rng(seed)
    return {
        item.name: (
            random.integers(0, 256, item.shape) if item.is_image else random.normal(size=item.shape)
        ).astype(item.dtype)
        for item in spec.observation
    } | {"prompt": "insert"}


class Served:
    def __init__(self, folder, *options, port=0):
        command = [
            sys.executable,
            "-m",
            "rlinf_core.cli.main",
            "serve",
            str(folder),
            "--port",
            str(port),
            "--device",
            "cpu",
            *options,
        ]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        line = self.process.stdout.readline()
        assert line.startswith("ws://"), line + self.process.stdout.read()
        self.port = int(line.split()[0].rpartition(":")[2])
        self.address = f"ws://127.0.0.1:{self.port}"

    def page(self, name):
        return (
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{name}", timeout=10)
            .read()
            .decode()
        )

    def end(self):
        self.process.terminate()
        self.process.wait(20)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory, spec):
    folder = tmp_path_factory.mktemp("served")
    save_policy(policy_of(spec, 0), folder / policy_name(3))
    served = Served(folder, "--max-wait-ms", "200")
    served.folder = folder
    yield served
    served.end()


def test_an_openpi_client_gets_what_the_policy_answers_here(served, spec):
    peer = pytest.importorskip("openpi_client.websocket_client_policy").WebsocketClientPolicy(
        "127.0.0.1", served.port
    )
    named = observed(spec)
    answer = peer.infer(
        {f"observation/{key}" if key != "prompt" else key: value for key, value in named.items()}
    )
    expected = (
        policy_of(spec, 0)
        .act(Observation.from_single(spec, named), explore=False)
        .actions[0]
        .numpy()
    )
    assert np.array_equal(answer["actions"], spec.action.to_si(expected))
    assert (
        answer["server_timing"]["infer_ms"] > 0
        and peer.get_server_metadata()["action_horizon"] == 8
    )
    with pytest.raises(RuntimeError, match="tcp_position"):
        peer.infer({"prompt": "no images"})
    assert peer.infer(named)["actions"].shape == (8, 3), "the connection goes on"
    assert served.page("healthz") == "OK\n" and "rlinf_serve_version 3" in served.page("metrics")


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1garbage",
        pickle.dumps({"prompt": "a"}),
        pack({"front": 1})[:-1],
        "a text",
        pack({"front": {b"__ndarray__": True, b"data": b"", b"dtype": "|O8", b"shape": []}}),
    ],
)
def test_who_speaks_no_protocol_is_hung_up_on_alone(served, spec, data):
    other = PolicyClient(served.address, 10.0)
    with connect(served.address, compression=None) as bad:
        bad.recv()
        bad.send(data)
        assert "expected" in bad.recv()
        with pytest.raises(ConnectionClosed):
            bad.recv()
    assert other.infer(observed(spec))["actions"].shape == (8, 3)
    other.close()


def test_a_huge_message_is_cut_off(served, spec):
    with connect(served.address, compression=None) as bad:
        bad.recv()
        with pytest.raises(ConnectionClosed):
            bad.send(bytes(65 << 20))
            bad.recv()
    PolicyClient(served.address, 10.0).infer(observed(spec))


def test_what_is_wrong_with_an_observation_is_said(served, spec):
    client = PolicyClient(served.address, 10.0)
    good = observed(spec)
    for change, error in (
        ({"wrist": np.zeros((2, 2, 3), np.uint8)}, "expected shape"),
        ({"side": good["wrist"]}, "unknown 'side'"),
        ({"wrist": good["wrist"] / 255.0}, "expected uint8"),
        ({"prompt": 3}, "prompt"),
        ({"force": np.full(3, np.nan, np.float32)}, "finite"),
    ):
        with pytest.raises(RefusedRequestError, match=error):
            client.infer(good | change)
    assert client.infer(good)["actions"].shape == (8, 3)
    client.close()
    with pytest.raises(SpecError, match="instruction"):
        read_request(spec, good | {"prompt": " "}, needs_instruction=True)


def test_several_clients_are_answered_in_one_batch_each_with_its_own(served, spec):
    policy, clients = policy_of(spec, 0), [PolicyClient(served.address, 20.0) for _ in range(4)]
    got, meet = {}, threading.Barrier(4)

    def ask(index):
        for _ in range(3):
            meet.wait(20)
            got[index] = clients[index].infer(observed(spec, index))

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert max(answer["server_timing"]["batch"] for answer in got.values()) > 1
    for index, answer in got.items():
        expected = (
            policy.act(Observation.from_single(spec, observed(spec, index)), explore=False)
            .actions[0]
            .numpy()
        )
        assert np.allclose(answer["actions"], spec.action.to_si(expected), atol=1e-6)


def test_a_newer_file_is_served_and_an_episode_ends_with_its_version(served, spec):
    playing, new = PolicyClient(served.address, 10.0), observed(spec)
    assert playing.infer(new | {EXTENSION_KEY: {"episode": "a"}})[EXTENSION_KEY]["version"] == 3
    (served.folder / policy_name(4)).write_bytes(b"torn")
    save_policy(policy_of(spec, 1), served.folder / policy_name(5))
    deadline = time.monotonic() + 60
    while "rlinf_serve_version 5" not in served.page("metrics"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert playing.infer(new | {EXTENSION_KEY: {"episode": "a"}})[EXTENSION_KEY]["version"] == 3
    assert playing.infer(new | {EXTENSION_KEY: {"episode": "b"}})[EXTENSION_KEY]["version"] == 5
    playing.close()


def test_a_server_that_is_killed_is_said_to_be_gone(tmp_path, spec):
    save_policy(policy_of(spec, 0), tmp_path / policy_name(1))
    served = Served(tmp_path)
    client = PolicyClient(served.address, 10.0)
    served.process.kill()
    served.process.wait(10)
    with pytest.raises(ServingError, match="policy server"):
        client.infer(observed(spec))
    with pytest.raises(ServingError, match="rlinf serve POLICY"):
        PolicyClient(served.address, 1.0)
    served.process.stdout.close()


def test_packing_is_openpi_clients(spec):
    theirs = pytest.importorskip("openpi_client.msgpack_numpy")
    message = observed(spec) | {"number": np.float32(2.5), "list": [1, "a"]}
    for mine in (unpack(theirs.packb(message)), theirs.unpackb(pack(message))):
        assert mine.keys() == message.keys() and mine["number"] == 2.5
        assert all(
            np.array_equal(mine[name], value)
            for name, value in message.items()
            if isinstance(value, np.ndarray)
        )


def test_actions_of_another_task_are_refused(spec):
    for actions in (
        np.zeros((8, 7)),
        [[0.0] * 3],
        np.zeros((0, 3)),
        np.full((1, 3), np.nan),
        np.full((1, 3), -np.inf),
        np.zeros(3),
        np.zeros((1, 8, 3)),
        np.zeros((1001, 3)),
        np.zeros((8, 3), bool),
        np.zeros((8, 3), np.int64),
        "text",
        None,
        {},
    ):
        with pytest.raises(AnswerError):
            read_actions(spec, {"actions": actions})
    with pytest.raises(AnswerError):
        read_actions(spec, {})
    assert read_actions(spec, {"actions": np.full((2, 3), 0.05)}).max() == 0.02


@pytest.mark.parametrize(
    "actions", [[0.5, -0.3, -0.8], [10.0, -6.0, -16.0], [0.0, 0.0, -0.07], [1e30, 0.0, 0.0]]
)
def test_actions_in_other_units_are_refused(actions, spec):
    """Examples are LIBERO's units in [-1, 1], millimetres, and single large numbers."""
    chunk = np.zeros((10, 3))
    chunk[4] = actions
    with pytest.raises(
        AnswerError,
        match=r"answer: expected 'd[xyz]' within 0.02 m in both directions .*other units\? Serve",
    ):
        read_actions(spec, {"actions": chunk})


@pytest.mark.parametrize(
    "ours",
    [
        "text",
        3,
        {"version": "new"},
        {"version": 2**63},
        {"version": True},
        {"drawn": "text"},
        {"drawn": np.zeros(())},
        {"drawn": np.full((2, 3), np.nan)},
        {"drawn": np.zeros((2, 3)), "log_probs": 3.0},
        {"drawn": None},
    ],
)
def test_what_stands_beside_the_actions_is_looked_at(ours):
    with pytest.raises(AnswerError, match="answer: expected"):
        read_extension({EXTENSION_KEY: ours})
    assert read_extension({}) == {} and read_extension(
        {EXTENSION_KEY: {"drawn": np.zeros((2, 3)), "log_probs": None}}
    )


def test_a_chunk_of_another_length_is_refused():
    check_horizon(np.zeros((8, 3)), 0, 0)
    check_horizon(np.zeros((8, 3)), 8, 4)
    for horizon, execute in ((7, 0), (9, 0), (0, 9)):
        with pytest.raises(AnswerError, match="answer: expected .* actions in a chunk, got 8"):
            check_horizon(np.zeros((8, 3)), horizon, execute)


@pytest.mark.parametrize("max_delay", [0, 3])
def test_a_chunk_goes_on_where_the_clients_last_one_is_and_what_is_no_chunk_is_said(
    max_delay, spec, tmp_path
):
    torch.manual_seed(0)
    config = flow.Config(
        hidden=(16,), image_features=4, horizon=8, n_action_steps=4, max_delay=max_delay
    )
    policy = make_policy(spec, config).eval()
    save_policy(policy, tmp_path / policy_name(1))
    served = Served(tmp_path)
    try:
        client, observation = PolicyClient(served.address, 20.0), observed(spec)
        assert client.metadata[EXTENSION_KEY]["continues"]
        left = np.full((6, 3), 0.9) * spec.action.scale
        free = client.infer(observation)
        on = client.infer(observation | {EXTENSION_KEY: {"left": left, "frozen": 3}})
        assert on[EXTENSION_KEY]["continues"] and "continues" not in free[EXTENSION_KEY]
        expected = policy.continue_chunk(
            Observation.from_single(spec, observation),
            Continuation.from_remaining(np.full((6, 3), 0.9), 3, 8),
        ).actions[0]
        assert np.allclose(on["actions"], spec.action.to_si(expected.numpy()), atol=1e-7)
        off = [np.abs(answer["actions"][:3] - left[:3]).mean() for answer in (free, on)]
        assert off[1] < 0.5 * off[0]
        trained = client.infer(
            observation | {EXTENSION_KEY: {"left": left, "frozen": 3, "explore": True}}
        )
        assert ("continues" in trained[EXTENSION_KEY]) is bool(max_delay), (
            "cloned to go on, it does in training episodes, too"
        )
        assert np.array_equal(trained["actions"], on["actions"]) is bool(max_delay)
        assert trained[EXTENSION_KEY]["drawn"].shape == (8, 3)
        for wrong in (
            {"left": left[:, :2]},
            {"left": left * np.nan},
            {"left": "all"},
            {"left": left, "frozen": -1},
            {"left": left, "frozen": 2.5},
        ):
            with pytest.raises(RefusedRequestError, match=r"rlinf\.(left|frozen): expected"):
                client.infer(observation | {EXTENSION_KEY: wrong})
        assert np.array_equal(client.infer(observation)["actions"], free["actions"]), (
            "the connection goes on"
        )
        client.close()
    finally:
        served.end()


def test_keys_that_the_task_has_not_are_said(spec):
    check_keys(
        spec, {"state": "observation/state", "prompt": "prompt", spec.observation[0].name: "x"}
    )
    with pytest.raises(SpecError, match="station.policy.keys: expected .*, got 'wrst'"):
        check_keys(spec, {"wrst": "observation/wrist"})


def test_an_engine_that_does_not_answer_is_asked_once_for_all_of_a_batch():
    sizes = []

    def infer(kind, requests):
        sizes.append(len(requests))
        raise EngineError("no answer within 30 s")

    batcher = Batcher(infer, 8, 0.0, lambda: 8)
    waiting = [Waiting("kind", number, None) for number in range(8)]
    assert {str(problem) for problem in batcher._answered(waiting)} == {
        "no answer within 30 s"
    } and sizes == [8]


def test_each_version_explores_in_its_own_way_and_the_same_file_as_before(tmp_path, spec):
    save_policy(policy_of(spec, 0), tmp_path / policy_name(3))
    weights = Weights(tmp_path)
    save_policy(policy_of(spec, 0), tmp_path / policy_name(4))
    first, tried = weights.newest, weights.load_newer(print)
    request = read_request(spec, observed(spec) | {EXTENSION_KEY: {"explore": True}}, False)
    (one,), (two,) = first.answers([request]), weights.newest.answers([request])
    assert tried and (first.number, weights.newest.number) == (3, 4)
    assert not np.allclose(one["actions"], two["actions"]), "the same weights, and other noise"
    (again,) = Weights(tmp_path).newest.answers([request])
    assert np.array_equal(again["actions"], two["actions"])


def test_a_policy_that_sees_pictures_alone_is_served():
    front = ArraySpec(
        "front", (16, 16, 3), "uint8", "", (0.0,), (255.0,), "camera/front/image", "image"
    )
    spec = StationSpec((front,), ActionSpec("tcp_delta", ("dx",), (0.1,), ("m",)), 10.0)
    request = read_request(spec, {"front": np.full((16, 16, 3), 7, np.uint8)}, False)
    policy = make_policy(spec, tanh_gaussian.Config(hidden=(8,), image_features=4)).eval()
    (answer,) = Version(policy).answers([request])
    assert answer["actions"].shape == (1, 1)


def test_a_file_that_could_not_be_loaded_is_tried_again_after_a_while_and_said_once(
    tmp_path, spec, monkeypatch
):
    save_policy(policy_of(spec, 0), tmp_path / policy_name(3))
    weights, messages, now = Weights(tmp_path), [], [0.0]
    monkeypatch.setattr(serving_weights.time, "monotonic", lambda: now[0])
    save_policy(policy_of(spec, 0), tmp_path / policy_name(4))
    lacking = MagicMock(
        side_effect=PolicyFileError("policy-4 stands on a file that is not there yet")
    )
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(serving_weights, "load_policy", lacking)
        assert [weights.load_newer(messages.append) for now[0] in (0.0, 1.0, 11.0, 12.0)] == [
            False
        ] * 4
    assert lacking.call_count == 2 and len(messages) == 1
    assert [weights.load_newer(messages.append) for now[0] in (13.0, 30.0, 60.0)] == [
        False,
        True,
        False,
    ]
    assert weights.newest.number == 4
    save_policy(policy_of(spec, 0), tmp_path / policy_name(5))
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(
            serving_weights, "load_policy", MagicMock(side_effect=MemoryError("no room on the GPU"))
        )
        with pytest.raises(MemoryError):
            weights.load_newer(messages.append)
    assert [weights.load_newer(messages.append) for now[0] in (61.0, 71.0)] == [False, True], (
        "there may be room later"
    )
