"""An interrupt within an import is neither lost nor told as a traceback."""

import os
import signal

import pytest

from rlinf_core.interrupts import held_back


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_end_of_the_block(number):
    before, done = signal.signal(number, signal.default_int_handler), []
    try:
        with pytest.raises(KeyboardInterrupt), held_back():
            os.kill(os.getpid(), number)
            done.append("the block goes on")
    finally:
        signal.signal(number, before)
    assert done
