"""The recording of a session: its content, its size on the disk, and the loss at a kill."""

import signal
import subprocess
import sys

import numpy as np
import pytest
from mcap.reader import make_reader
from rosbags.rosbag2 import Reader

from rlinf_core.cli.main import main
from rlinf_core.data.episodes import intact_episodes
from rlinf_core.episodes import session as module
from rlinf_core.episodes.messages import typestore
from rlinf_core.episodes.ring import Message
from rlinf_core.episodes.session import Session, statements
from rlinf_core.episodes.spool import Spool
from rlinf_core.episodes.storage import kind_of
from rlinf_core.specs.topics import TOPICS, topic
from tests.messages import NS, record

EMPTY = {
    "state": 1,
    "source": "",
    "cause": "",
    "ticks": 0,
    "holds": 0,
    "refused": 0,
    "dropped": 0,
    "limited": 0,
    "limits_hash": "beef",
}


def message(name, at_s, kind=None, **fields):
    """Return a message of a topic at a time [s]."""
    store, kind = typestore(), kind or topic(name).type
    types = store.types
    if "header" in types[kind].__dataclass_fields__:
        fields["header"] = types["std_msgs/msg/Header"](
            types["builtin_interfaces/msg/Time"](int(at_s), 0), ""
        )
    return Message(
        name if name.startswith("/") else f"/s/{name}",
        kind,
        round(at_s * NS),
        bytes(store.serialize_cdr(types[kind](**fields), kind)),
    )


def diagnostics(at_s, level, text, name="s/camera"):
    types = typestore().types
    values = [types["diagnostic_msgs/msg/KeyValue"]("age_s", str(at_s))]
    status = types["diagnostic_msgs/msg/DiagnosticStatus"](level, name, text, "", values)
    return message("/diagnostics", at_s, "diagnostic_msgs/msg/DiagnosticArray", status=[status])


@pytest.fixture
def troubles():
    return []


@pytest.fixture
def session(tmp_path, troubles):
    return Session(
        tmp_path / "run/sessions", "s", 1.0, lambda: {"recipe.yaml": b"name: x"}, troubles.append
    )


def closed_messages(root):
    """(topic, seconds) of all that is closed, in order."""
    rows = []
    for folder in sorted((root / "closed").iterdir()):
        with Reader(folder) as reader:
            rows += [
                (connection.topic, at_ns / NS, raw) for connection, at_ns, raw in reader.messages()
            ]
    return rows


def test_what_is_said_again_is_kept_when_it_changes_and_every_ten_seconds(session):
    for tenth in range(250):
        at = 100 + tenth / 10
        held = 13.0 <= tenth / 10 < 15.0
        session.take(
            "safety",
            message(
                "safety",
                at,
                **EMPTY
                | {"ticks": tenth, "state": 3 if held else 1, "cause": "stale" if held else ""},
            ),
        )
        session.take("estop/pendant", message("estop/pendant", at, data=bool(tenth == 50)))
        session.take("/diagnostics", diagnostics(at, int(held), "late" if held else "fine"))
        session.take("/diagnostics", diagnostics(at, 0, "another", "s/page"))
    for word in ("success", "success"):
        session.take("label", message("label", 125, data=word))
    session.close()
    rows = closed_messages(session.root)
    times = {
        name: [at - 100 for topic, at, _ in rows if topic == name]
        for name in {row[0] for row in rows}
    }
    assert times["/s/safety"] == pytest.approx([0, 10, 13, 15])
    assert times["/s/estop/pendant"] == pytest.approx([0, 5, 5.1, 15.1])
    assert times["/diagnostics"] == pytest.approx([0, 0, 10, 10, 13, 15, 20], abs=0.01), (
        "of each who says it"
    )
    assert times["/s/label"] == pytest.approx([25, 25]), "each word of a person counts"


def test_what_is_said_twice_at_one_time_is_kept_once(session):
    for at_s in (5, 5, 14, 15, 4):
        session.take("safety", message("safety", at_s, **EMPTY))
    session.close()
    assert [at for _, at, _ in closed_messages(session.root)] == [4, 5, 15], (
        "the clock was set back"
    )


