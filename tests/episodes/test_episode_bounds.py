"""Bounds at their very values, and the texts of files and refusals."""

import errno
import json
import os
from dataclasses import replace
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import yaml
from mcap.reader import make_reader
from mcap.writer import Writer
from rosbags import interfaces as rosbag

from rlinf_core.core.errors import EpisodeError, SpoolError
from rlinf_core.episodes import checksums, read_episode
from rlinf_core.episodes.journal import Journal
from rlinf_core.episodes.messages import compress_image, offered_qos, typestore
from rlinf_core.episodes.names import order_of
from rlinf_core.episodes.ring import Message, Ring
from rlinf_core.episodes.spool import Spool, _size
from rlinf_core.episodes.storage import _text, kind_of
from rlinf_core.specs.topics import topic
from tests.messages import raw_messages, record, write_raw

S = 10**9


def message(at_ns, size=1, **times):
    return Message("/a/b", "kind", at_ns, bytes(size), **times)


# The ring
def test_times_of_a_message():
    plain = message(5)
    assert (plain.real_ns, plain.log_ns) == (5, 5)
    wall = message(5, wall_ns=7)
    assert (wall.real_ns, wall.log_ns) == (7, 7)
    simulated = message(5, wall_ns=7, simulated_ns=0)
    assert (simulated.real_ns, simulated.log_ns) == (7, 0)
    later = message(9, 3, wall_ns=10, simulated_ns=11).at_time_of(simulated)
    assert later == message(5, 3, wall_ns=7, simulated_ns=0)


def test_a_ring_is_full_above_its_bounds_and_not_at_them():
    ring = Ring(40)
    ring.add(message(0, 11))
    assert (len(ring), ring.bytes) == (0, 0), "more than a quarter"
    for number in range(4):
        ring.add(message(number, 10))
    assert (len(ring), ring.bytes) == (4, 40)
    ring.add(message(4, 1))
    assert ([one.at_ns for one in ring], ring.bytes) == ([1, 2, 3, 4], 31)
    assert [one.at_ns for one in ring.take_all()] == [1, 2, 3, 4]
    assert (len(ring), ring.bytes) == (0, 0)
    aged = Ring(40, seconds=2.0)
    for at_ns in (0, 2 * S, 2 * S + 1):
        aged.add(message(at_ns))
        assert len(aged) == 2 - (at_ns == 0)
    assert [one.at_ns for one in aged] == [2 * S, 2 * S + 1]
    aged.clear()
    assert (len(aged), aged.bytes) == (0, 0)
    few = Ring(40, max_messages=1)
    for at_ns in (0, 1):
        few.add(message(at_ns))
        assert [one.at_ns for one in few] == [at_ns]


# The journal
def test_a_journal_says_what_came_from_where(tmp_path):
    journal = Journal(tmp_path / "run" / "journal.jsonl")
    assert not journal.path.exists() and journal.ids() == []
    assert journal.content("a") is None and journal.station("a") == ""
    journal.close()
    journal.arrived("b", "left", "1f")
    journal.arrived("a", "", "2e")
    journal.arrived("b", "right", "3d")
    journal.taken("b", "online")
    journal.taken("c", "late")
    for one in (journal, Journal(journal.path)):
        assert one.ids() == ["b", "a"]
        assert (one.content("b"), one.station("b")) == ("1f", "left")
        assert (one.content("a"), one.station("a")) == ("2e", "")
        assert (one.content("c"), one.station("c")) == (None, "")
    rows = [json.loads(line) for line in journal.path.read_text().splitlines()]
    times = [row.pop("time") for row in rows]
    assert times == sorted(times) and abs(times[0] - os.stat(journal.path).st_mtime) < 60
    assert rows == [
        {"id": "b", "status": "arrived", "station": "left", "sha256": "1f"},
        {"id": "a", "status": "arrived", "station": "", "sha256": "2e"},
        {"id": "b", "status": "online"},
        {"id": "c", "status": "late"},
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"[1]",
        b'{"id": "a"}',
        b'{"status": "arrived"}',
        b"x" * 100,
        b'{"status": "arrived", "id": "a", "station": ""}',
    ],
)
def test_a_damaged_line_is_named(line, tmp_path):
    path = tmp_path / "journal.jsonl"
    good = b'{"id": "b", "status": "arrived", "station": "s", "sha256": "1"}\n'
    path.write_bytes(good + good + line + b"\n" + good)
    with pytest.raises(EpisodeError) as refused:
        Journal(path)
    assert str(refused.value) == (
        f"journal {path}: line 3: expected a JSON object with id and status, got {line[:80]!r}. "
        "Correct that line, or delete it and move its episode out of the inbox"
    )


