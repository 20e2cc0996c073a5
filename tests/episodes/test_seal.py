"""The seal of a closed episode, and episodes that have changed since."""

import random
import shutil
import subprocess

import numpy as np
import pytest
from mcap.reader import make_reader
from mcap.stream_reader import StreamReader
from rosbags.rosbag2 import CompressionFormat, CompressionMode, Reader, StoragePlugin, Writer

from rlinf_core.core.atomic_io import quarantine
from rlinf_core.core.errors import EpisodeError, SpoolError
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.checksums import SUMS, episode_files, is_plain, seal, verify
from rlinf_core.episodes.messages import typestore
from rlinf_core.episodes.spool import MAX_MESSAGE_BYTES, Spool
from rlinf_core.episodes.validate import check_episode
from tests.messages import raw_messages, record, write_raw


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "spool")


@pytest.fixture
def closed(spool, task):
    return record(spool, task.with_images({"front": (8, 8)}).spec).close()


def test_sha256sum_itself_agrees_with_the_seal_and_other_readers_still_open_the_folder(closed):
    process = subprocess.run(
        ["sha256sum", "--check", "--strict", SUMS], cwd=closed, capture_output=True, text=True
    )
    assert process.returncode == 0 and process.stdout.count(": OK") == 2, process
    with Reader(closed) as reader:
        assert reader.message_count == 13
    with open(closed / f"{closed.name}.mcap", "rb") as file:
        assert make_reader(file, validate_crcs=True).get_summary().statistics.message_count == 13


def test_what_is_attached_is_read_back_bit_for_bit_and_changes_nothing_for_readers(spool, task):
    attached = {"recipe.yaml": b"name: mine\n", "specs.json": b"{}", "blob": bytes(range(256))}
    spool.attachments = lambda: attached
    closed = record(spool, task.spec).close()
    with open(closed / f"{closed.name}.mcap", "rb") as file:
        read = list(make_reader(file, validate_crcs=True).iter_attachments())
    attachments = {
        read_attachment.name: (read_attachment.data, read_attachment.media_type)
        for read_attachment in read
    }
    assert {name: data for name, (data, _) in attachments.items()} == attached
    assert [attachments[name][1] for name in attached] == [
        "application/yaml",
        "application/json",
        "application/octet-stream",
    ]
    with Reader(closed) as reader:
        assert reader.message_count == 13
    assert len(read_episode(closed, sealed=True)) == len(read_episode(closed)) > 0


def test_every_chunk_and_the_summary_carry_a_checksum_that_readers_check(closed):
    file = closed / f"{closed.name}.mcap"
    data = bytearray(file.read_bytes())
    with open(file, "rb") as stream:
        records = {
            type(record).__name__: record
            for record in StreamReader(stream, emit_chunks=True).records
        }
    assert (
        records["Chunk"].uncompressed_crc
        and records["DataEnd"].data_section_crc
        and records["Footer"].summary_crc
    )
    data[data.index(b"do it")] ^= 1
    file.write_bytes(data)
    (closed / SUMS).unlink()
    with pytest.raises(EpisodeError, match="checksum"):
        read_episode(closed)


def test_each_flipped_bit_in_any_file_is_found(closed):
    numbers = random.Random(1)
    for file in sorted(closed.iterdir()):
        good = file.read_bytes()
        for _ in range(100):
            bad, at = bytearray(good), numbers.randrange(len(good))
            bad[at] ^= 1 << numbers.randrange(8)
            file.write_bytes(bad)
            with pytest.raises(
                EpisodeError, match=f"expected an intact rosbag2 recording.*does not fit {SUMS}"
            ):
                read_episode(closed)
        file.write_bytes(good)
    verify(closed)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "more").write_bytes(b""),
        lambda folder: (folder / "metadata.yaml").unlink(),
        lambda folder: (folder / "sub").mkdir(),
        lambda folder: (folder / "link").symlink_to("/etc/passwd"),
        lambda folder: [(folder / f"f{number}").write_bytes(b"") for number in range(20)],
        lambda folder: (folder / SUMS).write_text((folder / SUMS).read_text() * 2),
        lambda folder: (folder / SUMS).write_bytes(b"\xff" * 100_000),
        lambda folder: shutil.rmtree(folder),
        lambda folder: shutil.rmtree(folder) or folder.write_text("a file"),
    ],
)
def test_a_file_too_many_or_too_few_is_found(closed, spoil):
    spoil(closed)
    with pytest.raises(EpisodeError):
        verify(closed)


