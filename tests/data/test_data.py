"""`rlinf data` on recordings that the spool has written."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
from mcap.reader import make_reader

from rlinf_core.cli.main import main
from rlinf_core.core.errors import EpisodeError, RlinfError
from rlinf_core.data import episodes
from rlinf_core.data.folders import check_unused, merge, new_folder, parse_fractions, split
from rlinf_core.data.stats import Statistics, describe, describe_histogram, histogram, sample_frames
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.spool import Spool
from tests.messages import record

IMAGES = {"front": (400, 480)}  # of 576 kB: a chunk holds two


@pytest.fixture
def spool(tmp_path, task):
    spool = Spool(tmp_path / "run/spool", min_free_mb=0)
    record(spool, task.spec, "a-1", steps=5, sources={0: "operator"}).close()
    record(spool, task.spec, "a-2", steps=4, success=False, mode="evaluate").close()
    return spool


def data(capsys, *argv):
    code = main(["data", *map(str, argv)])
    output = capsys.readouterr()
    return code, output.out, output.err


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def flip(file, place, bit=1):
    read = bytearray(file.read_bytes())
    read[place] ^= bit
    file.write_bytes(read)


def test_a_list_is_a_line_an_episode_with_its_size(spool, capsys):
    code, out, _ = data(capsys, "list", spool.root / "closed/a-1")
    size = sum(file.stat().st_size for file in (spool.root / "closed/a-1").iterdir()) / 1e6
    assert (
        code == 0
        and "operator 20%" in out
        and f"{size:.2f}" in out
        and "sealed" in out
        and "topic" not in out
    )
    code, out, _ = data(capsys, "show", spool.root / "closed/a-1")
    assert code == 0 and "/station/timestep" in out


def test_what_is_whole_is_whole(spool, capsys, tmp_path):
    code, out, _ = data(capsys, "check", spool.root, "--json", tmp_path / "a.json")
    assert code == 0 and "2 of 2 recordings are intact" in out
    assert json.loads((tmp_path / "a.json").read_text()) == {
        "recordings": 2,
        "whole": 2,
        "broken": 0,
    }


@pytest.mark.parametrize(
    "break_it, message",
    [
        (lambda folder: flip(folder / "a-1.mcap", 2000), "a-1.mcap does not fit SHA256SUMS"),
        (lambda folder: (folder / "SHA256SUMS").unlink(), "that was never closed"),
        (lambda folder: (folder / "metadata.yaml").unlink(), "no metadata.yaml"),
        (lambda folder: folder.rename(folder.with_name("b-1")), "expected the folder name a-1"),
    ],
)
def test_what_is_not_whole_is_named_and_is_exit_code_1(spool, capsys, break_it, message):
    break_it(spool.root / "closed/a-1")
    code, out, _ = data(capsys, "check", spool.root)
    assert code == 1 and message in out and "1 of 2 recordings are intact" in out


def test_values_that_nothing_learns_from_are_found(spool, task, capsys):
    def absurd(topic, number, message):
        if topic == "timestep" and number == 1:
            message.vectors[0].data[0] = np.nan

    record(spool, task.spec, "a-3", change=absurd).close()
    code, out, _ = data(capsys, "check", spool.root)
    assert code == 1 and "a-3: " in out and "expected finite values" in out


def test_a_recording_of_other_specs_than_the_recipes_is_told(spool, capsys):
    code, out, _ = data(capsys, "check", spool.root, "--recipe", "demo_vision")
    assert code == 1 and "this trainer serves" in out
    assert data(capsys, "check", spool.root, "--recipe", "demo_visoin")[0] == 2


def test_a_file_without_its_end_is_an_episode_again(spool, task, capsys, tmp_path):
    spec = task.with_images(IMAGES).spec
    folder = record(spool, spec, "c-1", steps=8).close()
    before, file = read_episode(folder), folder / "c-1.mcap"
    content = file.read_bytes()
    end = content.rindex(b"\x89MCAP") - 500  # in the summary, behind the data
    file.write_bytes(content[:end])
    (folder / "metadata.yaml").unlink()
    broken = contents(spool.root)
    code, out, _ = data(capsys, "repair", spool.root, "--out", tmp_path / "new")
    assert code == 0 and "a whole episode, sealed" in out and contents(spool.root) == broken
    after = read_episode(tmp_path / "new/c-1", sealed=True)
    assert all(
        (after.observations[name] == values).all() for name, values in before.observations.items()
    )
    assert (after.requested == before.requested).all() and after.sources == before.sources
    assert data(capsys, "check", tmp_path / "new")[0] == 0


@pytest.mark.parametrize("place", ["middle", "end"])
def test_a_flipped_bit_and_a_cut_cost_what_they_hit_and_no_more(
    spool, task, capsys, tmp_path, place
):
    folder = record(spool, task.with_images(IMAGES).spec, "c-1", steps=8).close()
    file = folder / "c-1.mcap"
    size = file.stat().st_size
    flip(file, size // 2) if place == "middle" else file.write_bytes(file.read_bytes()[: size // 2])
    code, out, _ = data(capsys, "repair", folder, "--out", tmp_path / "new")
    assert (
        code == 1
        and "no episode" in out
        and "lost: " in out
        and not (tmp_path / "new/c-1/SHA256SUMS").exists()
    )
    from rosbags.rosbag2 import Reader

    with Reader(tmp_path / "new/c-1") as reader:  # it can be played
        steps = sum(
            connection.msgtype.endswith("/TimeStep") for connection, *_ in reader.messages()
        )
    assert (7 <= steps < 9) if place == "middle" else (2 <= steps <= 4)


def test_two_broken_recordings_of_one_name_do_not_lose_what_was_repaired(
    spool, task, capsys, tmp_path
):
    other = Spool(tmp_path / "run/other", min_free_mb=0)
    record(other, task.spec, "a-1", steps=3).close()
    for folder in (
        tmp_path / "run/other/closed/a-1",
        spool.root / "closed/a-1",
        spool.root / "closed/a-2",
    ):
        (folder / "SHA256SUMS").unlink()
    code, out, error = data(capsys, "repair", tmp_path / "run", "--out", tmp_path / "new")
    assert code == 1 and not error and "2 of 3 are repaired" in out
    assert (
        f"{spool.root}/closed/a-1: left out, since {tmp_path}/new has a recording of that name; "
        "repair it to another" in out
    )
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"a-1", "a-2"}


@pytest.mark.parametrize("damaged", [False, True])
def test_what_was_attached_is_in_what_is_repaired_unless_it_is_damaged_itself(
    spool, task, capsys, tmp_path, damaged
):
    spool.attachments = lambda: {"recipe.yaml": b"name: mine\n", "blob": bytes(range(256))}
    folder = record(spool, task.spec, "c-1", steps=8).close()
    file = folder / "c-1.mcap"
    flip(file, file.read_bytes().index(b"name: mine")) if damaged else (
        folder / "SHA256SUMS"
    ).unlink()
    code, out, _ = data(capsys, "repair", folder, "--out", tmp_path / "new")
    assert (
        code == 0
        and ("lost: an attachment of " in out and "its checksum does not match" in out) is damaged
    )
    with open(tmp_path / "new/c-1/c-1.mcap", "rb") as stream:
        attachments = {
            read_attachment.name: read_attachment.data
            for read_attachment in make_reader(stream, validate_crcs=True).iter_attachments()
        }
    assert attachments == {"blob": bytes(range(256))} | (
        {} if damaged else {"recipe.yaml": b"name: mine\n"}
    )


def test_what_is_whole_and_yet_no_episode_is_not_sealed(spool, task, capsys, tmp_path):
    # as one in which the arm was held all along
    record(spool, task.spec, "h-1", leave=("applied",)).abort()
    code, out, _ = data(capsys, "repair", spool.root, "--out", tmp_path / "new")
    assert (
        code == 1
        and "no episode: episode h-1: expected actions that the interlock applied, got none" in out
    )
    assert (
        list((tmp_path / "new/h-1").glob("*.mcap"))
        and not (tmp_path / "new/h-1/SHA256SUMS").exists()
    )


def test_a_recorder_that_was_killed_leaves_what_was_written(task, capsys, tmp_path):
    code = f"""