def test_parts_tell_of_themselves_are_sealed_and_the_oldest_go(session, monkeypatch, troubles):
    session.max_gb, session.part_bytes = 100_000 / 1e9, 20_000
    session.take("robot/fault", message("robot/fault", 1, data="reflex"))
    for number in range(3000):
        session.take("label", message("label", 2 + number, data=f"{number:>100}"))
    session.close()
    folders = sorted((session.root / "closed").iterdir())
    assert 2 <= len(folders) < session.parts and not troubles
    assert sum(file.stat().st_size for folder in folders for file in folder.iterdir()) < 100_000
    assert main(["data", "check", str(session.root)]) == 0
    for folder in folders:
        with Reader(folder) as reader:
            first, at_ns, raw = next(reader.messages())
            assert first.topic == "/s/robot/fault" and at_ns > 1000 * NS
            assert typestore().deserialize_cdr(raw, first.msgtype).data == "reflex", (
                "though it was said once, long ago"
            )
    assert closed_messages(session.root)[-1][1] == 3001, "the newest is there"
    with next(folders[-1].glob("*.mcap")).open("rb") as file:
        assert [
            read_attachment.data
            for read_attachment in make_reader(file, validate_crcs=True).iter_attachments()
        ] == [b"name: x"]


def test_the_next_part_begins_after_an_hour(session, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    for minutes in (0, 30, 59, 61, 62):
        now[0] = 1000.0 + 60 * minutes
        session.take("label", message("label", now[0], data="ready"))
    session.close()
    assert session.parts == 2 and [at for _, at, _ in closed_messages(session.root)] == [
        1000 + 60 * m for m in (0, 30, 59, 61, 62)
    ]


KILLED = """
import os, signal
from pathlib import Path
from rlinf_core.episodes.session import Session
from tests.episodes.test_session import message
session = Session(Path({root!r}), "s", 1.0, dict, print)
for number in range(50):
    session.take("label", message("label", number, data=str(number)))
os.kill(os.getpid(), signal.SIGKILL)"""


def test_of_a_session_that_was_killed_every_message_is_there(tmp_path, capsys, troubles):
    root = tmp_path / "run/sessions"
    ended = subprocess.run([sys.executable, "-c", KILLED.format(root=str(root))], check=False)
    assert ended.returncode == -signal.SIGKILL
    (cut,) = (root / "open").iterdir()
    before = next(cut.glob("*.mcap")).read_bytes()
    assert kind_of(cut) == "session" and main(["data", "check", str(root)]) == 1
    assert main(["data", "repair", str(root), "--out", str(tmp_path / "new")]) == 0
    assert "50 messages kept; a session, sealed" in capsys.readouterr().out
    assert next(cut.glob("*.mcap")).read_bytes() == before, "what is read is not changed"
    assert main(["data", "check", str(tmp_path / "new")]) == 0
    assert main(["data", "list", str(tmp_path / "new")]) == 0
    assert "0 episodes, 0 succeeded, 0 steps, 1 of a session; 1 sealed" in capsys.readouterr().out
    with next((tmp_path / "new" / cut.name).glob("*.mcap")).open("rb") as file:
        assert len(list(make_reader(file, validate_crcs=True).iter_messages())) == 50
    again = Session(root, "s", 1.0, dict, troubles.append)
    again.take("label", message("label", 60, data="ready"))
    again.close()
    assert [path.name for path in (root / "broken").iterdir()] == [cut.name] and not troubles
    assert len(list((root / "closed").iterdir())) == 1


@pytest.mark.parametrize("place, count", [(b"std_msgs/msg/String", 20), (b"/s/estop/pendant", 40)])
def test_messages_whose_topic_nothing_describes_any_more_are_counted_as_lost(
    place, count, session, tmp_path, capsys
):
    """Each topic is described once, before its first message; two are of one type, which is
    described once, too.
    """
    for number in range(20):
        for name, content in (
            ("label", str(number)),
            ("prompt", str(number)),
            ("estop/pendant", bool(number % 2)),
        ):
            session.take(name, message(name, number, data=content))
    # as a recorder that is killed leaves it: nothing at its end says it again
    (cut,) = (session.root / "open").iterdir()
    file = next(cut.glob("*.mcap"))
    read = bytearray(file.read_bytes())
    read[read.index(place)] ^= 1
    file.write_bytes(read)
    assert main(["data", "repair", str(session.root), "--out", str(tmp_path / "new")]) == 1
    out = capsys.readouterr().out
    assert (
        f"{count} messages kept; lost: a chunk of " in out
        and "; the intact part of a session, sealed" in out
    )
    assert (
        f"; {59 - count} messages of topics without a description; " in out
        and "0 of 1 are repaired" in out
    )
    assert main(["data", "check", str(tmp_path / "new")]) == 0, (
        "of what is left, nothing has been changed"
    )


def test_bytes_lost_in_the_middle_cost_what_they_hit(session, tmp_path, capsys):
    for number in range(50):
        session.take("label", message("label", number, data=str(number)))
    session.close()
    (folder,) = (session.root / "closed").iterdir()
    file = next(folder.glob("*.mcap"))
    read = bytearray(file.read_bytes())
    read[len(read) // 3] ^= 1
    file.write_bytes(read)
    assert (
        main(["data", "check", str(folder)]) == 1
        and "does not fit SHA256SUMS" in capsys.readouterr().out
    )
    main(["data", "repair", str(folder), "--out", str(tmp_path / "new")])
    assert int(capsys.readouterr().out.split(" messages kept")[0].split()[-1]) >= 49


def test_a_disk_that_refuses_is_told_and_it_goes_on_once_it_takes_it(
    tmp_path, troubles, monkeypatch
):
    (tmp_path / "sessions").write_text("a file")
    session = Session(tmp_path / "sessions", "s", 1.0, dict, troubles.append)
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    session.take("prompt", message("prompt", 0, data="set the scene"))
    for _ in range(20):
        session.take("label", message("label", 1, data="ready"))
    assert len(troubles) == 1 and "cannot be created" in str(troubles[0])
    (tmp_path / "sessions").unlink()
    now[0] += module.RETRY_S + 0.1
    session.take("label", message("label", 2, data="success"))
    session.close()
    assert [(name, at) for name, at, _ in closed_messages(session.root)] == [
        ("/s/prompt", 2),
        ("/s/label", 2),
    ]


def test_a_folder_that_is_taken_away_ends_nothing(session, troubles, monkeypatch, tmp_path):
    session.take("label", message("label", 1, data="ready"))
    (tmp_path / "run").rename(tmp_path / "gone")
    session.part_bytes = 1
    session.take("label", message("label", 2, data="ready"))
    assert len(troubles) == 1
    monkeypatch.setattr(module.time, "monotonic", lambda: 1e12)
    session.take("label", message("label", 3, data="ready"))
    session.close()
    assert len(troubles) == 1 and [at for _, at, _ in closed_messages(session.root)] == [3]


@pytest.mark.parametrize("max_gb, part_bytes", [(0.04, 10_000_000), (1.0, 16 * 2**20)])
def test_a_part_is_a_quarter_of_the_session_and_16_mib_at_most(max_gb, part_bytes, tmp_path):
    assert Session(tmp_path, "s", max_gb, dict, print).part_bytes == part_bytes


def test_none_is_recorded_where_it_may_take_nothing(tmp_path, troubles):
    session = Session(tmp_path / "sessions", "s", 0.0, dict, troubles.append)
    session.take("label", message("label", 1, data="ready"))
    session.close()
    assert not (tmp_path / "sessions").exists() and not troubles


def test_what_cannot_be_read_is_kept_as_it_came(session):
    for name, kind in (
        ("safety", topic("safety").type),
        ("/diagnostics", "diagnostic_msgs/msg/DiagnosticArray"),
    ):
        session.take(name, Message(name, kind, NS, b"\0\1\0\0nonsense"))
    session.close()
    assert [raw for *_, raw in closed_messages(session.root)] == [b"\0\1\0\0nonsense"] * 2


def test_a_list_knows_it_a_look_tells_what_happened_and_episodes_are_taken_without_it(
    session, task, tmp_path, capsys
):
    for at, state, cause in (
        (1, 0, ""),
        (2, 1, ""),
        (3, 4, "estop:pendant"),
        (4, 4, "estop:pendant"),
    ):
        session.take("safety", message("safety", at, **EMPTY | {"state": state, "cause": cause}))
    session.take("label", message("label", 5, data="rerecord"))
    session.take("/diagnostics", diagnostics(6, 1, "no images"))
    types = typestore().types
    empty = [np.empty(0, kind) for kind in (np.uint8, bool, np.int64, np.float64)]
    value = types["rcl_interfaces/msg/ParameterValue"](
        4, False, 0, 0.0, "to the red mark", *empty, []
    )
    session.take(
        "/parameter_events",
        message(
            "/parameter_events",
            7,
            "rcl_interfaces/msg/ParameterEvent",
            stamp=types["builtin_interfaces/msg/Time"](7, 0),
            node="/s/environment",
            new_parameters=[],
            deleted_parameters=[],
            changed_parameters=[types["rcl_interfaces/msg/Parameter"]("instruction", value)],
        ),
    )
    session.close()
    (folder,) = (session.root / "closed").iterdir()
    record(Spool(tmp_path / "run/spool", min_free_mb=0), task.spec, "a-1").close()
    assert main(["data", "list", str(tmp_path / "run")]) == 0
    assert "1 episodes, 1 succeeded, 5 steps, 1 of a session; 2 sealed" in capsys.readouterr().out
    assert main(["show", str(folder)]) == 0
    out = capsys.readouterr().out
    assert out.count("/s/safety: FAULT estop:pendant") == 1 and '/s/label: "rerecord"' in out
    assert (
        "s/camera: WARN no images" in out and "/s/environment instruction: to the red mark" in out
    )
    assert out.index("DISARMED") < out.index("FAULT") < out.index("rerecord")
    assert [name.name for name, _ in intact_episodes([tmp_path / "run"])] == ["a-1"]
    assert main(["data", "merge", str(tmp_path / "run"), "--out", str(tmp_path / "all")]) == 0


def test_the_fields_by_which_a_topic_says_something_new_are_its_own():
    rows = [row for row in TOPICS if row.session is not None]
    assert {
        "safety",
        "safety/events",
        "label",
        "prompt",
        "enable",
        "estop/<name>",
        "robot/fault",
        "episode",
    } <= {row.name for row in rows}
    for row in rows:
        assert set(row.session) <= set(typestore().types[row.type].__dataclass_fields__), row.name
        assert not row.type.endswith("/Image")


def test_parts_have_the_name_of_the_station_and_a_number(session):
    for _ in range(2):
        session.take("label", message("label", 1, data="ready"))
        session._end()
    names = [path.name for path in sorted((session.root / "closed").iterdir())]
    assert [name.rpartition("-")[2] for name in names] == ["001", "002"]
    assert all(name.startswith("s-session-20") for name in names)


def test_a_closed_session_records_nothing_more(session):
    session.take("label", message("label", 1, data="ready"))
    session.close()
    session.take("label", message("label", 2, data="ready"))
    session.close()
    assert session.is_closed is True and session.parts == 1
    assert [at for _, at, _ in closed_messages(session.root)] == [1]


def test_a_part_ends_at_its_size_and_at_its_hour(session, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    word = message("label", 1, data="ready")
    session.part_bytes = 2 * len(word.raw)
    for _ in range(2):
        session.take("label", word)
    assert session.parts == 1 and session._writer is None, "it begins at a time of 0, too"
    session.part_bytes = 1 << 20
    session.take("label", word)
    now[0] = 3599.9
    session.take("label", word)
    assert session._writer is not None
    now[0] = 3600.0
    session.take("label", word)
    assert session.parts == 2 and session._writer is None
    session.take("label", word)
    assert session.parts == 3


def test_a_disk_is_tried_again_after_ten_seconds(session, troubles, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])

    def full(*_):
        raise OSError("full")

    word = message("label", 1, data="ready")
    session.take("label", word)
    with monkeypatch.context() as disk:
        disk.setattr(session, "_take", full)
        session.take("label", word)
    assert [str(error) for error in troubles] == ["full"]
    assert [path.name[:9] for path in (session.root / "broken").iterdir()] == ["s-session"]
    now[0] = 9.9
    session.take("label", word)
    assert session.parts == 1
    now[0] = 10.0
    session.take("label", word)
    assert session.parts == 2


def test_a_disk_that_fails_at_the_end_of_a_session_is_told(session, troubles, monkeypatch):
    def fails():
        raise OSError("the disk is gone")

    session.take("label", message("label", 1, data="ready"))
    monkeypatch.setattr(session, "_end", fails)
    session.close()
    assert [str(error) for error in troubles] == ["the disk is gone"]


def test_broken_parts_give_way_to_a_new_one_too(session):
    for folder, name in (("broken", "s-session-20200101T000000-001"), ("closed", "b")):
        path = session.root / folder / name
        path.mkdir(parents=True)
        (path / "x").write_bytes(bytes(1000))
    session.max_gb, session.part_bytes = 5e-6, 5000  # the folders have some bytes, too
    session.take("label", message("label", 1, data="ready"))
    assert not any((session.root / "broken").iterdir())
    assert not (session.root / "closed/b").exists()


def test_what_a_topic_says_has_no_publisher_but_in_diagnostics():
    assert list(statements("label", message("label", 1, data="ready"))) == [("", None)]
    held = message("estop/pendant", 1, data=True)
    assert list(statements("estop/pendant", held)) == [("", (True,))]
    late = diagnostics(1, 2, "late")
    assert list(statements("/diagnostics", late)) == [("s/camera", (2, "late"))]
    broken = Message("/diagnostics", late.kind, NS, b"\0\1\0\0nonsense")
    assert list(statements("/diagnostics", broken)) == [("", None)]