def test_a_link_to_the_very_file_is_no_file_and_too_many_files_cannot_be_sealed(closed):
    file = closed / "a-1.mcap"
    file.rename(closed.parent / "elsewhere")
    file.symlink_to(closed.parent / "elsewhere")
    with pytest.raises(EpisodeError, match="plain files.*'a-1.mcap' among them"):
        verify(closed)
    file.unlink()
    for number in range(20):
        (closed / f"f{number}").write_bytes(b"")
    with pytest.raises(
        EpisodeError, match="at most 16 plain files of 2048 MiB in total, got 22 of"
    ):
        seal(closed)


def test_an_old_recording_without_a_seal_is_read_but_not_from_a_spool_or_an_inbox(closed):
    (closed / SUMS).unlink()
    assert len(read_episode(closed)) == 5
    with pytest.raises(EpisodeError, match=f"sha256sum \\* > {SUMS}") as refused:
        read_episode(closed, sealed=True)
    subprocess.run(["bash", "-c", str(refused.value).split("trust: ")[1]], check=True)
    assert len(read_episode(closed, sealed=True)) == 5, "what the message says does help"


def test_a_sealed_episode_cannot_hide_any_amount_of_data_in_little(task, tmp_path):
    writer = Writer(tmp_path / "a-1", version=8, storage_plugin=StoragePlugin.MCAP)
    writer.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
    with writer:
        connections = {}
        for topic, kind, ns, raw in raw_messages(task.spec):
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=typestore())
            writer.write(connections[topic], ns, raw)
    assert len(read_episode(tmp_path / "a-1")) == 5, "somebody's recording"
    seal(tmp_path / "a-1")
    with pytest.raises(EpisodeError, match="compression zstd, which the recorder does not use"):
        read_episode(tmp_path / "a-1", sealed=True)


def test_only_what_the_recorder_writes_is_read_of_a_sealed_episode(closed):
    (closed / "metadata.yaml").write_text(
        "a: &a [x]\nb: &b [*a,*a]\nrosbag2_bagfile_information: {relative_file_paths: ["
        "/etc/passwd], compression_mode: file}"
    )
    seal(closed)
    assert len(read_episode(closed, sealed=True)) == 5


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda topic, n, m: (
                topic == "timestep" and n == 2 and setattr(m.vectors[0], "name", "x")
            ),
            "same observations",
        ),
        (
            lambda topic, n, m: topic == "timestep" and n == 2 and m.vectors.pop(),
            "same observations",
        ),
        (
            lambda topic, n, m: (
                topic == "timestep" and n == 2 and setattr(m.images[0], "encoding", "mono8")
            ),
            "mono8",
        ),
        (
            lambda topic, n, m: (
                topic == "timestep" and n == 2 and setattr(m.images[0], "height", 1 << 30)
            ),
            "reshape",
        ),
        (
            lambda topic, n, m: (
                topic == "applied" and n == 2 and setattr(m, "requested", np.zeros(4))
            ),
            r"one size, got \[3, 4\]",
        ),
        (
            lambda topic, n, m: (
                topic == "applied" and n == 2 and setattr(m, "executed", np.zeros(1))
            ),
            r"one size, got \[1, 3\]",
        ),
        (
            lambda topic, n, m: topic == "episode" and n == 1 and setattr(m, "steps", 4),
            "without gaps",
        ),
        (
            lambda topic, n, m: (
                topic == "episode" and n == 1 and setattr(m, "steps", 4_000_000_000)
            ),
            "0..4000000000 without",
        ),
        (
            lambda topic, n, m: (
                topic == "timestep" and n == 5 and setattr(m, "step_index", 4_000_000_000)
            ),
            "without gaps",
        ),
    ],
)
def test_what_does_not_hang_together_is_refused_by_name(spool, task, change, message):
    folder = record(spool, task.with_images({"front": (8, 8)}).spec, change=change).close()
    with pytest.raises(EpisodeError, match=message):
        read_episode(folder)


