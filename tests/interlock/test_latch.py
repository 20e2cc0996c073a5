"""S14 across the users of a machine: a robot that was left armed starts latched, whoever
starts it.
"""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rlinf_core.core.errors import RlinfError
from rlinf_core.core.machine import acquire
from rlinf_core.interlock import latch as latching
from rlinf_core.interlock.latch import ROBOT, Latch, exclusive_command, lock_name

ALICE, BOB = 12345, 12346
AS_ANOTHER = (
    "import os, sys\nfrom pathlib import Path\nfrom rlinf_core.interlock import latch\n"
    "latch.FOLDERS = tuple(map(Path, sys.argv[4].split(':')))\n"
    "os.setgroups([])\nos.setgid(int(sys.argv[1]))\nos.setuid(int(sys.argv[1]))\n"
    "one = latch.Latch(sys.argv[2])\n"
    "print(one.write(sys.argv[3]) if sys.argv[3] else one.latch_reason())"
)
root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as other users")


@pytest.fixture
def shared(monkeypatch):
    """Provide a folder of root's that is open to all, as /var/tmp is."""
    folder = Path(tempfile.mkdtemp(prefix="rlinf-latches-"))
    folder.chmod(0o1777)
    monkeypatch.setattr(latching, "FOLDERS", (Path("/nonexistent/rlinf"), folder))
    monkeypatch.setenv("ROS_DOMAIN_ID", "7")
    monkeypatch.setenv("HOME", str(folder / "home"))
    yield folder
    shutil.rmtree(folder)


def robot(name="arm", domain=None, monkeypatch=None):
    if domain is not None:
        monkeypatch.setenv("ROS_DOMAIN_ID", str(domain))
    return Latch(f"{ROBOT}{name}")


def by(uid, folder, note="", name="arm"):
    """Return the answer to a user's request."""
    ran = subprocess.run(
        [sys.executable, "-c", AS_ANOTHER, str(uid), f"{ROBOT}{name}", note, str(folder)],
        text=True,
        capture_output=True,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def record(folder, uid, name="arm", domain=7):
    return folder / f"rlinf-latch.{name}.{domain}.{uid}"


def test_s14_nothing_is_latched_where_nobody_was_armed(shared):
    assert robot().latch_reason() == Latch("").latch_reason() == ""
    assert Latch("").write("ARMED") == "" and list(shared.iterdir()) == []


def test_s14_an_armed_robot_is_latched_until_it_was_disarmed(shared):
    for mode, latched in (("ARMED", True), ("DISARMED", False), ("ARMED", True)):
        assert robot().write(mode) == "" and bool(robot().latch_reason()) is latched
    assert robot("other").latch_reason() == ""
    why = robot().latch_reason()
    assert (
        str(record(shared, os.geteuid())) in why
        and "in ROS_DOMAIN_ID 7, was not disarmed at its end" in why
    )


def test_s14_a_record_is_readable_for_all_whatever_the_umask_is_and_writable_for_none(shared):
    before = os.umask(0o077)
    try:
        robot().write("ARMED")
    finally:
        os.umask(before)
    files = list(shared.iterdir())
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o644]


@root
def test_s14_another_user_meets_the_latch_and_ends_it(shared):
    assert by(ALICE, shared, "ARMED") == ""
    assert f"{record(shared, ALICE)}: the previous interlock, of uid {ALICE} in ROS" in by(
        BOB, shared
    )
    assert by(BOB, shared, "ARMED") == by(BOB, shared, "DISARMED") == ""
    assert by(ALICE, shared) == by(BOB, shared) == robot().latch_reason() == "", (
        "the newest record counts"
    )
    assert by(ALICE, shared, "ARMED") == "" and f"of uid {ALICE}" in by(BOB, shared)
    assert by(ALICE, shared, "DISARMED") == by(BOB, shared) == ""


@root
def test_s14_nobody_writes_or_removes_the_record_of_another_user(shared):
    by(ALICE, shared, "ARMED")
    code = (
        f"import os\nos.setuid({BOB})\nfor do in (os.unlink, lambda path: open(path, 'w')):\n"
        "    try: do(__import__('sys').argv[1])\n    except PermissionError: print('no')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, record(shared, ALICE)], text=True, capture_output=True
    )
    assert ran.stdout.split() == ["no", "no"], ran.stderr


