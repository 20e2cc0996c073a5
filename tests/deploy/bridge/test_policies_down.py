"""Policies on their way down: what travels, what a station makes of it, and who is meant to have
which.
"""

import hashlib
import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save, save_file

from rlinf_core.core.atomic_io import publish_file
from rlinf_core.deploy.bridge import bridge_pb2 as pb
from rlinf_core.deploy.bridge.client import BridgeClient, PolicyFile, last_policy, prune_policies
from rlinf_core.deploy.bridge.policies import CACHED_POLICIES, NewestForAll, Policies, Policy
from rlinf_core.deploy.bridge.policy_parts import (
    MIN_RANGE_BYTES,
    Range,
    encode,
    ranges,
    tensor_spans,
)
from rlinf_core.episodes.checksums import file_sha256
from rlinf_core.policies.policy_folder import policy_name
from tests.deploy.bridge.conftest import serve

TENSORS, NUMBERS = 20, 50_000  # 4 MB in all


class ByHand(NewestForAll):
    """Stations are meant to have what a test says."""

    def __init__(self):
        self.versions, self.why = {}, {}

    def mean(self, **versions):
        self.versions |= versions
        self.revision += 1

    def version_for(self, station, newest):
        return self.versions.get(station, newest)

    def wait_reason(self, station):
        return self.why.get(station, "")


@pytest.fixture
def client(trainer):
    """A station whose trainer is on another machine."""
    client = BridgeClient(f"127.0.0.1:{trainer.port}", "a", links=False)
    yield client
    client.close()


@pytest.fixture
def near(trainer):
    """A station on the trainer's machine."""
    client = BridgeClient(f"127.0.0.1:{trainer.port}", "near")
    yield client
    client.close()


def weights(random, count=TENSORS):
    return {
        f"layer{number}.weight": random.standard_normal(NUMBERS, np.float32)
        for number in range(count)
    }


def publish(trainer, version, tensors, **metadata):
    aside = trainer.policies / ".part"
    save_file(tensors, aside, {"info": f'{{"version": {version}}}', **metadata})
    return publish_file(aside, trainer.policies / policy_name(version))


def sent(client, have):
    """Return the bytes for a station with the file ``have``, and the ranges it copies."""
    request = pb.PolicyRequest(have_version=-1, have_sha256=have.sha256, have_file=have.version)
    parts = list(client._stub.NextPolicy(request, metadata=client._metadata))
    return sum(part.ByteSize() for part in parts), [
        part.copy_size for part in parts if part.copy_size
    ]


def test_of_a_policy_in_which_a_tenth_of_the_tensors_changed_a_tenth_is_sent(
    trainer, client, tmp_path, random
):
    first = weights(random)
    full_size = publish(trainer, 1, first).stat().st_size
    have = client.next_policy(-1, tmp_path / "station")
    publish(
        trainer,
        2,
        first
        | {
            "layer3.weight": first["layer3.weight"] + 1,
            "layer4.weight": first["layer3.weight"] + 2,
        },
    )
    size, copies = sent(client, have)
    assert 0.1 * full_size < size < 0.1 * full_size + 4000, (
        "two of twenty tensors, the header, and a line for each range"
    )
    assert len(copies) == 2, "neighbours are one range"
    newer = client.next_policy(1, tmp_path / "station", base=have)
    assert (
        newer.path.read_bytes() == (trainer.policies / policy_name(2)).read_bytes()
        and newer.version == 2
    )
    assert newer.sha256 == hashlib.sha256(newer.path.read_bytes()).hexdigest()


def test_adapters_beside_a_frozen_network_travel_alone(trainer, client, tmp_path, random):
    frozen = weights(random)
    full_size = (
        publish(trainer, 1, frozen | {"lora.a": np.zeros((8, 64), np.float32)}).stat().st_size
    )
    have = client.next_policy(-1, tmp_path / "station")
    publish(
        trainer,
        2,
        frozen | {"lora.a": np.ones((8, 64), np.float32)},
        more="a longer header moves every tensor",
    )
    size, _ = sent(client, have)
    assert size < 2048 + 4000 < 0.1 * full_size
    assert (
        load_file(client.next_policy(1, tmp_path / "station", base=have).path)["lora.a"].max() == 1
    )