def test_a_run_of_an_earlier_release_is_not_continued(tmp_path):
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "journal.sqlite").write_bytes(b"")
    with pytest.raises(EpisodeError) as refused:
        Journal(tmp_path / "journal.jsonl")
    older = tmp_path / "inbox" / "journal.sqlite"
    assert str(refused.value) == (
        f"journal {tmp_path / 'journal.jsonl'}: expected a run of this release, got {older}, "
        "written by an earlier release. Continue with that release, or begin another run (--out) "
        f"that trains on these episodes: collect.recordings=[{older.parent}]"
    )


# The seal
def folder_of(tmp_path, files):
    folder = tmp_path / "episode"
    folder.mkdir()
    for name, size in files.items():
        with (folder / name).open("wb") as file:
            file.truncate(size)
    return folder


def test_an_episode_has_so_many_files_of_so_many_bytes(tmp_path, monkeypatch):
    folder = folder_of(tmp_path, {f"f{number:02d}": 1 for number in range(16)})
    assert [file.name for file in checksums.episode_files(folder)] == [
        f"f{number:02d}" for number in range(16)
    ]
    (folder / "g").write_bytes(b"")
    with pytest.raises(EpisodeError) as refused:
        checksums.episode_files(folder)
    assert str(refused.value) == (
        f"episode {folder}: expected at most 16 plain files of 2048 MiB in total, got 17 of 0 MiB. "
        "It is not used for training"
    )
    (folder / "g").unlink()
    monkeypatch.setattr(checksums, "MAX_BYTES", 3 << 20)
    os.truncate(folder / "f00", (3 << 20) - 15)
    assert len(checksums.episode_files(folder)) == 16
    os.truncate(folder / "f00", (3 << 20) - 14)
    with pytest.raises(EpisodeError, match=r"plain files of 3 MiB in total, got 16 of 3 MiB\. It"):
        checksums.episode_files(folder)


@pytest.mark.parametrize("kind", ["folder", "link", "dot"])
def test_odd_files_of_an_episode_are_named(kind, tmp_path):
    folder = folder_of(tmp_path, {"a": 1, "b": 1})
    odd = folder / (".hidden" if kind == "dot" else "odd")
    if kind == "folder":
        odd.mkdir()
    elif kind == "link":
        odd.symlink_to(folder / "a")
    else:
        odd.write_text("")
    with pytest.raises(EpisodeError, match=f"got 3 of 0 MiB, '{odd.name}' among them. It is not"):
        checksums.episode_files(folder)
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(EpisodeError, match=r"\(a folder\), got something else"):
        checksums.episode_files(link)


@pytest.mark.parametrize(
    ("name", "plain"),
    [("a", True), ("_a", True), ("0.mcap", True), ("a" * 128, True), ("A-b+c=d.e_f", True)]
    + [("-a", False), (".a", False), ("=a", False), ("a/b", False), ("a:b", False)],
)
def test_names_of_files(name, plain):
    assert checksums.is_plain(name) is plain


def test_a_seal_lists_the_other_files_and_differences_are_named(tmp_path):
    folder = folder_of(tmp_path, {"b": 0, "a": 3})
    with pytest.raises(EpisodeError) as refused:
        checksums.verify(folder)
    assert str(refused.value) == (
        f"episode {folder}: expected a SHA256SUMS, which the recorder writes at the end, got none. "
        f"For an old recording that you trust: (cd {folder} && sha256sum * > SHA256SUMS)"
    )
    checksums.seal(folder)
    text = (folder / "SHA256SUMS").read_text()
    assert [line.split("  ")[1] for line in text.splitlines()] == ["a", "b"]
    assert checksums.verify(folder) == {
        line.split("  ")[1]: line.split("  ")[0] for line in text.splitlines()
    }
    checksums.seal(folder)
    assert (folder / "SHA256SUMS").read_text() == text, "not of itself"
    lines = text.splitlines(keepends=True)
    (folder / "SHA256SUMS").write_text("".join(reversed(lines)))
    checksums.verify(folder)
    for listed, names in (
        (text + lines[0], "SHA256SUMS"),
        (text.replace(lines[0][:8], "00000000"), "a"),
        (lines[1], "a"),
        ("", "a, b"),
        (text + "x", "SHA256SUMS"),
    ):
        (folder / "SHA256SUMS").write_text(listed)
        with pytest.raises(EpisodeError) as refused:
            checksums.verify(folder)
        assert str(refused.value) == (
            f"episode {folder}: expected an intact rosbag2 recording, got changed files: {names} "
            "does not fit SHA256SUMS. The recording was damaged or changed and is not used for "
            "training"
        )