def test_messages_in_any_order_and_written_twice_make_the_same_episode(spool, task):
    messages = raw_messages(task.spec, sources={1: "operator"})
    plain = read_episode(write_raw(spool, "plain", messages).close())
    random.Random(3).shuffle(messages)
    messages = [
        (topic, kind, ns, raw) for ns, (topic, kind, _, raw) in enumerate(messages + messages[:8])
    ]
    other = read_episode(write_raw(spool, "other", messages).close())
    assert np.array_equal(plain.executed, other.executed) and np.array_equal(
        plain.requested, other.requested
    )
    assert np.array_equal(plain.stamps_ns, other.stamps_ns) and plain.sources == other.sources
    assert all(
        np.array_equal(plain.observations[name], other.observations[name])
        for name in plain.observations
    )


def test_wrong_types_and_several_stations_are_refused(spool, task):
    messages = raw_messages(task.spec)
    wrong = [
        (topic, kind.replace("Applied", "NamedVector"), *rest) for topic, kind, *rest in messages
    ]
    with pytest.raises(EpisodeError, match="of type rlinf_msgs/msg/NamedVector, not"):
        read_episode(write_raw(spool, "wrong", wrong).close())
    both = messages + [
        (topic.replace("station", "other"), kind, ns, raw) for topic, kind, ns, raw in messages
    ]
    with pytest.raises(EpisodeError, match="not '/(station|other)/episode' of"):
        read_episode(write_raw(spool, "both", both).close())


def test_an_operators_label_stays_whatever_else_moved_in_that_transition(spool, task):
    """Two actions within one transition, the operator's first or last."""
    extra = raw_messages(
        task.spec,
        sources={1: "operator", 2: "operator"},
        change=lambda topic, n, m: topic == "applied" and setattr(m, "session", "other"),
    )
    for first in (True, False):
        operators = [message for message in extra if "applied" in message[0]][1:3]
        messages = (
            operators + raw_messages(task.spec) if first else raw_messages(task.spec) + operators
        )
        episode = read_episode(write_raw(spool, f"first-{first}", messages).close())
        assert episode.sources == ("policy", "operator", "operator", "policy", "policy")


@pytest.mark.parametrize(
    "name", ["../x", "x/y", "", ".", "..", ".hidden", "a" * 129, "a\n", "ä", "a b", "a\0"]
)
def test_ids_that_are_not_plain_never_leave_the_spool(spool, name):
    assert not is_plain(name)
    with pytest.raises(SpoolError, match="plain name"):
        spool.open_episode(name)
    assert sorted(path.name for path in spool.root.parent.iterdir()) == ["spool"]


def test_an_id_comes_once_whether_it_is_open_closed_or_sent(spool, task):
    writer = record(spool, task.spec)
    for where in ("open", "closed", "sent"):
        with pytest.raises(SpoolError, match=f"a-1, which is in {where}/ already"):
            spool.open_episode("a-1")
        writer.close() if where == "open" else spool.mark_sent("a-1") if where == "closed" else None
    assert len(read_episode(spool.root / "sent" / "a-1")) == 5