import os, signal
from rlinf_core.episodes.spool import Spool
from rlinf_core.tasks.task import load_task
from tests.messages import record
record(Spool({str(tmp_path / "spool")!r}, min_free_mb=0), load_task('configs/tasks/peg_insertion.yaml')
       .with_images({IMAGES}).spec, 'k-1', steps=9)
os.kill(os.getpid(), signal.SIGKILL)"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    assert data(capsys, "check", tmp_path / "spool")[0] == 1
    code, out, _ = data(capsys, "repair", tmp_path / "spool", "--out", tmp_path / "new")
    assert code == 1 and "messages kept" in out and list((tmp_path / "new").glob("k-1/*.mcap"))


def test_where_nothing_is_whole_nothing_is_written(spool, capsys, tmp_path):
    file = spool.root / "closed/a-1/a-1.mcap"
    file.write_bytes(file.read_bytes()[:1000])
    code, out, error = data(capsys, "repair", spool.root, "--out", tmp_path / "new")
    assert code == 1 and "no intact part" in error and not list(tmp_path.glob("new*"))


def test_what_is_there_is_not_overwritten(spool, capsys, tmp_path):
    (tmp_path / "new").mkdir()
    for verb in ("merge", "split"):
        code, _, error = data(capsys, verb, spool.root, "--out", tmp_path / "new")
        assert (
            code == 1
            and "expected an unused path, got an existing one" in error
            and not list((tmp_path / "new").iterdir())
        )


