"""Run the interlock with a clock that steps: SIGUSR1 an hour ahead, SIGUSR2 an hour back."""

import signal
import time

HOUR_NS = 3600 * 10**9
_real, _offset_ns = time.time_ns, 0


def _step(by_ns):
    def handler(*_):
        global _offset_ns
        _offset_ns += by_ns

    return handler


time.time_ns = lambda: _real() + _offset_ns
signal.signal(signal.SIGUSR1, _step(HOUR_NS))
signal.signal(signal.SIGUSR2, _step(-HOUR_NS))

from rlinf_interlock.interlock import main  # noqa: E402

main()