def test_a_long_seal_is_cut_and_other_bytes_are_replaced(tmp_path):
    path = tmp_path / "SHA256SUMS"
    path.write_bytes(b"\xff" + b"a" * (1 << 14))
    assert checksums.read_sums(path) == "\ufffd" + "a" * ((1 << 14) - 1)


# The spool
def test_folders_of_a_spool_and_what_an_earlier_recorder_left_open(tmp_path):
    spool = Spool(tmp_path / "a" / "spool")
    assert sorted(path.name for path in spool.root.iterdir()) == [
        *("broken", "closed", "open", "refused", "sent"),
    ]
    assert (spool.min_free_mb, spool.keep_sent, spool.max_gb, spool.kind) == (
        *(200.0, 10_000, 20.0, "episode"),
    )
    for name in ("b", "a"):
        (spool.root / "open" / name).mkdir()
    (spool.root / "broken" / "a").mkdir()
    assert sorted(spool.recover()) == ["a", "b"] and spool.recover() == []
    assert sorted(path.name for path in (spool.root / "broken").iterdir()) == ["a", "a.2", "b"]
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolError) as refused:
        Spool(tmp_path / "file" / "spool")
    assert str(refused.value).startswith(
        f"spool {tmp_path / 'file' / 'spool'}: cannot be created: "
    )
    assert str(refused.value).endswith(". Choose another folder")


def test_a_spool_counts_the_bytes_of_all_but_sent_episodes(tmp_path):
    spool = Spool(tmp_path, max_gb=1e-6)
    assert spool.full() == 0.0
    for name in ("open", "closed", "broken", "refused", "sent"):
        (tmp_path / name / "file").write_bytes(bytes(100))
    assert spool.full() == pytest.approx(0.4)
    (tmp_path / "open" / "file").write_bytes(bytes(300))
    assert spool.full() == pytest.approx(0.6), "an open one grows"
    (tmp_path / "closed" / "file").unlink()
    assert spool.full() == pytest.approx(0.5)
    folder = tmp_path / "refused" / "b"
    folder.mkdir()
    (folder / "x").write_bytes(bytes(50))
    assert spool.full() == pytest.approx(0.55 + folder.lstat().st_size / 1000)
    assert spool.set_aside() == 1


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, "012"),  # 300 bytes of 350 fit
        ({"needed": 50}, "012"),
        ({"needed": 51}, "12"),
        ({"keep": 2}, "12"),
        ({"keep": 0}, ""),
        ({"keep": 9, "needed": 1000}, ""),
    ],
)
def test_the_oldest_are_forgotten_until_the_rest_fits(options, left, tmp_path):
    spool = Spool(tmp_path, max_gb=350e-9)
    for number in (12, 11, 10, 9, 8):  # by their numbers, not by their letters
        path = tmp_path / "sent" / f"a-20260101T000000-0000000a-{number}"
        path.mkdir()
        (path / "x").write_bytes(bytes(100))
    sizes = {path: 100 for path in (tmp_path / "sent").iterdir()}
    spool._sizes["sent"] = dict(sizes)  # without those of the folders themselves
    spool.forget("sent", **options)
    paths = sorted((tmp_path / "sent").iterdir(), key=order_of)
    assert "".join(path.name[-1] for path in paths) == left