@root
def test_s14_a_record_that_another_user_made_in_ones_name_refuses_the_arming(shared):
    taken = record(shared, ALICE)
    taken.write_text("DISARMED 9\n")
    os.chown(taken, BOB, BOB)
    assert "cannot be written: Operation not permitted. A stop would not survive" in by(
        ALICE, shared, "ARMED"
    )
    assert taken.read_text() == "DISARMED 9\n" and len(list(shared.iterdir())) == 1, (
        "nothing is left behind"
    )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"ARMED DISARMED",
        b"DISARMED 1 2",
        b"DISARMED -1",
        b"disarmed 1",
        b"DISARMED " + b"9" * 16,
        b"DISARMED 1" + b" " * 5000,
        b"DISARMED\x00",
    ],
)
def test_s14_an_unreadable_record_latches_and_is_named(shared, content):
    record(shared, ALICE).write_bytes(content)
    why = robot().latch_reason()
    assert f"{record(shared, ALICE)}: expected DISARMED or ARMED and a number, got" in why
    assert "It counts as armed" in why and "remove that file" in why
    robot().write("DISARMED")
    assert robot().latch_reason() == why, "also once another record is newer"
    record(shared, ALICE).unlink()
    assert robot().latch_reason() == ""


@pytest.mark.parametrize("kind", ["link", "dangling", "folder", "pipe"])
def test_s14_no_link_is_followed_and_nothing_is_waited_for(shared, tmp_path, kind):
    path, target = record(shared, ALICE), tmp_path / "target"
    if kind == "link":
        target.write_text("DISARMED 9")
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path)}.get(
        kind, lambda: path.symlink_to(target)
    )()
    assert str(path) in robot().latch_reason()
    os.rename(path, record_file := record(shared, os.geteuid()))
    noted = robot().write("ARMED")
    assert ("cannot be written" in noted) is (kind == "folder")
    assert target.exists() is (kind == "link") and (
        kind != "link" or target.read_text() == "DISARMED 9"
    )
    assert kind == "folder" or (
        record_file.read_text() == "ARMED 1\n" and not record_file.is_symlink()
    )


def test_s14_a_robot_that_is_restarted_in_another_domain_meets_its_latch(shared, monkeypatch):
    assert robot(domain=7, monkeypatch=monkeypatch).write("ARMED") == ""
    other = robot(domain=8, monkeypatch=monkeypatch)
    assert "in ROS_DOMAIN_ID 7" in other.latch_reason()
    other.write("ARMED"), other.write("DISARMED")
    assert robot(domain=8, monkeypatch=monkeypatch).latch_reason() == ""
    assert "in ROS_DOMAIN_ID 7" in robot(domain=7, monkeypatch=monkeypatch).latch_reason()


@pytest.mark.parametrize("domain", [0, 1, 7])
def test_s14_a_robot_that_runs_in_another_domain_latches_none(shared, monkeypatch, domain):
    """Another robot's interlock runs there."""
    robot("b/left", domain=domain, monkeypatch=monkeypatch).write("ARMED")
    with acquire(f"interlock/{domain}/b/left"):
        assert robot("b/left", domain=8, monkeypatch=monkeypatch).latch_reason() == ""
        assert robot("b/left", domain=domain, monkeypatch=monkeypatch).latch_reason(), (
            "its own lock says nothing"
        )
    assert robot("b/left", domain=8, monkeypatch=monkeypatch).latch_reason()


def test_s14_the_latch_of_an_earlier_version_is_met_once(shared):
    before = shared / "home/.ros/rlinf/station_a.left.interlock"
    before.parent.mkdir(parents=True)
    before.write_text("ARMED")
    assert str(before) in robot("station_a/left").latch_reason()
    robot("station_a/left").write("DISARMED")
    assert robot("station_a/left").latch_reason() == ""
    before.write_bytes(b"\xff")
    assert str(before) in robot("station_a/left").latch_reason()


def test_s14_records_in_both_folders_count(shared, monkeypatch, tmp_path):
    robot().write("ARMED")
    first = tmp_path / "first"
    first.mkdir()
    monkeypatch.setattr(latching, "FOLDERS", (first, shared))
    assert str(record(shared, os.geteuid())) in robot().latch_reason()
    robot().write("DISARMED")
    assert (
        record(first, os.geteuid()).read_text() == "DISARMED 2\n" and robot().latch_reason() == ""
    )


