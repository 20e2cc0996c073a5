"""The worker in LeRobot's Python, here in a thread: what it answers to each request."""

import importlib.metadata
import json
import socket
import struct
import sys
import threading

import pytest
import torch
from safetensors.torch import load, save

from rlinf_core.policies.isolated.lerobot import worker
from tests.policies.test_lerobot_kind import ACTION, STAND_IN, by_hand, folder_of, observation

pytestmark = pytest.mark.timed

TEXTS = {"device": "cpu", "seed": "0", "task": json.dumps(["", ""])}


def is_lerobot(name):
    return name.partition(".")[0] == "lerobot"


@pytest.fixture
def serve(monkeypatch):
    """Return a function that serves a folder and returns a function to send requests."""
    monkeypatch.syspath_prepend(STAND_IN)
    before = {name: sys.modules.pop(name) for name in [*filter(is_lerobot, sys.modules)]}
    started = []

    def start(folder):
        here, remote = socket.socketpair()
        thread = threading.Thread(target=worker.serve, args=(remote, str(folder)))
        thread.start()
        started.append((here, remote, thread))

        def exchange(tensors, **texts):
            request = save(tensors, TEXTS | texts)
            here.sendall(struct.pack("<Q", len(request)) + request)
            data = worker.receive(here)
            return load(data), worker.metadata_of(data)

        return exchange

    yield start
    for here, remote, thread in started:
        here.close()
        thread.join(timeout=10)
        assert not thread.is_alive(), "it ends with the other side"
        remote.close()
    for name in [*filter(is_lerobot, sys.modules)]:
        del sys.modules[name]
    sys.modules.update(before)


def tensors_of(observed):
    pictures = {f"observation.images.{name}": image for name, image in observed.images.items()}
    return {"observation.state": observed.vectors, **pictures}


def expected_of(observed, horizon=4):
    return by_hand(observed, horizon) * torch.tensor(ACTION.scale)


def version():
    try:
        return importlib.metadata.version("lerobot")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def test_a_request_without_features_is_answered_with_the_policys_type(serve, tmp_path):
    exchange = serve(folder_of(tmp_path))
    assert exchange({}) == (
        {},
        {"protocol": "rlinf-lerobot-1", "type": "act", "version": version()},
    )


def test_actions_are_those_of_the_class_in_the_data_sets_units(serve, tmp_path):
    exchange, observed = serve(folder_of(tmp_path)), observation()
    answer, texts = exchange(tensors_of(observed))
    assert texts == {} and answer.keys() == {"action"}
    assert answer["action"].shape == (2, 4, 2) and answer["action"].dtype == torch.float32
    assert torch.allclose(answer["action"].double(), expected_of(observed), atol=1e-6)


def test_a_policy_with_a_history_is_asked_action_by_action(serve, tmp_path):
    exchange, observed = serve(folder_of(tmp_path, n_obs_steps=2)), observation()
    for _ in range(2):  # each time from the beginning
        action = exchange(tensors_of(observed))[0]["action"]
        assert action.shape == (2, 3, 2), "as many as it plays"
        assert torch.allclose(action.double(), expected_of(observed, 3), atol=1e-6)


def test_a_seed_draws_the_same_noise(serve, tmp_path):
    exchange, tensors = serve(folder_of(tmp_path, noise=1.0)), tensors_of(observation())
    first, again, other = (exchange(tensors, seed=seed)[0]["action"] for seed in ("5", "5", "6"))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_an_error_is_an_answer_and_the_next_request_is_served(serve, tmp_path, capsys):
    exchange, observed = serve(folder_of(tmp_path)), observation()
    answer, texts = exchange(tensors_of(observed), task=json.dumps(["raise", ""]))
    assert (answer, texts) == ({}, {"error": "ValueError: expected another sentence"})
    assert "Traceback" in capsys.readouterr().err
    _, texts = exchange({}, device="cuda")  # which the stand-in has not
    assert texts["error"].startswith("AssertionError")
    assert exchange(tensors_of(observed))[0].keys() == {"action"}


@pytest.mark.parametrize("cut", [0, 3, 8, 10])
def test_a_message_that_is_cut_short_is_the_end(cut):
    here, remote = socket.socketpair()
    with remote:
        with here:
            here.sendall((struct.pack("<Q", 5) + b"hello")[:cut])
        assert worker.receive(remote) is None


def test_messages_come_one_by_one():
    here, remote = socket.socketpair()
    with here, remote:
        here.sendall(struct.pack("<Q", 5) + b"hel")
        reader = threading.Timer(0.05, here.sendall, [b"lo" + struct.pack("<Q", 0)])
        reader.start()
        assert worker.receive(remote) == b"hello"
        assert worker.receive(remote) == b""
        reader.join()