def test_a_recording_in_mcap_has_crcs_topics_and_attachments(tmp_path, task):
    spool = Spool(tmp_path / "spool", min_free_mb=0)
    spool.attachments = lambda: {"specs.json": b"{}", "limits.yaml": b"a: 1", "other": b"\0"}
    writer = record(spool, task.spec)
    writer.note({"person": "é"})
    folder = writer.close()
    path = folder / f"{folder.name}.mcap"
    with path.open("rb") as file:
        reader = make_reader(file, validate_crcs=True)
        assert reader.get_header().profile == "ros2"
        attachments = {one.name: one for one in reader.iter_attachments()}
        summary = reader.get_summary()
        count = sum(1 for _ in reader.iter_messages())
    assert {name: (one.media_type, one.data) for name, one in attachments.items()} == {
        "specs.json": ("application/json", b"{}"),
        "limits.yaml": ("application/yaml", b"a: 1"),
        "other": ("application/octet-stream", b"\0"),
    }
    assert all(one.create_time == one.log_time > 1e18 for one in attachments.values())
    for channel in summary.channels.values():
        schema = summary.schemas[channel.schema_id]
        assert channel.message_encoding == "cdr" and schema.encoding == "ros2msg" and schema.data
        (qos,) = yaml.safe_load(channel.metadata["offered_qos_profiles"])
        assert qos["history"] == 1 and qos["depth"] > 0
    information = yaml.safe_load((folder / "metadata.yaml").read_text())
    information = information["rosbag2_bagfile_information"]
    assert information["message_count"] == count > 10
    assert information["relative_file_paths"] == [path.name]
    assert information["files"] == [
        {
            "path": path.name,
            "starting_time": information["starting_time"],
            "duration": information["duration"],
            "message_count": count,
        }
    ]
    assert information["storage_identifier"] == "mcap" and information["version"] == 8
    assert (information["compression_format"], information["compression_mode"]) == ("", "")
    assert information["custom_data"] == {"person": "é"}
    assert information["ros_distro"] == "rosbags"
    assert information["duration"]["nanoseconds"] > 0
    topics = {
        one["topic_metadata"]["name"]: one for one in information["topics_with_message_count"]
    }
    assert topics.keys() == {channel.topic for channel in summary.channels.values()}
    for one in topics.values():
        assert one["topic_metadata"]["serialization_format"] == "cdr" and one["message_count"]
        assert one["topic_metadata"]["type_description_hash"].startswith("RIHS01_")
    assert sum(one["message_count"] for one in topics.values()) == count
    assert kind_of(folder) == "episode" and kind_of(tmp_path) == "episode"


@pytest.mark.parametrize("kind", ["session", "fault"])
def test_a_recording_of_another_kind_says_so_at_its_beginning(kind, tmp_path, task):
    spool = Spool(tmp_path / "spool", min_free_mb=0, kind=kind)
    writer = record(spool, task.spec)
    assert kind_of(spool.root / "open" / writer.episode_id) == (
        "session" if kind == "session" else "episode"
    ), "each message of a session is written at once"
    folder = writer.close()
    assert kind_of(folder) == kind
    assert (
        yaml.safe_load((folder / "metadata.yaml").read_text())["rosbag2_bagfile_information"][
            "custom_data"
        ]
        is None
    )


def test_on_a_full_disk_the_oldest_sent_ones_go_first_and_only_as_many_as_it_takes(
    tmp_path, monkeypatch
):
    spool = Spool(tmp_path, min_free_mb=500.0)
    for number in (12, 11, 10, 9):
        (tmp_path / "sent" / f"a-20260101T000000-0000000a-{number}").mkdir()
    (tmp_path / "sent" / "a-20250101T000000-0000000a-99").write_text("a stray file")

    def usage(root):
        return SimpleNamespace(free=1e9 - 2e8 * len([*(tmp_path / "sent").iterdir()]))

    monkeypatch.setattr("rlinf_core.episodes.spool.shutil.disk_usage", usage)
    spool.open_episode("b").abort()
    left = sorted(path.name[-2:] for path in (tmp_path / "sent").iterdir())
    assert left == ["12", "99"], "exactly 600 MB are free"
    with pytest.raises(SpoolError) as refused:
        Spool(tmp_path, min_free_mb=900.0).open_episode("c")
    assert str(refused.value) == (
        f"spool {tmp_path}: expected at least 900 MB free, got 800 MB, and no sent episode is left "
        "to remove. Free disk space. Closed episodes are safe"
    )


# Messages
@pytest.mark.parametrize("name", ["label", "robot/fault", "timestep", "elsewhere", "/tf"])
def test_a_topic_is_offered_again_as_it_was(name):
    qos = offered_qos(name if name == "/tf" else f"/s/{name}")
    is_named = name not in ("elsewhere", "/tf")
    depth, latched = (topic(name).depth, topic(name).latched) if is_named else (10, False)
    never = rosbag.QosTime(0, 0)
    assert qos == rosbag.Qos(
        history=rosbag.QosHistory.KEEP_LAST,
        depth=depth,
        reliability=rosbag.QosReliability.RELIABLE,
        durability=rosbag.QosDurability.TRANSIENT_LOCAL
        if latched
        else rosbag.QosDurability.VOLATILE,
        deadline=never,
        lifespan=never,
        liveliness=rosbag.QosLiveliness.AUTOMATIC,
        liveliness_lease_duration=never,
        avoid_ros_namespace_conventions=False,
    )


