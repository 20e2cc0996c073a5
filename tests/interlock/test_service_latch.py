"""State that the interlock's service process stores for its successor (S14)."""

import socket
import time
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from rlinf_core.interlock import load_limits
from rlinf_core.interlock.latch import Latch
from rlinf_interlock.interlock_services import (
    NO_ANSWER,
    REQUESTS_CLOSED,
    Channel,
    InterlockClient,
    LimitsFileWatch,
    ServiceProcess,
    _tuples_to_lists,
)
from tests.interlock.conftest import limits


@pytest.mark.parametrize(
    "answer, written", [("", "ARMED"), ("this stands: estop:pendant", "DISARMED")]
)
def test_s14_a_refused_arming_is_not_remembered_as_armed(tmp_path, answer, written):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    interlock, front = Channel(ours), InterlockClient(Channel(theirs))
    front.latch = Latch(str(tmp_path / "memory"))
    interlock.send({"disarmed": 0})
    front.listen()
    assert (tmp_path / "memory").read_text() == "DISARMED"
    interlock.send({"reply": 1, "reason": answer})
    assert front.arm(True) == answer
    assert (tmp_path / "memory").read_text() == written


def test_s14_an_arming_without_an_answer_stays_written_down(tmp_path):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    interlock, front = Channel(ours), InterlockClient(Channel(theirs))
    front.latch = Latch(str(tmp_path / "memory"))
    interlock.send({"disarmed": 0})
    front.listen()
    interlock.close()
    front.channel.send = lambda _: True
    assert front.arm(True).startswith(NO_ANSWER)
    assert (tmp_path / "memory").read_text() == "ARMED"


@pytest.mark.parametrize(
    "first", ["this stands: estop:pendant", None], ids=["refused", "unanswered"]
)
def test_s14_armings_are_counted_alike_at_both_ends_whatever_became_of_them(
    tmp_path, monkeypatch, first
):
    """The interlock counts what it has dealt with, granted or not: one that it comes to late is one
    of them.
    """
    monkeypatch.setattr("rlinf_interlock.interlock_services.ANSWER_S", 0.1)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    interlock, front = Channel(ours), InterlockClient(Channel(theirs))
    front.latch = Latch(str(tmp_path / "memory"))
    if first is not None:
        interlock.send({"reply": 1, "reason": first})
    assert (front.arm(True) == first) is (first is not None)
    interlock.send({"reply": 2, "reason": ""})
    assert front.arm(True) == "" and (tmp_path / "memory").read_text() == "ARMED"
    times = [request["asked"] for request in interlock.receive()]
    assert sorted(times) == times and len(times) == 2 and 0.0 < time.monotonic() - times[0] < 60.0
    only_the_second_disarming_counts(interlock, front, tmp_path / "memory")


def only_the_second_disarming_counts(interlock, front, memory):
    """The first is of before the second arming."""
    for number, state_text in ((1, "ARMED"), (2, "DISARMED")):
        interlock.send({"disarmed": number})
        front.listen()
        assert memory.read_text() == state_text


def test_s14_what_could_not_be_asked_is_not_counted(tmp_path):
    front = InterlockClient(SimpleNamespace(send=lambda _: False))
    assert front.arm(True) == REQUESTS_CLOSED and front.armings == 0