def test_absurdly_large_messages_and_episodes_are_refused(spool, task, monkeypatch):
    writer = spool.open_episode("large")
    assert MAX_MESSAGE_BYTES == 64 << 20
    writer.write("/station/timestep", "rlinf_msgs/msg/TimeStep", 0, bytes(MAX_MESSAGE_BYTES))
    with pytest.raises(SpoolError, match="64 MiB.*Record smaller images"):
        writer.write(
            "/station/timestep", "rlinf_msgs/msg/TimeStep", 0, bytes(MAX_MESSAGE_BYTES + 1)
        )
    monkeypatch.setattr("rlinf_core.episodes.spool.MAX_BYTES", 1 << 20)
    with pytest.raises(SpoolError, match=r"on .*, \d+ MiB in total"):
        for _ in range(20):
            writer.write("/station/timestep", "rlinf_msgs/msg/TimeStep", 0, bytes(100_000))


def test_what_lies_about_in_sent_or_in_closed_stops_nothing(spool, task):
    small = Spool(spool.root, keep_sent=1)
    (spool.root / "sent" / "stray").write_text("")
    for name in ("a", "b", "c"):
        record(small, task.spec, name).close()
        small.mark_sent(name)
    (spool.root / "closed" / "gone").symlink_to("nowhere")
    assert [path.name for path in small.closed()] == ["gone"]


def test_what_is_set_aside_is_kept_with_its_reason_also_twice(tmp_path):
    for number in (1, 2):
        (tmp_path / "x").mkdir()
        (tmp_path / "x" / "file").write_text(str(number))
        quarantine(tmp_path / "x", tmp_path / "refused", f"reason {number} \udcff")
    by_name = {path.name: path for path in (tmp_path / "refused").iterdir()}
    assert sorted(by_name) == ["x", "x.2", "x.2.reason.txt", "x.reason.txt"]
    assert (by_name["x"] / "file").read_text() == "1" and "reason 2" in by_name[
        "x.2.reason.txt"
    ].read_text()


@pytest.mark.parametrize(
    "bound, message",
    [
        ("read.MAX_MESSAGES", "more than 3 messages on"),
        ("read.LEADING_BYTES", "4 that begin alike"),
        ("raw_messages.MAX_CHUNK_BYTES", "exceeds limit 3"),
        ("read.MAX_DEFINITIONS", "of type"),
    ],
)
def test_what_reading_may_take_is_bounded(spool, task, monkeypatch, bound, message):
    folder = record(spool, task.spec, steps=40).close()
    monkeypatch.setattr(f"rlinf_core.episodes.{bound}", 3)
    with pytest.raises(EpisodeError, match=f"(?i){message}"):
        read_episode(folder, sealed=True)


def test_a_checksum_of_the_data_is_compared_also_where_the_seal_fits(spool, task):
    folder = record(spool, task.spec).close()
    file = folder / "a-1.mcap"
    file.write_bytes(file.read_bytes().replace(b"do it", b"do is", 1))
    seal(folder)
    with pytest.raises(EpisodeError, match="(?i)crc"):
        read_episode(folder, sealed=True)


def test_one_transition_is_an_episode_and_none_or_more_than_fit_are_refused(spool, task):
    one = read_episode(record(spool, task.spec, steps=1).close())
    check_episode(one, task.spec, 1)
    with pytest.raises(
        EpisodeError,
        match=r"episode a-1: expected 1 to 0 transitions .* got 1. It is not used for training",
    ):
        check_episode(one, task.spec, 0)


@pytest.mark.parametrize(
    "make, got",
    [(lambda path: None, "nothing"), (lambda path: path.write_text(""), "something else")],
    ids=["nothing", "a file"],
)
def test_what_is_no_folder_is_no_episode_and_named(tmp_path, make, got):
    make(tmp_path / "a-1")
    with pytest.raises(
        EpisodeError,
        match=rf"a-1: expected an intact rosbag2 recording \(a folder\), got {got}\. It is not",
    ):
        episode_files(tmp_path / "a-1")
