"""Files appear complete or not at all, and names never overwrite each other."""

import errno
import os
import stat

import pytest

from rlinf_core.core import atomic_io


@pytest.fixture
def flushed(monkeypatch):
    """The paths that were flushed to the disk, in order."""
    paths = []
    fsync = os.fsync

    def noted(handle):
        paths.append(os.path.realpath(f"/proc/self/fd/{handle}"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    return paths


def test_new_folders_are_durable_from_the_top(tmp_path, flushed):
    deep = tmp_path / "a/b/c"
    assert atomic_io.make_folder(deep) == deep and deep.is_dir()
    assert flushed == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a/b")]
    flushed.clear()
    assert atomic_io.make_folder(deep) == deep and flushed == []


def test_a_published_file_is_flushed_before_and_after_it_has_its_name(tmp_path, flushed):
    (tmp_path / "new").write_text("new")
    (tmp_path / "file").write_text("old")
    path = atomic_io.publish_file(tmp_path / "new", tmp_path / "file")
    assert path == tmp_path / "file" and path.read_text() == "new"
    assert [*tmp_path.iterdir()] == [path] and flushed == [str(tmp_path / "new"), str(tmp_path)]


def test_a_text_is_replaced_without_a_flush(tmp_path, flushed):
    for text in ("one", "two"):
        atomic_io.replace_text(tmp_path / "state", text)
        assert (tmp_path / "state").read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["state"] and flushed == []


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_has_its_name_when_it_is_complete(tmp_path, flushed, durable):
    path = tmp_path / "file"
    path.write_text("old")
    (tmp_path / ".file.part").write_text("of a process that was killed")
    written = []

    def write(temporary):
        assert path.read_text() == "old" and temporary.read_text() == ""
        temporary.write_text("new")
        written.append(temporary.name)

    assert atomic_io.write_atomically(path, write, durable) == path
    assert path.read_text() == "new" and written == [".file.part"]
    assert [*tmp_path.iterdir()] == [path]
    assert flushed == ([str(tmp_path / ".file.part"), str(tmp_path)] if durable else [])


def test_a_file_is_durable_by_default(tmp_path, flushed):
    atomic_io.write_atomically(tmp_path / "file", lambda path: path.write_text("x"))
    assert len(flushed) == 2


def test_an_error_leaves_the_old_file_and_names_the_path(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def full(temporary):
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError) as error:
        atomic_io.write_atomically(path, full)
    assert error.value.filename == str(path) and error.value.errno == errno.ENOSPC
    assert path.read_text() == "old" and [*tmp_path.iterdir()] == [path]

    def elsewhere(temporary):
        raise OSError(errno.EACCES, "Permission denied", "/other")

    with pytest.raises(OSError) as error:
        atomic_io.write_atomically(path, elsewhere)
    assert error.value.filename == "/other", "the error's own file"

    def wordless(temporary):
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="^the disk is full$") as error:
        atomic_io.write_atomically(path, wordless)
    assert error.value.filename is None


def test_errors_of_safetensors_are_those_of_the_system(tmp_path):
    from safetensors import SafetensorError

    def fails(text):
        def write(temporary):
            raise SafetensorError(text)

        return write

    with pytest.raises(OSError) as error:
        atomic_io.write_with_usual_mode(
            tmp_path / "a", fails("I/O error: No space left on device (os error 28)")
        )
    assert error.value.errno == errno.ENOSPC and error.value.filename == str(tmp_path / "a")
    assert error.value.strerror == "No space left on device"
    assert isinstance(error.value.__cause__, SafetensorError)
    with pytest.raises(OSError, match="^invalid shape$") as error:
        atomic_io.write_with_usual_mode(tmp_path / "a", fails("invalid shape"))
    assert error.value.errno is None and isinstance(error.value.__cause__, SafetensorError)
    with pytest.raises(ZeroDivisionError):
        atomic_io.write_with_usual_mode(tmp_path / "a", lambda path: 1 / 0)


def test_a_file_has_the_permissions_of_the_users_umask(tmp_path):
    path = tmp_path / "file"
    before = os.umask(0o027)
    try:
        atomic_io.write_with_usual_mode(path, lambda path: path.chmod(0o600))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    "before, after",
    [
        (None, "new\n"),
        ("", "new\n"),
        ("one\n", "one\nnew\n"),
        ("one\ncut", "one\ncut\nnew\n"),
        ("c", "c\nnew\n"),
    ],
)
def test_a_line_stays_separate_from_one_that_was_cut(tmp_path, before, after):
    path = tmp_path / "lines"
    if before is not None:
        path.write_text(before)
    atomic_io.append_line(path, "new")
    assert path.read_text() == after


def test_a_folder_is_flushed_after_its_files(tmp_path, flushed):
    for name in "ab":
        (tmp_path / name).touch()
    atomic_io.flush_folder(tmp_path)
    assert sorted(flushed[:2]) == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert flushed[2:] == [str(tmp_path)]


def test_a_move_is_durable_in_both_folders(tmp_path, flushed):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "one/file").write_text("x")
    target = tmp_path / "two/file"
    assert atomic_io.move(tmp_path / "one/file", target) == target and target.read_text() == "x"
    assert sorted(flushed) == [str(tmp_path / "one"), str(tmp_path / "two")]


def test_a_free_name_is_the_first_that_nothing_has(tmp_path):
    path = tmp_path / "a"
    assert atomic_io.unused_name(path) == path
    path.touch()
    assert atomic_io.unused_name(path) == tmp_path / "a.2"
    (tmp_path / "a.2").symlink_to("nowhere")
    assert atomic_io.unused_name(path) == tmp_path / "a.3"


def test_an_unusable_file_is_kept_with_the_reason(tmp_path, flushed):
    for number, name in ((1, "a"), (2, "a.2")):
        (tmp_path / "a").write_text(f"{number}")
        target = atomic_io.quarantine(tmp_path / "a", tmp_path / "deep/broken", "é \udcff is odd")
        assert target == tmp_path / "deep/broken" / name and target.read_text() == f"{number}"
        note = target.with_name(f"{name}.reason.txt")
        assert note.read_text("utf-8") == "é \\udcff is odd\n" and str(note) in flushed
    assert not (tmp_path / "a").exists()
    long = tmp_path / ("b" * 255)
    long.touch()
    atomic_io.quarantine(long, tmp_path / "deep/broken", "x")
    assert (tmp_path / "deep/broken" / ("b" * 200 + ".reason.txt")).read_text() == "x\n"


def test_a_write_that_left_no_file_is_told_as_it_failed(tmp_path):
    def write(path):
        path.unlink()
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        atomic_io.write_atomically(tmp_path / "file", write)

    def into_a_folder(path):
        path.unlink()
        path.mkdir()
        raise OSError(errno.ENOSPC, "No space left")

    with pytest.raises(OSError, match="No space left") as refused:
        atomic_io.write_atomically(tmp_path / "other", into_a_folder)
    assert refused.value.filename == str(tmp_path / "other")


def test_a_reason_in_any_language_is_kept_in_utf_8(tmp_path):
    (tmp_path / "file").write_text("")
    atomic_io.quarantine(tmp_path / "file", tmp_path / "refused", "für 测试 \udcff")
    note = (tmp_path / "refused/file.reason.txt").read_bytes()
    assert note == "für 测试 \\udcff\n".encode()