@pytest.mark.parametrize("named", ["a-2/a-2.mcap", None])
def test_a_source_that_cannot_be_read_is_not_taken_for_a_full_disk(
    spool, capsys, tmp_path, monkeypatch, named
):
    def fails(folder, *_):
        raise OSError(
            errno.EIO,
            os.strerror(errno.EIO),
            *[str(spool.root / "closed" / named)] if named else [],
        )

    monkeypatch.setattr(episodes, "read_episode", fails)
    code, _, error = data(capsys, "merge", spool.root, "--out", tmp_path / "new")
    message = (
        f"rlinf: {spool.root}/closed/{named or 'a-1'}: cannot be read: Input/output error. --out "
    )
    assert code == 1 and error.startswith(message) and not list(tmp_path.glob("new*"))


def test_a_result_that_cannot_be_written_is_told(tmp_path):
    with (
        pytest.raises(RlinfError, match="new: cannot be written: No such file"),
        new_folder(tmp_path / "new") as folder,
    ):
        (folder / "none/x").write_text("")
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(RlinfError, match="--out .*/new: cannot be written: Not a dir"),
        new_folder(tmp_path / "file/new"),
    ):
        pass


def test_a_disk_that_fills_while_episodes_are_copied_is_said_in_its_own_words(
    spool, capsys, tmp_path, monkeypatch
):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "from", None, "to")  # as shutil says it
    monkeypatch.setattr(shutil, "copy2", MagicMock(side_effect=full))
    code, _, error = data(capsys, "merge", spool.root, "--out", tmp_path / "new")
    assert code == 1 and not list(tmp_path.glob("new*"))
    assert error.startswith(
        f"rlinf: --out {tmp_path}/new: cannot be written: No space left on device. Nothing was left"
    )


def test_merged_recordings_are_the_same_to_the_last_bit_and_come_once(
    spool, task, capsys, tmp_path
):
    other = Spool(tmp_path / "other", min_free_mb=0)
    record(other, task.spec, "b-1").close()
    record(other, task.spec, "b-2", leave=("ended",)).abort()
    record(other, task.spec, "b-3").abort()  # whole, and yet announced as lost
    shutil.copytree(spool.root / "closed/a-1", tmp_path / "inbox/a-1")
    code, out, _ = data(
        capsys, "merge", spool.root, tmp_path / "inbox", other.root, "--out", tmp_path / "new"
    )
    assert code == 0 and "3 episodes" in out and "left out" in out and "b-2" in out and "b-3" in out
    expected = {**contents(spool.root / "closed"), **contents(other.root / "closed")}
    assert contents(tmp_path / "new") == expected


