"""Messages that would take time or memory, and peers that may not connect; other clients are
answered.
"""

import contextlib
import time

import msgpack
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from rlinf_core.core.errors import ServingError
from rlinf_core.deploy.serving.client import PolicyClient
from rlinf_core.deploy.serving.protocol import MAX_DEPTH, MAX_ELEMENTS, pack, unpack
from rlinf_core.deploy.serving.server import MAX_CLIENTS
from rlinf_core.policies.policy_folder import policy_name
from rlinf_core.policies.serialization import save_policy
from tests.deploy.serving.test_serving import Served, observed, policy_of, spec  # noqa: F401

pytestmark = pytest.mark.timed
OTHERS_S, MEMORY_MB = 2.0, 600
LISTS = (
    b"\x81\xa1a\xdd"
    + (600).to_bytes(4, "big")
    + (b"\xdd" + (99_000).to_bytes(4, "big") + b"\x90" * 99_000) * 600
)
DEEP = b"\x81\xa1a" + b"\x91" * 1_000_000 + b"\x90"
MAPS = (
    b"\x81\xa1a\xdd"
    + (600).to_bytes(4, "big")
    + (b"\xdd" + (99_000).to_bytes(4, "big") + b"\x80" * 99_000) * 600
)


@pytest.fixture(scope="module")
def served(tmp_path_factory, spec):
    folder = tmp_path_factory.mktemp("attacked")
    save_policy(policy_of(spec, 0), folder / policy_name(0))
    served = Served(folder)
    yield served
    served.end()


def peak_mb(served):
    with open(f"/proc/{served.process.pid}/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


@pytest.mark.parametrize("bomb", [LISTS, MAPS, DEEP], ids=["lists", "maps", "deep"])
def test_a_bomb_of_elements_delays_nobody_and_takes_little_memory(served, spec, bomb):
    other = PolicyClient(served.address, 10.0)
    other.infer(observed(spec))
    before = peak_mb(served)
    with connect(served.address, compression=None, max_size=None) as bad:
        bad.recv()
        bad.send(bomb)
        begun = time.monotonic()
        assert other.infer(observed(spec))["actions"].shape == (8, 3)
        assert time.monotonic() - begun < OTHERS_S
        assert "expected at most" in bad.recv(20)
        with contextlib.suppress(ConnectionClosed):
            bad.recv(10)
    assert peak_mb(served) - before < MEMORY_MB
    other.close()


def test_a_page_of_a_browser_is_no_client(served):
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(served.address, origin="http://127.0.0.1"),
    ):
        pass
    assert refused.value.response.status_code == 403


def test_clients_beyond_the_bound_are_refused_and_the_others_answered(served, spec):
    with contextlib.ExitStack() as clients:
        ours = [
            clients.enter_context(connect(served.address, compression=None))
            for _ in range(MAX_CLIENTS)
        ]
        for connection in ours:
            connection.recv()
        with pytest.raises(InvalidStatus) as refused, connect(served.address, compression=None):
            pass
        assert refused.value.response.status_code == 503
        assert f"at most {MAX_CLIENTS} clients" in refused.value.response.body.decode()
        assert served.page("healthz") == "OK\n"
        ours[-1].send(pack(observed(spec)))
        assert unpack(ours[-1].recv(10))["actions"].shape == (8, 3)


def nested(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


def test_the_bounds_count_all_lists_and_maps_of_a_message():
    half = list(range(MAX_ELEMENTS // 2 - 2))
    assert unpack(pack({"a": half, "b": half}))["b"] == half
    with pytest.raises(ServingError, match=f"at most {MAX_ELEMENTS} elements"):
        unpack(pack({"a": half, "b": {str(number): 0 for number in half}}))
    assert unpack(pack({"a": nested(MAX_DEPTH - 1)}))["a"] == nested(MAX_DEPTH - 1)
    for levels in (MAX_DEPTH, 600):
        with pytest.raises(ServingError, match=f"at most {MAX_DEPTH} levels"):
            unpack(pack({"a": nested(levels)}))


def test_every_kind_of_header_is_counted_and_every_kind_of_value_passed_over():
    message = {
        "a": [1, -1, 1.5, None, True, b"x" * 70_000, "y" * 300, 2**40],
        "b": {str(n): [n] for n in range(20)},
        "c": list(range(70_000)),
        "d": np.zeros((3, 4), np.float32),
        "e": np.int64(3),
    }
    read = unpack(pack(message))
    assert read["a"] == message["a"] and read["b"] == message["b"] and read["c"] == message["c"]
    assert read["d"].shape == (3, 4) and read["e"] == 3
    for cut in (1, 2, 5, 300, 70_400):
        with pytest.raises(ServingError, match="expected a map in msgpack"):
            unpack(pack(message)[:-cut])
    with pytest.raises(ServingError):
        unpack(msgpack.packb([1]))
    with pytest.raises(ServingError):
        unpack(b"")
