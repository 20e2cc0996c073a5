"""Versions of a served policy, and a served base policy, in this process."""

import copy
import os
import pickle
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlinf_core.core.errors import PolicyFileError, RefusedRequestError, ServingError, SpecError
from rlinf_core.deploy.serving import served_base
from rlinf_core.deploy.serving import weights as serving_weights
from rlinf_core.deploy.serving.protocol import EXTENSION_KEY, Request, read_request
from rlinf_core.deploy.serving.served_base import ServedBase
from rlinf_core.deploy.serving.weights import Version, Weights
from rlinf_core.policies import make_policy
from rlinf_core.policies.base import Observation
from rlinf_core.policies.policy_folder import policy_name
from rlinf_core.policies.real_time_chunking import Continuation
from rlinf_core.policies.serialization import save_policy
from rlinf_core.policies.small import flow, tanh_gaussian
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec
from tests.deploy.serving.test_server_inside import Inside, until

CAMERA = ArraySpec(
    "front", (16, 16, 3), "uint8", "", (0.0,), (255.0,), "camera/front/image", "image"
)
SPEC = StationSpec(
    (ArraySpec("pose", (2, 2)), CAMERA, ArraySpec("force", (3,))),
    ActionSpec("tcp_delta", ("dx", "dy"), (0.5, 0.25), ("m", "m")),
    10.0,
    "push",
)
SMALL = tanh_gaussian.Config(hidden=(8,), image_features=4, horizon=4, n_action_steps=2)
FLOW = dict(hidden=(8,), image_features=4, horizon=4, n_action_steps=2)


def policy_of(config=SMALL, seed=0, spec=SPEC):
    torch.manual_seed(seed)
    return make_policy(spec, config).eval()


def observed(seed=0):
    random = np.random.default_rng(seed)
    return {
        "pose": random.normal(size=(2, 2)).astype(np.float32),
        "force": random.normal(size=3).astype(np.float32),
        "front": random.integers(0, 256, (16, 16, 3), np.uint8),
    }


def request(seed=0, **extension):
    return read_request(SPEC, observed(seed) | {EXTENSION_KEY: extension}, False)


def batch(*seeds):
    """Return the policy's own answer for several stations."""
    stations = [Observation.from_single(SPEC, observed(seed)) for seed in seeds]
    return Observation(
        torch.cat([one.vectors for one in stations]),
        {"front": torch.cat([one.images["front"] for one in stations])},
        ("push",) * len(stations),
    )


@pytest.mark.parametrize("count", [1, 3])
def test_a_batch_is_answered_as_the_policy_answers_each(count):
    policy, seeds = policy_of(), range(count)
    version = Version(policy, 7)
    answers = version.answers([request(seed) for seed in seeds])
    expected = SPEC.action.to_si(policy.act(batch(*seeds), False).actions.numpy())
    assert len(answers) == count
    for answer, actions in zip(answers, expected, strict=True):
        assert answer["actions"] == pytest.approx(actions, abs=1e-7)
        assert answer["rlinf"] == {"version": 7} and answer.keys() == {"actions", "rlinf"}


def test_an_exploring_client_gets_its_draws_and_their_densities(monkeypatch):
    policy = policy_of()
    version = Version(policy, 7, generator=torch.Generator().manual_seed(3))
    answers = version.answers([request(0, explore=True), request(1, explore=True)])
    chunk = policy.act(batch(0, 1), True, torch.Generator().manual_seed(3))
    for index, answer in enumerate(answers):
        assert np.allclose(answer["rlinf"]["drawn"], chunk.drawn[index])
        assert np.allclose(answer["rlinf"]["log_probs"], chunk.log_probs[index])
        assert np.allclose(answer["actions"], SPEC.action.to_si(chunk.actions[index].numpy()))
        assert answer["rlinf"].keys() == {"version", "drawn", "log_probs"}
    (still,) = version.answers([request(0, explore=False)])
    assert still["rlinf"].keys() >= {"version", "drawn"}
    assert np.allclose(
        still["actions"], SPEC.action.to_si(policy.act(batch(0), False).actions[0].numpy())
    )
    act = policy.act
    monkeypatch.setattr(policy, "act", lambda *given: replace(act(*given), log_probs=None))
    (drawn,) = version.answers([request(0, explore=True)])
    assert drawn["rlinf"].keys() == {"version", "drawn"}