def image(encoding="rgb8", step=18):
    types, store = typestore().types, typestore()
    header = types["std_msgs/msg/Header"](types["builtin_interfaces/msg/Time"](3, 4), "camera")
    pixels = np.full(4 * step, 200, np.uint8)
    picture = types["sensor_msgs/msg/Image"](header, 4, 6, encoding, 0, step, pixels)
    raw = bytes(store.serialize_cdr(picture, "sensor_msgs/msg/Image"))
    return Message("/s/camera/image", "sensor_msgs/msg/Image", 5, raw, 6, 7)


def test_a_sampled_picture_is_recorded_as_image_transport_compresses_it():
    stored = compress_image(image())
    assert (stored.topic, stored.kind) == (
        *("/s/camera/image/compressed", "sensor_msgs/msg/CompressedImage"),
    )
    assert (stored.at_ns, stored.wall_ns, stored.simulated_ns) == (5, 6, 7)
    picture = typestore().deserialize_cdr(stored.raw, stored.kind)
    assert picture.format == "rgb8; jpeg compressed bgr8"
    assert (picture.header.stamp.sec, picture.header.frame_id) == (3, "camera")
    pixels = cv2.imdecode(picture.data, cv2.IMREAD_COLOR)
    assert pixels.shape == (4, 6, 3) and (abs(pixels.astype(int) - 200) <= 2).all()
    for other in (image("mono8"), image(step=20), replace(image(), raw=b"broken")):
        assert compress_image(other) is other
    text = replace(image(), kind="std_msgs/msg/String")
    assert compress_image(text) is text


def test_metadata_keeps_its_order_and_its_letters():
    text = _text({"b": "für", "a": {"z": 1, "y": [1, 2]}})
    assert yaml.safe_load(text) == {"b": "für", "a": {"z": 1, "y": [1, 2]}}
    assert list(yaml.safe_load(text)) == ["b", "a"] and "für" in text and text == text.strip()


def test_pictures_are_stored_in_a_quality_of_90_per_cent():
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3)).astype(np.uint8)
    store = typestore()
    plain = image("bgr8")
    picture = store.deserialize_cdr(plain.raw, plain.kind)
    picture = replace(picture, data=pixels.ravel())
    stored = compress_image(replace(plain, raw=bytes(store.serialize_cdr(picture, plain.kind))))
    jpeg = store.deserialize_cdr(stored.raw, stored.kind).data
    _, expected = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 90])
    assert bytes(jpeg) == expected.tobytes()


def test_a_kind_stands_in_the_second_record_of_a_file_and_not_later(tmp_path):
    for count, kind in ((0, "session"), (1, "episode")):
        folder = tmp_path / str(count)
        folder.mkdir()
        with (folder / "a.mcap").open("wb") as file:
            writer = Writer(file)
            writer.start(profile="ros2", library="rlinf")
            for _ in range(count):
                writer.add_metadata("another", {"kind": "fault"})
            writer.add_metadata("rlinf", {"kind": "session"})
            writer.finish()
        assert kind_of(folder) == kind


# Reading
@pytest.fixture
def refusal(tmp_path, task):
    """Return why a recorded episode is refused, after the name of its folder."""

    def refuse(steps=5, leave=(), change=None, more=()):
        messages = raw_messages(task.spec, steps=steps, leave=leave, change=change)
        folder = write_raw(Spool(tmp_path / "spool"), "a-1", [*more, *messages]).close()
        with pytest.raises(EpisodeError) as refused:
            read_episode(folder)
        before, folder_text, after = str(refused.value).partition(f"episode {folder}: ")
        assert (before, bool(folder_text)) == ("", True)
        return after

    return refuse


UNFINISHED = (
    "expected time steps up to a LAST one and an ENDED event, got {} steps and {} ENDED events. "
    "It is unfinished and is not used for training"
)


def test_an_episode_that_is_not_over_is_unfinished(refusal):
    assert refusal(leave=("ended",)) == UNFINISHED.format(0, 0)