def test_nothing_is_sent_again_to_a_station_that_was_started_again(
    trainer, client, tmp_path, random
):
    publish(trainer, 7, weights(random))
    client.next_policy(-1, tmp_path / "station")
    left = last_policy(tmp_path / "station")
    assert left.version == 7 and sent(client, left)[0] < 200
    assert client.next_policy(-1, tmp_path / "station", base=left) == left, (
        "and it hears which one to play"
    )
    assert last_policy(tmp_path / "nowhere") is None
    shutil.copy(left.path, left.path.with_name("policy-00000009_best.safetensors"))
    assert last_policy(tmp_path / "station") == left, (
        "what a person keeps there under another name is none"
    )


def test_older_policies_make_room_but_not_the_first_the_newest_or_the_one_that_plays(
    trainer, client, tmp_path, random
):
    folder, have = tmp_path / "station", -1
    for version in range(6):
        publish(trainer, version, weights(random))
        have = client.next_policy(have, folder).version
    (folder / "base-0123456789abcdef.safetensors").write_bytes(bytes(100))
    size = (folder / policy_name(0)).stat().st_size
    prune_policies(folder, 6 * size / 1e9, 5, 2)
    assert len([*folder.glob("policy-*")]) == 6
    prune_policies(folder, 5 * size / 1e9, 5, 2)
    assert [path.name for path in sorted(folder.glob("policy-*"))] == [
        policy_name(version) for version in (0, 2, 3, 4, 5)
    ]
    prune_policies(folder, 1e-9, 5, 2)
    assert [path.name for path in sorted(folder.iterdir())][1:] == [
        policy_name(version) for version in (0, 2, 5)
    ]
    trainer.choice.version_for, trainer.choice.revision = lambda station, newest: 3, 1
    assert client.next_policy(5, folder).path.name == policy_name(3), (
        "one that was removed is sent again"
    )
    prune_policies(tmp_path / "nowhere", 1.0)


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-9] + bytes(9)),
        lambda path: path.write_bytes(b""),
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["flipped", "empty", "gone", "a folder"],
)
def test_from_a_base_that_is_not_what_it_was_all_of_it_is_fetched(
    trainer, client, tmp_path, random, harm
):
    first = weights(random, 3)
    publish(trainer, 1, first)
    have = client.next_policy(-1, tmp_path / "station")
    newest = publish(trainer, 2, first | {"layer0.weight": first["layer0.weight"] + 1})
    harm(have.path)
    assert (
        client.next_policy(1, tmp_path / "station", base=have).path.read_bytes()
        == newest.read_bytes()
    )


def test_a_base_that_the_trainer_no_longer_has_or_never_had_is_no_base(tmp_path, random):
    trainer = serve(tmp_path)
    first = weights(random, 3)
    old = publish(trainer, 1, first)
    client = BridgeClient(f"127.0.0.1:{trainer.port}", "a")
    have = client.next_policy(-1, tmp_path / "station")
    client.close()
    trainer.stop()
    newest = old.with_name(policy_name(2))
    again = serve(tmp_path)
    client = BridgeClient(f"127.0.0.1:{again.port}", "a")
    try:
        full_size = (
            publish(again, 2, first | {"layer0.weight": first["layer0.weight"] + 1}).stat().st_size
        )
        assert sent(client, have)[0] < 0.4 * full_size, (
            "a trainer that was started again finds it on its disk"
        )
        assert sent(client, have._replace(sha256=64 * "0"))[0] > full_size, (
            "the version alone says nothing"
        )
        for number in (3, 4):
            publish(again, number, first | {"layer0.weight": first["layer0.weight"] + number})
    finally:
        client.close()
        again.stop()
    old.unlink()
    last = serve(tmp_path)
    client = BridgeClient(f"127.0.0.1:{last.port}", "a")
    try:
        assert sent(client, have)[0] > full_size
        fetched = client.next_policy(1, tmp_path / "station", base=have)
        assert fetched.path.read_bytes() == newest.with_name(policy_name(4)).read_bytes()
    finally:
        client.close()
        last.stop()