def test_answers_that_are_no_numbers_are_an_error_of_the_version(monkeypatch):
    policy = policy_of()
    act = policy.act

    def broken(*inputs):
        chunk = act(*inputs)
        chunk.actions[0, 0, 0] = torch.nan
        return chunk

    monkeypatch.setattr(policy, "act", broken)
    with pytest.raises(SpecError) as refused:
        Version(policy, 7).answers([request()])
    assert str(refused.value) == (
        "version 7 answered with NaN or Inf: its weights diverged, or this observation is far from "
        "its training data"
    )


@pytest.mark.parametrize("max_delay", [0, 2])
def test_a_chunk_goes_on_from_each_client_s_own(max_delay):
    policy = policy_of(flow.Config(**FLOW, max_delay=max_delay))
    version = Version(policy, 7, generator=torch.Generator().manual_seed(3))
    left = [np.array([[0.2, 0.1], [0.1, -0.2], [0.3, 0.2]]), np.array([[-0.4, 0.2]])]
    plays = [dict(left=one, frozen=frozen) for one, frozen in zip(left, (2, 1), strict=True)]
    requests = [request(seed, **play) for seed, play in enumerate(plays)]
    normalised = [one / np.array([0.5, 0.25]) for one in left]
    going_on = [
        Continuation.from_remaining(one, frozen, 4)
        for one, frozen in zip(normalised, (2, 1), strict=True)
    ]
    expected = policy.continue_chunk(
        batch(0, 1),
        Continuation(
            torch.cat([one.actions for one in going_on]),
            torch.cat([one.weights for one in going_on]),
        ),
        torch.Generator().manual_seed(3),
    )
    answers = version.answers(requests)
    for answer, actions in zip(answers, expected.actions.numpy(), strict=True):
        assert np.allclose(answer["actions"], SPEC.action.to_si(actions), atol=1e-6)
        assert answer["rlinf"] == {"version": 7, "continues": True}
    on, free = requests[0], request(0)
    assert version.kind(on) == (version, False, True)
    assert version.kind(free) == (version, False, False)
    assert version.kind(request(0, left=left[0][:0])) == (version, False, False)
    assert version.kind(request(0, explore=True)) == (version, True, False)
    exploring = request(0, explore=True, **plays[0])
    assert version.kind(exploring) == (version, True, max_delay > 0)
    (answer,) = version.answers([exploring])
    assert ("continues" in answer["rlinf"]) is (max_delay > 0) and "drawn" in answer["rlinf"]
    other = Version(policy_of(), 7)
    assert other.continuing is None and other.kind(on) == (other, False, False)
    assert version.metadata["rlinf"]["continues"] and not other.metadata["rlinf"]["continues"]


def test_a_version_says_what_it_is():
    version = Version(policy_of(), 7)
    assert version.needs_instruction is False and version.metadata["action_horizon"] == 4
    assert version.metadata["rlinf"] == {
        "version": 7,
        "spec": SPEC.to_dict(),
        "execute": 2,
        "continues": False,
    }


def test_weights_are_the_newest_file_warmed_up_and_prepared(tmp_path, monkeypatch):
    for number in (3, 4):
        save_policy(policy_of(), tmp_path / policy_name(number))
    sizes, prepared = [], []
    answers = Version.answers

    def noted(version, requests):
        sizes.append((version.number, len(requests)))
        (first, *_) = requests
        assert isinstance(first, Request) and not first.vectors.any()
        assert first.vectors.shape == (7,) and first.vectors.dtype == np.float32
        assert first.images["front"].shape == (16, 16, 3) and not first.images["front"].any()
        assert first.images["front"].dtype == np.uint8 and first.instruction == "push"
        return answers(version, requests)

    monkeypatch.setattr(Version, "answers", noted)
    weights = Weights(tmp_path, warm_up=(1, 3), prepare=prepared.append)
    assert sizes == [(4, 1), (4, 3)] and prepared == [weights.newest.policy]
    file = tmp_path / policy_name(4)
    assert weights.newest.file == (file, file.stat().st_mtime_ns) and weights.newest.number == 4
    assert weights.newest.policy.device == torch.device("cpu")
    assert Weights(file).newest.generator.initial_seed() == 4
    named = tmp_path / "named"
    named.mkdir()
    save_policy(policy_of(), named / "policy-mine.safetensors")
    os.utime(named / "policy-mine.safetensors", ns=(1, 123_456))
    mine = Weights(named).newest
    assert (mine.number, mine.generator.initial_seed()) == (0, 123_456)
    with pytest.raises(PolicyFileError):
        Weights(tmp_path / "none")