def test_s14_a_new_service_process_goes_on_counting_armings_and_believes_no_older_word(tmp_path):
    """Else the disk would say DISARMED of an arm that was armed in the meantime, or never again."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    interlock, front = Channel(ours), InterlockClient(Channel(theirs))
    interlock.send(
        {
            "hello": {
                "settings": {"latch_file": str(tmp_path / "memory")},
                "limits": {},
                "armings": 1,
            }
        }
    )
    front.listen()
    interlock.send({"reply": 1, "reason": ""})
    assert front.arm(True) == ""
    only_the_second_disarming_counts(interlock, front, tmp_path / "memory")


class Process:
    """A service process that is alive until a test says otherwise."""

    def __init__(self, *_, **__):
        self.code = None

    def poll(self):
        return self.code


def test_s25_where_no_process_can_be_had_the_interlock_goes_on_and_tries_again(monkeypatch):
    processes = []

    def none_left(*what, **how):
        if len(processes) in (1, 2):
            processes.append(None)
            raise BlockingIOError("fork: Resource temporarily unavailable")
        processes.append(Process())
        return processes[-1]

    monkeypatch.setattr("rlinf_interlock.interlock_services.subprocess.Popen", none_left)
    service_process = ServiceProcess({"latch_file": "", "autostart": True}, limits())
    assert not service_process.replace_if_dead(0, True)
    service_process.set_limits(limits(speed=0.1))
    processes[0].code = -9
    for expected in (1, 2, 3, 4):
        service_process.opened, service_process.beat_s = time.monotonic() - 3.0, time.monotonic()
        assert service_process.replace_if_dead(3, False) is (expected < 4), (
            "once it is there, it stays"
        )
        service_process.log("info", "nobody hears it")
        assert service_process.requests() == []
    assert len(processes) == 4 and service_process.process is processes[-1]
    assert service_process._hello["limits"] == _tuples_to_lists(asdict(limits(speed=0.1))), (
        "those of now, not those of its start"
    )
    service_process.close()


def test_s14_an_arming_is_as_old_as_its_arrival_however_long_the_disk_takes(tmp_path, monkeypatch):
    """A slow fsync makes it no younger: the interlock refuses it after three seconds, as it
    says.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    interlock, front = Channel(ours), InterlockClient(Channel(theirs))
    front.latch = Latch(str(tmp_path / "memory"))
    note, clock = front.latch.write, [100.0]
    monkeypatch.setattr("rlinf_interlock.interlock_services.time.monotonic", lambda: clock[0])

    def slow(mode):
        clock[0] += 4.0
        return note(mode)

    monkeypatch.setattr(front.latch, "write", slow)
    interlock.send({"reply": 1, "reason": ""})
    front.arm(True)
    assert [request["asked"] for request in interlock.receive()] == [100.0] and clock[0] == 104.0


class Line:
    """A channel, the other end of which beats."""

    def __init__(self):
        self.open, self.sent = True, []

    def send(self, message):
        self.sent.append(message)
        self.open = len(self.sent) < 3
        return True

    def receive(self, *_):
        return []


@pytest.mark.parametrize(
    "writing, silent_s, beats", [(False, 0.0, True), (False, 1.0, False), (True, 9.0, True)]
)
def test_s25_a_service_process_beats_unless_its_main_loop_hangs_and_a_slow_disk_is_no_hang(
    monkeypatch, writing, silent_s, beats
):
    line = Line()
    front = InterlockClient(line)
    front.writing, front.listened_s = writing, time.monotonic() - silent_s
    looks = []

    def sleep(_):
        looks.append(None)
        line.open = line.open and len(looks) < 3

    monkeypatch.setattr("rlinf_interlock.interlock_services.time.sleep", sleep)
    front.beat()
    assert line.sent == [{"beat": True}] * (3 if beats else 0)


@pytest.mark.parametrize(
    "silent_s, starved, check_gap_s, replaced",
    [
        (0.5, False, 0.1, False),
        (0.8, False, 0.1, True),
        (0.8, True, 0.1, False),
        (11.0, True, 0.1, True),
        (11.0, False, 1.0, False),
    ],
)
def test_s25_a_service_process_that_hangs_is_killed_and_replaced(
    monkeypatch, silent_s, starved, check_gap_s, replaced
):
    """One that waits for a CPU does not hang; and an interlock that stood still itself cannot tell
    yet.
    """
    processes, killed = [], []
    Process.pid, Process.kill = 1, lambda self: killed.append(self)
    monkeypatch.setattr(
        "rlinf_interlock.interlock_services.subprocess.Popen",
        lambda *_, **__: processes.append(Process()) or processes[-1],
    )
    monkeypatch.setattr("rlinf_interlock.interlock_services._is_starved", lambda _: starved)
    service_process = ServiceProcess({"latch_file": "", "autostart": True}, limits())
    now = time.monotonic()
    service_process.beat_s, service_process.checked_s = now - silent_s, now - check_gap_s
    assert service_process.replace_if_dead(0, True) is replaced
    assert killed == processes[:1] * replaced and len(processes) == 1 + replaced
    service_process.close()


