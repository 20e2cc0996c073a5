"""Locks of the machine: one holder, of whatever user, and no file in the way of anyone."""

import os
import subprocess
import sys

import pytest

from rlinf_core.core.machine import HeldError, acquire, holder, is_held, user_name

pytestmark = pytest.mark.timed

# once all is imported: a home is closed to other users
BECOME = (
    "import os, sys; from rlinf_core.core.machine import acquire, HeldError\n"
    "os.setuid(int(sys.argv[2]))\n"
)
HOLD = f"{BECOME}lock = acquire(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
TRY = f"{BECOME}try: acquire(sys.argv[1])\nexcept HeldError as error: print(error)\nelse: print('taken')"
OTHER = 12345  # a user's number


def start(code, name, uid=None):
    return subprocess.Popen(
        [sys.executable, "-c", code, name, str(os.geteuid() if uid is None else uid)],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def test_a_lock_has_one_holder_and_is_free_once_it_is_closed():
    with acquire("test/one"):
        assert is_held("test/one") and not is_held("test/other")
        with pytest.raises(
            HeldError, match=f"process {os.getpid()} of {user_name(os.geteuid())[:5]}"
        ):
            acquire("test/one")
    acquire("test/one").close()


def test_a_lock_of_another_user_is_refused_with_its_process_and_user():
    if os.geteuid():
        pytest.skip("only root may start a process of another user")
    held = start(HOLD, "test/theirs", OTHER)
    try:
        assert held.stdout.readline() == "held\n"
        with pytest.raises(HeldError, match=f"^process {held.pid} of uid {OTHER}$"):
            acquire("test/theirs")
    finally:
        held.communicate("")
    with acquire("test/theirs"):
        refused = start(TRY, "test/theirs", OTHER).communicate()[0]
    assert refused == f"process {os.getpid()} of {user_name(0)}\n"


def test_a_killed_holder_leaves_its_lock_free():
    held = start(HOLD, "test/killed")
    assert held.stdout.readline() == "held\n" and is_held("test/killed")
    held.kill()
    held.communicate()
    acquire("test/killed").close()


def test_names_of_any_length_are_locks_of_their_own():
    one, other = "test/" + "a" * 300, "test/" + "a" * 299 + "b"
    with acquire(one), acquire(other), pytest.raises(HeldError):
        acquire(one)


def test_a_holder_that_answers_nobody_is_said_with_how_to_find_it():
    assert "sudo ss -xlp" in holder("test/nobody")