@root
@pytest.mark.parametrize(
    "owner, mode, got",
    [
        (BOB, 0o1777, f"one of uid {BOB}"),
        (0, 0o777, "a folder in which users may remove the files of others"),
        (0, 0o775, "a folder in which users may remove"),
        (0, 0o1777, ""),
        (0, 0o755, ""),
        (0, 0o3775, ""),
    ],
)
def test_s14_a_folder_in_which_others_can_remove_a_latch_is_refused(shared, owner, mode, got):
    shared.chmod(mode)
    os.chown(shared, owner, owner)
    why, refused = robot().latch_reason(), robot().write("ARMED")
    if not got:
        assert why == refused == ""
        return
    assert (
        f"{shared}: expected a folder of root's with the sticky bit" in why and f"got {got}" in why
    )
    assert "It counts as armed" in why and "Run: sudo chown root" in why and got in refused


@root
@pytest.mark.parametrize("owner", [0, BOB])
def test_s14_a_link_in_the_folders_place_is_followed_where_root_made_it(
    shared, monkeypatch, tmp_path, owner
):
    link = tmp_path / "link"
    link.symlink_to(shared)
    os.chown(link, owner, owner, follow_symlinks=False)
    monkeypatch.setattr(latching, "FOLDERS", (link,))
    assert ("got a link or a file of" in robot().latch_reason()) is bool(owner)
    refused = robot().write("ARMED")
    assert ("got a link or a file of" in refused) is bool(owner)
    remedy = "Inspect and remove it. Then sudo install -d -m 1777 /var/lib/rlinf"
    assert (remedy in refused) is bool(owner)


@root
def test_s14_where_no_folder_can_be_written_the_arming_is_refused_with_a_remedy(shared):
    shared.chmod(0o755)
    refused = by(ALICE, shared, "ARMED")
    assert f"expected {shared}, writable for uid {ALICE}" in refused
    assert "sudo install -d -m 1777 /var/lib/rlinf" in refused
    assert by(ALICE, "/nonexistent/a:/nonexistent/b", "ARMED").startswith(
        "latch_file cannot be written: expected"
    )
    shared.chmod(0o700)
    assert "Permission denied" in by(ALICE, shared) and str(shared) in by(ALICE, shared), (
        "nor read: latched"
    )


def test_s14_folders_that_cannot_be_written_are_all_named(shared, monkeypatch):
    monkeypatch.setattr(latching.os, "access", lambda folder, mode: False)
    user = latching.user_name(os.geteuid())
    assert f"expected /nonexistent/rlinf or {shared}, writable for {user}" in robot().write("ARMED")


def test_s14_a_record_needs_a_folder_to_write_and_to_search(shared, monkeypatch):
    expected_mode = os.W_OK | os.X_OK
    monkeypatch.setattr(latching.os, "access", lambda folder, mode: mode == expected_mode)
    assert robot().write("ARMED") == "" and record(shared, os.geteuid()).exists()


def test_s14_a_full_disk_refuses_and_leaves_nothing(shared, monkeypatch):
    temporaries = []

    def full(temporary, path):
        temporaries.append((temporary.name[:13], temporary.parent))
        if len(temporaries) == 2:
            temporary.unlink()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(latching, "publish_file", full)
    path = record(shared, os.geteuid())
    for _ in range(2):
        assert (
            robot()
            .write("ARMED")
            .startswith(
                f"latch_file {path} cannot be written: No space left on device. A stop would not"
            )
        )
        assert list(shared.iterdir()) == []
    assert temporaries == [(".rlinf-latch.", shared)] * 2, "no name of a record"


def test_s14_the_latch_of_a_user_without_a_home_is_the_shared_one(shared, monkeypatch):
    def none():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    assert robot().latch_reason() == "" == robot().write("ARMED")
    assert str(record(shared, os.geteuid())) in robot().latch_reason()


@pytest.mark.parametrize(
    "content, mode, number, trouble",
    [
        (b"ARMED", "ARMED", 0, ""),
        (b"DISARMED 7\n", "DISARMED", 7, ""),
        (b"OFF", "", 0, "b'OFF', of "),
        (None, "", 0, "a link, of "),
    ],
)
def test_a_record_holds_mode_number_and_domain_or_the_trouble_with_its_owner(
    tmp_path, content, mode, number, trouble
):
    path = tmp_path / "latch"
    path.write_bytes(content) if content is not None else path.symlink_to(tmp_path)
    record = latching._read(path, 7)
    assert (record.path, record.mode, record.number, record.domain) == (path, mode, number, 7)
    owner = latching.user_name(os.geteuid())
    assert record.error == (f"{trouble}{owner}" if trouble else "")
    assert latching._read(path).domain == -1


def test_the_reason_of_a_file_of_ones_own_names_no_domain(tmp_path):
    (tmp_path / "latch").write_text("ARMED")
    reason = Latch(str(tmp_path / "latch")).latch_reason()
    assert reason == (
        f"{tmp_path}/latch: the previous interlock, of {latching.user_name(os.geteuid())}, was not "
        "disarmed at its end"
    )