def test_s25_a_service_process_that_never_begins_is_replaced_too(monkeypatch):
    processes = []
    Process.kill = lambda self: None
    monkeypatch.setattr(
        "rlinf_interlock.interlock_services.subprocess.Popen",
        lambda *_, **__: processes.append(Process()) or processes[-1],
    )
    service_process = ServiceProcess({"latch_file": "", "autostart": True}, limits())
    assert not service_process.replace_if_dead(0, True)
    service_process.opened -= 61.0
    assert service_process.replace_if_dead(0, True) and len(processes) == 2
    service_process.close()


def test_s25_beats_are_no_requests(monkeypatch):
    monkeypatch.setattr(
        "rlinf_interlock.interlock_services.subprocess.Popen", lambda *_, **__: Process()
    )
    service_process = ServiceProcess({"latch_file": "", "autostart": True}, limits())
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    service_process.channel.close()
    service_process.channel, other = Channel(ours), Channel(theirs)
    for message in ({"beat": True}, {"id": 1, "do": "arm"}, {"beat": True}):
        other.send(message)
    assert (
        service_process.requests() == [{"id": 1, "do": "arm"}]
        and time.monotonic() - service_process.beat_s < 60.0
    )
    assert service_process.requests() == []
    service_process.close()


LIMITS = """box_low: [0.3, -0.25, 0.005]
box_high: [0.7, 0.25, 0.45]
speed: {speed}
acceleration: 1.0
jerk: 10.0
divergence: 0.03
orientation: [0, 1, 0, 0]
cone: 0.5
"""


def test_s19_a_limits_file_that_is_swapped_behind_its_link_is_noticed_once_and_loads_nothing(
    tmp_path,
):
    for name, speed in (("slow", 0.1), ("fast", 0.3)):
        (tmp_path / f"{name}.yaml").write_text(LIMITS.format(speed=speed))
    link = tmp_path / "limits.yaml"
    link.symlink_to(tmp_path / "slow.yaml")
    slow, fast = load_limits(link).hash, load_limits(tmp_path / "fast.yaml").hash
    watch = LimitsFileWatch(str(link), slow)
    assert watch.check() == ""
    link.unlink()
    link.symlink_to(tmp_path / "fast.yaml")
    warning = watch.check()
    assert (
        f"fast.yaml) holds limits {fast} now. The limits {slow} from the start stay in force"
        in warning
    )
    assert "Restart the station" in warning
    assert watch.check() == "", "once"
    link.unlink()
    assert "unreadable" in watch.check() and watch.check() == ""
    link.write_text(LIMITS.format(speed="nan"))
    assert "unreadable" in watch.check()
    link.write_text("# another comment\n" + LIMITS.format(speed=0.1))
    assert f"has limits {slow} again" in watch.check() and watch.check() == ""
    (tmp_path / "maximum.yaml").write_text("speed: 0.05\n")
    assert "unreadable" in watch.check(), "what it depends on counts too"


def test_s19_the_service_process_is_told_the_hash_of_the_file_also_after_limits_were_set(
    monkeypatch,
):
    monkeypatch.setattr(
        "subprocess.Popen", lambda *_, **__: SimpleNamespace(poll=lambda: None, kill=lambda: None)
    )
    service_process = ServiceProcess({"latch_file": "", "autostart": True}, limits())
    service_process.set_limits(limits(speed=0.1))
    assert (
        service_process._hello["file_hash"] == limits().hash
        and service_process._hello["limits"]["speed"] == 0.1
    )