def test_two_specs_or_two_of_one_id_are_refused_with_both_named(spool, task, capsys, tmp_path):
    record(
        Spool(tmp_path / "seen", min_free_mb=0), task.with_images({"front": (8, 8)}).spec, "s-1"
    ).close()
    code, _, error = data(capsys, "merge", spool.root, tmp_path / "seen", "--out", tmp_path / "new")
    assert (
        code == 1
        and "closed/a-1" in error
        and "closed/s-1" in error
        and "observation 'front'" in error
    )
    record(Spool(tmp_path / "same", min_free_mb=0), task.spec, "a-1", steps=7).close()
    code, _, error = data(capsys, "merge", spool.root, tmp_path / "same", "--out", tmp_path / "new")
    assert (
        code == 1
        and str(spool.root / "closed/a-1") in error
        and str(tmp_path / "same/closed/a-1") in error
    )
    assert not list(tmp_path.glob("new*"))


def test_a_damaged_episode_is_merged_with_nothing(spool, capsys, tmp_path):
    flip(spool.root / "closed/a-2/a-2.mcap", 2000)
    code, _, error = data(capsys, "merge", spool.root, "--out", tmp_path / "new")
    assert (
        code == 1
        and "a-2" in error
        and "rlinf data repair" in error
        and not list(tmp_path.glob("new*"))
    )


def test_a_split_is_by_outcome_or_drawn_the_same_each_time(spool, task, capsys, tmp_path):
    for number in range(3, 11):
        record(spool, task.spec, f"a-{number}").close()
    assert data(capsys, "split", spool.root, "--out", tmp_path / "out")[0] == 0
    assert [path.name for path in (tmp_path / "out/time_limit").iterdir()] == ["a-2"]
    assert len(list((tmp_path / "out/success").iterdir())) == 9
    parts = []
    for name, seed in (("x", 1), ("y", 1), ("z", 2)):
        code, out, _ = data(
            capsys,
            "split",
            spool.root,
            "--out",
            tmp_path / name,
            "--fractions",
            "train=0.8",
            "val=0.2",
            "--seed",
            seed,
        )
        assert code == 0 and "8 train, 2 val" in out
        parts.append({path.name for path in (tmp_path / name / "val").iterdir()})
        assert len(list((tmp_path / name / "train").iterdir())) == 8
    assert parts[0] == parts[1] != parts[2]


@pytest.mark.parametrize(
    "fractions",
    [["train"], ["a=0.5", "b=0.6"], ["a=1.5", "b=-0.5"], ["a=0.5", "a=0.5"], ["../x=1"]],
)
def test_fractions_that_are_none_are_told(fractions):
    with pytest.raises(
        RlinfError, match="--fractions: expected names with fractions that sum to 1"
    ):
        parse_fractions(fractions)


def test_statistics_are_those_of_numpy(spool, task, capsys, tmp_path):
    code, out, _ = data(capsys, "stats", spool.root, "--json", tmp_path / "a.json")
    statistics = json.loads((tmp_path / "a.json").read_text())
    force = np.concatenate(
        [
            read_episode(spool.root / "closed" / name).observations["force"]
            for name in ("a-1", "a-2")
        ]
    )
    assert (
        code == 0
        and "2 episodes, 9 steps" in out
        and "success 50% (95 % interval 9% to 91%)" in out
    )
    assert statistics["force[1]/mean"] == pytest.approx(force[:, 1].mean())
    assert statistics["force[1]/std"] == pytest.approx(force[:, 1].std())
    assert (
        statistics["force[1]/q90"] == pytest.approx(np.quantile(force[:, 1], 0.9))
        and statistics["force[1]/max"] == 5
    )
    assert statistics["low"] == pytest.approx(0.0945, abs=1e-3) and statistics["steps/mean"] == 4.5


