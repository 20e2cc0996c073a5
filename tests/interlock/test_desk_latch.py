"""What the interlock's desk writes down for the one that comes after it (S14)."""

import socket

import pytest

from rlinf.interlock_channel import Channel
from rlinf.interlock_desk import NO_ANSWER, Front, PersistedLatch


@pytest.mark.parametrize("answer, written", [("", "ARMED"), ("this stands: estop:pendant", "DISARMED")])
def test_s14_a_refused_arming_is_not_remembered_as_armed(tmp_path, answer, written):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    interlock, front = Channel(ours), Front(Channel(theirs))
    front.latch = PersistedLatch(str(tmp_path / "memory"))
    interlock.send({"disarmed": 0})
    front.listen()
    assert (tmp_path / "memory").read_text() == "DISARMED"
    interlock.send({"reply": 1, "reason": answer})
    assert front.arm(True) == answer
    assert (tmp_path / "memory").read_text() == written


def test_s14_an_arming_without_an_answer_stays_written_down(tmp_path):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    interlock, front = Channel(ours), Front(Channel(theirs))
    front.latch = PersistedLatch(str(tmp_path / "memory"))
    interlock.send({"disarmed": 0})
    front.listen()
    interlock.close()
    front.channel.send = lambda _: True
    assert front.arm(True).startswith(NO_ANSWER)
    assert (tmp_path / "memory").read_text() == "ARMED"
