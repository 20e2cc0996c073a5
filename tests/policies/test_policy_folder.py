"""A folder of policies in which people keep copies: the trainer's own versions count, whatever else
lies there.
"""

import os
import shutil

import pytest

from rlinf_core.deploy.bridge.client import last_policy, partial_download, prune_policies
from rlinf_core.deploy.bridge.policies import NewestForAll, Policies
from rlinf_core.deploy.serving.weights import Weights
from rlinf_core.policies import make_policy, policy_folder
from rlinf_core.policies.policy_folder import (
    free_version,
    newest_policy,
    newest_version,
    policy_files,
    policy_name,
    version_of,
)
from rlinf_core.policies.serialization import save_policy
from rlinf_core.policies.small import tanh_gaussian


@pytest.fixture(autouse=True)
def unwarned():
    policy_folder._warn.cache_clear()


@pytest.fixture
def policy(task):
    return make_policy(task.spec, tanh_gaussian.Config(hidden=(8,)))


@pytest.fixture
def run(policy, tmp_path):
    for version in (6, 7):
        save_policy(policy, tmp_path / "policies" / policy_name(version), version=version)
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "policy-20261129.safetensors",
        "policy-00000008.safetensors",
        f"policy-{'9' * 20}.safetensors",
        f"policy-{9 * 10**18}.safetensors",
        f"policy-{'1' * 200}.safetensors",
        "policy-000000009.safetensors",
    ],
)
def test_a_copy_under_another_version_is_named_once_and_not_served(run, name, caplog):
    folder = run / "policies"
    shutil.copy(folder / policy_name(7), folder / name)
    for _ in range(3):
        assert newest_policy(run) == newest_policy(folder) == folder / policy_name(7)
        assert newest_version(folder) == 7
        assert policy_files(folder) == [folder / policy_name(6), folder / policy_name(7)]
    assert caplog.text.count(f"{name}: expected") == 1 and "It is ignored" in caplog.text
    policies = Policies(folder, NewestForAll())
    policies.refresh()
    assert policies.newest == 7
    assert last_policy(folder).version == 7
    prune_policies(folder, 0.0)
    assert (folder / name).exists(), "what a person keeps is not removed"
    assert Weights(folder / name).newest.number == 7, "a person may name it; its version is its own"


@pytest.mark.parametrize("content", [b"", b"half a copy", None])
def test_a_copy_that_is_not_whole_yet_is_no_version_of_a_leap(run, content, caplog):
    folder, copy = run / "policies", run / "policies/policy-20261129.safetensors"
    content_bytes = (folder / policy_name(7)).read_bytes()
    copy.write_bytes(content_bytes[:-1] if content is None else content)
    assert newest_version(folder) == 7 and "expected a version near 7" in caplog.text
    (folder / policy_name(8)).write_bytes(b"damaged")
    assert newest_version(folder) == 8, (
        "a damaged file of the trainer counts, and its reader says what is wrong"
    )


def test_other_names_are_nobodys_business(run, caplog):
    for name in (
        "my-policy.safetensors",
        "policy-best.safetensors",
        "policy-00000007_best.safetensors",
        f"policy-{'x' * 220}.safetensors",
        "policy-00000009.txt",
        "notes",
    ):
        shutil.copy(run / "policies" / policy_name(7), run / "policies" / name)
    assert newest_version(run / "policies") == 7 and not caplog.text


def test_only_copies_are_better_than_none(policy, tmp_path):
    copy = save_policy(policy, tmp_path / "policy-20261129.safetensors", version=7)
    assert newest_policy(tmp_path) == copy and version_of(copy) == 7
    assert version_of(save_policy(policy, tmp_path / "mine.safetensors")) == 0
    assert version_of(save_policy(policy, tmp_path / policy_name(3))) == 3
    for odd in ("3", 2.5, -1, 1 << 63, None, [], 10**30):
        assert version_of(save_policy(policy, tmp_path / policy_name(4), version=odd)) == 4


def test_a_file_that_changes_in_place_is_read_again(run):
    folder = run / "policies"
    shutil.copy(folder / policy_name(7), folder / policy_name(9))
    assert newest_version(folder) == 7
    (folder / policy_name(9)).write_bytes(b"")
    assert newest_version(folder) == 9


def test_no_file_is_written_over(run):
    folder = run / "policies"
    assert free_version(folder, 7) == 8
    for version in (8, 9):
        (folder / policy_name(version)).write_bytes(b"a person's")
    assert free_version(folder, 7) == 10


def test_what_was_cut_on_the_way_is_the_newest_by_number(tmp_path):
    for version, size in ((99_999_999, 5), (100_000_000, 7)):
        (tmp_path / f".{policy_name(version)}.part").write_bytes(bytes(size))
    (tmp_path / f".policy-{'9' * 20}.safetensors.part").write_bytes(bytes(9))
    assert partial_download(tmp_path, "") == (100_000_000, 7)


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0, 86_400.0 * 400])
def test_a_clock_that_is_set_hides_no_policy(run, policy, step_s, monkeypatch):
    """The wall clock is no measure of whether the folder's time still may stand for two changes."""
    now, wall = [1000.0], [1e9]
    monkeypatch.setattr("rlinf_core.deploy.bridge.policies.time.monotonic", lambda: now[0])
    monkeypatch.setattr(
        "rlinf_core.deploy.bridge.policies.time.time_ns", lambda: int(wall[0] * 1e9)
    )
    listed = []
    monkeypatch.setattr(
        "rlinf_core.deploy.bridge.policies.newest_version",
        lambda folder: listed.append(1) or newest_version(folder),
    )
    policies, folder = Policies(run / "policies", NewestForAll()), run / "policies"
    policies.refresh()
    wall[0] += step_s  # just after a change, in whose granule of time another may come
    policies.refresh()
    stamp = folder.stat()
    save_policy(policy, folder / policy_name(8), version=8)
    os.utime(folder, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    policies.refresh()
    assert policies.newest == 8
    now[0] += 1.0
    policies.refresh()
    before = len(listed)
    policies.refresh()
    assert len(listed) == before, "a folder at rest is not listed again and again"
