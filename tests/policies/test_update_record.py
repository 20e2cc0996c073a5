"""The record of updates: a bad one is loaded once, and the last good one is known after a
restart.
"""

import hashlib
import json

import pytest
import torch

from rlinf_core.core.errors import PolicyFileError
from rlinf_core.core.paths import VERSION
from rlinf_core.episodes.checksums import file_sha256
from rlinf_core.policies.update_record import (
    MAX_ATTEMPTS,
    MAX_REFUSED,
    Update,
    UpdateRecord,
    is_permanent,
)


@pytest.fixture
def update(tmp_path):
    def of(version, content=b"good"):
        path = tmp_path / f"policy-{version:08d}.safetensors"
        path.write_bytes(content)
        return Update(version, str(path), file_sha256(path))

    return of


def test_a_refusal_outlives_the_process_and_ends_with_its_conditions(tmp_path, update):
    record, bad = UpdateRecord(tmp_path, ["spec"]), update(2, b"bad")
    record.begin(bad)
    record.refuse(bad, "no")
    assert UpdateRecord(tmp_path, ["spec"]).refusal(bad) == "no"
    assert UpdateRecord(tmp_path, ["spec", "own.py"]).refusal(bad) == "", (
        "another recipe may allow it"
    )
    assert UpdateRecord(tmp_path, ["spec"]).refusal(update(3)) == ""


def test_the_last_good_policy_is_known_while_its_file_is_as_it_was(tmp_path, update):
    good = update(1)
    record = UpdateRecord(tmp_path, [])
    assert record.last_good() is None
    record.begin(good)
    record.end(good, loaded=True)
    record.refuse(update(2, b"bad"), "no")
    assert UpdateRecord(tmp_path, ["other"]).last_good() == good
    update(1, b"changed")
    assert UpdateRecord(tmp_path, []).last_good() is None
    (tmp_path / "policy-00000001.safetensors").unlink()
    assert UpdateRecord(tmp_path, []).last_good() is None


def test_a_file_whose_load_ends_the_process_is_refused_the_third_time(tmp_path, update):
    bad = update(2)
    for _ in range(MAX_ATTEMPTS):
        assert UpdateRecord(tmp_path, []).refusal(bad) == ""
        UpdateRecord(tmp_path, []).begin(bad)
    reason = UpdateRecord(tmp_path, []).refusal(bad)
    assert "ended 2 times while it loaded" in reason and bad.path in reason
    other = update(3, b"other")
    for _ in range(MAX_ATTEMPTS + 1):
        record = UpdateRecord(tmp_path, [])
        assert record.refusal(other) == ""
        record.begin(other)
        record.end(other, loaded=False)  # a passing trouble


@pytest.mark.parametrize(
    "content", [b"", b"[", b"[]", b"3", b"\xff", b'{"last": 3}', b"[" * 100_000, b'{"last": {}}']
)
def test_a_damaged_record_is_no_record(content, tmp_path, update):
    (tmp_path / "updates.json").write_bytes(content)
    record = UpdateRecord(tmp_path, [])
    assert record.last_good() is None and record.refusal(update(1)) == ""
    record.refuse(update(1), "\ud800\x1b")
    assert UpdateRecord(tmp_path, []).refusal(update(1)) == "\ud800\x1b"


def test_it_is_bounded_and_needs_no_disk(tmp_path, update, monkeypatch):
    record = UpdateRecord(tmp_path, [])
    for number in range(MAX_REFUSED + 5):
        record.refuse(Update(number, "", f"sha{number}"), "x" * 10_000)
    refused = json.loads((tmp_path / "updates.json").read_text())["refused"]
    assert len(refused) == MAX_REFUSED and "sha0" not in refused and len(refused["sha104"]) == 2000
    nowhere = UpdateRecord(tmp_path / "absent", [])
    nowhere.refuse(update(1), "no")
    assert nowhere.refusal(update(1)) == "no"


def test_what_may_pass_is_not_permanent():
    def caused(by):
        try:
            raise PolicyFileError("x") from by
        except PolicyFileError as error:
            return error

    assert (
        is_permanent(PolicyFileError("x"))
        and is_permanent(SystemExit())
        and is_permanent(caused(ValueError()))
    )
    for passing in (
        MemoryError(),
        OSError(28, "full"),
        FileNotFoundError(),
        torch.OutOfMemoryError(),
    ):
        assert not is_permanent(passing) and not is_permanent(caused(passing))


def test_the_file_holds_what_happened_and_another_release_tries_again(
    tmp_path, update, monkeypatch
):
    record, good, bad = UpdateRecord(tmp_path, ["spec", "own"]), update(1), update(2, b"bad")
    assert (record.refused, record.attempts, record.last) == ({}, {}, None)
    record.begin(good)
    record.end(good, loaded=True)
    for _ in range(2):
        record.begin(bad)
    record.refuse(Update(3, "", "c" * 64), "other specs")
    document = json.loads((tmp_path / "updates.json").read_text())
    sha256 = hashlib.sha256(f"{VERSION}\nspec\nown".encode()).hexdigest()
    assert document == {
        "conditions": sha256,
        "last": {"version": 1, "path": good.path, "sha256": good.sha256},
        "refused": {"c" * 64: "other specs"},
        "attempts": {bad.sha256: 2},
    }
    again = UpdateRecord(tmp_path, ["spec", "own"])
    assert (again.refused, again.attempts) == (document["refused"], document["attempts"])
    assert again.last == good
    monkeypatch.setattr("rlinf_core.policies.update_record.VERSION", "999")
    newer = UpdateRecord(tmp_path, ["spec", "own"])
    assert (newer.refused, newer.attempts, newer.last) == ({}, {}, good)


def test_an_update_that_was_not_loaded_leaves_the_last_one_and_a_refused_one_is_not_good(
    tmp_path, update
):
    record, good, other = UpdateRecord(tmp_path, []), update(1), update(2, b"other")
    record.end(good, loaded=True)
    record.begin(other)
    record.end(other, loaded=False)
    assert record.last == good and record.attempts == {} and record.last_good() == good
    record.begin(good)
    record.refuse(good, "it fell over")
    assert record.attempts == {} and record.refusal(good) == "it fell over"
    assert record.last == good and record.last_good() is None
    for _ in range(2):
        record.begin(good)
    assert record.refusal(good) == "it fell over", "the first reason stays"
