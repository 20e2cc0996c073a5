"""The server in this process, its figures, and what its parts make of each request."""

import asyncio
import contextlib
import socket
import threading
import time
import urllib.error
import urllib.request
from types import SimpleNamespace

import msgpack
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import connect

from rlinf_core.core.errors import (
    AnswerError,
    EngineError,
    RefusedRequestError,
    ServingError,
    SpecError,
)
from rlinf_core.deploy.serving import lerobot
from rlinf_core.deploy.serving import server as serving_server
from rlinf_core.deploy.serving.batching import Batcher, Waiting
from rlinf_core.deploy.serving.client import PolicyClient
from rlinf_core.deploy.serving.protocol import (
    EXTENSION_KEY,
    check_horizon,
    metadata,
    observation_message,
    pack,
    read_extension,
    read_request,
    unpack,
)
from rlinf_core.deploy.serving.server import Metrics, PolicyServer, serve_until_cancelled
from rlinf_core.deploy.serving.weights import Weights
from rlinf_core.policies.policy_folder import policy_name
from rlinf_core.policies.serialization import save_policy
from tests.deploy.serving.test_serving import observed, policy_of, spec  # noqa: F401

pytestmark = pytest.mark.timed


def figures(text):
    """Value by name and labels, of Prometheus' text format."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Inside:
    """A server in a thread of this process."""

    def __init__(self, weights, max_batch=4, max_wait_s=0.0, lerobot_port=None, **access):
        self.lines, listening = [], threading.Event()

        def ready(port):
            self.port = port
            listening.set()

        async def run():
            self.loop, self.task = asyncio.get_running_loop(), asyncio.current_task()
            self.server = PolicyServer(weights, max_batch, max_wait_s, self.lines.append, **access)
            other = None if lerobot_port is None else self._lerobot(lerobot_port)
            await serve_until_cancelled(self.server, "127.0.0.1", 0, ready, other)

        self.thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
        self.thread.start()
        assert listening.wait(20)
        self.address = f"ws://127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def _lerobot(self, port):
        async with lerobot.serve_lerobot(self.server, port) as self.lerobot:
            yield

    def page(self, name):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{name}", timeout=10) as answer:
            return answer.read().decode()

    def figures(self):
        return figures(self.page("metrics"))

    def end(self):
        self.loop.call_soon_threadsafe(self.task.cancel)
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.fixture
def inside(tmp_path, spec, monkeypatch):
    monkeypatch.setattr(serving_server, "POLL_S", 0.05)
    save_policy(policy_of(spec, 0), tmp_path / policy_name(3))
    inside = Inside(Weights(tmp_path))
    inside.folder = tmp_path
    yield inside
    inside.end()


def until(what, seconds=20.0):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_figures_count_requests_refusals_clients_and_swaps(inside, spec):
    at_first = inside.figures()
    assert at_first["rlinf_serve_version",] == 3 and at_first["rlinf_serve_requests_total",] == 0
    client, other = (PolicyClient(inside.address, 20.0) for _ in range(2))
    first, second = client.infer(observed(spec)), client.infer(observed(spec))
    with pytest.raises(RefusedRequestError):
        client.infer({"prompt": "no images"})
    now = inside.figures()
    assert now["rlinf_serve_requests_total",] == 2 and now["rlinf_serve_refused_total",] == 1
    assert now["rlinf_serve_clients",] == 2 and now["rlinf_serve_swaps_total",] == 0
    assert now["rlinf_serve_batches_total", ("size", "1")] == 2
    assert now["rlinf_serve_latency_seconds_count",] == 2
    timing, later = first["server_timing"], second["server_timing"]
    assert "prev_total_ms" not in timing and later["prev_total_ms"] >= timing["infer_ms"] > 0.0
    assert timing["batch"] == 1 and 0.0 <= timing["wait_ms"] < 1000.0
    other.close()
    until(lambda: inside.figures()["rlinf_serve_clients",] == 1)
    save_policy(policy_of(spec, 1), inside.folder / policy_name(5))
    until(lambda: inside.figures()["rlinf_serve_version",] == 5)
    assert inside.figures()["rlinf_serve_swaps_total",] == 1
    client.close()


def test_an_episode_keeps_its_version_until_another_begins(inside, spec):
    client = PolicyClient(inside.address, 20.0)

    def version(episode):
        return client.infer(observed(spec) | {EXTENSION_KEY: {"episode": episode}})[EXTENSION_KEY][
            "version"
        ]

    assert (version("a"), version("")) == (3, 3)
    assert version("a") == 3
    save_policy(policy_of(spec, 1), inside.folder / policy_name(5))
    until(lambda: inside.figures()["rlinf_serve_version",] == 5)
    assert [version(name) for name in ("a", "a", "b", "", "")] == [3, 3, 5, 5, 5]
    client.close()


def test_a_text_is_refused_and_hung_up_on_and_an_unknown_path_is_a_socket(inside, spec):
    with connect(inside.address, compression=None) as bad:
        assert unpack(bad.recv())["policy"] == "rlinf"
        bad.send("hello")
        assert "msgpack" in bad.recv()
        with pytest.raises(ConnectionClosedError) as closed:
            bad.recv()
    assert closed.value.rcvd.code == 1003, "unsupported data"
    assert inside.page("healthz").strip() == "OK"
    with pytest.raises(InvalidStatus) as refused, connect(inside.address, origin="http://a.page"):
        pass
    assert refused.value.response.status_code == 403


def test_whatever_a_policy_raises_is_answered_reported_and_ends_no_connection(
    inside, spec, monkeypatch
):
    client = PolicyClient(inside.address, 20.0)
    version = inside.server.weights.newest
    broken = {"is": True}

    def act(observation, explore, generator):
        if broken["is"]:
            raise ZeroDivisionError("of a policy\x1b")
        return type(version.policy).act(version.policy, observation, explore, generator)

    monkeypatch.setattr(version.policy, "act", act)
    with pytest.raises(RefusedRequestError, match="ZeroDivisionError: of a policy") as refused:
        client.infer(observed(spec))
    assert len(inside.lines) == 1 and "ZeroDivisionError: of a policy" in inside.lines[0]
    assert "\x1b" not in inside.lines[0] + str(refused.value), "nothing that a terminal obeys"
    broken["is"] = False
    assert client.infer(observed(spec))["actions"].shape == (8, 3)
    client.close()


def test_a_folder_that_is_gone_is_reported_and_served_on(inside, spec, monkeypatch):
    monkeypatch.setattr(inside.server.weights, "load_newer", lambda say: 1 / 0)
    until(lambda: inside.lines)
    assert "version 3" in inside.lines[0] and "division by zero" in inside.lines[0]
    client = PolicyClient(inside.address, 20.0)
    assert client.infer(observed(spec))["actions"].shape == (8, 3)
    client.close()


def test_a_line_for_people_comes_where_something_was_answered(tmp_path, spec, monkeypatch):
    monkeypatch.setattr(serving_server, "REPORT_S", 0.2)
    save_policy(policy_of(spec, 0), tmp_path / policy_name(3))
    inside = Inside(Weights(tmp_path))
    try:
        time.sleep(0.5)
        assert inside.lines == []
        client = PolicyClient(inside.address, 20.0)
        client.infer(observed(spec))
        until(lambda: inside.lines)
        assert "version 3" in inside.lines[0] and "5.0 requests/s" in inside.lines[0]
        client.close()
    finally:
        inside.end()


def test_a_taken_port_is_an_error_with_its_remedy(inside):
    async def again():
        server = PolicyServer(inside.server.weights, 4, 0.0, print)
        await serve_until_cancelled(server, "127.0.0.1", inside.port, print)

    with pytest.raises(ServingError, match=f"127.0.0.1:{inside.port}.*--port"):
        asyncio.run(again())


def test_clients_that_asked_within_a_second_are_those_who_are_asking():
    server = PolicyServer.__new__(PolicyServer)
    now = time.monotonic()
    server.clients = {
        _FakeClient(now),
        _FakeClient(now - 0.5),
        _FakeClient(now - 1.5),
        _FakeClient(0.0),
    }
    assert server._connection_count() == 2


class _FakeClient:
    def __init__(self, at):
        self.requested_at = at


def test_metrics_count_each_batch_once():
    metrics = Metrics()
    assert metrics.batch == 0.0 and metrics.line(10.0) == ""
    for latency_s, size in ((0.001, 1), (0.002, 3), (0.002, 3), (0.002, 3)):
        metrics.answered(latency_s, size)
    metrics.version, metrics.clients, metrics.refused, metrics.swaps = 7, 4, 2, 6
    assert metrics.requests == 4 and metrics.batch == 2.0
    read = figures(metrics.text())
    expected = {
        "requests_total": 4,
        "refused_total": 2,
        "swaps_total": 6,
        "clients": 4,
        "version": 7,
    }
    assert {name: read[f"rlinf_serve_{name}",] for name in expected} == expected
    assert read["rlinf_serve_batches_total", ("size", "1")] == 1
    assert read["rlinf_serve_batches_total", ("size", "3")] == 1
    assert read["rlinf_serve_latency_seconds_count",] == 4
    assert read["rlinf_serve_latency_seconds_sum",] == pytest.approx(0.007)
    line = metrics.line(2.0)
    for part in (
        "version 7",
        "4 clients",
        "2.0 requests/s",
        "batches of 2.0",
        "p50 2.0 ms",
        "2 refused",
    ):
        assert part in line
    assert metrics.line(2.0) == "", "nothing since"
    metrics.answered(0.001, 1)
    assert "0.5 requests/s" in metrics.line(2.0)


def test_metadata_are_what_clients_read_of_it(spec):
    read = metadata(spec, 7, 8, 4, True)
    assert read["policy"] == "rlinf" and read["action_horizon"] == 8
    assert read["action"] == ["dx", "dy", "dz"] and read["action_units"] == ["m"] * 3
    assert read["observation"].keys() == {item.name for item in spec.observation}
    assert read["observation"]["wrist"] == "uint8[48, 48, 3]"
    assert read[EXTENSION_KEY] == {
        "version": 7,
        "spec": spec.to_dict(),
        "execute": 4,
        "continues": True,
    }


def test_an_observation_is_read_by_name_or_as_one_state(spec):
    named = observed(spec)
    plain = read_request(spec, named, False)
    prefixed = read_request(
        spec, {f"observation/{name}": value for name, value in named.items()}, False
    )
    vector = spec.flatten({item.name: named[item.name] for item in spec.vectors})
    state = read_request(
        spec, {"state": vector, **{item.name: named[item.name] for item in spec.images}}, False
    )
    for request in (plain, prefixed, state):
        assert np.array_equal(request.vectors, vector) and request.images.keys() == {"wrist"} | {
            item.name for item in spec.images
        }
        assert (request.explore, request.episode, request.left, request.frozen) == (
            None,
            "",
            None,
            0,
        )
    assert plain.instruction == "insert" and state.instruction == spec.instruction
    overridden = read_request(spec, named | {EXTENSION_KEY: {"explore": False, "episode": 7}}, True)
    assert (overridden.explore, overridden.episode) == (False, "7")


@pytest.mark.parametrize(
    "change, named",
    [
        ({"wrist": None}, "'wrist': .*NoneType"),
        ({"wrist": [1]}, "'wrist': .*list"),
        ({"rist": 1}, "unknown 'rist'.*did you mean 'wrist'"),
        ({EXTENSION_KEY: [1]}, EXTENSION_KEY),
        ({EXTENSION_KEY: {"unknown": 1}}, EXTENSION_KEY),
        ({EXTENSION_KEY: {"explore": 1}}, EXTENSION_KEY),
    ],
)
def test_what_is_wrong_with_it_is_named(spec, change, named):
    with pytest.raises(SpecError, match=named):
        read_request(spec, observed(spec) | change, False)


def test_what_is_missing_is_nothing(spec):
    message = {name: value for name, value in observed(spec).items() if name != "wrist"}
    with pytest.raises(
        SpecError, match=r"'wrist': expected an array uint8\[48, 48, 3\], got nothing"
    ):
        read_request(spec, message, False)


@pytest.mark.parametrize(
    "left, frozen",
    [
        (np.zeros((1001, 3)), 0),
        (np.zeros((4, 3), int), 0),
        (np.zeros(3), 0),
        (np.zeros((4, 3)), 1001),
        (np.zeros((4, 3)), True),
    ],
)
def test_a_chunk_in_play_has_bounds(spec, left, frozen):
    with pytest.raises(SpecError, match=rf"{EXTENSION_KEY}\.(left|frozen)"):
        read_request(
            spec, observed(spec) | {EXTENSION_KEY: {"left": left, "frozen": frozen}}, False
        )


def test_a_chunk_in_play_within_its_bounds_is_taken(spec):
    left = np.zeros((1000, 3))
    for frozen in (0, 1000):
        request = read_request(
            spec, observed(spec) | {EXTENSION_KEY: {"left": left, "frozen": frozen}}, False
        )
        assert request.left is left and request.frozen == frozen
    assert read_request(spec, observed(spec) | {EXTENSION_KEY: {"left": left}}, False).frozen == 0


def test_a_client_says_all_or_what_its_keys_choose(spec):
    named = {name: value for name, value in observed(spec).items() if name != "prompt"}
    assert observation_message(spec, named, "push", {}) == {**named, "prompt": "push"}
    chosen = observation_message(
        spec, named, "push", {"state": "s", "prompt": "p", "wrist": "image"}
    )
    assert (
        chosen.keys() == {"s", "p", "image"}
        and chosen["p"] == "push"
        and chosen["image"] is named["wrist"]
    )
    assert np.array_equal(chosen["s"], spec.flatten(named))


def test_answers_beside_the_actions_are_checked_each():
    good = {"version": 3, "drawn": np.zeros((8, 3)), "log_probs": np.zeros(8)}
    assert read_extension({EXTENSION_KEY: good}) is good and read_extension({}) == {}
    assert (
        read_extension({EXTENSION_KEY: good | {"log_probs": None, "version": -1}})["version"] == -1
    )
    for name, value in (
        ("version", -2),
        ("version", 3.0),
        ("drawn", None),
        ("drawn", np.array("a")),
        ("log_probs", np.array([np.inf])),
        ("log_probs", 3),
    ):
        with pytest.raises(AnswerError, match=name):
            read_extension({EXTENSION_KEY: good | {name: value}})
        with pytest.raises(AnswerError, match=name):
            read_extension({EXTENSION_KEY: {"log_probs": None} | {name: value}})


@pytest.mark.parametrize(
    "length, horizon, execute, wanted",
    [
        (7, 8, 4, "8 actions"),
        (9, 8, 4, "8 actions"),
        (3, 0, 4, "4 or more"),
        (3, 3, 4, "3 actions"),
    ],
)
def test_a_chunk_is_as_long_as_the_others_and_as_what_is_executed(length, horizon, execute, wanted):
    with pytest.raises(AnswerError, match=f"{wanted}.*got {length}.*station.policy.n_action_steps"):
        check_horizon(np.zeros((length, 3)), horizon, execute)


def test_a_chunk_of_the_right_length_is_taken():
    for length, horizon, execute in ((8, 8, 8), (4, 0, 4), (4, 0, 0), (4, 4, 0)):
        check_horizon(np.zeros((length, 3)), horizon, execute)


def test_in_a_batch_that_fails_each_gets_what_it_gets_alone():
    def infer(kind, requests):
        assert kind == "kind"
        if "bad" in requests:
            raise ValueError("bad")
        return [request.upper() for request in requests]

    batcher = Batcher(infer, 8, 0.0, lambda: 8)
    waiting = [Waiting("kind", request, None) for request in ("a", "bad", "c")]
    batcher._timed(waiting)
    assert [waiting[0].request, waiting[2].request] == ["A", "C"] and str(
        waiting[1].request
    ) == "bad"
    assert {one.size for one in waiting} == {3} and all(one.took_s >= 0.0 for one in waiting)


def test_a_batch_is_of_one_kind_and_no_larger_than_it_may_be():
    batcher = Batcher(lambda kind, requests: requests, 2, 0.0, lambda: 1)
    open_, gone = SimpleNamespace(done=lambda: False), SimpleNamespace(done=lambda: True)
    batcher.waiting = [Waiting(kind, number, open_) for number, kind in enumerate("abaaa")]
    batcher.waiting[2].answer = gone
    batches = [[waiting_request.request for waiting_request in batcher._next()] for _ in range(3)]
    assert batches == [[0], [1], [3, 4]] and batcher.waiting == []
    batcher.close()
    assert batcher._next() is None


def test_a_batch_waits_for_as_many_as_ask_and_no_longer_than_it_may():
    async def timed(max_wait_s, clients):
        def infer(kind, requests):
            sizes.append(len(requests))
            time.sleep(0.002)
            return requests

        sizes = []
        batcher = Batcher(infer, 4, max_wait_s, lambda: clients)
        batcher.start()
        started = time.monotonic()
        done = await asyncio.gather(*(batcher.submit("kind", number) for number in range(3)))
        batcher.close()
        return (
            [waiting_request.request for waiting_request in done],
            sizes,
            time.monotonic() - started,
        )

    answers, sizes, took_s = asyncio.run(timed(30.0, 3))
    assert answers == [0, 1, 2] and sizes == [3] and took_s < 20.0, "all who ask have come"
    answers, sizes, took_s = asyncio.run(timed(0.2, 9))
    assert answers == [0, 1, 2] and sizes == [3] and took_s >= 0.2, "a fourth may come"


def test_a_client_that_gets_no_answer_or_no_map_says_so():
    def listen(send):
        listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=send, args=(listener,), daemon=True).start()
        return listener, f"ws://127.0.0.1:{listener.getsockname()[1]}"

    listener, address = listen(lambda listener: time.sleep(30))
    with pytest.raises(ServingError, match=f"{address}.*rlinf serve POLICY"):
        PolicyClient(address, 0.3)
    listener.close()


def test_numbers_of_every_type_come_back_as_they_were():
    message = {"f": np.float32(2.5), "i": np.int64(-3), "u": np.uint8(7), "b": np.bool_(True)}
    read = unpack(pack(message))
    assert all(
        read[name] == value and read[name].dtype == value.dtype for name, value in message.items()
    )
    empty = unpack(pack({"a": np.zeros((0, 3), np.float32)}))["a"]
    assert empty.shape == (0, 3) and empty.dtype == np.float32
    for wrong in (np.array(["text"]), object(), np.complex64(1.0)):
        with pytest.raises(TypeError):
            pack({"a": wrong})


def test_one_delay_of_the_machine_does_not_send_a_quick_policy_to_the_thread(monkeypatch):
    """The least of the last batches counts; a policy that stays slow leaves the event loop."""
    monkeypatch.setattr("rlinf_core.deploy.serving.batching.QUICK_S", 0.03)
    durations, threads = [0.0] * 3 + [0.1] + [0.0] * 2 + [0.05] * 6, []

    def infer(kind, requests):
        threads.append(threading.current_thread().name)
        time.sleep(durations[len(threads) - 1])
        return requests

    async def ask_all():
        batcher = Batcher(infer, 2, 0.0, lambda: 1)
        batcher.start()
        for _ in durations:
            await batcher.submit("kind", 1)
        batcher.close()

    asyncio.run(ask_all())
    assert threads[0] == threads[-1] == "inference", "the first one may be slow"
    assert "inference" not in threads[1:7]


@pytest.mark.parametrize(
    "value",
    [
        None,
        -(2**40),
        2**40,
        1.5,
        "x" * 40,
        "y" * 300,
        "z" * 70_000,
        b"a" * 3,
        b"b" * 300,
        b"c" * 70_000,
        msgpack.ExtType(5, b"d"),
        msgpack.ExtType(5, b"e" * 16),
        msgpack.ExtType(5, b"f" * 300),
        [1] * 20,
        {"g": [[]] * 20},
    ],
)
def test_headers_of_all_kinds_of_values_are_read_as_the_library_reads_them(value):
    message = {
        "before": 1,
        "value": [value, value],
        "behind": {str(number): 2 for number in range(20)},
    }
    assert unpack(msgpack.packb(message)) == message
    with pytest.raises(ServingError):
        unpack(msgpack.packb(message)[:-1])


def test_a_packer_is_as_new_after_an_error_and_after_a_large_message():
    small = {"actions": np.ones((2, 3))}
    before = pack(small)
    with pytest.raises(TypeError):
        pack({"a": np.ones(4), "b": object()})
    assert pack(small) == before
    pack({"large": np.zeros(1 << 18)})
    assert pack(small) == before


def test_figures_have_their_names_types_and_units():
    metrics = Metrics()
    for size in (1, 2, 2, 2, 5):
        metrics.answered(0.25, size)
    families = {family.name: family for family in text_string_to_metric_families(metrics.text())}
    types = {name: family.type for name, family in families.items()}
    assert types == {
        "rlinf_serve_requests": "counter",
        "rlinf_serve_refused": "counter",
        "rlinf_serve_swaps": "counter",
        "rlinf_serve_clients": "gauge",
        "rlinf_serve_version": "gauge",
        "rlinf_serve_batches": "counter",
        "rlinf_serve_latency_seconds": types["rlinf_serve_latency_seconds"],
    }
    assert all(family.documentation for family in families.values())
    batches = families["rlinf_serve_batches"].samples
    assert [(sample.labels["size"], sample.value) for sample in batches] == [
        ("1", 1),
        ("2", 1),  # of three requests so far: the second batch is not over
        ("5", 0),
    ]
    assert 'rlinf_serve_batches_total{size="2"} 1.0' in metrics.text().splitlines()
    assert metrics.batch == pytest.approx(5 / (1 + 1.5 + 0.2))


def test_a_line_for_people_has_every_figure():
    metrics = Metrics()
    for latency_s in (0.010, 0.020, 0.030, 0.040):
        metrics.answered(latency_s, 2)
    metrics.version, metrics.clients, metrics.refused = 12, 3, 4
    p50, p99 = 1e3 * metrics.latencies.quantiles()
    assert metrics.line(8.0) == (
        f"version 12: 3 clients, 0.5 requests/s, batches of 2.0, p50 {p50:.1f} ms, p99 {p99:.1f} "
        "ms, 4 refused"
    )
    assert 19.0 < p50 < 31.0 <= p99 < 41.0 and metrics.line(8.0) == ""


class Taken:
    """A connection of one client, without a socket."""

    def __init__(self, busy=False):
        self.busy, self.sent, self.closed, self.dropped = busy, [], [], False

    async def send(self, data):
        self.sent.append(data)

    async def close(self, code, reason):
        self.closed.append((int(code), reason))

    def drop(self):
        self.dropped = True

    def respond(self, status, text):
        return int(status), text


@pytest.fixture
def quiet(tmp_path, spec):
    """Return a server that does not listen."""
    save_policy(policy_of(spec, 0), tmp_path / policy_name(3))
    lines = []
    server = PolicyServer(Weights(tmp_path), 4, 0.25, lines.append)
    server.lines = lines
    return server


def client_of(server, **changes):
    client = serving_server.Client(Taken(), server.weights.newest)
    vars(client).update(changes)
    return client


def test_a_server_begins_with_nothing(quiet):
    assert (quiet.clients, quiet.key, quiet.tls) == (set(), "", None)
    assert (quiet.batcher.max_batch, quiet.batcher.max_wait_s) == (4, 0.25)
    assert quiet.batcher.callers() == 0 and quiet.metrics.requests == 0
    before = time.monotonic()
    client = client_of(quiet)
    assert client.version is quiet.weights.newest and before <= client.since <= time.monotonic()
    assert (client.episode, client.requested_at, client.total_s) == ("", 0.0, 0.0)
    quiet.log("a\x1b")
    assert quiet.lines == ["a\\x1b"]


def test_an_answer_says_how_long_it_took(quiet, spec, monkeypatch):
    done = SimpleNamespace(request={"actions": 1}, took_s=0.25, started_at=11.0, since=10.5, size=3)
    submitted = []

    async def submit(kind, request):
        submitted.append((kind, request))
        return done

    monkeypatch.setattr(quiet.batcher, "submit", submit)
    client = client_of(quiet)
    quiet.clients.add(client)
    message = pack(observed(spec) | {EXTENSION_KEY: {"explore": True, "episode": "e"}})
    started = time.monotonic() - 2.0

    def answer():
        return asyncio.run(quiet._infer(client, message, started))["server_timing"]

    assert answer() == {"infer_ms": 250.0, "wait_ms": 500.0, "batch": 3}
    assert client.requested_at == started and client.episode == "e"
    (kind, request), version = submitted[0], quiet.weights.newest
    assert kind == (version, True, False) and request.instruction == "insert"
    client.total_s = 0.5
    assert answer()["prev_total_ms"] == 500.0
    assert quiet.metrics.requests == 2 and quiet.metrics.batches == {3: 2}
    assert figures(quiet.metrics.text())["rlinf_serve_latency_seconds_sum",] >= 4.0


@pytest.mark.parametrize(
    "clients, size, inline",
    [(1, 0, True), (1, (1 << 20) - 8, True), (1, (1 << 20) - 7, False), (2, 0, False)],
)
def test_a_message_is_unpacked_in_a_thread_where_others_wait(
    quiet, spec, monkeypatch, clients, size, inline
):
    threads = []

    def noted(data):
        threads.append(threading.current_thread() is threading.main_thread())
        return unpack(data)

    monkeypatch.setattr(serving_server, "unpack", noted)
    ours = [client_of(quiet) for _ in range(clients)]
    quiet.clients.update(ours)
    with pytest.raises(SpecError):
        asyncio.run(quiet._infer(ours[0], pack({"a": b"x" * size}), 0.0))
    assert threads == [inline]
    with pytest.raises(ServingError, match="message: expected a map in msgpack, got a text"):
        asyncio.run(quiet._infer(ours[0], "a text", 0.0))


@pytest.mark.parametrize(
    "error, answer, closed, lines",
    [
        (ServingError("no msgpack"), "no msgpack", [(1003, "expected openpi's protocol")], []),
        (SpecError("no image"), "no image", [], []),
        (EngineError("no answer"), "no answer", [], []),
        (
            KeyError("a\x1b"),
            "inference failed: KeyError: 'a\\\\x1b'",
            [],
            ["a request failed: KeyError: 'a\\\\x1b'"],
        ),
    ],
)
def test_each_error_is_answered_as_it_should_be(quiet, monkeypatch, error, answer, closed, lines):
    async def fails(*_):
        raise error

    monkeypatch.setattr(quiet, "_infer", fails)
    client = client_of(quiet)
    asyncio.run(quiet._answer(client, b""))
    assert client.connection.sent == [answer] and client.connection.closed == closed
    assert quiet.lines == lines and quiet.metrics.refused == 1 and client.total_s == 0.0


def test_a_client_s_time_is_that_of_its_last_answer(quiet, monkeypatch):
    async def slow(*_):
        await asyncio.sleep(0.05)
        return {"a": 1}

    monkeypatch.setattr(quiet, "_infer", slow)
    client = client_of(quiet)
    asyncio.run(quiet._answer(client, b""))
    assert client.connection.sent == [pack({"a": 1})] and 0.05 <= client.total_s < 10.0
    assert quiet.metrics.refused == 0


def test_the_client_that_was_silent_for_longest_gives_way(quiet):
    now = time.monotonic()
    silent, longer, busy, asking = (
        client_of(quiet, since=now - seconds) for seconds in (2.0, 3.0, 9.0, 0.1)
    )
    busy.connection.busy = True
    assert not quiet._make_room()
    quiet.clients = {busy, asking}
    assert not quiet._make_room() and quiet.clients == {busy, asking}
    quiet.clients = {silent, longer, busy, asking}
    assert quiet._make_room() and quiet.clients == {silent, busy, asking}
    assert longer.connection.dropped and not silent.connection.dropped
    assert quiet._make_room() and not quiet._make_room()


def page(server, path, **headers):
    request = SimpleNamespace(path=path, headers=headers)
    return server._http(Taken(), request)


def test_pages_beside_the_socket(quiet):
    assert page(quiet, "/healthz") == (200, "OK\n") and page(quiet, "/") is None
    assert page(quiet, "/metrics") == (200, quiet.metrics.text())
    quiet.key = "k" * 20
    assert page(quiet, "/healthz") == (200, "OK\n")
    for path in ("/", "/metrics"):
        assert page(quiet, path, Authorization="Api-Key other") == (
            401,
            "expected 'Authorization: Api-Key <key>' with this server's API key, got another or "
            "none\n",
        )
        assert page(quiet, path, Authorization="Api-Key " + quiet.key) in (
            None,
            (200, quiet.metrics.text()),
        )
    assert quiet.metrics.refused == 2
    assert quiet.lines == ["serve: refused a client without the right API key"] * 2
    quiet.key = ""
    quiet.clients = {client_of(quiet) for _ in range(63)}
    assert page(quiet, "/") is None
    quiet.clients.add(client_of(quiet))
    assert page(quiet, "/") == (503, "expected at most 64 clients\n")
    assert page(quiet, "/metrics")[0] == 200
    next(iter(quiet.clients)).since -= 2.0
    assert page(quiet, "/") is None and len(quiet.clients) == 63


def test_an_episode_begins_with_the_newest_version(quiet):
    client, old, new = client_of(quiet), object(), object()
    assert client.begin("a", old) is old and client.begin("a", new) is old
    assert client.begin("b", new) is new and client.episode == "b"
    assert client.begin("", old) is old and client.begin("", new) is new


def test_a_request_that_comes_alone_is_answered_at_once_where_the_policy_is_quick():
    threads = []

    def infer(kind, requests):
        threads.append(threading.current_thread().name)
        return [(kind, request) for request in requests]

    async def ask():
        batcher = Batcher(infer, 3, 0.0, lambda: callers)
        batcher.start()
        for callers in (1, 0, 1, 2):  # noqa: B007
            waiting = await batcher.submit("k", callers)
            assert waiting.request == ("k", callers) and waiting.size == 1
            assert waiting.since <= waiting.started_at and 0.0 <= waiting.took_s < 10.0
        batcher.close()
        return batcher

    batcher = asyncio.run(ask())
    main = threading.current_thread().name
    assert threads == ["inference", main, main, "inference"]
    assert batcher._expected == 2 and batcher.waiting == []


def test_an_error_of_one_request_is_raised_to_it_alone():
    def infer(kind, requests):
        if "bad" in requests:
            raise ValueError("bad one")
        return requests

    async def ask():
        batcher = Batcher(infer, 3, 5.0, lambda: 3)
        batcher.start()
        names = [thread.name for thread in threading.enumerate() if thread.daemon]
        assert "inference" in names
        results = await asyncio.gather(
            *(batcher.submit("k", one) for one in ("a", "bad", "c")), return_exceptions=True
        )
        batcher.close()
        return results

    first, second, third = asyncio.run(ask())
    assert (first.request, third.request, first.size) == ("a", "c", 3)
    assert isinstance(second, ValueError) and str(second) == "bad one"


def test_who_has_gone_is_not_answered_and_the_others_are():
    async def ask():
        batcher = Batcher(lambda kind, requests: requests, 3, 0.0, lambda: 3)
        gone = asyncio.create_task(batcher.submit("k", "gone"))
        await asyncio.sleep(0)
        gone.cancel()
        stays = asyncio.create_task(batcher.submit("k", "stays"))
        await asyncio.sleep(0)
        batcher.start()
        done = await asyncio.wait_for(stays, 20)
        batcher.close()
        return done.request, done.size

    assert asyncio.run(ask()) == ("stays", 1)


def test_every_newer_version_is_counted(inside, spec):
    for number in (5, 6):
        save_policy(policy_of(spec, number), inside.folder / policy_name(number))
        until(lambda number=number: inside.figures()["rlinf_serve_version",] == number)
        time.sleep(0.2)  # several looks without a newer one
        assert inside.figures()["rlinf_serve_swaps_total",] == number - 4


def test_a_dropped_connection_ends_quietly_and_a_cancelled_one_as_such(inside):
    sockets = [connect(inside.address, compression=None) for _ in range(2)]
    until(lambda: len(inside.server.clients) == 2)
    first, second = inside.server.bounds.open
    dropped, cancelled = first.handler_task, second.handler_task
    inside.loop.call_soon_threadsafe(first.drop)
    inside.loop.call_soon_threadsafe(cancelled.cancel)  # as where the server ends
    until(lambda: dropped.done() and cancelled.done())
    assert not dropped.cancelled() and dropped.exception() is None and cancelled.cancelled()
    assert not inside.server.clients and inside.server.metrics.clients == 0
    for socket_ in sockets:
        socket_.close()