def test_a_policy_is_read_once_for_all_stations(trainer, tmp_path, random):
    """The file is gone before the second station asks."""
    clients = [BridgeClient(f"127.0.0.1:{trainer.port}", f"s{number}") for number in range(4)]
    file = publish(trainer, 1, weights(random, 2))
    clients[0].next_policy(-1, tmp_path / "s0")
    data = file.read_bytes()
    file.unlink()
    for number, client in enumerate(clients):
        assert client.next_policy(-1, tmp_path / f"s{number}").path.read_bytes() == data
        client.close()


def test_each_station_gets_what_it_is_meant_to_have_also_an_older_one(tmp_path, random):
    choice = ByHand()
    trainer = serve(tmp_path, choice=choice)
    a, b = (BridgeClient(f"127.0.0.1:{trainer.port}", name) for name in "ab")
    try:
        for version in range(1, CACHED_POLICIES + 4):
            publish(trainer, version, weights(random, 1))
        newest = CACHED_POLICIES + 3
        assert a.next_policy(-1, tmp_path / "a").version == newest
        choice.mean(a=2)
        back = a.next_policy(newest, tmp_path / "a")
        assert (
            back.version == 2
            and back.path.read_bytes() == (trainer.policies / policy_name(2)).read_bytes()
        )
        assert a.next_policy(2, tmp_path / "a", wait_s=0.2) is None
        assert b.next_policy(-1, tmp_path / "b").version == newest
        for version in range(1, newest):
            choice.mean(b=version)
            assert b.next_policy(newest, tmp_path / "b").version == version
        choice.mean(a=99, b=-1)
        assert a.next_policy(2, tmp_path / "a", wait_s=0.2) is None, (
            "one that is not there is waited for"
        )
        assert b.next_policy(2, tmp_path / "b", wait_s=0.2) is None
        choice.mean(a=4)
        choice.why["a"] = "drained"
        status = a.report(0, 2)
        assert (status.policy_version, status.accepting, status.message) == (4, False, "drained")
        assert (b.report(0, 2).policy_version, b.report(0, 2).message) == (-1, "")
    finally:
        a.close()
        b.close()
        trainer.stop()


def test_another_file_of_the_same_version_is_another_policy(trainer, client, tmp_path, random):
    """A restarted run has the same versions with other files."""
    publish(trainer, 1, weights(random, 1))
    other = PolicyFile(1, tmp_path / "other", 64 * "1")
    fetched = client.next_policy(1, tmp_path / "station", base=other)
    assert (
        fetched.version == 1
        and client.next_policy(1, tmp_path / "station", 0.2, base=fetched) is None
    )


def reassembled(data, new, base_data):
    base = {tensor.digest: tensor.start for tensor in tensor_spans(base_data)}
    parts = list(ranges(len(data), new, base))
    assert [part.start for part in parts] == [0, *(part.end for part in parts[:-1])] and parts[
        -1
    ].end == len(data)
    return b"".join(
        data[start:end] if copy is None else base_data[copy : copy + end - start]
        for start, end, copy in parts
    )


def test_ranges_make_the_file_again_whatever_changed(tmp_path, random):
    """Sizes from none to a few hundred bytes, equal tensors, other orders, other types."""

    def file(name, chosen):
        save_file(chosen, tmp_path / name)
        return (tmp_path / name).read_bytes()

    def some():
        return {
            f"t{number}": random.integers(0, 2, random.integers(0, 300), np.uint8).astype(
                random.choice([np.uint8, np.float32, np.int64])
            )
            for number in random.integers(0, 9, 6)
        }

    for _ in range(200):
        base, changed = some(), some()
        changed |= {name: base[name] for name in base if random.random() < 0.6}
        base_data, data = file("base", base), file("new", changed)
        assert reassembled(data, tensor_spans(data), base_data) == data
        assert all(
            part.copy is None or part.end - part.start >= MIN_RANGE_BYTES
            for part in ranges(
                len(data),
                tensor_spans(data),
                {tensor.digest: tensor.start for tensor in tensor_spans(base_data)},
            )
        )


