"""Policies that are cut on their way down: what came of them is not sent again, and what is wrong
of it is found.
"""

import grpc
import numpy as np
import pytest

from rlinf_core.core.errors import BridgeError
from rlinf_core.deploy.bridge import PART_BYTES
from rlinf_core.deploy.bridge import bridge_pb2 as pb
from rlinf_core.deploy.bridge.client import BridgeClient, partial_download, partial_path
from rlinf_core.deploy.bridge.policies import _read
from rlinf_core.policies.policy_folder import base_name, policy_files, policy_name
from tests.deploy.bridge.test_policies_down import publish, weights
from tests.deploy.bridge.test_policy_bases import BASE, stands_on

pytestmark = pytest.mark.timed


class Cut(grpc.RpcError):
    """The line is."""

    def code(self):
        return grpc.StatusCode.UNAVAILABLE

    def details(self):
        return "cut"


class Line:
    """Between a station and the trainer, counting bytes; it is cut after so many of them, once."""

    def __init__(self, trainer, cut_after=None):
        self.client = BridgeClient(f"127.0.0.1:{trainer.port}", "a", links=False)
        self.left, self.sent, self.copied, self.ask = cut_after, 0, 0, self.client._next_policy
        self.client._next_policy = self.next_policy

    def next_policy(self, request, **how):
        for part, data in self.ask(request, **how):
            if self.left is not None and self.sent >= self.left:
                self.left = None
                raise Cut
            self.sent, self.copied = self.sent + len(data), self.copied + part.copy_size
            yield part, data


@pytest.fixture
def line(trainer):
    lines = []
    yield lambda cut_after=None: lines.append(Line(trainer, cut_after)) or lines[-1]
    for opened_line in lines:
        opened_line.client.close()


def cut(line, folder, after, **how):
    """A station whose line is cut after so many bytes."""
    first = line(after)
    with pytest.raises(BridgeError, match="cut"):
        first.client.next_policy(-1, folder, **how)
    assert not policy_files(folder) or how
    return first


@pytest.mark.parametrize("again", [True, False])
def test_the_rest_alone_is_sent_also_to_a_station_that_was_started_again(
    trainer, line, tmp_path, random, again
):
    policy_file = publish(trainer, 3, weights(random))
    size, folder = policy_file.stat().st_size, tmp_path / "station"
    first = cut(line, folder, 2_000_000)
    came = first.sent
    assert 2_000_000 <= came < 2_000_000 + PART_BYTES and partial_download(folder, "") == (3, came)
    station = line() if again else first
    fetched = station.client.next_policy(-1, folder)
    assert (
        fetched.path.read_bytes() == policy_file.read_bytes()
        and station.sent == size - came * again
    )
    assert [path.name for path in folder.iterdir()] == [policy_name(3)]


def test_of_a_policy_that_is_partly_here_already_too(trainer, line, tmp_path, random):
    """The cut comes within what is copied, or within what is sent."""
    tensors = weights(random)
    publish(trainer, 1, tensors)
    base = line().client.next_policy(-1, tmp_path)
    for number in (5, 6, 14):
        tensors[f"layer{number}.weight"] = random.standard_normal(50_000, np.float32)
    policy_bytes = publish(trainer, 2, tensors).read_bytes()
    came = cut(line, tmp_path, 250_000, base=base).sent
    station = line()
    fetched = station.client.next_policy(1, tmp_path, base=base)
    assert fetched.path.read_bytes() == policy_bytes
    assert came + station.sent < 3 * 200_000 + 5_000 and station.copied > 0


@pytest.mark.parametrize("at", [0, 1, 8, 4321, PART_BYTES, 1_600_123, -1])
def test_it_goes_on_from_any_byte(trainer, tmp_path, random, at):
    tensors = weights(random, 10)
    first = _read(publish(trainer, 1, tensors))
    tensors["layer4.weight"] = -tensors["layer4.weight"]
    policy = _read(publish(trainer, 2, tensors))
    at %= len(policy.data) + 1
    offsets = {tensor.digest: tensor.start for tensor in first.tensors}
    for base in ({}, offsets):
        got = bytearray(policy.data[:at])
        parts = [pb.PolicyPart.FromString(message) for message in policy.parts(base, at)]
        assert [part.first_offset for part in parts] == [at] + [0] * (len(parts) - 1) and parts[
            -1
        ].sha256 == policy.sha256
        for part in parts:
            got += part.data or first.data[part.copy_offset : part.copy_offset + part.copy_size]
        assert got == policy.data
    assert [
        pb.PolicyPart.FromString(message).first_offset
        for message in policy.parts({}, len(policy.data) + 1)
    ][:1] == [0]


@pytest.mark.parametrize("harm", ["a bit", "longer", "newer", "another of its version"])
def test_what_came_of_another_policy_or_is_damaged_is_fetched_again(
    trainer, line, tmp_path, random, harm
):
    policy_file, folder = publish(trainer, 3, weights(random)), tmp_path / "station"
    cut(line, folder, 1_000_000)
    left = partial_path(folder, "", 3)
    if harm == "a bit":
        left.write_bytes(left.read_bytes()[:-1] + b"?")
    elif harm == "longer":
        left.write_bytes(left.read_bytes() + bytes(9_000_000))
    else:
        policy_file = publish(trainer, 3 + (harm == "newer"), weights(random))
        trainer._policies._read.clear()  # as of a trainer that was started with another run
    station = line()
    for _ in range(2):  # the uplink asks again
        try:
            fetched = station.client.next_policy(-1, folder)
            break
        except BridgeError as error:
            assert "the station fetches it again" in str(error) and harm in (
                "a bit",
                "another of its version",
            )
    assert (
        fetched.path.read_bytes() == policy_file.read_bytes() and len(list(folder.iterdir())) == 1
    )


def test_what_a_policy_stands_on_goes_on_too(trainer, line, tmp_path, random):
    stands_on(trainer, random)
    base, folder = trainer.policies / base_name(BASE), tmp_path / "station"
    came = cut(line, folder, 1_500_000).sent
    offset = partial_download(folder, base_name(BASE))[1]
    assert 1_000_000 < offset <= came
    station = line()
    fetched = station.client.next_policy(-1, folder)
    assert (
        folder / base_name(BASE)
    ).read_bytes() == base.read_bytes() and station.sent == base.stat().st_size - offset
    assert {path.name for path in folder.iterdir()} == {fetched.path.name, base_name(BASE)}


def test_a_trainer_of_before_sends_all_of_it(trainer, line, tmp_path, random):
    """An older trainer ignores a partial download and sends the whole file."""
    policy_file, folder = publish(trainer, 3, weights(random)), tmp_path / "station"
    cut(line, folder, 1_000_000)
    station = line()
    ask = station.ask

    def before(request, **how):
        request.ClearField("partial_size")
        return ask(request, **how)

    station.ask = before
    assert station.client.next_policy(-1, folder).path.read_bytes() == policy_file.read_bytes()
    assert station.sent == policy_file.stat().st_size