def test_an_end_without_time_steps_is_unfinished(refusal):
    def of_another(topic, number, message):
        if topic == "timestep":
            message.episode_id = "b-1"

    assert refusal(change=of_another) == UNFINISHED.format(0, 1)


def test_time_steps_without_a_last_one_are_unfinished(refusal):
    def goes_on(topic, number, message):
        if topic == "timestep":
            message.step_type = 1

    assert refusal(change=goes_on) == UNFINISHED.format(6, 1)


@pytest.mark.parametrize(
    "leave, change, reason",
    [
        (("timestep",), None, "0..5 without gaps, got [0, 1, 3, 4, 5]"),
        ((), lambda message: setattr(message, "steps", 4), "0..4 without gaps, got [0, 1, 2, 3, 4"),
        ((), lambda message: setattr(message, "steps", 6), "0..6 without gaps, got [0, 1, 2, 3, 4"),
    ],
)
def test_steps_that_were_lost_are_told_by_their_numbers(refusal, leave, change, reason):
    def changed(topic, number, message):
        if topic == "episode" and change is not None:
            change(message)

    text = refusal(leave=leave, change=changed)
    assert text.startswith(f"expected steps {reason}")
    assert text.endswith("]. Messages were lost while recording")


def test_a_single_time_step_is_no_episode(refusal):
    assert refusal(steps=0) == (
        "expected steps 0..0 without gaps, got [0]. Messages were lost while recording"
    )


def test_actions_of_two_sizes_are_refused(refusal):
    def longer(topic, number, message):
        if topic == "applied" and number == 2:
            message.executed = np.zeros(4)

    assert refusal(change=longer) == (
        "expected actions of one size, got [3, 4]. It is not used for training"
    )


def test_a_message_of_another_type_is_refused_by_topic_and_type(refusal):
    more = [("/station/applied", "std_msgs/msg/Bool", 0, b"\0\1\0\0\1")]
    assert refusal(more=more) == (
        "expected an intact rosbag2 recording, got: ValueError: '/station/applied' of type "
        "std_msgs/msg/Bool, not '/station/applied' of rlinf_msgs/msg/Applied. Leave it out of "
        "training, or keep its intact part with `rlinf data repair`"
    )


def test_an_episode_is_of_one_station(refusal, task):
    more = [
        (topic.replace("/station/", "/b/"), *rest) for topic, *rest in raw_messages(task.spec)[:1]
    ]
    assert "'/station/episode' of type rlinf_msgs/msg/EpisodeEvent, not '/b/episode' of " in (
        refusal(more=more)
    )


def test_messages_of_other_topics_are_passed_over(tmp_path, task):
    other = ("/station/label", "std_msgs/msg/Bool", 0, b"\0\1\0\0\1")
    messages = [other, *raw_messages(task.spec, steps=3)]
    assert len(read_episode(write_raw(Spool(tmp_path), "a-1", messages).close())) == 3


def test_messages_are_counted_and_those_that_begin_alike(tmp_path, task, monkeypatch):
    folder = record(Spool(tmp_path), task.spec, steps=5).close()
    monkeypatch.setattr("rlinf_core.episodes.read.MAX_MESSAGES", 6)
    assert len(read_episode(folder)) == 5, "six time steps"
    monkeypatch.setattr("rlinf_core.episodes.read.MAX_MESSAGES", 5)
    with pytest.raises(
        EpisodeError, match="more than 5 messages on '/station/timestep', or 4 that"
    ):
        read_episode(folder)
    monkeypatch.undo()
    monkeypatch.setattr("rlinf_core.episodes.read.LEADING_BYTES", 3)
    monkeypatch.setattr("rlinf_core.episodes.read.MAX_ALIKE", 6)
    assert len(read_episode(folder)) == 5
    monkeypatch.setattr("rlinf_core.episodes.read.MAX_ALIKE", 5)
    with pytest.raises(EpisodeError, match="or 5 that begin alike"):
        read_episode(folder)


def test_of_a_recording_the_last_end_counts_and_each_station_and_arm_is_named(tmp_path, task):
    first = raw_messages(task.spec, "a-1", steps=2)
    second = raw_messages(task.spec, "a-2", steps=3)
    episode = read_episode(write_raw(Spool(tmp_path), "both", [*first, *second]).close())
    assert (episode.id, len(episode)) == ("a-2", 3)
    assert (episode.station, episode.policy_version, episode.arms) == ("a", 4, ())
    assert (episode.spec_hash, episode.limits_hash) == (task.spec.hash, "beef")
    assert episode.instructions == ("do it",) * 4


