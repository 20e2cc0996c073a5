"""Whether the machine stood still while a test ran: what a station in real time shows of itself
then is about the machine.

A process of its own, as a node has one, sleeps 20 ms at a time and says when it was woken late, and
so does a thread of the test's own process; as does whatever stands in for an arm or a pendant
(``Peer.every``), which must not pause either. A test of the mark ``ros`` or ``timed`` that failed
while one of them was late is run again, at most twice, and counted as such at the end; one that
failed on a machine that kept time has failed.
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
    """Of one run of pytest; ``stalled`` is about the test that runs."""

    def __init__(self):
        self.worst, self.test, self.again, self.process = 0.0, "", {}, None

    def begin(self, test=""):
        """It begins."""
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
        """Somebody was late."""
        self.worst = max(self.worst, late_s)

    def stalled(self, error):
        """Whether anybody was, since the test began, which ended with this error; None where it did
        not.
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
    """Of 20 ms each; how late one ended is noted."""
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
