"""A damaged newest checkpoint: the run goes on from the one before, says so, and keeps what is
damaged.
"""

import errno
import shutil

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from rlinf_core.core.errors import RlinfError
from rlinf_core.trainer import checkpoint
from rlinf_core.trainer.checkpoint import (
    DamagedCheckpointError,
    checkpoints,
    flatten,
    load,
    load_newest,
    save,
    unflatten,
)
from rlinf_core.trainer.learner_setup import inherit_networks
from tests.trainer.test_run import ASYNC_PPO, run_of


def flipped(path):
    """One bit of the file's last number is another."""
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


DAMAGES = {
    "a flipped bit of the arrays": lambda folder: flipped(folder / "arrays.safetensors"),
    "a flipped bit of the rest": lambda folder: flipped(folder / "state.json"),
    "cut arrays": lambda folder: cut(folder / "arrays.safetensors"),
    "no arrays": lambda folder: (folder / "arrays.safetensors").unlink(),
    "no rest": lambda folder: (folder / "state.json").unlink(),
    "empty rest": lambda folder: (folder / "state.json").write_bytes(b""),
    "rest that is no text": lambda folder: (folder / "state.json").write_bytes(b"\xff\xfe"),
    "an empty folder": lambda folder: (shutil.rmtree(folder), folder.mkdir()),
    "a flipped bit of the sums": lambda folder: flipped(folder / "SHA256SUMS"),
    "empty sums": lambda folder: (folder / "SHA256SUMS").write_bytes(b""),
}


@pytest.fixture
def root(tmp_path):
    for step in (1, 2):
        save(
            tmp_path / "checkpoints",
            f"updates-{step}",
            {"a": {"x": np.full(100, step, np.float32)}, "n": [step]},
        )
    return tmp_path / "checkpoints"


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_one_before_is_taken_and_the_damaged_one_is_kept(damage, root, capsys):
    one, two = checkpoints(root)
    DAMAGES[damage](two)
    files = {path.name: path.read_bytes() for path in two.iterdir()}
    state = load_newest(root, ("a", "n"), root.parent / "damaged")
    assert state["n"] == [1] and np.array_equal(state["a"]["x"], np.full(100, 1))
    output = capsys.readouterr().out
    assert f"checkpoint {two}: expected arrays.safetensors and state.json, intact, got: " in output
    assert f"checkpoint {one}: the run continues from this intact checkpoint" in output
    quarantine = root.parent / "damaged" / two.name
    assert {path.name: path.read_bytes() for path in quarantine.iterdir()} == files and str(
        quarantine
    ) in output
    assert (
        (root.parent / "damaged" / f"{two.name}.reason.txt")
        .read_text()
        .startswith(f"checkpoint {two}: expected")
    )
    for step in (3, 4, 5):
        save(root, f"updates-{step}", {"n": [step]})
    assert quarantine.is_dir() and load_newest(root)["n"] == [5]


def test_another_runs_damaged_checkpoint_stays_where_it_is(root):
    one, two = checkpoints(root)
    cut(two / "arrays.safetensors")
    assert load_newest(root)["n"] == [1] and checkpoints(root) == [one, two]
    assert load_newest(root / "absent") is None


def test_where_all_are_damaged_nothing_is_begun_anew_or_changed(root):
    for folder in checkpoints(root):
        flipped(folder / "arrays.safetensors")
    before = sorted(root.rglob("*"))
    with pytest.raises(
        RlinfError, match="expected an intact checkpoint, got none. Nothing was changed"
    ) as refused:
        load_newest(root, (), root.parent / "damaged")
    assert all(folder.name in str(refused.value) for folder in checkpoints(root))
    assert sorted(root.rglob("*")) == before and not (root.parent / "damaged").exists()


@pytest.mark.parametrize(
    "number", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOMEM, errno.ESTALE]
)
def test_what_cannot_be_read_now_is_not_damaged(number, root, monkeypatch):
    def refused(path):
        raise OSError(number, "not now")

    monkeypatch.setattr(checkpoint, "file_sha256", refused)
    with pytest.raises(RlinfError, match="cannot be read now: .*not now. Nothing was changed"):
        load_newest(root, (), root.parent / "damaged")
    assert len(checkpoints(root)) == 2


def test_a_checkpoint_of_an_earlier_release_has_no_sums_and_is_read(root):
    _, two = checkpoints(root)
    (two / "SHA256SUMS").unlink()
    assert load(two)["n"] == [2]
    cut(two / "arrays.safetensors")
    assert load_newest(root)["n"] == [1]


def test_a_folder_that_is_not_whole_takes_no_number_of_a_new_one(root):
    _, two = checkpoints(root)
    (two / "state.json").unlink()
    assert save(root, "updates-2", {"n": [3]}).name.startswith("00000003") and two.is_dir()