def test_latents_and_pictures_have_the_types_of_a_policy(tmp_path, task):
    spec = task.with_images({"front": (4, 4)}).spec
    episode = read_episode(record(Spool(tmp_path), spec, steps=3, chunk=(2, 2)).close())
    assert episode.chunks is not None
    assert episode.chunks.latents(3).dtype == np.float32
    assert (episode.rewards.dtype, episode.discounts.dtype) == (np.float32, np.float32)
    assert episode.observations["front"].dtype == np.uint8


def test_actions_of_several_arms_are_read_with_the_limits_of_each(tmp_path, task):
    """Each arm applies a part of every action; both hashes count, in the order of the arms."""
    rows = []
    for topic_name, *rest in raw_messages(task.spec, steps=3):
        name = "/station/right/applied" if topic_name.endswith("/applied") else topic_name
        rows.append((name, *rest))

    def other(topic, number, message):
        if topic == "applied":
            message.limits_hash, message.executed = "cafe", np.array([0.0, 0.5, 0.0])

    for topic_name, *rest in raw_messages(task.spec, steps=3, change=other):
        if topic_name.endswith("/applied"):
            rows.append(("/station/left/applied", *rest))
    episode = read_episode(write_raw(Spool(tmp_path), "a-1", rows).close())
    assert episode.arms == ("left", "right") and episode.limits_hash == "cafe+beef"
    assert episode.executed[:, :2] == pytest.approx(np.array([[0.01, 0.5]] * 3))


def test_without_an_action_an_episode_has_none_and_no_commander(tmp_path, task):
    messages = raw_messages(task.spec, steps=3, leave=("applied",))
    episode = read_episode(write_raw(Spool(tmp_path), "a-1", messages).close())
    assert episode.executed.shape == episode.requested.shape == (3, 0)
    assert (episode.sources, episode.limits) == (("", "", ""), ((), (), ()))
    assert episode.limits_hash == ""


def test_actions_before_and_after_the_time_steps_do_not_count(tmp_path, task):
    """Those at its last time step neither, which nothing follows."""

    def moved(topic, number, message):
        if topic == "applied" and number in (0, 4):
            message.header.stamp.sec = 100 * (number == 4)
            message.header.stamp.nanosec = 0
        if topic == "applied" and number == 3:
            message.header.stamp.nanosec = 500_000_000
        if topic == "timestep":
            message.header.stamp.nanosec += 1000

    folder = record(Spool(tmp_path), task.spec, steps=5, change=moved).close()
    episode = read_episode(folder)
    # the last quarter of a time step is of the next one
    assert episode.sources == ("", "policy", "policy", "", "")
    assert episode.executed[:, 0].tolist() == pytest.approx([0, 0.01, 0.01, 0, 0])


def test_an_observation_has_one_name(refusal):
    def twice(topic, number, message):
        if topic == "timestep":
            message.vectors[1].name = message.vectors[0].name

    assert "the time steps do not all have the same observations" in refusal(change=twice)


@pytest.fixture
def plenty(monkeypatch):
    """A disk with 1000 MB."""
    monkeypatch.setattr(
        "rlinf_core.episodes.spool.shutil.disk_usage", lambda root: SimpleNamespace(free=1e9)
    )


def test_a_disk_with_exactly_the_room_that_is_asked_for_is_enough(tmp_path, plenty):
    (tmp_path / "sent" / "a").mkdir(parents=True)
    Spool(tmp_path, min_free_mb=1000.0).open_episode("b").abort()
    assert (tmp_path / "sent" / "a").is_dir()
    with pytest.raises(SpoolError, match="expected at least 1000 MB free, got 1000 MB"):
        Spool(tmp_path, min_free_mb=1000.0001).open_episode("c")


def test_bytes_of_a_spool_are_counted_in_gigabytes_of_ten_to_the_ninth(tmp_path):
    (tmp_path / "closed").mkdir()
    with (tmp_path / "closed" / "file").open("wb") as file:
        file.truncate(500_000_000)
    assert Spool(tmp_path, max_gb=1.0).full() == 0.5
    with pytest.raises(SpoolError) as refused:
        Spool(tmp_path, max_gb=0.5).open_episode("b")
    assert str(refused.value) == (
        f"spool {tmp_path}: expected episodes of less than 0.5 GB, got 0.5 GB. Nothing is recorded "
        "until some are sent. Check the connection to the trainer (rlinf status). Otherwise look "
        "in refused/ and broken/, or raise station.spool_gb. Closed episodes are safe"
    )