def test_a_policy_without_a_sentence_is_warmed_up_with_one(tmp_path, monkeypatch):
    save_policy(policy_of(spec=replace(SPEC, instruction="")), tmp_path / policy_name(1))
    texts = []
    monkeypatch.setattr(Version, "answers", lambda _, requests: texts.append(requests[0]))
    Weights(tmp_path)
    assert [one.instruction for one in texts] == ["warm up"]


def test_a_newer_file_is_taken_once_and_another_task_s_is_told_once(tmp_path):
    save_policy(policy_of(), tmp_path / policy_name(3))
    weights, lines = Weights(tmp_path), []
    assert weights.load_newer(lines.append) is False and lines == []
    save_policy(policy_of(seed=1), tmp_path / policy_name(5))
    assert weights.load_newer(lines.append) is True and weights.load_newer(lines.append) is False
    assert lines == [
        f"version 5 is served now ({policy_name(5)}); running episodes keep their version"
    ]
    other = StationSpec(SPEC.observation[:1], SPEC.action, 10.0, "push")
    file = tmp_path / policy_name(6)
    save_policy(policy_of(spec=other), file)
    served = weights.newest
    assert [weights.load_newer(lines.append) for _ in range(2)] == [False, False]
    assert weights.newest is served and lines[1:] == [
        f"version 5 is still served: {file}: expected a policy of the served task:\n"
        f"{other.difference(SPEC)}"
    ]
    save_policy(policy_of(seed=2), file)
    os.utime(file, ns=(1, 7))  # the same name, another file
    assert weights.load_newer(lines.append) is True and weights.newest.file == (file, 7)
    assert weights.newest.number == 6


def test_a_file_that_cannot_be_loaded_is_tried_again_after_ten_seconds(tmp_path, monkeypatch):
    save_policy(policy_of(), tmp_path / policy_name(3))
    weights, lines, now = Weights(tmp_path), [], [100.0]
    monkeypatch.setattr(serving_weights.time, "monotonic", lambda: now[0])
    tried = []

    def load(path):
        tried.append(path.name)
        raise error

    save_policy(policy_of(), tmp_path / policy_name(4))
    monkeypatch.setattr(serving_weights, "load_policy", load)
    error = PolicyFileError("no room")
    for now[0] in (100.0, 109.9, 110.0, 119.9):
        assert weights.load_newer(lines.append) is False
    assert tried == [policy_name(4)] * 2
    assert lines == ["version 3 is still served: no room"]
    error = SpecError("of another kind")
    for now[0] in (120.0, 131.0, 9e9):
        assert weights.load_newer(lines.append) is False
    assert tried == [policy_name(4)] * 3 and lines[1:] == [
        "version 3 is still served: of another kind"
    ]


def test_a_file_that_vanishes_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(serving_weights, "newest_policy", lambda path: path / "gone.safetensors")
    with pytest.raises(PolicyFileError) as refused:
        Weights(tmp_path)
    assert str(refused.value) == (f"policy {tmp_path}/gone.safetensors: No such file or directory")


# A base policy behind a server
@pytest.fixture
def inside(tmp_path):
    save_policy(policy_of(), tmp_path / policy_name(1))
    inside = Inside(Weights(tmp_path))
    yield inside
    inside.end()


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in (served_base.ADDRESS, served_base.KEY_FILE):
        monkeypatch.delenv(name, raising=False)


def test_a_base_answers_with_normalised_chunks_and_is_asked_once_for_each(inside, monkeypatch):
    base = ServedBase(SPEC, inside.address, 20.0, {})
    expected = policy_of().act(batch(0, 1), False).actions.numpy()
    chunks = base.chunks(batch(0, 1))
    assert chunks.shape == (2, 4, 2) and np.allclose(chunks, expected, atol=1e-6)
    assert np.array_equal(base.chunks(batch(1, 0, 1)), chunks[[1, 0, 1]])
    assert inside.figures()["rlinf_serve_requests_total",] == 2
    monkeypatch.setattr(served_base, "ANSWERS", 2)
    base.chunks(batch(2))  # pushes out the oldest
    base.chunks(batch(1))
    assert inside.figures()["rlinf_serve_requests_total",] == 3
    base.chunks(batch(0))
    assert inside.figures()["rlinf_serve_requests_total",] == 4