def test_statistics_of_pixels_are_those_of_numpy(random):
    images = random.integers(10, 240, (3, 16, 24, 3)).astype(np.uint8)
    statistics = describe_histogram(histogram(images[:1]) + histogram(images[1:]))
    pixels = images[:, ::4, ::4].reshape(-1, 3) / 255.0
    for name, expected in {
        "mean": pixels.mean(0),
        "std": pixels.std(0),
        "min": pixels.min(0),
        "max": pixels.max(0),
        "q50": np.quantile(pixels, 0.5, axis=0, method="inverted_cdf"),
    }.items():
        assert statistics[name] == pytest.approx(expected), name
    assert Statistics().outcomes == []
    long = np.repeat(np.arange(250, dtype=np.uint8)[:, None, None, None], 3, axis=3)
    assert np.flatnonzero(histogram(long)[0]).tolist() == list(range(0, 250, 2)), (
        "every second frame: 125 of 250"
    )
    assert histogram(long[:199]).sum() == 3 * 199, "up to 199 all of them"


def test_none_of_it_needs_torch_or_ray(spool):
    code = (
        f"import sys\nfrom rlinf_core.cli.main import main\nassert main(['data', 'check', "
        f"{str(spool.root)!r}]) == 0\n"
        f"assert main(['data', 'stats', {str(spool.root)!r}]) == 0\n"
        "print(sorted({'torch', 'ray', 'rclpy', 'pyarrow', 'av'} & set(sys.modules)))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd()
    ).stdout
    assert output.splitlines()[-1] == "[]"


def test_a_new_folder_is_there_in_full_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = Path("new")
    assert check_unused(out) == tmp_path / "new"
    with new_folder(out) as folder:
        assert folder == tmp_path / "new.partial" and not out.exists()
        with pytest.raises(RlinfError, match="--out .*/new.partial: expected an unused path"):
            check_unused(out)
        (folder / "a").write_text("1")
    assert contents(out) == {"a": b"1"} and not folder.exists()
    with pytest.raises(RlinfError) as refused:
        check_unused(out)
    assert str(refused.value) == (
        f"--out {tmp_path}/new: expected an unused path, got an existing one. Nothing is "
        "overwritten. Choose another path, or remove it"
    )
    with pytest.raises(ZeroDivisionError), new_folder(Path("other")) as folder:
        (folder / "a").write_text("1")
        _ = 1 / 0
    assert {path.name for path in tmp_path.iterdir()} == {"new"}


def os_error(*names):
    return OSError(errno.EIO, os.strerror(errno.EIO), *names)


@pytest.mark.parametrize(
    "error, source",
    [
        (lambda at: os_error(), ""),
        (lambda at: os_error(f"{at}/new.partial/a"), ""),
        (lambda at: os_error(os.fsencode(f"{at}/new.partial")), ""),
        (lambda at: os_error(str(at)), ""),
        (lambda at: os_error(7), ""),
        (lambda at: os_error(f"{at}/source/a", None, f"{at}/new.partial/a"), ""),
        (lambda at: os_error("source/a\x1b"), "source/a\\x1b"),
        (lambda at: os_error(os.fsencode(f"{at}/new/a")), "{at}/new/a"),
        (lambda at: os_error(f"{at}/new.partial/../a"), "{at}/new.partial/../a"),
        (lambda at: os_error(Path(f"{at}/new.partially")), "{at}/new.partially"),
    ],
)
def test_a_failure_is_that_of_the_source_or_of_the_new_folder(tmp_path, monkeypatch, error, source):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RlinfError) as refused, new_folder(tmp_path / "new"):
        raise error(tmp_path)
    source = source.format(at=tmp_path)
    assert str(refused.value) == (
        f"{source}: cannot be read: Input/output error. --out {tmp_path}/new was removed again. "
        "Correct the named path, or leave it out"
        if source
        else f"--out {tmp_path}/new: cannot be written: Input/output error. Nothing was left "
        "there. Free disk space, or choose another folder"
    )


def test_an_error_without_a_number_is_told_in_its_own_words(tmp_path):
    with (
        pytest.raises(RlinfError, match="new: cannot be written: no room. Nothing was left"),
        new_folder(tmp_path / "new"),
    ):
        raise OSError("no room")


