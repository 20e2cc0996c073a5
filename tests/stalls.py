"""Detect that the machine stalled during a test, so that a real-time test can be repeated.

A separate process and a thread of pytest's process sleep 20 ms at a time and report late wake-ups.
Stand-ins for arms and pendants (``Peer.every``) report them, too. A failed test with the mark
``ros`` or ``timed`` runs again, at most twice, if there was such a report during the test. The
summary lists these tests. Without a report the failure counts.
"""

import os
import struct
import subprocess
import sys
import threading
import time

LATE_S = 0.05  # the shortest time after which an interlock calls an arm silent
NAP_S = 0.02
AGAIN = 2  # times
WORD = struct.Struct("d")


class Watch:
    """Collects late wake-ups in one run of pytest.

    Attributes:
        worst: latest wake-up since the start of the test [s].
        test: the running test.
        again: worst wake-up of each repeated test [s].
    """

    def __init__(self):
        self.worst, self.test, self.again, self.process = 0.0, "", {}, None

    def begin(self, test=""):
        """Start to watch a test."""
        if self.process is None:
            reading_end, says = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(reading_end, False)
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(says), str(os.getpid())],
                pass_fds=[says],
                start_new_session=True,
            )
            os.close(says)
            self.pipe = reading_end
            threading.Thread(target=naps, args=[self.note], daemon=True).start()
        self._take()
        self.worst, self.test = 0.0, test

    def note(self, late_s):
        """Record a late wake-up."""
        self.worst = max(self.worst, late_s)

    def stalled(self, error):
        """Return whether a wake-up was late since the start of the test, which ended with
        ``error``.

        It is False for a test without an error.
        """
        self._take()
        if error is None or self.worst <= LATE_S:
            return False
        self.again[self.test] = self.worst
        return True

    def _take(self):
        try:
            while words := os.read(self.pipe, 8 * WORD.size):
                for (late_s,) in WORD.iter_unpack(words):
                    self.note(late_s)
        except BlockingIOError:
            pass


WATCH = Watch()


def naps(note, go_on=lambda: True):
    """Sleep 20 ms at a time, and report the delay of each wake-up."""
    while go_on():
        before = time.monotonic()
        time.sleep(NAP_S)
        note(time.monotonic() - before - NAP_S)


if __name__ == "__main__":
    says, parent = map(int, sys.argv[1:])
    naps(
        lambda late_s: late_s > LATE_S and os.write(says, WORD.pack(late_s)),
        lambda: os.getppid() == parent,
    )