def test_a_run_goes_on_from_the_one_before_with_versions_that_count_on(task, tmp_path, capsys):
    run = run_of(task, tmp_path, algorithm=ASYNC_PPO)
    run.learner.updates = 3
    run.publish()
    run.save()
    run.learner.updates = 5
    run.publish()
    run.save()
    one, two = checkpoints(tmp_path / "checkpoints")
    flipped(two / "arrays.safetensors")
    damaged = (two / "arrays.safetensors").read_bytes()
    again = run_of(task, tmp_path, algorithm=ASYNC_PPO)
    assert again.updates == 3 and again.version == 2, "stations have version 2"
    assert "the run continues from this intact checkpoint" in capsys.readouterr().out
    assert (tmp_path / "damaged" / two.name / "arrays.safetensors").read_bytes() == damaged
    again.learner.updates = 7
    again.publish()
    again.save()
    assert run_of(task, tmp_path, algorithm=ASYNC_PPO).version == 3
    assert len(load_file(one / "arrays.safetensors")) > 10


def test_a_learner_is_inherited_from_the_newest_whole_one(task, tmp_path, capsys):
    run = run_of(task, tmp_path / "first")
    run.save()
    run.learner.updates = 5
    run.save()
    newest = checkpoints(tmp_path / "first/checkpoints")[-1]
    flipped(newest / "state.json")
    heir = run_of(task, tmp_path / "second")
    inherit_networks(heir.learner, tmp_path / "first", heir.recipe.algorithm.name)
    assert (
        "the run continues from this intact checkpoint" in capsys.readouterr().out
        and newest.is_dir()
    )


def test_memory_that_lacks_is_no_damage(root, monkeypatch):
    def refused(path):
        raise MemoryError("of 8 GiB")

    monkeypatch.setattr(checkpoint, "file_sha256", refused)
    with pytest.raises(
        RlinfError, match="cannot be read now: of 8 GiB. Nothing was changed"
    ) as now:
        load_newest(root, (), root.parent / "damaged")
    assert not isinstance(now.value, DamagedCheckpointError) and len(checkpoints(root)) == 2


@pytest.mark.parametrize(
    "damages, message",
    [
        (["a flipped bit of the arrays"], "got: arrays.safetensors does not fit SHA256SUMS"),
        (["a flipped bit of the rest"], "got: state.json does not fit SHA256SUMS"),
        (
            ["cut arrays", "a flipped bit of the rest"],
            "got: arrays.safetensors, state.json does not fit SHA256SUMS",
        ),
    ],
)
def test_the_file_that_was_changed_is_named(damages, message, root):
    newest = checkpoints(root)[-1]
    for damage in damages:
        DAMAGES[damage](newest)
    with pytest.raises(DamagedCheckpointError, match=message):
        load(newest)


def test_sums_with_another_line_fit_no_file(root):
    newest = checkpoints(root)[-1]
    with (newest / "SHA256SUMS").open("a") as sums:
        sums.write("0" * 64 + "  other\n")
    with pytest.raises(DamagedCheckpointError, match="got: SHA256SUMS does not fit SHA256SUMS"):
        load(newest)


def test_tensors_and_arrays_of_any_kind_come_back_and_the_rest_as_it_was(tmp_path):
    weights = torch.arange(6.0).reshape(2, 3).requires_grad_()
    rest = {"stage": 1, "empty": {}, "names": ["a", None], "inner": {"rate": 0.5}}
    state = {
        "learner": {"weights": weights, "turned": weights.detach().T, "count": np.float64(0.5)},
        "pixels": np.arange(6, dtype=np.uint8).reshape(2, 3).T,
        "run": rest,
    }
    arrays, others = flatten(state)
    assert sorted(arrays) == ["learner/count", "learner/turned", "learner/weights", "pixels"]
    assert others["run/inner/rate"] == 0.5 and others["run/empty"] == {}
    assert unflatten(arrays, others)["run"] == rest
    loaded = load(save(tmp_path, "updates-1", state), ("learner", "run"))
    assert loaded["run"] == rest and loaded["learner"]["count"] == 0.5
    assert loaded["learner"]["weights"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert loaded["learner"]["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert loaded["pixels"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert loaded["pixels"].dtype == np.uint8 and loaded["learner"]["weights"].dtype == np.float32


def test_the_newest_are_kept_as_many_as_wanted_and_numbers_count_on(tmp_path):
    for number in range(1, 12):
        folder = save(tmp_path, "updates", {"n": [number]}, keep=3)
        assert folder.name == f"{number:08d}-updates"
    assert [load(folder)["n"] for folder in checkpoints(tmp_path)] == [[9], [10], [11]]
    save(tmp_path, "updates", {"n": [12]})
    assert [load(folder)["n"] for folder in checkpoints(tmp_path)] == [[11], [12]], "two by default"
    assert not list(tmp_path.glob(".*"))