def test_a_copy_that_is_not_its_source_is_refused(spool, tmp_path, monkeypatch):
    copy = shutil.copy2

    def spoiled(source, target):
        copy(source, target)
        if str(target).endswith(".mcap"):
            flip(Path(target), 2000)

    monkeypatch.setattr(shutil, "copy2", spoiled)
    with pytest.raises(EpisodeError, match="a-1.mcap does not fit SHA256SUMS"):
        merge([spool.root], tmp_path / "new")
    assert not list(tmp_path.glob("new*"))


def test_a_merge_says_how_many_and_a_split_how_many_of_each(spool, task, tmp_path):
    record(spool, task.spec, "a-3", success=False, failure=True).close()
    assert merge([spool.root], tmp_path / "merged") == 3
    assert split([spool.root], tmp_path / "split") == {"failure": 1, "success": 1, "time_limit": 1}
    assert contents(tmp_path / "split/failure/a-3") == contents(spool.root / "closed/a-3")
    fractions = {"train": 0.7, "val": 0.3, "none": 0.0}
    counts = split([spool.root], tmp_path / "drawn", fractions, seed=3)
    assert counts == {"train": 2, "val": 1, "none": 0} and list(counts) == ["train", "val", "none"]
    moved = tmp_path / "moved"  # the draw knows the episodes by their names alone
    for name in ("a-1", "a-2", "a-3"):
        shutil.copytree(spool.root / f"closed/{name}", moved / f"{'cab'[int(name[2]) - 1]}/{name}")
    split([moved], tmp_path / "again", fractions, seed=3)
    assert contents(tmp_path / "again") == contents(tmp_path / "drawn")
    split([moved], tmp_path / "default", fractions)
    split([moved], tmp_path / "zero", fractions, seed=0)
    assert contents(tmp_path / "default") == contents(tmp_path / "zero")
    with pytest.raises(RlinfError, match="expected an unused path"):
        split([tmp_path / "no recordings"], tmp_path / "drawn")


def test_episodes_are_drawn_at_random_and_each_once():
    from rlinf_core.data.folders import _assign_parts

    sources = [Path(str(number)) for number in range(10)]
    drawn = _assign_parts(sources, {"a": 0.25, "b": 0.5, "c": 0.25}, 5)
    assert sorted(drawn) == sources
    names = [drawn[source] for source in sources]
    assert [names.count(name) for name in "abc"] == [2, 6, 2], "bounds at 2.5 and 7.5"
    assert names != sorted(names)
    several = [_assign_parts(sources, {"a": 0.5, "b": 0.5}, seed) for seed in range(200)]
    for source in sources:
        assert 70 < sum(one[source] == "a" for one in several) < 130


@pytest.mark.parametrize(
    "texts, expected",
    [
        (["train=0.9", "val=0.1"], {"train": 0.9, "val": 0.1}),
        (["all=1"], {"all": 1.0}),
        (["a=0.1"] * 0 + [f"p{n}=0.1" for n in range(10)], {f"p{n}": 0.1 for n in range(10)}),
        (["a=0.5", "b=0.5000000001"], {"a": 0.5, "b": 0.5000000001}),
    ],
)
def test_fractions_are_read_by_name(texts, expected):
    assert parse_fractions(texts) == expected


@pytest.mark.parametrize(
    "texts",
    [[], ["a=x", "b=1"], ["a=0.5", "b=0.50001"], ["a=1", "b=0"], ["a=1", "b"], ["a/b=1"], ["=1"]],
)
def test_fractions_that_are_none_are_told_as_they_were_given(texts):
    with pytest.raises(RlinfError) as refused:
        parse_fractions(texts)
    assert str(refused.value) == (
        "--fractions: expected names with fractions that sum to 1, such as train=0.9 val=0.1, got "
        + " ".join(texts)
    )