def test_a_base_is_sent_each_station_s_observation_under_its_keys(monkeypatch):
    sent = []

    class Client:
        def infer(self, message):
            sent.append(message)
            return {"actions": np.full((4, 2), 0.25)}

        def close(self):
            pass

    base = ServedBase(SPEC, "ws://nowhere:1", 20.0, {})
    monkeypatch.setattr(base, "_connected", Client)
    observation = batch(0, 1)
    assert base.chunks(observation).tolist() == [[[0.5, 1.0]] * 4] * 2
    for seed, message in enumerate(sent):
        assert message.keys() == {"pose", "force", "front", "prompt"}
        assert message["prompt"] == "push" and message["pose"].shape == (2, 2)
        assert all(np.array_equal(message[name], value) for name, value in observed(seed).items())
    words = Observation(observation.vectors, observation.images, ("pull", "turn"))
    base.chunks(words)
    assert [message["prompt"] for message in sent[2:]] == ["pull", "turn"]
    base.chunks(Observation(observation.vectors, observation.images, ()))
    assert len(sent) == 4, "the task's own sentence was asked before"
    keyed = ServedBase(SPEC, "ws://nowhere:1", 20.0, {"state": "s", "front": "image"})
    monkeypatch.setattr(keyed, "_connected", Client)
    keyed.chunks(batch(3))
    assert sent[4].keys() == {"s", "image"} and sent[4]["s"].shape == (7,)


def test_a_copy_of_a_base_has_its_settings_and_no_connection(inside):
    keys = {"pose": "pose", "front": "front", "force": "force"}
    base = ServedBase(SPEC, inside.address, 7.0, keys)
    base.chunks(batch(0))
    for other in (copy.deepcopy(base), pickle.loads(pickle.dumps(base))):
        assert (other.spec, other.address, other.timeout_s, other.keys) == (
            SPEC,
            inside.address,
            7.0,
            keys,
        )
        assert other._client is None and not other._answers
    with pytest.raises(SpecError, match="station.policy.keys"):
        ServedBase(SPEC, inside.address, 7.0, {"wrist": "wrist"})


def test_a_base_that_is_gone_is_tried_three_times_and_one_that_comes_back_is_used(
    inside, monkeypatch
):
    waits, clients = [], []
    monkeypatch.setattr(served_base, "time", SimpleNamespace(sleep=waits.append))
    connected = ServedBase._connected
    base = ServedBase(SPEC, inside.address, 20.0, {})

    def fails():
        clients.append(1)
        raise ServingError("gone")

    monkeypatch.setattr(base, "_connected", fails)
    with pytest.raises(ServingError, match="gone"):
        base.chunks(batch(0))
    assert len(clients) == 3 and waits == [1.0, 1.0]
    monkeypatch.setattr(base, "_connected", lambda: connected(base))
    first = base.chunks(batch(0))
    for connection in list(inside.server.bounds.open):
        inside.loop.call_soon_threadsafe(connection.drop)
    until(lambda: not inside.server.bounds.open)
    assert base.chunks(batch(1)).shape == first.shape and waits[2:] == [1.0]
    before = base._client
    with pytest.raises(RefusedRequestError):
        base._infer({"prompt": "no images"})
    assert base._client is before and len(waits) == 3, "a refusal is no broken connection"


def test_the_environment_names_another_server_and_its_key(inside, tmp_path, monkeypatch):
    key_file = tmp_path / "api.key"
    key_file.write_text("0123456789abcdef0123456789abcdef")
    key_file.chmod(0o600)
    clients = []
    monkeypatch.setattr(served_base, "PolicyClient", lambda *words: clients.append(words) or words)
    base = ServedBase(SPEC, "ws://file:1", 7.0, {})
    base._connected()
    monkeypatch.setenv(served_base.KEY_FILE, str(key_file))
    base._connected()
    monkeypatch.setenv(served_base.ADDRESS, "wss://other:2")
    base._connected()
    monkeypatch.delenv(served_base.KEY_FILE)
    base._connected()
    assert clients == [
        ("ws://file:1", 7.0, ""),
        ("ws://file:1", 7.0, ""),  # never to an address that a file names
        ("wss://other:2", 7.0, key_file.read_text()),
        ("wss://other:2", 7.0, ""),
    ]


def test_a_single_observation_is_not_copied():
    one, cpu = np.ones((2, 3), np.float32), torch.device("cpu")
    alone = serving_weights._stack_batch([one], cpu)
    assert alone.shape == (1, 2, 3) and alone.data_ptr() == one.ctypes.data
    assert serving_weights._stack_batch([one, 2 * one], cpu)[:, 0, 0].tolist() == [1.0, 2.0]