@pytest.mark.parametrize(
    "data",
    [
        save({"x": np.zeros(9)})[:-1],
        save({"x": np.zeros(9)}) + b"x",
        b"",
        b"x",
        b"\xff" * 40,
        (9).to_bytes(8, "little") + b"[1, 2, 3]",
        bytes(8),
        (12).to_bytes(8, "little") + b'{"a": [1,2]}',
        (8).to_bytes(8, "little") + b'{"a": 1}',
    ],
)
def test_what_is_no_safetensors_file_goes_whole(data):
    assert tensor_spans(data) == [] and list(ranges(len(data), [], {})) == (
        [Range(0, len(data))] if data else []
    )


def test_on_the_trainers_machine_a_policy_is_linked_and_nothing_is_sent(
    trainer, near, tmp_path, random
):
    path = publish(trainer, 1, weights(random))
    (part,) = near._stub.NextPolicy(
        pb.PolicyRequest(have_version=-1, may_link=True), metadata=near._metadata
    )
    assert part.path == str(path) and not part.data and part.ByteSize() < 300
    first = near.next_policy(-1, tmp_path / "station")
    assert (
        first.path.samefile(path) and first.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    )
    publish(trainer, 2, weights(random))
    assert near.next_policy(1, tmp_path / "station", base=first).version == 2


def hashed_files(monkeypatch):
    """The files that a station hashes from now on."""
    paths = []

    def record(path):
        paths.append(path)
        return file_sha256(path)

    monkeypatch.setattr("rlinf_core.deploy.bridge.client.file_sha256", record)
    return paths


def test_the_very_file_that_the_trainer_hashed_is_not_hashed_again(
    trainer, near, tmp_path, random, monkeypatch
):
    hashed, path = hashed_files(monkeypatch), publish(trainer, 1, weights(random))
    fetched = near.next_policy(-1, tmp_path / "station")
    assert fetched.sha256 == file_sha256(path) and fetched.path.samefile(path) and not hashed


@pytest.mark.parametrize("how", ["in place", "another file", "another disk", "older trainer"])
def test_any_other_file_is_hashed_by_the_station(trainer, near, tmp_path, random, monkeypatch, how):
    hashed, path = hashed_files(monkeypatch), publish(trainer, 1, weights(random))
    content, link = path.read_bytes(), Policy.link

    def changed(policy):
        """The file changes after the trainer has hashed it."""
        if how == "in place":
            path.write_bytes(content[:-1] + b"?")
        elif how == "another file":
            path.unlink()
            path.write_bytes(content[:-1] + b"?")
        elif how == "older trainer":
            policy = replace(policy, file_state="")
        return link(policy)

    monkeypatch.setattr(Policy, "link", changed)
    if how == "another disk":
        monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(OSError(18, "cross")))
    fetched = near.next_policy(-1, tmp_path / "station")
    assert hashed and fetched.path.read_bytes() == content
    assert fetched.sha256 == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("how", ["another disk", "no such file", "another file"])
def test_what_cannot_be_linked_is_copied_or_sent(trainer, near, tmp_path, random, how, monkeypatch):
    path = publish(trainer, 1, weights(random))
    if how == "another disk":
        monkeypatch.setattr(
            "os.link", lambda *_: (_ for _ in ()).throw(OSError(18, "cross-device link"))
        )
    elif how == "no such file":  # another machine, of which an SSH tunnel makes this one
        monkeypatch.setattr(
            "rlinf_core.deploy.bridge.policies.Policy.link",
            lambda self: encode(
                pb.PolicyPart(version=1, sha256=self.sha256, path="/nowhere/policy")
            ),
        )
    else:
        (other := tmp_path / "other").write_bytes(b"not it")
        monkeypatch.setattr(
            "rlinf_core.deploy.bridge.policies.Policy.link",
            lambda self: encode(pb.PolicyPart(version=1, sha256=self.sha256, path=str(other))),
        )
    fetched = near.next_policy(-1, tmp_path / "station")
    assert fetched.path.read_bytes() == path.read_bytes() and not fetched.path.samefile(path)
    assert [file.name for file in (tmp_path / "station").iterdir()] == [policy_name(1)]


def test_versions_that_come_within_one_tick_of_the_disks_clock_are_all_seen(tmp_path, random):
    class Trainer:
        policies = tmp_path

    trainer_policies = Policies(tmp_path, NewestForAll())
    for version in range(1, 40):
        publish(Trainer, version, weights(random, 0))
        trainer_policies.refresh()
        assert trainer_policies.newest == version