def test_numbers_are_described_by_column():
    values = np.array([[0, 10], [1, 20], [2, 30], [3, 40], [4, 100]], np.float32)
    statistics = describe(values)
    assert {name: numbers.tolist() for name, numbers in statistics.items()} == {
        "count": [5],
        "mean": [2.0, 40.0],
        "std": [pytest.approx(2**0.5), pytest.approx(1000**0.5)],
        "min": [0.0, 10.0],
        "max": [4.0, 100.0],
        "q01": [pytest.approx(0.04), pytest.approx(10.4)],
        "q10": [pytest.approx(0.4), pytest.approx(14.0)],
        "q50": [2.0, 30.0],
        "q90": [pytest.approx(3.6), pytest.approx(76.0)],
        "q99": [pytest.approx(3.96), pytest.approx(97.6)],
    }
    assert statistics["mean"].dtype == np.float64


def test_pixels_are_described_by_channel():
    counts = np.zeros((2, 256), int)
    counts[0, [0, 51, 255]] = 2, 6, 2
    counts[1, 102] = 7
    statistics = describe_histogram(counts)
    assert {name: numbers.tolist() for name, numbers in statistics.items()} == {
        "mean": pytest.approx([0.32, 0.4]),
        "std": pytest.approx([0.3487, 0.0], abs=1e-4),
        "min": [0.0, pytest.approx(0.4)],
        "max": [1.0, pytest.approx(0.4)],
        "q01": [0.0, pytest.approx(0.4)],
        "q10": [0.0, pytest.approx(0.4)],
        "q50": [pytest.approx(0.2), pytest.approx(0.4)],
        "q90": [1.0, pytest.approx(0.4)],
        "q99": [1.0, pytest.approx(0.4)],
    }


def test_a_hundred_pictures_of_an_episode_count_or_a_few_more_and_each_fourth_pixel(random):
    for count, left in ((1, 1), (99, 99), (100, 100), (199, 199), (200, 100), (250, 125)):
        assert len(sample_frames(np.zeros((count, 1)))) == left
    assert sample_frames(np.arange(300))[:3].tolist() == [0, 3, 6]
    images = random.integers(0, 256, (2, 9, 6, 3), dtype=np.uint8)
    counts = histogram(images)
    assert counts.shape == (3, 256) and counts.sum() == 2 * 3 * 2 * 3
    for channel in range(3):
        pixels = [images[n, y, x, channel] for n in (0, 1) for y in (0, 4, 8) for x in (0, 4)]
        assert np.repeat(np.arange(256), counts[channel]).tolist() == sorted(pixels)


def test_all_episodes_are_described_together(task, tmp_path):
    spool = Spool(tmp_path / "spool", min_free_mb=0)
    spec = task.with_images({"front": (8, 8), "above": (4, 4)}).spec
    statistics = Statistics()
    for name, how in (
        ("a-1", {"steps": 5}),
        ("a-2", {"steps": 3, "success": False, "start": 10.0}),
    ):
        statistics.add(read_episode(record(spool, spec, name, **how).close()))
    low, high = (0.0945, 0.9055)
    assert statistics.summary() == {
        "episodes": 2,
        "steps": 8,
        "seconds": pytest.approx(0.8),
        "success": 0.5,
        "low": pytest.approx(low, abs=1e-4),
        "high": pytest.approx(high, abs=1e-4),
    }
    keys = statistics.keys()
    names = [item.name for item in spec.vectors]
    assert list(keys) == [
        *names,
        *("action requested", "action executed", "return", "steps", "above", "front"),
    ]
    force = [*range(6), *range(10, 14)]
    assert keys["force"]["mean"].tolist() == [np.mean(force)] * 3
    assert keys["force"]["count"].tolist() == [10] and keys["steps"]["mean"].tolist() == [4.0]
    assert keys["return"]["mean"].tolist() == [0.5] and keys["return"]["count"].tolist() == [2]
    assert keys["action requested"]["mean"][0] == pytest.approx(0.02)
    assert keys["action executed"]["mean"][0] == pytest.approx(0.01)
    greys = np.array([*range(6), *range(4)]) / 255
    assert keys["front"]["mean"] == pytest.approx([greys.mean()] * 3)
    assert keys["above"]["max"] == pytest.approx([5 / 255] * 3) and "count" not in keys["above"]
