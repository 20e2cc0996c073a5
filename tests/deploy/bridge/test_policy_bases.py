"""The base of an adapter: it is sent once, and only if the trainer has it."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from rlinf_core.core.errors import BridgeError
from rlinf_core.deploy.bridge import bridge_pb2 as pb
from rlinf_core.deploy.bridge.client import BridgeClient
from rlinf_core.policies.policy_folder import base_name, policy_files, policy_name
from tests.deploy.bridge.test_policies_down import publish, weights

BASE = "c0ffee00" * 8


def stands_on(trainer, random):
    """A frozen network beside the policies, and a version that has adapters for it."""
    save_file(weights(random), trainer.policies / base_name(BASE))
    return publish(trainer, 1, {"lora.a": np.zeros((8, 64), np.float32)}, base=BASE)


@pytest.mark.parametrize("links", [False, True])
def test_what_adapters_are_for_comes_with_the_first_version_alone(trainer, tmp_path, random, links):
    stands_on(trainer, random)
    station = BridgeClient(f"127.0.0.1:{trainer.port}", "a", links=links)
    requests = []
    station._download, once = (
        (lambda request, *more: requests.append(request.file) or once(request, *more)),
        station._download,
    )
    first = station.next_policy(-1, tmp_path / "station")
    mine, its = tmp_path / "station" / base_name(BASE), trainer.policies / base_name(BASE)
    assert mine.read_bytes() == its.read_bytes() and mine.samefile(its) == links
    publish(trainer, 2, {"lora.a": np.ones((8, 64), np.float32)}, base=BASE)
    second = station.next_policy(1, tmp_path / "station", base=first)
    assert requests == ["", base_name(BASE), ""] and second.path.stat().st_size < 4000
    assert {path.name for path in (tmp_path / "station").iterdir()} == {
        policy_name(1),
        policy_name(2),
        base_name(BASE),
    }
    station.close()


def test_what_its_name_alone_says_is_there_is_flushed_first_and_a_long_policy_has_its_time(
    trainer, client, tmp_path, random, monkeypatch
):
    stands_on(trainer, random)
    flushed, deadlines, ask = [], [], client._next_policy
    monkeypatch.setattr("rlinf_core.core.atomic_io.fsync", lambda path: flushed.append(path.name))
    client._next_policy = lambda *what, timeout, **how: (
        deadlines.append(timeout) or ask(*what, timeout=timeout, **how)
    )
    assert client.next_policy(-1, tmp_path / "station", wait_s=3.0)
    assert flushed[0].startswith(".base-") and not list((tmp_path / "station").glob("*.part"))
    assert deadlines == [3603.0, 3600.0], (
        "gigabytes on a slow line are no trouble; a dead one is found by its keepalive"
    )


@pytest.mark.parametrize("base", [BASE, "../../secret"])
def test_a_policy_whose_base_the_trainer_does_not_have_is_not_taken(
    trainer, client, tmp_path, random, base
):
    publish(trainer, 1, {"lora.a": np.zeros((8, 64), np.float32)}, base=base)
    with pytest.raises(BridgeError, match=r"policy 1 from .*: expected its base file, 'base-"):
        client.next_policy(-1, tmp_path / "station")
    assert not policy_files(tmp_path / "station")


@pytest.mark.parametrize(
    "name",
    ["../journal.jsonl", "journal.jsonl", "policy-00000001.safetensors", "base-.safetensors"],
)
def test_no_other_file_of_the_trainer_can_be_had(trainer, client, tmp_path, name):
    (trainer.policies / "journal.jsonl").write_text("secret")
    for link in (False, True):
        assert not list(
            client._stub.NextPolicy(
                pb.PolicyRequest(file=name, may_link=link), metadata=client._metadata
            )
        )