def test_only_the_latch_of_a_robot_has_a_domain(tmp_path, shared, monkeypatch):
    """A file of one's own holds for whatever domain the shell names, also for none that exists."""
    path = str(tmp_path / "latch")
    assert [Latch(place).domain for place in ("", path, f"{ROBOT}arm")] == [-1, -1, 7]
    monkeypatch.setenv("ROS_DOMAIN_ID", "seven")
    assert Latch(path).write("ARMED") == "" and path in Latch(path).latch_reason()
    with pytest.raises(RlinfError, match="expected a number from 0 to"):
        robot()


@pytest.mark.parametrize(
    "content, latched", [(b"DISARMED", False), (b"ARMED", True), (b"\xff\xfe", True), (b"", True)]
)
def test_s14_a_file_of_ones_own_is_a_latch_too(tmp_path, content, latched):
    path = tmp_path / "memory/latch"
    assert Latch(str(path)).latch_reason() == ""
    path.parent.mkdir()
    path.write_bytes(content)
    assert (str(path) in Latch(str(path)).latch_reason()) is latched
    assert Latch(str(path)).write("ARMED") == "" and path.read_text() == "ARMED"
    further = tmp_path / "one/more/latch"
    assert Latch(str(further)).write("DISARMED") == "" and further.read_text() == "DISARMED"


def test_the_reason_names_any_domain_that_a_record_has(shared, monkeypatch):
    of_people = 0  # nothing here starts ROS
    assert robot(domain=of_people, monkeypatch=monkeypatch).write("ARMED") == ""
    assert "in ROS_DOMAIN_ID 0, was not disarmed" in robot().latch_reason()


@pytest.mark.parametrize(
    "make, trouble",
    [
        (os.mkfifo, "no file, of "),
        (lambda path: path.mkdir(), "Is a directory, of "),
        (lambda path: path.write_bytes(b"x" * 100), f"{b'x' * 64!r}, of "),
    ],
)
def test_what_is_no_record_is_named_with_its_owner_and_domain(make, trouble, tmp_path):
    path = tmp_path / "latch"
    make(path)
    owner = latching.user_name(os.geteuid())
    expected = latching.Record(path, "", domain=7, error=trouble + owner)
    assert latching._read(path, 7) == expected
    missing = latching._read(tmp_path / "nothing", 7)
    assert missing.error == "No such file or directory, of an unknown user"
    assert (missing.path, missing.mode, missing.domain) == (tmp_path / "nothing", "", 7)


@pytest.fixture
def unused_name(monkeypatch):
    """Provide a name that no other process uses, in domain 7."""
    monkeypatch.setenv("ROS_DOMAIN_ID", "7")
    return f"/test{os.getpid()}"


def test_s23_one_interlock_at_a_time_commands_a_robot(unused_name, monkeypatch):
    assert lock_name("/a/b/") == "interlock/7/a/b" and lock_name("/") == "interlock/7/station"
    command = f"{unused_name}/command"
    with exclusive_command(unused_name, [command, unused_name]):
        with pytest.raises(RlinfError) as refused:
            exclusive_command(unused_name)
        assert f"another interlock commands station '{unused_name}' in ROS_DOMAIN_ID 7" in str(
            refused.value
        )
        for _ in range(2):
            with pytest.raises(RlinfError) as refused:
                exclusive_command(f"{unused_name}b", [command])
            assert f"commands the robot on '{command}' in ROS_DOMAIN_ID 7" in str(refused.value)
        exclusive_command(f"{unused_name}b").close()  # a refusal holds nothing
        monkeypatch.setenv("ROS_DOMAIN_ID", "8")
        exclusive_command(unused_name, [command]).close()
        monkeypatch.setenv("ROS_DOMAIN_ID", "7")
    exclusive_command(unused_name, [command]).close()


def test_s23_a_right_that_cannot_be_checked_is_refused_and_none_is_held(unused_name, monkeypatch):
    def take_first(name):
        if name.endswith("command"):
            raise OSError("no sockets")
        return acquire(name)

    monkeypatch.setattr(latching, "acquire", take_first)
    for _ in range(2):
        with pytest.raises(
            RlinfError,
            match="cannot check whether another interlock commands the robot on "
            f"'{unused_name}/command': "
            "no sockets. Free sockets",
        ):
            exclusive_command(unused_name, [f"{unused_name}/command"])
    exclusive_command(unused_name).close()