def test_of_a_long_id_the_beginning_is_shown(tmp_path):
    with pytest.raises(SpoolError) as refused:
        Spool(tmp_path).open_episode("a" * 201)
    assert f"no dot first, got '{'a' * 200}'. Give" in str(refused.value)
    (tmp_path / "closed" / "b").mkdir()
    with pytest.raises(SpoolError) as refused:
        Spool(tmp_path).open_episode("b")
    assert str(refused.value) == (
        f"spool {tmp_path}: expected a new episode, got b, which is in closed/ already. Ids must "
        "be unique"
    )


def test_an_episode_has_so_many_bytes_of_messages(tmp_path, monkeypatch):
    writer = Spool(tmp_path).open_episode("a")
    assert writer.bytes == 0
    monkeypatch.setattr("rlinf_core.episodes.spool.MAX_BYTES", 40 << 20)
    kind = "rlinf_msgs/msg/TimeStep"
    for _ in range(2):
        writer.write("/s/timestep", kind, 0, bytes(18 << 20))
    assert writer.bytes == 36 << 20
    with pytest.raises(SpoolError) as refused:
        writer.write("/s/timestep", kind, 0, bytes(3 << 20))
    assert str(refused.value) == (
        "episode a: expected messages of at most 64 MiB and 36 MiB in total, got 3 MiB on "
        "'/s/timestep', 39 MiB in total. Record smaller images or shorter episodes"
    )


def test_a_full_disk_is_told_with_the_folder_that_may_be_deleted(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    text = (
        f"spool {tmp_path}: No space left on device. Free the disk, e.g. delete {tmp_path}/sent. "
        "Closed episodes are safe"
    )
    spool = Spool(tmp_path)
    writer = spool.open_episode("a")
    with monkeypatch.context() as disk:
        disk.setattr(writer._bag, "write", full)
        with pytest.raises(SpoolError) as refused:
            writer.write("/s/timestep", "rlinf_msgs/msg/TimeStep", 0, b"x")
        assert str(refused.value) == text
        disk.setattr("rlinf_core.episodes.storage.CheckedWriter.open", full)
        with pytest.raises(SpoolError) as refused:
            spool.open_episode("b")
        assert str(refused.value) == text
        disk.setattr("rlinf_core.episodes.spool.shutil.disk_usage", full)
        with pytest.raises(SpoolError) as refused:
            spool.open_episode("c")
        assert str(refused.value) == text
        disk.setattr(writer._bag, "close", full)
        disk.setattr(writer._bag, "abort", full)
        writer.abort()
    assert [path.name for path in (tmp_path / "broken").iterdir()] == ["a"]


def test_what_is_gone_has_no_size_and_forgetting_it_fails_nothing(tmp_path):
    assert _size(tmp_path / "gone") == 0
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "stray").write_text("")
    spool = Spool(tmp_path)
    spool.forget("sent", keep=0)
    assert (tmp_path / "sent" / "stray").exists()
    spool.forget("sent")


def test_a_message_alone_has_no_duration(tmp_path):
    writer = Spool(tmp_path).open_episode("a")
    writer.write("/s/label", "std_msgs/msg/String", 7, b"\0\1\0\0\1\0\0\0\0")
    folder = writer.close()
    information = yaml.safe_load((folder / "metadata.yaml").read_text())
    information = information["rosbag2_bagfile_information"]
    assert information["starting_time"] == {"nanoseconds_since_epoch": 7}
    assert information["duration"] == {"nanoseconds": 0}


@pytest.mark.parametrize(
    ("metadata", "kind"),
    [
        ({"kind": "session"}, "session"),
        ({"kind": "session", "more": "x" * 70_000}, "episode"),
        ({"more": "x"}, "episode"),
    ],
)
def test_a_kind_stands_in_a_small_record(metadata, kind, tmp_path):
    with (tmp_path / "a.mcap").open("wb") as file:
        writer = Writer(file)
        writer.start(profile="ros2", library="rlinf")
        writer.add_metadata("rlinf", metadata)
        writer.finish()
    assert kind_of(tmp_path) == kind
